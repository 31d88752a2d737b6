/*
 * join.pml
 *	  A join, its members, its wait and its rechecks, as join.c, joins.sql and waits.sql
 *	  change them.
 *
 * Each message ends in a transaction of its own that marks its member, bumps the
 * join, and wakes the wait; the last one does so without waiting, as a
 * claim or a reap does.  One message is attached late, while it ends.  A worker
 * processes rechecks and evaluates the wait.  Every transaction may fail at any point.
 * Others see of it only that a row is being changed, and by whom, until it commits.
 *
 * Runs:
 *	short
 *	long -DMESSAGES=3
 *	long -DMESSAGES=3 -DLATE=2 -DFAILURES=2
 *	BROKEN_ATTACH
 *	BROKEN_BUMP
 *	BROKEN_RECHECK
 *	BROKEN_WRITER
 *	BROKEN_CONTINUATION
 */

#ifndef MESSAGES
#define MESSAGES 2			/* steps that the join expects */
#endif
#ifndef LATE
#define LATE 1				/* of them are attached while they end */
#endif
#ifndef FAILURES
#define FAILURES 1			/* transactions that fail */
#endif

#define PENDING 0
#define MARKED 1

/* Processes, which are transactions, are 1 to MESSAGES for those that end a message. */
#define ATTACHER(i) (MESSAGES + (i))
#define WORKER (2 * MESSAGES + 1)
#define PROCESSES WORKER
#define IS_LATE(i) ((i) > MESSAGES - LATE)

#define BIT(n) (1 << (n))

/* ---------------------------------------------------------------------- */
/* Rows: as committed, who is changing them, and into what                */
/* ---------------------------------------------------------------------- */

bool is_gone[MESSAGES + 1];		/* the message has ended */
byte gone_by[MESSAGES + 1];

bool is_member[MESSAGES + 1];
byte member_by[MESSAGES + 1];		/* inserts it, or marks it */
bool is_marked[MESSAGES + 1];

byte count;
byte join_by;
byte new_count;

#define WAIT_READY 0
#define WAIT_PARKED 1
#define WAIT_DONE 2
byte wait = WAIT_READY;
byte wait_by;
byte new_wait;
byte ncontinuations;
byte new_continuations;

/*
 * Rechecks: about a message (its number), or about the join as a whole (0), each with
 * the transaction that it waits for; uncommitted ones belong to the transaction that leaves them.
 */
bool recheck[MESSAGES + 1];
byte recheck_for[MESSAGES + 1];		/* a bit for each transaction that it waits for */
byte new_recheck[PROCESSES + 1];		/* a bit for each that this process leaves */
byte new_for[PROCESSES + 1];
byte resolved[PROCESSES + 1];		/* that it has deleted */

bool in_progress[PROCESSES + 1];
byte nfailures;
byte nended;

#define IS_COMPLETE(n) ((n) == MESSAGES)
hidden byte i;

/* ---------------------------------------------------------------------- */
/* Transactions                                                           */
/* ---------------------------------------------------------------------- */

inline begin()
{
	in_progress[me] = true
}

inline leave_recheck(about, waits_for)
{
	new_recheck[me] = new_recheck[me] | BIT(about);
	new_for[me] = new_for[me] | BIT(waits_for)
}

/*
 * P7, at every commit: as many steps are counted as members are marked, or there is a
 * recheck that will have the join counted again; and of each message that has ended
 * and is a member, the member is marked, or there is a recheck.
 */
inline check()
{
	nmarked = 0;
	for (i : 1 .. MESSAGES) {
		nmarked = nmarked + (is_member[i] && is_marked[i]);
		assert(!(is_member[i] && is_gone[i]) || is_marked[i] || recheck[i])
	}
	assert(count <= nmarked);
	assert(count == nmarked || recheck[0]);
	assert(ncontinuations <= 1);
	assert(ncontinuations == (wait == WAIT_DONE));
	assert(ncontinuations == 0 || IS_COMPLETE(count));
	nmarked = 0
}

inline end_rows(commits)
{
	for (i : 1 .. MESSAGES) {
		if
		:: gone_by[i] == me -> gone_by[i] = 0; is_gone[i] = is_gone[i] || commits
		:: else
		fi;
		if
		:: member_by[i] == me ->
			member_by[i] = 0;
			if
			:: commits && is_member[i] -> is_marked[i] = true
			:: commits && !is_member[i] -> is_member[i] = true
			:: else
			fi
		:: else
		fi
	}
	if
	:: join_by == me -> join_by = 0; count = (commits -> new_count : count)
	:: else
	fi;
	new_count = (join_by == 0 -> 0 : new_count);
	if
	:: wait_by == me -> wait_by = 0; wait = (commits -> new_wait : wait); new_wait = 0
	:: else
	fi
}

