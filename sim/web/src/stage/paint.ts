// A plan as shapes. A colour has one meaning, and so has a shape: a filled square is in use, a disc is held by a CPU, a diamond is in the
// depot, an outline is free in its slab.

import { grouped } from '../draw.ts';
import { holderOf, type Activity, type Holder, type Id, type Locks } from './moment.ts';
import { blended, type Shape } from './ink.ts';
import { alongWay, around, grown, mixed, mixedBox, onTheWay, share, type Change, type Group, type Point } from './motion.ts';
import { atCell, cellOf, type Chip, type Plan, type Tile } from './plan.ts';
import { slot, type Box, type TrayPlan } from './trays.ts';

export interface Colours {
  card: string;
  ink: string;
  quiet: string;
  line: string;
  soft: string;
  used: string;
  cached: string;
  depot: string;
  free: string;
  now: string;
  'page-slab': string;
  'page-cpu': string;
  'page-other': string;
}

/** What is drawn apart, because it moves. */
export interface Apart {
  chips: ReadonlySet<Id>;
  tiles: ReadonlySet<number>;
}
export const NOTHING_APART: Apart = { chips: new Set(), tiles: new Set() };

export const colourOf = (c: Colours, holder: Holder): string => (holder === 'program' ? c.used : holder === 'cpu' ? c.cached : holder === 'depot' ? c.depot : c.free);

// A disc, a square and a diamond are one square with other corners, turned: so one can become another.
const ROUND: Record<Holder, number> = { program: 0.3, cpu: 1, depot: 0.2, slab: 0.3 };
const TURN: Record<Holder, number> = { program: 0, cpu: 0, depot: 45, slab: 0 };
const SIZE: Record<Holder, number> = { program: 0.94, cpu: 1, depot: 0.86, slab: 0.94 };

/** A pointer that is on its way from one holder to another. */
function chip(c: Colours, x: number, y: number, r: number, from: Holder, to: Holder, t: number, rim = r > 3): Shape {
  const mix = (of: Record<Holder, number>) => of[from] + (of[to] - of[from]) * t, half = r * mix(SIZE);
  return { is: 'rect', x: x - half, y: y - half, w: 2 * half, h: 2 * half, r: half * mix(ROUND), turn: mix(TURN), fill: blended(colourOf(c, from), colourOf(c, to), t), ...(rim && { stroke: c.card, line: 1 }) };
}

/** Pixels below which a cell has its colour only; how much of its colour a free one has. */
const SMALL = 6, FAINT = 0.3;

/** The cells of slabs that are too small for shapes. */
function smallCells(c: Colours, tiles: readonly Tile[]): Shape[] {
  const at: Record<Holder, number[]> = { program: [], cpu: [], depot: [], slab: [] };
  for (const { x, y, pitch, columns, objects } of tiles) {
    for (let index = 0; index < objects.length; index++) {
      const letter = objects[index]!, own = letter === 'u' ? at.program : letter === '.' ? at.slab : letter === 'd' ? at.depot : at.cpu;
      own.push(x + index % columns * pitch, y + Math.floor(index / columns) * pitch);
    }
  }
  const side = tiles[0] ? cellOf(tiles[0], 0).w : 0;
  return (['slab', 'program', 'cpu', 'depot'] as const).map((holder) => ({ is: 'squares', at: at[holder], side, fill: holder === 'slab' ? blended(c.card, c.free, FAINT) : colourOf(c, holder) }));
}

