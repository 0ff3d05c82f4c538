// The state of a demo in the midst of a command: the state before it, with the shown steps done.

import type { Cell, FreeBlock, On, Part, Scene, Shape, Step } from '../../scenes.ts';

interface Range {
  from: number;
  to: number;
}

/** What of a memory is in a range, cut at its ends. */
const cut = (parts: readonly Part[], { from, to }: Range): Part[] => parts.flatMap((part) => {
  const [at, end] = [Math.max(part.at, from), Math.min(part.at + part.bytes, to)];
  return end > at ? [{ ...part, at, bytes: end - at }] : [];
});

/** A memory in which a range is as in another memory. */
function spliced(parts: readonly Part[], other: readonly Part[], range: Range): Part[] {
  return [...cut(parts, { from: 0, to: range.from }), ...cut(other, range), ...cut(parts, { from: range.to, to: Infinity })];
}

/** The range of the block that a command frees. */
function freed(before: Scene, after: Scene): Range | null {
  const names = new Set(after.parts.flatMap((part) => ('block' in part ? [part.block] : [])));
  const own = before.parts.filter((part) => 'block' in part && !names.has(part.block)), [first, last] = [own[0], own.at(-1)];
  return first && last ? { from: first.at, to: last.at + last.bytes } : null;
}

/** The bytes that a step changed in the memory. */
function touched(on: On, own: Range | null): Range | null {
  switch (on.is) {
    case 'take': case 'put': return { from: on.at, to: on.at + on.bytes };
    case 'head': return { from: Math.min(on.from, on.to), to: Math.max(on.from, on.to) };
    case 'neighbour': return on.merged && own ? { from: Math.min(own.from, on.at), to: Math.max(own.to, on.at + on.bytes) } : null;
    default: return null;
  }
}

function memoryOf(before: Scene, after: Scene, steps: readonly Step[]): Part[] {
  let { parts } = before, own = freed(before, after);
  for (const { on } of steps) {
    // A half becomes a block.
    if (on.is === 'split') parts = [...cut(parts, { from: 0, to: on.at }), ...cut(parts, { from: on.at, to: Infinity })];
    const range = touched(on, own);
    if (!range) continue;
    if (on.is === 'neighbour') own = range;
    parts = spliced(parts, after.parts, range);
  }
  return parts;
}

/** The free blocks of a list, with the shown steps done: `inspected` is the block that the search ended at. */
function listOf(list: readonly FreeBlock[], steps: readonly Step[], joins: (list: FreeBlock[], block: FreeBlock) => void): FreeBlock[] {
  const blocks = [...list];
  let inspected: number | null = null;
  const leaves = (at: number | null) => {
    const place = blocks.findIndex((block) => block.at === at);
    if (place >= 0) blocks.splice(place, 1);
  };
  for (const { on } of steps) {
    if (on.is === 'inspect' && on.kept) inspected = on.at;
    else if (on.is === 'take') leaves(inspected);
    else if (on.is === 'neighbour' && on.merged) leaves(on.at);
    else if (on.is === 'put') joins(blocks, { at: on.at, bytes: on.bytes });
  }
  return blocks;
}

/** The blocks of all lists, each in the list that is its own after the command or before it. */
function rowsOf(before: Extract<Shape, { is: 'grid' }>, after: Extract<Shape, { is: 'grid' }>, steps: readonly Step[]): Shape {
  const rows = before.rows.map((row, fl) => {
    const cells = row.cells.map((cell, sl): Cell => {
      const own = [...cell.list, ...after.rows[fl]!.cells[sl]!.list];
      const list = listOf(cell.list, steps, (list, block) => {
        if (own.some(({ at, bytes }) => at === block.at && bytes === block.bytes)) list.unshift(block);
      });
      return { ...cell, bit: list.length > 0, list };
    });
    return { ...row, bit: cells.some(({ bit }) => bit), cells };
  });
  return { ...before, rows };
}

