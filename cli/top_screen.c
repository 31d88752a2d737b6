/*
 * top_screen.c
 *		The screen of outbox top
 *
 * A frame is drawn as a list of lines, none of them wider than the screen. From above:
 * where and when, the totals, the topics, who works, what is wrong, and the keys. What
 * there is no room for is left out, the least important column first.
 */
#include "postgres_fe.h"

#include <math.h>

#include "table.h"
#include "terminal.h"
#include "text.h"
#include "top.h"

/* Lines of a frame, which is not higher than the screen. */
typedef struct Frame
{
	PQExpBuffer out;
	int			rows;			/* left */
	int			kept;			/* of these, for the last lines */
	int			columns;
} Frame;

/* Columns of the topics' table: their widths, 0 for those without room. */
typedef struct Layout
{
	int			name;
	int			depth;
	int			delayed;
	int			oldest;
	int			rates;
} Layout;

static const char *const sort_names[] = {"ready", "oldest", "dead", "in", "out", "name"};

/* The name of an order. */
const char *
top_sort_name(TopSort sort)
{
	return sort_names[sort];
}

/*
 * End a line: clip it to the width, without counting the colours, and write it. The
 * line is empty afterwards.
 */
static void
end_line(Frame *frame, PQExpBuffer line)
{
	int			used = 0;
	const char *at = line->data;

	if (frame->rows <= frame->kept)
	{
		resetPQExpBuffer(line);
		return;
	}
	while (*at)
	{
		unsigned	code;
		int			width;
		int			bytes;

		if (*at == '\033')
		{
			bytes = (int) strcspn(at, "m") + 1;
			appendBinaryPQExpBuffer(frame->out, at, bytes);
			at += bytes;
			continue;
		}
		bytes = text_next(at, &code, &width);
		if (used + width <= frame->columns)
			appendBinaryPQExpBuffer(frame->out, at, bytes);
		used += width;
		at += bytes;
	}
	frame->rows--;
	/* behind the last column it would erase that */
	if (used < frame->columns)
		appendPQExpBufferStr(frame->out, "\033[K");
	if (frame->rows > 0)
		appendPQExpBufferStr(frame->out, "\r\n");
	resetPQExpBuffer(line);
}

/* Append a number in so many columns, dim if it is 0, in a style otherwise. */
static void
append_number(PQExpBuffer line, double number, int width, Style style)
{
	PQExpBufferData text;

	initPQExpBuffer(&text);
	if (!isnan(number))
		append_short(&text, number);
	appendPQExpBufferStr(line, style_on(number == 0 ? STYLE_DIM : style));
	append_fitted(line, text.data, width, true);
	appendPQExpBufferStr(line, style_off(number == 0 ? STYLE_DIM : style));
	termPQExpBuffer(&text);
}

/* The same with an age. */
static void
append_aged(PQExpBuffer line, double seconds, int width)
{
	PQExpBufferData text;
	Style		style = seconds >= 600 ? STYLE_BAD : seconds >= 60 ? STYLE_WARN : STYLE_PLAIN;

	initPQExpBuffer(&text);
	if (!isnan(seconds))
		append_age(&text, seconds);
	appendPQExpBufferStr(line, style_on(style));
	append_fitted(line, text.data, width, true);
	appendPQExpBufferStr(line, style_off(style));
	termPQExpBuffer(&text);
}

/* Append the newest values of a history, beside its highest. */
static void
append_history(PQExpBuffer line, const double *history, int width)
{
	double		highest = 0;

	if (width <= 0)
		return;
	width = Min(width, TOP_HISTORY);
	for (int i = TOP_HISTORY - width; i < TOP_HISTORY; i++)
		if (!isnan(history[i]))
			highest = Max(highest, history[i]);
	appendPQExpBufferStr(line, style_on(STYLE_NAME));
	append_sparkline(line, history + TOP_HISTORY - width, width, highest);
	appendPQExpBufferStr(line, style_off(STYLE_NAME));
}

