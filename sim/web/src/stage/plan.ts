// Where everything is on the stage at one moment: a function of the moment and of the stage's size.

import { grouped } from '../draw.ts';
import { said } from '../scale/measures.ts';
import { capacityOf, holderOf, placeOf, sharedTrays, traysOf, type Holder, type Id, type Moment, type Tray, type Waits } from './moment.ts';
import { placed, slot, type Box, type TrayPlan } from './trays.ts';

/** A pointer: its centre, half its width, who has it, and the container that it is in. */
export interface Chip {
  x: number;
  y: number;
  r: number;
  holder: Holder;
  /** `program`, `cpu 0`, `depot`, `slab 61`. */
  place: string;
}

export interface CpuPlan {
  box: Box;
  trays: TrayPlan[];
  ids: number;
  room: number;
  /** The part of the program that runs on it, above. */
  program: Box;
  /** Pointers of the program that have no place there. */
  over: number;
  alloc: Box;
  free: Box;
}

export interface Tile {
  page: number;
  seat: number;
  box: Box;
  /** The first cell, and pixels from one to the next; `head` pixels above them are for a name. */
  x: number;
  y: number;
  pitch: number;
  columns: number;
  head: number;
  objects: string;
  list: string;
  /** Its pages in the strip. */
  pages: Box | null;
}

/** A page, or a part of memory: how much of it is in slabs, with others, and kept by CPUs. */
export interface PageCell extends Box {
  is: number;
  parts?: readonly [slabs: number, others: number, cpus: number];
}

export interface Lane {
  name: string;
  note: string;
  box: Box;
}

export interface Plan {
  w: number;
  h: number;
  /** How much larger texts are. */
  scale: number;
  narrow: boolean;
  hands: boolean;
  lanes: Lane[];
  cpus: CpuPlan[];
  depot: { box: Box; trays: TrayPlan[]; name: string } | null;
  slabs: Box;
  tiles: Map<number, Tile>;
  /** Slabs that have no place. */
  hidden: number;
  pages: { box: Box; cells: PageCell[]; first: number } | null;
  chips: Map<Id, Chip>;
  /** Where the pointers of the program are that are not drawn one by one; how many there are. */
  outlet: Chip;
  uncounted: number;
  legend: Box;
}

/** What is to have room, at this moment and at others of the same run: so nothing on the stage jumps. */
export interface Extent {
  cpus: number;
  rooms: number[];
  trays: number;
  room: number;
  slabs: number;
  objects: number;
  program: number;
  pages: [first: number, count: number];
}

export const NOTHING: Extent = { cpus: 1, rooms: [], trays: 0, room: 0, slabs: 0, objects: 1, program: 0, pages: [0, 0] };

/** Pages that are drawn one by one, in lines that begin at multiples of PAGES; pixels from one pointer to the next; CPUs in one row; pointers of a magazine in one line. */
const MOST_PAGES = 512, PAGES = 64, MOST_PITCH = 30, FEW_CPUS = 8, FEW_POINTERS = 16;

/** An extent that has room for a moment, too. */
export function extended(extent: Extent, moment: Moment): Extent {
  const { shown, seats, view } = moment;
  if (!shown) return extent;
  const capacity = capacityOf(moment), most = (numbers: Iterable<number>, least: number) => {
    let found = least;
    for (const n of numbers) found = Math.max(found, n);
    return found;
  };
  const levels = shown.cpus.map((own) => traysOf(own, capacity));
  const rooms = [...extent.rooms];
  for (const trays of levels) trays.forEach(({ room }, i) => (rooms[i] = Math.max(rooms[i] ?? 0, room)));
  const shared = sharedTrays(shown);
  let [first, count] = extent.pages;
  const order = view.caches[shown.cache]?.order ?? 0;
  for (const { page } of shown.slabs) {
    const from = Math.floor(page / PAGES) * PAGES, to = Math.ceil((page + (1 << order)) / PAGES) * PAGES;
    const end = count ? Math.max(first + count, to) : to;
    first = count ? Math.min(first, from) : from;
    count = end - first;
  }
  return {
    cpus: Math.max(extent.cpus, shown.cpus.length),
    rooms,
    trays: Math.max(most(seats.shared.values(), extent.trays - 1) + 1, shared.length),
    room: most(shared.map(({ room }) => room), extent.room),
    slabs: most(seats.slabs.values(), extent.slabs - 1) + 1,
    objects: most(shown.slabs.map(({ objects }) => objects.length), extent.objects),
    program: most([...seats.program.values()].map(([, seat]) => seat), extent.program - 1) + 1,
    pages: [first, count],
  };
}

