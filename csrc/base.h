/* base.h - integer helpers and assertions used by every file of the engine. No state. */
#ifndef CLUSIM_BASE_H
#define CLUSIM_BASE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "clusim.h"
#include "ranges.h"

#define NONE CLUSIM_NONE
#define NEVER INT64_MAX

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define COLD __attribute__((noinline, cold))
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* An assertion that stays on in release builds: it guards against bugs of the engine, not of
 * users. */
#define CLUSIM_ASSERT(cond)                                                                        \
    do {                                                                                           \
        if (UNLIKELY(!(cond))) base_fail(#cond, __FILE__, __LINE__);                               \
    } while (0)

__attribute__((noreturn, cold)) static inline void base_fail(const char *cond, const char *file,
                                                             int line) {
    fprintf(stderr, "clusim: internal error at %s:%d: %s; please report\n", file, line, cond);
    abort();
}

/* Kinds without payload on the wire, as a bit set. */
#define KINDS_BARE                                                                                 \
    ((1u << CLUSIM_KIND_READ_REQ) | (1u << CLUSIM_KIND_RED_REQ) | (1u << CLUSIM_KIND_RED_FETCH) |  \
     (1u << CLUSIM_KIND_TRIMMED))

/* Kinds that end at a reduction unit, or may. */
#define KINDS_REDUCED                                                                              \
    ((1u << CLUSIM_KIND_RED_REQ) | (1u << CLUSIM_KIND_RED_DATA) | (1u << CLUSIM_KIND_AGG_UP))

/* Kinds that read the memory of the endpoint that injects them. */
#define KINDS_INJECTED                                                                             \
    ((1u << CLUSIM_KIND_WRITE) | (1u << CLUSIM_KIND_FETCH) | (1u << CLUSIM_KIND_MCAST) |           \
     (1u << CLUSIM_KIND_AGG_UP))

/* For functions that run several times per hop: always compiled into their callers. */
#define ALWAYS_INLINE __attribute__((always_inline)) static inline

/* Result of a function that may fail: CLUSIM_OK or an error; the caller must check it. An action
 * that fails for lack of memory may be half done: the sim can then only be destroyed. */
#define STATUS __attribute__((warn_unused_result)) enum clusim_status

/* Return the error, if any, to the caller. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        enum clusim_status status_ = (call);                                                       \
        if (UNLIKELY(status_ != CLUSIM_OK)) return status_;                                        \
    } while (0)

typedef unsigned __int128 base_u128;

static inline uint64_t base_ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
static inline int64_t base_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t base_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline uint64_t base_umin(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t base_umax(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The hash of the fingerprint and of replay errors (contract, section 12). */
static inline uint64_t base_mix(uint64_t a, uint64_t b) {
    uint64_t x = a + UINT64_C(0x9E3779B97F4A7C15) + b * UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 30;
    x *= UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 27;
    x *= UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static inline uint32_t base_hash32(uint64_t seed, uint64_t wire, uint64_t n) {
    return (uint32_t)(base_mix(base_mix(seed, wire), n) >> 32);
}

#endif
