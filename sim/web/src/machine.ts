// The machine: what each CPU holds, the depot behind, the slabs below. The busiest caches as lanes, one of them up close.

import { colours, column, fitted, grouped, made, noun, pixel, sheet, Squares, sum, widthOf } from './draw.ts';
import { said, total } from './levels.ts';
import type { About, Level, SeenCache, ShownCache, ShownSlab, Step, View } from './views.ts';

/** An object, by where it lies. */
export interface Place {
  cache: number;
  page: number;
  index: number;
}

const LANE = 44;
const MOST_CPUS = 64; // up close
const RING = 7, OUTER = 3, PAD = RING + OUTER + 2; // pixels: a ring's radius, how far around it another one is, and what is left free for both
const GAP = 12; // pixels between two lists of a lane

/** What CPUs share above the slabs, as designs call it; those that share nothing have none. */
const SHARED: Record<string, string> = { slub: '', bonwick94: '', sheaves: 'barn', 'sheaves-6.18': 'barn', slab: 'shared array' };

/** How slabs of one list are drawn: `rows` dots high, each so many pixels. */
interface Dots {
  rows: number;
  dot: number;
}

export class Machine {
  readonly root: HTMLElement;
  private readonly lanes: HTMLElement;
  private readonly head: HTMLElement;
  private readonly cpus: HTMLElement;
  private readonly shared: HTMLElement;
  private readonly slabs: HTMLCanvasElement;
  /** What lanes show: one that would show the same again is left alone. */
  private readonly looks = new Map<HTMLElement, string>();
  /** Lists of slabs that lanes have, and how each is told of the others. */
  private columns: string[] = [];
  /** Pixels of a CPU's box up close: it only grows, so that nothing jumps. */
  private high = 0;
  /** Where the objects up close were drawn. */
  private hit: ((x: number, y: number) => Place | null) = () => null;

  constructor(private readonly about: Pick<About, 'cpus' | 'caches'>, design: string, private readonly caches: readonly number[], choose: (cache: number) => void, follow: (place: Place) => void,
    private readonly largest = 9) {
    this.lanes = made('div', { className: 'lanes' });
    this.head = made('h3');
    this.cpus = made('div', { className: 'near-cpus' });
    this.slabs = made('canvas', { role: 'img' });
    const section = (label: string, ...parts: HTMLElement[]) => made('section', { ariaLabel: label }, ...parts);
    this.root = made('div', {},
      ...(caches.length > 1 ? [section('The busiest caches', made('h3', {}, 'The busiest caches ',
        made('span', { className: 'quiet' }, 'what each CPU holds, what they share, the slabs below; click one to see it up close')), this.lanes)] : []),
      section('A cache up close', this.head,
        made('div', { className: 'near' }, this.cpus, made('div', { className: 'near-slabs' }, this.slabs))));
    const { cpus } = about;
    const depot = SHARED[design.split(':')[0]!] ?? 'depot';
    const names = made('span', { className: 'cpu-names' });
    if (cpus <= 8) {
      names.style.gridTemplateColumns = `repeat(${cpus}, minmax(0, 1fr))`;
      names.append(...Array.from({ length: cpus }, (_, cpu) => made('span', {}, made('span', {}, 'CPU '), String(cpu))));
    } else names.append(`CPU 0 to ${cpus - 1}`);
    this.lanes.style.setProperty('--cpus', cpus <= 2 ? '1.6fr' : '3fr');
    this.lanes.append(
      made('div', { className: 'lane head' }, made('span'), names, made('span', {}, depot), made('canvas', { role: 'img' })),
      ...caches.map((cache) => {
        const lane = made('button', { className: 'lane', type: 'button', onclick: () => choose(cache) },
          made('span', {}, made('b', { title: about.caches[cache]! }, about.caches[cache]!), made('small')), made('canvas'), made('canvas'), made('canvas'));
        lane.dataset['cache'] = String(cache);
        return lane;
      }),
    );
    this.cpus.append(...Array.from({ length: Math.min(cpus, MOST_CPUS) }, (_, cpu) =>
      made('div', {}, made('h4', {}, `CPU ${cpu}`), made('canvas', { role: 'img' }), made('p'))));
    this.shared = made('div', { hidden: !depot }, made('h4', {}, depot), made('canvas', { role: 'img' }), made('p'));
    this.cpus.append(this.shared);
    this.slabs.onclick = (event) => {
      const place = this.hit(event.offsetX, event.offsetY);
      if (place) follow(place);
    };
  }

