// Curves over CPUs, as SVG.

import { said } from './measures.ts';

export interface Shown {
  name: string;
  /** Its number among all designs: colour, dashes and mark follow from it. */
  number: number;
  points: readonly { cpus: number; value: number }[];
}
export interface Options {
  width: number;
  unit: string;
  log: { x: boolean; y: boolean };
  /** CPUs up to which the profile was held against measurements; 0: none. */
  validated: number;
  /** The number of CPUs that is read. */
  cpus: number;
  /** A line that grows with the CPUs, from this point. */
  linear: { cpus: number; value: number } | null;
}

const COLOURS = ['used', 'slab-path', 'cpu-path', 'depot', 'commit-path', 'quiet'];
const DASHES = ['', '7 4', '2 3', '9 3 2 3'];

const text = (words: string) => words.replaceAll('&', '&amp;').replaceAll('<', '&lt;');

/** A design's line and mark, around that point. */
export function sample(number: number, x: number, y: number, filled = true): string {
  const shapes = [`M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0`, 'M-4 -4h8v8h-8z', 'M0 -5l5 9h-10z', 'M0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z', 'M0 5l5 -9h-10z'];
  return `<path class="mark${filled ? '' : ' open'}" transform="translate(${x.toFixed(1)} ${y.toFixed(1)})" d="${shapes[number % shapes.length]}" ${stroke(number)}/>`;
}
const stroke = (number: number) => `style="--own: var(--${COLOURS[number % COLOURS.length]})"`;
const dashes = (number: number) => `stroke-dasharray="${DASHES[Math.floor(number / COLOURS.length) % DASHES.length]}"`;
export const line = (number: number, d: string) => `<path class="curve" ${stroke(number)} ${dashes(number)} d="${d}"/>`;

export interface Axis {
  at(value: number): number;
  marks: number[];
}

/** Of these values, from one pixel to another; 0 has no place on a logarithmic one, and lies at its edge, which is at `least` of the least value. */
export function axis(values: readonly number[], log: boolean, from: number, to: number, steps: readonly number[], least = 1): Axis {
  const above = log ? values.filter((value) => value > 0) : values;
  const high = Math.max(...above, 0) || 1;
  const low = log ? Math.min(...above, high) * least : 0;
  const end = high > low ? high : 2 * low;
  const share = log ? (value: number) => Math.log(Math.max(value, low) / low) / Math.log(end / low) : (value: number) => value / end;
  const at = (value: number) => from + (to - from) * share(value);
  const on = steps.filter((step) => step >= low * 0.999 && step <= end * 1.001);
  const room = Math.max(2, Math.floor(Math.abs(to - from) / 48));
  return { at, marks: on.filter((_, i) => i % Math.ceil(on.length / room) === 0) };
}

/** Round steps up to a value: 1, 2 or 5 times a power of ten. */
function round(most: number): number[] {
  const rough = most / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? rough;
  return Array.from({ length: 12 }, (_, i) => Number((i * step).toPrecision(12)));
}
const DECADES = Array.from({ length: 16 }, (_, i) => [1, 2, 5].map((n) => Number(`${n}e${i - 8}`))).flat();
const DOUBLINGS = Array.from({ length: 11 }, (_, i) => 2 ** i);

/** The picture, and where the CPU counts lie in it. */
export function picture(curves: readonly Shown[], { width, unit, log, validated, cpus, linear }: Options): { svg: string; x: Axis } {
  const height = Math.round(Math.min(460, Math.max(260, width * 0.55)));
  const [left, right, top, bottom] = [56, width - 14, 30, height - 40];
  const points = curves.flatMap((curve) => curve.points);
  const counts = points.map((point) => point.cpus);
  const most = Math.max(...counts, 1), highest = Math.max(...points.map(({ value }) => value), 0) || 1;
  const x = axis(counts, log.x, left, right, log.x ? DOUBLINGS : round(most));
  const y = axis(points.map(({ value }) => value), log.y, bottom, top, log.y ? DECADES : round(highest), 0.8);
  const label = (at: number, down: number, anchor: string, words: string) => `<text x="${at.toFixed(1)}" y="${down.toFixed(1)}" text-anchor="${anchor}">${text(words)}</text>`;
  let svg = '';
  if (validated >= Math.min(...counts, Infinity)) {
    const edge = x.at(Math.min(validated, most));
    svg += `<rect class="validated" x="${left}" y="${top}" width="${(edge - left).toFixed(1)}" height="${bottom - top}"/>`;
    svg += label(left + 6, top + 14, 'start', 'validated');
  }
  for (const mark of x.marks) svg += `<path class="grid" d="M${x.at(mark).toFixed(1)} ${top}V${bottom}"/>${label(x.at(mark), bottom + 16, 'middle', said(mark))}`;
  for (const mark of y.marks) svg += `<path class="grid" d="M${left} ${y.at(mark).toFixed(1)}H${right}"/>${label(left - 6, y.at(mark) + 4, 'end', said(mark))}`;
  svg += label((left + right) / 2, bottom + 34, 'middle', 'CPUs') + label(8, 16, 'start', unit);
  if (linear) {
    const end = Math.min(highest / linear.value, most / linear.cpus);
    const steps = Array.from({ length: 33 }, (_, i) => 1 + (end - 1) * i / 32);
    svg += `<path class="linear" d="M${steps.map((n) => `${x.at(linear.cpus * n).toFixed(1)} ${y.at(linear.value * n).toFixed(1)}`).join('L')}"/>`;
  }
  svg += `<path class="read" d="M${x.at(cpus).toFixed(1)} ${top}V${bottom}"/>`;
  for (const { number, points: own } of curves) {
    const at = own.map((point) => [x.at(point.cpus), y.at(point.value)] as const);
    svg += line(number, `M${at.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join('L')}`);
    svg += at.map(([a, b], i) => sample(number, a, b, own[i]!.cpus <= validated)).join('');
  }
  return { svg: `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" aria-hidden="true">${svg}</svg>`, x };
}
