/** What is looked at of a run: its columns, the brushed trials, the one under the pointer. Choices are in the URL. */

import type { Trial } from '../lib/api';
import { go, hrefWith, route, setQuery } from '../lib/route.svelte';
import { brushOf, brushQuery, keepOnly, type Brush, type Range } from './brush';
import { columnsOf, levels, type TrialColumn } from './columns';
import type { RunModel } from './model.svelte';

export class View {
  /** While something is dragged, what it is so far; else the URL says it. */
  dragged = $state.raw<Brush | null>(null);
  /** Index of the trial under the pointer, or -1. */
  hovered = $state(-1);

  /** A trial was picked by hand, not by a link: its panel is to come into view. */
  wasPicked = false;

  constructor(readonly model: RunModel) {}

  /** As they stand: one that was running when its driver ended, runs no more. */
  trials = $derived.by(() => {
    const { value, trials } = this.model;
    if (!value || value.driver || value.status === 'running') return trials;
    return trials.map((trial) => (trial.status === 'running' ? { ...trial, status: 'interrupted' } : trial));
  });
  columns = $derived.by<TrialColumn[]>(() => (this.model.value ? columnsOf(this.model.value, this.trials) : []));
  byKey = $derived(new Map(this.columns.map((column) => [column.key, column])));
  brush = $derived(this.dragged ?? brushOf(route.query));
  standings = $derived.by(() => levels(this.byKey.get('@value')?.values ?? new Float64Array(0), this.model.value?.mode ?? null));
  mask = $derived.by(() => this.#mask());
  count = $derived(this.mask.reduce((sum, each) => sum + each, 0));
  isBrushed = $derived(Object.keys(this.brush).length > 0 || Boolean(route.query.status) || Boolean(route.query.q));
  chosen = $derived(route.query.trial === undefined ? null : Number(route.query.trial));

  setRange(key: string, range: Range | null): void {
    const { [key]: _, ...others } = this.brush;
    this.dragged = range ? { ...others, [key]: range } : others;
  }

  /** Writes into the URL what was dragged. */
  settle(): void {
    if (!this.dragged) return;
    const changes = brushQuery(this.dragged, route.query);
    this.dragged = null;
    setQuery(changes, false);
  }

  clear(): void {
    this.dragged = null;
    setQuery({ ...brushQuery({}, route.query), status: null, q: null }, false);
  }

  choose(trial: number | null): void {
    this.wasPicked = trial !== null;
    go(this.linkOf(trial));
  }

  /** The address of what is looked at, with another trial. */
  linkOf(trial: number | null): string {
    return hrefWith({ trial: trial === null ? null : String(trial) });
  }

  #mask(): Uint8Array {
    const mask = new Uint8Array(this.trials.length).fill(1);
    for (const [key, range] of Object.entries(this.brush)) {
      const column = this.byKey.get(key);
      if (column) keepOnly(mask, column, range);
    }
    const { status, q } = route.query;
    if (status || q) {
      const words = (q ?? '').toLowerCase().split(/\s+/).filter(Boolean);
      this.trials.forEach((trial, i) => {
        if ((status && trial.status !== status) || !words.every((word) => fits(trial, word))) mask[i] = 0;
      });
    }
    return mask;
  }
}

const texts = new WeakMap<Trial, string>();

function fits(trial: Trial, word: string): boolean {
  let text = texts.get(trial);
  if (text === undefined) {
    text = `${trial.trial} ${trial.status} ${JSON.stringify(trial.params)} ${trial.error?.kind ?? ''} ${trial.error?.message ?? ''}`.toLowerCase();
    texts.set(trial, text);
  }
  return text.includes(word);
}
