/** Lanes of a commit graph: children above their parents, each line of history in a lane of its own. */

import type { Commit } from '../lib/api';

export interface Row {
  commit: Commit;
  lane: number;
  /** Lines from this row down to the next: lanes above and below. */
  lines: { from: number; to: number; lane: number }[];
}

export function lanesOf(commits: readonly Commit[]): { rows: Row[]; width: number } {
  // What each lane waits for: the digest of the next commit in it.
  let lanes: (string | null)[] = [];
  let width = 1;
  const rows: Row[] = [];
  for (const commit of commits) {
    let lane = lanes.indexOf(commit.commit);
    if (lane < 0) lane = free(lanes);
    const below = lanes.map((waits) => (waits === commit.commit ? null : waits));
    below[lane] = null;
    const lines: Row['lines'] = [];
    const parents = commit.parents;
    parents.forEach((parent, i) => {
      let to = below.indexOf(parent);
      if (to < 0) {
        to = i === 0 && below[lane] === null ? lane : free(below);
        below[to] = parent;
      }
      lines.push({ from: lane, to, lane: i === 0 ? lane : to });
    });
    lanes.forEach((waits, at) => {
      if (waits !== null && waits !== commit.commit) lines.push({ from: at, to: at, lane: at });
    });
    rows.push({ commit, lane, lines });
    lanes = trimmed(below);
    width = Math.max(width, lanes.length, lane + 1);
  }
  return { rows, width };
}

function free(lanes: (string | null)[]): number {
  const at = lanes.indexOf(null);
  return at < 0 ? lanes.push(null) - 1 : at;
}

function trimmed(lanes: (string | null)[]): (string | null)[] {
  const kept = [...lanes];
  while (kept.length > 0 && kept[kept.length - 1] === null) kept.pop();
  return kept;
}
