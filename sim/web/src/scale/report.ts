// Generated from sim/src: `WRITE=1 cargo test -p uslab-sim typescript` writes it.

import type { Outcome, Profile } from './outcome.ts';

/**
 * The report of a `scale` experiment.
 */
export type ScaleReport = {
/**
 * The prices of the simulated machine.
 */
profile: Profile,
/**
 * The size of an object in bytes; absent for a trace, whose objects have recorded sizes.
 */
size?: number,
/**
 * The number of operations of each CPU; absent for a trace.
 */
operations_per_cpu?: number,
/**
 * The seed of random decisions; absent for a trace.
 */
seed?: number,
/**
 * One curve for each pair of workload and design.
 */
curves: Array<Curve>, };

/**
 * The results of a design under a workload, for each number of CPUs.
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
 * The outcome of the run on each number of CPUs.
 */
points: Array<Outcome>,
/**
 * The operations per microsecond at each point, with all prices at the upper or at the lower end of their spread;
 * empty if these runs were not requested.
 */
bounds: Array<[number, number]>, };
