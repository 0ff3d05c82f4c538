// The machine: what each CPU holds, the depot behind, the slabs below. The busiest caches as lanes, one of them up close.

import { colours, column, grouped, made, noun, pixel, shares, sheet, Squares, sum, widthOf } from './draw.ts';
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
  /** Where the objects up close were drawn. */
  private hit: ((x: number, y: number) => Place | null) = () => null;

  constructor(private readonly about: Pick<About, 'cpus' | 'caches'>, caches: readonly number[], choose: (cache: number) => void, follow: (place: Place) => void,
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
    const names = made('span', { className: 'cpu-names' });
    if (cpus <= 8) {
      names.style.gridTemplateColumns = `repeat(${cpus}, minmax(0, 1fr))`;
      names.append(...Array.from({ length: cpus }, (_, cpu) => made('span', {}, made('span', {}, 'CPU '), String(cpu))));
    } else names.append(`CPU 0 to ${cpus - 1}`);
    this.lanes.style.setProperty('--cpus', cpus <= 2 ? '1.6fr' : '3fr');
    this.lanes.append(
      made('div', { className: 'lane head' }, made('span'), names, made('span', {}, 'shared'), made('span', {}, 'slabs')),
      ...caches.map((cache) => {
        const lane = made('button', { className: 'lane', type: 'button', onclick: () => choose(cache) },
          made('span', {}, made('b', {}, about.caches[cache]!), made('small')), made('canvas'), made('canvas'), made('canvas'));
        lane.dataset['cache'] = String(cache);
        return lane;
      }),
    );
    this.cpus.append(...Array.from({ length: Math.min(cpus, MOST_CPUS) }, (_, cpu) =>
      made('div', {}, made('h4', {}, `CPU ${cpu}`), made('canvas', { role: 'img' }), made('p'))));
    this.shared = made('div', {}, made('h4', {}, 'shared by CPUs'), made('canvas', { role: 'img' }), made('p'));
    this.cpus.append(this.shared);
    this.slabs.onclick = (event) => {
      const place = this.hit(event.offsetX, event.offsetY);
      if (place) follow(place);
    };
  }

  draw(view: View, chosen: number, followed: Place | null): void {
    const step = view.steps.at(-1);
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
    const look = JSON.stringify([shown, counts, acting, Array.from(canvases, widthOf), devicePixelRatio, colours.used]);
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
    drawLists(slabs!, listsOf(shown, counts), counts.per_slab);
    lane.setAttribute('aria-label', `${this.about.caches[cache]}: ${countsSaid(counts)}`);
  }

  private drawNear(view: View, chosen: number, step: Step | undefined, followed: Place | null): void {
    const counts = view.caches[chosen];
    const shown = view.shown.find((own) => own.cache === chosen);
    const name = this.about.caches[chosen]!;
    this.head.replaceChildren(`${name} up close `, made('span', { className: 'quiet' }, nearSaid(counts)));
    const shared = shown?.shared.flat() ?? [];
    this.shared.hidden = !shown?.shared.length;
    const canvas = this.shared.querySelector('canvas')!;
    if (shared.length <= 6) drawCpu(canvas, shared, colours.depot);
    else drawShared(canvas, shared);
    canvas.setAttribute('aria-label', `CPUs share: ${said(shared) || 'nothing'}`);
    this.shared.querySelector('p')!.textContent = shared.length ? `${noun(shared.length, shared[0]!.name)}, ${noun(total(shared).objects, 'object')}` : 'nothing';
    [...this.cpus.children].forEach((box, cpu) => {
      if (box === this.shared) return;
      const own = shown?.cpus[cpu] ?? [];
      const canvas = box.querySelector('canvas')!;
      box.classList.toggle('acting', step?.cache === chosen && step.cpu === cpu);
      drawCpu(canvas, own);
      canvas.setAttribute('aria-label', `CPU ${cpu} holds: ${said(own) || 'nothing'}`);
      box.querySelector('p')!.textContent = said(own).replaceAll(' of ', '/');
    });
    const lists = shown && counts ? listsOf(shown, counts) : [];
    const rings = [
      ...(step?.cache === chosen && step.object ? [{ page: step.object[0], index: step.object[1], colour: colours.now }] : []),
      ...(followed?.cache === chosen ? [{ ...followed, colour: colours.ink }] : []),
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

/** What lists are called up close, where the word alone says too little. */
const MEANS: Record<string, string> = {
  full: 'full (nothing is free in them: what CPUs and the depot hold is out)', partial: 'partial (something is free in them)', empty: 'empty (all is free in them)',
};

const LAST = ['full', 'partial', 'empty'];

/** Lists in the order of an object's way: those of CPUs, then full, partial and empty ones. */
function listsOf({ slabs }: ShownCache, counts: SeenCache): List[] {
  const others = [...new Set(slabs.map(({ list }) => list))].filter((list) => !LAST.includes(list)).sort();
  const hidden = counts.full + counts.partial + counts.empty - slabs.length;
  return [...others, ...LAST].map((list) => {
    const own = slabs.filter((slab) => slab.list === list);
    return { list, slabs: own, count: own.length + (list === 'full' ? hidden : 0) };
  }).filter(({ count }) => count > 0 || !others.length);
}

/** One slab as dots. */
function drawSlab(squares: Squares, { objects }: ShownSlab, x: number, y: number, { rows, dot }: Dots): void {
  const gap = dot >= 3 ? 1 : dot > 1.6 ? 0.5 : 0, edge = dot > 3;
  const used = pixel(colours.used), depot = pixel(colours.depot), cached = pixel(colours.cached), free = pixel(colours.free, edge ? 255 : 102);
  for (let i = 0, row = 0, left = x; i < objects.length; i++) {
    const object = objects[i]!;
    const colour = object === 'u' ? used : object === '.' ? free : object === 'd' ? depot : cached;
    squares.add(left, y + row * dot, dot - gap, colour, edge && object === '.');
    if (++row === rows) [row, left] = [0, left + dot];
  }
}

/** A lane's lists, as many slabs of each as there is room for. */
function drawLists(canvas: HTMLCanvasElement, lists: List[], perSlab: number): void {
  const { g, width } = sheet(canvas, LANE);
  // Slabs of many objects get smaller dots, so that several fit.
  const dots: Dots = perSlab <= 140 ? { dot: 4, rows: 7 } : perSlab <= 300 ? { dot: 2.8, rows: 10 } : { dot: 1.8, rows: 15 };
  const tile = ({ objects }: ShownSlab) => Math.ceil(objects.length / dots.rows) * dots.dot + 4;
  const gap = 12, least = Math.min(66, width / lists.length - gap);
  const wanted = lists.map(({ slabs }) => Math.max(sum(slabs.slice(0, 400).map(tile)) - least, 0));
  const got = shares(wanted, width - lists.length * (least + gap));
  const squares = new Squares(g);
  const others: [string, number, number][] = [];
  let x = 0;
  const names = lists.map(({ list, slabs, count }, i): [string, number, number, number] => {
    const begin = x, end = x + least + got[i]!;
    // As many as there is room for, with the number of the others behind them.
    const all = count === slabs.length && sum(slabs.map(tile)) <= end - begin + 4;
    const edge = all ? end + 4 : end - g.measureText(`+${grouped(count)}`).width;
    let left = x, drawn = 0;
    for (const slab of slabs) {
      if (left + tile(slab) > edge) break;
      drawSlab(squares, slab, left, 15, dots);
      left += tile(slab);
      drawn++;
    }
    if (drawn < count) others.push([`+${grouped(count - drawn)}`, left + 1, 32]);
    x = end + gap;
    return [`${list} ${grouped(count)}`, begin, 10, end - begin];
  });
  squares.put();
  g.fillStyle = colours.quiet;
  for (const name of names) g.fillText(...name);
  for (const other of others) g.fillText(...other);
}

/** All slabs of a cache, as large as they all fit. Returns what lies where. */
function drawSlabs(
  canvas: HTMLCanvasElement, lists: List[], rings: { page: number; index: number; colour: string }[], largest: number,
): (x: number, y: number) => { page: number; index: number } | null {
  const width = widthOf(canvas);
  const most = 360, head = 24, foot = 6;
  const layout = (dots: Dots) => {
    const { rows, dot } = dots;
    let y = 0;
    const placed = lists.map((list) => {
      const top = y + head;
      let x = 0, line = top;
      const at = list.slabs.map(({ objects }): [x: number, y: number] => {
        const wide = Math.ceil(objects.length / rows) * dot;
        if (x + wide > width && x > 0) [x, line] = [0, line + rows * dot + (dot > 2 ? 4 : 2)];
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
  const rows = Math.max(1, Math.min(8, Math.round(Math.sqrt(objects))));
  let found = layout({ dot: largest, rows });
  for (const dot of [8, 7, 6, 5, 4, 3, 2, 1.5, 1]) {
    if (found.height <= most) break;
    found = layout({ dot, rows });
  }
  const { placed, height, dots } = found;
  const high = Math.min(Math.max(height, 80), 560);
  const { g } = sheet(canvas, high);
  g.font = '12px system-ui, sans-serif';
  g.fillStyle = colours.quiet;
  const squares = new Squares(g);
  for (const { list, at } of placed) list.slabs.forEach((slab, i) => drawSlab(squares, slab, ...at[i]!, dots));
  squares.put();
  for (const { list: { list, slabs, count }, top, at } of placed) {
    const low = at.findIndex(([, y]) => y + rows * dots.dot > high);
    const drawn = low < 0 ? slabs.length : low;
    g.fillText(`${grouped(count)} ${MEANS[list] ?? list}${drawn < count ? `, ${grouped(drawn)} of them drawn` : ''}`, 0, top - 9, width);
  }
  for (const { page, index, colour } of rings) {
    for (const { list, at } of placed) {
      const place = at[list.slabs.findIndex((slab) => slab.page === page)];
      if (!place) continue;
      const x = place[0] + (Math.floor(index / rows) + 0.5) * dots.dot, y = place[1] + (index % rows + 0.5) * dots.dot;
      for (const [line, stroke] of [[4, colours.card], [2, colour]] as const) {
        g.strokeStyle = stroke;
        g.lineWidth = line;
        g.beginPath();
        g.arc(x, y, Math.max(dots.dot * 0.7, 7), 0, 7);
        g.stroke();
      }
    }
  }
  return (x, y) => {
    for (const { list, at } of placed) {
      for (const [i, [left, top]] of at.entries()) {
        const { page, objects } = list.slabs[i]!;
        const across = Math.floor((x - left) / dots.dot), down = Math.floor((y - top) / dots.dot);
        const index = across * rows + down;
        if (across >= 0 && down >= 0 && down < rows && index < objects.length) return { page, index };
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

/** A CPU up close: each level object by object while that is possible. */
function drawCpu(canvas: HTMLCanvasElement, levels: readonly Level[], colour = colours.cached): void {
  const { g, width } = sheet(canvas, 78);
  const gap = 6, high = 76, inner = high - 5;
  const wide = (width - gap * (levels.length - 1)) / levels.length;
  const squares = new Squares(g), full = pixel(colour), empty = pixel(colours.soft);
  const frames: (() => void)[] = [];
  levels.forEach((level, which) => {
    const { objects, room } = level;
    const x = which * (wide + gap);
    const across = ACROSS.find((n) => Math.ceil(room / n) * Math.min((wide - 5) / n, MOST_DOT) <= inner) ?? 0;
    if (!room) {
      frames.push(() => {
        g.strokeStyle = colours.line;
        g.strokeRect(x + 0.5, high - 7.5, wide - 1, 7);
      });
      return;
    }
    if (!across || (wide - 5) / across < 2) {
      frames.push(() => column(g, x, 0, wide, high, level, colour));
      return;
    }
    // The box is as large as its room, so that a full one looks full.
    const dot = Math.min((wide - 5) / across, MOST_DOT), down = Math.ceil(room / across) * dot;
    frames.push(() => {
      g.strokeStyle = colours.quiet;
      g.strokeRect(x + 0.5, high - down - 4.5, across * dot + 4, down + 4);
    });
    const apart = dot > 4 ? 1 : 0.5;
    for (let i = 0; i < room; i++)
      squares.add(x + 3 + (i % across) * dot, high - 3 - (Math.floor(i / across) + 1) * dot, dot - apart, i < objects ? full : empty);
  });
  squares.put();
  for (const frame of frames) frame();
}
