// Where everything is on the stage at one moment: a function of the moment and of the stage's size.

import { grouped } from '../draw.ts';
import { capacityOf, holderOf, idOf, placeOf, traysOf, type Holder, type Id, type Moment, type Tray } from './moment.ts';

export interface Box {
  x: number;
  y: number;
  w: number;
  h: number;
}

/** A pointer: its centre, half its width, who has it, and the container that it is in. */
export interface Chip {
  x: number;
  y: number;
  r: number;
  holder: Holder;
  /** `program`, `cpu 0`, `depot`, `slab 61`. */
  place: string;
}

export interface TrayPlan extends Tray {
  box: Box;
  columns: number;
  /** Pixels from one pointer to the next; 0: there is no room for them, and a bar shows how many there are. */
  pitch: number;
  /** Pixels for the name in front of it; 0: it is not written. */
  label: number;
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

const MOST_PAGES = 512, PAGES = 64;

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
  const shared = shown.shared.flat();
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
    trays: Math.max(extent.trays, shared.length),
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
  /** Without a legend. */
  bare?: boolean;
}

const PAD = 4, GAP = 8;

/** Trays in rows in a box, with as much from one pointer to the next as fits. The first one is the lowest. */
function placed(trays: readonly Tray[], rooms: readonly number[], box: Box, most: number, label: number): TrayPlan[] {
  const own = trays.map((tray, i) => ({ ...tray, room: Math.max(tray.room, rooms[i] ?? 0) })).filter(({ room }) => room);
  const bars = own.filter(({ bar }) => bar);
  if (bars.length && bars.length < own.length) {
    const high = Math.min(17, box.h / 4), above = { ...box, h: box.h - bars.length * (high + 5) };
    return [...bars.map((tray, i) => ({ ...tray, box: { x: box.x, y: above.y + above.h + 5 + i * (high + 5), w: box.w, h: high }, columns: 1, pitch: 0, label: 0 })),
      ...placed(own.filter(({ bar }) => !bar), [], above, most, label)];
  }
  if (!own.length) return [];
  const wide = box.w - label, widest = Math.max(...own.map(({ room }) => room));
  let best: TrayPlan[] | null = null, score = 0;
  for (const parts of [1, 2, 4, 8, 16, 32]) {
    const across = Math.ceil(widest / parts);
    for (let pitch = most; pitch >= 3.5; pitch -= 0.5) {
      // Few lines are easier to read than large pointers.
      const value = pitch / (1 + 0.3 * Math.log2(parts));
      if (value <= score) break;
      if (across * pitch + 2 * PAD > wide) continue;
      const found: TrayPlan[] = [];
      let x = 0, y = 0, line = 0;
      const gap = Math.min(GAP, pitch * 0.45);
      for (const tray of [...own].reverse()) {
        const columns = Math.min(across, tray.room);
        const w = columns * pitch + 2 * PAD, h = Math.ceil(tray.room / columns) * pitch + 2 * PAD;
        if (x && (label || x + w > wide)) [x, y, line] = [0, y + line + gap, 0];
        found.unshift({ ...tray, box: { x: box.x + label + x, y: box.y + y, w, h }, columns, pitch, label });
        x += w + gap;
        line = Math.max(line, h);
      }
      if (y + line > box.h) continue;
      const down = (box.h - y - line) / 2;
      for (const tray of found) tray.box.y += down;
      [best, score] = [found, value];
      break;
    }
    if (across < 4) break;
  }
  if (best) return best;
  const gap = 2, high = (box.h + gap) / own.length - gap;
  if (high < 5) {
    const ids = own.flatMap(({ ids }) => ids), room = own.reduce((sum, { room }) => sum + room, 0), thick = Math.min(box.h, 24);
    return [{ name: 'all', room, ids, bar: own.length, box: { x: box.x, y: box.y + (box.h - thick) / 2, w: box.w, h: thick }, columns: 1, pitch: 0, label: 0 }];
  }
  return own.map((tray, i) => ({ ...tray, box: { x: box.x, y: box.y + (own.length - 1 - i) * (high + gap), w: box.w, h: high }, columns: 1, pitch: 0, label: 0 }));
}

/** Where the pointer number `i` of a tray is. */
export function slot({ box, columns, pitch }: TrayPlan, i: number): { x: number; y: number; r: number } {
  if (!pitch) return { x: box.x + box.w / 2, y: box.y + box.h / 2, r: 3 };
  return { x: box.x + PAD + (i % columns + 0.5) * pitch, y: box.y + PAD + (Math.floor(i / columns) + 0.5) * pitch, r: pitch * 0.37 };
}

/** Columns of a slab's cells: rows without a hole if that makes about a square. */
function columnsOf(objects: number): number {
  const square = Math.sqrt(objects);
  const even = [8, 7, 6, 5, 4, 3, 2].find((rows) => rows <= square && rows >= square / 2 && objects % rows === 0);
  return Math.ceil(objects / (even ?? Math.max(1, Math.min(8, Math.round(square)))));
}

