// What a point of a curve has to say.

import type { Outcome } from './outcome.ts';

export interface Measure {
  key: string;
  name: string;
  unit: string;
  /** What it means. */
  about: string;
  of(at: Outcome, first: Outcome): number;
}

const per = (n: number, { operations }: Outcome, many: number) => (operations ? n / operations * many : 0);

const lock = (key: 'depot' | 'lists' | 'zone', what: string): Measure[] => [
  {
    key: `${key}-contended`, name: `${what}: contended`, unit: 'in 1,000 operations',
    about: `How often a CPU had to wait for the lock of ${what}, in a thousand operations.`,
    of: (at) => per(at[key].contended, at, 1000),
  }, {
    key: `${key}-waited`, name: `${what}: waited`, unit: 'ns an operation',
    about: `Nanoseconds that CPUs waited for the lock of ${what}, for each operation.`,
    of: (at) => per(at[key].waited_ns, at, 1),
  },
];

/** What goes beyond a CPU's own layer: beside any other measure it says how much of a run that is. */
export const BEYOND: Measure = {
  key: 'slow', name: 'operations beyond their CPU', unit: '% of the operations',
  about: 'Operations that what their CPU holds could not serve: they went to the depot, the slabs, the pages or the system.',
  of: (at) => per(at.operations - at.paths.cpu, at, 100),
};

export const MEASURES: readonly Measure[] = [
  { key: 'speed', name: 'throughput', unit: 'operations/µs', about: 'Allocations and frees in a microsecond, of all CPUs together.', of: (at) => at.operations_per_us },
  { key: 'speed-up', name: 'speed-up', unit: 'times', about: 'Throughput, divided by that on the fewest CPUs.', of: (at, first) => at.operations_per_us / first.operations_per_us },
  { key: 'waiting', name: 'waiting for locks', unit: '% of the time', about: 'The part of all CPUs\' time that goes into waiting for locks.', of: (at) => 100 * at.waiting },
  { key: 'lines', name: 'cache lines that travel', unit: 'lines an operation', about: 'Cache lines that come from another CPU, for each operation.', of: (at) => at.lines_per_operation },
  ...lock('depot', 'the depot'), ...lock('lists', 'the lists of slabs'), ...lock('zone', 'the page allocator'),
  BEYOND,
  { key: 'container', name: 'objects of a magazine', unit: 'objects', about: 'Objects of a magazine, a sheaf or an array at the end; 0 where a design has none.', of: (at) => at.container },
  { key: 'slabs', name: 'slabs', unit: 'slabs', about: 'Slabs of all caches at the end.', of: (at) => at.slabs },
];

/** Three digits that count; nothing of nothing. */
export function said(value?: number): string {
  if (value === undefined) return '';
  const size = Math.abs(value);
  return value.toLocaleString('en-US', { maximumFractionDigits: size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3 });
}
