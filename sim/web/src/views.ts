// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

/** A description of a stream before it runs. */
export type About = {
/** The stream's title. */
title: string,
/** The number of CPUs. */
cpus: number,
/** The number of operations. */
operations: number,
/** The names of the stream's caches, by number. */
caches: Array<string>,
/** Texts that user space wrote into the trace. */
marks: Array<Mark>, };

/** A text that user space wrote into the trace. */
export type Mark = {
/** The number of the mark's operation. */
operation: number,
/** The mark's text. */
text: string, };

/** The state of the machine after an operation. */
export type View = {
/** The number of operations so far. */
operation: number,
/** Nanoseconds of the trace since its first operation. */
time_ns: number,
/** The steps of the last operation. */
steps: Array<Step>,
/** The number of allocations so far that failed. */
failed: number,
/** The caches known so far, by number in the stream. */
caches: Array<SeenCache>,
/** The requested caches, slab by slab. */
shown: Array<ShownCache>,
/** The state of the machine's pages. */
pages: Pages, };

/** A cache of the stream, with its counts. */
export type SeenCache = {
/** The cache's name. */
name: string,
/** Allocations and frees that the stream requested so far. */
served: number,
/** The size of an object in bytes. */
size: number,
/** The order of the cache's slabs. */
order: number,
/** The number of objects in a slab. */
per_slab: number,
/** The number of objects in a full magazine, or in the design's counterpart. */
capacity: number,
/** The number of allocated objects. */
used: number,
/** Free objects held by CPUs: in magazines, or in a slab that a CPU owns. */
in_magazines: number,
/** Free objects in the level that all CPUs share above the slabs. */
in_depot: number,
/** Free objects in slabs that no CPU owns. */
free_in_slabs: number,
/** Slabs without a free object. */
full: number,
/** Slabs with used and free objects. */
partial: number,
/** Slabs with only free objects. */
empty: number,
/** Exchanges of magazines with the shared level. */
depot_exchanges: number,
/** The number of slabs created so far. */
slabs_made: number, };

/** A design's counts for one cache. All counts are 0 for large kmalloc, which has neither slabs nor magazines. */
export type CacheCounts = {
/** The size of an object in bytes. */
size: number,
/** The order of the cache's slabs. */
order: number,
/** The number of objects in a slab. */
per_slab: number,
/** The number of objects in a full magazine, or in the design's counterpart. */
capacity: number,
/** The number of allocated objects. */
used: number,
/** Free objects held by CPUs: in magazines, or in a slab that a CPU owns. */
in_magazines: number,
/** Free objects in the level that all CPUs share above the slabs. */
in_depot: number,
/** Free objects in slabs that no CPU owns. */
free_in_slabs: number,
/** Slabs without a free object. */
full: number,
/** Slabs with used and free objects. */
partial: number,
/** Slabs with only free objects. */
empty: number,
/** Exchanges of magazines with the shared level. */
depot_exchanges: number,
/** The number of slabs created so far. */
slabs_made: number, };

/** Counts of pages. */
export type Pages = {
/** The number of managed pages. */
managed: number,
/** The number of pages in slabs. */
slab: number,
/** The number of pages in large kmalloc objects. */
large: number,
/** The number of pages in blocks that the stream holds. */
blocks: number,
/** The number of pages in per-CPU magazines. */
per_cpu: number,
/** The number of free, committed pages. */
free: number,
/** The number of free, uncommitted pages. */
uncommitted: number,
/** Free blocks by order, for each migrate type. */
orders: Array<[number, number, number]>,
/** The number of uncommitted free blocks, by order. */
uncommitted_orders: Array<number>,
/** Blocks in the per-CPU magazines of each CPU, by order. */
cpus: Array<Array<number>>,
/** Blocks in the magazines that all CPUs share, by order. */
depot: Array<number>, };

