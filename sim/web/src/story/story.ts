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
 * The steps of all threads, in order of time.
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
 * The number of the object, lock or other item that the error concerns, if known.
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
 * A sentence that describes the thread's action in this step.
 */
did: string,
/**
 * The values that the step changed.
 */
changes: Array<Change>,
/**
 * The time of the step in seconds, counted from the start of the execution, if the execution has times.
 */
at?: number, };

/**
 * A value of an item (an object, a lock or an atomic variable) that a step changed, or that it is the first to
 * mention.
 */
export type Change = {
/**
 * The number of the item to which the value belongs; 0 for an atomic variable.
 */
thing: number,
/**
 * The name of the changed value.
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
 * The number of the waiting thread.
 */
thread: string,
/**
 * The name of the lock.
 */
lock: string,
/**
 * The position in the source at which the thread waits.
 */
at: string, };
