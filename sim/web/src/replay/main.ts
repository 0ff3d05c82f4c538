// The page: one moment at a time from the engine, drawn. With two designs it is the same moment of both.

import '../page.css';
import './replay.css';
import { answers, holds, type Answer } from './answers.ts';
import { unpacked } from '../carried.ts';
import { Controls } from './controls.ts';
import { SUMS } from '../engine.ts';
import { $, grouped, made, noun, readColours } from '../draw.ts';
import { downloadBlob } from '../front/save.ts';
import { Life, holderSaid } from './follow.ts';
import { commands, read, written, type Look } from './link.ts';
import { momentOf, type Moment, type Place } from '../stage/moment.ts';
import { happened } from '../stage/sentence.ts';
import { Stage } from '../stage/stage.ts';
import { nav } from '../nav.ts';
import { PagesBelow } from './pages.ts';
import { Run, breather, same, type Choice } from './run.ts';
import { TimeLine } from './timeline.ts';
import { drawTwin } from './twin.ts';
import { runUntil, untilOf, type Condition } from './until.ts';
import { Virtual } from './virtual.ts';
import { waiting } from '../scale/waiters.ts';
import type { Step, View } from '../views.ts';

const TABS = 8; // caches to choose from
const NO_MAP = new Uint8Array();
const CALM = 500; // ms between two pictures, where somebody wants little motion
/** Milliseconds that an operation stays when it is walked to: on its CPU, and beyond it. */
const STAY = { cpu: 350, slow: 1000 };
/** The demo that opens the page: operations in all, and those before a slow one; operations that are searched for them. */
const DEMO = { all: 16, before: 4, searched: 500 };

/** One design, and where it is. */
interface Side {
  run: Run;
  root: HTMLElement;
  stage: Stage;
  pages: PagesBelow;
  view: View;
  /** The moment on the stage. */
  moment: Moment | null;
}

class Page {
  private sides: Side[] = [];
  private busiest: number[] = [];
  private answers: Answer[] = [];
  private chosen = 0;
  /** Whether somebody chose it. */
  private wanted = false;
  /** Where to go when the run is indexed so far. */
  private wish: number | null = null;
  private life: Life | null = null;
  private playing = false;
  /** Counts what was asked to run: only the last is shown. */
  private turn = 0;
  private search = new AbortController();
  private readonly line: TimeLine;
  private readonly controls: Controls;
  private readonly virtual: Virtual;
  private readonly calm = matchMedia('(prefers-reduced-motion: reduce)');
  private saidAt = 0;
  /** When what the address asks for is shown. */
  indexed = Promise.resolve();

  private constructor(private readonly wasm: WebAssembly.Module, private readonly stream: Uint8Array, { about, engine }: Run) {
    $('title').textContent = `${about.title}: ${noun(about.operations, 'operation')}, ${noun(about.cpus, 'CPU')}, ${noun(about.caches.length, 'cache')}`;
    this.line = new TimeLine($('line'), about.operations, { seek: (n) => this.go(n), changed: () => this.draw() });
    this.controls = new Controls({
      operations: about.operations,
      cpus: about.cpus,
      toggle: () => (this.playing ? this.pause() : this.play()),
      go: (n) => this.go(n),
      by: (n) => this.go(this.at + n),
      nextSlow: () => void this.nextSlow(),
      runUntil: (condition) => void this.runUntil(condition),
      stop: () => this.stop(),
      zoom: (factor) => (factor ? this.line.zoom(factor, this.at) : this.line.zoomTo([0, about.operations])),
      follow: () => this.followTouched(),
      designs: (design, beside, cpus) => void this.compare(design, beside, cpus).catch(problem),
      save: (as) => void this.save(as),
      lecture: () => void this.lecture(),
      copy: (what) => {
        if (what === 'link') this.linkNow();
        void navigator.clipboard.writeText(what === 'link' ? location.href : this.commands.join('\n')).then(
          () => this.copied(`the ${what} is copied`), () => this.copied('the browser does not let this page copy'),
        );
      },
    });
    this.virtual = new Virtual(engine.profiles(), (outcomes) => {
      for (const [i, { stage }] of this.sides.entries()) {
        const at = outcomes[i];
        stage.waits = at ? { depot: waiting('depot', at), slabs: waiting('lists', at), pages: waiting('zone', at) } : null;
        stage.redraw();
      }
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe($('line'));
    $('main').style.setProperty('--top', `${$('main').offsetTop}px`);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
      readColours();
      for (const { stage } of this.sides) stage.redraw();
      this.draw();
    });
    document.addEventListener('fullscreenchange', () => {
      if (!document.fullscreenElement) this.large(false);
    });
    addEventListener('hashchange', ({ newURL }) => void this.open(read(new URL(newURL).hash)).catch(problem));
    $('twin').addEventListener('toggle', () => this.draw());
    // In a narrow window the picture comes first.
    const narrow = matchMedia('(max-width: 700px)'), tools = $<HTMLDetailsElement>('tools');
    const unfold = () => (tools.open = !narrow.matches);
    narrow.addEventListener('change', unfold);
    unfold();
    $('unfollow').onclick = () => this.follow(null);
  }