/* Append a label and a number of the totals. */
static void
append_total(PQExpBuffer line, const char *label, int label_width, double number, Style style)
{
	appendPQExpBufferStr(line, style_on(STYLE_DIM));
	append_fitted(line, label, label_width, false);
	appendPQExpBufferStr(line, style_off(STYLE_DIM));
	append_number(line, number, 6, style);
}

/* The first line: where and when. */
static void
draw_title(Frame *frame, PQExpBuffer line, const Top *top)
{
	PQExpBufferData right;

	initPQExpBuffer(&right);
	appendPQExpBuffer(&right, "%severy ", top->paused ? "paused   " : "");
	append_age(&right, top->interval);
	appendPQExpBuffer(&right, "   %s", top->clock);
	appendPQExpBuffer(line, "%soutbox%s  ", style_on(STYLE_HEADER), style_off(STYLE_HEADER));
	append_fitted(line, top->place, frame->columns - 9 - (int) right.len, false);
	appendPQExpBuffer(line, " %s%s%s", style_on(top->paused ? STYLE_WARN : STYLE_DIM), right.data,
					  style_off(STYLE_DIM));
	termPQExpBuffer(&right);
	end_line(frame, line);
}

/* The totals: three lines with what is known to the left and its history beside it. */
static void
draw_totals(Frame *frame, PQExpBuffer line, const Top *top)
{
	const TopTopic *total = &top->total;
	int			width = Max(0, Min(TOP_HISTORY, frame->columns - 14 - 46));

	append_total(line, "ready", 7, (double) total->ready, STYLE_HEADER);
	appendPQExpBufferStr(line, " ");
	append_history(line, total->depth, width);
	appendPQExpBufferStr(line, "   ");
	append_total(line, "leased", 7, (double) total->leased, STYLE_PLAIN);
	appendPQExpBufferStr(line, "   ");
	append_total(line, "delayed", 7, (double) total->delayed, STYLE_PLAIN);
	appendPQExpBufferStr(line, "   ");
	append_total(line, "dead", 5, (double) total->dead, STYLE_BAD);
	end_line(frame, line);

	append_total(line, top->has_counters ? "in/s" : "+/s", 7, total->in, STYLE_PLAIN);
	appendPQExpBufferStr(line, " ");
	append_history(line, top->in_history, width);
	appendPQExpBufferStr(line, "   ");
	appendPQExpBuffer(line, "%soldest%s", style_on(STYLE_DIM), style_off(STYLE_DIM));
	append_aged(line, total->oldest, 7);
	appendPQExpBufferStr(line, "   ");
	append_total(line, "failing", 7, (double) total->failing, STYLE_WARN);
	appendPQExpBufferStr(line, "   ");
	append_total(line, "wait", 5, (double) top->waiting, STYLE_PLAIN);
	end_line(frame, line);

	if (!top->has_counters)
		return;
	append_total(line, "out/s", 7, total->out, STYLE_PLAIN);
	appendPQExpBufferStr(line, " ");
	append_history(line, top->out_history, width);
	end_line(frame, line);
}

/* Decide how wide the columns of the topics are. */
static Layout
lay_out(const Top *top, int columns)
{
	/* ready, leased and dead are always there */
	int			rest = columns - 3 * 7;
	Layout		layout = {.name = 14};

	rest -= layout.name;
	if (rest >= 9)
		layout.oldest = 9;
	rest -= layout.oldest;
	if (rest >= (top->has_counters ? 14 : 7))
		layout.rates = top->has_counters ? 14 : 7;
	rest -= layout.rates;
	if (rest >= 8)
		layout.delayed = 8;
	rest -= layout.delayed;
	if (rest >= 10)
	{
		layout.depth = Max(10, Min(60, rest * 2 / 3));
		rest -= layout.depth;
	}
	layout.name += Max(0, rest - 1);
	if (layout.name > 48 && layout.depth > 0)
	{
		layout.depth = Min(TOP_HISTORY, layout.depth + layout.name - 48);
		layout.name = 48;
	}
	return layout;
}

