/* What nodes do in windows, by one thread and by several: the same run, counter by counter. Under
 * the thread sanitizer (`make tsan`) this also proves that threads share nothing that one of them
 * changes; and members of a thread pool that must be alone are.
 */
#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clusim.h"
#include "partition.h"
#include "thread_pool.h"

/* Two switches with a trunk between them, HOSTS / 2 endpoints at each; every endpoint sends to all
 * others, more packets than the first pools hold. */
enum { SAMPLES = 12, EVERY_PS = 300000 };
enum { HOSTS = 8, NODES = HOSTS + 2, WIRES = 2 * HOSTS + 2, MESSAGES = HOSTS * (HOSTS - 1) };

static clusim_node nodes[NODES];
static clusim_target targets[HOSTS];
static clusim_endpoint endpoints[HOSTS];
static clusim_format format;
static clusim_wire wires[WIRES];
static uint32_t routes[NODES * HOSTS], group_off[WIRES + 1], group_wires[WIRES];
static const uint32_t no_off[] = {0};
static clusim_source sources[HOSTS];
static clusim_message messages[MESSAGES];
static clusim_model *model;

static uint32_t switch_of(uint32_t host) { return HOSTS + host / (HOSTS / 2); }

static void join(uint32_t wire, uint32_t a, uint32_t b, int64_t latency_ps) {
    for (uint32_t k = 0; k < 2; k++)
        wires[wire + k] = (clusim_wire){.rate_num = 1,
                                        .rate_den = 40,
                                        .latency_ps = latency_ps,
                                        .buffer_bytes = 1 << 20,
                                        .src = k ? b : a,
                                        .dst = k ? a : b,
                                        .reverse = wire + 1 - k};
}

enum { FAR_PS = 200000, NEAR_PS = 1000 };

/* One host of each switch is at `near_ps` of it. */
static void make_nodes(int64_t near_ps) {
    for (uint32_t n = 0; n < NODES; n++) {
        bool host = n < HOSTS;
        nodes[n] = (clusim_node){.latency_ps = 100000,
                                 .route_lo = n * HOSTS,
                                 .kind = host ? CLUSIM_NODE_KIND_ENDPOINT : CLUSIM_NODE_KIND_SWITCH,
                                 .endpoint = host ? n : CLUSIM_NONE,
                                 .unit = CLUSIM_NONE};
        for (uint32_t t = 0; t < HOSTS; t++) {
            uint32_t down = 2 * t + 1, trunk = 2 * HOSTS + (n == HOSTS + 1);
            routes[n * HOSTS + t] = host ? 2 * n : switch_of(t) == n ? down : trunk;
            if (n == t) routes[n * HOSTS + t] = CLUSIM_NONE;
        }
    }
    for (uint32_t h = 0; h < HOSTS; h++) {
        targets[h] = (clusim_target){.node = h, .local = h};
        endpoints[h] = (clusim_endpoint){.write_latency_ps = 10,
                                         .read_latency_ps = 10,
                                         .response_latency_ps = 10,
                                         .mem_quantum_ps = 1000,
                                         .node = h,
                                         .sms = 4,
                                         .cta_slots = 8,
                                         .slow_1024 = 1024,
                                         .mem_cost16 = 100,
                                         .deliver_256 = 256,
                                         .read_256 = 256,
                                         .inject_256 = 256};
        join(2 * h, h, switch_of(h), h % (HOSTS / 2) ? FAR_PS : near_ps);
    }
    join(2 * HOSTS, HOSTS, HOSTS + 1, FAR_PS);
}

static void make_traffic(void) {
    for (uint32_t h = 0; h < HOSTS; h++) {
        uint32_t first = h * (HOSTS - 1);
        sources[h] = (clusim_source){.endpoint = h,
                                     .msg_lo = first,
                                     .msg_hi = first + HOSTS - 1,
                                     .packet_bytes = 256,
                                     .burst = 1,
                                     .control = CLUSIM_NONE,
                                     .spread = CLUSIM_NONE};
        for (uint32_t k = 0; k + 1 < HOSTS; k++)
            messages[first + k] = (clusim_message){.start_ps = k * 777,
                                                   .bytes = 20000 + 1000 * h,
                                                   .dst = (h + k + 1) % HOSTS,
                                                   .via_first = CLUSIM_NONE,
                                                   .via_last = CLUSIM_NONE};
    }
}

