// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

/** A description of a demo. */
export type About = {
/** The demo's name. */
name: Name,
/** The demo's title on a page. */
title: string,
/** The points of interest in the demo, in a few sentences. */
what: string,
/** The commands that the demo accepts. */
takes: Array<string>,
/** Commands that show how the allocator works. */
script: Array<string>,
/** The number of script commands that a page has run when it opens. The last of these commands shows the most. */
telling: number,
/** `true` if the allocator serves any size, so that it can serve the requests of a race. */
races: boolean,
/** The claim that the demo shows. */
claim: Claim, };

/** A claim of a text, with its answer in the study (`STUDY.md`). */
export type Claim = {
/** The claim's number. */
number: string,
/** The claim. */
says: string,
/** The answer: `holds`, `depends` or `does not hold`. */
answer: string, };

/** A demo of one allocator. */
export type Name = "linear" | "arena" | "stack" | "pool" | "lazy-pool" | "chunked-pool" | "reserved-pool" | "first-fit" | "best-fit" | "worst-fit" | "buddy" | "tlsf" | "handles" | "handles-wrap" | "packed" | "layout" | "fifty-percent" | "robson" | "pinning" | "slabs-over-buddy";

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
/** The allocator's data structure; `None` if the demo has no data structure besides the memory. */
structure: Structure | null,
/** Further figures of the demo, by name. */
facts: Array<[string, string]>, };

/** A range of bytes of one kind. */
export type Part = {
/** The offset from the start of the memory, in bytes. */
at: number,
/** The length in bytes. */
bytes: number, } & ({ "is": "used", "block": string } | { "is": "rounding", "block": string } | { "is": "tag" } | { "is": "padding" } | { "is": "free" } | { "is": "untouched" } | { "is": "retired" } | { "is": "loaded" });

/** The kind of a range of bytes. */
export type Is = { "is": "used", "block": string } | { "is": "rounding", "block": string } | { "is": "tag" } | { "is": "padding" } | { "is": "free" } | { "is": "untouched" } | { "is": "retired" } | { "is": "loaded" };

/** The number of free pieces, the size of the largest free piece, and the sum of all free pieces.
 * A piece is free memory that a single request can get. Adjacent free blocks count as one piece if one request can get all of them. Each free slot of a pool is a separate piece. */
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

/** The data structure of a demo's allocator, read from the allocator after a command. */
export type Structure = {
/** The data structure. */
shape: Shape,
/** The steps of the last command, in their order. */
steps: Array<Step>,
/** The data structure as lines of text. */
text: Array<string>, };

/** A data structure. Positions and sizes are in bytes; the sizes of blocks include their headers and tags. */
export type Shape = { "is": "tree",
/** The size of the smallest block. */
unit: number,
/** The positions of the free blocks of each list. The blocks of each list are twice as large as the blocks of the list before. */
lists: Array<Array<number>>, } | { "is": "grid",
/** The first level: one row for each power of two. */
rows: Array<Row>, } | { "is": "list",
/** The free blocks in the order of the list. */
blocks: Array<FreeBlock>, } | { "is": "chain",
/** The size of a slot. */
slot: number,
/** The numbers of the free slots in the order of the list. */
list: Array<number>,
/** The number of slots that are or were in the list; later slots were never written. */
opened: number,
/** The slot to which the last link leads; `None` if the last link is null. */
end: number | null, } | { "is": "chunks",
/** The size of a slot. */
slot: number,
/** The size of a chunk, which ends with its slots. */
bytes: number,
/** The chunks in the order of their list. */
chunks: Array<Chunk>, } | { "is": "head",
/** The position. */
head: number,
/** The saved positions. */
marks: Array<Mark>, } | { "is": "slots",
/** The handles, in the order in which they were returned. */
handles: Array<Named>,
/** The slots. */
slots: Array<Slot>,
/** The last generation of a slot. */
last: number, } | { "is": "packed",
/** The handles, in the order in which they were returned. */
handles: Array<Named>,
/** The place of each slot's value in `values`. */
places: Array<number | null>,
/** The values without gaps. */
values: Array<string>,
/** The array with holes. */
holes: Array<string | null>,
/** The number of places that a walk over `values` reads. */
reads: number,
/** The number of places that a walk over `holes` reads. */
checks: number, } | { "is": "lanes",
/** The bytes of the widest memory. */
bytes: number,
/** The kinds of blocks; a part in use has one of them as its block. */
kinds: Array<string>,
/** Places that all memories have in common. */
marks: Array<Line>,
/** The memories after the command. */
lanes: Array<Lane>,
/** The memories after each step of the command, except the last step. */
frames: Array<Array<Lane>>, } | { "is": "lines",
/** The names of the fields. */
names: Array<string>,
/** The arrays of each memory layout. */
arrays: Array<Lines>,
/** The size of a cache line. */
line: number, };

