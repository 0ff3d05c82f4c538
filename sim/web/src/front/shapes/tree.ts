// A buddy allocator: a tree of blocks over the memory, and a free list for each size.

import { grouped } from '../../draw.ts';
import type { Scene } from '../../scenes.ts';
import { bar, heightOf } from '../memory.ts';
import { arrow, bits, box, FONT, frameOf, type Look, text } from './ink.ts';

const ROW = 38, BOX = 24, FOOT = 58;

interface Block {
  bytes: number;
  /** In use. */
  name?: string;
}

/** The blocks by position. */
function blocksOf({ parts }: Scene): Map<number, Block> {
  const blocks = new Map<number, Block>();
  let last = { at: 0, name: '' };
  for (const part of parts) {
    if (part.is === 'rounding' && part.block === last.name) {
      const block = blocks.get(last.at)!;
      block.bytes += part.bytes;
    } else {
      blocks.set(part.at, { bytes: part.bytes, ...('block' in part && { name: part.block }) });
      last = { at: part.at, name: 'block' in part ? part.block : '' };
    }
  }
  return blocks;
}

export function tree(look: Look, width: number): readonly [number, Node[]] {
  const { now, shape, scene, fresh, steps } = frameOf<'tree'>(look);
  const { unit, lists } = shape, blocks = blocksOf(scene);
  const total = unit * 2 ** (lists.length - 1), narrow = width < 600;
  const left = narrow ? 108 : 170, wide = width - left;
  const row = (bytes: number) => (lists.length - 1 - Math.log2(bytes / unit)) * ROW + 8;
  const x = (at: number) => left + at / total * wide;
  const nodes: Node[] = [], lines: Node[] = [], side: Node[] = [];

  // Every block, and the blocks that it was split from.
  const inner = new Set<string>();
  for (const [at, { bytes, name }] of blocks) {
    for (let size = bytes * 2; size <= total; size *= 2) inner.add(`${at - at % size} ${size}`);
    const lit = now && 'bytes' in now && 'at' in now && now.at === at && now.bytes === bytes && now.is !== 'neighbour'
      || now?.is === 'neighbour' && [now.at, now.at ^ now.bytes].includes(at) && now.bytes === bytes
      || now?.is === 'neighbour' && now.merged && Math.min(now.at, now.at ^ now.bytes) === at
      || now?.is === 'split' && now.at - now.bytes === at;
    nodes.push(box({ x: x(at) + 1, y: row(bytes), w: bytes / total * wide - 2, h: BOX }, `${name === undefined ? 'free' : 'used'}${lit ? ' lit' : ''}`,
      name ?? (FONT * `at ${at}`.length + 9 < bytes / total * wide ? `at ${grouped(at)}` : grouped(at)), `${grouped(bytes)} bytes at ${grouped(at)}${name ? `, ${name}` : ', free'}`));
  }
  for (const key of inner) {
    const [at, bytes] = key.split(' ').map(Number) as [number, number], half = bytes / 2;
    const lit = now?.is === 'split' && now.bytes === half && now.at - half === at, trail = steps.some(({ on }) => on.is === 'split' && on.bytes === half && on.at - half === at);
    nodes.push(box({ x: x(at) + 1, y: row(bytes), w: bytes / total * wide - 2, h: BOX }, 'split', 'split', `${grouped(bytes)} bytes at ${grouped(at)}, split`));
    for (const to of [at, at + half]) {
      const from: [number, number] = [x(at + half) + (to === at ? -6 : 6), row(bytes) + BOX], end: [number, number] = [x(to + half / 2), row(half)];
      lines.push(arrow([from, end], lit ? 'lit' : trail && to === at ? 'trail' : 'quiet'));
    }
  }
  // A merge moves up: from both buddies to the block that they become.
  const merges = now?.is === 'neighbour' && now.merged;
  if (merges) {
    const { at, bytes } = now, from = Math.min(at, at ^ bytes);
    for (const half of [from, from + bytes]) {
      nodes.push(box({ x: x(half) + 1, y: row(bytes), w: bytes / total * wide - 2, h: BOX }, 'ghost', `at ${grouped(half)}`));
      lines.push(arrow([[x(half + bytes / 2), row(bytes)], [x(from + bytes) + (half === from ? -6 : 6), row(2 * bytes) + BOX]], 'lit'));
    }
  } else if (now?.is === 'neighbour' && !blocks.has(now.at)) {
    nodes.push(box({ x: x(now.at) + 1, y: row(now.bytes), w: now.bytes / total * wide - 2, h: BOX }, 'ghost', `at ${grouped(now.at)}`));
  }

  lists.forEach((list, order) => {
    const bytes = unit * 2 ** order, y = row(bytes), read = now?.is === 'list' && now.bytes === bytes ? now : null;
    side.push(text(narrow ? 40 : 44, y + 16, grouped(bytes), `size${read ? ' now' : ''}`));
    let end = narrow ? 46 : 52;
    for (const [i, at] of list.entries()) {
      const w = Math.max(FONT * grouped(at).length + 8, 24);
      if (end + 12 + w > left - 14) {
        side.push(text(end + 2, y + 16, `+${list.length - i}`, 'note'));
        break;
      }
      side.push(arrow([[end, y + BOX / 2], [end + 10, y + BOX / 2]], 'quiet'), box({ x: end + 11, y: y + 2, w, h: BOX - 4 }, `free${read ? ' lit' : ''}`, grouped(at)));
      end += 11 + w;
    }
    if (!list.length) side.push(text(end + 4, y + 16, read ? 'empty ✗' : '∅', read ? 'now start' : 'note'));
    else if (read) side.push(text(end + 4, y + 16, '✓', 'now start'));
  });

  const height = lists.length * ROW + 12;
  const said = addressBits(look, blocks, total, narrow, height + heightOf(1) + 14, left);
  const memory = bar(scene, { x: left, y: height, width: wide, rows: 1 }, { fresh: steps.length ? fresh : [], pick: look.pick });
  return [height + heightOf(1) + FOOT, [...lines, ...nodes, ...side, text(0, height + 18, 'memory', 'note start'), ...memory, ...said]];
}

/** The address of a block and the address of its buddy, which differ in one bit. */
function addressBits({ scene, done }: Look, blocks: ReadonlyMap<number, Block>, total: number, narrow: boolean, y: number, left: number): Node[] {
  const steps = scene.structure!.steps, on = steps.slice(0, done).findLast(({ on }) => ['neighbour', 'take', 'split'].includes(on.is))?.on;
  if (!on || !('bytes' in on) || !('at' in on) || on.bytes >= total) return [];
  const { bytes } = on, own = on.is === 'take' ? on.at : on.at ^ bytes, buddy = own ^ bytes, count = Math.log2(total);
  const x = narrow ? 0 : left, shown = blocks.get(own);
  const label = (at: number, y: number, said: string) => [text(x, y + 15, `${said}${grouped(at)}`, 'start'), ...bits(x + 84, y, at, count, bytes)];
  return [...label(own, y, shown?.name ? `${shown.name} ` : 'block '), ...label(buddy, y + 22, 'buddy '),
    ...(narrow ? [] : [text(x + 84 + count * 15 + 12, y + 26, `the bit of ${grouped(bytes)} is flipped`, 'note start')])];
}
