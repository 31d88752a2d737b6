/*
 * topic_pattern.c
 *	  Patterns of topics, by which subscriptions select.
 *
 * Topics and patterns consist of segments between dots.  In a pattern the
 * segment "*" matches any one segment, and "#" any number of segments,
 * including none.  All other segments match only themselves, byte by byte.
 */
#include "postgres.h"

#include "compat.h"
#include "queue/topic_pattern.h"

#define SEPARATOR '.'
#define ANY_ONE '*'
#define ANY_NUMBER '#'

/* An iterator over the segments of a string. */
typedef struct Segments
{
	const char *at;				/* the current segment; NULL at the end */
	const char *segment_end;
	const char *end;
} Segments;

static void
find_end(Segments *segments)
{
	const char *separator = memchr(segments->at, SEPARATOR,
								   segments->end - segments->at);

	segments->segment_end = separator != NULL ? separator : segments->end;
}

/* Start at the first segment; there is always one, which may be empty. */
static Segments
first_segment(const text *string)
{
	Segments	segments = {
		.at = VARDATA_ANY(string),
		.end = VARDATA_ANY(string) + VARSIZE_ANY_EXHDR(string)
	};

	find_end(&segments);
	return segments;
}

static void
next_segment(Segments *segments)
{
	if (segments->segment_end == segments->end)
		segments->at = NULL;
	else
	{
		segments->at = segments->segment_end + 1;
		find_end(segments);
	}
}

static int
segment_length(const Segments *segments)
{
	return segments->segment_end - segments->at;
}

static bool
segment_is(const Segments *segments, char wildcard)
{
	return segments->at != NULL && segment_length(segments) == 1 &&
		*segments->at == wildcard;
}

static bool
segment_matches(const Segments *pattern, const Segments *topic)
{
	if (pattern->at == NULL || topic->at == NULL)
		return false;
	return segment_is(pattern, ANY_ONE) ||
		(segment_length(pattern) == segment_length(topic) &&
		 memcmp(pattern->at, topic->at, segment_length(topic)) == 0);
}

/*
 * Is this a valid pattern?  Wildcards must be segments of their own, so that
 * other uses of them remain available for extensions.
 */
bool
outbox_topic_pattern_is_valid(const text *pattern)
{
	if (VARSIZE_ANY_EXHDR(pattern) == 0)
		return false;
	for (Segments at = first_segment(pattern); at.at != NULL; next_segment(&at))
	{
		int			length = segment_length(&at);

		if (length > 1 && (memchr(at.at, ANY_ONE, length) != NULL ||
						   memchr(at.at, ANY_NUMBER, length) != NULL))
			return false;
	}
	return true;
}

/* Can more than one topic match the pattern? */
bool
outbox_topic_pattern_has_wildcard(const text *pattern)
{
	for (Segments at = first_segment(pattern); at.at != NULL; next_segment(&at))
	{
		if (segment_is(&at, ANY_ONE) || segment_is(&at, ANY_NUMBER))
			return true;
	}
	return false;
}

/*
 * Does a topic match the pattern?  Only the last "#" has to be backtracked to,
 * so the time is at most the product of both lengths.
 */
bool
outbox_topic_pattern_matches(const text *pattern, const text *topic)
{
	Segments	at = first_segment(pattern);
	Segments	have = first_segment(topic);
	Segments	behind_number = {NULL}; /* pattern behind the last "#" */
	Segments	taken = {NULL}; /* what the last "#" matches so far */
	bool		any_number = false;

	while (have.at != NULL)
	{
		if (segment_is(&at, ANY_NUMBER))
		{
			any_number = true;
			next_segment(&at);
			behind_number = at;
			taken = have;
		}
		else if (segment_matches(&at, &have))
		{
			next_segment(&at);
			next_segment(&have);
		}
		else if (any_number)
		{
			next_segment(&taken);
			have = taken;
			at = behind_number;
		}
		else
			return false;
	}
	while (segment_is(&at, ANY_NUMBER))
		next_segment(&at);
	return at.at == NULL;
}
