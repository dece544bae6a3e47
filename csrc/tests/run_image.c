/* run_image - run images from files to their end, once with windows and once with events only.
 *
 *     run_image [-w|-e] [-t THREADS PAYS] FILE...
 *
 * With -t windows of PAYS events are shared by threads. Prints one line per run: hops, grants,
 * events, seconds of processor time and the fingerprint, which must be the same for both. -e uses
 * events only, -w the engine's default choice: this is run under callgrind to count instructions
 * (benchmarks/run.py). */
#include <inttypes.h>
#include <time.h>

#include "image_file.h"

enum { CHOSEN = 2 };

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void print_run(const clusim_sim *s, const clusim_image *im, double took_s, double wall_s) {
    clusim_wire_counters *wires = calloc(im->num_wires + 1, sizeof *wires);
    uint64_t hops = 0, grants = 0;
    if (wires == NULL) exit(3);
    clusim_sim_read_wires(s, wires);
    for (uint64_t w = 0; w < im->num_wires; w++) {
        hops += wires[w].packets;
        grants += wires[w].grants;
    }
    free(wires);
    printf("hops %" PRIu64 " grants %" PRIu64 " events %" PRIu64
           " seconds %.4f wall %.4f fingerprint %016" PRIx64 "\n",
           hops, grants, clusim_sim_num_events(s), took_s, wall_s, clusim_sim_fingerprint(s));
}

typedef struct how {
    int windows;
    uint32_t threads, pays;
} how;

/* The fingerprint of a run to its end. */
static uint64_t run(const clusim_image *im, how h) {
    clusim_error error;
    clusim_model *model = NULL;
    clusim_sim *sim = NULL;
    if (clusim_model_create(im, &model, &error) != CLUSIM_OK ||
        clusim_sim_create(model, 0, &sim) != CLUSIM_OK) {
        fprintf(stderr, "run_image: %s\n", error.message);
        exit(1);
    }
    if (h.windows != CHOSEN) clusim_sim_use_windows(sim, h.windows);
    if (clusim_sim_use_threads(sim, h.threads, h.pays) < 0) exit(3);
    double began_s = seconds(CLOCK_PROCESS_CPUTIME_ID), wall_s = seconds(CLOCK_MONOTONIC);
    int stop = clusim_sim_run(sim, INT64_MAX, UINT64_MAX);
    double took_s = seconds(CLOCK_PROCESS_CPUTIME_ID) - began_s;
    wall_s = seconds(CLOCK_MONOTONIC) - wall_s;
    if (stop != CLUSIM_STOP_DONE) {
        fprintf(stderr, "run_image: stopped with %d\n", stop);
        exit(1);
    }
    print_run(sim, im, took_s, wall_s);
    uint64_t fingerprint = clusim_sim_fingerprint(sim);
    clusim_sim_destroy(sim);
    clusim_model_destroy(model);
    return fingerprint;
}

/* Returns whether it is one, and its runs were equal. */
static bool run_file(const char *path, how first, bool twice) {
    image_case c;
    clusim_image image;
    if (!read_case(path, &c)) {
        fprintf(stderr, "run_image: %s is no image\n", path);
        return false;
    }
    fill_image(&image, &c);
    uint64_t fingerprint = run(&image, first);
    bool equal = !twice || run(&image, (how){0, 1, 0}) == fingerprint;
    if (!equal) fprintf(stderr, "run_image: %s: windows and events differ\n", path);
    free_image(&image);
    free_case(&c);
    return equal;
}

int main(int argc, char **argv) {
    how h = {1, 1, CLUSIM_NONE};
    bool twice = true;
    int at = 1;
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (strcmp(argv[at], "-t") == 0 && at + 2 < argc) {
            h.threads = (uint32_t)atoi(argv[++at]);
            h.pays = (uint32_t)atoi(argv[++at]);
        } else {
            twice = false;
            h.windows = strcmp(argv[at], "-w") == 0 ? CHOSEN : 0;
        }
    }
    for (; at < argc; at++)
        if (!run_file(argv[at], h, twice)) return 1;
    return 0;
}
