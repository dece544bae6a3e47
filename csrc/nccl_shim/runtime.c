/* The CUDA runtime: devices, memory, errors and kernels. Streams, events and graphs are in
 * queues.c. */
#define _GNU_SOURCE
#include "shim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __thread int device_now;
static __thread cuda_result last_result;

int current_device(void) { return device_now; }

cuda_result failed(cuda_result code) {
    if (code != CUDA_SUCCESS && code != CUDA_NOT_READY) last_result = code;
    return code;
}

/* ---- devices */
API cuda_result cudaGetDeviceCount(int *count) {
    *count = the_system()->gpus;
    return CUDA_SUCCESS;
}

API cuda_result cudaSetDevice(int device) {
    if (device < 0 || device >= the_system()->gpus) return failed(CUDA_INVALID_DEVICE);
    device_now = device;
    return CUDA_SUCCESS;
}

API cuda_result cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
    (void)device_flags, (void)flags;
    return cudaSetDevice(device);
}

API cuda_result cudaGetDevice(int *device) {
    *device = device_now;
    return CUDA_SUCCESS;
}

API cuda_result cudaSetDeviceFlags(unsigned flags) {
    (void)flags;
    return CUDA_SUCCESS;
}

static int bus_of(int device) { return (0x1A + 0x11 * device) & 0xFF; }

/* Offsets of the fields of cudaDeviceProp, for the layout since CUDA 13 and the one of 12. */
typedef struct {
    size_t bytes, processors, bus;
} layout;
static const layout since_13 = {.bytes = 1008, .processors = 384, .bus = 568};
static const layout of_12 = {.bytes = 1032, .processors = 388, .bus = 592};
enum { MEMORY_AT = 288, SHARED_AT = 296, WARP_AT = 308, BLOCK_AT = 320, MAJOR_AT = 360 };

static cuda_result properties(char *to, int device, const layout *at) {
    const system_info *system = the_system();
    if (device < 0 || device >= system->gpus) return failed(CUDA_INVALID_DEVICE);
    const size_t memory = system->memory_bytes, shared = 48 << 10;
    const int warp = 32, block[4] = {1024, 1024, 1024, 64},
              capability[2] = {system->major, system->minor};
    const int bus[3] = {bus_of(device), 0, 0}; /* PCI bus, device, domain */
    memset(to, 0, at->bytes);
    snprintf(to, 256, "%s", system->gpu);
    memcpy(to + 256, &device, sizeof device); /* UUID */
    memcpy(to + MEMORY_AT, &memory, sizeof memory);
    memcpy(to + SHARED_AT, &shared, sizeof shared);
    memcpy(to + WARP_AT, &warp, sizeof warp);
    memcpy(to + BLOCK_AT, block, sizeof block);
    memcpy(to + MAJOR_AT, capability, sizeof capability);
    memcpy(to + at->processors, &system->sms, sizeof system->sms);
    memcpy(to + at->bus, bus, sizeof bus);
    return CUDA_SUCCESS;
}

API cuda_result cudaGetDeviceProperties(void *to, int device) {
    return properties(to, device, &since_13);
}

API cuda_result cudaGetDeviceProperties_v2(void *to, int device) {
    return properties(to, device, &of_12);
}

API cuda_result cudaDeviceGetAttribute(int *value, int attribute, int device) {
    enum {
        THREADS = 1,
        WARP = 10,
        PROCESSORS = 16,
        BUS = 33,
        PCI_DEVICE = 34,
        UNIFIED = 41,
        DOMAIN = 50,
        MAJOR = 75,
        MINOR = 76
    };
    const system_info *system = the_system();
    if (device < 0 || device >= system->gpus) return failed(CUDA_INVALID_DEVICE);
    switch (attribute) {
        case THREADS: *value = 1024; break;
        case WARP: *value = 32; break;
        case PROCESSORS: *value = system->sms; break;
        case BUS: *value = bus_of(device); break;
        case UNIFIED: *value = 1; break;
        case MAJOR: *value = system->major; break;
        case MINOR: *value = system->minor; break;
        default:
            *value =
                0; /* also PCI device and domain: features that are not simulated are not there */
    }
    return CUDA_SUCCESS;
}

API cuda_result cudaDeviceGetPCIBusId(char *to, int length, int device) {
    if (device < 0 || device >= the_system()->gpus) return failed(CUDA_INVALID_DEVICE);
    snprintf(to, (size_t)length, "0000:%02x:00.0", bus_of(device));
    return CUDA_SUCCESS;
}

API cuda_result cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer;
    return CUDA_SUCCESS;
}

API cuda_result cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    (void)flags;
    return peer >= 0 && peer < the_system()->gpus ? CUDA_SUCCESS : failed(CUDA_INVALID_DEVICE);
}

