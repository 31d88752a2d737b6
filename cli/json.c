/*
 * json.c
 *		Results of queries as JSON
 *
 * A column becomes a member of the object that is its row, with the column's name.
 * Numbers and booleans are written as such, json and jsonb as they are, times as
 * RFC 3339 has them, and everything else as a string.
 */
#include "postgres_fe.h"

#include "catalog/pg_type_d.h"

#include "json.h"
#include "text.h"

/* Append a string with its quotes. Bytes that are not UTF-8 become U+FFFD. */
void
append_json_string(PQExpBuffer out, const char *text)
{
	appendPQExpBufferChar(out, '"');
	while (*text)
	{
		unsigned	code;
		int			width;
		int			bytes = text_next(text, &code, &width);

		if (code == '"' || code == '\\')
			appendPQExpBuffer(out, "\\%c", code);
		else if (code == '\n')
			appendPQExpBufferStr(out, "\\n");
		else if (code < 0x20 || (code >= 0x7f && code < 0xa0 && bytes == 2) || code == 0x7f)
			appendPQExpBuffer(out, "\\u%04x", code);
		else if (bytes == 1 && code >= 0x80)
			appendPQExpBufferStr(out, "\\ufffd");
		else
			appendBinaryPQExpBuffer(out, text, bytes);
		text += bytes;
	}
	appendPQExpBufferChar(out, '"');
}

/*
 * Append what is JSON already. Control characters, of which there can only be some
 * in its strings, are escaped: it may be a terminal that reads this.
 */
static void
append_json_text(PQExpBuffer out, const char *json)
{
	while (*json)
	{
		unsigned	code;
		int			width;
		int			bytes = text_next(json, &code, &width);

		if (code >= 0x7f && code < 0xa0)
			appendPQExpBuffer(out, "\\u%04x", code);
		else
			appendPQExpBufferChar(out, code == '\n' || code == '\r' || code == '\t' ? ' ' : *json);
		if (bytes > 1 && !(code < 0xa0))
			appendBinaryPQExpBuffer(out, json + 1, bytes - 1);
		json += bytes;
	}
}

/* Append a time, which the server has written in the ISO style. */
static void
append_json_time(PQExpBuffer out, const char *time)
{
	size_t		length = strlen(time);

	appendPQExpBufferChar(out, '"');
	for (const char *at = time; *at; at++)
		appendPQExpBufferChar(out, *at == ' ' ? 'T' : *at);
	/* the zone is written in hours where it has no minutes */
	if (length > 3 && (time[length - 3] == '+' || time[length - 3] == '-'))
		appendPQExpBufferStr(out, ":00");
	appendPQExpBufferChar(out, '"');
}

/* Append one value. */
void
append_json_value(PQExpBuffer out, PGresult *result, int row, int column)
{
	const char *value = PQgetvalue(result, row, column);

	if (PQgetisnull(result, row, column))
	{
		appendPQExpBufferStr(out, "null");
		return;
	}
	switch (PQftype(result, column))
	{
		case BOOLOID:
			appendPQExpBufferStr(out, *value == 't' ? "true" : "false");
			break;
		case FLOAT4OID:
		case FLOAT8OID:
		case NUMERICOID:
			/* there is neither NaN nor Infinity in JSON */
			appendPQExpBufferStr(out, strpbrk(value, "IiNn") ? "null" : value);
			break;
		case INT2OID:
		case INT4OID:
		case INT8OID:
			appendPQExpBufferStr(out, value);
			break;
		case JSONOID:
		case JSONBOID:
			append_json_text(out, value);
			break;
		case TIMESTAMPTZOID:
			append_json_time(out, value);
			break;
		default:
			append_json_string(out, value);
	}
}

/* Append a row as an object. */
void
append_json_row(PQExpBuffer out, PGresult *result, int row)
{
	appendPQExpBufferChar(out, '{');
	for (int i = 0; i < PQnfields(result); i++)
	{
		if (i > 0)
			appendPQExpBufferStr(out, ", ");
		append_json_string(out, PQfname(result, i));
		appendPQExpBufferStr(out, ": ");
		append_json_value(out, result, row, i);
	}
	appendPQExpBufferChar(out, '}');
}

/* Append all rows as an array of objects, one a line. */
void
append_json_rows(PQExpBuffer out, PGresult *result)
{
	appendPQExpBufferChar(out, '[');
	for (int i = 0; i < PQntuples(result); i++)
	{
		appendPQExpBufferStr(out, i > 0 ? ",\n " : "");
		append_json_row(out, result, i);
	}
	appendPQExpBufferChar(out, ']');
}
