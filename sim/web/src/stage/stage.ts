// The stage: CPUs and their magazines, what they share, slabs, pages; the pointers that travel between them. Drawn on two canvases, what is
// still and what moves; the same is in elements for keyboards and screen readers.

import './stage.css';
import { colours, grouped, made, noun } from '../draw.ts';
import { apng, type Frame } from './apng.ts';
import { asSvg, onCanvas, type Shape } from './ink.ts';
import { change, type Change } from './motion.ts';
import { holderOf, idOf, locksOf, momentOf, placeOf, type Activity, type Holder, type Id, type Locks, type Moment, type Waits } from './moment.ts';
import { births, cpuOf, ghosts, joined, legend, moving, NOTHING_APART, still, trails, type Apart } from './paint.ts';
import { atCell, extended, holderSaid, NOTHING, plan, type Extent, type Plan } from './plan.ts';
import type { View } from '../views.ts';

/** What CPUs share above the slabs, as designs call it; the others call it a depot. */
const SHARED: Record<string, string> = { slub: '', bonwick94: '', sheaves: 'barn', 'sheaves-6.18': 'barn', slab: 'shared array' };
const sharedBy = (design: string): string => (/:capacity=0\b/.test(design) ? '' : SHARED[design.split(':')[0]!] ?? 'depot');

/** What can be done on a stage. */
export interface Hands {
  alloc(cpu: number): void;
  free(cpu: number): void;
  /** Frees that object. */
  pick(page: number, index: number): void;
}

export interface Options {
  design: string;
  cpus: number;
  hands?: Hands;
  /** Hears which object was clicked. */
  follow?: (page: number, index: number) => void;
  /** Without a legend. */
  bare?: boolean;
}

/** Objects up to which each is an element. */
const MOST_ELEMENTS = 600;
/** Slabs that are told in words one by one. */
const MOST_SAID = 40;
/** Pixels around a pointer, and around a slab, that count as a part of it. */
const NEAR = 5, EDGE = 1;

/** Pixels below an image for the sentence; milliseconds of an animated image's pictures, and that the last one stays. */
const CAPTION = 40, EACH = 50, HOLD = 2000;

const NO_LOCKS: Locks = { depot: false, slabs: false, pages: false };

let stages = 0;

export class Stage {
  readonly root: HTMLElement;
  /** How large texts are: a lecturer's are larger. */
  scale = 1;
  /** How much faster than usual things move. */
  speed = 1;
  private readonly back = made('canvas');
  private readonly front = made('canvas');
  private readonly twin = made('div', { className: 'unseen' });
  private readonly objects = made('div', { className: 'objects' });
  private readonly tip = made('div', { className: 'tip', hidden: true });
  private readonly buttons: [HTMLButtonElement, HTMLButtonElement][] = [];
  private readonly depot: string;
  private readonly number = stages++;
  private readonly empty: Extent;
  private extent: Extent;
  private moment: Moment | null = null;
  private before: Moment | null = null;
  private plans: [Plan, Plan] | null = null;
  private change: Change | null = null;
  private frame = 0;
  /** How many CPUs wait for each lock in virtual time; `null`: that is not shown. */
  waits: Waits | null = null;
  /** What each CPU does at this point in virtual time; `null`: the picture is of an operation, not of a time. */
  crew: readonly Activity[] | null = null;
  private hovered: Id | null = null;
  /** An object that has a ring. */
  private marked: Id | null = null;
  private cursor: Id | null = null;
  private readonly calm = matchMedia('(prefers-reduced-motion: reduce)');
  /** Milliseconds of each picture that was drawn; for tests. */
  readonly frames: number[] = [];