API cuda_result cudaDeviceReset(void) { return CUDA_SUCCESS; }

API cuda_result cudaRuntimeGetVersion(int *version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

API cuda_result cudaDriverGetVersion(int *version) { return cudaRuntimeGetVersion(version); }

API cuda_result cudaMemGetInfo(size_t *left, size_t *total) {
    *total = the_system()->memory_bytes;
    *left = free_bytes(device_now);
    return CUDA_SUCCESS;
}

/* ---- errors */
API cuda_result cudaGetLastError(void) {
    const cuda_result result = last_result;
    last_result = CUDA_SUCCESS;
    return result;
}

API cuda_result cudaPeekAtLastError(void) { return last_result; }

static const struct {
    cuda_result code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "cudaSuccess", "no error"},
    {CUDA_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {CUDA_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {CUDA_INVALID_FUNCTION, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {CUDA_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {CUDA_NOT_READY, "cudaErrorNotReady", "device not ready"},
    {CUDA_NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported"},
    {CUDA_UNKNOWN, "cudaErrorUnknown", "unknown error"},
};

API const char *cudaGetErrorString(cuda_result code) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) return errors[i].text;
    return "unrecognized error code";
}

API const char *cudaGetErrorName(cuda_result code) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) return errors[i].name;
    return "unrecognized error code";
}

/* ---- memory */
static cuda_result allocate(void **address, int device, size_t bytes) {
    the_system();
    *address = bytes == 0 ? NULL : shared_alloc(device, bytes);
    return bytes == 0 || *address != NULL ? CUDA_SUCCESS : failed(CUDA_OUT_OF_MEMORY);
}

API cuda_result cudaMalloc(void **address, size_t bytes) {
    return allocate(address, device_now, bytes);
}

API cuda_result cudaMallocAsync(void **address, size_t bytes, void *stream) {
    (void)stream;
    return allocate(address, device_now, bytes);
}

API cuda_result cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
    (void)flags;
    return allocate(address, PINNED, bytes);
}

API cuda_result cudaMallocHost(void **address, size_t bytes) {
    return allocate(address, PINNED, bytes);
}

static cuda_result release(void *address) {
    if (address == NULL) return CUDA_SUCCESS;
    const reply got = ask("dsync %lld %d", now_ps(), device_now); /* frees wait for the device */
    if (got.code != 0) return failed(got.code);
    return shared_free(address) ? CUDA_SUCCESS : failed(CUDA_INVALID_VALUE);
}

API cuda_result cudaFree(void *address) { return release(address); }

API cuda_result cudaFreeHost(void *address) { return release(address); }

API cuda_result cudaFreeAsync(void *address, void *stream) {
    (void)stream;
    return release(address);
}

API cuda_result cudaHostGetDevicePointer(void **to, void *host, unsigned flags) {
    (void)flags;
    *to = host;
    return device_of(host) == PINNED ? CUDA_SUCCESS : failed(CUDA_INVALID_VALUE);
}

API cuda_result cudaPointerGetAttributes(void *to, const void *address) {
    struct {
        int type, device;
        const void *device_pointer, *host_pointer;
    } found = {.device = device_now, .device_pointer = address, .host_pointer = address};
    const int device = device_of(address);
    found.type = device == -2 ? 0 : device == PINNED ? 1 : 2;
    if (device >= 0) found.device = device, found.host_pointer = NULL;
    memcpy(to, &found, sizeof found);
    return CUDA_SUCCESS;
}

typedef struct {
    const void *stream;
    int wait;
} order;

static cuda_result copy_shared(void *to, const void *from, size_t bytes, order at) {
    const reply got = ask("copy %lld %d %lld %lld %lld %zu %d", now_ps(), device_now,
                          (long long)(intptr_t)at.stream, (long long)(intptr_t)to,
                          (long long)(intptr_t)from, bytes, at.wait);
    return failed(got.code);
}

/* Copy in the order of a stream. Memory that the server does not see, that of the program, is read
 * at once and written when the stream has got there, as for memory that is not pinned. */
static cuda_result copy(void *to, const void *from, size_t bytes, order at) {
    if (bytes == 0) return CUDA_SUCCESS;
    const int to_program = !is_shared(to), from_program = !is_shared(from);
    if (!to_program && !from_program) return copy_shared(to, from, bytes, at);
    if (to_program && from_program) {
        memmove(to, from, bytes);
        return CUDA_SUCCESS;
    }
    void *staged = shared_alloc(PINNED, bytes);
    if (staged == NULL) return failed(CUDA_OUT_OF_MEMORY);
    at.wait = 1;
    if (from_program) memcpy(staged, from, bytes);
    const cuda_result result =
        copy_shared(to_program ? staged : to, from_program ? staged : from, bytes, at);
    if (to_program && result == CUDA_SUCCESS) memcpy(to, staged, bytes);
    shared_free(staged);
    return result;
}

