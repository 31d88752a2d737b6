/*
 * top.c
 *		outbox top: what goes on, all the time
 *
 * Looks at the views every few seconds, and draws a screen of what they say and of what
 * they said before. What a topic's counters say per second is known from the second
 * look on, and where the extension has counters; else how fast the depth grows.
 */
#include "postgres_fe.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "common/logging.h"

#include "commands.h"
#include "child.h"
#include "database.h"
#include "json.h"
#include "terminal.h"
#include "text.h"
#include "top.h"

#define PROBLEMS_EVERY 10.0

/* The alternative screen without a cursor, and back. */
#define ENTER_SCREEN "\033[?1049h\033[?25l\033[?7l"
#define LEAVE_SCREEN "\033[?7h\033[?25h\033[?1049l"

static double interval = 2;
static int	sample_limit = 0;
static char *first_filter = NULL;
static char *first_sort = NULL;

static const Option top_options[] = {
	{"interval", 'i', OPTION_SPAN, &interval, "TIME", "how often to look (2s)"},
	{"samples", 'n', OPTION_NUMBER, &sample_limit, "N", "end after so many looks", 1, PG_INT32_MAX},
	{"sort", 's', OPTION_TEXT, &first_sort, "COLUMN", "ready (the default), oldest, dead, in, out or name"},
	{"filter", 'f', OPTION_TEXT, &first_filter, "TEXT", "only topics with this in their name"},
	{NULL}
};

/* Topics that have messages, and, where they are counted, those that had. */
static const char *const topics_sql =
"SELECT s.topic, s.namespace, s.subscription, s.paused, s.more, s.ready, s.leased, s.delayed + s.waiting_in_stream,"
"       s.failing, s.dead, extract(epoch FROM now() - s.oldest_ready_at)::float8, NULL::float8, NULL::float8"
"  FROM outbox.topic_stats s";

static const char *const counted_sql =
"SELECT coalesce(s.topic, c.topic), coalesce(s.namespace, c.namespace), coalesce(s.subscription, c.subscription),"
"       coalesce(s.paused, false), coalesce(s.more, false), coalesce(s.ready, 0), coalesce(s.leased, 0),"
"       coalesce(s.delayed + s.waiting_in_stream, 0), coalesce(s.failing, 0), coalesce(s.dead, 0),"
"       extract(epoch FROM now() - s.oldest_ready_at)::float8, c.enqueued::float8, c.acked::float8"
"  FROM outbox.topic_stats s"
"  FULL JOIN (SELECT k.topic, k.namespace, nullif(k.subscription, '') AS subscription,"
"                    sum(k.enqueued) AS enqueued, sum(k.acked) AS acked"
"               FROM outbox.topic_counters k WHERE k.kind = 'message' AND k.topic IS NOT NULL"
"              GROUP BY 1, 2, 3) c"
"    ON c.topic = s.topic AND c.namespace = s.namespace"
"   AND coalesce(c.subscription, '') = coalesce(s.subscription, '')";

/* Who has messages, or has just had some. */
static const char *const workers_sql =
"SELECT concat_ws(' ', coalesce(nullif(w.application, ''), 'no name'), w.host, w.pid) AS worker,"
"       w.open, w.per_second, w.mean_ms / 1000 AS mean_seconds,"
"       extract(epoch FROM now() - greatest(w.claimed_at, w.ended_at))::float8 AS idle_seconds, NOT w.connected AS gone"
"  FROM outbox.workers w"
" WHERE w.open > 0 OR greatest(w.claimed_at, w.ended_at) > now() - interval '1 minute'"
" ORDER BY w.open > 0 DESC, 5 DESC LIMIT 200";

static const char *const waiting_sql = "SELECT coalesce(sum(c.waiting), 0)::bigint FROM outbox.claimers c";

static const char *const problems_sql =
"SELECT s.component, s.status, s.detail FROM outbox.status() s WHERE NOT s.ok";

static struct termios usual_terminal;
static volatile sig_atomic_t screen_entered = 0;
static volatile sig_atomic_t resized = 0;
static volatile sig_atomic_t interrupted = 0;

/* Give the terminal back as it was; called by handlers of signals, too. */
static void
leave_screen(void)
{
	if (!screen_entered)
		return;
	screen_entered = 0;
	(void) !write(STDOUT_FILENO, LEAVE_SCREEN, sizeof(LEAVE_SCREEN) - 1);
	tcsetattr(STDIN_FILENO, TCSANOW, &usual_terminal);
}

