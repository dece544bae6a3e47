/* NCCL's functions. Calls of a group are one request, sent at the end of the outermost group. */
#define _GNU_SOURCE
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct communicator {
    long long number; /* of the server; also its rank's */
    int rank, ranks, device;
    unsigned char *scalars; /* 8 bytes of each operation of ncclRedOpCreatePreMulSum */
    int operations;
} communicator;

enum { SCALAR_BYTES = 8, MOST_OPERATIONS = 1 << 16 };
static const int element_bytes[NCCL_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* ---- groups of this thread */
static __thread int depth;
static __thread line calls, joins;
static __thread int num_calls, num_joins;
static __thread communicator **joining[1024]; /* targets of the new handles */
static __thread int devices[1024];

static nccl_result usage(const char *text) {
    fprintf(stderr, "clusim: %s\n", text);
    return NCCL_INVALID_USAGE;
}

/* Create the communicators of a group; the reply waits for their last rank.
 */
static nccl_result end_joins(void) {
    if (num_joins == 0) return NCCL_SUCCESS;
    const int count = num_joins;
    num_joins = 0;
    const reply got = ask_line(&joins);
    if (got.code != 0) return got.code;
    char *at = got.words;
    for (int i = 0; i < count; i++) {
        const long long number = strtoll(at, &at, 10);
        const int rank = (int)strtol(at, &at, 10), ranks = (int)strtol(at, &at, 10);
        if (number < 0) {
            *joining[i] = NULL; /* a split without colour */
            continue;
        }
        communicator *made = calloc(1, sizeof *made);
        if (made == NULL) return NCCL_SYSTEM_ERROR;
        *made =
            (communicator){.number = number, .rank = rank, .ranks = ranks, .device = devices[i]};
        *joining[i] = made;
    }
    return NCCL_SUCCESS;
}

static nccl_result end_calls(void) {
    if (num_calls == 0) return NCCL_SUCCESS;
    num_calls = 0;
    return ask_line(&calls).code;
}

static nccl_result end_group(void) {
    if (depth > 0) return NCCL_SUCCESS;
    const nccl_result joined = end_joins(), called = end_calls();
    return joined != NCCL_SUCCESS ? joined : called;
}

API nccl_result ncclGroupStart(void) {
    depth++;
    return NCCL_SUCCESS;
}

API nccl_result ncclGroupEnd(void) {
    if (depth == 0) return usage("ncclGroupEnd without ncclGroupStart");
    depth--;
    return end_group();
}

/* ---- communicators */
API nccl_result ncclGetVersion(int *version) {
    *version = the_system()->version;
    return NCCL_SUCCESS;
}

API nccl_result ncclGetUniqueId(nccl_unique_id *id) {
    the_system();
    const reply got = ask("id");
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "clusim %lld", got.values[0]);
    return got.code;
}

static int joins_more(communicator **made, int device) {
    if (num_joins == 0) put(&joins, "join %lld", now_ps());
    joining[num_joins] = made;
    devices[num_joins++] = device;
    return num_joins < 1024;
}

static nccl_result join(communicator **made, int ranks, const nccl_unique_id *id, int rank,
                        int device) {
    long long number;
    the_system();
    if (made == NULL) return NCCL_INVALID_ARGUMENT;
    if (sscanf(id->internal, "clusim %lld", &number) != 1)
        return usage("unique id of another library");
    if (ranks < 1 || rank < 0 || rank >= ranks) {
        fprintf(stderr, "clusim: rank %d of %d: not one of the ranks\n", rank, ranks);
        return NCCL_INVALID_ARGUMENT;
    }
    if (!joins_more(made, device)) return usage("too many communicators in a group");
    put(&joins, " init %lld %d %d %d", number, ranks, rank, device);
    return end_group();
}

API nccl_result ncclCommInitRankConfig(communicator **made, int ranks, nccl_unique_id id, int rank,
                                       void *config) {
    (void)config;
    return join(made, ranks, &id, rank, current_device());
}

API nccl_result ncclCommInitRank(communicator **made, int ranks, nccl_unique_id id, int rank) {
    return join(made, ranks, &id, rank, current_device());
}

API nccl_result ncclCommInitAll(communicator **made, int count, const int *list) {
    nccl_unique_id id;
    nccl_result result = ncclGetUniqueId(&id);
    ncclGroupStart();
    for (int i = 0; i < count && result == NCCL_SUCCESS; i++)
        result = join(made + i, count, &id, i, list == NULL ? i : list[i]);
    const nccl_result ended = ncclGroupEnd();
    return result != NCCL_SUCCESS ? result : ended;
}

