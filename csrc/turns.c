#include "turns.h"

#include "parts/results.h"
#include "parts/scheduler.h"
#include "parts/windows.h"
#include "samples.h"
#include "timestamp.h"
#include "window.h"
enum { RECORDS_NEARLY_FULL = 1 << 16 };

/* Time of the next event, up to `until_ps` or the horizon of nodes in windows: these advance before
 * later events. */
static inline STATUS next_event(clusim_sim *s, int64_t until_ps, int64_t *at_ps) {
    int64_t due_ps = s->windows.due_ps;
    int64_t limit_ps = due_ps <= until_ps || due_ps == NEVER ? window_horizon(s) : until_ps;
    return timestamp_next(s, limit_ps, at_ps);
}

/* True if events have reached the time of the nodes in windows: everything before it is done. */
static inline bool level(const clusim_sim *s, int64_t at_ps) { return at_ps >= s->windows.done_ps; }

/* True if nodes in windows advance before the event at `at_ps`. If endpoints are among them,
 * effects of events on them are a window later, so nodes lead; otherwise they follow. */
static inline STATUS nodes_first(clusim_sim *s, int64_t at_ps, int64_t until_ps, int64_t *end_ps,
                                 bool *first) {
    int64_t due_ps = s->windows.due_ps;
    if (s->windows.leading) {
        *first = level(s, at_ps) && due_ps <= at_ps && due_ps <= until_ps;
        return *first ? window_end_ps(s, until_ps, end_ps) : CLUSIM_OK;
    }
    *end_ps = base_min(window_horizon(s), until_ps + (until_ps != NEVER));
    *first = due_ps < *end_ps && at_ps >= *end_ps;
    return CLUSIM_OK;
}

/* The run stops where both are level: nodes may be done up to a later time than events. */
static void pause(clusim_sim *s) {
    s->scheduler.now_ps = base_max(s->scheduler.now_ps, s->windows.done_ps - 1);
}

STATUS turns_advance(clusim_sim *s, int64_t until_ps, enum clusim_stop *stop) {
    int64_t at_ps, end_ps, due_ps = s->windows.due_ps;
    TRY(next_event(s, until_ps, &at_ps));
    bool any = at_ps != NEVER || due_ps != NEVER;
    *stop = any ? CLUSIM_STOP_DONE : CLUSIM_STOP_DEADLOCK;
    if (UNLIKELY(!any)) {
        pause(s);
        return CLUSIM_OK;
    }
    bool late = base_min(at_ps, due_ps) >> WINDOW_LAST_BITS || s->windows.near_end;
    if (UNLIKELY(late && s->windows.on && level(s, at_ps))) return window_close(s);
    bool first;
    TRY(nodes_first(s, at_ps, until_ps, &end_ps, &first));
    if (first) return window_run(s, end_ps);
    if (UNLIKELY(at_ps > until_ps)) {
        s->scheduler.now_ps = base_max(s->scheduler.now_ps, until_ps);
        *stop = CLUSIM_STOP_TIME;
        return CLUSIM_OK;
    }
    samples_pass(s, SAMPLES_EVENTS, at_ps);
    s->scheduler.now_ps = at_ps;
    TRY(timestamp_run(s));
    return LIKELY(s->scheduler.beyond == BEYOND_NOTHING) ? CLUSIM_OK : CLUSIM_ERR_RANGE;
}

STATUS turns_pause(clusim_sim *s, uint64_t stop_at, enum clusim_stop *stop) {
    bool events = s->scheduler.event_count >= stop_at;
    if (LIKELY(!events && s->results.num_records < RECORDS_NEARLY_FULL)) return CLUSIM_OK;
    int64_t at_ps;
    TRY(next_event(s, NEVER, &at_ps));
    if (!level(s, at_ps)) return CLUSIM_OK;
    *stop = events ? CLUSIM_STOP_EVENTS : CLUSIM_STOP_RECORDS;
    pause(s);
    return CLUSIM_OK;
}
