/*
 * settle.c
 *	  What a worker of outbox tells the server: acknowledge, hand back, renew, release.
 *
 * Nothing here waits for a server that is away: what could not be sent stays where it is,
 * and is tried again later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "worker.h"

#define ACK_SECONDS 0.005
#define ACK_IDS 100
#define HELD "unnest($1::uuid[], $2::bigint[], $3::int[]) AS held(owner, id, attempt)"

static const char *const ack_sql =
	"SELECT coalesce(sum(outbox.ack(owner, ids, attempts)), 0)"
	" FROM (SELECT owner, array_agg(id), array_agg(attempt) FROM " HELD " GROUP BY owner)"
	" AS own(owner, ids, attempts)";
static const char *const nack_sql =
	"SELECT outbox.nack_one($1::uuid, $2::bigint, $4::text, $5::interval, $3::int)";
static const char *const fail_sql =
	"SELECT outbox.fail_one($1::uuid, $2::bigint, $4::text, $5::int, $3::int)";
/* renews; its rows are the leases that are lost */
static const char *const renew_sql =
	"SELECT id, attempt FROM " HELD " WHERE outbox.renew_one(owner, id, $4::int, attempt) = 0";
static const char *const release_sql = "SELECT outbox.release_one(owner, id) FROM " HELD;
static const char *const release_all_sql = "SELECT outbox.release($1::uuid)";

bool
outbox_repeatable(const PGresult *result, PGconn *conn)
{
	const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;

	if (state == NULL || PQstatus(conn) != CONNECTION_OK)
		return true;
	return strncmp(state, "08", 2) == 0 || strstr("40001 40P01 53300 57P01 57P02 57P03", state) != NULL;
}

/* Try to run a statement; null if that must be tried later, or is given up. */
static PGresult *
run(outbox_worker *w, const char *sql, int count, const char *const *values, bool *refused)
{
	PGresult   *result = NULL;
	list		leased = {0};
	const char *state;

	if (PQstatus(w->settler) != CONNECTION_OK)
		PQreset(w->settler);
	if (PQstatus(w->settler) == CONNECTION_OK)
		result = PQexecParams(w->settler, sql, count, NULL, values, NULL, NULL, 0);
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
	{
		w->settle_delay = 0.1;
		return result;
	}
	state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
	if (refused && state && strncmp(state, "22", 2) == 0)
		*refused = true;
	else if (!outbox_repeatable(result, w->settler))
		outbox_fatal(w, PQerrorMessage(w->settler));
	else
	{
		outbox_emit(w, (outbox_event) {.name = "reconnect", .error = state ? state : "connection"});
		w->settle_after = outbox_now() + outbox_pause(&w->settle_delay, w->stops > 0);
		outbox_leased(w, &leased);
		for (int i = 0; i < leased.count; i++)
			if (outbox_now() > ((message *) leased.at[i])->until)
				outbox_lose(w, leased.at[i]);
		outbox_free_list(&leased, NULL);
	}
	PQclear(result);
	return NULL;
}

/* Note a statement; it is sent by outbox_settle. */
void
outbox_tell(outbox_worker *w, const char *sql, int count, const char *const *values)
{
	statement  *s = outbox_allocate(NULL, sizeof(statement));

	s->sql = sql;
	s->count = count;
	for (int i = 0; i < count; i++)
		s->values[i] = values[i] ? strdup(values[i]) : NULL;
	outbox_push(&w->statements, s);
}

void
outbox_tell_judgement(outbox_worker *w, const message *m, outbox_outcome outcome, const char *error,
					  const char *extra)
{
	const char *values[] = {m->public.owner_token, m->public.id, m->public.attempts, error, extra};

	outbox_tell(w, outcome == OUTBOX_FAIL ? fail_sql : nack_sql, 5, values);
}

static void
free_statement(void *item)
{
	statement  *s = item;

	for (int i = 0; i < s->count; i++)
		free(s->values[i]);
	free(s);
}

void
outbox_forget_statements(outbox_worker *w)
{
	outbox_free_list(&w->statements, free_statement);
}

/* Send the first of the statements; false if it stays. */
static bool
send_statement(outbox_worker *w)
{
	statement  *s = w->statements.at[0];
	bool		refused = false;
	PGresult   *result = run(w, s->sql, s->count, (const char *const *) s->values,
							 s->count == 5 ? &refused : NULL);

	if (refused)
	{
		/* the server does not take what the handler has said */
		free(s->values[3]);
		free(s->values[4]);
		s->values[3] = s->values[4] = NULL;
		return true;
	}
	if (result == NULL)
		return false;
	PQclear(result);
	free_statement(outbox_take(&w->statements, 0));
	return true;
}

typedef const char *(*part) (const outbox_message *m);

static const char *
owner_of(const outbox_message *m)
{
	return m->owner_token;
}

