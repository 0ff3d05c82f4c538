// Several allocators that serve one program: the memory of each, and how many holes it had so far.

import { grouped, made, noun, svg } from '../../draw.ts';
import type { Lane, Part } from '../../scenes.ts';
import { KINDS } from '../memory.ts';
import { box, frameOf, type Look, type Of, text } from './ink.ts';

/** Pixels: of a memory, of one with a curve, of a line of text, below a lane, of a curve beside a memory, and below it. */
const HIGH = 22, TALL = 34, LINE = 15, GAP = 12, CURVE = 170, LOW = 48;
/** Turnovers that a curve has room for. */
const TURNOVERS = 12;

/** A lane, with the words about it in lines. */
function linesOf({ name, says }: Lane, narrow: boolean): readonly string[] {
  return narrow ? [name, ...says.split('; ')] : [`${name}: ${says}`];
}

export function lanes(look: Look, width: number): readonly [number, Node[]] {
  const { shape } = frameOf<'lanes'>(look), narrow = width < 660, curved = shape.lanes.some(({ curve }) => curve.length);
  if (!shape.lanes.length) return [60, [text(0, 30, 'no block is in use yet', 'note start')]];
  const wide = curved && !narrow ? width - CURVE - 24 : width, x = (at: number) => at / shape.bytes * wide;
  const nodes: Node[] = [], rules: Node[] = [], bars: number[] = [], high = curved ? TALL : HIGH;
  let y = shape.marks.length * LINE + 4;
  const top = y;
  if (curved && !narrow) nodes.push(text(wide + 24, 11, 'holes after each turnover', 'note start'));
  if (curved && !narrow) y += LINE;
  for (const [i, lane] of shape.lanes.entries()) {
    const words = linesOf(lane, narrow), below = curved && narrow ? LOW : 0;
    words.forEach((said, n) => nodes.push(text(0, y + 11 + n * LINE, said, n || !narrow ? 'start' : 'start strong')));
    y += words.length * LINE;
    nodes.push(...lane.parts.map((part) => partOf(part, shape, { x, y, high })));
    bars.push(y);
    if (lane.curve.length) nodes.push(...curve(lane, narrow ? { x: 0, y: y + high + 6, w: width, h: LOW - 8 } : { x: wide + 24, y: y - 8, w: CURVE, h: high + 10 }));
    y += high + below + (shape.lanes[i + 1]?.name.endsWith('apart') ? 3 : GAP);
  }
  // A place is marked on each memory, and its label is at the side that has room.
  shape.marks.forEach(({ at, name }, n) => {
    const right = x(at) > wide * 0.6;
    rules.push(svg('path', { class: 'rule', d: `M${x(at)} ${n * LINE + 2}V${n * LINE + 16}${bars.map((bar) => `M${x(at)} ${bar - 2}V${bar + high + 2}`).join('')}` }), text(x(at) + (right ? -5 : 5), n * LINE + 12, name, right ? 'size' : 'note start'));
  });
  return [Math.max(y, top + 90), [...nodes, ...rules]];
}

const kindOf = (part: Part, { kinds }: Of<'lanes'>): string => (part.is === 'used' && part.block === kinds[1] ? 'pale' : part.is);

function partOf(part: Part, shape: Of<'lanes'>, { x, y, high }: { x: (at: number) => number; y: number; high: number }): Node {
  const wide = x(part.bytes), said = part.is === 'used' ? part.block : KINDS.find(([is]) => is === part.is)![1];
  return svg('g', { class: `part ${kindOf(part, shape)}${wide < 5 ? ' thin' : ''}` }, svg('title', {}, `${noun(part.bytes, 'byte')} from ${grouped(part.at)}, ${said}`),
    svg('rect', { x: x(part.at), y, width: Math.max(wide - (wide < 2 ? 0 : 0.6), 0.8), height: high }));
}

/** The holes per hundred blocks, and the half of the blocks. */
function curve({ curve }: Lane, { x, y, w, h }: { x: number; y: number; w: number; h: number }): Node[] {
  const left = x + 20, wide = w - 20, last = Math.max(TURNOVERS, curve.length - 1), down = (holes: number) => y + h - 2 - Math.min(holes, 75) / 75 * (h - 4);
  return [box({ x: left, y, w: wide, h }, 'untouched'), svg('path', { class: 'half', d: `M${left} ${down(50)}H${left + wide}` }), text(x + 16, down(50) + 4, 50, 'size'),
    svg('path', { class: 'curve', d: `M${curve.map((holes, n) => `${left + n / last * wide} ${down(holes)}`).join('L')}` }),
    svg('circle', { class: 'tip', cx: left + (curve.length - 1) / last * wide, cy: down(curve.at(-1)!), r: 3 })];
}

/** What the colours mean. */
export const lanesLegend = (shape: Of<'lanes'>): HTMLElement => made('p', { className: 'kinds' }, ...shape.kinds.map((kind, n) => made('span', {}, made('i', { className: `kind ${n ? 'pale' : 'used'}` }), ` ${kind}`)),
  ...KINDS.filter(([is]) => shape.lanes.some(({ parts }) => parts.some((part) => part.is === is && is !== 'used'))).map(([is, means]) => made('span', {}, made('i', { className: `kind ${is}` }), ` ${means}`)));