export interface Size {
  w: number;
  h: number;
  scale: number;
  /** What CPUs share above the slabs; empty: nothing. */
  depot: string;
  /** CPUs have buttons. */
  hands: boolean;
  /** Without a legend, and CPUs where other designs have theirs. */
  bare?: boolean;
  waits?: Waits | null;
}

/** Columns of a slab's cells: rows without a hole if that makes about a square. */
function columnsOf(objects: number): number {
  const square = Math.sqrt(objects);
  const even = [8, 7, 6, 5, 4, 3, 2].find((rows) => rows <= square && rows >= square / 2 && objects % rows === 0);
  return Math.ceil(objects / (even ?? Math.max(1, Math.min(8, Math.round(square)))));
}

/** How large slabs are, so that all of them fit. */
function tileSize({ slabs, objects }: Extent, box: Box, most: number, head: number) {
  const columns = columnsOf(objects), rows = Math.ceil(objects / columns);
  for (let pitch = most; pitch > 1; pitch -= pitch > 12 ? 1 : pitch > 4 ? 0.5 : 0.1) {
    const named = pitch >= 8 ? head : 0, gap = pitch >= 8 ? 10 : pitch >= 3 ? 4 : 2, edge = pitch >= 8 ? 7 : 1;
    const w = columns * pitch + 2 * edge, h = rows * pitch + 2 * edge + named;
    const across = Math.floor((box.w + gap) / (w + gap));
    if (across && Math.ceil(slabs / across) * (h + gap) - gap <= box.h) return { pitch, columns, w, h, gap, edge, head: named, across, down: Infinity };
  }
  const w = columns + 1, h = rows + 1;
  return { pitch: 1, columns, w, h, gap: 1, edge: 0, head: 0, across: Math.max(1, Math.floor(box.w / (w + 1))), down: Math.max(1, Math.floor(box.h / (h + 1))) };
}

/** Memory in parts, each with its shares. */
function inParts(map: Uint8Array, box: Box, parts: number, high: number): PageCell[] {
  return Array.from({ length: parts }, (_, i) => {
    const [from, to] = [Math.floor(i * map.length / parts), Math.floor((i + 1) * map.length / parts)], counts = [0, 0, 0, 0];
    for (let page = from; page < to; page++) counts[map[page]!]!++;
    const all = Math.max(to - from, 1), w = box.w / parts;
    return { x: box.x + i * w, y: box.y, w, h: high, is: 0, parts: [counts[2]! / all, counts[3]! / all, counts[1]! / all] };
  });
}

export const cellOf = (tile: Tile, index: number): Box => ({
  x: tile.x + index % tile.columns * tile.pitch, y: tile.y + Math.floor(index / tile.columns) * tile.pitch, w: tile.pitch * (tile.pitch > 5 ? 0.86 : 0.8), h: tile.pitch * (tile.pitch > 5 ? 0.86 : 0.8),
});

/** A pointer where its object is. */
export function atCell(plan: Plan, id: Id): Chip | null {
  const [page, index] = placeOf(id), tile = plan.tiles.get(page);
  if (!tile) return null;
  const { x, y, w, h } = cellOf(tile, index);
  return { x: x + w / 2, y: y + h / 2, r: w * 0.3, holder: 'slab', place: `slab ${page}` };
}