/** A part of an operation. Most operations have one part; a block that is freed in parts has several. */
export type Step = {
/** The CPU that ran the step. */
cpu: number,
/** The cache's number in the stream. */
cache: number | null,
/** The first page of the object's slab, and the object's index in it. */
object: [number, number] | null,
/** The level at which the step was served; `None` if it did nothing. */
path: Path | null,
/** A description of the step. */
sentence: string,
/** The events that the shipping code reported: all events for the shipping design, only page events for a model. */
did: Array<string>, } & ({ "what": "alloc" } | { "what": "free",
/** The CPU that allocated the object. */
allocated_on: number, } | { "what": "pass" } | { "what": "alloc-pages",
/** The block's first page. */
page: number,
/** The block's order. */
order: number, } | { "what": "free-pages",
/** The block's first page. */
page: number,
/** The block's order. */
order: number, } | { "what": "split-pages",
/** The block's first page. */
page: number,
/** The order of the parts. */
order: number, } | { "what": "shrink",
/** The number of objects flushed from CPU layers. */
objects: number,
/** The number of freed slabs. */
slabs: number, } | { "what": "failed" } | { "what": "nothing" });

/** The kind of a step. */
export type What = { "what": "alloc" } | { "what": "free",
/** The CPU that allocated the object. */
allocated_on: number, } | { "what": "pass" } | { "what": "alloc-pages",
/** The block's first page. */
page: number,
/** The block's order. */
order: number, } | { "what": "free-pages",
/** The block's first page. */
page: number,
/** The block's order. */
order: number, } | { "what": "split-pages",
/** The block's first page. */
page: number,
/** The order of the parts. */
order: number, } | { "what": "shrink",
/** The number of objects flushed from CPU layers. */
objects: number,
/** The number of freed slabs. */
slabs: number, } | { "what": "failed" } | { "what": "nothing" };

/** A cache, shown slab by slab. */
export type ShownCache = {
/** The cache's number in the stream. */
cache: number,
/** The levels of each CPU, in the order in which they serve. */
cpus: Array<Array<Level>>,
/** The levels that the CPUs of each node share. */
shared: Array<Array<Level>>,
/** The slabs in list order: empty, full, then partial by fullness. */
slabs: Array<ShownSlab>, };

/** A slab, as a picture shows it. */
export type ShownSlab = {
/** The slab's first page. */
page: number,
/** The list of the slab: `full`, `partial` or `empty` in the shipping allocator. */
list: string,
/** A character for each object: `u` in use, `.` free in the slab, `d` in a depot. `a` to `z` and `A` to `Z` are magazines of CPU 0 to 51, `+` of later CPUs. The letters `d` and `u` are skipped in `a` to `z`. */
objects: string, };

/** A level that holds objects: a stack, a sheaf, an array. */
export type Level = {
/** The design's name for the level. */
name: string,
/** The number of objects in the level. */
objects: number,
/** The number of objects that fit into the level. */
room: number,
/** The place of each object, the next to be allocated last: its slab's first page, and its index in the slab. */
places: Array<[number, number]>, };

/** The condition at which a run stops. A cache is named by its number in the stream. */
export type Until = { "until": "depot-empty",
/** The cache's number. */
cache: number, } | { "until": "slab-born",
/** The cache's number. */
cache: number, } | { "until": "slab-dies",
/** The cache's number. */
cache: number, } | { "until": "miss",
/** The cache's number. */
cache: number, } | { "until": "commit" } | { "until": "object",
/** The number of the object's cache. */
cache: number,
/** The first page of the object's slab. */
page: number,
/** The object's index in its slab. */
index: number, };

/** The point at which a run stopped. */
export type Found = {
/** The number of operations that ran. */
operation: number,
/** The CPU of the last operation. */
cpu: number,
/** `true` if the last operation allocated or freed the object itself. */
touched: boolean,
/** The new holder of the object, as in [`ShownSlab::objects`](crate::view::ShownSlab::objects); `None` if its slab was freed. */
holder: string | null, };

export type Path = "cpu" | "depot" | "slab" | "pages" | "commit";

