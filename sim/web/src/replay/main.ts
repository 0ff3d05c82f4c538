// The page: one moment at a time from the engine, drawn. With two designs it is the same moment of both.

import '../page.css';
import { unpacked } from '../carried.ts';
import { Controls } from './controls.ts';
import { $, grouped, made, noun, readColours } from '../draw.ts';
import { Life, holderSaid } from './follow.ts';
import { command, read, written, type Look } from './link.ts';
import { Machine, type Place } from '../machine.ts';
import { PagesBelow } from './pages.ts';
import { Run, breather } from './run.ts';
import { TimeLine } from './timeline.ts';
import { drawTwin } from './twin.ts';
import { runUntil, untilOf, type Condition } from './until.ts';
import type { View } from '../views.ts';

const LANES = 8; // caches in the overview
const CALM = 500; // ms between two pictures, where somebody wants little motion

/** One design, and where it is. */
interface Side {
  run: Run;
  root: HTMLElement;
  machine: Machine;
  pages: PagesBelow;
  view: View;
}

class Page {
  private sides: Side[] = [];
  private lanes: number[] = [];
  private chosen = 0;
  private life: Life | null = null;
  private playing = false;
  private search = new AbortController();
  private readonly line: TimeLine;
  private readonly controls: Controls;
  private readonly calm = matchMedia('(prefers-reduced-motion: reduce)');
  private saidAt = 0;

