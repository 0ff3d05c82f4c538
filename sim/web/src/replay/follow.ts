// One object's life: who allocated and freed it, and where it lay meanwhile.

import { grouped, made } from '../draw.ts';
import type { Place } from '../stage/moment.ts';
import type { Run } from './run.ts';
import { runUntil } from './until.ts';
import type { Found } from '../views.ts';

const LISTED = 40; // before and after the moment, together

const CPUS = 'abcefghijklmnopqrstvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ'; // as `ShownSlab::objects` has them

export function holderSaid(holder: string | null): string {
  if (holder === null) return 'nowhere: its slab is gone';
  if (holder === 'u') return 'in use';
  if (holder === '.') return 'free in its slab';
  if (holder === 'd') return 'in what all CPUs share';
  const cpu = CPUS.indexOf(holder);
  return cpu < 0 ? `held by a CPU above ${CPUS.length - 1}` : `held by CPU ${cpu}`;
}

function said({ cpu, touched, holder }: Found): string {
  if (touched) return holder === 'u' ? `CPU ${cpu} allocates it` : `CPU ${cpu} frees it; it is ${holderSaid(holder)}`;
  return `CPU ${cpu} moves it: it is ${holderSaid(holder)}`;
}

/** What happened to an object over the whole run; grows while the run is searched. */
export class Life {
  readonly events: Found[] = [];
  /** Operations that were searched. */
  searched = 0;
  private readonly stopped = new AbortController();

  constructor(readonly run: Run, readonly place: Place) {}

  async search(told: () => void): Promise<void> {
    const { signal } = this.stopped;
    for (;;) {
      const found = await runUntil(this.run, { until: 'object', ...this.place }, this.searched, signal, (at) => {
        this.searched = at;
        told();
      });
      if (!found || signal.aborted) break;
      this.events.push(found);
      this.searched = found.operation;
    }
    told();
  }

  stop(): void {
    this.stopped.abort();
  }

  /** What happened around a moment, as a list; a click goes there. */
  list(operation: number, go: (n: number) => void): HTMLElement[] {
    const after = this.events.findIndex((event) => event.operation > operation);
    const current = (after < 0 ? this.events.length : after) - 1;
    const first = Math.max(0, Math.min(current - LISTED / 2, this.events.length - LISTED));
    return this.events.slice(first, first + LISTED).map((event, i) => {
      const button = made('button', { type: 'button', onclick: () => go(event.operation) }, `operation ${grouped(event.operation)}`);
      const item = made('li', { value: first + i + 1 }, button, ` ${said(event)}`);
      if (first + i === current) item.setAttribute('aria-current', 'step');
      return item;
    });
  }
}
