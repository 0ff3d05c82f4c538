// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

/** A description of a demo. */
export type About = {
/** The demo's name. */
name: Name,
/** The demo's title on a page. */
title: string,
/** A few sentences about what to observe in the demo. */
what: string,
/** The commands that the demo accepts. */
takes: Array<string>,
/** A list of commands that shows how the allocator works. */
script: Array<string>,
/** The number of the script's commands that a web page has already run when it opens the demo. The script's first commands bring the demo to the state that the picture should show first. */
telling: number,
/** `true` if the allocator serves requests of any size and can therefore run in a race. */
races: boolean,
/** The claim about allocators that the demo tests. */
claim: Claim, };

/** A claim in a published text, with the study's answer (`STUDY.md`). */
export type Claim = {
/** The claim's number. */
number: string,
/** The claim. */
says: string,
/** The answer to the claim: `holds`, `depends` or `does not hold`. */
answer: string, };

/** A demo of one allocator, or of one program on several allocators. */
export type Name = "linear" | "arena" | "stack" | "pool" | "lazy-pool" | "chunked-pool" | "reserved-pool" | "first-fit" | "best-fit" | "worst-fit" | "buddy" | "tlsf" | "handles" | "handles-wrap" | "packed" | "layout" | "fifty-percent" | "robson" | "pinning" | "slabs-over-buddy";

/** The state of a demo after a command. */
export type Scene = {
/** A sentence about the command's effect. */
said: string,
/** `true` if the command was refused. A refused command changes nothing. */
refused: boolean,
/** The ranges that the memory consists of, from its start to its end, without gaps. */
parts: Array<Part>,
/** The free pieces without headers and tags: their number, the largest size, and the sum of their sizes. */
holes: Holes,
/** The allocator's data structure; `None` if the demo shows only the memory. */
structure: Structure | null,
/** Further figures that the demo shows, each with its name. */
facts: Array<[string, string]>, };

/** A range of bytes of one kind. */
export type Part = {
/** The offset of the range from the start of the memory, in bytes. */
at: number,
/** The length of the range in bytes. */
bytes: number, } & ({ "is": "used", "block": string } | { "is": "rounding", "block": string } | { "is": "tag" } | { "is": "padding" } | { "is": "free" } | { "is": "untouched" } | { "is": "retired" } | { "is": "loaded" });

/** The kind of a range of bytes. */
export type Is = { "is": "used", "block": string } | { "is": "rounding", "block": string } | { "is": "tag" } | { "is": "padding" } | { "is": "free" } | { "is": "untouched" } | { "is": "retired" } | { "is": "loaded" };

/** The pieces of free memory: their number, the largest size, and the total size.
 * A piece is free memory that one request can get as a whole. Adjacent free blocks count as one piece if one request can use all of them. Each free slot of a pool is a separate piece. */
export type Holes = {
/** The number of free pieces. */
count: number,
/** The size of the largest piece in bytes. */
largest: number,
/** The sum of the sizes of all pieces, in bytes. */
total: number, };

/** Several allocators that serve the same requests. */
export type Race = {
/** The requests. */
commands: Array<string>,
/** For each allocator, the state of its memory before the first request and after each request. */
scenes: Array<[Name, Array<Scene>]>, };

/** The data structure of a demo's allocator, read from the allocator after a command. */
export type Structure = {
/** The data structure. */
shape: Shape,
/** The steps of the last command, in the order in which they were made. */
steps: Array<Step>,
/** The data structure, formatted as lines of text. */
text: Array<string>, };

/** A data structure. Positions and sizes are in bytes; the sizes of blocks include their headers and tags. */
export type Shape = { "is": "tree",
/** The size of the smallest block. */
unit: number,
/** For each list, the positions of its free blocks. The blocks of each list are twice as large as the blocks of the list before it. */
lists: Array<Array<number>>, } | { "is": "grid",
/** The first level, with one row for each power of two. */
rows: Array<Row>, } | { "is": "list",
/** The free blocks in the order of the list. */
blocks: Array<FreeBlock>, } | { "is": "chain",
/** The size of a slot. */
slot: number,
/** The numbers of the free slots in the order of the list. */
list: Array<number>,
/** The number of slots that have ever been in the list; all later slots were never written. */
opened: number,
/** The slot to which the last link of the list leads; `None` if the last link is null. */
end: number | null, } | { "is": "chunks",
/** The size of a slot. */
slot: number,
/** The size of a chunk, whose last bytes are its slots. */
bytes: number,
/** The chunks, in the order of the list of chunks. */
chunks: Array<Chunk>, } | { "is": "head",
/** The position. */
head: number,
/** The saved positions. */
marks: Array<Mark>, } | { "is": "slots",
/** The handles, in the order in which they were returned. */
handles: Array<Named>,
/** The slots of the table, by index. */
slots: Array<Slot>,
/** The largest generation that a slot can have. */
last: number, } | { "is": "packed",
/** The handles, in the order in which they were returned. */
handles: Array<Named>,
/** For each slot, the index of its value in `values`. */
places: Array<number | null>,
/** The values that are stored without gaps. */
values: Array<string>,
/** The array with holes, which contains the same values. */
holes: Array<string | null>,
/** The number of entries that a walk over `values` reads. */
reads: number,
/** The number of entries that a walk over `holes` reads. */
checks: number, } | { "is": "lanes",
/** The length of the longest memory, in bytes. */
bytes: number,
/** The kinds of blocks; each used range has one of these kinds. */
kinds: Array<string>,
/** The marks whose location is the same in all memories. */
marks: Array<Line>,
/** The memories of the allocators after the command. */
lanes: Array<Lane>,
/** The memories of the allocators after each step of the command, except the last step. */
frames: Array<Array<Lane>>, } | { "is": "lines",
/** The names of the fields. */
names: Array<string>,
/** For each memory layout, its arrays. */
arrays: Array<Lines>,
/** The size of a cache line in bytes. */
line: number, };