  /** Shows a first moment, and goes on when the run is indexed. */
  static async start(): Promise<Page> {
    readColours();
    nav('replay.html');
    const [wasm, stream] = await Promise.all([unpacked('engine').then((bytes) => WebAssembly.compile(bytes)), unpacked('stream')]);
    const look = read(location.hash);
    let opened: Page | undefined;
    const told = (run: Run) => opened?.reached(run);
    // A link to a design that there is not shows the shipping one, and says so.
    let wrong: unknown;
    const design = look.design ?? 'uslab';
    const run = await Run.open(wasm, stream, { design, cpus: 0 }, told).catch((error: unknown) => {
      if (design === 'uslab') throw error;
      wrong = error;
      return Run.open(wasm, stream, { design: 'uslab', cpus: 0 }, told);
    });
    const page = opened = new Page(wasm, stream, run);
    page.pick(run);
    page.take([run]);
    page.indexed = page.open({ at: Math.round(run.about.operations * 0.3), ...look, design: run.choice.design }).then(async () => {
      const { signal } = page.search = new AbortController();
      await run.indexed;
      if (wrong) problem(wrong);
      // A seek meanwhile ends the opening.
      if (look.at === undefined && !signal.aborted) void page.demo();
    });
    return page;
  }

  /** The busiest caches, by what is known of the run. On the stage is the one that loses the most objects again: its slabs fill and empty. */
  private pick({ about, samples }: Run): void {
    const last = samples.at(-1)!.values;
    const served = (cache: number) => last[SUMS + 3 * cache + 2]!;
    const lost = (cache: number) => Math.max(...samples.map(({ values }) => values[SUMS + 3 * cache]!)) - last[SUMS + 3 * cache]!;
    this.busiest = about.caches.map((_, cache) => cache).filter(served).sort((a, b) => served(b) - served(a)).slice(0, TABS);
    if (!this.wanted) this.chosen = this.busiest.reduce((best, cache) => (lost(cache) > lost(best) ? cache : best), this.busiest[0] ?? 0);
    this.controls.choose(about.caches[this.chosen]!);
  }

  /** More of the run is indexed. */
  private reached(run: Run): void {
    if (run !== this.first.run) return;
    if (run.reach === run.about.operations) {
      const at = this.wish ?? this.at;
      this.pick(run);
      this.take(this.sides.map(({ run }) => run));
      this.show(at);
    } else if (this.wish !== null && this.wish <= run.reach) this.show(this.wish);
    else this.drawTime();
  }

  get at(): number {
    return this.sides[0]?.view.operation ?? 0;
  }
  get design(): string {
    return this.first.run.choice.design;
  }
  view(side = 0): View | undefined {
    return this.sides[side]?.view;
  }
  /** What the page did so far, for tests: these are counts, and the same everywhere. */
  get counts() {
    return this.sides.map(({ run: { travel }, stage }) => ({
      checkpoints: travel.checkpoints, every: travel.every, kept: travel.kept, memory: travel.memory, reran: travel.reran, objects: stage.drawn,
    }));
  }

  place(slab: number, index: number) {
    return this.first.stage.place(slab, index);
  }

  private get first(): Side {
    return this.sides[0]!;
  }
  private get look(): Look {
    const { run: { about } } = this.first;
    const [from, to] = this.line.range;
    const { design: beside, cpus } = this.sides[1]?.run.choice ?? {};
    return {
      at: this.at, cache: about.caches[this.chosen]!, design: this.design,
      ...(beside && { beside }), ...(cpus && { cpus }),
      ...((from > 0 || to < about.operations) && { range: [from, to] }),
      ...(this.life?.run === this.first.run && { object: { page: this.life.place.page, index: this.life.place.index } }),
    };
  }

