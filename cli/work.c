/*
 * work.c
 *		outbox work: a worker that runs a command for each message
 *
 * One connection serves all commands that run at a time. Each of them has a slot with
 * an owner token of its own: the messages of a stream are delivered to an owner while
 * it has earlier ones, so a token for all would have two of a stream done at a time.
 *
 * The loop waits for the claim, the pipes of the commands, signals, and the next lease
 * to renew. While a claim waits in the server, nothing else can be called; so when a
 * command ends it is canceled, and the slots' calls are made before the next one.
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/logging.h"
#include "pqexpbuffer.h"

#include "child.h"
#include "commands.h"
#include "database.h"
#include "json.h"
#include "lease.h"
#include "terminal.h"
#include "text.h"

#define MAX_SLOTS 256
#define WAIT_MS 20000
#define KILL_AFTER 5.0			/* seconds from SIGTERM to SIGKILL */

/* Exit codes of commands: those of sysexits.h, and the shell's. */
#define COMMAND_DATAERR 65
#define COMMAND_CANNOT_RUN 126
#define COMMAND_NOT_FOUND 127

typedef struct Slot
{
	char	   *owner;
	PGresult   *message;		/* null if the slot is free */
	Child		child;
	double		started;
	double		renew_at;
	double		end_at;			/* when its time is over; 0 if it has no limit */
	double		kill_at;		/* when it is killed; 0 if it got no SIGTERM */
	bool		timed_out;
	bool		lost;			/* another worker has the message */
} Slot;

static char *command_text;
static char *namespace = NULL;
static char *subscription = NULL;
static char *tenant = NULL;
static int	slot_count = 1;
static int	lease_seconds = 60;
static int	message_limit = 0;
static double timeout_seconds = 0;
static double grace_seconds = 0;
static char *retry_delay = NULL;
static TextList fail_codes;
static bool drain;
static bool quiet;
static bool verbose;

static const Option work_options[] = {
	{"exec", 'e', OPTION_TEXT, &command_text, "COMMAND", "what to run for each message"},
	{"parallel", 'j', OPTION_NUMBER, &slot_count, "N", "so many at a time (1)", 1, MAX_SLOTS},
	{"namespace", 0, OPTION_TEXT, &namespace, "NAME", "messages of this namespace only"},
	{"subscription", 0, OPTION_TEXT, &subscription, "NAME", "deliveries of this subscription"},
	{"tenant", 0, OPTION_TEXT, &tenant, "UUID", "messages of this tenant only"},
	{"lease", 0, OPTION_NUMBER, &lease_seconds, "SECONDS", "lease, renewed while the command runs (60)", 1, 86400},
	{"timeout", 0, OPTION_SPAN, &timeout_seconds, "TIME", "a command that takes longer is ended"},
	{"retry-delay", 0, OPTION_TEXT, &retry_delay, "INTERVAL", "before the next attempt, in place of the backoff"},
	{"fail-code", 0, OPTION_LIST, &fail_codes, "N", "fail at this exit code, too; can be repeated"},
	{"drain", 0, OPTION_FLAG, &drain, NULL, "end when there is nothing to do"},
	{"limit", 'n', OPTION_NUMBER, &message_limit, "N", "end after so many messages", 1, PG_INT32_MAX},
	{"grace", 0, OPTION_SPAN, &grace_seconds, "TIME", "how long commands may run on after SIGTERM"},
	{"quiet", 'q', OPTION_FLAG, &quiet, NULL, "say nothing of messages"},
	{"verbose", 'v', OPTION_FLAG, &verbose, NULL, "also say what was acknowledged"},
	{"dry-run", 0, OPTION_FLAG, &dry_run, NULL, "only say what would be done"},
	{NULL}
};

