#include "sender.h"

#include <string.h>

#include "fault.h"
#include "notice.h"
#include "parts/congestion.h"
#include "parts/scheduler.h"
#include "parts/xfers.h"
#include "path_policy.h"
#include "queue_policy.h"
#include "ranges.h"
#include "receiver.h"
#include "schedule_policy.h"
#include "scheduler.h"

enum { ALARMS_ALONE = 1 << 22 }; /* in a row, without another event: a deadlock */

static const int64_t MOST_RATE = (INT64_C(1) << 40) - 1;

/* ---- calls -------------------------------------------------------------------------------------
 */

/* Note an illegal answer, and let the flow stop. */
static void fail(clusim_sim *s, flow_id flow, enum clusim_sender_call call, enum clusim_word word) {
    sender_state *f = sender_at(s, flow);
    f->failed = true;
    fault_flow(s, flow,
               (clusim_sender_fault){.time_ps = s->scheduler.now_ps,
                                     .value = f->record[word],
                                     .flow = flow.i,
                                     .call = call,
                                     .word = word});
    f->record[CLUSIM_WORD_RATE] = 1;
    f->record[CLUSIM_WORD_WINDOW] = 1;
    f->record[CLUSIM_WORD_TIMER_PS] = 0;
    f->record[CLUSIM_WORD_PATH] = f->path;
}

static STATUS set_alarm(clusim_sim *s, flow_id flow) {
    sender_state *f = sender_at(s, flow);
    int64_t timer_ps = f->record[CLUSIM_WORD_TIMER_PS];
    if (timer_ps == 0 || timer_ps >= f->alarm_ps) return CLUSIM_OK;
    f->alarm_ps = timer_ps;
    return scheduler_event(s, timer_ps, EV_ALARM, 0, flow.i);
}

/* Route the next packets of a transfer by the path of its flow's record. */
static void take_path(clusim_sim *s, const sender_state *f, xfer_id id) {
    xfer *x = xfer_at(s, id);
    if (x->policy != CLUSIM_POLICY_PINNED || x->num_queues || !path_none(x->path)) return;
    uint32_t key = x->made.key; /* of its queue pair */
    x->stripe = key;
    if (f->path == 0) return;
    uint32_t n = x->group_size, drawn = base_hash32(s->model->image.seed, key, f->path);
    x->stripe = drawn / (2 * n) * n + key % n;
}

void sender_route(clusim_sim *s, xfer_id id) {
    flow_id flow = xfer_at(s, id)->flow;
    if (s->senders.all == NULL || flow_none(flow) || sender_at(s, flow)->record == NULL) return;
    take_path(s, sender_at(s, flow), id);
}

static void change_path(clusim_sim *s, flow_id flow, enum clusim_sender_call which) {
    sender_state *f = sender_at(s, flow);
    int64_t path = f->record[CLUSIM_WORD_PATH];
    if (path < 0 || path > UINT32_MAX) {
        fail(s, flow, which, CLUSIM_WORD_PATH);
        return;
    }
    f->path = (uint32_t)path;
    if (!xfer_none(f->xfer)) take_path(s, f, f->xfer);
}

/* Call a function of the policy, if it has it, and check its answers. */
static STATUS call(clusim_sim *s, flow_id flow, enum clusim_sender_call which,
                   const delivery_notice *notice, clusim_hop *hops) {
    sender_state *f = sender_at(s, flow);
    sender_function *function = f->policy->functions[which];
    if (function == NULL || f->failed) return CLUSIM_OK;
    int64_t now_ps = s->scheduler.now_ps;
    f->record[CLUSIM_WORD_IN_FLIGHT] = f->in_flight;
    int64_t due_ps = f->record[CLUSIM_WORD_TIMER_PS]; /* perhaps now, after this call */
    function(f->record, now_ps, notice->bytes + notice->lost_bytes, notice->rtt_ps, notice->marked,
             notice->path, hops, notice->num_hops);
    int64_t rate = f->record[CLUSIM_WORD_RATE], timer_ps = f->record[CLUSIM_WORD_TIMER_PS];
    if (rate < 1 || rate > MOST_RATE) {
        fail(s, flow, which, CLUSIM_WORD_RATE);
    } else if (f->record[CLUSIM_WORD_WINDOW] < 1) {
        fail(s, flow, which, CLUSIM_WORD_WINDOW);
    } else if (timer_ps != 0 && timer_ps != due_ps &&
               (timer_ps <= now_ps || timer_ps >= RANGE_TIME_END)) {
        fail(s, flow, which, CLUSIM_WORD_TIMER_PS);
    } else if (f->record[CLUSIM_WORD_PATH] != f->path) {
        change_path(s, flow, which);
    }
    return set_alarm(s, flow);
}

