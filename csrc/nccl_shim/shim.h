/* libnccl.so.2 and libcudart.so of simulated GPUs: internals.
 *
 * The library is loaded into an unmodified program. It keeps the memory of the devices, as host
 * memory that it shares with the server (`clusim exec`), and a virtual clock per thread. Everything
 * else is a message to the server, which has the streams, events, communicators and times. Each
 * thread has a connection; a request is one line, and its reply one line: result code, the
 * thread's time [ps], and further words.
 */
#ifndef CLUSIM_NCCL_SHIM_H
#define CLUSIM_NCCL_SHIM_H

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

/* ---- used part of the CUDA runtime's ABI: names, types and values */
typedef int cuda_result;
enum {
    CUDA_SUCCESS = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_INVALID_FUNCTION = 98,
    CUDA_INVALID_DEVICE = 101,
    CUDA_NOT_READY = 600,
    CUDA_NOT_SUPPORTED = 801,
    CUDA_UNKNOWN = 999
};
typedef struct {
    unsigned x, y, z;
} cuda_dim3;

/* ---- NCCL's */
typedef int nccl_result;
enum { NCCL_SUCCESS = 0, NCCL_SYSTEM_ERROR = 2, NCCL_INVALID_ARGUMENT = 4, NCCL_INVALID_USAGE = 5 };
enum { NCCL_BUILT_IN_OPS = 5, NCCL_TYPES = 12, NCCL_NO_COLOR = -1 };
typedef struct {
    char internal[128];
} nccl_unique_id;

/* ---- link.c: the connection of this thread */
typedef struct {
    int code;    /* 0, or an error of CUDA or NCCL */
    char *words; /* of the reply, after code and time; valid until the thread's next request */
    long long values[16]; /* leading integers among the words */
    int count;            /* number of `values` */
} reply;

typedef struct {
    long long start_ps, real_offset_ps, wake_ps;
    uint64_t memory_bytes;
    int gpus, version, sms, major, minor, node;
    char host[128], gpu[128];
} system_info;

/* Connect the process on first use, and return the simulated system; exits the program if there is
 * no server. */
const system_info *the_system(void);
/* Send a request and wait for its reply. */
reply ask(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Request text that is built piece by piece; `text` is kept by the thread. */
typedef struct {
    char *text;
    size_t length, room;
} line;
void put(line *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
reply ask_line(line *request);
/* Print "clusim: ..." to stderr and end the program with exit code 2. */
_Noreturn void give_up(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Text of the last error that the server reported to this thread. */
const char *last_error(void);

/* ---- clock.c: virtual time */
long long now_ps(void);
void set_now_ps(long long now);
/* Start virtual time at `start_ps`, where it has not started. */
void start_clock(long long start_ps, long long real_offset_ps, long long wake_ps);

/* ---- memory.c: memory of the devices of this process, and pinned memory */
enum { PINNED = -1 };
/* Allocate from a device or, with `PINNED`, for the host; NULL if it is full. */
void *shared_alloc(int device, size_t bytes);
/* Return 0 for an address that was not allocated. */
int shared_free(void *address);
/* True if the server sees this address. */
int is_shared(const void *address);
/* The device that has an address, `PINNED`, or -2. */
int device_of(const void *address);
size_t free_bytes(int device);

/* ---- runtime.c */
int current_device(void);

#endif
