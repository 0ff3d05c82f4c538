// The time line: objects in use and cached over the run, the operations that took a slow path, marks of the trace, and what another design
// has more or less.

import { colours, fitted, grouped, sheet } from '../draw.ts';
import { SLOW, SUMS } from '../engine.ts';
import type { Run, Sample } from './run.ts';

/** From one operation to another. */
export type Range = [from: number, to: number];

const STRIP = 34, GAP = 18, TOP = 30, FOOT = 18;
const DRAG = 4; // pixels; less is a click
const LEAST = 20; // operations that are seen at once

interface Strip {
  title: string;
  /** Series that are filled from the base line, the largest first; below it where they are negative. */
  areas: { colour: string; of: (at: number) => number }[];
}

export class TimeLine {
  range: Range;
  private readonly canvas: HTMLCanvasElement;
  private drag: { from: number; to: number } | null = null;

  constructor(
    private readonly root: HTMLElement,
    private readonly operations: number,
    private readonly on: { seek(n: number): void; changed(): void },
  ) {
    this.canvas = root.querySelector('canvas')!;
    this.range = [0, operations];
    root.setAttribute('aria-valuemax', String(operations));
    const place = (event: PointerEvent) => {
      const { left, width } = this.canvas.getBoundingClientRect();
      return Math.min(Math.max(event.clientX - left, 0), width);
    };
    root.onpointerdown = (event) => {
      root.setPointerCapture(event.pointerId);
      this.drag = { from: place(event), to: place(event) };
    };
    root.onpointermove = (event) => {
      if (!this.drag) return;
      this.drag.to = place(event);
      on.changed();
    };
    root.onpointerup = () => {
      const { from, to } = this.drag ?? { from: 0, to: 0 };
      if (!this.drag) return;
      this.drag = null;
      if (Math.abs(to - from) < DRAG) on.seek(this.operationAt(to));
      else this.zoomTo([this.operationAt(Math.min(from, to)), this.operationAt(Math.max(from, to))]);
    };
    root.onpointercancel = () => {
      this.drag = null;
      on.changed();
    };
    root.ondblclick = () => this.zoomTo([0, operations]);
  }

  zoomTo([from, to]: Range): void {
    const length = Math.min(Math.max(to - from, LEAST), this.operations);
    const begin = Math.min(Math.max(from, 0), this.operations - length);
    this.range = [Math.round(begin), Math.round(begin + length)];
    this.on.changed();
  }

  /** By a factor, around an operation. */
  zoom(factor: number, around: number): void {
    const length = (this.range[1] - this.range[0]) * factor;
    this.zoomTo([around - length / 2, around + length / 2]);
  }

  draw(runs: readonly Run[], chosen: number, operation: number): void {
    const [run, other] = runs as [Run, Run | undefined];
    const { marks, caches } = run.about;
    const own = SUMS + 3 * chosen;
    const strips = [
      usedAndCached('all caches', run.samples, 0), usedAndCached(caches[chosen]!, run.samples, own),
      slowPaths(run.samples),
      ...(other ? [
        difference('slabs', [3], run, other, colours.used), difference('cached objects', [1], run, other, colours.cached),
      ] : []),
    ];
    const { g, width, height } = sheet(this.canvas, TOP + strips.length * (STRIP + GAP) + FOOT - GAP + 14);
    const [from, to] = this.range;
    const x = (at: number) => (at - from) / (to - from) * width;
    const inside = (at: number) => at >= from && at <= to;
    // What cannot be gone to yet.
    g.fillStyle = colours.soft;
    g.fillRect(Math.max(x(run.reach), 0), TOP, width, height - TOP - FOOT);
    const titles = strips.map((strip, i) => drawStrip(g, strip, run.samples, x, width, TOP + i * (STRIP + GAP), [from, to]));

    let free = 0;
    for (const { operation: at, text } of marks) {
      if (!inside(at)) continue;
      g.strokeStyle = colours.quiet;
      g.setLineDash([2, 2]);
      g.beginPath();
      g.moveTo(x(at), 14);
      g.lineTo(x(at), height - 14);
      g.stroke();
      g.setLineDash([]);
      const short = text.replace(/^SNAP (\w+) (begin|end)$/, '$1').replace(/( \d+)+$/, '').toLowerCase();
      const long = g.measureText(short).width;
      const left = Math.min(x(at) + 2, width - long);
      if (left < free || text.endsWith(' end')) continue;
      g.fillStyle = colours.quiet;
      g.fillText(short, left, 10);
      free = left + long + 8;
    }
    if (inside(operation)) {
      g.fillStyle = colours.now;
      g.fillRect(x(operation) - 1, 14, 2, height - 26);
      g.beginPath();
      g.moveTo(x(operation) - 5, height - 12);
      g.lineTo(x(operation) + 5, height - 12);
      g.lineTo(x(operation), height - 20);
      g.fill();
    }
    if (this.drag) {
      g.fillStyle = colours.now;
      g.globalAlpha = 0.15;
      g.fillRect(this.drag.from, 14, this.drag.to - this.drag.from, height - 28);
      g.globalAlpha = 1;
    }
    // Nothing lies upon a title.
    titles.forEach((title, i) => {
      const words = fitted(g, title, width), y = TOP + i * (STRIP + GAP) - 3;
      g.fillStyle = colours.card;
      g.fillRect(0, y - 10, g.measureText(words).width + 3, 13);
      g.fillStyle = colours.quiet;
      g.fillText(words, 0, y);
    });
    g.fillText(`operation ${grouped(from)}`, 0, height - 1);
    g.textAlign = 'right';
    g.fillText(grouped(to), width, height - 1);
    this.root.setAttribute('aria-valuenow', String(operation));
    this.root.setAttribute('aria-valuetext', `operation ${operation} of ${this.operations}`);
  }

