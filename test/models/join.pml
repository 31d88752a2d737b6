/*
 * join.pml
 *	  A join, its members, its wait and its rechecks, as join.c, joins.sql and waits.sql
 *	  change them.
 *
 * Each message ends in a transaction of its own that marks its member, bumps the
 * join, and wakes the wait; the last one does so without waiting, as a
 * claim or a reap does.  One message is attached late, while it ends.  Workers
 * process rechecks and evaluate the wait.  Every transaction may fail at any point.
 * Others see of it only that a row is being changed, and by whom, until it commits.
 *
 * Runs:
 *	short
 *	short -DWORKERS=2 -DFAILURES=0
 *	long -DMESSAGES=3
 *	long -DMESSAGES=3 -DLATE=2 -DFAILURES=2
 *	long -DMESSAGES=3 -DWORKERS=2
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
#ifndef WORKERS
#define WORKERS 1
#endif
#ifndef FAILURES
#define FAILURES 1			/* transactions that fail */
#endif

#ifdef REPLAY
#define REPLAY_PROCESSES PROCESSES
#endif

/* Processes, which are transactions, are 1 to MESSAGES for those that end a message. */
#define ATTACHER(i) (MESSAGES + (i))
#define WORKER(i) (2 * MESSAGES + (i))
#define PROCESSES WORKER(WORKERS)
#define IS_LATE(i) ((i) > MESSAGES - LATE)

#include "replay.pml"

/*
 * The events, and what they say, beside that they have happened.  Of rows that are
 * left, v1 is LEFT, and v2 the transaction that is waited for.
 */
#define RESET 1				/* another join; v1: steps expected, v2: members, a bit for each */
#define GONE 2				/* v1: it must not wait */
#define MARK 3				/* v1: nothing, done or left */
#define COUNT 4				/* v1: done or left; v2: how many there are then */
#define WAKE 5				/* v1: nothing or left */
#define ATTACH 6
#define LOOK 7				/* v1: has it ended? v2: who is ending it */
#define RECHECK 8			/* v1: about what */
#define RECOUNT 9			/* v1: count before, v2: after */
#define RECHECKED 10			/* v1: is it resolved? */
#define CLAIM 11
#define SEES 12				/* v1: is the join complete? v2: who is changing it */
#define PARK 13
#define FINISH 14
#define COMMIT 15			/* what is in the tables then; see TABLES_ARE_AS_TOLD */
#define ABORT 16

#define NOTHING 0
#define DONE 1
#define LEFT 2

#define BIT(n) (1 << (n))

/* Small numbers, packed into one: how many of each kind there are. */
#define ONE(kind) (1 << (3 * (kind)))
#define HOW_MANY(packed, kind) (((packed) >> (3 * (kind))) & 7)

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
byte continuation_by;			/* enqueues it */

/*
 * Rechecks about a message (its number), or about the join as a whole (0): how many wait
 * for each transaction, and of kind 0 for none that is still in progress.
 */
int rows[MESSAGES + 1];
int left[PROCESSES + 1];		/* that this process leaves */
byte left_about[PROCESSES + 1];
/* those that workers have locked, and those of them that they have deleted; by what they are about */
int locked;
int locked_by[PROCESSES + 1];
int resolved[PROCESSES + 1];

byte nfailures;
byte nended;

#ifndef REPLAY
#define IS_COMPLETE(n) ((n) == MESSAGES)
#else
byte expected;
int left_for[PROCESSES + 1];		/* as left, whether that transaction has ended since or not */
#define IS_COMPLETE(n) ((n) == expected)
#endif
hidden byte i;

/* ---------------------------------------------------------------------- */
/* Transactions                                                           */
/* ---------------------------------------------------------------------- */

inline leave_recheck(about_what, waits_for)
{
	assert(left[me] == 0 || left_about[me] == about_what);
	assert(HOW_MANY(left[me], waits_for) < 7);
	left_about[me] = about_what;
#ifdef BROKEN_RECHECK
	left[me] = left[me] + ONE(0)
#else
	left[me] = left[me] + ONE(waits_for)
#endif
#ifdef REPLAY
	;
	left_for[me] = left_for[me] + ONE(waits_for)
#endif
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
		assert(!(is_member[i] && is_gone[i]) || is_marked[i] || rows[i] != 0)
	}
	assert(count <= nmarked);
	assert(count == nmarked || rows[0] != 0);
	assert(ncontinuations <= 1);
	assert(ncontinuations == (wait == WAIT_DONE));
	assert(ncontinuations == 0 || IS_COMPLETE(count));
	nmarked = 0
}

