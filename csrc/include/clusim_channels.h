/* clusim_channels.h - channels inside a node: one attempt of NCCL's graph search.
 * clusim/engine/channels.py fills these structs; cffi reads the text between the markers.
 *
 * Numbers of devices: GPUs, NICs, then the switch. Rates are in [GB/s], path types and
 * patterns as in clusim/nccl/constants.py. */
#ifndef CLUSIM_CHANNELS_H
#define CLUSIM_CHANNELS_H
#include <stdint.h>

/* cdef: begin */

enum clusim_channels_pattern {
    CLUSIM_CHANNELS_BALANCED_TREE = 1,
    CLUSIM_CHANNELS_SPLIT_TREE = 2,
    CLUSIM_CHANNELS_TREE = 3,
    CLUSIM_CHANNELS_RING = 4,
    CLUSIM_CHANNELS_NVLS = 5,
    CLUSIM_CHANNELS_COLLNET_DIRECT = 6,
};

/* A link of a path. */
typedef struct clusim_channels_link {
    int32_t number;
    int32_t back;   /* the opposite link if it is charged an eighth, or -1 */
    int32_t is_pci; /* charged at the rate of peer traffic, on narrow paths */
} clusim_channels_link;

/* The path between two devices. */
typedef struct clusim_channels_path {
    int32_t first, hops; /* rows of `links`; hops is -1 without a path */
    int32_t type;
    int32_t is_narrow; /* peer traffic through a root complex with small packets */
} clusim_channels_path;

/* A GPU to try next. */
typedef struct clusim_channels_choice {
    int32_t gpu;
    int32_t alike; /* equal for paths of equal rate and length */
} clusim_channels_choice;

typedef struct clusim_channels_net {
    float rate;
    float latency_us;
    float widest; /* rate of its widest path to a GPU */
    int32_t port; /* NICs with the same number share a port */
    int32_t head; /* GPU that it is local to, or -1 */
    int32_t is_collective;
} clusim_channels_net;

/* A node. */
typedef struct clusim_channels_node {
    const float *link_rates;           /* [num_links] */
    const clusim_channels_path *paths; /* [num_devices][num_devices], from and to */
    const clusim_channels_link *links;
    const clusim_channels_net *nets; /* [num_nets] */
    const uint8_t *starts;           /* [num_nets][num_gpus]: 1 for GPUs with the best path */
    const int32_t *nets_first;       /* [num_gpus + 2]: rows of nets_to_try; of all GPUs first */
    const int32_t *nets_to_try;
    const int32_t *choices_first;          /* [num_gpus * (num_nets + 1) + 1], without NIC first */
    const clusim_channels_choice *choices; /* only without a switch */
    int32_t num_gpus, num_nets, num_links;
    int32_t has_switch;
} clusim_channels_node;

/* Conditions of an attempt. */
typedef struct clusim_channels_conditions {
    float intra, inter;             /* rate of a channel inside the node, and to the network */
    float peer_times, peer_over;    /* rate on narrow paths: times the one over the other */
    int32_t pattern;                /* clusim_channels_pattern */
    int32_t type_intra, type_inter; /* longest allowed path types */
    int32_t same;                   /* all channels in the order of the first */
    int32_t cross;          /* rule for NICs: 0 the same port, 1 any, 2 in pairs of channels */
    int32_t least, most;    /* channels */
    int32_t collective;     /* only NICs whose network reduces */
    int32_t first_net_only; /* heads start at one NIC */
    int32_t penalises_crossing;
    int32_t compares_heads; /* NVLS: bandwidth decides */
} clusim_channels_conditions;

/* The best channels, before and after an attempt. */
typedef struct clusim_channels_best {
    int32_t *orders; /* [most][num_gpus]; of heads, only the first of a row is set */
    int32_t *ends;   /* [most][2]: NICs that a channel enters and leaves by */
    float intra, inter;
    float latency_us;
    int32_t pattern, cross, num_channels, hops;
    int32_t improved; /* set if the attempt found better channels */
    int32_t steps;    /* left: before, and after; -1: the largest number of channels was found */
} clusim_channels_best;

/* Build channels, depth first. Returns CLUSIM_OK or CLUSIM_ERR_NO_MEMORY. */
int clusim_channels_attempt(const clusim_channels_node *node,
                            const clusim_channels_conditions *conditions,
                            clusim_channels_best *best);

/* cdef: end */
#endif