inline commit()
{
	d_step {
		end_rows(true);
		for (i : 0 .. MESSAGES) {
			if
			:: resolved[me] & BIT(i) -> recheck[i] = false; recheck_for[i] = 0
			:: else
			fi;
			if
			:: new_recheck[me] & BIT(i) ->
				recheck[i] = true; recheck_for[i] = recheck_for[i] | new_for[me];
				/* another row, which the worker has not read */
				resolved[WORKER] = (me == WORKER -> resolved[WORKER] : resolved[WORKER] & ~BIT(i))
			:: else
			fi
		}
		new_recheck[me] = 0; new_for[me] = 0; resolved[me] = 0;
		ncontinuations = ncontinuations + new_continuations;
		new_continuations = 0;
		in_progress[me] = false;
		check()
	}
}

inline abort()
{
	d_step {
		end_rows(false);
		new_recheck[me] = 0; new_for[me] = 0; resolved[me] = 0;
		if
		:: me == WORKER -> new_continuations = 0
		:: else
		fi;
		in_progress[me] = false;
		check()
	}
}

/* The transaction fails here, or not. */
inline maybe_fail()
{
	if
	:: true
	:: d_step { nfailures < FAILURES -> nfailures++; fails = true }
	fi
}

/* ---------------------------------------------------------------------- */
/* join.c                                                                 */
/* ---------------------------------------------------------------------- */

/* outbox_join_wake: make the wait claimable, or leave a recheck. */
inline wake_wait()
{
	d_step {
		if
		:: wait_by != 0 && wait_by != me -> leave_recheck(0, wait_by)
		:: wait_by == 0 && wait == WAIT_PARKED ->
			wait_by = me; new_wait = WAIT_READY
		:: else
		fi
	}
}

/* The last message is buried by a claim, which does not wait. */
#define MUST_NOT_WAIT (me == MESSAGES)

/* outbox_join_count, of one message */
inline count_message()
{
	/* mark_members */
	atomic {
		if
		:: !is_member[me] && member_by[me] != 0 ->
			/* it is becoming a member */
			leave_recheck(me, member_by[me])
		:: is_member[me] && !is_marked[me] && member_by[me] == 0 ->
			member_by[me] = me; step = true
		:: is_member[me] && !is_marked[me] && member_by[me] != 0 && MUST_NOT_WAIT ->
			leave_recheck(me, member_by[me])
		:: is_member[me] && is_marked[me]
		:: !is_member[me] && member_by[me] == 0
		fi
	}
	/* change_join */
	if
	:: step ->
		step = false;
#ifdef BROKEN_BUMP
		commit();
		begin();
		maybe_fail();
#endif
		if
		:: fails
		:: !fails && MUST_NOT_WAIT && join_by != 0 -> leave_recheck(0, me)
		:: atomic { !fails && join_by == 0 -> join_by = me; new_count = count + 1 }
		fi;
		if
		:: join_by == me && IS_COMPLETE(new_count) -> wake_wait()
		:: else
		fi
	:: else
	fi
}

/* A message ends; its worker tries again if that fails. */
proctype ender(byte me)
{
	bool fails, step;
	byte nmarked;

	do
	:: !is_gone[me] ->
		begin();
		fails = false;
		gone_by[me] = me;
		count_message();
		maybe_fail();
		if
		:: fails -> abort()
		:: else -> commit()
		fi
	:: else -> break
	od;
	fails = false;
	nended++
}

/* attach_message_to_join */
proctype attacher(byte about)
{
	byte me = ATTACHER(about);
	bool fails, looked;
	byte nmarked, sees;

	do
	:: !is_member[about] ->
		begin();
		fails = false;
#ifndef BROKEN_ATTACH
		member_by[about] = me;
#endif
		d_step {
			/* _message_end: how it has ended, or who is changing it */
			sees = (gone_by[about] != 0 -> gone_by[about] : (is_gone[about] -> me : 0));
			if
			:: sees != 0 -> leave_recheck(about, sees)
			:: else
			fi;
			sees = 0
		}
#ifdef BROKEN_ATTACH
		member_by[about] = me;
#endif
		maybe_fail();
		if
		:: fails -> abort()
		:: else -> commit()
		fi
	:: else -> break
	od;
	nended++
}