  constructor(private readonly options: Options) {
    const { design, cpus, hands } = options;
    this.depot = sharedBy(design);
    this.extent = this.empty = { ...NOTHING, cpus, trays: this.depot === 'depot' ? 4 : 0 };
    for (const canvas of [this.back, this.front]) canvas.ariaHidden = 'true';
    this.objects.role = 'listbox';
    this.objects.tabIndex = 0;
    this.objects.ariaLabel = hands ? 'Objects: arrow keys move, Enter frees' : 'Objects: arrow keys move';
    this.root = made('div', { className: 'stage', role: 'group', ariaLabel: 'The stage' }, this.back, this.front, this.objects, this.twin, this.tip);
    if (hands) {
      for (let cpu = 0; cpu < cpus; cpu++) {
        const button = (name: string, act: () => void, key: string) => made('button', { type: 'button', onclick: act, ariaLabel: `CPU ${cpu}: ${name}`, title: `${name} on CPU ${cpu} (${key})` }, name);
        this.buttons.push([button('alloc', () => hands.alloc(cpu), `${cpu}`), button('free', () => hands.free(cpu), `Shift+${cpu}`)]);
      }
      this.root.append(...this.buttons.flat());
    }
    new ResizeObserver(() => this.resized()).observe(this.root);
    this.front.onpointermove = ({ offsetX, offsetY }) => this.hover(this.hit(offsetX, offsetY));
    this.front.onpointerleave = () => this.hover(null);
    this.front.onclick = ({ offsetX, offsetY }) => {
      const id = this.hit(offsetX, offsetY);
      if (id !== null) this.picked(id);
    };
    this.objects.onkeydown = (event) => this.walk(event);
    this.objects.onblur = () => this.hover(null);
    this.objects.onfocus = () => this.point(this.cursor ?? this.ids()[0] ?? null);
  }

  /** Makes room for moments that are to come, so that nothing jumps then. */
  reserve(moments: readonly Moment[]): void {
    this.extent = moments.reduce(extended, this.extent);
  }

  /** The next moment needs no room for others: what it looks like follows from it alone. */
  forget(): void {
    this.extent = this.empty;
  }

  /** Puts a ring around an object. */
  mark(page: number | null, index = 0): void {
    const marked = page === null ? null : idOf(page, index);
    if (marked === this.marked) return;
    this.marked = marked;
    if (!this.frame) this.draw();
  }

  /** Shows a moment; how it came from the one before, if that is known. Returns the milliseconds that it moves. */
  show(moment: Moment, before: Moment | null, moves: boolean): number {
    if (before) this.extent = extended(this.extent, before);
    this.extent = extended(this.extent, moment);
    [this.moment, this.before] = [moment, before];
    this.arrange();
    this.mirror();
    cancelAnimationFrame(this.frame);
    if (!this.change || !moves || this.calm.matches || document.hidden) {
      this.draw();
      return 0;
    }
    const ms = this.change.ms / this.speed;
    this.run(this.change, ms);
    return ms;
  }

  /** The colours or the size changed. */
  redraw(): void {
    this.arrange();
    this.mirror();
    this.draw();
  }

  /** The stage as it stands, with the sentence below it. */
  svg(sentence: string): string {
    const [w, h] = this.size;
    return asSvg([...this.shapes(), ...this.caption(sentence)], w, h + CAPTION, sentence);
  }
  /** The same as an image. */
  png(sentence: string): Promise<Blob | null> {
    const { canvas } = this.sheet(2, [...this.shapes(), ...this.caption(sentence)]);
    return new Promise((then) => canvas.toBlob(then));
  }
  /** How it came from the moment before, as an animated image. */
  film(sentence: string): Promise<Blob> {
    const { change: own, plans } = this, end = this.frameOf([...this.shapes(), ...this.caption(sentence)], HOLD);
    if (!own || !plans) return apng([end]);
    const apart = { chips: new Set(own.moves.map(({ id }) => id)), tiles: new Set(own.born) }, base = [...this.stillShapes(apart), ...this.caption(sentence)];
    const count = Math.max(Math.round(own.ms / EACH), 2);
    return apng([...Array.from({ length: count }, (_, i) => this.frameOf([...base, ...moving(colours, ...plans, own, i / count)], i ? EACH : HOLD / 2)), end]);
  }
  /** Objects that are drawn; for tests. */
  get drawn(): number {
    return [...this.plans?.[1].tiles.values() ?? []].reduce((sum, { objects }) => sum + objects.length, 0);
  }
  /** Where an object is drawn, from the stage's corner; for tests. */
  place(page: number, index: number): { x: number; y: number } | null {
    return this.plans && atCell(this.plans[1], idOf(page, index));
  }

