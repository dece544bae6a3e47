/* result.h - completions in the fingerprint and the records. */
#ifndef CLUSIM_RESULT_H
#define CLUSIM_RESULT_H

#include "parts/results.h"
#include "state.h"

void result_free(clusim_sim *s);

static inline void result_hash(clusim_sim *s, uint64_t what, int64_t time, uint64_t who,
                               uint64_t which) {
    s->results.fingerprint += base_mix(base_mix(base_mix(what, (uint64_t)time), who), which);
}

/* Keep the record of a slice, if records are kept. */
STATUS result_record(clusim_sim *s, clusim_record record);

#endif