/*
 * v1: the join's count, if it is changed; v2: what is ended, and changed in members; v3,
 * v4: rechecks that are left, and about what; v5: rechecks that are gone; v6: the
 * wait; v7: continuations.
 */
#define TABLES_ARE_AS_TOLD (v1 == (join_by == me && new_count != count -> new_count : -1) && \
	v2 == nmarked && v3 == left_for[me] && v4 == (left[me] != 0 -> left_about[me] + 1 : 0) && \
	v5 == resolved[me] && v6 == (wait_by == me -> new_wait + 1 : 0) && v7 == (continuation_by == me))

inline compare_tables()
{
#ifdef REPLAY
	nmarked = 0;
	for (i : 1 .. MESSAGES) {
		nmarked = nmarked + (member_by[i] == me -> BIT(i) : 0) + (gone_by[i] == me -> BIT(MESSAGES + i) : 0)
	}
	TELLS(TABLES_ARE_AS_TOLD);
	left_for[me] = 0;
	nmarked = 0
#else
	skip
#endif
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
	fi;
	if
	:: continuation_by == me -> continuation_by = 0; ncontinuations = ncontinuations + commits
	:: else
	fi
}

inline end_rechecks(commits)
{
	for (i : 0 .. MESSAGES) {
		if
		:: commits && i == left_about[me] -> rows[i] = rows[i] + left[me]
		:: else
		fi;
		if
		:: commits -> rows[i] = rows[i] - HOW_MANY(resolved[me], i)
		:: else
		fi;
		/* what waits for this transaction waits no longer */
		assert(HOW_MANY(rows[i], 0) + HOW_MANY(rows[i], me) <= 7);
		rows[i] = rows[i] - HOW_MANY(rows[i], me) * (ONE(me) - 1)
	}
	locked = locked - locked_by[me];
	left[me] = 0; left_about[me] = 0; locked_by[me] = 0; resolved[me] = 0;
	for (i : 1 .. PROCESSES) {
		left[i] = left[i] - HOW_MANY(left[i], me) * (ONE(me) - 1)
	}
}

inline commit()
{
	d_step {
		TOLD(COMMIT) ->
		compare_tables();
		end_rows(true);
		end_rechecks(true);
		check();
		FOLLOWED
	}
}

inline abort()
{
	d_step {
		TOLD(ABORT) ->
		end_rows(false);
		end_rechecks(false);
		check();
#ifdef REPLAY
		left_for[me] = 0;
#endif
		FOLLOWED
	}
}

/* The transaction fails here, or not; the code tells only that it has ended so. */
inline maybe_fail()
{
#ifdef REPLAY
	skip
#else
	if
	:: true
	:: d_step { nfailures < FAILURES -> nfailures++; fails = true }
	fi
#endif
}

/* ---------------------------------------------------------------------- */
/* join.c                                                                 */
/* ---------------------------------------------------------------------- */

/* outbox_join_wake: make the wait claimable, or leave a recheck. */
inline wake_wait()
{
	d_step {
		TOLD(WAKE) ->
		if
		:: wait_by != 0 && wait_by != me ->
			TELLS(v1 == LEFT && v2 == wait_by);
			leave_recheck(0, wait_by)
		:: wait_by == 0 && wait == WAIT_PARKED ->
			TELLS(v1 == NOTHING);
			wait_by = me; new_wait = WAIT_READY
		:: else ->
			TELLS(v1 == NOTHING)
		fi;
		FOLLOWED
	}
}

/* The last message is buried by a claim, which does not wait. */
#ifndef REPLAY
#define MUST_NOT_WAIT (me == MESSAGES)
#else
#define MUST_NOT_WAIT hurries
#endif

/* outbox_join_count, of one message */
inline count_message()
{
	/* mark_members */
	if
	:: d_step { TOLD(MARK) && !is_member[me] && member_by[me] != 0 &&
			WAY(v1 == LEFT && v2 == member_by[me]) ->
		/* it is becoming a member */
		leave_recheck(me, member_by[me]);
		FOLLOWED }
	:: d_step { TOLD(MARK) && is_member[me] && !is_marked[me] && member_by[me] == 0 && WAY(v1 == DONE) ->
		member_by[me] = me; step = true;
		FOLLOWED }
	:: d_step { TOLD(MARK) && is_member[me] && !is_marked[me] && member_by[me] != 0 && MUST_NOT_WAIT &&
			WAY(v1 == LEFT && v2 == member_by[me]) ->
		leave_recheck(me, member_by[me]);
		FOLLOWED }
	:: d_step { TOLD(MARK) && (is_member[me] -> is_marked[me] : member_by[me] == 0) && WAY(v1 == NOTHING) ->
		FOLLOWED }
	fi;
	/* change_join */
	if
	:: step ->
		step = false;
#ifdef BROKEN_BUMP
		commit();
		maybe_fail();
#endif
		if
		:: fails
		:: d_step { TOLD(COUNT) && !fails && MUST_NOT_WAIT && join_by != 0 && WAY(v1 == LEFT) ->
			leave_recheck(0, me);
			FOLLOWED }
		:: d_step { TOLD(COUNT) && !fails && join_by == 0 && WAY(v1 == DONE && v2 == count + 1) ->
			join_by = me; new_count = count + 1;
			FOLLOWED }
		fi;
		if
		:: join_by == me && IS_COMPLETE(new_count) -> wake_wait()
		:: else
		fi
	:: else
	fi
}

