// Steps from 0 to a last one, with buttons, keys and a slider, and by itself.

import { made } from '../draw.ts';

const EACH = 900; // ms a step
const ICONS = {
  first: 'M3 3h2v10H3zM13 3v10L6 8z', back: 'M10 3v10L4 8zM11 3h2v10h-2z', play: 'M4 2l10 6-10 6z', pause: 'M3 2h4v12H3zM9 2h4v12H9z',
  next: 'M6 3v10l6-5zM3 3h2v10H3z', last: 'M11 3h2v10h-2zM3 3v10l7-5z',
};

let ids = 0;

export class Stepper {
  readonly root: HTMLElement;
  at = 0;
  private timer = 0;
  private readonly slider: HTMLInputElement;
  private readonly toggle: HTMLButtonElement;
  private readonly of: HTMLElement;

  /** `what` is stepped through; `went` hears where it is. The slider has a mark at `tick`. */
  constructor(what: string, private last: number, private readonly went: (at: number) => void, private readonly each = EACH,
    private readonly place = (at: number, last: number) => `${at} of ${last}`, tick: number | null = null) {
    const button = (icon: keyof typeof ICONS, label: string, act: () => void) => {
      const own = made('button', { type: 'button', ariaLabel: label, title: label, onclick: act });
      own.innerHTML = `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${ICONS[icon]}"/></svg>`;
      return own;
    };
    this.toggle = button('play', 'Play (space)', () => this.play());
    this.toggle.classList.add('main');
    this.slider = made('input', { type: 'range', min: '0', ariaLabel: what, oninput: () => this.go(Number(this.slider.value)) });
    const ticks = made('datalist', { id: `ticks-${ids++}` }, ...(tick === null ? [] : [new Option('', String(tick))]));
    this.slider.setAttribute('list', ticks.id);
    this.of = made('span', { className: 'quiet of' });
    this.root = made('div', { className: 'bar stepper' }, made('div', { className: 'buttons' },
      button('first', 'To the beginning (Home)', () => this.go(0)), button('back', 'One step back (left arrow)', () => this.go(this.at - 1)), this.toggle,
      button('next', 'One step forward (right arrow)', () => this.go(this.at + 1)), button('last', 'To the end (End)', () => this.go(this.last))),
    this.slider, ticks, this.of);
    this.show();
  }

  /** There are so many steps now; it is at that one. */
  set(last: number, at: number): void {
    this.last = last;
    this.go(at);
  }
  go(at: number): void {
    this.stop();
    this.to(at);
  }
  key(key: string): boolean {
    const to = { Home: 0, ArrowLeft: this.at - 1, ArrowRight: this.at + 1, End: this.last }[key];
    if (key === ' ') this.play();
    else if (to === undefined) return false;
    else this.go(to);
    return true;
  }
  stop(): void {
    clearInterval(this.timer);
    this.timer = 0;
    this.show();
  }

  private to(at: number): void {
    this.at = Math.min(Math.max(at, 0), this.last);
    this.show();
    this.went(this.at);
  }
  private play(): void {
    if (this.timer) {
      this.stop();
      return;
    }
    if (this.at >= this.last) this.to(0);
    this.timer = setInterval(() => {
      this.to(this.at + 1);
      if (this.at >= this.last) this.stop();
    }, this.each);
    this.show();
  }
  private show(): void {
    const playing = this.timer !== 0;
    this.toggle.ariaLabel = this.toggle.title = playing ? 'Pause (space)' : 'Play (space)';
    this.toggle.querySelector('path')!.setAttribute('d', playing ? ICONS.pause : ICONS.play);
    this.slider.max = String(this.last);
    this.slider.value = String(this.at);
    this.of.textContent = this.place(this.at, this.last);
    this.slider.setAttribute('aria-valuetext', this.of.textContent);
  }
}
