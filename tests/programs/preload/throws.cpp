// A cache one of whose functions throws: argv[1].
#include <cstdio>
#include <cstring>
#include <uslab.h>

static const char *thrower;

static void may_throw(const char *self) {
    if (!strcmp(thrower, self))
        throw 7;
}
static int construct(void *, void *) { return may_throw("ctor"), 0; }
static void destruct(void *, void *) { may_throw("dtor"); }
static size_t count(void *) { return may_throw("count"), 1; }
static size_t scan(size_t, void *) { return may_throw("scan"), 0; }

int main(int, char **argv) {
    thrower = argv[1];
    struct uslab_cache_options options = {};
    options.struct_size = sizeof options;
    options.name = "throws";
    options.size = 512;
    options.limit_unit = USLAB_SLABS;
    options.limit = 1;
    options.ctor = construct;
    options.dtor = destruct;
    options.shrinker_count = count;
    options.shrinker_scan = scan;
    uslab_cache *cache = uslab_cache_create(&options, nullptr);
    try {
        static void *objects[1000];
        size_t n = 0;
        while ((objects[n] = uslab_cache_alloc(cache, nullptr)))
            n++;
        uslab_cache_free_bulk(cache, n, objects);
        uslab_cache_shrink(cache);
        puts("nothing was thrown");
    } catch (int) {
        puts("it was caught");
    }
    fflush(stdout);
}
