/* image_file.h - images from the files that tests/support/corpus.py writes, for the programs that
 * run them.
 */
#ifndef CLUSIM_IMAGE_FILE_H
#define CLUSIM_IMAGE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clusim.h"
#include "ranges.h"

#define TABLE_ID(table, least, most) IN_##table,
enum {
    RANGE_TABLES(TABLE_ID) NUM_TABLES,
    IN_groups = NUM_TABLES,
    IN_paths,
    IN_mgroups,
    IN_vcs,
    IN_nothing
};

#define TABLE_STRIDE(table, least, most) sizeof *((clusim_image *)0)->table,
static const size_t strides[] = {RANGE_TABLES(TABLE_STRIDE)};

static const char magic[8] = "climage1";

/* A case: the concatenated tables, with room to grow. */
typedef struct image_case {
    uint32_t nvc;
    uint64_t seed;
    uint64_t rows[NUM_TABLES];
    char *data[NUM_TABLES]; /* owned */
} image_case;

enum { MOST_ROWS_ADDED = 4 };

static bool read_all(FILE *f, void *to, size_t size) {
    return size == 0 || fread(to, size, 1, f) == 1;
}

static inline bool read_case(const char *path, image_case *c) {
    memset(c, 0, sizeof *c);
    FILE *f = fopen(path, "rb");
    if (f == NULL) return false;
    char head[sizeof magic];
    bool ok = read_all(f, head, sizeof head) && memcmp(head, magic, sizeof head) == 0;
    ok = ok && read_all(f, &c->nvc, sizeof c->nvc) && read_all(f, &c->seed, sizeof c->seed);
    for (uint32_t t = 0; ok && t < NUM_TABLES; t++) {
        uint64_t stride = 0;
        ok = read_all(f, &stride, sizeof stride) && read_all(f, &c->rows[t], sizeof c->rows[t]);
        if (!ok || stride != strides[t] || c->rows[t] > (UINT64_C(1) << 24)) {
            ok = false;
            break;
        }
        c->data[t] = malloc((c->rows[t] + MOST_ROWS_ADDED + 1) * strides[t]);
        ok = c->data[t] && read_all(f, c->data[t], c->rows[t] * strides[t]);
    }
    fclose(f);
    return ok;
}

/* The image with every table in a separate block. */
static inline void fill_image(clusim_image *im, const image_case *c) {
    memset(im, 0, sizeof *im);
    im->seed = c->seed;
    im->nvc = c->nvc;
    void *copies[NUM_TABLES];
    for (uint32_t t = 0; t < NUM_TABLES; t++) {
        size_t size = c->rows[t] * strides[t];
        copies[t] = malloc(size ? size : 1);
        if (copies[t] == NULL) exit(3);
        memcpy(copies[t], c->data[t], size);
    }
#define SET_TABLE(table, least, most)                                                              \
    im->table = copies[IN_##table];                                                                \
    im->num_##table = c->rows[IN_##table];
    RANGE_TABLES(SET_TABLE)
}

static inline void free_image(clusim_image *im) {
#define FREE_TABLE(table, least, most) free((void *)(uintptr_t)im->table);
    RANGE_TABLES(FREE_TABLE)
}

static inline void free_case(image_case *c) {
    for (uint32_t t = 0; t < NUM_TABLES; t++) free(c->data[t]);
}

#endif
