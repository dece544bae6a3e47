/* Several sims of one model, each in a separate thread, end equally: a model is never written to.
 * Under the thread sanitizer (`make tsan`) this also proves that sims share no other state. */
#undef NDEBUG
#include <assert.h>
#include <pthread.h>
#include <stdio.h>

#include "clusim.h"

enum { THREADS = 4, MESSAGES = 200 };

/* Two endpoints and a duplex wire; messages each way. */
static const clusim_node nodes[] = {{1000, 0, 0, 0, 0, 0, CLUSIM_NONE, 0, 0, 0, 0, 0},
                                    {1000, 2, 0, 0, 0, 1, CLUSIM_NONE, 0, 0, 0, 0, 0}};
static const clusim_target targets[] = {{0, 0, 0, 0}, {1, 0, 1, 0}};
static const clusim_endpoint endpoints[] = {{10, 10, 10, 1000, 0, 4, 8, 1024, 100, 256, 256, 256},
                                            {10, 10, 10, 1000, 1, 4, 8, 1024, 100, 256, 256, 256}};
static clusim_format formats[1];
static const clusim_wire wires[] = {
    {1, 40, 500,      4096, 0, 1024, 512, 256, 512, 0, 0, 1, 1,
     0, 0,  1u << 30, 0,    0, 99,   0,   0,   0,   0, 0, 0},
    {1, 40, 500, 512, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}};
static const clusim_control controls[] = {
    {1000, 1000, 1000, 100, 1000, 1 << 20, 1 << 10, 1 << 10, 1 << 10, 256, 5, 0, 1, 0, 0}};
static const uint32_t routes[] = {CLUSIM_NONE, 0, 1, CLUSIM_NONE}, group_off[] = {0, 1, 2},
                      group_wires[] = {0, 1};
static const uint32_t no_off[] = {0};
static const clusim_source sources[] = {
    {0, 0, MESSAGES, 128, 1, 1, 0, 0, 0, CLUSIM_NONE},
    {1, MESSAGES, 2 * MESSAGES, 128, 1, 0, 0, 0, CLUSIM_NONE, CLUSIM_NONE}};
static clusim_message messages[2 * MESSAGES];
static clusim_model *model;

typedef struct result {
    int64_t end_ps;
    uint64_t fingerprint;
} result;

static void make_model(void) {
    formats[0].flit_bytes = 16;
    for (int k = 0; k < CLUSIM_SIZE_KINDS; k++) {
        formats[0].header_bytes[k] = 16;
        formats[0].control_256[k] = 1024;
        formats[0].service_1024[k] = 1024;
        formats[0].limit_bytes[k] = CLUSIM_NONE;
    }
    for (uint32_t m = 0; m < 2 * MESSAGES; m++)
        messages[m] = (clusim_message){m % MESSAGES * 100, 1000 + m,   m < MESSAGES, m,
                                       CLUSIM_NONE,        CLUSIM_NONE};
    clusim_image image = {.nvc = 1,
                          .nodes = nodes,
                          .endpoints = endpoints,
                          .formats = formats,
                          .wires = wires,
                          .targets = targets,
                          .controls = controls,
                          .routes = routes,
                          .group_off = group_off,
                          .group_wires = group_wires,
                          .path_off = no_off,
                          .mgroup_off = no_off,
                          .sources = sources,
                          .messages = messages,
                          .num_nodes = 2,
                          .num_endpoints = 2,
                          .num_formats = 1,
                          .num_wires = 2,
                          .num_targets = 2,
                          .num_controls = 1,
                          .num_routes = 4,
                          .num_group_off = 3,
                          .num_group_wires = 2,
                          .num_path_off = 1,
                          .num_mgroup_off = 1,
                          .num_sources = 2,
                          .num_messages = 2 * MESSAGES};
    clusim_error error;
    if (clusim_model_create(&image, &model, &error) != CLUSIM_OK) puts(error.message);
    assert(model != NULL);
}

static void *run(void *out) {
    result *r = out;
    clusim_sim *sim;
    clusim_error error;
    assert(clusim_sim_create(model, 1, &sim) == CLUSIM_OK);
    assert(clusim_sim_run(sim, INT64_MAX, UINT64_MAX) == CLUSIM_STOP_DONE);
    assert(clusim_sim_check(sim, &error) == CLUSIM_OK);
    *r = (result){clusim_sim_now_ps(sim), clusim_sim_fingerprint(sim)};
    clusim_sim_destroy(sim);
    return NULL;
}

int main(void) {
    make_model();
    pthread_t threads[THREADS];
    result results[THREADS];
    for (int t = 0; t < THREADS; t++) assert(!pthread_create(&threads[t], NULL, run, &results[t]));
    for (int t = 0; t < THREADS; t++) assert(!pthread_join(threads[t], NULL));
    for (int t = 1; t < THREADS; t++) {
        assert(results[t].end_ps == results[0].end_ps);
        assert(results[t].fingerprint == results[0].fingerprint);
    }
    clusim_model_destroy(model);
    puts("ok");
    return 0;
}
