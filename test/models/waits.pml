/*
 * waits.pml
 *	  Claims that wait, as claim_wait.c, wake.c and waiters.c have them sleep, and as
 *	  lane_publish.c calls them.
 *
 * Claims register, list themselves, look, and sleep; reporters commit messages into
 * two lanes, and then call as many claims as there are messages for; one message
 * becomes due by time; an owner releases everything; a claim may be cancelled, or
 * its transaction rolled back, at any time.  When nothing moves any more, no claim
 * sleeps while there is a message that it could take, and none whose owner had
 * released everything when it was waiting already.
 *
 * What a scan finds in a lane is lane.pml; here a lane is a number of messages, and
 * whether it is known that something is to be done there.
 *
 * Runs:
 *	short -DCLAIMS=2 -DMESSAGES=1
 *	long
 *	long -DCANCELS=0
 *	BROKEN_LIST -DCLAIMS=2 -DMESSAGES=1
 *	BROKEN_EARLY -DCLAIMS=2 -DMESSAGES=1
 *	BROKEN_LEAVE -DCLAIMS=2 -DMESSAGES=1
 *	BROKEN_ONE -DREPORTERS=1 -DCANCELS=0
 *	BROKEN_PASS_ON -DMESSAGES=1 -DCANCELS=0
 *	BROKEN_KEEPER -DMESSAGES=1
 *	BROKEN_TIME -DMESSAGES=1
 *	BROKEN_RELEASE -DCLAIMS=2 -DREPORTERS=1
 */

#ifndef CLAIMS
#define CLAIMS 3
#endif
#ifndef REPORTERS
#define REPORTERS 2
#endif
#ifndef MESSAGES
#define MESSAGES 2			/* that one reporter commits at once */
#endif
#ifndef CANCELS
#define CANCELS 1			/* claims that are cancelled, or rolled back */
#endif

#define LANES 2
#define NOBODY 0
#define BIT(n) (1 << (n))

/* Which lanes a claim chooses from: the first from both, the others from one. */
#define WANTS(claim, lane) ((claim) == 1 || ((claim) & 1) == (lane) - 1)

/* ---------------------------------------------------------------------- */
/* Lanes                                                                  */
/* ---------------------------------------------------------------------- */

byte ready[LANES + 1];			/* messages, committed */
bool due[LANES + 1];			/* the lane is listed as one with something to do */
byte reported[LANES + 1];		/* a bit for each scan since which something was */
byte later[LANES + 1];			/* messages that are not due yet */
bool late;				/* the time has come for them */
bool timer[LANES + 1];			/* the lane has a timer that has not fired */

/* ---------------------------------------------------------------------- */
/* Waiters; the smaller the ticket, the longer it has waited              */
/* ---------------------------------------------------------------------- */

byte ticket[CLAIMS + 1];		/* 0: does not wait */
byte last_ticket;
bool is_listed[CLAIMS + 1];
bool is_called[CLAIMS + 1];
bool released[CLAIMS + 1];
bool latch[CLAIMS + 1];
byte keeper;				/* of the time */
bool keeper_knows;			/* it sleeps no longer than until the timer */
bool asleep[CLAIMS + 1];

byte ncancels;
bool must_end[CLAIMS + 1];		/* its owner has released while it waited */

hidden byte w, l, best, n, after;

/* ---------------------------------------------------------------------- */
/* waiters.c                                                              */
/* ---------------------------------------------------------------------- */

inline appoint_keeper()
{
	keeper = NOBODY;
#ifndef BROKEN_KEEPER
	for (w : 1 .. CLAIMS) {
		if
		:: ticket[w] != 0 && is_listed[w] -> latch[w] = true; break
		:: else
		fi
	}
#endif
}

inline call_waiter(claim)
{
	is_listed[claim] = false;
	is_called[claim] = true;
	latch[claim] = true;
	if
	:: keeper == claim -> appoint_keeper()
	:: else
	fi
}

