/*
 * uslab: object caches as Linux has them, for C programs.
 *
 * A program that is linked with libuslab, or started with it (LD_PRELOAD), has its malloc too; `uslab_version` tells.
 * Caches may be used from all threads and across forks. Functions that return null or -1 say why in `errno`.
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

/* A cache of objects of one size. */
typedef struct uslab_cache uslab_cache;

/* The numbers of a cache: objects = used + cached + free ones in slabs. */
struct uslab_cache_info {
    size_t object_size; /* bytes of an object, as asked for */
    size_t slab_size;   /* bytes of a slab */
    uint64_t slabs;     /* slabs in all */
    uint64_t objects;   /* objects in all slabs */
    uint64_t used;      /* objects in the program's hands */
    uint64_t cached;    /* objects in magazines and depots */
    uint64_t allocs;    /* objects handed out since the cache was made */
    uint64_t frees;     /* objects taken back */
};

/*
 * A cache of objects of `size` bytes, aligned to `align` (a power of two; 0: to a word). `name` appears in the table of
 * caches and has no blanks. `ctor`, if it is not null, runs on each object when its slab is made, zeroed, and not when it is
 * allocated: an object is handed out as its last user left it. Null with EINVAL or ENOMEM.
 */
uslab_cache *uslab_cache_create(const char *name, size_t size, size_t align, void (*ctor)(void *object));

/* Gives the cache's memory back. -1 with EBUSY while objects are in use: then it goes on as before. */
int uslab_cache_destroy(uslab_cache *cache);

/* An object; its bytes are unspecified, or as its constructor or its last user left them. Null with ENOMEM. */
void *uslab_cache_alloc(uslab_cache *cache);

/* A zeroed object; of a cache with a constructor as uslab_cache_alloc. Null with ENOMEM. */
void *uslab_cache_zalloc(uslab_cache *cache);

/* `n` objects to `out`, or none: -1 with ENOMEM. */
int uslab_cache_alloc_bulk(uslab_cache *cache, size_t n, void **out);

/* Takes an object back; null is nothing. `errno` stays. */
void uslab_cache_free(uslab_cache *cache, void *object);

/* Gives back all slabs without objects in use, those whose objects are merely cached included. How many. */
size_t uslab_cache_shrink(uslab_cache *cache);

/* The numbers now. */
void uslab_cache_info(const uslab_cache *cache, struct uslab_cache_info *info);

/* Writes the table of the caches that ever had a slab, malloc's included, as /proc/slabinfo has it. -1 with the error of
   writing. */
int uslab_slabinfo(int fd);

#ifdef __cplusplus
}
#endif

#endif
