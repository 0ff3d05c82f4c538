// Generated from sim/src: `WRITE=1 cargo test -p uslab-sim typescript` writes it.

import type { Outcome, Profile } from './outcome.ts';

/**
 * The report of an experiment.
 */
export type ScaleReport = {
/**
 * The prices of the simulated machine.
 */
profile: Profile,
/**
 * The size of an object in bytes; absent for a trace, which has its own sizes and no random decisions.
 */
size?: number,
/**
 * The number of operations of each CPU.
 */
operations_per_cpu?: number,
/**
 * The seed of random decisions.
 */
seed?: number,
/**
 * A curve for each workload and design.
 */
curves: Array<Curve>, };

/**
 * A design under a workload, by number of CPUs.
 */
export type Curve = {
/**
 * The workload, or the trace.
 */
workload: string,
/**
 * The design, with its options.
 */
design: string,
/**
 * The outcome for each number of CPUs.
 */
points: Array<Outcome>,
/**
 * The operations per microsecond at each point with all prices at the upper end of their spread, and at the lower
 * end; empty if not run.
 */
bounds: Array<[number, number]>, };
