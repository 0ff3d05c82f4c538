// Makes holes in kernel caches, and shrinks one cache in each of ten rounds. It runs in a kernel that `uslab record --qemu` boots.
//
// Each round has files, sockets, pipes, maps, messages and processes of which most are given up, in a random pattern. Then the
// program reads the tables, writes 1 to the file `shrink` of one cache, and reads the tables again: the moments
// `shrink-01-before` and `shrink-01-after` of the recording. Nothing else runs between the two tables.
//
// `holes leak` leaves message queues behind instead, among the same load.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 10
#define TABLE (1 << 17)

static unsigned long long state = 88172645463325252ULL;
static int marker;

static unsigned below(unsigned n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (unsigned)(state >> 11) % n;
}

static void mark(const char *text) {
    if (write(marker, text, strlen(text)) < 0) perror("trace_marker");
}

// Moves to another CPU after some operations, so that objects of many CPUs share slabs.
static void hop(unsigned operation) {
    if (operation % 128) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(below((unsigned)sysconf(_SC_NPROCESSORS_ONLN)), &one);
    sched_setaffinity(0, sizeof one, &one);
}

// Decides which of the objects are given up: a random part, or all of a stretch.
static int gives_up(unsigned object, unsigned pattern) {
    switch (pattern % 3) {
    case 0: return below(8) != 0;
    case 1: return below(2) != 0;
    default: return object / 256 % 4 != 0;
    }
}

static void files(unsigned round, unsigned n) {
    char path[96];
    snprintf(path, sizeof path, "/tmp/round-%u", round);
    mkdir(path, 0755);
    for (unsigned i = 0; i < n; i++) {
        hop(i);
        snprintf(path, sizeof path, "/tmp/round-%u/%u", round, i);
        int file = open(path, O_CREAT | O_RDWR, 0644);
        if (i % 8 == 0 && write(file, path, 64) < 0) perror(path);
        close(file);
    }
    for (unsigned i = 0; i < n; i++) {
        hop(i);
        snprintf(path, sizeof path, "/tmp/round-%u/%u", round, i);
        if (gives_up(i, round)) unlink(path);
    }
}

static void sockets(unsigned round, unsigned n) {
    int(*pairs)[2] = calloc(n, sizeof *pairs);
    char text[512] = "text";
    for (unsigned i = 0; i < n; i++) {
        hop(i);
        if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pairs[i])) perror("socketpair");
        for (unsigned k = below(4); k--;) send(pairs[i][0], text, 1 + below(400), MSG_DONTWAIT);
    }
    for (unsigned i = 0; i < n; i++) {
        hop(i);
        if (gives_up(i, round)) close(pairs[i][0]), close(pairs[i][1]);
    }
    free(pairs);
}

static void pipes(unsigned round, unsigned n) {
    int(*ends)[2] = calloc(n, sizeof *ends);
    int poll = epoll_create1(0);
    for (unsigned i = 0; i < n; i++) {
        hop(i);
        if (pipe(ends[i])) perror("pipe");
        struct epoll_event event = {.events = EPOLLIN};
        epoll_ctl(poll, EPOLL_CTL_ADD, ends[i][0], &event);
    }
    for (unsigned i = 0; i < n; i++) {
        hop(i);
        if (gives_up(i, round)) close(ends[i][0]), close(ends[i][1]);
    }
    free(ends);
}

// A child makes and keeps the maps, so that later children do not copy them.
static void maps(unsigned round, unsigned n) {
    pid_t child = fork();
    if (child) {
        waitpid(child, 0, WUNTRACED);
        return;
    }
    char **of = calloc(n, sizeof *of);
    for (unsigned i = 0; i < n; i++) {
        hop(i);
        // Neighbours with other rights are not merged.
        of[i] = mmap(0, 4096, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (i % 16 == 0 && of[i] != MAP_FAILED) *of[i] = 1;
    }
    for (unsigned i = 0; i < n; i++) {
        hop(i);
        if (of[i] != MAP_FAILED && gives_up(i, round)) munmap(of[i], 4096);
    }
    for (;;) raise(SIGSTOP);
}

static void messages(unsigned round, unsigned n) {
    struct { long type; char text[80]; } message = {0, "text"};
    for (unsigned queues = n / 64; queues--;) {
        int queue = msgget(IPC_PRIVATE, 0600);
        for (unsigned i = 0; i < 64; i++) {
            hop(i);
            message.type = 1 + i;
            if (msgsnd(queue, &message, 64, IPC_NOWAIT)) break;
        }
        for (unsigned i = 0; i < 64; i++)
            if (gives_up(i * 5, round)) msgrcv(queue, &message, 80, 1 + i, IPC_NOWAIT);
    }
}

static void processes(unsigned round, unsigned n) {
    pid_t *of = calloc(n, sizeof *of);
    for (unsigned i = 0; i < n; i++) {
        hop(0);
        if ((of[i] = fork()) == 0) {
            for (;;) pause();
        }
    }
    for (unsigned i = 0; i < n; i++)
        if (gives_up(i * 37, round)) kill(of[i], SIGKILL), waitpid(of[i], 0, 0);
    free(of);
}

// Reads a file into a buffer that is written to another file later.
static size_t contents(const char *path, char *into, size_t room) {
    int file = open(path, O_RDONLY);
    size_t length = 0;
    ssize_t got = 0;
    while (file >= 0 && length < room && (got = read(file, into + length, room - length)) > 0) length += (size_t)got;
    if (file >= 0) close(file);
    return length;
}

static void store(const char *moment, const char *table, const char *text, size_t length) {
    char path[96];
    snprintf(path, sizeof path, "/out/%s.%s", moment, table);
    FILE *file = fopen(path, "w");
    if (!file || fwrite(text, 1, length, file) != length) perror(path);
    if (file) fclose(file);
}

// The counts of each folder in /sys/kernel/slab, without links.
static size_t counts(char *into) {
    static const char *names[] = {"slabs", "total_objects", "objects", "partial", "objects_partial", "cpu_slabs", "slabs_cpu_partial"};
    size_t length = (size_t)sprintf(into, "name\tlink");
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) length += (size_t)sprintf(into + length, "\t%s", names[i]);
    length += (size_t)sprintf(into + length, "\n");
    DIR *folder = opendir("/sys/kernel/slab");
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (entry->d_type != DT_DIR || entry->d_name[0] == '.') continue;
        length += (size_t)sprintf(into + length, "%s\t-", entry->d_name);
        for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
            char path[320], text[256];
            snprintf(path, sizeof path, "/sys/kernel/slab/%s/%s", entry->d_name, names[i]);
            size_t got = contents(path, text, sizeof text - 1);
            while (got && (text[got - 1] == '\n' || text[got - 1] == ' ')) got--;
            text[got] = 0;
            length += (size_t)sprintf(into + length, "\t%s", got ? text : "NA");
        }
        length += (size_t)sprintf(into + length, "\n");
    }
    if (folder) closedir(folder);
    return length;
}