/* Of those listed in the lane's groups, the one that has waited longest. */
inline longest_waiting(lane)
{
	best = NOBODY;
	for (w : 1 .. CLAIMS) {
		if
		:: ticket[w] > after && is_listed[w] && WANTS(w, lane) &&
		   (best == NOBODY || ticket[w] < ticket[best]) ->
			best = w
		:: else
		fi
	}
}

/* outbox_waiters_call_lane; each claim wants one message */
inline call_lane(lane, nmessages)
{
	n = nmessages;
	after = 0;
	do
	:: n > 0 ->
		longest_waiting(lane);
		if
		:: best == NOBODY -> break
		:: else ->
			call_waiter(best);
#ifdef BROKEN_ONE
			break;
#endif
			n--
		fi
	:: else -> break
	od;
	n = 0
}

/* The own claim was called, or could not take all: another one should look. */
inline pass_on(leaving)
{
	n = 0;
	after = (leaving -> 0 : ticket[me]);
	for (l : 1 .. LANES) {
		if
		:: n == 0 && WANTS(me, l) && due[l] ->
			longest_waiting(l);
			if
			:: best != NOBODY -> call_waiter(best); n = 1
			:: else
			fi
		:: else
		fi
	}
	n = 0
}

inline leave()
{
	d_step {
		is_listed[me] = false;
#ifndef BROKEN_LEAVE
		if
		:: is_called[me] -> pass_on(true)
		:: else
		fi;
#endif
		ticket[me] = 0;
		is_called[me] = false;
		latch[me] = false;
		if
		:: keeper == me -> appoint_keeper()
		:: else
		fi
	}
}

/*
 * A lane with nothing to do now, but later, has a timer: outbox_agenda_update.  The
 * keeper must know of it: outbox_waiters_note_time.
 */
inline set_timer(lane)
{
	timer[lane] = !due[lane] && later[lane] > 0;
#ifndef BROKEN_TIME
	if
	:: timer[lane] && keeper != NOBODY && !keeper_knows -> latch[keeper] = true
	:: else
	fi
#endif
}

/* Timers that have fired: outbox_waiters_call_due. */
inline call_due()
{
	for (l : 1 .. LANES) {
		if
		:: late && timer[l] ->
			timer[l] = false;
			due[l] = true;
			call_lane(l, 1)
		:: else
		fi
	}
}

/* ---------------------------------------------------------------------- */
/* A claim                                                                */
/* ---------------------------------------------------------------------- */

/* Scan the lanes with something to do; at most one message is taken. */
inline look()
{
	visited = false;
	/* what becomes due after this is not due to the scan */
	d_step { call_due(); is_late = late; lane = 1 }
	do
	:: lane <= LANES && taken == 0 ->
		if
		:: WANTS(me, lane) && due[lane] ->
			visited = true;
			d_step {
				/* the watch */
				reported[lane] = reported[lane] & ~BIT(me)
			}
			d_step {
				if
				:: ready[lane] > 0 -> ready[lane]--; taken = lane
				:: ready[lane] == 0 && is_late && later[lane] > 0 ->
					later[lane]--; taken = lane
				:: else
				fi;
				rest = ready[lane] > 0 || (is_late && later[lane] > 0)
			}
			d_step {
				/* the cursor goes up, unless something was left or reported */
				due[lane] = rest || (reported[lane] & BIT(me));
				reported[lane] = reported[lane] & ~BIT(me);
				rest = false;
				set_timer(lane)
			}
		:: else
		fi;
		lane++
	:: else -> break
	od;
	lane = 0; is_late = false
}

/* What was taken goes back: outbox_lane_end_claim after an abort. */
inline give_back()
{
	d_step { ready[taken]++ }
	d_step {
		due[taken] = true;
		reported[taken] = 255;
		call_lane(taken, 1);
		taken = 0
	}
}

inline maybe_cancelled()
{
	if
	:: true
	:: d_step { ncancels < CANCELS -> ncancels++; cancelled = true }
	fi
}

