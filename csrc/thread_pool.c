#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getcpu */
#endif

#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

/* Next waits that sleep at once, since looking was in vain before. */
typedef struct patience {
    uint32_t asleep, last; /* still to come, and after the last look in vain */
} patience;

typedef struct thread_pool_member {
    thread_pool *t;
    pthread_t thread;
    uint32_t number;
    enum clusim_status status;
    _Atomic int core; /* on which it worked last */
    patience patience;
} thread_pool_member;

struct thread_pool {
    pthread_mutex_t lock;
    pthread_cond_t begun, rested;
    uint32_t members;
    uint32_t unfinished;          /* of this round */
    uint32_t at_work;             /* of those: members that do not wait in thread_pool_alone */
    _Atomic uint64_t round, done; /* the last one that began, and the last one that ended */
    bool over;
    thread_pool_work work;
    void *context;
    thread_pool_member *all; /* owned */
};

/* ---- looking before sleeping -------------------------------------------------------------------
 */

enum {
    LOOK_NS = 60000,  /* longer than one thread works between two rounds, mostly */
    LOOKS = 32,       /* between two looks at the time */
    MOST_ASLEEP = 255 /* waits from one look in vain to the next */
};

static inline void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static bool changes(const _Atomic uint64_t *number, uint64_t from) {
    for (int64_t until_ns = clock_ns() + LOOK_NS; clock_ns() < until_ns;) {
        for (uint32_t k = 0; k < LOOKS; k++) {
            if (atomic_load_explicit(number, memory_order_relaxed) != from) return true;
            pause_core();
        }
    }
    return false;
}

/* -1 if unknown: members then seem to share a core, and do not look. */
static int present_core(void) {
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

static bool shares_core(const thread_pool_member *m) {
    int core = present_core();
    for (uint32_t k = 0; k < m->t->members; k++) {
        if (k != m->number && m->t->all[k].core == core) return true;
    }
    return false;
}

/* Wait a short time for a number to change: on idle cores that is 20 times as fast as to sleep.
 * Looks in vain, as on a core that other programs use, become rare. */
static void look(thread_pool_member *m, const _Atomic uint64_t *number, uint64_t from) {
    patience *p = &m->patience;
    if (shares_core(m)) return;
    if (p->asleep) {
        p->asleep--;
    } else if (changes(number, from)) {
        p->last = 0;
    } else {
        p->last = p->last < MOST_ASLEEP ? 2 * p->last + 1 : MOST_ASLEEP;
        p->asleep = p->last;
    }
}

/* ---- members ---------------------------------------------------------------------------------
 */

/* A member rests; the lock is held. */
static void rest(thread_pool *t) {
    if (--t->at_work == 0) pthread_cond_broadcast(&t->rested);
}

static void do_work(thread_pool_member *m) {
    m->core = present_core();
    enum clusim_status status = m->t->work(m->t->context, m->number);
    pthread_mutex_lock(&m->t->lock);
    m->status = status;
    if (--m->t->unfinished == 0) m->t->done = m->t->round;
    rest(m->t);
    pthread_mutex_unlock(&m->t->lock);
}

static void *live(void *member) {
    thread_pool_member *m = member;
    thread_pool *t = m->t;
    for (uint64_t seen = 0;; seen++) {
        if (seen) look(m, &t->round, seen);
        pthread_mutex_lock(&t->lock);
        while (t->round == seen && !t->over) pthread_cond_wait(&t->begun, &t->lock);
        bool over = t->over;
        pthread_mutex_unlock(&t->lock);
        if (over) return NULL;
        do_work(m);
    }
}

STATUS thread_pool_create(uint32_t members, thread_pool **out) {
    thread_pool *t = calloc(1, sizeof *t);
    *out = NULL;
    if (t == NULL) return CLUSIM_ERR_NO_MEMORY;
    t->all = calloc(members, sizeof *t->all);
    if (t->all == NULL) {
        free(t);
        return CLUSIM_ERR_NO_MEMORY;
    }
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->begun, NULL);
    pthread_cond_init(&t->rested, NULL);
    t->all[0] = (thread_pool_member){.t = t};
    for (t->members = 1; t->members < members; t->members++) {
        thread_pool_member *m = &t->all[t->members];
        m->t = t;
        m->number = t->members;
        if (pthread_create(&m->thread, NULL, live, m) != 0) break;
    }
    *out = t;
    return CLUSIM_OK;
}

void thread_pool_free(thread_pool *t) {
    if (t == NULL) return;
    pthread_mutex_lock(&t->lock);
    t->over = true;
    t->round++;
    pthread_cond_broadcast(&t->begun);
    pthread_mutex_unlock(&t->lock);
    for (uint32_t k = 1; k < t->members; k++) pthread_join(t->all[k].thread, NULL);
    pthread_cond_destroy(&t->rested);
    pthread_cond_destroy(&t->begun);
    pthread_mutex_destroy(&t->lock);
    free(t->all);
    free(t);
}

uint32_t thread_pool_members(const thread_pool *t) { return t->members; }

STATUS thread_pool_run(thread_pool *t, thread_pool_work work, void *context) {
    pthread_mutex_lock(&t->lock);
    t->work = work;
    t->context = context;
    t->unfinished = t->at_work = t->members;
    t->round++;
    pthread_cond_broadcast(&t->begun);
    pthread_mutex_unlock(&t->lock);
    do_work(&t->all[0]);
    look(&t->all[0], &t->done, t->round - 1);
    pthread_mutex_lock(&t->lock);
    while (t->unfinished) pthread_cond_wait(&t->rested, &t->lock);
    pthread_mutex_unlock(&t->lock);
    for (uint32_t k = 0; k < t->members; k++) TRY(t->all[k].status);
    return CLUSIM_OK;
}

STATUS thread_pool_alone(thread_pool *t, thread_pool_work change, void *context, uint32_t member) {
    pthread_mutex_lock(&t->lock);
    rest(t);
    while (t->at_work) pthread_cond_wait(&t->rested, &t->lock);
    enum clusim_status status = change(context, member);
    t->at_work++;
    pthread_mutex_unlock(&t->lock);
    return status;
}

void thread_pool_lock(thread_pool *t) { pthread_mutex_lock(&t->lock); }
void thread_pool_unlock(thread_pool *t) { pthread_mutex_unlock(&t->lock); }
