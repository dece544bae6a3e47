/* Make every allocation of the engine fail once.
 *
 * Linked with -Wl,--wrap, so that the n-th allocation returns NULL; n grows until the scenario
 * succeeds, which visits every allocation. Under the address sanitizer this also proves the absence
 * of leaks. */
#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clusim.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

static long allocations_left = -1; /* negative: never fail */

static int fails_now(void) { return allocations_left >= 0 && allocations_left-- == 0; }

void *__wrap_malloc(size_t size) { return fails_now() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t n, size_t size) { return fails_now() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t size) { return fails_now() ? NULL : __real_realloc(p, size); }
void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return fails_now() ? NULL : __real_aligned_alloc(alignment, size);
}

/* Two endpoints, a duplex wire; one message each way and one send and receive by programs. */
static const clusim_node nodes[] = {{1000, 0, 0, 0, 0, 0, CLUSIM_NONE, 0, 0, 0, 0, 0},
                                    {1000, 2, 0, 0, 0, 1, CLUSIM_NONE, 0, 0, 0, 0, 0}};
static const clusim_target targets[] = {{0, 0, 0, 0}, {1, 0, 1, 0}};
static const clusim_endpoint endpoints[] = {{10, 10, 10, 1000, 0, 4, 8, 1024, 100, 256, 256, 256},
                                            {10, 10, 10, 1000, 1, 4, 8, 1024, 100, 256, 256, 256}};
static clusim_format formats[1];
/* One of the two wires is paused and marks, so that their state is allocated as well. */
static const clusim_wire wires[] = {
    {1, 40, 500, 4096, 0, 1024, 512, 256, 512, 0, 0, 1, 1, 0, 0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0},
    {1, 40, 500, 512, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}};
static const clusim_control controls[] = {
    {1000, 1000, 1000, 100, 1000, 1 << 20, 1 << 10, 1 << 10, 1 << 10, 256, 5, 0, 1, 0, 0}};
static const uint32_t routes[] = {CLUSIM_NONE, 0, 1, CLUSIM_NONE}, group_off[] = {0, 1, 2},
                      group_wires[] = {0, 1};
static const uint32_t no_off[] = {0};
static clusim_conn conns[1];
static clusim_cost costs[1];
static const clusim_prim prims[] = {{0, CLUSIM_NONE, 0, 0, 0, 0, 0, 1},
                                    {1, 0, CLUSIM_NONE, 0, 0, 0, 0, 1}};
static const clusim_template templates[] = {{0, 1, 1, 0}, {1, 2, 1, 0}};
static clusim_instance instances[2];
static const uint32_t inst_conns[] = {0}, op_flags[] = {2, 1};
static clusim_task tasks[2];
static const clusim_source sources[] = {{0, 0, 1, 128, 1, 1, 0, 0, 0, CLUSIM_NONE},
                                        {1, 1, 2, 128, 1, 0, 0, 0, CLUSIM_NONE, CLUSIM_NONE}};
static const clusim_message messages[] = {{0, 20000, 1, 0, CLUSIM_NONE, CLUSIM_NONE},
                                          {5, 30000, 0, 0, CLUSIM_NONE, CLUSIM_NONE}};
static clusim_image image;

static void fill_programs(void) {
    conns[0] = (clusim_conn){.tail_ps = 5,
                             .head_ps = 5,
                             .dst = 1,
                             .first_group = CLUSIM_NONE,
                             .path = CLUSIM_NONE,
                             .path_back = CLUSIM_NONE,
                             .mgroup = CLUSIM_NONE,
                             .packet_bytes = 128,
                             .burst = 1,
                             .slots = 8,
                             .expand_120 = 120,
                             .via_first = CLUSIM_NONE,
                             .via_last = CLUSIM_NONE,
                             .stage = CLUSIM_NONE,
                             .control = CLUSIM_NONE,
                             .spread = CLUSIM_NONE,
                             .vertex = CLUSIM_NONE};
    for (uint32_t i = 0; i < 2; i++) {
        instances[i] = (clusim_instance){.length = 100000,
                                         .chunk_bytes = 4096,
                                         .task = i,
                                         .endpoint = i,
                                         .template = i,
                                         .align = 1,
                                         .slices = 2,
                                         .slots_per_slice = 1,
                                         .thread = CLUSIM_NONE};
        tasks[i] = (clusim_task){.endpoint = i, .inst_lo = i, .inst_hi = i + 1};
    }
}

