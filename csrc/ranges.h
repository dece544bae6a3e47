/* ranges.h - legal ranges of what the engine computes with. Written from clusim/ranges.py. */
#ifndef CLUSIM_RANGES_H
#define CLUSIM_RANGES_H

#include <stdint.h>

#define RANGE_TIME_END ((int64_t)1 << 62)     /* no time of a run reaches this [ps] */
#define RANGE_DURATION_END ((int64_t)1 << 61) /* durations and starts in an image [ps] */
#define RANGE_PACKETS_END (UINT64_C(1) << 32) /* packets or bursts of a transfer */

#endif
