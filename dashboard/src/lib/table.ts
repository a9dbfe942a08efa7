/** Columns of tables, and the order of their rows. */

export interface Column<Row> {
  key: string;
  label: string;
  /** Width in pixels. */
  width: number;
  numeric?: boolean;
  /** What rows are ordered by; without it the column cannot be. */
  by?: (row: Row) => number | string | null | undefined;
  text?: (row: Row) => string;
  title?: string;
}

export interface Order {
  key: string;
  falling: boolean;
}

/** `-best`: by `best`, the largest first. */
export function orderOf(text: string | undefined, otherwise: Order): Order {
  if (!text) return otherwise;
  return text.startsWith('-') ? { key: text.slice(1), falling: true } : { key: text, falling: false };
}

export function orderText(order: Order): string {
  return (order.falling ? '-' : '') + order.key;
}

/** Indexes of rows in order; rows without a value come last, either way, and equal ones stay as they were. */
export function ordered<Row>(rows: readonly Row[], column: Column<Row> | undefined, falling: boolean): Int32Array {
  const indexes = Int32Array.from(rows, (_, i) => i);
  const by = column?.by;
  if (!by) return indexes;
  const keys = rows.map((row) => by(row) ?? null);
  const missing = (key: number | string | null): boolean => key === null || Number.isNaN(key);
  const sign = falling ? -1 : 1;
  return indexes.sort((a, b) => {
    const [x, y] = [keys[a], keys[b]];
    if (missing(x) || missing(y)) return Number(missing(x)) - Number(missing(y)) || a - b;
    if (typeof x === 'number' && typeof y === 'number') return sign * (x - y) || a - b;
    const [s, t] = [String(x), String(y)];
    return sign * (s < t ? -1 : s > t ? 1 : 0) || a - b;
  });
}
