// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

import type { Path } from '../views.ts';

/** The result of a run in virtual time. */
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
/** The locks of the levels that CPUs share above the slabs. */
depot: LockCounts,
/** The locks of the slab lists. */
lists: LockCounts,
/** The lock of the page allocator. */
zone: LockCounts,
/** Operations by where they were served. */
paths: Record<Path, number>,
/** Slabs of all caches at the end. */
slabs: number,
/** Objects in a magazine, sheaf or array of the first cache at the end; 0 if the design has no such container. */
container: number, };

/** Counts of one lock, or of all locks of a kind. */
export type LockCounts = {
/** The number of lock acquisitions. */
taken: number,
/** The number of lock acquisitions that had to wait. */
contended: number,
/** Nanoseconds spent waiting for locks, summed over all CPUs. */
waited_ns: number, };

/** The prices of one machine's locks, cache lines and allocator steps. */
export type Profile = {
/** The machine's name. */
name: string,
/** The highest CPU count at which predictions from the profile were compared with measurements; 0 if none were. */
validated_cpus: number,
/** The price of an allocation or free that the CPU's own layer serves. */
own: Price,
/** The price of taking and releasing an uncontended lock whose line the CPU holds. */
lock: Price,
/** The price of the work under a depot's lock. */
exchange: Price,
/** The price of moving one object out of a slab or into a slab, under the list lock. */
object: Price,
/** The price of each further object moved under the same hold of the list lock. */
batched: Price,
/** The price of moving a slab from one list to another. */
relist: Price,
/** The price of creating or freeing a slab, with its pages and metadata. */
slab: Price,
/** Distances between CPUs, nearest first; the last level applies to all CPUs. */
levels: Array<Level>, };

/** A price in nanoseconds, with the source of its measurement. */
export type Price = {
/** The price in nanoseconds. */
ns: number,
/** The range of most measurements of the price, in nanoseconds. */
spread: [number, number],
/** The source of the price: what was measured, how, and on which machine. */
source: string, };

/** A group of neighbouring CPUs. Two CPUs are in one group if their numbers divided by `cpus` give the same quotient. */
export type Level = {
/** The number of CPUs in a group; 0 means all. */
cpus: number,
/** The time to move a cache line between two CPUs of the group, after one has written it. */
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