  // --- images ---

  private get size(): [w: number, h: number] {
    return [this.root.clientWidth, this.root.clientHeight];
  }
  private caption(sentence: string): Shape[] {
    const [w, h] = this.size;
    return [{ is: 'rect', x: 0, y: h, w, h: CAPTION, fill: colours.card }, { is: 'text', x: 18, y: h + 24, text: sentence, size: 16, fill: colours.ink }];
  }
  private sheet(ratio: number, shapes: readonly Shape[]): CanvasRenderingContext2D {
    const [w, h] = this.size, g = made('canvas', { width: w * ratio, height: (h + CAPTION) * ratio }).getContext('2d')!;
    g.scale(ratio, ratio);
    onCanvas(g, shapes);
    return g;
  }
  private frameOf(shapes: readonly Shape[], ms: number): Frame {
    const g = this.sheet(1, shapes);
    return { image: g.getImageData(0, 0, g.canvas.width, g.canvas.height), ms };
  }

  // --- drawing ---

  private resized(): void {
    const ratio = devicePixelRatio || 1, { clientWidth: w, clientHeight: h } = this.root;
    if (!w || !h) return;
    for (const canvas of [this.back, this.front]) [canvas.width, canvas.height] = [Math.round(w * ratio), Math.round(h * ratio)];
    this.redraw();
  }

  private arrange(): void {
    const { moment, before, extent, scale, depot } = this, { clientWidth: w, clientHeight: h } = this.root;
    if (!moment || !w || !h) {
      this.plans = this.change = null;
      return;
    }
    const size = { w, h, scale, depot, hands: this.buttons.length > 0, waits: this.waits, bare: this.options.bare ?? false };
    const after = plan(moment, extent, size), old = before ? plan(before, extent, size) : after;
    this.plans = [old, after];
    this.change = before && change(old, after, moment.view.steps);
    this.buttons.forEach((own, cpu) => own.forEach((button, i) => {
      const box = i ? after.cpus[cpu]!.free : after.cpus[cpu]!.alloc;
      Object.assign(button.style, { left: `${box.x}px`, top: `${box.y}px`, width: `${box.w}px`, height: `${box.h}px`, fontSize: `${Math.min(13 * scale, box.w / 3.2)}px` });
    }));
  }

  /** CPUs that did the last operation on this cache. */
  private acting(): readonly number[] {
    const step = this.moment?.view.steps.at(-1);
    return step && step.cache === this.moment?.shown?.cache && !['nothing', 'shrink'].includes(step.what) ? [step.cpu] : [];
  }
  /** While pointers move, the numbers are those of the moment before. */
  private stillShapes(apart: Apart): Shape[] {
    const { moment, plans, crew } = this;
    if (!moment || !plans) return [];
    const [before, after] = plans, locks = crew ? NO_LOCKS : locksOf(moment.view.steps), counted = apart === NOTHING_APART ? after : before;
    return [...still(colours, after, apart, crew ? [] : this.acting(), locks, { counted, crew }), ...(this.options.bare ? [] : legend(colours, after, this.depot))];
  }
  private restShapes(): Shape[] {
    const shapes = this.change && this.plans ? [...ghosts(colours, this.plans[0], this.change), ...births(colours, this.plans[1], this.change), ...trails(colours, this.plans[1], this.change, 0.75)] : [];
    for (const id of [this.marked, this.hovered]) if (id !== null && this.plans) shapes.push(...joined(colours, this.plans[1], id));
    return shapes;
  }
  private shapes(): Shape[] {
    return [...this.stillShapes(NOTHING_APART), ...this.restShapes()];
  }

