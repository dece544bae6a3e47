/* Pools of packets, transfers and shared buffers, and lists of ids; all grow by doubling. */
#include <string.h>

#include "sim.h"

/* Double an array of `size` elements; false (and sim->failed) if there is no memory. */
static bool grow(clusim_sim *s, void **array, uint32_t *size, size_t element) {
    uint32_t bigger = *size ? 2 * *size : 1024;
    void *moved = realloc(*array, bigger * element);
    if (moved == NULL) {
        s->failed = true;
        return false;
    }
    memset((char *)moved + *size * element, 0, (bigger - *size) * element);
    *array = moved;
    *size = bigger;
    return true;
}

uint32_t sim_pool_packet(clusim_sim *s) {
    if (UNLIKELY(s->packet_free == NONE)) {
        uint32_t old = s->packet_size;
        void *array = s->packets;
        if (!grow(s, &array, &s->packet_size, sizeof *s->packets)) return NONE;
        s->packets = array;
        for (uint32_t i = s->packet_size; i-- > old;) {
            s->packets[i].next = s->packet_free;
            s->packet_free = i;
        }
    }
    uint32_t p = s->packet_free;
    s->packet_free = s->packets[p].next;
    s->packets_live++;
    return p;
}

uint32_t sim_pool_xfer(clusim_sim *s) {
    if (UNLIKELY(s->xfer_free == NONE)) {
        uint32_t old = s->xfer_size;
        void *array = s->xfers;
        if (!grow(s, &array, &s->xfer_size, sizeof *s->xfers)) return NONE;
        s->xfers = array;
        for (uint32_t i = s->xfer_size; i-- > old;) {
            s->xfers[i].next_free = s->xfer_free;
            s->xfer_free = i;
        }
    }
    uint32_t x = s->xfer_free;
    s->xfer_free = s->xfers[x].next_free;
    s->xfers_live++;
    memset(&s->xfers[x], 0, sizeof s->xfers[x]);
    return x;
}

void sim_pool_free_xfer(clusim_sim *s, uint32_t x) {
    free(s->xfers[x].own_group);
    s->xfers[x].own_group = NULL;
    s->xfers[x].next_free = s->xfer_free;
    s->xfer_free = x;
    s->xfers_live--;
}

uint32_t sim_pool_buffer(clusim_sim *s) {
    if (UNLIKELY(s->buffer_free == NONE)) {
        uint32_t old = s->buffer_size;
        void *array = s->buffers;
        if (!grow(s, &array, &s->buffer_size, sizeof *s->buffers)) return NONE;
        s->buffers = array;
        for (uint32_t i = s->buffer_size; i-- > old;) {
            s->buffers[i].copies = s->buffer_free;
            s->buffer_free = i;
        }
    }
    uint32_t b = s->buffer_free;
    s->buffer_free = s->buffers[b].copies;
    s->buffers_live++;
    return b;
}

void sim_pool_list(clusim_sim *s, id_list *list, uint32_t id) {
    if (list->len == list->size) {
        void *array = list->ids;
        if (!grow(s, &array, &list->size, sizeof *list->ids)) return;
        list->ids = array;
    }
    list->ids[list->len++] = id;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

void sim_pool_sort_from(id_list *list, uint32_t first) {
    if (list->len > first + 1)
        qsort(list->ids + first, list->len - first, sizeof *list->ids, ascending);
}

void sim_pool_sort(id_list *list) { sim_pool_sort_from(list, 0); }
