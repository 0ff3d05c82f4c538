// What moves between two moments, and where it is on the way: functions of the two plans.

import type { Step } from '../views.ts';
import type { Id } from './moment.ts';
import { atCell, type Chip, type Plan } from './plan.ts';
import { slot, type Box } from './trays.ts';

/** A pointer on its way: `begin` and `end` are shares of the whole change. It passes `via` at `turn`. */
export interface Move {
  id: Id;
  from: Chip;
  to: Chip;
  via: Chip | null;
  begin: number;
  turn: number;
  end: number;
}

/** Pointers that move together. */
export interface Group {
  from: string;
  to: string;
  count: number;
  begin: number;
  end: number;
  /** Around them, before and after. */
  before: Box;
  after: Box;
}

export interface Change {
  moves: Move[];
  groups: Group[];
  /** Slabs that are made, and slabs whose pages are freed; when. */
  born: number[];
  died: number[];
  growth: [begin: number, end: number];
  decay: [begin: number, end: number];
  /** How long it takes, in milliseconds. */
  ms: number;
}

const OPERATION = 420, BATCH = 900, GROWTH = 800, LEAST = 60, STAGGER = 22, FEW_SLABS = 2;

const around = (chips: readonly Chip[]): Box => {
  const x = Math.min(...chips.map((chip) => chip.x - chip.r)), y = Math.min(...chips.map((chip) => chip.y - chip.r));
  return { x, y, w: Math.max(...chips.map((chip) => chip.x + chip.r)) - x, h: Math.max(...chips.map((chip) => chip.y + chip.r)) - y };
};

/** Where a pointer is: drawn by itself, in its object's cell, or with the program. */
function spot(plan: Plan, id: Id, cpu: number): Chip {
  const own = plan.chips.get(id);
  if (own) return own;
  const tile = atCell(plan, id);
  const letter = tile && plan.tiles.get(Math.floor(id / 65536))?.objects[id % 65536];
  if (tile && letter !== 'u') return tile;
  const above = plan.cpus[cpu]?.program;
  return above ? { ...plan.outlet, x: above.x + above.w / 2, y: above.y + above.h / 2 } : plan.outlet;
}

/** The place on a CPU that a pointer passes on its way to the program, or from there. */
function passage(plan: Plan, cpu: number): Chip | null {
  const own = plan.cpus[cpu];
  const tray = own?.trays.find(({ ids, room }) => ids.length < room) ?? own?.trays.at(-1);
  if (!tray) return null;
  return { ...slot(tray, Math.min(tray.ids.length, tray.room - 1)), holder: 'cpu', place: `cpu ${cpu}` };
}

