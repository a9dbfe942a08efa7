/** The server's JSON: keys are those of the command line's `--json` (docs/cli.md). Times are ISO 8601 in UTC; NaN is null. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

export interface Place {
  place: string;
  url: string;
  kind: 'store' | 'stockroom';
  error: string | null;
}

export interface Places {
  version: string;
  control: boolean;
  places: Place[];
}

export interface Driver {
  host: string | null;
  pid: number | null;
}

export interface RunItem {
  place: string;
  run: string;
  status: string;
  begun: string | null;
  num_trials: number | null;
  metric: string | null;
  mode?: 'min' | 'max' | null;
  best: number | null;
  driver: Driver | null;
  error: string | null;
  name: string | null;
  kind: string | null;
  ended_trials: number | null;
  progress: number | null;
  driven_seconds: number | null;
  unit_seconds: number | null;
}

export interface RunList {
  runs: RunItem[];
}

export interface RunListEvent {
  runs: RunItem[];
  gone: { place: string; run: string }[];
  /** Stores that have another error than before, or none any more. */
  places: string[];
}

export interface ComparedRun {
  run: string;
  kind: string | null;
  status: string;
  metric: string | null;
  data: string | null;
  settings: JsonObject;
  num_trials: number | null;
  epochs: number | null;
  driven_seconds: number | null;
  best: number | null;
  params: JsonObject | null;
  note: string | null;
}

export interface Failure {
  kind: string;
  message: string;
  traceback?: string;
  log?: string;
  worker?: number | null;
  partition?: number | null;
  phase?: string;
}

export interface Trial {
  trial: number;
  status: string;
  value: number | null;
  best_epoch: number | null;
  epochs: number;
  unit_seconds: number;
  copy_of: number | null;
  clone_of: number | null;
  params: JsonObject;
  metrics: Record<string, number | null>;
  error: Failure | null;
  stopped: string | null;
  point?: number;
  replicate?: number;
  mean?: number | null;
  spread?: number | null;
}

export interface ScheduleNumbers {
  units: number;
  workers: number;
  span_seconds: number;
  paused_seconds: number;
  busy: number | null;
  packs: { trials: number; visits: number }[];
  hops: number;
  states_read_bytes: number;
  states_written_bytes: number;
  data_read_bytes: number;
  data_beside_bytes: number | null;
  data_away_bytes: number | null;
}

export interface Alone {
  trials: number[];
  why: string;
}

export interface ScheduleTotals extends ScheduleNumbers {
  alone: Alone[];
}

export interface Run {
  run: string;
  status: string;
  driver: Driver | null;
  kind: string | null;
  seed: Json;
  begun: string | null;
  search_space: JsonObject | null;
  trained_on: Json;
  frozen_at: string[];
  metric: string | null;
  mode: 'min' | 'max' | null;
  epochs: number | null;
  partitions: number | null;
  num_trials: number;
  trials: Trial[];
  schedule: ScheduleTotals | null;
  /** Null: not checked. */
  broken_rules: string[] | null;
  error: Failure | string | null;
  version: number;
  reading: number | null;
  settings: JsonObject;
  metrics: string[];
  output: string | null;
  experiment: null | {
    name: string | null;
    description: string | null;
    labels: Json;
    config: Json;
    length: Json;
  };
  progress: number | null;
  /** Since it began; null: nobody knows. */
  expected_end_seconds: number | null;
  driven_seconds?: number | null;
  /** Commands that wait until the run goes on, in words. */
  waiting: string[];
}

export interface RunChanges {
  version: number;
  status: string;
  driver: Driver | null;
  num_trials: number;
  best_trial: number | null;
  progress: number | null;
  expected_end_seconds: number | null;
  driven_seconds: number | null;
  schedule: ScheduleNumbers;
  /** Null: as before. */
  alone: Alone[] | null;
  error: Failure | string | null;
  /** Commands that wait until the run goes on. */
  waiting: string[];
  trials: Trial[];
  points: Record<string, Points>;
}

export interface Points {
  epoch: number[];
  seconds: number[];
  metrics: Record<string, (number | null)[]>;
}

export interface TrialHistory extends Trial {
  history: Record<string, (number | null)[]>;
  epoch: number[];
  seconds: number[];
}

export interface Importances {
  importances: { name: string; importance: number }[];
  /** Of the analysis, such as fANOVA. */
  method: string;
  /** Trials that it is made from, and those that have a result; null: it cannot be told. */
  num_trials: number | null;
  num_results: number | null;
  left_out: { name: string; why: string }[];
  error: string | null;
}

export interface LogLine {
  time: string | null;
  trial: number | null;
  worker: number | null;
  stream: string | null;
  text: string;
}

