/* model_ranges.c - check of every number of an image against the table of ranges, before its use.
 *
 * The table is written from clusim/engine/ranges.py; its `first_illegal` refuses the same rows with
 * the same words. No index is followed here; afterwards, every index is within its table, every
 * offset ascends and nvc is legal. Checks that need more than one field are elsewhere. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "model.h"
#include "ranges.h"

/* Everything that has rows: the tables, then the parts of tables of offsets and the VCs. */
#define TABLE_ID(table, least, most) IN_##table,
enum rows_of { RANGE_TABLES(TABLE_ID) IN_groups, IN_paths, IN_mgroups, IN_vcs, IN_nothing };
enum { NUM_TABLES = IN_groups };

typedef struct field {
    char name[24]; /* empty: the row is a plain number */
    enum rows_of table, into;
    size_t offset;
    uint32_t width, count; /* bytes of an element, and elements */
    bool is_signed, or_none, or_end;
    int64_t lo;
    uint64_t hi;
} field;

enum { PLAIN, SIGNED };
enum { NONE_TOO = 1, END_TOO = 2 };

#define FIELD_ROW(t, type, member, width, count, sign, lo, hi, into, flag)                         \
    {#member, IN_##t, IN_##into,         offsetof(type, member), width,                            \
     count,   sign,   (flag) & NONE_TOO, (flag) & END_TOO,       lo,                               \
     hi},
