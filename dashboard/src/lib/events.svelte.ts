/** Server-sent events that come back by themselves, from where they were. Hidden pages hold no connection. */

import { address, exported } from './client';

type Handlers = Record<string, (data: never) => void>;

export class Events {
  /** `lost` is said to people; `none`: an exported file. */
  state = $state<'connecting' | 'open' | 'lost' | 'none'>('connecting');
  #source: EventSource | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #waits = 1000;
  #closed = false;

  constructor(
    private readonly path: () => string,
    private readonly handlers: Handlers,
    private readonly opened: () => void = () => undefined,
  ) {
    if (exported) {
      this.state = 'none';
      return;
    }
    document.addEventListener('visibilitychange', this.#seen);
    this.#open();
  }

  close(): void {
    this.#closed = true;
    document.removeEventListener('visibilitychange', this.#seen);
    this.#disconnect();
  }

  #seen = (): void => {
    if (document.hidden) this.#disconnect();
    else if (!this.#source) this.#open();
  };

  #disconnect(): void {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  #open(): void {
    if (this.#closed || document.hidden) return;
    const source = new EventSource(address(this.path()));
    this.#source = source;
    source.onopen = () => {
      this.state = 'open';
      this.#waits = 1000;
      this.opened();
    };
    source.onerror = () => {
      if (this.#closed) return;
      this.#disconnect();
      this.state = 'lost';
      this.#timer = setTimeout(() => this.#open(), this.#waits);
      this.#waits = Math.min(this.#waits * 2, 15000);
    };
    for (const [name, handle] of Object.entries(this.handlers)) {
      source.addEventListener(name, (event) => handle(JSON.parse((event as MessageEvent<string>).data) as never));
    }
  }
}
