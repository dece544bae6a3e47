/* fuzz_image - damage images and check that the engine refuses them or runs them correctly.
 *
 *     fuzz_image --cases 10000 --seed 1 --save DIR CORPUS...    mutate files of the corpus
 *     fuzz_image --replay FILE...                               run files unchanged
 *     fuzz_image --write 17 --seed 1 --save DIR CORPUS...       save case 17 without running it
 *
 * Every case is checked, and if it is accepted, run for some events, drained, balanced and read
 * out. Sanitizer errors, an assertion, a hang, an excessive allocation and an imbalance end the
 * program; it saves the case and prints the command that replays it. Files are written by
 * tests/support/corpus.py; their tables are copied to separate blocks, so that reads past the end
 * of one are detected. */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "image_file.h"

typedef struct field {
    uint32_t table, into;
    size_t offset;
    uint32_t width, count;
    int64_t lo;
    uint64_t hi;
} field;

#define FIELD_ROW(t, type, member, width, count, sign, lo, hi, into, flag)                         \
    {IN_##t, IN_##into, offsetof(type, member), width, count, lo, hi},
#define VALUE_ROW(t, type, width, count, sign, lo, hi, into, flag)                                 \
    {IN_##t, IN_##into, 0, width, count, lo, hi},
static const field fields[] = {RANGE_FIELDS(FIELD_ROW, VALUE_ROW)};
enum { NUM_FIELDS = sizeof fields / sizeof *fields };

static struct {
    uint64_t cases, refused, done, deadlocks, unfinished, beyond, events;
} tally;

static image_case *present; /* case to save if the program dies */
static const char *save_dir;
static const char *program;

enum { MOST_EVENTS = 20000, CPU_SECONDS = 5 };

/* ---- random numbers ----------------------------------------------------------------------------
 */

static uint64_t random_state;

static uint64_t next_random(void) {
    uint64_t x = (random_state += UINT64_C(0x9E3779B97F4A7C15));
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static uint64_t below(uint64_t n) { return n ? next_random() % n : 0; }

/* ---- files -------------------------------------------------------------------------------------
 */

static void put(int fd, const void *from, size_t size) {
    if (write(fd, from, size) != (ssize_t)size) _exit(3);
}

/* Only system calls: this runs while the program dies. */
static void save_case(const char *path) {
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    if (fd < 0) return;
    put(fd, magic, sizeof magic);
    put(fd, &present->nvc, sizeof present->nvc);
    put(fd, &present->seed, sizeof present->seed);
    for (uint32_t t = 0; t < NUM_TABLES; t++) {
        uint64_t stride = strides[t];
        put(fd, &stride, sizeof stride);
        put(fd, &present->rows[t], sizeof present->rows[t]);
        put(fd, present->data[t], present->rows[t] * strides[t]);
    }
    close(fd);
}

static void on_death(void) {
    static char path[512], line[1200];
    if (present == NULL || save_dir == NULL) return;
    snprintf(path, sizeof path, "%s/case-%d-%" PRIu64 ".img", save_dir, (int)getpid(), tally.cases);
    save_case(path);
    int n = snprintf(line, sizeof line, "saved; replay with: %s --replay %s\n", program, path);
    if (n > 0) put(2, line, (size_t)n);
    present = NULL;
}

static void on_signal(int number) {
    const char *what =
        number == SIGPROF ? "fuzz_image: a case does not end\n" : "fuzz_image: aborted\n";
    put(2, what, strlen(what));
    on_death();
    _exit(1);
}

__attribute__((format(printf, 1, 2))) static void finding(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    on_death();
    _exit(1);
}

/* Of the sanitizers' runtime, where it is linked. */
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void) { return "abort_on_error=1:print_stacktrace=1"; }

/* ---- one case ----------------------------------------------------------------------------------
 */

static void read_out(clusim_sim *s, const image_case *c) {
    clusim_wire_counters *wires = malloc((c->rows[IN_wires] + 1) * sizeof *wires);
    int64_t *times = malloc((c->rows[IN_tasks] + c->rows[IN_messages] + 1) * 2 * sizeof *times);
    clusim_instance_state *states = malloc((c->rows[IN_instances] + 1) * sizeof *states);
    uint64_t *memory = malloc((c->rows[IN_endpoints] + 1) * sizeof *memory);
    clusim_sim_read_wires(s, wires);
    clusim_sim_read_tasks(s, times, times + c->rows[IN_tasks]);
    clusim_sim_read_messages(s, times);
    clusim_sim_read_instances(s, states);
    clusim_sim_read_mem_bytes_256(s, memory);
    (void)clusim_sim_fingerprint(s);
    (void)clusim_sim_now_ps(s);
    free(wires);
    free(times);
    free(states);
    free(memory);
}

static void take_records(clusim_sim *s) {
    size_t count = clusim_sim_num_records(s);
    clusim_record *records = malloc((count + 1) * sizeof *records);
    if (clusim_sim_take_records(s, records, count) != count) finding("records are missing");
    free(records);
}

static void run_sim(clusim_sim *s, const image_case *c) {
    clusim_error error;
    int status;
    uint64_t events = 0;
    do {
        status = clusim_sim_run(s, INT64_MAX, MOST_EVENTS - events);
        take_records(s);
        events = clusim_sim_num_events(s);
    } while (status == CLUSIM_STOP_RECORDS && events < MOST_EVENTS);
    tally.events += events;
    read_out(s, c);
    if (status == CLUSIM_ERR_NO_MEMORY) finding("out of memory");
    tally.done += status == CLUSIM_STOP_DONE;
    tally.deadlocks += status == CLUSIM_STOP_DEADLOCK;
    tally.unfinished += status == CLUSIM_STOP_EVENTS || status == CLUSIM_STOP_RECORDS;
    tally.beyond += status == CLUSIM_ERR_RANGE;
    if (status != CLUSIM_STOP_DONE) return;
    if (clusim_sim_check(s, &error) == CLUSIM_ERR_CONSERVATION)
        finding("conservation: %s", error.message);
    read_out(s, c);
}

static void run_case(image_case *c) {
    struct itimerval limit = {.it_value = {.tv_sec = CPU_SECONDS}};
    setitimer(ITIMER_PROF, &limit, NULL);
    present = c;
    tally.cases++;
    clusim_image image;
    clusim_error error;
    clusim_model *model = NULL;
    clusim_sim *sim = NULL;
    fill_image(&image, c);
    int status = clusim_model_create(&image, &model, &error);
    free_image(&image); /* the model has copies */
    if (status == CLUSIM_ERR_NO_MEMORY) finding("no memory for a model");
    if (status == CLUSIM_OK) {
        if (clusim_sim_create(model, 1, &sim) != CLUSIM_OK) finding("no memory for a sim");
        clusim_sim_use_windows(sim, 1);
        uint32_t threads = 1 + (uint32_t)(tally.cases % 3);
        if (clusim_sim_use_threads(sim, threads, 0) < 0) finding("no memory for threads");
        run_sim(sim, c);
    } else {
        tally.refused++;
        if (error.message[0] == 0) finding("refused without a reason");
    }
    clusim_sim_destroy(sim);
    clusim_model_destroy(model);
    present = NULL;
}

/* ---- mutations ---------------------------------------------------------------------------------
 */

static uint64_t rows_into(const image_case *c, uint32_t into) {
    switch (into) {
        case IN_groups: return c->rows[IN_group_off] - 1;
        case IN_paths: return c->rows[IN_path_off] - 1;
        case IN_mgroups: return c->rows[IN_mgroup_off] - 1;
        case IN_vcs: return c->nvc;
        default: return c->rows[into];
    }
}

/* A mostly legal value: immediate refusals test little. */
static uint64_t legal_value(const image_case *c, const field *f) {
    if (f->into != IN_nothing) return below(rows_into(c, f->into));
    uint64_t span = f->hi - (uint64_t)f->lo;
    uint64_t small = below(UINT64_C(1) << below(64));
    return (uint64_t)f->lo + (span == UINT64_MAX ? small : small % (span + 1));
}

static uint64_t new_value(const image_case *c, const field *f, uint64_t old, const char *other) {
    static const uint64_t edges[] = {0,         1,          2,         UINT32_MAX - 1,   UINT32_MAX,
                                     INT32_MAX, UINT64_MAX, INT64_MAX, (uint64_t)1 << 32};
    uint64_t value = 0;
    switch (below(10)) {
        case 0: return edges[below(sizeof edges / sizeof *edges)];
        case 1: return old ^ (UINT64_C(1) << below(f->width * 8));
        case 2: return (uint64_t)f->lo - below(2);
        case 3: return f->hi + below(2);
        case 4: return old + below(3) - 1;
        case 5: memcpy(&value, other, f->width); return value;
        case 6: return f->into == IN_nothing ? old * 2 : rows_into(c, f->into);
        default: return legal_value(c, f);
    }
}

static void mutate_field(image_case *c) {
    const field *f = &fields[below(NUM_FIELDS)];
    uint64_t rows = c->rows[f->table];
    if (rows == 0) return;
    size_t stride = strides[f->table], offset = f->offset + below(f->count) * f->width;
    char *at = c->data[f->table] + below(rows) * stride + offset;
    const char *other = c->data[f->table] + below(rows) * stride + offset;
    uint64_t old = 0;
    memcpy(&old, at, f->width);
    uint64_t value = new_value(c, f, old, other);
    memcpy(at, &value, f->width); /* the low bytes: little-endian, as the files */
}

static void mutate_rows(image_case *c) {
    uint32_t t = (uint32_t)below(NUM_TABLES);
    uint64_t rows = c->rows[t];
    if (rows == 0) return;
    char *a = c->data[t] + below(rows) * strides[t], *b = c->data[t] + below(rows) * strides[t];
    char spare[512];
    switch (below(4)) {
        case 0: /* swap two */
            memcpy(spare, a, strides[t]);
            memmove(a, b, strides[t]);
            memcpy(b, spare, strides[t]);
            break;
        case 1: memmove(a, b, strides[t]); break;
        case 2: c->rows[t] -= 1 + below(rows < 3 ? rows : 3); break;
        default: /* one more, as another */
            memcpy(c->data[t] + rows * strides[t], b, strides[t]);
            c->rows[t]++;
            break;
    }
}

static void mutate(image_case *c) {
    for (uint64_t n = 1 + below(4); n > 0; n--) {
        uint64_t what = below(20);
        if (what == 0) {
            c->nvc = (uint32_t)below(10);
        } else if (what < 3) {
            mutate_rows(c);
        } else {
            mutate_field(c);
        }
    }
}

static void copy_case(image_case *to, const image_case *from) {
    to->nvc = from->nvc;
    to->seed = from->seed;
    for (uint32_t t = 0; t < NUM_TABLES; t++) {
        size_t room = (from->rows[t] + MOST_ROWS_ADDED + 1) * strides[t];
        free(to->data[t]);
        to->data[t] = malloc(room);
        if (to->data[t] == NULL) exit(3);
        to->rows[t] = from->rows[t];
        memcpy(to->data[t], from->data[t], from->rows[t] * strides[t]);
    }
}

/* ---- the program -------------------------------------------------------------------------------
 */

typedef struct options {
    uint64_t cases, seed;
    uint64_t only; /* case to save, or UINT64_MAX */
    bool replay;
    int first_file;
} options;

static options read_options(int argc, char **argv) {
    options o = {.cases = 10000, .seed = 1, .only = UINT64_MAX};
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--replay") == 0) {
            o.replay = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--cases") == 0) {
            o.cases = strtoull(argv[++i], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0) {
            o.seed = strtoull(argv[++i], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--write") == 0) {
            o.only = strtoull(argv[++i], NULL, 10);
            o.cases = o.only + 1;
        } else if (i + 1 < argc && strcmp(argv[i], "--save") == 0) {
            save_dir = argv[++i];
        } else {
            break;
        }
    }
    o.first_file = i;
    return o;
}

static void fuzz(const options *o, const image_case *corpus, uint64_t count) {
    image_case damaged = {0};
    for (uint64_t n = o->only == UINT64_MAX ? 0 : o->only; n < o->cases; n++) {
        random_state = o->seed * UINT64_C(0x9E3779B97F4A7C15) + n;
        next_random();
        copy_case(&damaged, &corpus[below(count)]);
        mutate(&damaged);
        if (o->only == UINT64_MAX) {
            run_case(&damaged);
        } else {
            present = &damaged;
            tally.cases = n;
            on_death();
        }
    }
    free_case(&damaged);
}

int main(int argc, char **argv) {
    program = argv[0];
    options o = read_options(argc, argv);
    uint64_t count = (uint64_t)(argc - o.first_file);
    if (argc <= o.first_file) {
        fprintf(stderr,
                "usage: fuzz_image [--cases N] [--seed S] [--save DIR] [--replay] FILE...\n");
        return 2;
    }
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(on_death);
    signal(SIGPROF, on_signal);
    signal(SIGABRT, on_signal);
    image_case *corpus = calloc(count, sizeof *corpus);
    for (uint64_t k = 0; k < count; k++) {
        const char *path = argv[o.first_file + (int)k];
        if (!read_case(path, &corpus[k])) {
            fprintf(stderr, "%s: no image of this version; write the corpus anew\n", path);
            return 2;
        }
        if (o.replay) run_case(&corpus[k]);
    }
    if (!o.replay) fuzz(&o, corpus, count);
    for (uint64_t k = 0; k < count; k++) free_case(&corpus[k]);
    free(corpus);
    printf("seed %" PRIu64 ": %" PRIu64 " cases, %" PRIu64 " refused, %" PRIu64 " done, %" PRIu64
           " deadlocks, %" PRIu64 " unfinished, %" PRIu64 " beyond the ranges, %" PRIu64
           " events\n",
           o.seed, tally.cases, tally.refused, tally.done, tally.deadlocks, tally.unfinished,
           tally.beyond, tally.events);
    return 0;
}
