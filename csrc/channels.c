/* channels.c - one attempt of the graph search: channels over the GPUs and NICs of a node.
 *
 * Hardware  Host software: the search runs when a communicator is created.
 * Model     One channel after the other, depth first: from a NIC or a GPU over all GPUs, and back.
 *           A step reserves its rate on the links of a path; backtracking releases it. The order
 *           of the choices and the limit on steps select among many equal results; both are
 *           NCCL's (src/graph/search.cc). Frames on an explicit stack replace recursion, whose
 *           depth would be the GPUs of all channels.
 * Not modelled  Files with channels (NCCL_GRAPH_FILE). */
#include <string.h>

#include "channels_links.h"

#define FIRST_STEPS (1 << 10) /* of the order of the bus, which costs no time */

/* ------------------------------------------------------------------------------------ frames */

static frame *push(search *s, enum where where) {
    frame *f = &s->stack[s->depth++];
    *f = (frame){.where = (uint8_t)where, .gpu = NOTHING, .from = NOTHING, .to = NOTHING};
    return f;
}

/* Frame of a walk that has reached a GPU. */
static enum where after_gpu(const search *s, const frame *f) {
    int32_t count = s->node->num_gpus;
    if (f->step == f->to_net) return LEAVING;
    if (is_heads(s)) return AT_HEAD;
    if (f->step < count - 1) return AT_GPU;
    return f->step == f->to_first ? CLOSING : ENDING;
}

static bool is_better(const search *s) {
    const clusim_channels_best *best = s->best;
    int32_t count = s->channels;
    if (count < s->is->least) return false;
    if (s->is->pattern == CLUSIM_CHANNELS_NVLS) {
        if (count > best->num_channels && count <= s->node->num_gpus) return true;
        return s->is->compares_heads &&
               (float)count * s->is->inter > (float)best->num_channels * best->inter;
    }
    double target = 1.0;
    if (s->is->penalises_crossing) target -= (best->cross - s->is->cross) * 0.15;
    double mine = (double)count * (double)s->is->intra;
    double theirs = (double)best->num_channels * (double)best->intra * target;
    if (mine < theirs || mine > theirs) return mine > theirs;
    return s->is->pattern == best->pattern && s->is->cross == best->cross && s->hops < best->hops;
}

static void keep(search *s) {
    clusim_channels_best *best = s->best;
    size_t row = (size_t)s->channels;
    memcpy(best->orders, s->orders, row * (size_t)s->node->num_gpus * sizeof *s->orders);
    memcpy(best->ends, s->ends, row * 2 * sizeof *s->ends);
    best->intra = s->is->intra;
    best->inter = s->is->inter;
    best->latency_us = s->latency_us;
    best->pattern = s->is->pattern;
    best->cross = s->is->cross;
    best->num_channels = s->channels;
    best->hops = s->hops;
    best->improved = 1;
}

/* Count a complete channel. */
static void complete(search *s) {
    s->channels++;
    push(s, COMPLETE);
    if (!is_better(s)) return;
    keep(s);
    if (s->channels == s->is->most) s->steps = -1;
}

/* Continue from a GPU that the walk has reached. */
static void arrive(search *s, const frame *to) {
    if (s->steps <= 0) return;
    s->steps--;
    if (to->step == s->node->num_gpus) {
        complete(s);
        return;
    }
    order_of(s, s->channels)[to->step] = to->gpu;
    frame *f = push(s, after_gpu(s, to));
    f->gpu = to->gpu;
    f->step = to->step;
    f->to_net = to->to_net;
    f->to_first = to->to_first;
    f->order = to->order;
    f->end = ends_of(s, s->channels)[1];
}

/* Extend the walk from a device, or start it, at a GPU; false if the path is not free. */
static bool enter(search *s, frame *f, int32_t from, const frame *to) {
    if (from != NOTHING && !go(s, from, to->gpu, 1)) return false;
    f->holds = true;
    f->from = from;
    f->to = to->gpu;
    used_now(s)[to->gpu] = 1;
    arrive(s, to);
    return true;
}