API cuda_result cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    (void)kind;
    return copy(to, from, bytes, (order){stream, 0});
}

API cuda_result cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    (void)kind;
    return copy(to, from, bytes, (order){NULL, 1});
}

API cuda_result cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) {
    if (!is_shared(to)) return failed(CUDA_INVALID_VALUE);
    const reply got =
        ask("set %lld %d %lld %lld %d %zu", now_ps(), device_now, (long long)(intptr_t)stream,
            (long long)(intptr_t)to, value & 0xFF, bytes);
    return failed(got.code);
}

API cuda_result cudaMemset(void *to, int value, size_t bytes) {
    return cudaMemsetAsync(to, value, bytes, NULL);
}

/* ---- kernels: registered with their mangled names, known by these */
typedef struct entry {
    const void *host;
    const char *name;
    struct entry *next;
} entry;
static entry *entries;
static pthread_mutex_t entries_lock = PTHREAD_MUTEX_INITIALIZER;

API void **__cudaRegisterFatBinary(void *binary) {
    static void *handle;
    (void)binary;
    return &handle;
}

API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

API void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                                int limit, void *thread, void *block, void *block_size,
                                void *grid_size, int *warp) {
    (void)handle, (void)device, (void)limit, (void)thread, (void)block, (void)block_size,
        (void)grid_size, (void)warp;
    entry *made = malloc(sizeof *made);
    if (made == NULL) give_up("no memory for kernel %s", name);
    pthread_mutex_lock(&entries_lock);
    *made = (entry){host, name, entries};
    entries = made;
    pthread_mutex_unlock(&entries_lock);
}

API void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external,
                           size_t bytes, int constant, int global) {
    (void)handle, (void)host, (void)address, (void)name, (void)external, (void)bytes,
        (void)constant, (void)global;
}

static __thread struct {
    cuda_dim3 grid, block;
    size_t shared;
    void *stream;
} configuration;

API unsigned __cudaPushCallConfiguration(cuda_dim3 grid, cuda_dim3 block, size_t shared,
                                         void *stream) {
    configuration.grid = grid, configuration.block = block;
    configuration.shared = shared, configuration.stream = stream;
    return 0;
}

API cuda_result __cudaPopCallConfiguration(cuda_dim3 *grid, cuda_dim3 *block, size_t *shared,
                                           void *stream) {
    *grid = configuration.grid, *block = configuration.block;
    *shared = configuration.shared, *(void **)stream = configuration.stream;
    return CUDA_SUCCESS;
}

API cuda_result __cudaGetKernel(const void **kernel, const void *host) {
    *kernel = host;
    return CUDA_SUCCESS;
}

/* Kernels that the server performs: creation and checks of data in nccl-tests. A digit is
 * the size of an argument; a dot is one that is not read. */
static const struct {
    const char *name, *arguments;
} known[] = {
    {"prepareInput2I", "88.4488"}, {"prepareExpected2I", "88.488"}, {"verifyPreparedI", "88848"}};

static void put_arguments(line *to, const char *sizes, void **arguments) {
    for (; *sizes != '\0'; sizes++, arguments++) {
        if (*sizes == '.') continue;
        int64_t wide = 0;
        memcpy(&wide, *arguments, (size_t)(*sizes - '0'));
        put(to, " %lld", (long long)wide);
    }
}

static cuda_result launch(const void *host, void **arguments, void *stream) {
    static __thread line request;
    const char *name = "of no name";
    pthread_mutex_lock(&entries_lock);
    for (const entry *each = entries; each != NULL; each = each->next)
        if (each->host == host) name = each->name;
    pthread_mutex_unlock(&entries_lock);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strstr(name, known[i].name) == NULL) continue;
        the_system();
        put(&request, "kernel %lld %d %lld %s", now_ps(), device_now, (long long)(intptr_t)stream,
            name);
        put_arguments(&request, known[i].arguments, arguments);
        return failed(ask_line(&request).code);
    }
    fprintf(stderr, "clusim: kernel %s is not simulated: GPU code does not run\n", name);
    return failed(CUDA_INVALID_FUNCTION);
}

API cuda_result cudaLaunchKernel(const void *host, cuda_dim3 grid, cuda_dim3 block,
                                 void **arguments, size_t shared, void *stream) {
    (void)grid, (void)block, (void)shared;
    return launch(host, arguments, stream);
}

API cuda_result __cudaLaunchKernel(const void *kernel, cuda_dim3 grid, cuda_dim3 block,
                                   void **arguments, size_t shared, void *stream) {
    (void)grid, (void)block, (void)shared;
    return launch(kernel, arguments, stream);
}
