/*
 * lane.pml
 *	  What shared memory knows of one lane: cursor, next_due, marks, watches and
 *	  leases, as lane.c, lane_state.c, lane_publish.c and lane_xact.c keep them.
 *
 * Sessions run transactions that insert, claim, ack, release and reap, and commit,
 * abort, or fail in the middle of a scan, while the clock goes on.  In every state,
 * each message that can be claimed is where the next claim looks, or a process is about
 * to say so: the invariant at the top of lane.c; and each lease that has ended is where
 * the next reap looks.  When all have ended, no process is about to do anything, so a claim
 * then finds all there is.
 *
 * A d_step is what is done under the agenda's lock, or one row that is read and
 * changed.  README.md maps the names to the code.
 *
 * Runs:
 *	short -DSECOND=1 -DREAPS=1
 *	short -DTRANSACTIONS=1 -DOTHERS=2
 *	long -DTRANSACTIONS=2
 *	long -DSECOND=1 -DCALLS=2
 *	long -DTRANSACTIONS=1 -DCALLS=2 -DOTHERS=2
 *	long -DSECOND=1 -DOTHERS=2 -DKEYS=4 -DLAST_TIME=4
 *	long -DSESSIONS=3 -DTRANSACTIONS=1 -DCALLS=2 -DCELLS=3 -DKEYS=4
 *	long -DSECOND=1 -DREAPS=2
 *	long -DSECOND=1 -DREAPS=1 -DOTHERS=2
 *	BROKEN_SERIAL -DFORWARD
 *	BROKEN_LOWER -DSECOND=1 -DOTHERS=2
 *	BROKEN_NEXT_DUE
 *	BROKEN_LEASE
 *	BROKEN_WATCH
 *	BROKEN_MOVED -DSECOND=0 -DCALLS=2
 *	BROKEN_MARKED -DSECOND=1 -DOTHERS=2
 *	BROKEN_BLOCKER
 *	BROKEN_CALL_OFF
 *	BROKEN_ABORT
 *	BROKEN_READY -DSECOND=1 -DREAPS=1
 *	BROKEN_TO_REAP -DSECOND=1 -DREAPS=1
 *	BROKEN_ENDED -DSECOND=1 -DREAPS=1
 *	BROKEN_ALIKE -DSECOND=1 -DREAPS=1
 *	BROKEN_UNDONE -DSECOND=1 -DREAPS=1 -DOTHERS=2
 */

#include "replay.pml"

/*
 * The events, and what they say.  A key is its time and, up to TIMES, its id in the
 * order of those with this time; a time is the first of its keys.
 */
#define NEW 1				/* another lane */
#define WATCH 2				/* who: its phase */
#define UNWATCH 3
#define RECORD 4			/* v1..v2; v3: whether it is of leases, or NEVER */
#define MARK 5				/* v1..v2; v3: it is kept */
#define ADVANCE 6			/* who: the phase; v1: done; v2: now; v3: limit; v4:
							 * exhausted; v5: scan_next_due */
#define RAISE 7				/* v1: the first key */
#define KNOWN 8				/* v1: leases_lost, when the scan began */
#define STATE 9
#define IS_AS_TOLD (cursor == v1 && next_due == v2 && \
	low[0] == v3 && low[1] == v4 && \
	nscans[0] == v5 && nscans[1] == v6 && phase == v7 && leases_known == v8 && \
	leases_lost == v9)

#ifndef KEYS
#define KEYS 3				/* of the ready index; key k is due at time k */
#endif
#ifndef SESSIONS
#define SESSIONS 2
#endif
#ifndef TRANSACTIONS
#define TRANSACTIONS 2			/* of each session */
#endif
#ifndef SECOND
#define SECOND TRANSACTIONS		/* of the sessions but the first */
#endif
#ifndef CALLS
#define CALLS 1				/* in a transaction, at most */
#endif
#ifndef CELLS
#define CELLS 2				/* for marks */
#endif
#ifndef OTHERS
#define OTHERS 0			/* of them that other lanes may take at any time */
#endif
#ifndef REAPS
#define REAPS 0				/* reaps, of all sessions together */
#endif
#ifndef FIRST_TIME
#define FIRST_TIME 2
#endif
#ifndef LAST_TIME
#define LAST_TIME 3
#endif
#define PAGE 2				/* entries of the index that are read together */

#ifndef REPLAY
#define NEVER 15			/* DT_NOEND, OUTBOX_READY_KEY_MAX */
#define TIME_OF(key) (key)
#else
#define NEVER 2147483647
#define TIMES 4096
#define TIME_OF(key) ((key) / TIMES * TIMES)
#endif
#define EARLY 0				/* DT_NOBEGIN, OUTBOX_READY_KEY_MIN */
#define XIDS (SESSIONS * TRANSACTIONS)
#define BIT(n) (1 << (n))
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define MAX(a, b) ((a) > (b) -> (a) : (b))

