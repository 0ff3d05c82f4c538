// Steps from 0 to a last one, with buttons, keys and a slider, and by itself.

import { made } from '../draw.ts';

const EACH = 900; // ms a step
const ICONS = {
  first: 'M3 3h2v10H3zM13 3v10L6 8z', back: 'M10 3v10L4 8zM11 3h2v10h-2z', play: 'M4 2l10 6-10 6z', pause: 'M3 2h4v12H3zM9 2h4v12H9z',
  next: 'M6 3v10l6-5zM3 3h2v10H3z', last: 'M11 3h2v10h-2zM3 3v10l7-5z',
};

/** What plays while it stays at a step. */
export interface Inside {
  readonly plays: boolean;
  stop(): void;
  /** Goes on with what is left; `false`: there is nothing left. */
  resume(): boolean;
}

let ids = 0;

export class Stepper {
  readonly root: HTMLElement;
  at = 0;
  /** Steps at which nothing is to be seen: a step forward or back passes them. */
  skips: (at: number) => boolean = () => false;
  inside: Inside | null = null;
  private first = 0;
  private timer = 0;
  private readonly slider: HTMLInputElement;
  private readonly toggle: HTMLButtonElement;
  private readonly of: HTMLElement;

  /** `what` is stepped through. `went` hears where it is, and whether it came from the step before; `each` is how long it stays there, in
   * milliseconds. The slider has a mark at `tick`. */
  constructor(what: string, private last: number, private readonly went: (at: number, on: boolean) => void, private readonly each: () => number = () => EACH,
    private readonly place = (at: number, last: number) => `${at} of ${last}`, tick: number | null = null) {
    const button = (icon: keyof typeof ICONS, label: string, act: () => void) => {
      const own = made('button', { type: 'button', ariaLabel: label, title: label, onclick: act });
      own.innerHTML = `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${ICONS[icon]}"/></svg>`;
      return own;
    };
    this.toggle = button('play', 'Play (space)', () => this.turn());
    this.toggle.classList.add('main');
    this.slider = made('input', { type: 'range', min: '0', ariaLabel: what, oninput: () => this.go(Number(this.slider.value)) });
    const ticks = made('datalist', { id: `ticks-${ids++}` }, ...(tick === null ? [] : [new Option('', String(tick))]));
    this.slider.setAttribute('list', ticks.id);
    this.of = made('span', { className: 'quiet of' });
    this.root = made('div', { className: 'bar stepper' }, made('div', { className: 'buttons' },
      button('first', 'To the beginning (Home)', () => this.go(this.begin)), button('back', 'One step back (left arrow)', () => this.go(this.at - 1)), this.toggle,
      button('next', 'One step forward (right arrow)', () => this.go(this.at + 1)), button('last', 'To the end (End)', () => this.go(this.last))),
    this.slider, ticks, this.of);
    this.draw();
  }

  /** There are `last` steps now; it is at `at`. Steps before `first` are not on the slider. */
  set(last: number, at: number, first = 0): void {
    [this.last, this.first] = [last, first];
    this.go(at);
  }
  private get begin(): number {
    return this.at > this.first ? this.first : 0;
  }
  go(at: number): void {
    this.stop();
    this.to(at);
  }
  key(key: string): boolean {
    const to = { Home: this.begin, ArrowLeft: this.at - 1, ArrowRight: this.at + 1, End: this.last }[key];
    if (key === ' ') this.turn();
    else if (to === undefined) return false;
    else this.go(to);
    return true;
  }
  get playing(): boolean {
    return this.timer !== 0;
  }
  stop(): void {
    clearTimeout(this.timer);
    this.timer = 0;
    this.inside?.stop();
    this.draw();
  }
  play(): void {
    if (!this.inside?.resume() && this.at >= this.last) this.to(this.first);
    if (this.at < this.last) this.wait();
    this.draw();
  }

  private turn(): void {
    if (this.timer || this.inside?.plays) this.stop();
    else this.play();
  }
  private wait(): void {
    this.timer = setTimeout(() => {
      this.to(this.at + 1);
      if (this.at < this.last) this.wait();
      else this.timer = 0;
      this.draw();
    }, this.each());
  }
  private to(at: number): void {
    const before = this.at, by = at - before;
    this.at = Math.min(Math.max(at, 0), this.last);
    while (Math.abs(by) === 1 && this.at > this.first && this.at < this.last && this.skips(this.at)) this.at += by;
    this.draw();
    this.went(this.at, by === 1 && this.at > before);
  }
  /** Draws the buttons: `inside` began to play, or ended. */
  draw(): void {
    const playing = this.timer !== 0 || this.inside?.plays === true;
    this.toggle.ariaLabel = this.toggle.title = playing ? 'Pause (space)' : 'Play (space)';
    this.toggle.querySelector('path')!.setAttribute('d', playing ? ICONS.pause : ICONS.play);
    this.slider.min = String(Math.min(this.first, this.at));
    this.slider.max = String(this.last);
    this.slider.value = String(this.at);
    const before = Math.min(this.first, this.at);
    this.of.textContent = this.place(this.at - before, this.last - before);
    this.slider.setAttribute('aria-valuetext', this.of.textContent);
  }
}