/* ---------------------------------------------------------------------- */
/* waits.sql                                                              */
/* ---------------------------------------------------------------------- */

#define WAITS_FOR(d, p) ((recheck_for[d] & BIT(p)) && in_progress[p])
#ifdef BROKEN_RECHECK
#define CAN_RESOLVE(d) (recheck[d])
#else
#define CAN_RESOLVE(d) (recheck[d] && !WAITS_FOR(d, 1) && !WAITS_FOR(d, 2) && \
	!WAITS_FOR(d, 3) && !WAITS_FOR(d, 4) && !WAITS_FOR(d, PROCESSES - 2) && \
	!WAITS_FOR(d, PROCESSES - 1))
#endif

/* Count what is marked and was not counted, the lock on the join being held. */
inline recount()
{
	d_step {
		nmarked = 0;
		for (i : 1 .. MESSAGES) {
			nmarked = nmarked + (is_member[i] && (is_marked[i] || member_by[i] == me))
		}
		new_count = nmarked;
		nmarked = 0
	}
}

/* _process_join_recheck, with the recheck's row locked */
inline process_recheck(about)
{
	d_step {
		resolved[me] = resolved[me] | BIT(about);
		if
		:: join_by != 0 -> got = false
		:: else -> join_by = me; new_count = count; got = true
		fi
	}
	if
	:: got && about != 0 ->
		d_step {
			if
			:: !is_gone[about] || !is_member[about] ->
				/* what it was about was rolled back */
				skip
			:: is_gone[about] && is_member[about] && member_by[about] != 0 -> got = false
			:: else ->
				if
				:: !is_marked[about] -> member_by[about] = me
				:: else
				fi
			fi
		}
	:: else
	fi;
	if
	:: got ->
		recount();
		if
		:: IS_COMPLETE(new_count) -> wake_wait()
		:: else
		fi
	:: else -> resolved[me] = resolved[me] & ~BIT(about)
	fi
}

/* _evaluate_wait */
inline evaluate()
{
	d_step {
		wait_by = me;
		new_wait = WAIT_READY;
		sees = join_by;
		pending = !IS_COMPLETE((join_by == me -> new_count : count));
		sees = (sees == me -> 0 : sees)
	}
	if
	:: pending ->
		d_step {
			new_wait = WAIT_PARKED;
#ifndef BROKEN_WRITER
			if
			:: sees != 0 -> leave_recheck(0, sees)
			:: else
			fi;
#endif
			sees = 0
		}
	:: else ->
		new_continuations = 1;
#ifdef BROKEN_CONTINUATION
		wait_by = 0; new_wait = 0;
		commit();
		begin();
		d_step { wait_by = me; new_wait = WAIT_READY };
		maybe_fail();
#endif
		new_wait = WAIT_DONE
	fi;
	pending = false
}

/* process_join_waits, as often as there is something */
proctype worker()
{
	byte me = WORKER;
	byte nmarked, sees, about;
	bool fails, got, pending;

end_worker:
	do
	:: atomic { CAN_RESOLVE(0) || CAN_RESOLVE(1) || CAN_RESOLVE(2) || CAN_RESOLVE(MESSAGES) ||
			(wait == WAIT_READY && wait_by == 0) -> begin() };
		fails = false;
		about = 0;
		do
		:: about <= MESSAGES ->
			if
			:: CAN_RESOLVE(about) -> process_recheck(about)
			:: else
			fi;
			about++
		:: else -> break
		od;
		about = 0; got = false;
		maybe_fail();
		if
		:: !fails && wait_by == 0 && wait == WAIT_READY -> evaluate()
		:: !fails && wait_by == me && new_wait == WAIT_READY -> evaluate()
		:: else
		fi;
		if
		:: !fails -> maybe_fail()
		:: else
		fi;
		if
		:: fails -> abort()
		:: else -> commit()
		fi;
		fails = false
	od
}

/* Nothing moves any more: the join is complete, and was followed by one message. */
active proctype watcher()
{
end_watcher:
	timeout ->
	assert(count == MESSAGES);
	assert(wait == WAIT_DONE);
	assert(ncontinuations == 1)
}

init {
	atomic {
		byte n;
		for (n : 1 .. MESSAGES) {
			run ender(n);
			if
			:: IS_LATE(n) -> run attacher(n)
			:: else -> is_member[n] = true; nended++
			fi
		}
		run worker()
	}
}
