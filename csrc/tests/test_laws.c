/* Every law of laws.c fires: a run succeeds, one number of its state is falsified, and the check at
 * the end reports the violated law. Unmodified, the same run passes. */
#undef NDEBUG
#include <assert.h>
#include <string.h>

#include "laws.h"
#include "state.h"

/* Two endpoints on a switch with a reduction unit; a message each way, a send and a receive by
 * programs, a kernel and a delay. */
static const clusim_node nodes[] = {{1000, 0, 0, 0, 0, 0, CLUSIM_NONE, 0, 0, 0, 0, 0},
                                    {1000, 2, 0, 0, 0, 1, CLUSIM_NONE, 0, 0, 0, 0, 0},
                                    {1000, 4, 0, 1, 0, CLUSIM_NONE, 0, 0, 0, 0, 0, 0}};
static const clusim_target targets[] = {{0, 0, 0, 0}, {1, 0, 1, 0}};
static const clusim_endpoint endpoints[] = {{10, 10, 10, 1000, 0, 4, 8, 1024, 100, 256, 256, 256},
                                            {10, 10, 10, 1000, 1, 4, 8, 1024, 100, 256, 256, 256}};
static const clusim_unit units[] = {{300, 1 << 20, 2, 100}};
static clusim_format formats[1];
static clusim_wire wires[4];
static const uint32_t ends[4][2] = {{0, 2}, {2, 0}, {1, 2}, {2, 1}};
static const uint32_t routes[] = {CLUSIM_NONE, 0, 1, CLUSIM_NONE, 2, 3};
static const uint32_t group_off[] = {0, 1, 2, 3, 4}, group_wires[] = {0, 2, 1, 3};
static const uint32_t no_off[] = {0};
static clusim_conn conns[1];
static clusim_cost costs[1];
static const clusim_prim prims[] = {{0, CLUSIM_NONE, 0, 0, 0, 0, 0, 1},
                                    {1, 0, CLUSIM_NONE, 0, 0, 0, 0, 1}};
static const clusim_template templates[] = {{0, 1, 1, 0}, {1, 2, 1, 0}};
static clusim_instance instances[2];
static const uint32_t inst_conns[] = {0}, op_flags[] = {2, 1}, succ[] = {3};
static clusim_task tasks[4];
static const clusim_source sources[] = {{0, 0, 1, 128, 1, 0, 0, 0, CLUSIM_NONE, CLUSIM_NONE},
                                        {1, 1, 2, 128, 1, 0, 0, 0, CLUSIM_NONE, CLUSIM_NONE}};
static const clusim_message messages[] = {{0, 20000, 1, 0, CLUSIM_NONE, CLUSIM_NONE},
                                          {5, 30000, 0, 0, CLUSIM_NONE, CLUSIM_NONE}};
static clusim_image image;

static void fill_work(void) {
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
    tasks[2] =
        (clusim_task){.kind = 1, .compute_ps = 5000, .mem_bytes = 64, .sms = 4, .succ_hi = 1};
    tasks[3] = (clusim_task){.kind = 2, .delay_ps = 700, .num_deps = 1, .succ_lo = 1, .succ_hi = 1};
}

static void fill(void) {
    formats[0].flit_bytes = 16;
    for (int k = 0; k < CLUSIM_SIZE_KINDS; k++) {
        formats[0].header_bytes[k] = 16;
        formats[0].service_1024[k] = 1024;
        formats[0].limit_bytes[k] = CLUSIM_NONE;
    }
    for (uint32_t w = 0; w < 4; w++) {
        wires[w] = (clusim_wire){.rate_num = 1,
                                 .rate_den = 40,
                                 .latency_ps = 500,
                                 .buffer_bytes = 512,
                                 .src = ends[w][0],
                                 .dst = ends[w][1],
                                 .reverse = w ^ 1};
    }
    fill_work();
#define PART(name) .name = name, .num_##name = sizeof name / sizeof *name
    image = (clusim_image){.nvc = 1,
                           .num_op_flags = 2,
                           .op_flags = op_flags,
                           .path_off = no_off,
                           .num_path_off = 1,
                           .mgroup_off = no_off,
                           .num_mgroup_off = 1,
                           PART(nodes),
                           PART(endpoints),
                           PART(formats),
                           PART(wires),
                           PART(targets),
                           PART(routes),
                           PART(group_off),
                           PART(group_wires),
                           PART(units),
                           PART(conns),
                           PART(costs),
                           PART(prims),
                           PART(templates),
                           PART(instances),
                           PART(inst_conns),
                           PART(tasks),
                           PART(succ),
                           PART(sources),
                           PART(messages)};
}

/* ---- falsifications -------------------------------------------------------------------------- */

static void nothing(clusim_sim *s) { (void)s; }

/* While messages and slices are in flight: */
static void lost_bytes(clusim_sim *s) {
    for (uint32_t x = 0; x < s->xfers.size; x++) s->xfers.all[x].delivered -= 1;
}
static void too_fast(clusim_sim *s) {
    for (uint32_t x = 0; x < s->xfers.size; x++) s->xfers.all[x].start_ps = 1 << 30;
}