inline end_message()
{
	d_step {
		TOLD(GONE) ->
		gone_by[me] = me; fails = false; step = false;
#ifdef REPLAY
		hurries = v1;
#endif
		FOLLOWED
	}
	count_message();
	maybe_fail();
	if
	:: fails -> abort()
	:: else -> commit()
	fi
}

/* A message ends; its worker tries again if that fails. */
proctype ender(byte me)
{
	bool fails, step, hurries;
	byte nmarked;

#ifdef REPLAY
	do
	:: { end_message() } unless { abort() }
	od
#else
	do
	:: !is_gone[me] -> end_message()
	:: else -> break
	od;
	fails = false;
	nended++
#endif
}

inline insert_member()
{
	d_step {
		TOLD(ATTACH) && !is_member[about] && member_by[about] == 0 ->
		member_by[about] = me; fails = false;
		FOLLOWED
	}
}

/* attach_message_to_join */
inline attach()
{
#ifndef BROKEN_ATTACH
	insert_member();
#endif
	d_step {
		TOLD(LOOK) ->
		/* _message_end: how it has ended, or who is changing it */
		if
		:: gone_by[about] != 0 ->
			TELLS(v1 == 0 && v2 == gone_by[about]);
			leave_recheck(about, gone_by[about])
		:: gone_by[about] == 0 && is_gone[about] ->
			TELLS(v1 == 1 && v2 == 0);
			leave_recheck(about, me)
		:: else ->
			TELLS(v1 == 0 && v2 == 0)
		fi;
		FOLLOWED
	}
#ifdef BROKEN_ATTACH
	insert_member();
#endif
	maybe_fail();
	if
	:: fails -> abort()
	:: else -> commit()
	fi
}

proctype attacher(byte about)
{
	byte me = ATTACHER(about);
	bool fails;
	byte nmarked;

#ifdef REPLAY
	do
	:: { attach() } unless { abort() }
	od
#else
	do
	:: !is_member[about] -> attach()
	:: else -> break
	od;
	nended++
#endif
}

/* ---------------------------------------------------------------------- */
/* waits.sql                                                              */
/* ---------------------------------------------------------------------- */

/* Of a recheck that no worker has locked, the transaction that it waits for has ended. */
#define CAN_RESOLVE(d) (HOW_MANY(rows[d], 0) > HOW_MANY(locked, d))

/* _recount, the join being locked */
inline recount()
{
	d_step {
		TOLD(RECOUNT) ->
		nmarked = 0;
		for (i : 1 .. MESSAGES) {
			nmarked = nmarked + (is_member[i] && (is_marked[i] || member_by[i] == me))
		}
		TELLS(v1 == new_count && v2 == nmarked);
		sum = nmarked;
		nmarked = 0;
		FOLLOWED
	}
	d_step {
		new_count = sum;
		sum = 0
	}
	if
	:: IS_COMPLETE(new_count) -> wake_wait()
	:: else
	fi
}

/* _process_join_recheck, with the recheck's row locked */
inline process_recheck()
{
	/* what it was about was rolled back, or is counted */
	d_step {
		over = about != 0 && (!is_gone[about] || !is_member[about] || is_marked[about] ||
			member_by[about] == me);
		got = true
	}
	if
	:: !over ->
		d_step {
			if
			:: join_by == 0 -> join_by = me; new_count = count
			:: join_by == me
			:: else -> got = false
			fi
		}
	:: else
	fi;
	if
	:: !over && got && about != 0 ->
		d_step {
			if
			:: member_by[about] != 0 -> got = false
			:: member_by[about] == 0 && !is_marked[about] -> member_by[about] = me
			:: else
			fi
		}
	:: else
	fi;
	if
	:: !over && got && !IS_COMPLETE(new_count) -> recount()
	:: else
	fi;
	if
	:: !over && got && about == 0 && IS_COMPLETE(new_count) -> wake_wait()
	:: else
	fi;
	d_step {
		TOLD(RECHECKED) ->
		TELLS(v1 == got);
		resolved[me] = resolved[me] + (got -> ONE(about) : 0);
		got = false; over = false;
		FOLLOWED
	}
}

