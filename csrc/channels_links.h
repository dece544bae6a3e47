/* channels_links.h - state of a search for channels, and reservations on the links of a node. */
#ifndef CLUSIM_CHANNELS_LINKS_H
#define CLUSIM_CHANNELS_LINKS_H

#include <math.h>

#include "base.h"
#include "clusim_channels.h"

#define NOTHING (-1)

enum where { AT_CHANNEL, AT_NET, FROM_NET, AT_GPU, LEAVING, CLOSING, ENDING, AT_HEAD, COMPLETE };
enum order { ORDER_FREE, ORDER_BUS, ORDER_BEFORE };

/* A choice of the search. */
typedef struct frame {
    uint8_t where, order;
    bool holds;  /* the present choice has reserved its path, or the ports of a NIC */
    bool starts; /* the present choice has separate steps */
    int32_t gpu, step, to_net, to_first;
    int32_t next;     /* choice to try next */
    int32_t from, to; /* devices of the path that is reserved */
    int32_t end;      /* the NIC by which the channel left before */
    int32_t saved;    /* steps of the attempt, during a choice with separate steps */
} frame;

typedef struct search {
    const clusim_channels_node *node;
    const clusim_channels_conditions *is;
    clusim_channels_best *best;
    float *left;     /* owned, [num_links]: free rate */
    float *net_left; /* owned, [num_nets] */
    int32_t *orders; /* owned, [most + 1][num_gpus] */
    int32_t *ends;   /* owned, [most + 1][2] */
    uint8_t *used;   /* owned, [most + 1][num_gpus] */
    frame *stack;    /* owned */
    uint32_t depth;
    int32_t channels; /* complete ones */
    int32_t hops;
    int32_t steps; /* left */
    int32_t to_net, to_first;
    float latency_us;
} search;

static inline bool is_heads(const search *s) {
    return s->is->pattern == CLUSIM_CHANNELS_NVLS ||
           s->is->pattern == CLUSIM_CHANNELS_COLLNET_DIRECT;
}

static inline bool is_tree(const search *s) { return s->is->pattern <= CLUSIM_CHANNELS_TREE; }

static inline int32_t *order_of(search *s, int32_t channel) {
    return s->orders + channel * s->node->num_gpus;
}

static inline int32_t *ends_of(search *s, int32_t channel) { return s->ends + 2 * channel; }

static inline uint8_t *used_now(search *s) { return s->used + s->channels * s->node->num_gpus; }

static inline const clusim_channels_path *path_between(const search *s, int32_t from, int32_t to) {
    const clusim_channels_node *n = s->node;
    return n->paths + from * (n->num_gpus + n->num_nets + n->has_switch) + to;
}

static inline bool is_net(const search *s, int32_t device) {
    return device >= s->node->num_gpus && device < s->node->num_gpus + s->node->num_nets;
}

/* ------------------------------------------------------------------------------------ links */

/* Rates have three decimals: reserving and releasing does not drift. */
static inline float rounded(float rate) { return roundf(rate * 1000) / 1000; }

/* Peer traffic in small packets needs more of PCIe than its rate. */
static inline float rate_on(const search *s, const clusim_channels_path *path,
                            const clusim_channels_link *link, float rate) {
    bool more = link->is_pci && path->is_narrow;
    return more ? rate * s->is->peer_times / s->is->peer_over : rate;
}

/* Release `rate` on the first `count` links of a path. */
static inline void release(search *s, const clusim_channels_path *path, int32_t count, float rate) {
    for (int32_t i = 0; i < count; i++) {
        const clusim_channels_link *link = s->node->links + path->first + i;
        float forward = rate_on(s, path, link, rate);
        s->left[link->number] = rounded(s->left[link->number] + forward);
        if (link->back >= 0) s->left[link->back] = rounded(s->left[link->back] + forward / 8);
    }
}

/* Reserve `rate` on all links of a path; on failure, the links are unchanged. */
static inline bool reserve(search *s, const clusim_channels_path *path, float rate) {
    for (int32_t i = 0; i < path->hops; i++) {
        const clusim_channels_link *link = s->node->links + path->first + i;
        float forward = rate_on(s, path, link, rate);
        if (s->left[link->number] < forward ||
            (link->back >= 0 && s->left[link->back] < forward / 8)) {
            release(s, path, i, rate);
            return false;
        }
        s->left[link->number] = rounded(s->left[link->number] - forward);
        if (link->back >= 0) s->left[link->back] = rounded(s->left[link->back] - forward / 8);
    }
    return true;
}

static inline float rate_between(const search *s, int32_t from, int32_t to) {
    return is_net(s, from) || is_net(s, to) ? s->is->inter : s->is->intra;
}

/* Reserve `share` of a channel on the path between two devices, if it is allowed and free. */
static inline bool go(search *s, int32_t from, int32_t to, float share) {
    const clusim_channels_path *path = path_between(s, from, to);
    int32_t longest = is_net(s, from) || is_net(s, to) ? s->is->type_inter : s->is->type_intra;
    if (path->hops < 0 || (share <= 1 && path->type > longest)) return false;
    if (share <= 1 && is_tree(s)) {
        const clusim_channels_path *back = path_between(s, to, from);
        if (back->hops < 0 || back->type > longest) return false;
    }
    if (!reserve(s, path, rate_between(s, from, to) * share)) return false;
    s->hops += path->hops * (share <= 1 ? 1 : (int32_t)share);
    return true;
}

static inline void undo(search *s, int32_t from, int32_t to, float share) {
    const clusim_channels_path *path = path_between(s, from, to);
    release(s, path, path->hops, rate_between(s, from, to) * share);
    s->hops -= path->hops * (share <= 1 ? 1 : (int32_t)share);
}

#endif
