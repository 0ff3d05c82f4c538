// Generated from sim/src: `WRITE=1 cargo test -p uslab-sim typescript` writes it.

/**
 * A failed execution.
 */
export type Story = {
/**
 * The version of the format.
 */
version: number,
/**
 * The name of the model or command.
 */
title: string,
/**
 * The steps in order of time.
 */
steps: Array<Step>,
/**
 * The threads that wait for a lock at the end.
 */
waiting: Array<Waiting>,
/**
 * The error that ended the execution.
 */
end: string,
/**
 * The number of the thing that the error concerns, if known.
 */
about?: number, };

/**
 * One step of one thread.
 */
export type Step = {
/**
 * The thread's number.
 */
thread: string,
/**
 * The thread's role, for example a CPU.
 */
role: string | null,
/**
 * A sentence about the step.
 */
did: string,
/**
 * The parts that the step changed.
 */
changes: Array<Change>,
/**
 * The seconds since the start, if the execution has times.
 */
at?: number, };

/**
 * A part of a thing that a step changed, or that the execution mentions for the first time.
 */
export type Change = {
/**
 * The number of the thing; 0 for an atomic, which is a thing of one part.
 */
thing: number,
/**
 * The name of the part.
 */
part: string,
/**
 * The value before the step, if it was known.
 */
before: string | null,
/**
 * The value after the step.
 */
after: string, };

/**
 * A thread that waits for a lock.
 */
export type Waiting = {
/**
 * The thread's number.
 */
thread: string,
/**
 * The name of the lock.
 */
lock: string,
/**
 * The position in the source.
 */
at: string, };
