#include "receiver.h"

#include <string.h>

#include "congestion.h"
#include "fault.h"
#include "grow.h"
#include "parts/results.h"
#include "parts/scheduler.h"
#include "parts/xfers.h"
#include "queue_policy.h"
#include "scheduler.h"

enum { ALARMS_DRAINED = 1 << 20 }; /* after the end of the run */

static const int64_t MOST_CREDIT = (INT64_C(1) << 40) - 1;

static receiver_state *receiver_at(const clusim_sim *s, receiver_id id) {
    return &s->senders.receivers.all[id.i];
}

static credit_link *link_at(const clusim_sim *s, link_id id) {
    return &s->senders.receivers.links[id.i];
}

link_id receiver_link(const clusim_sim *s, const xfer *x) {
    uint64_t conns = s->model->image.num_conns;
    return s->senders.receivers
        .of[x->owner_kind == OWNER_SOURCE ? conns + x->message.i : x->conn.i];
}

/* ---- messages ----------------------------------------------------------------------------------
 */

static STATUS send_message(clusim_sim *s, credit_message m) {
    flow_id flow = link_at(s, m.link)->flow;
    credit_list *list = &sender_at(s, flow)->credits;
    QUEUE_ROOM(list);
    list->items[list->len++] = m;
    if (sender_at(s, flow)->record) { /* between its notices */
        QUEUE_ROOM(&sender_at(s, flow)->notices);
        notice_list *notices = &sender_at(s, flow)->notices;
        notices->items[notices->len++] = (delivery_notice){.credit = 1};
    }
    int64_t at_ps = s->scheduler.now_ps + congestion_control(s, flow)->cnp_delay_ps;
    return scheduler_event(s, at_ps, EV_NOTIFY, flow.i, flow.i);
}

STATUS receiver_request(clusim_sim *s, link_id link, int64_t bytes, uint32_t kind) {
    return send_message(s, (credit_message){bytes, link, kind});
}

/* ---- calls -------------------------------------------------------------------------------------
 */

static void fail(clusim_sim *s, receiver_state *r, enum clusim_sender_call call, uint32_t word) {
    flow_id owner = link_at(s, r->first)->flow;
    fault_flow(s, owner,
               (clusim_sender_fault){.time_ps = s->scheduler.now_ps,
                                     .value = r->record[word],
                                     .flow = owner.i,
                                     .call = call,
                                     .word = word,
                                     .receiver = 1});
    r->failed = true;
    r->record[CLUSIM_RECEIVER_WORD_CREDIT] = 0;
    r->record[CLUSIM_WORD_TIMER_PS] = 0;
}

typedef struct receiver_call {
    enum clusim_sender_call which;
    uint32_t flow; /* its number at the receiver */
    int64_t bytes;
    int64_t mark; /* 1 if it is lost; of an arrival a queue_answer */
} receiver_call;

static const uint32_t ANSWERS_RIGHT = UINT32_MAX;

static bool wrong_timer(int64_t timer_ps, int64_t due_ps, int64_t now_ps) {
    if (timer_ps == 0 || timer_ps == due_ps) return false;
    return timer_ps <= now_ps || timer_ps >= RANGE_TIME_END;
}

/* The first word of the record that a call may not set so, given its values before. */
static uint32_t wrong_word(const clusim_sim *s, const receiver_state *r, int64_t rate,
                           int64_t due_ps) {
    int64_t credit = r->record[CLUSIM_RECEIVER_WORD_CREDIT];
    int64_t flow = r->record[CLUSIM_RECEIVER_WORD_FLOW];
    if (r->record[CLUSIM_WORD_RATE] != rate) return CLUSIM_WORD_RATE;
    if (credit < 0 || credit > MOST_CREDIT) return CLUSIM_RECEIVER_WORD_CREDIT;
    if (wrong_timer(r->record[CLUSIM_WORD_TIMER_PS], due_ps, s->scheduler.now_ps))
        return CLUSIM_WORD_TIMER_PS;
    if (flow < 0 || flow >= r->count) return CLUSIM_RECEIVER_WORD_FLOW;
    return ANSWERS_RIGHT;
}

/* Call a function of the policy, if it has it, and check its answers. */
static STATUS call(clusim_sim *s, receiver_id id, receiver_call c) {
    receiver_state *r = receiver_at(s, id);
    sender_function *function = r->policy->functions[c.which];
    if (function == NULL || r->failed) return CLUSIM_OK;
    int64_t now_ps = s->scheduler.now_ps, rate = r->record[CLUSIM_WORD_RATE];
    int64_t due_ps = r->record[CLUSIM_WORD_TIMER_PS]; /* perhaps now, after this call */
    r->record[CLUSIM_RECEIVER_WORD_CREDIT] = 0;
    function(r->record, now_ps, c.bytes, 0, c.mark, c.flow, r->flows, r->count);
    uint32_t wrong = wrong_word(s, r, rate, due_ps);
    if (wrong != ANSWERS_RIGHT) fail(s, r, c.which, wrong);
    int64_t timer_ps = r->record[CLUSIM_WORD_TIMER_PS];
    if (timer_ps == 0 || timer_ps >= r->alarm_ps) return CLUSIM_OK;
    r->alarm_ps = timer_ps;
    const clusim_image *im = &s->model->image;
    uint32_t number = (uint32_t)(im->num_conns + im->num_sources) + id.i;
    return scheduler_event(s, timer_ps, EV_ALARM, 0, number);
}