/* ---------------------------------------------------------------------- */
/* The table                                                              */
/* ---------------------------------------------------------------------- */

#define NONE 0				/* there is no entry with this key */
#define READY 1
#define LEASED 2
#define GONE 3				/* finished, moved or rolled back */

byte status[KEYS + 1];			/* as committed */
byte until[KEYS + 1];			/* the end of the lease */
byte holder[KEYS + 1];
byte writer[KEYS + 1];			/* transaction that is changing the row; 0: none */
byte new_status[KEYS + 1];		/* if that commits */
byte new_until[KEYS + 1];

#define RUNNING 1
#define COMMITTED 2
#define ABORTED 3
byte xact[XIDS + 1];
#define IS_OVER(x) (xact[x] >= COMMITTED)

byte now = FIRST_TIME;

/* ---------------------------------------------------------------------- */
/* The lane                                                               */
/* ---------------------------------------------------------------------- */

byte cursor = EARLY;
byte next_due = EARLY;
bool called;
bool called_to_reap;
byte ended_at = NEVER;			/* of the leases in marks that are due, the first end */
bool leases_known;
byte leases_lost;
byte low[2];
byte nscans[2];
bit phase;
byte blockers;				/* a bit for each transaction that the lane waits for */

#define DUE 1
#define PENDING 2
byte mark[CELLS + 1];			/* 0: the cell is free */
byte mark_lo[CELLS + 1];
byte mark_hi[CELLS + 1];
byte mark_xid[CELLS + 1];
byte mark_at[CELLS + 1];
byte ntaken;				/* cells, from the last one on, that others have */

/* agenda.c: whether the lane is listed, and its timer */
bool listed = true;
byte wake = NEVER;
#define IS_PICKED(time) (listed || wake <= (time))

/* ---------------------------------------------------------------------- */
/* Sessions, as far as others must know of them                           */
/* ---------------------------------------------------------------------- */

byte current[SESSIONS + 1];		/* transaction */
bool scanning[SESSIONS + 1];		/* between begin and end, or giving the watch back */
byte copied[SESSIONS + 1];		/* cells of marks that the scan has taken along */
byte to_reap[SESSIONS + 1];		/* the same, if it is a reap */
byte stands[SESSIONS + 1];		/* of these, the marks that are still the same */
byte looking[SESSIONS + 1];		/* transactions about to be looked at */
bool ending[SESSIONS + 1];		/* its transaction is over, and about to be reported */
byte touched[SESSIONS + 1];		/* keys that its transaction has written */
byte nfinished;

/* Inside of a d_step only. */
hidden byte a_lo, a_hi, a_xid, a_at, a_due, a_ok;
hidden byte c, s, best, best_gap, gap;
hidden byte best_alike, alike, any_due;
byte nreaps;
hidden byte target, done_to, low_key, i;

/* ---------------------------------------------------------------------- */
/* lane_state.c                                                           */
/* ---------------------------------------------------------------------- */

/* Copies of the mark stand for nothing any more: its serial has changed. */
inline change_serial(cell)
{
	for (s : 1 .. SESSIONS) {
		stands[s] = stands[s] & ~BIT(cell)
	}
}

inline remove_mark(cell)
{
	change_serial(cell);
	mark[cell] = 0;
	mark_lo[cell] = 0; mark_hi[cell] = 0; mark_xid[cell] = 0; mark_at[cell] = 0
}

inline extend_mark(cell)
{
#ifndef BROKEN_SERIAL
	change_serial(cell);
#endif
	mark_lo[cell] = MIN(mark_lo[cell], a_lo);
	mark_hi[cell] = MAX(mark_hi[cell], a_hi)
}

inline report_key(key)
{
	if
	:: nscans[0] > 0 -> low[0] = MIN(low[0], key)
	:: else
	fi;
	if
	:: nscans[1] > 0 -> low[1] = MIN(low[1], key)
	:: else
	fi;
	next_due = MIN(next_due, TIME_OF(key))
}

inline lower_cursor(key)
{
#ifndef BROKEN_LOWER
	report_key(key);
	cursor = MIN(cursor, key)
#else
	skip
#endif
}

inline watch()
{
	if
	:: nscans[1 - phase] == 0 -> phase = 1 - phase; low[phase] = NEVER
	:: else
	fi;
	nscans[phase]++;
	my_phase = phase
}

inline call_lane()
{
	called = true;
#ifndef BROKEN_TO_REAP
	called_to_reap = true
#endif
}

