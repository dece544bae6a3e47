/* The part of CUDA's and NCCL's interfaces that the test programs use. */
#include <stddef.h>

typedef void *stream_t, *event_t, *comm_t;
typedef struct {
    char internal[128];
} unique_id;
enum { FLOAT16 = 6, FLOAT32 = 7, SUM = 0, TO_DEVICE = 1, TO_HOST = 2 };

int cudaGetDeviceCount(int *), cudaSetDevice(int), cudaDeviceSynchronize(void),
    cudaMemGetInfo(size_t *, size_t *);
int cudaMalloc(void **, size_t), cudaFree(void *), cudaHostAlloc(void **, size_t, unsigned);
int cudaMemcpy(void *, const void *, size_t, int),
    cudaMemcpyAsync(void *, const void *, size_t, int, stream_t);
int cudaMemset(void *, int, size_t), cudaGetLastError(void);
int cudaStreamCreate(stream_t *), cudaStreamCreateWithFlags(stream_t *, unsigned),
    cudaStreamSynchronize(stream_t);
int cudaStreamQuery(stream_t), cudaStreamWaitEvent(stream_t, event_t, unsigned);
int cudaEventCreate(event_t *), cudaEventRecord(event_t, stream_t), cudaEventSynchronize(event_t);
int cudaEventElapsedTime(float *, event_t, event_t);
int cudaStreamBeginCapture(stream_t, int), cudaStreamEndCapture(stream_t, void **);
int cudaGraphInstantiate(void **, void *, unsigned long long), cudaGraphLaunch(void *, stream_t);
int cudaMallocManaged(void **, size_t, unsigned);
const char *cudaGetErrorString(int);
int ncclGetVersion(int *), ncclGetUniqueId(unique_id *), ncclGroupStart(void), ncclGroupEnd(void);
int ncclCommInitRank(comm_t *, int, unique_id, int), ncclCommInitAll(comm_t *, int, const int *);
int ncclCommSplit(comm_t, int, int, comm_t *, void *), ncclCommCount(comm_t, int *),
    ncclCommUserRank(comm_t, int *);
int ncclCommDestroy(comm_t);
int ncclAllReduce(const void *, void *, size_t, int, int, comm_t, stream_t);
int ncclBroadcast(const void *, void *, size_t, int, int, comm_t, stream_t);
int ncclSend(const void *, size_t, int, int, comm_t, stream_t),
    ncclRecv(void *, size_t, int, int, comm_t, stream_t);
const char *ncclGetErrorString(int), *ncclGetLastError(comm_t);
