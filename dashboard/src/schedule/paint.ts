/** Draws workers by time. */

import { MERGED, type Units } from './parse';

export interface Window {
  begin: number;
  end: number;
}

export interface Look {
  width: number;
  height: number;
  rowHeight: number;
  isDark: boolean;
  background: string;
  text: string;
  mark: string;
  /** Trial that stands out, or -1. */
  trial: number;
  hops: boolean;
}

/** Neighbouring numbers differ much: steps of the golden angle. */
export function colourOf(trial: number, isDark: boolean): { fill: string; text: string } {
  const hue = (trial * 137.508) % 360;
  const light = (isDark ? [46, 58, 38] : [70, 58, 80])[trial % 3];
  return { fill: `hsl(${hue.toFixed(0)} 52% ${light}%)`, text: light > 55 ? '#10140f' : '#ffffff' };
}

export function paint(context: CanvasRenderingContext2D, units: Units, window: Window, look: Look): void {
  const { width, height, rowHeight } = look;
  context.fillStyle = look.background;
  context.fillRect(0, 0, width, height);
  const scale = width / (window.end - window.begin);
  const inset = rowHeight > 6 ? 1 : 0;
  context.font = '11px system-ui, sans-serif';
  context.textBaseline = 'middle';
  for (let i = 0; i < units.count; i++) {
    const left = (units.from[i] - window.begin) * scale;
    const right = (units.to[i] - window.begin) * scale;
    if (right < 0 || left > width) continue;
    const size = Math.max(0.7, right - left - (right - left > 4 ? 0.6 : 0));
    const top = units.row[i] * rowHeight + inset;
    const tall = rowHeight - 2 * inset;
    const isMerged = units.phase[i] === MERGED;
    const { fill, text } = colourOf(units.trial[i], look.isDark);
    context.globalAlpha = look.trial >= 0 && units.trial[i] !== look.trial ? 0.25 : 1;
    context.fillStyle = fill;
    // What validates is half as high.
    if (units.phase[i] === 1) context.fillRect(left, top + tall * 0.3, size, tall * 0.7);
    else context.fillRect(left, top, size, tall);
    if (size > 34 && tall >= 12 && !isMerged) {
      context.fillStyle = text;
      context.fillText(String(units.trial[i]), Math.max(left, 0) + 4, top + tall * (units.phase[i] === 1 ? 0.65 : 0.5), size - 6);
    }
  }
  context.globalAlpha = 1;
  context.strokeStyle = look.mark;
  context.lineWidth = 1;
  context.setLineDash([3, 3]);
  context.beginPath();
  for (const { seconds } of units.marks) {
    const x = Math.round((seconds - window.begin) * scale) + 0.5;
    context.moveTo(x, 0);
    context.lineTo(x, height);
  }
  context.stroke();
  context.setLineDash([]);
  if (look.hops || look.trial >= 0) paintHops(context, units, window, look, scale);
}

/** A line from where a trial left one worker to where it went on at another. */
function paintHops(context: CanvasRenderingContext2D, units: Units, window: Window, look: Look, scale: number): void {
  const order = Uint32Array.from({ length: units.count }, (_, i) => i).sort(
    (a, b) => units.trial[a] - units.trial[b] || units.from[a] - units.from[b],
  );
  context.strokeStyle = look.trial >= 0 ? look.mark : look.text;
  context.lineWidth = look.trial >= 0 ? 1.6 : 0.6;
  context.globalAlpha = look.trial >= 0 ? 1 : 0.5;
  context.beginPath();
  for (let k = 1; k < order.length; k++) {
    const [a, b] = [order[k - 1], order[k]];
    if (units.trial[a] !== units.trial[b] || units.row[a] === units.row[b]) continue;
    if (units.phase[a] === MERGED || units.phase[b] === MERGED) continue;
    if (look.trial >= 0 && units.trial[a] !== look.trial) continue;
    context.moveTo((units.to[a] - window.begin) * scale, (units.row[a] + 0.5) * look.rowHeight);
    context.lineTo((units.from[b] - window.begin) * scale, (units.row[b] + 0.5) * look.rowHeight);
  }
  context.stroke();
  context.globalAlpha = 1;
}
