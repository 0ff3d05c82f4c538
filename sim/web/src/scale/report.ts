// Generated from sim/src: `WRITE=1 cargo test -p uslab-sim typescript` writes it.

import type { Outcome, Profile } from './outcome.ts';

/**
 * What came of it.
 */
export type ScaleReport = {
/**
 * What things cost.
 */
profile: Profile,
/**
 * Bytes of an object; a trace has its own, and no chance.
 */
size?: number,
/**
 * Operations of each CPU.
 */
operations_per_cpu?: number,
/**
 * Where chance began.
 */
seed?: number,
/**
 * A curve for each workload and design.
 */
curves: Array<Curve>, };

/**
 * A design under a workload, by CPUs.
 */
export type Curve = {
/**
 * The workload, or the trace.
 */
workload: string,
/**
 * The design, and what was set.
 */
design: string,
/**
 * One for each CPU count.
 */
points: Array<Outcome>,
/**
 * Operations in a microsecond at each point with all prices of the profile at the upper end of their spread, and at the lower one;
 * empty if these were not run.
 */
bounds: Array<[number, number]>, };
