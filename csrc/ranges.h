/* ranges.h - legal ranges of what the engine computes with. Written from clusim/ranges.py. */
#ifndef CLUSIM_RANGES_H
#define CLUSIM_RANGES_H

#include <stdint.h>

#define RANGE_TIME_END ((int64_t)1 << 62)        /* no time of a run reaches this [ps] */
#define RANGE_DURATION_END ((int64_t)1 << 61)    /* durations and starts in an image [ps] */
#define RANGE_PACKETS_END (UINT64_C(1) << 32)    /* packets or bursts of a transfer */
#define RANGE_WIRE_BYTES_END (UINT64_C(1) << 29) /* a packet or burst on a wire [bytes] */
#define RANGE_OFFSET_END (UINT64_C(1) << 62)     /* places of chunks in a buffer [bytes] */
#define RANGE_SLICES_END (UINT64_C(1) << 32)     /* slices of an instance */
#define RANGE_OWED_256_END (UINT64_C(1) << 62)   /* control bytes owed by a wire [1/256 byte] */

#endif
