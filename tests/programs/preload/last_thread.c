/* main ends by itself, and then the last thread of the program: the process ends, although the library has a thread. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *last(void *main_thread) {
    enum { PIECES = 40000 };
    static char *pieces[PIECES];
    FILE *tasks;
    pthread_join(*(pthread_t *)main_thread, NULL);
    for (int i = 0; i < PIECES; i++)
        memset(pieces[i] = malloc(1000), 1, 1000);
    /* The library's thread was started: it is the third. */
    tasks = popen("ls /proc/$PPID/task | wc -l", "r");
    int count = 0;
    if (!tasks || fscanf(tasks, "%d", &count) != 1 || pclose(tasks) != 0 || count != 3)
        exit(1);
    for (int i = 0; i < PIECES; i++)
        free(pieces[i]);
    return NULL;
}

int main(void) {
    static pthread_t self, other;
    alarm(120);
    self = pthread_self();
    if (pthread_create(&other, NULL, last, &self) != 0)
        return 2;
    pthread_exit(NULL);
}
