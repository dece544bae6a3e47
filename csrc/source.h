/* source.h - synthetic traffic: endpoints that send a list of messages (contract, section 10). */
#ifndef CLUSIM_SOURCE_H
#define CLUSIM_SOURCE_H

#include "state.h"

STATUS source_init(clusim_sim *s); /* after the endpoints */
void source_free(clusim_sim *s);

STATUS source_try(clusim_sim *s, source_id source);  /* start the next message if it may */
STATUS source_left(clusim_sim *s, source_id source); /* all of its message is on the way */
STATUS source_complete(clusim_sim *s, xfer_id xfer_index);

#endif
