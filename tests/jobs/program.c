/* The jobs of `cases.py` that have no kernels, for `clusim exec`: one per first argument. It prints
 * its time. */
#include "../programs/abi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GPUS = 4, MIB = 1 << 20, BYTES = 32 * MIB };

#define CHECK(call)                                                                                \
    do {                                                                                           \
        const int code_ = (call);                                                                  \
        if (code_ != 0) printf("%s: %d\n", #call, code_), exit(3);                                 \
    } while (0)

enum { UINT8 = 1 };

static const size_t parts[GPUS] = {1 * MIB, 4 * MIB, 8 * MIB, 16 * MIB};
static comm_t comms[2][GPUS], pairs[2][GPUS];
static stream_t streams[2][GPUS];
static char *in[2][GPUS], *out[2][GPUS];

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void start(void) {
    for (int k = 0; k < 2; k++) {
        CHECK(ncclCommInitAll(comms[k], GPUS, NULL));
        for (int i = 0; i < GPUS; i++) {
            CHECK(cudaSetDevice(i));
            CHECK(cudaMalloc((void **)&in[k][i], BYTES));
            CHECK(cudaMalloc((void **)&out[k][i], BYTES));
            CHECK(cudaStreamCreateWithFlags(&streams[k][i], 1));
        }
    }
    /* Pairs (0, 1) and (2, 3), then (1, 2). */
    for (int k = 0; k < 2; k++) {
        CHECK(ncclGroupStart());
        for (int i = 0; i < GPUS; i++)
            CHECK(ncclCommSplit(comms[0][i],
                                k == 0       ? i / 2
                                : i % 3 == 0 ? -1
                                             : 0,
                                i, &pairs[k][i], NULL));
        CHECK(ncclGroupEnd());
    }
}

static void all_reduce(int k) {
    CHECK(ncclGroupStart());
    for (int i = 0; i < GPUS; i++)
        CHECK(ncclAllReduce(in[k][i], out[k][i], BYTES / 4, FLOAT32, SUM, comms[k][i],
                            streams[k][i]));
    CHECK(ncclGroupEnd());
}

static void all_reduces(int number) {
    for (int k = 0; k < number; k++) all_reduce(k);
}

static void finish(int k) {
    for (int i = 0; i < GPUS; i++) CHECK(cudaStreamSynchronize(streams[k][i]));
}

/* One of two threads that call at the same time, of which the second needs some real time. */
static pthread_barrier_t both;
static double times_us[2];

static void *call_in_thread(void *number) {
    const int k = (int)(size_t)number;
    CHECK(cudaSetDevice(0));
    const double before = now_us();
    pthread_barrier_wait(&both);
    for (volatile int turn = 0; turn < k * 1000000;) turn++; /* no time of the program */
    all_reduce(k);
    finish(k);
    times_us[k] = now_us() - before;
    return NULL;
}

static double in_threads(void) {
    pthread_t threads[2];
    pthread_barrier_init(&both, NULL, 2);
    for (size_t k = 0; k < 2; k++)
        CHECK(pthread_create(&threads[k], NULL, call_in_thread, (void *)k));
    for (int k = 0; k < 2; k++) CHECK(pthread_join(threads[k], NULL));
    return times_us[0] > times_us[1] ? times_us[0] : times_us[1];
}

static void chain(int of_pairs) {
    for (int i = 0; i + 1 < GPUS; i++) {
        comm_t *of = of_pairs ? pairs[i == 1] : comms[0];
        const int source = of_pairs ? 0 : i, target = of_pairs ? 1 : i + 1;
        CHECK(ncclSend(in[0][i], BYTES, UINT8, target, of[i], streams[0][i]));
        CHECK(ncclRecv(out[0][i + 1], BYTES, UINT8, source, of[i + 1], streams[0][i + 1]));
    }
}

static void exchange(void) {
    CHECK(ncclGroupStart());
    for (int i = 0; i < GPUS; i++)
        for (int peer = 0; peer < GPUS; peer++) {
            if (peer == i) continue;
            CHECK(ncclSend(in[0][i], parts[peer], UINT8, peer, comms[0][i], streams[0][i]));
            CHECK(ncclRecv(out[0][i], parts[i], UINT8, peer, comms[0][i], streams[0][i]));
        }
    CHECK(ncclGroupEnd());
}

static void run(const char *name) {
    if (strcmp(name, "one call") == 0)
        all_reduces(1);
    else if (strcmp(name, "two calls") == 0)
        all_reduces(2);
    else if (strcmp(name, "chain of messages") == 0)
        chain(0);
    else if (strcmp(name, "chain of pairs") == 0)
        chain(1);
    else
        exchange();
}

int main(int count, char **names) {
    start();
    for (int at = 1; at < count; at++) {
        for (int repeat = 0; repeat < 2; repeat++) { /* The first run connects. */
            const double before = now_us();
            if (strcmp(names[at], "two calls of two threads") == 0) {
                const double time_us = in_threads();
                if (repeat == 1) printf("%s: %.3f\n", names[at], time_us);
                continue;
            }
            run(names[at]);
            for (int k = 0; k < 2; k++) finish(k);
            if (repeat == 1) printf("%s: %.3f\n", names[at], now_us() - before);
        }
    }
    return 0;
}
