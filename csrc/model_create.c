/* model_create.c - a model of an image: checked in order, copied, and completed by derived tables.
 */
#include "model.h"

#include <string.h>

const char *clusim_version(void) { return CLUSIM_VERSION; }

static STATUS check(const clusim_image *im, clusim_error *e, bool *has_relays) {
    enum clusim_status status = model_check_ranges(im, e);
    if (status == CLUSIM_OK) status = model_check_fabric(im, e);
    if (status == CLUSIM_OK) status = model_check_routes(im, e, has_relays);
    if (status == CLUSIM_OK) status = model_check_work(im, e);
    if (status == CLUSIM_OK) status = model_check_sizes(im, e);
    if (status == CLUSIM_OK) status = model_check_bounds(im, e);
    return status == CLUSIM_OK ? model_check_ways(im, e, has_relays) : status;
}

/* ---- copying ------------------------------------------------------------------------------- */

/* Replace *array by an owned copy; an empty array becomes NULL and is never indexed. */
static STATUS own(const void *array, uint64_t count, size_t size) {
    const void **slot = (const void **)(uintptr_t)array;
    void *copy = malloc(count ? count * size : 1);
    if (copy == NULL) {
        *slot = NULL;
        return CLUSIM_ERR_NO_MEMORY;
    }
    if (count) memcpy(copy, *slot, count * size);
    *slot = copy;
    return CLUSIM_OK;
}

/* Every pointer becomes owned or NULL, even on failure, before the model is destroyed. */
static STATUS copy_arrays(clusim_image *im) {
    enum clusim_status status = CLUSIM_OK;
#define OWN(table, least, most)                                                                    \
    if (own(&im->table, im->num_##table, sizeof *im->table) != CLUSIM_OK)                          \
        status = CLUSIM_ERR_NO_MEMORY;
    RANGE_TABLES(OWN)
    return status;
}

static void free_arrays(clusim_image *im) {
#define FREE(table, least, most) free((void *)(uintptr_t)im->table);
    RANGE_TABLES(FREE)
}

/* ---- a model ---- */

int clusim_model_create(const clusim_image *image, clusim_model **out, clusim_error *error) {
    *out = NULL;
    memset(error, 0, sizeof *error);
    bool has_relays = false;
    enum clusim_status status = check(image, error, &has_relays);
    if (status != CLUSIM_OK) return status;
    clusim_model *m = calloc(1, sizeof *m);
    if (m != NULL) {
        m->image = *image;
        m->has_relays = has_relays;
        if (copy_arrays(&m->image) == CLUSIM_OK && model_derive(m) == CLUSIM_OK &&
            model_windows(m) == CLUSIM_OK) {
            m->bucket_shift = model_bucket_shift(m);
            *out = m;
            return CLUSIM_OK;
        }
        clusim_model_destroy(m);
    }
    return model_no_memory(error);
}

void clusim_model_destroy(clusim_model *m) {
    if (m == NULL) return;
    free_arrays(&m->image);
    free(m->wires);
    free(m->rates);
    free(m->fault_rate);
    free(m->most_flows);
    free(m->group_fastest);
    free(m->ways);
    free(m->out_off);
    free(m->out_wires);
    free(m->in_off);
    free(m->in_wires);
    free(m->pairs);
    free(m->chooses);
    free(m);
}
