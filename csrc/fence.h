/* fence.h - posting of slices, and the fence of an instance (contract, section 7).
 *
 * The fence is the last multicast that is done but incomplete. Slices sent after the fence began
 * post at the end of the fence. */
#ifndef CLUSIM_FENCE_H
#define CLUSIM_FENCE_H

#include "state.h"

void fence_init(clusim_sim *s);
void fence_free(clusim_sim *s);

/* Count a condition of slice `ordinal`; the oldest slices of the connection that are done and
 * delivered become visible to the receiver. */
STATUS fence_post(clusim_sim *s, conn_id conn, uint32_t ordinal);

/* Post a slice of an instance now or, with a fence, at the end of the fence. */
STATUS fence_post_after(clusim_sim *s, inst_id inst, conn_id conn, uint32_t ordinal);

/* Let the present multicast, which is done, be the fence unless it is complete. */
void fence_begin(clusim_sim *s, inst_id inst);

/* End the fence if it is the multicast, which is complete: held slices post. */
STATUS fence_end(clusim_sim *s, inst_id inst, xfer_id multicast);

#endif
