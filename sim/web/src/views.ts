// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

/** A description of a stream before it runs. */
export type About = {
/** The stream's title. */
title: string,
/** The number of CPUs. */
cpus: number,
/** The number of operations. */
operations: number,
/** The names of the stream's caches, indexed by number. */
caches: Array<string>,
/** Texts that user space wrote into the trace. */
marks: Array<Mark>, };

/** A text that user space wrote into the trace. */
export type Mark = {
/** The number of the operation to which the mark belongs. */
operation: number,
/** The mark's text. */
text: string, };

/** The state of the simulated machine after an operation. */
export type View = {
/** The number of operations so far. */
operation: number,
/** The time in the trace, in nanoseconds since its first operation. */
time_ns: number,
/** The steps of the last operation. */
steps: Array<Step>,
/** The number of allocations that have failed so far. */
failed: number,
/** The caches that the stream has used so far, indexed by number. */
caches: Array<SeenCache>,
/** The caches that the web page requested, slab by slab. */
shown: Array<ShownCache>,
/** The state of the machine's pages. */
pages: Pages, };

/** A cache of the stream, with its counts. */
export type SeenCache = {
/** The cache's name. */
name: string,
/** The number of allocations and frees that the stream has requested so far. */
served: number,
/** The size of an object in bytes. */
size: number,
/** The order of the cache's slabs. */
order: number,
/** The number of objects in a slab. */
per_slab: number,
/** The number of objects in a full magazine, or in the container that the design uses instead. */
capacity: number,
/** The number of allocated objects. */
used: number,
/** The number of free objects that CPUs hold in magazines, or in slabs that belong to a CPU. */
in_magazines: number,
/** The number of free objects in the level that all CPUs share. */
in_depot: number,
/** The number of free objects in slabs that no CPU owns. */
free_in_slabs: number,
/** The number of slabs without a free object. */
full: number,
/** The number of slabs with used and free objects. */
partial: number,
/** The number of slabs with only free objects. */
empty: number,
/** The number of magazines exchanged with the level that all CPUs share. */
depot_exchanges: number,
/** The number of slabs created so far. */
slabs_made: number, };

/** A design's counts for one cache. All counts are 0 for large kmalloc, because it has no slabs and no magazines. */
export type CacheCounts = {
/** The size of an object in bytes. */
size: number,
/** The order of the cache's slabs. */
order: number,
/** The number of objects in a slab. */
per_slab: number,
/** The number of objects in a full magazine, or in the container that the design uses instead. */
capacity: number,
/** The number of allocated objects. */
used: number,
/** The number of free objects that CPUs hold in magazines, or in slabs that belong to a CPU. */
in_magazines: number,
/** The number of free objects in the level that all CPUs share. */
in_depot: number,
/** The number of free objects in slabs that no CPU owns. */
free_in_slabs: number,
/** The number of slabs without a free object. */
full: number,
/** The number of slabs with used and free objects. */
partial: number,
/** The number of slabs with only free objects. */
empty: number,
/** The number of magazines exchanged with the level that all CPUs share. */
depot_exchanges: number,
/** The number of slabs created so far. */
slabs_made: number, };

/** Counts of pages. */
export type Pages = {
/** The number of pages that the page allocator manages. */
managed: number,
/** The number of pages in slabs. */
slab: number,
/** The number of pages in large kmalloc objects. */
large: number,
/** The number of pages in blocks that the stream has in use. */
blocks: number,
/** The number of pages in per-CPU magazines. */
per_cpu: number,
/** The number of free pages that are committed. */
free: number,
/** The number of free pages that are not committed. */
uncommitted: number,
/** The number of free blocks for each migrate type, by order. */
orders: Array<[number, number, number]>,
/** The number of uncommitted free blocks, by order. */
uncommitted_orders: Array<number>,
/** The number of blocks in the per-CPU magazines of each CPU, by order. */
cpus: Array<Array<number>>,
/** The number of blocks in the magazines that all CPUs share, by order. */
depot: Array<number>, };

