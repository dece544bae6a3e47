#include "notice.h"

#include <string.h>

#include "congestion.h"
#include "grow.h"
#include "parts/congestion.h"
#include "parts/packets.h"
#include "parts/scheduler.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "receiver.h"
#include "scheduler.h"

/* ---- lists -------------------------------------------------------------------------------------
 */

STATUS notice_sent(sender_state *f, sent_packet p) {
    QUEUE_ROOM(&f->sent);
    f->sent.items[f->sent.len++] = p;
    return CLUSIM_OK;
}

/* Remove a packet. Mostly it is the first; it is missing after its sender has found it lost. */
static bool take_sent(sent_list *sent, xfer_id id, uint32_t number, sent_packet *taken) {
    uint32_t k = sent->first;
    while (k < sent->len && (!xfer_is(sent->items[k].xfer, id) || sent->items[k].number != number))
        k++;
    if (k == sent->len) return false;
    *taken = sent->items[k];
    sent->items[k].xfer = NO(xfer);
    while (sent->first < sent->len && xfer_none(sent->items[sent->first].xfer)) sent->first++;
    if (sent->first == sent->len) sent->first = sent->len = 0;
    return true;
}

bool notice_lost(sender_state *f, xfer_id id, uint32_t number) {
    sent_packet taken;
    return take_sent(&f->sent, id, number, &taken);
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

void notice_forget_hops(clusim_sim *s, const packet *p) {
    if (s->senders.hops) s->senders.hops[p - s->packets.all].count = 0;
}

/* Move the hops of a delivered packet to its notice. */
static STATUS move_hops(clusim_sim *s, sender_state *f, const packet *p, delivery_notice *n) {
    packet_hops *hops = &s->senders.hops[p - s->packets.all];
    n->num_hops = (uint8_t)hops->count;
    for (uint32_t k = 0; k < n->num_hops; k++) {
        QUEUE_ROOM(&f->hops);
        f->hops.items[f->hops.len++] = hops->all[k];
    }
    hops->count = 0;
    return CLUSIM_OK;
}

/* ---- notices -----------------------------------------------------------------------------------
 */

/* A packet reached a receiver that grants credit. */
static STATUS take_arrival(clusim_sim *s, flow_id flow, const packet *p) {
    sender_state *f = sender_at(s, flow);
    sent_packet sent;
    if (!p->acknowledged) return CLUSIM_OK;
    notice_forget_hops(s, p);
    if (take_sent(&f->sent, p->xfer, p->number, &sent)) f->in_flight -= p->payload;
    return receiver_arrived(s, p);
}

static STATUS send_to_sender(clusim_sim *s, flow_id flow, const packet *p) {
    sender_state *f = sender_at(s, flow);
    const clusim_control *control = congestion_control(s, flow);
    int64_t notice_ps = s->scheduler.now_ps + control->cnp_delay_ps;
    delivery_notice n = {.bytes = p->payload, .marked = p->marked};
    n.notifies = p->marked && congestion_notifies(s, flow);
    sent_packet sent;
    n.acknowledges = p->acknowledged && take_sent(&f->sent, p->xfer, p->number, &sent);
    if (n.acknowledges) {
        n.rtt_ps = notice_ps - sent.at_ps;
        n.path = sent.path;
    } else if (!n.notifies) {
        notice_forget_hops(s, p);
        return CLUSIM_OK;
    }
    if (s->model->has_telemetry) TRY(move_hops(s, f, p, &n));
    QUEUE_ROOM(&f->notices);
    f->notices.items[f->notices.len++] = n;
    return scheduler_event(s, notice_ps, EV_NOTIFY, control->receiver ? flow.i : 0, flow.i);
}

static STATUS send_notice(clusim_sim *s, flow_id flow, const packet *p) {
    const clusim_control *control = congestion_control(s, flow);
    if (receiver_rules(control)) return take_arrival(s, flow, p);
    TRY(send_to_sender(s, flow, p));
    return control->receiver && p->acknowledged ? receiver_arrived(s, p) : CLUSIM_OK;
}

STATUS notice_delivered(clusim_sim *s, const packet *p) {
    flow_id flow = xfer_at(s, p->xfer)->flow;
    if (flow_none(flow)) return CLUSIM_OK;
    if (p->marked) flow_at(s, flow)->marked_bytes += p->payload;
    if (UNLIKELY(congestion_control(s, flow)->sender)) return send_notice(s, flow, p);
    return congestion_notify(s, flow);
}

STATUS notice_trimmed(clusim_sim *s, const packet *p) {
    flow_id flow = xfer_at(s, p->xfer)->flow;
    if (flow_none(flow) || !receiver_grants(congestion_control(s, flow))) return CLUSIM_OK;
    return receiver_arrived(s, p);
}

delivery_notice notice_take(sender_state *f, clusim_hop **hops) {
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
    free(f->credits.items);
}