/* Time of the next packet to a receiver: never without credit, or while the window is full. */
static int64_t next_at(const clusim_sim *s, flow_id flow, link_id link) {
    const sender_state *f = sender_at(s, flow);
    if (receiver_grants(congestion_control(s, flow)) && !receiver_open(s, link)) return NEVER;
    if (f->record == NULL) return 0;
    return f->in_flight >= f->record[CLUSIM_WORD_WINDOW] ? NEVER : f->pace_ps;
}

/* ---- events of a flow --------------------------------------------------------------------------
 */

bool sender_acknowledged(const clusim_sim *s, flow_id flow) {
    if (s->senders.all == NULL || flow_none(flow)) return false;
    if (receiver_grants(congestion_control(s, flow))) return true;
    if (sender_at(s, flow)->record == NULL) return false;
    return sender_at(s, flow)->policy->functions[CLUSIM_SENDER_CALL_ACKED] != NULL;
}

/* A transfer requests its credit. */
static STATUS receiver_transfer(clusim_sim *s, flow_id flow, xfer_id id) {
    sender_state *f = sender_at(s, flow);
    const receiver_state *r;
    f->xfer = id;
    f->link = receiver_link(s, xfer_at(s, id));
    r = &s->senders.receivers.all[s->senders.receivers.links[f->link.i].receiver.i];
    if (r->policy == NULL) return CLUSIM_ERR_BAD_IMAGE;
    flow_at(s, flow)->next_at = next_at(s, flow, f->link);
    return receiver_request(s, f->link, (int64_t)xfer_at(s, id)->bytes, CREDIT_REQUESTED);
}

static STATUS policy_transfer(clusim_sim *s, flow_id flow, xfer_id id) {
    sender_state *f = sender_at(s, flow);
    if (f->record == NULL) return CLUSIM_ERR_BAD_IMAGE;
    f->xfer = id;
    xfer_at(s, id)->made.key = xfer_at(s, id)->stripe;
    if (f->path) take_path(s, f, id);
    if (f->started) return CLUSIM_OK;
    f->started = true;
    return call(s, flow, CLUSIM_SENDER_CALL_START, &(delivery_notice){0}, NULL);
}

STATUS sender_transfer(clusim_sim *s, flow_id flow, xfer_id id) {
    const clusim_control *control = congestion_control(s, flow);
    if (sender_at(s, flow)->policy == NULL) return CLUSIM_ERR_BAD_IMAGE;
    if (!receiver_rules(control)) TRY(policy_transfer(s, flow, id));
    return receiver_grants(control) ? receiver_transfer(s, flow, id) : CLUSIM_OK;
}

void sender_idle(clusim_sim *s, flow_id flow) { sender_at(s, flow)->xfer = NO(xfer); }

/* A packet of a flow without a policy of senders is in flight, if `p` names its transfer. */
static STATUS receiver_granted(clusim_sim *s, flow_id flow, sent_packet p, uint32_t payload) {
    sender_state *f = sender_at(s, flow);
    if (!xfer_none(p.xfer)) {
        f->in_flight += payload;
        TRY(notice_sent(f, p));
    }
    flow_at(s, flow)->next_at = next_at(s, flow, f->link);
    return CLUSIM_OK;
}

static STATUS policy_granted(clusim_sim *s, flow_id flow, sent_packet p, uint32_t payload) {
    sender_state *f = sender_at(s, flow);
    if (f->policy->functions[CLUSIM_SENDER_CALL_ACKED] != NULL && !xfer_none(p.xfer)) {
        f->in_flight += payload;
        TRY(notice_sent(f, p));
    }
    TRY(call(s, flow, CLUSIM_SENDER_CALL_SENT, &(delivery_notice){.bytes = payload}, NULL));
    uint64_t rate = (uint64_t)f->record[CLUSIM_WORD_RATE];
    int64_t gap_ps = (int64_t)base_ceil_div((uint64_t)payload << 30, rate);
    f->pace_ps = base_max(f->pace_ps, s->scheduler.now_ps) + gap_ps;
    if (UNLIKELY(f->pace_ps >= RANGE_TIME_END)) scheduler_flow_beyond(s, flow);
    flow_at(s, flow)->next_at = next_at(s, flow, f->link);
    return CLUSIM_OK;
}

