// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

import type { Scene } from './scenes.ts';
import type { View } from './views.ts';

/** A lab of the course, with its texts and the student's task. */
export type Lab = {
/** The lab's name on command lines and in answer sheets. */
name: string,
/** The lab's title. */
title: string,
/** The approximate time that the lab takes, in minutes. */
minutes: number,
/** A description of the lab for students. */
about: string,
/** The lesson that the lab teaches, described for teachers. */
shows: string,
/** Common mistakes of students, described for teachers. */
pitfall: string,
/** The student's task. */
work: Work, };

/** The task of a lab: to predict a result, or to write code. */
export type Work = { "questions": Array<Question> } | { "code": Code };

/** The code that a student must complete. */
export type Code = {
/** A source file that compiles, but lacks the code that the student must write. */
starter: string,
/** The criteria by which the judge decides, one sentence each. */
judged_by: Array<string>, };

/** A question whose answer the engine computes. */
export type Question = {
/** The question's text. */
text: string,
/** The kind of answer that the question expects. */
expects: Expects,
/** The design that runs the question's script, in the form of `--design`. The text is empty if the question has no script to run. */
design: string,
/** The question's script: see [`script`](crate::script()). */
script: string, };

/** The kind of an answer to a question. Every answer is a number. */
export type Expects = { "number": string } | { "choice": Array<string> };

/** The right answer, computed by the engine. */
export type Answer = {
/** The right number, or the index of the right choice. */
right: number,
/** The explanation of the right answer. */
why: string,
/** The number of the script's operation that shows the answer. */
at: number,
/** Memory strips that show the answer to a question without a script. */
strips: Array<Strip>, };

/** A memory range drawn as a strip, from its start to its end. */
export type Strip = {
/** A description of the strip. */
said: string,
/** The pieces of the strip, without gaps, each with its size in bytes and its contents. The contents are `None` for a piece without contents. */
pieces: Array<[number, string | null]>, };

/** A student's answers to the labs with questions, as the course page writes them. */
export type Sheet = {
/** The version of the course for which the sheet was written. The current version is [`Sheet::COURSE_VERSION`]. */
course: number,
/** The student's name. */
name: string,
/** The seed from which the numbers in the questions were generated. */
seed: number,
/** For each lab, the answers in the order of its questions. The value `null` represents a missing answer. */
answers: { [key in string]: Array<number | null> }, };

/** The states before a policy's failure, and a description of the error. A failure has either `views` or `scenes`. */
export type Failure = {
/** The name of the lab. */
lab: string,
/** A description of the states that the web page shows. */
title: string,
/** The error message. */
wrong: string,
/** The index, counted from 0, of the state that shows the error. */
at: number,
/** The object that the error concerns, if any: the first page of its slab, and its index in the slab. */
object: [number, number] | null,
/** The offsets, in bytes, of the memory blocks that the error concerns. */
blocks: Array<number>,
/** The number of CPUs of the machine. */
cpus: number,
/** The names of the machine's caches. */
caches: Array<string>,
/** The states of the simulated machine, if the lab runs a machine. */
views: Array<View>,
/** The states of a memory, if the lab shows a memory. */
scenes: Array<Scene>, };
