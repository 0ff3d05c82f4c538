// First fit, best fit and worst fit: one list that runs through the free blocks, and the walk of a request along it.

import { grouped } from '../../draw.ts';
import { BAR, bar, heightOf } from '../memory.ts';
import { arrow, box, FONT, frameOf, type Look, text } from './ink.ts';

const TOP = 96;

export function list(look: Look, width: number): readonly [number, Node[]] {
  const { steps, now, shape, scene, fresh } = frameOf<'list'>(look);
  const total = scene.parts.reduce((sum, part) => sum + part.bytes, 0), x = (at: number) => at / total * width;
  const blocks = shape.blocks.map(({ at, bytes }) => ({ at, bytes, x: x(at), w: bytes / total * width, middle: x(at + bytes / 2) }));
  const walked = steps.flatMap(({ on }) => (on.is === 'inspect' ? [on] : []));
  const walks = now?.is === 'inspect';
  const nodes: Node[] = [box({ x: 0, y: 14, w: 42, h: 20 }, 'bit set', 'head')], lines: Node[] = [];
  let from: readonly [number, number] = [42, 24];
  blocks.forEach((block, i) => {
    const to: [number, number] = [Math.max(block.middle - (i ? 5 : 0), 8), TOP - 1], lit = walks && i < walked.length;
    // The first arrow comes from the head, the others from the block before.
    const turn: [number, number] = i ? [(from[0] + to[0]) / 2, TOP - Math.min(64, 22 + Math.abs(to[0] - from[0]) / 4)] : [Math.max(to[0], 60), 24];
    lines.push(arrow([from, turn, to], lit ? 'lit' : 'quiet', true));
    from = [block.middle + 5, TOP - 1];
  });
  if (blocks.length) {
    const end: [number, number] = [Math.min(from[0] + 16, width - 24), TOP - 40];
    lines.push(arrow([from, [from[0] + 4, TOP - 30], end], 'quiet', true));
    nodes.push(text(end[0] + 3, TOP - 40, 'null', 'note start'));
  } else nodes.push(text(50, 28, 'empty: no block is free', 'note start'));
  // Each block that the walk read, with its verdict.
  const best = walked.findLastIndex(({ kept }) => kept);
  let free = 0;
  walked.forEach(({ at, bytes, kept }, i) => {
    const said = `${i + 1}: ${grouped(bytes)} ${kept ? '✓' : '✗'}`, w = FONT * said.length;
    const middle = Math.max(Math.min(x(at + bytes / 2), width - w / 2), w / 2, free + w / 2);
    free = middle + w / 2 + 6;
    nodes.push(text(middle, TOP + heightOf(1) + 12, said, kept && i === best ? 'now' : 'note mid'));
  });
  const memory = bar(scene, { x: 0, y: TOP, width, rows: 1 }, { fresh, pick: look.pick });
  if (now && 'at' in now && 'bytes' in now) memory.push(box({ x: x(now.at), y: TOP, w: Math.max(now.bytes / total * width, 3), h: BAR }, 'outline'));
  return [TOP + heightOf(1) + 18, [...lines, ...memory, ...nodes]];
}
