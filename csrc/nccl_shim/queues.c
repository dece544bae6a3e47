/* Streams, events and graphs of the CUDA runtime: handles are numbers of the server. */
#define _GNU_SOURCE
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

cuda_result failed(cuda_result code);

static long long number(const void *handle) { return (long long)(intptr_t)handle; }

static cuda_result made(void **handle, reply got) {
    if (got.code == 0) *handle = (void *)(intptr_t)got.values[0];
    return failed(got.code);
}

/* ---- streams */
API cuda_result cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    return made(stream, ask("stream %d %u", current_device(), flags));
}

API cuda_result cudaStreamCreate(void **stream) { return cudaStreamCreateWithFlags(stream, 0); }

API cuda_result cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    (void)priority;
    return cudaStreamCreateWithFlags(stream, flags);
}

API cuda_result cudaStreamDestroy(void *stream) {
    return failed(ask("sdestroy %lld", number(stream)).code);
}

API cuda_result cudaStreamSynchronize(void *stream) {
    return failed(ask("ssync %lld %d %lld", now_ps(), current_device(), number(stream)).code);
}

API cuda_result cudaStreamQuery(void *stream) {
    const reply got = ask("squery %lld %d %lld", now_ps(), current_device(), number(stream));
    if (got.code == CUDA_NOT_READY) usleep(0); /* let the threads of the missing calls run */
    return failed(got.code);
}

API cuda_result cudaDeviceSynchronize(void) {
    the_system();
    return failed(ask("dsync %lld %d", now_ps(), current_device()).code);
}

API cuda_result cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)flags;
    return failed(ask("swait %d %lld %lld", current_device(), number(stream), number(event)).code);
}

/* ---- events */
API cuda_result cudaEventCreateWithFlags(void **event, unsigned flags) {
    (void)flags;
    return made(event, ask("event"));
}

API cuda_result cudaEventCreate(void **event) { return cudaEventCreateWithFlags(event, 0); }

API cuda_result cudaEventDestroy(void *event) {
    return failed(ask("edestroy %lld", number(event)).code);
}

API cuda_result cudaEventRecord(void *event, void *stream) {
    return failed(
        ask("record %lld %d %lld %lld", now_ps(), current_device(), number(stream), number(event))
            .code);
}

API cuda_result cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) {
    (void)flags;
    return cudaEventRecord(event, stream);
}

API cuda_result cudaEventSynchronize(void *event) {
    return failed(ask("esync %lld %lld", now_ps(), number(event)).code);
}

API cuda_result cudaEventQuery(void *event) {
    return failed(ask("equery %lld %lld", now_ps(), number(event)).code);
}

API cuda_result cudaEventElapsedTime(float *ms, void *start, void *end) {
    const reply got = ask("elapsed %lld %lld", number(start), number(end));
    if (got.code == 0) *ms = (float)((double)got.values[0] / 1e9);
    return failed(got.code);
}

API cuda_result cudaEventElapsedTime_v2(float *ms, void *start, void *end) {
    return cudaEventElapsedTime(ms, start, end);
}

/* ---- graphs: captured on one stream */
API cuda_result cudaStreamBeginCapture(void *stream, int mode) {
    (void)mode;
    return failed(ask("begin %d %lld", current_device(), number(stream)).code);
}

API cuda_result cudaStreamEndCapture(void *stream, void **graph) {
    return made(graph, ask("end %d %lld", current_device(), number(stream)));
}

API cuda_result cudaStreamIsCapturing(void *stream, int *status) {
    const reply got = ask("capturing %d %lld", current_device(), number(stream));
    *status = (int)got.values[0];
    return failed(got.code);
}

API cuda_result cudaThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int mode_now;
    const int before = mode_now;
    mode_now = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* An executable graph is the graph: it is not changed after its capture. */
API cuda_result cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) {
    (void)flags;
    return made(executable, ask("instantiate %lld", number(graph)));
}

API cuda_result cudaGraphInstantiateWithFlags(void **executable, void *graph,
                                              unsigned long long flags) {
    return cudaGraphInstantiate(executable, graph, flags);
}

API cuda_result cudaGraphLaunch(void *executable, void *stream) {
    return failed(ask("glaunch %lld %d %lld %lld", now_ps(), current_device(), number(stream),
                      number(executable))
                      .code);
}

API cuda_result cudaGraphDestroy(void *graph) {
    return failed(ask("gdestroy %lld", number(graph)).code);
}

API cuda_result cudaGraphExecDestroy(void *executable) { return cudaGraphDestroy(executable); }
