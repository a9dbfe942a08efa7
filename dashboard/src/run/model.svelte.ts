/** A run as the page knows it: read once, then kept up to date by events. */

import { tick } from 'svelte';
import { announcer } from '../lib/announce.svelte';
import type { Points, Run, RunChanges, Trial } from '../lib/api';
import { api, ApiError, getBytes, getJson } from '../lib/client';
import { Events } from '../lib/events.svelte';
import { Resource } from '../lib/resource.svelte';
import { parseCurves, withPoints, type Curves } from './curves';

export class RunModel extends Resource<Run | null> {
  /** By number. */
  trials = $state.raw<Trial[]>([]);
  curves = $state.raw<Curves | null>(null);
  curvesError = $state<string | null>(null);
  messages = $state.raw<string[]>([]);
  gone = $state<string | null>(null);
  share = $state<number | null>(null);
  events = $state.raw<Events | null>(null);
  #version = 0;
  #waiting: RunChanges[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** Milliseconds that the last changes took to be shown. */
  #took = 0;
  #metric: string | null = null;
  /** What was known of the run when its curves were asked for. */
  #curvesVersion = 0;
  /** No event has come yet on this connection. */
  #isFirst = false;
  #again: ReturnType<typeof setTimeout> | undefined;

  constructor(
    readonly place: string,
    readonly run: string,
  ) {
    super();
    void this.read();
  }

  async read(): Promise<void> {
    clearTimeout(this.#again);
    await this.load(async (signal) => this.#whole(await getJson<Run>(api(['runs', this.place, this.run]), signal)));
    const run = this.value;
    if (!run || this.error) {
      if (this.error?.status === 410) this.gone = this.error.message;
      return;
    }
    this.gone = null;
    this.#version = run.version;
    this.trials = run.trials.toSorted((a, b) => a.trial - b.trial);
    if (this.#metric !== null) await this.readCurves(this.#metric);
    this.events ??= new Events(() => api(['runs', this.place, this.run, 'events'], { since: this.#version }), {
      reading: (event: { share: number }) => (this.share = event.share),
      changes: (event: RunChanges) => this.#receive(event),
      message: (event: { text: string }) => this.#say(event.text),
      end: (event: { status: string }) => this.#ended(event.status),
      gone: (event: { error: string }) => this.#vanished(event.error),
    }, () => (this.#isFirst = true));
  }

  /** Null while the server still reads the journal; then it is asked again. */
  #whole(run: Run): Run | null {
    this.share = run.reading;
    if (run.reading === null) return run;
    this.#again = setTimeout(() => void this.read(), 700);
    return null;
  }

  async readCurves(metric: string): Promise<void> {
    this.#metric = metric;
    this.#curvesVersion = this.#version;
    this.curvesError = null;
    try {
      const bytes = await getBytes(api(['runs', this.place, this.run, 'curves'], { metric }));
      if (this.#metric === metric) this.curves = parseCurves(bytes, metric, this.trials);
    } catch (error) {
      if (this.#metric === metric) this.curvesError = error instanceof Error ? error.message : String(error);
    }
  }

  close(): void {
    clearTimeout(this.#timer);
    clearTimeout(this.#again);
    this.drop();
    this.events?.close();
  }

  #say(text: string): void {
    this.messages = [...this.messages.slice(-19), text];
    announcer.say(text);
  }

  /** Nothing more comes of it; to ask for it again would be refused each time. */
  #vanished(error: string): void {
    this.gone = error;
    this.events?.close();
  }

  #ended(status: string): void {
    // What has changed before the end is shown with it.
    clearTimeout(this.#timer);
    this.#apply();
    if (this.value && this.value.status !== status) this.value = { ...this.value, status, driver: null };
  }

  /** Changes are shown together, a few times a second. */
  #receive(event: RunChanges): void {
    this.#waiting.push(event);
    // Points between the curves and this connection came with neither.
    const isBehind = this.#isFirst && event.version > this.#curvesVersion;
    this.#isFirst = false;
    this.#version = event.version;
    if (isBehind && this.#metric !== null) void this.readCurves(this.#metric);
    this.#timer ??= setTimeout(() => this.#apply(), Math.max(150, this.#took));
  }

  #apply(): void {
    const began = performance.now();
    this.#timer = undefined;
    const events = this.#waiting;
    this.#waiting = [];
    const before = this.value;
    if (!before || events.length === 0) return;
    const rows = new Map(this.trials.map((trial) => [trial.trial, trial]));
    const points = new Map<number, Points[]>();
    for (const event of events) {
      for (const row of event.trials) rows.set(row.trial, row);
      for (const [trial, each] of Object.entries(event.points)) {
        const number = Number(trial);
        points.set(number, [...(points.get(number) ?? []), each]);
      }
    }
    const grown = rows.size !== this.trials.length;
    const trials = [...rows.values()];
    this.trials = grown ? trials.sort((a, b) => a.trial - b.trial) : trials;
    if (this.curves && (grown || points.size > 0)) this.curves = withPoints(this.curves, this.trials, points);
    const last = events[events.length - 1];
    const alone = events.findLast((event) => event.alone !== null)?.alone ?? before.schedule?.alone ?? [];
    if (last.status !== before.status) announcer.say(`The run is ${last.status}.`);
    this.value = {
      ...before,
      status: last.status,
      driver: last.driver,
      num_trials: last.num_trials,
      progress: last.progress,
      expected_end_seconds: last.expected_end_seconds,
      driven_seconds: last.driven_seconds,
      schedule: { ...last.schedule, alone },
      error: last.error,
      version: last.version,
      waiting: last.waiting,
    };
    void tick().then(() => (this.#took = performance.now() - began));
  }
}

export function textOfError(error: unknown): string {
  return error instanceof ApiError || error instanceof Error ? error.message : String(error);
}
