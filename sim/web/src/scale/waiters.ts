// CPUs on average in virtual time: those that work, and those that wait for each lock.

import { noun } from '../draw.ts';
import { said } from './measures.ts';
import type { Outcome } from './outcome.ts';

const LOCKS = [['depot', 'the depot', 'depot-path'], ['lists', 'the lists of slabs', 'slab-path'], ['zone', 'the page allocator', 'pages-path']] as const;
const SIDE = 10, ACROSS = 32;

/** CPUs that wait for a lock on average: their share of all CPUs' time. */
export function waiting(key: 'depot' | 'lists' | 'zone', at: Outcome): number {
  const all = LOCKS.reduce((sum, [key]) => sum + at[key].waited_ns, 0);
  return all ? at.cpus * at.waiting * at[key].waited_ns / all : 0;
}

export function waitersSaid(at: Outcome): string {
  const parts = LOCKS.flatMap(([key, name]) => (waiting(key, at) >= 0.005 ? [`${said(waiting(key, at))} for ${name}`] : []));
  return `${said(at.cpus * at.waiting)} of ${noun(at.cpus, 'CPU')} wait${parts.length ? `: ${parts.join(', ')}` : ''}`;
}

/** A square for each CPU. */
export function waiters(at: Outcome): string {
  // Whole CPUs, so that their sum is right.
  let sum = 0;
  const ends = LOCKS.map(([key]) => Math.round(sum += waiting(key, at)));
  const cells = Array.from({ length: at.cpus }, (_, i) => {
    const place = at.cpus - 1 - i, lock = ends.findIndex((end) => place < end), x = i % ACROSS * (SIDE + 2), y = Math.floor(i / ACROSS) * (SIDE + 2);
    return lock < 0 ? `<rect class="works" x="${x}" y="${y}" width="${SIDE}" height="${SIDE}" rx="2"/>`
      : `<path class="waits" style="stroke: var(--${LOCKS[lock]![2]})" d="M${x + 1} ${y + 1}h${SIDE - 2}v${SIDE - 2}h${2 - SIDE}zM${x + 3} ${y + SIDE / 2}h${SIDE - 6}"/>`;
  });
  const w = Math.min(at.cpus, ACROSS) * (SIDE + 2), h = Math.ceil(at.cpus / ACROSS) * (SIDE + 2);
  return `<svg viewBox="0 0 ${w} ${h}" width="${w}" height="${h}" aria-hidden="true">${cells.join('')}</svg>`;
}

export const legend = (cpus: number): string => `Of ${noun(cpus, 'CPU')}, on average in virtual time. A filled square is a CPU that works. An open one waits for a lock, in the colour of the lock's level; another CPU holds it.`;
