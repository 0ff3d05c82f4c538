/* What C programs rely on of object caches: all of `uslab.h`. `slab/examples/requests.c` is the example. */
#include "uslab.h"
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
#define OPTIONS(of, bytes) { .struct_size = sizeof(struct uslab_cache_options), .name = of, .size = bytes }

static struct uslab_cache_info numbers(const uslab_cache *cache) {
    struct uslab_cache_info info = { .struct_size = sizeof info };
    uslab_cache_info(cache, &info);
    CHECK(info.struct_size == sizeof info);
    return info;
}

struct request {
    char *buffer; /* built once, when the request's slab is made */
    unsigned long served;
};

/* What the functions of a cache share. */
struct server {
    int built, left; /* buffers */
    uslab_cache *requests;
    struct request *idle[8192];
    size_t idles;
};

static int request_ctor(void *object, void *user) {
    struct request *request = object;
    struct server *server = user;
    if (server->left-- <= 0) return -1;
    request->buffer = malloc(1000);
    if (!request->buffer) return -1;
    server->built++;
    return 0;
}
static void request_dtor(void *object, void *user) {
    struct request *request = object;
    struct server *server = user;
    free(request->buffer);
    server->built--;
}

static void constructed(void) {
    struct server server = { .left = 100000 };
    struct uslab_cache_options options = OPTIONS("request", sizeof(struct request));
    options.user = &server;
    options.ctor = request_ctor;
    options.dtor = request_dtor;
    int error = -1;
    uslab_cache *requests = uslab_cache_create(&options, &error);
    CHECK(requests && error == USLAB_OK);
    for (int i = 0; i < 100000; i++) {
        struct request *request = uslab_cache_alloc(requests, NULL);
        CHECK(request && request->buffer);
        snprintf(request->buffer, 1000, "request %d", i);
        request->served++;
        uslab_cache_free(requests, request);
    }
    struct uslab_cache_info info = numbers(requests);
    CHECK(info.allocs == 100000 && info.frees == 100000 && info.used == 0 && info.object_size == sizeof(struct request));
    /* One for each CPU that this ran on. */
    CHECK(info.constructed == (uint64_t)server.built && server.built > 0 && server.built < 100);
    struct request *request = uslab_cache_alloc(requests, NULL);
    CHECK(uslab_cache_destroy(requests) == USLAB_BUSY && server.built > 0);
    uslab_cache_free(requests, request);
    CHECK(uslab_cache_destroy(requests) == USLAB_OK && server.built == 0);

    /* Memory for three buffers: three objects can be had. */
    server.left = 3;
    requests = uslab_cache_create(&options, NULL);
    void *three[3], *five[5];
    CHECK(uslab_cache_alloc_bulk(requests, 3, three) == USLAB_OK && server.built == 3);
    CHECK(!uslab_cache_alloc(requests, &error) && error == USLAB_REFUSED && server.built == 3);
    uslab_cache_free_bulk(requests, 3, three);
    CHECK(uslab_cache_alloc_bulk(requests, 5, five) == USLAB_REFUSED && !five[0]);
    CHECK(numbers(requests).used == 0 && uslab_cache_destroy(requests) == USLAB_OK && server.built == 0);

    /* Not of a slab that is constructed as a whole: it is not made, and the three are given back. */
    server.left = 3;
    options.flags = USLAB_CONSTRUCT_SLABS;
    requests = uslab_cache_create(&options, NULL);
    CHECK(!uslab_cache_alloc(requests, &error) && error == USLAB_REFUSED && server.built == 0);
    void *two[2] = { &server, &server };
    server.left = 3;
    CHECK(uslab_cache_alloc_bulk(requests, 2, two) == USLAB_REFUSED && !two[0] && !two[1] && server.built == 0);
    info = numbers(requests);
    CHECK(info.failures == 2 && info.slabs == 0 && info.destructed == info.constructed);
    server.left = 100000;
    request = uslab_cache_zalloc(requests, NULL);
    CHECK(request && request->buffer); /* constructed, not zeroed */
    info = numbers(requests);
    CHECK(info.objects == info.constructed - info.destructed && server.built < 1000);
    uslab_cache_free(requests, request);
    CHECK(uslab_cache_destroy(requests) == USLAB_OK && server.built == 0);

    /* What objects hold counts to a limit in bytes. */
    options.flags = 0;
    options.holds = 100000;
    options.limit_unit = USLAB_BYTES;
    options.limit = 450000;
    requests = uslab_cache_create(&options, NULL);
    CHECK(uslab_cache_alloc_bulk(requests, 5, five) == USLAB_AT_LIMIT && !five[0]);
    CHECK(uslab_cache_alloc_bulk(requests, 4, five) == USLAB_OK && !uslab_cache_alloc(requests, &error) && error == USLAB_AT_LIMIT);
    uslab_cache_free_bulk(requests, 4, five);
    CHECK(uslab_cache_destroy(requests) == USLAB_OK && server.built == 0);
}

