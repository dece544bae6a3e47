#include "thread_pool.h"

#include <pthread.h>

typedef struct thread_pool_member {
    thread_pool *t;
    pthread_t thread;
    uint32_t number;
    enum clusim_status status;
} thread_pool_member;

struct thread_pool {
    pthread_mutex_t lock;
    pthread_cond_t begun, rested;
    uint32_t members;
    uint32_t unfinished; /* of this round */
    uint32_t at_work;    /* of those: members that do not wait in thread_pool_alone */
    uint64_t round;
    bool over;
    thread_pool_work work;
    void *context;
    thread_pool_member *all; /* owned */
};

/* A member rests; the lock is held. */
static void rest(thread_pool *t) {
    if (--t->at_work == 0) pthread_cond_broadcast(&t->rested);
}

static void do_work(thread_pool_member *m) {
    enum clusim_status status = m->t->work(m->t->context, m->number);
    pthread_mutex_lock(&m->t->lock);
    m->status = status;
    m->t->unfinished--;
    rest(m->t);
    pthread_mutex_unlock(&m->t->lock);
}

static void *live(void *member) {
    thread_pool_member *m = member;
    thread_pool *t = m->t;
    for (uint64_t seen = 0;; seen++) {
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
