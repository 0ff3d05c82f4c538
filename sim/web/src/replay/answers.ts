// Answers to the first questions about a trace: what grew, what was slow and when, what holds memory now.

import { grouped, noun } from '../draw.ts';
import { SLOW, SUMS } from '../engine.ts';
import type { SeenCache, View } from '../views.ts';
import type { Run } from './run.ts';
import type { Range } from './timeline.ts';

export interface Answer {
  question: string;
  text: string;
  /** What it leads to. */
  cache?: number;
  at?: number;
  range?: Range;
}

const size = (bytes: number): string => (bytes < 1 << 20 ? `${grouped(bytes / 1024)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`);
const most = <T>(of: readonly T[], value: (one: T) => number): T | undefined => of.reduce<T | undefined>((best, one) => (best === undefined || value(one) > value(best) ? one : best), undefined);

/** Of the whole run. */
export function answers(run: Run): Answer[] {
  const { samples, about: { operations, caches: names } } = run, { caches } = run.view(operations, []);
  const used = (cache: number, i: number) => samples[i]!.values[SUMS + 3 * cache]!, last = samples.length - 1;
  if (last < 1) return [];
  const grew = most(caches.map((own, cache) => ({ cache, bytes: (used(cache, last) - used(cache, 0)) * own.size })), ({ bytes }) => bytes);
  const steps = Array.from({ length: last }, (_, i) => i + 1);
  const found: Answer[] = [];
  if (grew && grew.bytes > 0) {
    const fastest = most(steps, (i) => used(grew.cache, i) - used(grew.cache, i - 1))!;
    found.push({ question: 'What grew?', text: `${names[grew.cache]}, by ${size(grew.bytes)}. It grew fastest at operation ${grouped(samples[fastest]!.at)}.`, cache: grew.cache, at: samples[fastest]!.at });
  }
  const slow = (i: number) => {
    const place = (at: number) => samples[i]!.values[at]! - samples[i - 1]!.values[at]!;
    return SLOW.reduce((sum, _, n) => sum + place(SUMS - SLOW.length + n), 0) / (samples[i]!.at - samples[i - 1]!.at);
  };
  const slowest = most(steps.slice(1), slow);
  if (slowest) {
    const [from, to] = [samples[slowest - 1]!.at, samples[slowest]!.at];
    found.push({ question: 'What was slow?', text: `Operations ${grouped(from)} to ${grouped(to)}: ${grouped(1000 * slow(slowest))} of 1,000 left their CPU.`, at: from, range: [from, to] });
  }
  return found;
}

const bytesOf = ({ full, partial, empty, order }: SeenCache): number => (full + partial + empty) * (4096 << order);

/** At a moment. */
export function holds({ caches }: View): Answer[] {
  const all = caches.reduce((sum, own) => sum + bytesOf(own), 0), cache = caches.reduce((best, own, i) => (bytesOf(own) > bytesOf(caches[best]!) ? i : best), 0), own = caches[cache];
  if (!own || !all) return [];
  const slabs = own.full + own.partial + own.empty;
  return [{ question: 'What holds memory now?', text: `${own.name}: ${size(bytesOf(own))} in ${noun(slabs, 'slab')}, ${grouped(100 * bytesOf(own) / all)} % of all slabs; ${grouped(100 * own.used / Math.max(slabs * own.per_slab, 1))} % of it is in use.`, cache }];
}
