// Generated from sim/src: `WRITE=1 cargo test -p uslab-sim typescript` writes it.

/**
 * One execution.
 */
export type Story = {
/**
 * Version of this form.
 */
version: number,
/**
 * Name of the model or command.
 */
title: string,
/**
 * The steps in order of time.
 */
steps: Array<Step>,
/**
 * Threads that wait for a lock at the end.
 */
waiting: Array<Waiting>,
/**
 * The error.
 */
end: string,
/**
 * The thing that the error is about, if it is known.
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
 * The thread's role, a CPU say.
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
 * Seconds after the start, if the story has times.
 */
at?: number, };

/**
 * A part of a thing that a step changed, or that the story mentions for the first time.
 */
export type Change = {
/**
 * The number of the thing; 0 for an atomic, which is a thing of one part.
 */
thing: number,
/**
 * Name of the part.
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
 * Name of the lock.
 */
lock: string,
/**
 * Position in the source.
 */
at: string, };
