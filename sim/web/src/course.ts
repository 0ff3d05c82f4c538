// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

import type { Scene } from './scenes.ts';
import type { View } from './views.ts';

/** A lab of the course. */
export type Lab = {
/** Its name on command lines and in sheets. */
name: string,
/** Its title. */
title: string,
/** The time that it takes, in minutes, roughly. */
minutes: number,
/** A description for students. */
about: string,
/** The lesson, for teachers. */
shows: string,
/** Common mistakes, for teachers. */
pitfall: string,
/** The student's task. */
work: Work, };

/** The task of a lab. */
export type Work = { "questions": Array<Question> } | { "code": Code };

/** The code to be written. */
export type Code = {
/** A file that compiles and does not do its work yet. */
starter: string,
/** The criteria, a sentence each. */
judged_by: Array<string>, };

/** A question whose answer the engine finds. */
export type Question = {
/** The question. */
text: string,
/** The kind of answer. */
expects: Expects,
/** The design that runs the script, as for `--design`. Empty if there is nothing to run. */
design: string,
/** The script: see [`script`](crate::script()). */
script: string, };

/** The kind of an answer, which is always a number. */
export type Expects = { "number": string } | { "choice": Array<string> };

/** The answer that the engine found. */
export type Answer = {
/** The number, or the index of the choice. */
right: number,
/** The explanation. */
why: string,
/** The operation of the script that shows it. */
at: number,
/** Memory that shows it, if no script runs. */
strips: Array<Strip>, };

/** A memory as a strip, from its start to its end. */
export type Strip = {
/** A description. */
said: string,
/** Its pieces without gaps: the size in bytes, and the contents; `None` for an empty piece. */
pieces: Array<[number, string | null]>, };

/** The answers to the labs with questions, as the page writes them. */
export type Sheet = {
/** The course's version: [`Sheet::COURSE`]. */
course: number,
/** The name of the student. */
name: string,
/** The seed of the numbers in the questions. */
seed: number,
/** By lab: the answers in order, `null` for a missing one. */
answers: { [key in string]: Array<number | null> }, };

/** The states before a failure, and the error at one of them. It has either views or scenes. */
export type Failure = {
/** The lab. */
lab: string,
/** A description of what is shown. */
title: string,
/** The error. */
wrong: string,
/** The index of the state with the error, from 0. */
at: number,
/** The object that the error concerns, if there is one: the first page of its slab, and its index in the slab. */
object: [number, number] | null,
/** The memory blocks that the error concerns: their offsets in bytes. */
blocks: Array<number>,
/** The number of CPUs of the machine. */
cpus: number,
/** The names of its caches. */
caches: Array<string>,
/** The states of a machine. */
views: Array<View>,
/** The states of a memory. */
scenes: Array<Scene>, };
