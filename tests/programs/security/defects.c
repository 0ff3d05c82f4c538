/* Mistakes that programs make with memory, one a run: `defects KIND BYTES`. It says what came of it, unless the allocator ended it:
 *
 *   effect      the mistake did harm: somebody else's bytes changed, a secret was read, two objects share an address
 *   no effect   it did none
 *
 * `defects` alone lists the kinds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW = 48 };

/* The compiler is not to know what it is all about. */
static void *(*volatile allocate)(size_t) = malloc;
static void (*volatile release)(void *) = free;
static void *(*volatile resize)(void *, size_t) = realloc;

static unsigned char *row[ROW];

static void say(int effect) {
    puts(effect ? "effect" : "no effect");
    fflush(stdout);
    _Exit(0);
}

static unsigned char *object(size_t size, int fill) {
    unsigned char *memory = allocate(size);
    if (!memory) abort();
    memset(memory, fill, size);
    return memory;
}
static int is(const volatile unsigned char *memory, int fill, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (memory[i] != (unsigned char)fill) return 0;
    return 1;
}
/* Objects beside which the mistake is made. */
static void make_row(size_t size) {
    for (int i = 0; i < ROW; i++) row[i] = object(size, i + 1);
}
static int row_changed(size_t size, int but) {
    int changed = 0;
    for (int i = 0; i < ROW; i++)
        if (i != but && row[i]) changed |= !is(row[i], i + 1, size);
    return changed;
}
static void free_row(void) {
    for (int i = 0; i < ROW; i++) release(row[i]);
}
/* Two of the next objects are one. */
static int shared(size_t size) {
    static unsigned char *had[256];
    for (int i = 0; i < 256; i++) {
        had[i] = allocate(size);
        for (int j = 0; j < i; j++)
            if (had[i] == had[j]) return 1;
    }
    return 0;
}
/* Traffic of other objects of the same size and of others. */
static void churn(size_t size, int rounds) {
    for (int i = 0; i < rounds; i++) {
        release(allocate(size));
        release(allocate(size / 2 + 1 + i % 7));
    }
}

/* Frees. */
static void double_free(size_t size) {
    unsigned char *p = object(size, 1);
    release(p);
    release(p);
    say(shared(size));
}
static void double_free_interleaved(size_t size) {
    unsigned char *a = object(size, 1), *b = object(size, 2);
    release(a);
    release(b);
    release(a);
    say(shared(size));
}
static void double_free_delayed(size_t size) {
    unsigned char *p = object(size, 1);
    make_row(size);
    release(p);
    free_row();
    release(p);
    say(shared(size));
}
/* So many objects of the same size are freed behind it that it has left the CPU's own. */
static void double_free_flushed(size_t size) {
    enum { MANY = 60000 };
    static void *many[MANY];
    int count = size > 10000 ? 300 : size > 100 ? 9000 : MANY;
    unsigned char *p = object(size, 1);
    for (int i = 0; i < count; i++) many[i] = allocate(size);
    release(p);
    release(p);
    for (int i = 0; i < count; i++) release(many[i]);
    malloc_trim(0);
    say(shared(size));
}
static void free_interior(size_t size) {
    unsigned char *p = object(size, 1);
    release(p + 16);
    say(shared(size));
}
static void free_unaligned(size_t size) {
    unsigned char *p = object(size, 1);
    release(p + 1);
    say(shared(size));
}
static void free_before(size_t size) {
    make_row(size);
    release(row[ROW / 2] - 16);
    say(shared(size));
}
static void free_stack(size_t size) {
    unsigned char here[256] __attribute__((aligned(64)));
    memset(here, 1, sizeof here);
    release(object(size, 1));
    release(here + 64);
    say(shared(size));
}
static void free_foreign(size_t size) {
    static unsigned char here[8192] __attribute__((aligned(4096)));
    release(object(size, 1));
    release(here + 4096);
    say(shared(size));
}
static void free_wrong_size(size_t size) {
    void (*freed)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
    unsigned char *p = object(size, 1);
    if (!freed) say(1);
    freed(p, size * 3);
    say(1);
}

