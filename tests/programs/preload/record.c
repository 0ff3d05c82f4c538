/* Calls of malloc whose number the test knows. Nothing here, and nothing of the C library that it uses, calls malloc beside. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* C++'s `new` and `delete`, which the library has. */
__attribute__((weak)) void *_Znwm(size_t size);
__attribute__((weak)) void _ZdlPvm(void *memory, size_t size);

#ifdef INTERRUPTED
/* Instead of the C library's: a signal comes each other time. */
int posix_fallocate(int file, off_t from, off_t bytes) {
    static int calls;
    if (calls++ % 2 == 0)
        return EINTR;
    return ftruncate(file, from + bytes) ? errno : 0;
}
#endif

/* So that no compiler leaves out a pair. */
static void *volatile seen;

static void *made(void *memory) {
    seen = memory;
    return memory;
}

static void pairs(long n) {
    for (long i = 0; i < n; i++)
        free(made(malloc(100)));
}

static void counts(void) {
    void *held[100], *out;
    for (int i = 0; i < 100; i++)
        held[i] = made(malloc(100));
    for (int i = 0; i < 40; i++)
        free(held[i]);
    for (int i = 0; i < 7; i++)
        made(calloc(10, 50));
    void *grows = made(malloc(1000));
    grows = made(realloc(grows, 1010)); /* where it is */
    made(realloc(grows, 3000));         /* elsewhere */
    made(realloc(made(realloc(NULL, 20)), 0));
    for (int i = 0; i < 3; i++)
        posix_memalign(&out, 64, 65);
    for (int i = 0; i < 2; i++)
        free(made(aligned_alloc(4096, 8)));
    for (int i = 0; i < 5; i++)
        made(malloc(0));
    made(malloc(100000));
    free(made(malloc(100000)));
    made(malloc(5 << 20));
    free(made(malloc(5 << 20)));
    made(malloc(SIZE_MAX / 2));
    free(NULL);
    for (int i = 0; _Znwm && i < 6; i++) {
        void *object = made(_Znwm(200));
        if (i % 2)
            _ZdlPvm(object, 200);
    }
}

#define SLOTS 64
static void *slots[SLOTS];
static long rounds;
static int busy;

/* Memory goes from thread to thread. */
static void *exchange(void *seed) {
    uint64_t random = (uintptr_t)seed;
    for (long i = 0; i < rounds; i++) {
        if (i == 5000)
            __atomic_add_fetch(&busy, 1, __ATOMIC_SEQ_CST);
        random = random * 6364136223846793005u + 1442695040888963407u;
        void *memory = made(malloc(17 + (random >> 40) % 40));
        if ((random >> 56) % 8 == 0)
            memory = made(realloc(memory, 200));
        free(__atomic_exchange_n(&slots[(random >> 33) % SLOTS], memory, __ATOMIC_ACQ_REL));
    }
    return NULL;
}

static void threads(int n, long each) {
    pthread_t thread[16];
    rounds = each;
    for (long i = 0; i < n; i++)
        pthread_create(&thread[i], NULL, exchange, (void *)(i + 1));
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < SLOTS; i++)
        free(slots[i]);
}

static void forks(int bare) {
    void *held[10];
    for (int i = 0; i < 10; i++)
        held[i] = made(malloc(300));
    pid_t child = bare ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child == 0) {
        chdir("/");
        for (int i = 0; i < 4; i++)
            free(held[i]);
        for (int i = 0; i < 3; i++)
            made(malloc(700));
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    for (int i = 0; i < 10; i++)
        free(held[i]);
    _exit(status ? 1 : 0);
}

int main(int argc, char **argv) {
    char *how = argv[1];
    long n = argc > 2 ? atol(argv[2]) : 0;
    if (!strcmp(how, "counts"))
        counts();
    if (!strcmp(how, "pairs"))
        pairs(n);
    if (!strcmp(how, "threads"))
        threads(4, n);
    if (!strcmp(how, "fork") || !strcmp(how, "clone"))
        forks(!strcmp(how, "clone"));
    if (!strcmp(how, "exec")) {
        pairs(3);
        execl(argv[0], argv[0], "pairs", "5", NULL);
    }
    if (!strcmp(how, "chdir")) {
        pairs(3);
        chdir("/");
        pairs(n);
    }
    if (!strcmp(how, "limited")) {
        struct rlimit limit = {300000, 300000};
        setrlimit(RLIMIT_FSIZE, &limit);
        pairs(n);
    }
    if (!strcmp(how, "killed")) {
        pthread_t thread[4];
        rounds = 1L << 60;
        for (long i = 0; i < 4; i++)
            pthread_create(&thread[i], NULL, exchange, (void *)(i + 1));
        while (__atomic_load_n(&busy, __ATOMIC_SEQ_CST) < 4)
            usleep(1000);
        write(1, "go\n", 3);
        pause();
    }
    _exit(0);
}
