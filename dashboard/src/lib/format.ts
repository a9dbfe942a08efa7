/** Numbers, times and sizes in words. */

import type { Json, JsonObject } from './api';

/** Four decimals, or four digits where that would hide the value; nothing for null. */
export function number(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return '';
  if (!Number.isFinite(value)) return value > 0 ? '∞' : '−∞';
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return whole(value);
  const size = Math.abs(value);
  if (size >= 0.01 && size < 1e5) return signed(value.toFixed(4));
  if (size >= 1e-4 && size < 1) return signed(String(Number(value.toPrecision(4))));
  return signed(value.toExponential(3).replace('e+', 'e'));
}

/** At most four digits: for axes and cells of hyperparameters. */
export function short(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return '';
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return signed(value.toExponential(2).replace(/\.?0+e/, 'e').replace('e+', 'e'));
  return signed(String(Number(value.toPrecision(4))));
}

export function whole(value: number | null | undefined): string {
  if (value === null || value === undefined) return '';
  return signed(String(Math.round(value)).replace(/\B(?=(\d{3})+(?!\d))/g, '\u202f'));
}

function signed(text: string): string {
  return text.replace(/^-/, '−');
}

export function percent(share: number | null | undefined, digits = 0): string {
  return share === null || share === undefined || !Number.isFinite(share) ? '' : `${(share * 100).toFixed(digits)} %`;
}

const UNITS = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];

export function bytes(size: number | null | undefined): string {
  if (size === null || size === undefined) return '';
  let unit = 0;
  let value = size;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : Number(value.toPrecision(3))} ${UNITS[unit]}`;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return '';
  const size = Math.abs(seconds);
  if (size < 1e-6) return '0 s'; // what is left of sums of floats
  if (size < 1e-3) return `${(seconds * 1e6).toPrecision(3)} µs`;
  if (size < 1) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  if (size < 60) return `${Number(seconds.toPrecision(3))} s`;
  if (size < 3600) return `${Math.floor(seconds / 60)} min ${pad(seconds % 60)} s`;
  if (size < 86400) return `${Math.floor(seconds / 3600)} h ${pad((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${pad((seconds % 86400) / 3600)} h`;
}

function pad(value: number): string {
  return String(Math.floor(value)).padStart(2, '0');
}

/** Local time: `2026-01-31 10:00`. */
export function time(iso: string | null | undefined): string {
  if (!iso) return '';
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return iso;
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}`;
}

/** A value of JSON as text, in one line. */
export function plain(value: Json | undefined): string {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return short(value);
  if (typeof value === 'string') return value;
  if (typeof value === 'boolean') return value ? 'true' : 'false';
  return JSON.stringify(value);
}

/** Names joined with dots, and values, of nested objects; lists are values. */
export function flat(value: JsonObject | null | undefined, prefix = ''): [string, Json][] {
  const pairs: [string, Json][] = [];
  for (const [name, each] of Object.entries(value ?? {})) {
    if (each !== null && typeof each === 'object' && !Array.isArray(each)) pairs.push(...flat(each, `${prefix}${name}.`));
    else pairs.push([prefix + name, each]);
  }
  return pairs;
}

export function counted(count: number, word: string, many = `${word}s`): string {
  return `${whole(count)} ${count === 1 ? word : many}`;
}

export function digest(text: string | null | undefined): string {
  return text ? text.slice(0, 10) : '';
}
