/* partition.h - nodes distributed over threads, which process a window together.
 *
 * In a window every node is on its own (window.h), so nodes are dealt out to threads: parts of
 * about as many wires, that have as few wires as may be between them. Each thread works in a view
 * of the sim: a copy of its struct, with the same arrays, but a time of its own and lists of its
 * own. What it has for nodes of others (packets, credit) and what several endpoints add up
 * (multicasts), it keeps until all are done, and so it does with events; then one thread hands all
 * that out. Threads share no counter, and no result depends on who came first: with any number of
 * them it is the same.
 *
 * Small windows are worked off by one thread alone, as if there were no others.
 */
#ifndef CLUSIM_PARTITION_H
#define CLUSIM_PARTITION_H

#include "state.h"

/* Work off what the nodes that are listed have before `end_ps`. */
typedef enum clusim_status (*partition_work)(clusim_sim *s, int64_t end_ps);

/* `threads` of them, or as many as there are to be had, the caller's among them, for windows of at
 * least `pays` events; NONE: as usual. */
STATUS partition_create(clusim_sim *s, uint32_t threads, uint32_t pays);
void partition_free(clusim_sim *s);

/* How many threads there are. */
uint32_t partition_threads(const clusim_sim *s);

/* Mark the wires between the nodes of one thread and those of another. */
void partition_mark(clusim_sim *s);

/* A window, by as many threads as pay. */
STATUS partition_run(clusim_sim *s, int64_t end_ps, partition_work work);

#endif
