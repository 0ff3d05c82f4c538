/*
 * Object caches from C: requests of a server, which keep their buffer from use to use.
 *
 *     make -C slab/libuslab install PREFIX=$HOME/.local
 *     export PKG_CONFIG_PATH=$HOME/.local/lib/pkgconfig
 *     cc -o requests slab/examples/requests.c $(pkg-config --cflags --libs uslab-cache) -Wl,-rpath,$HOME/.local/lib
 *     ./requests
 */
#include "uslab.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct request {
    char *buffer; /* made once, with the request's slab */
    unsigned long served;
};

/* 0, or not if there is no memory: then the allocation fails. */
static int construct(void *object, void *built) {
    struct request *request = object;
    request->buffer = malloc(1000);
    *(int *)built += request->buffer != NULL;
    return request->buffer ? 0 : -1;
}
static void destruct(void *object, void *built) {
    (void)built;
    free(((struct request *)object)->buffer);
}

int main(void) {
    int built = 0, error = USLAB_OK;
    struct uslab_cache_options options = {
        .struct_size = sizeof options,
        .name = "request",
        .size = sizeof(struct request),
        .user = &built,
        .ctor = construct,
        .dtor = destruct,
    };
    uslab_cache *requests = uslab_cache_create(&options, &error);
    if (!requests) {
        fprintf(stderr, "uslab_cache_create: %s\n", uslab_error_text(error));
        return 1;
    }
    for (int i = 0; i < 100000; i++) {
        struct request *request = uslab_cache_alloc(requests, &error);
        if (!request) {
            fprintf(stderr, "uslab_cache_alloc: %s\n", uslab_error_text(error));
            return 1;
        }
        snprintf(request->buffer, 1000, "request %d", i);
        request->served++;
        uslab_cache_free(requests, request); /* still constructed */
    }
    printf("100000 requests, %d buffers made\n", built);
    fflush(stdout);
    error = uslab_slabinfo(STDOUT_FILENO);
    if (!error) error = uslab_cache_destroy(requests); /* nothing of it is in use */
    return error;
}
