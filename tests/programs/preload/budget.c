/* Under `limit=64m`: blocks and mappings share it, also where they are resized and in a child. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };
static char *had(size_t mib) {
    char *p = malloc(mib * MIB);
    if (p) memset(p, 1, mib * MIB);
    return p;
}
static int refused(size_t mib) {
    errno = 0;
    return !had(mib) && errno == ENOMEM;
}

int main(void) {
    if (!refused(100)) { puts("100 MiB"); return 1; }
    char *a = had(24), *b = had(24);
    if (!a || !b || !refused(24)) { puts("three times 24 MiB"); return 1; }
    int blocks = 0;
    for (char *p; (p = had(1)); blocks++) *(char **)p = a, a = p;
    if (blocks < 4 || blocks > 16) { printf("%d blocks of 1 MiB beside 48\n", blocks); return 1; }
    for (char *next; blocks--; a = next) { next = *(char **)a; free(a); }
    pid_t child = fork();
    if (!child) {
        free(b);
        char *c = had(24);
        _exit(c && refused(24) ? 0 : 1);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) { puts("the child"); return 1; }
    free(a);
    /* In place: there is no room for a copy. */
    b = realloc(b, 45 * MIB);
    if (!b || b[24 * MIB - 1] != 1 || realloc(b, 90 * MIB) || errno != ENOMEM) { puts("realloc"); return 1; }
    b = realloc(b, 6 * MIB);
    if (!b || !had(45)) { puts("what is left of it"); return 1; }
    puts("kept");
    return 0;
}
