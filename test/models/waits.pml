/*
 * waits.pml
 *	  Claims that wait, as claim_wait.c, wake.c and sleepers.c have them sleep, and as
 *	  lane_publish.c calls them.
 *
 * Claims register, list themselves, look, and sleep; reporters commit messages into
 * two lanes, and then call as many claims as there are messages for; two messages
 * become due by time, at once, and one claim is called; an owner releases everything; a
 * claim may be cancelled, or its transaction rolled back, at any time.  When nothing
 * moves any more, no claim sleeps while there is a message that it could take, and none
 * whose owner had released everything when it was waiting already.
 *
 * What a scan finds in a lane is lane.pml; here a lane is a number of messages, and
 * whether it is known that something is to be done there.
 *
 * Runs:
 *	short -DCLAIMS=2 -DMESSAGES=1
 *	short -DREPORTERS=0 -DCANCELS=0
 *	long -DREPORTERS=1 -DMESSAGES=1 -DCANCELS=0
 *	long
 *	long -DCANCELS=0
 *	long -DMESSAGES=1
 *	BROKEN_LIST -DCLAIMS=2 -DMESSAGES=1
 *	BROKEN_EARLY -DCLAIMS=2 -DMESSAGES=1
 *	BROKEN_LEAVE -DCLAIMS=2 -DMESSAGES=1
 *	BROKEN_NOTHING -DFORWARD -DREPORTERS=1 -DMESSAGES=1 -DCANCELS=0
 *	BROKEN_DUTY -DMESSAGES=1 -DLATE=0 -DCANCELS=0
 *	BROKEN_LAST -DREPORTERS=0 -DCANCELS=0
 *	BROKEN_NEWS -DFORWARD -DREPORTERS=1 -DMESSAGES=1 -DCANCELS=0
 *	BROKEN_UPDATE -DREPORTERS=1 -DMESSAGES=1 -DCANCELS=0
 *	BROKEN_KEEPER -DREPORTERS=0 -DCANCELS=0
 *	BROKEN_APPOINT -DFORWARD -DREPORTERS=1 -DMESSAGES=1 -DLATE=1
 *	BROKEN_TIME -DREPORTERS=0 -DCANCELS=0
 *	BROKEN_RELEASE -DCLAIMS=2 -DREPORTERS=1
 */

#include "replay.pml"

/* The events, and what they say. */
#define JOIN 1				/* v1: the lanes that it wants, a bit for each */
#define LIST 2
#define NOTHING 3			/* the look has found nothing; v1: others might */
#define LEAVE 4
#define SLEEP 5				/* v1: it is awake; v2: the keeper of the time; v3: it will
							 * look, called or not */
#define CALLED 6
#define KEEPER 7			/* a new one is wanted */
#define APPOINT 8
#define CALL 9				/* who: the lane; v1: messages */
#define DUE 10				/* who: the lane; v1: it is */
#define RELEASE 11
#define ALL 12				/* all are called that are listed; v1: the lanes stay */
#define PASS 13				/* who: the lane; no claim has a duty to it any more */

#ifndef CLAIMS
#define CLAIMS 3
#endif
#ifndef REPORTERS
#define REPORTERS 2
#endif
#ifndef MESSAGES
#define MESSAGES 2			/* that one reporter commits at once */
#endif
#ifndef LATE
#define LATE 2				/* that become due at the same time */
#endif
#ifndef CANCELS
#define CANCELS 1			/* claims that are cancelled, or rolled back */
#endif

#ifndef LANES
#define LANES 2
#endif
#define NOBODY 0
#define BIT(n) (1 << (n))
#define ALL_CLAIMS (BIT(CLAIMS + 1) - 1)
#ifdef REPLAY
#define NEVER 1000000000	/* a ticket that no claim has */
#else
#define NEVER 255
#endif

/* Which lanes a claim chooses from: the first from both, the others from one. */
#ifndef REPLAY
#define WANTS(claim, lane) ((claim) == 1 || ((claim) & 1) == (lane) - 1)
#else
int wanted[CLAIMS + 1];
#define WANTS(claim, lane) (wanted[claim] & BIT(lane))
#endif

