/*
 * terminal.c
 *		What is at the other end of standard output: colours, size, questions and
 *		progress bars
 *
 * Colours are for terminals, unless --color=always asks for them or NO_COLOR forbids
 * them. Questions go to the terminal on standard error and are answered on standard
 * input; where one of these is not a terminal, there is no answer.
 */
#include "postgres_fe.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "common/logging.h"

#include "terminal.h"
#include "text.h"

static bool colored = false;

/* when the progress bar was last drawn, and whether there is one */
static struct timespec drawn;
static bool bar = false;

/*
 * Decide about colours: auto, always or never. Returns false for any other word.
 */
bool
terminal_init(const char *color)
{
	const char *no_color = getenv("NO_COLOR");
	const char *term = getenv("TERM");
	bool		wanted = no_color == NULL || *no_color == '\0';

	if (color == NULL || strcmp(color, "auto") == 0)
		colored = wanted && terminal_is_out() && term != NULL && strcmp(term, "dumb") != 0;
	else if (strcmp(color, "always") == 0)
		colored = true;
	else if (strcmp(color, "never") == 0)
		colored = false;
	else
		return false;

	/* the errors' colours follow */
	setenv("PG_COLOR", colored && (isatty(STDERR_FILENO) || color != NULL) ? "always" : "never", 1);
	return true;
}

/* Does standard output lead to a terminal? */
bool
terminal_is_out(void)
{
	return isatty(STDOUT_FILENO);
}

/* The size of the terminal; 24 by 80 if it cannot be asked. */
void
terminal_size(int *rows, int *columns)
{
	struct winsize size;

	*rows = 24;
	*columns = 80;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0)
	{
		*rows = size.ws_row;
		*columns = size.ws_col;
	}
}

/* What begins a style; the empty string if there are no colours. */
const char *
style_on(Style style)
{
	if (!colored)
		return "";
	switch (style)
	{
		case STYLE_PLAIN:
			return "";
		case STYLE_HEADER:
			return "\033[1m";
		case STYLE_DIM:
			return "\033[2m";
		case STYLE_GOOD:
			return "\033[32m";
		case STYLE_WARN:
			return "\033[33m";
		case STYLE_BAD:
			return "\033[31m";
		case STYLE_NAME:
			return "\033[36m";
	}
	return "";
}

/* What ends it. */
const char *
style_off(Style style)
{
	return colored && style != STYLE_PLAIN ? "\033[0m" : "";
}

/* Append a text, which is safe already, in a style. */
void
append_styled(PQExpBuffer out, Style style, const char *text)
{
	appendPQExpBuffer(out, "%s%s%s", style_on(style), text, style_off(style));
}

/*
 * Write to standard output, and empty the buffer. A reader that has gone away, as
 * head does, ends the program without a word, as it does other programs.
 */
void
put_out(PQExpBuffer out)
{
	if (PQExpBufferBroken(out))
		pg_fatal("out of memory");
	if (fwrite(out->data, 1, out->len, stdout) != out->len || fflush(stdout) != 0)
	{
		if (errno == EPIPE)
			_exit(128 + SIGPIPE);
		pg_fatal("could not write to standard output: %m");
	}
	resetPQExpBuffer(out);
}

/*
 * Ask whether a change is wanted; returns the answer, and true without a question
 * if yes is given already. Without a terminal to ask on, what can be undone is done,
 * and what destroys ends the program. The text is a question without its mark.
 */
bool
confirm(Danger danger, bool yes, const char *format,...)
{
	PQExpBufferData question;
	va_list		arguments;
	char		text[1024];
	char		answer[16];
	bool		agreed = false;

	if (yes)
		return true;
	if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
	{
		if (danger == CHANGES)
			return true;
		pg_log_error("this destroys messages, and there is no terminal to ask on");
		pg_log_error_hint("Give --yes if it is wanted, or look at it with --dry-run first.");
		exit(1);
	}
	initPQExpBuffer(&question);
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	append_safe(&question, text, false);
	fprintf(stderr, "%s? [y/N] ", question.data);
	fflush(stderr);
	termPQExpBuffer(&question);
	if (fgets(answer, sizeof(answer), stdin) != NULL)
		agreed = answer[0] == 'y' || answer[0] == 'Y';
	else
		fputc('\n', stderr);
	if (!agreed)
		fprintf(stderr, "Nothing was changed.\n");
	return agreed;
}

/*
 * Draw how far long work has come, on standard error if that is a terminal, and not
 * more often than ten times a second. A total of 0 is not known.
 */
void
progress(const char *what, long long done, long long total)
{
	struct timespec now;
	PQExpBufferData line;
	int			rows;
	int			columns;
	int			width;
	int			filled;

	if (!isatty(STDERR_FILENO))
		return;
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (bar && done < total &&
		(now.tv_sec - drawn.tv_sec) * 1000 + (now.tv_nsec - drawn.tv_nsec) / 1000000 < 100)
		return;
	bar = true;
	drawn = now;
	terminal_size(&rows, &columns);
	width = Max(10, Min(40, columns - 45));
	initPQExpBuffer(&line);
	appendPQExpBuffer(&line, "\r%s ", what);
	if (total > 0)
	{
		filled = (int) (Min(done, total) * width / total);
		appendPQExpBufferStr(&line, style_on(STYLE_GOOD));
		append_repeated(&line, sign(SIGN_BAR), filled);
		appendPQExpBufferStr(&line, style_off(STYLE_GOOD));
		appendPQExpBufferStr(&line, style_on(STYLE_DIM));
		append_repeated(&line, sign(SIGN_NO_BAR), width - filled);
		appendPQExpBufferStr(&line, style_off(STYLE_DIM));
		appendPQExpBufferChar(&line, ' ');
	}
	append_count(&line, done);
	if (total > 0)
	{
		appendPQExpBufferStr(&line, " of ");
		append_count(&line, total);
	}
	appendPQExpBufferStr(&line, "\033[K");
	fputs(line.data, stderr);
	fflush(stderr);
	termPQExpBuffer(&line);
}

/* Remove the progress bar. */
void
progress_end(void)
{
	if (bar)
		fputs("\r\033[K", stderr);
	bar = false;
}