inline note_lease_end(at)
{
	if
	:: at != EARLY -> ended_at = MIN(ended_at, at)
	:: else
	fi
}

inline append_due(cell)
{
	any_due = false;
	for (s : 1 .. CELLS) {
		any_due = any_due || mark[s] == DUE
	}
	ended_at = (any_due -> ended_at : NEVER);
#ifndef BROKEN_ENDED
	note_lease_end(mark_at[cell]);
#endif
	mark[cell] = DUE
}

/* Add the record to the pending mark that is closest to it. */
inline merge_pending()
{
	best = 0;
	for (c : 1 .. CELLS) {
		if
		:: mark[c] == PENDING ->
#ifndef BROKEN_ALIKE
			alike = mark_xid[c] == a_xid &&
				(mark_at[c] == a_at || (a_xid == 0 && a_at != EARLY));
#else
			/* the end of a lease is lost in what must be visited at once */
			alike = mark_xid[c] == a_xid && (mark_at[c] == a_at || a_xid == 0);
#endif
			gap = (mark_hi[c] < a_lo -> a_lo - mark_hi[c] :
				(a_hi < mark_lo[c] -> mark_lo[c] - a_hi : 0));
			if
			:: best == 0 || alike > best_alike ||
			   (alike == best_alike && gap < best_gap) ->
				best = c; best_alike = alike; best_gap = gap
			:: else
			fi
		:: else
		fi
	}
	if
	:: best != 0 ->
		extend_mark(best);
		a_ok = true;
		if
		:: best_alike -> mark_at[best] = MIN(mark_at[best], a_at)
		:: else -> append_due(best); mark_xid[best] = 0; note_lease_end(a_at)
		fi
	:: else
	fi
}

/* No cell is left. */
inline merge_somewhere()
{
	any_due = false;
	for (c : 1 .. CELLS) {
		any_due = any_due || mark[c] == DUE
	}
	if
	:: !a_due || !any_due -> merge_pending()
	:: else
	fi;
	for (c : 1 .. CELLS) {
		if
		:: !a_ok && mark[c] == DUE -> extend_mark(c); note_lease_end(a_at); a_ok = true
		:: else
		fi
	}
}

/* A mark for the record, unless one that there is already includes it. */
#ifdef REPLAY
/* The trace does not say which marks there are, but whether there was room. */
inline add_mark()
{
	TELLS(what == MARK && v1 == a_lo && v2 == a_hi);
	a_ok = v3;
	FOLLOWED
}
#else
inline add_mark()
{
	a_ok = false;
	for (c : 1 .. CELLS) {
		if
		:: !a_ok && a_due && mark[c] == DUE &&
		   mark_lo[c] <= a_hi && a_lo <= mark_hi[c] ->
			extend_mark(c); a_ok = true
		:: !a_ok && !a_due && mark[c] == PENDING && mark_xid[c] == a_xid &&
		   mark_at[c] == a_at && mark_lo[c] <= a_hi + (a_xid == 0) &&
		   a_lo <= mark_hi[c] + (a_xid == 0) ->
			extend_mark(c); a_ok = true
		:: else
		fi
	}
	for (c : 1 .. CELLS) {
		if
		:: !a_ok && mark[c] == 0 && c + ntaken <= CELLS ->
			mark_lo[c] = a_lo; mark_hi[c] = a_hi;
			mark_xid[c] = a_xid; mark_at[c] = a_at;
			if
			:: a_due -> append_due(c)
			:: else -> mark[c] = PENDING
			fi;
			a_ok = true
		:: else
		fi
	}
	if
	:: !a_ok -> merge_somewhere()
	:: else
	fi
}
#endif

/* Keep in mind that lo..hi must be visited again. */
inline record(lo, hi, xid, at)
{
	a_lo = lo; a_hi = hi; a_xid = xid; a_at = at;
	a_due = a_xid == 0 && a_at == EARLY;
	if
#ifndef BROKEN_UNDONE
	:: a_at != EARLY ->
#else
	/* of a lease that is no longer in a mark, if that which has ended it is undone */
	:: a_at != EARLY && a_at != NEVER ->
#endif
		add_mark();
		if
		:: !a_ok -> lower_cursor(a_lo); leases_known = false; leases_lost++
		:: else
		fi
	:: else ->
#ifndef BROKEN_NEXT_DUE
		if
		:: a_hi >= cursor -> low_key = MAX(a_lo, cursor); report_key(low_key)
		:: else
		fi;
#endif
		if
		:: a_lo < cursor ->
			a_hi = MIN(a_hi, cursor);
			add_mark();
			if
			:: !a_ok -> lower_cursor(a_lo)
			:: else
			fi
		:: else
		fi
	fi
}

