// Curves over CPUs, as SVG.

import { noun } from '../draw.ts';
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

/** Of page.css. */
const COLOURS = 6;
const DASHES = ['', '7 4', '2 3', '9 3 2 3'];

const text = (words: string) => words.replaceAll('&', '&amp;').replaceAll('<', '&lt;');

/** A design's line and mark, around that point. */
export function sample(number: number, x: number, y: number, filled: boolean, size = 1): string {
  const shapes = [`M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0`, 'M-4 -4h8v8h-8z', 'M0 -5l5 9h-10z', 'M0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z', 'M0 5l5 -9h-10z'];
  return `<path class="mark${filled ? '' : ' open'}" transform="translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${size})" d="${shapes[number % shapes.length]}" ${stroke(number)}/>`;
}
const stroke = (number: number) => `style="--own: var(--curve-${number % COLOURS + 1})"`;
const dashes = (number: number) => DASHES[Math.floor(number / COLOURS) % DASHES.length]!;
export const line = (number: number, d: string, dash = dashes(number)) => `<path class="curve" ${stroke(number)} stroke-dasharray="${dash}" d="${d}"/>`;

/** The first of the curves that has the same values, if it is not this one. */
export const same = (curves: readonly Shown[], own: Shown): Shown | undefined => {
  const first = curves.find(({ points }) => points.length === own.points.length && points.every(({ cpus, value }, i) => cpus === own.points[i]!.cpus && value === own.points[i]!.value));
  return first === own ? undefined : first;
};

export interface Axis {
  at(value: number): number;
  marks: number[];
}

/**
 * Of these values, from one pixel to another; 0 has no place on a logarithmic one, and lies at its edge. `steps` are marks, ever fewer of
 * them: the first that there is room for are taken. `whole` goes from mark to mark.
 */
export function axis(values: readonly number[], log: boolean, from: number, to: number, steps: readonly (readonly number[])[], whole: boolean): Axis {
  const above = log ? values.filter((value) => value > 0) : values;
  const most = Math.max(...above, 0) || 1, least = log ? Math.min(...above, most) : 0;
  const marks = steps[0]!;
  const low = whole ? marks.findLast((mark) => mark <= least) ?? least : least;
  const high = whole ? marks.find((mark) => mark >= most && mark > low) ?? most : most;
  const end = high > low ? high : 2 * low;
  const share = log ? (value: number) => Math.log(Math.max(value, low) / low) / Math.log(end / low) : (value: number) => value / end;
  const at = (value: number) => from + (to - from) * share(value);
  const room = Math.max(2, Math.floor(Math.abs(to - from) / 40));
  const on = steps.map((own) => own.filter((step) => step >= low * 0.999 && step <= end * 1.001));
  return { at, marks: on.find((own) => own.length <= room) ?? on.at(-1)! };
}

/** Round steps up to a value and beyond: 1, 2 or 5 times a power of ten. */
function round(most: number): number[] {
  const rough = most / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? rough;
  return Array.from({ length: 12 }, (_, i) => Number((i * step).toPrecision(12)));
}
const powers = (of: readonly number[]) => Array.from({ length: 16 }, (_, i) => of.map((n) => Number(`${n}e${i - 8}`))).flat();
const DECADES = [powers([1, 2, 5]), powers([1])];
const doublings = (by: number) => Array.from({ length: 11 }, (_, i) => 2 ** i).filter((_, i) => i % by === 0);
const DOUBLINGS = [doublings(1), doublings(2), doublings(4)];

/** The picture, and where the CPU counts lie in it. */
export function picture(curves: readonly Shown[], { width, unit, log, validated, cpus, linear }: Options): { svg: string; x: Axis } {
  const narrow = width < 500;
  const height = Math.round(Math.min(460, Math.max(360, width * 0.55)));
  const [left, right, top, bottom] = [56, width - 14, 46, height - 40];
  const points = curves.flatMap((curve) => curve.points);
  const counts = points.map((point) => point.cpus);
  const most = Math.max(...counts, 1), highest = Math.max(...points.map(({ value }) => value), 0) || 1;
  const x = axis(counts, log.x, left, right, log.x ? DOUBLINGS : [round(most)], false);
  const y = axis(points.map(({ value }) => value), log.y, bottom, top, log.y ? DECADES : [round(highest)], true);
  const label = (at: number, down: number, anchor: string, words: string, of = '') => `<text class="${of}" x="${at.toFixed(1)}" y="${down.toFixed(1)}" text-anchor="${anchor}">${text(words)}</text>`;
  let svg = '';
  if (validated >= Math.min(...counts, Infinity)) {
    const edge = x.at(Math.min(validated, most));
    svg += `<rect class="validated" x="${left}" y="${top}" width="${(edge - left).toFixed(1)}" height="${bottom - top}"/>`;
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
  for (const curve of curves) {
    const { number, points: own } = curve;
    const at = own.map((point) => [x.at(point.cpus), y.at(point.value)] as const);
    // What lies upon an equal one lets it through.
    svg += line(number, `M${at.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join('L')}`, same(curves, curve) && '10 10');
    svg += at.map(([a, b], i) => sample(number, a, b, own[i]!.cpus <= validated, narrow ? 0.7 : 1)).join('');
  }
  const place = x.at(cpus);
  svg += label(place, top - 6, place < left + 24 ? 'start' : place > right - 24 ? 'end' : 'middle', noun(cpus, 'CPU'), 'over');
  if (validated >= Math.min(...counts, Infinity)) svg += label(left + 6, top + 16, 'start', 'validated', 'over');
  return { svg: `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" aria-hidden="true">${svg}</svg>`, x };
}
