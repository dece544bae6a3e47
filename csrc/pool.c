#include "pool.h"

#include <string.h>

#include "grow.h"
#include "parts/windows.h"
#include "parts/xfers.h"
#include "thread_pool.h"

void pool_init(clusim_sim *s) {
    s->packets.free = s->packets.chains = NO(packet);
    s->buffers.free = NO(buffer);
    s->xfers.free = NO(xfer);
}

void pool_free(clusim_sim *s) {
    for (uint32_t i = 0; i < s->xfers.size; i++) free(s->xfers.all[i].own_group);
    free(s->packets.block);
    free(s->packets.next);
    free(s->buffers.all);
    free(s->xfers.all);
}

/* ---- growth ---------------------------------------------------------------------------------- */

/* One cache line per packet. Large blocks are not copied when they grow, as pages move; the first
 * line then has the same offset in the block. */
static STATUS grow_packets(packets_part *p) {
    enum { LINE = sizeof *p->all };
    uint32_t old = p->size, bigger = old ? 2 * old : 256;
    size_t skipped = old ? (size_t)((char *)p->all - (char *)p->block) : 0;
    packet_id *next = realloc(p->next, bigger * sizeof *next);
    if (next == NULL) return CLUSIM_ERR_NO_MEMORY;
    p->next = next;
    char *block = realloc(p->block, (size_t)bigger * LINE + LINE);
    if (block == NULL) return CLUSIM_ERR_NO_MEMORY;
    size_t skip = (LINE - (uintptr_t)block % LINE) % LINE;
    if (skip != skipped) memmove(block + skip, block + skipped, (size_t)old * LINE);
    p->block = block;
    p->all = (packet *)(void *)(block + skip);
    p->size = bigger;
    for (uint32_t i = p->size; i-- > old;) {
        next[i] = p->free;
        p->free = ID(packet, i);
    }
    return CLUSIM_OK;
}

static STATUS grow_xfers(xfers_part *x) {
    uint32_t old = x->size;
    GROW(x->all, x->size);
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

/* A list of free packets that a thread has left over, if there is one. */
static bool take_chain(clusim_sim *whole, packets_part *to) {
    packet_id first = whole->packets.chains;
    if (packet_none(first)) return false;
    whole->packets.chains = packet_at(whole, first)->op;
    to->free = first;
    return true;
}

void pool_leave(clusim_sim *s, packets_part *from) {
    if (packet_none(from->free)) return;
    packet_at(s, from->free)->op = s->packets.chains;
    s->packets.chains = from->free;
    from->free = NO(packet);
}

/* ---- of a thread -------------------------------------------------------------------------------
 */

/* Runs while no other thread works: arrays may move, and the thread reads their new addresses.
 * Memory that others added in the meantime is enough for all. */
static enum clusim_status grow_whole(void *context, uint32_t member) {
    clusim_sim *s = context, *whole = s->windows.thread->whole;
    (void)member;
    packet_id kept = whole->packets.free;
    if (packet_none(s->packets.free) && !take_chain(whole, &s->packets)) {
        whole->packets.free = NO(packet);
        TRY(grow_packets(&whole->packets));
        s->packets.free = whole->packets.free;
        whole->packets.free = kept;
    }
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

STATUS pool_more_packets(clusim_sim *s) {
    window_thread *t = s->windows.thread;
    if (t == NULL) return take_chain(s, &s->packets) ? CLUSIM_OK : grow_packets(&s->packets);
    thread_pool_lock(t->thread_pool);
    bool taken = take_chain(t->whole, &s->packets);
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