/* Release the reservation of `enter`. */
static void retreat(search *s, frame *f) {
    f->holds = false;
    used_now(s)[f->to] = 0;
    if (f->from != NOTHING) undo(s, f->from, f->to, 1);
}

/* The first GPU of a channel. */
static frame first_gpu(const search *s, int32_t gpu, enum order order) {
    return (frame){
        .gpu = gpu, .to_net = s->to_net, .to_first = s->to_first, .order = (uint8_t)order};
}

/* ------------------------------------------------------------------------------------ choices */

/* Without a network a channel starts at a GPU: in the order of the bus or of the previous channel,
 * then at every GPU. */
static bool from_gpus(search *s, frame *f) {
    int32_t count = s->node->num_gpus, first = s->channels == 0;
    if (s->is->pattern == CLUSIM_CHANNELS_NVLS) {
        if (f->next++) return false;
        frame to = first_gpu(s, s->channels, ORDER_FREE);
        return enter(s, f, NOTHING, &to);
    }
    int32_t choices = !s->is->same || first ? count + 1 : 1;
    if (f->next >= choices) return false;
    int32_t choice = f->next++;
    frame to = first_gpu(s, choice - 1, ORDER_FREE);
    if (choice == 0) {
        to.gpu = first ? 0 : order_of(s, s->channels - 1)[0];
        to.order = first ? ORDER_BUS : ORDER_BEFORE;
    }
    return enter(s, f, NOTHING, &to);
}

static bool may_start_at(search *s, int32_t net) {
    if (s->is->collective && !s->node->nets[net].is_collective) return false;
    if (s->net_left[net] < (float)(int32_t)s->is->inter) return false;
    bool paired = s->is->pattern == CLUSIM_CHANNELS_RING && s->is->cross == 2;
    return !(paired && s->channels & 1) || net == ends_of(s, s->channels - 1)[1];
}

/* Charge a rate to all NICs on the port of a NIC; release it if negative. */
static void charge_port(search *s, int32_t net, float rate) {
    for (int32_t i = 0; i < s->node->num_nets; i++)
        if (s->node->nets[i].port == s->node->nets[net].port) s->net_left[i] -= rate;
}

/* With a network a channel starts at a NIC. */
static bool from_nets(search *s, frame *f) {
    const int32_t *nets = s->node->nets_to_try;
    int32_t count = s->node->nets_first[1];
    while (f->next < count) {
        int32_t choice = f->next++;
        if (is_heads(s) && choice && s->is->first_net_only) return false;
        int32_t net = nets[(s->channels + choice) % count];
        if (!may_start_at(s, net)) continue;
        int32_t *ends = ends_of(s, s->channels);
        ends[0] = ends[1] = f->from = net;
        s->latency_us = s->node->nets[net].latency_us;
        charge_port(s, net, (float)(int32_t)s->is->inter);
        f->holds = true;
        push(s, FROM_NET)->end = net;
        return true;
    }
    return false;
}

/* The head of a channel is the GPU that its NIC is local to; each GPU heads one channel. */
static bool to_head(search *s, frame *f) {
    const clusim_channels_node *n = s->node;
    int32_t net = f->end, head = n->nets[net].head;
    if (f->next++ || s->channels >= n->nets_first[1] || head < 0) return false;
    for (int32_t c = 0; c < s->channels; c++)
        if (order_of(s, c)[0] == head) return false;
    frame to = first_gpu(s, head, ORDER_FREE);
    return enter(s, f, n->num_gpus + net, &to);
}

/* From its NIC a channel enters the GPUs with the best path; the first channel tries the order of
 * the bus before. */
