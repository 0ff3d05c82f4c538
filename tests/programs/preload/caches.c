/* What C programs rely on of object caches. `slab/examples/requests.c` is the example. */
#include "uslab.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)

struct request {
    char *buffer; /* built once, when the request's slab is made */
    unsigned long served;
};

static int built;

static void request_ctor(void *object) {
    struct request *request = object;
    request->buffer = malloc(1000);
    built++;
}

int main(void) {
    setbuf(stdout, NULL);
    uslab_cache *requests = uslab_cache_create("request", sizeof(struct request), 0, request_ctor);
    CHECK(requests);
    for (int i = 0; i < 100000; i++) {
        struct request *request = uslab_cache_alloc(requests);
        CHECK(request && request->buffer);
        snprintf(request->buffer, 1000, "request %d", i);
        request->served++;
        uslab_cache_free(requests, request);
    }
    struct uslab_cache_info info;
    uslab_cache_info(requests, &info);
    CHECK(info.allocs == 100000 && info.frees == 100000 && info.used == 0 && info.object_size == sizeof(struct request));
    CHECK(built == (int)info.objects && built < 1000);

    uslab_cache *plain = uslab_cache_create("plain", 100, 64, NULL);
    void *many[500];
    CHECK(plain && uslab_cache_alloc_bulk(plain, 500, many) == 0);
    for (int i = 0; i < 500; i++) { CHECK((size_t)many[i] % 64 == 0); memset(many[i], 255, 100); }
    uslab_cache_info(plain, &info);
    CHECK(info.used == 500 && info.objects >= 500);
    errno = 0;
    CHECK(uslab_cache_destroy(plain) == -1 && errno == EBUSY);
    for (int i = 0; i < 500; i++) { errno = 9; uslab_cache_free(plain, many[i]); CHECK(errno == 9); }
    uslab_cache_free(plain, NULL);
    char *zeroed = uslab_cache_zalloc(plain);
    for (int i = 0; i < 100; i++) CHECK(zeroed[i] == 0);
    uslab_cache_free(plain, zeroed);
    CHECK(uslab_cache_shrink(plain) > 0);
    uslab_cache_info(plain, &info);
    CHECK(info.slabs == 0);
    CHECK(uslab_cache_destroy(plain) == 0);

    errno = 0; CHECK(!uslab_cache_create("two words", 8, 0, NULL) && errno == EINVAL);
    errno = 0; CHECK(!uslab_cache_create("none", 0, 0, NULL) && errno == EINVAL);
    errno = 0; CHECK(!uslab_cache_create("odd", 8, 24, NULL) && errno == EINVAL);
    errno = 0; CHECK(uslab_slabinfo(-1) == -1 && errno == EBADF);
    CHECK(uslab_slabinfo(STDOUT_FILENO) == 0);
    return 0;
}
