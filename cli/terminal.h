/*
 * terminal.h
 *		What is at the other end of standard output
 */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include "pqexpbuffer.h"

typedef enum Style
{
	STYLE_PLAIN,
	STYLE_HEADER,
	STYLE_DIM,
	STYLE_GOOD,
	STYLE_WARN,
	STYLE_BAD,
	STYLE_NAME
} Style;

/* How to ask before a change; see confirm. */
typedef enum Danger
{
	CHANGES,					/* without a terminal it is done */
	DESTROYS					/* without a terminal it is refused */
} Danger;

extern bool terminal_init(const char *color);
extern bool terminal_is_out(void);
extern void terminal_size(int *rows, int *columns);
extern const char *style_on(Style style);
extern const char *style_off(Style style);
extern void append_styled(PQExpBuffer out, Style style, const char *text);
extern void put_out(PQExpBuffer out);
extern bool confirm(Danger danger, bool yes, const char *format,...) pg_attribute_printf(3, 4);
extern void progress(const char *what, long long done, long long total);
extern void progress_end(void);

#endif							/* CLI_TERMINAL_H */