/* Our transaction xid has committed: its leases stand. */
inline decide(xid)
{
	for (i : 1 .. CELLS) {
		if
		:: mark[i] == PENDING && mark_xid[i] == xid ->
			a_lo = mark_lo[i]; a_hi = mark_hi[i]; a_at = mark_at[i];
			remove_mark(i);
#ifndef BROKEN_LEASE
			if
			:: a_at != NEVER -> record(a_lo, a_hi, 0, a_at)
			:: else
			fi
#endif
		:: else
		fi
	}
}

/* A mark was visited, up to "done_to". */
inline drop_mark(session, cell)
{
	if
	:: stands[session] & BIT(cell) ->
		if
		:: mark_hi[cell] < done_to -> remove_mark(cell)
		:: else ->
			if
			:: mark_lo[cell] < done_to || mark_xid[cell] != 0 -> change_serial(cell)
			:: else
			fi;
			mark_lo[cell] = MAX(mark_lo[cell], done_to);
			mark_xid[cell] = 0;
			if
			:: mark[cell] == PENDING -> append_due(cell)
			:: else
			fi
		fi
	:: else
	fi
}

/* outbox_agenda_update */
inline update(time)
{
	listed = called || next_due <= time;
	wake = next_due;
	for (c : 1 .. CELLS) {
		if
		:: mark[c] == PENDING && mark_xid[c] == 0 && mark_at[c] <= time ->
			append_due(c)
		:: else
		fi;
		listed = listed || mark[c] == DUE;
		if
		:: mark[c] == PENDING && mark_xid[c] == 0 -> wake = MIN(wake, mark_at[c])
		:: else
		fi
	}
	wake = (listed -> NEVER : wake)
}

/* Has the end of a lease come, as far as the lane knows?  outbox_lane_next_time */
#define ENDS_BY_NOW(m) (mark[m] == PENDING && mark_xid[m] == 0 && mark_at[m] <= now)
#define ANY_DUE (mark[1] == DUE || mark[2] == DUE || mark[CELLS] == DUE)
#define IS_PICKED_TO_REAP (!leases_known || called_to_reap || (ANY_DUE && ended_at <= now) || \
	ENDS_BY_NOW(1) || ENDS_BY_NOW(2) || ENDS_BY_NOW(CELLS))
#if REAPS > 0
#define CAN_REAP (nreaps < REAPS && IS_PICKED_TO_REAP)
#else
#define CAN_REAP false
#endif

/* ---------------------------------------------------------------------- */
/* A scan                                                                 */
/* ---------------------------------------------------------------------- */

/* outbox_lane_begin, take_orders: under the lock. */
inline begin_scan()
{
	d_step {
		scan_now = now;
		update(scan_now);
		scan_cursor = cursor;
		if
		:: !reaps ->
			scan_main = next_due <= scan_now;
			scan_called = called;
			called = false
		:: else ->
			scan_main = !leases_known;
			called_to_reap = false
		fi;
		lost = leases_lost;
		watch();
		for (c : 1 .. CELLS) {
			if
			:: mark[c] == DUE || (mark[c] == PENDING && mark_xid[c] != 0) ->
				copied[me] = copied[me] | BIT(c);
				copy_lo[c] = mark_lo[c]; copy_hi[c] = mark_hi[c];
				copy_xid[c] = mark_xid[c]
			:: else
			fi
		}
		stands[me] = copied[me];
		to_reap[me] = (reaps -> copied[me] : 0);
		scanning[me] = true
	}
}

/* keep_orders: without the lock. */
inline keep_orders()
{
	d_step {
		visits = noted;
		for (c : 1 .. CELLS) {
			if
			:: !(copied[me] & BIT(c))
			:: else ->
				if
				:: copy_xid[c] == 0 || IS_OVER(copy_xid[c]) ->
					for (i : copy_lo[c] .. copy_hi[c]) {
						visits = visits | BIT(i);
						marked = marked | BIT(i)
					}
				:: else ->
					/* it stays, and is waited for once more */
					stands[me] = stands[me] & ~BIT(c);
					if
					:: scan_called && copy_xid[c] != xid ->
						waits = waits | BIT(copy_xid[c])
					:: else
					fi
				fi
			fi;
			copy_lo[c] = 0; copy_hi[c] = 0; copy_xid[c] = 0
		}
		key = 1
	}
}

#define IS_TO_VISIT(k) ((visits & BIT(k)) || (scan_main && (k) >= scan_cursor))
/* One message is in another topic than the first session claims from. */
#define IS_LEFT(k) (me == 1 && (k) == 2)
#define IS_OWN(k) (writer[k] == xid)
#define SEEN_STATUS(k) (IS_OWN(k) -> new_status[k] : status[k])
#define SEEN_UNTIL(k) (IS_OWN(k) -> new_until[k] : until[k])