static bool to_starts(search *s, frame *f) {
    const clusim_channels_node *n = s->node;
    int32_t net = f->end, count = n->num_gpus;
    if (f->next == 0) {
        f->next = 1;
        if (s->channels == 0 && !n->has_switch) {
            f->starts = true;
            f->saved = s->steps;
            s->steps = FIRST_STEPS;
            frame to = first_gpu(s, 0, ORDER_BUS);
            if (enter(s, f, count + net, &to)) return true;
            f->starts = false;
            s->steps = f->saved;
        }
    }
    if (n->nets[net].widest < (float)(int32_t)s->is->inter) return false;
    while (f->next <= count) {
        int32_t gpu = (s->channels + f->next++ - 1) % count;
        if (!n->starts[net * count + gpu]) continue;
        frame to = first_gpu(s, gpu, ORDER_FREE);
        if (enter(s, f, count + net, &to)) return true;
    }
    return false;
}

static bool from_net(search *s, frame *f) {
    if (is_heads(s)) return to_head(s, f);
    if (!(s->channels && s->is->same)) return to_starts(s, f);
    if (f->next++) return false;
    frame to = first_gpu(s, order_of(s, s->channels - 1)[0], ORDER_BEFORE);
    return enter(s, f, s->node->num_gpus + f->end, &to);
}

/* Candidates on a switch, where all GPUs are equal: the next and the previous GPU. */
static int32_t neighbour(const search *s, const frame *f, int32_t choice) {
    int32_t count = s->node->num_gpus, pattern = s->is->pattern;
    int32_t after = (f->gpu + 1) % count, before = (f->gpu + count - 1) % count;
    if (pattern == CLUSIM_CHANNELS_TREE) return choice ? NOTHING : after;
    if (choice && after == before) return NOTHING;
    return (pattern == CLUSIM_CHANNELS_RING) == (choice == 0) ? before : after;
}

static bool to_neighbour(search *s, frame *f, frame *to) {
    while (f->next < 2) {
        to->gpu = neighbour(s, f, f->next++);
        if (to->gpu == NOTHING || used_now(s)[to->gpu]) continue;
        if (path_between(s, f->gpu, to->gpu)->hops > 0 && enter(s, f, f->gpu, to)) return true;
    }
    return false;
}

/* Try GPUs by rate and length of the path, in reverse if all are equal and a NIC was passed. */
static bool to_ranked(search *s, frame *f, frame *to) {
    const clusim_channels_node *n = s->node;
    int32_t net = f->to_net == NOTHING || !n->num_nets ? 0 : ends_of(s, s->channels)[0] + 1;
    const int32_t *bounds = n->choices_first + f->gpu * (n->num_nets + 1) + net;
    int32_t first = bounds[0], end = bounds[1], alike = NOTHING;
    bool backward = f->to_net != NOTHING && f->to_net != to->step;
    for (int32_t i = first; backward && i < end; i++) {
        if (used_now(s)[n->choices[i].gpu]) continue;
        backward = alike == NOTHING || alike == n->choices[i].alike;
        alike = n->choices[i].alike;
    }
    while (f->next < end - first) {
        int32_t choice = f->next++;
        to->gpu = n->choices[backward ? end - 1 - choice : first + choice].gpu;
        if (!used_now(s)[to->gpu] && enter(s, f, f->gpu, to)) return true;
    }
    return false;
}

/* From a GPU to the next one. */
static bool to_gpu(search *s, frame *f) {
    frame to = *f;
    to.step = f->step + 1;
    if (f->order == ORDER_FREE)
        return s->node->has_switch ? to_neighbour(s, f, &to) : to_ranked(s, f, &to);
    if (f->next++) return false;
    to.gpu = f->order == ORDER_BUS ? to.step : order_of(s, s->channels - 1)[to.step];
    return !used_now(s)[to.gpu] && enter(s, f, f->gpu, &to);
}

static bool may_leave_by(search *s, const frame *f, int32_t net) {
    const clusim_channels_net *nets = s->node->nets;
    int32_t pattern = s->is->pattern, start = ends_of(s, s->channels)[0];
    if (pattern == CLUSIM_CHANNELS_TREE && net != start) return false;
    if (pattern == CLUSIM_CHANNELS_RING && s->is->cross == 2) {
        if (s->channels & 1 && net != ends_of(s, s->channels - 1)[0]) return false;
    } else if (s->is->cross == 0 && nets[net].port != nets[start].port) {
        return false;
    }
    return pattern != CLUSIM_CHANNELS_BALANCED_TREE || f->step == 0 || net == f->end;
}