static char *topics;			/* the text of an array; null for all */
static Slot *slots;
static int	claiming = -1;		/* the slot for which a claim is under way */
static int	claimed = 0;		/* messages so far */
static int	empty_claims = 0;	/* that found nothing, one after the other */
static bool canceled = false;	/* the claim that is under way */
static bool broken = false;		/* it cannot go on; ends with an error */
static int	stopping = 0;		/* 1: no more claims; 2: commands are ended,
								 * too */
static double stop_at = 0;		/* when 1 becomes 2; 0 if never */
static double retry_at = 0;		/* no claim before this time */
static double retry_after = 1;	/* what is added for it next time */
static int	counts[OUTCOME_LOST + 1];

/* Signals write a byte here. */
static int	signal_pipe[2];

static void
note_signal(int signal_number)
{
	int			saved = errno;
	char		letter = signal_number == SIGCHLD ? 'c' : 's';

	(void) !write(signal_pipe[1], &letter, 1);
	errno = saved;
}

static void
catch_signals(void)
{
	static const int signals[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP};
	struct sigaction action = {0};

	if (pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
		pg_fatal("could not create a pipe: %m");
	action.sa_handler = note_signal;
	action.sa_flags = SA_RESTART;
	for (int i = 0; i < (int) lengthof(signals); i++)
		sigaction(signals[i], &action, NULL);
}

/* The value of a column of the slot's message. */
static const char *
message_value(const Slot *slot, const char *column)
{
	return PQgetvalue(slot->message, 0, PQfnumber(slot->message, column));
}

/* Say what became of a message: JSON lines to standard output, or to standard error. */
static void
report_outcome(const Slot *slot, Outcome outcome, const char *error)
{
	static const char *const names[] = {"acked", "nacked", "failed", "released", "lost"};
	static const Style styles[] = {STYLE_GOOD, STYLE_WARN, STYLE_BAD, STYLE_DIM, STYLE_WARN};
	double		seconds = now_seconds() - slot->started;
	PQExpBufferData out;

	counts[outcome]++;
	initPQExpBuffer(&out);
	if (common.json)
	{
		appendPQExpBuffer(&out, "{\"id\": %s, \"message_id\": \"%s\", \"topic\": ", message_value(slot, "id"),
						  message_value(slot, "message_id"));
		append_json_string(&out, message_value(slot, "topic"));
		appendPQExpBuffer(&out, ", \"attempt\": %s, \"outcome\": \"%s\", \"exit_code\": ",
						  message_value(slot, "attempt"), names[outcome]);
		if (slot->child.ended && WIFEXITED(slot->child.status))
			appendPQExpBuffer(&out, "%d, \"signal\": null", WEXITSTATUS(slot->child.status));
		else if (slot->child.ended)
			appendPQExpBuffer(&out, "null, \"signal\": %d", WTERMSIG(slot->child.status));
		else
			appendPQExpBufferStr(&out, "null, \"signal\": null");
		appendPQExpBuffer(&out, ", \"seconds\": %.3f, \"error\": ", seconds);
		if (error)
			append_json_string(&out, error);
		else
			appendPQExpBufferStr(&out, "null");
		appendPQExpBufferStr(&out, "}\n");
		put_out(&out);
	}
	else if (!quiet && (verbose || outcome != OUTCOME_ACKED))
	{
		append_safe(&out, message_value(slot, "topic"), false);
		appendPQExpBuffer(&out, " %s: ", message_value(slot, "id"));
		append_styled(&out, styles[outcome], names[outcome]);
		appendPQExpBufferStr(&out, " after ");
		append_age(&out, seconds);
		if (error)
		{
			appendPQExpBufferStr(&out, ", ");
			append_safe(&out, error, false);
		}
		fprintf(stderr, "%s\n", out.data);
	}
	termPQExpBuffer(&out);
}

/* What the end of a command means, and the error that goes with it, or null. */
static Outcome
judge_end(const Slot *slot, char **error)
{
	PQExpBufferData text;
	char	   *said = child_error(&slot->child);
	int			status = slot->child.status;
	int			code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
	Outcome		outcome = OUTCOME_NACKED;

	*error = NULL;
	initPQExpBuffer(&text);
	if (slot->timed_out)
	{
		appendPQExpBufferStr(&text, "timed out after ");
		append_age(&text, timeout_seconds);
	}
	else if (code >= 0)
		appendPQExpBuffer(&text, "exit code %d", code);
	else
		appendPQExpBuffer(&text, "killed by signal %d", WTERMSIG(status));
	if (*said)
		appendPQExpBuffer(&text, ": %s", said);
	free(said);

	if (code == COMMAND_DATAERR)
		outcome = OUTCOME_FAILED;
	for (int i = 0; i < fail_codes.count; i++)
		if (code == atoi(fail_codes.items[i]))
			outcome = OUTCOME_FAILED;
	if (slot->kill_at > 0 && !slot->timed_out)
		outcome = OUTCOME_RELEASED; /* ended by us */
	if (code == 0)
		outcome = OUTCOME_ACKED;
	else if (code == COMMAND_CANNOT_RUN || code == COMMAND_NOT_FOUND)
		outcome = OUTCOME_RELEASED;
	if (outcome == OUTCOME_ACKED)
		termPQExpBuffer(&text);
	else
		*error = text.data;
	return outcome;
}

/* The slot is free again. */
static void
free_slot(Slot *slot)
{
	child_clear(&slot->child);
	PQclear(slot->message);
	slot->message = NULL;
	slot->end_at = slot->kill_at = 0;
	slot->timed_out = slot->lost = false;
	empty_claims = 0;
}

/* Not now: leave the database alone for a while, and for longer each time. */
static void
back_off(void)
{
	retry_at = now_seconds() + retry_after;
	retry_after = Min(30, retry_after * 2);
}

/* Settle the message of a command that has ended. No claim may be under way. */
static void
settle_slot(Slot *slot)
{
	char	   *error;
	Outcome		outcome = judge_end(slot, &error);
	CallResult	answer = CALL_LOST;

	if (!slot->lost)
		answer = settle(outcome, slot->owner, message_value(slot, "id"), message_value(slot, "attempt"),
						error, retry_delay);
	if (answer == CALL_AGAIN)
		back_off();
	else
	{
		if (answer == CALL_FAILED)
			broken = true;
		if (slot->child.ended && WIFEXITED(slot->child.status) &&
			(WEXITSTATUS(slot->child.status) == COMMAND_CANNOT_RUN ||
			 WEXITSTATUS(slot->child.status) == COMMAND_NOT_FOUND))
		{
			pg_log_error("the command cannot be run: %s", error);
			pg_log_error_hint("The message was given back. Exit codes 126 and 127 are the shell's.");
			broken = true;
		}
		report_outcome(slot, answer == CALL_DONE ? outcome : OUTCOME_LOST, error);
		free_slot(slot);
	}
	free(error);
}

/* Start the command for the message that a claim has returned. */
static void
start_slot(Slot *slot, PGresult *message)
{
	slot->message = message;
	slot->started = now_seconds();
	slot->renew_at = slot->started + lease_seconds / 3.0;
	slot->end_at = timeout_seconds > 0 ? slot->started + timeout_seconds : 0;
	child_start(&slot->child, command_text, message, common.json);
	claimed++;
}

/* Have all messages been taken that are to be? */
static bool
wants_no_more(void)
{
	return stopping > 0 || (message_limit > 0 && claimed >= message_limit) || (drain && empty_claims >= 2);
}

/*
 * Send the next claim, if there is a slot for it. It waits in the server, but not
 * beyond the time at which a lease must be renewed.
 */
static void
begin_claim(double now)
{
	ClaimRequest request = {NULL, lease_seconds, namespace, topics, subscription, tenant, drain ? 0 : WAIT_MS};
	int			free_one = -1;

	if (claiming >= 0 || now < retry_at || wants_no_more() || PQstatus(connection) == CONNECTION_BAD)
		return;
	for (int i = 0; i < slot_count; i++)
	{
		if (slots[i].message == NULL)
			free_one = i;
		else
			request.wait_ms = Min(request.wait_ms, (int) Max(0, (slots[i].renew_at - now) * 1000));
	}
	if (free_one < 0)
		return;
	request.owner = slots[free_one].owner;
	if (send_claim(&request))
		claiming = free_one;
}

/* Take the answer to the claim, for which it waits, and start what it brings. */
static void
end_claim(void)
{
	PGresult   *message;
	Slot	   *slot = &slots[claiming];
	CallResult	answer = take_claim(&message);

	claiming = -1;
	canceled = false;
	if (answer == CALL_AGAIN)
		back_off();
	else if (answer == CALL_FAILED)
		broken = true;
	else if (answer == CALL_DONE)
	{
		retry_after = 1;
		empty_claims = message ? 0 : empty_claims + 1;
	}
	if (message == NULL)
		return;
	if (stopping)
	{
		settle(OUTCOME_RELEASED, slot->owner, PQgetvalue(message, 0, 0), NULL, NULL, NULL);
		PQclear(message);
	}
	else
		start_slot(slot, message);
}

/* Renew the leases of all commands that run, if one of them is due. */
static void
renew_slots(double now)
{
	char	   *owners[MAX_SLOTS];
	char	   *ids[MAX_SLOTS];
	char	   *attempts[MAX_SLOTS];
	Slot	   *of[MAX_SLOTS];
	bool		renewed[MAX_SLOTS];
	int			count = 0;
	bool		due = false;

	for (int i = 0; i < slot_count; i++)
	{
		if (slots[i].message == NULL || slots[i].child.ended || slots[i].lost)
			continue;
		due = due || now >= slots[i].renew_at;
		of[count] = &slots[i];
		owners[count] = slots[i].owner;
		ids[count] = (char *) message_value(&slots[i], "id");
		attempts[count++] = (char *) message_value(&slots[i], "attempt");
	}
	if (!due)
		return;
	if (renew(count, owners, ids, attempts, lease_seconds, renewed) == CALL_AGAIN)
		back_off();
	for (int i = 0; i < count; i++)
	{
		of[i]->renew_at = now + (retry_at > now ? retry_after : lease_seconds / 3.0);
		if (renewed[i])
			continue;
		pg_log_warning("the lease of message %s was lost: its command is ended", ids[i]);
		of[i]->lost = true;
		child_signal(&of[i]->child, SIGTERM);
		of[i]->kill_at = now + KILL_AFTER;
	}
}

/* Settle what has ended, and renew what runs. If a claim waits, it is ended first. */
static void
make_calls(double now)
{
	bool		wanted = stopping > 0;

	for (int i = 0; i < slot_count; i++)
		if (slots[i].message && (child_has_ended(&slots[i].child) || (now >= slots[i].renew_at && !slots[i].lost)))
			wanted = true;
	if (!wanted || now < retry_at || PQstatus(connection) == CONNECTION_BAD)
		return;
	if (claiming >= 0)
	{
		if (!canceled)
			cancel_claim();
		canceled = true;
		return;
	}
	for (int i = 0; i < slot_count && now >= retry_at; i++)
		if (slots[i].message && slots[i].child.ended)
			settle_slot(&slots[i]);
	if (now >= retry_at)
		renew_slots(now);
}

/* End commands that take too long, or all of them if the second signal has come. */
static void
end_commands(double now)
{
	if (stopping == 1 && stop_at > 0 && now >= stop_at)
		stopping = 2;
	for (int i = 0; i < slot_count; i++)
	{
		Slot	   *slot = &slots[i];

		if (slot->message == NULL || slot->child.ended)
			continue;
		if (slot->kill_at > 0 && now >= slot->kill_at)
		{
			child_signal(&slot->child, SIGKILL);
			slot->kill_at = now + KILL_AFTER;
		}
		if (slot->kill_at > 0)
			continue;
		slot->timed_out = slot->end_at > 0 && now >= slot->end_at;
		if (slot->timed_out || stopping == 2)
		{
			child_signal(&slot->child, SIGTERM);
			slot->kill_at = now + KILL_AFTER;
		}
	}
}

/* Read which signals have come. */
static void
take_signals(double now)
{
	char		letters[64];
	ssize_t		length;

	while ((length = read(signal_pipe[0], letters, sizeof(letters))) > 0)
	{
		for (int i = 0; i < length; i++)
		{
			if (letters[i] != 's')
				continue;
			stopping = Min(stopping + 1, 2);
			if (stopping == 1 && grace_seconds > 0)
				stop_at = now + grace_seconds;
		}
	}
}

/* In how many milliseconds is there something to do without an event? */
static int
next_timeout(double now)
{
	double		next = now + 60;

	if (stopping == 1 && stop_at > 0)
		next = Min(next, stop_at);
	if (retry_at > now)
		next = Min(next, retry_at);
	for (int i = 0; i < slot_count; i++)
	{
		const Slot *slot = &slots[i];

		if (slot->message == NULL || slot->child.ended)
			continue;
		if (!slot->lost && claiming < 0)
			next = Min(next, Max(slot->renew_at, retry_at));
		if (slot->kill_at > 0)
			next = Min(next, slot->kill_at);
		else if (slot->end_at > 0)
			next = Min(next, slot->end_at);
	}
	return (int) ceil(Max(0, next - now) * 1000);
}

/* Wait for this of a file, too, unless it is closed. */
static void
add_event(struct pollfd *fds, int *count, int fd, short events)
{
	if (fd < 0)
		return;
	fds[*count].fd = fd;
	fds[*count].events = events;
	fds[(*count)++].revents = 0;
}

/* Wait until something happens, and read and write what can be. */
static void
wait_for_events(double now)
{
	struct pollfd fds[2 * MAX_SLOTS + 2];
	int			count = 0;

	add_event(fds, &count, signal_pipe[0], POLLIN);
	if (claiming >= 0)
		add_event(fds, &count, PQsocket(connection), POLLIN);
	for (int i = 0; i < slot_count; i++)
	{
		if (slots[i].message == NULL)
			continue;
		add_event(fds, &count, slots[i].child.input, POLLOUT);
		add_event(fds, &count, slots[i].child.errors, POLLIN);
	}
	if (poll(fds, count, next_timeout(now)) < 0 && errno != EINTR)
		pg_fatal("could not wait: %m");
	take_signals(now_seconds());
	for (int i = 0; i < slot_count; i++)
	{
		if (slots[i].message == NULL)
			continue;
		child_write(&slots[i].child);
		child_read(&slots[i].child);
	}
	if (claiming >= 0 && (!PQconsumeInput(connection) || !PQisBusy(connection)))
		end_claim();
}

/* How many commands run, or wait to be settled. */
static int
busy_slots(void)
{
	int			busy = 0;

	for (int i = 0; i < slot_count; i++)
		busy += slots[i].message != NULL;
	return busy;
}

/* Work until there is an end. Returns the exit code. */
static int
work_loop(void)
{
	for (;;)
	{
		double		now = now_seconds();

		if (PQstatus(connection) == CONNECTION_BAD && now >= retry_at)
		{
			if (reconnect())
				retry_after = 1;
			else if (stopping > 1)
				return EXIT_CONNECTION;
			else
				back_off();
		}
		if (broken && stopping == 0)
			stopping = 1;
		end_commands(now);
		make_calls(now);
		begin_claim(now);
		if (wants_no_more() && claiming < 0 && busy_slots() == 0)
			break;
		wait_for_events(now);
	}
	for (int i = 0; i < slot_count; i++)
		release_all(slots[i].owner);
	return broken ? EXIT_TROUBLE : 0;
}

/* Say what would be done. */
static int
tell_plan(void)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	if (common.json)
	{
		appendPQExpBufferStr(&out, "{\"dry_run\": true, \"topics\": ");
		append_json_string(&out, topics ? topics : "");
		appendPQExpBufferStr(&out, ", \"command\": ");
		append_json_string(&out, command_text);
		appendPQExpBuffer(&out, ", \"parallel\": %d, \"lease_seconds\": %d}\n", slot_count, lease_seconds);
	}
	else
	{
		appendPQExpBufferStr(&out, "would run, for each message of ");
		append_safe(&out, topics ? topics : subscription, false);
		appendPQExpBufferStr(&out, ": ");
		append_safe(&out, command_text, false);
		appendPQExpBuffer(&out, "\n%d at a time, with a lease of %d s\n", slot_count, lease_seconds);
	}
	put_out(&out);
	return 0;
}

