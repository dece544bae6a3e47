/* Returned credit counts from its time on, and not 1 ps earlier, for returns sorted by time or not.
 */
#undef NDEBUG
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "grant.h"
#include "wire.h"

static const credit_return returns[] = {{700, 7}, {500, 5}, {900, 9}};
enum { RETURNS = sizeof returns / sizeof *returns };

/* A pool of one wire without credit, with these returns in this order. */
static clusim_sim sim;
static credit_pool pool;
static wire_state wire;

static credit_pool *fresh(const credit_return *all, uint32_t count) {
    free(pool.pending);
    memset(&pool, 0, sizeof pool);
    pool.head = pool.end = pool.size = FIRST_RETURN;
    pool.look = UINT32_MAX;
    wire = (wire_state){.credits = &pool};
    sim.wires.credits = &pool;
    sim.wires.all = &wire;
    sim.wires.nvc = 1;
    for (uint32_t k = 0; k < count; k++)
        assert(wire_add_credit(&sim, ID(wire, 0), 0, (uint32_t)all[k].bytes, all[k].at_ps) ==
               CLUSIM_OK);
    return &pool;
}

/* The sum of the returns up to a time. */
static int64_t due(int64_t now_ps) {
    int64_t sum = 0;
    for (uint32_t k = 0; k < RETURNS; k++)
        sum += returns[k].at_ps < now_ps + 1 ? returns[k].bytes : 0;
    return sum;
}

static void test_credit_counts_from_its_time_on(const credit_return *all, bool unsorted) {
    for (uint32_t k = 0; k < RETURNS; k++) {
        for (int64_t now_ps = all[k].at_ps - 1; now_ps <= all[k].at_ps + 1; now_ps++) {
            credit_pool *c = fresh(all, RETURNS);
            assert(c->unsorted == unsorted);
            grant_collect(c, now_ps);
            assert(c->available == due(now_ps));
        }
    }
}

/* Counted once: what is left is counted later, in any number of steps. */
static void test_each_return_counts_once(const credit_return *all) {
    credit_pool *c = fresh(all, RETURNS);
    for (int64_t now_ps = 499; now_ps <= 901; now_ps++) {
        grant_collect(c, now_ps);
        assert(c->available == due(now_ps));
    }
    assert(c->head == c->end);
}

/* A stalled wire looks again at the time of the first return that is left. */
static void test_the_next_return_is_the_earliest_left(const credit_return *all) {
    credit_pool *c = fresh(all, RETURNS);
    grant_collect(c, 499);
    assert(wire_credit_at(c) == 500);
    grant_collect(c, 500);
    assert(wire_credit_at(c) == 700);
    grant_collect(c, 700);
    assert(wire_credit_at(c) == 900);
}

int main(void) {
    credit_return sorted[RETURNS];
    memcpy(sorted, returns, sizeof returns);
    sorted[0] = returns[1];
    sorted[1] = returns[0];
    test_credit_counts_from_its_time_on(returns, true);
    test_credit_counts_from_its_time_on(sorted, false);
    test_each_return_counts_once(returns);
    test_each_return_counts_once(sorted);
    test_the_next_return_is_the_earliest_left(returns);
    free(pool.pending);
    return 0;
}