/** An object: who has its pointer. */
function cell(c: Colours, { x, y, w, h }: Box, letter: string, cpu: number | null): Shape[] {
  const holder = holderOf(letter), colour = colourOf(c, holder);
  if (w < SMALL) return [{ is: 'rect', x, y, w, h, fill: holder === 'slab' ? blended(c.card, c.free, FAINT) : colour }];
  const r = w * 0.2;
  if (holder === 'program') return [{ is: 'rect', x, y, w, h, r, fill: colour }];
  if (holder === 'slab') return [{ is: 'rect', x: x + 0.75, y: y + 0.75, w: w - 1.5, h: h - 1.5, r, stroke: c.free, line: 1.5, fill: c.card }];
  return [{ is: 'rect', x: x + 0.75, y: y + 0.75, w: w - 1.5, h: h - 1.5, r, fill: blended(c.card, colour, 0.2), stroke: colour, line: 1.5 },
    chip(c, x + w / 2, y + h / 2, w * (holder === 'cpu' ? 0.33 : 0.25), holder, holder, 0, false),
    ...(holder === 'cpu' && cpu !== null && w >= 17 ? [{ is: 'text', x: x + w / 2, y: y + h / 2 + w * 0.15, text: String(cpu), size: w * 0.42, bold: true, fill: c.card, align: 'center' } as Shape] : [])];
}

const CPUS = 'abcefghijklmnopqrstvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ';
/** The CPU of a letter of a slab; `null`: the letter is of no CPU, or of a later one. */
export const cpuOf = (letter: string): number | null => (holderOf(letter) === 'cpu' && CPUS.includes(letter) ? CPUS.indexOf(letter) : null);

/** `counted`: the tray whose number of pointers is written. */
function tray(c: Colours, own: TrayPlan, colour: string, scale: number, counted: TrayPlan = own): Shape[] {
  const { box, pitch, room, name, label } = own, { ids } = counted;
  if (!pitch) {
    return [{ is: 'rect', ...box, r: 3, fill: c.soft, stroke: c.line, line: 1 }, ...(ids.length ? [{ is: 'rect', ...box, w: Math.max(box.w * ids.length / room, 3), r: 3, fill: colour } as Shape] : []),
      ...(box.h >= 13 ? [{ is: 'text', x: box.x + box.w - 5, y: box.y + box.h / 2 + 4, text: `${grouped(ids.length)} of ${grouped(room)}${own.bar && box.w > 200 ? ` in ${grouped(own.bar)}${name === 'more' ? ' more' : ''} magazines` : ''}`, size: 11, fill: ids.length > room * 0.5 ? c.card : c.ink, align: 'right' } as Shape] : [])];
  }
  const shapes: Shape[] = [{ is: 'rect', ...box, r: Math.min(pitch * 0.5, 12), fill: c.card, stroke: name === 'loaded' ? c.quiet : c.line, line: name === 'loaded' ? 1.5 : 1 }];
  if (pitch > 6) {
    for (let i = 0; i < room; i++) {
      const { x, y, r } = slot(own, i), half = r * 0.8;
      shapes.push({ is: 'rect', x: x - half, y: y - half, w: 2 * half, h: 2 * half, r: half, stroke: c.line, line: 1 });
    }
  }
  if (label && name) shapes.push({ is: 'text', x: box.x - 8, y: box.y + box.h / 2 + 4 * scale, text: name, size: 12 * (0.7 + 0.3 * scale), fill: c.quiet, align: 'right' });
  return shapes;
}

const freeSaid = ({ objects }: Tile): string => {
  const free = [...objects].filter((letter) => letter === '.').length;
  return free ? `${free} free` : '';
};