/** What changes from one plan to the next, of the same size. */
export function change(before: Plan, after: Plan, steps: readonly Step[]): Change {
  const born = [...after.tiles.keys()].filter((page) => !before.tiles.has(page)), died = [...before.tiles.keys()].filter((page) => !after.tiles.has(page));
  const step = steps.at(-1), cpu = step?.cpu ?? 0;
  const found: { id: Id; from: Chip; to: Chip; via: Chip | null; batch: boolean }[] = [];
  const ids = new Set([...before.chips.keys(), ...after.chips.keys()]);
  if (step?.object) ids.add(step.object[0] * 65536 + step.object[1]);
  for (const id of ids) {
    const one = before.chips.get(id), other = after.chips.get(id);
    if (one && other && one.x === other.x && one.y === other.y && one.place === other.place) continue;
    const from = one ?? spot(before, id, cpu), to = other ?? spot(after, id, cpu);
    // A pointer that leaves a slab with it is drawn where the slab grows.
    const begin = !one && born.includes(Math.floor(id / 65536)) ? atCell(after, id) ?? from : from;
    const end = !other && died.includes(Math.floor(id / 65536)) ? atCell(before, id) ?? to : to;
    if (begin.place === end.place && begin.x === end.x && begin.y === end.y) continue;
    const program = begin.place === 'program' || end.place === 'program';
    const far = program && !begin.place.startsWith('cpu') && !end.place.startsWith('cpu') && begin.place !== end.place;
    const via = far && end.place === 'program' ? passage(after, cpu) : null;
    found.push({ id, from: begin, to: end, via, batch: !program || via !== null });
  }
  const batch = found.some(({ batch }) => batch), single = found.some(({ batch, via }) => !batch || via);
  const stagger = Math.min(found.length, 32) * STAGGER;
  const parts = { growth: born.length ? GROWTH : 0, batch: batch ? BATCH + stagger : 0, single: single ? OPERATION : 0, decay: died.length ? GROWTH : 0 };
  const ms = Math.max(parts.growth + parts.batch + parts.single + parts.decay, LEAST);
  const at = (time: number) => Math.min(time / ms, 1);
  const batchBegin = parts.growth, batchEnd = batchBegin + parts.batch, singleEnd = batchEnd + parts.single;
  // One arrow for each slab, unless there are many.
  const slabs = new Set(found.flatMap(({ from, to }) => [from.place, to.place]).filter((place) => place.startsWith('slab'))), named = (place: string) => (slabs.size > FEW_SLABS && place.startsWith('slab') ? 'slabs' : place);
  const moves: Move[] = [], grouped = new Map<string, Move[]>();
  let turn = 0;
  for (const { id, from, to, via, batch } of found) {
    const rigid = (to.place === 'depot') !== (from.place === 'depot') && from.place !== 'program';
    const late = batch && !rigid ? turn++ % 32 * STAGGER : 0;
    const move: Move = batch
      ? { id, from, to, via, begin: at(batchBegin + late), turn: at(batchBegin + late + BATCH), end: at(via ? singleEnd : batchBegin + late + BATCH) }
      : { id, from, to, via, begin: at(batchEnd), turn: at(singleEnd), end: at(singleEnd) };
    moves.push(move);
    const target = via ?? to, key = `${named(from.place)}>${named(target.place)}`;
    if (from.place !== target.place) grouped.set(key, [...(grouped.get(key) ?? []), move]);
  }
  const onward = moves.flatMap(({ via, to, turn, end }): Group[] => (via ? [{ from: via.place, to: to.place, count: 1, begin: turn, end, before: around([via]), after: around([to]) }] : []));
  const groups = [...grouped.values()].map((own): Group => ({
    from: named(own[0]!.from.place), to: named((own[0]!.via ?? own[0]!.to).place), count: own.length, begin: Math.min(...own.map(({ begin }) => begin)), end: Math.max(...own.map(({ turn }) => turn)),
    before: around(own.map(({ from }) => from)), after: around(own.map(({ to, via }) => via ?? to)),
  }));
  return {
    moves, groups: [...groups, ...onward], born, died, growth: [0, at(parts.growth)], decay: [at(singleEnd), 1], ms,
  };
}

const eased = (t: number): number => (t < 0.5 ? 4 * t ** 3 : 1 - (-2 * t + 2) ** 3 / 2);
export const share = (t: number, begin: number, end: number): number => (end > begin ? Math.min(Math.max((t - begin) / (end - begin), 0), 1) : t >= end ? 1 : 0);
export const mixed = (a: number, b: number, t: number): number => a * (1 - t) + b * t;
export const mixedBox = (a: Box, b: Box, t: number): Box => ({ x: mixed(a.x, b.x, t), y: mixed(a.y, b.y, t), w: mixed(a.w, b.w, t), h: mixed(a.h, b.h, t) });

export interface OnTheWay {
  id: Id;
  x: number;
  y: number;
  r: number;
  /** From one holder to the next, and how far. */
  from: Chip;
  to: Chip;
  t: number;
}

/** Where a pointer is at a share of the change. */
export function onTheWay({ id, from, to, via, begin, turn, end }: Move, t: number): OnTheWay {
  const [one, other, first, last] = via && t >= turn ? [via, to, turn, end] : [from, via ?? to, begin, via ? turn : end];
  const part = eased(share(t, first, last));
  return { id, x: mixed(one.x, other.x, part), y: mixed(one.y, other.y, part), r: mixed(one.r, other.r, part), from: one, to: other, t: part };
}

/** How large a slab is between its pages and its place. */
export function grown({ born, growth, died, decay }: Change, page: number, t: number): number {
  if (born.includes(page)) return eased(share(t, ...growth));
  if (died.includes(page)) return 1 - eased(share(t, ...decay));
  return 1;
}
