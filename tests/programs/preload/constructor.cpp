// A library whose constructor waits for a thread that deletes, and the program that opens it.
#include <dlfcn.h>
#include <new>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#ifdef LIBRARY
static void *deletes(void *) {
    ::operator delete(::operator new(100), size_t(100));
    ::operator delete[](::operator new[](100), size_t(100));
    return nullptr;
}
__attribute__((constructor)) static void opened() {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, deletes, nullptr) == 0) pthread_join(thread, nullptr);
}
#else
int main(int, char **arguments) {
    alarm(20);
    puts(dlopen(arguments[1], RTLD_NOW) ? "opened" : dlerror());
}
#endif
