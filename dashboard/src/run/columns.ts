/** Hyperparameters and results of trials as columns of numbers: what axes, slices and brushes work on. */

import type { Json, JsonObject, Run, Trial } from '../lib/api';
import { flat, plain } from '../lib/format';

export interface TrialColumn {
  /** `lr`, or `@value`, `@epochs`, `@seconds`, `@val_accuracy` of results, so that no name of a hyperparameter meets them. */
  key: string;
  label: string;
  source: 'hyperparameter' | 'result';
  kind: 'linear' | 'log' | 'category';
  /** By index of the trial; of a category its index; NaN where there is none. */
  values: Float64Array;
  categories: string[];
  varies: boolean;
  /** All values are whole numbers: so are the ticks. */
  isWhole: boolean;
}

type Dimension = { call: string; args: Json[] };

/** Dimensions of a search space by dotted names; those of an option of a choice have the choice's name before theirs. */
function dimensions(space: Json | undefined, prefix = '', found = new Map<string, Dimension>()): Map<string, Dimension> {
  if (space === null || typeof space !== 'object' || Array.isArray(space)) return found;
  const [name, args] = Object.entries(space)[0] ?? ['', null];
  if (name.startsWith('hp_') && Array.isArray(args)) {
    const options = name === 'hp_choice' ? args.filter((option) => option !== null && typeof option === 'object') : [];
    for (const option of options) dimensions(option, prefix, found);
    if (options.length === 0) found.set(prefix, { call: name, args });
    return found;
  }
  for (const [key, value] of Object.entries(space)) dimensions(value, prefix ? `${prefix}.${key}` : key, found);
  return found;
}

const flattened = new WeakMap<Trial, Map<string, Json>>();

export function paramsOf(trial: Trial): Map<string, Json> {
  let params = flattened.get(trial);
  if (!params) {
    params = new Map(flat(trial.params));
    flattened.set(trial, params);
  }
  return params;
}

export function columnsOf(run: Run, trials: readonly Trial[]): TrialColumn[] {
  const spaces = dimensions(run.search_space as JsonObject | null);
  const names = orderedNames(trials, [...spaces.keys()]);
  const columns: TrialColumn[] = [];
  for (const name of names) {
    columns.push(hyperparameter(name, trials, spaces.get(name)));
  }
  const metrics = new Set<string>(run.metrics);
  const result = (key: string, label: string, of: (trial: Trial) => number | null | undefined): TrialColumn =>
    numeric(key, label, 'result', Float64Array.from(trials, (trial) => of(trial) ?? NaN), undefined);
  columns.push(result('@epochs', 'epochs', (trial) => trial.epochs));
  columns.push(result('@seconds', 'seconds', (trial) => trial.unit_seconds));
  for (const metric of metrics) {
    if (metric !== run.metric) columns.push(result(`@${metric}`, metric, (trial) => trial.metrics[metric]));
  }
  columns.push(result('@value', run.metric ?? 'value', (trial) => trial.value));
  return columns;
}

/** As in the points, what is nested beside its kin. */
function orderedNames(trials: readonly Trial[], known: string[]): string[] {
  const names = new Set<string>();
  for (const trial of trials) for (const name of paramsOf(trial).keys()) names.add(name);
  for (const name of known) names.add(name);
  const top = (name: string): string => name.split('.')[0];
  const first = new Map<string, number>();
  for (const name of names) if (!first.has(top(name))) first.set(top(name), first.size);
  return [...names].sort((a, b) => (first.get(top(a)) ?? 0) - (first.get(top(b)) ?? 0));
}

function hyperparameter(name: string, trials: readonly Trial[], dimension: Dimension | undefined): TrialColumn {
  const cells = trials.map((trial) => paramsOf(trial).get(name));
  const known = cells.filter((cell) => cell !== undefined && cell !== null);
  const isNumeric = known.every((cell) => typeof cell === 'number');
  if (isNumeric && dimension?.call !== 'hp_choice' && known.length > 0) {
    const values = Float64Array.from(cells, (cell) => (typeof cell === 'number' ? cell : NaN));
    return numeric(name, name, 'hyperparameter', values, dimension?.call);
  }
  const options = (dimension?.call === 'hp_choice' ? dimension.args : []).map((option) => textOf(option));
  const seen = isNumeric
    ? [...new Set(known as number[])].sort((a, b) => a - b).map((each) => textOf(each))
    : [...new Set(known.map((cell) => textOf(cell as Json)))];
  const categories = [...new Set([...options, ...seen])];
  const index = new Map(categories.map((category, i) => [category, i]));
  const values = Float64Array.from(cells, (cell) =>
    cell === undefined || cell === null ? NaN : (index.get(textOf(cell)) ?? NaN),
  );
  return { key: name, label: name, source: 'hyperparameter', kind: 'category', values, categories, varies: categories.length > 1, isWhole: false };
}

function textOf(value: Json): string {
  return value === null ? 'null' : typeof value === 'string' ? value : plain(value);
}

function numeric(
  key: string,
  label: string,
  source: TrialColumn['source'],
  values: Float64Array,
  call: string | undefined,
): TrialColumn {
  const [low, high] = extent(values);
  const wide = low > 0 && high / low > 1000;
  const isLog = low > 0 && (call === undefined ? wide : /log/.test(call));
  const isWhole = values.every((value) => Number.isNaN(value) || Number.isInteger(value));
  return { key, label, source, kind: isLog ? 'log' : 'linear', values, categories: [], varies: high > low, isWhole };
}

/** Least and largest finite value; NaN if there is none. */
export function extent(values: ArrayLike<number>): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (value < low && value > -Infinity) low = value;
    if (value > high && value < Infinity) high = value;
  }
  return low <= high ? [low, high] : [NaN, NaN];
}

/** The value below which a share of the finite values lies, from at most 20,000 of them. */
export function quantile(values: ArrayLike<number>, share: number): number {
  const step = Math.max(1, Math.floor(values.length / 20000));
  const drawn: number[] = [];
  for (let i = 0; i < values.length; i += step) if (Number.isFinite(values[i])) drawn.push(values[i]);
  const sorted = Float64Array.from(drawn).sort();
  return sorted.length === 0 ? NaN : sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

/** Standing of each trial, 0 (worst) to 15 (best); without a value 0. */
export function levels(values: Float64Array, mode: 'min' | 'max' | null): Uint8Array {
  const known = Int32Array.from(values, (_, i) => i).filter((i) => Number.isFinite(values[i]));
  known.sort((a, b) => (mode === 'max' ? values[a] - values[b] : values[b] - values[a]));
  const standing = new Uint8Array(values.length);
  known.forEach((trial, rank) => (standing[trial] = known.length < 2 ? 15 : Math.round((rank / (known.length - 1)) * 15)));
  return standing;
}
