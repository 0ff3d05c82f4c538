// A part of a C program in C++, whose library came with it for this part only: what it asks too much of is an exception.
#ifdef LIBRARY
#include <cstdlib>
#include <new>
#include <vector>

extern "C" int asks_too_much(void) {
    static volatile size_t most = size_t(1) << 60;
    int refused = 0;
    try { std::vector<char> all; all.reserve(most); } catch (const std::bad_alloc &) { refused++; }
    try { ::operator delete(::operator new(most, std::align_val_t{64}), std::align_val_t{64}); } catch (const std::bad_alloc &) { refused++; }
    if (!::operator new(most, std::nothrow)) refused++;
    return refused;
}
#else
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    int (*asks_too_much)(void) = library ? (int (*)(void))dlsym(library, "asks_too_much") : 0;
    if (!asks_too_much)
        return 2;
    printf("%d refused\n", asks_too_much());
    return 0;
}
#endif
