// A script's run: its moments, told and shown on a stage.

import { grouped, made } from '../draw.ts';
import { Engine, type Wasm } from '../engine.ts';
import { momentOf, type Moment } from '../stage/moment.ts';
import { happened } from '../stage/sentence.ts';
import { Stage, type Hands } from '../stage/stage.ts';
import { ordersTable, pagesTable } from '../twin.ts';
import type { About, Mark, View } from '../views.ts';

export interface Recording {
  about: Pick<About, 'cpus' | 'caches' | 'marks'>;
  design: string;
  /** Before the first operation, and after each: two megabytes for a thousand. */
  views: View[];
  /** What each page was: see `Engine.map`. A failure's moments come without. */
  maps: Uint8Array[];
}

/** Operations of a script: each moment is kept. */
const MOST = 5000;
const NO_MAP = new Uint8Array();

/** Runs it once. Throws if it cannot run, or is too long. */
export async function recorded(wasm: Wasm, script: string, design: string): Promise<Recording> {
  const engine = await Engine.open(wasm, script, 0, design);
  const { about } = engine;
  if (about.operations > MOST) throw new Error(`The script has ${grouped(about.operations)} operations: expected at most ${grouped(MOST)}.`);
  const caches = about.caches.map((_, cache) => cache), views: View[] = [], maps: Uint8Array[] = [];
  for (let n = 0; n <= about.operations; n++) {
    views.push(JSON.parse(engine.view(n, caches)) as View);
    const map = engine.map(), last = maps.at(-1);
    maps.push(last?.length === map.length && last.every((is, page) => is === map[page]) ? last : map.slice());
  }
  engine.check();
  return { about, design, views, maps };
}

/** The mark that was passed last, and what the last operation did. A mark is about what follows it: it is shown with that, or at the end. */
export function told(view: View, marks: readonly Mark[], last: number, sentence = happened(view)): (Node | string)[] {
  const own = marks.find(({ operation }) => operation === view.operation), step = own ? undefined : view.steps.findLast(({ what }) => what !== 'nothing');
  const mark = view.operation === last && own ? own : marks.findLast(({ operation }) => operation < view.operation) ?? own;
  return [...(mark ? [made('b', {}, /[.!?]$/.test(mark.text) ? mark.text : `${mark.text}.`), made('br')] : []),
    ...(step ? [made('span', { className: `path ${step.path ?? 'none'}` }, step.path ?? 'nothing'), sentence] : [])];
}

/** Shows moments: one cache on a stage, or the pages in numbers where there is no cache. */
export class Picture {
  readonly root = made('div', { className: 'picture' });
  readonly stage: Stage | null = null;
  private readonly tabs = made('div', { className: 'tabs', role: 'group', ariaLabel: 'Cache' });
  private moments: Moment[] = [];
  private at = 0;

  constructor(private readonly recording: Recording, hands?: Hands, public chosen = 0) {
    const { about: { caches, cpus }, design } = recording;
    if (!caches.length) return;
    this.stage = new Stage({ design, cpus, ...(hands && { hands }) });
    this.tabs.append(...caches.map((name, cache) => made('button', { type: 'button', onclick: () => this.choose(cache) }, name)));
    this.root.append(...(caches.length > 1 ? [this.tabs] : []), this.stage.root);
    this.fold();
  }

  /** Shows a moment; returns the milliseconds that it moves. */
  show(at: number, moves = false): number {
    this.at = at;
    const { views } = this.recording, view = views[at]!;
    if (!this.stage) {
      this.root.replaceChildren(made('section', { className: 'tables', ariaLabel: 'Pages' }, pagesTable(view.pages), ordersTable(view.pages)));
      return 0;
    }
    const before = views[at - 1]?.operation === view.operation - 1 ? this.moments[at - 1]! : null;
    return this.stage.show(this.moments[at]!, before, moves);
  }

  /** The moments of the cache that is chosen. */
  private fold(): void {
    const { views, maps } = this.recording;
    this.moments = [];
    for (const [at, view] of views.entries()) this.moments.push(momentOf(view, this.chosen, maps[at] ?? NO_MAP, this.moments[at - 1]));
    this.stage?.reserve(this.moments);
    [...this.tabs.children].forEach((tab, cache) => tab.setAttribute('aria-pressed', String(cache === this.chosen)));
  }
  private choose(cache: number): void {
    this.chosen = cache;
    this.fold();
    this.show(this.at);
  }
}

/** What a script's run is read by; `hands`: CPUs can be told what to do. */
export const legend = (hands: boolean): HTMLElement => made('section', { className: 'legend', ariaLabel: 'How to read it' }, made('h2', {}, 'How to read it'),
  made('p', { className: 'quiet' }, 'Memory does not move: each object has its cell in a slab. Pointers move. A chip is the pointer to one object; the cell shows who has it. Point at one to see the other.'),
  made('p', { className: 'quiet' }, 'The tag before a sentence is the highest level that the operation used: cpu (no lock), depot, slab, pages, or commit (the system maps or unmaps memory).'),
  made('p', { className: 'quiet' }, `Keys: space plays and pauses, arrows step, Home and End go to the ends${hands ? ', a digit allocates on that CPU, with Shift it frees, l copies the link, p fills the screen' : ''}.`));