  private operationAt(x: number): number {
    const [from, to] = this.range;
    return Math.round(from + x / this.canvas.clientWidth * (to - from));
  }
}

function usedAndCached(name: string, samples: readonly Sample[], place: number): Strip {
  const used = (i: number) => samples[i]!.values[place]!, cached = (i: number) => samples[i]!.values[place + 1]!;
  return {
    title: `${name}: objects in use and cached`,
    areas: [{ colour: colours.cached, of: (i) => used(i) + cached(i) }, { colour: colours.used, of: used }],
  };
}

/** How many of a thousand operations since the sample before took each slow path, one upon the other, the dearest at the bottom. */
function slowPaths(samples: readonly Sample[]): Strip {
  const first = SUMS - SLOW.length;
  const areas = SLOW.map((path, n) => ({
    colour: colours[`${path}-path`],
    of: (i: number) => {
      const [here, before] = [samples[i]!, samples[i - 1]];
      if (!before) return 0;
      let sum = 0;
      for (let at = first + n; at < SUMS; at++) sum += here.values[at]! - before.values[at]!;
      return 1000 * sum / (here.at - before.at);
    },
  }));
  return { title: 'slow operations (depot, slab, pages or commit) in 1,000', areas };
}

function difference(what: string, places: number[], run: Run, other: Run, colour: string): Strip {
  const of = (i: number) => places.reduce((all, place) => all + (other.samples[i]?.values[place] ?? 0) - run.samples[i]!.values[place]!, 0);
  return { title: `${what}: what ${other.name} has more than ${run.name}`, areas: [{ colour, of }] };
}

/** Returns its title, which is drawn last. */
function drawStrip(
  g: CanvasRenderingContext2D, { title, areas }: Strip, samples: readonly Sample[], x: (at: number) => number, width: number, top: number,
  [from, to]: Range,
): string {
  // With one more on each side.
  const first = Math.max(samples.findLastIndex(({ at }) => at <= from), 0);
  const after = samples.findIndex(({ at }) => at >= to);
  const last = after < 0 ? samples.length - 1 : after;
  let least = 0, most = 0;
  for (let i = first; i <= last; i++) {
    for (const { of } of areas) [least, most] = [Math.min(least, of(i)), Math.max(most, of(i))];
  }
  const y = (n: number) => top + STRIP * (1 - (n - least) / Math.max(1, most - least));
  for (const { colour, of } of areas) {
    g.fillStyle = colour;
    g.beginPath();
    g.moveTo(x(samples[first]!.at), y(0));
    for (let i = first; i <= last; i++) g.lineTo(x(samples[i]!.at), y(of(i)));
    g.lineTo(x(samples[last]!.at), y(0));
    g.fill();
  }
  if (least < 0) {
    g.fillStyle = colours.quiet;
    g.fillRect(0, y(0), width, 1);
  }
  const sign = (n: number) => (areas.length === 1 && n > 0 ? '+' : '') + grouped(n);
  return `${title}, ${least < 0 || areas.length === 1 ? `${sign(least)} to ${sign(most)}` : `up to ${grouped(Math.ceil(most))}`}`;
}