/* The same during a run: credit travels to the sender. */
static STATUS call_and_grant(clusim_sim *s, receiver_id id, receiver_call c) {
    TRY(call(s, id, c));
    const receiver_state *r = receiver_at(s, id);
    int64_t credit = r->record[CLUSIM_RECEIVER_WORD_CREDIT];
    if (credit == 0 || r->failed) return CLUSIM_OK;
    link_id link = ID(link, r->first.i + (uint32_t)r->record[CLUSIM_RECEIVER_WORD_FLOW]);
    r->record[CLUSIM_RECEIVER_WORD_CREDIT] = 0;
    return send_message(s, (credit_message){credit, link, CREDIT_GRANTED});
}

/* ---- events ------------------------------------------------------------------------------------
 */

STATUS receiver_arrived(clusim_sim *s, const packet *p) {
    link_id id = receiver_link(s, xfer_at(s, p->xfer));
    const credit_link *link = link_at(s, id);
    receiver_call c = {.which = CLUSIM_SENDER_CALL_ARRIVED,
                       .flow = id.i - receiver_at(s, link->receiver)->first.i,
                       .bytes = p->payload,
                       .mark = p->kind == CLUSIM_KIND_TRIMMED ? QUEUE_TRIMS : p->marked};
    return call_and_grant(s, link->receiver, c);
}

STATUS receiver_message_event(clusim_sim *s, flow_id flow) {
    credit_list *list = &sender_at(s, flow)->credits;
    credit_message m = list->items[list->first++];
    credit_link *link = link_at(s, m.link);
    if (list->first == list->len) list->first = list->len = 0;
    if (m.kind == CREDIT_GRANTED) {
        link->credit += m.bytes;
        return CLUSIM_OK;
    }
    receiver_call c = {.which = CLUSIM_SENDER_CALL_REQUESTED,
                       .flow = m.link.i - receiver_at(s, link->receiver)->first.i,
                       .bytes = m.bytes,
                       .mark = m.kind == CREDIT_LOST};
    return call_and_grant(s, link->receiver, c);
}

STATUS receiver_alarm_event(clusim_sim *s, receiver_id id) {
    receiver_state *r = receiver_at(s, id);
    int64_t now_ps = s->scheduler.now_ps, timer_ps = r->record[CLUSIM_WORD_TIMER_PS];
    if (r->alarm_ps != now_ps) return CLUSIM_OK;
    if (s->results.finished && s->senders.receivers.drained++ >= ALARMS_DRAINED) return CLUSIM_OK;
    r->alarm_ps = NEVER;
    if (timer_ps == now_ps) {
        r->record[CLUSIM_WORD_TIMER_PS] = 0;
        return call_and_grant(s, id, (receiver_call){.which = CLUSIM_SENDER_CALL_TIMER});
    }
    if (timer_ps == 0) return CLUSIM_OK;
    r->alarm_ps = timer_ps;
    const clusim_image *im = &s->model->image;
    uint32_t number = (uint32_t)(im->num_conns + im->num_sources) + id.i;
    return scheduler_event(s, timer_ps, EV_ALARM, 0, number);
}

/* ---- life --------------------------------------------------------------------------------------
 */

typedef struct link_key { /* ascending by all but the last */
    uint32_t control, target, flow;
    uint32_t of; /* connection, or message after the connections */
} link_key;

static int by_receiver_and_flow(const void *a, const void *b) {
    const link_key *x = a, *y = b;
    if (x->control != y->control) return x->control < y->control ? -1 : 1;
    if (x->target != y->target) return x->target < y->target ? -1 : 1;
    return (x->flow > y->flow) - (x->flow < y->flow);
}

static uint32_t target_of(uint32_t via_last, uint32_t dst) {
    return via_last == NONE ? dst : via_last;
}

/* Row of the policy of the receivers of a row's flows, or NONE. */
static uint32_t row_of(const clusim_image *im, uint32_t control) {
    if (control == NONE || !receiver_grants(&im->controls[control])) return NONE;
    const clusim_control *c = &im->controls[control];
    return receiver_rules(c) ? control : c->receiver - 1;
}

