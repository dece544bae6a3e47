/* run_image - run images from files to their end, once with windows and once with events alone.
 *
 *     run_image [-w|-e] FILE...
 *
 * Prints one line a run: hops, grants, events, seconds of processor time and the fingerprint, which
 * must be the same for both. With -e there are only events, with -w what the engine chooses by
 * itself: this is run under callgrind to count instructions (benchmarks/run.py).
 */
#include <inttypes.h>
#include <time.h>

#include "image_file.h"

enum { CHOSEN = 2 };

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void print_run(const clusim_sim *s, const clusim_image *im, double took_s) {
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
           " seconds %.4f fingerprint %016" PRIx64 "\n",
           hops, grants, clusim_sim_num_events(s), took_s, clusim_sim_fingerprint(s));
}

/* The fingerprint of a run to its end. */
static uint64_t run(const clusim_image *im, int windows) {
    clusim_error error;
    clusim_model *model = NULL;
    clusim_sim *sim = NULL;
    if (clusim_model_create(im, &model, &error) != CLUSIM_OK ||
        clusim_sim_create(model, 0, &sim) != CLUSIM_OK) {
        fprintf(stderr, "run_image: %s\n", error.message);
        exit(1);
    }
    if (windows != CHOSEN) clusim_sim_use_windows(sim, windows);
    double began_s = seconds();
    int stop = clusim_sim_run(sim, INT64_MAX, UINT64_MAX);
    double took_s = seconds() - began_s;
    if (stop != CLUSIM_STOP_DONE) {
        fprintf(stderr, "run_image: stopped with %d\n", stop);
        exit(1);
    }
    print_run(sim, im, took_s);
    uint64_t fingerprint = clusim_sim_fingerprint(sim);
    clusim_sim_destroy(sim);
    clusim_model_destroy(model);
    return fingerprint;
}

int main(int argc, char **argv) {
    bool windows = argc < 2 || strcmp(argv[1], "-e") != 0;
    bool events = argc < 2 || strcmp(argv[1], "-w") != 0;
    for (int i = windows && events ? 1 : 2; i < argc; i++) {
        image_case c;
        clusim_image image;
        if (!read_case(argv[i], &c)) {
            fprintf(stderr, "run_image: %s is no image\n", argv[i]);
            return 1;
        }
        fill_image(&image, &c);
        uint64_t fingerprint = run(&image, !windows ? 0 : events ? 1 : CHOSEN);
        if (windows && events && run(&image, 0) != fingerprint) {
            fprintf(stderr, "run_image: %s: windows and events differ\n", argv[i]);
            return 1;
        }
        free_image(&image);
        free_case(&c);
    }
    return 0;
}
