/*
 * replay.pml
 *	  A model is led along a trace of the C code.
 *
 * With -DREPLAY a model takes each of its steps, as far as the code tells of it,
 * with the next event of the trace, and is then as the code was.  Where it has
 * several ways to go on, it goes the one that the event tells.  So it never branches,
 * and where it cannot go on, or is not as the code was, code and model differ.
 */
#ifdef REPLAY

c_decl {
\#include "replay.h"
}

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
#define WAY(condition) (condition)
#define TELLS(condition) assert(condition)
#define FOLLOWED next_event()

/* One order in which the model can take all of its steps is enough. */
active proctype end_of_trace()
{
	at > 0 && what == 0 -> c_code { wrapup(); }
}

#else

#define TOLD(event) true
#define WAY(condition) true
#define TELLS(condition) skip
#define FOLLOWED skip

#endif
