/* One mistake, by name. */
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a compiler must not know. */
static char *volatile kept;

__attribute__((noinline)) static char *the_allocation(size_t size) {
    kept = malloc(size);
    return kept;
}
__attribute__((noinline)) static void the_free(char *memory) {
    kept = memory;
    free(kept);
    __asm__ volatile("" ::: "memory");
}

static struct node { char bytes[40]; struct node *next; } *list;
__attribute__((noinline)) static struct node *the_list(size_t size) {
    struct node *node = malloc(size);
    __asm__ volatile("" : "+r"(node));
    return node;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    char *memory = the_allocation(50);
    memset(memory, 1, 50);
    if (!strcmp(what, "overflow")) {
        memory[50] = 1;
        the_free(memory);
    } else if (!strcmp(what, "underflow")) {
        memory[-1] = 1;
        the_free(memory);
    } else if (!strcmp(what, "late")) {
        the_free(memory);
        memory[20] = 1;
        for (int i = 0; i < 1000; i++) the_allocation(50);
    } else if (!strcmp(what, "double")) {
        the_free(memory);
        the_free(memory);
    } else if (!strcmp(what, "leak")) {
        the_free(memory);
        for (int i = 0; i < 20; i++) the_allocation(50);
        /* What is left of their addresses on the stack. */
        kept = memset(alloca(4096), 0, 4096);
        kept = NULL;
        for (int i = 0; i < 5; i++) {
            struct node *node = the_list(sizeof *node);
            node->next = list;
            list = (struct node *)&node->next;
        }
        return 0;
    } else if (!strcmp(what, "realloc")) {
        memory = realloc(memory, 60);
        memory[60] = 1;
        the_free(memory);
    } else {
        the_free(memory);
        puts("well");
        return 0;
    }
    puts("unnoticed");
    return 1;
}