/** A slab, grown to a share of its size. */
function tile(c: Colours, own: Tile, scale: number, size = 1, counted = own): Shape[] {
  const shapes: Shape[] = [], full = own.box, box = size < 1 && own.pages ? mixedBox(own.pages, full, size) : full;
  if (own.pages && own.head) {
    const { x, y, w } = own.pages, foot = box.y + box.h, high = (y - foot) / 2;
    if (high > 4) shapes.push({ is: 'path', d: `M${box.x + 8} ${foot}C${box.x + 8} ${foot + high} ${x} ${y - high} ${x} ${y}H${x + w}C${x + w} ${y - high} ${box.x + box.w - 8} ${foot + high} ${box.x + box.w - 8} ${foot}Z`, fill: c['page-slab'], alpha: size < 1 ? 0.45 : 0.1 });
  }
  if (own.head) shapes.push({ is: 'rect', ...box, r: 8, fill: c.card, stroke: size < 1 ? c['page-slab'] : c.line, line: size < 1 ? 2 : 1 },
    { is: 'rect', x: box.x + 6, y: box.y + box.h - 1.5, w: Math.max(box.w - 12, 1), h: 3, r: 1.5, fill: c['page-slab'] });
  if (size < 0.55) return shapes;
  const alpha = size < 1 ? (size - 0.55) / 0.45 : 1;
  if (own.head) {
    const small = full.w < 64 * scale;
    shapes.push({ is: 'text', x: full.x + 8, y: full.y + Math.max(own.head - 5 * scale, 11 * scale), text: small ? String(own.page) : `page ${own.page}`, size: 12 * scale, fill: c.ink, alpha });
    if (full.w >= 120 * scale) shapes.push({ is: 'text', x: full.x + full.w - 8, y: full.y + own.head - 5 * scale, text: freeSaid(counted), size: 12 * scale, fill: c.quiet, align: 'right', alpha });
  }
  for (let index = 0; index < own.objects.length; index++) {
    const letter = own.objects[index]!;
    for (const shape of cell(c, cellOf(own, index), letter, cpuOf(letter))) shapes.push(size < 1 ? { ...shape, alpha } : shape);
  }
  return shapes;
}

function lock(c: Colours, x: number, y: number, scale: number, by: string): Shape[] {
  const s = scale;
  return [{ is: 'path', d: `M${x + 3 * s} ${y - 5 * s}v${-3 * s}a${3.5 * s} ${3.5 * s} 0 0 1 ${7 * s} 0v${3 * s}`, stroke: c.now, line: 1.8 * s },
    { is: 'rect', x, y: y - 5.5 * s, w: 13 * s, h: 9 * s, r: 2 * s, fill: c.now },
    { is: 'text', x: x + 18 * s, y: y + 3 * s, text: by, size: 12.5 * s, bold: true, fill: c.now }];
}

/** A lock, and who waits for it: a padlock, open if no CPU holds it; the holder's number; an hourglass and the waiters' numbers. */
function queue(c: Colours, x: number, y: number, scale: number, of: keyof Locks, crew: readonly Activity[]): Shape[] {
  const s = scale, numbers = (has: (own: Activity) => boolean) => crew.flatMap((own, cpu) => (has(own) ? [cpu] : []));
  const holders = numbers(({ holds }) => holds.includes(of)), waiters = numbers(({ waits }) => waits === of), held = holders.length > 0, colour = held ? c.now : c.free;
  const shapes: Shape[] = [{ is: 'path', d: `M${x + 3 * s} ${y - 5 * s}v${-3 * s}a${3.5 * s} ${3.5 * s} 0 0 1 ${7 * s} 0${held ? `v${3 * s}` : ''}`, stroke: colour, line: 1.8 * s },
    { is: 'rect', x, y: y - 5.5 * s, w: 13 * s, h: 9 * s, r: 2 * s, fill: colour }];
  let at = x + 17 * s;
  const badge = (cpu: number, filled: boolean) => {
    shapes.push({ is: 'rect', x: at, y: y - 11 * s, w: 15 * s, h: 15 * s, r: 4 * s, stroke: c.now, line: 1.5, fill: filled ? c.now : c.card },
      { is: 'text', x: at + 7.5 * s, y: y + 1 * s, text: String(cpu), size: 11.5 * s, bold: true, fill: filled ? c.card : c.now, align: 'center' });
    at += 18 * s;
  };
  for (const cpu of holders) badge(cpu, true);
  if (waiters.length) {
    shapes.push(...hourglass(c, at + 2 * s, y - 10 * s, 1.1 * s));
    at += 15 * s;
    for (const cpu of waiters) badge(cpu, false);
  }
  return shapes;
}
const QUEUE = 120;