  draw(view: View, chosen: number, followed: Place | null): void {
    const step = view.steps.at(-1);
    // Each list is below its name in all lanes.
    const lists = view.shown.filter(({ cache }) => this.caches.includes(cache)).flatMap(({ slabs }) => slabs.map(({ list }) => list));
    this.columns = inOrder(lists);
    if (this.caches.length > 1) drawNames(this.lanes.querySelector('.head canvas')!, this.columns);
    for (const lane of this.lanes.querySelectorAll('button')) {
      const cache = Number(lane.dataset['cache']);
      lane.setAttribute('aria-pressed', String(cache === chosen));
      this.drawLane(lane, view, cache, step?.cache === cache ? step.cpu : -1);
    }
    this.drawNear(view, chosen, step, followed);
  }

  private drawLane(lane: HTMLElement, view: View, cache: number, acting: number): void {
    const counts = view.caches[cache];
    const shown = view.shown.find((own) => own.cache === cache);
    const canvases = lane.querySelectorAll('canvas') as unknown as HTMLCanvasElement[];
    const look = JSON.stringify([shown, counts, acting, this.columns, Array.from(canvases, widthOf), devicePixelRatio, colours.used]);
    if (this.looks.get(lane) === look) return;
    this.looks.set(lane, look);
    lane.querySelector('small')!.textContent = counts
      ? `${grouped(counts.size)} B · ${grouped(counts.used)} used · ${grouped(counts.in_magazines + counts.in_depot)} cached` : 'not yet';
    const [cpus, shared, slabs] = canvases;
    if (!shown || !counts) {
      for (const canvas of [cpus, shared, slabs]) sheet(canvas!, LANE);
      lane.setAttribute('aria-label', `${this.about.caches[cache]}: not used yet`);
      return;
    }
    drawCpus(cpus!, shown.cpus, acting);
    drawShared(shared!, shown.shared.flat());
    drawLists(slabs!, listsOf(shown, counts), this.columns, counts.per_slab);
    lane.setAttribute('aria-label', `${this.about.caches[cache]}: ${countsSaid(counts)}`);
  }

  private drawNear(view: View, chosen: number, step: Step | undefined, followed: Place | null): void {
    const counts = view.caches[chosen];
    const shown = view.shown.find((own) => own.cache === chosen);
    const name = this.about.caches[chosen]!;
    this.head.replaceChildren(`Cache “${name}” up close `, made('span', { className: 'quiet' }, nearSaid(counts)));
    const shared = shown?.shared.flat() ?? [];
    const canvas = this.shared.querySelector('canvas')!;
    const boxes = [...(shown?.cpus ?? []), ...(shared.length <= 6 ? [shared] : [])];
    this.high = Math.max(this.high, ...boxes.map((levels) => highOf(levels, widthOf(canvas))));
    if (shared.length <= 6) drawCpu(canvas, shared, this.high, colours.depot);
    else drawShared(canvas, shared);
    canvas.setAttribute('aria-label', `CPUs share: ${said(shared) || 'nothing'}`);
    this.shared.querySelector('p')!.textContent = shared.length ? `${noun(shared.length, shared[0]!.name)}, ${noun(total(shared).objects, 'object')}` : 'empty';
    [...this.cpus.children].forEach((box, cpu) => {
      if (box === this.shared) return;
      const own = shown?.cpus[cpu] ?? [];
      const canvas = box.querySelector('canvas')!;
      box.classList.toggle('acting', step?.cache === chosen && step.cpu === cpu);
      drawCpu(canvas, own, this.high);
      canvas.setAttribute('aria-label', `CPU ${cpu} holds: ${said(own) || 'nothing'}`);
      box.querySelector('p')!.textContent = said(own).replaceAll(' of ', '/');
    });
    const lists = shown && counts ? listsOf(shown, counts) : [];
    const rings = [
      ...(step?.cache === chosen && step.object ? [{ page: step.object[0], index: step.object[1], colour: colours.now, outer: 0 }] : []),
      ...(followed?.cache === chosen ? [{ ...followed, colour: colours.ink, outer: OUTER }] : []),
    ];
    const at = drawSlabs(this.slabs, lists, rings, this.largest);
    this.hit = (x, y) => {
      const found = at(x, y);
      return found && { cache: chosen, ...found };
    };
    this.slabs.setAttribute('aria-label', lists.length ? `slabs: ${lists.map(({ list, count }) => `${grouped(count)} ${list}`).join(', ')}` : 'no slabs');
  }
}