/* outbox work */
static int
run_work(int count, char **arguments)
{
	int			code;

	if (command_text == NULL)
		wrong_call("say what to run: --exec");
	if (count == 0 && subscription == NULL)
		wrong_call("say what to work on: a topic, or --subscription");
	for (int i = 0; i < fail_codes.count; i++)
		if (atoi(fail_codes.items[i]) < 1 || atoi(fail_codes.items[i]) > 255)
			wrong_call("invalid value \"%s\" for option --fail-code: must be a number from 1 to 255", fail_codes.items[i]);
	topics = count > 0 ? array_of(count, arguments) : NULL;
	if (dry_run)
		return tell_plan();
	slots = pg_malloc0(slot_count * sizeof(Slot));
	for (int i = 0; i < slot_count; i++)
	{
		PGresult   *result = query("SELECT gen_random_uuid()", NO_MORE);

		slots[i].owner = pg_strdup(PQgetvalue(result, 0, 0));
		PQclear(result);
	}
	setenv("PGCONNECT_TIMEOUT", "10", 0);
	catch_signals();
	code = work_loop();
	if (!common.json && !quiet)
		fprintf(stderr, "%d acked, %d nacked, %d failed, %d released, %d lost\n", counts[OUTCOME_ACKED],
				counts[OUTCOME_NACKED], counts[OUTCOME_FAILED], counts[OUTCOME_RELEASED], counts[OUTCOME_LOST]);
	return code;
}