static STATUS granted(clusim_sim *s, xfer_id id, sent_packet p, uint32_t payload) {
    flow_id flow = xfer_at(s, id)->flow;
    flow_at(s, flow)->sent_bytes += payload;
    const clusim_control *control = congestion_control(s, flow);
    if (UNLIKELY(control->sender)) {
        p.at_ps = s->scheduler.now_ps;
        p.path = sender_at(s, flow)->path;
        if (receiver_grants(control))
            s->senders.receivers.links[receiver_link(s, xfer_at(s, id)).i].credit -= payload;
        return receiver_rules(control) ? receiver_granted(s, flow, p, payload)
                                       : policy_granted(s, flow, p, payload);
    }
    congestion_granted(s, flow, payload);
    return CLUSIM_OK;
}

STATUS sender_granted(clusim_sim *s, xfer_id id, uint32_t number, uint32_t payload) {
    sent_packet p = {.xfer = id, .number = number};
    return granted(s, id, p, payload);
}

bool sender_in_flight(const clusim_sim *s, const backlog_item *item, uint32_t payload) {
    flow_id flow = xfer_at(s, item->xfer)->flow;
    if (!sender_acknowledged(s, flow)) return false;
    sender_state *f = sender_at(s, flow);
    if (!notice_lost(f, item->xfer, item->number)) return false;
    f->in_flight -= payload;
    return true;
}

STATUS sender_repeated(clusim_sim *s, const packet *p) {
    sent_packet sent = {.xfer = p->acknowledged ? p->xfer : NO(xfer), .number = p->number};
    const backlog_item earlier = {.xfer = p->xfer, .number = p->number};
    if (p->acknowledged) sender_in_flight(s, &earlier, p->payload);
    return granted(s, p->xfer, sent, p->payload);
}

int64_t sender_ready_at(const clusim_sim *s, const xfer *x) {
    if (flow_none(x->flow)) return 0;
    if (!receiver_grants(congestion_control(s, x->flow))) return flow_at(s, x->flow)->next_at;
    return next_at(s, x->flow, receiver_link(s, x));
}

STATUS sender_repeats(clusim_sim *s, const xfer *x, int64_t bytes) {
    if (bytes <= 0 || flow_none(x->flow) || !receiver_grants(congestion_control(s, x->flow)))
        return CLUSIM_OK;
    return receiver_request(s, receiver_link(s, x), bytes, CREDIT_LOST);
}

STATUS sender_lost(clusim_sim *s, flow_id flow, int64_t bytes) {
    delivery_notice n = {.lost_bytes = bytes};
    if (receiver_rules(congestion_control(s, flow))) return CLUSIM_OK;
    return bytes ? call(s, flow, CLUSIM_SENDER_CALL_LOST, &n, NULL) : CLUSIM_OK;
}

bool sender_changed(clusim_sim *s, flow_id flow, xfer_id *id) {
    const clusim_control *control = congestion_control(s, flow);
    if (!control->sender) return false;
    const sender_state *f = sender_at(s, flow);
    *id = f->xfer;
    if (receiver_grants(control) ? link_none(f->link) : f->record == NULL) return false;
    int64_t at_ps = next_at(s, flow, f->link);
    if (at_ps == flow_at(s, flow)->next_at) return false;
    flow_at(s, flow)->next_at = at_ps;
    return !xfer_none(f->xfer);
}

STATUS sender_notify_event(clusim_sim *s, flow_id flow) {
    if (!congestion_control(s, flow)->sender) {
        congestion_notify_event(s, flow);
        return CLUSIM_OK;
    }
    if (receiver_rules(congestion_control(s, flow))) return receiver_message_event(s, flow);
    sender_state *f = sender_at(s, flow);
    clusim_hop *hops;
    delivery_notice n = notice_take(f, &hops);
    if (n.credit) return receiver_message_event(s, flow);
    if (n.acknowledges) {
        f->in_flight -= n.bytes;
        f->rtt_ps = n.rtt_ps;
        TRY(call(s, flow, CLUSIM_SENDER_CALL_ACKED, &n, hops));
    }
    return n.notifies ? call(s, flow, CLUSIM_SENDER_CALL_NOTIFIED, &n, hops) : CLUSIM_OK;
}