/* Read the entries of the page that the key is on. */
inline read_page(k)
{
	if
	:: page != 1 + (k - 1) / PAGE ->
		page = 1 + (k - 1) / PAGE;
		entries = 0;
		for (i : 1 .. KEYS) {
			if
			:: 1 + (i - 1) / PAGE == page && (status[i] != NONE || writer[i] != 0) ->
				entries = entries | BIT(i)
			:: else
			fi
		}
	:: else
	fi
}

/* What a claim does with the message it stands on: walk.c, claim.c. */
inline consider(k)
{
	if
	:: writer[k] != 0 && !IS_OWN(k) ->
		/* another transaction decides */
		found[k] = 1; found_xid[k] = writer[k]; found_at[k] = EARLY;
		waits = waits | BIT(writer[k]);
		passed = k + 1
	:: SEEN_STATUS(k) == LEASED && SEEN_UNTIL(k) > scan_now ->
		found[k] = 1;
		found_xid[k] = (IS_OWN(k) -> xid : 0);
		found_at[k] = SEEN_UNTIL(k);
		nclaimed = nclaimed || IS_OWN(k);
		passed = k + 1
	:: (writer[k] == 0 || IS_OWN(k)) && reaps && SEEN_STATUS(k) == READY ->
#ifndef BROKEN_READY
		found[k] = 1; found_xid[k] = 0; found_at[k] = EARLY;
#endif
		passed = k + 1
	:: (writer[k] == 0 || IS_OWN(k)) && reaps && SEEN_STATUS(k) == LEASED &&
	   SEEN_UNTIL(k) <= scan_now ->
		/* it moves to another key, or to the dead */
		writer[k] = xid;
		new_status[k] = GONE;
		new_until[k] = 0;
		touched[me] = touched[me] | BIT(k);
		moved_lo = (moved_lo == 0 -> k : MIN(moved_lo, k));
		moved_hi = MAX(moved_hi, k);
		found[k] = 1; found_xid[k] = xid; found_at[k] = NEVER;
		nclaimed = true;
		reaped = true;
		/* one is all that the first session wants */
		stop = me == 1;
		passed = k + 1
	:: (writer[k] == 0 || IS_OWN(k)) && !reaps &&
	   (SEEN_STATUS(k) == READY ||
		(SEEN_STATUS(k) == LEASED && SEEN_UNTIL(k) <= scan_now)) ->
		if
		:: enough -> stop = true
		:: !enough && IS_LEFT(k) ->
			limit = MIN(limit, k);
			lease_left = lease_left || SEEN_STATUS(k) == LEASED;
			passed = k + 1
		:: !enough && !IS_LEFT(k) ->
			writer[k] = xid;
			new_status[k] = LEASED;
			new_until[k] = scan_now + 1;
			touched[me] = touched[me] | BIT(k);
			found[k] = 1; found_xid[k] = xid; found_at[k] = scan_now + 1;
			nclaimed = true;
			enough = true;
			passed = k + 1
		fi
	:: (writer[k] == 0 || IS_OWN(k)) && (SEEN_STATUS(k) == GONE || SEEN_STATUS(k) == NONE) ->
		passed = k + 1
	fi
}

/* Go on to the next key that is to be visited. */
inline visit()
{
	d_step {
		do
		:: key <= KEYS && key <= scan_now && !IS_TO_VISIT(key) -> key++
		:: else -> break
		od;
		if
		:: key <= KEYS && key <= scan_now ->
			read_page(key);
			if
			:: entries & BIT(key) -> consider(key)
			:: else -> passed = MAX(passed, (key == scan_now -> key : key + 1))
			fi;
			key++
		:: else ->
			stop = true;
			exhausted = scan_main && scan_cursor <= scan_now;
			scan_next_due = NEVER;
			if
			:: exhausted ->
				passed = MAX(passed, scan_now);
				for (key : scan_now + 1 .. KEYS) {
					read_page(key);
					if
					:: (entries & BIT(key)) && scan_next_due == NEVER ->
						scan_next_due = key
					:: else
					fi
				}
			:: else
			fi
		fi
	}
}

/* Raise the cursor over what was visited. */
inline advance_cursor()
{
	low_key = low[my_phase];
#ifdef BROKEN_WATCH
	low_key = NEVER;
#endif
	target = (exhausted -> MAX(done_to, scan_now) : done_to);
	target = MIN(target, limit);
	target = MIN(target, low_key);
	if
	:: target >= cursor ->
		cursor = target;
		next_due = (exhausted && limit == NEVER -> MIN(scan_next_due, TIME_OF(low_key)) :
			TIME_OF(target))
	:: else
	fi
}

