/* A thousand blocks, of which half are lost, half in lists: each in the block before it. */
#include <stdio.h>
#include <stdlib.h>

static void **kept;

static void fill(void) {
    for (int i = 0; i < 500; i++) {
        void **block = malloc(300);
        block[1] = kept;
        kept = block;
        /* Nobody has this one. */
        void *volatile lost = malloc(300);
        lost = NULL;
        (void)lost;
    }
}

int main(void) {
    fill();
    puts("ready");
    fflush(stdout);
    getchar();
    return kept == NULL;
}
