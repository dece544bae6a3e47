#include "result.h"

#include "grow.h"

void result_free(clusim_sim *s) {
    free(s->results.records);
    free(s->results.final);
    free(s->results.final_mem_256);
}

STATUS result_record(clusim_sim *s, clusim_record record) {
    results_part *r = &s->results;
    if (!r->keep_records) return CLUSIM_OK;
    if (UNLIKELY(r->num_records == r->record_size)) GROW(r->records, r->record_size);
    r->records[r->num_records++] = record;
    return CLUSIM_OK;
}