/* outbox_lane_finish, publish_scan: under the lock. */
inline end_scan()
{
	d_step {
		claimed = claimed || nclaimed || moved_hi != 0;
		done_to = MIN(passed, limit);
		for (i : 1 .. CELLS) {
			drop_mark(me, i)
		}
		if
		:: scan_main && !reaps -> advance_cursor()
		:: else
		fi;
#ifndef BROKEN_MOVED
		if
		:: moved_hi != 0 -> record(moved_lo, moved_hi, xid, NEVER)
		:: else
		fi;
#endif
		for (key : 1 .. KEYS) {
			if
			:: found[key] ->
				if
#ifndef BROKEN_MARKED
				:: (!leases_known || (marked & BIT(key))) &&
#else
				:: !leases_known &&
#endif
				   found_xid[key] != 0 && found_at[key] == EARLY ->
					found_at[key] = scan_now
				:: else
				fi;
				record(key, key, found_xid[key], found_at[key])
			:: else
			fi;
			found[key] = 0; found_xid[key] = 0; found_at[key] = 0
		}
		blockers = blockers | waits;
		if
		:: scan_main && exhausted && !lease_left && lost == leases_lost ->
			leases_known = true
		:: else
		fi;
		nscans[my_phase]--;
		update(scan_now);
		looking[me] = waits;
		scanning[me] = false; copied[me] = 0; stands[me] = 0; to_reap[me] = 0
	}
}

/* Transactions may have ended before it was known that the lane waits for them. */
inline look_at_blockers()
{
	d_step {
#ifndef BROKEN_BLOCKER
		for (i : 1 .. XIDS) {
			if
			:: (looking[me] & BIT(i)) && IS_OVER(i) && (blockers & BIT(i)) ->
				call_lane();
				blockers = blockers & ~BIT(i)
			:: else
			fi
		}
		update(now);
#endif
		looking[me] = 0
	}
}

inline forget_scan()
{
	d_step {
		key = 0; visits = 0; marked = 0; waits = 0; page = 0; entries = 0; passed = 0;
		limit = NEVER; exhausted = false; lease_left = false; enough = false;
		stop = false; nclaimed = false; reaps = false; reaped = false; scan_main = false; scan_called = false;
		scan_cursor = 0; scan_next_due = 0; scan_now = 0; lost = 0;
		for (i : 1 .. KEYS) {
			found[i] = 0; found_xid[i] = 0; found_at[i] = 0
		}
		for (i : 1 .. CELLS) {
			copy_lo[i] = 0; copy_hi[i] = 0; copy_xid[i] = 0
		}
	}
}

#ifdef REPLAY

init {
	byte my_phase, done, scan_now, limit, scan_next_due, lo, hi, at_end;
	bool exhausted;

	LOOK_AT_EVENT;
	do
	:: what == 0 -> break
	:: d_step { what == NEW ->
		cursor = EARLY; next_due = EARLY; leases_known = false; leases_lost = 0;
		nscans[0] = 0; nscans[1] = 0; low[0] = 0; low[1] = 0; phase = 0;
		FOLLOWED }
	:: d_step { what == WATCH ->
		watch();
		TELLS(my_phase == who);
		FOLLOWED }
	:: d_step { what == UNWATCH && nscans[who] > 0 ->
		nscans[who]--;
		FOLLOWED }
	:: d_step { what == RECORD ->
		lo = v1; hi = v2; at_end = v3;
		FOLLOWED;
		record(lo, hi, 0, at_end) }
	:: d_step { what == ADVANCE && nscans[who] > 0 ->
		my_phase = who; done_to = v1; scan_now = v2; limit = v3; exhausted = v4;
		scan_next_due = v5;
		advance_cursor();
		FOLLOWED }
	:: d_step { what == RAISE && cursor == EARLY && nscans[0] + nscans[1] == 0 ->
		cursor = v1; next_due = TIME_OF(v1); leases_known = true;
		FOLLOWED }
	:: d_step { what == KNOWN && leases_lost == v1 ->
		leases_known = true;
		FOLLOWED }
	:: d_step { what == STATE && IS_AS_TOLD -> FOLLOWED }
	od
}

#else

/* ---------------------------------------------------------------------- */
/* A session                                                              */
/* ---------------------------------------------------------------------- */

/* Publish what the transaction has noted: outbox_lane_publish. */
inline publish()
{
	d_step {
		for (key : 1 .. KEYS) {
			if
			:: noted & BIT(key) -> record(key, key, 0, EARLY)
			:: else
			fi
		}
		key = 0;
		update(now)
	}
}