/* A heading of a column, marked if the table is in its order. */
static void
append_heading(PQExpBuffer line, const Top *top, const char *title, int sort, int width, bool right)
{
	bool		marked = sort == (int) top->sort;
	char		text[32];

	if (width <= 0)
		return;
	snprintf(text, sizeof(text), "%s%s", title,
			 !marked ? "" : sign(top->reverse ? SIGN_UP : SIGN_DOWN));
	appendPQExpBufferStr(line, style_on(STYLE_HEADER));
	append_fitted(line, text, width, right);
	appendPQExpBufferStr(line, style_off(STYLE_HEADER));
}

/* A topic's line. */
static void
draw_topic(Frame *frame, PQExpBuffer line, const TopTopic *topic, const Layout *layout, bool has_counters)
{
	appendPQExpBufferStr(line, style_on(topic->paused ? STYLE_WARN : STYLE_PLAIN));
	append_fitted(line, topic->name, layout->name - (topic->paused ? 7 : 0), false);
	appendPQExpBuffer(line, "%s%s", topic->paused ? " paused" : "", style_off(topic->paused ? STYLE_WARN : STYLE_PLAIN));
	append_number(line, (double) topic->ready, 6, STYLE_HEADER);
	appendPQExpBufferStr(line, topic->more ? "+" : " ");
	if (layout->depth > 0)
	{
		appendPQExpBufferStr(line, " ");
		append_history(line, topic->depth, layout->depth - 1);
	}
	append_number(line, (double) topic->leased, 7, STYLE_PLAIN);
	if (layout->delayed > 0)
		append_number(line, (double) topic->delayed, 8, STYLE_PLAIN);
	append_number(line, (double) topic->dead, 7, STYLE_BAD);
	if (layout->oldest > 0)
		append_aged(line, topic->oldest, layout->oldest);
	if (layout->rates > 0)
		append_number(line, topic->in, 7, STYLE_PLAIN);
	if (layout->rates > 7)
		append_number(line, topic->out, 7, STYLE_PLAIN);
	end_line(frame, line);
}

/* What orders topics; for compare_topics. */
static const Top *ordering;

/* Compare two values that may be NaN, which comes last. */
static int
compare_numbers(double a, double b)
{
	a = isnan(a) ? -1 : a;
	b = isnan(b) ? -1 : b;
	return a < b ? 1 : a > b ? -1 : 0;
}

/* The order of two topics, for qsort. */
static int
compare_topics(const void *left, const void *right)
{
	const TopTopic *a = &ordering->topics[*(const int *) left];
	const TopTopic *b = &ordering->topics[*(const int *) right];
	int			order = 0;

	switch (ordering->sort)
	{
		case SORT_READY:
			order = compare_numbers((double) (a->ready + a->leased), (double) (b->ready + b->leased));
			break;
		case SORT_OLDEST:
			order = compare_numbers(a->oldest, b->oldest);
			break;
		case SORT_DEAD:
			order = compare_numbers((double) a->dead, (double) b->dead);
			break;
		case SORT_IN:
			order = compare_numbers(a->in, b->in);
			break;
		case SORT_OUT:
			order = compare_numbers(a->out, b->out);
			break;
		case SORT_NAME:
		case SORT_COUNT:
			break;
	}
	if (order == 0)
		order = strcmp(a->name, b->name);
	return ordering->reverse ? -order : order;
}

