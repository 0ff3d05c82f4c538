// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

import type { Path, View } from '../views.ts';

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
/** The number of cache lines that moved, per operation. */
lines_per_operation: number,
/** The locks of the shared levels between CPUs and slabs. */
depot: LockCounts,
/** The locks of the slab lists. */
lists: LockCounts,
/** The lock of the page allocator. */
zone: LockCounts,
/** The operations, counted by the level that served them. */
paths: Record<Path, number>,
/** Slabs of all caches at the end. */
slabs: number,
/** The number of objects that a magazine, sheaf or array of the first cache holds at the end; 0 if the design has none. */
container: number, };

/** Counts of one lock, or sums over all locks of a kind. */
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
/** The largest number of CPUs on which predictions from the profile were compared with measurements; 0 without comparison. */
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

/** A group of neighbouring CPUs. Two CPUs are in one group if the division of their numbers by `cpus` gives equal quotients. */
export type Level = {
/** The number of CPUs in a group; 0 if one group has all CPUs. */
cpus: number,
/** The time to move a cache line between two CPUs of the group, from the CPU that has written the line. */
line: Price, };

/** A run in virtual time, operation by operation, in the order in which the operations began. */
export type Film = {
/** The result of the run, which equals the result of [`run`](super::run). */
outcome: Outcome,
/** The state before the first operation. */
start: View,
/** The operations. */
operations: Array<TimedOperation>,
/** The state at the end, after the last interval. */
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
/** The state after the operation. The state's only step is the operation. */
view: View, };

/** The time for which an operation held a lock, and waited for it. */
export type LockHold = {
/** The lock. */
lock: LockKind,
/** The time in nanoseconds at which the CPU requested the lock. */
asked_ns: number,
/** The time in nanoseconds at which the CPU took the lock; later than `asked_ns` if the CPU had to wait. */
taken_ns: number,
/** The time in nanoseconds at which the CPU released the lock. */
freed_ns: number, };

/** The kind of a lock. */
export type LockKind = "depot" | "lists" | "zone";

/** Workloads, each with its description; the default N is in brackets. */
export const WORKLOADS: readonly (readonly [name: string, does: string])[] = [
  ["pairs", "one object, allocated and freed again"],
  ["bursts=N", "N objects allocated, then freed, the last one first (256)"],
  ["handoff=N", "one CPU allocates, its neighbour frees, through a queue of N (64)"],
  ["remote=N", "pairs, of which N in 100 are freed by another CPU (10)"],
  ["fork-join=N", "CPU 0 makes N tasks for each CPU; each CPU frees its tasks and waits for the others (32)"],
  ["server=N", "each CPU serves N connections that open and close at random (1000)"],
  ["migrate=N", "as `server=1000`, and one connection in N ends on another CPU (100)"],
];
