#include "pool.h"

#include <string.h>

#include "grow.h"
#include "parts/senders.h"
#include "parts/windows.h"
#include "parts/xfers.h"
#include "thread_pool.h"

void pool_init(clusim_sim *s) {
    s->buffers.free = NO(buffer);
    s->xfers.free = NO(xfer);
}

void pool_free(clusim_sim *s) {
    for (uint32_t i = 0; i < s->xfers.size; i++) free(s->xfers.all[i].own_group);
    free(s->packets.block);
    free(s->packets.next);
    pool_free_room(&s->packets);
    free(s->buffers.all);
    free(s->xfers.block);
}

/* ---- growth ---------------------------------------------------------------------------------- */

STATUS pool_make_room(packets_part *p, uint32_t room) {
    packet_id *old = p->spare == NULL ? NULL : p->spare - SPARE_AHEAD;
    packet_id *all = realloc(old, (SPARE_AHEAD + (size_t)room) * sizeof *all);
    if (all == NULL) return CLUSIM_ERR_NO_MEMORY;
    for (uint32_t k = 0; k < SPARE_AHEAD; k++) all[k] = ID(packet, 0);
    p->spare = all + SPARE_AHEAD;
    p->room = room;
    return CLUSIM_OK;
}

void pool_free_room(packets_part *p) {
    if (p->spare != NULL) free(p->spare - SPARE_AHEAD);
}

static STATUS grow_packets(packets_part *p) {
    uint32_t size = p->size;
    if (size >> (PACKET_BITS - 1)) return CLUSIM_ERR_NO_MEMORY; /* twice that has no ids */
    GROW(p->next, size);
    TRY(pool_make_room(p, size));
    return GROW_LINES(*p);
}

static STATUS grow_xfers(xfers_part *x) {
    uint32_t old = x->size;
    TRY(GROW_LINES(*x));
    for (uint32_t i = x->size; i-- > old;) {
        x->all[i].own_group = NULL;
        x->all[i].next_free = x->free;
        x->free = ID(xfer, i);
    }
    return CLUSIM_OK;
}

static STATUS grow_buffers(buffers_part *b) {
    uint32_t old = b->size;
    GROW(b->all, b->size);
    for (uint32_t i = b->size; i-- > old;) {
        b->all[i].copies = b->free.i;
        b->free = ID(buffer, i);
    }
    return CLUSIM_OK;
}

/* Move the packets that were freed last. */
static void move_spare(packets_part *from, packets_part *to, uint32_t count) {
    from->num_spare -= count;
    memcpy(to->spare + to->num_spare, from->spare + from->num_spare, count * sizeof *to->spare);
    to->num_spare += count;
}

enum { SOME = 256 };

/* Some free packets, if there are any. Those that were never used are the last: the pages of others
 * stay untouched. */
static bool take_packets(packets_part *whole, packets_part *to) {
    if (whole != to && whole->num_spare)
        move_spare(whole, to, whole->num_spare < SOME ? whole->num_spare : SOME);
    if (to->num_spare) return true;
    uint32_t end = (uint32_t)base_umin(whole->size, (uint64_t)whole->fresh + SOME);
    for (uint32_t i = end; i-- > whole->fresh;) to->spare[to->num_spare++] = ID(packet, i);
    whole->fresh = end;
    return to->num_spare > 0;
}

static STATUS more_packets(packets_part *whole, packets_part *to) {
    if (take_packets(whole, to)) return CLUSIM_OK;
    TRY(grow_packets(whole));
    take_packets(whole, to);
    return CLUSIM_OK;
}

/* ---- of a thread -------------------------------------------------------------------------------
 */

/* Runs while no other thread works: arrays may move, and the thread reads their new addresses.
 * Memory that others added in the meantime is enough for all. */
