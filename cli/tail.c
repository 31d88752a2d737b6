/*
 * tail.c
 *		outbox tail: messages as they come
 *
 * Transactions do not commit in the order of their messages' ids. So each look begins
 * a little before the newest message that was seen, and what was there before is
 * passed over.
 */
#include "postgres_fe.h"

#include <math.h>
#include <time.h>

#include "pqexpbuffer.h"

#include "commands.h"
#include "database.h"
#include "json.h"
#include "table.h"
#include "text.h"

static char *only_namespace = NULL;
static char *only_subscription = NULL;

/* How long a message may stay invisible after a later one was seen. */
#define TAIL_WINDOW "10 seconds"

static int	tail_rows = 10;
static double tail_interval = 1;
static bool tail_once;

static const Option tail_options[] = {
	{"lines", 'n', OPTION_NUMBER, &tail_rows, "N", "begin with the last N messages (10)", 0, 100000},
	{"namespace", 0, OPTION_TEXT, &only_namespace, "NAME", "of this namespace only"},
	{"subscription", 0, OPTION_TEXT, &only_subscription, "NAME", "deliveries of this subscription"},
	{"interval", 'i', OPTION_SPAN, &tail_interval, "TIME", "how often to look (1s)"},
	{"no-follow", 0, OPTION_FLAG, &tail_once, NULL, "end after these"},
	{NULL}
};

/* The ids that the last look has found, in their order. */
typedef struct Seen
{
	int			count;
	long long  *ids;
} Seen;

/* What is behind $1. A payload that must not be read is null. */
static const char *const tail_sql =
"SELECT m.id, m.topic, m.namespace, m.subscription, m.state, m.attempts, m.created_at, m.message_id,"
"       m.stream_id, m.correlation_id, %s AS payload, m.created_at < now() - interval '" TAIL_WINDOW "' AS is_old"
"  FROM outbox.%s m"
" WHERE m.id > $1::bigint"
"   AND ($2::text IS NULL OR m.topic = $2::text)"
"   AND ($3::text IS NULL OR m.namespace = $3::text)"
"   AND ($4::text IS NULL OR m.subscription = $4::text)"
" ORDER BY m.id";

/* Print a message in a line. */
static void
print_message(PGresult *result, int row)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	if (common.json)
		append_json_row(&out, result, row);
	else
	{
		const char *time = PQgetvalue(result, row, 6);
		const char *state = PQgetvalue(result, row, 4);

		/* the time of the day, to the second */
		appendPQExpBuffer(&out, "%s%.8s%s  ", style_on(STYLE_DIM), strlen(time) > 11 ? time + 11 : time,
						  style_off(STYLE_DIM));
		append_fitted(&out, PQgetvalue(result, row, 0), 8, true);
		appendPQExpBuffer(&out, "  %s", style_on(state_style(state)));
		append_fitted(&out, state, 11, false);
		appendPQExpBuffer(&out, "%s  %s", style_off(state_style(state)), style_on(STYLE_NAME));
		append_safe(&out, PQgetvalue(result, row, 1), false);
		appendPQExpBufferStr(&out, style_off(STYLE_NAME));
		if (!PQgetisnull(result, row, 3))
		{
			appendPQExpBufferStr(&out, " > ");
			append_safe(&out, PQgetvalue(result, row, 3), false);
		}
		if (!PQgetisnull(result, row, 10))
		{
			int			rows;
			int			columns;
			int			used = 33 + text_width(PQgetvalue(result, row, 1)) +
			(PQgetisnull(result, row, 3) ? 0 : 3 + text_width(PQgetvalue(result, row, 3)));
			const char *payload = PQgetvalue(result, row, 10);

			terminal_size(&rows, &columns);
			appendPQExpBufferStr(&out, "  ");
			if (terminal_is_out() && used + text_width(payload) > columns)
				append_fitted(&out, payload, Max(10, columns - used), false);
			else
				append_safe(&out, payload, false);
		}
	}
	appendPQExpBufferChar(&out, '\n');
	put_out(&out);
	termPQExpBuffer(&out);
}

/*
 * The place behind which a transaction that has not committed yet may have put a
 * message: that of the oldest message that is not old, but not behind what is shown.
 */
static long long
window_place(long long shown, const char *source)
{
	PQExpBufferData sql;
	PGresult   *result;
	long long	place;

	initPQExpBuffer(&sql);
	/* the ids of messages that have not got another tell their time */
	appendPQExpBuffer(&sql, "SELECT least($1::bigint, min(m.id) - 1) FROM outbox.%s m"
					  " WHERE m.message_id >= (lpad(to_hex((extract(epoch FROM now() - $2::interval) * 1000)::bigint), 12, '0')"
					  "                        || '00000000000000000000')::uuid", source);
	result = query(sql.data, number_text(shown), TAIL_WINDOW, NO_MORE);
	place = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
	PQclear(result);
	termPQExpBuffer(&sql);
	return place;
}

