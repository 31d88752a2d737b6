/*
 * text.h
 *		Text for people: width, escaping, numbers, times and sparklines
 */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include "pqexpbuffer.h"

/* Signs that have another form where only ASCII can be shown. */
typedef enum Sign
{
	SIGN_GOOD,
	SIGN_BAD,
	SIGN_HINT,
	SIGN_ELLIPSIS,
	SIGN_BAR,
	SIGN_NO_BAR,
	SIGN_UP,
	SIGN_DOWN,
	SIGN_CURSOR
} Sign;

extern void text_init(void);
extern const char *sign(Sign which);
extern int	text_next(const char *text, unsigned *code, int *width);
extern int	text_width(const char *text);
extern void append_safe(PQExpBuffer out, const char *text, bool lines);
extern void append_fitted(PQExpBuffer out, const char *text, int width, bool right);
extern void append_repeated(PQExpBuffer out, const char *text, int times);
extern void append_count(PQExpBuffer out, long long count);
extern void append_short(PQExpBuffer out, double value);
extern void append_age(PQExpBuffer out, double seconds);
extern void append_bytes(PQExpBuffer out, double bytes);
extern void append_time(PQExpBuffer out, const char *timestamp);
extern void append_sparkline(PQExpBuffer out, const double *values, int count, double highest);

#endif							/* CLI_TEXT_H */