static const char *
id_of(const outbox_message *m)
{
	return m->id;
}

static const char *
attempt_of(const outbox_message *m)
{
	return m->attempts;
}

/* '{1,2}' of owners, ids or attempts.  The caller frees it. */
static char *
array(const list *messages, int count, part of)
{
	char	   *s = outbox_allocate(NULL, 40 * count + 3),
			   *end = s + sprintf(s, "{");

	for (int i = 0; i < count; i++)
		end += sprintf(end, "%s%s", i ? "," : "", of(messages->at[i]));
	sprintf(end, "}");
	return s;
}

/* Run a statement about messages. */
static PGresult *
run_held(outbox_worker *w, const char *sql, const list *messages, int count, const char *more)
{
	char	   *values[] = {array(messages, count, owner_of), array(messages, count, id_of),
	array(messages, count, attempt_of), (char *) more};
	PGresult   *result = run(w, sql, more ? 4 : 3, (const char *const *) values, NULL);

	for (int i = 0; i < 3; i++)
		free(values[i]);
	return result;
}

static bool
send_acks(outbox_worker *w)
{
	int			count = w->acks.count < ACK_IDS ? w->acks.count : ACK_IDS;
	PGresult   *result = run_held(w, ack_sql, &w->acks, count, NULL);

	if (result == NULL)
	{
		w->acks_repeated = true;
		return false;
	}
	/* how many the first of several calls has acknowledged is not known */
	outbox_emit(w, (outbox_event) {.name = "settled", .count = count,
		.lost = w->acks_repeated ? 0 : count - atoi(PQgetvalue(result, 0, 0))});
	w->acks_repeated = false;
	PQclear(result);
	for (int i = 0; i < count; i++)
		outbox_forget(outbox_take(&w->acks, 0));
	return true;
}

static bool
is_lost(const PGresult *lost, const message *m)
{
	for (int i = 0; i < PQntuples(lost); i++)
		if (strcmp(PQgetvalue(lost, i, 0), m->public.id) == 0 &&
			strcmp(PQgetvalue(lost, i, 1), m->public.attempts) == 0)
			return true;
	return false;
}

static bool
renew(outbox_worker *w)
{
	list		held = {0};
	double		began = outbox_now();
	char		lease[12];
	PGresult   *lost = NULL;

	outbox_leased(w, &held);
	snprintf(lease, sizeof(lease), "%d", w->options.lease_seconds);
	if (held.count && (lost = run_held(w, renew_sql, &held, held.count, lease)) == NULL)
	{
		outbox_free_list(&held, NULL);
		return false;
	}
	w->renew_at = began + w->options.lease_seconds / 3.0;
	for (int i = 0; i < held.count; i++)
	{
		message    *m = held.at[i];

		m->until = began + w->options.lease_seconds;
		if (is_lost(lost, m))
			outbox_lose(w, m);
	}
	PQclear(lost);
	outbox_free_list(&held, NULL);
	return true;
}

/* Have what no handler has begun released. */
void
outbox_release(outbox_worker *w)
{
	char	   *values[] = {array(&w->waiting, w->waiting.count, owner_of),
	array(&w->waiting, w->waiting.count, id_of), array(&w->waiting, w->waiting.count, attempt_of)};

	if (w->waiting.count)
		outbox_tell(w, release_sql, 3, (const char *const *) values);
	outbox_free_list(&w->waiting, outbox_forget);
	for (int i = 0; i < 3; i++)
		free(values[i]);
}

void
outbox_release_owner(outbox_worker *w, const char *owner)
{
	outbox_tell(w, release_all_sql, 1, &owner);
}

/* Release what stray claims may have taken, when nothing of their owner is in hand any more. */
static void
release_strays(outbox_worker *w)
{
	list		held = {0};

	if (w->strays.count == 0)
		return;
	outbox_leased(w, &held);
	for (int i = 0; i < w->acks.count; i++)
		outbox_push(&held, w->acks.at[i]);
	for (int i = w->strays.count - 1; i >= 0; i--)
	{
		bool		known = false;

		for (int n = 0; n < held.count; n++)
			known |= strcmp(owner_of(held.at[n]), w->strays.at[i]) == 0;
		if (known)
			continue;
		outbox_release_owner(w, w->strays.at[i]);
		free(outbox_take(&w->strays, i));
	}
	outbox_free_list(&held, NULL);
}

/* Send what is due, as far as the server answers. */
void
outbox_settle(outbox_worker *w)
{
	if (outbox_now() < w->settle_after)
		return;
	if (outbox_now() >= w->renew_at && !renew(w))
		return;
	release_strays(w);
	while (w->statements.count)
		if (!send_statement(w))
			return;
	while (w->acks.count && (w->acks.count >= ACK_IDS || outbox_now() > w->acks_since + ACK_SECONDS))
		if (!send_acks(w))
			return;
}