#define VALUE_ROW(t, type, width, count, sign, lo, hi, into, flag)                                 \
    {"", IN_##t, IN_##into, 0, width, count, sign, (flag) & NONE_TOO, (flag) & END_TOO, lo, hi},
static const field fields[] = {RANGE_FIELDS(FIELD_ROW, VALUE_ROW)};

typedef struct rows {
    const char *name;
    const char *data;
    size_t stride;
    uint64_t count, least, most;
} rows;

/* ---- error messages -------------------------------------------------------------------------- */

static STATUS refuse(clusim_error *e, uint64_t row) {
    e->status = CLUSIM_ERR_BAD_IMAGE;
    e->index = (uint32_t)row;
    return CLUSIM_ERR_BAD_IMAGE;
}

static STATUS refuse_count(clusim_error *e, const rows *t) {
    snprintf(e->message, sizeof e->message, "%s: %" PRIu64 " rows; must be %" PRIu64 " to %" PRIu64,
             t->name, t->count, t->least, t->most);
    return refuse(e, 0);
}

typedef struct misfit {
    uint64_t row;
    uint64_t value; /* sign-extended if the field is signed */
    uint64_t hi;
} misfit;

static STATUS refuse_field(clusim_error *e, const field *f, const rows *tables, misfit m) {
    char where[80], number[24];
    snprintf(where, sizeof where, "%s[%" PRIu64 "]%s%s", tables[f->table].name, m.row,
             f->name[0] ? "." : "", f->name);
    snprintf(number, sizeof number, f->is_signed ? "%" PRId64 : "%" PRIu64, m.value);
    if (f->into != IN_nothing && m.hi == UINT64_MAX) {
        snprintf(e->message, sizeof e->message, "%s: %s; there are no %s", where, number,
                 tables[f->into].name);
    } else {
        snprintf(e->message, sizeof e->message, "%s: %s; must be %" PRId64 " to %" PRIu64 "%s",
                 where, number, f->lo, m.hi, f->or_none ? " or NONE" : "");
    }
    return refuse(e, m.row);
}

/* ---- the checks -------------------------------------------------------------------------------
 */

static uint64_t read_element(const char *at, const field *f) {
    uint64_t wide = 0;
    uint32_t word = 0;
    uint16_t half = 0;
    switch (f->width) {
        case 8: memcpy(&wide, at, sizeof wide); return wide;
        case 2: memcpy(&half, at, sizeof half); return half;
        default: memcpy(&word, at, sizeof word); break;
    }
    return f->is_signed ? (uint64_t)(int64_t)(int32_t)word : word;
}

static bool is_legal(const field *f, uint64_t value, uint64_t hi) {
    if (f->or_none && value == NONE) return true;
    if (f->into != IN_nothing && hi == UINT64_MAX) return false; /* empty target table */
    if (f->is_signed) return (int64_t)value >= f->lo && (int64_t)value <= (int64_t)hi;
    return value >= (uint64_t)f->lo && value <= hi;
}

static STATUS check_field(const field *f, const rows *tables, clusim_error *e) {
    const rows *t = &tables[f->table];
    uint64_t hi = f->hi;
    /* The last row, or the number of rows; UINT64_MAX if the target table is empty. */
    if (f->into != IN_nothing) hi = base_umin(hi + 1, tables[f->into].count + f->or_end) - 1;
    for (uint64_t row = 0; row < t->count; row++) {
        const char *at = t->data + row * t->stride + f->offset;
        for (uint32_t k = 0; k < f->count; k++) {
            uint64_t value = read_element(at + (size_t)k * f->width, f);
            if (UNLIKELY(!is_legal(f, value, hi))) {
                return refuse_field(e, f, tables, (misfit){row, value, hi});
            }
        }
    }
    return CLUSIM_OK;
}

static STATUS check_offsets(const rows *off, const rows *cut, clusim_error *e) {
    const uint32_t *at = (const uint32_t *)(const void *)off->data;
    uint64_t last = off->count - 1;
    if (at[0] != 0) {
        snprintf(e->message, sizeof e->message, "%s[0]: %" PRIu32 "; must be 0", off->name, at[0]);
        return refuse(e, 0);
    }
    for (uint64_t row = 1; row <= last; row++) {
        if (at[row] > at[row - 1]) continue;
        snprintf(e->message, sizeof e->message,
                 "%s[%" PRIu64 "]: %" PRIu32 "; must be greater than %" PRIu32 " before it",
                 off->name, row, at[row], at[row - 1]);
        return refuse(e, row);
    }
    if (at[last] == cut->count) return CLUSIM_OK;
    snprintf(e->message, sizeof e->message,
             "%s[%" PRIu64 "]: %" PRIu32 "; must be %" PRIu64 ", the length of %s", off->name, last,
             at[last], cut->count, cut->name);
    return refuse(e, last);
}

STATUS model_check_ranges(const clusim_image *im, clusim_error *e) {
#define TABLE_ROW(table, least, most)                                                              \
    {#table, (const char *)im->table, sizeof *im->table, im->num_##table, least, most},
    rows tables[] = {RANGE_TABLES(TABLE_ROW){"groups", NULL, 0, im->num_group_off - 1, 0, 0},
                     {"paths", NULL, 0, im->num_path_off - 1, 0, 0},
                     {"mgroups", NULL, 0, im->num_mgroup_off - 1, 0, 0},
                     {"vcs", NULL, 0, im->nvc, 0, 0}};
    if (im->nvc < RANGE_NVC_LEAST || im->nvc > RANGE_NVC_MOST) {
        snprintf(e->message, sizeof e->message, "nvc: %" PRIu32 "; must be %d to %d", im->nvc,
                 RANGE_NVC_LEAST, RANGE_NVC_MOST);
        return refuse(e, 0);
    }
    for (uint32_t t = 0; t < NUM_TABLES; t++) {
        if (tables[t].count < tables[t].least || tables[t].count > tables[t].most)
            return refuse_count(e, &tables[t]);
    }
    enum clusim_status status = CLUSIM_OK;
#define CHECK_OFFSETS(off, cut)                                                                    \
    if (status == CLUSIM_OK) status = check_offsets(&tables[IN_##off], &tables[IN_##cut], e);
    RANGE_OFFSETS(CHECK_OFFSETS)
    for (size_t f = 0; f < sizeof fields / sizeof *fields && status == CLUSIM_OK; f++) {
        status = check_field(&fields[f], tables, e);
    }
    return status;
}
