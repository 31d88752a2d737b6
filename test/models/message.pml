/*
 * message.pml
 *	  The life of one message: claim, lease, ack, nack, release, reap, death, redrive,
 *	  as claim.c, settle.c, reap.c and requeue.c change its row.
 *
 * Two workers of two owners, or of one (-DONE_OWNER), claim and settle, crash at any
 * point, or fall silent and come back with an attempt that is over.  A reaper runs
 * beside them, and an operator redrives.  What a call does to the row is one
 * transaction: the row is read; then locked and changed if it is still as it was
 * read; then there is a commit, an abort, or a crash.
 *
 * Runs:
 *	short
 *	short -DONE_OWNER -DREDRIVES=0
 *	long -DMAX_ATTEMPTS=3 -DRELEASES=2 -DREDRIVES=2
 *	long -DMAX_ATTEMPTS=4 -DRELEASES=3 -DREDRIVES=3
 *	BROKEN_FENCE -DONE_OWNER -DREDRIVES=0
 *	BROKEN_REREAD
 *	BROKEN_COUNT
 *	BROKEN_EXHUME
 */

#include "replay.pml"

/*
 * The events, and what they say.  v1, v2: status and attempts before; v3, v4, v5:
 * status, attempts and waived after, the last two -1 if unknown; v6: as mine, or 0.
 */
#define RESET 1				/* another message */
#define CLAIM 2
#define SETTLE 3
#define REAP 4
#define REDRIVE 5
#define ENDED 6
#define COMMIT 7
#define ABORT 8
#define IS_AS_TOLD (status == v1 && attempts == v2 && new_status == v3 && \
	(v4 < 0 || (new_attempts == v4 && new_waived == v5)))

#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 2
#endif
#ifndef RELEASES
#define RELEASES 1			/* attempts that may be given back */
#endif
#ifndef REDRIVES
#define REDRIVES 1
#endif

#define READY 0				/* OutboxStatus */
#define LEASED 1
#define DONE 2
#define DEAD 3

#ifndef WORKERS
#define WORKERS 2
#endif
#define REAPER (WORKERS + 1)
#define OPERATOR (WORKERS + 2)
#define CLOCK (WORKERS + 3)
#ifdef ONE_OWNER
#define OWNER(p) 1
#else
#define OWNER(p) (p)
#endif

/* The row, as committed. */
byte status = READY;
byte owner;
byte attempts;
byte waived;
bool ended;				/* the time of the lease is over */
byte writer;				/* has locked the row; 0: none */
bool seen[WORKERS + 3];			/* the process has read this version */
byte rows = 1;				/* in all tables together */

/* What the writer has made of it. */
byte new_status, new_owner, new_attempts, new_waived;

/* What is true, whatever the rows say. */
byte nclaims;				/* since it was enqueued or redriven */
byte nreleases;
byte nredrives;
byte nfinished;				/* acks that were answered, since then */
byte holder;				/* worker that has the live lease; 0: none */

hidden byte i;

#ifndef REPLAY
#define IS_OVER (status == DONE || (status == DEAD && nredrives == REDRIVES))
#else
#define IS_OVER (what == 0)
#endif
#define COUNTED (attempts - waived)
#define STANDS(p, attempt) (status == LEASED && owner == OWNER(p) && \
	attempts + 1 == (attempt))

inline start_version()
{
	for (i : 1 .. OPERATOR) {
		seen[i] = false
	}
}

/* Read the row; one that is locked is there as it was. */
inline read_row()
{
	seen[me] = true
}

/* Lock the row, unless it has changed since it was read; wait for the process that has locked it. */
inline lock_row(waits)
{
	got = false;
	if
	:: atomic { writer == 0 ->
		if
#ifdef BROKEN_REREAD
		:: true ->
#else
		:: seen[me] ->
#endif
			writer = me; got = true;
			new_status = status; new_owner = owner;
			new_attempts = attempts; new_waived = waived
		:: else
		fi }
	:: atomic { !waits && writer != 0 -> skip }
	fi
}

inline commit()
{
	d_step {
		TOLD(COMMIT);
		/* P5: what is finished does not change, except by redrive */
		assert(status != DONE);
		assert(status != DEAD || me == OPERATOR);
		/* P3: one live lease */
		if
		:: new_status == LEASED ->
			assert(holder == 0);
			holder = me;
			nclaims++;
			assert(nclaims <= MAX_ATTEMPTS + nreleases)
		:: else -> holder = 0
		fi;
		if
		:: me == OPERATOR -> nclaims = 0; nreleases = 0; nredrives++
		:: else
		fi;
		if
		:: new_status == DONE -> nfinished++; assert(nfinished == 1)
		:: else
		fi;
		status = new_status;
		owner = (status == LEASED -> new_owner : 0);
		attempts = new_attempts;
		waived = new_waived;
		ended = false;
		writer = 0;
		new_status = 0; new_owner = 0; new_attempts = 0; new_waived = 0;
		start_version();
		got = false;
		FOLLOWED
	}
}

inline abort()
{
	d_step {
		TOLD(ABORT);
		writer = 0;
		new_status = 0; new_owner = 0; new_attempts = 0; new_waived = 0;
		got = false;
		FOLLOWED
	}
}

/* outbox_queue_fate: the attempts that count are used up */
#define IS_EXHAUSTED (new_attempts - new_waived >= MAX_ATTEMPTS)

inline make_ready(exhausted_dies)
{
	new_owner = 0;
	new_status = (exhausted_dies && IS_EXHAUSTED -> DEAD : READY)
}