/* After the end: */
static void more_bytes(clusim_sim *s) { s->wires.all[0].bytes += s->wires.all[0].bytes; }
static void busier_than_time(clusim_sim *s) {
    s->wires.all[1].busy_ps = s->wires.all[1].free_at + 1;
}
static void waits_and_works(clusim_sim *s) {
    s->results.final[2].stall_credit_ps = s->scheduler.now_ps;
}
static void contended_3560_percent(clusim_sim *s) {
    s->results.final[3].stall_arbitration_ps = s->results.final[3].busy_ps * 36;
}
static void memory_too_fast(clusim_sim *s) { s->endpoints.all[1].memory.ps = 10; }
static void sm_kept(clusim_sim *s) { s->endpoints.all[0].busy_sms = 1; }
static void unit_too_fast(clusim_sim *s) { s->units.all[0].reduced_bytes = 1 << 20; }
static void ends_before_start(clusim_sim *s) {
    s->tasks.all[0].end_ps = s->tasks.all[0].start_ps - 1;
}
static void kernel_too_fast(clusim_sim *s) {
    s->tasks.all[2].end_ps = s->tasks.all[2].start_ps + 4999;
}
static void delay_too_short(clusim_sim *s) { s->tasks.all[3].start_ps += 1; }
static void starts_early(clusim_sim *s) { s->tasks.all[3].start_ps = s->tasks.all[2].end_ps - 1; }
static void message_early(clusim_sim *s) { s->sources.message_end[1] = 5; }
static void slice_not_posted(clusim_sim *s) { s->programs.conns[0].posted--; }
static void slot_not_shown(clusim_sim *s) { s->programs.conns[0].tail_visible--; }
static void slot_kept(clusim_sim *s) { s->programs.conns[0].head_visible--; }
static void payload_vanishes(clusim_sim *s) { s->wires.all[3].payload -= 128; }
static void payload_unasked(clusim_sim *s) {
    s->wires.all[0].payload += 128;
    s->wires.all[3].payload += 128;
}
static void payload_untaken(clusim_sim *s) { s->laws.ends[2 * 1 + 1].payload -= 128; }

static const struct {
    void (*falsify)(clusim_sim *s);
    int64_t at_ps; /* time; NEVER: after the end */
    const char *words;
} cases[] = {
    {nothing, NEVER, NULL},
    {lost_bytes, 100000, "bytes delivered of a transfer of endpoint"},
    {too_fast, 100000, "bytes faster than its wires allow to or from endpoint"},
    {more_bytes, NEVER, "busy time for the bytes of wire 0"},
    {busier_than_time, NEVER, "busy time of wire 1"},
    {waits_and_works, NEVER, "busy and waiting time of wire 2"},
    {contended_3560_percent, NEVER, "contended time of wire 3"},
    {memory_too_fast, NEVER, "time for the memory traffic of endpoint 1"},
    {sm_kept, NEVER, "SMs in use at the end of endpoint 0"},
    {unit_too_fast, NEVER, "time for the operands of unit 0"},
    {ends_before_start, NEVER, "end of task 0"},
    {kernel_too_fast, NEVER, "duration of task 2: 4999 against 5000"},
    {delay_too_short, NEVER, "duration of task 3: 699 against 700"},
    {starts_early, NEVER, "start of task 3"},
    {message_early, NEVER, "end of message 1: 5 against 5"},
    {slice_not_posted, NEVER, "slices posted of connection 0"},
    {slot_not_shown, NEVER, "slots shown of connection 0"},
    {slot_kept, NEVER, "slots back of connection 0"},
    {payload_vanishes, NEVER, "payload received by endpoint 1"},
    {payload_unasked, NEVER, "payload sent by endpoint 0"},
    {payload_untaken, NEVER, "payload received by endpoint 1"},
};

static void run_case(size_t k) {
    clusim_error error;
    clusim_model *model;
    clusim_sim *sim;
    assert(clusim_model_create(&image, &model, &error) == CLUSIM_OK);
    assert(clusim_sim_create(model, 0, &sim) == CLUSIM_OK);
    if (cases[k].at_ps != NEVER) {
        assert(clusim_sim_run(sim, cases[k].at_ps, UINT64_MAX) == CLUSIM_STOP_TIME);
        cases[k].falsify(sim);
    }
    assert(clusim_sim_run(sim, INT64_MAX, UINT64_MAX) == CLUSIM_STOP_DONE);
    if (cases[k].at_ps == NEVER) cases[k].falsify(sim);
    int status = clusim_sim_check(sim, &error);
    if (cases[k].words == NULL) {
        assert(status == CLUSIM_OK);
    } else {
        printf("%s\n", error.message);
        assert(status == CLUSIM_ERR_CONSERVATION && strstr(error.message, cases[k].words) != NULL);
    }
    clusim_sim_destroy(sim);
    clusim_model_destroy(model);
}

/* At a switch the payload in and out is one. */
static void test_payload_does_not_vanish_in_a_switch(void) {
    clusim_error error;
    clusim_model *model;
    clusim_sim *sim;
    image.num_units = 0; /* in a unit it may */
    clusim_node plain[3];
    memcpy(plain, nodes, sizeof plain);
    plain[2].unit = CLUSIM_NONE;
    image.nodes = plain;
    assert(clusim_model_create(&image, &model, &error) == CLUSIM_OK);
    assert(clusim_sim_create(model, 0, &sim) == CLUSIM_OK);
    assert(clusim_sim_run(sim, INT64_MAX, UINT64_MAX) == CLUSIM_STOP_DONE);
    sim->wires.all[3].payload += 128;
    sim->laws.ends[2 * 1 + 1].payload += 128;
    assert(clusim_sim_check(sim, &error) == CLUSIM_ERR_CONSERVATION);
    assert(strstr(error.message, "payload out of and into node 2") != NULL);
    clusim_sim_destroy(sim);
    clusim_model_destroy(model);
}

int main(void) {
    fill();
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) run_case(k);
    test_payload_does_not_vanish_in_a_switch();
    return 0;
}