/* The topics, as many as there is room for; the last line says how many there are more. */
static void
draw_topics(Frame *frame, PQExpBuffer line, const Top *top, int room)
{
	Layout		layout = lay_out(top, frame->columns);
	int		   *shown = pg_malloc((top->topic_count + 1) * sizeof(int));
	int			count = 0;
	int			offset;

	for (int i = 0; i < top->topic_count; i++)
		if (*top->filter == '\0' || strstr(top->topics[i].name, top->filter))
			shown[count++] = i;
	ordering = top;
	qsort(shown, count, sizeof(int), compare_topics);

	append_heading(line, top, "TOPIC", SORT_NAME, layout.name, false);
	append_heading(line, top, "READY", SORT_READY, 6, true);
	appendPQExpBufferStr(line, " ");
	append_heading(line, top, " DEPTH", -1, layout.depth, false);
	append_heading(line, top, "LEASED", -1, 7, true);
	append_heading(line, top, "DELAYED", -1, layout.delayed, true);
	append_heading(line, top, "DEAD", SORT_DEAD, 7, true);
	append_heading(line, top, "OLDEST", SORT_OLDEST, layout.oldest, true);
	append_heading(line, top, top->has_counters ? "IN/s" : "+/s", SORT_IN, Min(layout.rates, 7), true);
	append_heading(line, top, "OUT/s", SORT_OUT, layout.rates - 7, true);
	end_line(frame, line);

	offset = Max(0, Min(top->offset, count - (room - 1)));
	for (int i = offset; i < count && room > 1; i++)
	{
		if (room == 2 && count - i > 1)
		{
			appendPQExpBuffer(line, "%s... and %d more%s", style_on(STYLE_DIM), count - i, style_off(STYLE_DIM));
			end_line(frame, line);
			break;
		}
		draw_topic(frame, line, &top->topics[shown[i]], &layout, top->has_counters);
		room--;
	}
	if (count == 0)
	{
		appendPQExpBuffer(line, "%s%s%s", style_on(STYLE_DIM),
						  *top->filter ? "no topic has that in its name" : "nothing waits",
						  style_off(STYLE_DIM));
		end_line(frame, line);
	}
	pg_free(shown);
}

/* Who works. */
static void
draw_workers(Frame *frame, PQExpBuffer line, const Top *top, int room)
{
	int			count = PQntuples(top->workers);
	int			width = Max(20, Min(60, frame->columns - 40));

	appendPQExpBufferStr(line, style_on(STYLE_HEADER));
	append_fitted(line, "WORKER", width, false);
	append_fitted(line, "OPEN", 7, true);
	append_fitted(line, "DONE/s", 8, true);
	append_fitted(line, "MEAN", 9, true);
	append_fitted(line, "IDLE FOR", 10, true);
	appendPQExpBufferStr(line, style_off(STYLE_HEADER));
	end_line(frame, line);
	for (int i = 0; i < count && room > 1; i++, room--)
	{
		if (room == 2 && count - i > 1)
		{
			appendPQExpBuffer(line, "%s... and %d more%s", style_on(STYLE_DIM), count - i, style_off(STYLE_DIM));
			end_line(frame, line);
			break;
		}
		append_fitted(line, PQgetvalue(top->workers, i, 0), width, false);
		append_number(line, number_at(top->workers, i, 1), 7, STYLE_PLAIN);
		append_number(line, number_at(top->workers, i, 2), 8, STYLE_PLAIN);
		append_aged(line, number_at(top->workers, i, 3), 9);
		append_aged(line, number_at(top->workers, i, 4), 10);
		if (*PQgetvalue(top->workers, i, 5) == 't')
		{
			appendPQExpBufferStr(line, "  ");
			append_styled(line, STYLE_BAD, "gone");
		}
		end_line(frame, line);
	}
}

/* What is wrong, a line each. */
static void
draw_problems(Frame *frame, PQExpBuffer line, const Top *top, int room)
{
	for (int i = 0; i < PQntuples(top->problems) && i < room; i++)
	{
		appendPQExpBuffer(line, "%s%s%s ", style_on(STYLE_BAD), sign(SIGN_BAD), style_off(STYLE_BAD));
		append_safe(line, PQgetvalue(top->problems, i, 0), false);
		appendPQExpBufferStr(line, ": ");
		append_safe(line, PQgetvalue(top->problems, i, 1), false);
		if (!PQgetisnull(top->problems, i, 2) && *PQgetvalue(top->problems, i, 2))
		{
			appendPQExpBuffer(line, "  %s", style_on(STYLE_DIM));
			append_safe(line, PQgetvalue(top->problems, i, 2), false);
			appendPQExpBufferStr(line, style_off(STYLE_DIM));
		}
		end_line(frame, line);
	}
}

