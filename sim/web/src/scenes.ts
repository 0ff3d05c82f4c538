// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

/** A description of a demo. */
export type About = {
/** The demo's name. */
name: Name,
/** The demo's title on a page. */
title: string,
/** What to look at in the demo, in a few sentences. */
what: string,
/** The commands that the demo accepts. */
takes: Array<string>,
/** Commands that show how the allocator works. */
script: Array<string>,
/** `true` if the allocator serves any size, so that it can serve the requests of a race. */
races: boolean, };

/** A demo of one allocator. */
export type Name = "linear" | "stack" | "pool" | "lazy-pool" | "first-fit" | "best-fit" | "buddy" | "tlsf" | "handles" | "handles-wrap" | "layout";

/** The state of a demo after a command. */
export type Scene = {
/** A sentence about the command's effect. */
said: string,
/** `true` if the command was refused. A refused command changes nothing. */
refused: boolean,
/** The parts of the memory from its start to its end, without gaps. */
parts: Array<Part>,
/** The number of free pieces, the largest piece, and the sum of all pieces; headers and tags do not count. */
holes: Holes,
/** Figures of the demo for which no field exists, by name. */
facts: Array<[string, string]>, };

/** A range of bytes of one kind. */
export type Part = {
/** The offset from the start of the memory, in bytes. */
at: number,
/** The length in bytes. */
bytes: number, } & ({ "is": "used", "block": string } | { "is": "rounding", "block": string } | { "is": "tag" } | { "is": "padding" } | { "is": "free" } | { "is": "untouched" } | { "is": "retired" } | { "is": "loaded" });

/** The kind of a range of bytes. */
export type Is = { "is": "used", "block": string } | { "is": "rounding", "block": string } | { "is": "tag" } | { "is": "padding" } | { "is": "free" } | { "is": "untouched" } | { "is": "retired" } | { "is": "loaded" };

/** The free memory: the number of its pieces, the largest piece, and the sum of all pieces.
 * A piece is the most that one request can get: free neighbours that can serve one request are one piece, and each free slot of a pool is one piece. */
export type Holes = {
/** The number of free pieces. */
count: number,
/** The size of the largest piece in bytes. */
largest: number,
/** The size of all pieces in bytes. */
total: number, };

/** Several allocators that serve equal requests. */
export type Race = {
/** The requests. */
commands: Array<string>,
/** Each allocator, with the state of its memory before the first request and after each request. */
scenes: Array<[Name, Array<Scene>]>, };