static void plain(void) {
    struct uslab_cache_options options = OPTIONS("plain", 100);
    options.align = 64;
    uslab_cache *plain = uslab_cache_create(&options, NULL);
    void *many[500];
    CHECK(plain && uslab_cache_alloc_bulk(plain, 0, many) == USLAB_OK && uslab_cache_alloc_bulk(plain, 500, many) == USLAB_OK);
    for (int i = 0; i < 500; i++) { CHECK((size_t)many[i] % 64 == 0); memset(many[i], 255, 100); }
    CHECK(numbers(plain).used == 500 && numbers(plain).objects >= 500 && numbers(plain).slab_size >= 4096);
    CHECK(uslab_cache_destroy(plain) == USLAB_BUSY);
    errno = 9;
    for (int i = 0; i < 250; i++) uslab_cache_free(plain, many[i]);
    many[250 + 7] = (uslab_cache_free(plain, many[250 + 7]), NULL);
    uslab_cache_free_bulk(plain, 250, many + 250);
    uslab_cache_free(plain, NULL);
    CHECK(errno == 9 && numbers(plain).used == 0 && numbers(plain).frees == 500);
    char *zeroed = uslab_cache_zalloc(plain, NULL);
    for (int i = 0; i < 100; i++) CHECK(zeroed[i] == 0);
    uslab_cache_free(plain, zeroed);
    CHECK(numbers(plain).cached > 0 && uslab_cache_shrink(plain) > 0 && numbers(plain).slabs == 0);
    CHECK(uslab_cache_alloc_bulk(plain, (size_t)1 << 60, many) == USLAB_TOO_MANY);

    /* What nobody needed for an interval goes back. */
    CHECK(uslab_cache_alloc_bulk(plain, 500, many) == USLAB_OK);
    uslab_cache_free_bulk(plain, 500, many);
    uint64_t reaped = 0;
    for (int i = 0; i < 3; i++) reaped += uslab_cache_reap(plain);
    CHECK(reaped > 0 && numbers(plain).cached == 0);
    for (int i = 0; i < 3; i++) uslab_reap();
    CHECK(uslab_cache_destroy(plain) == USLAB_OK && uslab_cache_destroy(NULL) == USLAB_OK);
}

