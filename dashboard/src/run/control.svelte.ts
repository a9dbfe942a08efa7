/** Commands to a run. The token is asked for once and kept for this tab alone. */

import { announcer } from '../lib/announce.svelte';
import type { Command } from '../lib/api';
import { ApiError, sendCommand } from '../lib/client';
import type { RunModel } from './model.svelte';

const KEY = 'hopyard-token';

class Control {
  /** What is about to be sent, while it is asked for a token or a yes. */
  pending = $state.raw<{ model: RunModel; command: Command; title: string } | null>(null);
  said = $state('');
  error = $state('');
  busy = $state(false);
  token = $state(stored());

  ask(model: RunModel, command: Command, title: string): void {
    this.error = '';
    this.said = '';
    this.pending = { model, command, title };
    const harmless = command.do === 'pause' || command.do === 'resume';
    if (this.token && harmless) void this.send(this.token);
  }

  async send(token: string, command: Command | null = null): Promise<void> {
    const pending = this.pending;
    if (!pending || this.busy) return;
    this.busy = true;
    this.error = '';
    try {
      const answer = await sendCommand(pending.model.place, pending.model.run, command ?? pending.command, token);
      this.#keep(token);
      this.said = answer.said;
      announcer.say(answer.said);
      this.pending = null;
      // No event tells of what nobody has answered yet.
      if (!pending.model.value?.driver) void pending.model.read();
    } catch (error) {
      this.error = error instanceof Error ? error.message : String(error);
      // What is refused for another reason came with the right token.
      if (error instanceof ApiError && error.status) this.#keep(error.status === 403 ? '' : token);
    } finally {
      this.busy = false;
    }
  }

  #keep(token: string): void {
    this.token = token;
    try {
      if (token) sessionStorage.setItem(KEY, token);
      else sessionStorage.removeItem(KEY);
    } catch {
      // In memory only.
    }
  }
}

function stored(): string {
  try {
    return sessionStorage.getItem(KEY) ?? '';
  } catch {
    return '';
  }
}

export const control = new Control();