/** What all parts of a plan are made from. */
interface Frame {
  moment: Moment;
  extent: Extent;
  scale: number;
  narrow: boolean;
  hands: boolean;
  chips: Map<Id, Chip>;
}

/** How pages are drawn: each one, or memory in parts, or not at all. */
interface Strip {
  whole: boolean;
  across: number;
  side: number;
  high: number;
}

function stripOf({ extent: { pages: [, count] }, narrow, scale }: Frame, w: number, wide: number): Strip | null {
  if (!count) return null;
  if (count > MOST_PAGES) {
    const across = narrow ? 64 : 128;
    return { whole: true, across, side: wide / across, high: (narrow ? 16 : 30) * scale };
  }
  const across = Math.min(count, w < 1000 ? 64 : Math.max(Math.ceil(count / 128) * 64, 64)), side = Math.min(wide / across, 16);
  return { whole: false, across, side, high: Math.ceil(count / across) * side };
}

export function plan(moment: Moment, extent: Extent, { w, h, scale, depot, hands, bare = false, waits = null }: Size): Plan {
  const { shown, seats, view, map } = moment, counts = shown ? view.caches[shown.cache] : undefined;
  const narrow = w < 700, edge = narrow ? 8 : 18, gutter = narrow ? 0 : 140 * scale, head = narrow ? 16 * scale : 0, gap = narrow ? 4 : 14;
  const chips = new Map<Id, Chip>(), frame: Frame = { moment, extent, scale, narrow, hands, chips };
  const left = edge + gutter, wide = w - left - edge, strip = stripOf(frame, w, wide);
  const foot = bare ? 0 : (narrow ? 51 : w < 1000 * scale ? 38 : 20) * scale, legend: Box = { x: edge, y: h - edge / 2 - foot, w: w - 2 * edge, h: foot };

  const note = (lock: keyof Waits, text: string) => (waits ? `lock: ${said(waits[lock])} CPUs wait` : text);
  // Lanes share what the pages leave. Large magazines need a higher one.
  const large = !narrow && capacityOf(moment) > FEW_POINTERS, high = narrow ? 0.17 : 0.14;
  const parts: [name: string, note: string, share: number][] = [
    ['program', 'objects in use', narrow ? 0.11 : 0.13],
    ['CPUs', depot === 'depot' ? 'magazines, no lock' : extent.rooms.length ? 'own pointers' : 'hold no pointers', narrow ? 0.33 : large ? 0.36 : 0.27],
    ...(depot ? [[depot, note('depot', 'shared, one lock'), high] as [string, string, number]] : []),
    ['slabs', note('slabs', counts?.size ? `${counts.per_slab} objects of ${grouped(counts.size)} B` : 'blocks of objects'), (narrow ? 0.36 : large ? 0.33 : 0.4) + (bare && !depot ? high : 0)],
  ];
  const pagesHigh = strip ? Math.max(strip.high + head + (strip.whole && !narrow ? 10 : 2), narrow || strip.whole ? 0 : 40 * scale) : 0;
  const room = legend.y - edge - pagesHigh - gap * (bare ? 4 : parts.length), shares = parts.reduce((sum, [, , share]) => sum + share, 0);
  let y = edge;
  const lanes = parts.map(([name, note, share]): Lane => {
    const all = room * share / shares, box = { x: left, y: y + head, w: wide, h: all - head };
    y += all + gap;
    return { name, note, box };
  });
  if (strip) lanes.push({ name: 'pages', note: note('pages', strip.whole ? `${grouped(map.length)} of 4 KiB` : 'of 4 KiB'), box: { x: left, y: y + head, w: wide, h: pagesHigh - head } });
  const [top, middle] = [lanes[0]!.box, lanes[1]!.box], below = depot ? lanes[2]!.box : null, bottom = lanes[depot ? 3 : 2]!.box;

  const cpus = cpusOf(frame, top, middle);
  programOf(frame, top, cpus);
  const shared = below && { box: below, trays: sharedOf(frame, below, cpus[0]?.trays[0]?.pitch || MOST_PITCH), name: depot };
  const pages = strip && { box: lanes.at(-1)!.box, cells: cellsOf(frame, lanes.at(-1)!.box, strip), first: extent.pages[0] };
  const { tiles, hidden } = tilesOf(frame, bottom, strip, pages?.cells ?? []);
  return {
    w, h, scale, narrow, hands, lanes, cpus, depot: shared, slabs: bottom, tiles, hidden, pages, chips, legend,
    uncounted: seats.program.size ? 0 : counts?.used ?? 0,
    outlet: { x: left + wide / 2, y: top.y, r: 3, holder: 'program', place: 'program' },
  };
}

