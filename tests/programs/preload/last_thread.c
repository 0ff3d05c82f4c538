/* main ends by itself, and then the last thread of the program: the process ends, although the library has threads, as many as are told. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int own;

static void *last(void *main_thread) {
    enum { PIECES = 40000 };
    static char *pieces[PIECES];
    FILE *tasks;
    pthread_join(*(pthread_t *)main_thread, NULL);
    for (int i = 0; i < PIECES; i++)
        memset(pieces[i] = malloc(1000), 1, 1000);
    /* The library's threads were started: main and this are the others. */
    tasks = popen("ls /proc/$PPID/task | wc -l", "r");
    int count = 0;
    if (!tasks || fscanf(tasks, "%d", &count) != 1 || pclose(tasks) != 0 || count != 2 + own)
        exit(1);
    for (int i = 0; i < PIECES; i++)
        free(pieces[i]);
    return NULL;
}

int main(int argc, char **argv) {
    static pthread_t self, other;
    alarm(120);
    own = argc > 1 ? atoi(argv[1]) : 1;
    self = pthread_self();
    if (pthread_create(&other, NULL, last, &self) != 0)
        return 2;
    pthread_exit(NULL);
}
