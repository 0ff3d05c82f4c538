/* Opens it so that it would find the C library's malloc and free first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    void *library = dlopen("libdeepbind.so", RTLD_NOW | RTLD_DEEPBIND);
    if (!library) { puts(dlerror()); return 1; }
    void (*take)(char *) = (void (*)(char *))dlsym(library, "take");
    char *(*give)(void) = (char *(*)(void))dlsym(library, "give");
    for (int i = 0; i < 1000; i++) {
        take(malloc(i));
        free(give());
    }
    puts("freed");
    return 0;
}