  private copied(said: string): void {
    $('copied').textContent = said;
    setTimeout(() => $('copied').replaceChildren(), 3000);
  }

  private get commands(): string[] {
    return commands(this.look, this.sides.map(({ run }) => run.choice));
  }

  /** What a link asks for. */
  private async open({ at, cache, design, beside, cpus, range, object }: Partial<Look>): Promise<void> {
    let wrong: unknown;
    const last = await this.compare(design ?? 'uslab', beside ?? '', cpus ?? 0).catch((error: unknown) => {
      wrong = error;
      return true;
    });
    if (!last) return;
    const chosen = this.first.run.about.caches.indexOf(cache ?? '');
    if (chosen >= 0) [this.chosen, this.wanted] = [chosen, true];
    this.controls.choose(this.first.run.about.caches[this.chosen]!);
    this.go(at ?? this.at);
    this.line.zoomTo(range ?? [0, this.first.run.about.operations]);
    this.follow(object ? { cache: this.chosen, ...object } : null);
    if (wrong) problem(wrong);
  }

  // --- designs ---

  /**
   * Runs the stream on a design; and beside it on another one, or on another number of CPUs, unless that is '' and 0. What runs already is kept.
   * False, and nothing is changed, if something else was asked for meanwhile.
   */
  async compare(design: string, beside: string, cpus: number): Promise<boolean> {
    const turn = ++this.turn;
    const own = cpus === this.first.run.about.cpus ? 0 : cpus;
    const wanted: Choice[] = [{ design, cpus: 0 }, ...(beside || own ? [{ design: beside || design, cpus: own }] : [])];
    problem('');
    if (wanted.length === this.sides.length && wanted.every((choice, i) => same(choice, this.sides[i]!.run.choice))) {
      this.draw();
      return true;
    }
    this.pause();
    const told = (run: Run) => {
      if (turn === this.turn) progress(run);
    };
    const runs: Run[] = [];
    try {
      for (const own of wanted) {
        const run = this.sides.find(({ run }) => same(run.choice, own) && !runs.includes(run))?.run ?? await Run.open(this.wasm, this.stream, own, told);
        await run.indexed;
        if (turn !== this.turn) return false;
        runs.push(run);
      }
    } catch (error) {
      if (turn !== this.turn) return false;
      this.draw();
      throw error;
    }
    const { at } = this;
    this.follow(null);
    this.take(runs);
    this.go(at);
    return true;
  }

  private take(runs: readonly Run[]): void {
    this.sides = runs.map((run) => {
      const stage = new Stage({ design: run.choice.design, cpus: run.about.cpus, follow: (page, index) => this.follow({ cache: this.chosen, page, index }, run) });
      const pages = new PagesBelow(() => run.view(this.at, run.about.caches.map((_, cache) => cache)));
      pages.root.ariaLabel = `Pages, ${run.name}`;
      const root = made('article', { className: 'side' }, made('h2', { className: 'design' }), stage.root);
      root.setAttribute('aria-label', `Design ${run.name}`);
      return { run, root, stage, pages, view: run.view(0, this.shown), moment: null };
    });
    $('sides').replaceChildren(...this.sides.map(({ root }) => root));
    $('below').replaceChildren(...this.sides.map(({ pages }) => pages.root));
    for (const id of ['sides', 'below']) $(id).classList.toggle('two', runs.length > 1);
    const { run } = this.first;
    if (run.reach === run.about.operations) this.answers = answers(run);
    this.virtual.take(runs);
  }

  // --- the moment ---

  private get shown(): number[] {
    return [this.chosen];
  }

  /**
   * An operation that is not indexed yet is shown when it is; until then, the last one that is. While it plays fast nothing moves on the stage;
   * on a walk what an operation moves is seen even if it is not the next one. Returns the milliseconds that it moves.
   */
  private show(n: number, how: 'seek' | 'fast' | 'walk' = 'seek'): number {
    const to = Math.min(Math.max(n, 0), this.first.run.about.operations), reach = Math.min(...this.sides.map(({ run }) => run.reach)), at = Math.min(to, reach);
    this.wish = to > reach ? to : null;
    let ms = 0;
    for (const side of this.sides) {
      const { run, view, moment, stage } = side, map = NO_MAP, fast = how === 'fast';
      const next = view.operation === at - 1 && moment?.shown?.cache === this.chosen, moves = next || how === 'walk';
      // What an operation moved is seen beside the moment before it.
      const before = next ? moment : fast || !at ? null : momentOf(run.view(at - 1, this.shown), this.chosen, map, moves ? moment ?? undefined : undefined);
      side.view = run.view(at, this.shown);
      side.moment = momentOf(side.view, this.chosen, run.engine.map().slice(), before ?? (fast ? moment ?? undefined : undefined));
      if (!fast && !moves) stage.forget();
      ms = Math.max(ms, stage.show(side.moment, before, moves && !fast));
    }
    this.draw(ms);
    return ms;
  }