/* A run that only has alarms left is a deadlock. */
static bool alone(clusim_sim *s) {
    uint64_t number = s->scheduler.event_count;
    s->senders.alarms = number == s->senders.last_alarm + 1 ? s->senders.alarms + 1 : 0;
    s->senders.last_alarm = number;
    return s->senders.alarms >= ALARMS_ALONE;
}

STATUS sender_alarm_event(clusim_sim *s, flow_id flow) {
    uint32_t flows = (uint32_t)(s->model->image.num_conns + s->model->image.num_sources);
    if (flow.i >= flows)
        return alone(s) ? CLUSIM_OK : receiver_alarm_event(s, ID(receiver, flow.i - flows));
    sender_state *f = sender_at(s, flow);
    int64_t now_ps = s->scheduler.now_ps;
    if (f->alarm_ps != now_ps || alone(s)) return CLUSIM_OK;
    f->alarm_ps = NEVER;
    if (f->record[CLUSIM_WORD_TIMER_PS] != now_ps) return set_alarm(s, flow);
    f->record[CLUSIM_WORD_TIMER_PS] = 0;
    if (xfer_none(f->xfer) && f->in_flight == 0) return CLUSIM_OK;
    return call(s, flow, CLUSIM_SENDER_CALL_TIMER, &(delivery_notice){0}, NULL);
}

/* ---- life --------------------------------------------------------------------------------------
 */

STATUS sender_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    if (!s->model->has_senders) return CLUSIM_OK;
    ZEROED(s->senders.policies, im->num_controls);
    ZEROED(s->senders.all, im->num_conns + im->num_sources);
    for (uint64_t i = 0; i < im->num_conns + im->num_sources; i++) {
        sender_state *f = &s->senders.all[i];
        f->xfer = NO(xfer);
        f->link = NO(link);
        f->blocked = f->blocked_last = NO(line);
    }
    TRY(schedule_policy_init(s));
    TRY(path_policy_init(s));
    return receiver_init(s);
}

void sender_free(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    for (uint64_t i = 0; s->senders.all && i < im->num_conns + im->num_sources; i++) {
        free(s->senders.all[i].record);
        notice_free(&s->senders.all[i]);
    }
    receiver_free(s);
    schedule_policy_free(s);
    path_policy_free(s);
    free(s->senders.all);
    free(s->senders.hops);
    free(s->senders.policies);
}

/* A flow begins with the record of its policy. */
static STATUS give_record(sender_state *f, const sender_policy *policy, const clusim_sender *x) {
    f->record = malloc(x->num_words * sizeof *f->record);
    if (f->record == NULL) return CLUSIM_ERR_NO_MEMORY;
    memcpy(f->record, x->words, x->num_words * sizeof *f->record);
    f->policy = policy;
    f->alarm_ps = NEVER;
    return CLUSIM_OK;
}

int clusim_sim_use_sender(clusim_sim *s, uint32_t control, const clusim_sender *sender) {
    const clusim_image *im = &s->model->image;
    if (control >= im->num_controls || !im->controls[control].sender ||
        sender->num_words < CLUSIM_SIZE_WORDS)
        return CLUSIM_ERR_BAD_IMAGE;
    sender_policy *policy = &s->senders.policies[control];
    if (policy->present) return CLUSIM_ERR_BAD_IMAGE;
    memcpy(policy->functions, sender->functions, sizeof policy->functions);
    policy->present = true;
    if (im->controls[control].sender == CLUSIM_SENDER_MODE_QUEUE)
        return queue_policy_use(s, control, sender);
    if (im->controls[control].sender == CLUSIM_SENDER_MODE_SCHEDULE)
        return schedule_policy_use(s, control, sender);
    if (im->controls[control].sender == CLUSIM_SENDER_MODE_PATH)
        return path_policy_use(s, control, sender);
    for (uint32_t i = 0; i < im->num_conns + im->num_sources; i++) {
        flow_id flow = ID(flow, i);
        if (congestion_row(im, i) != control) continue;
        if (receiver_rules(&im->controls[control])) {
            sender_at(s, flow)->policy = policy;
            continue;
        }
        TRY(give_record(sender_at(s, flow), policy, sender));
        sender_at(s, flow)->record[CLUSIM_WORD_KEY] = base_hash32(im->seed, NONE, i);
    }
    if (receiver_rules(&im->controls[control])) return receiver_use(s, control, sender);
    return CLUSIM_OK;
}

int clusim_sim_sender_fault(const clusim_sim *s, clusim_sender_fault *out) {
    *out = s->senders.fault;
    return s->senders.failed;
}