const hourglass = (c: Colours, x: number, y: number, s: number): Shape[] => [
  { is: 'path', d: `M${x} ${y}h${9 * s}l${-3.6 * s} ${6 * s}l${3.6 * s} ${6 * s}h${-9 * s}l${3.6 * s} ${-6 * s}Z`, stroke: c.now, line: 1.4 * s },
  { is: 'path', d: `M${x + 1.5 * s} ${y + 11 * s}l${3 * s} ${-4.5 * s}l${3 * s} ${4.5 * s}Z`, fill: c.now }];

/** `counted`: the moment whose numbers are written; `crew`: what CPUs do in virtual time, in the place of the locks of the last operation. */
export interface Telling {
  counted?: Plan;
  crew?: readonly Activity[] | null;
}

/** What does not move. */
export function still(c: Colours, plan: Plan, apart: Apart, acting: readonly number[], locks: Locks, { counted = plan, crew = null }: Telling = {}): Shape[] {
  const { scale, narrow, lanes, cpus, depot, tiles, pages, chips, hidden, slabs } = plan;
  const shapes: Shape[] = [{ is: 'rect', x: 0, y: 0, w: plan.w, h: plan.h, fill: c.card }];
  const keys: (keyof Locks | null)[] = [null, null, ...(depot ? ['depot' as const] : []), 'slabs', 'pages'];
  for (const [i, { name, note, box }] of lanes.entries()) {
    const key = keys[i], x = narrow ? box.x + Math.max(box.w - QUEUE * scale, (name.length * 8.2 + 4) * scale) : 18;
    if (crew && key) shapes.push(...queue(c, x, narrow ? box.y - 5 * scale : box.y + (name === 'pages' ? 13 : Math.min(box.h / 2, 44 * scale) + 42 * scale), scale, key, crew));
    if (narrow) {
      shapes.push({ is: 'text', x: box.x, y: box.y - 4 * scale, text: name, size: 12.5 * scale, bold: true, fill: c.ink },
        ...(crew && key && plan.w < 400 ? [] : [{ is: 'text', x: box.x + (name.length * 9 + 8) * scale, y: box.y - 4 * scale, text: note, size: 12 * scale, fill: c.quiet } as Shape]));
    } else {
      const middle = name === 'pages' ? box.y + 13 * scale : box.y + Math.min(box.h / 2, 44 * scale);
      shapes.push({ is: 'text', x: 18, y: middle, text: name, size: 16 * scale, bold: true, fill: c.ink }, { is: 'text', x: 18, y: middle + 17 * scale, text: note, size: 12 * scale, fill: c.quiet });
    }
  }
  const by = acting.length ? `locked by CPU ${acting[0]}` : 'locked', short = acting.length ? `lock: CPU ${acting[0]}` : 'locked';
  cpus.forEach((own, cpu) => {
    const doing = crew?.[cpu], waits = doing?.is === 'waits', holds = Boolean(doing?.holds.length), acts = doing ? doing.is === 'works' : acting.includes(cpu), small = own.box.w < 190 * scale;
    if (cpus.length <= 8 && !narrow) {
      const { x, y, w, h } = own.program;
      shapes.push({ is: 'path', d: `M${x} ${y + h + 7}H${x + w}`, stroke: c.line, dash: [2, 4] });
    }
    shapes.push({ is: 'rect', ...own.box, r: 10, fill: waits ? blended(c.card, c.now, 0.12) : c.soft, ...(acts && { stroke: c.ink, line: 2 }), ...(holds && { stroke: c.now, line: 2.5 }), ...(waits && { stroke: c.now, line: 1.5, dash: [4, 3] }) });
    const size = (cpus.length > 8 ? 11 : small ? 12 : 15) * scale, y = own.box.y + (cpus.length > 8 ? 11 : small ? 15 : 23) * scale, x = own.box.x + (small ? 6 : 12);
    shapes.push({ is: 'text', x, y, text: small && own.box.w < (waits ? 72 : 50) ? String(cpu) : `CPU ${cpu}`, size, bold: true, fill: c.ink });
    const now = counted.cpus[cpu] ?? own;
    if (waits) shapes.push(...hourglass(c, own.box.x + own.box.w - (own.box.w < 50 ? 15 : 17), y - 10, own.box.w < 50 ? 0.9 : 1), ...(own.box.w >= 90 ? [{ is: 'text', x: own.box.x + own.box.w - 22, y, text: 'waits', size: 11.5 * scale, bold: true, fill: c.now, align: 'right' } as Shape] : []));
    else if (own.room && own.box.w >= 78 && (small || !plan.hands || own.alloc.x - x > 118 * scale)) {
      const said = small ? `${grouped(now.ids)}${own.box.w > 140 ? ` of ${grouped(own.room)}` : own.room < 100 ? `/${grouped(own.room)}` : ''}` : `${grouped(now.ids)} of ${grouped(own.room)}${own.room > 32 ? ' pointers' : ''}`;
      shapes.push({ is: 'text', x: small ? own.box.x + own.box.w - 6 : x + 62 * scale, y, text: said, size: (small ? 10.5 : 13) * scale, fill: c.quiet, align: small ? 'right' : 'left' });
    }
    own.trays.forEach((one, i) => shapes.push(...tray(c, one, c.cached, scale, now.trays[i])));
    if (now.over) shapes.push({ is: 'text', x: own.program.x + own.program.w, y: own.program.y + 10, text: `+${grouped(now.over)}`, size: 11 * scale, fill: c.quiet, align: 'right' });
  });
  if (depot) {
    shapes.push({ is: 'rect', ...depot.box, r: 10, fill: c.soft, ...(locks.depot && { stroke: c.now, line: 2.5 }) });
    const now = counted.depot ?? depot;
    depot.trays.forEach((one, i) => shapes.push(...tray(c, one, c.depot, scale, now.trays[i])));
    const full = now.trays.filter(({ ids }) => ids.length).length, { x, y, w, h } = depot.box, last = depot.trays.at(-1)?.box;
    const free = last ? x + w - last.x - last.w : w;
    if (locks.depot) shapes.push(...(free > 160 * scale ? lock(c, x + w - 150 * scale, y + h / 2 + 3, scale, by) : narrow ? lock(c, x + w - 136 * scale, y - 7 * scale, scale, by) : lock(c, 18, y + Math.min(h / 2, 44 * scale) + 38 * scale, scale, short)));
    else if (!full && !narrow && free > 80 * scale) shapes.push({ is: 'text', x: x + w - 14, y: y + h / 2 + 4, text: 'empty', size: 13 * scale, fill: c.quiet, align: 'right' });
  }
  if (locks.slabs && !narrow) shapes.push(...lock(c, 18, slabs.y + Math.min(slabs.h / 2, 44 * scale) + 38 * scale, scale, short));
  else if (locks.slabs) shapes.push(...lock(c, slabs.x + slabs.w - 136 * scale, slabs.y - 6 * scale, scale, by));
  if (!tiles.size) shapes.push({ is: 'text', x: slabs.x + 8, y: slabs.y + 26, text: 'no slab', size: 13 * scale, fill: c.quiet });
  if (counted.uncounted) {
    const { x, y, w, h } = lanes[0]!.box;
    shapes.push({ is: 'text', x: x + w / 2, y: y + h / 2 + 6 * scale, text: `${grouped(counted.uncounted)} pointers`, size: 17 * scale, bold: true, fill: c.used, align: 'center' });
  }
  if (hidden) shapes.push({ is: 'text', x: slabs.x + slabs.w, y: slabs.y - 4, text: `${grouped(hidden)} more slabs are not drawn`, size: 12 * scale, fill: c.quiet, align: 'right' });
  if (pages) {
    const { x, y, w } = pages.box;
    if (locks.pages) shapes.push(...(narrow ? lock(c, x + w - 136 * scale, y - 6 * scale, scale, by) : lock(c, 18 + 56 * scale, y + 12 * scale, scale, acting.length ? `CPU ${acting[0]}` : 'locked')));
    for (const { x, y, w, h, is, parts } of pages.cells) {
      if (parts) {
        shapes.push({ is: 'rect', x: x + 0.5, y, w: Math.max(w - 1, 1), h, fill: c.soft });
        let foot = y + h;
        parts.forEach((part, i) => {
          const high = part * h;
          if (high >= 0.25) shapes.push({ is: 'rect', x: x + 0.5, y: foot -= high, w: Math.max(w - 1, 1), h: high, fill: i === 0 ? c['page-slab'] : i === 1 ? c['page-other'] : blended(c.card, c['page-cpu'], 0.34) });
        });
        continue;
      }
      const side = w * 0.78, at = { x: x + w * 0.11, y: y + h * 0.11, w: side, h: side, r: side * 0.15 };
      shapes.push(is === 2 ? { is: 'rect', ...at, fill: c['page-slab'] } : is === 0 ? { is: 'rect', ...at, stroke: c.line, line: 1 }
        : { is: 'rect', ...at, fill: blended(c.card, is === 1 ? c['page-cpu'] : c['page-other'], is === 1 ? 0.34 : 1) });
    }
  }
  const shown = [...tiles.values()].filter(({ page }) => !apart.tiles.has(page));
  if (shown[0] && !shown[0].head && cellOf(shown[0], 0).w < SMALL) shapes.push(...smallCells(c, shown));
  else for (const own of shown) shapes.push(...tile(c, own, scale, 1, counted.tiles.get(own.page)));
  for (const [id, { x, y, r, holder }] of chips) if (!apart.chips.has(id)) shapes.push(chip(c, x, y, r, holder, holder, 0));
  return shapes;
}