static void fill(void) {
    formats[0].flit_bytes = 16;
    for (int k = 0; k < CLUSIM_SIZE_KINDS; k++) {
        formats[0].header_bytes[k] = 16;
        formats[0].control_256[k] = 1024;
        formats[0].service_1024[k] = 1024;
        formats[0].limit_bytes[k] = CLUSIM_NONE;
    }
    fill_programs();
    image = (clusim_image){.nvc = 1,
                           .num_op_flags = 2,
                           .op_flags = op_flags,
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
                           .conns = conns,
                           .costs = costs,
                           .prims = prims,
                           .templates = templates,
                           .instances = instances,
                           .inst_conns = inst_conns,
                           .tasks = tasks,
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
                           .num_conns = 1,
                           .num_costs = 1,
                           .num_prims = 2,
                           .num_templates = 2,
                           .num_instances = 2,
                           .num_inst_conns = 1,
                           .num_tasks = 2,
                           .num_sources = 2,
                           .num_messages = 2};
}

/* One run; 0 on success, otherwise the failed status. */
static int scenario(void) {
    clusim_error error;
    clusim_model *model = NULL;
    clusim_sim *sim = NULL;
    int status = clusim_model_create(&image, &model, &error);
    if (status == CLUSIM_OK) status = clusim_sim_create(model, 1, &sim);
    if (status == CLUSIM_OK) status = clusim_sim_run(sim, INT64_MAX, UINT64_MAX);
    if (status == CLUSIM_STOP_DONE && sim != NULL) status = clusim_sim_check(sim, &error);
    clusim_sim_destroy(sim);
    clusim_model_destroy(model);
    return status;
}

static void test_every_allocation_fails_once(void) {
    long n = 0;
    for (;; n++) {
        allocations_left = n;
        int status = scenario();
        if (status == CLUSIM_OK) break;
        assert(status == CLUSIM_ERR_NO_MEMORY);
    }
    allocations_left = -1;
    assert(n > 30);
}

/* Bad rows of any kind are refused with their number. */
static void test_bad_rows_are_refused(void) {
    clusim_error error;
    clusim_model *model = NULL;
    clusim_conn good = conns[0];
    conns[0].dst = 7;
    assert(clusim_model_create(&image, &model, &error) == CLUSIM_ERR_BAD_IMAGE && model == NULL);
    assert(error.index == 0 && strstr(error.message, "conns[0]") != NULL);
    conns[0] = good;
    instances[1].template = 9;
    assert(clusim_model_create(&image, &model, &error) == CLUSIM_ERR_BAD_IMAGE);
    assert(error.index == 1 && strstr(error.message, "instances[1]") != NULL);
    instances[1].template = 1;
}

/* Running in slices of a few events has the same end and fingerprint as running at once. */
static void test_slices_equal_one_run(void) {
    uint64_t fingerprint[2];
    int64_t end[2];
    for (int sliced = 0; sliced < 2; sliced++) {
        clusim_error error;
        clusim_model *model;
        clusim_sim *sim;
        assert(clusim_model_create(&image, &model, &error) == CLUSIM_OK);
        assert(clusim_sim_create(model, 0, &sim) == CLUSIM_OK);
        int status;
        do {
            status = clusim_sim_run(sim, INT64_MAX, sliced ? 3 : UINT64_MAX);
        } while (status == CLUSIM_STOP_EVENTS);
        assert(status == CLUSIM_STOP_DONE);
        fingerprint[sliced] = clusim_sim_fingerprint(sim);
        end[sliced] = clusim_sim_now_ps(sim);
        assert(clusim_sim_check(sim, &error) == CLUSIM_OK);
        clusim_sim_destroy(sim);
        clusim_model_destroy(model);
    }
    assert(fingerprint[0] == fingerprint[1] && end[0] == end[1] && end[0] > 0);
}

int main(void) {
    fill();
    test_slices_equal_one_run();
    test_bad_rows_are_refused();
    test_every_allocation_fails_once();
    puts("ok");
    return 0;
}
