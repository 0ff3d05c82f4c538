// Runs until something happens, a slice at a time, so that the page stays alive and may say stop.

import type { Place } from '../stage/moment.ts';
import { breather, type Run } from './run.ts';
import type { Found, Until } from '../views.ts';

export type Condition = Until['until'];

/** What can be waited for, in words. `cache` is the chosen one's name. */
export const CONDITIONS: readonly [Condition, (cache: string) => string][] = [
  ['miss', (cache) => `${cache} is not served by its CPU`],
  ['depot-empty', (cache) => `the depot of ${cache} is empty`],
  ['slab-born', (cache) => `${cache} gets a slab`],
  ['slab-dies', (cache) => `${cache} loses a slab`],
  ['commit', () => 'memory is committed'],
  ['object', () => 'the followed object moves'],
];

/** `null`: there is no object to wait for. */
export function untilOf(condition: Condition, cache: number, followed: Place | null): Until | null {
  if (condition === 'commit') return { until: condition };
  if (condition === 'object') return followed && { until: condition, ...followed };
  return { until: condition, cache };
}

/** Where it happens first after operation `from`; `null` if it does not, or somebody said stop. */
export async function runUntil(
  run: Run, until: Until, from: number, signal: AbortSignal, told: (operation: number) => void,
): Promise<Found | null> {
  const breathe = breather();
  let at = from, slice = 64;
  while (at < run.about.operations && !signal.aborted) {
    const begun = performance.now();
    const end = Math.min(at + slice, run.about.operations);
    if (end > run.reach) {
      await run.indexed;
      continue;
    }
    const { travel } = run;
    travel.to(at); // somebody may have looked elsewhere meanwhile
    const found = travel.engine.runUntil(until, end);
    if (found) return found;
    at = end;
    const took = performance.now() - begun;
    slice = took < 10 ? slice * 2 : took > 40 ? Math.max(1, slice >> 1) : slice;
    told(at);
    await breathe();
  }
  return null;
}
