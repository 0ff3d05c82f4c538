// A machine of few CPUs under a script: the stage, the sentence below it, and what moves it on. Each CPU can be told to allocate or free.

import { made } from '../draw.ts';
import type { Mark, View } from '../views.ts';
import { recorded, told, Picture, type Recording } from './moments.ts';
import { downloadBlob } from './save.ts';
import { Stepper } from './stepper.ts';

/** Milliseconds that a moment stays: by the level where it was served, and with a new heading. */
const STAY = { cpu: 60, slow: 700, heading: 900 }, STILL = 700;
const SPEEDS = [0.5, 1, 2, 4, 8];

export interface Options {
  /** For the names of files. */
  name: string;
  /** The mark that the slider begins at: what is before it was done to warm up. */
  begins?: string | undefined;
  /** How long a moment of a level above the CPU stays. */
  pause?: number;
  /** Hears that another moment is shown, or another script. */
  changed(): void;
}

export class Player {
  readonly root: HTMLElement;
  readonly stepper: Stepper;
  readonly bar: HTMLElement;
  readonly problem = made('p', { className: 'problem', role: 'alert' });
  private readonly said = made('p', { className: 'said' });
  private readonly place = made('div', { className: 'place' });
  private readonly speed = made('select', { ariaLabel: 'Speed' }, ...SPEEDS.map((n) => new Option(`${n} ×`, String(n), n === 1, n === 1)));
  private recording: Recording | null = null;
  private picture: Picture | null = null;
  private script: readonly string[] = [];
  private moves = 0;
  private readonly copied = made('span', { className: 'quiet', role: 'status' });
  private readonly left = () => {
    if (!document.fullscreenElement) this.large(false);
  };

  constructor(private readonly wasm: WebAssembly.Module, private readonly options: Options) {
    this.said.ariaLive = 'polite';
    this.stepper = new Stepper('Operations', 0, (at, on) => this.show(at, on), () => this.stay());
    this.stepper.skips = (at) => this.marks.some(({ operation }) => operation === at);
    this.speed.onchange = () => {
      if (this.picture?.stage) this.picture.stage.speed = Number(this.speed.value);
    };
    const button = (text: string, title: string, act: () => void) => made('button', { type: 'button', title, onclick: act }, text);
    const full = button('', 'Full screen, with large type: for a lecture (p)', () => void this.lecture());
    full.ariaLabel = 'Full screen';
    full.innerHTML = '<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M2 2h5v2H4v3H2zM9 2h5v5h-2V4H9zM2 9h2v3h3v2H2zM12 9h2v5H9v-2h3z"/></svg>';
    this.bar = made('div', { className: 'bar hold' }, this.stepper.root, made('label', { className: 'speed' }, 'speed ', this.speed),
      made('details', { className: 'menu' }, made('summary', {}, 'share'), made('div', {},
        button('copy link', 'The link keeps the moment, the design and the script (l)', () => this.copy()), button('save PNG', 'The stage as an image', () => void this.save('png')),
        button('save SVG', 'The stage as a drawing', () => void this.save('svg')),
        button('save animated PNG', 'What the last operation moved', () => void this.save('apng')), this.copied)),
      full);
    document.addEventListener('fullscreenchange', this.left);
    this.root = made('div', { className: 'player' }, this.place, this.said, this.problem, this.bar);
  }

  get lines(): readonly string[] {
    return this.script;
  }
  get design(): string {
    return this.recording?.design ?? '';
  }
  get at(): number {
    return this.stepper.at;
  }
  get views(): readonly View[] {
    return this.recording?.views ?? [];
  }
  get marks(): readonly Mark[] {
    return this.recording?.about.marks ?? [];
  }
  get stage() {
    return this.picture?.stage ?? null;
  }
  /** What is said below the stage. */
  get sentence(): string {
    return this.said.innerText.replace(/\n/g, ' ');
  }

  /** Runs a script, and keeps each moment. Throws, and changes nothing, if it cannot run. */
  async run(script: readonly string[], design: string): Promise<void> {
    const recording = await recorded(this.wasm, script.join('\n'), design);
    [this.recording, this.script] = [recording, [...script]];
    this.picture = new Picture(recording, { alloc: (cpu) => void this.add(`${cpu} alloc`), free: (cpu) => void this.free(cpu), pick: (page, index) => void this.pick(page, index) });
    this.speed.dispatchEvent(new Event('change'));
    this.large(this.root.classList.contains('lecture'));
    this.place.replaceChildren(this.picture.root);
    this.problem.textContent = '';
  }
  /** The operation that the slider begins at. */
  get begin(): number {
    const { begins } = this.options;
    return this.marks.find(({ text }) => begins !== undefined && text.startsWith(begins))?.operation ?? 0;
  }
  /** Goes to a moment of a script that ran just now. */
  go(at: number): void {
    this.stepper.set(this.views.length - 1, at, this.begin);
  }
  /** Shows the moment of a link; without one, plays from the beginning. */
  open(at: string | null): void {
    this.go(Number(at ?? this.begin) || 0);
    if (at === null) this.stepper.play();
  }
  attempt(act: () => Promise<void>): Promise<void> {
    return act().catch((error: unknown) => {
      this.problem.textContent = error instanceof Error ? error.message : String(error);
      this.options.changed();
    });
  }
  /** The lines up to this moment, and one more. */
  add(line: string): Promise<void> {
    const { recording } = this;
    this.stepper.stop();
    return this.attempt(async () => {
      if (!recording) return;
      const at = this.at, focus = document.activeElement?.getAttribute('aria-label');
      await this.run([...upTo(this.script, at), line], recording.design);
      // The stage is a new one: it shows where it was, and goes on from there.
      this.picture?.show(at);
      this.go(this.views.length - 1);
      if (focus && document.activeElement === document.body) this.root.querySelector<HTMLElement>(`[aria-label="${CSS.escape(focus)}"]`)?.focus();
    });
  }

