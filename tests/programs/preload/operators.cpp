// What C++ programs rely on. With an argument the program has operators of its own, in part: the others must lead to them.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <malloc.h>
#include <new>
#include <vector>

#define MUST(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)

#ifdef OWN
// Sixteen bytes in front of each object say that it is one of these.
static size_t live, calls;
static const uint64_t OURS = 0x6f77206e65772121;
void *operator new(size_t size) {
    uint64_t *memory = static_cast<uint64_t *>(malloc(size + 16));
    *memory = OURS;
    live++, calls++;
    return memory + 2;
}
void operator delete(void *object) noexcept {
    if (!object) return;
    uint64_t *memory = static_cast<uint64_t *>(object) - 2;
    MUST(*memory == OURS);
    *memory = 0;
    live--;
    free(memory);
}
#endif

struct Held { void *memory; size_t size, align; int form; };

static Held make(size_t size, size_t align, int form) {
    std::align_val_t at{align};
    void *memory = nullptr;
    switch (form % 4) {
    case 0: memory = ::operator new(size); break;
    case 1: memory = ::operator new[](size); break;
    case 2: memory = ::operator new(size, at); break;
    case 3: memory = ::operator new[](size, at); break;
    }
    MUST(reinterpret_cast<uintptr_t>(memory) % (form % 4 < 2 ? 16 : align) == 0);
    memset(memory, form + 1, size);
    return {memory, size, align, form};
}

// Each of them as it was, and back in all forms that fit.
static void give_back(const Held &held) {
    std::align_val_t at{held.align};
    for (size_t i = 0; i < held.size; i++) MUST(static_cast<unsigned char *>(held.memory)[i] == held.form + 1);
    switch (held.form) {
    case 0: ::operator delete(held.memory); break;
    case 1: ::operator delete[](held.memory); break;
    case 2: ::operator delete(held.memory, at); break;
    case 3: ::operator delete[](held.memory, at); break;
    case 4: ::operator delete(held.memory, held.size); break;
    case 5: ::operator delete[](held.memory, held.size); break;
    case 6: ::operator delete(held.memory, held.size, at); break;
    case 7: ::operator delete[](held.memory, held.size, at); break;
    }
}

static int handled;
static void handler() {
    handled++;
    std::set_new_handler(nullptr);
}

int main() {
    size_t made = 0;
    for (int round = 0; round < 3; round++) {
        std::vector<Held> held;
        for (size_t size : {0, 1, 8, 15, 16, 17, 24, 63, 64, 100, 500, 1000, 1023, 1024, 1025, 3000, 8192, 8193, 100000})
            for (size_t align : {1, 8, 16, 32, 64, 256, 4096})
                for (int form = 0; form < 8; form++) held.push_back(make(size, align, form)), made++;
        for (const Held &one : held) give_back(one);
    }
    ::operator delete(nullptr);
    ::operator delete(nullptr, size_t(8));
    ::operator delete[](nullptr, size_t(8), std::align_val_t(64));

    // Of no size that there is: the handler runs, and then it is thrown; with nothrow it is null.
    volatile size_t much = std::numeric_limits<ptrdiff_t>::max() - 100;
    int thrown = 0;
#ifndef OWN
    std::set_new_handler(handler);
    try { ::operator new(much); } catch (const std::bad_alloc &) { thrown++; }
    try { ::operator new[](much); } catch (const std::bad_alloc &) { thrown++; }
    MUST(thrown == 2 && handled == 1);
    MUST(::operator new(much, std::nothrow) == nullptr);
#endif
    try { ::operator new(much, std::align_val_t(64)); } catch (const std::bad_alloc &) { thrown++; }
    MUST(thrown > 0);
    void *quiet = ::operator new(100, std::nothrow);
    ::operator delete(quiet, std::nothrow);
#ifdef OWN
    MUST(live == 0 && calls >= made / 2);
#endif
    printf("all good with %zu\n", made);
}
