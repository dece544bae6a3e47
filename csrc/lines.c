#include "lines.h"

#include <stddef.h>
#include <string.h>

#include "parts/scheduler.h"
#include "parts/spreads.h"
#include "parts/xfers.h"
#include "pool.h"
#include "scheduler.h"

/* Create `count` lines of `pairs` queue pairs each, or only count them; return the first. */
static line_id add_lines(orders_part *o, uint32_t count, uint32_t pairs) {
    line_id first = ID(line, o->num_lines);
    for (uint32_t k = 0; k < count; k++) {
        uint32_t pair = o->num_pairs, line = o->num_lines++;
        o->num_pairs += pairs;
        if (o->lines == NULL) continue;
        o->lines[line] = (order_line){
            .oldest = NO(xfer), .newest = NO(xfer), .next_blocked = NO(line), .pairs = pairs};
        o->lines[line].pair = ID(pair, pair);
        for (; pair < o->num_pairs; pair++)
            o->pairs[pair] = (order_pair){.expected = NO_NUMBER,
                                          .refused_at = NO_NUMBER,
                                          .kept = NO(packet),
                                          .present = NO(xfer),
                                          .refused_in = NO(xfer),
                                          .line = ID(line, line)};
    }
    return first;
}

static bool is_ordered(const clusim_image *im, uint32_t spread) {
    return spread != NONE && im->spreads[spread].ordered;
}

/* Destination of a message of a source. */
typedef struct message_end {
    uint32_t dst, via_first, via_last, message;
} message_end;

static int by_end(const void *a, const void *b) {
    return memcmp(a, b, offsetof(message_end, message));
}

/* Lines of a source: one for each destination. */
static STATUS add_source(orders_part *o, const clusim_image *im, const clusim_source *source) {
    uint32_t count = source->msg_hi - source->msg_lo;
    message_end *ends = calloc(count + 1, sizeof *ends);
    if (ends == NULL) return CLUSIM_ERR_NO_MEMORY;
    for (uint32_t k = 0; k < count; k++) {
        const clusim_message *m = &im->messages[source->msg_lo + k];
        ends[k] = (message_end){m->dst, m->via_first, m->via_last, source->msg_lo + k};
    }
    qsort(ends, count, sizeof *ends, by_end);
    for (uint32_t k = 0; k < count; k++) {
        bool same = k > 0 && by_end(&ends[k - 1], &ends[k]) == 0;
        o->of_message[ends[k].message] =
            same ? o->of_message[ends[k - 1].message] : add_lines(o, 1, 1);
    }
    free(ends);
    return CLUSIM_OK;
}

static STATUS add_all(orders_part *o, const clusim_image *im) {
    o->num_lines = o->num_pairs = 0;
    for (uint32_t c = 0; c < im->num_conns; c++) {
        const clusim_conn *conn = &im->conns[c];
        uint32_t queues = (uint32_t)base_umax(1, conn->queue_hi - conn->queue_lo);
        if (!is_ordered(im, conn->spread)) continue;
        o->of_conn[c] = add_lines(o, conn->split ? 1 : queues, conn->split ? queues : 1);
    }
    for (uint32_t i = 0; i < im->num_sources; i++)
        if (is_ordered(im, im->sources[i].spread)) TRY(add_source(o, im, &im->sources[i]));
    return CLUSIM_OK;
}

STATUS lines_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    orders_part *o = &s->spreads.orders;
    if (!s->model->has_order) return CLUSIM_OK;
    ZEROED(o->counters, im->num_targets);
    ZEROED(o->kept, im->num_targets);
    ZEROED(o->timeout_at, im->num_targets);
    ZEROED(o->of_conn, im->num_conns);
    ZEROED(o->of_message, im->num_messages);
    ZEROED(o->turn, im->num_conns);
    ZEROED(o->starting, im->num_conns + im->num_sources);
    TRY(add_all(o, im));
    ZEROED(o->pairs, o->num_pairs);
    ZEROED(o->lines, o->num_lines);
    return add_all(o, im);
}

void lines_free(clusim_sim *s) {
    const orders_part *o = &s->spreads.orders;
    free(o->counters);
    free(o->kept);
    free(o->timeout_at);
    free(o->of_conn);
    free(o->of_message);
    free(o->turn);
    free(o->starting);
    for (uint32_t k = 0; o->pairs && k < o->num_pairs; k++) free(o->pairs[k].missing.items);
    for (uint32_t k = 0; o->lines && k < o->num_lines; k++) free(o->lines[k].backlog.items);
    free(o->pairs);
    free(o->lines);
}

/* The line of a new transfer: queue pairs of a connection take turns. */
static line_id take_line(clusim_sim *s, const xfer *x) {
    orders_part *o = &s->spreads.orders;
    if (x->owner_kind == OWNER_SOURCE) return o->of_message[x->message.i];
    const clusim_conn *c = &s->model->image.conns[x->conn.i];
    uint32_t queues = c->split ? 1 : c->queue_hi - c->queue_lo, turn = o->turn[x->conn.i];
    o->turn[x->conn.i] = turn + 1 < queues ? turn + 1 : 0;
    return ID(line, o->of_conn[x->conn.i].i + turn);
}

void lines_start(clusim_sim *s, xfer_id id, flow_id flow) {
    xfer *x = xfer_at(s, id);
    x->line = take_line(s, x);
    order_line *line = line_at(s, x->line);
    x->window = UINT32_MAX;
    s->spreads.orders.starting[flow.i] = id;
    x->refers = x->count + 1;
    x->repeats = line->repeats;
    x->later = NO(xfer);
    x->first = line->next;
    line->next += x->count;
    line->timeout_ps = s->model->image.spreads[x->spread].timeout_ps;
    s->spreads.orders.begun_bytes += x->bytes;
    if (xfer_none(line->newest)) {
        line->oldest = id;
    } else {
        xfer_at(s, line->newest)->later = id;
    }
    line->newest = id;
    for (uint32_t k = 0; k < line->pairs && k < x->count; k++) {
        order_pair *pair = pair_at(s, ID(pair, line->pair.i + k));
        pair->flow = flow;
        if (!xfer_none(pair->present)) continue;
        pair->present = id;
        pair->expected = x->first + k;
    }
}

pair_id lines_pair(const clusim_sim *s, const xfer *x, uint32_t number) {
    const order_line *line = line_at(s, x->line);
    return ID(pair, line->pair.i + number % line->pairs);
}

void lines_forget(clusim_sim *s, xfer_id x) {
    if (--xfer_at(s, x)->refers == 0 && xfer_at(s, x)->complete) pool_free_xfer(s, x);
}

STATUS lines_time(clusim_sim *s, pair_id id, int64_t at_ps) {
    order_pair *pair = pair_at(s, id);
    pair->timing = true;
    return scheduler_event(s, at_ps, EV_TIMEOUT, pair->flow.i, id.i);
}

STATUS lines_dropped(clusim_sim *s, const packet *p) {
    const xfer *x = xfer_at(s, p->xfer);
    pair_id id = lines_pair(s, x, p->number);
    const order_pair *pair = pair_at(s, id);
    int64_t timeout_ps = line_at(s, x->line)->timeout_ps;
    if (p->kind != CLUSIM_KIND_TRIMMED) s->spreads.orders.dropped_bytes += p->payload;
    lines_forget(s, p->xfer);
    return pair->timing ? CLUSIM_OK : lines_time(s, id, s->scheduler.now_ps + timeout_ps);
}
