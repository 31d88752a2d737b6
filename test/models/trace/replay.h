/*
 * replay.h
 *	  The trace that a model is led along; see replay.pml.
 *
 * A file of 4-byte integers, REPLAY_VALUES for each event.
 */
#include <stdio.h>
#include <stdlib.h>

#define REPLAY_VALUES 12

static int *replay_events;
static int	replay_nevents = -1;
static int	replay_reached;		/* the furthest event that was looked at */

static void
replay_report(void)
{
	fprintf(stderr, "replay: %d of %d events\n", replay_reached, replay_nevents);
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