/** A step: an operation, or a part of an operation. Most operations have one step; a free of a block in several pieces has several steps. */
export type Step = {
/** The CPU that ran the step. */
cpu: number,
/** The cache's number in the stream. */
cache: number | null,
/** The location of the object: the first page of its slab, and its index in the slab. */
object: [number, number] | null,
/** The level that served the step. The level is `None` if the step had no effect. */
path: Path | null,
/** A sentence that describes the step. */
sentence: string,
/** The events that the shipping code reported. For the shipping design, the list has all events; for a model, only the events of its page allocator. */
did: Array<string>, } & ({ "what": "alloc" } | { "what": "free",
/** The CPU on which the object was allocated. */
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
/** The order of the resulting blocks. */
order: number, } | { "what": "shrink",
/** The number of objects flushed from CPU layers. */
objects: number,
/** The number of freed slabs. */
slabs: number, } | { "what": "failed" } | { "what": "nothing" });

/** The kind of a step of the stream. */
export type What = { "what": "alloc" } | { "what": "free",
/** The CPU on which the object was allocated. */
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
/** The order of the resulting blocks. */
order: number, } | { "what": "shrink",
/** The number of objects flushed from CPU layers. */
objects: number,
/** The number of freed slabs. */
slabs: number, } | { "what": "failed" } | { "what": "nothing" };

/** A cache, described slab by slab. */
export type ShownCache = {
/** The cache's number in the stream. */
cache: number,
/** For each CPU, its levels in the order in which they serve requests. */
cpus: Array<Array<Level>>,
/** The levels that the CPUs of each node share. */
shared: Array<Array<Level>>,
/** The slabs in the order of their lists: empty slabs, full slabs, then partial slabs by fullness. */
slabs: Array<ShownSlab>, };

/** A slab in the form that a web page draws. */
export type ShownSlab = {
/** The slab's first page. */
page: number,
/** The name of the list that contains the slab. In the shipping allocator, the name is `full`, `partial` or `empty`. */
list: string,
/** One character for each object. The character is `u` for an object in use, `.` for a free object in the slab, and `d` for an object in a depot. Each letter `a` to `z` or `A` to `Z`, except `d` and `u`, means a magazine of one of CPUs 0 to 49, and `+` means a magazine of any later CPU. The letters `d` and `u` have other meanings. */
objects: string, };

/** A level that holds free objects, such as a stack, a sheaf or an array. */
export type Level = {
/** The design's name for the level. */
name: string,
/** The number of objects in the level. */
objects: number,
/** The number of objects that fit into the level. */
room: number,
/** The location of each object: the first page of its slab, and its index in the slab; the last object is allocated next. */
places: Array<[number, number]>, };

/** The condition at which a run stops. A condition names a cache by its number in the stream. */
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

/** The operation at which a run stopped. */
export type Found = {
/** The number of operations that have run so far. */
operation: number,
/** The CPU of the last operation. */
cpu: number,
/** `true` if the last operation allocated or freed the object itself. */
touched: boolean,
/** The new holder of the object, as a character of [`ShownSlab::objects`](crate::view::ShownSlab::objects). The value is `None` if the object's slab was freed. */
holder: string | null, };

export type Path = "cpu" | "depot" | "slab" | "pages" | "commit";

