/* source.h - synthetic traffic: endpoints that send a list of messages (contract, section 10). */
#ifndef CLUSIM_SOURCE_H
#define CLUSIM_SOURCE_H

#include "sim.h"

STATUS source_try(clusim_sim *s, source_id source); /* start the next message if it may */
STATUS source_injected(clusim_sim *s, source_id source, int64_t end);
STATUS source_complete(clusim_sim *s, xfer_id xfer_index);

#endif
