/** Where curves lie in the image, which is nearest to the pointer, and how one is drawn. */

import type { Curves } from './curves';
import { addSegment, type Buffer, type Trace } from './raster';

export interface Placed {
  width: number;
  height: number;
  begin: Uint32Array;
  end: Uint32Array;
  x: Float32Array;
  /** NaN where nothing was measured. */
  y: Float32Array;
}

export function layOut(
  curves: Curves,
  values: Float32Array,
  frame: { x: [number, number]; y: [number, number]; log: boolean },
  width: number,
  height: number,
): Placed {
  const count = values.length;
  const [x, y] = [new Float32Array(count), new Float32Array(count)];
  const across = (width - 1) / (frame.x[1] - frame.x[0]);
  const [low, high] = frame.log ? frame.y.map((each) => Math.log10(each)) : frame.y;
  const up = (height - 1) / (high - low);
  for (let i = 0; i < count; i++) {
    x[i] = (curves.epochs[i] - frame.x[0]) * across;
    const value = frame.log ? Math.log10(values[i]) : values[i];
    y[i] = Number.isFinite(value) ? height - 1 - (value - low) * up : NaN;
  }
  return { width, height, begin: curves.begin, end: curves.end, x, y };
}

/** Pixels of the screen from the middle of a point that stands alone to its edge. */
const RADIUS = 3.5;

/** `ratio`: pixels of the image in one of the screen. */
export function traceOf(placed: Placed, ratio: number): Trace {
  const { width, height, begin, end, x, y } = placed;
  const [right, bottom] = [width - 1, height - 1];
  return (line: number, buffer: Buffer, amount: number): void => {
    let before = -1;
    let drawn = false;
    for (let i = begin[line]; i < end[line]; i++) {
      if (Number.isNaN(y[i])) {
        before = -1;
        continue;
      }
      if (before >= 0) {
        drawn = true;
        const inside =
          x[before] >= 0 && x[i] <= right && y[before] >= 0 && y[before] <= bottom && y[i] >= 0 && y[i] <= bottom;
        if (inside) addSegment(buffer, width, x[before], y[before], x[i], y[i], amount);
        else clipped(buffer, width, right, bottom, x[before], y[before], x[i], y[i], amount);
      }
      before = i;
    }
    if (drawn) return;
    for (let i = begin[line]; i < end[line]; i++) if (!Number.isNaN(y[i])) dot(buffer, width, height, x[i], y[i], RADIUS * ratio, amount);
  };
}

/** A disc, as far as it lies in the image; none where its middle does not. */
function dot(buffer: Buffer, width: number, height: number, x: number, y: number, radius: number, amount: number): void {
  if (x < 0 || x > width - 1 || y < 0 || y > height - 1) return;
  const [top, bottom] = [Math.max(0, Math.ceil(y - radius)), Math.min(height - 1, Math.floor(y + radius))];
  for (let row = top; row <= bottom; row++) {
    const half = Math.sqrt(radius ** 2 - (row - y) ** 2);
    const [left, right] = [Math.max(0, Math.ceil(x - half)), Math.min(width - 1, Math.floor(x + half))];
    for (let column = left; column <= right; column++) buffer[row * width + column] += amount;
  }
}

/** The part of a segment that lies in the image (Liang and Barsky, 1984). */
function clipped(
  buffer: Buffer,
  width: number,
  right: number,
  bottom: number,
  x0: number,
  y0: number,
  x1: number,
  y1: number,
  amount: number,
): void {
  const [dx, dy] = [x1 - x0, y1 - y0];
  let [from, to] = [0, 1];
  for (const [direction, distance] of [
    [-dx, x0],
    [dx, right - x0],
    [-dy, y0],
    [dy, bottom - y0],
  ]) {
    if (direction === 0) {
      if (distance < 0) return;
    } else {
      const share = distance / direction;
      if (direction < 0) from = Math.max(from, share);
      else to = Math.min(to, share);
    }
  }
  if (from >= to) return;
  const fit = (value: number, most: number): number => Math.min(most, Math.max(0, value));
  addSegment(
    buffer,
    width,
    fit(x0 + from * dx, right),
    fit(y0 + from * dy, bottom),
    fit(x0 + to * dx, right),
    fit(y0 + to * dy, bottom),
    amount,
  );
}

/** Of the curves in `mask` the one that passes nearest below or above, and its point that is nearest along. */
export function nearestCurve(
  placed: Placed,
  mask: Uint8Array,
  x: number,
  y: number,
  most: number,
): { trial: number; point: number } {
  const found = { trial: -1, point: -1 };
  let best = most;
  const trials = Math.min(mask.length, placed.begin.length);
  for (let trial = 0; trial < trials; trial++) {
    const [first, end] = [placed.begin[trial], placed.end[trial]];
    if (!mask[trial] || first === end) continue;
    if (placed.x[first] > x + 8 || placed.x[end - 1] < x - 8) continue;
    let [low, high] = [first, end - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (placed.x[middle] < x) low = middle + 1;
      else high = middle;
    }
    const before = Math.max(first, low - 1);
    const span = placed.x[low] - placed.x[before];
    const share = span > 0 ? Math.min(1, (x - placed.x[before]) / span) : 1;
    const away = Math.abs(placed.y[before] + (placed.y[low] - placed.y[before]) * share - y);
    if (away < best) {
      best = away;
      found.trial = trial;
      found.point = share < 0.5 ? before : low;
    }
  }
  return found;
}