/* ---------------------------------------------------------------------- */
/* Lanes                                                                  */
/* ---------------------------------------------------------------------- */

byte ready[LANES + 1];			/* messages, committed */
bool due[LANES + 1];			/* the lane is listed as one with something to do */
byte nduties[LANES + 1];		/* claims that are awake and were called for it */
byte news[LANES + 1];			/* a bit for each claim: others were called since it was */
byte reported[LANES + 1];		/* a bit for each scan since which something was */
byte later[LANES + 1];			/* messages that are not due yet */
bool late;				/* the time has come for them */
bool timer[LANES + 1];			/* the lane has a timer that has not fired */

/* ---------------------------------------------------------------------- */
/* Sleepers; the smaller the ticket, the longer it has waited              */
/* ---------------------------------------------------------------------- */

byte ticket[CLAIMS + 1];		/* 0: does not wait */
byte last_ticket;
bool is_listed[CLAIMS + 1];
bool is_called[CLAIMS + 1];
byte called_for[CLAIMS + 1];	/* the lane, since it last began to look */
byte looks_for[CLAIMS + 1];		/* the lane, before that */
bool released[CLAIMS + 1];
bool latch[CLAIMS + 1];
byte keeper;				/* of the time */
bool keeper_knows;			/* it sleeps no longer than until the timer */
bool asleep[CLAIMS + 1];

byte ncancels;
bool must_end[CLAIMS + 1];		/* its owner has released while it waited */

hidden byte w, l, best, n, after, found, ended_for;

/* ---------------------------------------------------------------------- */
/* sleepers.c                                                              */
/* ---------------------------------------------------------------------- */

inline appoint_keeper()
{
	keeper = NOBODY;
	TELLS(what == KEEPER);
	FOLLOWED;
#ifndef BROKEN_KEEPER
	found = NOBODY;
	for (w : 1 .. CLAIMS) {
		if
		:: ticket[w] != 0 && is_listed[w] ->
			found = w;
			if
			:: WAY(what == APPOINT && who == w) ->
				latch[w] = true;
#ifndef BROKEN_APPOINT
				keeper = w;
				keeper_knows = true;
#endif
				FOLLOWED;
				break
			:: else
			fi
		:: else
		fi
	}
	TELLS(found == NOBODY || w <= CLAIMS)
#endif
}

