#include "event_queue.h"

#include "grow.h"

#include <string.h>

static inline bool before(const event_queue *q, const event *a, const event *b) {
    if (a->at_ps != b->at_ps) return a->at_ps < b->at_ps;
    return a->key >> q->key_shift < b->key >> q->key_shift;
}

static bool far_before(const event_queue *q, const far_event *a, const far_event *b) {
    if (before(q, &a->e, &b->e)) return true;
    return !before(q, &b->e, &a->e) && a->order < b->order;
}

STATUS event_queue_init(event_queue *q, int32_t shift, uint32_t key_shift) {
    memset(q, 0, sizeof *q);
    q->shift = shift;
    q->key_shift = key_shift;
    q->free_chunk = NONE;
    q->tick = -1;
    q->horizon = EVENT_QUEUE_BUCKETS - 1;
    q->buckets = malloc(EVENT_QUEUE_BUCKETS * sizeof *q->buckets);
    q->bits = calloc(EVENT_QUEUE_WORDS, sizeof *q->bits);
    if (q->buckets == NULL || q->bits == NULL) {
        event_queue_free(q);
        return CLUSIM_ERR_NO_MEMORY;
    }
    return CLUSIM_OK;
}

void event_queue_free(event_queue *q) {
    free(q->chunks);
    free(q->ready);
    free(q->far.items);
    free(q->near.items);
    free(q->buckets);
    free(q->bits);
    memset(q, 0, sizeof *q);
}

STATUS event_queue_new_chunk(event_queue *q, uint32_t *out) {
    if (UNLIKELY(q->free_chunk == NONE)) {
        uint32_t old = q->num_chunks;
        GROW(q->chunks, q->num_chunks);
        for (uint32_t i = q->num_chunks; i-- > old;) {
            q->chunks[i].next = q->free_chunk;
            q->free_chunk = i;
        }
    }
    uint32_t c = q->free_chunk;
    q->free_chunk = q->chunks[c].next;
    q->chunks[c].next = NONE;
    *out = c;
    return CLUSIM_OK;
}

static STATUS push_heap(event_queue *q, event_heap *h, event e) {
    if (UNLIKELY(h->len == h->size)) GROW(h->items, h->size);
    far_event f = {e, q->order++};
    uint32_t i = h->len++;
    while (i > 0 && far_before(q, &f, &h->items[(i - 1) / 2])) {
        h->items[i] = h->items[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->items[i] = f;
    return CLUSIM_OK;
}

static event pop_heap(const event_queue *q, event_heap *h) {
    far_event top = h->items[0], last = h->items[--h->len];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= h->len) break;
        if (child + 1 < h->len && far_before(q, &h->items[child + 1], &h->items[child])) child++;
        if (!far_before(q, &h->items[child], &last)) break;
        h->items[i] = h->items[child];
        i = child;
    }
    if (h->len > 0) h->items[i] = last;
    return top.e;
}

/* The bucket in which time ends is the first one that the ring never holds. */
STATUS event_queue_push_far(event_queue *q, event e) {
    if ((uint64_t)e.at_ps >= (uint64_t)RANGE_TIME_END) return CLUSIM_ERR_RANGE;
    if (LIKELY(!q->keeps)) return push_heap(q, &q->far, e);
    if (UNLIKELY(q->far.len == q->far.size)) GROW(q->far.items, q->far.size);
    q->far.items[q->far.len++].e = e;
    return CLUSIM_OK;
}

/* Its horizon is time 0, so that all events are later. */
void event_queue_keep(event_queue *q, int32_t shift) {
    memset(q, 0, sizeof *q);
    q->shift = shift;
    q->keeps = true;
}

STATUS event_queue_take(event_queue *q, event_queue *from) {
    for (uint32_t k = 0; k < from->far.len; k++) {
        event e = from->far.items[k].e;
        TRY(event_queue_push(q, e.at_ps, e.key, e.payload));
    }
    from->far.len = 0;
    return CLUSIM_OK;
}

static void set_tick(event_queue *q, int64_t tick) {
    q->tick = tick;
    q->horizon = (uint64_t)base_min(tick + EVENT_QUEUE_BUCKETS, RANGE_TIME_END >> q->shift);
}

enum { MOST_PASSED = 64 }; /* events that one is moved past in the sorted bucket */

/* Insert into the sorted current bucket, after its equals. */
STATUS event_queue_push_ready(event_queue *q, event e) {
    if (q->near.len) {
        return push_heap(q, &q->near, e); /* after the events that wait there */
    }
    if (q->ready_pos > 0 && q->ready_pos == q->ready_len) q->ready_pos = q->ready_len = 0;
    if (q->ready_len - q->ready_pos > MOST_PASSED &&
        before(q, &e, &q->ready[q->ready_len - 1 - MOST_PASSED])) {
        return push_heap(q, &q->near, e);
    }
    if (UNLIKELY(q->ready_len == q->ready_size)) GROW(q->ready, q->ready_size);
    uint32_t i = q->ready_len++;
    while (i > q->ready_pos && before(q, &e, &q->ready[i - 1])) {
        q->ready[i] = q->ready[i - 1];
        i--;
    }
    q->ready[i] = e;
    return CLUSIM_OK;
}

static bool near_first(const event_queue *q) {
    return q->ready_pos == q->ready_len || before(q, &q->near.items[0].e, &q->ready[q->ready_pos]);
}

const event *event_queue_first_near(const event_queue *q) {
    return near_first(q) ? &q->near.items[0].e : &q->ready[q->ready_pos];
}

void event_queue_pop_near(event_queue *q) {
    if (near_first(q)) {
        pop_heap(q, &q->near);
    } else {
        q->ready_pos++;
    }
}