proctype claim(byte me)
{
	byte lane, taken;
	bool visited, rest, is_late, cancelled;

	look();
	if
	:: taken != 0 -> goto ends
	:: else
	fi;
	/* outbox_wait_begin */
	d_step {
		last_ticket++;
		ticket[me] = last_ticket;
		released[me] = false
	}
	do
	:: true ->
#ifndef BROKEN_LIST
		d_step { is_listed[me] = true; is_called[me] = false }
#endif
		look();
#ifdef BROKEN_LIST
		d_step { is_listed[me] = true; is_called[me] = false }
#endif
		if
		:: taken != 0 -> break
		:: else
		fi;
#ifndef BROKEN_PASS_ON
		if
		:: visited -> d_step { pass_on(false) }
		:: else
		fi;
#endif
		/* outbox_wait_sleep */
		do
		:: true ->
			maybe_cancelled();
			if
			:: cancelled -> break
			:: else
			fi;
			d_step {
				call_due();
				if
				:: released[me] || is_called[me]
				:: else ->
					if
					:: keeper == NOBODY || !asleep[me] || keeper == me ->
						keeper = me; keeper_knows = timer[1] || timer[2]
					:: else
					fi;
					asleep[me] = true
				fi
			}
			if
			:: released[me] || is_called[me] -> break
			:: else
			fi;
			/* on the latch; the keeper also until the timer fires */
end_asleep:		if
			:: atomic { latch[me] -> latch[me] = false }
			:: keeper == me && keeper_knows && late && (timer[1] || timer[2])
			:: d_step { ncancels < CANCELS -> ncancels++; cancelled = true }
			fi
		od;
		asleep[me] = false;
		if
		:: cancelled || released[me] -> break
		:: else
		fi
	od;
	leave();
ends:
	must_end[me] = false;
	if
	:: taken != 0 -> maybe_cancelled()
	:: else
	fi;
	if
	:: taken != 0 && cancelled -> give_back()
	:: else
	fi
}

/* ---------------------------------------------------------------------- */
/* Those who wake                                                         */
/* ---------------------------------------------------------------------- */

proctype reporter(byte lane)
{
#ifdef BROKEN_EARLY
	d_step { due[lane] = true; reported[lane] = 255; call_lane(lane, MESSAGES) }
#endif
	/* the commit, and then outbox_lane_publish */
	ready[lane] = ready[lane] + MESSAGES;
#ifndef BROKEN_EARLY
	d_step { due[lane] = true; reported[lane] = 255; call_lane(lane, MESSAGES) }
#endif
}

/* A message that is due later, and the time that comes. */
proctype clock()
{
	later[2] = 1;
	d_step { set_timer(2) }
	late = true
}

/* The owner of the last claim releases everything. */
proctype releaser()
{
	d_step {
		if
#ifndef BROKEN_RELEASE
		:: ticket[CLAIMS] != 0 ->
#else
		:: ticket[CLAIMS] != 0 && is_listed[CLAIMS] ->
#endif
			released[CLAIMS] = true;
			latch[CLAIMS] = true
		:: else
		fi;
		must_end[CLAIMS] = ticket[CLAIMS] != 0
	}
}

#define COULD_TAKE(c) (asleep[c] && ((WANTS(c, 1) && ready[1] > 0) || \
	(WANTS(c, 2) && (ready[2] > 0 || (late && later[2] > 0)))))
#define IS_FORGOTTEN(c) (asleep[c] && must_end[c])

/* Nothing moves any more: nobody sleeps who should not. */
active proctype watcher()
{
	byte i;

end_watcher:
	atomic {
		timeout ->
		for (i : 1 .. CLAIMS) {
			assert(!COULD_TAKE(i));
			assert(!IS_FORGOTTEN(i))
		}
	}
}

init {
	atomic {
		byte i;
		for (i : 1 .. CLAIMS) {
			run claim(i)
		}
		for (i : 1 .. REPORTERS) {
			run reporter(1 + (i & 1))
		}
		run clock();
		run releaser()
	}
}
