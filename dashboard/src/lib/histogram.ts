/** Bars of a histogram as one path in a box. */
export function barsPath(counts: readonly number[], width: number, height: number): string {
  const most = Math.max(...counts, 1);
  const step = width / Math.max(1, counts.length);
  return counts
    .map((count, i) => {
      const tall = (count / most) * height;
      return `M${(i * step).toFixed(1)} ${height}v${(-tall).toFixed(1)}h${(step * 0.9).toFixed(1)}v${tall.toFixed(1)}z`;
    })
    .join('');
}
