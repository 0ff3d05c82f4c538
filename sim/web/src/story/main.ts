// The page of a story: one step at a time, forward and back.

import '../page.css';
import './story.css';
import { $, made, noun } from '../draw.ts';
import { colour, row, sentence, state, table, time, who } from './draw.ts';
import { nav } from '../nav.ts';
import { Model, type Filter } from './model.ts';
import type { Story } from './story.ts';

const SPEEDS = [0.5, 1, 2, 5, 20]; // steps a second: those that need ten seconds and more, and the first three
const WIDE = 240; // pixels that an actor needs for a column of its own

class Page {
  private readonly model = new Model(JSON.parse($('story').textContent) as Story);
  private readonly rows: HTMLElement[];
  private at = 1;
  private filter: Filter = 'all';
  private timer = 0;
  private linking = 0;

  constructor() {
    const { model } = this;
    const { title, steps, about } = model.story;
    $('title').textContent = `${title}; ${noun(steps.length, 'step')} of ${noun(model.actors.length, 'thread')}`;
    $('of').textContent = `of ${steps.length}`;
    $('about-legend').hidden = about == null;
    this.rows = Array.from({ length: model.last }, (_, i) => row(model, i + 1, (n) => this.go(n)));
    $('steps').append(...this.rows);
    $('actors').append(made('span'), ...model.actors.map((own, i) => {
      const name = made('b', {}, made('i'), made('span', {}, 'thread '), own, made('small', {}, model.roles(own).join(', ')));
      name.style.setProperty('--actor', colour(i));
      return name;
    }));
    $('steps').classList.toggle('moving', model.actors.some((own) => model.roles(own).length > 1));
    $('main').style.setProperty('--actors', String(Math.max(1, model.actors.length)));
    $<HTMLSelectElement>('speed').append(...SPEEDS.filter((n, i) => i < 3 || 10 * n <= steps.length).map((n) => new Option(`${n} a second`, String(n), n === 1, n === 1)));
    $<HTMLSelectElement>('filter').append(...model.filters.map(([value, said]) => new Option(said, value)));
    nav('story.html');
    this.keys();
    new ResizeObserver(() => this.layout()).observe($('steps'));
    $('twin').addEventListener('toggle', () => {
      if (!$('twin-table').firstChild) $('twin-table').append(table(model));
    });
    addEventListener('hashchange', () => this.open());
    this.open();
    this.layout();
  }

  private keys(): void {
    const keys: Record<string, () => void> = {
      ' ': () => this.toggle(),
      ArrowRight: () => this.by(1),
      ArrowDown: () => this.by(1),
      ArrowLeft: () => this.by(-1),
      ArrowUp: () => this.by(-1),
      Home: () => this.go(this.next(0, 1)),
      End: () => this.go(this.next(this.model.last, -1)),
      f: () => this.go(this.model.last),
      l: () => this.copy(),
      c: () => void (this.command && navigator.clipboard.writeText(this.command).catch(problem)),
    };
    for (const button of document.querySelectorAll<HTMLButtonElement>('button[data-key]')) button.onclick = () => keys[button.dataset['key']!]!();
    addEventListener('keydown', (event) => {
      const { tagName } = event.target as HTMLElement;
      const typing = ['INPUT', 'SELECT'].includes(tagName) || event.ctrlKey || event.metaKey || event.altKey;
      const key = keys[event.key];
      if (!key || typing || (event.key === ' ' && ['BUTTON', 'SUMMARY'].includes(tagName))) return;
      event.preventDefault();
      key();
    });
    const input = $<HTMLInputElement>('step');
    input.onchange = () => {
      const n = Number(input.value.replace(/\D/g, ''));
      input.blur();
      this.go(n);
    };
    const filter = $<HTMLSelectElement>('filter');
    filter.onchange = () => this.show(filter.value as Filter, this.at);
  }

  /** What a link asks for; without one it is the failure. */
  private open(): void {
    const asked = new URLSearchParams(location.hash.slice(1));
    const filter = this.model.filters.find(([value]) => value === asked.get('show'))?.[0] ?? 'all';
    $<HTMLSelectElement>('filter').value = filter;
    this.show(filter, Number(asked.get('step') || this.model.last));
  }

  /** Shows these steps only, and one of them, near `n`. */
  private show(filter: Filter, n: number): void {
    this.filter = filter;
    let shown = 0;
    this.rows.forEach((own, i) => {
      own.hidden = !this.model.shows(i + 1, filter);
      shown += Number(!own.hidden && i + 1 < this.model.last);
    });
    const { length } = this.model.story.steps;
    $('count').textContent = shown === length ? '' : `${shown} of ${length}`;
    n = this.clamped(n);
    this.go(this.rows[n - 1]!.hidden ? this.next(n, -1) || this.next(n, 1) : n);
  }