/* Take the terminal: single keys, without echo. */
static void
enter_screen(void)
{
	struct termios keys = usual_terminal;

	keys.c_lflag &= ~(ICANON | ECHO);
	keys.c_cc[VMIN] = 0;
	keys.c_cc[VTIME] = 0;
	tcsetattr(STDIN_FILENO, TCSANOW, &keys);
	(void) !write(STDOUT_FILENO, ENTER_SCREEN, sizeof(ENTER_SCREEN) - 1);
	screen_entered = 1;
}

/* What the signals do; all that is not safe in a handler is left to the loop. */
static void
note_signal(int signal_number)
{
	int			saved = errno;

	if (signal_number == SIGWINCH)
		resized = 1;
	else if (signal_number == SIGTSTP)
	{
		leave_screen();
		kill(getpid(), SIGSTOP);
	}
	else if (signal_number == SIGCONT)
	{
		if (!screen_entered)
			enter_screen();
		resized = 1;
	}
	else
		interrupted = 1;
	errno = saved;
}

/* The name of a topic as it is shown. */
static char *
topic_name(PGresult *result, int row)
{
	PQExpBufferData name;
	const char *namespace = PQgetvalue(result, row, 1);

	initPQExpBuffer(&name);
	if (strcmp(namespace, "default") != 0)
		appendPQExpBuffer(&name, "%s/", namespace);
	appendPQExpBufferStr(&name, PQgetvalue(result, row, 0));
	if (!PQgetisnull(result, row, 2))
		appendPQExpBuffer(&name, " > %s", PQgetvalue(result, row, 2));
	return name.data;
}

static int
compare_names(const void *left, const void *right)
{
	return strcmp(((const TopTopic *) left)->name, ((const TopTopic *) right)->name);
}

/* A number of a result, NaN for null. */
double
number_at(PGresult *result, int row, int column)
{
	return PQgetisnull(result, row, column) ? NAN : strtod(PQgetvalue(result, row, column), NULL);
}

/* Add a value to a history. */
static void
remember(double *history, double value)
{
	memmove(history, history + 1, (TOP_HISTORY - 1) * sizeof(double));
	history[TOP_HISTORY - 1] = value;
}

/* Fill in what a row says of a topic, and what has changed since it was seen before. */
static void
fill_topic(TopTopic *topic, PGresult *result, int row, const TopTopic *before, double seconds, bool has_counters)
{
	double		depth;

	topic->paused = *PQgetvalue(result, row, 3) == 't';
	topic->more = *PQgetvalue(result, row, 4) == 't';
	topic->ready = (long long) number_at(result, row, 5);
	topic->leased = (long long) number_at(result, row, 6);
	topic->delayed = (long long) number_at(result, row, 7);
	topic->failing = (long long) number_at(result, row, 8);
	topic->dead = (long long) number_at(result, row, 9);
	topic->oldest = number_at(result, row, 10);
	topic->enqueued = number_at(result, row, 11);
	topic->done = number_at(result, row, 12);
	depth = (double) (topic->ready + topic->leased);
	topic->in = topic->out = NAN;
	if (before)
	{
		memcpy(topic->depth, before->depth, sizeof(topic->depth));
		if (has_counters)
		{
			topic->in = (topic->enqueued - before->enqueued) / seconds;
			topic->out = (topic->done - before->done) / seconds;
		}
		else if (!topic->more)
			topic->in = (depth - before->depth[TOP_HISTORY - 1]) / seconds;
	}
	else
	{
		for (int i = 0; i < TOP_HISTORY; i++)
			topic->depth[i] = NAN;
	}
	/* the counters may have been reset */
	if (has_counters && (topic->in < 0 || topic->out < 0))
		topic->in = topic->out = NAN;
	remember(topic->depth, depth);
}