function cpusOf({ moment, extent, scale, narrow, hands, chips }: Frame, top: Box, middle: Box): CpuPlan[] {
  const { cpus: count, rooms } = extent, capacity = capacityOf(moment);
  const across = count <= FEW_CPUS ? count : Math.ceil(count / Math.ceil(count / 16)), down = Math.ceil(count / across);
  const between = narrow ? 4 : count > FEW_CPUS ? 6 : 14, w = Math.min((middle.w - between * (across - 1)) / across, 520), h = (middle.h - 6 * (down - 1)) / down;
  const touch = narrow ? 40 : 28 * scale, small = w < 190 * scale, inset = small ? 4 : 12;
  const head = (count > FEW_CPUS ? 14 : small ? 20 : 34) * scale, foot = hands && small ? touch + 2 : 0, button = small ? (w - 6) / 2 : 54 * scale;
  return Array.from({ length: count }, (_, cpu): CpuPlan => {
    const box: Box = { x: middle.x + cpu % across * (w + between), y: middle.y + Math.floor(cpu / across) * (h + 6), w, h };
    const area = { x: box.x + inset, y: box.y + head, w: w - 2 * inset, h: h - head - foot - (small ? 3 : 8) };
    const own = traysOf(moment.shown?.cpus[cpu] ?? [], capacity);
    const label = (Math.max(...own.map(({ name, bar }) => (bar ? 0 : name.length)), 0) * 7.4 + 12) * (0.7 + 0.3 * scale);
    const trays = placed(own, rooms, area, MOST_PITCH * Math.min(scale, 1.3), small || rooms.length > 3 ? 0 : label);
    seat(chips, trays, 'cpu', `cpu ${cpu}`);
    const alloc: Box = small ? { x: box.x + 2, y: box.y + h - touch - 2, w: button, h: touch } : { x: box.x + w - 2 * button - 12, y: box.y + 5, w: button, h: touch };
    return {
      box, trays, ids: own.reduce((sum, { ids }) => sum + ids.length, 0), room: own.reduce((sum, { room }) => sum + room, 0),
      program: { x: box.x, y: top.y, w, h: top.h }, over: 0, alloc, free: { ...alloc, x: alloc.x + button + (small ? 2 : 4) },
    };
  });
}

/** Pointers of trays become chips. */
function seat(chips: Map<Id, Chip>, trays: readonly TrayPlan[], holder: Holder, place: string): void {
  for (const tray of trays) if (tray.pitch) tray.ids.forEach((id, i) => chips.set(id, { ...slot(tray, i), holder, place }));
}

/** Pointers of the program, above the CPU that allocated them. */
function programOf({ moment: { seats }, extent, scale, narrow, chips }: Frame, top: Box, cpus: readonly CpuPlan[]): void {
  const { w } = cpus[0]!.box;
  let pitch = Math.min(narrow ? 13 : 22 * scale, w / 4);
  const columns = () => Math.max(1, Math.floor(w / pitch)), rows = () => Math.max(1, Math.floor(top.h / pitch));
  while (pitch > 6 && columns() * rows() < extent.program) pitch -= 0.5;
  for (const [id, [cpu, place]] of seats.program) {
    const own = cpus[cpu];
    if (!own || extent.cpus > FEW_CPUS) continue;
    if (place >= columns() * rows()) own.over++;
    else chips.set(id, { x: own.program.x + (place % columns() + 0.5) * pitch, y: top.y + top.h - (Math.floor(place / columns()) + 0.5) * pitch, r: pitch * 0.34, holder: 'program', place: 'program' });
  }
}

