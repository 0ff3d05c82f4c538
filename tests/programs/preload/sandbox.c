// A program that closes a sandbox before it allocates: from then on a call that is not in the list ends it.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const unsigned allowed[] = {
    // The last two are the C library's own malloc's.
    __NR_mmap, __NR_munmap, __NR_mremap, __NR_madvise, __NR_mprotect, __NR_futex, __NR_clock_gettime, __NR_write, __NR_exit_group, __NR_brk,
    __NR_getrandom,
};
enum { CALLS = sizeof allowed / sizeof *allowed };

static int close_sandbox(void) {
    struct sock_filter filter[CALLS + 3] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    for (int i = 0; i < CALLS; i++)
        filter[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], CALLS - i, 0);
    filter[CALLS + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[CALLS + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {CALLS + 3, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(void) {
    enum { HELD = 500 };
    static unsigned char *held[HELD];
    static size_t sizes[HELD];
    if (close_sandbox()) return perror("a filter"), 1;
    for (uint32_t round = 0, random = 1; round < 200000; round++) {
        random = random * 1664525 + 1013904223;
        uint32_t at = (random >> 12) % HELD, size = 1 + (random >> 8) % 3000;
        if (held[at] && held[at][sizes[at] - 1] != (unsigned char)at) return write(1, "overwritten\n", 12), 1;
        free(held[at]);
        if (!(held[at] = malloc(size))) return write(1, "no memory\n", 10), 1;
        memset(held[at], (int)at, sizes[at] = size);
    }
    for (int at = 0; at < HELD; at++) free(held[at]);
    write(1, "all good\n", 9);
    _exit(0);
}
