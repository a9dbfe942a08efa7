/** The schedule of a run as the server sends it: units in a range of time, in flat arrays. */

export interface Units {
  count: number;
  /** Of the whole run, in seconds. */
  begin: number;
  end: number;
  /** NaN where unknown. */
  bound: number;
  expectedEnd: number;
  /** From the begin of the first unit to the end of the last one, without the time in which the run was paused. */
  span: number;
  paused: number;
  /** What users and drivers did: when, and 0 pause, 1 resume, 2 stop, 3 kill, 4 another driver goes on. */
  marks: { seconds: number; what: number }[];
  workers: Uint32Array;
  idle: Float64Array;
  from: Float32Array;
  to: Float32Array;
  /** Row of the unit's worker. */
  row: Uint32Array;
  /** Of several units that are one here, the trial with most of their time. */
  trial: Uint32Array;
  partition: Uint32Array;
  phase: Uint8Array;
}

export const MERGED = 255;

const MARKS = ['paused', 'resumed', 'stopped', 'killed', 'another driver goes on'];

/** What a user or a driver did. */
export function markText(what: number): string {
  return MARKS[what] ?? 'marked';
}

export function phaseText(phase: number): string {
  return phase === 0 ? 'train' : phase === 1 ? 'validate' : 'several units';
}

/** Raises Error if the bytes are something else. */
export function parseUnits(buffer: ArrayBuffer): Units {
  const view = new DataView(buffer);
  if (buffer.byteLength < 64 || view.getUint32(0, false) !== 0x48595332) {
    throw new Error('The server sent a schedule in a form that this page does not know. Reload the page.');
  }
  let at = 4;
  const integer = (): number => view.getUint32((at += 4) - 4, true);
  const double = (): number => view.getFloat64((at += 8) - 8, true);
  const count = integer();
  const [begin, end, bound, expectedEnd, span, paused] = [double(), double(), double(), double(), double(), double()];
  const [width, marked] = [integer(), integer()];
  const workers = Uint32Array.from({ length: width }, integer);
  const idle = Float64Array.from({ length: width }, double);
  const moments = Array.from({ length: marked }, double);
  const marks = moments.map((seconds) => ({ seconds, what: integer() }));
  // All that follows is aligned to four bytes: what is before has whole multiples of them.
  const floats = (): Float32Array => new Float32Array(buffer, (at += 4 * count) - 4 * count, count);
  const integers = (): Uint32Array => new Uint32Array(buffer, (at += 4 * count) - 4 * count, count);
  const [from, to, numbers, trial, partition] = [floats(), floats(), integers(), integers(), integers()];
  const rows = new Map([...workers].map((worker, row) => [worker, row]));
  return {
    count,
    begin,
    end,
    bound,
    expectedEnd,
    span,
    paused,
    marks,
    workers,
    idle,
    from,
    to,
    row: numbers.map((worker) => rows.get(worker) ?? 0),
    trial,
    partition,
    phase: new Uint8Array(buffer, at, count),
  };
}

/** The unit of a row at a time; -1: the worker waits. */
export function unitAt(units: Units, row: number, seconds: number, slack: number): number {
  let [found, best] = [-1, slack];
  for (let i = 0; i < units.count; i++) {
    if (units.row[i] !== row) continue;
    const away = Math.max(units.from[i] - seconds, seconds - units.to[i], 0);
    if (away === 0) return i;
    if (away < best) [found, best] = [i, away];
  }
  return found;
}
