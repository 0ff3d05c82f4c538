/* A program that closes a sandbox and then allocates: sandbox FILTER BEHAVIOUR. A call that the filter ends it for is named on standard output.
   `filters.h` is made of filters.txt: `filters`, each with its rules, and `calls`, the names of all calls in them. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* An argument below 0 is none. */
struct rule { unsigned call, action; int argument; unsigned bits; };
struct filter { const char *name; const struct rule *rules; unsigned length, otherwise; };
struct call { unsigned call; const char *name; };
/* Named by the handler of SIGSYS: the sandboxes that end a process are closed so that it can. */
#define END SECCOMP_RET_TRAP
#define ALLOW SECCOMP_RET_ALLOW
#define FAIL(error) (SECCOMP_RET_ERRNO | (error))
#include "filters.h"

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0) _exit(3);
}
static void wrong(const char *text) {
    say(text);
    _exit(1);
}

static void on_end(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (calls[i].call == (unsigned)info->si_syscall) wrong(calls[i].name);
    wrong("another call");
}

static void close_sandbox(const char *name) {
    static struct sock_filter code[4096];
    unsigned length = 0, otherwise = 0, rules = 0;
    const struct rule *rule = NULL;
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (!strcmp(filters[i].name, name)) rule = filters[i].rules, rules = filters[i].length, otherwise = filters[i].otherwise;
    if (!rule) wrong("no such filter");
    struct sock_filter call = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    code[length++] = call;
    for (; rules--; rule++) {
        if (rule->argument < 0) {
            code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, rule->call, 0, 1);
            code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, rule->action);
            continue;
        }
        /* The low half, on machines that have it first. The programs here pass nothing in the other one. */
        unsigned at = offsetof(struct seccomp_data, args) + 8 * rule->argument;
        code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, rule->call, 0, 5);
        code[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at);
        code[length++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~rule->bits);
        code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1);
        code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, rule->action);
        code[length++] = call;
    }
    code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, otherwise);
    struct sigaction action = {.sa_sigaction = on_end, .sa_flags = SA_SIGINFO};
    struct sock_fprog program = {length, code};
    if (sigaction(SIGSYS, &action, NULL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        /* All threads. */
        syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
        wrong("no filter may be closed");
}

static void fill(unsigned char *block, size_t bytes, int own) {
    for (size_t at = 0; at < bytes; at += 1000) block[at] = own;
    block[bytes - 1] = own;
}
static void check(const unsigned char *block, size_t bytes, int own) {
    for (size_t at = 0; at < bytes; at += 1000)
        if (block[at] != (unsigned char)own) wrong("overwritten");
    if (block[bytes - 1] != (unsigned char)own) wrong("overwritten");
}

static void small(uint32_t random) {
    enum { HELD = 500 };
    unsigned char *held[HELD] = {0};
    size_t sizes[HELD];
    for (uint32_t round = 0; round < 200000; round++) {
        random = random * 1664525 + 1013904223;
        uint32_t at = (random >> 12) % HELD, size = 1 + (random >> 8) % 3000;
        if (held[at]) check(held[at], sizes[at], at);
        free(held[at]);
        if (!(held[at] = malloc(size))) wrong("no memory");
        fill(held[at], sizes[at] = size, at);
    }
    for (int at = 0; at < HELD; at++) free(held[at]);
}
/* 100 MiB of blocks of one size, twice. */
static void large(size_t size) {
    enum { BYTES = 100 << 20, MOST = BYTES / 4096 };
    unsigned char **held = malloc(MOST * sizeof *held);
    for (int round = 0; round < 2; round++) {
        size_t count = BYTES / size;
        for (size_t at = 0; at < count; at++) {
            if (!(held[at] = malloc(size))) wrong("no memory");
            fill(held[at], size, at);
        }
        for (size_t at = 0; at < count; at++) check(held[at], size, at), free(held[at]);
    }
    free(held);
}
static void storm(void) {
    small(1);
    static const size_t sizes[] = {4096, 30000, 1 << 17, 1 << 20, 5 << 20, 100 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) large(sizes[i]);
    small(2);
}
static void trim(void) {
    for (int round = 0; round < 3; round++) {
        large(30000);
        malloc_trim(0);
        void *block = malloc(1000);
        if (malloc_usable_size(block) < 1000) wrong("less than was asked for");
        free(block);
    }
}
static void reallocate(void) {
    unsigned char *block = NULL;
    size_t bytes = 1000;
    for (; bytes <= 64 << 20; bytes *= 2) {
        if (!(block = realloc(block, bytes))) wrong("no memory");
        if (bytes > 1000) check(block, bytes / 2, 7);
        fill(block, bytes, 7);
    }
    for (bytes /= 2; bytes > 1000; bytes /= 3) {
        if (!(block = realloc(block, bytes))) wrong("no memory");
        if (*block != 7) wrong("overwritten");
    }
    free(block);
    for (bytes = 6 << 20; bytes <= 48 << 20; bytes *= 2) {
        for (int round = 0; round < 3; round++) {
            if (!(block = calloc(1, bytes))) wrong("no memory");
            check(block, bytes, 0);
            fill(block, bytes, 1);
            free(block);
        }
    }
}

/* Of two threads. */
static pthread_barrier_t closed, done, never;
static void *thread(void *waits) {
    /* It runs, and the filter is closed. */
    for (int times = waits ? 2 : 0; times--;) pthread_barrier_wait(&closed);
    small(3);
    large(30000);
    pthread_barrier_wait(&done);
    /* The end of a thread is calls of the C library. */
    pthread_barrier_wait(&never);
    return NULL;
}
static void beside_thread(void) {
    small(4);
    large(1 << 17);
    pthread_barrier_wait(&done);
}

int main(int count, char **words) {
    if (count < 3) return 2;
    const char *filter = words[1], *what = words[2];
    pthread_t other;
    pthread_barrier_init(&closed, NULL, 2);
    pthread_barrier_init(&done, NULL, 2);
    pthread_barrier_init(&never, NULL, 2);
    if (!strcmp(what, "threads")) {
        if (pthread_create(&other, NULL, thread, &closed)) return 2;
        pthread_barrier_wait(&closed);
        close_sandbox(filter);
        pthread_barrier_wait(&closed);
        beside_thread();
    } else {
        close_sandbox(filter);
        if (!strcmp(what, "storm")) storm();
        if (!strcmp(what, "trim")) trim();
        if (!strcmp(what, "realloc")) reallocate();
        if (!strcmp(what, "started")) {
            if (pthread_create(&other, NULL, thread, NULL)) wrong("no thread");
            beside_thread();
        }
        if (!strcmp(what, "fork")) {
            pid_t child = fork();
            if (child < 0) wrong("no child");
            storm();
            if (!child) _exit(0);
            int status;
            if (waitpid(child, &status, 0) != child || status) wrong("the child failed");
        }
    }
    say("well");
    _exit(0);
}
