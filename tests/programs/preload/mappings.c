/* With `scattered`: how many mappings a heap has of which every second block was freed, and when all were; its KiB then. With `crowded`:
   allocates and frees where the process has nearly as many mappings as it may; some is refused, and all works when there is room again. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SMALL = 9000, LARGE = 60000, PIECE = 5 << 20, BLOCKS = 20000, LARGE_BLOCKS = 12000, PIECES = 40 };

static int mappings(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    int lines = 0;
    for (int c; (c = getc(maps)) != EOF;) lines += c == '\n';
    fclose(maps);
    return lines;
}
static long resident(void) {
    long all, pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (fscanf(statm, "%ld %ld", &all, &pages) != 2) pages = 0;
    fclose(statm);
    return pages * 4;
}
static char *blocks[BLOCKS + LARGE_BLOCKS + PIECES];
/* How many there are of `n` blocks, each of its own content. */
static int allocate(char **to, int n, size_t size) {
    int got = 0;
    for (int i = 0; i < n; i++)
        if ((to[i] = malloc(size))) memset(to[i], i, size), got++;
    return got;
}
static void release(char **from, int n, size_t size, int first, int step) {
    for (int i = first; i < n; i += step) {
        if (from[i] && (from[i][0] != (char)i || from[i][size - 1] != (char)i)) puts("another content"), abort();
        free(from[i]);
        from[i] = NULL;
    }
}
static void scattered(void) {
    allocate(blocks, BLOCKS, SMALL);
    allocate(blocks + BLOCKS, LARGE_BLOCKS, LARGE);
    release(blocks, BLOCKS, SMALL, 0, 2);
    release(blocks + BLOCKS, LARGE_BLOCKS, LARGE, 0, 2);
    printf("%d ", mappings());
    release(blocks, BLOCKS, SMALL, 1, 2);
    release(blocks + BLOCKS, LARGE_BLOCKS, LARGE, 1, 2);
    int left = mappings();
    for (int i = 0; i < 100 && resident() > 20 << 10; i++) usleep(100000), left = mappings();
    printf("%d %ld\n", left, resident());
}
static void use(int *got) {
    got[0] = allocate(blocks, BLOCKS, SMALL);
    got[1] = allocate(blocks + BLOCKS, LARGE_BLOCKS, LARGE);
    got[2] = allocate(blocks + BLOCKS + LARGE_BLOCKS, PIECES, PIECE);
    for (int first = 0; first < 2; first++) {
        release(blocks, BLOCKS, SMALL, first, 2);
        release(blocks + BLOCKS, LARGE_BLOCKS, LARGE, first, 2);
        release(blocks + BLOCKS + LARGE_BLOCKS, PIECES, PIECE, first, 2);
    }
}
static void crowded(size_t most) {
    int got[3], alone[3];
    use(alone);
    char *crowd = mmap(NULL, 2 * most << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (crowd == MAP_FAILED) puts("no room for the crowd"), exit(1);
    size_t made = 0;
    while (made < most && !mprotect(crowd + (2 * made + 1) * 4096, 4096, PROT_READ)) made++;
    if (made == most) puts("the system has no such limit"), exit(1);
    /* Room for a few, then for none. */
    for (int room = 100; room >= 0; room -= 100) {
        for (int i = 0; i < room; i++) mprotect(crowd + (2 * (made - 1 - i) + 1) * 4096, 4096, PROT_READ | PROT_WRITE);
        use(got);
        printf("%d %d %d ", got[0], got[1], got[2]);
    }
    munmap(crowd, 2 * most << 12);
    use(got);
    printf("%d\n", !memcmp(got, alone, sizeof got));
}

int main(int argc, char **argv) {
    if (argc > 2) crowded(strtoul(argv[2], NULL, 10));
    else scattered();
    return 0;
}
