/*
 * stream_cursor.pml
 *	  The place where the unfinished messages of a stream begin, and the gap behind
 *	  the first of them, as stream_cursor.c remembers and stream.c uses them.
 *
 * Owners claim, ack and nack messages of one stream in transactions that commit or
 * abort; a producer adds one at the end; a restore brings a row with a place of its
 * own; another stream takes over the entry of the cache.  In every state all that is
 * below the place, or in the gap, is gone for good, so that no walk that leaps over
 * it misses anything; and no message is leased while one before it, which was there
 * when the claim looked, is unfinished and not the same owner's.
 *
 * Runs:
 *	short -DPLACES=3 -DCALLS=2
 *	long -DCALLS=2
 *	long
 *	BROKEN_ARRIVING -DCALLS=2
 *	BROKEN_ESCAPED -DCALLS=2
 *	BROKEN_FORGET -DCALLS=2
 *	BROKEN_VERSION -DCALLS=2
 *	BROKEN_GAP -DCALLS=2
 *	BROKEN_OWN
 */

#include "replay.pml"

#ifndef PLACES
#define PLACES 4			/* the first is for the restore, the last for the producer */
#endif
#ifndef OWNERS
#define OWNERS 2
#endif
#ifndef CALLS
#define CALLS 3				/* of each owner */
#endif

#if PLACES < 4
#define ROOM 5
#else
#define ROOM (PLACES + 1)
#endif

#define NONE 0
#define WAITING 1
#define LEASED 2
#define GONE 3

#define PRODUCER (OWNERS + 1)
#define RESTORE (OWNERS + 2)
#define BIT(n) (1 << (n))
#define MAX(a, b) ((a) > (b) -> (a) : (b))

/* ---------------------------------------------------------------------- */
/* Rows                                                                   */
/* ---------------------------------------------------------------------- */

byte state[ROOM];
byte owner[ROOM];
bit entry[ROOM];			/* a row that is moved has another index entry */
byte writer[ROOM];
byte new_state[ROOM];

/* The entry of the cache. */
#ifndef REPLAY
#define OURS 1
#else
#define OURS v1				/* the stream that the event is about */
#endif
#define ANOTHER 2
byte stream;				/* whose it is; 0: none */
byte low;
byte gap_from;
byte gap_to;
byte version;

bool restored;				/* the row is there, and the cursor not yet forgotten */
byte ndone;

hidden byte i;

#define IS_ALIVE(p) (state[p] == WAITING || state[p] == LEASED || \
	(state[p] == NONE && writer[p] != 0))

/* ---------------------------------------------------------------------- */
/* stream_cursor.c                                                        */
/* ---------------------------------------------------------------------- */

inline get_cursor()
{
	d_step {
		t_version = version;
		t_low = (stream == OURS -> low : 0);
		t_from = (stream == OURS -> gap_from : 0);
		t_to = (stream == OURS -> gap_to : 0)
	}
}

/* lock_cursor_to_raise */
inline make_ours()
{
	if
	:: stream != OURS ->
		version++;
		stream = OURS; low = 0; gap_from = 0; gap_to = 0
	:: else
	fi
}

#ifdef BROKEN_VERSION
#define IS_CURRENT(v) true
#else
#define IS_CURRENT(v) (version == (v))
#endif

/* outbox_stream_cursor_raise */
inline raise_cursor(v, from_low, to)
{
	d_step {
		if
		:: to > from_low && IS_CURRENT(v) ->
			make_ours();
			low = MAX(low, to)
		:: else
		fi
	}
}

/* outbox_stream_cursor_widen */
inline widen_gap(from, to)
{
	d_step {
		if
		:: IS_CURRENT(t_version) ->
			make_ours();
			if
			:: gap_from == from -> gap_to = MAX(gap_to, to)
			:: else ->
				if
				:: gap_from >= gap_to || gap_from < low || from <= gap_from ->
					gap_from = from; gap_to = to
				:: else
				fi
			fi
		:: else
		fi
	}
}

/* outbox_stream_cursor_forget */
inline forget_cursor()
{
	d_step {
		if
		:: stream == OURS -> stream = 0; low = 0; gap_from = 0; gap_to = 0
		:: else
		fi;
		version++
	}
}

#ifdef REPLAY

/* Events, and what they say. */
#define RESET 1				/* another entry, or the memory is new */
#define GET 2
#define RAISE 3
#define WIDEN 4
#define FORGET 5
#define T_VERSION v2
#define T_LOW v3
#define T_FROM v4
#define T_TO v5
#define IS_AS_TOLD (stream == v6 && low == v7 && gap_from == v8 && gap_to == v9 && \
	version == v10)

