// A linear allocator or a stack: a head that moves through the memory, and saved positions of it.

import { grouped } from '../../draw.ts';
import { BAR, bar, heightOf } from '../memory.ts';
import { arrow, box, FONT, frameOf, type Look, text } from './ink.ts';

const TOP = 62, FLAG = 22;

export function head(look: Look, width: number): readonly [number, Node[]] {
  const { steps, now, shape, scene, fresh } = frameOf<'head'>(look);
  const total = scene.parts.reduce((sum, part) => sum + part.bytes, 0), x = (at: number) => Math.min(Math.max(at / total * width, 1), width - 1);
  const nodes: Node[] = [], below = TOP + heightOf(1);
  const moves = steps.flatMap(({ on }) => (on.is === 'head' ? [on] : [])), at = now?.is === 'head' ? now.to : shape.head;
  // The number of a start that another one would cover is left out.
  let free = -Infinity;
  for (const [i, { from, to }] of moves.entries()) {
    const lit = i === moves.length - 1 ? 'lit' : '', half = FONT * grouped(from).length / 2, middle = Math.min(Math.max(x(from), half), width - half);
    nodes.push(arrow([[x(from), TOP - 12], [x(to), TOP - 12]], lit));
    if (middle - half < free) continue;
    nodes.push(text(middle, TOP - 18, grouped(from), 'note mid'));
    free = middle + half;
  }
  const said = `head ${grouped(at)}`, w = FONT * said.length + 10, left = Math.min(Math.max(x(at) - w / 2, 0), width - w);
  nodes.push(box({ x: left, y: 4, w, h: 22 }, 'bit set lit', said), arrow([[x(at), 26], [x(at), TOP - 1]], 'lit'));
  shape.marks.forEach((mark, i) => {
    const y = below + 4 + i * (FLAG + 4), said = `${mark.name}: ${grouped(mark.at)}${mark.stale ? ' ✗ stale' : ''}`, w = FONT * said.length + 10;
    nodes.push(arrow([[x(mark.at), y + FLAG], [x(mark.at), TOP + BAR + 1]], mark.stale ? 'dashed' : ''),
      box({ x: Math.min(x(mark.at) + 3, width - w), y, w, h: FLAG }, mark.stale ? 'ghost' : 'bit', said));
  });
  const memory = bar(scene, { x: 0, y: TOP, width, rows: 1 }, { fresh, pick: look.pick });
  return [below + 8 + Math.max(shape.marks.length, 1) * (FLAG + 4), [...memory, ...nodes]];
}
