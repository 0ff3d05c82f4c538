/* What C programs rely on, one check a line; the number of the line that does not hold is printed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
#define ALIGNED(p, n) ((uintptr_t)(p) % (n) == 0)

/* The compiler knows malloc and would leave out what it finds useless. */
static void *volatile sink;
static void *keep(void *p) { sink = p; return sink; }

static int zero(const unsigned char *p, size_t n) {
    while (n--) if (*p++) return 0;
    return 1;
}

static void sizes(void) {
    static const size_t all[] = {0, 1, 8, 15, 16, 17, 100, 1000, 4096, 8192, 8193, 70000, 1 << 20, 4 << 20, (4 << 20) + 1, 9 << 20};
    void *held[16];
    for (int i = 0; i < 16; i++) {
        held[i] = keep(malloc(all[i]));
        CHECK(held[i] && ALIGNED(held[i], 16) && malloc_usable_size(held[i]) >= all[i]);
        memset(held[i], i + 1, malloc_usable_size(held[i]));
        for (int j = 0; j < i; j++) CHECK(held[j] != held[i]);
    }
    for (int i = 0; i < 16; i++) {
        size_t n = malloc_usable_size(held[i]);
        for (size_t k = 0; k < n; k += 61) CHECK(((unsigned char *)held[i])[k] == i + 1);
        errno = 77;
        free(held[i]);
        CHECK(errno == 77);
        unsigned char *clean = keep(calloc(all[i] / 4 + 1, 4));
        CHECK(clean && zero(clean, all[i] / 4 * 4 + 4));
        memset(clean, 0xff, all[i] / 4 * 4 + 4);
        free(clean);
    }
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
}

static void too_much(void) {
    static const size_t all[] = {SIZE_MAX, SIZE_MAX / 2, PTRDIFF_MAX, (size_t)PTRDIFF_MAX - 4096, (size_t)1 << 60};
    for (int i = 0; i < 5; i++) {
        errno = 0; CHECK(!keep(malloc(all[i])) && errno == ENOMEM);
        errno = 0; CHECK(!keep(calloc(1, all[i])) && errno == ENOMEM);
        errno = 0; CHECK(!keep(valloc(all[i])) && errno == ENOMEM);
        errno = 0; CHECK(!keep(pvalloc(all[i])) && errno == ENOMEM);
        errno = 0; CHECK(!keep(memalign(64, all[i])) && errno == ENOMEM);
        char *p = keep(malloc(100));
        strcpy(p, "as it was");
        errno = 0; CHECK(!keep(realloc(p, all[i])) && errno == ENOMEM);
        errno = 0; CHECK(!keep(reallocarray(p, all[i], 2)) && errno == ENOMEM);
        CHECK(!strcmp(p, "as it was"));
        free(p);
    }
    errno = 0; CHECK(!keep(calloc(SIZE_MAX / 2, 3)) && errno == ENOMEM);
}

static void alignments(void) {
    void *p;
    for (size_t align = 8; align <= 16 << 20; align *= 2)
        for (size_t size = 1; size <= 100000; size = size * 7 + 3) {
            CHECK(posix_memalign(&p, align, size) == 0 && ALIGNED(p, align));
            memset(p, 1, size); free(p);
            p = keep(aligned_alloc(align, size)); CHECK(p && ALIGNED(p, align)); memset(p, 2, size); free(p);
            p = keep(memalign(align, size)); CHECK(p && ALIGNED(p, align)); memset(p, 3, size); free(p);
        }
    p = &p; errno = 5;
    CHECK(posix_memalign(&p, 24, 8) == EINVAL && posix_memalign(&p, 4, 8) == EINVAL && posix_memalign(&p, 0, 8) == EINVAL);
    CHECK(posix_memalign(&p, 64, SIZE_MAX - 4096) == ENOMEM && p == (void *)&p && errno == 5);
    p = keep(aligned_alloc(24, 8)); CHECK(p && ALIGNED(p, 32)); free(p);
    p = keep(aligned_alloc(0, 8)); CHECK(p && ALIGNED(p, 16)); free(p);
    p = keep(aligned_alloc(64, 1)); CHECK(p && ALIGNED(p, 64)); free(p);
    errno = 0; CHECK(!keep(aligned_alloc(SIZE_MAX, 8)) && errno == EINVAL);
    p = keep(memalign(24, 8)); CHECK(p && ALIGNED(p, 32)); free(p);
    p = keep(valloc(10)); CHECK(p && ALIGNED(p, 4096)); free(p);
    p = keep(pvalloc(10)); CHECK(p && ALIGNED(p, 4096) && malloc_usable_size(p) >= 4096); free(p);
}

static void reallocations(void) {
    unsigned char *p = keep(realloc(NULL, 10));
    CHECK(p && ALIGNED(p, 16));
    size_t size = 10;
    memset(p, 1, size);
    unsigned state = 1;
    for (int i = 0; i < 3000; i++) {
        state = state * 1103515245 + 12345;
        size_t next = 1 + (state >> 4) % (i % 50 == 0 ? 12u << 20 : i % 7 == 0 ? 60000 : 500);
        p = keep(realloc(p, next));
        CHECK(p && ALIGNED(p, 16) && malloc_usable_size(p) >= next);
        size_t both = size < next ? size : next;
        CHECK(p[0] == (unsigned char)(i + 1) && p[both - 1] == (unsigned char)(i + 1) && p[both / 2] == (unsigned char)(i + 1));
        memset(p, i + 2, next);
        size = next;
    }
    CHECK(!keep(realloc(p, 0)));
    p = keep(reallocarray(NULL, 10, 10)); CHECK(p); p = keep(reallocarray(p, 100, 100)); CHECK(p); free(p);
}