/* After the free. */
static void write_after_free(size_t size) {
    unsigned char *p = object(size, 1);
    release(p);
    memset(p, 0x55, size);
    /* Somebody gets it some day. */
    for (int i = 0; i < 20000; i++) {
        unsigned char *q = allocate(size);
        if (q == p) say(1);
        if (i % 64 < 32 && size < 10000) continue;
        release(q);
    }
    say(0);
}
static void write_after_reuse(size_t size) {
    unsigned char *p = object(size, 1);
    release(p);
    make_row(size);
    memset(p, 0x55, size);
    say(row_changed(size, -1));
}
static void read_after_free(size_t size) {
    unsigned char *p = object(size, 0x77);
    release(p);
    int found = 0;
    for (size_t i = 0; i < size; i++) found |= ((volatile unsigned char *)p)[i] == 0x77;
    say(found);
}
static void read_after_reuse(size_t size) {
    unsigned char *p = object(size, 1);
    release(p);
    for (int i = 0; i < ROW; i++) row[i] = object(size, 0x77);
    say(((volatile unsigned char *)p)[0] == 0x77);
}
static void realloc_after_free(size_t size) {
    unsigned char *p = object(size, 1);
    release(p);
    resize(p, size * 2);
    say(1);
}
static void usable_size_after_free(size_t size) {
    unsigned char *p = object(size, 1);
    release(p);
    say(malloc_usable_size(p) > 0);
}

/* Beside the object. */
static void overflow(size_t size, size_t bytes) {
    make_row(size);
    memset(row[ROW / 2] + size, 0x55, bytes);
    int changed = row_changed(size, -1);
    if (!changed) free_row();
    else release(row[ROW / 2]);
    say(changed);
}
static void overflow_by_one(size_t size) { overflow(size, 1); }
static void overflow_by_eight(size_t size) { overflow(size, 8); }
static void overflow_by_page(size_t size) { overflow(size, 4096); }
/* Nobody frees it. */
static void overflow_kept(size_t size) {
    make_row(size);
    memset(row[ROW / 2] + size, 0x55, 16);
    say(row_changed(size, -1));
}
static void overread(size_t size) {
    for (int i = 0; i < ROW; i++) row[i] = object(size, i == ROW / 2 ? 1 : 0x77);
    int found = 0;
    for (size_t i = 0; i < 2 * size; i++) found |= ((volatile unsigned char *)row[ROW / 2])[size + i] == 0x77;
    say(found);
}
static void underflow(size_t size) {
    make_row(size);
    memset(row[ROW / 2] - 8, 0x55, 8);
    int changed = row_changed(size, -1);
    free_row();
    say(changed);
}
/* As far as memory goes: what describes the objects may be there. */
static void run_away(size_t size) {
    make_row(size);
    memset(row[ROW / 2] + size, 0x55, 16u << 20);
    churn(size, 1000);
    say(1);
}

/* What nobody wrote. */
static void uninitialized(size_t size) {
    make_row(size);
    for (int i = 0; i < ROW; i++) memset(row[i], 0x77, size);
    free_row();
    int found = 0;
    for (int i = 0; i < ROW; i++) {
        row[i] = allocate(size);
        for (size_t j = 0; j < size; j++) found |= ((volatile unsigned char *)row[i])[j] == 0x77;
    }
    say(found);
}

/* No bytes. */
static void write_to_nothing(size_t size) {
    for (int i = 0; i < ROW; i++) row[i] = allocate(0);
    ((volatile unsigned char *)row[ROW / 2])[0] = size & 0xff;
    say(1);
}
static void read_of_nothing(size_t size) {
    for (int i = 0; i < ROW; i++) row[i] = allocate(0);
    say(((volatile unsigned char *)row[ROW / 2])[0] != size + 1);
}

static const struct {
    const char *name;
    void (*run)(size_t);
} KINDS[] = {
#define KIND(name) { #name, name }
    KIND(double_free),
    KIND(double_free_interleaved),
    KIND(double_free_delayed),
    KIND(double_free_flushed),
    KIND(free_interior),
    KIND(free_unaligned),
    KIND(free_before),
    KIND(free_stack),
    KIND(free_foreign),
    KIND(free_wrong_size),
    KIND(write_after_free),
    KIND(write_after_reuse),
    KIND(read_after_free),
    KIND(read_after_reuse),
    KIND(realloc_after_free),
    KIND(usable_size_after_free),
    KIND(overflow_by_one),
    KIND(overflow_by_eight),
    KIND(overflow_by_page),
    KIND(overflow_kept),
    KIND(overread),
    KIND(underflow),
    KIND(run_away),
    KIND(uninitialized),
    KIND(write_to_nothing),
    KIND(read_of_nothing),
};

int main(int argc, char **argv) {
    /* What is freed is what comes next: on one CPU. */
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    sched_setaffinity(0, sizeof here, &here);
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        if (argc != 3) puts(KINDS[i].name);
        else if (!strcmp(argv[1], KINDS[i].name)) KINDS[i].run(strtoul(argv[2], NULL, 10));
    }
    return argc != 3 ? 0 : 2;
}