inline end_rows(commits)
{
	for (i : 1 .. KEYS) {
		if
		:: writer[i] == xid ->
			if
			:: commits ->
				status[i] = new_status[i];
				until[i] = (new_status[i] == LEASED -> new_until[i] : 0);
				holder[i] = (new_status[i] == LEASED -> me : 0)
			:: !commits && status[i] == NONE -> status[i] = GONE
			:: else
			fi;
			writer[i] = 0; new_status[i] = 0; new_until[i] = 0
		:: else
		fi
	}
}

/* The transaction ends: outbox_lane_xact_end. */
inline end_xact(commits)
{
	d_step {
		xact[xid] = (commits -> COMMITTED : ABORTED);
		end_rows(commits);
		ending[me] = true
	}
	if
	:: scanning[me] ->
		/* call_off */
		d_step {
			nscans[my_phase]--;
#ifndef BROKEN_CALL_OFF
			call_lane();
#endif
			update(now);
			scanning[me] = false; copied[me] = 0; stands[me] = 0; to_reap[me] = 0
		}
	:: else
	fi;
	d_step {
		if
		:: blockers & BIT(xid) ->
			blockers = blockers & ~BIT(xid);
			call_lane();
			update(now)
		:: else
		fi
	}
	if
	:: claimed ->
		d_step {
			if
			:: commits -> decide(xid)
			:: else ->
#ifndef BROKEN_ABORT
				call_lane()
#else
				skip
#endif
			fi;
			update(now);
			claimed = false
		}
	:: else
	fi;
	if
	:: commits && noted != 0 -> publish()
	:: else
	fi;
	d_step {
		ending[me] = false; touched[me] = 0; noted = 0;
		moved_lo = 0; moved_hi = 0; xid = 0; current[me] = 0; claimed = false
	}
}

/* A row comes in, at any free key. */
inline insert()
{
	atomic {
		if
		:: status[1] == NONE && writer[1] == 0 -> key = 1
		:: status[2] == NONE && writer[2] == 0 -> key = 2
		:: status[KEYS] == NONE && writer[KEYS] == 0 -> key = KEYS
#if KEYS > 3
		:: status[3] == NONE && writer[3] == 0 -> key = 3
#endif
		:: else -> key = 0
		fi;
		if
		:: key != 0 ->
			writer[key] = xid; new_status[key] = READY;
			touched[me] = touched[me] | BIT(key);
			noted = noted | BIT(key);
			key = 0
		:: else
		fi
	}
}

#define CAN_SETTLE(k) ((writer[k] == 0 && status[k] == LEASED && holder[k] == me) || \
	(writer[k] == xid && new_status[k] == LEASED))

/* A lease of ours ends, by ack; or, by release, the row moves to another key. */
inline settle()
{
	atomic {
		if
		:: CAN_SETTLE(1) -> key = 1
		:: CAN_SETTLE(2) -> key = 2
		:: CAN_SETTLE(KEYS) -> key = KEYS
#if KEYS > 3
		:: CAN_SETTLE(3) -> key = 3
#endif
		fi;
		writer[key] = xid; new_status[key] = GONE; new_until[key] = 0;
		touched[me] = touched[me] | BIT(key);
		moved_lo = (moved_lo == 0 -> key : MIN(moved_lo, key));
		moved_hi = MAX(moved_hi, key);
		key = 0
	}
	if
	:: true
	:: insert()
	fi
}

#define HAS_LEASE (CAN_SETTLE(1) || CAN_SETTLE(2) || CAN_SETTLE(3) || CAN_SETTLE(KEYS))

proctype session(byte me)
{
	byte xid, started, ncalls, key, visits, marked, waits, page, entries, passed;
	byte limit = NEVER;
	byte scan_now, scan_cursor, scan_next_due, lost, noted, moved_lo, moved_hi;
	bit my_phase;
	bool scan_main, scan_called, exhausted, lease_left, enough, stop, nclaimed, claimed;
	bool fails, reaps, reaped;
	byte copy_lo[CELLS + 1], copy_hi[CELLS + 1], copy_xid[CELLS + 1];
	byte found[KEYS + 1], found_xid[KEYS + 1], found_at[KEYS + 1];

	do
	:: started < (me == 1 -> TRANSACTIONS : SECOND) ->
		d_step {
			started++;
			xid = (me - 1) * TRANSACTIONS + started;
			xact[xid] = RUNNING;
			current[me] = xid;
			ncalls = 0;
			fails = false
		}
		do
		:: ncalls < CALLS && !fails ->
			ncalls++;
			if
			:: insert()
			:: HAS_LEASE -> settle()
			:: atomic { IS_PICKED(now) || CAN_REAP ->
					if
					:: IS_PICKED(now)
					:: CAN_REAP -> nreaps++; reaps = true
					fi
				};
				begin_scan();
				keep_orders();
				do
				:: !stop ->
					visit();
					if
					:: reaped -> reaped = false; insert()
					:: reaped -> reaped = false
					:: else
					fi
				:: else -> break
				od;
				if
				:: true -> end_scan(); look_at_blockers()
				:: fails = true
				fi;
				forget_scan()
			fi
		:: ncalls > 0 -> break
		od;
		if
		:: !fails -> end_xact(true)
		:: end_xact(false)
		fi
	:: else -> break
	od;
	ncalls = 0;
	nfinished++
}

