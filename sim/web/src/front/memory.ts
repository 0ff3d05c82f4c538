// A demo's memory as a picture: its parts side by side, in proportion, in as many rows as make them wide enough to see.

import { drawing, grouped, made, noun, svg } from '../draw.ts';
import type { Part, Scene } from '../scenes.ts';

/** Pixels: of a row, below it, and of a letter. */
const HIGH = 28, GAP = 18, LETTER = 7.5;

export const KINDS: readonly (readonly [is: Part['is'], means: string])[] = [
  ['used', 'in use'], ['rounding', 'rounding, not requested'], ['tag', 'headers and tags'], ['padding', 'padding, or dead below a head'],
  ['free', 'free'], ['untouched', 'never used'], ['retired', 'retired'], ['loaded', 'loaded, and not used'],
];

const means = (is: Part['is']): string => KINDS.find(([kind]) => kind === is)![1];
const nameOf = (part: Part): string => ('block' in part ? part.block : '');
const placeSaid = (part: Part): string => `${noun(part.bytes, 'byte')} from ${grouped(part.at)}`;

interface Options {
  /** Blocks of these names are new. */
  fresh?: readonly string[];
  /** Parts with these bytes are what went wrong. */
  wrong?: readonly number[];
  /** Called with the name of a block that was clicked. */
  pick?: ((block: string) => void) | undefined;
}

/** The place of a memory in a picture. */
export interface Place {
  x: number;
  y: number;
  width: number;
  rows: number;
}

/** The parts that these bytes lie in. */
export const partsAt = ({ parts }: Scene, bytes: readonly number[]): Part[] =>
  parts.filter((part) => bytes.some((byte) => byte >= part.at && byte < part.at + part.bytes));

/** The height of a memory in a number of rows. */
export const heightOf = (rows: number): number => rows * (HIGH + GAP);
export const BAR = HIGH;

/** The memory, in a number of rows. */
export const memory = (scene: Scene, rows: number, options: Options = {}): SVGSVGElement =>
  drawing({ class: 'memory', 'aria-label': partsSaid(scene.parts) }, (width) => [heightOf(rows), bar(scene, { x: 0, y: 0, width, rows }, options)]);

/** The elements of a memory. */
export function bar(scene: Scene, { x: left, y: top, width, rows }: Place, { fresh = [], wrong = [], pick }: Options = {}): Node[] {
  const { parts } = scene;
  const bytes = parts.reduce((sum, part) => sum + part.bytes, 0);
  const row = Math.ceil(bytes / rows), marked = partsAt(scene, wrong);
  const boxes: Node[] = [], outlines: Node[] = [], places: Node[] = [];
  let free = 0, line = 0; // where a place of this line may begin
  for (const part of parts) {
    const name = nameOf(part);
    for (let at = part.at; at < part.at + part.bytes;) {
      if (Math.floor(at / row) !== line) [line, free] = [Math.floor(at / row), 0];
      const end = Math.min(part.at + part.bytes, (line + 1) * row);
      const x = (at - line * row) / row * width, wide = (end - at) / row * width, y = top + line * (HIGH + GAP);
      const box = svg('g', { class: `part ${part.is}${fresh.includes(name) ? ' fresh' : ''}` },
        svg('title', {}, `${name && `${name}: `}${placeSaid(part)}, ${means(part.is)}`),
        svg('rect', { x: left + x + 0.5, y: y + 0.5, width: Math.max(wide - 1, 1), height: HIGH - 1 }));
      if (part.is === 'used' && wide > LETTER * name.length + 4) box.append(svg('text', { x: left + x + wide / 2, y: y + HIGH / 2 + 4 }, name));
      if (name && pick) {
        box.classList.add('pick');
        box.addEventListener('click', () => pick(name));
      }
      boxes.push(box);
      if (marked.includes(part)) outlines.push(svg('rect', { class: 'wrong', x: left + x + 1.5, y: y + 1.5, width: Math.max(wide - 3, 1), height: HIGH - 3 }));
      // Where blocks begin, as far as there is room.
      const place = grouped(at), last = line === rows - 1 ? width - LETTER * (grouped(bytes).length + 7) : width;
      if (!['tag', 'rounding'].includes(part.is) && x >= free && x + LETTER * place.length <= last) {
        places.push(svg('text', { x: left + x + 2, y: y + HIGH + 13, class: 'place' }, place));
        free = x + LETTER * (place.length + 1);
      }
      at = end;
    }
  }
  places.push(svg('text', { x: left + width, y: top + (rows - 1) * (HIGH + GAP) + HIGH + 13, class: 'place end' }, noun(bytes, 'byte')));
  return [...boxes, ...outlines, ...places];
}

/** What the colours mean; `own` says it otherwise. */
export const legend = (parts: readonly Part[], own: Partial<Record<Part['is'], string>> = {}): HTMLElement => made('p', { className: 'kinds' },
  ...KINDS.filter(([is]) => parts.some((part) => part.is === is)).flatMap(([is, text]) => [made('span', {}, made('i', { className: `kind ${is}` }), ` ${own[is] ?? text}`)]));

/** Which parts those are, in words. */
export const wrongSaid = (scene: Scene, bytes: readonly number[]): string =>
  partsAt(scene, bytes).map((part) => `${placeSaid(part)}, ${means(part.is)}`).join('; ');

export const partsSaid = (parts: readonly Part[]): string =>
  parts.map((part) => `${grouped(part.at)}: ${[nameOf(part), part.is, grouped(part.bytes)].filter(Boolean).join(' ')}`).join(', ');

/** The text twin. */
export function partsTable(parts: readonly Part[]): HTMLTableElement {
  const row = (cell: 'th' | 'td', ...texts: string[]) => made('tr', {}, ...texts.map((text) => made(cell, {}, text)));
  return made('table', {}, made('caption', {}, 'The memory'), row('th', 'from byte', 'bytes', 'is', 'block'),
    ...parts.map((part) => row('td', grouped(part.at), grouped(part.bytes), part.is, nameOf(part) || '–')));
}