/** The shared containers, each in its seat; empty containers take the remaining seats. */
function sharedOf({ moment, extent, narrow, chips }: Frame, box: Box, pitch: number): TrayPlan[] {
  const { shown, seats } = moment, room = extent.room || capacityOf(moment);
  const shared = shown ? sharedTrays(shown) : [], empty = shared.filter(({ ids }) => !ids.length).reverse();
  const all: (Tray | undefined)[] = Array.from({ length: extent.trays });
  for (const tray of shared) if (tray.ids.length) all[seats.shared.get(tray.ids[0]!)!] = tray;
  const filled = all.map((tray): Tray => tray ?? empty.shift() ?? { name: '', room, ids: [] });
  const inset = narrow ? 4 : 10, inner = { x: box.x + inset, y: box.y + inset, w: box.w - 2 * inset, h: box.h - 2 * inset };
  const trays = placed(filled.reverse(), [], inner, Math.min(pitch, MOST_PITCH), 0).reverse();
  seat(chips, trays, 'depot', 'depot');
  return trays;
}

function cellsOf({ moment: { map }, extent: { pages: [first, count] } }: Frame, box: Box, { whole, across, side, high }: Strip): PageCell[] {
  if (whole) return inParts(map, box, across, high);
  return Array.from({ length: count }, (_, i) => ({ x: box.x + i % across * side, y: box.y + Math.floor(i / across) * side, w: side, h: side, is: map[first + i] ?? 0 }));
}

/** Slabs in their seats, each with its pages, which are marked as pages of a slab. */
function tilesOf({ moment: { shown, seats, view, map }, extent, scale, narrow }: Frame, box: Box, strip: Strip | null, cells: PageCell[]): { tiles: Map<number, Tile>; hidden: number } {
  const { pitch, columns, w, h, gap, edge, head, across, down } = tileSize(extent, box, narrow ? 26 : 42 * Math.min(scale, 1.3), (narrow ? 16 : 22) * scale);
  const pages = 1 << (shown ? view.caches[shown.cache]?.order ?? 0 : 0), found = new Map<number, Tile>();
  const at = (page: number) => cells[strip?.whole ? Math.floor(page * cells.length / Math.max(map.length, 1)) : page - extent.pages[0]];
  let hidden = 0;
  for (const { page, objects, list } of shown?.slabs ?? []) {
    const seat = seats.slabs.get(page) ?? 0, row = Math.floor(seat / across);
    if (row >= down) {
      hidden++;
      continue;
    }
    const own = { x: box.x + seat % across * (w + gap), y: box.y + row * (h + gap), w, h }, from = at(page), to = at(page + pages - 1);
    for (let i = 0; i < pages && !strip?.whole; i++) {
      const cell = at(page + i);
      if (cell) cell.is = 2;
    }
    found.set(page, {
      page, seat, box: own, x: own.x + edge + pitch * 0.07, y: own.y + edge + head + pitch * 0.07, pitch, columns, head, objects, list,
      pages: from ? { ...from, w: to?.y === from.y ? to.x + to.w - from.x : from.w } : null,
    });
  }
  return { tiles: found, hidden };
}

/** Who has an object, in words. */
export function holderSaid(letter: string, cpu: number | null): string {
  const holder = holderOf(letter);
  if (holder === 'program') return 'in use: the program has the pointer';
  if (holder === 'depot') return 'free: a magazine in the depot has the pointer';
  if (holder === 'slab') return 'free in its slab';
  return cpu === null ? 'free: a CPU has the pointer' : `free: CPU ${cpu} has the pointer`;
}
