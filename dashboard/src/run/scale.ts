/** Positions of values along an axis, 0 (low) to 1 (high), and its ticks. */

import { short } from '../lib/format';
import { extent, quantile, type TrialColumn } from './columns';

export interface Tick {
  position: number;
  label: string;
}

/** Distances of ticks between whole numbers, for uPlot. */
export const WHOLE = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7].flatMap((power) => [power, 2 * power, 5 * power]);

export interface Scale {
  kind: TrialColumn['kind'];
  low: number;
  high: number;
  position(value: number): number;
  value(position: number): number;
  ticks: Tick[];
}

export function scaleOf(column: TrialColumn, kind: TrialColumn['kind'] = column.kind): Scale {
  if (column.kind === 'category') return categories(column.categories);
  let [low, high] = extent(column.values);
  if (Number.isNaN(low)) [low, high] = [0, 1];
  if (kind === 'log' && low > 0) return logarithmic(low, high, column.isWhole);
  if (column.source === 'result') [low, high] = withoutOutliers(column.values, low, high);
  return linear(low, high, column.isWhole);
}

/** Diverged trials would press all others into one pixel: far outliers lie on the edge. */
export function withoutOutliers(values: ArrayLike<number>, low: number, high: number): [number, number] {
  const [a, b] = [quantile(values, 0.05), quantile(values, 0.95)];
  const span = b - a;
  if (!(span > 0)) return [low, high];
  return [low < a - 3 * span ? a - span * 0.3 : low, high > b + 3 * span ? b + span * 0.3 : high];
}

function categories(names: string[]): Scale {
  const count = Math.max(1, names.length);
  const position = (value: number): number => (value + 0.5) / count;
  const step = Math.ceil(count / 16);
  return {
    kind: 'category',
    low: 0,
    high: count - 1,
    position,
    value: (at) => at * count - 0.5,
    ticks: names.map((label, i) => ({ position: position(i), label })).filter((_, i) => i % step === 0),
  };
}

export function linear(low: number, high: number, isWhole = false): Scale {
  if (!(high > low)) [low, high] = [low - (Math.abs(low) || 1) * 0.5, high + (Math.abs(high) || 1) * 0.5];
  const span = high - low;
  return {
    kind: 'linear',
    low,
    high,
    position: (value) => clamp((value - low) / span),
    value: (at) => low + at * span,
    ticks: linearTicks(low, high, 5).filter((value) => !isWhole || Math.abs(value - Math.round(value)) < 1e-9).map((value) => ({ position: (value - low) / span, label: short(value) })),
  };
}

export function linearTicks(low: number, high: number, about: number): number[] {
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? rough;
  const ticks: number[] = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

/** Multiples of what clocks are divided into. */
export function timeTicks(begin: number, end: number, about: number): number[] {
  const rough = (end - begin) / about;
  if (rough < 1) return linearTicks(begin, end, about);
  const [minute, hour, day] = [60, 3600, 86400];
  const steps = [1, 2, 5, 10, 15, 30, minute, 2 * minute, 5 * minute, 10 * minute, 15 * minute, 30 * minute];
  steps.push(hour, 2 * hour, 3 * hour, 6 * hour, 12 * hour, day, 2 * day, 7 * day, 30 * day, 365 * day);
  const step = steps.find((each) => each >= rough) ?? rough;
  const ticks: number[] = [];
  for (let i = Math.ceil(begin / step); i * step <= end; i++) ticks.push(i * step);
  return ticks;
}

export function logarithmic(low: number, high: number, isWhole = false): Scale {
  if (!(high > low)) [low, high] = [low / 2, high * 2];
  const [a, b] = [Math.log10(low), Math.log10(high)];
  const position = (value: number): number => (value <= 0 ? 0 : clamp((Math.log10(value) - a) / (b - a)));
  const decades: number[] = [];
  const step = Math.max(1, Math.ceil((b - a) / 6));
  for (let power = Math.ceil(a - 1e-9); power <= b + 1e-9; power += step) decades.push(10 ** power);
  const few = [low, Math.sqrt(low * high), high];
  const values = decades.length >= 2 ? decades : isWhole ? [...new Set(few.map((value) => Math.round(value)))] : few;
  return {
    kind: 'log',
    low,
    high,
    position,
    value: (at) => 10 ** (a + at * (b - a)),
    ticks: values.map((value) => ({ position: position(value), label: short(value) })),
  };
}

/** NaN stays NaN. */
function clamp(share: number): number {
  return share < 0 ? 0 : share > 1 ? 1 : share;
}
