/*
 * uslab: object caches as Linux has them, for C programs. Two libraries have them:
 *
 *   libuslab-cache   object caches, and nothing else: the program keeps the malloc that it has   pkg-config uslab-cache
 *   libuslab         the same, and the program's malloc, C++'s new and delete included           pkg-config uslab
 *
 * Sizes are in bytes, times in milliseconds. What may fail returns an `enum uslab_error`, or null and the error by a pointer, which may
 * be null; `errno` says something only where that is written. `uslab_error_text` has a sentence for each. Unless flags or USLAB_OPTIONS
 * ask for more, nothing prints, and nothing ends the program but the free of what is no object in use: it says so on standard error,
 * and aborts. (At the very end of memory two calls may do so: a cache that is made while other threads take what is left, and a
 * report, which is a text.)
 *
 * Threads: caches may be used by all threads at once, and an object be freed by another thread than it was allocated by. Not
 * `uslab_cache_destroy`: see there. Signal handlers should not allocate.
 *
 * Forks: caches may be used in the child of a fork, whatever other threads did at the time. What these had in hand just then, objects in
 * use too, is lost to the child. A child of vfork must not use caches.
 *
 * Never unload a library of these (dlclose): the kernel knows parts of it.
 */
#ifndef USLAB_H
#define USLAB_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, a static string. */
const char *uslab_version(void);

enum uslab_error {
    USLAB_OK,
    USLAB_NO_MEMORY,   /* no memory is available */
    USLAB_AT_LIMIT,    /* the cache is at its limit */
    USLAB_REFUSED,     /* the constructor of an object failed */
    USLAB_TOO_MANY,    /* more objects were requested than can exist */
    USLAB_BAD_NAME,    /* the name is missing, empty or contains blanks */
    USLAB_BAD_SIZE,    /* size 0, an alignment that is no power of two, more than 4 MiB */
    USLAB_BAD_OPTIONS, /* options that conflict, or that this version does not support */
    USLAB_BUSY,        /* objects of the cache are in use */
    USLAB_DAMAGED,     /* uslab_check found something wrong */
    USLAB_NOT_WRITTEN  /* the table could not be written; errno has the reason */
};

/* What the error means, a static string. */
const char *uslab_error_text(int error);

/* A cache of objects of one size. */
typedef struct uslab_cache uslab_cache;

/* Flags of a cache. */
enum {
    USLAB_HARDWARE_ALIGN = 1, /* aligns objects to the cache line, or to the part of it that they fill */
    USLAB_ZERO_ON_FREE = 2,   /* fills objects with zeros when they are freed; not with a constructor or a destructor */
    USLAB_CHECK_FREES = 4,    /* each free looks whether it is of an object in use: some 5 ns an object */
    USLAB_MERGE = 8,          /* may share its slabs, numbers and reports with other caches of that size that ask for it */
    USLAB_RECLAIMABLE = 16,   /* its objects can be dropped when memory is short */
    USLAB_DMA = 32,           /* its pages are of zone DMA */
    USLAB_NO_MAGAZINES = 64,  /* nothing is kept for CPUs: each call takes a lock; for caches that are rarely used */
    /* To find mistakes, as Linux's slab_debug; each of these checks frees, too. What is found is reported, with who allocated the object
       and who freed it, and ends the program. Under libuslab USLAB_OPTIONS=slab_debug=FZPU does it for all caches. */
    USLAB_RED_ZONE = 128, /* Z: the bytes around each object are watched */
    USLAB_POISON = 256,   /* P: free objects are overwritten, and watched; not with a constructor or a destructor */
    USLAB_USERS = 512,    /* U: who allocated an object, and who freed it: some microseconds each */
    USLAB_TRACE = 1024,   /* T: each allocation and free is told on standard error */

    USLAB_CONSTRUCT_SLABS = 2048 /* constructs all objects of a slab when it is made, and destructs them with it, as Linux does */
};

/* What `limit` counts. */
enum { USLAB_OBJECTS, USLAB_BYTES, USLAB_SLABS };

/*
 * What a cache is made of. Set `struct_size`, `name` and `size`, and leave the rest zero that you do not need:
 *
 *     struct uslab_cache_options options = { .struct_size = sizeof options, .name = "request", .size = sizeof(struct request) };
 *
 * The functions run without any lock of the library, in whatever thread needs more memory or gives some back; they get `user`. They may
 * use other caches. An exception of theirs aborts the process. They must not jump out, nor destroy their own cache, nor wait for a lock
 * that somebody holds who allocates, frees or destroys.
 */
struct uslab_cache_options {
    size_t struct_size; /* of this struct: by it a library knows a program that was made for another version */
    const char *name;   /* in reports; without blanks; copied */
    size_t size;        /* of an object, in bytes: 1 to 4 MiB */
    size_t align;       /* in bytes, a power of two; 0: a word */
    unsigned flags;
    unsigned limit_unit; /* USLAB_OBJECTS, USLAB_BYTES or USLAB_SLABS */
    uint64_t limit;      /* the most that the cache may have, rounded up to slabs; 0: no limit */
    void *user;          /* for the functions */

    /* Constructs an object, zeroed, when it leaves its slab for the first time, in the thread that allocates. Later allocations hand it
       out as its last user left it. Not 0: it could not be constructed. Then the allocation fails with USLAB_REFUSED. */
    int (*ctor)(void *object, void *user);
    /* Destructs a free object, as its last user left it, when the cache shrinks or is reaped, or when its slab goes back to the pages. */
    void (*dtor)(void *object, void *user);