static void make_model(int64_t near_ps, uint32_t control_256) {
    format.flit_bytes = 16;
    for (int k = 0; k < CLUSIM_SIZE_KINDS; k++) {
        format.header_bytes[k] = 16;
        format.control_256[k] = control_256;
        format.service_1024[k] = 1024;
        format.limit_bytes[k] = CLUSIM_NONE;
    }
    make_nodes(near_ps);
    make_traffic();
    for (uint32_t w = 0; w < WIRES; w++) {
        group_off[w + 1] = w + 1;
        group_wires[w] = w;
    }
    clusim_image image = {.nvc = 1,
                          .nodes = nodes,
                          .endpoints = endpoints,
                          .formats = &format,
                          .wires = wires,
                          .targets = targets,
                          .routes = routes,
                          .group_off = group_off,
                          .group_wires = group_wires,
                          .path_off = no_off,
                          .mgroup_off = no_off,
                          .sources = sources,
                          .messages = messages,
                          .num_nodes = NODES,
                          .num_endpoints = HOSTS,
                          .num_formats = 1,
                          .num_wires = WIRES,
                          .num_targets = HOSTS,
                          .num_routes = NODES * HOSTS,
                          .num_group_off = WIRES + 1,
                          .num_group_wires = WIRES,
                          .num_path_off = 1,
                          .num_mgroup_off = 1,
                          .num_sources = HOSTS,
                          .num_messages = MESSAGES};
    clusim_error error;
    if (clusim_model_create(&image, &model, &error) != CLUSIM_OK)
        fprintf(stderr, "%s\n", error.message);
    assert(model != NULL);
}

typedef struct result {
    int64_t end_ps, message_end[MESSAGES];
    uint64_t fingerprint, events;
    clusim_wire_counters wires[WIRES];
    uint32_t sampled;
    clusim_wire_sample samples[SAMPLES * WIRES];
    uint64_t memory[SAMPLES * HOSTS];
} result;

/* With so much in windows (clusim_sim_use_windows). */
static result run(uint32_t threads, int what) {
    clusim_sim *sim;
    clusim_error error;
    result r;
    memset(&r, 0, sizeof r);
    assert(clusim_sim_create(model, 0, &sim) == CLUSIM_OK);
    assert(clusim_sim_use_windows(sim, 1) == what);
    assert(clusim_sim_use_threads(sim, threads, 0) == (int)threads);
    assert(clusim_sim_sample(sim, &(clusim_sample_times){EVERY_PS, EVERY_PS, SAMPLES, 0}, NULL) ==
           CLUSIM_OK);
    assert(clusim_sim_run(sim, INT64_MAX, UINT64_MAX) == CLUSIM_STOP_DONE);
    r.sampled = clusim_sim_read_samples(sim, r.samples, r.memory, NULL);
    assert(r.sampled == SAMPLES);
    r.end_ps = clusim_sim_now_ps(sim);
    r.fingerprint = clusim_sim_fingerprint(sim);
    r.events = clusim_sim_num_events(sim);
    clusim_sim_read_messages(sim, r.message_end);
    clusim_sim_read_wires(sim, r.wires);
    assert(clusim_sim_check(sim, &error) == CLUSIM_OK);
    clusim_sim_destroy(sim);
    return r;
}

static void test_runs(int64_t near_ps, uint32_t control_256, int what) {
    make_model(near_ps, control_256);
    result alone = run(1, what);
    assert(alone.fingerprint != 0);
    for (uint32_t threads = 2; threads <= 8; threads *= 2) {
        result together = run(threads, what);
        assert(memcmp(&alone, &together, sizeof alone) == 0);
    }
    clusim_model_destroy(model);
}

