#include "arbitrate.h"

#include "grant.h"
#include "inject.h"
#include "parts/scheduler.h"
#include "parts/wires.h"
#include "schedule_policy.h"
#include "wire.h"

/* No candidate is eligible: stall if one lacked only credit, and wake at the next credit return. */
static STATUS stall(clusim_sim *s, wire_state *w, uint32_t blocked_vcs) {
    wire_stall(s, w, UINT32_MAX);
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) {
        credit_pool *c = &w->credits[vc];
        if ((blocked_vcs >> vc & 1) && c->head < c->end) TRY(wire_wake(s, w, wire_credit_at(c)));
    }
    return CLUSIM_OK;
}

static inline STATUS after_grant(clusim_sim *s, wire_state *w, uint32_t candidate) {
    w->next_candidate = candidate + 1 == w->num_candidates ? 0 : candidate + 1;
    if (w->num_ready) {
        w->contended = 1;
        w->stall_arbitration_ps += w->free_at - s->scheduler.now_ps;
        TRY(wire_wake(s, w, w->free_at));
    } else if (w->soonest != NEVER) {
        TRY(wire_wake(s, w, base_max(w->free_at, w->soonest)));
    }
    return CLUSIM_OK;
}

static inline STATUS grant(clusim_sim *s, wire_state *w, uint32_t candidate) {
    TRY(grant_candidate(s, w, candidate));
    return after_grant(s, w, candidate);
}

/* Rank of a candidate of a wire with a dimension. */
static uint32_t rank_of(const clusim_sim *s, const wire_state *w, uint32_t candidate) {
    if (candidate >= w->num_voqs) return RANK_ENTERING;
    return s->wires.ranks[w->queues - s->wires.voqs + candidate];
}

/* Candidate of a class, the first of its round robin in the lowest rank; NONE without one. */
typedef struct class_choice {
    uint32_t candidate, bytes, rank, distance;
} class_choice;

/* True if a candidate goes before the best one of its class so far. */
static bool is_before(const class_choice *found, const class_choice *best) {
    if (best->candidate == NONE || found->rank != best->rank)
        return best->candidate == NONE || found->rank < best->rank;
    return found->distance < best->distance;
}

/* Find the candidates of all classes with credit; return the least priority of one, or NONE. */
static uint32_t choices_of(const clusim_sim *s, const wire_state *w, class_choice *all,
                           uint32_t *blocked) {
    const clusim_wire *image = &s->model->image.wires[wire_of(s, w).i];
    const clusim_schedule *schedule = &s->model->image.schedules[image->schedule - 1];
    const class_state *state = &s->wires.classes[wire_of(s, w).i];
    bool ranked = image->dim && s->model->image.nodes[image->src].endpoint == NONE;
    uint32_t first = grant_next(w->ready, w->num_words, 0), c = first, vc = 0, least = NONE;
    for (uint32_t k = 0; k < s->wires.nvc; k++) all[k].candidate = NONE;
    do {
        class_choice found = {.candidate = c, .rank = ranked ? rank_of(s, w, c) : 0};
        found.bytes = grant_needs(s, w, c, &vc);
        found.distance = (c < state->next[vc] ? w->num_candidates : 0) + c - state->next[vc];
        if (!grant_credit(&w->credits[vc], found.bytes, s->scheduler.now_ps)) {
            if (blocked) *blocked |= 1u << vc;
        } else if (is_before(&found, &all[vc])) {
            all[vc] = found;
            least = (uint32_t)base_umin(least, schedule->priority[vc]);
        }
        c = grant_next(w->ready, w->num_words, c + 1 == w->num_candidates ? 0 : c + 1);
    } while (c != first);
    return least;
}

/* Let the turn pass over all classes of a priority for the rounds without a grant. */
static void pass_rounds(const clusim_schedule *schedule, class_state *state,
                        const class_choice *all, uint32_t classes) {
    uint64_t rounds = UINT64_MAX;
    for (uint32_t vc = 0; vc < CLUSIM_SIZE_CLASSES; vc++) {
        if (!(classes >> vc & 1) || all[vc].candidate == NONE) continue;
        uint64_t lacking = all[vc].bytes - base_umin(all[vc].bytes, state->deficit[vc]);
        rounds = base_umin(rounds, base_ceil_div(lacking, schedule->quantum[vc]));
    }
    if (rounds < 2) return;
    for (uint32_t vc = 0; vc < CLUSIM_SIZE_CLASSES; vc++) {
        if (!(classes >> vc & 1)) continue;
        bool active = all[vc].candidate != NONE;
        state->deficit[vc] = active ? state->deficit[vc] + (rounds - 1) * schedule->quantum[vc] : 0;
    }
}