API nccl_result ncclCommSplit(communicator *self, int color, int key, communicator **made,
                              void *config) {
    (void)config;
    if (self == NULL || made == NULL) return NCCL_INVALID_ARGUMENT;
    if (color < 0 && color != NCCL_NO_COLOR) return NCCL_INVALID_ARGUMENT;
    if (!joins_more(made, self->device)) return usage("too many communicators in a group");
    put(&joins, " split %lld %d %d %d", self->number, color, key, self->rank);
    return end_group();
}

API nccl_result ncclCommDestroy(communicator *self) {
    if (self == NULL) return NCCL_SUCCESS;
    const reply got = ask("quit %lld %lld %d", now_ps(), self->number, self->rank);
    free(self->scalars);
    free(self);
    return got.code;
}

API nccl_result ncclCommAbort(communicator *self) { return ncclCommDestroy(self); }

API nccl_result ncclCommFinalize(communicator *self) {
    return self == NULL ? NCCL_INVALID_ARGUMENT : NCCL_SUCCESS;
}

static nccl_result answer(const communicator *self, int *to, int value) {
    if (self == NULL || to == NULL) return NCCL_INVALID_ARGUMENT;
    *to = value;
    return NCCL_SUCCESS;
}

API nccl_result ncclCommGetAsyncError(communicator *self, nccl_result *error) {
    return answer(self, error, NCCL_SUCCESS);
}

API nccl_result ncclCommCount(const communicator *self, int *count) {
    return answer(self, count, self ? self->ranks : 0);
}

API nccl_result ncclCommUserRank(const communicator *self, int *rank) {
    return answer(self, rank, self ? self->rank : 0);
}

API nccl_result ncclCommCuDevice(const communicator *self, int *device) {
    return answer(self, device, self ? self->device : 0);
}

API const char *ncclGetErrorString(nccl_result code) {
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return code >= 0 && code < 8 ? texts[code] : "unknown result code";
}

API const char *ncclGetLastError(communicator *self) {
    (void)self;
    return last_error();
}

/* ---- memory */
API nccl_result ncclMemAlloc(void **address, size_t bytes) {
    the_system();
    *address = shared_alloc(current_device(), bytes);
    return *address != NULL || bytes == 0 ? NCCL_SUCCESS : 1;
}

API nccl_result ncclMemFree(void *address) {
    if (address == NULL) return NCCL_SUCCESS;
    ask("dsync %lld %d", now_ps(), current_device());
    return shared_free(address) ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}

static nccl_result registered(const communicator *self, const void *address, void **handle) {
    if (self == NULL || !is_shared(address)) return NCCL_INVALID_ARGUMENT;
    *handle = (void *)(uintptr_t)address;
    return NCCL_SUCCESS;
}

API nccl_result ncclCommRegister(const communicator *self, void *address, size_t bytes,
                                 void **handle) {
    (void)bytes;
    return registered(self, address, handle);
}

API nccl_result ncclCommDeregister(const communicator *self, void *handle) {
    (void)handle;
    return self == NULL ? NCCL_INVALID_ARGUMENT : NCCL_SUCCESS;
}

/* A symmetric window changes NCCL's kernels; the server plans them. */
API nccl_result ncclCommWindowRegister(communicator *self, void *address, size_t bytes,
                                       void **window, int flags) {
    const nccl_result result = registered(self, address, window);
    if (result != NCCL_SUCCESS || !(flags & 1)) return result;
    return ask("window %lld %lld %zu 1", self->number, (long long)(intptr_t)address, bytes).code;
}

API nccl_result ncclCommWindowDeregister(communicator *self, void *window) {
    if (self == NULL) return NCCL_INVALID_ARGUMENT;
    return ask("window %lld %lld 0 0", self->number, (long long)(intptr_t)window).code;
}

/* ---- reductions with a scalar */
API nccl_result ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence,
                                         communicator *self) {
    (void)residence; /* memory of devices is host memory */
    if (self == NULL || type < 0 || type >= NCCL_TYPES) return NCCL_INVALID_ARGUMENT;
    if (self->operations == MOST_OPERATIONS) return usage("too many reductions with a scalar");
    unsigned char *more = realloc(self->scalars, (size_t)(self->operations + 1) * SCALAR_BYTES);
    if (more == NULL) return NCCL_SYSTEM_ERROR;
    self->scalars = more;
    memset(more + self->operations * SCALAR_BYTES, 0, SCALAR_BYTES);
    memcpy(more + self->operations * SCALAR_BYTES, scalar, (size_t)element_bytes[type]);
    *op = NCCL_BUILT_IN_OPS + self->operations++;
    return NCCL_SUCCESS;
}