init {
	byte t_version, t_low, t_from, t_to;

	LOOK_AT_EVENT;
	do
	:: what == 0 -> break
	:: what == RESET ->
		d_step {
			stream = 0; low = 0; gap_from = 0; gap_to = 0; version = 0;
			next_event()
		}
	:: what == GET ->
		get_cursor();
		assert(t_version == T_VERSION && t_low == T_LOW && t_from == T_FROM && t_to == T_TO);
		goto followed
	:: what == RAISE ->
		assert(IS_CURRENT(T_VERSION));
		raise_cursor(T_VERSION, 0, T_LOW);
		goto followed
	:: what == WIDEN ->
		t_version = T_VERSION;
		assert(IS_CURRENT(t_version));
		widen_gap(T_FROM, T_TO);
		goto followed
	:: what == FORGET ->
		forget_cursor();
followed:
		assert(IS_AS_TOLD);
		d_step {
			t_version = 0; t_low = 0; t_from = 0; t_to = 0;
			next_event()
		}
	od
}

#else

/* ---------------------------------------------------------------------- */
/* stream.c                                                               */
/* ---------------------------------------------------------------------- */

#define IS_LEAPT_OVER(p) ((p) < t_low || (t_from < (p) && (p) < t_to))
#define IS_MINE(p) (writer[p] == me)
#define SEEN_STATE(p) (IS_MINE(p) -> new_state[p] : state[p])
#define IS_HELD(p) (SEEN_STATE(p) == LEASED && (owner[p] == me || IS_MINE(p)))

/*
 * Walk back from a place, with a dirty snapshot, over the entries of a page that was
 * read at once.  A row that has been moved since is not found by its old entry.
 */
inline walk_before(place)
{
	d_step {
		for (i : 1 .. PLACES) {
			if
			:: state[i] != NONE || writer[i] != 0 ->
				page = page | BIT(i);
				page_entry = page_entry | (entry[i] << i)
			:: else
			fi
		}
		at = place - 1;
		clear = true; first = 0; ngone = 0; ngone_first = 0
	}
	do
	:: at >= 1 && clear ->
		d_step {
			if
			:: IS_LEAPT_OVER(at) || !(page & BIT(at))
			:: else ->
				if
				:: ((page_entry >> at) & 1) != entry[at] || SEEN_STATE(at) == GONE ||
				   (state[at] == NONE && writer[at] == 0) ->
					ngone++
				:: else ->
					if
					:: first == 0 -> first = at; ngone_first = ngone
					:: else
					fi;
#ifdef BROKEN_ARRIVING
					if
					:: state[at] == NONE && !IS_MINE(at) -> first = 0; ngone++
					:: else -> clear = (writer[at] == 0 || IS_MINE(at)) && IS_HELD(at)
					fi
#else
					clear = (writer[at] == 0 || IS_MINE(at)) && IS_HELD(at)
#endif
				fi
			fi;
			at--
		}
	:: else -> break
	od;
	at = 0; page = 0; page_entry = 0
}

/* With a snapshot: is there a row above "from" that was missed? */
inline look_again(place, from, any)
{
	d_step {
		escaped = false;
		for (i : 1 .. PLACES) {
			if
			:: i > from && i < place && !IS_LEAPT_OVER(i) &&
			   (SEEN_STATE(i) == WAITING || SEEN_STATE(i) == LEASED) &&
			   (any || !IS_HELD(i)) ->
				escaped = true
			:: else
			fi
		}
#ifdef BROKEN_ESCAPED
		escaped = false;
#endif
		if
		:: ngone == 0 -> escaped = false
		:: else
		fi
	}
}

/* outbox_stream_look_before, and outbox_stream_lease_stands, which is similar */
inline look_before(place, notes)
{
	d_step {
		known = 0;
		for (i : 1 .. PLACES) {
			known = known | (IS_ALIVE(i) && !(restored && i == 1) -> BIT(i) : 0)
		}
	}
	get_cursor();
	do
	:: true ->
		walk_before(place);
		if
		:: clear -> look_again(place, 0, false)
		:: else -> escaped = false
		fi;
		if
		:: !escaped -> break
		:: else
		fi
	od;
	if
	:: first != 0 && ngone_first > 0 && !moved ->
		/* learn_gap */
		look_again(place, first, true);
		if
#ifndef BROKEN_GAP
		:: !escaped -> widen_gap(first, place)
#else
		/* as if the end of the gap were a part of it */
		:: !escaped -> widen_gap(first, place + 1)
#endif
		:: else
		fi
	:: clear && first == 0 && ngone > 0 && notes ->
		note_version = t_version; note_low = place
	:: clear && first == 0 && ngone > 0 && !notes &&
#ifndef BROKEN_OWN
	   !moved ->
#else
	   true ->
#endif
		raise_cursor(t_version, t_low, place)
	:: else
	fi;
	d_step {
		t_low = 0; t_from = 0; t_to = 0; t_version = 0; escaped = false;
		first = 0; ngone = 0; ngone_first = 0
	}
}