/* Add up the topics. */
static void
add_topics(Top *top)
{
	TopTopic   *total = &top->total;
	double		in = NAN;
	double		out = NAN;

	total->ready = total->leased = total->delayed = total->failing = total->dead = 0;
	total->oldest = NAN;
	for (int i = 0; i < top->topic_count; i++)
	{
		const TopTopic *topic = &top->topics[i];

		total->ready += topic->ready;
		total->leased += topic->leased;
		total->delayed += topic->delayed;
		total->failing += topic->failing;
		total->dead += topic->dead;
		if (!isnan(topic->oldest))
			total->oldest = isnan(total->oldest) ? topic->oldest : Max(total->oldest, topic->oldest);
		if (!isnan(topic->in))
			in = isnan(in) ? topic->in : in + topic->in;
		if (!isnan(topic->out))
			out = isnan(out) ? topic->out : out + topic->out;
	}
	if (top->topic_count == 0 && top->samples > 0)
		in = out = 0;
	total->in = in;
	total->out = out;
	remember(total->depth, (double) (total->ready + total->leased));
	remember(top->in_history, in);
	remember(top->out_history, out);
}

/*
 * A topic that has no messages any more stays on the screen as long as its history
 * does, so that lines do not jump about. False if it is forgotten.
 */
static bool
keep_empty(TopTopic *topic, const TopTopic *before, double seconds)
{
	bool		was_there = false;

	for (int i = 1; i < TOP_HISTORY; i++)
		was_there = was_there || before->depth[i] > 0;
	if (!was_there)
		return false;
	*topic = *before;
	topic->name = pg_strdup(before->name);
	topic->ready = topic->leased = topic->delayed = topic->failing = topic->dead = 0;
	topic->oldest = topic->out = NAN;
	topic->more = false;
	topic->in = -before->depth[TOP_HISTORY - 1] / seconds;
	remember(topic->depth, 0);
	return true;
}

/* Put what a query says of topics in the place of what was known. */
static void
take_topics(Top *top, PGresult *result, double seconds)
{
	int			count = PQntuples(result);
	TopTopic   *topics = pg_malloc0((count + top->topic_count + 1) * sizeof(TopTopic));
	bool	   *found = pg_malloc0(top->topic_count + 1);

	for (int i = 0; i < count; i++)
	{
		TopTopic	key = {.name = topic_name(result, i)};
		const TopTopic *before = top->topic_count == 0 ? NULL :
		bsearch(&key, top->topics, top->topic_count, sizeof(TopTopic), compare_names);

		if (before)
			found[before - top->topics] = true;
		topics[i].name = key.name;
		fill_topic(&topics[i], result, i, before, seconds, top->has_counters);
	}
	for (int i = 0; i < top->topic_count; i++)
	{
		if (!found[i] && keep_empty(&topics[count], &top->topics[i], seconds))
			count++;
		free(top->topics[i].name);
	}
	qsort(topics, count, sizeof(TopTopic), compare_names);
	pg_free(found);
	pg_free(top->topics);
	top->topics = topics;
	top->topic_count = count;
}

/* Look at everything. */
static void
take_sample(Top *top)
{
	PGresult   *result = query(top->has_counters ? counted_sql : topics_sql, NO_MORE);
	double		now = now_seconds();
	time_t		clock = time(NULL);

	take_topics(top, result, Max(0.001, now - top->at));
	PQclear(result);
	top->at = now;
	add_topics(top);
	strftime(top->clock, sizeof(top->clock), "%H:%M:%S", localtime(&clock));

	PQclear(top->workers);
	top->workers = query(workers_sql, NO_MORE);
	result = query(waiting_sql, NO_MORE);
	top->waiting = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
	PQclear(result);
	if (top->problems == NULL || now - top->problems_at >= PROBLEMS_EVERY)
	{
		PQclear(top->problems);
		top->problems = query(problems_sql, NO_MORE);
		top->problems_at = now;
	}
	top->samples++;
}

/* Append a number, or null. */
static void
append_json_number(PQExpBuffer out, const char *name, double number)
{
	if (isnan(number))
		appendPQExpBuffer(out, ", \"%s\": null", name);
	else
		appendPQExpBuffer(out, ", \"%s\": %.10g", name, number);
}

/* Append what is known of a topic, or of all. */
static void
append_json_topic(PQExpBuffer out, const TopTopic *topic)
{
	append_json_number(out, "ready", (double) topic->ready);
	append_json_number(out, "leased", (double) topic->leased);
	append_json_number(out, "delayed", (double) topic->delayed);
	append_json_number(out, "failing", (double) topic->failing);
	append_json_number(out, "dead", (double) topic->dead);
	append_json_number(out, "oldest_seconds", topic->oldest);
	append_json_number(out, "in_per_second", topic->in);
	append_json_number(out, "out_per_second", topic->out);
}