export const DESIGNS: readonly (readonly [name: string, about: string, knobs: readonly (readonly [name: string, means: string])[]])[] = [
  ["uslab", "the shipping allocator", [["capacity", "objects of a magazine (0: no magazines): 0 to 64, by default 64 for 64 bytes and 16 for 4096"], ["stock", "magazines that a CPU's stack has room for beyond two, beside capacity: 0 to 65535, by default 8"], ["depot_limit", "full magazines that the depot keeps, beside capacity: 0 to 4096, by default 10"]]],
  ["uslab-model", "a model of the shipping allocator, for virtual time", [["capacity", "objects of a magazine: 1 to 64, by default 64 for 64 bytes and 16 for 4096"], ["first_fill", "objects that a cache's first fill asks for: 1 to 64, by default 1"], ["stock", "magazines that a CPU's stack has room for beyond two: 0 to 65535, by default 17 for 64 bytes and 2 for 4096"], ["depot_limit", "full magazines that the depot keeps: 0 to 4096, by default 1024 for 64 bytes and 64 for 4096"]]],
  ["slub", "a model of SLUB in Linux 6.1 to 6.17: a current slab and partial slabs for each CPU", [["cpu_partial", "objects that a CPU's partial slabs are to have room for (0: one such slab): at least 0, by default 120 for 64 bytes and 6 for 4096"], ["min_partial", "empty slabs that stay on the list of the node: at least 0, by default 5 for 64 bytes and 6 for 4096"], ["slab_min_objects", "objects that a slab is to hold, if its order allows it (0: by the number of CPUs): at least 0, by default 0"], ["slab_min_order", "smallest order of a slab: 0 to 10, by default 0"], ["slab_max_order", "largest order of a slab that holds more than one object: 0 to 10, by default 3"], ["cpus", "CPUs that the policy has: at least 1, by default 4 on 4 CPUs and 64 on 64"]]],
  ["sheaves-6.18", "a model of SLUB in Linux 6.18 and 6.19: as slub, with sheaves for two caches", [["sheaf_capacity", "objects of a sheaf, for all caches (0: no sheaves); not set, only maple_node and vm_area_struct have sheaves, of 32: at least 0, by default 0"], ["cpu_partial", "objects that a CPU's partial slabs are to have room for (0: one such slab): at least 0, by default 120 for 64 bytes and 6 for 4096"], ["min_partial", "empty slabs that stay on the list of the node: at least 0, by default 5 for 64 bytes and 6 for 4096"], ["slab_min_objects", "objects that a slab is to hold, if its order allows it (0: by the number of CPUs): at least 0, by default 0"], ["slab_min_order", "smallest order of a slab: 0 to 10, by default 0"], ["slab_max_order", "largest order of a slab that holds more than one object: 0 to 10, by default 3"]]],
  ["sheaves", "a model of SLUB in Linux 7.x: sheaves for each CPU and a barn, for every cache", [["sheaf_capacity", "objects of a sheaf (0: no sheaves): at least 0, by default 60 for 64 bytes and 4 for 4096"], ["cpu_partial", "accepted as 7.x accepts it, without effect: at least 0, by default 0"], ["min_partial", "empty slabs that stay on the list of the node: at least 0, by default 5 for 64 bytes and 6 for 4096"], ["slab_min_objects", "objects that a slab is to hold, if its order allows it (0: by the number of CPUs): at least 0, by default 0"], ["slab_min_order", "smallest order of a slab: 0 to 10, by default 0"], ["slab_max_order", "largest order of a slab that holds more than one object: 0 to 10, by default 3"]]],
  ["slab", "a model of SLAB in Linux until 6.7: an array for each CPU, and a shared one", [["limit", "objects of a CPU's array: at least 1, by default 120 for 64 bytes and 24 for 4096"], ["batchcount", "objects that move at once, half of limit where it is not set: at least 1, by default 60 for 64 bytes and 12 for 4096"], ["shared", "batches that the shared array has room for: at least 0, by default 8"]]],
  ["bonwick94", "a model of the slab allocator of 1994: one list of slabs, nothing for CPUs", []],
  ["magazines01", "the magazine layer of 2001 over a model of the slabs of 1994", [["magsize", "objects of a magazine at first: at least 1, by default 15 for 64 bytes and 1 for 4096"]]],
];
