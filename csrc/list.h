/* list.h - growing lists of ids of one kind. */
#ifndef CLUSIM_LIST_H
#define CLUSIM_LIST_H

#include "grow.h"
#include "ids.h"

#define LIST_TYPE(name)                                                                            \
    typedef struct name##_list {                                                                   \
        name##_id *ids; /* owned */                                                                \
        uint32_t len, size;                                                                        \
    } name##_list;                                                                                 \
    static inline STATUS name##_push(name##_list *list, name##_id id) {                            \
        if (UNLIKELY(list->len == list->size)) GROW(list->ids, list->size);                        \
        list->ids[list->len++] = id;                                                               \
        return CLUSIM_OK;                                                                          \
    }                                                                                              \
    /* Ascending from the `first` on. */                                                           \
    static inline void name##_sort(name##_list *list, uint32_t first) {                            \
        if (list->len > first + 1) list_sort(list->ids + first, list->len - first);                \
    }                                                                                              \
    /* Move `due` to `current`, ascending; entries that become due in that time wait. */           \
    static inline void name##_take(name##_list *current, name##_list *due) {                       \
        name##_list taken = *due;                                                                  \
        *due = *current;                                                                           \
        due->len = 0;                                                                              \
        *current = taken;                                                                          \
        name##_sort(current, 0);                                                                   \
    }

void list_sort(void *ids, uint32_t count);

LIST_TYPE(wire)
LIST_TYPE(node)
LIST_TYPE(endpoint)
LIST_TYPE(task)
LIST_TYPE(inst)

#endif
