// A malloc that is wrong: now and then it hands out a block that may be in use. To preload.
#include <stddef.h>

void *__libc_malloc(size_t size);

static char lock;
static void *last;
static size_t last_size;
static unsigned count;

void *malloc(size_t size) {
    while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE))
        ;
    // The program's start goes well. Large blocks are few.
    int large = size >= 1 << 20;
    int wrong = ++count % (large ? 2 : 7) == 0 && (large || count > 500);
    if (!wrong || size > last_size) {
        last = __libc_malloc(size);
        last_size = size;
    }
    void *result = last;
    __atomic_clear(&lock, __ATOMIC_RELEASE);
    return result;
}

// Never: so that what was handed out twice is not freed twice.
void free(void *memory) { (void)memory; }
