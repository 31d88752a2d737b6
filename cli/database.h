/*
 * database.h
 *		The connection, and queries on it
 */
#ifndef CLI_DATABASE_H
#define CLI_DATABASE_H

#include "libpq-fe.h"

extern PGconn *connection;
extern bool show_notices;
extern bool prefer_indexes;

extern PGconn *open_connection(bool quiet);
extern void connect_database(void);
extern PGresult *run_query(const char *sql, int count, const char *const *values);
extern PGresult *query(const char *sql,...);
extern void report_result(PGconn *conn, const PGresult *result);
extern _Noreturn void fail_query(PGconn *conn, const PGresult *result);
extern void report_connection(PGconn *conn);
extern bool may_read(const char *relation, const char *column);
extern bool may_call(const char *function);
extern char *array_of(int count, char *const *items);
extern const char *number_text(long long number);

/* The end of the values that query takes. */
#define NO_MORE ((const char *) -1)

#endif							/* CLI_DATABASE_H */
