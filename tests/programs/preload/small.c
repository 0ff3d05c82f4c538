/* Prints KiB of the process that are neither a file's nor untouched: before it allocates, with 10,000 objects of 64 bytes, and with 100,000.
   With an argument it allocates once and prints nothing. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long anonymous(void) {
    static char text[8192];
    int file = open("/proc/self/smaps_rollup", O_RDONLY);
    long bytes = read(file, text, sizeof text - 1), kib = -1;
    close(file);
    char *line = bytes > 0 ? strstr(text, "\nAnonymous:") : NULL;
    if (line) sscanf(line, "\nAnonymous: %ld", &kib);
    return kib;
}

static char *volatile object;

int main(int count, char **words) {
    (void)words;
    if (count > 1) return object = malloc(100), !object;
    long kib[3] = {anonymous()};
    for (int i = 0; i < 100000; i++) {
        object = malloc(64);
        if (!object) return 1;
        memset(object, 1, 64);
        if (i == 9999) kib[1] = anonymous();
    }
    kib[2] = anonymous();
    char line[100];
    int length = snprintf(line, sizeof line, "%ld %ld %ld\n", kib[0], kib[1], kib[2]);
    return write(1, line, length) != length;
}