/** A way with round corners. */
function rounded(way: readonly Point[], radius: number): string {
  const towards = (a: Point, b: Point, by: number) => {
    const length = Math.hypot(b.x - a.x, b.y - a.y), part = length ? Math.min(by / length, 0.5) : 0;
    return `${mixed(a.x, b.x, part)} ${mixed(a.y, b.y, part)}`;
  };
  const corners = way.slice(1, -1).map((corner, i) => `L${towards(corner, way[i]!, radius)}Q${corner.x} ${corner.y} ${towards(corner, way[i + 2]!, radius)}`);
  return `M${way[0]!.x} ${way[0]!.y}${corners.join('')}L${way.at(-1)!.x} ${way.at(-1)!.y}`;
}

/** The way of a batch, as an arrow. */
function trail(c: Colours, { from, to, count, way }: Group, alpha: number, { scale }: Plan): Shape[] {
  const [a, b] = [way[0]!, way.at(-1)!];
  if (Math.hypot(b.x - a.x, b.y - a.y) < 30) return [];
  const before = way.at(-2)!, turn = Math.atan2(b.y - before.y, b.x - before.x), head = 9 * scale;
  const corner = (by: number) => `${b.x - head * Math.cos(turn + by)} ${b.y - head * Math.sin(turn + by)}`;
  const holder = to === 'program' ? 'program' : to === 'depot' ? 'depot' : to.startsWith('cpu') ? 'cpu' : from === 'depot' ? 'depot' : 'cpu', colour = colourOf(c, holder);
  const shapes: Shape[] = [{ is: 'path', d: rounded(way, 10 * scale), stroke: colour, line: 2 * scale, alpha: alpha * 0.6, ...(count > 1 ? {} : { dash: [4, 4] }) },
    { is: 'path', d: `M${b.x} ${b.y}L${corner(0.42)}L${corner(-0.42)}Z`, fill: colour, alpha }];
  if (count > 1) {
    // The number is where the way changes its column, or else half way.
    const level = way.flatMap((end, i): [Point, Point][] => (i && end.y === way[i - 1]!.y ? [[way[i - 1]!, end]] : [])).toSorted(([a, b], [c, d]) => Math.abs(d.x - c.x) - Math.abs(b.x - a.x))[0];
    const text = String(count), wide = (text.length * 8 + 12) * scale, { x, y } = level && Math.abs(level[1].x - level[0].x) > wide ? { x: (level[0].x + level[1].x) / 2, y: level[0].y } : alongWay(way, 0.45);
    shapes.push({ is: 'rect', x: x - wide / 2, y: y - 10 * scale, w: wide, h: 20 * scale, r: 10 * scale, fill: c.card, stroke: colour, line: 1.5 }, { is: 'text', x, y: y + 4.5 * scale, text, size: 13 * scale, bold: true, fill: colour, align: 'center' });
  }
  return shapes;
}

