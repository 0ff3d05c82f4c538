// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

/** What there is to know of a demo before it begins. */
export type About = {
/** Its name. */
name: Name,
/** What it is called on a page. */
title: string,
/** What to look at, in a few sentences. */
what: string,
/** What it can be told. */
takes: Array<string>,
/** Commands that show what it is about. */
script: Array<string>,
/** Whether it serves any size, so that others can race it with the same requests. */
races: boolean, };

/** The demos. */
export type Name = "linear" | "stack" | "pool" | "lazy-pool" | "first-fit" | "best-fit" | "buddy" | "tlsf" | "handles" | "handles-wrap" | "layout";

/** A moment of a demo. */
export type Scene = {
/** What the command did, in a sentence. */
said: string,
/** Whether it was refused. Nothing changed then. */
refused: boolean,
/** The memory from its start to its end, without gaps. */
parts: Array<Part>,
/** The free pieces: how many, the largest, all together. Their headers and tags are not counted. */
holes: Holes,
/** What else matters here, by name. */
facts: Array<[string, string]>, };

/** Bytes of one kind. */
export type Part = {
/** Where they begin, in bytes from the start of the memory. */
at: number,
/** How many. */
bytes: number, } & ({ "is": "used", "block": string } | { "is": "rounding", "block": string } | { "is": "tag" } | { "is": "padding" } | { "is": "free" } | { "is": "untouched" } | { "is": "retired" } | { "is": "loaded" });

/** What bytes are. */
export type Is = { "is": "used", "block": string } | { "is": "rounding", "block": string } | { "is": "tag" } | { "is": "padding" } | { "is": "free" } | { "is": "untouched" } | { "is": "retired" } | { "is": "loaded" };

/** Free memory as it lies: how many pieces, the largest, all together.
 * A piece is what one request could have whole: neighbours that the allocator can serve together are one piece, the slots of a pool are one each. */
export type Holes = {
/** Pieces of free memory. */
count: number,
/** Bytes of the largest. */
largest: number,
/** Bytes of all. */
total: number, };

/** Several allocators under the same requests. */
export type Race = {
/** What was asked for. */
commands: Array<string>,
/** Each allocator, and what its memory looked like before the first request and after each. */
scenes: Array<[Name, Array<Scene>]>, };
