/* What a command does to one folder, counted; at a chosen moment it is killed, or its disk is full.

Loaded before the C library (LD_PRELOAD). All processes of a command share the counter in the file that
METAPHASE_FAULTS names; `injector.py` describes it and chooses. Everything outside the folder is left alone.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { COUNT, KILL, FULL, NO_LOCKS, NO_LINKS, JUMPS, STILL };
static struct state {
    _Atomic int64_t kind, at, seen, struck, shift_s;
    char under[4096];
} nothing, *state = &nothing;

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}
#define REAL(name) static __typeof__(name) *real_##name; if (!real_##name) real_##name = real(#name)

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("METAPHASE_FAULTS");
    int file = path ? (int)open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *map = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) state = map;
    close(file);
}

static int is_under(const char *path) {
    size_t length = strlen(state->under);
    return length && !strncmp(path, state->under, length) && (path[length] == '/' || !path[length]);
}

static int file_is(int file) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 1) return 0;
    path[length] = 0;
    return is_under(path);
}

static int at_is(int folder, const char *name) {
    if (!name) return 0;
    if (name[0] == '/') return is_under(name);
    char link[64], path[2 * PATH_MAX];
    if (folder == AT_FDCWD) strcpy(link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 1) return 0;
    snprintf(path + length, sizeof path - length, "/%s", name);
    return is_under(path);
}

/* Whether this act strikes: 1 at the chosen moment, 2 after it. */
static int strikes(int ours) {
    if (!ours) return 0;
    int64_t number = ++state->seen;
    if (!state->at || number < state->at) return 0;
    state->struck = 1;
    if (state->kind == KILL && number == state->at) return 1;
    return state->kind == FULL ? 1 + (number > state->at) : 0;
}

static int dies(int struck) {
    if (struck && state->kind == KILL) for (;;) kill(0, SIGKILL);
    return struck;
}

#define ACT(type, name, parameters, arguments, ours, needs_room) \
    type name parameters { \
        REAL(name); \
        if (dies(strikes(ours)) && (needs_room)) { errno = ENOSPC; return -1; } \
        return real_##name arguments; \
    }

/* The first write that strikes is done by half, as one that fills the disk, or is torn by a kill. */
#define WRITE(name, parameters, arguments, half) \
    ssize_t name parameters { \
        REAL(name); \
        int struck = strikes(file_is(file)); \
        ssize_t written = struck == 1 && size > 1 ? real_##name half : -1; \
        if (!dies(struck)) return real_##name arguments; \
        if (written < 0) errno = ENOSPC; \
        return written; \
    }
WRITE(write, (int file, const void *data, size_t size), (file, data, size), (file, data, size / 2))
WRITE(pwrite, (int file, const void *data, size_t size, off_t at), (file, data, size, at), (file, data, size / 2, at))
WRITE(pwrite64, (int file, const void *data, size_t size, off64_t at), (file, data, size, at), (file, data, size / 2, at))

ACT(ssize_t, writev, (int file, const struct iovec *parts, int count), (file, parts, count), file_is(file), 1)
ACT(int, rename, (const char *from, const char *to), (from, to), at_is(AT_FDCWD, to), 0)
ACT(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), at_is(b, to), 0)
ACT(int, unlink, (const char *path), (path), at_is(AT_FDCWD, path), 0)
ACT(int, unlinkat, (int a, const char *path, int flags), (a, path, flags), at_is(a, path), 0)
ACT(int, rmdir, (const char *path), (path), at_is(AT_FDCWD, path), 0)
ACT(int, mkdir, (const char *path, mode_t mode), (path, mode), at_is(AT_FDCWD, path), 1)
ACT(int, mkdirat, (int a, const char *path, mode_t mode), (a, path, mode), at_is(a, path), 1)
ACT(int, ftruncate, (int file, off_t size), (file, size), file_is(file), size > 0)
ACT(int, ftruncate64, (int file, off64_t size), (file, size), file_is(file), size > 0)
ACT(int, fsync, (int file), (file), file_is(file), 1)
ACT(int, fdatasync, (int file), (file), file_is(file), 1)