export const trails = (c: Colours, plan: Plan, change: Change, alpha: number): Shape[] => change.groups.flatMap((group) => trail(c, group, alpha, plan));

/** New slabs, if they are too small to have a name. */
export const births = (c: Colours, { tiles, scale }: Plan, { born }: Change): Shape[] => born.flatMap((page): Shape[] => {
  const own = tiles.get(page);
  if (!own || own.head) return [];
  const { x, y, w, h } = own.box, text = 'new slab', left = x > 90 * scale;
  return [{ is: 'rect', x: x - 3, y: y - 3, w: w + 6, h: h + 6, r: 4, stroke: c['page-slab'], line: 2.5 },
    { is: 'rect', x: left ? x - 70 * scale : x + w + 6, y: y + h / 2 - 9 * scale, w: 62 * scale, h: 18 * scale, r: 4, fill: c.card },
    { is: 'text', x: left ? x - 10 : x + w + 10, y: y + h / 2 + 4 * scale, text, size: 13 * scale, bold: true, fill: c.ink, align: left ? 'right' : 'left' }];
});

/** Slabs whose pages were freed: where they were. */
export const ghosts = (c: Colours, before: Plan, { died }: Change): Shape[] => died.flatMap((page): Shape[] => {
  const own = before.tiles.get(page);
  return own?.head ? [{ is: 'rect', ...own.box, r: 8, stroke: c['page-slab'], line: 1.5, dash: [5, 5] }, { is: 'text', x: own.box.x + 8, y: own.box.y + own.head - 5, text: 'freed', size: 12 * before.scale, fill: c.quiet }] : [];
});