/* Slots are reused in stack order: programs create and destroy a reduction per call. */
API nccl_result ncclRedOpDestroy(int op, communicator *self) {
    if (self == NULL || op < NCCL_BUILT_IN_OPS) return NCCL_INVALID_ARGUMENT;
    if (op == NCCL_BUILT_IN_OPS + self->operations - 1) self->operations--;
    return NCCL_SUCCESS;
}

/* ---- calls */
typedef struct {
    const char *name;
    const void *send;
    void *receive;
    size_t count;
    int type, op, root; /* root: or peer */
} call;

static nccl_result check(const call *self, const communicator *on) {
    if (on == NULL) return usage("a communicator is NULL");
    if (self->type < 0 || self->type >= NCCL_TYPES)
        return usage("a data type is not one of NCCL's");
    if (self->op < 0 || self->op >= NCCL_BUILT_IN_OPS + on->operations)
        return usage("a reduction is not one of NCCL's");
    if (self->root < 0 || self->root >= on->ranks) {
        fprintf(stderr, "clusim: %s: rank %d is not one of the %d ranks\n", self->name, self->root,
                on->ranks);
        return NCCL_INVALID_ARGUMENT;
    }
    return NCCL_SUCCESS;
}

static nccl_result enqueue(call self, const communicator *on, const void *stream) {
    const nccl_result result = check(&self, on);
    if (result != NCCL_SUCCESS) return result;
    if (num_calls++ == 0) put(&calls, "group %lld", now_ps());
    put(&calls, " %s %lld %d %d %lld %lld %lld %zu %d %d %d", self.name, on->number, on->rank,
        on->device, (long long)(intptr_t)stream, (long long)(intptr_t)self.send,
        (long long)(intptr_t)self.receive, self.count, self.type,
        self.op < NCCL_BUILT_IN_OPS ? self.op : NCCL_BUILT_IN_OPS, self.root);
    uint64_t scalar = 0;
    if (self.op >= NCCL_BUILT_IN_OPS)
        memcpy(&scalar, on->scalars + (self.op - NCCL_BUILT_IN_OPS) * SCALAR_BYTES, SCALAR_BYTES);
    put(&calls, " %llu", (unsigned long long)scalar);
    return end_group();
}

API nccl_result ncclAllReduce(const void *send, void *receive, size_t count, int type, int op,
                              communicator *on, void *stream) {
    return enqueue((call){"allreduce", send, receive, count, type, op, 0}, on, stream);
}

API nccl_result ncclReduce(const void *send, void *receive, size_t count, int type, int op,
                           int root, communicator *on, void *stream) {
    return enqueue((call){"reduce", send, receive, count, type, op, root}, on, stream);
}

API nccl_result ncclBroadcast(const void *send, void *receive, size_t count, int type, int root,
                              communicator *on, void *stream) {
    return enqueue((call){"broadcast", send, receive, count, type, 0, root}, on, stream);
}

API nccl_result ncclBcast(void *buffer, size_t count, int type, int root, communicator *on,
                          void *stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, on, stream);
}

API nccl_result ncclReduceScatter(const void *send, void *receive, size_t count, int type, int op,
                                  communicator *on, void *stream) {
    return enqueue((call){"reduce_scatter", send, receive, count, type, op, 0}, on, stream);
}

API nccl_result ncclAllGather(const void *send, void *receive, size_t count, int type,
                              communicator *on, void *stream) {
    return enqueue((call){"all_gather", send, receive, count, type, 0, 0}, on, stream);
}

API nccl_result ncclAlltoAll(const void *send, void *receive, size_t count, int type,
                             communicator *on, void *stream) {
    return enqueue((call){"alltoall", send, receive, count, type, 0, 0}, on, stream);
}

API nccl_result ncclGather(const void *send, void *receive, size_t count, int type, int root,
                           communicator *on, void *stream) {
    return enqueue((call){"gather", send, receive, count, type, 0, root}, on, stream);
}

API nccl_result ncclScatter(const void *send, void *receive, size_t count, int type, int root,
                            communicator *on, void *stream) {
    return enqueue((call){"scatter", send, receive, count, type, 0, root}, on, stream);
}

API nccl_result ncclSend(const void *send, size_t count, int type, int peer, communicator *on,
                         void *stream) {
    return enqueue((call){"send", send, NULL, count, type, 0, peer}, on, stream);
}

API nccl_result ncclRecv(void *receive, size_t count, int type, int peer, communicator *on,
                         void *stream) {
    return enqueue((call){"recv", NULL, receive, count, type, 0, peer}, on, stream);
}