const countsSaid = (counts: SeenCache): string =>
  `${grouped(counts.used)} in use, ${grouped(counts.in_magazines)} held by CPUs, ${grouped(counts.in_depot)} shared by them, ` +
  `${grouped(counts.free_in_slabs)} free in slabs for all; ${noun(counts.full + counts.partial + counts.empty, 'slab')}`;

function nearSaid(counts: SeenCache | undefined): string {
  if (!counts) return 'not used yet';
  if (!counts.size) return 'no slabs: each object is a block of pages';
  return `objects of ${grouped(counts.size)} bytes, ${counts.per_slab} a slab of order ${counts.order}; ${countsSaid(counts)}`;
}

// --- slabs by list ---

interface List {
  list: string;
  slabs: ShownSlab[];
  /** With those that are not shown one by one. */
  count: number;
}

const LAST = ['full', 'partial', 'empty'];

/** Lists in the order of an object's way: those of CPUs, then full, partial and empty ones. */
const inOrder = (lists: Iterable<string>): string[] => [...[...new Set(lists)].filter((list) => !LAST.includes(list)).sort(), ...LAST];

function listsOf({ slabs }: ShownCache, counts: SeenCache): List[] {
  const names = inOrder(slabs.map(({ list }) => list));
  const hidden = counts.full + counts.partial + counts.empty - slabs.length;
  return names.map((list) => {
    const own = slabs.filter((slab) => slab.list === list);
    return { list, slabs: own, count: own.length + (list === 'full' ? hidden : 0) };
  }).filter(({ count }) => count > 0 || names.length === LAST.length);
}

/** Columns of a slab in so many rows: its objects lie in them row by row. */
const across = ({ objects }: ShownSlab, { rows }: Dots): number => Math.ceil(objects.length / rows);

/** One slab as dots. */
function drawSlab(squares: Squares, slab: ShownSlab, x: number, y: number, { rows, dot }: Dots): void {
  const { objects } = slab;
  const gap = dot >= 3 ? 1 : dot > 1.6 ? 0.5 : 0, edge = dot > 3;
  const used = pixel(colours.used), depot = pixel(colours.depot), cached = pixel(colours.cached), free = pixel(colours.free, edge ? 255 : 102);
  const wide = across(slab, { rows, dot });
  for (let i = 0; i < objects.length; i++) {
    const object = objects[i]!;
    const colour = object === 'u' ? used : object === '.' ? free : object === 'd' ? depot : cached;
    squares.add(x + (i % wide) * dot, y + Math.floor(i / wide) * dot, dot - gap, colour, edge && object === '.');
  }
}

/** Where each of a lane's lists begins, and how wide it is: the first ones hold most slabs. */
function columnsIn(width: number, columns: readonly string[]): [x: number, wide: number][] {
  const parts = columns.map((list) => (list === 'empty' ? 2 : 3)), all = sum(parts);
  let x = 0;
  return parts.map((part) => {
    const begin = x;
    x += part / all * (width + GAP);
    return [begin, x - begin - GAP];
  });
}

/** The names of a lane's lists. */
function drawNames(canvas: HTMLCanvasElement, columns: readonly string[]): void {
  const { g, width } = sheet(canvas, 16);
  g.fillStyle = colours.quiet;
  columnsIn(width, columns).forEach(([x, wide], i) => g.fillText(fitted(g, columns[i]!, wide), x, 12));
  canvas.setAttribute('aria-label', `slabs: ${columns.join(', ')}`);
}

/** A lane's lists, as many slabs of each as there is room for, with the number of all of them. */
function drawLists(canvas: HTMLCanvasElement, lists: List[], columns: readonly string[], perSlab: number): void {
  const { g, width } = sheet(canvas, LANE);
  // Slabs of many objects get smaller dots, so that several fit.
  const dots: Dots = perSlab <= 30 ? { dot: 4, rows: 7 } : perSlab <= 300 ? { dot: 2.8, rows: 10 } : { dot: 1.8, rows: 15 };
  const squares = new Squares(g);
  columnsIn(width, columns).forEach(([begin, wide], i) => {
    let left = begin;
    for (const slab of lists.find(({ list }) => list === columns[i])?.slabs ?? []) {
      const tile = across(slab, dots) * dots.dot;
      if (left > begin && left + tile > begin + wide) break;
      drawSlab(squares, slab, left, 15, dots);
      left += tile + 4;
    }
  });
  squares.put();
  g.fillStyle = colours.quiet;
  columnsIn(width, columns).forEach(([begin, wide], i) => g.fillText(fitted(g, grouped(lists.find(({ list }) => list === columns[i])?.count ?? 0), wide), begin, 10));
}

