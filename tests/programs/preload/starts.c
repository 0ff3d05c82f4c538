// Where the malloc starts otherwise than at a program's first allocation: in a library that is opened late, and in both processes of a
// fork that came before it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *(*allocate)(size_t) = malloc;
static void (*release)(void *) = free;
static pid_t child = -1;

// Nothing has allocated yet, at least not here.
static void before(int count, char **words, char **variables) {
    (void)variables;
    if (count > 1 && !strcmp(words[1], "fork")) child = fork();
}
__attribute__((section(".preinit_array"), used)) static void (*first)(int, char **, char **) = before;

static void *work(void *own) {
    enum { HELD = 1000 };
    unsigned char *held[HELD] = {0};
    size_t sizes[HELD] = {0};
    for (uint32_t round = 0, random = 1; round < 200000; round++) {
        random = random * 1664525 + 1013904223;
        uint32_t at = random >> 16, size = 1 + (random >> 8) % 3000;
        at %= HELD;
        if (held[at]) {
            for (size_t i = 0; i < sizes[at]; i += 97)
                if (held[at][i] != (uintptr_t)own) return "somebody else has written there";
            release(held[at]);
        }
        if (!(held[at] = allocate(size))) return "no memory";
        memset(held[at], (int)(uintptr_t)own, sizes[at] = size);
    }
    for (int at = 0; at < HELD; at++)
        if (held[at]) release(held[at]);
    return NULL;
}

static char *use(void) {
    pthread_t threads[3];
    for (uintptr_t own = 0; own < 3; own++) pthread_create(&threads[own], NULL, work, (void *)(own + 1));
    char *wrong = work((void *)4);
    for (int own = 0; own < 3; own++) {
        void *said;
        pthread_join(threads[own], &said);
        if (said) wrong = said;
    }
    return wrong;
}

int main(int count, char **words) {
    void *library = NULL;
    if (count > 2 && !strcmp(words[1], "late")) {
        library = dlopen(words[2], RTLD_NOW | RTLD_LOCAL);
        if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
        allocate = (void *(*)(size_t))dlsym(library, "malloc");
        release = (void (*)(void *))dlsym(library, "free");
    }
    char *wrong = use();
    if (library && !wrong) {
        // The library stays mapped. The second `use` starts threads, which call what the library has registered.
        if (dlclose(library)) return fprintf(stderr, "%s\n", dlerror()), 1;
        wrong = use();
    }
    if (wrong) return fprintf(stderr, "%s\n", wrong), 1;
    if (child == 0) return 0;
    int status = 0;
    if (child > 0 && (waitpid(child, &status, 0) != child || status)) return fprintf(stderr, "the child: %d\n", status), 1;
    return puts("all good"), 0;
}