inline end_xact(commits)
{
	d_step {
		for (i : 1 .. PLACES) {
			if
			:: writer[i] == me ->
				if
				:: commits ->
					entry[i] = entry[i] ^ (new_state[i] == WAITING && state[i] != NONE);
					state[i] = new_state[i];
					owner[i] = (new_state[i] == LEASED -> me : 0)
				:: !commits && state[i] == NONE -> state[i] = GONE
				:: else
				fi;
				writer[i] = 0; new_state[i] = 0
			:: else
			fi
		}
	}
}

/* ---------------------------------------------------------------------- */
/* Processes                                                              */
/* ---------------------------------------------------------------------- */

#define CAN_CLAIM(p) ((p) <= PLACES && state[p] == WAITING && writer[p] == 0)
#define CAN_SETTLE(p) ((p) <= PLACES && state[p] == LEASED && owner[p] == me && writer[p] == 0)

proctype session(byte me)
{
	byte ncalls, place, at, page, page_entry, known;
	byte t_version, t_low, t_from, t_to;
	byte first, ngone, ngone_first;
	byte note_version, note_low;
	bool clear, escaped, moved, settles;

	do
	:: ncalls < CALLS ->
		ncalls++;
		/* a claim comes by a message in its lane; or a lease ends */
		atomic {
			if
			:: CAN_CLAIM(1) -> place = 1
			:: CAN_CLAIM(2) -> place = 2
			:: CAN_CLAIM(3) -> place = 3
			:: CAN_CLAIM(4) -> place = 4
			:: CAN_SETTLE(1) -> place = 1; settles = true
			:: CAN_SETTLE(2) -> place = 2; settles = true
			:: CAN_SETTLE(3) -> place = 3; settles = true
			:: CAN_SETTLE(4) -> place = 4; settles = true
			:: true -> place = 0
			fi
		}
		if
		:: place != 0 && settles ->
			look_before(place, true);
			if
			:: clear ->
				d_step { writer[place] = me; new_state[place] = GONE; moved = true }
			:: true ->
				/* nack */
				d_step { writer[place] = me; new_state[place] = WAITING; moved = true }
			fi
		:: place != 0 && !settles ->
			look_before(place, false);
			if
			:: clear ->
				d_step {
					if
					:: state[place] == WAITING && writer[place] == 0 ->
						writer[place] = me; new_state[place] = LEASED;
						for (i : 1 .. PLACES) {
							assert(i >= place || !(known & BIT(i)) || !IS_ALIVE(i) ||
								IS_HELD(i) || (IS_MINE(i) && new_state[i] == GONE))
						}
					:: else
					fi
				}
			:: else
			fi
		:: else
		fi;
		d_step { place = 0; known = 0; clear = false; settles = false }
		if
		:: ncalls < CALLS && moved	/* and go on in the same transaction */
		:: true ->
			if
			:: end_xact(true);
				if
				:: note_low != 0 -> raise_cursor(note_version, 0, note_low)
				:: else
				fi
			:: end_xact(false)
			fi;
			d_step { moved = false; note_low = 0; note_version = 0 }
		fi
	:: else -> break
	od;
	end_xact(true);
	d_step { moved = false; note_low = 0; note_version = 0 };
	ncalls = 0;
	ndone++
}

/* Enqueue at the end of the line: outbox_stream_turn_begin, without a walk. */
proctype producer()
{
	byte me = PRODUCER;

	d_step { writer[PLACES] = me; new_state[PLACES] = WAITING }
	if
	:: end_xact(true)
	:: end_xact(false)
	fi
}

/* A row that comes with its place. */
proctype restore()
{
	byte me = RESTORE;

	d_step { writer[1] = me; new_state[1] = WAITING; restored = true }
#ifndef BROKEN_FORGET
	forget_cursor();
#endif
	restored = false;
	if
	:: end_xact(true)
	:: end_xact(false)
	fi
}

/* Another stream has the same place in the cache. */
proctype neighbour()
{
	d_step {
		if
		:: stream != ANOTHER ->
			version++; stream = ANOTHER; low = 0; gap_from = 0; gap_to = 0
		:: else
		fi
	}
}

init {
	atomic {
		byte n;
		for (n : 2 .. PLACES - 1) {
			state[n] = WAITING
		}
		for (n : 1 .. OWNERS) {
			run session(n)
		}
		run producer();
		run restore();
		run neighbour()
	}
}

#define IS_SAFE(p) (stream != OURS || !IS_ALIVE(p) || (restored && (p) == 1) || \
	((p) >= low && !(gap_from < (p) && (p) < gap_to)))

never {
	do
	:: !(IS_SAFE(1) && IS_SAFE(2) && IS_SAFE(3) && IS_SAFE(4) && IS_SAFE(PLACES)) -> break
	:: else
	od
}

#endif