static void flags(void) {
    int error;
    struct uslab_cache_options options = OPTIONS("key", 40);
    options.flags = USLAB_HARDWARE_ALIGN | USLAB_ZERO_ON_FREE | USLAB_CHECK_FREES | USLAB_RECLAIMABLE | USLAB_NO_MAGAZINES;
    uslab_cache *keys = uslab_cache_create(&options, NULL);
    char *key = uslab_cache_alloc(keys, NULL), *other = uslab_cache_alloc(keys, NULL);
    CHECK(key && other && (size_t)key % 64 == 0);
    memset(key, 1, 40);
    uslab_cache_free(keys, key);
    CHECK(numbers(keys).cached == 0); /* no magazines */
    for (int i = 0; i < 40; i++) CHECK(key[i] == 0); /* its slab is still there */
    uslab_cache_free(keys, other);
    CHECK(uslab_cache_destroy(keys) == USLAB_OK);

    options.flags = USLAB_RED_ZONE | USLAB_POISON | USLAB_USERS;
    keys = uslab_cache_create(&options, &error);
    key = uslab_cache_alloc(keys, NULL);
    other = uslab_cache_alloc(keys, NULL);
    CHECK(key[0] == 0x5a && key[39] == 0x5a && (unsigned char)key[40] == 0xcc && (unsigned char)key[-1] == 0xcc);
    memset(key, 1, 40);
    CHECK(uslab_cache_validate(keys) == 0);
    CHECK(uslab_cache_alloc_traces(keys, -1) == USLAB_NOT_WRITTEN);
    FILE *traces = tmpfile();
    char line[64] = "";
    CHECK(uslab_cache_alloc_traces(keys, fileno(traces)) == USLAB_OK);
    rewind(traces);
    CHECK(fgets(line, sizeof line, traces) && strstr(line, " waste=0 age="));
    fclose(traces);
    uslab_cache_free(keys, key);
    CHECK(key[0] == 0x6b && (unsigned char)key[39] == 0xa5);
    uslab_cache_free(keys, other);
    CHECK(uslab_cache_validate(keys) == 0 && uslab_cache_destroy(keys) == USLAB_OK);

    options.flags = USLAB_MERGE;
    uslab_cache *one = uslab_cache_create(&options, NULL);
    options.name = "lock";
    uslab_cache *two = uslab_cache_create(&options, NULL);
    key = uslab_cache_alloc(one, NULL);
    CHECK(numbers(two).used == 1); /* the same slabs, and numbers */
    uslab_cache_free(two, key);
    CHECK(uslab_cache_destroy(one) == USLAB_OK && (key = uslab_cache_alloc(two, NULL)));
    uslab_cache_free(two, key);
    CHECK(uslab_cache_destroy(two) == USLAB_OK);

    options.flags = USLAB_DMA;
    keys = uslab_cache_create(&options, &error);
    CHECK(keys && uslab_cache_destroy(keys) == USLAB_OK);
    options.flags = 1u << 31;
    CHECK(!uslab_cache_create(&options, &error) && error == USLAB_BAD_OPTIONS);
    options.flags = USLAB_ZERO_ON_FREE;
    options.dtor = request_dtor;
    CHECK(!uslab_cache_create(&options, &error) && error == USLAB_BAD_OPTIONS);
}

static size_t idle_count(void *user) { return ((struct server *)user)->idles; }

static int refused(struct uslab_cache_options options) {
    int error = -1;
    CHECK(!uslab_cache_create(&options, &error) && error > 0 && strlen(uslab_error_text(error)) > 10);
    return error;
}

static void errors(void) {
    struct uslab_cache_options options = OPTIONS("two words", 8);
    CHECK(refused(options) == USLAB_BAD_NAME);
    options.name = NULL;
    CHECK(refused(options) == USLAB_BAD_NAME);
    options.name = "odd";
    options.align = 24;
    CHECK(refused(options) == USLAB_BAD_SIZE);
    options.align = options.size = 0;
    CHECK(refused(options) == USLAB_BAD_SIZE);
    options.size = (size_t)5 << 20;
    CHECK(refused(options) == USLAB_BAD_SIZE);
    options.size = 8;
    options.limit = 1;
    options.limit_unit = 7;
    CHECK(refused(options) == USLAB_BAD_OPTIONS);
    options.limit = 0;
    options.shrinker_count = idle_count;
    CHECK(refused(options) == USLAB_BAD_OPTIONS);

    /* A program that was made for an older header, and for a newer one: what that does not use is zero. */
    struct { struct uslab_cache_options known; size_t later; } newer = { OPTIONS("newer", 8), 0 };
    newer.known.struct_size = sizeof newer;
    uslab_cache *cache = uslab_cache_create(&newer.known, NULL);
    CHECK(cache && uslab_cache_destroy(cache) == USLAB_OK);
    newer.later = 1;
    int error;
    CHECK(!uslab_cache_create(&newer.known, &error) && error == USLAB_BAD_OPTIONS);
    struct uslab_cache_options older = OPTIONS("older", 8);
    older.struct_size = offsetof(struct uslab_cache_options, user);
    older.dtor = request_dtor; /* beyond what it says it has */
    CHECK((cache = uslab_cache_create(&older, NULL)) && uslab_cache_alloc(cache, NULL));
    struct uslab_cache_info info = { .struct_size = offsetof(struct uslab_cache_info, frees), .frees = 77 };
    uslab_cache_info(cache, &info);
    CHECK(info.allocs == 1 && info.frees == 77);
    older.struct_size = 8;
    CHECK(!uslab_cache_create(&older, &error) && error == USLAB_BAD_OPTIONS);

    CHECK(!strcmp(uslab_error_text(USLAB_OK), "no error") && strstr(uslab_error_text(USLAB_NOT_WRITTEN), "errno"));
    CHECK(!strcmp(uslab_error_text(-1), uslab_error_text(1000)));
    errno = 0;
    CHECK(uslab_slabinfo(-1) == USLAB_NOT_WRITTEN && errno == EBADF);
}

