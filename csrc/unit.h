/* unit.h - the reduction unit of a switch.
 *
 * Hardware  NVSwitch (3rd generation on) gathers operands for a multimem load-reduce and responds
 *           once.
 * Model     Contract, section 6: operations occupy room in bytes, operands arrive in any order, a
 *           clock limits the rate of operands. Values are reduced in member order by the data
 *           plane.
 * Not modelled  The number and place of the adders inside the switch. */
#ifndef CLUSIM_UNIT_H
#define CLUSIM_UNIT_H

#include "state.h"

STATUS unit_init(clusim_sim *s);
void unit_free(clusim_sim *s);

STATUS unit_request(clusim_sim *s, packet_id packet, wire_id from);
STATUS unit_data(clusim_sim *s, packet_id packet, wire_id from);
/* Put an operation on some bytes into the unit now; returns the time of its result. */
int64_t unit_reduce(clusim_sim *s, unit_id unit, uint64_t operand_bytes);

STATUS unit_result(clusim_sim *s, packet_id packet);

#endif
