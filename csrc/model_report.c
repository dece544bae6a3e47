/* model_report.c - errors of an image: table, row and message. */
#include "model.h"

STATUS model_refuse(clusim_error *e, uint64_t row, const char *table, const char *what) {
    e->status = CLUSIM_ERR_BAD_IMAGE;
    e->index = (uint32_t)row;
    snprintf(e->message, sizeof e->message, "%s[%llu]: %s", table, (unsigned long long)row, what);
    return CLUSIM_ERR_BAD_IMAGE;
}

STATUS model_no_memory(clusim_error *e) {
    e->status = CLUSIM_ERR_NO_MEMORY;
    snprintf(e->message, sizeof e->message, "out of memory");
    return CLUSIM_ERR_NO_MEMORY;
}

STATUS model_check_tables(const clusim_image *im, const model_table *tables, size_t count,
                          clusim_error *e) {
    for (size_t t = 0; t < count; t++) {
        for (uint64_t row = 0; row < tables[t].rows; row++) {
            const char *wrong = tables[t].check(im, row);
            if (wrong) return model_refuse(e, row, tables[t].name, wrong);
        }
    }
    return CLUSIM_OK;
}
