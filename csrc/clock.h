/* clock.h - the clock of a server that processes bytes: integer ps and a fraction in 2^-16 ps.
 *
 * Two fields, so that it has the range of every other time: 2^62 ps in units of 2^-16 ps need 78
 * bits. A clock never passes RANGE_TIME_END, where any further request ends the run. */
#ifndef CLUSIM_CLOCK_H
#define CLUSIM_CLOCK_H

#include "base.h"

typedef struct clock16 {
    int64_t ps;
    uint32_t fraction16; /* below 2^16 */
} clock16;

/* max(clock, now << 16) of the contract. */
static inline void clock_reach(clock16 *c, int64_t now_ps) {
    if (c->ps >= now_ps) return;
    c->ps = now_ps;
    c->fraction16 = 0;
}

/* The clock rounded up to an integer ps. */
static inline int64_t clock_read(const clock16 *c) { return c->ps + (c->fraction16 != 0); }

/* Advance by work in 2^-16 ps; exact up to the end of time. */
static inline void clock_pass_long(clock16 *c, base_u128 work16) {
    work16 += c->fraction16;
    base_u128 ps = (base_u128)(uint64_t)c->ps + (work16 >> 16);
    bool beyond = ps >= (base_u128)RANGE_TIME_END;
    c->ps = beyond ? RANGE_TIME_END : (int64_t)(uint64_t)ps;
    c->fraction16 = beyond ? 0 : (uint32_t)work16 & 65535;
}

#endif
