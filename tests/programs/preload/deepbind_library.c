/* A library that takes over what others have allocated, and hands out what it has. */
#include <stdlib.h>
#include <string.h>

void take(char *p) { free(p); }
char *give(void) { char *p = malloc(100); return p ? strcpy(p, "given") : p; }
