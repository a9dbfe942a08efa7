/**
 * Thousands of lines in an image, of which a changing part is in colour.
 *
 * Each pixel counts the lines that cross it, and sums up their standings, so that a line comes and goes by adding and
 * subtracting along its path: brushing costs what changes, not what there is. Work is done in slices of a few milliseconds
 * a frame; a line drawn twice and taken away twice leaves exactly nothing, since all amounts are whole numbers.
 */

export type Buffer = Float64Array;
/** Adds `amount` to each pixel on the path of a line. */
export type Trace = (line: number, buffer: Buffer, amount: number) => void;

/** A pixel is the weight of its lines * LINE + the weighted sum of their standings (0 to 15). */
const LINE = 2 ** 26;
const SHADES = 64;
const SLICE = 4;

/** Where lines cross, the better ones say more about the colour. */
function weightOf(standing: number): number {
  return 1 + Math.round(15 * (standing / 15) ** 3);
}

class Frames {
  #tasks: LineRaster[] = [];
  #asked = false;

  add(task: LineRaster): void {
    if (!this.#tasks.includes(task)) this.#tasks.push(task);
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(this.#tick);
  }

  remove(task: LineRaster): void {
    this.#tasks = this.#tasks.filter((each) => each !== task);
  }

  #tick = (): void => {
    this.#asked = false;
    // One image a frame: to show one takes as long as half a slice.
    const task = this.#tasks.shift();
    if (task && !task.work(performance.now() + SLICE)) this.add(task);
    else if (this.#tasks.length > 0) this.add(this.#tasks[0]);
  };
}

const frames = new Frames();

export interface Palette {
  background: [number, number, number];
  grey: [number, number, number];
  /** Of each standing, worst first. */
  standings: [number, number, number][];
}

export class LineRaster {
  #context: CanvasRenderingContext2D;
  #image: ImageData | null = null;
  #pixels = new Uint32Array(0);
  #active: Buffer = new Float64Array(0);
  #ground: Buffer = new Float64Array(0);
  #greys = new Uint32Array(SHADES);
  #colours = new Uint32Array(16 * SHADES);
  #trace: Trace = () => undefined;
  #amounts = new Float64Array(0);
  #shown = new Uint8Array(0);
  #target: Uint8Array = new Uint8Array(0);
  #cursor = 0;
  #grounded = 0;
  #building = false;
  #changed = false;

  constructor(canvas: HTMLCanvasElement) {
    this.#context = canvas.getContext('2d', { alpha: false, willReadFrequently: true }) as CanvasRenderingContext2D;
  }

  get width(): number {
    return this.#image?.width ?? 0;
  }

  get height(): number {
    return this.#image?.height ?? 0;
  }

  resize(width: number, height: number): void {
    const canvas = this.#context.canvas;
    if (this.#image && canvas.width === width && canvas.height === height) return;
    canvas.width = width;
    canvas.height = height;
    this.#image = this.#context.createImageData(width, height);
    this.#pixels = new Uint32Array(this.#image.data.buffer);
    this.#active = new Float64Array(width * height);
    this.#ground = new Float64Array(width * height);
    this.present();
  }

  /** Draws all anew. What was there stays in view until the new lines are all there. */
  draw(trace: Trace, standings: Uint8Array, target: Uint8Array): void {
    this.#trace = trace;
    this.#amounts = Float64Array.from(standings, (standing) => weightOf(standing) * (LINE + standing));
    this.#shown = new Uint8Array(standings.length);
    this.#target = target;
    this.#active.fill(0);
    this.#ground.fill(0);
    this.#cursor = 0;
    this.#grounded = 0;
    this.#building = true;
    frames.add(this);
  }

  /** Lines whose number has 1 in `target` come to be in colour, all others grey. */
  follow(target: Uint8Array): void {
    if (target === this.#target || target.length !== this.#shown.length) return;
    this.#target = target;
    this.#cursor = 0;
    frames.add(this);
  }

  paint(palette: Palette): void {
    const shade = (from: number[], to: number[], share: number): number => {
      const [r, g, b] = [0, 1, 2].map((i) => Math.round(from[i] + (to[i] - from[i]) * share));
      return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    };
    for (let count = 0; count < SHADES; count++) {
      const share = count === 0 ? 0 : Math.log1p(count) / Math.log1p(SHADES - 1);
      this.#greys[count] = shade(palette.background, palette.grey, count === 0 ? 0 : 0.25 + 0.75 * share);
      for (let standing = 0; standing < 16; standing++) {
        const strength = count === 0 ? 0 : 0.8 + 0.2 * share;
        this.#colours[standing * SHADES + count] = shade(palette.background, palette.standings[standing], strength);
      }
    }
    this.#changed = true;
    frames.add(this);
  }

  stop(): void {
    frames.remove(this);
  }

  /** Goes on until `deadline`; whether nothing is left to do. */
  work(deadline: number): boolean {
    const count = this.#shown.length;
    const [shown, target, amounts, active, trace] = [this.#shown, this.#target, this.#amounts, this.#active, this.#trace];
    let steps = 0;
    const late = (): boolean => (++steps & 15) === 0 && performance.now() > deadline;
    let isLate = false;
    while (this.#cursor < count && !isLate) {
      const line = this.#cursor++;
      if (shown[line] === target[line]) continue;
      trace(line, active, target[line] ? amounts[line] : -amounts[line]);
      shown[line] = target[line];
      this.#changed = true;
      isLate = late();
    }
    while (this.#grounded < count && !isLate) {
      trace(this.#grounded++, this.#ground, 1);
      this.#changed = true;
      isLate = late();
    }
    const isDone = this.#cursor >= count && this.#grounded >= count;
    if (isDone) this.#building = false;
    if (this.#changed && !this.#building) this.present();
    return isDone;
  }

  present(): void {
    if (!this.#image) return;
    const [active, ground, pixels, greys, colours] = [this.#active, this.#ground, this.#pixels, this.#greys, this.#colours];
    for (let i = 0; i < pixels.length; i++) {
      const value = active[i];
      if (value === 0) {
        const count = ground[i];
        pixels[i] = greys[count < SHADES ? count : SHADES - 1];
      } else {
        const lines = Math.floor(value / LINE);
        const standing = ((value - lines * LINE) / lines + 0.5) | 0;
        pixels[i] = colours[standing * SHADES + (lines < SHADES ? lines : SHADES - 1)];
      }
    }
    this.#context.putImageData(this.#image, 0, 0);
    this.#changed = false;
  }
}

/** Adds `amount` along a segment, without its last point, where the next one begins. Both points lie in the image. */
export function addSegment(
  buffer: Buffer,
  width: number,
  x0: number,
  y0: number,
  x1: number,
  y1: number,
  amount: number,
): void {
  const [dx, dy] = [x1 - x0, y1 - y0];
  const steps = Math.max(1, Math.ceil(Math.max(Math.abs(dx), Math.abs(dy)))) | 0;
  // Fixed point, of 14 bits after the point: images have fewer than 2^17 pixels a side.
  let x = (x0 * 16384) | 0;
  let y = (y0 * 16384) | 0;
  const sx = ((dx / steps) * 16384) | 0;
  const sy = ((dy / steps) * 16384) | 0;
  for (let step = 0; step < steps; step++) {
    buffer[(y >> 14) * width + (x >> 14)] += amount;
    x += sx;
    y += sy;
  }
}

const VIRIDIS: Colour[] = [
  [68, 1, 84], [72, 26, 108], [71, 47, 125], [65, 68, 135], [57, 86, 140], [49, 104, 142], [42, 120, 142], [35, 136, 142],
  [31, 152, 139], [34, 168, 132], [53, 183, 121], [84, 197, 104], [122, 209, 81], [165, 219, 54], [210, 226, 27], [253, 231, 37],
]; // prettier-ignore

type Colour = [number, number, number];

/** Relative luminance, 0 to 1 (WCAG 2). */
function luminance(colour: Colour): number {
  const [r, g, b] = colour.map((each) => (each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** The colour, mixed with `end` as far as needed for a contrast with `ground`. */
function seenOn(colour: Colour, ground: Colour, end: Colour, contrast: number): Colour {
  for (let share = 0; share < 1; share += 0.02) {
    const mixed = colour.map((each, i) => Math.round(each + (end[i] - each) * share)) as Colour;
    const [low, high] = [luminance(mixed), luminance(ground)].sort((a, b) => a - b);
    if ((high + 0.05) / (low + 0.05) >= contrast) return mixed;
  }
  return end;
}

function paletteWith(background: Colour, grey: Colour, standings: Colour[], end: Colour, contrast: number): Palette {
  return { background, grey, standings: standings.map((each) => seenOn(each, background, end, contrast)) };
}

/** The worst trials are seen, too: graphics need a contrast of 3. On white, yellow that dark would be brown. */
const DARK = paletteWith([25, 29, 27], [92, 102, 96], VIRIDIS, [255, 255, 255], 3);
const LIGHT = paletteWith([255, 255, 255], [168, 174, 166], VIRIDIS.toReversed(), [0, 0, 0], 2);

/** The best stand out: darkest on white, brightest on black. */
export function paletteOf(isDark: boolean): Palette {
  return isDark ? DARK : LIGHT;
}