/* Is there a message with an id behind this one? */
static bool
any_behind(long long id, const char *source)
{
	PQExpBufferData sql;
	PGresult   *result;
	bool		any;

	initPQExpBuffer(&sql);
	appendPQExpBuffer(&sql, "SELECT EXISTS (SELECT FROM outbox.%s m WHERE m.id > $1::bigint)", source);
	result = query(sql.data, number_text(id), NO_MORE);
	any = *PQgetvalue(result, 0, 0) == 't';
	PQclear(result);
	termPQExpBuffer(&sql);
	return any;
}

/*
 * An id that no message is behind, and at most so far behind the newest. The views
 * have no order to read them backwards in, but an index that tells what is behind an
 * id; so the end is searched for.
 */
static long long
last_id(const char *source, long long tolerance)
{
	long long	below = 0;
	long long	above = tolerance;

	while (any_behind(above, source))
	{
		below = above;
		above *= 2;
	}
	while (above - below > tolerance)
	{
		long long	middle = below + (above - below) / 2;

		if (any_behind(middle, source))
			below = middle;
		else
			above = middle;
	}
	return above;
}

/*
 * Where to begin: the id behind which the last so many messages are. Of a topic that
 * has had none among the last million ids, there may be fewer.
 */
static long long
first_place(const char *topic, const char *source)
{
	long long	last = last_id(source, 1000);
	long long	place = 0;
	PQExpBufferData sql;

	initPQExpBuffer(&sql);
	appendPQExpBuffer(&sql,
					  "SELECT count(*) FILTER (WHERE n.wanted), coalesce(max(n.id), 0),"
					  "       coalesce((array_agg(n.id ORDER BY n.id DESC) FILTER (WHERE n.wanted))[$5::int], $4::bigint)"
					  "  FROM (SELECT m.id, ($1::text IS NULL OR m.topic = $1::text)"
					  "                 AND ($2::text IS NULL OR m.namespace = $2::text)"
					  "                 AND ($3::text IS NULL OR m.subscription = $3::text) AS wanted"
					  "          FROM outbox.%s m WHERE m.id > $4::bigint) n", source);
	for (long long span = 1000 + 2 * tail_rows; span <= 10000000; span *= 10)
	{
		long long	from = Max(0, last - span);
		PGresult   *result = query(sql.data, topic, only_namespace, only_subscription, number_text(from),
								   number_text(tail_rows + 1), NO_MORE);
		bool		enough = strtoll(PQgetvalue(result, 0, 0), NULL, 10) > tail_rows;

		place = strtoll(PQgetvalue(result, 0, tail_rows == 0 ? 1 : 2), NULL, 10);
		PQclear(result);
		if (enough || from == 0 || tail_rows == 0 || span >= 100000)
			break;
	}
	termPQExpBuffer(&sql);
	return place;
}

/*
 * Print what is behind a place and was not seen yet, except up to a second place, and
 * note all that is. Returns the new place: behind what is so old that no transaction
 * can still add to it.
 */
static long long
look_once(const char *sql, long long from, long long shown, const char *topic, Seen *seen)
{
	PGresult   *result = query(sql, number_text(from), topic, only_namespace, only_subscription, NO_MORE);
	int			rows = PQntuples(result);
	long long  *ids = pg_malloc((rows + 1) * sizeof(long long));
	int			known = 0;
	bool		old = true;

	for (int i = 0; i < rows; i++)
	{
		ids[i] = strtoll(PQgetvalue(result, i, 0), NULL, 10);
		while (known < seen->count && seen->ids[known] < ids[i])
			known++;
		if (ids[i] > shown && (known == seen->count || seen->ids[known] != ids[i]))
			print_message(result, i);
		old = old && *PQgetvalue(result, i, 11) == 't';
		if (old)
			from = ids[i];
	}
	pg_free(seen->ids);
	seen->ids = ids;
	seen->count = rows;
	PQclear(result);
	return from;
}

/* outbox tail */
static int
run_tail(int count, char **arguments)
{
	bool		may = may_read("messages", "payload");
	const char *topic = count > 0 ? arguments[0] : NULL;
	const char *source = may ? "messages" : "messages_info";
	long long	shown;
	long long	from;
	Seen		seen = {0};
	PQExpBufferData sql;

	prefer_indexes = true;
	shown = first_place(topic, source);
	/* a single look shows nothing before that place */
	from = tail_once ? shown : window_place(shown, source);

	initPQExpBuffer(&sql);
	appendPQExpBuffer(&sql, tail_sql, may ? "m.payload" : "NULL::text", source);
	for (;;)
	{
		struct timespec pause = {(time_t) tail_interval, (long) (fmod(tail_interval, 1) * 1e9)};

		from = look_once(sql.data, from, shown, topic, &seen);
		shown = 0;
		if (tail_once)
			break;
		nanosleep(&pause, NULL);
	}
	termPQExpBuffer(&sql);
	return 0;
}

const Command tail_command = {
	.name = "tail",
	.arguments = "[TOPIC]",
	.summary = "New messages as they are committed",
	.details = "Prints the last messages and then those that come, until it is interrupted. The state is that\n"
	"of the moment. A transaction that took longer than " TAIL_WINDOW " to commit may be left out.\n"
	"With --json, JSON lines: an object for each message.",
	.example = "outbox tail order.placed -n 0",
	.needs = "monitor",
	.options = tail_options,
	.most = 1,
	.run = run_tail
};