/* From a GPU to a NIC; the walk continues at the GPU. */
static bool leave(search *s, frame *f) {
    const clusim_channels_node *n = s->node;
    const int32_t *bounds = n->nets_first + 1 + f->gpu;
    /* Each of the first two GPUs of a balanced tree has half of the traffic. */
    bool balanced = s->is->pattern == CLUSIM_CHANNELS_BALANCED_TREE;
    while (f->next < bounds[1] - bounds[0]) {
        int32_t net = n->nets_to_try[bounds[0] + f->next++];
        if (!may_leave_by(s, f, net)) continue;
        if (!go(s, f->gpu, n->num_gpus + net, balanced ? 0.5F : 1)) continue;
        f->holds = true;
        f->from = f->gpu;
        f->to = n->num_gpus + net;
        ends_of(s, s->channels)[1] = net;
        frame to = *f;
        to.to_net = balanced && f->step == 0 ? 1 : NOTHING;
        arrive(s, &to);
        return true;
    }
    return false;
}

/* From the last GPU of a ring to the first. */
static bool close_ring(search *s, frame *f) {
    if (f->next++) return false;
    frame to = *f;
    to.gpu = order_of(s, s->channels)[0];
    to.step = f->step + 1;
    to.to_first = NOTHING;
    if (to.gpu != f->gpu) {
        if (!go(s, f->gpu, to.gpu, 1)) return false;
        f->holds = true;
        f->from = f->gpu;
        f->to = to.gpu;
    }
    arrive(s, &to);
    return true;
}

/* Path number `i` of a head. NVLS: from and to the switch for each GPU, twice for the head;
 * CollNetDirect: to and from each other GPU. Returns the number of paths. */
static int32_t path_of_head(const search *s, const frame *f, int32_t i, frame *path) {
    int32_t count = s->node->num_gpus, hub = f->gpu, gpu = i % count;
    if (s->is->pattern == CLUSIM_CHANNELS_NVLS) hub = count + s->node->num_nets;
    path->from = i < count ? hub : gpu;
    path->to = i < count ? gpu : hub;
    path->holds = path->from != path->to;
    path->step = s->is->pattern == CLUSIM_CHANNELS_NVLS && gpu == f->gpu ? 2 : 1;
    return 2 * count;
}

static void undo_head(search *s, const frame *f, int32_t end) {
    frame path;
    for (int32_t i = end; i-- > 0;) {
        path_of_head(s, f, i, &path);
        if (path.holds) undo(s, path.from, path.to, (float)path.step);
    }
}

static bool through_switch(search *s, frame *f) {
    frame path;
    if (f->next++ || (s->is->pattern == CLUSIM_CHANNELS_NVLS && !s->node->has_switch)) return false;
    for (int32_t i = 0; i < path_of_head(s, f, i, &path); i++) {
        if (path.holds && !go(s, path.from, path.to, (float)path.step)) {
            undo_head(s, f, i);
            return false;
        }
    }
    f->holds = true;
    frame to = *f;
    to.step = s->node->num_gpus;
    arrive(s, &to);
    return true;
}

/* After a complete channel: start the next one, up to `most`. */
static bool next_channel(search *s, frame *f) {
    if (f->next++ == 0 && s->channels < s->is->most) {
        memset(used_now(s), 0, (size_t)s->node->num_gpus);
        push(s, s->node->num_nets ? AT_NET : AT_CHANNEL);
        return true;
    }
    s->channels--;
    return false;
}

static bool finish(search *s, frame *f) {
    if (f->next++) return false;
    frame to = *f;
    to.step = s->node->num_gpus;
    to.to_net = to.to_first = NOTHING;
    arrive(s, &to);
    return true;
}