    /* Both or none. Asked before an allocation fails at the cache's limit, or for want of memory: how many objects the program could
       drop now; and to drop up to so many, the least useful ones first, and say how many it did. */
    size_t (*shrinker_count)(void *user);
    size_t (*shrinker_scan)(size_t objects, void *user);

    /* Bytes that each constructed object holds beside its own, such as a buffer of its constructor. They count to a limit in bytes, CPUs
       keep fewer such objects, and free ones in slabs hold 2 MiB at most; 0: not known. */
    size_t holds;
};

/*
 * A cache. Null with USLAB_BAD_NAME, USLAB_BAD_SIZE, USLAB_BAD_OPTIONS or USLAB_NO_MEMORY.
 *
 * Cost: some 1,300 bytes and microseconds; slabs are made when they are needed.
 */
uslab_cache *uslab_cache_create(const struct uslab_cache_options *options, int *error);

/*
 * Gives the cache's memory back; null is nothing. USLAB_BUSY while objects are in use: then it goes on as before. (One that shares its
 * slabs, USLAB_MERGE, goes without that look while others share them.)
 *
 * Nobody else uses the cache meanwhile, nor anybody afterwards. When it has returned USLAB_OK none of the cache's functions runs any more, in
 * any thread: it waits for those that do, so they must not wait for the caller, nor call it. In the child of a fork it waits for
 * the child's threads only.
 */
int uslab_cache_destroy(uslab_cache *cache);

/*
 * An object; its bytes are unspecified, or as its constructor or its last user left them. Null with USLAB_NO_MEMORY, USLAB_AT_LIMIT or
 * USLAB_REFUSED. `*error` is written only then.
 *
 * Cost: a few nanoseconds, nothing shared with other CPUs; once in 64 objects or fewer a lock.
 */
void *uslab_cache_alloc(uslab_cache *cache, int *error);

/* A zeroed object; of a cache with a constructor or a destructor as uslab_cache_alloc. */
void *uslab_cache_zalloc(uslab_cache *cache, int *error);

/* As uslab_cache_alloc; at the cache's limit it waits its turn for an object, so many milliseconds at most. */
void *uslab_cache_acquire(uslab_cache *cache, uint64_t milliseconds, int *error);

/* `n` objects to `out`, or none. Errors as uslab_cache_alloc, and USLAB_TOO_MANY. */
int uslab_cache_alloc_bulk(uslab_cache *cache, size_t n, void **out);

/* Takes an object back; null is nothing. `errno` stays. Cost: as uslab_cache_alloc. */
void uslab_cache_free(uslab_cache *cache, void *object);

/* Takes `n` objects back; nulls are nothing. `errno` stays. */
void uslab_cache_free_bulk(uslab_cache *cache, size_t n, void *const *objects);

/* Gives back all slabs without objects in use, those whose objects are merely kept for CPUs included. How many. */
size_t uslab_cache_shrink(uslab_cache *cache);

/* Looks at all objects of a cache with USLAB_RED_ZONE or USLAB_POISON: whether anybody wrote where nobody may. That is reported as ever, and
   ends the program. 0 of a cache that is well. Only while nobody else uses the cache. */
uint64_t uslab_cache_validate(const uslab_cache *cache);

/* Writes who allocated the objects in use, by call stack: of a cache with USLAB_USERS. USLAB_NOT_WRITTEN with `errno`. */
int uslab_cache_alloc_traces(const uslab_cache *cache, int fd);

/* Ends an interval: gives back what was kept for CPUs and not needed since the last one. How many objects. */
uint64_t uslab_cache_reap(uslab_cache *cache);

/* The numbers of a cache: objects = used + cached + free ones in slabs. Exact while nobody uses it. */
struct uslab_cache_info {
    size_t struct_size;   /* set it before the call: as in the options */
    size_t object_size;   /* bytes of an object, as asked for */
    size_t slab_size;     /* bytes of a slab */
    uint64_t slabs;       /* slabs in all */
    uint64_t objects;     /* objects in all slabs */
    uint64_t used;        /* objects in the program's hands */
    uint64_t cached;      /* objects in magazines and depots, kept for CPUs, and in quarantine */
    uint64_t allocs;      /* objects handed out since the cache was made */
    uint64_t frees;       /* objects taken back */
    uint64_t failures;    /* allocations that failed */
    uint64_t constructed; /* times that the constructor ran */
    uint64_t destructed;  /* and the destructor */
    uint64_t limit;       /* the most slabs; 0: no limit */
};

/* The numbers now. Cost: every CPU's words are read, each node's lock is taken. */
void uslab_cache_info(const uslab_cache *cache, struct uslab_cache_info *info);

/*
 * Walks all caches and pages, and looks whether anything is lost or where it should not be: USLAB_DAMAGED, and what it is to `text`, at most
 * `size` bytes with the NUL (null: not wanted). Only while no other thread uses a cache. Under libuslab: nor malloc, and without a reaper
 * (USLAB_OPTIONS=reap=MS).
 */
int uslab_check(char *text, size_t size);

/* Ends an interval of all caches, and gives the memory back to the system that was of no use throughout it. How many bytes. */
size_t uslab_reap(void);

/* Writes the table of the caches that ever had a slab (under libuslab, malloc's, too) as /proc/slabinfo has it. USLAB_NOT_WRITTEN
   with `errno`. */
int uslab_slabinfo(int fd);

/* Writes who holds objects, by call stack, and how many of these no word of the process's memory leads to: of caches whose frees are
   checked, with USLAB_USERS by whom they were allocated. Under libuslab USLAB_OPTIONS=leaks=1 tells the unreachable ones when the process
   ends, malloc's, too. USLAB_NOT_WRITTEN with `errno`. */
int uslab_leaks(int fd);

#ifdef __cplusplus
}
#endif

#endif
