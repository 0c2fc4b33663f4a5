/* A disk that fails: calls on files below a folder are counted, and from one of them on they fail.

   What is preloaded reaches all of a process: Python, SQLite, and the writers of Parquet. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char root[4096];
static long failing = -1, calls = 0;
static int number = 0, lasts = 0;

/* Let the call of a number fail, counted from 0; and all after it, where that `is_lasting`. */
void fail_at(const char *folder, long call, int error, int is_lasting) {
    snprintf(root, sizeof root, "%s", folder);
    calls = 0, failing = call, number = error, lasts = is_lasting;
}

long calls_so_far(void) { return calls; }

static int fails_here(void) {
    long call = __atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST);
    if (failing < 0 || (call != failing && !(lasts && call > failing))) return 0;
    errno = number;
    return 1;
}

static int is_below(const char *path) {
    return root[0] && path && strncmp(path, root, strlen(root)) == 0;
}

static int is_file_below(int descriptor) {
    char link[64], path[4096];
    if (!root[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_below(path);
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OF_FILE(type, name, declared, given)                                                       \
    type name declared {                                                                           \
        REAL(name);                                                                                \
        return is_file_below(descriptor) && fails_here() ? -1 : real given;                        \
    }

OF_FILE(ssize_t, write, (int descriptor, const void *from, size_t size), (descriptor, from, size))
OF_FILE(ssize_t, pwrite, (int descriptor, const void *from, size_t size, off_t at),
        (descriptor, from, size, at))
OF_FILE(ssize_t, pwrite64, (int descriptor, const void *from, size_t size, off64_t at),
        (descriptor, from, size, at))
OF_FILE(int, fsync, (int descriptor), (descriptor))
OF_FILE(int, fdatasync, (int descriptor), (descriptor))
OF_FILE(int, ftruncate, (int descriptor, off_t size), (descriptor, size))
OF_FILE(int, ftruncate64, (int descriptor, off64_t size), (descriptor, size))

#define OF_PATH(name, declared, given)                                                             \
    int name declared {                                                                            \
        REAL(name);                                                                                \
        return is_below(path) && fails_here() ? -1 : real given;                                   \
    }

OF_PATH(mkdir, (const char *path, mode_t mode), (path, mode))
OF_PATH(rename, (const char *path, const char *target), (path, target))
OF_PATH(link, (const char *path, const char *target), (path, target))

#define OPENS(name)                                                                                \
    int name(const char *path, int flags, ...) {                                                   \
        REAL(name);                                                                                \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode_t mode = va_arg(more, mode_t);                                                        \
        va_end(more);                                                                              \
        return (flags & O_CREAT) && is_below(path) && fails_here() ? -1 : real(path, flags, mode); \
    }

OPENS(open)
OPENS(open64)