/* Lease the message, or bury it: consider and take in claim.c. */
inline claim()
{
	read_row();
	if
	:: (status == READY || (status == LEASED && ended)) ->
		lock_row(false);
		if
		:: got ->
			d_step {
				if
				:: IS_EXHAUSTED -> make_ready(true)
				:: else ->
					new_status = LEASED; new_owner = OWNER(me);
#ifndef BROKEN_COUNT
					new_attempts = new_attempts + 1
#else
					/* counted when it is settled */
					skip
#endif
				fi;
				TELLS(IS_AS_TOLD);
				FOLLOWED
			}
			if
			:: d_step { new_status == LEASED && WAY(what == COMMIT) -> mine = new_attempts + 1 }; commit()
			:: new_status != LEASED && WAY(what == COMMIT) -> commit()
			:: abort(); mine = 0
			fi
		:: else
		fi
	:: else
	fi
}

/* settle_lease: ack, nack or release of the attempt that we believe to have */
inline settle()
{
	do
	:: true ->
		read_row();
#ifdef BROKEN_FENCE
		stands = status == LEASED && owner == OWNER(me);
#else
		stands = STANDS(me, mine);
#endif
		if
		:: !stands -> break
		:: else
		fi;
		lock_row(true);
		if
		:: !got -> skip			/* changed concurrently: look again */
		:: else ->
			/* only the holder of the lease, or one whose time is over and that
			 * was not taken over, settles */
			assert(holder == me || holder == 0);
			if
			:: WAY(v3 == DONE) -> new_status = DONE; new_owner = 0
			/* fail */
			:: WAY(v3 == DEAD) -> new_status = DEAD; new_owner = 0
#ifdef BROKEN_COUNT
			:: new_attempts = new_attempts + 1; make_ready(true)
#else
			:: WAY(v3 == READY && v5 == waived) -> make_ready(true)
#endif
			:: nreleases < RELEASES && WAY(v3 == READY && v5 > waived) ->
				d_step { nreleases++; new_waived++; make_ready(false) }
			fi;
			d_step {
				TELLS(IS_AS_TOLD);
				FOLLOWED
			}
			if
			:: commit(); mine = 0
			/* it may try again */
			:: abort()
			fi;
			break
		fi
	od;
	mine = (stands -> mine : 0);
	stands = false
}

proctype worker(byte me)
{
	byte mine;			/* 1 + the attempt that it works on; 0: none */
	bool got, stands;

end_worker:
	do
	:: mine == 0 && !IS_OVER && TOLD(CLAIM) -> claim()
	:: mine != 0 && TOLD(SETTLE) && WAY(v6 == 0 || v6 == mine) -> settle()
	/* it crashes, and comes back without knowing what it had */
	:: mine != 0 && writer != me && TOLD(CLAIM) -> mine = 0
	:: atomic { IS_OVER -> break }
	od
}

/* The time of a lease is over.  A worker that is silent does not notice. */
proctype clock()
{
	byte me = CLOCK;

end_clock:
	do
	:: atomic { status == LEASED && !ended && TOLD(ENDED) ->
		ended = true; holder = 0; FOLLOWED }
	:: atomic { IS_OVER -> break }
	od
}

/* reap_lease */
proctype reaper()
{
	byte me = REAPER;
	bool got;

end_reaper:
	do
	:: status == LEASED && ended && TOLD(REAP) ->
		read_row();
		/* it may have changed since it was found */
		if
		:: status == LEASED && ended ->
			lock_row(false);
			if
			:: got ->
				d_step { make_ready(true); TELLS(IS_AS_TOLD); FOLLOWED }
				if
				:: commit()
				:: abort()
				fi
			:: else
			fi
		:: else
		fi
	:: atomic { IS_OVER -> break }
	od
}

/* outbox_requeue: exhume, revive */
proctype operator()
{
	byte me = OPERATOR;
	bool got;

end_operator:
	do
	:: status == DEAD && nredrives < REDRIVES && TOLD(REDRIVE) ->
		read_row();
		lock_row(true);
		if
		:: got ->
#ifndef BROKEN_EXHUME
			d_step { rows = rows - 1; rows = rows + 1 };
#else
			rows++;
#endif
			d_step {
				new_status = READY; new_attempts = 0; new_waived = 0;
				FOLLOWED
			}
#ifdef REPLAY
			if
			:: abort()
			:: commit()
			fi
#else
			commit()
#endif
		:: else
		fi;
		assert(rows == 1)
	:: atomic { IS_OVER -> break }
	od
}

#ifdef REPLAY

proctype next_message()
{
end_next_message:
	do
	:: d_step { what == RESET ->
		status = READY; owner = 0; attempts = 0; waived = 0; ended = false; writer = 0;
		nclaims = 0; nreleases = 0; nredrives = 0; nfinished = 0; holder = 0;
		new_status = 0; new_owner = 0; new_attempts = 0; new_waived = 0;
		start_version();
		FOLLOWED }
	:: atomic { IS_OVER -> break }
	od
}

#else

/* Nothing moves any more: the message has ended. */
active proctype watcher()
{
end_watcher:
	timeout -> assert(status == DONE || status == DEAD)
}

#endif

init {
	byte n;

	atomic {
#ifdef REPLAY
		LOOK_AT_EVENT;
		run next_message();
#endif
		for (n : 1 .. WORKERS) {
			run worker(n)
		}
		run clock();
		run reaper();
		run operator()
	}
}
