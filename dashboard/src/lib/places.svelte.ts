import type { Place, Places } from './api';
import { exported, getJson } from './client';
import { Resource } from './resource.svelte';

/** The stores and stockrooms that the server was started with. */
class KnownPlaces extends Resource<Places> {
  get control(): boolean {
    return !exported && (this.value?.control ?? false);
  }

  of(place: string): Place | undefined {
    return this.value?.places.find((each) => each.place === place);
  }

  name(place: string): string {
    const url = this.of(place)?.url;
    return url === undefined ? `place ${place}` : url.replace(/^file:\/\//, '');
  }

  /** The end of its name that tells it from the others: lists have little room. */
  short(place: string): string {
    const parts = this.name(place).replace(/\/+$/, '').split('/');
    const others = (this.value?.places ?? []).filter((each) => each.place !== place).map((each) => `/${this.name(each.place).replace(/\/+$/, '')}`);
    for (let count = 1; count < parts.length; count++) {
      const end = parts.slice(-count).join('/');
      if (!others.some((other) => other.endsWith(`/${end}`))) return `…/${end}`;
    }
    return this.name(place);
  }

  ask(): Promise<void> {
    return this.load((signal) => getJson<Places>('/api/places', signal));
  }
}

export const places = new KnownPlaces();
