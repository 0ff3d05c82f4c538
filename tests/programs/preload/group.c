// Frees 60 MiB, then maps 60: in a control group of 100 MiB the malloc may keep only part of the first.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(void) {
    enum { BLOCKS = 60000, MAPPED = 60 << 20 };
    static char *held[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        if (!(held[i] = malloc(1000))) return puts("no memory"), 1;
        memset(held[i], i, 1000);
    }
    for (int i = 0; i < BLOCKS; i++) free(held[i]);
    char *mapped = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return perror("mmap"), 1;
    memset(mapped, 1, MAPPED);
    return puts("all good"), 0;
}