export interface Logs {
  lines: LogLine[];
  next: string;
  more: boolean;
}

export interface Command {
  do: 'pause' | 'resume' | 'stop' | 'kill' | 'extend' | 'clone';
  trial?: number;
  params?: JsonObject;
  weights?: boolean;
  num_models?: number | null;
  num_epochs?: number | null;
}

export interface DatasetList {
  datasets: { path: string; prepared: boolean; error: string | null }[];
}

export interface ColumnStatistics {
  min: Json;
  max: Json;
  mean: number | null;
  std: number | null;
  missing: number | null;
  not_finite: number | null;
  /** The different values, if they are few. */
  distinct: (number | string | boolean)[] | null;
}

export interface DataColumn {
  name: string;
  kind: string;
  dtype: string | null;
  shape: number[];
  read: string;
  sorted: number | null;
  statistics: ColumnStatistics | null;
}

export interface Split {
  split: string;
  rows: number;
  row_groups: number;
  files: number;
  file_bytes: number;
  prepared: boolean;
  created: string | null;
  fingerprint: string | null;
  settings: JsonObject | null;
  partitions: Record<string, number> | null;
  cached_row_groups: number | null;
  notes: string[];
  columns: DataColumn[];
  row_group_rows: number[];
  places: string[][] | null;
  /** Why; null: they are known. */
  places_unknown: string | null;
  order_quality: JsonObject | null;
  order_quality_unknown: string | null;
}

export interface SampleColumn {
  name: string;
  type: string;
  shown: 'text' | 'number' | 'image' | 'tensor';
}

export type Cell =
  | null
  | number
  | string
  | boolean
  | { image: string }
  | { tensor: string; first: (number | null)[]; min: number | null; max: number | null };

export interface Samples {
  columns: SampleColumn[];
  rows: Cell[][];
  first: number;
  of: number;
}

export interface StockStatus {
  branch: string | null;
  commit: string | null;
  behind: Json;
  ahead: Json;
  /** Why commits move no branch; null: they do. */
  detached: string | null;
  why: string | null;
  staged: { path: string; how: string }[];
  elsewhere: { commit: string; writes: number }[];
  remotes: { branch: string; more: number; less: number }[];
  advice: string[];
}

export interface ListedThing {
  path: string;
  what: string;
  count: number | null;
  value_bytes: number | null;
}

export interface Stock {
  /** Null while git merges; `merging` says so. */
  status: StockStatus | null;
  branches: { branch: string; commit: string; current?: boolean }[];
  tags: { tag: string; commit: string }[];
  things: ListedThing[];
  merging: string | null;
}

export interface Commit {
  commit: string;
  parents: string[];
  time: string;
  author: string;
  message: string;
  labels: string[];
  git: Json;
}

export interface TensorChange {
  path: string;
  how: string;
  moved: number | null;
  relative: number | null;
}

export interface Difference {
  path: string;
  how: 'added' | 'removed' | 'changed';
  before: string | null;
  after: string | null;
  samples: { key: Json; how: string }[] | null;
  tensors: TensorChange[] | null;
  values: { before: Json; after: Json } | null;
  files: { added: string[]; removed: string[]; changed: Json } | null;
}

export interface CommitContents {
  commit: Commit;
  things: ListedThing[];
  models: (JsonObject | string)[];
  runs: (JsonObject | string)[];
  reproduce: string[];
}

export interface Spread {
  mean: number | null;
  std: number | null;
  norm: number | null;
  min: number | null;
  max: number | null;
  zeros: number | null;
  nan: number;
  infinite: number;
  histogram: number[];
}

export interface Tensor {
  path: string;
  dtype: string;
  shape: number[];
  value_bytes: number;
  statistics: Spread | null;
  change: string | null;
  moved: number | null;
  relative: number | null;
}

export interface Model {
  path: string;
  value_bytes: number;
  tensors: Tensor[];
}

export interface Estimate {
  way: string;
  total_seconds: number;
  worker_hours: number;
  moved_bytes: number;
  stored_bytes: number;
  bucket_read_bytes: number;
  bucket_requests: number;
}

export interface Plan {
  searcher: null | {
    unit: string;
    num_trials: number;
    units: number;
    groups: { num_trials: number; units_each: number }[];
  };
  estimates: Estimate[] | null;
  packing: null | {
    packs: { trials: number[]; gain: number | null }[];
    alone: { why: string; trials: number[] }[];
    unknown: string | null;
    begin_alone: number[];
    bf16_gain: number | null;
  };
}

export interface Exported {
  /** When. */
  exported?: string;
  runs?: RunList | RunItem[];
  responses: Record<string, Json | { base64: string; gzip?: boolean }>;
}
