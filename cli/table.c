/*
 * table.c
 *		Results of queries as tables, or as JSON
 *
 * A table has a line for each row, whatever is in it, and is as narrow as its values
 * allow. On a terminal that is narrower, the widest columns of text are cut; nothing
 * is cut in a file or a pipe.
 */
#include "postgres_fe.h"

#include "command.h"
#include "json.h"
#include "table.h"
#include "text.h"

#define MAX_COLUMNS 24

/* Columns of text are not made narrower than this, or than that in the worst case. */
#define LEAST_WIDTH 8
#define NARROWEST_WIDTH 3

/* What belongs to a state, by its first letters. */
Style
state_style(const char *state)
{
	if (strcmp(state, "failed") == 0 || strcmp(state, "dead") == 0)
		return STYLE_BAD;
	if (strcmp(state, "done") == 0 || strcmp(state, "completed") == 0)
		return STYLE_GOOD;
	if (strcmp(state, "in progress") == 0)
		return STYLE_WARN;
	return STYLE_PLAIN;
}

/* A value as it is shown, not yet safe; the caller frees it. */
char *
cell_text(PGresult *result, int row, int column, const Column *spec)
{
	PQExpBufferData out;
	const char *value = PQgetvalue(result, row, column);

	initPQExpBuffer(&out);
	if (!PQgetisnull(result, row, column))
	{
		switch (spec->kind)
		{
			case COLUMN_COUNT:
				append_count(&out, strtoll(value, NULL, 10));
				break;
			case COLUMN_AGE:
				append_age(&out, strtod(value, NULL));
				break;
			case COLUMN_RATE:
				append_short(&out, strtod(value, NULL));
				break;
			case COLUMN_TIME:
				append_time(&out, value);
				break;
			case COLUMN_FLAG:
				appendPQExpBufferStr(&out, *value == 't' ? spec->title : "");
				break;
			default:
				appendPQExpBufferStr(&out, value);
		}
	}
	return out.data;
}

/* Does no row say anything in this column? */
static bool
says_nothing(PGresult *result, int column, const Column *spec)
{
	if (!spec->optional)
		return false;
	for (int i = 0; i < PQntuples(result); i++)
	{
		const char *value = PQgetvalue(result, i, column);

		if (PQgetisnull(result, i, column) || *value == '\0')
			continue;
		if (spec->usual && strcmp(value, spec->usual) == 0)
			continue;
		if (spec->kind == COLUMN_FLAG && *value == 'f')
			continue;
		if (spec->kind == COLUMN_COUNT && strcmp(value, "0") == 0)
			continue;
		return false;
	}
	return true;
}

/* Make the widest columns of text narrower until the line has at most so many. */
static void
make_narrow(int *widths, const Column *columns, int count, int room)
{
	int			least = LEAST_WIDTH;

	for (;;)
	{
		int			total = -2;
		int			widest = -1;

		for (int i = 0; i < count; i++)
		{
			if (widths[i] == 0)
				continue;
			total += widths[i] + 2;
			if ((columns[i].kind == COLUMN_TEXT || columns[i].kind == COLUMN_NAME) &&
				widths[i] > least && (widest < 0 || widths[i] > widths[widest]))
				widest = i;
		}
		if (total <= room || (widest < 0 && least == NARROWEST_WIDTH))
			return;
		if (widest < 0)
			least = NARROWEST_WIDTH;
		else
			widths[widest] -= 1;
	}
}

/* Are the values of a column aligned at its right edge? */
static bool
is_right(const Column *spec)
{
	return spec->kind == COLUMN_COUNT || spec->kind == COLUMN_AGE || spec->kind == COLUMN_RATE;
}

/* Append one cell. */
static void
append_cell(PQExpBuffer out, PGresult *result, int row, int column, const Column *spec, int width,
			bool last)
{
	bool		right = is_right(spec);
	char	   *text = cell_text(result, row, column, spec);
	Style		style = spec->style;

	if (spec->kind == COLUMN_COUNT && strcmp(text, "0") == 0)
		style = STYLE_DIM;
	else if (spec->kind == COLUMN_STATE)
		style = state_style(text);
	else if (spec->kind == COLUMN_NAME)
		style = STYLE_NAME;
	appendPQExpBufferStr(out, style_on(style));
	if (last && !right && text_width(text) <= width)
		append_safe(out, text, false);	/* no spaces at the end of a line */
	else
		append_fitted(out, text, width, right);
	appendPQExpBufferStr(out, style_off(style));
	free(text);
}

/* Print rows as a table. */
static void
print_table(PGresult *result, const Column *columns)
{
	int			widths[MAX_COLUMNS] = {0};
	int			count = PQnfields(result);
	int			last = 0;
	PQExpBufferData out;

	Assert(count <= MAX_COLUMNS);
	for (int i = 0; i < count; i++)
	{
		if (columns[i].title == NULL || says_nothing(result, i, &columns[i]))
			continue;
		widths[i] = (int) strlen(columns[i].title);
		for (int row = 0; row < PQntuples(result); row++)
		{
			char	   *text = cell_text(result, row, i, &columns[i]);

			widths[i] = Max(widths[i], text_width(text));
			free(text);
		}
		last = i;
	}
	if (terminal_is_out())
	{
		int			rows;
		int			room;

		terminal_size(&rows, &room);
		make_narrow(widths, columns, count, room);
	}

	initPQExpBuffer(&out);
	for (int row = -1; row < PQntuples(result); row++)
	{
		bool		first = true;

		for (int i = 0; i < count; i++)
		{
			if (widths[i] == 0)
				continue;
			if (!first)
				appendPQExpBufferStr(&out, "  ");
			first = false;
			if (row >= 0)
				append_cell(&out, result, row, i, &columns[i], widths[i], i == last);
			else
			{
				bool		right = is_right(&columns[i]);

				appendPQExpBufferStr(&out, style_on(STYLE_HEADER));
				if (i == last && !right)
					appendPQExpBufferStr(&out, columns[i].title);
				else
					append_fitted(&out, columns[i].title, widths[i], right);
				appendPQExpBufferStr(&out, style_off(STYLE_HEADER));
			}
		}
		appendPQExpBufferChar(&out, '\n');
	}
	put_out(&out);
	termPQExpBuffer(&out);
}

/*
 * Print rows: as one JSON document, an array of objects, if JSON is wanted; else as a
 * table with these columns, of which there is one for each of the result's. Without
 * rows the table is the text that says so.
 */
void
print_rows(PGresult *result, const Column *columns, const char *nothing)
{
	PQExpBufferData out;

	if (!common.json && PQntuples(result) > 0)
	{
		print_table(result, columns);
		return;
	}
	initPQExpBuffer(&out);
	if (common.json)
		append_json_rows(&out, result);
	else
		append_styled(&out, STYLE_DIM, nothing);
	appendPQExpBufferChar(&out, '\n');
	put_out(&out);
	termPQExpBuffer(&out);
}