  private drawTime(): void {
    this.line.draw(this.sides.map((side) => side.run), this.chosen, this.at);
  }

  /** Numbers change when the movement ends, after so many milliseconds. */
  private draw(moves = 0): void {
    if (!this.sides.length) return;
    const { run, view } = this.first;
    clearTimeout(this.counting);
    if (moves) this.counting = setTimeout(() => this.count(), moves);
    else this.count();
    this.drawTime();
    this.controls.show(this.at, view.time_ns, this.sides.map((side) => side.run.choice), this.commands);
    // While it plays the words change slowly enough to be read.
    const now = performance.now();
    if (!this.playing || !this.controls.speed || now - this.saidAt > 250) {
      this.saidAt = now;
      const waits = this.wish !== null ? [made('p', { className: 'quiet' }, `Operation ${grouped(this.wish)} is shown when the run is indexed so far.`)] : [];
      $('said').replaceChildren(...this.sides.map((side) => this.said(side)), ...waits);
    }
    for (const side of this.sides) {
      const { view: own, stage, pages, moment } = side;
      const place = this.life?.run === side.run && this.life.place.cache === this.chosen ? this.life.place : null;
      stage.mark(place && place.page, place?.index);
      pages.draw(own.pages, moment?.map ?? NO_MAP);
    }
    this.drawAnswers(view);
    if (this.life) this.drawLife(this.life);
    if ($<HTMLDetailsElement>('twin').open) drawTwin($('twin-tables'), run, view, this.chosen);
    this.link();
  }

  private counting = 0;
  private count(): void {
    for (const { root, run: { name }, view: own, stage } of this.sides) {
      const all = own.caches.reduce((sum, cache) => [sum[0]! + cache.full + cache.partial + cache.empty, sum[1]! + cache.in_magazines + cache.in_depot], [0, 0]);
      root.querySelector('.design')!.textContent = `${name}: ${noun(all[0]!, 'slab')}, ${noun(all[1]!, 'cached object')}${stage.waits ? '; waits: mean in virtual time' : ''}`;
    }
    this.drawTabs(this.first.view);
  }

  /** The busiest caches, and the one that is chosen. */
  private drawTabs({ caches, steps }: View): void {
    const { about } = this.first.run, tabs = this.busiest.includes(this.chosen) ? this.busiest : [...this.busiest, this.chosen];
    const acts = steps.at(-1)?.cache, look = JSON.stringify([tabs, this.chosen, acts, tabs.map((cache) => caches[cache]?.used)]);
    const root = $('caches');
    if (root.dataset['look'] === look) return;
    root.dataset['look'] = look;
    const focus = (document.activeElement as HTMLElement | null)?.dataset['cache'];
    root.replaceChildren(...tabs.map((cache) => {
      const counts = caches[cache];
      const tab = made('button', { type: 'button', className: 'tab', onclick: () => this.choose(cache) }, made('b', {}, about.caches[cache]!), made('small', {}, counts ? `${grouped(counts.used)} in use` : 'not used yet'));
      tab.dataset['cache'] = String(cache);
      tab.ariaPressed = String(cache === this.chosen);
      tab.classList.toggle('acts', cache === acts);
      return tab;
    }));
    if (focus) root.querySelector<HTMLElement>(`[data-cache="${focus}"]`)?.focus();
  }

  /** What grew, what holds memory now, what was slow: each leads to its moment. */
  private drawAnswers(view: View): void {
    const own = [...this.answers, ...holds(view)], root = $('answers'), look = JSON.stringify(own);
    if (root.dataset['look'] === look || !own.length) return;
    root.dataset['look'] = look;
    root.replaceChildren(...own.map(({ question, text, cache, at, range }) => made('button', { type: 'button', className: 'answer', onclick: () => {
      if (cache !== undefined) this.choose(cache);
      if (range) this.line.zoomTo(range);
      if (at !== undefined) this.go(at);
    } }, made('b', {}, question), ` ${text}`)));
  }

