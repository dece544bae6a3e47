/* Preloaded library that lets the k-th call that changes files of a folder fail, for tests of
 * commands.
 *
 * Counted are writes, renames, synchronisations and changes of size of files whose name begins with
 * a prefix. The k-th of them ends the process (a write after half of its bytes), returns an error,
 * or writes half of its bytes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { MOST_CALLS = 1 << 16, END = -1, HALF = -2 };

static char prefix[PATH_MAX];
static char kinds[MOST_CALLS];
static long count, failing;
static int outcome;

void fail_calls(const char *folder, long at, int how);
long fail_counted(char *into, long most);

/* Counts calls in `folder` anew; call number `at` (from 1) fails as `how`: an errno, END or HALF.
 */
void fail_calls(const char *folder, long at, int how) {
    snprintf(prefix, sizeof prefix, "%s", folder);
    count = 0;
    failing = at;
    outcome = how;
}

/* Returns the number of calls so far, and their kinds, a letter each. */
long fail_counted(char *into, long most) {
    long known = count < MOST_CALLS ? count : MOST_CALLS;
    memcpy(into, kinds, (size_t)(known < most ? known : most));
    return count;
}

static int begins(const char *name) {
    char folder[PATH_MAX];
    if (name[0] != '/') name = getcwd(folder, sizeof folder) ? folder : "";
    return prefix[0] && !strncmp(name, prefix, strlen(prefix));
}

static int of_descriptor(int descriptor) {
    char link[64], name[PATH_MAX];
    if (!prefix[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length < 0) return 0;
    name[length] = 0;
    return begins(name);
}

/* Counts a call; returns 0, or the way in which it fails. */
static int counted(char kind) {
    if (count < MOST_CALLS) kinds[count] = kind;
    count++;
    return count == failing ? outcome : 0;
}

/* Ends the process, or returns -1 with an error. */
static int failed(int how) {
    if (how == END) {
        kill(getpid(), SIGKILL);
        pause();
    }
    errno = how;
    return -1;
}

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))

typedef ssize_t (*write_call)(int, const void *, size_t);
typedef ssize_t (*pwrite_call)(int, const void *, size_t, off_t);
typedef int (*rename_call)(const char *, const char *);
typedef int (*renameat_call)(int, const char *, int, const char *);
typedef int (*descriptor_call)(int);
typedef int (*size_call)(int, off_t);
typedef int (*space_call)(int, off_t, off_t);

ssize_t write(int descriptor, const void *data, size_t size) {
    write_call next = NEXT(write_call, "write");
    int how = of_descriptor(descriptor) ? counted('w') : 0;
    if (!how) return next(descriptor, data, size);
    if (how == HALF || how == END) {
        ssize_t written = next(descriptor, data, (size + 1) / 2);
        if (how == HALF) return written;
    }
    return failed(how);
}

static ssize_t write_at(const char *name, int descriptor, const void *data, size_t size, off_t at) {
    pwrite_call next = NEXT(pwrite_call, name);
    int how = of_descriptor(descriptor) ? counted('p') : 0;
    if (!how) return next(descriptor, data, size, at);
    if (how == HALF || how == END) {
        ssize_t written = next(descriptor, data, (size + 1) / 2, at);
        if (how == HALF) return written;
    }
    return failed(how);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t at) {
    return write_at("pwrite", descriptor, data, size, at);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off_t at) {
    return write_at("pwrite64", descriptor, data, size, at);
}

/* Errors of calls without data; such a call cannot be done by half. */
static int refused(char kind, int concerned) {
    int how = concerned ? counted(kind) : 0;
    return how && how != HALF ? failed(how) : 0;
}

int rename(const char *from, const char *to) {
    return refused('r', begins(to)) ? -1 : NEXT(rename_call, "rename")(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    return refused('r', begins(to))
               ? -1
               : NEXT(renameat_call, "renameat")(from_folder, from, to_folder, to);
}

int fsync(int descriptor) {
    return refused('s', of_descriptor(descriptor)) ? -1
                                                   : NEXT(descriptor_call, "fsync")(descriptor);
}

int fdatasync(int descriptor) {
    return refused('s', of_descriptor(descriptor)) ? -1
                                                   : NEXT(descriptor_call, "fdatasync")(descriptor);
}

int ftruncate(int descriptor, off_t size) {
    return refused('t', of_descriptor(descriptor)) ? -1
                                                   : NEXT(size_call, "ftruncate")(descriptor, size);
}

int ftruncate64(int descriptor, off_t size) {
    return refused('t', of_descriptor(descriptor))
               ? -1
               : NEXT(size_call, "ftruncate64")(descriptor, size);
}

int posix_fallocate(int descriptor, off_t at, off_t size) {
    return refused('a', of_descriptor(descriptor))
               ? errno
               : NEXT(space_call, "posix_fallocate")(descriptor, at, size);
}

int posix_fallocate64(int descriptor, off_t at, off_t size) {
    return refused('a', of_descriptor(descriptor))
               ? errno
               : NEXT(space_call, "posix_fallocate64")(descriptor, at, size);
}