static void numbers(void) {
    enum { N = 20000 };
    static void *held[N];
    struct mallinfo2 before = mallinfo2();
    for (int i = 0; i < N; i++) { held[i] = keep(malloc(1000)); memset(held[i], 1, 1000); }
    void *huge = keep(malloc(10 << 20));
    struct mallinfo2 now = mallinfo2();
    struct mallinfo old = mallinfo();
    size_t grown = now.uordblks - before.uordblks;
    CHECK(grown >= N * 1000 && grown < N * 1200);
    CHECK(now.uordblks + now.fordblks == now.arena && now.arena >= grown);
    CHECK(now.hblks == before.hblks + 1 && now.hblkhd - before.hblkhd >= 10 << 20);
    CHECK((size_t)old.uordblks == now.uordblks && (size_t)old.hblkhd == now.hblkhd);
    free(huge);
    for (int i = 0; i < N; i++) free(held[i]);
    CHECK(malloc_trim(0) == 1);
    fclose(fopen("/proc/self/statm", "r"));
    CHECK(malloc_trim(0) == 0); // once 1: what stdio had used was counted
    now = mallinfo2();
    // The guard allocates the table of its slots at its first sample, which may have been one of these.
    CHECK(now.uordblks - before.uordblks <= 8192 && now.hblkhd == before.hblkhd && now.arena < grown);
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1 && mallopt(M_MMAP_THRESHOLD, 1 << 30) == 0);
    CHECK(mallopt(M_MXFAST, 160) == 1 && mallopt(M_MXFAST, 161) == 0);
    CHECK(mallopt(M_TRIM_THRESHOLD, 1) == 1 && mallopt(M_TOP_PAD, 1) == 1 && mallopt(M_MMAP_MAX, 1) == 1);
    CHECK(mallopt(M_ARENA_TEST, 1) == 1 && mallopt(M_ARENA_MAX, 1) == 1 && mallopt(M_PERTURB, 0) == 1);
    CHECK(mallopt(-77, 1) == 1 && mallopt(77, 1) == 1); // unknown ones: once refused
    CHECK(malloc_info(1, stdout) == EINVAL);
}

static void *work(void *stop) {
    enum { HELD = 500 };
    char *held[HELD] = {0};
    unsigned state = (unsigned)(uintptr_t)&state;
    while (!*(volatile int *)stop) {
        state = state * 1103515245 + 12345;
        char **one = &held[(state >> 8) % HELD];
        free(*one);
        size_t size = 1 + (state >> 16) % 2000;
        *one = malloc(size);
        (*one)[0] = (*one)[size - 1] = 1;
    }
    for (int i = 0; i < HELD; i++) free(held[i]);
    return NULL;
}

static void forks(void) {
    pthread_t threads[3];
    int stop = 0;
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&threads[i], NULL, work, &stop));
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            alarm(60);
            for (int k = 1; k < 20000; k++) free(keep(calloc(1, k)));
            _exit(7);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

static pthread_key_t key;
static void last(void *p) { free(p); free(keep(malloc(1000))); }
static void *short_lived(void *unused) { (void)unused; pthread_setspecific(key, malloc(64)); return malloc(48); }

static void threads(void) {
    pthread_key_create(&key, last);
    for (int i = 0; i < 300; i++) {
        pthread_t thread;
        void *theirs;
        CHECK(!pthread_create(&thread, NULL, short_lived, NULL) && !pthread_join(thread, &theirs));
        free(theirs);
    }
}

static char foreign[64];

int main(int argc, char **argv) {
    setbuf(stdout, NULL);
    if (argc > 1) {
        char *p = keep(malloc(100)), *page = keep(malloc(50000)), *huge = keep(malloc(9 << 20));
        const char *what = argv[1];
        if (!strcmp(what, "foreign")) free(keep(foreign + 16));
        if (!strcmp(what, "stack")) free(keep(&p));
        if (!strcmp(what, "inside")) free(keep(p + 1));
        if (!strcmp(what, "inside-page")) free(keep(page + 16));
        if (!strcmp(what, "inside-huge")) free(keep(huge + 4096));
        if (!strcmp(what, "twice")) { free(p); free(keep(p)); }
        if (!strcmp(what, "twice-late")) { free(p); free(keep(p)); malloc_trim(0); }
        if (!strcmp(what, "twice-page")) { free(page); free(keep(page)); }
        if (!strcmp(what, "twice-huge")) { free(huge); free(keep(huge)); }
        if (!strcmp(what, "move-foreign")) keep(realloc(keep(foreign + 16), 10));
        if (!strcmp(what, "move-inside")) keep(realloc(keep(p + 16), 100));
        if (!strcmp(what, "move-inside-page")) keep(realloc(keep(page + 4096), 40000));
        if (!strcmp(what, "size-foreign")) malloc_usable_size(keep(foreign + 16));
        if (!strcmp(what, "size-inside")) malloc_usable_size(keep(p + 16));
        if (!strcmp(what, "size-inside-huge")) malloc_usable_size(keep(huge + 16));
        if (!strcmp(what, "report")) { malloc_stats(); malloc_info(0, stdout); return 0; }
        puts("still here");
        return 0;
    }
    void (*freed)(void *, size_t, size_t) = (void (*)(void *, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
    CHECK(freed);
    for (size_t align = 1; align <= 256; align *= 2)
        for (size_t size = align; size <= 4 * align; size += align) freed(keep(aligned_alloc(align, size)), align, size);
    const char *(*version)(void) = (const char *(*)(void))dlsym(RTLD_DEFAULT, "uslab_version");
    CHECK(version);
    sizes(); too_much(); alignments(); reallocations(); numbers(); threads(); forks();
    malloc_trim(0);
    printf("all good with %s\n", version());
    return 0;
}
