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

#define WORKERS 2
#define REAPER 3
#define OPERATOR 4
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
byte writer;				/* has locked the row; 0: nobody */
bool seen[5];				/* the process has read this version */
byte rows = 1;				/* in all tables together */

/* What the writer has made of it. */
byte new_status, new_owner, new_attempts, new_waived;

/* What is true, whatever the rows say. */
byte nclaims;				/* since it was enqueued or redriven */
byte nreleases;
byte nredrives;
byte nfinished;				/* acks that were answered, since then */
byte holder;				/* worker that has the live lease; 0: none */

#define COUNTED (attempts - waived)
#define STANDS(p, attempt) (status == LEASED && owner == OWNER(p) && \
	attempts + 1 == (attempt))

inline start_version()
{
	seen[1] = false; seen[2] = false; seen[REAPER] = false; seen[OPERATOR] = false
}

/* Read the row; one that is locked is there as it was. */
inline read_row()
{
	seen[me] = true
}

/* Lock the row, unless it has changed since it was read; wait for who has it. */
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
		got = false
	}
}

inline abort()
{
	d_step {
		writer = 0;
		new_status = 0; new_owner = 0; new_attempts = 0; new_waived = 0;
		got = false
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
				fi
			}
			if
			:: d_step { new_status == LEASED -> mine = new_attempts + 1 }; commit()
			:: new_status != LEASED -> commit()
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
		:: !got -> skip			/* somebody was faster: look again */
		:: else ->
			/* only the holder of the lease, or one whose time is over and that
			 * nobody has taken over, settles */
			assert(holder == me || holder == 0);
			if
			:: new_status = DONE; new_owner = 0
#ifdef BROKEN_COUNT
			:: new_attempts = new_attempts + 1; make_ready(true)
#else
			:: make_ready(true)
#endif
			:: nreleases < RELEASES ->
				d_step { nreleases++; new_waived++; make_ready(false) }
			fi;
			if
			:: commit()
			:: abort()
			fi;
			break
		fi
	od;
	stands = false;
	mine = 0
}

proctype worker(byte me)
{
	byte mine;			/* 1 + the attempt that it works on; 0: none */
	bool got, stands;

end_worker:
	do
	:: mine == 0 && status != DONE && !(status == DEAD && nredrives == REDRIVES) -> claim()
	:: mine != 0 -> settle()
	/* it crashes, and comes back without knowing what it had */
	:: mine != 0 && writer != me -> mine = 0
	:: atomic { status == DONE || (status == DEAD && nredrives == REDRIVES) -> break }
	od
}

/* The time of a lease is over.  A worker that is silent does not notice. */
proctype clock()
{
end_clock:
	do
	:: atomic { status == LEASED && !ended -> ended = true; holder = 0 }
	:: atomic { status == DONE || (status == DEAD && nredrives == REDRIVES) -> break }
	od
}

/* reap_lease */
proctype reaper()
{
	byte me = REAPER;
	bool got;

end_reaper:
	do
	:: status == LEASED && ended ->
		read_row();
		/* it may have changed since it was found */
		if
		:: status == LEASED && ended ->
			lock_row(false);
			if
			:: got -> make_ready(true); commit()
			:: got -> abort()
			:: else
			fi
		:: else
		fi
	:: atomic { status == DONE || (status == DEAD && nredrives == REDRIVES) -> break }
	od
}

/* outbox_requeue: exhume, revive */
proctype operator()
{
	byte me = OPERATOR;
	bool got;

end_operator:
	do
	:: status == DEAD && nredrives < REDRIVES ->
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
				new_status = READY; new_attempts = 0; new_waived = 0
			};
			commit()
		:: else
		fi;
		assert(rows == 1)
	:: atomic { status == DONE || (status == DEAD && nredrives == REDRIVES) -> break }
	od
}

/* Nothing moves any more: the message has ended. */
active proctype watcher()
{
end_watcher:
	timeout -> assert(status == DONE || status == DEAD)
}

init {
	atomic {
		run worker(1);
		run worker(2);
		run clock();
		run reaper();
		run operator()
	}
}