  private said({ run: { about, name }, view }: Side): HTMLElement {
    const path = view.steps.at(-1)?.path;
    const mark = about.marks.find(({ operation }) => operation === view.operation);
    const chip = made('span', { className: `path ${path ?? 'none'}` }, path ?? (mark ? 'mark' : view.operation ? 'nothing' : 'begin'));
    const elsewhere = path && !view.steps.some(({ cache }) => cache === this.chosen) ? 'Not on this stage: ' : '';
    const text = mark && !path ? `The trace is marked here: “${mark.text}”.`
      : view.operation ? elsewhere + happened(view)
        : 'No operation has run yet: every cache is empty, and no memory is committed. Press play, or step.';
    return made('p', {}, ...(this.sides.length > 1 ? [made('b', {}, `${name} `)] : []), chip, text);
  }

  private async save(as: 'png' | 'svg'): Promise<void> {
    const { stage } = this.first, sentence = $('said').textContent;
    const blob = as === 'svg' ? new Blob([stage.svg(sentence)], { type: 'image/svg+xml' }) : await stage.png(sentence);
    if (blob) downloadBlob(`uslab-replay-${this.at}.${as}`, blob);
  }
  /** Fills the screen, with large type; or no longer. */
  private async lecture(): Promise<void> {
    const first = document.querySelector('.first')!, on = !first.classList.contains('lecture');
    this.large(on);
    if (on) await first.requestFullscreen?.().catch(() => undefined);
    else if (document.fullscreenElement) await document.exitFullscreen();
  }
  private large(on: boolean): void {
    document.querySelector('.first')!.classList.toggle('lecture', on);
    for (const { stage } of this.sides) {
      stage.scale = on && innerWidth >= 1000 ? 1.4 : 1;
      stage.redraw();
    }
  }

  private linking = 0;
  /** The address follows, but not each picture: browsers allow a few changes a second. */
  private link(): void {
    if (this.playing && this.linking) return;
    clearTimeout(this.linking);
    this.linking = setTimeout(() => this.linkNow(), this.playing ? 1000 : 100);
  }
  private linkNow(): void {
    clearTimeout(this.linking);
    this.linking = 0;
    history.replaceState(null, '', written(this.look));
  }

  private choose(cache: number): void {
    [this.chosen, this.wanted] = [cache, true];
    this.controls.choose(this.first.run.about.caches[cache]!);
    if (this.life && this.life.place.cache !== cache) this.follow(null);
    this.show(this.wish ?? this.at);
  }

  // --- moving ---

  go(n: number): void {
    this.pause();
    this.show(n);
  }

  private pause(): void {
    this.search.abort();
    this.wish = null;
    if (this.playing) {
      this.playing = false;
      this.controls.playing(false);
      if (this.controls.speed > 1) this.show(this.at);
    }
  }

