// A script's run: its moments, told and drawn.

import { grouped, made } from '../draw.ts';
import { Engine, type Wasm } from '../engine.ts';
import { Machine, type Place } from '../machine.ts';
import { ordersTable, pagesTable } from '../twin.ts';
import type { About, Mark, View } from '../views.ts';

export interface Moments {
  about: About;
  /** Before the first operation, and after each: two megabytes for a thousand. */
  views: View[];
}

/** Operations of a script: each moment is kept. */
const MOST = 5000;

/** Runs it once. Throws if it cannot run, or is too long. */
export async function moments(wasm: Wasm, script: string, design: string): Promise<Moments> {
  const engine = await Engine.open(wasm, script, 0, design);
  const { about } = engine;
  if (about.operations > MOST) throw new Error(`The script has ${grouped(about.operations)} operations: expected at most ${grouped(MOST)}.`);
  const caches = about.caches.map((_, cache) => cache);
  const views = Array.from({ length: about.operations + 1 }, (_, n) => JSON.parse(engine.view(n, caches)) as View);
  engine.check();
  return { about, views };
}

/** The mark that was passed last, and what the last operation did. */
export function told(view: View, marks: readonly Mark[]): (Node | string)[] {
  const mark = marks.findLast(({ operation }) => operation <= view.operation);
  const step = view.steps.at(-1);
  return [...(mark ? [made('b', {}, `${mark.text}.`), made('br')] : []),
    ...(step && mark?.operation !== view.operation
      ? [made('span', { className: `path ${step.path ?? 'none'}` }, step.path ?? 'nothing'), view.steps.map(({ sentence }) => sentence).join(' ')] : [])];
}

/** Draws moments: the machine, or the pages in numbers where there is no cache. */
export class Picture {
  readonly root = made('div');
  private readonly machine: Machine | null;
  private last: View | null = null;
  /** An object that has a ring. */
  marked: Place | null = null;

  constructor(about: Pick<About, 'cpus' | 'caches'>, design: string, pick: (place: Place) => void, public chosen = 0) {
    const choose = (cache: number) => {
      this.chosen = cache;
      this.redraw();
    };
    this.machine = about.caches.length ? new Machine(about, design, about.caches.map((_, cache) => cache), choose, pick, 16) : null;
    if (this.machine) this.root.append(this.machine.root);
  }

  draw(view: View): void {
    this.last = view;
    if (this.machine) this.machine.draw(view, this.chosen, this.marked);
    else this.root.replaceChildren(made('section', { className: 'tables', ariaLabel: 'Pages' }, pagesTable(view.pages), ordersTable(view.pages)));
  }
  redraw(): void {
    if (this.last) this.draw(this.last);
  }
}

const KINDS = [['used', 'in use'], ['cached', 'free, held by a CPU'], ['depot', 'free, in the depot'], ['free', 'free in its slab'], ['now', 'what this operation touched']] as const;

/** What the colours of a machine mean. `marked` is what a ring of ink is around. */
export const kinds = (marked?: string): HTMLElement[] => [
  made('ul', {}, ...[...KINDS, ...(marked ? [['followed', marked] as const] : [])].map(([kind, means]) => made('li', {}, made('i', { className: kind }), ` ${means}`))),
  made('p', { className: 'quiet' }, 'A slab is full when no object is free in the slab itself: CPUs and the depot may hold some of its objects. In some designs a CPU has slabs to itself; what is free in them it holds.'),
];

/** What a script's run is read by; without a cache no colours are in it. */
export const legend = (cached: boolean): HTMLElement => made('section', { className: 'legend', ariaLabel: 'Legend' }, made('h2', {}, 'Legend'), ...(cached ? kinds() : []),
  made('p', { className: 'quiet' }, 'The tag before a sentence is the most expensive thing that the operation did: cpu (no lock), depot, slab, pages, or commit: the system gives memory to addresses, or takes it back.'));