/** A power of two, and its size classes. */
export type Row = {
/** The smallest size. */
from: number,
/** The bit of the first level. */
bit: boolean,
/** The size classes. */
cells: Array<Cell>, };

/** A size class. */
export type Cell = {
/** The smallest size. */
from: number,
/** The bit of the second level. */
bit: boolean,
/** The free blocks in the order of the list. */
list: Array<FreeBlock>, };

/** A chunk of slots. */
export type Chunk = {
/** The position. */
at: number,
/** The numbers of the chunk's free slots in the order of its list. */
list: Array<number>, };

/** A free block. */
export type FreeBlock = {
/** The position. */
at: number,
/** The size. */
bytes: number, };

/** A saved position of a head. */
export type Mark = {
/** The marker's name. */
name: string,
/** The position. */
at: number,
/** `true` if the allocator refuses the marker, because the head has been below the marker. */
stale: boolean, };

/** A handle. */
export type Named = {
/** The handle's name, which is also the name of its object. */
name: string,
/** The slot's number. */
slot: number,
/** The generation. */
generation: number,
/** The object that the table returns for the handle. */
finds: string | null, };

/** A slot of a handle table. */
export type Slot = {
/** The current generation, or the next generation if the slot is free; `None` if the slot was never in use. */
generation: number | null,
/** The object in the slot. */
object: string | null,
/** `true` if the slot has used up its generations. */
retired: boolean, };

/** The memory of one allocator. */
export type Lane = {
/** The allocator's name. */
name: string,
/** The state of the memory in a few words. */
says: string,
/** The parts of the memory from its start to its end, without gaps. */
parts: Array<Part>,
/** Holes before the first turnover and after each; empty if the demo does not count holes. */
curve: Array<number>, };

/** A place that all memories have in common. */
export type Line = {
/** The position. */
at: number,
/** The name. */
name: string, };

/** An array of structs, or the arrays of their fields, in cache lines. */
export type Lines = {
/** The name of the memory layout. */
layout: string,
/** The field of each number, as an index into the field names; the numbers are in address order. */
fields: Array<number>,
/** The numbers that the walk uses. */
used: Array<boolean>,
/** The lines that the walk loads. */
loaded: Array<boolean>, };

/** A step of a command. */
export type Step = {
/** A sentence about the step. */
said: string,
/** The place of the step in the data structure. */
on: On, };

/** The place of a step in the data structure. */
export type On = { "is": "list",
/** The size of the list's blocks. */
bytes: number,
/** `true` if the list has a block. */
found: boolean, } | { "is": "class",
/** The row. */
row: number,
/** The class's cell in the row. */
cell: number, } | { "is": "word",
/** The row; `None` for the first level. */
row: number | null,
/** The bit at which the scan began. */
from: number,
/** The bit that the scan found. */
found: number | null, } | { "is": "inspect",
/** The position. */
at: number,
/** The size. */
bytes: number,
/** `true` if the search keeps the block. */
kept: boolean, } | { "is": "split",
/** The position. */
at: number,
/** The size. */
bytes: number, } | { "is": "neighbour",
/** The position. */
at: number,
/** The size. */
bytes: number,
/** `true` if the neighbour was free, so that both became one block. */
merged: boolean, } | { "is": "take",
/** The position. */
at: number,
/** The size. */
bytes: number, } | { "is": "put",
/** The position. */
at: number,
/** The size. */
bytes: number, } | { "is": "head",
/** The head's position before the step. */
from: number,
/** The head's position after the step. */
to: number, } | { "is": "handle",
/** The handle's name. */
name: string, } | { "is": "lanes" } | { "is": "line",
/** The index of the memory layout. */
array: number,
/** The line's number. */
line: number, } | { "is": "value",
/** The value's place before the step. */
from: number,
/** The value's place after the step. */
to: number, };
