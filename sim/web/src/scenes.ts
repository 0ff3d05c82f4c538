// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

/** A description of a demo. */
export type About = {
/** Its name. */
name: Name,
/** Its title on a page. */
title: string,
/** What to look at, in a few sentences. */
what: string,
/** The commands that it accepts. */
takes: Array<string>,
/** Commands that show how it works. */
script: Array<string>,
/** `true` if it serves any size, so that it can be compared with others on the same requests. */
races: boolean, };

/** The demos. */
export type Name = "linear" | "stack" | "pool" | "lazy-pool" | "first-fit" | "best-fit" | "buddy" | "tlsf" | "handles" | "handles-wrap" | "layout";

/** The state of a demo after a command. */
export type Scene = {
/** The effect of the command, in a sentence. */
said: string,
/** `true` if the command was refused. Nothing changed then. */
refused: boolean,
/** The memory from its start to its end, without gaps. */
parts: Array<Part>,
/** The free pieces: their number, the largest, and the sum, without headers and tags. */
holes: Holes,
/** Other figures, by name. */
facts: Array<[string, string]>, };

/** A range of bytes of one kind. */
export type Part = {
/** The offset from the start of the memory, in bytes. */
at: number,
/** The length in bytes. */
bytes: number, } & ({ "is": "used", "block": string } | { "is": "rounding", "block": string } | { "is": "tag" } | { "is": "padding" } | { "is": "free" } | { "is": "untouched" } | { "is": "retired" } | { "is": "loaded" });

/** The kind of a range of bytes. */
export type Is = { "is": "used", "block": string } | { "is": "rounding", "block": string } | { "is": "tag" } | { "is": "padding" } | { "is": "free" } | { "is": "untouched" } | { "is": "retired" } | { "is": "loaded" };

/** The free memory: the number of pieces, the largest piece, and the sum.
 * A piece is the most that one request can get: neighbours that the allocator can serve together are one piece; each free slot of a pool is one. */
export type Holes = {
/** The number of pieces. */
count: number,
/** Bytes of the largest piece. */
largest: number,
/** Bytes of all pieces. */
total: number, };

/** Several allocators with the same requests. */
export type Race = {
/** The requests. */
commands: Array<string>,
/** Each allocator, with its memory before the first request and after each. */
scenes: Array<[Name, Array<Scene>]>, };
