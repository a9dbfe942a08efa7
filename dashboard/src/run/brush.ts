/** Which trials are brushed: ranges of columns, kept in the URL as `b.lr=0.001..0.1` (an end may be open) and `b.optimizer=in:adam,sgd`. */

import type { Query } from '../lib/route.svelte';
import type { TrialColumn } from './columns';

export type Range = { low: number; high: number } | { categories: string[] };
export type Brush = Record<string, Range>;

const PREFIX = 'b.';

export function brushOf(query: Query): Brush {
  const brush: Brush = {};
  for (const [name, text] of Object.entries(query)) {
    if (!name.startsWith(PREFIX)) continue;
    const range = parsed(text);
    if (range) brush[name.slice(PREFIX.length)] = range;
  }
  return brush;
}

function parsed(text: string): Range | null {
  if (text.startsWith('in:')) return { categories: text.slice(3).split(',').map(unescaped) };
  const [least, most] = text.split('..');
  const low = least ? Number(least) : -Number.MAX_VALUE;
  const high = most ? Number(most) : Number.MAX_VALUE;
  return Number.isFinite(low) && Number.isFinite(high) ? { low, high } : null;
}

function unescaped(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Changes of the query that make it say `brush` in place of `before`. */
export function brushQuery(brush: Brush, before: Query): Record<string, string | null> {
  const changes: Record<string, string | null> = {};
  for (const name of Object.keys(before)) if (name.startsWith(PREFIX)) changes[name] = null;
  for (const [key, range] of Object.entries(brush)) changes[PREFIX + key] = written(range);
  return changes;
}

function written(range: Range): string {
  if ('categories' in range) return `in:${range.categories.map(encodeURIComponent).join(',')}`;
  return `${precise(range.low)}..${precise(range.high)}`;
}

/** Nothing for an end that is open. */
function precise(value: number): string {
  if (Math.abs(value) === Number.MAX_VALUE) return '';
  return String(Number(value.toPrecision(6)));
}

/** Takes out of `mask` (1: in) the trials that a range of `column` leaves out. Without a value they are out. */
export function keepOnly(mask: Uint8Array, column: TrialColumn, range: Range): void {
  const values = column.values;
  if ('categories' in range) {
    const kept = Uint8Array.from(column.categories, (each) => Number(range.categories.includes(each)));
    for (let i = 0; i < mask.length; i++) if (!(kept[values[i]] ?? 0)) mask[i] = 0;
    return;
  }
  const { low, high } = range;
  for (let i = 0; i < mask.length; i++) if (!(values[i] >= low && values[i] <= high)) mask[i] = 0;
}
