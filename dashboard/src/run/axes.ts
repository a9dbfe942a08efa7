/** Which axes parallel coordinates have, in which order and how scaled: by default, and as the URL says. */

import { listOf, listText } from '../lib/list';
import type { Query } from '../lib/route.svelte';
import type { TrialColumn } from './columns';

const MOST = 9;

export function defaultAxes(columns: readonly TrialColumn[]): string[] {
  const varying = columns.filter((column) => column.source === 'hyperparameter' && column.varies);
  return [...varying.slice(0, MOST - 1).map((column) => column.key), '@value'];
}

export function axesOf(query: Query, columns: readonly TrialColumn[]): TrialColumn[] {
  const keys = query.axes === undefined ? defaultAxes(columns) : listOf(query.axes);
  const byKey = new Map(columns.map((column) => [column.key, column]));
  return keys.map((key) => byKey.get(key)).filter((column) => column !== undefined);
}

export function kindOf(query: Query, column: TrialColumn): TrialColumn['kind'] {
  if (column.kind === 'category') return 'category';
  if (listOf(query.log).includes(column.key)) return 'log';
  if (listOf(query.linear).includes(column.key)) return 'linear';
  return column.kind;
}

export function kindQuery(query: Query, column: TrialColumn, isLog: boolean): Record<string, string | null> {
  const without = (text: string | undefined): string[] => listOf(text).filter((key) => key !== column.key);
  const [log, linear] = [without(query.log), without(query.linear)];
  if (isLog !== (column.kind === 'log')) (isLog ? log : linear).push(column.key);
  return { log: listText(log) || null, linear: listText(linear) || null };
}
