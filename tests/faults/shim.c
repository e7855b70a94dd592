/* Stands between a process and the files of one directory (SHIM_DIR): writes down in order what is done to them
   (SHIM_LOG), or makes it fail or slow as a control file says (SHIM_CONTROL: one line, "MODE VALUE").

   Modes: ok | full | readonly | denied | io | slow MILLISECONDS | flaky PERCENT TAIL (so many syncs of files whose names
   end like this fail). Loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -2, control_fd = -2;
static const char *directory;

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int real_open(const char *path, int flags, int mode) {
    static int (*real)(const char *, int, ...);
    if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    return real(path, flags, mode);
}

static void start(void) {
    if (log_fd != -2) return;
    directory = getenv("SHIM_DIR");
    const char *log = getenv("SHIM_LOG"), *control = getenv("SHIM_CONTROL");
    control_fd = control ? real_open(control, O_RDONLY | O_CLOEXEC, 0) : -1;
    log_fd = log ? real_open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
}

/* The name of a watched file below the directory, or NULL. */
static const char *watched(const char *path) {
    start();
    if (!directory || !path) return NULL;
    size_t length = strlen(directory);
    if (strncmp(path, directory, length)) return NULL;
    if (path[length] == 0) return path + length;
    return path[length] == '/' ? path + length + 1 : NULL;
}

static const char *watched_fd(int fd, char *buffer) {
    start();
    if (!directory || fd < 0) return NULL;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    if (length <= 0) return NULL;
    buffer[length] = 0;
    return watched(buffer);
}

static int ends(const char *name, const char *tail) {
    size_t a = strlen(name), b = strlen(tail);
    return a >= b && !strcmp(name + a - b, tail);
}

/* Writes down one thing: kind, name, offset, length, data. */
static void note(char kind, const char *name, int64_t offset, const void *data, uint64_t length) {
    if (log_fd < 0 || ends(name, "-shm")) return;
    uint32_t name_length = (uint32_t)strlen(name);
    struct iovec parts[] = {{&kind, 1}, {&name_length, 4}, {(void *)name, name_length},
                            {&offset, 8}, {&length, 8}, {(void *)data, data ? length : 0}};
    pthread_mutex_lock(&lock);
    if (writev(log_fd, parts, data ? 6 : 5) < 0) abort();
    pthread_mutex_unlock(&lock);
}

/* What the control file says of a change (or a synchronisation) of a file: 0, or an errno. */
static int trouble(const char *name, int syncing) {
    if (control_fd < 0 || ends(name, "-shm")) return 0;
    char said[64] = {0};
    static ssize_t (*real)(int, void *, size_t, off64_t);
    if (!real) real = (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    if (real(control_fd, said, sizeof said - 1, 0) <= 0) return 0;
    char mode[16] = {0}, tail[48] = {0};
    int number = 0;
    if (sscanf(said, "%15s %d %47s", mode, &number, tail) < 1) return 0;
    if (!strcmp(mode, "flaky")) return syncing && ends(name, tail) && rand() % 100 < number ? EIO : 0;
    if (!strcmp(mode, "slow") && syncing) {
        struct timespec pause = {number / 1000, (number % 1000) * 1000000};
        nanosleep(&pause, NULL);
    }
    if (!strcmp(mode, "full")) return syncing ? 0 : ENOSPC;
    if (!strcmp(mode, "readonly")) return EROFS;
    if (!strcmp(mode, "denied")) return EACCES;
    if (!strcmp(mode, "io")) return EIO;
    return 0;
}

static int opened(const char *path, int flags, int mode) {
    char resolved[PATH_MAX];
    const char *name = watched(path);
    if (!name && path && path[0] != '/' && realpath(path, resolved)) name = watched(resolved);
    int there = name && !access(path, F_OK);
    if (name && (flags & (O_WRONLY | O_RDWR)) && !ends(name, ".lock")) {
        int error = trouble(name, 0);
        if (error == EROFS || error == EACCES || (error == ENOSPC && !there && (flags & O_CREAT))) {
            errno = error;
            return -1;
        }
    }
    int fd = real_open(path, flags, mode);
    if (fd >= 0 && name && !there && (flags & O_CREAT)) note('c', name, 0, NULL, 0);
    if (fd >= 0 && name && there && (flags & O_TRUNC)) note('t', name, 0, NULL, 0);
    return fd;
}

int open(const char *path, int flags, ...) {
    va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more);
    return opened(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more);
    return opened(path, flags | O_LARGEFILE, mode);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    REAL(pwrite64);
    char buffer[PATH_MAX];
    const char *name = watched_fd(fd, buffer);
    if (!name) return real(fd, data, length, offset);
    int error = trouble(name, 0);
    if (error) { errno = error; return -1; }
    ssize_t done = real(fd, data, length, offset);
    if (done > 0) note('w', name, offset, data, (uint64_t)done);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return pwrite64(fd, data, length, offset); }

ssize_t write(int fd, const void *data, size_t length) {
    REAL(write);
    char buffer[PATH_MAX];
    const char *name = watched_fd(fd, buffer);
    if (!name) return real(fd, data, length);
    int error = ends(name, ".lock") ? 0 : trouble(name, 0);
    if (error) { errno = error; return -1; }
    pthread_mutex_lock(&lock); /* the position it is written to must not move meanwhile */
    ssize_t done = real(fd, data, length);
    int64_t end = lseek64(fd, 0, SEEK_CUR);
    pthread_mutex_unlock(&lock);
    if (done > 0) note('w', name, end - done, data, (uint64_t)done);
    return done;
}

static int synced(int fd, int (*real)(int)) {
    char buffer[PATH_MAX];
    const char *name = watched_fd(fd, buffer);
    if (!name) return real(fd);
    int error = trouble(name, 1);
    if (error) {
        note('f', name, 0, NULL, 0);
        errno = error;
        return -1;
    }
    note('b', name, 0, NULL, 0); /* what was written before this is on the disk once 's' is written down */
    int done = real(fd);
    if (!done) note('s', name, 0, NULL, 0);
    return done;
}

int fsync(int fd) { REAL(fsync); return synced(fd, real); }
int fdatasync(int fd) { REAL(fdatasync); return synced(fd, real); }

int ftruncate64(int fd, off64_t length) {
    REAL(ftruncate64);
    char buffer[PATH_MAX];
    const char *name = watched_fd(fd, buffer);
    if (name) {
        int error = ends(name, ".lock") ? 0 : trouble(name, 0);
        if (error) { errno = error; return -1; }
    }
    int done = real(fd, length);
    if (name && !done) note('t', name, length, NULL, 0);
    return done;
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

int unlink(const char *path) {
    REAL(unlink);
    const char *name = watched(path);
    int done = real(path);
    if (name && !done) note('u', name, 0, NULL, 0);
    return done;
}

int link(const char *from, const char *to) {
    REAL(link);
    const char *name = watched(from), *target = watched(to);
    int done = real(from, to);
    if (name && target && !done) note('l', name, 0, target, strlen(target));
    return done;
}

int rename(const char *from, const char *to) {
    REAL(rename);
    const char *name = watched(from), *target = watched(to);
    int done = real(from, to);
    if (name && target && !done) note('r', name, 0, target, strlen(target));
    return done;
}