#define CAN_CLAIM ((wait_by == 0 && wait == WAIT_READY) || (wait_by == me && new_wait == WAIT_READY))
#ifndef REPLAY
#define CLAIMS_NOTHING (fails || !CAN_CLAIM)
#else
#define CLAIMS_NOTHING NEXT(COMMIT)
#endif

/* _evaluate_wait; the wait is claimed */
inline evaluate()
{
	d_step {
		TOLD(SEES) ->
		/* one that has only locked it does not change it yet */
		sees = (join_by != me && new_count != count -> join_by : 0);
		pending = !IS_COMPLETE((join_by == me -> new_count : count));
		TELLS(v1 == !pending && v2 == sees);
#ifndef BROKEN_WRITER
		if
		:: pending && sees != 0 -> leave_recheck(0, sees)
		:: else
		fi;
#endif
		sees = 0;
		FOLLOWED
	}
	if
	:: pending ->
		d_step {
			TOLD(PARK) ->
			new_wait = WAIT_PARKED;
			FOLLOWED
		}
	:: else ->
		d_step {
			TOLD(FINISH) ->
			continuation_by = me;
#ifdef BROKEN_CONTINUATION
			wait_by = 0; new_wait = 0
		}
		commit();
		d_step {
			wait_by = me; new_wait = WAIT_READY
		}
		maybe_fail();
		d_step {
#endif
			new_wait = WAIT_DONE;
			FOLLOWED
		}
	fi;
	pending = false
}

/* process_join_waits */
inline work()
{
	fails = false;
#ifdef REPLAY
	do
	:: d_step { TOLD(RECHECK) && CAN_RESOLVE(v1) ->
		about = v1;
#else
	about = 0;
	do
	:: about <= MESSAGES && !CAN_RESOLVE(about) -> about++
	:: d_step { about <= MESSAGES && CAN_RESOLVE(about) ->
#endif
		locked = locked + ONE(about); locked_by[me] = locked_by[me] + ONE(about);
		FOLLOWED }
		process_recheck();
#ifdef REPLAY
		about = 0
	:: NEXT(CLAIM) || NEXT(COMMIT) -> break
#else
		about++
	:: about > MESSAGES -> break
#endif
	od;
	about = 0;
	maybe_fail();
	if
	:: d_step { !fails && CAN_CLAIM && TOLD(CLAIM) ->
		wait_by = me; new_wait = WAIT_READY;
		FOLLOWED }
		evaluate()
	:: CLAIMS_NOTHING
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
}

/* As often as there is something to do. */
proctype worker(byte me)
{
	byte nmarked, sum, sees, about;
	bool fails, got, over, pending;

#ifdef REPLAY
	do
	:: { work() } unless { abort() }
	od
#else
end_worker:
	do
	:: CAN_RESOLVE(0) || CAN_RESOLVE(1) || CAN_RESOLVE(2) || CAN_RESOLVE(MESSAGES) ||
			(wait == WAIT_READY && wait_by == 0) -> work()
	od
#endif
}

#ifdef REPLAY

/* Another join begins, which has these members. */
proctype next_join()
{
	byte me = 0;

	do
	:: d_step { TOLD(RESET) ->
		for (i : 1 .. MESSAGES) {
			is_gone[i] = false; is_marked[i] = false; is_member[i] = (v2 & BIT(i)) != 0
		}
		for (i : 0 .. MESSAGES) {
			rows[i] = 0
		}
		expected = v1; count = 0; wait = WAIT_READY; ncontinuations = 0;
		FOLLOWED }
	od
}

#else

/* Nothing moves any more: the join is complete, and was followed by one message. */
active proctype watcher()
{
end_watcher:
	timeout ->
	assert(count == MESSAGES);
	assert(wait == WAIT_DONE);
	assert(ncontinuations == 1)
}

#endif

init {
	atomic {
		byte n;
#ifdef REPLAY
		LOOK_AT_EVENT;
		run next_join();
#endif
		for (n : 1 .. MESSAGES) {
			run ender(n);
			if
			:: IS_LATE(n) -> run attacher(n)
			:: else -> is_member[n] = true; nended++
			fi
		}
		for (n : 1 .. WORKERS) {
			run worker(WORKER(n))
		}
	}
}
