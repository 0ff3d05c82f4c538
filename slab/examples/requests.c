/*
 * Object caches from C: requests of a server, which keep their buffer from use to use.
 *
 *     cargo build --release -p libuslab
 *     cc -I slab/libuslab -o requests slab/examples/requests.c -L target/release -luslab -Wl,-rpath,$PWD/target/release
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

static int built;

static void construct(void *object) {
    struct request *request = object;
    request->buffer = malloc(1000);
    built++;
}

int main(void) {
    uslab_cache *requests = uslab_cache_create("request", sizeof(struct request), 0, construct);
    if (!requests) {
        perror("uslab_cache_create");
        return 1;
    }
    for (int i = 0; i < 100000; i++) {
        struct request *request = uslab_cache_alloc(requests);
        if (!request || !request->buffer) {
            perror("uslab_cache_alloc");
            return 1;
        }
        snprintf(request->buffer, 1000, "request %d", i);
        request->served++;
        uslab_cache_free(requests, request); /* still constructed */
    }
    printf("100000 requests, %d buffers made\n", built);
    fflush(stdout);
    return uslab_slabinfo(STDOUT_FILENO) == 0 ? 0 : 1;
}
