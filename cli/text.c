/*
 * text.c
 *		Text for people: width, escaping, numbers, times and sparklines
 *
 * All text from the server is UTF-8. What a message contains was written by
 * others: control characters, which a terminal would obey, and those that change
 * the direction of a line, are shown as escapes. Where the locale is not one of
 * UTF-8, so are all characters that are not ASCII.
 */
#include "postgres_fe.h"

#include <langinfo.h>
#include <math.h>

#include "mb/pg_wchar.h"

#include "text.h"

static bool utf8_terminal = false;

/* Find out whether the locale is one of UTF-8; setlocale has been called. */
void
text_init(void)
{
	utf8_terminal = pg_strcasecmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

/*
 * A sign, as the terminal can show it. (They are written as bytes because the
 * indenter takes some of those of UTF-8 for spaces.)
 */
const char *
sign(Sign which)
{
	static const char *const signs[][2] = {
		[SIGN_GOOD] = {"+", "\342\234\223"},
		[SIGN_BAD] = {"!", "\342\234\227"},
		[SIGN_HINT] = {">", "\342\206\222"},
		[SIGN_ELLIPSIS] = {"~", "\342\200\246"},
		[SIGN_BAR] = {"#", "\342\224\201"},
		[SIGN_NO_BAR] = {"-", "\342\224\200"},
		[SIGN_UP] = {"^", "\342\226\264"},
		[SIGN_DOWN] = {"*", "\342\226\276"},
		[SIGN_CURSOR] = {"_", "\342\226\217"}
	};

	return signs[which][utf8_terminal];
}

/*
 * Decode the first character of a text: its code and how many columns it takes, -1
 * if it must not be shown as it is. Returns how many bytes it has; a byte that is
 * not UTF-8 counts as a character with the code of the byte, and is not shown. The
 * text must not be empty.
 */
int
text_next(const char *text, unsigned *code, int *width)
{
	size_t		length = strnlen(text, MAX_MULTIBYTE_CHAR_LEN);
	int			bytes = pg_encoding_verifymbchar(PG_UTF8, text, (int) length);

	if (bytes < 0)
	{
		*code = (unsigned char) *text;
		*width = -1;
		return 1;
	}
	*code = utf8_to_unicode((const unsigned char *) text);
	*width = pg_encoding_dsplen(PG_UTF8, text);
	if (*code < 0x20 ||
		(*code >= 0x7f && *code < 0xa0) ||
		(*code >= 0x200b && *code <= 0x200f) ||
		(*code >= 0x2028 && *code <= 0x202e) ||
		(*code >= 0x2060 && *code <= 0x206f) ||
		*code == 0xfeff ||
		(*code > 0x7f && !utf8_terminal))
		*width = -1;
	return bytes;
}

/* How many columns append_safe takes for this text, in one line. */
int
text_width(const char *text)
{
	PQExpBufferData safe;
	int			total = 0;
	const char *at;

	initPQExpBuffer(&safe);
	append_safe(&safe, text, false);
	at = safe.data;
	while (*at)
	{
		unsigned	code;
		int			width;

		at += text_next(at, &code, &width);
		total += width;
	}
	termPQExpBuffer(&safe);
	return total;
}

/*
 * Append a text so that it can do nothing to a terminal. With lines, line breaks and
 * tabs stay as they are.
 */
void
append_safe(PQExpBuffer out, const char *text, bool lines)
{
	while (*text)
	{
		unsigned	code;
		int			width;
		int			bytes = text_next(text, &code, &width);

		if (width >= 0 || (lines && (code == '\n' || code == '\t')))
			appendBinaryPQExpBuffer(out, text, bytes);
		else if (code == '\n')
			appendPQExpBufferStr(out, "\\n");
		else if (code == '\r')
			appendPQExpBufferStr(out, "\\r");
		else if (code == '\t')
			appendPQExpBufferStr(out, "\\t");
		else if (code < 0x100)
			appendPQExpBuffer(out, "\\x%02x", code);
		else
			appendPQExpBuffer(out, "\\u{%x}", code);
		text += bytes;
	}
}

/*
 * Append a text, safe and in one line, in exactly so many columns: filled with
 * spaces, or cut and ended with an ellipsis.
 */
void
append_fitted(PQExpBuffer out, const char *text, int width, bool right)
{
	PQExpBufferData safe;
	int			needed = text_width(text);
	int			room = width;
	int			used = 0;
	const char *at;

	if (width <= 0)
		return;
	if (needed > width)
		room = width - 1;
	else if (right)
		append_repeated(out, " ", width - needed);
	initPQExpBuffer(&safe);
	append_safe(&safe, text, false);
	for (at = safe.data; *at;)
	{
		unsigned	code;
		int			columns;
		int			bytes = text_next(at, &code, &columns);

		if (used + columns > room)
			break;
		appendBinaryPQExpBuffer(out, at, bytes);
		used += columns;
		at += bytes;
	}
	termPQExpBuffer(&safe);
	if (needed > width)
	{
		appendPQExpBufferStr(out, sign(SIGN_ELLIPSIS));
		used += width - room;
	}
	if (!right || needed > width)
		append_repeated(out, " ", width - used);
}

/* Append a text so many times. */
void
append_repeated(PQExpBuffer out, const char *text, int times)
{
	while (times-- > 0)
		appendPQExpBufferStr(out, text);
}

/* Append a number with its thousands apart. */
void
append_count(PQExpBuffer out, long long count)
{
	char		digits[32];
	int			length = snprintf(digits, sizeof(digits), "%lld", count);

	for (int i = 0; i < length; i++)
	{
		appendPQExpBufferChar(out, digits[i]);
		if (i + 1 < length && (length - i - 1) % 3 == 0 && digits[i] != '-')
			appendPQExpBufferChar(out, ',');
	}
}

/* Append a number in at most five columns: 0.4, 17, 1,234, 12.3k, 1.2M. */
void
append_short(PQExpBuffer out, double value)
{
	static const char units[] = {'k', 'M', 'G', 'T'};
	double		size = fabs(value);
	int			unit = -1;

	if (size < 9999.5)
	{
		if (size < 9.95 && size != floor(size))
			appendPQExpBuffer(out, "%.1f", value);
		else
			append_count(out, llround(value));
		return;
	}
	do
	{
		size /= 1000;
		value /= 1000;
		unit++;
	} while (size >= 999.5 && unit < (int) lengthof(units) - 1);
	appendPQExpBuffer(out, size < 99.95 ? "%.1f%c" : "%.0f%c", value, units[unit]);
}

/* Append a span of time in its two largest units: 0.4 s, 12 s, 3 min, 2 h 10 min, 4 d. */
void
append_age(PQExpBuffer out, double seconds)
{
	long long	whole;

	if (seconds < 0)
	{
		appendPQExpBufferChar(out, '-');
		seconds = -seconds;
	}
	if (isinf(seconds))
	{
		appendPQExpBufferStr(out, "forever");
		return;
	}
	whole = llround(seconds);
	if (seconds < 0.001)
		appendPQExpBufferStr(out, "0 s");
	else if (seconds < 0.0995)
		appendPQExpBuffer(out, "%.0f ms", seconds * 1000);
	else if (seconds < 9.95 && seconds != floor(seconds))
		appendPQExpBuffer(out, "%.1f s", seconds);
	else if (whole < 120)
		appendPQExpBuffer(out, "%lld s", whole);
	else if (whole < 3600)
		appendPQExpBuffer(out, "%lld min", whole / 60);
	else if (whole < 86400)
		appendPQExpBuffer(out, "%lld h %02lld", whole / 3600, whole % 3600 / 60);
	else
		appendPQExpBuffer(out, "%lld d %lld h", whole / 86400, whole % 86400 / 3600);
}

/* Append a size: 812 B, 4.0 kB, 1.2 MB. */
void
append_bytes(PQExpBuffer out, double bytes)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
	int			unit = 0;

	while (bytes >= 1000 && unit < (int) lengthof(units) - 1)
	{
		bytes /= 1024;
		unit++;
	}
	appendPQExpBuffer(out, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

/* Append a timestamp of the server without the fraction of its second. */
void
append_time(PQExpBuffer out, const char *timestamp)
{
	const char *fraction = strchr(timestamp, '.');

	if (fraction == NULL)
	{
		append_safe(out, timestamp, false);
		return;
	}
	appendBinaryPQExpBuffer(out, timestamp, fraction - timestamp);
	fraction++;
	append_safe(out, fraction + strspn(fraction, "0123456789"), false);
}

/*
 * Append one column for each value, as high as it is beside the highest. What is not
 * known is NaN, and shown as a space; nothing as the lowest line.
 */
void
append_sparkline(PQExpBuffer out, const double *values, int count, double highest)
{
	static const char *const blocks[] = {
		"\342\226\201", "\342\226\202", "\342\226\203", "\342\226\204",
		"\342\226\205", "\342\226\206", "\342\226\207", "\342\226\210"
	};
	static const char *const ascii[] = {"_", ".", "-", "-", "=", "=", "#", "#"};

	for (int i = 0; i < count; i++)
	{
		int			height = 0;

		if (isnan(values[i]))
		{
			appendPQExpBufferChar(out, ' ');
			continue;
		}
		if (values[i] > 0 && highest > 0)
			height = 1 + (int) (values[i] / highest * 6.5);
		height = Min(height, 7);
		appendPQExpBufferStr(out, utf8_terminal ? blocks[height] : ascii[height]);
	}
}