function shapeOf(before: Shape, after: Shape, steps: readonly Step[]): Shape {
  if (before.is === 'grid' && after.is === 'grid') return rowsOf(before, after, steps);
  if (before.is === 'list') return { ...before, blocks: listOf(before.blocks, steps, (list, block) => {
    list.push(block);
    list.sort((a, b) => a.at - b.at);
  }) };
  if (before.is === 'chain' && after.is === 'chain') {
    let { list, opened, end } = before;
    for (const { on } of steps) {
      if (on.is === 'take') list = list.filter((slot) => slot !== on.at / after.slot);
      else if (on.is === 'put' && opened < after.opened) [list, opened, end] = [[...list, ...Array.from({ length: on.bytes / after.slot }, (_, n) => on.at / after.slot + n)], after.opened, after.end];
      else if (on.is === 'put') list = [on.at / after.slot, ...list];
    }
    return { ...before, list, opened, end };
  }
  if (before.is === 'chunks') {
    const { slot, bytes } = before, header = bytes % slot;
    let { chunks } = before;
    for (const { on } of steps) {
      if (on.is !== 'take' && on.is !== 'put') continue;
      const { at } = on, n = (at % bytes - header) / slot, takes = on.is === 'take';
      if (on.bytes === bytes) chunks = takes ? chunks.filter((chunk) => chunk.at !== at) : [{ at, list: Array.from({ length: Math.floor(bytes / slot) }, (_, n) => n) }, ...chunks];
      else chunks = chunks.map((chunk) => (Math.floor(at / bytes) * bytes !== chunk.at ? chunk : { ...chunk, list: takes ? chunk.list.filter((own) => own !== n) : [n, ...chunk.list] }));
    }
    return { ...before, chunks };
  }
  if (before.is === 'tree') {
    const lists = before.lists.map((list) => [...list]), list = (bytes: number) => lists[Math.log2(bytes / before.unit)]!;
    const leaves = (at: number, bytes: number) => {
      const place = list(bytes).indexOf(at);
      if (place >= 0) list(bytes).splice(place, 1);
    };
    for (const { on } of steps) {
      if (on.is === 'split') {
        // The lower half is split further, or taken: it is on no list.
        leaves(on.at - on.bytes, 2 * on.bytes);
        list(on.bytes).unshift(on.at);
      } else if (on.is === 'neighbour' && on.merged) leaves(on.at, on.bytes);
    }
    return { ...before, lists };
  }
  if (after.is === 'packed') {
    // The last value has moved, and its slot does not know it yet.
    const moved = steps.map(({ on }) => on).find((on) => on.is === 'value');
    return moved ? { ...after, places: after.places.map((place) => (place === moved.to ? moved.from : place)) } : before;
  }
  if (before.is === 'head') return { ...before, head: steps.reduce((head, { on }) => (on.is === 'head' ? on.to : head), before.head) };
  return before;
}

/** The scene after the first `done` steps of a command. */
export function midway(before: Scene, after: Scene, done: number): Scene {
  const own = after.structure;
  if (!own || done >= own.steps.length) return after;
  if (own.shape.is === 'lanes' && before.structure?.shape.is === 'lanes') {
    const was = before.structure, shape = done ? { ...own.shape, lanes: own.shape.frames[done - 1]! } : { ...was.shape, bytes: own.shape.bytes };
    return { ...after, facts: before.facts, structure: { ...own, text: was.text, shape } };
  }
  if (own.shape.is === 'lines' || !before.structure) return { ...after, facts: before.facts };
  const steps = own.steps.slice(0, done), moved = steps.some(({ on }) => on.is === 'value');
  return { ...before, ...(moved && { facts: after.facts }), parts: memoryOf(before, after, steps), structure: { ...own, text: before.structure.text, shape: shapeOf(before.structure.shape, own.shape, steps) } };
}