export const DESIGNS: readonly (readonly [name: string, about: string, knobs: readonly (readonly [name: string, means: string])[]])[] = [
  ["uslab", "the shipping allocator", [["capacity", "number of objects in a magazine (0: no magazines): 0 to 64, by default 64 for 64 bytes and 16 for 4096"], ["stock", "number of magazines, in addition to two, that a CPU's stack has room for; requires capacity: 0 to 65535, by default 8"], ["depot_limit", "largest number of full magazines in the depot; requires capacity: 0 to 4096, by default 10"]]],
  ["uslab-model", "a model of the shipping allocator, for virtual time", [["capacity", "number of objects in a magazine (0: no magazines): 0 to 64, by default 64 for 64 bytes and 16 for 4096"], ["first_fill", "objects that a cache's first fill asks for: 1 to 64, by default 1"], ["stock", "magazines that a CPU's stack has room for beyond two: 0 to 65535, by default 17 for 64 bytes and 2 for 4096"], ["depot_limit", "full magazines that the depot keeps: 0 to 4096, by default 1024 for 64 bytes and 64 for 4096"]]],
  ["slub", "a model of SLUB in Linux 6.1 to 6.17: a current slab and partial slabs for each CPU", [["cpu_partial", "objects that a CPU's partial slabs are to have room for (0: one such slab): at least 0, by default 120 for 64 bytes and 6 for 4096"], ["min_partial", "empty slabs that stay on the list of the node: at least 0, by default 5 for 64 bytes and 6 for 4096"], ["slab_min_objects", "objects that a slab is to hold, if its order allows it (0: by the number of CPUs): at least 0, by default 0"], ["slab_min_order", "smallest order of a slab: 0 to 10, by default 0"], ["slab_max_order", "largest order of a slab that holds more than one object: 0 to 10, by default 3"], ["cpus", "number of CPUs of the policy: at least 1, by default 4 on 4 CPUs and 64 on 64"]]],
  ["sheaves-6.18", "a model of SLUB in Linux 6.18 and 6.19: as slub, with sheaves for two caches", [["sheaf_capacity", "objects of a sheaf, for all caches (0: no sheaves); not set, only maple_node and vm_area_struct have sheaves, of 32: 0 to 65536, or P% of each cache's value, by default 0"], ["cpu_partial", "objects that a CPU's partial slabs are to have room for (0: one such slab): at least 0, by default 120 for 64 bytes and 6 for 4096"], ["min_partial", "empty slabs that stay on the list of the node: at least 0, by default 5 for 64 bytes and 6 for 4096"], ["slab_min_objects", "objects that a slab is to hold, if its order allows it (0: by the number of CPUs): at least 0, by default 0"], ["slab_min_order", "smallest order of a slab: 0 to 10, by default 0"], ["slab_max_order", "largest order of a slab that holds more than one object: 0 to 10, by default 3"]]],
  ["sheaves", "a model of SLUB in Linux 7.x: sheaves for each CPU and a barn, for every cache", [["sheaf_capacity", "objects of a sheaf (0: no sheaves): 0 to 65536, or P% of each cache's value, by default 60 for 64 bytes and 4 for 4096"], ["cpu_partial", "accepted as 7.x accepts it, without effect: at least 0, by default 0"], ["min_partial", "empty slabs that stay on the list of the node: at least 0, by default 5 for 64 bytes and 6 for 4096"], ["slab_min_objects", "objects that a slab is to hold, if its order allows it (0: by the number of CPUs): at least 0, by default 0"], ["slab_min_order", "smallest order of a slab: 0 to 10, by default 0"], ["slab_max_order", "largest order of a slab that holds more than one object: 0 to 10, by default 3"]]],
  ["slab", "a model of SLAB in Linux until 6.7: an array for each CPU, and a shared one", [["limit", "objects of a CPU's array: at least 1, by default 120 for 64 bytes and 24 for 4096"], ["batchcount", "objects that move at once, half of limit where it is not set: at least 1, by default 60 for 64 bytes and 12 for 4096"], ["shared", "batches that the shared array has room for: at least 0, by default 8"]]],
  ["bonwick94", "a model of the slab allocator of 1994: one list of slabs, nothing for CPUs", []],
  ["magazines01", "the magazine layer of 2001 over a model of the slabs of 1994", [["magsize", "objects of a magazine at first: at least 1, by default 15 for 64 bytes and 1 for 4096"]]],
];