function tiles({ slabs, objects }: Extent, box: Box, most: number, head: number) {
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

export function plan(moment: Moment, extent: Extent, { w, h, scale, depot, hands, bare = false }: Size): Plan {
  const { shown, seats, view, map } = moment;
  const counts = shown ? view.caches[shown.cache] : undefined;
  const narrow = w < 700, edge = narrow ? 8 : 18, gutter = narrow ? 0 : 140 * scale, head = narrow ? 16 * scale : 0, gap = narrow ? 4 : 14;
  const left = edge + gutter, wide = w - left - edge;
  const foot = bare ? 0 : (narrow ? 34 : w < 1000 * scale ? 38 : 20) * scale, legend: Box = { x: edge, y: h - edge / 2 - foot, w: w - 2 * edge, h: foot };
  const [first, count] = extent.pages;
  const whole = count > MOST_PAGES, strip = count > 0 && !whole, across0 = narrow ? 64 : 128;
  const acrossPages = whole ? across0 : strip ? Math.min(count, w < 1000 ? 64 : Math.max(Math.ceil(count / 128) * 64, 64)) : 1;
  const pageSide = whole ? wide / acrossPages : Math.min(wide / acrossPages, 16), pageRows = strip ? Math.ceil(count / acrossPages) : 0, bars = (narrow ? 16 : 30) * scale;
  const parts: [name: string, note: string, share: number][] = [
    ['program', 'objects in use', narrow ? 0.11 : 0.13],
    ['CPUs', depot === 'depot' ? 'magazines, no lock' : extent.rooms.length ? 'own pointers' : 'hold no pointers', narrow ? 0.33 : 0.27],
    ...(depot ? [[depot, 'shared, one lock', narrow ? 0.17 : 0.14] as [string, string, number]] : []),
    ['slabs', counts?.size ? `${counts.per_slab} objects of ${grouped(counts.size)} B` : 'blocks of objects', narrow ? 0.36 : 0.4],
  ];
  const pagesHigh = whole ? bars + head + (narrow ? 2 : 10) : strip ? Math.max(pageRows * pageSide + head + 2, narrow ? 0 : 40 * scale) : 0;
  const room = legend.y - edge - pagesHigh - gap * parts.length, shares = parts.reduce((sum, [, , share]) => sum + share, 0);
  let y = edge;
  const lanes: Lane[] = parts.map(([name, note, share]) => {
    const high = room * share / shares;
    const box = { x: left, y: y + head, w: wide, h: high - head };
    y += high + gap;
    return { name, note, box };
  });
  if (strip || whole) lanes.push({ name: 'pages', note: whole ? `${grouped(map.length)} of 4 KiB` : 'of 4 KiB', box: { x: left, y: y + head, w: wide, h: pagesHigh - head } });
  const [top, middle] = [lanes[0]!.box, lanes[1]!.box], below = depot ? lanes[2]!.box : null, bottom = lanes[depot ? 3 : 2]!.box;
  const chips = new Map<Id, Chip>();

  // --- CPUs, and the program above ---
  const capacity = capacityOf(moment), across = extent.cpus <= 8 ? extent.cpus : Math.ceil(extent.cpus / Math.ceil(extent.cpus / 16)), down = Math.ceil(extent.cpus / across);
  const between = narrow ? 4 : extent.cpus > 8 ? 6 : 14, each = Math.min((wide - between * (across - 1)) / across, 520), high = (middle.h - 6 * (down - 1)) / down;
  const touch = narrow ? 40 : 28 * scale, small = each < 190 * scale;
  const cpus = Array.from({ length: extent.cpus }, (_, cpu): CpuPlan => {
    const box: Box = { x: middle.x + cpu % across * (each + between), y: middle.y + Math.floor(cpu / across) * (high + 6), w: each, h: high };
    const inset = small ? 4 : 12, name = (extent.cpus > 8 ? 14 : small ? 20 : 34) * scale, under = hands && small ? touch + 2 : 0;
    const area = { x: box.x + inset, y: box.y + name, w: box.w - 2 * inset, h: box.h - name - under - (small ? 3 : 8) };
    const own = traysOf(shown?.cpus[cpu] ?? [], capacity);
    const label = Math.max(...own.map(({ name, bar }) => (bar ? 0 : name.length)), 0) * 7.4 + 12;
    const trays = placed(own, extent.rooms, area, 30 * Math.min(scale, 1.3), small || extent.rooms.length > 3 ? 0 : label * (0.7 + 0.3 * scale));
    for (const tray of trays) {
      if (tray.pitch) tray.ids.forEach((id, i) => chips.set(id, { ...slot(tray, i), holder: 'cpu', place: `cpu ${cpu}` }));
    }
    const button = narrow ? (box.w - 6) / 2 : 54 * scale;
    const alloc: Box = small ? { x: box.x + 2, y: box.y + box.h - touch - 2, w: (box.w - 6) / 2, h: touch } : { x: box.x + box.w - 2 * button - 12, y: box.y + 5, w: button, h: touch };
    return {
      box, trays, ids: own.reduce((sum, { ids }) => sum + ids.length, 0), room: own.reduce((sum, { room }) => sum + room, 0),
      program: { x: box.x, y: top.y, w: box.w, h: top.h }, over: 0, alloc, free: { ...alloc, x: alloc.x + alloc.w + (small ? 2 : 4) },
    };
  });
  let seat = Math.min(narrow ? 13 : 22 * scale, each / 4);
  const columns = () => Math.max(1, Math.floor(each / seat)), rows = () => Math.max(1, Math.floor(top.h / seat));
  while (seat > 6 && columns() * rows() < extent.program) seat -= 0.5;
  for (const [id, [cpu, place]] of seats.program) {
    const own = cpus[cpu];
    if (!own || extent.cpus > 8) continue;
    if (place >= columns() * rows()) {
      own.over++;
      continue;
    }
    chips.set(id, { x: own.program.x + (place % columns() + 0.5) * seat, y: top.y + top.h - (Math.floor(place / columns()) + 0.5) * seat, r: seat * 0.34, holder: 'program', place: 'program' });
  }

  // --- what CPUs share ---
  const shared = (shown?.shared ?? []).flat().map(({ name, room, places }) => ({ name, room, ids: places.map(([page, index]) => idOf(page, index)) })).reverse();
  const seatsShared = Math.max(extent.trays, shared.length);
  const all = Array.from({ length: seatsShared }, (_, i) => shared[i] ?? { name: '', room: extent.room || capacity, ids: [] });
  const inset = narrow ? 4 : 10;
  const depotTrays = below ? placed([...all].reverse(), [], { x: below.x + inset, y: below.y + inset, w: below.w - 2 * inset, h: below.h - 2 * inset }, Math.min(cpus[0]?.trays[0]?.pitch || 30, 30), 0).reverse() : [];
  for (const tray of depotTrays) if (tray.pitch) tray.ids.forEach((id, i) => chips.set(id, { ...slot(tray, i), holder: 'depot', place: 'depot' }));

  // --- slabs, each above its pages ---
  const cells: PageCell[] = [], strips = strip || whole ? lanes.at(-1)!.box : null;
  if (strips && whole) cells.push(...inParts(map, strips, acrossPages, bars));
  else if (strips) {
    for (let i = 0; i < count; i++) {
      cells.push({ x: strips.x + i % acrossPages * pageSide, y: strips.y + Math.floor(i / acrossPages) * pageSide, w: pageSide, h: pageSide, is: map[first + i] ?? 0 });
    }
  }
  const named = (narrow ? 16 : 22) * scale;
  const { pitch, columns: cellColumns, w: tileWide, h: tileHigh, gap: apart, edge: rim, head: headed, across: perRow, down: mostRows } = tiles(extent, bottom, narrow ? 26 : 42 * Math.min(scale, 1.3), named);
  const found = new Map<number, Tile>();
  let hidden = 0;
  for (const { page, objects, list } of shown?.slabs ?? []) {
    const place = seats.slabs.get(page) ?? 0, row = Math.floor(place / perRow);
    if (row >= mostRows) {
      hidden++;
      continue;
    }
    const box = { x: bottom.x + place % perRow * (tileWide + apart), y: bottom.y + row * (tileHigh + apart), w: tileWide, h: tileHigh };
    if (strip) for (let own = 0; own < 1 << (counts?.order ?? 0); own++) if (cells[page - first + own]) cells[page - first + own]!.is = 2;
    const bucket = Math.floor(page * acrossPages / Math.max(map.length, 1)), from = whole ? cells[bucket] : cells[page - first], to = whole ? from : cells[page - first + (1 << (counts?.order ?? 0)) - 1];
    found.set(page, {
      page, seat: place, box, x: box.x + rim + pitch * 0.07, y: box.y + rim + headed + pitch * 0.07, pitch, columns: cellColumns, head: headed, objects, list,
      pages: from && to && to.y === from.y ? { x: from.x, y: from.y, w: to.x + to.w - from.x, h: from.h } : from ? { ...from } : null,
    });
  }
  return {
    w, h, scale, narrow, hands, lanes, cpus, depot: below && { box: below, trays: depotTrays, name: depot }, slabs: bottom, tiles: found, hidden,
    pages: strips && { box: strips, cells, first }, chips, legend,
    uncounted: seats.program.size ? 0 : counts?.used ?? 0,
    outlet: { x: left + wide / 2, y: top.y, r: 3, holder: 'program', place: 'program' },
  };
}

/** Who has an object, in words. */
export function holderSaid(letter: string, cpu: number | null): string {
  const holder = holderOf(letter);
  if (holder === 'program') return 'in use: the program has the pointer';
  if (holder === 'depot') return 'free: a magazine in the depot has the pointer';
  if (holder === 'slab') return 'free in its slab';
  return cpu === null ? 'free: a CPU has the pointer' : `free: CPU ${cpu} has the pointer`;
}
