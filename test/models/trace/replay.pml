/*
 * replay.pml
 *	  A model is led along a trace of the C code.
 *
 * With -DREPLAY a model takes each of its steps, as far as the code tells of it,
 * with the next event of the trace, and is then as the code was.  Where it has
 * several ways to go on, it goes the one that the event tells.  So it never branches,
 * and where it cannot go on, or is not as the code was, code and model differ.
 *
 * But where the code reads what others write, without a lock, only this is known of an
 * event: it was after the one before it of the same process, and before it was told.  Such
 * a model defines REPLAY_PROCESSES, the number of its processes.  Each takes its own
 * events, and Spin looks for an order in which all were in their times.
 */
#ifdef REPLAY

c_decl {
\#include "replay.h"
}

#ifdef REPLAY_PROCESSES

/* Of each process, the next event, and what it tells; whether it may be its turn. */
int at[REPLAY_PROCESSES + 1];
int told[(REPLAY_PROCESSES + 1) * 8];
int turns;			/* a bit for each process */
bool refused;			/* something is not as the code was */
int ntaken, taken_by;

#define v1 told[me * 8 + 1]
#define v2 told[me * 8 + 2]
#define v3 told[me * 8 + 3]
#define v4 told[me * 8 + 4]
#define v5 told[me * 8 + 5]
#define v6 told[me * 8 + 6]
#define v7 told[me * 8 + 7]

#define LOOK_AT_EVENT c_code { \
	replay_begin(REPLAY_PROCESSES, now.at); \
	replay_look(REPLAY_PROCESSES, now.at, now.told, &now.turns, now.ntaken); \
}

inline next_event()
{
	taken_by = me;
	ntaken = ntaken + !refused;
	c_code {
		now.at[now.taken_by] = replay_after(now.at[now.taken_by]);
		replay_look(REPLAY_PROCESSES, now.at, now.told, &now.turns, now.ntaken);
	};
	taken_by = 0
}

#define NEXT(event) (told[me * 8] == event)
#define TOLD(event) (NEXT(event) && (turns & (1 << me)) && !refused)
#define TELLS(condition) refused = refused || !(condition)
#define HAS_ENDED (ntaken > 0 && turns == 0 && !refused)

#else

#define byte int

/* The next event; 0: there is none. */
int at;
int what, who, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10;

#define LOOK_AT_EVENT c_code { \
	now.what = replay_value(now.at, 0); now.who = replay_value(now.at, 1); \
	now.v1 = replay_value(now.at, 2); now.v2 = replay_value(now.at, 3); \
	now.v3 = replay_value(now.at, 4); now.v4 = replay_value(now.at, 5); \
	now.v5 = replay_value(now.at, 6); now.v6 = replay_value(now.at, 7); \
	now.v7 = replay_value(now.at, 8); now.v8 = replay_value(now.at, 9); \
	now.v9 = replay_value(now.at, 10); now.v10 = replay_value(now.at, 11); \
}

/* It has been followed. */
inline next_event()
{
	at++;
	LOOK_AT_EVENT
}

/*
 * The guard of a step that an event tells of; of the way that it went; what must be as
 * the event tells; and the end of such a step.
 */
#define TOLD(event) (what == event && who == me)
#define TELLS(condition) assert(condition)
#define HAS_ENDED (at > 0 && what == 0)

#endif

#define WAY(condition) (condition)
#define FOLLOWED next_event()

/* One order in which the model can take all of its steps is enough. */
active proctype end_of_trace()
{
	HAS_ENDED -> c_code { wrapup(); }
}

#else

#define TOLD(event) true
#define WAY(condition) true
#define TELLS(condition) skip
#define FOLLOWED skip

#endif