static enum clusim_status grow_whole(void *context, uint32_t member) {
    clusim_sim *s = context, *whole = s->windows.thread->whole;
    (void)member;
    if (s->packets.num_spare == 0) TRY(more_packets(&whole->packets, &s->packets));
    if (xfer_none(whole->xfers.free)) TRY(grow_xfers(&whole->xfers));
    if (buffer_none(whole->buffers.free)) TRY(grow_buffers(&whole->buffers));
    s->packets.all = whole->packets.all;
    s->packets.next = whole->packets.next;
    s->xfers.all = whole->xfers.all;
    s->buffers.all = whole->buffers.all;
    return CLUSIM_OK;
}

static STATUS grow_for(clusim_sim *s) {
    window_thread *t = s->windows.thread;
    return thread_pool_alone(t->thread_pool, grow_whole, s, t->number);
}

/* Room for the telemetry of all packets, if a policy has it: without threads, as its wires exclude
 * windows. */
static STATUS more_hops(clusim_sim *s) {
    uint32_t count = s->packets.size, old = s->senders.num_hops;
    if (!s->model->has_telemetry || old == count) return CLUSIM_OK;
    packet_hops *all = realloc(s->senders.hops, count * sizeof *all);
    if (all == NULL) return CLUSIM_ERR_NO_MEMORY;
    memset(all + old, 0, (count - old) * sizeof *all);
    s->senders.hops = all;
    s->senders.num_hops = count;
    return CLUSIM_OK;
}

STATUS pool_more_packets(clusim_sim *s) {
    window_thread *t = s->windows.thread;
    if (t == NULL) {
        TRY(more_packets(&s->packets, &s->packets));
        return more_hops(s);
    }
    thread_pool_lock(t->thread_pool);
    bool taken = take_packets(&t->whole->packets, &s->packets);
    thread_pool_unlock(t->thread_pool);
    return taken ? CLUSIM_OK : grow_for(s);
}

/* The sim itself, with the lock of its threads. */
static clusim_sim *enter(clusim_sim *s) {
    if (LIKELY(s->windows.thread == NULL)) return s;
    thread_pool_lock(s->windows.thread->thread_pool);
    return s->windows.thread->whole;
}

static void leave(clusim_sim *s) {
    if (UNLIKELY(s->windows.thread != NULL)) thread_pool_unlock(s->windows.thread->thread_pool);
}

void pool_share(clusim_sim *s) {
    clusim_sim *whole = enter(s);
    move_spare(&s->packets, &whole->packets, s->packets.room / 2);
    leave(s);
}

STATUS pool_xfer(clusim_sim *s, xfer_id *out) {
    clusim_sim *whole = enter(s);
    while (UNLIKELY(xfer_none(whole->xfers.free))) {
        leave(s);
        if (whole == s) {
            TRY(grow_xfers(&s->xfers));
        } else {
            TRY(grow_for(s));
        }
        enter(s);
    }
    xfer_id x = whole->xfers.free;
    whole->xfers.free = xfer_at(whole, x)->next_free;
    whole->xfers.live++;
    leave(s);
    memset(xfer_at(s, x), 0, sizeof(xfer));
    *out = x;
    return CLUSIM_OK;
}

void pool_free_xfer(clusim_sim *s, xfer_id x) {
    free(xfer_at(s, x)->own_group);
    xfer_at(s, x)->own_group = NULL;
    xfer_at(s, x)->next_free = s->xfers.free;
    s->xfers.free = x;
    s->xfers.live--;
}

STATUS pool_buffer(clusim_sim *s, buffer_id *out) {
    clusim_sim *whole = enter(s);
    while (UNLIKELY(buffer_none(whole->buffers.free))) {
        leave(s);
        if (whole == s) {
            TRY(grow_buffers(&s->buffers));
        } else {
            TRY(grow_for(s));
        }
        enter(s);
    }
    buffer_id b = whole->buffers.free;
    whole->buffers.free = ID(buffer, buffer_at(whole, b)->copies);
    whole->buffers.live++;
    leave(s);
    *out = b;
    return CLUSIM_OK;
}

void pool_free_buffer(clusim_sim *s, buffer_id b) {
    clusim_sim *whole = enter(s);
    buffer_at(s, b)->copies = whole->buffers.free.i;
    whole->buffers.free = b;
    whole->buffers.live--;
    leave(s);
}