  private play(): void {
    if (!this.controls.speed) return void this.walk();
    this.pause();
    if (this.at >= this.first.run.about.operations) this.show(0);
    this.playing = true;
    this.controls.playing(true);
    let last = performance.now(), owed = 0;
    const fast = this.controls.speed > 1;
    const frame = (now: number) => {
      if (!this.playing) return;
      const between = this.calm.matches ? CALM : 0;
      if (now - last >= between) {
        owed += Math.min(now - last, Math.max(100, between)) / 1000 * this.controls.speed;
        last = now;
        const whole = Math.floor(owed);
        owed -= whole;
        if (whole) this.show(this.at + whole, fast ? 'fast' : 'seek');
        if (this.at >= this.first.run.about.operations) {
          this.pause();
          return;
        }
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  /** Plays operations on the cache of the stage, one at a time, and passes over those on other caches. */
  private async walk(count = Infinity): Promise<void> {
    this.pause();
    const { signal } = this.search = new AbortController();
    this.playing = true;
    this.controls.playing(true);
    for (let n = 0; n < count; n++) {
      const to = await this.next(({ steps }) => steps.some(({ cache }) => cache === this.chosen), signal);
      if (to === null) break;
      const ms = this.show(to, 'walk'), path = this.first.view.steps.at(-1)?.path;
      await new Promise((then) => setTimeout(then, ms + (path === 'cpu' ? STAY.cpu + (ms ? 0 : CALM) : STAY.slow)));
      if (signal.aborted) return;
    }
    if (!signal.aborted) this.pause();
  }

  /** Plays what the page opens with: a few operations on the stage's cache, until the first ones that leave their CPU in the slowest part of the run. */
  private async demo(): Promise<void> {
    const { run } = this.first, { signal } = this.search = new AbortController();
    const from = this.answers.find(({ range }) => range)?.range?.[0] ?? 0;
    const found = await runUntil(run, { until: 'miss', cache: this.chosen }, from, signal, () => undefined);
    const own: number[] = [], end = found?.operation ?? from;
    for (let n = Math.max(end - DEMO.searched, 1); n < end && !signal.aborted; n++) if (run.view(n, []).steps.some(({ cache }) => cache === this.chosen)) own.push(n);
    if (signal.aborted) return;
    this.show((own.at(-DEMO.before) ?? end) - 1);
    await this.walk(DEMO.all);
  }

  /** The next operation after this one that is as wanted; `null` if there is none, or it was stopped. */
  private async next(wanted: (view: View) => boolean, signal: AbortSignal): Promise<number | null> {
    const { run } = this.first, breathe = breather();
    for (let n = this.at + 1; n <= run.about.operations && !signal.aborted; n++) {
      if (n > run.reach) await run.indexed;
      if (wanted(run.view(n, []))) return n;
      await breathe();
    }
    return null;
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
    if (document.querySelector('.first.lecture')) void this.lecture();
    this.pause();
    if (this.life && this.life.searched < this.first.run.about.operations) this.life.stop();
  }

  /** To the next operation that leaves what its CPU holds, of any cache or of pages. */
  private async nextSlow(): Promise<void> {
    problem('');
    const signal = this.begin(), { run } = this.first, slow = ({ path }: Step) => path && path !== 'cpu';
    const n = await this.next(({ steps }) => steps.some(slow), signal);
    if (signal.aborted) return;
    if (n !== null) {
      const { steps, caches } = run.view(n, []), { cache } = steps.find(slow) ?? {};
      // What somebody chose stays chosen.
      if (!this.wanted && cache != null && caches[cache]?.size) this.chosen = cache;
      this.controls.choose(run.about.caches[this.chosen]!);
      this.go(n);
      return;
    }
    this.go(run.about.operations);
    problem('No slow path is left before the end.');
  }

  private async runUntil(condition: Condition): Promise<void> {
    const until = untilOf(condition, this.chosen, this.life?.place ?? null);
    if (!until) {
      problem('No object is followed: click one in a slab, or press f for the one that this operation touched.');
      return;
    }
    problem('');
    const signal = this.begin();
    const run = condition === 'object' && this.life ? this.life.run : this.first.run;
    const found = await runUntil(run, until, this.at, signal, (at) => {
      $('said').replaceChildren(`Searching: operation ${grouped(at)}.`);
    });
    if (signal.aborted) this.draw();
    else if (found) this.go(found.operation);
    else {
      this.go(this.at);
      problem('No later operation meets the condition.');
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
    this.show(this.wish ?? this.at);
    this.follow({ cache: step.cache, page: step.object[0], index: step.object[1] });
  }

  private follow(place: Place | null, run = this.first.run): void {
    this.life?.stop();
    this.life = place && new Life(run, place);
    // Its cache stays chosen.
    if (place) this.wanted = true;
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
    const list = $('life-list');
    list.replaceChildren(...life.list(this.at, (n) => this.go(n)));
    const current = list.querySelector<HTMLElement>('[aria-current]');
    if (current) list.scrollTop = current.offsetTop - list.offsetTop - list.clientHeight / 2;
  }
}

function problem(error: unknown): void {
  $('problem').textContent = error instanceof Error ? error.message : String(error);
}

const progress = ({ name, reach, about: { operations } }: Run) => {
  $('said').replaceChildren(`The engine runs the trace once on ${name}: ${Math.round(reach / operations * 100)} %`);
};

const page = Page.start();
page.then(({ indexed }) => indexed).catch((error: unknown) => problem(`The page does not start: ${error instanceof Error ? error.message : error}`));

/** For tests and consoles. `usable`: it shows a moment; `ready`: all of the run is indexed. `run` puts a design beside the one that is shown; '' takes it away. */
const own = {
  usable: page.then(() => undefined),
  ready: page.then(({ indexed }) => indexed),
  seek: async (n: number) => (await page).go(n),
  view: async (side?: number) => (await page).view(side),
  run: async (design: string, cpus = 0) => (await page).compare((await page).design, design, cpus),
  counts: async () => (await page).counts,
  /** Where an object is drawn on the stage. */
  place: async (slab: number, index: number) => (await page).place(slab, index),
};
Object.assign(window, { uslab: own });