static void shrink(unsigned round, const char *cache) {
    static char before[TABLE], after[TABLE], counted[TABLE];
    char path[320], link[256], text[320], moments[2][24];
    // Fewer page faults between the tables.
    memset(before, 1, TABLE), memset(after, 1, TABLE), memset(counted, 1, TABLE);
    snprintf(moments[0], sizeof *moments, "shrink-%02u-before", round);
    snprintf(moments[1], sizeof *moments, "shrink-%02u-after", round);
    snprintf(path, sizeof path, "/sys/kernel/slab/%s", cache);
    ssize_t got = readlink(path, link, sizeof link - 1);
    link[got > 0 ? got : 0] = 0;
    const char *folder = got > 0 ? strrchr(link, '/') ? strrchr(link, '/') + 1 : link : cache;
    strcat(path, "/shrink");
    int file = open(path, O_WRONLY);
    size_t length = counts(counted);
    snprintf(text, sizeof text, "SNAP %s begin", moments[0]);
    mark(text);
    size_t lengths[2];
    lengths[0] = contents("/proc/slabinfo", before, TABLE);
    snprintf(text, sizeof text, "SHRINK cache %s", folder);
    mark(text);
    if (write(file, "1", 1) != 1) perror(path);
    snprintf(text, sizeof text, "SNAP %s begin", moments[1]);
    mark(text);
    lengths[1] = contents("/proc/slabinfo", after, TABLE);
    close(file);
    store(moments[0], "sysfs-slab.tsv", counted, length);
    store(moments[0], "slabinfo", before, lengths[0]);
    store(moments[1], "slabinfo", after, lengths[1]);
    FILE *list = fopen("/out/shrinks.txt", "a");
    if (list) fprintf(list, "%02u %s\n", round, cache), fclose(list);
}

int main(int count, char **arguments) {
    // The shrunk caches; of two names, the second one is for kernels without the first.
    static const char *caches[ROUNDS][2] = {
        {"dentry"}, {"shmem_inode_cache"}, {"sock_inode_cache"}, {"filp"}, {"vm_area_struct"},
        {"msg_msg-128", "kmalloc-cg-128"}, {"maple_node"}, {"skbuff_head_cache"}, {"task_struct"}, {"dentry"},
    };
    // The children are of this group, and the recording's script is not.
    setpgid(0, 0);
    int leaks = count > 1 && !strcmp(arguments[1], "leak");
    marker = open("/sys/kernel/tracing/trace_marker", O_WRONLY);
    struct rlimit limit = {1 << 16, 1 << 16};
    setrlimit(RLIMIT_NOFILE, &limit);
    struct { const char *path, *value; } limits[] = {
        {"/proc/sys/kernel/msgmnb", "65536"}, {"/proc/sys/kernel/msgmni", "32000"},
    };
    for (unsigned i = 0; i < sizeof limits / sizeof *limits; i++) {
        int file = open(limits[i].path, O_WRONLY);
        if (file < 0 || write(file, limits[i].value, strlen(limits[i].value)) < 0) perror(limits[i].path);
        close(file);
    }
    for (unsigned round = 1; round <= ROUNDS; round++) {
        if (leaks) {
            // Each round gives up all of its files and sockets, and leaves 25 queues.
            for (unsigned i = 0; i < 25; i++) msgget(IPC_PRIVATE, 0600);
            for (unsigned i = 0; i < 40; i++) {
                int ends[2];
                if (pipe(ends)) perror("pipe");
                close(ends[0]), close(ends[1]);
            }
            usleep(100000);
            continue;
        }
        maps(round, 1500);
        files(round, 1500);
        sockets(round + 1, 400);
        pipes(round + 2, 400);
        messages(round + 1, 1024);
        processes(round, 20);
        // What readers may still see is freed after a grace period.
        hop(0);
        sleep(2);
        char path[96];
        snprintf(path, sizeof path, "/sys/kernel/slab/%s", caches[round - 1][0]);
        shrink(round, caches[round - 1][access(path, F_OK) != 0 && caches[round - 1][1]]);
    }
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    return 0;
}
