/** Curves of one metric of all trials, in flat arrays. */

import type { Points, Trial } from '../lib/api';

export interface Curves {
  metric: string;
  /** Points of trial i (its index, not number) are begin[i] to end[i]. */
  begin: Uint32Array;
  end: Uint32Array;
  epochs: Float32Array;
  values: Float32Array;
}

/** Reads what the server sends: the HYC1 form. Raises Error if it is something else. */
export function parseCurves(buffer: ArrayBuffer, metric: string, trials: readonly Trial[]): Curves {
  const view = new DataView(buffer);
  if (buffer.byteLength < 12 || view.getUint32(0, false) !== 0x48594331) {
    throw new Error('The server sent curves in a form that this page does not know. Reload the page.');
  }
  const [count, total] = [view.getUint32(4, true), view.getUint32(8, true)];
  const numbers = new Uint32Array(buffer, 12, count);
  const lengths = new Uint32Array(buffer, 12 + 4 * count, count);
  const index = new Map(trials.map((trial, i) => [trial.trial, i]));
  const begin = new Uint32Array(trials.length);
  const end = new Uint32Array(trials.length);
  let at = 0;
  for (let i = 0; i < count; i++) {
    const trial = index.get(numbers[i]);
    if (trial !== undefined) {
      begin[trial] = at;
      end[trial] = at + lengths[i];
    }
    at += lengths[i];
  }
  const from = 12 + 8 * count;
  return {
    metric,
    begin,
    end,
    epochs: new Float32Array(buffer, from, total),
    values: new Float32Array(buffer, from + 4 * total, total),
  };
}

/** With the points that came since; those that are there already are left out. */
export function withPoints(curves: Curves, trials: readonly Trial[], points: ReadonlyMap<number, Points[]>): Curves {
  const added = trials.map((trial, i) => {
    const last = i < curves.end.length && curves.end[i] > curves.begin[i] ? curves.epochs[curves.end[i] - 1] : -Infinity;
    return fresh(points.get(trial.trial) ?? [], curves.metric, last);
  });
  const total = curves.values.length + added.reduce((sum, each) => sum + each.length, 0);
  const [begin, end] = [new Uint32Array(trials.length), new Uint32Array(trials.length)];
  const [epochs, values] = [new Float32Array(total), new Float32Array(total)];
  let at = 0;
  trials.forEach((_, i) => {
    begin[i] = at;
    if (i < curves.begin.length) {
      epochs.set(curves.epochs.subarray(curves.begin[i], curves.end[i]), at);
      values.set(curves.values.subarray(curves.begin[i], curves.end[i]), at);
      at += curves.end[i] - curves.begin[i];
    }
    for (const [epoch, value] of added[i]) {
      epochs[at] = epoch;
      values[at++] = value;
    }
    end[i] = at;
  });
  return { metric: curves.metric, begin, end, epochs: epochs.subarray(0, at), values: values.subarray(0, at) };
}

function fresh(points: Points[], metric: string, last: number): [number, number][] {
  const found: [number, number][] = [];
  for (const each of points) {
    const values = each.metrics[metric] ?? [];
    each.epoch.forEach((epoch, i) => {
      if (epoch <= last) return;
      last = epoch;
      found.push([epoch, values[i] ?? NaN]);
    });
  }
  return found;
}

/** Exponential smoothing of each curve, its beginning corrected as Adam's moments are; NaN is passed over. */
export function smoothed(curves: Curves, weight: number): Float32Array {
  if (weight <= 0) return curves.values;
  const values = new Float32Array(curves.values.length);
  for (let trial = 0; trial < curves.begin.length; trial++) {
    let sum = 0;
    let scale = 1;
    for (let i = curves.begin[trial]; i < curves.end[trial]; i++) {
      const value = curves.values[i];
      if (!Number.isFinite(value)) {
        values[i] = NaN;
        continue;
      }
      sum = weight * sum + (1 - weight) * value;
      scale *= weight;
      values[i] = sum / (1 - scale);
    }
  }
  return values;
}
