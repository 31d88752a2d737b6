/*
 * replay.h
 *	  The trace that a model is led along; see replay.pml.
 *
 * A file of 4-byte integers, REPLAY_VALUES for each event.  The last two say when it
 * was, at the earliest and at the latest, if events are taken by each process for
 * itself.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLAY_VALUES 12
#define REPLAY_WHO 1
#define REPLAY_AFTER (REPLAY_VALUES - 2)
#define REPLAY_BEFORE (REPLAY_VALUES - 1)
#define REPLAY_PARTS 8			/* of an event, that a process keeps */

static int *replay_events;
static int	replay_nevents = -1;
static int	replay_reached;		/* the furthest event that was looked at */

#define REPLAY_MAX 32
static int	replay_nprocesses;
static int	replay_at[REPLAY_MAX];	/* where processes were then, if each takes its own */

static void
replay_report(void)
{
	int			process;

	fprintf(stderr, "replay: %d of %d events\nnext:", replay_reached, replay_nevents);
	for (process = 0; process < replay_nprocesses; process++)
		fprintf(stderr, " %d", replay_at[process]);
	fprintf(stderr, "\n");
}

static void
replay_load(void)
{
	FILE	   *file = fopen("trace", "rb");
	long		size;

	if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0)
		exit(2);
	rewind(file);
	replay_events = malloc(size + 1);
	if (replay_events == NULL || fread(replay_events, 1, size, file) != size)
		exit(2);
	fclose(file);
	replay_nevents = size / (REPLAY_VALUES * sizeof(int));
	atexit(replay_report);
}

/* A value of an event; all are 0 behind the last one. */
static int
replay_value(int event, int value)
{
	if (replay_nevents < 0)
		replay_load();
	if (event > replay_reached)
		replay_reached = event;
	return event < replay_nevents ? replay_events[event * REPLAY_VALUES + value] : 0;
}

/* ---------------------------------------------------------------------- */
/* Each process takes its own events                                      */
/* ---------------------------------------------------------------------- */

static int *replay_next;		/* of the same process */

/* Of each process, the first event. */
static void
replay_begin(int nprocesses, int *at)
{
	int			process;
	int			event;

	if (replay_nevents < 0)
		replay_load();
	replay_next = malloc((replay_nevents + 1) * sizeof(int));
	replay_nprocesses = nprocesses + 1;
	if (replay_next == NULL || replay_nprocesses > REPLAY_MAX)
		exit(2);
	for (process = 0; process <= nprocesses; process++)
		at[process] = replay_nevents;
	for (event = replay_nevents - 1; event >= 0; event--)
	{
		process = replay_value(event, REPLAY_WHO);
		if (process > nprocesses)
			exit(2);
		replay_next[event] = at[process];
		at[process] = event;
	}
	replay_reached = 0;
}

static int
replay_after(int event)
{
	return replay_next[event];
}

/* Whose turn it may be: nothing that must come before is left. */
static void
replay_look(int nprocesses, const int *at, int *told, int *turns, int ntaken)
{
	int			first = 0x7fffffff;
	int			process;
	int			part;

	for (process = 0; process <= nprocesses; process++)
	{
		for (part = 0; part < REPLAY_PARTS; part++)
			told[process * REPLAY_PARTS + part] =
				at[process] < replay_nevents ?
				replay_events[at[process] * REPLAY_VALUES + (part > 0 ? part + 1 : 0)] : 0;
		if (at[process] < replay_nevents &&
			replay_events[at[process] * REPLAY_VALUES + REPLAY_BEFORE] < first)
			first = replay_events[at[process] * REPLAY_VALUES + REPLAY_BEFORE];
	}
	*turns = 0;
	for (process = 0; process <= nprocesses; process++)
	{
		if (at[process] < replay_nevents &&
			replay_events[at[process] * REPLAY_VALUES + REPLAY_AFTER] < first)
			*turns |= 1 << process;
	}
	if (ntaken > replay_reached)
	{
		replay_reached = ntaken;
		memcpy(replay_at, at, replay_nprocesses * sizeof(int));
	}
}
