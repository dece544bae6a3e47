#include "notice.h"

#include <string.h>

#include "congestion.h"
#include "parts/congestion.h"
#include "parts/packets.h"
#include "parts/scheduler.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "scheduler.h"

/* ---- lists -------------------------------------------------------------------------------------
 */

/* Ensure that the array at the address `array` has space for a further item. */
static STATUS make_room(void *array, uint32_t *first, uint32_t *len, uint32_t *size, size_t item) {
    if (*len < *size) return CLUSIM_OK;
    char *items;
    memcpy(&items, array, sizeof items);
    uint32_t left = *len - *first;
    if (left >= *size / 2) {
        uint32_t larger = *size ? 2 * *size : 64;
        items = realloc(items, larger * item);
        if (items == NULL) return CLUSIM_ERR_NO_MEMORY;
        memcpy(array, &items, sizeof items);
        *size = larger;
    }
    memmove(items, items + *first * item, left * item);
    *first = 0;
    *len = left;
    return CLUSIM_OK;
}

#define ROOM(list)                                                                                 \
    TRY(make_room(&(list)->items, &(list)->first, &(list)->len, &(list)->size,                     \
                  sizeof *(list)->items))

STATUS notice_sent(sender_state *f, sent_packet p) {
    ROOM(&f->sent);
    f->sent.items[f->sent.len++] = p;
    return CLUSIM_OK;
}

/* Remove a packet. Mostly it is the first. */
static sent_packet take_sent(sent_list *sent, xfer_id id, uint32_t number) {
    uint32_t k = sent->first;
    while (!xfer_is(sent->items[k].xfer, id) || sent->items[k].number != number) k++;
    CLUSIM_ASSERT(k < sent->len);
    sent_packet taken = sent->items[k];
    sent->items[k].xfer = NO(xfer);
    while (sent->first < sent->len && xfer_none(sent->items[sent->first].xfer)) sent->first++;
    if (sent->first == sent->len) sent->first = sent->len = 0;
    return taken;
}

/* ---- telemetry ---------------------------------------------------------------------------------
 */

void notice_hop(clusim_sim *s, const wire_state *w, const packet *p) {
    packet_hops *hops = &s->senders.hops[p - s->packets.all];
    if (!p->acknowledged || hops->count == CLUSIM_SIZE_HOPS) return;
    base_u128 scaled = (base_u128)w->rate->num << 30;
    hops->all[hops->count++] = (clusim_hop){.time_ps = s->scheduler.now_ps,
                                            .queue_bytes = (int64_t)w->queued_bytes,
                                            .sent_bytes = (int64_t)w->bytes,
                                            .rate = (int64_t)(scaled / w->rate->den),
                                            .wire = wire_of(s, w).i};
}

/* Move the hops of a delivered packet to its notice. */
static STATUS move_hops(clusim_sim *s, sender_state *f, const packet *p, delivery_notice *n) {
    packet_hops *hops = &s->senders.hops[p - s->packets.all];
    n->num_hops = (uint8_t)hops->count;
    for (uint32_t k = 0; k < n->num_hops; k++) {
        ROOM(&f->hops);
        f->hops.items[f->hops.len++] = hops->all[k];
    }
    hops->count = 0;
    return CLUSIM_OK;
}

/* ---- notices -----------------------------------------------------------------------------------
 */

static STATUS send_notice(clusim_sim *s, flow_id flow, const packet *p) {
    sender_state *f = sender_at(s, flow);
    int64_t notice_ps = s->scheduler.now_ps + congestion_control(s, flow)->cnp_delay_ps;
    delivery_notice n = {.bytes = p->payload, .marked = p->marked};
    n.notifies = p->marked && congestion_notifies(s, flow);
    if (p->acknowledged) {
        sent_packet sent = take_sent(&f->sent, p->xfer, p->number);
        n.rtt_ps = notice_ps - sent.at_ps;
        n.path = sent.path;
    } else if (!n.notifies) {
        return CLUSIM_OK;
    }
    if (s->model->has_telemetry) TRY(move_hops(s, f, p, &n));
    ROOM(&f->notices);
    f->notices.items[f->notices.len++] = n;
    return scheduler_event(s, notice_ps, EV_NOTIFY, 0, flow.i);
}

STATUS notice_delivered(clusim_sim *s, const packet *p) {
    flow_id flow = xfer_at(s, p->xfer)->flow;
    if (flow_none(flow)) return CLUSIM_OK;
    if (p->marked) flow_at(s, flow)->marked_bytes += p->payload;
    if (UNLIKELY(congestion_control(s, flow)->sender)) return send_notice(s, flow, p);
    return congestion_notify(s, flow);
}

delivery_notice notice_take(sender_state *f, const clusim_hop **hops) {
    notice_list *list = &f->notices;
    delivery_notice n = list->items[list->first++];
    *hops = n.num_hops ? f->hops.items + f->hops.first : NULL;
    f->hops.first += n.num_hops;
    if (f->hops.first == f->hops.len) f->hops.first = f->hops.len = 0;
    if (list->first == list->len) list->first = list->len = 0;
    return n;
}

void notice_free(sender_state *f) {
    free(f->sent.items);
    free(f->notices.items);
    free(f->hops.items);
}
