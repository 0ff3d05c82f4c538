// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

import type { Path, View } from '../views.ts';

/** The result of a run in virtual time. */
export type Outcome = {
/** The number of CPUs. */
cpus: number,
/** The number of allocations and frees of all CPUs. */
operations: number,
/** The time in nanoseconds at which the last CPU finished. */
ns: number,
/** The number of operations per microsecond, on all CPUs together. */
operations_per_us: number,
/** The fraction of the total CPU time that was spent waiting for locks. */
waiting: number,
/** The number of cache lines that moved between CPUs, per operation. */
lines_per_operation: number,
/** The statistics of the locks of depots and other levels that CPUs share. */
depot: LockCounts,
/** The statistics of the locks of the slab lists. */
lists: LockCounts,
/** The lock of the page allocator. */
zone: LockCounts,
/** The number of operations that each level served. */
paths: Record<Path, number>,
/** The number of slabs of all caches at the end. */
slabs: number,
/** The capacity of a magazine, sheaf or array of the first cache at the end; 0 if the design has no such containers. */
container: number, };

/** Statistics of one lock, or sums over all locks of one kind. */
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
/** The largest number of CPUs on which predictions from the profile were compared with measurements; 0 if they were never compared. */
validated_cpus: number,
/** The price of an allocation or free that the CPU's own layer serves. */
own: Price,
/** The price of taking and releasing an uncontended lock whose cache line is already on the CPU. */
lock: Price,
/** The price of the work under a depot's lock. */
exchange: Price,
/** The price of moving one object out of a slab or into a slab, while the list lock is held. */
object: Price,
/** The price of moving each further object while the list lock stays held. */
batched: Price,
/** The price of moving a slab from one list to another. */
relist: Price,
/** The price of creating or freeing a slab, with its pages and metadata. */
slab: Price,
/** The distances between CPUs, nearest groups first; the last level contains all CPUs. */
levels: Array<Level>, };

/** A price in nanoseconds, and how it was measured. */
export type Price = {
/** The price in nanoseconds. */
ns: number,
/** The range in nanoseconds that contains most measurements of the price. */
spread: [number, number],
/** The source of the price: what was measured, how, and on which machine. */
source: string, };

/** A group of neighbouring CPUs. Two CPUs are in the same group if their numbers, divided by `cpus`, have the same quotient. */
export type Level = {
/** The number of CPUs in a group; 0 if one group contains all CPUs. */
cpus: number,
/** The time to move a cache line between two CPUs of the group, after one of them has written the line. */
line: Price, };

/** A run in virtual time; its operations are in the order in which they began. */
export type Film = {
/** The outcome of the run, equal to the result of [`run`](super::run). */
outcome: Outcome,
/** The state before the first operation. */
start: View,
/** All operations of all CPUs, in order of their start. */
operations: Array<TimedOperation>,
/** The state at the end of the run, after the last interval. */
end: View, };

/** An operation of a run in virtual time, and the state after it. */
export type TimedOperation = {
/** The time in nanoseconds at which the operation began. */
from_ns: number,
/** The time in nanoseconds at which the operation ended. */
to_ns: number,
/** The locks that the operation took, in order. */
holds: Array<LockHold>,
/** The number of cache lines that came from another CPU. */
lines: number,
/** The state after the operation. The only step that this state lists is the operation. */
view: View, };

/** The time that an operation waited for a lock, and the time that it then held the lock. */
export type LockHold = {
/** The data that the acquired lock protects. */
lock: LockKind,
/** The time in nanoseconds at which the CPU requested the lock. */
asked_ns: number,
/** The time in nanoseconds at which the CPU took the lock; later than `asked_ns` if the CPU had to wait. */
taken_ns: number,
/** The time in nanoseconds at which the CPU released the lock. */
freed_ns: number, };

/** The data that a lock protects. */
export type LockKind = "depot" | "lists" | "zone";

/** Workloads, each with its description; the default N is in brackets. */
export const WORKLOADS: readonly (readonly [name: string, does: string])[] = [
  ["pairs", "each CPU allocates one object and frees it, again and again"],
  ["bursts=N", "each CPU allocates N objects, then frees them, the last one first (256)"],
  ["handoff=N", "one CPU allocates, and its neighbour frees, through a queue of N objects (64)"],
  ["remote=N", "as `pairs`, and another CPU frees N in 100 objects (10)"],
  ["fork-join=N", "CPU 0 makes N tasks for each CPU; each CPU frees its tasks and waits for the others (32)"],
  ["server=N", "each CPU serves N connections that open and close at random (1000)"],
  ["migrate=N", "as `server=1000`, but one connection in N ends on another CPU (100)"],
];