/* Windows that several threads process, if these are worth it from `pays` events on. */
static uint64_t shared(uint32_t pays, uint64_t *events) {
    clusim_sim *sim;
    assert(clusim_sim_create(model, 0, &sim) == CLUSIM_OK);
    assert(clusim_sim_use_windows(sim, 1) == 2);
    assert(clusim_sim_use_threads(sim, 2, pays) == 2);
    assert(clusim_sim_run(sim, INT64_MAX, UINT64_MAX) == CLUSIM_STOP_DONE);
    uint64_t windows = partition_shared(sim);
    *events = clusim_sim_num_events(sim);
    clusim_sim_destroy(sim);
    return windows;
}

/* By default a window is shared from the break-even of 750 events on; here none has as many. */
static void test_small_windows_are_not_shared(void) {
    uint64_t events = 0;
    make_model(FAR_PS, 1024);
    uint64_t all = shared(0, &events);
    assert(all > 1 && events / all < 750);
    assert(shared(CLUSIM_NONE, &events) == 0);
    assert(shared(750, &events) == 0);
    assert(shared(1, &events) > 0 && shared(1, &events) < all); /* none before the first */
    clusim_model_destroy(model);
}

/* ---- a thread pool
 * ------------------------------------------------------------------------------------
 */

enum { MEMBERS = 4, ROUNDS = 200 };

typedef struct tally {
    thread_pool *t;
    uint64_t own[MEMBERS], common;
} tally;

static enum clusim_status count_alone(void *context, uint32_t member) {
    tally *c = context;
    for (uint32_t k = 0; k < MEMBERS; k++) c->common += c->own[k]; /* nobody else is at work */
    c->own[member] = 0;
    return c->own[0] < 1000 ? CLUSIM_OK : CLUSIM_ERR_NO_MEMORY;
}

static enum clusim_status count(void *context, uint32_t member) {
    tally *c = context;
    c->own[member]++;
    if (member % 2) TRY(thread_pool_alone(c->t, count_alone, c, member));
    c->own[member]++;
    return member == 3 && c->common > 5000 ? CLUSIM_ERR_RANGE : CLUSIM_OK;
}

static void test_thread_pool(void) {
    tally c = {.common = 0};
    assert(thread_pool_create(MEMBERS, &c.t) == CLUSIM_OK);
    assert(thread_pool_members(c.t) == MEMBERS);
    int worst = CLUSIM_OK;
    for (int k = 0; k < ROUNDS; k++) {
        int status = thread_pool_run(c.t, count, &c);
        if (status != CLUSIM_OK) worst = status;
    }
    assert(worst == CLUSIM_ERR_RANGE); /* the status of a member gets through */
    thread_pool_free(c.t);
    thread_pool_free(NULL);
}

static enum clusim_status count_own(void *context, uint32_t member) {
    tally *c = context;
    c->own[member]++;
    return CLUSIM_OK;
}

/* Each member works once per round, whether it finds the next one while it looks or is woken. */
static void test_rounds_are_found_and_woken(void) {
    static const struct timespec longer = {.tv_nsec = 200000}; /* than a member looks */
    tally c = {.common = 0};
    assert(thread_pool_create(MEMBERS, &c.t) == CLUSIM_OK);
    for (uint64_t k = 1; k <= ROUNDS; k++) {
        if (k % 3 == 0) nanosleep(&longer, NULL);
        assert(thread_pool_run(c.t, count_own, &c) == CLUSIM_OK);
        for (uint32_t m = 0; m < MEMBERS; m++) assert(c.own[m] == k);
    }
    thread_pool_free(c.t);
}

int main(void) {
    test_runs(FAR_PS, 1024, 2);
    test_runs(NEAR_PS, 0, 3); /* two hosts as one with their switches */
    test_small_windows_are_not_shared();
    test_thread_pool();
    test_rounds_are_found_and_woken();
    puts("ok");
    return 0;
}