/* The first non-empty bucket after `tick`, as a tick; NEVER if the ring is empty. */
static int64_t next_tick(const event_queue *q) {
    uint32_t start = (uint32_t)(q->tick + 1) & (EVENT_QUEUE_BUCKETS - 1);
    uint64_t word = q->bits[start >> 6] >> (start & 63);
    if (LIKELY(word)) return q->tick + 1 + __builtin_ctzll(word);
    enum { LINES = EVENT_QUEUE_WORDS / 64 };
    uint32_t first = ((start >> 6) + 1) & (EVENT_QUEUE_WORDS - 1);
    for (uint32_t k = 0; k <= LINES; k++) {
        uint32_t line = ((first >> 6) + k) % LINES;
        uint64_t mask = q->summary[line];
        if (k == 0) mask &= ~UINT64_C(0) << (first & 63);
        if (k == LINES) mask &= (UINT64_C(1) << (first & 63)) - 1;
        if (mask == 0) continue;
        uint32_t w = line * 64 + (uint32_t)__builtin_ctzll(mask);
        uint32_t bucket = w * 64 + (uint32_t)__builtin_ctzll(q->bits[w]);
        return q->tick + 1 + ((bucket - start) & (EVENT_QUEUE_BUCKETS - 1));
    }
    return NEVER;
}

static void insertion_sort(const event_queue *q, event *r, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        if (LIKELY(!before(q, &r[i], &r[i - 1]))) continue;
        event e = r[i];
        uint32_t k = i;
        do {
            r[k] = r[k - 1];
            k--;
        } while (k > 0 && before(q, &e, &r[k - 1]));
        r[k] = e;
    }
}

/* End of the ascending run that starts at `from`. */
static uint32_t run_end(const event_queue *q, const event *r, uint32_t from, uint32_t n) {
    uint32_t end = from + 1;
    while (end < n && !before(q, &r[end], &r[end - 1])) end++;
    return end;
}

/* Merge neighbouring runs of `r` into `to`; returns the number of runs it found. */
static uint32_t merge_runs(const event_queue *q, const event *r, event *to, uint32_t n) {
    uint32_t runs = 0, out = 0;
    for (uint32_t a = 0; a < n;) {
        uint32_t middle = run_end(q, r, a, n), b = middle;
        uint32_t end = middle < n ? run_end(q, r, middle, n) : n;
        runs += middle < n ? 2 : 1;
        while (a < middle && b < end) to[out++] = before(q, &r[b], &r[a]) ? r[b++] : r[a++];
        while (a < middle) to[out++] = r[a++];
        while (b < end) to[out++] = r[b++];
        a = end;
    }
    return runs;
}

/* Sort `ready`. Events of one kind are pushed in the order of their times, so a
 * bucket is a few ascending runs, long ones where a symmetric system runs in lockstep. */
static STATUS sort_ready(event_queue *q) {
    uint32_t n = q->ready_len;
    if (n <= 12) {
        insertion_sort(q, q->ready, n);
        return CLUSIM_OK;
    }
    if (run_end(q, q->ready, 0, n) == n) return CLUSIM_OK;
    if (2 * n > q->ready_size) GROW(q->ready, q->ready_size);
    event *r = q->ready, *spare = r + n;
    while (merge_runs(q, r, spare, n) > 2) memcpy(r, spare, n * sizeof *r);
    memcpy(r, spare, n * sizeof *r);
    return CLUSIM_OK;
}

/* Move the chunks of a bucket to `ready`, in order, and free them. */
static STATUS empty_bucket(event_queue *q, uint32_t index) {
    uint32_t c = q->buckets[index].head;
    while (c != NONE) {
        event_chunk *chunk = &q->chunks[c];
        if (UNLIKELY(q->ready_len + EVENT_CHUNK > q->ready_size)) GROW(q->ready, q->ready_size);
        event *to = q->ready + q->ready_len;
        for (uint32_t i = 0; i < EVENT_CHUNK; i++) to[i] = chunk->events[i];
        q->ready_len += chunk->count;
        uint32_t next = chunk->next;
        chunk->next = q->free_chunk;
        q->free_chunk = c;
        c = next;
    }
    TRY(sort_ready(q));
    uint32_t w = index >> 6;
    q->bits[w] &= ~(UINT64_C(1) << (index & 63));
    if (q->bits[w] == 0) q->summary[w >> 6] &= ~(UINT64_C(1) << (w & 63));
    return CLUSIM_OK;
}

const event_chunk *event_queue_upcoming(const event_queue *q) {
    uint32_t start = (uint32_t)(q->tick + 1) & (EVENT_QUEUE_BUCKETS - 1);
    uint64_t word = q->bits[start >> 6] >> (start & 63);
    if (word == 0) return NULL;
    return &q->chunks[q->buckets[start + (uint32_t)__builtin_ctzll(word)].head];
}

/* An event of the ring was pushed when the ring reached it; one of the heap earlier. Heap events
 * therefore precede ring events among equals. */
STATUS event_queue_refill(event_queue *q, int64_t limit_ps, bool *any) {
    int64_t ring = next_tick(q);
    int64_t far = q->far.len ? q->far.items[0].e.at_ps >> q->shift : NEVER;
    int64_t tick = base_min(ring, far);
    *any = tick != NEVER && tick <= limit_ps >> q->shift;
    if (!*any) return CLUSIM_OK;
    q->ready_pos = q->ready_len = 0;
    set_tick(q, tick);
    while (q->far.len && q->far.items[0].e.at_ps >> q->shift <= tick)
        TRY(event_queue_push_ready(q, pop_heap(q, &q->far)));
    return ring == tick ? empty_bucket(q, (uint32_t)tick & (EVENT_QUEUE_BUCKETS - 1)) : CLUSIM_OK;
}
