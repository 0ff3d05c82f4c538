// Generated from sim/src: `WRITE=1 cargo test -p uslab-sim typescript` writes it.

/**
 * One execution.
 */
export type Story = {
/**
 * Of this form.
 */
version: number,
/**
 * What ran.
 */
title: string,
/**
 * In order of time.
 */
steps: Array<Step>,
/**
 * Who waits for a lock at the end.
 */
waiting: Array<Waiting>,
/**
 * What went wrong.
 */
end: string,
/**
 * The thing that it went wrong with, where that is known.
 */
about?: number, };

/**
 * What one actor did.
 */
export type Step = {
/**
 * Who: a thread's number.
 */
thread: string,
/**
 * What it plays, a CPU say.
 */
role: string | null,
/**
 * In words.
 */
did: string,
/**
 * What is different since.
 */
changes: Array<Change>,
/**
 * Seconds after the start, where there is a clock.
 */
at?: number, };

/**
 * A part that a step changed, or that is seen for the first time.
 */
export type Change = {
/**
 * Which of the things that have parts; 0: an atomic, which is its only part.
 */
thing: number,
/**
 * Its name.
 */
part: string,
/**
 * What was known of it, if anything was.
 */
before: string | null,
/**
 * What it is since.
 */
after: string, };

/**
 * Who waits for a lock.
 */
export type Waiting = {
/**
 * Who.
 */
thread: string,
/**
 * For which lock.
 */
lock: string,
/**
 * Where in the source.
 */
at: string, };