/* Print a sample as a line of JSON. */
static void
print_sample(const Top *top)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	appendPQExpBuffer(&out, "{\"time\": %lld", (long long) time(NULL));
	append_json_topic(&out, &top->total);
	appendPQExpBuffer(&out, ", \"waiting_claims\": %lld, \"topics\": [", top->waiting);
	for (int i = 0; i < top->topic_count; i++)
	{
		appendPQExpBufferStr(&out, i > 0 ? ", {\"topic\": " : "{\"topic\": ");
		append_json_string(&out, top->topics[i].name);
		append_json_topic(&out, &top->topics[i]);
		appendPQExpBuffer(&out, ", \"paused\": %s}", top->topics[i].paused ? "true" : "false");
	}
	appendPQExpBufferStr(&out, "], \"workers\": ");
	append_json_rows(&out, top->workers);
	appendPQExpBufferStr(&out, ", \"problems\": ");
	append_json_rows(&out, top->problems);
	appendPQExpBufferStr(&out, "}");
	/* a line is a line */
	for (size_t i = 0; i < out.len; i++)
		if (out.data[i] == '\n')
			out.data[i] = ' ';
	appendPQExpBufferChar(&out, '\n');
	put_out(&out);
	termPQExpBuffer(&out);
}

/* Draw the screen, or, in a file, the screen of a terminal that is high enough. */
static void
draw(const Top *top)
{
	PQExpBufferData out;
	int			rows;
	int			columns;

	initPQExpBuffer(&out);
	if (screen_entered)
	{
		terminal_size(&rows, &columns);
		appendPQExpBufferStr(&out, "\033[H");
		top_draw(&out, top, rows, columns);
		put_out(&out);
	}
	else
	{
		PQExpBufferData plain;

		initPQExpBuffer(&plain);
		top_draw(&out, top, Max(24, Min(1000, top->topic_count + 20)), 80);
		for (const char *at = out.data; *at; at++)
		{
			if (strncmp(at, "\033[K", 3) == 0)
			{
				at += 2;
				while (plain.len > 0 && plain.data[plain.len - 1] == ' ')
					plain.len--;
			}
			else if (*at != '\r')
				appendPQExpBufferChar(&plain, *at);
		}
		appendPQExpBufferChar(&plain, '\n');
		put_out(&plain);
		termPQExpBuffer(&plain);
	}
	termPQExpBuffer(&out);
}

/* A key while the filter is typed. */
static void
take_typed(Top *top, char key)
{
	size_t		length = strlen(top->filter);

	top->offset = 0;
	if (key == '\r' || key == '\n')
		top->typing = false;
	else if (key == 27)
	{
		top->typing = false;
		*top->filter = '\0';
	}
	else if (key == 127 || key == 8)
	{
		/* all bytes of the last character */
		while (length > 0 && ((unsigned char) top->filter[length - 1] & 0xc0) == 0x80)
			length--;
		top->filter[length > 0 ? length - 1 : 0] = '\0';
	}
	else if ((unsigned char) key >= 32 && length < sizeof(top->filter) - 1)
	{
		top->filter[length] = key;
		top->filter[length + 1] = '\0';
	}
}

/* A key; false if it ends the program. */
static bool
take_key(Top *top, char key)
{
	if (top->typing)
	{
		take_typed(top, key);
		return true;
	}
	switch (key)
	{
		case 'q':
		case 'Q':
		case 4:					/* Ctrl-D */
			return false;
		case 's':
			top->sort = (top->sort + 1) % SORT_COUNT;
			if (top->sort == SORT_OUT && !top->has_counters)
				top->sort++;
			break;
		case 'r':
			top->reverse = !top->reverse;
			break;
		case 'p':
		case ' ':
			top->paused = !top->paused;
			break;
		case 'w':
			top->no_workers = !top->no_workers;
			break;
		case '?':
		case 'h':
			top->help = !top->help;
			break;
		case '/':
			top->typing = true;
			*top->filter = '\0';
			break;
		case 27:
			*top->filter = '\0';
			top->help = false;
			break;
		case 'j':
			top->offset = Min(top->offset + 1, Max(0, top->topic_count - 1));
			break;
		case 'k':
			top->offset = Max(0, top->offset - 1);
			break;
		case 'g':
			top->offset = 0;
			break;
		case '+':
			top->interval = Max(0.5, top->interval / 2);
			break;
		case '-':
			top->interval = Min(60, top->interval * 2);
			break;
		default:
			break;
	}
	return true;
}