/** Rows of a slab up close: without a hole, if that makes about a square. */
function rowsOf(objects: number): number {
  const square = Math.sqrt(objects);
  const even = [8, 7, 6, 5, 4, 3, 2].find((rows) => rows <= square && rows >= square / 2 && objects % rows === 0);
  return even ?? Math.max(1, Math.min(8, Math.round(square)));
}

/** All slabs of a cache, as large as they all fit. Returns what lies where. */
function drawSlabs(
  canvas: HTMLCanvasElement, lists: List[], rings: { page: number; index: number; colour: string; outer: number }[], largest: number,
): (x: number, y: number) => { page: number; index: number } | null {
  const width = widthOf(canvas) - 2 * PAD;
  const most = 360, head = 24, foot = 6;
  const layout = (dots: Dots) => {
    const { rows, dot } = dots;
    let y = 0;
    const placed = lists.filter(({ count }) => count).map((list) => {
      const top = y + head;
      let x = PAD, line = top;
      const at = list.slabs.map((slab): [x: number, y: number] => {
        const wide = across(slab, dots) * dot;
        if (x + wide > PAD + width && x > PAD) [x, line] = [PAD, line + rows * dot + (dot > 2 ? 4 : 2)];
        const place: [number, number] = [x, line];
        x += wide + (dot > 2 ? 5 : 2);
        return place;
      });
      y = (list.slabs.length ? line + rows * dot : top - 4) + foot;
      return { list, top, at };
    });
    return { placed, height: y, dots };
  };
  const objects = lists.find(({ slabs }) => slabs.length)?.slabs[0]!.objects.length ?? 1;
  const rows = rowsOf(objects);
  let found = layout({ dot: largest, rows });
  for (const dot of [8, 7, 6, 5, 4, 3, 2, 1.5, 1]) {
    if (found.height <= most) break;
    found = layout({ dot, rows });
  }
  const { placed, height, dots } = found;
  const none = lists.filter(({ count }) => !count).map(({ list }) => `0 ${list}`);
  const high = Math.min(height + (none.length ? head : 0), 560);
  const { g } = sheet(canvas, high);
  g.font = '12px system-ui, sans-serif';
  g.fillStyle = colours.quiet;
  const squares = new Squares(g);
  for (const { list, at } of placed) list.slabs.forEach((slab, i) => drawSlab(squares, slab, ...at[i]!, dots));
  squares.put();
  for (const { list: { list, slabs, count }, top, at } of placed) {
    const low = at.findIndex(([, y]) => y + rows * dots.dot > high);
    const drawn = low < 0 ? slabs.length : low;
    g.fillText(fitted(g, `${grouped(count)} ${list}${drawn < count ? `, ${grouped(drawn)} of them drawn` : ''}`, width), 0, top - 9);
  }
  if (none.length) g.fillText(fitted(g, none.join(', '), width), 0, Math.min(height, high - head) + head - 9);
  for (const { page, index, colour, outer } of rings) {
    for (const { list, at } of placed) {
      const place = at[list.slabs.findIndex((slab) => slab.page === page)];
      if (!place) continue;
      const wide = across(list.slabs.find((slab) => slab.page === page)!, dots);
      const x = place[0] + (index % wide + 0.5) * dots.dot, y = place[1] + (Math.floor(index / wide) + 0.5) * dots.dot;
      for (const [line, stroke] of [[4, colours.card], [2, colour]] as const) {
        g.strokeStyle = stroke;
        g.lineWidth = line;
        g.beginPath();
        g.arc(x, y, Math.max(dots.dot * 0.7, RING) + outer, 0, 7);
        g.stroke();
      }
    }
  }
  return (x, y) => {
    for (const { list, at } of placed) {
      for (const [i, [left, top]] of at.entries()) {
        const { page, objects } = list.slabs[i]!;
        const wide = across(list.slabs[i]!, dots);
        const right = Math.floor((x - left) / dots.dot), down = Math.floor((y - top) / dots.dot);
        const index = down * wide + right;
        if (right >= 0 && right < wide && down >= 0 && index < objects.length) return { page, index };
      }
    }
    return null;
  };
}

// --- levels ---