  private constructor(private readonly wasm: Uint8Array<ArrayBuffer>, private readonly stream: Uint8Array, first: Run) {
    const { about, samples } = first;
    $('title').textContent = `${about.title}: ${noun(about.operations, 'operation')}, ${noun(about.cpus, 'CPU')}, ${noun(about.caches.length, 'cache')}`;
    const last = samples.at(-1)!.values;
    const served = (cache: number) => last[4 + 3 * cache + 2]!;
    const lost = (cache: number) => Math.max(...samples.map(({ values }) => values[4 + 3 * cache]!)) - last[4 + 3 * cache]!;
    this.lanes = about.caches.map((_, cache) => cache).filter(served).sort((a, b) => served(b) - served(a)).slice(0, LANES);
    // Up close is the cache that loses the most objects again: its slabs fill and empty.
    this.chosen = this.lanes.reduce((best, cache) => (lost(cache) > lost(best) ? cache : best), this.lanes[0] ?? 0);
    this.line = new TimeLine($('line'), about.operations, { seek: (n) => this.go(n), changed: () => this.draw() });
    this.controls = new Controls({
      operations: about.operations,
      toggle: () => (this.playing ? this.pause() : this.play()),
      go: (n) => this.go(n),
      by: (n) => this.go(this.at + n),
      nextSlow: () => void this.nextSlow(),
      runUntil: (condition) => void this.runUntil(condition),
      stop: () => this.stop(),
      zoom: (factor) => (factor ? this.line.zoom(factor, this.at) : this.line.zoomTo([0, about.operations])),
      follow: () => this.followTouched(),
      designs: (design, beside) => void this.compare(design, beside).catch(problem),
      copy: (what) => void navigator.clipboard.writeText(what === 'link' ? location.href : command(this.look)).catch(problem),
    });
    new ResizeObserver(() => this.draw()).observe($('main'));
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
      readColours();
      this.draw();
    });
    addEventListener('hashchange', () => void this.open(read(location.hash)).catch(problem));
    $('twin').addEventListener('toggle', () => this.draw());
    $('unfollow').onclick = () => this.follow(null);
  }

  static async start(): Promise<Page> {
    readColours();
    const [wasm, stream] = await Promise.all([unpacked('engine'), unpacked('stream')]);
    const look = read(location.hash);
    // A link to a design that there is not shows the shipping one, and says so.
    let wrong: unknown;
    const design = look.design ?? 'uslab';
    const run = await Run.record(wasm, stream, design, progress(design)).catch((error: unknown) => {
      if (design === 'uslab') throw error;
      wrong = error;
      return Run.record(wasm, stream, 'uslab', progress('uslab'));
    });
    const page = new Page(wasm, stream, run);
    page.take([run]);
    await page.open({ at: Math.round(run.about.operations * 0.3), ...look, design: run.design });
    if (wrong) problem(wrong);
    return page;
  }

  get at(): number {
    return this.sides[0]?.view.operation ?? 0;
  }
  get design(): string {
    return this.first.run.design;
  }
  view(side = 0): View | undefined {
    return this.sides[side]?.view;
  }
  /** What the page did so far, for tests: these are counts, and the same everywhere. */
  get counts() {
    return this.sides.map(({ run: { travel } }) => ({ checkpoints: travel.newest, kept: travel.kept, reran: travel.reran }));
  }

  private get first(): Side {
    return this.sides[0]!;
  }
  private get look(): Look {
    const { run: { about, design } } = this.first;
    const [from, to] = this.line.range;
    const beside = this.sides[1]?.run.design;
    return {
      at: this.at, cache: about.caches[this.chosen]!, design,
      ...(beside && { beside }),
      ...((from > 0 || to < about.operations) && { range: [from, to] }),
      ...(this.life?.run === this.first.run && { object: { page: this.life.place.page, index: this.life.place.index } }),
    };
  }

  /** What a link asks for. */
  private async open({ at, cache, design, beside, range, object }: Partial<Look>): Promise<void> {
    await this.compare(design ?? 'uslab', beside ?? '').catch(problem);
    const chosen = this.first.run.about.caches.indexOf(cache ?? '');
    if (chosen >= 0) this.chosen = chosen;
    this.controls.choose(this.first.run.about.caches[this.chosen]!);
    this.go(at ?? this.at);
    this.line.zoomTo(range ?? [0, this.first.run.about.operations]);
    this.follow(object ? { cache: this.chosen, ...object } : null);
  }

  // --- designs ---

  /** Runs the stream on a design, and on another one beside it unless that is ''. What runs already is kept. */
  async compare(design: string, beside: string): Promise<void> {
    const wanted = beside ? [design, beside] : [design];
    if (wanted.join() === this.sides.map(({ run }) => run.design).join()) return;
    this.pause();
    problem('');
    const runs: Run[] = [];
    try {
      for (const own of wanted)
        runs.push(this.sides.find(({ run }) => run.design === own && !runs.includes(run))?.run ?? await Run.record(this.wasm, this.stream, own, progress(own)));
    } finally {
      if (runs.length === wanted.length) {
        const { at } = this;
        this.follow(null);
        this.take(runs);
        this.go(at);
      } else this.draw();
    }
  }

  private take(runs: readonly Run[]): void {
    this.sides = runs.map((run) => {
      const machine = new Machine(run.about, this.lanes, (cache) => this.choose(cache), (place) => this.follow(place, run));
      const pages = new PagesBelow();
      const root = made('article', { className: 'side' }, made('h2', { className: 'design' }), machine.root, pages.root);
      root.setAttribute('aria-label', `Design ${run.design}`);
      return { run, root, machine, pages, view: run.view(0, this.shown) };
    });
    $('sides').replaceChildren(...this.sides.map(({ root }) => root));
    $('sides').classList.toggle('two', runs.length > 1);
  }

  // --- the moment ---

  private get shown(): number[] {
    return [...new Set([...this.lanes, this.chosen])];
  }

  private show(n: number): void {
    for (const side of this.sides) side.view = side.run.view(Math.min(Math.max(n, 0), side.run.about.operations), this.shown);
    this.draw();
  }

  private draw(): void {
    if (!this.sides.length) return;
    const { run, view } = this.first;
    this.line.draw(this.sides.map((side) => side.run), this.chosen, this.at);
    this.controls.show(this.at, view.time_ns, this.sides.map((side) => side.run.design), command(this.look));
    // While it plays the words change slowly enough to be read.
    const now = performance.now();
    if (!this.playing || now - this.saidAt > 250) {
      this.saidAt = now;
      $('said').replaceChildren(...this.sides.map((side) => this.said(side)));
    }
    for (const side of this.sides) {
      const { root, run: { design, engine, travel }, view: own, machine, pages } = side;
      const all = own.caches.reduce((sum, cache) => [sum[0]! + cache.full + cache.partial + cache.empty, sum[1]! + cache.in_magazines + cache.in_depot], [0, 0]);
      root.querySelector('.design')!.textContent = `${design}: ${noun(all[0]!, 'slab')}, ${noun(all[1]!, 'cached object')}`;
      machine.draw(own, this.chosen, this.life?.run === side.run ? this.life.place : null);
      if (engine.at !== own.operation) travel.to(own.operation);
      pages.draw(own.pages, engine.map());
    }
    if (this.life) this.drawLife(this.life);
    if ($<HTMLDetailsElement>('twin').open) drawTwin($('twin-tables'), run, view, this.chosen);
    this.link();
  }

  private said({ run: { about, design }, view }: Side): HTMLElement {
    const path = view.steps.at(-1)?.path;
    const mark = about.marks.find(({ operation }) => operation === view.operation);
    const chip = made('span', { className: `path ${path ?? 'none'}` }, path ?? (mark ? 'mark' : view.operation ? 'nothing' : 'begin'));
    const text = mark && !path ? `The trace is marked here: “${mark.text}”.`
      : view.operation ? view.steps.map(({ sentence }) => sentence).join(' ')
        : 'Nothing has happened yet: every cache is empty, and no memory is committed. Press play, or step.';
    return made('p', {}, ...(this.sides.length > 1 ? [made('b', {}, `${design} `)] : []), chip, text);
  }

  private linking = 0;
  /** The address follows, but not each picture: browsers allow a few changes a second. */
  private link(): void {
    clearTimeout(this.linking);
    this.linking = setTimeout(() => history.replaceState(null, '', written(this.look)), this.playing ? 1000 : 100);
  }

  private choose(cache: number): void {
    this.chosen = cache;
    this.controls.choose(this.first.run.about.caches[cache]!);
    if (this.life && this.life.place.cache !== cache) this.follow(null);
    this.show(this.at);
  }

  // --- moving ---

  go(n: number): void {
    this.pause();
    this.show(n);
  }

  private pause(): void {
    this.search.abort();
    this.playing = false;
    this.controls.playing(false);
  }

  private play(): void {
    this.pause();
    if (this.at >= this.first.run.about.operations) this.show(0);
    this.playing = true;
    this.controls.playing(true);
    let last = performance.now(), owed = 0;
    const frame = (now: number) => {
      if (!this.playing) return;
      const between = this.calm.matches ? CALM : 0;
      if (now - last >= between) {
        owed += Math.min(now - last, Math.max(100, between)) / 1000 * this.controls.speed;
        last = now;
        const whole = Math.floor(owed);
        owed -= whole;
        if (whole) this.show(this.at + whole);
        if (this.at >= this.first.run.about.operations) {
          this.pause();
          return;
        }
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  /** Pauses whatever moves, and says how to stop what comes. */
  private begin(): AbortSignal {
    this.pause();
    this.search = new AbortController();
    this.controls.searching(true);
    this.search.signal.addEventListener('abort', () => this.controls.searching(false));
    return this.search.signal;
  }

  private stop(): void {
    this.pause();
    if (this.life && this.life.searched < this.first.run.about.operations) this.life.stop();
  }

  /** To the next operation that leaves what its CPU holds, of any cache or of pages. */
  private async nextSlow(): Promise<void> {
    const signal = this.begin();
    const { run } = this.first;
    const breathe = breather();
    for (let n = this.at + 1; n <= run.about.operations && !signal.aborted; n++) {
      const { steps, caches } = run.view(n, []);
      const slow = steps.find(({ path }) => path && path !== 'cpu');
      if (slow || n === run.about.operations) {
        if (slow?.cache != null && caches[slow.cache]?.size) this.chosen = slow.cache;
        this.controls.choose(run.about.caches[this.chosen]!);
        this.go(n);
        return;
      }
      await breathe();
    }
  }

  private async runUntil(condition: Condition): Promise<void> {
    const until = untilOf(condition, this.chosen, this.life?.place ?? null);
    if (!until) {
      problem('No object is followed: click one in a slab, or press f for the one that this operation touched.');
      return;
    }
    problem('');
    const signal = this.begin();
    const { travel } = condition === 'object' && this.life ? this.life.run : this.first.run;
    const found = await runUntil(travel, until, this.at, signal, (at) => {
      $('said').replaceChildren(`Searching: operation ${grouped(at)}.`);
    });
    if (signal.aborted) this.draw();
    else if (found) this.go(found.operation);
    else {
      this.go(this.at);
      problem('That does not happen again before the end.');
    }
  }

  // --- one object ---

  private followTouched(): void {
    const step = this.first.view.steps.find(({ object }) => object);
    if (step?.cache == null || !step.object) {
      problem('This operation touched no object of a slab; step on, or click an object in a slab.');
      return;
    }
    this.chosen = step.cache;
    this.controls.choose(this.first.run.about.caches[this.chosen]!);
    this.show(this.at);
    this.follow({ cache: step.cache, page: step.object[0], index: step.object[1] });
  }

  private follow(place: Place | null, run = this.first.run): void {
    this.life?.stop();
    this.life = place && new Life(run, place);
    $('life').hidden = !place;
    const { life } = this;
    void life?.search(() => {
      if (this.life === life) this.drawLife(life);
    });
    problem('');
    this.draw();
  }

  private drawLife(life: Life): void {
    const { place: { cache, page, index }, run: { about } } = life;
    const side = this.sides.find(({ run }) => run === life.run);
    const holder = side?.view.shown.find((shown) => shown.cache === cache)?.slabs.find((slab) => slab.page === page)?.objects[index];
    const share = Math.floor(life.searched / about.operations * 100);
    $('life-head').replaceChildren(`Object ${index} of the slab at page ${grouped(page)}, ${about.caches[cache]} `, made('span', { className: 'quiet' },
      `now ${holderSaid(holder ?? null)}; ${noun(life.events.length, 'event')} in ${share < 100 ? `the first ${share} % of ` : ''}the run`));
    $('life-list').replaceChildren(...life.list(this.at, (n) => this.go(n)));
  }
}

function problem(error: unknown): void {
  $('problem').textContent = error instanceof Error ? error.message : String(error);
}

const progress = (design: string) => (share: number) => {
  $('said').replaceChildren(`The engine runs the trace once on ${design}: ${Math.round(share * 100)} %`);
};

const page = Page.start();
page.catch((error: unknown) => problem(`The page does not start: ${error instanceof Error ? error.message : error}`));

/** For tests and consoles. `run` puts a design beside the one that is shown; '' takes it away. */
const own = {
  ready: page.then(() => undefined),
  seek: async (n: number) => (await page).go(n),
  view: async (side?: number) => (await page).view(side),
  run: async (design: string) => (await page).compare((await page).design, design),
  counts: async () => (await page).counts,
};
Object.assign(window, { uslab: own });
