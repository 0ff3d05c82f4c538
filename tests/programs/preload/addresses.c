// How many threads, each with a stack and an object, and then how many blocks of 1 MiB fit under a limit on addresses.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 1000, BLOCKS = 10000 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all = PTHREAD_COND_INITIALIZER;
static int done;

static void *work(void *p) {
    void *object = malloc(1000);
    pthread_mutex_lock(&lock);
    while (!done) pthread_cond_wait(&all, &lock);
    pthread_mutex_unlock(&lock);
    free(object);
    return object ? p : &lock;
}

int main(void) {
    static pthread_t threads[THREADS];
    int n = 0, blocks = 0;
    while (n < THREADS && !pthread_create(threads + n, NULL, work, NULL)) n++;
    pthread_mutex_lock(&lock);
    done = 1;
    pthread_cond_broadcast(&all);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < n; i++) {
        void *failed;
        if (pthread_join(threads[i], &failed) || failed) return puts("a thread without an object"), 1;
    }
    for (char *block; blocks < BLOCKS && (block = malloc(1 << 20)); blocks++) *block = 1;
    if (errno != ENOMEM) return puts("no limit"), 1;
    return printf("%d %d\n", n, blocks), 0;
}
