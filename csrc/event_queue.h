/* event_queue.h - a timing wheel ordered by (time, key).
 *
 * The near future is a ring of buckets of 2^shift ps, each a list of small chunks filled in order
 * of insertion; later events wait in a binary heap. Only the current bucket is sorted. Events
 * pushed into it are inserted, since pushes are mostly in the order of due times. In a large system
 * in lockstep it holds thousands of events; an event that would have to pass many of them waits in
 * a second heap. Only the bits of the key from `key_shift` on count; events that are equal in time
 * and in these bits keep their order of insertion. Times are never earlier than the last one
 * popped. Times from RANGE_TIME_END on are refused, at no cost: it ends the ring. Independent of
 * the network model. */
#ifndef CLUSIM_EVENT_QUEUE_H
#define CLUSIM_EVENT_QUEUE_H

#include "base.h"

typedef struct event {
    int64_t at_ps;
    uint32_t key;     /* orders events of one time */
    uint32_t payload; /* subject of the event */
} event;

enum {
    EVENT_QUEUE_BUCKETS = 1 << 14,
    EVENT_QUEUE_WORDS = EVENT_QUEUE_BUCKETS / 64,
    EVENT_CHUNK = 7
};

typedef struct event_chunk { /* two cache lines */
    event events[EVENT_CHUNK];
    uint32_t count;
    uint32_t next;
    uint64_t pad;
} event_chunk;

typedef struct event_bucket {
    uint32_t head, tail; /* chunks */
} event_bucket;

typedef struct far_event {
    event e;
    uint64_t order; /* of insertion */
} far_event;

typedef struct event_heap {
    far_event *items; /* owned */
    uint32_t len, size;
} event_heap;

typedef struct event_queue {
    event_chunk *chunks;   /* owned */
    event *ready;          /* owned; the current bucket, ascending from `ready_pos` */
    event_bucket *buckets; /* owned; valid where the bit is set */
    uint64_t *bits;        /* owned; non-empty buckets */
    uint64_t summary[EVENT_QUEUE_WORDS / 64];
    uint64_t order;   /* of the next event in a heap */
    event_heap far;   /* after the end of the ring */
    event_heap near;  /* late pushes into the current bucket; follow their equals in `ready` */
    bool keeps;       /* it only stores pushed events, in `far` */
    int64_t tick;     /* bucket number (time >> shift) of the current bucket */
    uint64_t horizon; /* first bucket past the ring, or at the end of time */
    uint32_t num_chunks, free_chunk;
    uint32_t ready_pos, ready_len, ready_size;
    int32_t shift;
    uint32_t key_shift;
} event_queue;

STATUS event_queue_init(event_queue *q, int32_t shift, uint32_t key_shift);
void event_queue_free(event_queue *q);

/* Create a queue that only stores pushed events, for another queue. */
void event_queue_keep(event_queue *q, int32_t shift);

/* Push the events stored in another queue, oldest first. */
STATUS event_queue_take(event_queue *q, event_queue *from);

STATUS event_queue_push_ready(event_queue *q, event e);
STATUS event_queue_push_far(event_queue *q, event e); /* as event_queue_push */

/* Allocate a chunk from the free list, growing it. */
STATUS event_queue_new_chunk(event_queue *q, uint32_t *out);

/* Some events of the next bucket, or NULL: prefetch candidates. */
const event_chunk *event_queue_upcoming(const event_queue *q);

/* Fill `ready` from the next non-empty bucket, if there is one that begins at `limit_ps` or before:
 * else earlier events may still be pushed. */
STATUS event_queue_refill(event_queue *q, int64_t limit_ps, bool *any);

/* CLUSIM_ERR_RANGE if the event is at or after the end of time; it is then dropped. This includes
 * times above 2^63, which are negative here. */
static inline STATUS event_queue_push(event_queue *q, int64_t at_ps, uint32_t key,
                                      uint32_t payload) {
    event e = {at_ps, key, payload};
    uint64_t far_tick = (uint64_t)at_ps >> q->shift;
    if (UNLIKELY(far_tick >= q->horizon)) return event_queue_push_far(q, e);
    int64_t tick = (int64_t)far_tick;
    if (UNLIKELY(tick <= q->tick)) {
        return event_queue_push_ready(q, e);
    }
    uint32_t index = (uint32_t)tick & (EVENT_QUEUE_BUCKETS - 1);
    event_bucket *bucket = &q->buckets[index];
    uint64_t bit = UINT64_C(1) << (index & 63);
    if (LIKELY(q->bits[index >> 6] & bit)) {
        event_chunk *tail = &q->chunks[bucket->tail];
        if (LIKELY(tail->count < EVENT_CHUNK)) {
            tail->events[tail->count++] = e;
            return CLUSIM_OK;
        }
        uint32_t fresh;
        TRY(event_queue_new_chunk(q, &fresh));
        q->chunks[bucket->tail].next = fresh;
        bucket->tail = fresh;
    } else {
        uint32_t fresh;
        TRY(event_queue_new_chunk(q, &fresh));
        bucket->head = bucket->tail = fresh;
        q->bits[index >> 6] |= bit;
        q->summary[index >> 12] |= UINT64_C(1) << ((index >> 6) & 63);
    }
    q->chunks[bucket->tail].events[0] = e;
    q->chunks[bucket->tail].count = 1;
    return CLUSIM_OK;
}

/* The first event, or the last one returned, when there are some in `near`. */
const event *event_queue_first_near(const event_queue *q);
void event_queue_pop_near(event_queue *q);

/* True if the current bucket has events left. */
static inline bool event_queue_any(const event_queue *q) {
    return q->ready_pos < q->ready_len || q->near.len;
}

/* Earliest event of the current bucket, which must not be empty; valid until the next push or
 * refill. */
static inline const event *event_queue_first(const event_queue *q) {
    if (UNLIKELY(q->near.len)) return event_queue_first_near(q);
    return &q->ready[q->ready_pos];
}

/* Remove the earliest event, after event_queue_first. */
static inline void event_queue_pop(event_queue *q) {
    if (UNLIKELY(q->near.len)) {
        event_queue_pop_near(q);
    } else {
        q->ready_pos++;
    }
}

#endif
