/*
 * top.h
 *		What outbox top knows, and how it is drawn
 */
#ifndef CLI_TOP_H
#define CLI_TOP_H

#include "libpq-fe.h"
#include "pqexpbuffer.h"

/* How many samples are remembered. */
#define TOP_HISTORY 240

typedef enum TopSort
{
	SORT_READY,
	SORT_OLDEST,
	SORT_DEAD,
	SORT_IN,
	SORT_OUT,
	SORT_NAME,
	SORT_COUNT
} TopSort;

/* A topic, or the part of it that a subscription has. What is not known is NaN. */
typedef struct TopTopic
{
	char	   *name;			/* with its namespace and subscription */
	bool		paused;
	bool		more;			/* counting has ended at 10,000 */
	long long	ready;
	long long	leased;
	long long	delayed;
	long long	failing;
	long long	dead;
	double		oldest;			/* seconds */
	double		enqueued;		/* since counting began */
	double		done;
	double		in;				/* a second */
	double		out;
	double		depth[TOP_HISTORY]; /* ready and leased, the newest last */
} TopTopic;

typedef struct Top
{
	/* what was sampled */
	char	   *place;			/* database and server */
	bool		has_counters;	/* else in is the change of the depth, and out
								 * not known */
	int			samples;
	double		at;				/* when the last one was taken */
	char		clock[16];		/* the same for people */
	TopTopic   *topics;			/* by name */
	int			topic_count;
	TopTopic	total;
	double		in_history[TOP_HISTORY];
	double		out_history[TOP_HISTORY];
	long long	waiting;		/* claims that wait */
	PGresult   *workers;		/* who has leases */
	PGresult   *problems;
	double		problems_at;

	/* how it is looked at */
	double		interval;
	TopSort		sort;
	bool		reverse;
	bool		paused;
	bool		no_workers;
	bool		help;
	bool		typing;			/* the filter */
	char		filter[64];
	int			offset;			/* of the first topic */
} Top;

extern double number_at(PGresult *result, int row, int column);
extern const char *top_sort_name(TopSort sort);
extern void top_draw(PQExpBuffer out, const Top *top, int rows, int columns);

#endif							/* CLI_TOP_H */
