/* starve_image - run images of the corpus without memory.
 *
 *     starve_image FILE...
 *
 * For every image, the first allocation of a run fails, then the second, and so on until all of
 * them succeed. Every failed run must report out of memory, refuse further calls, and allow readout
 * and destruction. The address sanitizer checks for leaks. Linked with -Wl,--wrap. */
#include <inttypes.h>
#include <stdatomic.h>

#include "image_file.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

enum { MOST_EVENTS = 5000 };

/* Number of allocations that succeed; UINT64_MAX: all. Counted over all threads. */
static _Atomic uint64_t left = UINT64_MAX;

static bool fails_now(void) {
    uint64_t now = left;
    while (now != UINT64_MAX)
        if (atomic_compare_exchange_weak(&left, &now, now - 1)) return now == 0;
    return false;
}

void *__wrap_malloc(size_t size) { return fails_now() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t n, size_t size) { return fails_now() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t size) { return fails_now() ? NULL : __real_realloc(p, size); }
void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return fails_now() ? NULL : __real_aligned_alloc(alignment, size);
}

static void need(bool cond, const char *what) {
    if (cond) return;
    fprintf(stderr, "starve_image: %s\n", what);
    abort();
}

/* Run to the end, or for some events; drained if it has ended. */
static int run(clusim_sim *s) {
    clusim_error error;
    int status;
    do {
        status = clusim_sim_run(s, INT64_MAX, MOST_EVENTS - clusim_sim_num_events(s));
        clusim_record records[64];
        while (clusim_sim_take_records(s, records, 64)) continue;
    } while (status == CLUSIM_STOP_RECORDS && clusim_sim_num_events(s) < MOST_EVENTS);
    if (status == CLUSIM_ERR_NO_MEMORY) { /* it stays so, though there is memory again */
        need(clusim_sim_run(s, INT64_MAX, 1) == status, "a run went on without what it had lost");
    }
    return status == CLUSIM_STOP_DONE ? clusim_sim_check(s, &error) : status;
}

/* True if the run succeeded although its allocation `n` fails: it had fewer allocations. */
static bool goes_through(const image_case *c, uint64_t n) {
    clusim_image image;
    clusim_error error;
    clusim_model *model = NULL;
    clusim_sim *sim = NULL;
    fill_image(&image, c);
    left = n;
    int status = clusim_model_create(&image, &model, &error);
    if (status != CLUSIM_OK) {
        need(status == CLUSIM_ERR_NO_MEMORY && error.status == status, "the image was refused");
        need(strcmp(error.message, "out of memory") == 0, "no reason");
    } else {
        status = clusim_sim_create(model, 1, &sim);
        if (sim != NULL) clusim_sim_use_windows(sim, 1);
        need((status == CLUSIM_OK) == (sim != NULL), "a sim and an error");
        if (sim != NULL && clusim_sim_use_threads(sim, 2, 0) < 0) status = CLUSIM_ERR_NO_MEMORY;
        if (sim != NULL && status == CLUSIM_OK) status = run(sim);
    }
    bool all = left != UINT64_MAX;
    need(all == (status != CLUSIM_ERR_NO_MEMORY), "a failure was not noticed");
    left = UINT64_MAX;
    clusim_sim_destroy(sim);
    clusim_model_destroy(model);
    free_image(&image);
    return all;
}

int main(int argc, char **argv) {
    uint64_t runs = 0;
    for (int i = 1; i < argc; i++) {
        image_case c;
        need(read_case(argv[i], &c), argv[i]);
        uint64_t n = 0;
        while (!goes_through(&c, n)) n++;
        runs += n;
        free_case(&c);
    }
    printf("%d images, %" PRIu64 " runs out of memory\n", argc - 1, runs);
    return 0;
}
