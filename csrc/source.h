/* source.h - synthetic traffic: endpoints that send a list of messages (contract, section 10). */
#ifndef CLUSIM_SOURCE_H
#define CLUSIM_SOURCE_H

#include "sim.h"

void source_try(clusim_sim *s, uint32_t source); /* start the next message if it may */
void source_injected(clusim_sim *s, uint32_t source, int64_t end);
void source_complete(clusim_sim *s, uint32_t xfer_index);

#endif
