/* parts/results.h - outputs of a run: records, fingerprint, final counters. */
#ifndef CLUSIM_PARTS_RESULTS_H
#define CLUSIM_PARTS_RESULTS_H

#include "base.h"

typedef struct results_part {
    clusim_record *records; /* owned; not yet taken */
    uint32_t num_records, record_size;
    uint64_t fingerprint;
    clusim_wire_counters *final; /* owned; counters at the end of the run */
    uint64_t *final_mem_256;     /* owned; likewise */
    bool keep_records, finished, draining;
    enum clusim_status ended; /* if not CLUSIM_OK: error of the run, which cannot continue */
} results_part;

#endif
