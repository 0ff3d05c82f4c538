// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

import type { Path } from '../views.ts';

/** The result of a run. */
export type Outcome = {
/** The number of CPUs. */
cpus: number,
/** Allocations and frees of all CPUs. */
operations: number,
/** Nanoseconds until the last CPU finished. */
ns: number,
/** Operations per microsecond, of all CPUs together. */
operations_per_us: number,
/** The fraction of all CPUs' time that was spent waiting for locks. */
waiting: number,
/** Lines that travelled, per operation. */
lines_per_operation: number,
/** The locks of what CPUs share above the slabs. */
depot: LockCounts,
/** The locks of the lists of slabs. */
lists: LockCounts,
/** The lock of the page allocator. */
zone: LockCounts,
/** Operations by where they were served. */
paths: Record<Path, number>,
/** Slabs of all caches at the end. */
slabs: number,
/** Objects of a magazine, a sheaf or an array of the first cache at the end; 0 if the design has none. */
container: number, };

/** Counts of a lock, or of all locks of a kind. */
export type LockCounts = {
/** The number of acquisitions. */
taken: number,
/** Acquisitions that had to wait. */
contended: number,
/** Nanoseconds of waiting, summed over all CPUs. */
waited_ns: number, };

/** The prices of a machine. */
export type Profile = {
/** The machine's name. */
name: string,
/** The most CPUs for which predictions with this profile were compared with measurements; 0 if none were. */
validated_cpus: number,
/** An allocation or free that its CPU's own layer serves. */
own: Price,
/** Taking and releasing a lock that no other CPU wants and whose line is here. */
lock: Price,
/** The work under a depot's lock. */
exchange: Price,
/** Moving one object out of a slab or into it, under the lists' lock. */
object: Price,
/** Each further object that is moved in the same way under one hold of that lock. */
batched: Price,
/** Moving a slab from one list to another. */
relist: Price,
/** Creating or freeing a slab: its pages, and its metadata. */
slab: Price,
/** Distances, nearest first; the last one applies to all CPUs. */
levels: Array<Level>, };

/** A price, with its source. */
export type Price = {
/** Nanoseconds. */
ns: number,
/** The range of most measurements, in nanoseconds. */
spread: [number, number],
/** The source: what was measured, how and on which machine. */
source: string, };

/** A group of CPUs that are near each other: CPUs whose numbers are equal when divided by `cpus`. */
export type Level = {
/** The number of CPUs in a group; 0 means all. */
cpus: number,
/** The time to move a line that one CPU has written to another CPU of the group. */
line: Price, };

/** Workloads, and what each does; in brackets the N that is meant without one. */
export const WORKLOADS: readonly (readonly [name: string, does: string])[] = [
  ["pairs", "one object, allocated and freed again"],
  ["bursts=N", "N objects allocated, then freed, the last one first (256)"],
  ["handoff=N", "one CPU allocates, its neighbour frees, through a queue of N (64)"],
  ["remote=N", "pairs, of which N in 100 are freed by another CPU (10)"],
  ["fork-join=N", "CPU 0 makes N tasks for each CPU, all free theirs and wait for each other (32)"],
  ["server=N", "each CPU serves N connections that come and go at random (1000)"],
  ["migrate=N", "as `server=1000`, and one connection in N ends on another CPU (100)"],
];
