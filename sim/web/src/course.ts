// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

import type { Scene } from './scenes.ts';
import type { View } from './views.ts';

/** A lab of the course. */
export type Lab = {
/** Its name on command lines and in sheets. */
name: string,
/** Its title. */
title: string,
/** Minutes that it takes, about. */
minutes: number,
/** What it is about, for who takes it. */
about: string,
/** What it shows, for who teaches it. */
shows: string,
/** What is commonly got wrong, for who teaches it. */
pitfall: string,
/** What is to be done. */
work: Work, };

/** What is to be done in a lab. */
export type Work = { "questions": Array<Question> } | { "code": Code };

/** What is to be written. */
export type Code = {
/** A file that compiles and does not do its work yet. */
starter: string,
/** What it is judged by, a sentence each. */
judged_by: Array<string>, };

/** A question whose answer the engine finds out. */
export type Question = {
/** The question. */
text: string,
/** What an answer is. */
expects: Expects,
/** Who runs the script, as `--design` has it. Empty: there is nothing to run. */
design: string,
/** What runs: see [`script`](crate::script()). */
script: string, };

/** What an answer is. It is a number in any case. */
export type Expects = { "number": string } | { "choice": Array<string> };

/** What the engine found out. */
export type Answer = {
/** The number, or the place of the choice. */
right: number,
/** Why. */
why: string,
/** The operation of the script to look at. */
at: number,
/** Memory to look at, where no script runs. */
strips: Array<Strip>, };

/** Memory as a strip, from its start to its end. */
export type Strip = {
/** What it is. */
said: string,
/** Its pieces without gaps: bytes, and what stands in them; `None`: nothing lies there. */
pieces: Array<[number, string | null]>, };

/** What was answered to the labs that ask, as the page writes it. */
export type Sheet = {
/** The course's version: [`Sheet::COURSE`]. */
course: number,
/** Who answered. */
name: string,
/** What made the numbers in the questions. */
seed: number,
/** By lab: the answers in order, `null` where there is none. */
answers: { [key in string]: Array<number | null> }, };

/** Moments to look at, and what is wrong at one of them. Either views or scenes. */
export type Failure = {
/** The lab. */
lab: string,
/** What is seen. */
title: string,
/** What is wrong. */
wrong: string,
/** The moment at which it is, from 0. */
at: number,
/** The object that it is about, where there is one: its slab's first page, and which one of the slab it is. */
object: [number, number] | null,
/** The blocks of memory that it is about: where they begin, in bytes. */
blocks: Array<number>,
/** CPUs of the machine. */
cpus: number,
/** Names of its caches. */
caches: Array<string>,
/** A machine. */
views: Array<View>,
/** Or a memory. */
scenes: Array<Scene>, };