static int no_links(int ours) {
    if (state->kind == NO_LINKS && ours) return 1;
    return dies(strikes(ours)) ? 2 : 0;
}
#define LINK(name, parameters, arguments, ours) \
    int name parameters { \
        REAL(name); \
        int struck = no_links(ours); \
        if (struck) { errno = struck == 1 ? EPERM : ENOSPC; return -1; } \
        return real_##name arguments; \
    }
LINK(link, (const char *from, const char *to), (from, to), at_is(AT_FDCWD, to))
LINK(linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), at_is(b, to))
LINK(symlink, (const char *from, const char *to), (from, to), at_is(AT_FDCWD, to))

#define RESERVE(name, type) \
    int name(int file, type at, type size) { \
        REAL(name); \
        return dies(strikes(file_is(file))) ? ENOSPC : real_##name(file, at, size); \
    }
RESERVE(posix_fallocate, off_t)
RESERVE(posix_fallocate64, off64_t)

/* Making or emptying a file is an act; opening one to write into it is none. */
#define OPEN(name, folder, parameters, arguments) \
    int name parameters { \
        REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, int); va_end(more); } \
        int makes = flags & (O_CREAT | O_TRUNC) && at_is(folder, path); \
        if (dies(strikes(makes)) && flags & O_CREAT) { errno = ENOSPC; return -1; } \
        return real_##name arguments; \
    }
OPEN(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPEN(openat64, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))

/* ---- file systems without locks ---- */

int flock(int file, int operation) {
    REAL(flock);
    if (state->kind == NO_LOCKS && file_is(file)) { errno = ENOLCK; return -1; }
    return real_flock(file, operation);
}

#define CONTROL(name) \
    int name(int file, int command, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, command); \
        void *argument = va_arg(more, void *); \
        va_end(more); \
        int locks = command == F_SETLK || command == F_SETLKW || command == F_GETLK || command == F_OFD_SETLK || command == F_OFD_SETLKW; \
        if (locks && state->kind == NO_LOCKS && file_is(file)) { errno = ENOLCK; return -1; } \
        return real_##name(file, command, argument); \
    }
CONTROL(fcntl)
CONTROL(fcntl64)

/* ---- clocks that jump back and forth by `shift_s`, and file servers whose clock stands still ---- */

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int done = real_clock_gettime(clock, now);
    if (!done && state->kind == JUMPS && clock == CLOCK_REALTIME) now->tv_sec += (now->tv_nsec / 1000 % 2 ? 1 : -1) * state->shift_s;
    return done;
}

#define STATUS(name, parameters, arguments, ours) \
    int name parameters { \
        REAL(name); \
        int done = real_##name arguments; \
        if (!done && state->kind == STILL && (ours)) { \
            struct timespec none = {1000000000, 0}; \
            status->st_mtim = status->st_ctim = none; \
        } \
        return done; \
    }
STATUS(stat, (const char *path, struct stat *status), (path, status), at_is(AT_FDCWD, path))
STATUS(stat64, (const char *path, struct stat64 *status), (path, status), at_is(AT_FDCWD, path))
STATUS(lstat, (const char *path, struct stat *status), (path, status), at_is(AT_FDCWD, path))
STATUS(lstat64, (const char *path, struct stat64 *status), (path, status), at_is(AT_FDCWD, path))
STATUS(fstat, (int file, struct stat *status), (file, status), file_is(file))
STATUS(fstat64, (int file, struct stat64 *status), (file, status), file_is(file))
STATUS(fstatat, (int a, const char *path, struct stat *status, int flags), (a, path, status, flags), at_is(a, path))
STATUS(fstatat64, (int a, const char *path, struct stat64 *status, int flags), (a, path, status, flags), at_is(a, path))
