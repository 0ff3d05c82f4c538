/* A program that is asked for the allocator's numbers: `dump HOW DIRECTORY ENDING`. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)

static char file[4096];

static int threads(void) {
    char line[256];
    int n = -1;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status)) sscanf(line, "Threads: %d", &n);
    fclose(status);
    return n;
}

static void ask(void) {
    errno = 77;
    raise(SIGUSR2);
    CHECK(errno == 77);
}

static void dumped(void) {
    for (int i = 0; access(file, F_OK); i++) { CHECK(i < 60000); usleep(1000); }
}

/* The most memory that it has had, in KiB, since `clear_refs` was written to. */
static long peak(void) {
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status)) sscanf(line, "VmHWM: %ld", &kib);
    fclose(status);
    return kib;
}

/* Allocates by a call stack for each of the lowest bits. */
static void __attribute__((noinline)) branch(unsigned bits, int depth) {
    if (depth == 0) {
        CHECK(malloc(100));
    } else if (bits & 1) {
        branch(bits / 2, depth - 1);
    } else {
        branch(bits / 2, depth - 1);
        __asm__ volatile("");
    }
    __asm__ volatile("");
}

static volatile sig_atomic_t stop, own;

static void *busy(void *unused) {
    (void)unused;
    while (!stop) for (int i = 1; i < 3000; i += 7) free(malloc(i));
    return NULL;
}

static void mine(int signal) { (void)signal; own++; }

int main(int argc, char **argv) {
    CHECK(argc == 4);
    setbuf(stdout, NULL);
    const char *how = argv[1];
    snprintf(file, sizeof file, "%s/out.%d.%s", argv[2], (int)getpid(), argv[3]);
    static void *held[1000];
    for (int i = 0; i < 1000; i++) CHECK(held[i] = malloc(100));
    printf("%d\n", threads());
    if (!strcmp(how, "asked")) {
        pthread_t thread;
        /* As daemons do. */
        for (int fd = 3; fd < 1024; fd++) close(fd);
        CHECK(!pthread_create(&thread, NULL, busy, NULL));
        for (int i = 0; i < 5; i++) { unlink(file); ask(); dumped(); }
        stop = 1;
        pthread_join(thread, NULL);
    } else if (!strcmp(how, "own")) {
        CHECK(signal(SIGUSR2, mine) != SIG_ERR);
        ask();
        CHECK(own == 1 && access(file, F_OK));
    } else if (!strcmp(how, "fork")) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            ask();
            CHECK(threads() == 1 && access(file, F_OK));
            for (int i = 1; i < 1000; i++) free(malloc(i));
            _exit(7);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
        ask();
        dumped();
    } else if (!strcmp(how, "stacks")) {
        for (unsigned bits = 0; bits < 512; bits++) branch(bits, 9);
        FILE *clear = fopen("/proc/self/clear_refs", "w");
        CHECK(clear && fputs("5", clear) >= 0 && !fclose(clear));
        long before = peak();
        ask();
        dumped();
        printf("%ld\n", peak() - before);
    } else if (!strcmp(how, "stay")) {
        ask();
        while (getchar() != EOF) {}
    }
    for (int i = 0; i < 1000; i++) free(held[i]);
    return 0;
}
