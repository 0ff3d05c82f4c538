/* A thousand blocks, of which half are lost, half in lists: each in the block before it, the first one in a block of pages. */
#include "../../slab/libuslab/uslab.h"
#include <stdio.h>
#include <stdlib.h>

static void ***kept;

static void fill(void) {
    for (int i = 0; i < 500; i++) {
        void **block = malloc(300);
        block[1] = *kept;
        *kept = block;
        /* Nobody has this one. */
        void *volatile lost = malloc(300);
        lost = NULL;
        (void)lost;
    }
}

int main(void) {
    struct uslab_cache_options options = { .struct_size = sizeof options, .name = "other", .size = 64 };
    uslab_cache *other = uslab_cache_create(&options, NULL);
    kept = calloc(1, 100000);
    fill();
    puts("ready");
    fflush(stdout);
    getchar();
    return *kept == NULL || other == NULL;
}
