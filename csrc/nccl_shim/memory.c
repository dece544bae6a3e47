/* Memory of the devices: one sparse file without a name per device and one for pinned memory,
 * shared with the server.
 *
 * Pages exist when they are written. An allocation fails as on the GPU, if the device's memory is
 * full.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_DEVICES = 64 };
#define ALIGNMENT ((size_t)1 << 12)
#define PINNED_BYTES ((size_t)1 << 38)

typedef struct block {
    size_t offset, bytes;
    struct block *next; /* by offset */
} block;

typedef struct {
    char *base;
    size_t bytes, used;
    int file;
    block *blocks;
} arena;

static arena arenas[MOST_DEVICES + 1]; /* the first one is for pinned memory */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Create the memory of a device on first use. */
static arena *arena_of(int device) {
    arena *self = &arenas[device + 1];
    if (self->base != NULL) return self;
    self->bytes = device == PINNED ? PINNED_BYTES : the_system()->memory_bytes & ~(ALIGNMENT - 1);
    self->file = memfd_create("clusim", MFD_CLOEXEC);
    if (self->file < 0 || ftruncate(self->file, (off_t)self->bytes) != 0)
        give_up("no memory for device %d", device);
    void *base =
        mmap(NULL, self->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, self->file, 0);
    if (base == MAP_FAILED) give_up("no address space for device %d", device);
    self->base = base;
    const reply got =
        ask("arena %lld %zu %d %d", (long long)(intptr_t)base, self->bytes, self->file, device);
    if (got.code != 0) give_up("device %d: %s", device, got.words);
    return self;
}

static void *insert(arena *self, size_t bytes) {
    block **at = &self->blocks;
    size_t offset = 0;
    for (; *at != NULL && (*at)->offset - offset < bytes; at = &(*at)->next)
        offset = (*at)->offset + (*at)->bytes;
    if (self->bytes - offset < bytes) return NULL;
    block *made = malloc(sizeof *made);
    if (made == NULL) return NULL;
    *made = (block){.offset = offset, .bytes = bytes, .next = *at};
    *at = made;
    self->used += bytes;
    return self->base + offset;
}

void *shared_alloc(int device, size_t bytes) {
    if (device < PINNED || device >= MOST_DEVICES) return NULL;
    bytes = (bytes + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
    pthread_mutex_lock(&lock);
    arena *self = arena_of(device);
    void *result = bytes > self->bytes ? NULL : insert(self, bytes);
    pthread_mutex_unlock(&lock);
    return result;
}

int device_of(const void *address) {
    for (int device = PINNED; device < MOST_DEVICES; device++) {
        const arena *self = &arenas[device + 1];
        const char *at = address;
        if (self->base != NULL && at >= self->base && at < self->base + self->bytes) return device;
    }
    return -2;
}

int is_shared(const void *address) { return device_of(address) != -2; }

int shared_free(void *address) {
    const int device = device_of(address);
    if (device == -2) return 0;
    pthread_mutex_lock(&lock);
    arena *self = &arenas[device + 1];
    const size_t offset = (size_t)((char *)address - self->base);
    block **at = &self->blocks;
    while (*at != NULL && (*at)->offset < offset) at = &(*at)->next;
    block *found = *at != NULL && (*at)->offset == offset ? *at : NULL;
    if (found != NULL) {
        *at = found->next;
        self->used -= found->bytes;
        ask("dead %lld %zu", (long long)(intptr_t)address, found->bytes);
        fallocate(self->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                  (off_t)found->bytes);
        free(found);
    }
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

size_t free_bytes(int device) {
    pthread_mutex_lock(&lock);
    const arena *self = arena_of(device);
    const size_t result = self->bytes - self->used;
    pthread_mutex_unlock(&lock);
    return result;
}