/** What moves, at a share of the change. */
export function moving(c: Colours, before: Plan, after: Plan, change: Change, t: number): Shape[] {
  const shapes: Shape[] = [], { scale } = after;
  for (const page of [...change.born, ...change.died]) {
    const own = after.tiles.get(page) ?? before.tiles.get(page);
    if (own) shapes.push(...tile(c, own, scale, grown(change, page, t)));
  }
  // A cell shows its old state until its pointer is half way.
  for (const move of change.moves) {
    const { id, begin, end } = move, page = Math.floor(id / 65536), old = before.tiles.get(page), own = after.tiles.get(page);
    if (!old || !own || t >= (begin + end) / 2) continue;
    const letter = old.objects[id % 65536] ?? '.', box = cellOf(own, id % 65536);
    shapes.push({ is: 'rect', ...box, fill: c.card }, ...cell(c, box, letter, cpuOf(letter)));
  }
  if (t >= change.growth[1]) shapes.push(...births(c, after, change));
  shapes.push(...trails(c, after, change, 0.35 + 0.4 * share(t, 0.6, 1)));
  for (const { from, to, begin, end, count } of change.groups) {
    // A magazine travels as a whole.
    if (count < 2 || (from !== 'depot') === (to !== 'depot') || t <= begin || t >= end) continue;
    const box = around(change.moves.filter((move) => move.from.place === from && (move.via ?? move.to).place === to).map((move) => onTheWay(move, t)));
    shapes.push({ is: 'rect', x: box.x - 5, y: box.y - 5, w: box.w + 10, h: box.h + 10, r: 12, fill: c.card, stroke: c.ink, line: 1.5 });
  }
  for (const move of change.moves) {
    const { x, y, r, from, to, t: part } = onTheWay(move, t);
    const gone = to.place.startsWith('slab') && t >= move.end || from.place.startsWith('slab') && t < move.begin;
    if (!gone) shapes.push(chip(c, x, y, r, holderSeen(from), holderSeen(to), part));
  }
  return shapes;
}