  private clamped(n: number): number {
    return Math.min(Math.max(Number.isFinite(n) ? Math.round(n) : 1, 1), this.model.last);
  }
  /** The next step from `n` on that is shown, in that direction; 0 if there is none. */
  private next(n: number, by: 1 | -1): number {
    for (let at = n + by; at >= 1 && at <= this.model.last; at += by) if (!this.rows[at - 1]!.hidden) return at;
    return 0;
  }
  private by(by: 1 | -1): void {
    this.go(this.next(this.at, by) || this.at);
  }

  go(n: number, playing = false): void {
    if (!playing) this.pause();
    this.at = this.clamped(n || this.at);
    this.draw();
  }

  private toggle(): void {
    if (this.timer) this.pause();
    else {
      if (this.at === this.model.last) this.go(this.next(0, 1));
      this.playing(true);
      this.tick();
    }
  }
  private tick(): void {
    this.timer = setTimeout(() => {
      const next = this.next(this.at, 1);
      if (next) this.go(next, true);
      if (next && next < this.model.last) this.tick();
      else this.pause();
    }, 1000 / Number($<HTMLSelectElement>('speed').value));
  }
  private pause(): void {
    clearTimeout(this.timer);
    this.timer = 0;
    this.playing(false);
  }
  private playing(playing: boolean): void {
    $('playing').setAttribute('d', playing ? 'M3 2h4v12H3zM9 2h4v12H9z' : 'M4 2l10 6-10 6z');
    $('play').setAttribute('aria-label', playing ? 'Pause' : 'Play');
    $('said').setAttribute('aria-live', playing ? 'off' : 'polite');
  }

  private layout(): void {
    $('steps-scroll').classList.toggle('columns', $('steps').clientWidth >= WIDE * this.model.actors.length);
    this.scroll();
  }

  /** The list moves, the page does not. */
  private scroll(): void {
    const [list, own] = [$('steps-scroll'), this.rows[this.at - 1]!];
    const [top, head] = [own.offsetTop, $('actors').offsetHeight];
    const below = top + own.offsetHeight > list.scrollTop + list.clientHeight;
    if (below || top - head < list.scrollTop) list.scrollTop = Math.max(top + own.offsetHeight - list.clientHeight, top - list.clientHeight / 3);
  }

  private draw(): void {
    const { model, at } = this;
    const step = model.step(at);
    for (const old of document.querySelectorAll<HTMLElement>('.step[aria-current]')) {
      old.removeAttribute('aria-current');
      old.tabIndex = -1;
    }
    const button = this.rows[at - 1]!.querySelector('button')!;
    button.setAttribute('aria-current', 'step');
    button.tabIndex = 0;
    this.scroll();
    $('said').replaceChildren(step
      ? made('p', {}, made('b', {}, `${model.isAbout(at) ? '★ ' : ''}${who(step)} `), ...sentence(step.did), made('span', { className: 'quiet' }, ` ${time(step)}`))
      : made('p', { className: 'failed' }, made('b', {}, '✗ this check failed: '), `“${model.story.end}”`));
    const input = $<HTMLInputElement>('step');
    if (document.activeElement !== input) input.value = step ? String(at) : 'failure';
    $('command').textContent = this.command;
    $('in-terminal').hidden = !this.command;
    $('state-head').textContent = step ? `After step ${at}` : 'At the failure';
    $('state').replaceChildren(...state(model, at, (n) => this.go(n)));
    // The address follows, but not each step: browsers allow a few changes a second.
    clearTimeout(this.linking);
    this.linking = setTimeout(() => this.link(), 100);
  }

  private link(): void {
    const { at, filter } = this;
    history.replaceState(null, '', `#${new URLSearchParams({ step: String(at), ...(filter !== 'all' && { show: filter }) })}`);
  }
  /** Which prints this step; what made the page knows of which file it is. */
  private get command(): string {
    const made = document.body.dataset['command'];
    return made ? `${made}${this.model.step(this.at) ? ` --step ${this.at}` : ''}` : '';
  }
  private copy(): void {
    this.link();
    void navigator.clipboard.writeText(location.href).catch(problem);
  }

  view() {
    const { at, filter, model } = this;
    const shown = this.rows.flatMap((own, i) => (own.hidden ? [] : [i + 1]));
    return { step: at, last: model.last, filter, shown, playing: this.timer !== 0, state: model.after(at).map((known) => ({ ...known, changed: known.step === at })) };
  }
}

function problem(error: unknown): void {
  $('problem').textContent = error instanceof Error ? error.message : String(error);
}

const ready = Promise.resolve().then(() => new Page());
ready.catch((error: unknown) => problem(`The page does not start: ${error instanceof Error ? error.message : error}`));

/** For tests and consoles. */
const own = {
  ready: ready.then(() => undefined),
  step: async (n: number) => (await ready).go(n),
  view: async () => (await ready).view(),
};
Object.assign(window, { uslab: own });
