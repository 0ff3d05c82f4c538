// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

import type { Path } from '../views.ts';

/** How a run went. */
export type Outcome = {
/** CPUs. */
cpus: number,
/** Allocations and frees of all CPUs. */
operations: number,
/** Nanoseconds until the last CPU was done. */
ns: number,
/** Operations in a microsecond, of all CPUs together. */
operations_per_us: number,
/** Nanoseconds of all CPUs that went into waiting for locks, as a part of all of their time. */
waiting: number,
/** Lines that travelled, for each operation. */
lines_per_operation: number,
/** What CPUs share above the slabs. */
depot: LockCounts,
/** The lists of slabs. */
lists: LockCounts,
/** The page allocator. */
zone: LockCounts,
/** Operations by the dearest thing that they did. */
paths: Record<Path, number>,
/** Slabs of all caches at the end. */
slabs: number,
/** Objects of a magazine, a sheaf or an array at the end, of the first cache; 0: the design has none. */
container: number, };

/** How a lock fared. */
export type LockCounts = {
/** How often it was taken. */
taken: number,
/** How often somebody had to wait for it. */
contended: number,
/** Nanoseconds of waiting, of all CPUs together. */
waited_ns: number, };

/** What things cost on a machine. */
export type Profile = {
/** The machine. */
name: string,
/** CPUs on which predictions of this profile were held against measurements; 0: none. */
validated_cpus: number,
/** An allocation or free that its CPU's own layer serves. */
own: Price,
/** Taking and leaving a lock that nobody else wants and whose line is here. */
lock: Price,
/** What is done under a depot's lock. */
exchange: Price,
/** One object out of a slab or into it, under the lists' lock. */
object: Price,
/** Each object after the first one that goes the same way under one hold of that lock. */
batched: Price,
/** A slab from one list to another. */
relist: Price,
/** A slab made or given back: its pages, and what is written about it. */
slab: Price,
/** Distances, nearest first; the last one is of all CPUs. */
levels: Array<Level>, };

/** A price, and where it is from. */
export type Price = {
/** Nanoseconds. */
ns: number,
/** What most measurements lie between. */
spread: [number, number],
/** Who measured it, how and on what. */
source: string, };

/** CPUs that are near each other: those whose numbers are equal when divided by `cpus`. */
export type Level = {
/** CPUs of a group; 0 is all. */
cpus: number,
/** Until a line that one CPU has written is at another one of the group. */
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