/* ---- limits, and what the program can do without ---- */

static size_t idle_scan(size_t objects, void *user) {
    struct server *server = user;
    size_t dropped = 0;
    for (; dropped < objects && server->idles > 0; dropped++)
        uslab_cache_free(server->requests, server->idle[--server->idles]);
    return dropped;
}

static void *later(void *object) {
    void **both = object;
    usleep(20000);
    uslab_cache_free(both[0], both[1]);
    return NULL;
}

static void limits(void) {
    struct server server = { .left = 0 };
    struct uslab_cache_options options = OPTIONS("limited", 256);
    options.limit = 1;
    options.limit_unit = USLAB_SLABS;
    int error;
    uslab_cache *cache = uslab_cache_create(&options, NULL);
    size_t n = 0;
    while (n < 8192 && (server.idle[n] = uslab_cache_alloc(cache, &error))) n++;
    CHECK(error == USLAB_AT_LIMIT && n == numbers(cache).objects && numbers(cache).limit == 1);
    CHECK(!uslab_cache_acquire(cache, 10, &error) && error == USLAB_AT_LIMIT);
    pthread_t thread;
    void *both[2] = { cache, server.idle[--n] };
    CHECK(pthread_create(&thread, NULL, later, both) == 0);
    void *waited = uslab_cache_acquire(cache, 60000, NULL);
    CHECK(waited == both[1] && pthread_join(thread, NULL) == 0);
    uslab_cache_free(cache, waited);
    uslab_cache_free_bulk(cache, n, (void *const *)server.idle);
    CHECK(uslab_cache_destroy(cache) == USLAB_OK);

    options.limit = 1000;
    options.limit_unit = USLAB_BYTES;
    CHECK((cache = uslab_cache_create(&options, NULL)) && numbers(cache).limit == 1 && uslab_cache_destroy(cache) == USLAB_OK);
    options.limit_unit = USLAB_OBJECTS;
    options.user = &server;
    options.shrinker_count = idle_count;
    options.shrinker_scan = idle_scan;
    server.requests = cache = uslab_cache_create(&options, NULL);
    CHECK(numbers(cache).limit > 1);
    for (int i = 0; i < 5000; i++) { /* never fails: idle ones make room */
        struct request *request = uslab_cache_alloc(cache, &error);
        CHECK(request);
        server.idle[server.idles++] = request;
    }
    CHECK(server.idles <= numbers(cache).objects && server.idles == numbers(cache).used);
    idle_scan(server.idles, &server);
    CHECK(uslab_cache_destroy(cache) == USLAB_OK);
}

/* ---- other threads, and forks ---- */

struct watched {
    volatile int alive, inside, go, stop;
    pthread_t own;
    uslab_cache *cache;
    void *held[8192];
    size_t n;
};

static size_t watched_count(void *user) { CHECK(((struct watched *)user)->alive); return 1; }
static size_t watched_scan(size_t objects, void *user) {
    struct watched *watched = user;
    (void)objects;
    watched->inside = 1;
    while (!watched->go) usleep(100);
    CHECK(watched->alive);
    return 0;
}
static void watched_dtor(void *object, void *user) {
    struct watched *watched = user;
    (void)object;
    CHECK(watched->alive);
    if (pthread_equal(pthread_self(), watched->own)) return;
    watched->inside = 1;
    usleep(300);
    CHECK(watched->alive);
}
static void *beyond_the_limit(void *user) {
    struct watched *watched = user;
    CHECK(!uslab_cache_alloc(watched->cache, NULL));
    return NULL;
}
static void *reaps(void *user) {
    struct watched *watched = user;
    while (!watched->stop) uslab_reap();
    return NULL;
}

