// The time line: objects in use and cached over the run, the operations that took a slow path, marks of the trace, and what another design
// has more or less.

import { colours, fitted, grouped, sheet } from '../draw.ts';
import { SLOW, SUMS } from '../engine.ts';
import type { Run, Sample } from './run.ts';

/** From one operation to another. */
export type Range = [from: number, to: number];

const TOP = 16, FOOT = 15, BETWEEN = 5, TITLE = 15; // pixels: for marks, for operations, between two strips, for a title above a strip
const GUTTER = 158, WIDE = 700; // in a wide window titles are in front of their strips
const DRAG = 4; // pixels; less is a click
const LEAST = 20; // operations that are seen at once

interface Strip {
  title: string;
  /** What its largest number is of. */
  unit: string;
  high: number;
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
      return Math.min(Math.max(event.clientX - left, this.gutter), width);
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
      usedAndCached(caches[chosen]!, run.samples, own), ...(this.gutter || other ? [slowPaths(run.samples)] : []),
      ...(other ? [difference('slabs', [3], run, other, colours.used), difference('cached', [1], run, other, colours.cached)] : []),
    ];
    const { gutter } = this, above = gutter ? 0 : TITLE;
    let y = TOP;
    const tops = strips.map(({ high }) => (y += above + high + BETWEEN) - high - BETWEEN);
    const { g, width, height } = sheet(this.canvas, y + FOOT);
    const [from, to] = this.range;
    const x = (at: number) => gutter + (at - from) / (to - from) * (width - gutter);
    const inside = (at: number) => at >= from && at <= to;
    g.save();
    g.beginPath();
    g.rect(gutter, 0, width - gutter, height);
    g.clip();
    // What cannot be gone to yet.
    g.fillStyle = colours.soft;
    for (const [i, top] of tops.entries()) g.fillRect(Math.max(x(run.reach), gutter), top, width, strips[i]!.high);
    const ranges = strips.map((strip, i) => drawStrip(g, strip, run.samples, x, width, tops[i]!, [from, to]));
    g.restore();
    strips.forEach(({ title, unit, high }, i) => {
      g.fillStyle = colours.ink;
      g.font = '600 12.5px system-ui, sans-serif';
      const name = fitted(g, title, gutter ? gutter - 10 : width / 2), long = g.measureText(name).width, top = tops[i]!;
      g.fillText(name, 0, gutter ? top + (high > 24 ? 12 : 8) : top - 4);
      g.fillStyle = colours.quiet;
      g.font = '11.5px system-ui, sans-serif';
      const said = `${ranges[i]!}${unit}`;
      g.fillText(fitted(g, said, gutter ? gutter - 8 : width - long - 8), gutter ? 0 : long + 8, gutter ? top + (high > 24 ? 27 : 21) : top - 4);
    });
    g.font = '11px system-ui, sans-serif';

    let free = gutter;
    for (const { operation: at, text } of marks) {
      if (!inside(at)) continue;
      g.strokeStyle = colours.quiet;
      g.setLineDash([2, 2]);
      g.beginPath();
      g.moveTo(x(at), 12);
      g.lineTo(x(at), TOP - 1);
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
      g.fillRect(x(operation) - 1, tops[0]! - 2, 2, height - tops[0]! + 2 - FOOT);
      g.beginPath();
      g.moveTo(x(operation) - 5, height - FOOT + 5);
      g.lineTo(x(operation) + 5, height - FOOT + 5);
      g.lineTo(x(operation), height - FOOT - 3);
      g.fill();
    }
    if (this.drag) {
      g.fillStyle = colours.now;
      g.globalAlpha = 0.15;
      g.fillRect(this.drag.from, TOP, this.drag.to - this.drag.from, height - TOP - FOOT);
      g.globalAlpha = 1;
    }
    g.fillStyle = colours.quiet;
    g.fillText(`operation ${grouped(from)}`, gutter, height - 1);
    g.textAlign = 'right';
    g.fillText(grouped(to), width, height - 1);
    this.root.setAttribute('aria-valuenow', String(operation));
    this.root.setAttribute('aria-valuetext', `operation ${operation} of ${this.operations}`);
  }

  private operationAt(x: number): number {
    const [from, to] = this.range, { gutter } = this;
    return Math.round(from + (x - gutter) / (this.canvas.clientWidth - gutter) * (to - from));
  }
  /** Pixels in front of the strips. */
  get gutter(): number {
    return this.canvas.clientWidth >= WIDE ? GUTTER : 0;
  }
}

function usedAndCached(name: string, samples: readonly Sample[], place: number): Strip {
  const used = (i: number) => samples[i]!.values[place]!, cached = (i: number) => samples[i]!.values[place + 1]!;
  return {
    title: name, unit: ' objects', high: 34,
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
  return { title: 'slow operations', unit: ' of 1,000', high: 24, areas };
}

function difference(what: string, places: number[], run: Run, other: Run, colour: string): Strip {
  const of = (i: number) => places.reduce((all, place) => all + (other.samples[i]?.values[place] ?? 0) - run.samples[i]!.values[place]!, 0);
  return { title: `${what}: difference`, unit: '', high: 28, areas: [{ colour, of }] };
}

/** Returns the least and the most of what it shows. */
function drawStrip(
  g: CanvasRenderingContext2D, { high, areas }: Strip, samples: readonly Sample[], x: (at: number) => number, width: number, top: number,
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
  const y = (n: number) => top + high * (1 - (n - least) / Math.max(1, most - least));
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
  return least < 0 || areas.length === 1 ? `${sign(least)} to ${sign(most)}` : `up to ${grouped(Math.ceil(most))}`;
}
