#include "memory.h"

#include "parts/samples.h"
#include "parts/tasks.h"
#include "samples.h"
#include "task.h"

#define WHOLE (UINT64_C(1) << 48)
#define FASTEST (UINT64_C(1) << 62)

static const clusim_task *task_of(const clusim_sim *s, task_id task) {
    return &s->model->image.tasks[task.i];
}

static endpoint_id endpoint_of(const clusim_sim *s, task_id task) {
    return ID(endpoint, task_of(s, task)->endpoint);
}

STATUS memory_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    ZEROED(s->endpoints.all, im->num_endpoints);
    for (uint32_t i = 0; i < im->num_endpoints; i++) {
        endpoint_state *e = &s->endpoints.all[i];
        e->mem_cost16 = im->endpoints[i].mem_cost16;
        e->slow_1024 = im->endpoints[i].slow_1024;
        e->first_kernel = NO(task);
        e->deferred = NO(packet);
        e->epoch_at = NEVER;
    }
    return CLUSIM_OK;
}

void memory_free(clusim_sim *s) {
    free(s->endpoints.all);
    free(s->endpoints.dirty.ids);
}

void memory_charge_long(clusim_sim *s, endpoint_id endpoint, uint64_t x256) {
    endpoint_state *e = endpoint_at(s, endpoint);
    clock_pass_long(&e->memory, ((base_u128)x256 * e->mem_cost16) >> 8);
}

/* The clock is in the last picosecond or later; present charges are made at its end. */
void memory_beyond(clusim_sim *s, endpoint_id endpoint) {
    clock16 *clock = &endpoint_at(s, endpoint)->memory;
    if (clock_read(clock) < RANGE_TIME_END) return;
    scheduler_beyond(s, CLUSIM_BEYOND_ENDPOINT, endpoint.i);
    *clock = (clock16){RANGE_TIME_END, 0};
}

/* The clock stays far from the end of time, and counters stay far from 2^64 (model_windows.c). */
uint32_t memory_work_off(clusim_sim *s, endpoint_id endpoint, window_arrival *all, uint32_t count) {
    const clusim_endpoint *image = &s->model->image.endpoints[endpoint.i];
    endpoint_state *e = endpoint_at(s, endpoint);
    const uint64_t factors[ACCESS_KINDS] = {image->inject_256, image->deliver_256, image->read_256};
    uint64_t cost16 = e->mem_cost16, fraction16 = e->memory.fraction16, bytes_256 = 0;
    int64_t ps = e->memory.ps;
    uint32_t kept = 0;
    for (uint32_t k = 0; k < count; k++) {
        window_arrival a = all[k];
        uint32_t payload = a.candidate & ((UINT32_C(1) << ACCESS_SHIFT) - 1);
        uint64_t x256 = payload * factors[a.candidate >> ACCESS_SHIFT];
        fraction16 = ps < a.at_ps ? 0 : fraction16;
        ps = base_max(ps, a.at_ps);
        all[kept] = (window_arrival){ps + (fraction16 != 0), a.packet, a.candidate};
        kept += !packet_none(a.packet);
        base_u128 work16 = (((base_u128)x256 * cost16) >> 8) + fraction16;
        ps += (int64_t)(uint64_t)(work16 >> 16);
        fraction16 = (uint64_t)work16 & 65535;
        bytes_256 += x256;
    }
    e->memory = (clock16){ps, (uint32_t)fraction16};
    e->mem_bytes_256 += bytes_256;
    return kept;
}

void memory_sample(clusim_sim *s, endpoint_id endpoint, const window_arrival *all, uint32_t count) {
    const clusim_endpoint *image = &s->model->image.endpoints[endpoint.i];
    const uint64_t factors[ACCESS_KINDS] = {image->inject_256, image->deliver_256, image->read_256};
    uint64_t bytes_256 = endpoint_at(s, endpoint)->mem_bytes_256;
    uint32_t done = 0;
    for (uint32_t k = s->samples.turn; k < s->samples.next[SAMPLES_WINDOWS]; k++) {
        for (; done < count && all[done].at_ps <= samples_at(s, k); done++) {
            uint32_t access = all[done].candidate;
            uint32_t payload = access & ((UINT32_C(1) << ACCESS_SHIFT) - 1);
            bytes_256 += payload * factors[access >> ACCESS_SHIFT];
        }
        samples_memory(s, endpoint, k, bytes_256);
    }
}

