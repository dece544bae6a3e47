/* Virtual time, and the functions of the C library through which a program sees time or waits for
 * threads.
 *
 * Model: host work of the program lasts no time. A thread's clock moves with NCCL's
 * launches, with waits for streams and events, with sleeps, and with a condition variable: a woken
 * thread continues at the time of the thread that woke it, and each further one `wake_ps` later
 * (`HostCosts.wake`).
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static atomic_llong latest_ps; /* of all threads; 0 before the first call of CUDA or NCCL */
static long long offset_ps, wake_ps;
static __thread long long mine_ps;

long long now_ps(void) {
    if (mine_ps == 0) mine_ps = atomic_load(&latest_ps);
    return mine_ps;
}

void set_now_ps(long long now) {
    mine_ps = now;
    long long known = atomic_load(&latest_ps);
    while (known < now && !atomic_compare_exchange_weak(&latest_ps, &known, now)) {
    }
}

void start_clock(long long start_ps, long long real_offset_ps, long long wake) {
    offset_ps = real_offset_ps;
    wake_ps = wake;
    if (atomic_load(&latest_ps) == 0) set_now_ps(start_ps);
}

static int is_virtual(void) { return atomic_load(&latest_ps) != 0; }

static int real_clock(clockid_t id, struct timespec *result) {
    return (int)syscall(SYS_clock_gettime, id, result);
}

API int clock_gettime(clockid_t id, struct timespec *result) {
    const int monotonic =
        id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_RAW || id == CLOCK_BOOTTIME;
    const int of_day = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
    if (!is_virtual() || !(monotonic || of_day)) return real_clock(id, result);
    const long long ns = (now_ps() + (of_day ? offset_ps : 0) + 500) / 1000;
    *result = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return 0;
}

API int gettimeofday(struct timeval *restrict result, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *result = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

API time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result != NULL) *result = now.tv_sec;
    return now.tv_sec;
}

/* ---- sleeps last virtual time */
API int nanosleep(const struct timespec *wanted, struct timespec *left) {
    if (!is_virtual()) return (int)syscall(SYS_nanosleep, wanted, left);
    set_now_ps(now_ps() + (wanted->tv_sec * 1000000000LL + wanted->tv_nsec) * 1000);
    const struct timespec briefly = {.tv_nsec = 1000}; /* other threads run */
    syscall(SYS_nanosleep, &briefly, NULL);
    if (left != NULL) *left = (struct timespec){0};
    return 0;
}

API int clock_nanosleep(clockid_t id, int flags, const struct timespec *wanted,
                        struct timespec *left) {
    if (!is_virtual())
        return syscall(SYS_clock_nanosleep, id, flags, wanted, left) == 0 ? 0 : errno;
    struct timespec now, until = *wanted;
    if (flags & TIMER_ABSTIME) {
        clock_gettime(id, &now);
        const long long ns =
            (until.tv_sec - now.tv_sec) * 1000000000LL + until.tv_nsec - now.tv_nsec;
        if (ns <= 0) return 0;
        until = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    }
    return nanosleep(&until, left);
}

API int usleep(useconds_t us) {
    const struct timespec wanted = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};
    return nanosleep(&wanted, NULL);
}

API unsigned sleep(unsigned seconds) {
    const struct timespec wanted = {.tv_sec = seconds};
    nanosleep(&wanted, NULL);
    return 0;
}

API int gethostname(char *name, size_t length) {
    static int (*real)(char *, size_t);
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "gethostname");
    if (!is_virtual()) return real(name, length);
    if (length == 0) return 0;
    strncpy(name, the_system()->host, length);
    name[length - 1] = '\0';
    return 0;
}

/* ---- condition variables: time of the last thread that woke others, and the number that it woke
 */
enum { PLACES = 1024 };
static struct {
    long long time_ps;
    int woken;
} conditions[PLACES];
static pthread_mutex_t conditions_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread const void *waited_on;         /* the last one, */
static __thread long long before_ps, after_ps; /* and the times around it */

static unsigned place_of(const void *condition) {
    return (unsigned)((uintptr_t)condition / 16 % PLACES);
}

static void notify(const void *condition) {
    if (!is_virtual()) return;
    pthread_mutex_lock(&conditions_lock);
    const unsigned place = place_of(condition);
    if (conditions[place].time_ps < now_ps()) conditions[place].time_ps = now_ps();
    conditions[place].woken = 0;
    pthread_mutex_unlock(&conditions_lock);
}

API int pthread_cond_broadcast(pthread_cond_t *condition) {
    static int (*real)(pthread_cond_t *);
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_broadcast");
    notify(condition);
    return real(condition);
}

API int pthread_cond_signal(pthread_cond_t *condition) {
    static int (*real)(pthread_cond_t *);
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_signal");
    notify(condition);
    return real(condition);
}

API int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *);
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_wait");
    if (!is_virtual()) return real(condition, mutex);
    /* A thread that was woken in vain has not moved in time. */
    if (waited_on == condition && now_ps() == after_ps) mine_ps = before_ps;
    before_ps = now_ps();
    const int result = real(condition, mutex);
    pthread_mutex_lock(&conditions_lock);
    const unsigned place = place_of(condition);
    const long long woken_ps = conditions[place].time_ps + ++conditions[place].woken * wake_ps;
    pthread_mutex_unlock(&conditions_lock);
    if (woken_ps > now_ps()) set_now_ps(woken_ps);
    waited_on = condition;
    after_ps = now_ps();
    return result;
}
