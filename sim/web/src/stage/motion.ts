// What moves between two moments, and where it is on the way: functions of the two plans.

import type { Step } from '../views.ts';
import type { Id } from './moment.ts';
import { atCell, type Chip, type Plan } from './plan.ts';
import { slot, type Box } from './trays.ts';

export interface Point {
  x: number;
  y: number;
}

/** A pointer on its way: `begin` and `end` are shares of the whole change. It passes `via` at `turn`. */
export interface Move {
  id: Id;
  from: Chip;
  to: Chip;
  via: Chip | null;
  begin: number;
  turn: number;
  end: number;
  /** The ways of its groups: up to `turn`, and after it. */
  ways: readonly [readonly Point[], readonly Point[]];
}

/** Pointers that move together. */
export interface Group {
  from: string;
  to: string;
  count: number;
  begin: number;
  end: number;
  /** From the middle of where they were to the middle of where they will be, in the gaps between CPUs, lanes and magazines. */
  way: readonly Point[];
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

export const around = (chips: readonly { x: number; y: number; r: number }[]): Box => {
  const x = Math.min(...chips.map((chip) => chip.x - chip.r)), y = Math.min(...chips.map((chip) => chip.y - chip.r));
  return { x, y, w: Math.max(...chips.map((chip) => chip.x + chip.r)) - x, h: Math.max(...chips.map((chip) => chip.y + chip.r)) - y };
};

const middle = ({ x, y, w, h }: Box): Point => ({ x: x + w / 2, y: y + h / 2 });

/** The lane of a place: program, CPUs, depot, slabs. */
const laneOf = (place: string): number => (place === 'program' ? 0 : place.startsWith('cpu') ? 1 : place === 'depot' ? 2 : 3);

/** Where a way crosses the depot: between two magazines, or beside them. */
function gapOf({ box, trays }: { box: Box; trays: readonly { box: Box }[] }, near: number): number {
  const clear = (x: number) => trays.every((tray) => x < tray.box.x - 1 || x > tray.box.x + tray.box.w + 1);
  const gaps = [box.x + 2, box.x + box.w - 2, ...trays.flatMap((tray) => trays.map((other) => (tray.box.x + tray.box.w + other.box.x) / 2)), ...trays.map((tray) => tray.box.x + tray.box.w + 4)];
  return gaps.filter((x) => clear(x) && x <= box.x + box.w).reduce((best, x) => (Math.abs(x - near) < Math.abs(best - near) ? x : best), box.x + 2);
}

/** A way from one place to another. It changes its column in the gaps between lanes, and passes the lane of CPUs on its own CPU. */
export function wayOf({ lanes, cpus, depot, narrow }: Plan, from: string, a: Point, to: string, b: Point, cpu: number): readonly Point[] {
  const [one, other] = [laneOf(from), laneOf(to)];
  if (one > other) return wayOf({ lanes, cpus, depot, narrow } as Plan, to, b, from, a, cpu).toReversed();
  const onCpu = (place: string) => cpus[place.startsWith('cpu') ? Number(place.slice(4)) : cpu]?.box, within = (x: number, box?: Box) => box !== undefined && x >= box.x && x <= box.x + box.w;
  if (one === other && (one !== 1 || from === to)) return [a, b];
  if (one === 0 && other === 1 && within(a.x, onCpu(to))) return [a, b];
  const below = (lane: number) => {
    const { y, h } = lanes[lane > 2 && !depot ? 2 : lane]!.box;
    return y + h + (narrow ? 2 : 5);
  };
  const points: Point[] = [a];
  let { x } = a;
  const turn = (lane: number, next: number) => {
    if (Math.abs(next - x) > 1) points.push({ x, y: below(lane) }, { x: next, y: below(lane) });
    x = next;
  };
  for (let lane = one; lane < Math.max(other, one + 1); lane++) {
    if (lane === 2 && !depot) continue;
    const next = lane + 1 < other && lane === 1 && !depot ? other : lane + 1, box = onCpu(from);
    turn(lane, next >= other ? b.x : next === 1 && box ? (within(x, box) ? x : box.x + box.w / 2) : next === 2 && depot ? gapOf(depot, (x + b.x) / 2) : x);
  }
  return [...points, b];
}

/** A point of a way, at a share of its length. */
export function alongWay(way: readonly Point[], t: number): Point {
  if (t >= 1) return way.at(-1)!;
  const lengths = way.slice(1).map(({ x, y }, i) => Math.hypot(x - way[i]!.x, y - way[i]!.y));
  let left = t * lengths.reduce((sum, length) => sum + length, 0);
  for (const [i, length] of lengths.entries()) {
    const [a, b] = [way[i]!, way[i + 1]!], part = length ? Math.min(left / length, 1) : 1;
    if (left <= length || i === lengths.length - 1) return { x: mixed(a.x, b.x, part), y: mixed(a.y, b.y, part) };
    left -= length;
  }
  return way[0]!;
}

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
  const step = steps.at(-1), last = step?.cpu ?? 0;
  const found: { id: Id; from: Chip; to: Chip; via: Chip | null; batch: boolean; cpu: number }[] = [];
  const ids = new Set([...before.chips.keys(), ...after.chips.keys()]);
  if (step?.object) ids.add(step.object[0] * 65536 + step.object[1]);
  // Several CPUs may have done something.
  const actors = new Map(steps.flatMap(({ object, cpu }): [Id, number][] => (object ? [[object[0] * 65536 + object[1], cpu]] : [])));
  for (const id of ids) {
    const cpu = actors.get(id) ?? last;
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
    found.push({ id, from: begin, to: end, via, batch: !program || via !== null, cpu });
  }
  const batch = found.some(({ batch }) => batch), single = found.some(({ batch, via }) => !batch || via);
  const stagger = Math.min(found.length, 32) * STAGGER;
  const parts = { growth: born.length ? GROWTH : 0, batch: batch ? BATCH + stagger : 0, single: single ? OPERATION : 0, decay: died.length ? GROWTH : 0 };
  const ms = Math.max(parts.growth + parts.batch + parts.single + parts.decay, LEAST);
  const at = (time: number) => Math.min(time / ms, 1);
  const batchBegin = parts.growth, batchEnd = batchBegin + parts.batch, singleEnd = batchEnd + parts.single;
  // One arrow for each slab, unless there are many.
  const slabs = new Set(found.flatMap(({ from, to }) => [from.place, to.place]).filter((place) => place.startsWith('slab'))), named = (place: string) => (slabs.size > FEW_SLABS && place.startsWith('slab') ? 'slabs' : place);
  const moves: Move[] = [], groups = new Map<string, { moves: Move[]; cpu: number }>(), onward: Group[] = [];
  let turn = 0;
  for (const { id, from, to, via, batch, cpu } of found) {
    const rigid = (to.place === 'depot') !== (from.place === 'depot') && from.place !== 'program';
    const late = batch && !rigid ? turn++ % 32 * STAGGER : 0, straight: Point[] = [from, via ?? to];
    const move: Move = batch
      ? { id, from, to, via, begin: at(batchBegin + late), turn: at(batchBegin + late + BATCH), end: at(via ? singleEnd : batchBegin + late + BATCH), ways: [straight, straight] }
      : { id, from, to, via, begin: at(batchEnd), turn: at(singleEnd), end: at(singleEnd), ways: [straight, straight] };
    if (via) {
      const way = wayOf(after, via.place, via, to.place, to, cpu);
      move.ways = [straight, way];
      onward.push({ from: via.place, to: to.place, count: 1, begin: move.turn, end: move.end, way });
    }
    moves.push(move);
    const target = via ?? to, key = `${named(from.place)}>${named(target.place)}`;
    if (from.place === target.place) continue;
    const own = groups.get(key);
    if (own) own.moves.push(move);
    else groups.set(key, { moves: [move], cpu });
  }
  const together = [...groups.values()].map(({ moves, cpu }): Group => {
    const [first] = moves as [Move], from = named(first.from.place), to = named((first.via ?? first.to).place);
    const way = wayOf(after, from, middle(around(moves.map(({ from }) => from))), to, middle(around(moves.map(({ to, via }) => via ?? to))), cpu);
    for (const move of moves) move.ways = [way, move.ways[1]];
    return { from, to, count: moves.length, begin: Math.min(...moves.map(({ begin }) => begin)), end: Math.max(...moves.map(({ turn }) => turn)), way };
  });
  return {
    moves, groups: [...together, ...onward], born, died, growth: [0, at(parts.growth)], decay: [at(singleEnd), 1], ms,
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

/** Where a pointer is at a share of the change: as far from the straight line as its group's way. */
export function onTheWay({ id, from, to, via, begin, turn, end, ways }: Move, t: number): OnTheWay {
  const late = via !== null && t >= turn, [one, other, first, last] = late ? [via, to, turn, end] : [from, via ?? to, begin, via ? turn : end];
  const part = eased(share(t, first, last)), way = ways[late ? 1 : 0], on = alongWay(way, part), [a, b] = [way[0]!, way.at(-1)!];
  return {
    id, x: mixed(one.x, other.x, part) + (on.x - mixed(a.x, b.x, part)), y: mixed(one.y, other.y, part) + (on.y - mixed(a.y, b.y, part)), r: mixed(one.r, other.r, part),
    from: one, to: other, t: part,
  };
}

/** How large a slab is between its pages and its place. */
export function grown({ born, growth, died, decay }: Change, page: number, t: number): number {
  if (born.includes(page)) return eased(share(t, ...growth));
  if (died.includes(page)) return 1 - eased(share(t, ...decay));
  return 1;
}
