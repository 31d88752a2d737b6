/*
 * json.h
 *		Results of queries as JSON
 */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include "libpq-fe.h"
#include "pqexpbuffer.h"

extern void append_json_string(PQExpBuffer out, const char *text);
extern void append_json_value(PQExpBuffer out, PGresult *result, int row, int column);
extern void append_json_row(PQExpBuffer out, PGresult *result, int row);
extern void append_json_rows(PQExpBuffer out, PGresult *result);

#endif							/* CLI_JSON_H */
