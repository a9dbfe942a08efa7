/** Commands for a shell, with the store and the run that a page shows. */

import { places } from '../lib/places.svelte';

/** As a POSIX shell needs it. */
function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** `hopyard WORDS STORE RUN`. */
export function commandOf(words: string, place: string, run: string): string {
  return `hopyard ${words} ${quoted(places.of(place)?.url ?? 'STORE')} ${quoted(run)}`;
}

/** Statuses of runs that nobody drives and that go on where they were. */
const UNFINISHED = ['interrupted', 'gave up', 'stopped', 'time budget', 'preempted'];

export function goesOnLater(run: { status: string; driver: unknown }): boolean {
  return !run.driver && UNFINISHED.includes(run.status);
}
