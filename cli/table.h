/*
 * table.h
 *		Results of queries as tables, or as JSON
 */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include "libpq-fe.h"

#include "terminal.h"

typedef enum ColumnKind
{
	COLUMN_TEXT,
	COLUMN_NAME,				/* text that is given to other commands */
	COLUMN_COUNT,
	COLUMN_AGE,					/* seconds */
	COLUMN_RATE,				/* a number that need not be whole */
	COLUMN_TIME,
	COLUMN_FLAG,				/* the title if true */
	COLUMN_STATE				/* ready, done, failed ... in its colour */
} ColumnKind;

typedef struct Column
{
	const char *title;			/* null: only in JSON */
	ColumnKind	kind;
	bool		optional;		/* left out where all are null or false */
	const char *usual;			/* and where all are this; may be null */
	Style		style;			/* of a count that is not 0, of a text */
} Column;

extern void print_rows(PGresult *result, const Column *columns, const char *nothing);
extern char *cell_text(PGresult *result, int row, int column, const Column *spec);
extern Style state_style(const char *state);

#endif							/* CLI_TABLE_H */