/* ------------------------------------------------------------------------------------ search */

/* Undo the present choice of a frame. */
static void undo_choice(search *s, frame *f) {
    if (f->starts) {
        s->steps = s->steps == -1 ? -1 : f->saved;
        f->starts = false;
    }
    if (!f->holds) return;
    f->holds = false;
    switch ((enum where)f->where) {
        case AT_NET: charge_port(s, f->from, -(float)(int32_t)s->is->inter); break;
        case LEAVING:
            ends_of(s, s->channels)[1] = f->end;
            undo(s, f->from, f->to, s->is->pattern == CLUSIM_CHANNELS_BALANCED_TREE ? 0.5F : 1);
            break;
        case CLOSING: undo(s, f->from, f->to, 1); break;
        case AT_HEAD: undo_head(s, f, 2 * s->node->num_gpus); break;
        default: retreat(s, f);
    }
}

/* Try the next choice of a frame; false after the last. */
static bool advance(search *s, frame *f) {
    switch ((enum where)f->where) {
        case AT_CHANNEL: return from_gpus(s, f);
        case AT_NET: return from_nets(s, f);
        case FROM_NET: return from_net(s, f);
        case AT_GPU: return to_gpu(s, f);
        case LEAVING: return leave(s, f);
        case CLOSING: return close_ring(s, f);
        case AT_HEAD: return through_switch(s, f);
        case COMPLETE: return next_channel(s, f);
        default: return finish(s, f);
    }
}

static void run(search *s) {
    push(s, s->node->num_nets ? AT_NET : AT_CHANNEL);
    while (s->depth) {
        frame *f = &s->stack[s->depth - 1];
        uint32_t depth = s->depth;
        undo_choice(s, f);
        if (!advance(s, f)) s->depth = depth - 1;
    }
    s->best->steps = s->steps;
}

static void destroy(search *s) {
    free(s->left);
    free(s->net_left);
    free(s->orders);
    free(s->ends);
    free(s->used);
    free(s->stack);
}

static bool create(search *s) {
    const clusim_channels_node *n = s->node;
    size_t rows = (size_t)s->is->most + 1, gpus = (size_t)n->num_gpus;
    s->left = malloc(((size_t)n->num_links + 1) * sizeof *s->left);
    s->net_left = malloc(((size_t)n->num_nets + 1) * sizeof *s->net_left);
    s->orders = calloc(rows * gpus, sizeof *s->orders);
    s->ends = calloc(rows * 2, sizeof *s->ends);
    s->used = calloc(rows * gpus, sizeof *s->used);
    /* Per channel: start, NIC, complete; per GPU itself and the NICs that it leaves by. */
    s->stack = malloc(rows * (gpus + 8) * sizeof *s->stack);
    if (!s->left || !s->net_left || !s->orders || !s->ends || !s->used || !s->stack) return false;
    memcpy(s->left, n->link_rates, (size_t)n->num_links * sizeof *s->left);
    for (int32_t i = 0; i < n->num_nets; i++) s->net_left[i] = n->nets[i].rate;
    return true;
}

int clusim_channels_attempt(const clusim_channels_node *node,
                            const clusim_channels_conditions *conditions,
                            clusim_channels_best *best) {
    search s = {.node = node, .is = conditions, .best = best, .steps = best->steps};
    int32_t last = node->num_gpus - 1, pattern = conditions->pattern;
    s.to_net = s.to_first = NOTHING;
    if (node->num_nets) {
        s.to_net = pattern == CLUSIM_CHANNELS_RING         ? last
                   : pattern == CLUSIM_CHANNELS_SPLIT_TREE ? 1
                                                           : 0;
    } else if (pattern == CLUSIM_CHANNELS_RING) {
        s.to_first = last;
    }
    best->improved = 0;
    bool ready = create(&s);
    if (ready) run(&s);
    destroy(&s);
    return ready ? CLUSIM_OK : CLUSIM_ERR_NO_MEMORY;
}
