/* Program of the tests of `clusim exec`: one case per first argument. It prints what it found. */
#include "abi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GPUS = 8, COUNT = 1000, BYTES = COUNT * 4 };

#define CHECK(call)                                                                                \
    do {                                                                                           \
        const int code_ = (call);                                                                  \
        if (code_ != 0) printf("%s: %d\n", #call, code_), exit(3);                                 \
    } while (0)

static comm_t comms[GPUS];
static stream_t streams[GPUS];
static float *in[GPUS], *out[GPUS], host[COUNT];

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void buffers(int gpus, int first) {
    for (int i = 0; i < gpus; i++) {
        CHECK(cudaSetDevice(first + i));
        CHECK(cudaMalloc((void **)&in[i], BYTES));
        CHECK(cudaMalloc((void **)&out[i], BYTES));
        CHECK(cudaStreamCreateWithFlags(&streams[i], 1));
        for (int k = 0; k < COUNT; k++) host[k] = (float)(first + i + 1) + (float)k;
        CHECK(cudaMemcpy(in[i], host, BYTES, TO_DEVICE));
        CHECK(cudaMemset(out[i], 0, BYTES));
    }
}

static void start(void) {
    CHECK(ncclCommInitAll(comms, GPUS, NULL));
    buffers(GPUS, 0);
}

static void sum_of_all(int gpus) {
    CHECK(ncclGroupStart());
    for (int i = 0; i < gpus; i++)
        CHECK(ncclAllReduce(in[i], out[i], COUNT, FLOAT32, SUM, comms[i], streams[i]));
    CHECK(ncclGroupEnd());
}

/* Number of elements of a result that are not `base` + k * `slope`. */
static int wrong(const float *device, float base, float slope) {
    int result = 0;
    CHECK(cudaMemcpy(host, device, BYTES, TO_HOST));
    for (int k = 0; k < COUNT; k++) result += host[k] != base + slope * (float)k;
    return result;
}

static void finish(int gpus) {
    for (int i = 0; i < gpus; i++) CHECK(cudaStreamSynchronize(streams[i]));
}

static int groups(void) {
    start();
    sum_of_all(GPUS);
    finish(GPUS);
    double before = now_us(), shortest = 1e9, longest = 0;
    for (int repeat = 0; repeat < 8; repeat++) {
        for (int i = 0; i < 5; i++) sum_of_all(GPUS);
        finish(GPUS);
        const double after = now_us();
        if (after - before < shortest) shortest = after - before;
        if (after - before > longest) longest = after - before;
        before = after;
    }
    printf("us %.4f\nvaries %.4f\n", shortest / 5, longest - shortest);
    int bad = 0;
    for (int i = 0; i < GPUS; i++) bad += wrong(out[i], 36, GPUS);
    printf("wrong %d\n", bad);
    return 0;
}

static int messages(void) {
    start();
    CHECK(ncclGroupStart());
    for (int i = 0; i < GPUS; i++) {
        CHECK(ncclSend(in[i], COUNT, FLOAT32, (i + 1) % GPUS, comms[i], streams[i]));
        CHECK(ncclRecv(out[i], COUNT, FLOAT32, (i + GPUS - 1) % GPUS, comms[i], streams[i]));
    }
    CHECK(ncclGroupEnd());
    int bad = 0;
    for (int i = 0; i < GPUS; i++) {
        CHECK(cudaStreamSynchronize(streams[i]));
        bad += wrong(out[i], (float)((i + GPUS - 1) % GPUS + 1), 1);
    }
    const double before = now_us();
    CHECK(ncclSend(in[5], COUNT, FLOAT32, 2, comms[5],
                   streams[5])); /* no group: the receiver comes later */
    printf("pending %d\n", cudaStreamQuery(streams[5]));
    CHECK(ncclRecv(out[2], COUNT, FLOAT32, 5, comms[2], streams[2]));
    CHECK(cudaStreamSynchronize(streams[2]));
    printf("wrong %d\nus %.3f\n", bad + wrong(out[2], 6, 1), now_us() - before);
    return 0;
}

static int events(void) {
    event_t before, after, made;
    stream_t other;
    float ms, wait_ms, *pinned;
    start();
    CHECK(cudaEventCreate(&before));
    CHECK(cudaEventCreate(&after));
    CHECK(cudaEventCreate(&made));
    CHECK(cudaSetDevice(0));
    CHECK(cudaStreamCreate(&other));
    CHECK(cudaHostAlloc((void **)&pinned, BYTES, 0));
    CHECK(cudaEventRecord(before, streams[0]));
    sum_of_all(GPUS);
    CHECK(cudaEventRecord(made, streams[0]));
    CHECK(cudaStreamWaitEvent(other, made, 0));
    CHECK(cudaMemcpyAsync(pinned, out[0], BYTES, TO_HOST, other));
    CHECK(cudaEventRecord(after, other));
    CHECK(cudaEventSynchronize(after));
    CHECK(cudaEventElapsedTime(&ms, before, made));
    CHECK(cudaEventElapsedTime(&wait_ms, made, after));
    printf("sum %g %g\n", pinned[0], pinned[1]);
    printf("us %.3f\nlater %d\n", ms * 1e3, wait_ms > 0);
    const double awake = now_us();
    sleep(2);
    printf("slept %.0f\n", now_us() - awake);
    return 0;
}

static int graph(void) {
    void *captured, *executable;
    start();
    CHECK(ncclGroupStart());
    for (int i = 0; i < GPUS; i++) CHECK(cudaStreamBeginCapture(streams[i], 1));
    for (int i = 0; i < GPUS; i++)
        CHECK(ncclAllReduce(in[i], out[i], COUNT, FLOAT32, SUM, comms[i], streams[i]));
    CHECK(ncclGroupEnd());
    for (int i = 0; i < GPUS; i++) {
        CHECK(cudaStreamEndCapture(streams[i], &captured));
        CHECK(cudaGraphInstantiate(&executable, captured, 0));
        CHECK(cudaGraphLaunch(executable, streams[i]));
    }
    finish(GPUS);
    printf("wrong %d\n", wrong(out[3], 36, GPUS));
    return 0;
}

static int split(void) {
    comm_t halves[GPUS];
    int ranks, rank;
    start();
    CHECK(ncclGroupStart());
    for (int i = 0; i < GPUS; i++)
        CHECK(ncclCommSplit(comms[i], i == 7 ? -1 : i / 4, -i, &halves[i], NULL));
    CHECK(ncclGroupEnd());
    CHECK(ncclCommCount(halves[4], &ranks));
    CHECK(ncclCommUserRank(halves[4], &rank));
    printf("none %d\nranks %d\nrank %d\n", halves[7] == NULL, ranks, rank);
    CHECK(ncclGroupStart());
    for (int i = 4; i < 7; i++)
        CHECK(ncclAllReduce(in[i], out[i], COUNT, FLOAT32, SUM, halves[i], streams[i]));
    CHECK(ncclGroupEnd());
    CHECK(cudaStreamSynchronize(streams[6]));
    printf("wrong %d\n", wrong(out[6], 18, 3));
    return 0;
}

static int failures(void) {
    unique_id id;
    size_t left, total;
    void *pointer;
    start();
    CHECK(ncclGetUniqueId(&id));
    printf("rank %d\n", ncclCommInitRank(&comms[0], 2, id, 2));
    printf("type %d\n", ncclAllReduce(in[1], out[1], COUNT, 99, SUM, comms[1], streams[1]));
    printf("device %d\n", cudaSetDevice(8));
    printf("last %d ", cudaGetLastError());
    printf("%d\n", cudaGetLastError());
    CHECK(cudaMemGetInfo(&left, &total));
    printf("memory %zu\nfull %d\n", total, cudaMalloc(&pointer, total));
    printf("absent %d\n", cudaMallocManaged(&pointer, 8, 1));
    printf("text %s; %s\n", cudaGetErrorString(2), ncclGetErrorString(5));
    CHECK(ncclAllReduce(in[1], out[1], COUNT, FLOAT32, SUM, comms[1], streams[1]));
    printf("other %d\n", ncclBroadcast(in[2], out[2], COUNT, FLOAT32, 0, comms[2], streams[2]));
    printf("host %d\n", ncclAllReduce(host, out[3], COUNT, FLOAT32, SUM, comms[3], streams[3]));
    return 0;
}

/* Two processes with four GPUs each, joined by an identifier in a pipe. */
static int processes(void) {
    int pipes[2], status = 0;
    unique_id id;
    if (pipe(pipes) != 0) return 4;
    const pid_t child = fork();
    if (child != 0) {
        CHECK(ncclGetUniqueId(&id));
        if (write(pipes[1], &id, sizeof id) != sizeof id) return 4;
    } else if (read(pipes[0], &id, sizeof id) != sizeof id) {
        return 4;
    }
    const int first = child != 0 ? 0 : 4;
    CHECK(ncclGroupStart());
    for (int i = 0; i < 4; i++) {
        CHECK(cudaSetDevice(first + i));
        CHECK(ncclCommInitRank(&comms[i], GPUS, id, first + i));
    }
    CHECK(ncclGroupEnd());
    buffers(4, first);
    sum_of_all(4);
    finish(4);
    const int bad = wrong(out[1], 36, GPUS);
    if (child == 0) return bad != 0;
    if (waitpid(child, &status, 0) != child) return 4;
    printf("wrong %d\nchild %d\n", bad, WEXITSTATUS(status));
    return 0;
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        int (*run)(void);
    } cases[] = {{"groups", groups},      {"messages", messages}, {"events", events},
                 {"graph", graph},        {"split", split},       {"failures", failures},
                 {"processes", processes}};
    for (size_t i = 0; count > 1 && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(words[1], cases[i].name) == 0) return cases[i].run();
    return 5;
}
