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

  ask(): Promise<void> {
    return this.load((signal) => getJson<Places>('/api/places', signal));
  }
}

export const places = new KnownPlaces();
