/* team.h - threads that work off something together, and sleep in between. Knows nothing of sims.
 */
#ifndef CLUSIM_TEAM_H
#define CLUSIM_TEAM_H

#include "base.h"

typedef struct team team;

/* What every member does, with what it is about and the member's number; 0 is the caller's. */
typedef enum clusim_status (*team_work)(void *context, uint32_t member);

/* Of `members` threads, the caller's among them; of fewer if there are no more to be had. */
STATUS team_create(uint32_t members, team **out);
void team_free(team *t);

uint32_t team_members(const team *t);

/* Every member works; returns the status of the first that failed when all are done. */
STATUS team_run(team *t, team_work work, void *context);

/* Called by a member at work: `change` is called when no other member is at work, as each of them
 * is done or waits here, too. */
STATUS team_alone(team *t, team_work change, void *context, uint32_t member);

/* One member at a time. */
void team_lock(team *t);
void team_unlock(team *t);

#endif
