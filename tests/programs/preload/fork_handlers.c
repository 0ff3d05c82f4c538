/* A program whose own handlers of forks are older than its first cache, and use it. */
#include "uslab.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)

static uslab_cache *cache;

/* Also what no magazine has. */
static void uses(void) {
    static void *held[5000];
    alarm(20); /* a child has none of its parent's */
    CHECK(uslab_cache_alloc_bulk(cache, 5000, held) == USLAB_OK);
    uslab_cache_free_bulk(cache, 5000, held);
}

int main(void) {
    CHECK(pthread_atfork(uses, uses, uses) == 0);
    struct uslab_cache_options options = { .struct_size = sizeof options, .name = "forked", .size = 64 };
    CHECK((cache = uslab_cache_create(&options, NULL)));
    pid_t child = fork();
    if (child == 0) _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    puts("forked");
    return 0;
}