function drawCpus(canvas: HTMLCanvasElement, cpus: readonly Level[][], acting: number): void {
  const { g, width } = sheet(canvas, LANE);
  const each = width / cpus.length;
  cpus.forEach((levels, cpu) => {
    const x = cpu * each;
    if (cpu === acting) {
      g.fillStyle = colours.now;
      g.fillRect(x, LANE - 2, Math.max(each - 4, 1), 2);
    }
    const bar = Math.min(14, (each - 4) / levels.length - 3);
    if (bar >= 3) levels.forEach((level, i) => column(g, x + i * (bar + 3), 2, bar, LANE - 6, level, colours.cached));
    else column(g, x, 2, Math.max(1, each - (each > 4 ? 2 : 0)), LANE - 6, total(levels), colours.cached);
  });
}

/** Few levels as columns, many as small squares. */
function drawShared(canvas: HTMLCanvasElement, levels: readonly Level[]): void {
  const { g, width } = sheet(canvas, LANE);
  if (levels.length <= 2) {
    levels.forEach((level, i) => column(g, i * 17, 2, 14, LANE - 6, level, colours.depot));
    return;
  }
  const size = 7, down = 4;
  const across = Math.floor(width / (size + 2));
  const columns = levels.length > across * down ? Math.max(across - 4, 1) : across; // or there is a number behind
  const shown = levels.slice(0, columns * down);
  if (shown.length < levels.length) {
    g.fillStyle = colours.quiet;
    g.fillText(`+${levels.length - shown.length}`, columns * (size + 2) + 2, 26);
  }
  shown.forEach(({ objects, room }, i) => {
    const x = Math.floor(i / down) * (size + 2), y = 3 + (i % down) * (size + 2);
    g.globalAlpha = room ? Math.max(0.3, objects / room) : 1;
    g.fillStyle = colours.depot;
    g.fillRect(x, y, size, size);
  });
  g.globalAlpha = 1;
}

/** Objects side by side in a box of these many columns, each at most so many pixels large. */
const ACROSS = [4, 6, 8, 10, 14, 18, 24, 32, 40, 48, 56], MOST_DOT = 12;

/** The most pixels of a CPU's box, and between its levels. */
const HIGHEST = 76, BETWEEN = 6;

/** How the objects of a level lie in so many pixels: 0 columns if they are too many to be seen. */
function gridOf(room: number, wide: number): { columns: number; dot: number; high: number } {
  const dotOf = (columns: number) => Math.min((wide - 5) / columns, MOST_DOT);
  const columns = ACROSS.find((n) => Math.ceil(room / n) * dotOf(n) <= HIGHEST - 5) ?? 0;
  if (!columns || (wide - 5) / columns < 2) return { columns: 0, dot: 0, high: HIGHEST };
  return { columns, dot: dotOf(columns), high: Math.ceil(room / columns) * dotOf(columns) + 5 };
}
const wideOf = (levels: readonly Level[], width: number): number => (width - BETWEEN * (levels.length - 1)) / levels.length;
const highOf = (levels: readonly Level[], width: number): number => Math.max(8, ...levels.map(({ room }) => (room ? gridOf(room, wideOf(levels, width)).high : 0)));

/** A CPU up close: each level object by object while that is possible. */
function drawCpu(canvas: HTMLCanvasElement, levels: readonly Level[], high: number, colour = colours.cached): void {
  const { g, width } = sheet(canvas, high + 2);
  const wide = wideOf(levels, width);
  const squares = new Squares(g), full = pixel(colour), empty = pixel(colours.soft);
  const frames: (() => void)[] = [];
  levels.forEach((level, which) => {
    const { objects, room } = level;
    const x = which * (wide + BETWEEN);
    const { columns, dot } = gridOf(room, wide);
    if (!room) {
      frames.push(() => {
        g.strokeStyle = colours.line;
        g.strokeRect(x + 0.5, high - 7.5, wide - 1, 7);
      });
      return;
    }
    if (!columns) {
      frames.push(() => column(g, x, 0, wide, high, level, colour));
      return;
    }
    // The box is as large as its room, so that a full one looks full.
    const down = Math.ceil(room / columns) * dot;
    frames.push(() => {
      g.strokeStyle = colours.quiet;
      g.strokeRect(x + 0.5, high - down - 4.5, columns * dot + 4, down + 4);
    });
    const apart = dot > 4 ? 1 : 0.5;
    for (let i = 0; i < room; i++)
      squares.add(x + 3 + (i % columns) * dot, high - 3 - (Math.floor(i / columns) + 1) * dot, dot - apart, i < objects ? full : empty);
  });
  squares.put();
  for (const frame of frames) frame();
}
