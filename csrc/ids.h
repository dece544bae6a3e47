/* ids.h - typed ids: rows of the image's tables, and elements of the sim's pools.
 *
 * Each has a separate type, so that using a wire as a node does not compile. An id is one number
 * and costs no more than it; the image itself (clusim.h) has plain numbers, which running code
 * converts to ids: ID(wire, number). */
#ifndef CLUSIM_IDS_H
#define CLUSIM_IDS_H

#include "base.h"

/* The type, equality, whether there is one, and a list. */
#define ID_TYPE(name)                                                                              \
    typedef struct name##_id {                                                                     \
        uint32_t i;                                                                                \
    } name##_id;                                                                                   \
    static inline bool name##_is(name##_id a, name##_id b) { return a.i == b.i; }                  \
    static inline bool name##_none(name##_id a) { return a.i == NONE; }

#define ID(name, number) ((name##_id){number})
#define NO(name) ID(name, NONE)

/* Rows of the image. */
ID_TYPE(node)
ID_TYPE(wire)
ID_TYPE(endpoint) /* with its memory */
ID_TYPE(unit)
ID_TYPE(vertex)
ID_TYPE(target)
ID_TYPE(group)  /* of wires that lead the same way */
ID_TYPE(path)   /* sequence of wires */
ID_TYPE(mgroup) /* of multicast members */
ID_TYPE(conn)
ID_TYPE(inst)
ID_TYPE(task)
ID_TYPE(source)
ID_TYPE(message)
ID_TYPE(fault)
ID_TYPE(flow)     /* the connections, then the sources */
ID_TYPE(receiver) /* target with a policy that grants credit */
ID_TYPE(link)     /* flow and receiver */

/* Elements of pools. */
ID_TYPE(packet)
ID_TYPE(xfer)
ID_TYPE(buffer) /* shared by copies of a packet */
ID_TYPE(line)   /* transfers of queue pairs in order */
ID_TYPE(pair)   /* queue pair in order */

#endif
