// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.

/** What there is to know of a stream before it runs. */
export type About = {
/** What it is called. */
title: string,
/** CPUs. */
cpus: number,
/** Operations. */
operations: number,
/** The names of its caches, by number. */
caches: Array<string>,
/** Texts that user space wrote into the trace. */
marks: Array<Mark>, };

/** A text that user space wrote into the trace. */
export type Mark = {
/** The operation that it is. */
operation: number,
/** The text. */
text: string, };

/** One moment. */
export type View = {
/** Operations that ran. */
operation: number,
/** Nanoseconds of the trace since its first operation. */
time_ns: number,
/** What the last operation did. */
steps: Array<Step>,
/** Allocations that the machine could not serve, so far. */
failed: number,
/** The caches that are known by now, by number in the stream. */
caches: Array<SeenCache>,
/** Those that were asked for, slab by slab. */
shown: Array<ShownCache>,
/** The pages. */
pages: Pages, };

/** A cache of the stream. */
export type SeenCache = {
/** Its name. */
name: string,
/** Allocations and frees that the stream asked for so far. */
served: number,
/** Bytes of an object. */
size: number,
/** Order of a slab. */
order: number,
/** Objects in a slab. */
per_slab: number,
/** Objects of a magazine, or of what the design has of the kind. */
capacity: number,
/** Objects with callers. */
used: number,
/** Free objects that CPUs hold: outside of slabs, or free in a slab that a CPU has to itself. */
in_magazines: number,
/** Objects that all CPUs share outside of slabs. */
in_depot: number,
/** Objects free in slabs that no CPU has to itself. */
free_in_slabs: number,
/** Slabs without a free object, */
full: number,
/** with some, */
partial: number,
/** and with free objects only. */
empty: number,
/** Visits to what CPUs share that moved a magazine. */
depot_exchanges: number,
/** Slabs made so far. */
slabs_made: number, };

/** What a design says of a cache. All is 0 for large kmalloc, which has neither slabs nor magazines. */
export type CacheCounts = {
/** Bytes of an object. */
size: number,
/** Order of a slab. */
order: number,
/** Objects in a slab. */
per_slab: number,
/** Objects of a magazine, or of what the design has of the kind. */
capacity: number,
/** Objects with callers. */
used: number,
/** Free objects that CPUs hold: outside of slabs, or free in a slab that a CPU has to itself. */
in_magazines: number,
/** Objects that all CPUs share outside of slabs. */
in_depot: number,
/** Objects free in slabs that no CPU has to itself. */
free_in_slabs: number,
/** Slabs without a free object, */
full: number,
/** with some, */
partial: number,
/** and with free objects only. */
empty: number,
/** Visits to what CPUs share that moved a magazine. */
depot_exchanges: number,
/** Slabs made so far. */
slabs_made: number, };

/** The pages. */
export type Pages = {
/** In all. */
managed: number,
/** In slabs. */
slab: number,
/** In large objects of kmalloc. */
large: number,
/** In blocks that the stream holds. */
blocks: number,
/** In per-CPU magazines. */
per_cpu: number,
/** Free and committed. */
free: number,
/** Free and not committed. */
uncommitted: number,
/** Free blocks by order, of each migrate type. */
orders: Array<[number, number, number]>,
/** How many of them are not committed, by order. */
uncommitted_orders: Array<number>,
/** Blocks in the per-CPU magazines of each CPU, by order. */
cpus: Array<Array<number>>,
/** Blocks in the magazines that all CPUs share, by order. */
depot: Array<number>, };

/** A part of an operation: most have one, a block that is freed in parts has several. */
export type Step = {
/** The CPU. */
cpu: number,
/** The cache's number in the stream. */
cache: number | null,
/** The slab's first page and the object in it. */
object: [number, number] | null,
/** The dearest thing it did; `None` if it did nothing. */
path: Path | null,
/** All of it in words. */
sentence: string,
/** What shipping code did for it, step by step: all of the shipping design, what pages took for a model. */
did: Array<string>, } & ({ "what": "alloc" } | { "what": "free",
/** The CPU that allocated it. */
allocated_on: number, } | { "what": "pass" } | { "what": "alloc-pages",
/** The first page. */
page: number,
/** The order. */
order: number, } | { "what": "free-pages",
/** The first page. */
page: number,
/** The order. */
order: number, } | { "what": "split-pages",
/** The first page. */
page: number,
/** The order of the parts. */
order: number, } | { "what": "shrink",
/** Objects that reaping gave back. */
objects: number,
/** Slabs that shrinking gave back. */
slabs: number, } | { "what": "failed" } | { "what": "nothing" });

/** What an operation did, in outline. */
export type What = { "what": "alloc" } | { "what": "free",
/** The CPU that allocated it. */
allocated_on: number, } | { "what": "pass" } | { "what": "alloc-pages",
/** The first page. */
page: number,
/** The order. */
order: number, } | { "what": "free-pages",
/** The first page. */
page: number,
/** The order. */
order: number, } | { "what": "split-pages",
/** The first page. */
page: number,
/** The order of the parts. */
order: number, } | { "what": "shrink",
/** Objects that reaping gave back. */
objects: number,
/** Slabs that shrinking gave back. */
slabs: number, } | { "what": "failed" } | { "what": "nothing" };

/** A cache, slab by slab. */
export type ShownCache = {
/** Its number in the stream. */
cache: number,
/** What each CPU holds, the level that serves first before the others. */
cpus: Array<Array<Level>>,
/** What the CPUs of each node share. */
shared: Array<Array<Level>>,
/** Slabs: empty, full, partial by fullness, each list in its order. */
slabs: Array<ShownSlab>, };

/** A slab. */
export type ShownSlab = {
/** Its first page. */
page: number,
/** The list that it is on: `full`, `partial` or `empty` in the shipping allocator. */
list: string,
/** A character an object: `u` in use, `.` free in the slab, `d` in a depot, and `a` to `z` and `A` to `Z` in a magazine of CPU 0 to 51, `+` of a later one. `a` to `z` leave out `d` and `u`. */
objects: string, };

/** A place for objects: a stack, a sheaf, an array. */
export type Level = {
/** What the design calls it. */
name: string,
/** Objects that lie there. */
objects: number,
/** Objects that it has room for. */
room: number,
/** The objects, the next to be handed out last: the first page of the slab, and the object in it. */
places: Array<[number, number]>, };

/** What a run stops at. Caches are numbers in the stream. */
export type Until = { "until": "depot-empty",
/** The cache. */
cache: number, } | { "until": "slab-born",
/** The cache. */
cache: number, } | { "until": "slab-dies",
/** The cache. */
cache: number, } | { "until": "miss",
/** The cache. */
cache: number, } | { "until": "commit" } | { "until": "object",
/** Its cache. */
cache: number,
/** Its slab's first page. */
page: number,
/** Which one of the slab it is. */
index: number, };

/** Where a run stopped. */
export type Found = {
/** After so many operations. */
operation: number,
/** The CPU of the last one. */
cpu: number,
/** Whether that allocated or freed the object itself. */
touched: boolean,
/** Who has the object now, as in [`ShownSlab::objects`](crate::view::ShownSlab::objects); `None` if its slab is gone. */
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
