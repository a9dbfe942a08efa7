/** Requests to the server, or answers from the exported file that this page is. */

import type { Command, Exported, Json, RunList } from './api';

export class ApiError extends Error {
  constructor(
    message: string,
    /** Status of the answer; 0: there was none. */
    readonly status: number,
  ) {
    super(message);
  }
}

const NOT_EXPORTED =
  'This file does not hold that: it was exported from one run. Start "hopyard web" on the store to see it.';

/** The data of an exported file; null where a server answers. */
export const exported: Exported | null = readExported();

function readExported(): Exported | null {
  const element = document.getElementById('hopyard-export');
  return element?.textContent ? (JSON.parse(element.textContent) as Exported) : null;
}

/** `/api/…` from parts and a query; parts are escaped, and null and undefined left out of the query. */
export function api(
  parts: readonly (string | number)[],
  query: Record<string, string | number | null | undefined> = {},
): string {
  const known = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const text = known.map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`).join('&');
  return `/api/${parts.map((part) => encodeURIComponent(String(part))).join('/')}${text && `?${text}`}`;
}

/** The address of a path of the server, also where a proxy serves the page below a prefix. */
export function address(path: string): string {
  return new URL(path.slice(1), document.baseURI.replace(/[#?].*$/, '')).href;
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  if (exported) return answerOf(path) as T;
  const response = await request(path, { signal });
  return (await response.json()) as T;
}

export async function getBytes(path: string, signal?: AbortSignal): Promise<ArrayBuffer> {
  if (exported) return bytesOf(answerOf(path));
  const response = await request(path, { signal });
  return await response.arrayBuffer();
}

export async function postJson<T>(path: string, body: unknown, token?: string): Promise<T> {
  if (exported) throw new ApiError(NOT_EXPORTED, 404);
  const headers: Record<string, string> = { 'Content-Type': 'application/json' };
  if (token !== undefined) headers.Authorization = `Bearer ${token}`;
  const response = await request(path, { method: 'POST', headers, body: JSON.stringify(body) });
  return (await response.json()) as T;
}

export function sendCommand(place: string, run: string, command: Command, token: string): Promise<{ said: string }> {
  return postJson(api(['runs', place, run, 'commands']), command, token);
}

async function request(path: string, options: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(address(path), { ...options, credentials: 'same-origin' });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(
      `The server at ${location.host} does not answer. If it has been ended, start it again with "hopyard web"; ` +
        'this page goes on by itself.',
      0,
    );
  }
  if (response.ok) return response;
  let said: string | undefined;
  try {
    said = ((await response.json()) as { error?: string }).error;
  } catch {
    said = undefined;
  }
  throw new ApiError(said ?? `The server answered ${response.status} ${response.statusText}.`, response.status);
}

function answerOf(path: string): unknown {
  const responses = exported?.responses ?? {};
  // A schedule is asked for by range and pixels; a file holds the whole of it.
  const keys = path.includes('/schedule?') ? [path, path.replace(/\?.*$/, '')] : [path];
  const key = keys.find((each) => Object.hasOwn(responses, each));
  if (key !== undefined) return responses[key];
  if (path === '/api/runs') return exportedRuns();
  if (path === '/api/places') return { version: '', control: false, places: [] };
  throw new ApiError(NOT_EXPORTED, 404);
}

function exportedRuns(): RunList {
  const runs = exported?.runs;
  return Array.isArray(runs) ? { runs } : { runs: runs?.runs ?? [] };
}

async function bytesOf(answer: unknown): Promise<ArrayBuffer> {
  const held = answer as { base64?: Json; gzip?: Json };
  if (typeof held.base64 !== 'string') throw new ApiError(NOT_EXPORTED, 404);
  const text = atob(held.base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  if (!held.gzip) return bytes.buffer;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return await new Response(stream).arrayBuffer();
}
