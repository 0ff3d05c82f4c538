/* Counts the system calls of a program that runs under a library: calls LIBRARY PROGRAM [ARGUMENT]. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    pid_t child = fork();
    if (!child) {
        /* Nothing else, which the loader would look through. */
        static char preload[4096] = "LD_PRELOAD=";
        char *env[] = {strncat(preload, argv[1], 4000), NULL};
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(120);
        raise(SIGSTOP);
        execve(argv[2], argv + 2, env);
        _exit(121);
    }
    int status, stops = 0;
    waitpid(child, &status, 0);
    if (!WIFSTOPPED(status)) { puts("nothing may be traced"); return 1; }
    ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    while (!ptrace(PTRACE_SYSCALL, child, 0, 0) && waitpid(child, &status, 0) == child && WIFSTOPPED(status))
        stops += WSTOPSIG(status) == (SIGTRAP | 0x80);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) { printf("%s ended with %x\n", argv[2], status); return 1; }
    /* A stop before and after each; the last one does not return. */
    printf("%d\n", (stops + 1) / 2);
    return 0;
}