/** A power of two, and the size classes that begin between it and the next power of two. */
export type Row = {
/** The smallest size. */
from: number,
/** The row's bit in the bitmap of the first level. */
bit: boolean,
/** The size classes. */
cells: Array<Cell>, };

/** A size class. */
export type Cell = {
/** The smallest size. */
from: number,
/** The class's bit in a bitmap of the second level. */
bit: boolean,
/** The free blocks in the order of the list. */
list: Array<FreeBlock>, };

/** A chunk that consists of slots. */
export type Chunk = {
/** The position. */
at: number,
/** The numbers of the chunk's free slots in the order of its list. */
list: Array<number>, };

/** A block on a free list. */
export type FreeBlock = {
/** The position. */
at: number,
/** The size. */
bytes: number, };

/** A saved position of an allocator's head. */
export type Mark = {
/** The marker's name. */
name: string,
/** The position. */
at: number,
/** `true` if the allocator refuses the marker, because the head moved below it after it was saved. */
stale: boolean, };

/** A handle. */
export type Named = {
/** The name of the handle, which is also the name of its object. */
name: string,
/** The slot's number. */
slot: number,
/** The generation that the handle carries, which must equal the generation of its slot. */
generation: number,
/** The object that the table returns for the handle, if any. */
finds: string | null, };

/** A slot of a handle table. */
export type Slot = {
/** The current generation; for a free slot, the next generation; `None` if the slot was never in use. */
generation: number | null,
/** The name of the object in the slot, if any. */
object: string | null,
/** `true` if the slot has used up its generations. */
retired: boolean, };

/** The memory of one of the compared allocators. */
export type Lane = {
/** The allocator's name. */
name: string,
/** The state of the memory in a few words. */
says: string,
/** The ranges that the memory consists of, from its start to its end, without gaps. */
parts: Array<Part>,
/** The number of holes before the first turnover and after each turnover; empty if the demo counts no holes. */
curve: Array<number>, };

/** A marked location that is the same in all memories. */
export type Line = {
/** The position. */
at: number,
/** The label of the marked line. */
name: string, };

/** The cache lines of one memory layout: an array of structs, or one array per field or number. */
export type Lines = {
/** The name of the memory layout. */
layout: string,
/** For each number in address order, its field, as an index into the field names. */
fields: Array<number>,
/** For each number, `true` if the walk uses it. */
used: Array<boolean>,
/** For each cache line, `true` if the walk loads it. */
loaded: Array<boolean>, };

/** A step that the allocator made during a command. */
export type Step = {
/** A sentence about the step. */
said: string,
/** The element of the data structure that the step concerns. */
on: On, };

/** The element of the data structure that a step concerns. */
export type On = { "is": "list",
/** The size of the list's blocks. */
bytes: number,
/** `true` if the list contains a block. */
found: boolean, } | { "is": "class",
/** The index of the first-level row. */
row: number,
/** The index of the class in the row. */
cell: number, } | { "is": "word",
/** The index of the row, or `None` for the bitmap of the first level. */
row: number | null,
/** The number of the bit at which the scan began. */
from: number,
/** The set bit that the scan found, if any. */
found: number | null, } | { "is": "inspect",
/** The position. */
at: number,
/** The size. */
bytes: number,
/** `true` if the search keeps the block as its result. */
kept: boolean, } | { "is": "split",
/** The position. */
at: number,
/** The size. */
bytes: number, } | { "is": "neighbour",
/** The position. */
at: number,
/** The size. */
bytes: number,
/** `true` if the neighbour was free, so that the two blocks became one. */
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
/** The index of the memory layout that the walk uses. */
array: number,
/** The line's number. */
line: number, } | { "is": "value",
/** The index of the value before the step. */
from: number,
/** The index of the value after the step. */
to: number, };
