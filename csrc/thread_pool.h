/* thread_pool.h - threads that share work, and look for more before they sleep. Independent of
 * sims. */
#ifndef CLUSIM_THREAD_POOL_H
#define CLUSIM_THREAD_POOL_H

#include "base.h"

typedef struct thread_pool thread_pool;

/* Work of every member: its context and the member's number; 0 is the caller. */
typedef enum clusim_status (*thread_pool_work)(void *context, uint32_t member);

/* Create a pool of `members` threads, the caller's included, or fewer if the system has no more. */
STATUS thread_pool_create(uint32_t members, thread_pool **out);
void thread_pool_free(thread_pool *t);

uint32_t thread_pool_members(const thread_pool *t);

/* Every member works; returns the status of the first that failed when all are done. */
STATUS thread_pool_run(thread_pool *t, thread_pool_work work, void *context);

/* Call `change` while no other member works: each of them has finished or waits here, too. */
STATUS thread_pool_alone(thread_pool *t, thread_pool_work change, void *context, uint32_t member);

/* One member at a time. */
void thread_pool_lock(thread_pool *t);
void thread_pool_unlock(thread_pool *t);

#endif
