/*
 * lane.pml
 *	  What shared memory knows of one lane: cursor, next_due, marks, watches and
 *	  leases, as lane.c, lane_state.c, lane_publish.c and lane_xact.c keep them.
 *
 * Sessions run transactions that insert, claim, ack and release, and commit, abort,
 * or fail in the middle of a scan, while the clock goes on.  In every state, each
 * message that can be claimed is where the next claim looks, or somebody is about
 * to say so: the invariant at the top of lane.c.  When all have ended, nobody is
 * about to do anything, so a claim then finds all there is.
 *
 * A d_step is what is done under the agenda's lock, or one row that is read and
 * changed.  README.md maps the names to the code.
 *
 * Runs:
 *	short -DSECOND=1
 *	short -DTRANSACTIONS=1 -DOTHERS=2
 *	long -DTRANSACTIONS=2
 *	long -DSECOND=1 -DCALLS=2
 *	long -DTRANSACTIONS=1 -DCALLS=2 -DOTHERS=2
 *	long -DSECOND=1 -DOTHERS=2 -DKEYS=4 -DLAST_TIME=4
 *	long -DSESSIONS=3 -DTRANSACTIONS=1 -DCALLS=2 -DCELLS=3 -DKEYS=4
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
 */

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
#ifndef FIRST_TIME
#define FIRST_TIME 2
#endif
#ifndef LAST_TIME
#define LAST_TIME 3
#endif
#define PAGE 2				/* entries of the index that are read together */

#define NEVER 15			/* DT_NOEND, OUTBOX_KEY_MAX */
#define EARLY 0				/* DT_NOBEGIN, OUTBOX_KEY_MIN */
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
byte stands[SESSIONS + 1];		/* of these, the marks that are still the same */
byte looking[SESSIONS + 1];		/* transactions about to be looked at */
bool ending[SESSIONS + 1];		/* its transaction is over, and about to be reported */
byte touched[SESSIONS + 1];		/* keys that its transaction has written */
byte nfinished;

/* Inside of a d_step only. */
hidden byte a_lo, a_hi, a_xid, a_at, a_due, a_ok;
hidden byte c, s, best, best_gap, gap;
hidden byte best_alike, alike, any_due;
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
	next_due = MIN(next_due, key)
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

/* Add the record to the pending mark that is closest to it. */
inline merge_pending()
{
	best = 0;
	for (c : 1 .. CELLS) {
		if
		:: mark[c] == PENDING ->
			alike = mark_xid[c] == a_xid && (mark_at[c] == a_at || a_xid == 0);
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
		:: else -> mark[best] = DUE; mark_xid[best] = 0
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
		:: !a_ok && mark[c] == DUE -> extend_mark(c); a_ok = true
		:: else
		fi
	}
}

/* A mark for the record, unless one that there is already includes it. */
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
			mark[c] = (a_due -> DUE : PENDING);
			mark_lo[c] = a_lo; mark_hi[c] = a_hi;
			mark_xid[c] = a_xid; mark_at[c] = a_at;
			a_ok = true
		:: else
		fi
	}
	if
	:: !a_ok -> merge_somewhere()
	:: else
	fi
}

/* Keep in mind that lo..hi must be visited again. */
inline record(lo, hi, xid, at)
{
	a_lo = lo; a_hi = hi; a_xid = xid; a_at = at;
	a_due = a_xid == 0 && a_at == EARLY;
	if
	:: a_at != EARLY && a_at != NEVER ->
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
			mark[cell] = DUE
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
			mark[c] = DUE
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

/* ---------------------------------------------------------------------- */
/* A scan                                                                 */
/* ---------------------------------------------------------------------- */

/* outbox_lane_begin, take_orders: under the lock. */
inline begin_scan()
{
	d_step {
		scan_now = now;
		update(scan_now);
		scan_main = next_due <= scan_now;
		scan_cursor = cursor;
		scan_called = called;
		called = false;
		lost = leases_lost;
		if
		:: nscans[1 - phase] == 0 -> phase = 1 - phase; low[phase] = NEVER
		:: else
		fi;
		nscans[phase]++;
		my_phase = phase;
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
	:: (writer[k] == 0 || IS_OWN(k)) &&
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
		next_due = (exhausted && limit == NEVER -> MIN(scan_next_due, low_key) : target)
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
		:: scan_main -> advance_cursor()
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
		scanning[me] = false; copied[me] = 0; stands[me] = 0
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
				called = true;
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
		stop = false; nclaimed = false; scan_main = false; scan_called = false;
		scan_cursor = 0; scan_next_due = 0; scan_now = 0; lost = 0;
		for (i : 1 .. KEYS) {
			found[i] = 0; found_xid[i] = 0; found_at[i] = 0
		}
		for (i : 1 .. CELLS) {
			copy_lo[i] = 0; copy_hi[i] = 0; copy_xid[i] = 0
		}
	}
}

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
			called = true;
#endif
			update(now);
			scanning[me] = false; copied[me] = 0; stands[me] = 0
		}
	:: else
	fi;
	d_step {
		if
		:: blockers & BIT(xid) ->
			blockers = blockers & ~BIT(xid);
			called = true;
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
				called = true
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
	bool fails;
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
			:: IS_PICKED(now) ->
				begin_scan();
				keep_orders();
				do
				:: !stop -> visit()
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

/* Somebody is about to tell the lane. */
#define BY(p, k) (ending[p] && (touched[p] & BIT(k)))
#define ABOUT(p, m) (mark_xid[m] != 0 && IS_OVER(mark_xid[m]) && \
	((ending[p] && current[p] == mark_xid[m]) || \
	 (scanning[p] && (copied[p] & BIT(m))) || (looking[p] & BIT(mark_xid[m]))))

#if SESSIONS == 2
#define SOMEBODY(k) (BY(1, k) || BY(2, k))
#define IS_COMING(m) (ABOUT(1, m) || ABOUT(2, m))
#else
#define SOMEBODY(k) (BY(1, k) || BY(2, k) || BY(3, k))
#define IS_COMING(m) (ABOUT(1, m) || ABOUT(2, m) || ABOUT(3, m))
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

#define IS_RIGHT(k) (IS_COVERED(k) && IS_KNOWN(k))
#define INVARIANT (IS_RIGHT(1) && IS_RIGHT(2) && IS_RIGHT(3) && IS_RIGHT(KEYS))

never {
	do
	:: !INVARIANT -> break
	:: else
	od
}
