// Frees as many MiB as its argument says, then maps as many: a malloc in a control group that has not room for both twice may keep only part
// of the first.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    enum { SIZE = 1000, MOST = 1 << 20 };
    static char *held[MOST];
    size_t bytes = (size_t)atoi(argv[argc - 1]) << 20;
    int blocks = bytes / SIZE;
    if (!blocks || blocks > MOST) return puts("how many MiB?"), 1;
    for (int i = 0; i < blocks; i++) {
        if (!(held[i] = malloc(SIZE))) return puts("no memory"), 1;
        memset(held[i], i, SIZE);
    }
    for (int i = 0; i < blocks; i++) free(held[i]);
    char *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return perror("mmap"), 1;
    memset(mapped, 1, bytes);
    return puts("all good"), 0;
}