proctype clock()
{
	do
	:: now < LAST_TIME -> now++
	:: else -> break
	od
}

#if OTHERS > 0
/* Other lanes, which need cells. */
proctype others()
{
	do
	:: ntaken < OTHERS -> ntaken++
	:: else -> break
	od
}
#endif

init {
	atomic {
		byte n;
		status[1] = READY;
		low[0] = NEVER; low[1] = NEVER;
		for (n : 1 .. SESSIONS) {
			run session(n)
		}
#if OTHERS > 0
		run others();
#endif
		run clock()
	}
}

/* ---------------------------------------------------------------------- */
/* The invariant                                                          */
/* ---------------------------------------------------------------------- */

#define IS_CLAIMABLE(k) (writer[k] == 0 && ((status[k] == READY && k <= now) || \
	(status[k] == LEASED && until[k] <= now)))

#define IN_MARK(m, k) (mark[m] != 0 && mark_lo[m] <= k && k <= mark_hi[m])
#define IS_LIVE(m) (mark[m] == DUE || (mark_xid[m] == 0 && mark_at[m] <= now) || \
	(mark_xid[m] != 0 && IS_OVER(mark_xid[m])))

/* A process is about to report to the lane. */
#define BY(p, k) (ending[p] && (touched[p] & BIT(k)))
#define ABOUT(p, m) (mark_xid[m] != 0 && IS_OVER(mark_xid[m]) && \
	((ending[p] && current[p] == mark_xid[m]) || \
	 (scanning[p] && (copied[p] & BIT(m))) || (looking[p] & BIT(mark_xid[m]))))

#if SESSIONS == 2
#define SOMEBODY(k) (BY(1, k) || BY(2, k))
#define IS_COMING(m) (ABOUT(1, m) || ABOUT(2, m))
#define REAPED_NOW(m) ((to_reap[1] | to_reap[2]) & BIT(m))
#else
#define SOMEBODY(k) (BY(1, k) || BY(2, k) || BY(3, k))
#define IS_COMING(m) (ABOUT(1, m) || ABOUT(2, m) || ABOUT(3, m))
#define REAPED_NOW(m) ((to_reap[1] | to_reap[2] | to_reap[3]) & BIT(m))
#endif

#define MARKED(m, k) (IN_MARK(m, k) && ((IS_LIVE(m) && IS_PICKED(now)) || IS_COMING(m)))
#if CELLS == 2
#define ANY_MARK(k) (MARKED(1, k) || MARKED(2, k))
#define ANY_CELL(k) (IN_MARK(1, k) || IN_MARK(2, k))
#else
#define ANY_MARK(k) (MARKED(1, k) || MARKED(2, k) || MARKED(3, k))
#define ANY_CELL(k) (IN_MARK(1, k) || IN_MARK(2, k) || IN_MARK(3, k))
#endif

#define IS_COVERED(k) (!IS_CLAIMABLE(k) || SOMEBODY(k) || ANY_MARK(k) || \
	(IS_PICKED(now) && k >= cursor && next_due <= now))

/* When all have ended, and all leases are said to be known, they are in marks. */
#define IS_KNOWN(k) (nfinished < SESSIONS || !leases_known || \
	status[k] != LEASED || ANY_CELL(k))

/* A lease that has ended is where the next reap looks. */
#if REAPS > 0
#define TO_REAP(m, k) (IN_MARK(m, k) && \
	((IS_LIVE(m) && IS_PICKED_TO_REAP) || IS_COMING(m) || REAPED_NOW(m)))
#define IS_REAPABLE(k) (writer[k] == 0 && status[k] == LEASED && until[k] <= now)
#define IS_REAPED(k) (!IS_REAPABLE(k) || SOMEBODY(k) || TO_REAP(1, k) || TO_REAP(2, k) || \
	TO_REAP(CELLS, k) || (!leases_known && k >= cursor))
#else
#define IS_REAPED(k) true
#endif

#define IS_RIGHT(k) (IS_COVERED(k) && IS_KNOWN(k) && IS_REAPED(k))
#define INVARIANT (IS_RIGHT(1) && IS_RIGHT(2) && IS_RIGHT(3) && IS_RIGHT(KEYS))

never {
	do
	:: !INVARIANT -> break
	:: else
	od
}

#endif