/* Grant the candidate of a class. */
static uint32_t take_turn(const wire_state *w, class_state *state, uint32_t vc,
                          const class_choice *all) {
    uint32_t candidate = all[vc].candidate;
    state->next[vc] = candidate + 1 == w->num_candidates ? 0 : candidate + 1;
    return candidate;
}

/* Candidate chosen by a policy, or NONE without a policy. */
static uint32_t arbitrate_by_policy(clusim_sim *s, const wire_state *w, const class_choice *all) {
    clusim_head heads[CLUSIM_SIZE_CLASSES] = {0};
    wire_id wire = wire_of(s, w);
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++)
        if (all[vc].candidate != NONE)
            schedule_policy_describe(s, w, all[vc].candidate, &heads[vc]);
    uint32_t vc = schedule_policy_choose(s, wire, heads);
    return vc == NONE ? NONE : take_turn(w, &s->wires.classes[wire.i], vc, all);
}

/* Candidate of a wire with a schedule that is granted now, or NONE. */
static uint32_t arbitrate_by_class(clusim_sim *s, const wire_state *w, uint32_t *blocked) {
    uint32_t wire = wire_of(s, w).i, classes = 0;
    const clusim_schedule *schedule =
        &s->model->image.schedules[s->model->image.wires[wire].schedule - 1];
    class_state *state = &s->wires.classes[wire];
    class_choice all[CLUSIM_SIZE_CLASSES];
    uint32_t priority = choices_of(s, w, all, blocked);
    if (priority == NONE) return NONE;
    if (w->traits & TIMED) {
        uint32_t candidate = arbitrate_by_policy(s, w, all);
        if (candidate != NONE) return candidate;
    }
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++)
        classes |= (uint32_t)(schedule->priority[vc] == priority) << vc;
    pass_rounds(schedule, state, all, classes);
    uint32_t *turn = &state->turn[priority];
    while (all[*turn].candidate == NONE || all[*turn].bytes > state->deficit[*turn]) {
        if (all[*turn].candidate == NONE) state->deficit[*turn] = 0;
        do *turn = *turn + 1 == s->wires.nvc ? 0 : *turn + 1;
        while (!(classes >> *turn & 1));
        if (all[*turn].candidate != NONE) state->deficit[*turn] += schedule->quantum[*turn];
    }
    const class_choice *chosen = &all[*turn];
    state->deficit[*turn] -= chosen->bytes;
    return take_turn(w, state, *turn, all);
}

uint32_t arbitrate_by_rank(clusim_sim *s, const wire_state *w, uint32_t *blocked) {
    if (w->traits & SCHEDULED) return arbitrate_by_class(s, w, blocked);
    uint32_t first = grant_next(w->ready, w->num_words, w->next_candidate);
    uint32_t c = first, best = NONE, best_rank = RANK_ENTERING + 1, vc = 0;
    do {
        uint32_t bytes = grant_needs(s, w, c, &vc), rank = rank_of(s, w, c);
        if (!grant_credit(&w->credits[vc], bytes, s->scheduler.now_ps)) {
            if (blocked) *blocked |= 1u << vc;
        } else if (rank == RANK_STRAIGHT) {
            return c;
        } else if (rank < best_rank) {
            best = c;
            best_rank = rank;
        }
        c = grant_next(w->ready, w->num_words, c + 1 == w->num_candidates ? 0 : c + 1);
    } while (c != first);
    return best;
}

/* Grant, or schedule the next attempt. */
static inline STATUS search(clusim_sim *s, wire_state *w) {
    uint32_t blocked = 0, chosen = w->num_ready ? grant_choose(s, w, true, &blocked) : NONE;
    if (LIKELY(chosen != NONE)) return grant(s, w, chosen);
    if (w->soonest != NEVER) TRY(wire_wake(s, w, w->soonest));
    if (blocked) TRY(stall(s, w, blocked));
    return CLUSIM_OK;
}

STATUS arbitrate_wire(clusim_sim *s, wire_id wire) {
    wire_state *w = wire_at(s, wire);
    if (UNLIKELY(w->down)) return CLUSIM_OK;
    if (UNLIKELY(w->free_at >
                 s->scheduler.now_ps)) { /* woken by an event from before its last grant */
        if (w->soonest != NEVER || w->num_ready) TRY(wire_wake(s, w, w->free_at));
        return CLUSIM_OK;
    }
    inject_admit(w, s->scheduler.now_ps);
    return search(s, w);
}