  key(key: string, code: string, shift: boolean): boolean {
    const cpu = /^(?:Digit|Numpad)(\d)$/.exec(code)?.[1], stage = this.stage;
    if (cpu !== undefined && stage && Number(cpu) < (this.recording?.about.cpus ?? 0)) {
      if (shift) void this.free(Number(cpu));
      else void this.add(`${cpu} alloc`);
      return true;
    }
    if (key === 'p') void this.lecture();
    else if (key === 'l') this.copy();
    else if (key === 'Escape' && this.root.classList.contains('lecture')) void this.lecture();
    else return this.stepper.key(key);
    return true;
  }
  leave(): void {
    this.stepper.stop();
    document.removeEventListener('fullscreenchange', this.left);
  }
  redraw(): void {
    this.stage?.redraw();
  }

  /** Objects in use, by their number in the script: its place, and the CPU that allocated it. */
  private live(): { number: number; page: number; index: number; cpu: number }[] {
    const live: { number: number; page: number; index: number; cpu: number }[] = [];
    let number = -1;
    for (const { steps } of this.views.slice(0, this.at + 1)) {
      for (const { what, object, cpu } of steps) {
        if (what === 'alloc') number++;
        if (!object) continue;
        const [page, index] = object, at = live.findIndex((own) => own.page === page && own.index === index);
        if (at >= 0) live.splice(at, 1);
        if (what === 'alloc') live.push({ number, page, index, cpu });
      }
    }
    return live;
  }
  /** Frees on a CPU the object that it allocated last, or else one of another CPU. */
  private async free(cpu: number): Promise<void> {
    const live = this.live(), own = live.findLast((one) => one.cpu === cpu) ?? live.at(-1);
    if (own) await this.add(`${cpu} free @${own.number}`);
    else this.problem.textContent = 'No object is in use: allocate one first.';
  }
  private async pick(page: number, index: number): Promise<void> {
    const own = this.live().find((one) => one.page === page && one.index === index);
    if (own) await this.add(`${own.cpu} free @${own.number}`);
  }

  private copy(): void {
    navigator.clipboard.writeText(location.href).then(() => (this.copied.textContent = 'copied'), () => (this.copied.textContent = 'this browser does not let a page copy'));
  }
  private async save(as: 'png' | 'svg' | 'apng'): Promise<void> {
    const { stage, sentence } = this, file = `uslab-${this.options.name}-${this.at}.${as === 'apng' ? 'animated.png' : as}`;
    if (!stage) return;
    const blob = as === 'svg' ? new Blob([stage.svg(sentence)], { type: 'image/svg+xml' }) : as === 'png' ? await stage.png(sentence) : await stage.film(sentence);
    if (blob) downloadBlob(file, blob);
  }
  /** Fills the screen, with large type; or no longer. */
  private async lecture(): Promise<void> {
    const on = !this.root.classList.contains('lecture');
    this.large(on);
    if (on) await this.root.requestFullscreen?.().catch(() => undefined);
    else if (document.fullscreenElement) await document.exitFullscreen();
  }
  private large(on: boolean): void {
    this.root.classList.toggle('lecture', on);
    if (!this.stage) return;
    this.stage.scale = on && innerWidth >= 1000 ? 1.45 : 1;
    this.stage.redraw();
  }

  private show(at: number, on: boolean): void {
    const view = this.views[at];
    if (!view || !this.picture) return;
    this.moves = this.picture.show(at, on);
    this.root.classList.toggle('turn', at === this.views.length - 1);
    this.said.replaceChildren(...(at ? told(view, this.marks, this.views.length - 1) : ['Nothing has happened yet. Press play, or allocate on any CPU.']));
    this.options.changed();
  }
  /** How long the moment that is shown stays. */
  private stay(): number {
    const view = this.views[this.at], path = view?.steps.at(-1)?.path, heading = this.marks.some(({ operation }) => operation + 1 === view?.operation);
    const stay = path && path !== 'cpu' ? this.options.pause ?? STAY.slow : heading ? STAY.heading : STAY.cpu;
    return (this.moves || STILL / Number(this.speed.value)) + stay / Math.min(Number(this.speed.value), 2);
  }
}

/** The lines of a script that begin before an operation; the one that it is in the midst of is cut there. */
export function upTo(script: readonly string[], operation: number): string[] {
  const lines: string[] = [];
  let at = 0;
  for (const line of script) {
    const words = line.trim().split(/\s+/);
    if (['cpus', 'zone', 'cache', ''].includes(words[0]!)) {
      lines.push(line);
      continue;
    }
    if (at >= operation) break;
    const place = words[1] === 'alloc-pages' ? 3 : 2; // of how many
    const counted = /^\d+$/.test(words[place] ?? '');
    const takes = words[0]!.startsWith('#') || words[1] === 'shrink' || !counted ? 1 : Number(words[place]);
    lines.push(takes > operation - at ? [...words.slice(0, place), operation - at, ...words.slice(place + 1)].join(' ') : line);
    at += takes;
  }
  return lines;
}