/* Pairs of flows and receivers, with repetitions. */
static uint32_t find_keys(const clusim_image *im, link_key *keys) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < im->num_conns; i++) {
        const clusim_conn *c = &im->conns[i];
        uint32_t row = row_of(im, c->control);
        if (row == NONE) continue;
        uint32_t end = c->stage == NONE ? c->dst : c->stage;
        keys[count++] = (link_key){row, target_of(c->via_last, end), i, i};
    }
    for (uint32_t i = 0; i < im->num_sources; i++) {
        const clusim_source *x = &im->sources[i];
        uint32_t row = row_of(im, x->control);
        if (row == NONE) continue;
        for (uint32_t m = x->msg_lo; m < x->msg_hi; m++) {
            uint32_t target = target_of(im->messages[m].via_last, im->messages[m].dst);
            uint32_t flow = (uint32_t)im->num_conns + i, of = (uint32_t)im->num_conns + m;
            keys[count++] = (link_key){row, target, flow, of};
        }
    }
    qsort(keys, count, sizeof *keys, by_receiver_and_flow);
    return count;
}

/* Number receivers and their links in the order of the keys. */
static void add_links(receivers_part *part, const link_key *keys, uint32_t count) {
    for (uint32_t k = 0; k < count; k++) {
        const link_key *x = &keys[k];
        receiver_state *r = part->count ? &part->all[part->count - 1] : NULL;
        bool begins = r == NULL || r->control != x->control || r->target != x->target;
        if (begins) {
            r = &part->all[part->count++];
            *r = (receiver_state){.alarm_ps = NEVER,
                                  .first = ID(link, part->num_links),
                                  .control = x->control,
                                  .target = x->target};
        }
        if (begins || part->links[part->num_links - 1].flow.i != x->flow) {
            part->links[part->num_links++] =
                (credit_link){.flow = ID(flow, x->flow), .receiver = ID(receiver, part->count - 1)};
            r->count++;
        }
        part->of[x->of] = ID(link, part->num_links - 1);
    }
}

STATUS receiver_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    receivers_part *part = &s->senders.receivers;
    bool any = false;
    for (uint32_t i = 0; i < im->num_controls; i++) any |= receiver_grants(&im->controls[i]);
    if (!any) return CLUSIM_OK;
    uint64_t most = im->num_conns + im->num_messages;
    link_key *keys = calloc(most + 1, sizeof *keys);
    if (keys == NULL) return CLUSIM_ERR_NO_MEMORY;
    uint32_t count = find_keys(im, keys);
    enum clusim_status status = state_zeroed(&part->of, most, sizeof *part->of);
    if (status == CLUSIM_OK) status = state_zeroed(&part->all, count, sizeof *part->all);
    if (status == CLUSIM_OK) status = state_zeroed(&part->links, count, sizeof *part->links);
    if (status == CLUSIM_OK) add_links(part, keys, count);
    free(keys);
    return status;
}

void receiver_free(clusim_sim *s) {
    receivers_part *part = &s->senders.receivers;
    for (uint32_t i = 0; i < part->count; i++) {
        free(part->all[i].record);
        free(part->all[i].flows);
    }
    free(part->all);
    free(part->links);
    free(part->of);
}

/* A receiver begins with the records of its policy, and lets its flows begin. */
static STATUS give_records(clusim_sim *s, receiver_id id, const clusim_sender *x) {
    receiver_state *r = receiver_at(s, id);
    size_t row = x->num_flow_words * sizeof *r->flows;
    r->record = malloc(x->num_words * sizeof *r->record);
    r->flows = malloc(r->count * row + 1);
    if (r->record == NULL || r->flows == NULL) return CLUSIM_ERR_NO_MEMORY;
    memcpy(r->record, x->words, x->num_words * sizeof *r->record);
    for (uint32_t i = 0; row && i < r->count; i++)
        memcpy(r->flows + i * x->num_flow_words, x->flow_words, row);
    r->record[CLUSIM_RECEIVER_WORD_FLOWS] = r->count;
    r->record[CLUSIM_WORD_KEY] = base_hash32(s->model->image.seed, NONE - 2, r->target);
    r->policy = &s->senders.policies[r->control];
    for (uint32_t i = 0; i < r->count; i++) {
        TRY(call(s, id, (receiver_call){.which = CLUSIM_SENDER_CALL_START, .flow = i}));
        link_at(s, ID(link, r->first.i + i))->credit = r->record[CLUSIM_RECEIVER_WORD_CREDIT];
    }
    return CLUSIM_OK;
}

STATUS receiver_use(clusim_sim *s, uint32_t control, const clusim_sender *x) {
    for (uint32_t i = 0; i < s->senders.receivers.count; i++) {
        receiver_id id = ID(receiver, i);
        if (receiver_at(s, id)->control == control) TRY(give_records(s, id, x));
    }
    return CLUSIM_OK;
}