STATUS memory_mark_dirty(clusim_sim *s, endpoint_id endpoint) {
    endpoint_state *e = endpoint_at(s, endpoint);
    if (e->dirty) return CLUSIM_OK;
    e->dirty = 1;
    return endpoint_push(&s->endpoints.dirty, endpoint);
}

STATUS memory_start_kernel(clusim_sim *s, task_id task) {
    endpoint_id endpoint = endpoint_of(s, task);
    endpoint_state *e = endpoint_at(s, endpoint);
    task_state *k = task_at(s, task);
    k->done = 0;
    k->speed = 0;
    k->since = s->scheduler.now_ps;
    k->end_at = k->event_at = NEVER;
    k->next_kernel = e->first_kernel;
    e->first_kernel = task;
    if (e->kernels++ == 0) {
        e->epoch_due = 1;
        e->epoch_mem = e->mem_bytes_256; /* the first epoch is not charged */
    }
    e->set_changed = 1;
    return memory_mark_dirty(s, endpoint);
}

/* Schedule an event at a kernel's end. One earlier event suffices, as its handler calls this again.
 * Otherwise a kernel with a new speed in every epoch would leave thousands of events at nearly the
 * same time. */
static STATUS expect_end(clusim_sim *s, task_id task) {
    task_state *k = task_at(s, task);
    if (k->event_at <= k->end_at) return CLUSIM_OK;
    k->event_at = k->end_at;
    return scheduler_event(s, k->end_at, EV_KERNEL, 0, task.i);
}

STATUS memory_kernel_event(clusim_sim *s, task_id task) {
    task_state *k = task_at(s, task);
    if (k->end_at != s->scheduler.now_ps) { /* its speed changed since */
        if (k->event_at == s->scheduler.now_ps) {
            k->event_at = NEVER;
            if (k->end_at != NEVER) TRY(expect_end(s, task));
        }
        return CLUSIM_OK;
    }
    endpoint_state *e = endpoint_at(s, endpoint_of(s, task));
    task_id *link = &e->first_kernel;
    while (!task_is(*link, task)) link = &task_at(s, *link)->next_kernel;
    *link = k->next_kernel;
    k->end_at = NEVER;
    if (--e->kernels == 0) e->epoch_at = NEVER;
    e->set_changed = 1;
    TRY(memory_mark_dirty(s, endpoint_of(s, task)));
    return task_done(s, task);
}

STATUS memory_epoch_event(clusim_sim *s, endpoint_id endpoint) {
    endpoint_state *e = endpoint_at(s, endpoint);
    if (e->epoch_at != s->scheduler.now_ps || e->kernels == 0) return CLUSIM_OK;
    e->epoch_due = 1;
    return memory_mark_dirty(s, endpoint);
}

static uint64_t clamp128(base_u128 value, uint64_t limit) {
    return value > limit ? limit : (uint64_t)value;
}

static uint64_t epoch_capacity(const clusim_endpoint *p) {
    return ((uint64_t)p->mem_quantum_ps << 16) / p->mem_cost16;
}

static STATUS start_epoch(clusim_sim *s, endpoint_id endpoint) {
    endpoint_state *e = endpoint_at(s, endpoint);
    const clusim_endpoint *p = &s->model->image.endpoints[endpoint.i];
    uint64_t cap = epoch_capacity(p), n = e->kernels;
    uint64_t used = (e->mem_bytes_256 >> 8) - (e->epoch_mem >> 8);
    uint64_t left = used < cap ? cap - used : 0;
    uint64_t fair = clamp128((base_u128)cap * n / (n + 1), UINT64_MAX);
    e->epoch_avail = base_umax(1, base_umax(left, fair));
    e->epoch_mem = e->mem_bytes_256;
    e->epoch_at = s->scheduler.now_ps + p->mem_quantum_ps;
    return scheduler_event(s, e->epoch_at, EV_EPOCH, 0, endpoint.i);
}

