/* partition.h - nodes distributed over threads, which process a window together.
 *
 * Nodes are independent within a window (window.h). They are distributed over threads in parts of
 * about equal numbers of wires, with few wires between parts. Each thread works in a view: a copy
 * of the simulation's struct with the same arrays, but its own time and lists. It keeps packets and
 * credit for nodes of each other thread, which takes them when its next window begins; they are due
 * then at the earliest. Events, and multicasts that several endpoints complete, are merged by one
 * thread when all are done. Threads share no counter, and results do not depend on their number or
 * order.
 *
 * Windows with little work are processed by one thread.
 */
#ifndef CLUSIM_PARTITION_H
#define CLUSIM_PARTITION_H

#include "state.h"

/* Process the arrivals of the listed nodes before `end_ps`. */
typedef enum clusim_status (*partition_work)(clusim_sim *s, int64_t end_ps);

/* Create `threads` threads, the caller's included, or fewer if the system has no more, for windows
 * of at least `pays` events; NONE is the default. */
STATUS partition_create(clusim_sim *s, uint32_t threads, uint32_t pays);
void partition_free(clusim_sim *s);

/* Number of threads. */
uint32_t partition_threads(const clusim_sim *s);

/* Number of windows that several threads have processed. */
uint64_t partition_shared(const clusim_sim *s);

/* Mark the wires between the nodes of one thread and those of another. */
void partition_mark(clusim_sim *s);

/* Deliver packets and credit that threads have for each other: before anything but threads uses
 * them.
 */
STATUS partition_flush(clusim_sim *s);

/* Process a window with all threads, or with one if it has too few events. */
STATUS partition_run(clusim_sim *s, int64_t end_ps, partition_work work);

#endif
