// Several designs under the same stream, each on a stage, at the same point in virtual time.

import { grouped, made } from '../draw.ts';
import { Stage } from '../stage/stage.ts';
import type { Costs, Reel } from './film.ts';

/** How much faster than on a stage of one operation things move. */
const FASTER = 4;

/** Numbers of a design: what is counted, and words for which a narrow screen has no room. */
const COUNTED: readonly (readonly [key: keyof Costs, before: string, name: string, after: string])[] = [
  ['operations', 'operations ', 'done', ''], ['locks', '', 'locks', ' taken'], ['lines', 'cache ', 'lines', ''], ['pages', '', 'pages', ''],
];

interface Side {
  reel: Reel;
  stage: Stage;
  bar: HTMLElement;
  numbers: readonly (readonly [key: keyof Costs, name: string, number: HTMLElement, label: HTMLElement])[];
}

export class Sides {
  readonly root = made('div', { className: 'sides' });
  private readonly sides: readonly Side[];
  private before = -1;

  /** `head` makes what is above a stage: by default, the design's name. */
  constructor(readonly reels: readonly Reel[], head: (reel: Reel, n: number) => HTMLElement) {
    this.sides = reels.map((reel, n): Side => {
      const { design, film: { outcome: { cpus } } } = reel, stage = new Stage({ design, cpus, bare: true }), bar = made('i');
      stage.reserve(reel.frames.map(({ moment }) => moment));
      const numbers = COUNTED.map(([key, , name]) => [key, name, made('b'), made('span')] as const);
      const counts = made('div', { className: 'counts' }, ...numbers.map(([, , number, label], i) => made('span', {}, number, ' ', made('small', {}, made('span', { className: 'more' }, COUNTED[i]![1]), label, made('span', { className: 'more' }, COUNTED[i]![3])))));
      const root = made('article', { className: 'side' }, head(reel, n), made('div', { className: 'progress' }, bar), counts, stage.root);
      root.setAttribute('aria-label', design);
      this.root.append(root);
      return { reel, stage, bar, numbers };
    });
    this.speed = 1;
  }

  set speed(times: number) {
    for (const { stage } of this.sides) stage.speed = FASTER * times;
  }
  set scale(scale: number) {
    for (const { stage } of this.sides) stage.scale = scale;
    this.redraw();
  }
  get stages(): readonly Stage[] {
    return this.sides.map(({ stage }) => stage);
  }
  /** The number of the last frame of all of them. */
  get last(): number {
    return Math.max(...this.reels.map(({ last }) => last));
  }

  /** Shows a frame and its numbers; returns the milliseconds that it moves. */
  show(at: number, moves: boolean): number {
    const next = at === this.before + 1, ms = this.sides.map(({ reel, stage }) => {
      const { moment, crew } = reel.at(at);
      stage.crew = crew;
      const changes = at <= reel.last && moment.view.steps.length > 0;
      return stage.show(moment, next && changes ? reel.at(at - 1).moment : null, moves && next);
    });
    this.before = at;
    this.count(at);
    return Math.max(...ms);
  }
  redraw(): void {
    for (const stage of this.stages) stage.redraw();
  }

  private count(at: number): void {
    for (const { reel, bar, numbers } of this.sides) {
      const { costs } = reel.at(at);
      bar.style.width = `${100 * costs.operations / reel.film.outcome.operations}%`;
      for (const [key, name, number, label] of numbers) [number.textContent, label.textContent] = [grouped(costs[key]), costs[key] === 1 ? name.replace(/s$/, '') : name];
    }
  }
}