static uint64_t kernel_speed(const clusim_sim *s, task_id task) {
    const clusim_task *t = task_of(s, task);
    const endpoint_state *e = endpoint_at(s, endpoint_of(s, task));
    const clusim_endpoint *p = &s->model->image.endpoints[t->endpoint];
    uint32_t free_sms = p->sms > e->busy_sms ? p->sms - e->busy_sms : 1;
    uint32_t share = free_sms / e->kernels;
    if (share == 0) share = 1;
    if (share > t->sms) share = t->sms;
    uint64_t compute = (uint64_t)base_max(1, t->compute_ps);
    /* 2^64 * share * 1024 exceeds 128 bits for no legal share; the divisor is below 2^126. */
    base_u128 work = ((base_u128)share << 74);
    uint64_t v = clamp128(work / ((base_u128)t->sms * compute * e->slow_1024), FASTEST);
    if (t->mem_bytes) {
        base_u128 bytes = (base_u128)(e->epoch_avail / e->kernels) << 64;
        base_u128 per = (base_u128)t->mem_bytes * (uint64_t)p->mem_quantum_ps;
        v = base_umin(v, clamp128(bytes / per, FASTEST));
    }
    return base_umax(1, v);
}

/* Update a kernel's progress and set its new speed and end. */
static STATUS set_speed(clusim_sim *s, task_id task) {
    task_state *k = task_at(s, task);
    base_u128 done =
        k->done + (((base_u128)k->speed * (uint64_t)(s->scheduler.now_ps - k->since)) >> 16);
    k->done = clamp128(done, WHOLE);
    k->since = s->scheduler.now_ps;
    k->speed = kernel_speed(s, task);
    base_u128 left = (base_u128)(WHOLE - k->done) << 16;
    base_u128 wait = (left + k->speed - 1) / k->speed;
    uint64_t ps = clamp128(wait, RANGE_TIME_END);
    k->end_at = base_min(s->scheduler.now_ps + (int64_t)base_umax(1, ps), RANGE_TIME_END);
    if (UNLIKELY(k->end_at == RANGE_TIME_END)) scheduler_beyond(s, CLUSIM_BEYOND_TASK, task.i);
    return expect_end(s, task);
}

/* Cost of communication per byte while the running kernels use their share. */
static uint64_t communication_cost16(const clusim_sim *s, endpoint_id endpoint) {
    const endpoint_state *e = endpoint_at(s, endpoint);
    const clusim_endpoint *p = &s->model->image.endpoints[endpoint.i];
    if (e->kernels == 0) return p->mem_cost16;
    uint64_t cap = epoch_capacity(p);
    base_u128 want = 0;
    for (task_id k = e->first_kernel; !task_none(k); k = task_at(s, k)->next_kernel) {
        const clusim_task *t = task_of(s, k);
        want += (base_u128)t->mem_bytes * (uint64_t)p->mem_quantum_ps /
                (uint64_t)base_max(1, t->compute_ps);
    }
    uint64_t left = want < cap ? cap - (uint64_t)want : 0;
    left = base_umax(1, base_umax(left, cap / (e->kernels + 1)));
    return (uint64_t)((base_u128)p->mem_cost16 * cap / left);
}

static STATUS settle_endpoint(clusim_sim *s, endpoint_id endpoint) {
    endpoint_state *e = endpoint_at(s, endpoint);
    bool changed = e->set_changed || e->epoch_due || e->busy_sms != e->settled_sms;
    e->dirty = e->set_changed = 0;
    e->settled_sms = e->busy_sms;
    if (!changed) return CLUSIM_OK;
    e->mem_cost16 = communication_cost16(s, endpoint);
    if (e->kernels == 0) {
        e->epoch_due = 0;
        return CLUSIM_OK;
    }
    if (e->epoch_due) TRY(start_epoch(s, endpoint));
    e->epoch_due = 0;
    for (task_id k = e->first_kernel; !task_none(k); k = task_at(s, k)->next_kernel)
        TRY(set_speed(s, k));
    return CLUSIM_OK;
}

STATUS memory_settle(clusim_sim *s) {
    for (uint32_t i = 0; i < s->endpoints.dirty.len; i++) {
        TRY(settle_endpoint(s, s->endpoints.dirty.ids[i]));
    }
    s->endpoints.dirty.len = 0;
    return CLUSIM_OK;
}
