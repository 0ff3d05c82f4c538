/* Allocates up to RLIMIT_AS, which it sets itself if it is told one in MiB; and then what others need is still to be had.
   With `vfork` a child that shares its memory sets itself a limit. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static void *work(void *p) { return p; }

int main(int argc, char **argv) {
    enum { SIZE = 1000, MOST = 2 << 20 };
    if (argc > 1 && !strcmp(argv[1], "vfork")) {
        free(malloc(SIZE));
        struct rlimit limit = {64 << 20, RLIM_INFINITY};
        pid_t child = vfork();
        if (!child) { setrlimit(RLIMIT_AS, &limit); _exit(0); }
        for (int i = 0; i < 100 << 10; i++) if (!malloc(SIZE)) { puts("a child's limit"); return 1; }
        puts("100");
        return 0;
    }
    if (argc > 1) {
        free(malloc(SIZE));
        struct rlimit limit = {(rlim_t)atol(argv[1]) << 20, RLIM_INFINITY};
        errno = 77;
        if (setrlimit(RLIMIT_AS, &limit) || errno != 77) { puts("setrlimit"); return 1; }
    }
    static char *held[MOST];
    int n = 0;
    while (n < MOST && (held[n] = malloc(SIZE))) memset(held[n++], 1, SIZE);
    if (n == MOST || errno != ENOMEM) { printf("no limit after %d MB\n", n / 1000); return 1; }
    for (int i = 0; i < n / 4; i++) free(held[i]);
    /* The addresses of the heap's range are not all that the limit grants. */
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL) || pthread_join(thread, NULL)) { puts("no thread"); return 1; }
    void *map = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) { puts("nothing can be mapped"); return 1; }
    /* A block of its own, which may lie where the heap's range has been. */
    munmap(map, 8 << 20);
    char *own = malloc(8 << 20);
    if (!own) { puts("no block of its own"); return 1; }
    memset(own, 1, 8 << 20);
    free(own);
    /* What is free again serves, for other sizes, too. */
    for (int i = 0; i < n / 8; i++) if (!(held[i] = malloc(i % 2 ? 500 : SIZE))) { puts("not again"); return 1; }
    printf("%d\n", n / 1000);
    return 0;
}