  private paint(canvas: HTMLCanvasElement, shapes: readonly Shape[]): void {
    const ratio = devicePixelRatio || 1, g = canvas.getContext('2d')!;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, this.root.clientWidth, this.root.clientHeight);
    onCanvas(g, shapes);
  }

  /** The moment at rest. */
  private draw(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.paint(this.back, this.stillShapes(NOTHING_APART));
    this.paint(this.front, this.restShapes());
  }

  private run(own: Change, ms: number): void {
    const apart = { chips: new Set(own.moves.map(({ id }) => id)), tiles: new Set(own.born) };
    this.paint(this.back, this.stillShapes(apart));
    const begin = performance.now();
    let last = begin;
    const step = (now: number) => {
      const t = Math.min((now - begin) / ms, 1);
      this.frames.push(now - last);
      last = now;
      if (t >= 1 || !this.plans) {
        this.draw();
        return;
      }
      this.paint(this.front, moving(colours, ...this.plans, own, Math.max(t, 0)));
      this.frame = requestAnimationFrame(step);
    };
    this.paint(this.front, moving(colours, ...this.plans!, own, 0));
    this.frame = requestAnimationFrame(step);
  }

  // --- hands ---

  private ids(): Id[] {
    const tiles = [...this.plans?.[1].tiles.values() ?? []].sort((a, b) => a.seat - b.seat);
    return tiles.flatMap(({ page, objects }) => Array.from({ length: objects.length }, (_, index) => idOf(page, index)));
  }
  private letter(id: Id): string | undefined {
    const [page, index] = placeOf(id);
    return this.moment?.shown?.slabs.find((slab) => slab.page === page)?.objects[index];
  }

  /** What is near a place: a pointer, or an object. */
  private hit(x: number, y: number): Id | null {
    const after = this.plans?.[1];
    if (!after) return null;
    let best: Id | null = null, least = Infinity;
    for (const [id, chip] of after.chips) {
      const away = Math.hypot(chip.x - x, chip.y - y);
      if (away < Math.max(chip.r + 2, NEAR) && away < least) [best, least] = [id, away];
    }
    if (best !== null) return best;
    for (const { box, pitch, columns, objects, page, ...tile } of after.tiles.values()) {
      if (x < box.x - EDGE || y < box.y - EDGE || x > box.x + box.w + EDGE || y > box.y + box.h + EDGE) continue;
      const rows = Math.ceil(objects.length / columns), within = (at: number, most: number) => Math.min(Math.max(Math.floor(at / pitch), 0), most - 1);
      if (y < tile.y - EDGE) continue; // its name
      const index = within(y - tile.y, rows) * columns + within(x - tile.x, columns);
      if (index < objects.length) return idOf(page, index);
    }
    return null;
  }

  private picked(id: Id): void {
    const [page, index] = placeOf(id);
    if (this.letter(id) === 'u') this.options.hands?.pick(page, index);
    this.options.follow?.(page, index);
  }

  private hover(id: Id | null): void {
    this.front.style.cursor = id !== null && (this.options.follow || this.options.hands && this.letter(id) === 'u') ? 'pointer' : '';
    if (id === this.hovered) return;
    this.hovered = id;
    if (!this.frame) this.draw();
    this.tip.hidden = id === null;
    if (id === null || !this.plans) return;
    this.tip.textContent = this.objectSaid(id);
    const at = atCell(this.plans[1], id), { clientWidth: w } = this.root;
    if (at) Object.assign(this.tip.style, { left: `${Math.min(Math.max(at.x, 120), w - 120)}px`, top: `${at.y - at.r * 3 - 8}px` });
  }

  private objectSaid(id: Id): string {
    const letter = this.letter(id) ?? '.', [page, index] = placeOf(id);
    return `Object ${index} of the slab at page ${grouped(page)}, ${holderSaid(letter, cpuOf(letter))}`;
  }

  private point(id: Id | null): void {
    this.cursor = id;
    this.hover(id);
    if (id === null) this.objects.removeAttribute('aria-activedescendant');
    else this.objects.setAttribute('aria-activedescendant', this.element(id));
    this.objects.querySelector('[aria-selected=true]')?.setAttribute('aria-selected', 'false');
    if (id !== null) document.getElementById(this.element(id))?.setAttribute('aria-selected', 'true');
  }
  private element(id: Id): string {
    return `object-${this.number}-${id}`;
  }

  private walk(event: KeyboardEvent): void {
    const ids = this.ids(), at = Math.max(ids.indexOf(this.cursor ?? -1), 0), columns = this.plans?.[1].tiles.values().next().value?.columns ?? 1;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -at, End: ids.length - 1 - at }[event.key];
    if (by !== undefined && ids.length) this.point(ids[Math.min(Math.max(at + by, 0), ids.length - 1)]!);
    else if (event.key === 'Enter' && this.cursor !== null) this.picked(this.cursor);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The stage in words. */
  private mirror(): void {
    const { moment, plans } = this;
    if (!moment || !plans) return;
    const after = plans[1], count = (objects: string, of: Holder) => objects.split('').filter((letter) => holderOf(letter) === of).length;
    const trays = (own: { name: string; ids: Id[]; room: number }[]) => own.map(({ name, ids, room }) => `${name || 'magazine'} ${ids.length} of ${room}`).join(', ') || 'nothing';
    const slabs = [...after.tiles.values()].sort((a, b) => a.seat - b.seat);
    const acting = this.acting(), item = (text: string, acts = false) => made('li', { ariaCurrent: acts ? 'true' : null }, text);
    this.twin.replaceChildren(made('ul', { ariaLabel: 'CPUs' }, ...after.cpus.map(({ trays: own }, cpu) => item(`CPU ${cpu}: ${trays(own)}`, acting.includes(cpu)))),
      ...(after.depot ? [made('p', {}, `${after.depot.name}: ${trays(after.depot.trays.filter(({ ids }) => ids.length))}`)] : []),
      made('ul', { ariaLabel: 'Slabs' }, ...slabs.slice(0, MOST_SAID).map(({ page, objects }) => item(
        `slab at page ${page}: ${count(objects, 'program')} in use, ${count(objects, 'cpu')} held by CPUs, ${count(objects, 'depot')} in the depot, ${count(objects, 'slab')} free in it`))),
      made('p', {}, noun(slabs.length + after.hidden, 'slab')));
    const ids = this.drawn <= MOST_ELEMENTS ? this.ids() : [];
    this.objects.replaceChildren(...ids.map((id) => {
      const option = made('span', { id: this.element(id), role: 'option', className: 'unseen' }, this.objectSaid(id));
      option.ariaSelected = String(id === this.cursor);
      return option;
    }));
    this.objects.tabIndex = ids.length ? 0 : -1;
    this.objects.hidden = this.objects.tabIndex < 0;
  }
}


/** A moment of a recording as an SVG. */
export function pictured({ about: { cpus }, design, views, maps }: { about: { cpus: number }; design: string; views: readonly View[]; maps: readonly Uint8Array[] }, at: number, w: number, h: number): string {
  const depot = sharedBy(design), moments: Moment[] = [];
  for (const [n, view] of views.slice(0, at + 1).entries()) moments.push(momentOf(view, 0, maps[n] ?? new Uint8Array(), moments[n - 1]));
  const extent = moments.reduce(extended, { ...NOTHING, cpus, trays: depot === 'depot' ? 4 : 0 }), own = plan(moments.at(-1)!, extent, { w, h, scale: 1, depot, hands: false, bare: true });
  return asSvg(still(colours, own, NOTHING_APART, [], NO_LOCKS), w, h, '');
}
