/** What a screen reader is told of changes. */

class Announcer {
  text = $state('');
  #last = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** At most one announcement in five seconds; the latest counts. */
  say(text: string): void {
    clearTimeout(this.#timer);
    const waits = Math.max(0, this.#last + 5000 - performance.now());
    this.#timer = setTimeout(() => {
      this.#last = performance.now();
      this.text = text;
    }, waits);
  }
}

export const announcer = new Announcer();
