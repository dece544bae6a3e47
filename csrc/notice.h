/* notice.h - notices of delivered packets, which reach the sender after the notification's delay.
 *
 * Hardware  Acknowledgements of RoCE NICs, with the congestion mark echoed.
 *           In-band telemetry of switches.
 * Model     Contract, section 5 (sender policies): one notice per packet; a delay, not a packet.
 * Not modelled  Coalesced acknowledgements and their bandwidth; bytes of telemetry. Parameters
 * `cnp_delay_ps` and `cnp_interval_ps` of the image's `controls`. */
#ifndef CLUSIM_NOTICE_H
#define CLUSIM_NOTICE_H

#include "parts/senders.h"
#include "state.h"

/* Remember the grant of a packet. */
STATUS notice_sent(sender_state *f, sent_packet p);

/* A packet that is marked or acknowledged was delivered now: notify its sender, if it has a rate
 * control: DCQCN, or a policy that reads notices. */
STATUS notice_delivered(clusim_sim *s, const packet *p);

/* The header of a trimmed packet reached its receiver. */
STATUS notice_trimmed(clusim_sim *s, const packet *p);

/* Remove the oldest notice; its hops are valid until the next notice. */
delivery_notice notice_take(sender_state *f, clusim_hop **hops);

/* The sender finds a packet lost; true if it was in flight. */
bool notice_lost(sender_state *f, xfer_id id, uint32_t number);

/* A packet vanishes, or its hops are read. */
void notice_forget_hops(clusim_sim *s, const packet *p);

/* A packet is granted now on a wire with telemetry. */
void notice_hop(clusim_sim *s, const wire_state *w, const packet *p);

void notice_free(sender_state *f);

#endif