/** A pointer that leaves a slab, or comes to one, is drawn as who has it otherwise. */
const holderSeen = ({ holder }: Chip): Holder => (holder === 'slab' ? 'cpu' : holder);

/** A pointer and its object, joined. */
export function joined(c: Colours, plan: Plan, id: Id): Shape[] {
  const own = plan.chips.get(id), at = atCell(plan, id);
  if (!at) return [];
  const ring = ({ x, y, r }: { x: number; y: number; r: number }): Shape[] => [
    { is: 'rect', x: x - r, y: y - r, w: 2 * r, h: 2 * r, r: r * 0.5, stroke: c.card, line: 5 }, { is: 'rect', x: x - r, y: y - r, w: 2 * r, h: 2 * r, r: r * 0.5, stroke: c.ink, line: 2.5 }];
  const shapes = ring({ ...at, r: Math.max(at.r * 1.9, 5) });
  if (own) shapes.unshift({ is: 'path', d: `M${own.x} ${own.y}L${at.x} ${at.y}`, stroke: c.card, line: 5 }, { is: 'path', d: `M${own.x} ${own.y}L${at.x} ${at.y}`, stroke: c.ink, line: 2 });
  if (own) shapes.push(...ring({ ...own, r: own.r + 3 }));
  return shapes;
}

/** What a holder means, and in short. */
const LEGEND: readonly (readonly [holder: Holder, means: string, short: string])[] = [
  ['program', 'in use', 'in use'], ['cpu', 'free, held by a CPU', 'free, at a CPU'], ['depot', 'free, in the depot', 'free, in depot'], ['slab', 'free in its slab', 'free, in slab'],
];

/** What colours and shapes mean: discs, squares and diamonds are pointers; what is in a slab are the objects. */
export function legend(c: Colours, { legend: { x, y, w }, scale, narrow, depot, pages }: Plan, depotName: string): Shape[] {
  const shapes: Shape[] = [], size = (narrow ? 12 : 13) * scale;
  let at = x, line = y + 14 * scale;
  const item = (text: string, mark: (x: number, y: number) => Shape[], marks = 1) => {
    const wide = marks * 16 * scale + text.length * size * 0.56 + 16 * scale;
    if (at + wide > x + w && at > x) [at, line] = [x, line + 17 * scale];
    shapes.push(...mark(at, line), { is: 'text', x: at + marks * 16 * scale + 2, y: line, text, size, fill: c.quiet });
    at += wide;
  };
  const side = 12 * scale;
  for (const [holder, long, short] of LEGEND) {
    const means = narrow ? short : long;
    if (holder === 'depot' && !depot) continue;
    item(means.replace('depot', depotName || 'depot'), (x, y) => (holder === 'slab' ? cell(c, { x, y: y - side + 2, w: side, h: side }, '.', null) : [chip(c, x + side / 2, y - side / 2 + 2, side / 2, holder, holder, 0)]));
  }
  const page = (text: string, fill: string | null) => item(text, (x, y) => [{ is: 'rect', x: x + 0.5, y: y - side + 2.5, w: side - 1, h: side - 1, r: 2, ...(fill ? { fill } : { stroke: c.line, line: 1 }) }]);
  if (pages) {
    const parts = pages.cells[0]?.parts !== undefined;
    page(narrow ? 'slab page' : 'page of a slab', c['page-slab']);
    page(narrow ? 'free page, at a CPU' : 'free page, held by a CPU', blended(c.card, c['page-cpu'], 0.34));
    if (parts || pages.cells.some(({ is }) => is === 3)) page(narrow ? 'other page' : 'page of other users', c['page-other']);
    if (!parts) page('free page', null);
  }
  item(narrow ? 'CPU acts' : 'CPU that acts', (x, y) => [{ is: 'rect', x: x + 1, y: y - side + 3, w: side - 2, h: side - 2, r: 3, fill: c.soft, stroke: c.ink, line: 2 }]);
  return shapes;
}