const Command work_command = {
	.name = "work",
	.arguments = "[TOPIC]... --exec COMMAND",
	.summary = "Run a command for each message",
	.details = "The shell runs COMMAND with the payload as its standard input. Its exit code decides:\n"
	"  0         the message is acknowledged\n"
	"  75        EX_TEMPFAIL: it is tried again after the backoff\n"
	"  65        EX_DATAERR: it has failed for good; so do the codes of --fail-code\n"
	"  126, 127  the command cannot be run: the message is given back, and the worker ends\n"
	"  others    like 75; so is a command that was killed, or took longer than --timeout\n"
	"The end of what it writes to standard error is the error of the attempt. In its environment:\n"
	"OUTBOX_ID, OUTBOX_MESSAGE_ID, OUTBOX_TOPIC, OUTBOX_NAMESPACE, OUTBOX_ATTEMPT, OUTBOX_RETRY_COUNT,\n"
	"OUTBOX_HEADERS (up to 64 kB) and the other columns of a message that are not null, and TRACEPARENT.\n"
	"SIGTERM and SIGINT: no more claims; it ends when the commands have. The second one ends the\n"
	"commands, whose messages are given back.\n"
	"With --json, JSON lines: an object for each message; what commands write goes to standard error.",
	.example = "outbox work mail -j 4 --exec 'sendmail -t'",
	.needs = "worker",
	.options = work_options,
	.most = 1000,
	.run = run_work
};