/* In the child: `way` is what it does there, within a minute. */
static void in_a_child(void (*way)(struct watched *), struct watched *watched) {
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        way(watched);
        fflush(stdout);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (status) printf("the child: %s %d\n", WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    CHECK(status == 0);
}
static void destroys(struct watched *watched) {
    uslab_cache_free_bulk(watched->cache, watched->n, watched->held);
    CHECK(uslab_cache_destroy(watched->cache) == USLAB_OK);
    watched->alive = 0;
    struct uslab_cache_options options = OPTIONS("childs", 64);
    uslab_cache *cache = uslab_cache_create(&options, NULL);
    CHECK(cache && uslab_cache_alloc(cache, NULL) && uslab_cache_destroy(cache) == USLAB_BUSY);
}

/* The same beside a thread of the child's own. */
static void destroys_beside_a_thread(struct watched *watched) {
    pthread_t thread;
    watched->own = pthread_self();
    watched->inside = 0;
    CHECK(pthread_create(&thread, NULL, reaps, watched) == 0);
    for (int i = 0; i < 1000 && !watched->inside; i++) {
        CHECK(uslab_cache_alloc_bulk(watched->cache, 500, watched->held) == USLAB_OK);
        uslab_cache_free_bulk(watched->cache, 500, watched->held);
        usleep(10);
    }
    destroys(watched);
    usleep(2000);
    watched->stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

/* A thread is in a shrinker meanwhile, which the child does not have: it was waited for for ever. */
static void a_child_destroys_beside_a_shrinker(void) {
    static struct watched watched = { .alive = 1 };
    watched.own = pthread_self();
    struct uslab_cache_options options = OPTIONS("watched", 256);
    options.limit = 1;
    options.limit_unit = USLAB_SLABS;
    options.user = &watched;
    options.shrinker_count = watched_count;
    options.shrinker_scan = watched_scan;
    options.dtor = watched_dtor;
    watched.cache = uslab_cache_create(&options, NULL);
    struct uslab_cache_info info;
    do {
        watched.held[watched.n++] = uslab_cache_alloc(watched.cache, NULL);
        info = numbers(watched.cache);
    } while (info.used < info.objects);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, beyond_the_limit, &watched) == 0);
    while (!watched.inside) usleep(100);
    in_a_child(destroys, &watched);
    watched.go = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    destroys(&watched);
}

/* Another thread gives slabs back, and runs the destructor: not once the cache is destroyed, which waits for it. */
static void nothing_is_called_after_destroy(void) {
    static struct watched watched;
    pthread_t thread;
    int beside = 0;
    watched.own = pthread_self();
    CHECK(pthread_create(&thread, NULL, reaps, &watched) == 0);
    for (int turn = 0; turn < 60; turn++) {
        struct uslab_cache_options options = OPTIONS("watched", 256);
        options.user = &watched;
        options.dtor = watched_dtor;
        options.flags = USLAB_NO_MAGAZINES; /* all that is free lies in slabs */
        watched.alive = 1;
        watched.inside = 0;
        watched.n = 500;
        watched.cache = uslab_cache_create(&options, NULL);
        CHECK(uslab_cache_alloc_bulk(watched.cache, watched.n, watched.held) == USLAB_OK);
        uslab_cache_free_bulk(watched.cache, watched.n, watched.held);
        watched.n = 0;
        for (int i = 0; i < 1000 && !watched.inside; i++) usleep(10);
        beside += watched.inside;
        if (turn % 4 == 0) in_a_child(destroys, &watched);
        if (turn % 4 == 1) in_a_child(destroys_beside_a_thread, &watched);
        CHECK(uslab_cache_destroy(watched.cache) == USLAB_OK);
        watched.alive = 0;
    }
    CHECK(beside > 0);
    watched.stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

/* What was freed is kept from use. */
static void quarantined(void) {
    struct uslab_cache_options options = OPTIONS("kept", 100);
    options.flags = USLAB_NO_MAGAZINES;
    uslab_cache *kept = uslab_cache_create(&options, NULL);
    uslab_cache_free(kept, uslab_cache_alloc(kept, NULL));
    CHECK(numbers(kept).used == 0 && numbers(kept).cached == 1);
    CHECK(uslab_cache_destroy(kept) == USLAB_OK);
}

int main(int argc, char **argv) {
    setbuf(stdout, NULL);
    (void)argv;
    if (argc > 1) { /* with a quarantine */
        quarantined();
        return 0;
    }
    constructed();
    plain();
    flags();
    errors();
    limits();
    a_child_destroys_beside_a_shrinker();
    nothing_is_called_after_destroy();
    /* The check found its own allocation, in a slab that it had not counted, if malloc had none of that size. */
    malloc_trim(0);
    char text[200] = "?";
    int found = uslab_check(text, sizeof text);
    if (found) printf("%s\n", text);
    CHECK(found == USLAB_OK && !*text && uslab_check(NULL, 0) == USLAB_OK && *uslab_version());
    CHECK(uslab_slabinfo(STDOUT_FILENO) == USLAB_OK);
    return 0;
}
