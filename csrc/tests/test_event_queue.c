/* The event queue against a sorted array: order, stability, the far heap, the wrap of the ring. */
#undef NDEBUG
#include <assert.h>
#include <string.h>

#include "event_queue.h"

enum { COUNT = 20000 };

/* The earliest event, or NULL; valid until the next push or refill. */
static const event *peek(event_queue *q) {
    bool any = event_queue_any(q);
    if (!any) assert(event_queue_refill(q, NEVER, &any) == CLUSIM_OK);
    return any ? event_queue_first(q) : NULL;
}

static void push(event_queue *q, int64_t at_ps, uint32_t key, uint32_t payload) {
    assert(event_queue_push(q, at_ps, key, payload) == CLUSIM_OK);
}

static uint64_t random_state = 12345;

static uint32_t random_below(uint32_t n) {
    random_state = base_mix(random_state, n);
    return (uint32_t)(random_state % n);
}

static uint32_t ignored; /* low bits of the key that do not count */

static int by_time_key_payload(const void *a, const void *b) {
    const event *x = a, *y = b;
    if (x->at_ps != y->at_ps) return x->at_ps < y->at_ps ? -1 : 1;
    uint32_t a_key = x->key >> ignored, b_key = y->key >> ignored;
    if (a_key != b_key) return a_key < b_key ? -1 : 1;
    return x->payload < y->payload ? -1 : x->payload > y->payload;
}

/* Push everything, pop everything: equal (time, key) must keep their order. */
static void test_order(int32_t shift, uint32_t spread, uint32_t keys, uint32_t key_shift) {
    static event expected[COUNT];
    ignored = key_shift;
    event_queue q;
    assert(event_queue_init(&q, shift, key_shift) == CLUSIM_OK);
    for (uint32_t i = 0; i < COUNT; i++) {
        expected[i] = (event){random_below(spread), random_below(keys), i};
        push(&q, expected[i].at_ps, expected[i].key, expected[i].payload);
    }
    qsort(expected, COUNT, sizeof *expected, by_time_key_payload);
    for (uint32_t i = 0; i < COUNT; i++) {
        const event *e = peek(&q);
        assert(e != NULL && e->at_ps == expected[i].at_ps && e->key == expected[i].key);
        assert(e->payload == expected[i].payload);
        event_queue_pop(&q);
    }
    assert(peek(&q) == NULL);
    event_queue_free(&q);
}

/* Pop and push in turn, as a simulation does, with delays short, long and past the ring. */
static void test_hold(int32_t shift) {
    static const uint32_t delays[] = {0, 1, 7, 5760, 150000, 3000000, 40000000};
    event_queue q;
    assert(event_queue_init(&q, shift, 0) == CLUSIM_OK);
    for (uint32_t i = 0; i < 500; i++) push(&q, random_below(1000), i, i);
    event last = {0};
    for (uint32_t i = 0; i < 200000; i++) {
        const event *e = peek(&q);
        assert(e != NULL);
        event now = *e;
        assert(now.at_ps >= last.at_ps);
        event_queue_pop(&q);
        last = now;
        push(&q, now.at_ps + delays[random_below(7)], random_below(9), now.payload);
    }
    uint32_t left = 0;
    for (; peek(&q) != NULL; left++) event_queue_pop(&q);
    assert(left == 500);
    event_queue_free(&q);
}

/* A machine in lockstep: a bucket of thousands, and every event pushes another into it. */
static void test_crowd(uint32_t spread, uint32_t key_shift) {
    ignored = key_shift;
    event_queue q;
    assert(event_queue_init(&q, 20, key_shift) == CLUSIM_OK);
    for (uint32_t i = 0; i < COUNT; i++) {
        push(&q, 1000 + random_below(spread), random_below(50), i);
    }
    event last = {0};
    uint32_t pushed = COUNT;
    for (uint32_t i = 0; i < 2 * COUNT; i++) {
        const event *e = peek(&q);
        assert(e != NULL);
        event now = *e;
        assert(i == 0 || by_time_key_payload(&last, &now) < 0);
        event_queue_pop(&q);
        last = now;
        if (now.payload >= COUNT) continue;
        event next = {now.at_ps + 1 + random_below(spread), random_below(50), pushed++};
        push(&q, next.at_ps, next.key, next.payload);
    }
    assert(pushed == 2 * COUNT && peek(&q) == NULL);
    event_queue_free(&q);
}

int main(void) {
    test_order(3, 1000, 5, 0);
    test_order(6, 3000000, 100, 0);
    test_order(6, 3000, 100, 4);
    test_order(0, 100000000, 3, 0);
    test_crowd(3000, 0);
    test_crowd(5, 2);
    test_hold(2);
    test_hold(6);
    test_hold(20);
    puts("ok");
    return 0;
}