/* All keys that were pressed; arrows come as three bytes. False if one of them quits. */
static bool
take_keys(Top *top)
{
	char		keys[64];
	ssize_t		length = read(STDIN_FILENO, keys, sizeof(keys));

	if (length == 0)
		return false;			/* there is no terminal any more */
	for (ssize_t i = 0; i < length; i++)
	{
		char		key = keys[i];

		if (key == 27 && i + 2 < length && (keys[i + 1] == '[' || keys[i + 1] == 'O'))
		{
			key = keys[i + 2] == 'A' ? 'k' : keys[i + 2] == 'B' ? 'j' : '\0';
			i += 2;
			if (top->typing || key == '\0')
				continue;
		}
		if (!take_key(top, key))
			return false;
	}
	return true;
}

/* On a terminal: draw, wait for keys and for the time, until it is enough. */
static void
run_screen(Top *top)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGTSTP, SIGCONT};
	struct sigaction action = {.sa_handler = note_signal};

	if (tcgetattr(STDIN_FILENO, &usual_terminal) != 0)
		pg_fatal("could not read the settings of the terminal: %m");
	for (int i = 0; i < (int) lengthof(signals); i++)
		sigaction(signals[i], &action, NULL);
	atexit(leave_screen);
	enter_screen();
	for (;;)
	{
		struct pollfd input = {STDIN_FILENO, POLLIN, 0};

		/* the second look comes early, since it is the first that knows rates */
		double		wait = top->at + (top->samples == 1 ? Min(1, top->interval) : top->interval) - now_seconds();

		if (wait <= 0 && !top->paused)
		{
			take_sample(top);
			wait = top->interval;
		}
		draw(top);
		if (sample_limit > 0 && top->samples >= sample_limit)
			break;
		if (poll(&input, 1, top->paused ? 60000 : (int) ceil(Max(0.01, wait) * 1000)) > 0 && !take_keys(top))
			break;
		if (interrupted)
			break;
		if (resized)
		{
			resized = 0;
			(void) !write(STDOUT_FILENO, "\033[2J", 4);
		}
	}
	leave_screen();
}

/* outbox top */
static int
run_top(int count, char **arguments)
{
	Top			top = {0};
	PQExpBufferData place;

	if (interval < 0.1)
		wrong_call("the interval must be at least 100ms");
	initPQExpBuffer(&place);
	appendPQExpBuffer(&place, "%s on %s", PQdb(connection), PQhost(connection));
	top.place = place.data;
	top.interval = interval;
	top.has_counters = may_read("topic_counters", "enqueued");
	for (int i = 0; i < TOP_HISTORY; i++)
		top.total.depth[i] = top.in_history[i] = top.out_history[i] = NAN;
	if (first_filter)
		strlcpy(top.filter, first_filter, sizeof(top.filter));
	for (int i = 0; first_sort && i <= SORT_COUNT; i++)
	{
		if (i == SORT_COUNT)
			wrong_call("invalid value \"%s\" for option --sort: must be ready, oldest, dead, in, out or name", first_sort);
		if (strcmp(first_sort, top_sort_name(i)) == 0)
		{
			top.sort = i;
			break;
		}
	}
	take_sample(&top);
	if (!common.json && terminal_is_out() && isatty(STDIN_FILENO))
	{
		run_screen(&top);
		return 0;
	}
	if (sample_limit == 0 && !common.json)
		sample_limit = 1;
	for (;;)
	{
		struct timespec pause = {(time_t) top.interval, (long) (fmod(top.interval, 1) * 1e9)};

		if (common.json)
			print_sample(&top);
		else
			draw(&top);
		if (sample_limit > 0 && top.samples >= sample_limit)
			return 0;
		nanosleep(&pause, NULL);
		take_sample(&top);
	}
}

const Command top_command = {
	.name = "top",
	.arguments = "",
	.summary = "What goes on, live",
	.details = "Rates, depth over time, the oldest messages, leases and workers; ? shows the keys. Without a\n"
	"terminal, one screen as text. With --json, JSON lines: an object for each look.",
	.example = "outbox top -i 5s -d shop",
	.needs = "monitor",
	.options = top_options,
	.run = run_top
};
