// A run in virtual time as frames: at each point in time, what has happened so far, what each CPU does, and what it all cost.

import { Engine, type Wasm, type Work } from '../engine.ts';
import type { Film, LockKind, TimedOperation } from '../scale/outcome.ts';
import { momentOf, type Activity, type Locks, type Moment } from '../stage/moment.ts';
import type { ShownCache, ShownSlab, View } from '../views.ts';

/** Virtual nanoseconds from one frame to the next. */
export const STEP = 40;
const NO_MAP = new Uint8Array();
const LOCKS: Record<LockKind, keyof Locks> = { depot: 'depot', lists: 'slabs', zone: 'pages' };

/** What a run cost up to a point in time; at its end these are the numbers of `uslab scale`. */
export interface Costs {
  operations: number;
  /** Locks that were taken; those for which a CPU had to wait; nanoseconds of waiting. */
  locks: number;
  contended: number;
  waited: number;
  lines: number;
  pages: number;
}

export interface Frame {
  moment: Moment;
  crew: readonly Activity[];
  costs: Costs;
}

/** When others can see what an operation did: with the release of its last lock. */
const effective = ({ holds, to_ns }: TimedOperation): number => holds.at(-1)?.freed_ns ?? to_ns;

/** The objects that an operation moved are where they were. */
function restored(now: string, after: string, before: string): string {
  return Array.from(now, (letter, i) => (after[i] !== before[i] && letter === after[i] ? before[i] : letter)).join('');
}

/** The cache after the last operation that began, without those that have no effect yet: their numbers are in `open`. */
function without(views: readonly View[], last: number, open: readonly number[]): ShownCache {
  const { cache, ...all } = views[last]!.shown[0]!, cpus = [...all.cpus], slabs = new Map(all.slabs.map((slab): [number, ShownSlab] => [slab.page, slab]));
  let { shared } = all;
  for (const n of open.toReversed()) {
    const [before, after] = [views[n - 1]!.shown[0]!, views[n]!.shown[0]!], { cpu } = views[n]!.steps[0]!;
    cpus[cpu] = before.cpus[cpu]!;
    if (JSON.stringify(before.shared) !== JSON.stringify(after.shared)) shared = before.shared;
    const old = new Map(before.slabs.map((slab) => [slab.page, slab]));
    for (const { page, objects } of after.slabs) {
      const was = old.get(page), own = slabs.get(page);
      if (!was) slabs.delete(page);
      else if (own && was.objects !== objects) slabs.set(page, { ...own, objects: restored(own.objects, objects, was.objects) });
      old.delete(page);
    }
    for (const [page, was] of old) slabs.set(page, was);
  }
  return { cache, cpus, shared, slabs: [...slabs.values()] };
}

export class Reel {
  readonly frames: Frame[] = [];
  private readonly views: readonly View[];

  private constructor(readonly design: string, readonly film: Film) {
    const { operations, start, outcome } = film;
    this.views = [start, ...operations.map(({ view }) => view)];
    for (let n = 0; this.ns < outcome.ns || !n; n++) this.frames.push(this.frame(n * STEP, n));
  }
  static async open(wasm: Wasm, design: string, work: Work): Promise<Reel> {
    return new Reel(design, await Engine.film(wasm, design, work));
  }

  /** The time of the last frame. */
  private get ns(): number {
    return (this.frames.length - 1) * STEP;
  }
  /** The number of the last frame: all is done. */
  get last(): number {
    return this.frames.length - 1;
  }
  at(n: number): Frame {
    return this.frames[Math.min(n, this.last)]!;
  }

  private frame(ns: number, n: number): Frame {
    const { operations, outcome, end } = this.film, begun = operations.filter(({ from_ns }) => from_ns <= ns);
    const open = begun.flatMap((own, i) => (effective(own) > ns ? [i + 1] : []));
    const steps = begun.filter((own) => effective(own) <= ns && effective(own) > ns - STEP).flatMap(({ view }) => view.steps);
    const done = ns >= outcome.ns, last = done ? end : this.views[begun.length]!, shown = done ? end.shown[0]! : without(this.views, begun.length, open);
    const used = shown.slabs.reduce((sum, { objects }) => sum + objects.split('u').length - 1, 0), [counts] = last.caches;
    const holds = begun.flatMap(({ holds }) => holds).filter(({ asked_ns }) => asked_ns <= ns);
    const view: View = { ...last, operation: n, steps, shown: [shown], caches: [{ ...counts!, used }] };
    return {
      moment: momentOf(view, 0, NO_MAP, this.frames.at(-1)?.moment),
      crew: this.crew(begun, ns),
      costs: {
        operations: begun.filter(({ to_ns }) => to_ns <= ns).length,
        locks: holds.filter(({ taken_ns }) => taken_ns <= ns).length,
        contended: holds.filter(({ asked_ns, taken_ns }) => taken_ns > asked_ns && taken_ns <= ns).length,
        waited: holds.reduce((sum, { asked_ns, taken_ns }) => sum + Math.min(taken_ns, ns) - asked_ns, 0),
        lines: begun.filter(({ to_ns }) => to_ns <= ns).reduce((sum, { lines }) => sum + lines, 0),
        pages: shown.slabs.length << counts!.order,
      },
    };
  }

  private crew(begun: readonly TimedOperation[], ns: number): Activity[] {
    const crew = Array.from({ length: this.film.outcome.cpus }, (_, cpu) => this.activity(begun, cpu, ns));
    // Operations take their locks in the order in which they began: a CPU also waits for a lock that an earlier operation has still to take.
    for (const [kind, lock] of Object.entries(LOCKS)) {
      if (!crew.some(({ waits }) => waits === lock) || crew.some(({ holds }) => holds.includes(lock))) continue;
      const first = begun.find(({ holds }) => holds.some((hold) => hold.lock === kind && hold.freed_ns > ns)), cpu = first?.view.steps[0]?.cpu;
      if (cpu !== undefined) crew[cpu] = { ...crew[cpu]!, holds: [...crew[cpu]!.holds, lock] };
    }
    return crew;
  }

  private activity(begun: readonly TimedOperation[], cpu: number, ns: number): Activity {
    const of = ({ view }: TimedOperation) => view.steps[0]?.cpu === cpu, own = begun.findLast(of);
    if (!own || own.to_ns <= ns) return { is: own && own === this.film.operations.findLast(of) ? 'finished' : 'program', holds: [], waits: null };
    const waits = own.holds.find(({ asked_ns, taken_ns }) => asked_ns <= ns && ns < taken_ns), holds = own.holds.filter(({ taken_ns, freed_ns }) => taken_ns <= ns && ns < freed_ns);
    return { is: waits ? 'waits' : 'works', holds: holds.map(({ lock }) => LOCKS[lock]), waits: waits ? LOCKS[waits.lock] : null };
  }
}
