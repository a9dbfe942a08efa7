/** Something that is asked for: loading, there, or an error. An answer that a newer question overtook is dropped. */

import { ApiError } from './client';

export class Resource<T> {
  value = $state.raw<T | null>(null);
  error = $state.raw<ApiError | null>(null);
  loading = $state(false);
  #asked: AbortController | null = null;

  /** Keeps the value that is shown until the next is there, unless `fresh`. */
  async load(ask: (signal: AbortSignal) => Promise<T>, fresh = false): Promise<void> {
    this.#asked?.abort();
    const asked = new AbortController();
    this.#asked = asked;
    this.loading = true;
    if (fresh) this.value = null;
    try {
      const value = await ask(asked.signal);
      if (this.#asked !== asked) return;
      this.value = value;
      this.error = null;
    } catch (error) {
      if (this.#asked !== asked) return;
      this.error = error instanceof ApiError ? error : new ApiError(String(error), 0);
    }
    this.loading = false;
  }

  drop(): void {
    this.#asked?.abort();
    this.#asked = null;
    this.loading = false;
  }
}