/* The keys, or what is being typed. */
static void
draw_keys(Frame *frame, PQExpBuffer line, const Top *top)
{
	if (top->typing)
	{
		appendPQExpBufferStr(line, "topics with: ");
		append_safe(line, top->filter, false);
		appendPQExpBufferStr(line, sign(SIGN_CURSOR));
		appendPQExpBuffer(line, "  %sEnter to keep, Esc to show all%s", style_on(STYLE_DIM), style_off(STYLE_DIM));
	}
	else
	{
		appendPQExpBuffer(line, "%sq quit  s sort: %s  r reverse  p pause  / find", style_on(STYLE_DIM),
						  top_sort_name(top->sort));
		if (*top->filter)
		{
			appendPQExpBufferStr(line, ": ");
			append_safe(line, top->filter, false);
		}
		appendPQExpBuffer(line, "  w workers  ? help%s", style_off(STYLE_DIM));
	}
	end_line(frame, line);
}

/* What the keys and the columns are. */
static void
draw_help(Frame *frame, PQExpBuffer line, const Top *top)
{
	static const char *const lines[] = {
		"",
		"q  Ctrl-C      quit",
		"s              sort by the next column, which is marked",
		"r              reverse the order",
		"p  space       pause, and go on",
		"/              show only topics with this in their name; Esc shows all",
		"j k  arrows    scroll",
		"g              back to the first topic",
		"w              show or hide who works",
		"+ -            look more often, or less",
		"?  h           this, and back",
		"",
		"READY can be claimed now; a + says that there are more. DEPTH is ready and",
		"leased over time. LEASED are worked on, DELAYED not due yet, DEAD have failed.",
		"FAILING have failed three times, and are tried again. WAIT: claims that wait.",
		"OLDEST is how long the oldest of READY could have been claimed."
	};

	for (int i = 0; i < (int) lengthof(lines) && frame->rows > 1; i++)
	{
		appendPQExpBufferStr(line, lines[i]);
		end_line(frame, line);
	}
	appendPQExpBufferStr(line, top->has_counters ? "IN/s were enqueued or published, OUT/s acknowledged."
						 : "+/s is how fast the depth grows: this version counts nothing else.");
	end_line(frame, line);
}

/* Append a frame of so many rows and columns. */
void
top_draw(PQExpBuffer out, const Top *top, int rows, int columns)
{
	Frame		frame = {out, rows, 1, columns};
	PQExpBufferData line;
	int			problems = Min(PQntuples(top->problems), Max(1, (rows - 12) / 4));
	int			workers = 0;

	initPQExpBuffer(&line);
	draw_title(&frame, &line, top);
	if (top->help)
		draw_help(&frame, &line, top);
	else
	{
		if (rows >= 16)
			end_line(&frame, &line);
		draw_totals(&frame, &line, top);
		end_line(&frame, &line);
		if (!top->no_workers && PQntuples(top->workers) > 0 && rows >= 16)
			workers = 2 + Min(PQntuples(top->workers), Max(1, (rows - 12) / 4));
		draw_topics(&frame, &line, top, frame.rows - workers - (problems ? problems + 1 : 0) - 2);
		/* the rest stands at the bottom */
		while (frame.rows > workers + (problems ? problems + 1 : 0) + 1)
			end_line(&frame, &line);
		if (workers > 0)
		{
			draw_workers(&frame, &line, top, workers - 1);
			end_line(&frame, &line);
		}
		if (problems > 0)
		{
			draw_problems(&frame, &line, top, problems);
			end_line(&frame, &line);
		}
	}
	while (frame.rows > 1)
		end_line(&frame, &line);
	frame.kept = 0;
	draw_keys(&frame, &line, top);
	termPQExpBuffer(&line);
}
