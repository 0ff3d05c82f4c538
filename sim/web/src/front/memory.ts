// A demo's memory as a picture: its parts side by side, in proportion, in as many rows as make them wide enough to see.

import { grouped, made, noun } from '../draw.ts';
import type { Part, Scene } from '../scenes.ts';

const SVG = 'http://www.w3.org/2000/svg';
const WIDE = 1024, GAP = 20;

export const KINDS: readonly (readonly [is: Part['is'], means: string])[] = [
  ['used', 'in use'], ['rounding', 'rounding: nobody asked for it'], ['tag', 'headers and tags'], ['padding', 'padding, or dead below a head'],
  ['free', 'free'], ['untouched', 'never used'], ['retired', 'retired'], ['loaded', 'loaded, and not used'],
];

const means = (is: Part['is']): string => KINDS.find(([kind]) => kind === is)![1];
const nameOf = (part: Part): string => ('block' in part ? part.block : '');

function svg<K extends keyof SVGElementTagNameMap>(tag: K, own: Record<string, string | number>, ...children: (Node | string)[]): SVGElementTagNameMap[K] {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(own)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** The memory; blocks of these names are new, and `pick` hears which block was clicked. */
export function memory({ parts }: Scene, rows: number, fresh: readonly string[] = [], pick?: (block: string) => void): SVGSVGElement {
  const bytes = parts.reduce((sum, part) => sum + part.bytes, 0);
  const row = Math.ceil(bytes / rows), HIGH = rows > 4 ? 26 : 44;
  const root = svg('svg', { viewBox: `0 0 ${WIDE} ${rows * (HIGH + GAP)}`, class: 'memory', role: 'img', 'aria-label': partsSaid(parts) });
  for (const part of parts) {
    for (let at = part.at; at < part.at + part.bytes;) {
      const line = Math.floor(at / row), end = Math.min(part.at + part.bytes, (line + 1) * row);
      const x = (at - line * row) / row * WIDE, wide = (end - at) / row * WIDE, y = line * (HIGH + GAP);
      const name = nameOf(part);
      const box = svg('g', { class: `part ${part.is}${fresh.includes(name) ? ' fresh' : ''}` },
        svg('title', {}, `${name && `${name}: `}${noun(part.bytes, 'byte')} from ${grouped(part.at)}, ${means(part.is)}`),
        svg('rect', { x: x + 0.5, y: y + 0.5, width: Math.max(wide - 1, 1), height: HIGH - 1 }));
      if (part.is === 'used' && wide > 9 * name.length) box.append(svg('text', { x: x + wide / 2, y: y + HIGH / 2 + 5 }, name));
      if (name && pick) {
        box.classList.add('pick');
        box.addEventListener('click', () => pick(name));
      }
      root.append(box);
      at = end;
    }
  }
  for (let line = 0; line < rows; line++)
    root.append(svg('text', { x: 0, y: line * (HIGH + GAP) + HIGH + 14, class: 'place' }, grouped(line * row)));
  root.append(svg('text', { x: WIDE, y: (rows - 1) * (HIGH + GAP) + HIGH + 14, class: 'place end' }, noun(bytes, 'byte')));
  return root;
}

/** What the colours mean; `own` says it otherwise. */
export const legend = (parts: readonly Part[], own: Partial<Record<Part['is'], string>> = {}): HTMLElement => made('p', { className: 'kinds' },
  ...KINDS.filter(([is]) => parts.some((part) => part.is === is)).flatMap(([is, text]) => [made('span', {}, made('i', { className: `kind ${is}` }), ` ${own[is] ?? text}`)]));

export const partsSaid = (parts: readonly Part[]): string =>
  parts.map((part) => `${grouped(part.at)}: ${[nameOf(part), part.is, grouped(part.bytes)].filter(Boolean).join(' ')}`).join(', ');

/** The text twin. */
export function partsTable(parts: readonly Part[]): HTMLTableElement {
  const row = (cell: 'th' | 'td', ...texts: string[]) => made('tr', {}, ...texts.map((text) => made(cell, {}, text)));
  return made('table', {}, made('caption', {}, 'The memory'), row('th', 'from byte', 'bytes', 'is', 'block'),
    ...parts.map((part) => row('td', grouped(part.at), grouped(part.bytes), part.is, nameOf(part) || '–')));
}