inline call_sleeper(claim, what_for)
{
	TELLS(what == CALLED && who == claim);
	FOLLOWED;
	is_listed[claim] = false;
	is_called[claim] = true;
	assert(called_for[claim] == 0);
	called_for[claim] = what_for;
	if
	:: what_for != 0 ->
		nduties[what_for]++;
		news[what_for] = news[what_for] & ~BIT(claim)
	:: else
	fi;
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

/* outbox_sleepers_call_lane; each claim wants one message */
inline call_lane(lane, nmessages)
{
	n = nmessages;
	after = 0;
	news[lane] = ALL_CLAIMS;
	do
	:: n > 0 ->
		longest_waiting(lane);
		if
		:: best == NOBODY -> break
		:: else -> call_sleeper(best, lane); n--
		fi
	:: else -> break
	od;
	n = 0
}

/* The last one of those with a duty to the lane calls the next. */
inline end_duty(lane)
{
	if
	:: lane != 0 ->
		nduties[lane]--;
#ifdef BROKEN_LAST
		/* it has done what it was called for */
		found = taken == lane;
#else
		found = 0;
#endif
		if
		:: nduties[lane] == 0 && due[lane] && !found ->
#ifndef BROKEN_NEWS
			/* what came since it may not have seen: it can be called itself */
			if
			:: (news[lane] & BIT(me)) && after != NEVER -> after = 0
			:: else
			fi;
#endif
			longest_waiting(lane);
			if
			:: best != NOBODY ->
				TELLS(what == PASS && who == lane);
				FOLLOWED;
				call_sleeper(best, lane)
			:: else
			fi
		:: else
		fi
	:: else
	fi
}

/* outbox_sleepers_pass_on */
inline pass_on()
{
	TELLS(what == NOTHING && who == me);
	ended_for = looks_for[me];
	looks_for[me] = 0;
#ifdef REPLAY
	after = (v1 -> ticket[me] : NEVER);
#else
	after = ticket[me];
#endif
	FOLLOWED;
#ifdef BROKEN_NOTHING
	after = NEVER;
#endif
	end_duty(ended_for)
}

inline leave()
{
	d_step {
		TOLD(LEAVE);
		FOLLOWED;
		is_listed[me] = false;
		after = 0;
#ifdef BROKEN_LEAVE
		after = NEVER;
#endif
#ifdef BROKEN_DUTY
		/* it has taken a message, of whichever lane */
		after = (taken != 0 -> NEVER : 0);
#endif
		ended_for = looks_for[me];
		looks_for[me] = 0;
		end_duty(ended_for);
		ended_for = called_for[me];
		called_for[me] = 0;
		end_duty(ended_for);
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
 * outbox_agenda_update: a lane with nothing to do now, but later, has a timer, of which
 * the keeper must know (outbox_sleepers_note_time).  One that is cancelled has fired if
 * its time has come.
 */
inline update(lane, is_due)
{
	found = late && timer[lane] && is_due;
	due[lane] = is_due;
	timer[lane] = !due[lane] && later[lane] > 0;
#ifndef BROKEN_UPDATE
	if
	:: found -> call_lane(lane, 1)
	:: else
	fi;
#endif
#ifndef BROKEN_TIME
	if
	:: timer[lane] && keeper != NOBODY && !keeper_knows -> latch[keeper] = true
	:: else
	fi
#endif
}

/* Timers that have fired: outbox_sleepers_call_due. */
#ifdef REPLAY
inline call_due()
{
	skip					/* there is an event for each lane */
}
#else
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
#endif

/* ---------------------------------------------------------------------- */
/* A claim                                                                */
/* ---------------------------------------------------------------------- */

/* Scan the lanes with something to do; at most one message is taken. */
#ifdef REPLAY
/* What lanes are scanned for is lane.pml; here it matters what comes of it. */
inline look()
{
	d_step { who == me && what < CALLED -> taken = what == LEAVE }
}
#else
inline look()
{
	maybe_cancelled();
	/* what becomes due after this is not due to the scan */
	d_step { call_due(); is_late = late; lane = 1 }
	do
	:: lane <= LANES && taken == 0 && !cancelled ->
		if
		:: WANTS(me, lane) && due[lane] ->
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
				rest = rest || (reported[lane] & BIT(me));
				reported[lane] = reported[lane] & ~BIT(me);
				update(lane, rest);
				rest = false
			}
		:: else
		fi;
		lane++
	:: else -> break
	od;
	lane = 0; is_late = false
}
#endif

/* What was taken goes back: outbox_lane_end_claim after an abort. */
inline give_back()
{
	d_step { ready[taken]++ }
	d_step {
		reported[taken] = 255;
		update(taken, true);
		call_lane(taken, 1);
		taken = 0
	}
}

inline maybe_cancelled()
{
	if
#ifdef REPLAY
	:: d_step { who == me && what < CALLED -> cancelled = what == LEAVE }
#else
	:: true
	:: d_step { ncancels < CANCELS -> ncancels++; cancelled = true }
#endif
	fi
}

/* outbox_sleeper_list */
inline list()
{
	looks_for[me] = called_for[me];
	called_for[me] = 0;
	is_listed[me] = true;
	is_called[me] = false
}

proctype claim(byte me)
{
	byte lane, taken;
	bool rest, is_late, cancelled, awake, ended;
#ifdef REPLAY
	bool looks;				/* though it is not called */
#endif

#ifndef REPLAY
	look();
	if
	:: taken != 0 || cancelled -> goto ends
	:: else
	fi;
#else
end_idle:
	if
	:: TOLD(JOIN)
	:: what == 0 -> goto over
	fi;
#endif
	/* outbox_sleep_begin */
	d_step {
		last_ticket++;
		ticket[me] = last_ticket;
#ifdef REPLAY
		wanted[me] = v1;
#endif
		FOLLOWED;
		released[me] = false
	}
	do
#ifdef REPLAY
	/* it polls, or its time is over */
	:: TOLD(LEAVE) -> break
#endif
	:: TOLD(LIST) ->
#ifndef BROKEN_LIST
		d_step { FOLLOWED; list() }
#endif
		look();
#ifdef BROKEN_LIST
		d_step { list() }
#endif
		if
		:: taken != 0 || cancelled -> break
		:: else
		fi;
		d_step { pass_on() }
		/* outbox_sleep_until_called */
		do
		:: true ->
			maybe_cancelled();
			if
			:: cancelled -> break
			:: else
			fi;
			d_step {
				TOLD(SLEEP);
				call_due();
				awake = released[me] || is_called[me];
#ifdef REPLAY
				looks = v3;
				if
				:: WAY(looks && v1) -> awake = true
				:: else
				fi;
#endif
				if
				:: awake
				:: else ->
					if
					:: keeper == NOBODY || !asleep[me] || keeper == me ->
						keeper = me; keeper_knows = timer[1] || timer[2]
					:: else
					fi;
					asleep[me] = true
				fi;
				ended = released[me];
				TELLS(v1 == awake && v2 == keeper);
				FOLLOWED
			}
			if
			:: awake -> break
			:: else
			fi;
			/* on the latch; the keeper also until the timer fires */
end_asleep:		if
#ifdef REPLAY
			:: who == me && what < CALLED ->
				if
				:: looks && what == LIST -> break
				:: else
				fi
#else
			:: atomic { latch[me] -> latch[me] = false }
			:: keeper == me && keeper_knows && late && (timer[1] || timer[2])
			:: d_step { ncancels < CANCELS -> ncancels++; cancelled = true }
#endif
			fi
		od;
		asleep[me] = false;
		awake = false;
#ifdef REPLAY
		looks = false;
#endif
		if
		:: cancelled || ended -> break
		:: else
		fi
	od;
	leave();
#ifdef REPLAY
	d_step { taken = 0; cancelled = false; ended = false; asleep[me] = false }
	goto end_idle;
over:
	skip
#else
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
#endif
}

/* ---------------------------------------------------------------------- */
/* What wakes them                                                        */
/* ---------------------------------------------------------------------- */

#ifdef REPLAY

/* What others do. */
proctype others()
{
	byte lane;

end_others:
	do
	:: what == DUE -> d_step { due[who] = v1; FOLLOWED }
	:: what == CALL -> d_step { lane = who; n = v1; FOLLOWED; call_lane(lane, n); lane = 0 }
	:: what == RELEASE ->
		d_step {
			assert(ticket[who] != 0);
			released[who] = true;
			latch[who] = true;
			FOLLOWED
		}
	:: what == ALL ->
		d_step {
			lane = v1;
			FOLLOWED;
			n = 0;
			for (w : 1 .. CLAIMS) {
				n = n + (ticket[w] != 0 && is_listed[w]);
				if
				:: lane == 0 -> called_for[w] = 0; looks_for[w] = 0
				:: else
				fi
			}
			for (w : 1 .. LANES) {
				if
				:: lane == 0 -> nduties[w] = 0
				:: else
				fi
			}
			do
			:: n > 0 ->
				assert(what == CALLED && is_listed[who]);
				lane = who;
				call_sleeper(lane, 0);
				n--
			:: else -> break
			od;
			lane = 0
		}
	:: what == 0 -> break
	od
}

init {
	byte i;

	atomic {
		LOOK_AT_EVENT;
		for (i : 1 .. CLAIMS) {
			run claim(i)
		}
		run others()
	}
}

#else

proctype reporter(byte lane)
{
#ifdef BROKEN_EARLY
	d_step { reported[lane] = 255; update(lane, true); call_lane(lane, MESSAGES) }
#endif
	/* the commit, and then outbox_lane_publish */
	ready[lane] = ready[lane] + MESSAGES;
#ifndef BROKEN_EARLY
	d_step { reported[lane] = 255; update(lane, true); call_lane(lane, MESSAGES) }
#endif
}

/* Messages that are due later, and the time that comes. */
proctype clock()
{
	later[2] = LATE;
	d_step { update(2, due[2]) }
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

/* Nothing moves any more: no claim sleeps that should not. */
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
#if REPORTERS > 0
		for (i : 1 .. REPORTERS) {
			run reporter(1 + (i & 1))
		}
#endif
		run clock();
		run releaser()
	}
}

#endif
