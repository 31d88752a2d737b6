/*
 * child.c
 *		The command that works on a message
 *
 * It is run by the shell, in a process group of its own, so that Ctrl-C on a terminal
 * reaches this program and not the command. The payload is its standard input, and
 * what else is known of the message is in its environment. What it writes to standard
 * error is passed on, and the end of it kept as the error of the attempt.
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/logging.h"
#include "mb/pg_wchar.h"
#include "pqexpbuffer.h"

#include "child.h"

extern char **environ;

/* A string of the environment must not be longer than 128 kB on Linux. */
#define LONGEST_VALUE (64 * 1024)

/* Time that passes evenly, whatever becomes of the clock. */
double
now_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/*
 * In the new process: set the environment. Each column of the message becomes a
 * variable OUTBOX_..., and those of an outer command are not inherited.
 */
static void
set_environment(PGresult *message)
{
	for (char **entry = environ; *entry;)
	{
		char		name[64];
		size_t		length = strcspn(*entry, "=");

		if (strncmp(*entry, "OUTBOX_", 7) != 0 || length >= sizeof(name))
		{
			entry++;
			continue;
		}
		strlcpy(name, *entry, length + 1);
		unsetenv(name);			/* the next one takes its place */
	}
	for (int i = 0; i < PQnfields(message); i++)
	{
		char		name[64] = "OUTBOX_";
		const char *column = PQfname(message, i);

		if (PQgetisnull(message, 0, i) || strcmp(column, "payload") == 0 ||
			PQgetlength(message, 0, i) > LONGEST_VALUE)
			continue;
		if (strcmp(column, "traceparent") == 0)
			name[0] = '\0';
		for (int at = (int) strlen(name); *column && at < (int) sizeof(name) - 1; at++)
		{
			name[at] = pg_toupper((unsigned char) *column++);
			name[at + 1] = '\0';
		}
		setenv(name, PQgetvalue(message, 0, i), 1);
	}
}

/* In the new process: become the command. */
static void
become_command(const char *command, PGresult *message, int input, int errors, bool output_apart)
{
	sigset_t	none;

	setpgid(0, 0);
	sigemptyset(&none);
	signal(SIGPIPE, SIG_DFL);	/* handlers go by themselves, what is ignored
								 * does not */
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (output_apart)
		dup2(STDERR_FILENO, STDOUT_FILENO);
	if (dup2(input, STDIN_FILENO) >= 0 && dup2(errors, STDERR_FILENO) >= 0)
	{
		set_environment(message);
		execl("/bin/sh", "sh", "-c", command, (char *) NULL);
	}
	_exit(127);
}

/*
 * Start the command for the message in the first row. The result must stay until the
 * child is cleared. With output_apart what the command writes to standard output goes
 * to standard error. Ends the program if there can be no process.
 */
void
child_start(Child *child, const char *command, PGresult *message, bool output_apart)
{
	int			input[2];
	int			errors[2];
	int			column = PQfnumber(message, "payload");

	fflush(NULL);
	if (pipe2(input, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0)
		pg_fatal("could not create a pipe: %m");
	memset(child, 0, sizeof(*child));
	child->pid = fork();
	if (child->pid < 0)
		pg_fatal("could not create a process: %m");
	if (child->pid == 0)
		become_command(command, message, input[0], errors[1], output_apart);
	setpgid(child->pid, child->pid);	/* whichever of the two is first */
	close(input[0]);
	close(errors[1]);
	fcntl(input[1], F_SETFL, O_NONBLOCK);
	fcntl(errors[0], F_SETFL, O_NONBLOCK);
	child->input = input[1];
	child->errors = errors[0];
	child->payload = PQgetvalue(message, 0, column);
	child->left = PQgetlength(message, 0, column);
	child_write(child);
}

/* Write what its standard input takes now. A command need not read it. */
void
child_write(Child *child)
{
	while (child->left > 0)
	{
		ssize_t		written = write(child->input, child->payload, child->left);

		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0 && errno == EAGAIN)
			return;
		if (written < 0)
			break;
		child->payload += written;
		child->left -= written;
	}
	if (child->input >= 0)
		close(child->input);
	child->input = -1;
	child->left = 0;
}

/* Read what it has written to standard error, and pass it on. */
void
child_read(Child *child)
{
	char		part[4096];

	while (child->errors >= 0)
	{
		ssize_t		length = read(child->errors, part, sizeof(part));

		if (length < 0 && errno == EINTR)
			continue;
		if (length < 0 && errno == EAGAIN)
			return;
		if (length <= 0)
		{
			close(child->errors);
			child->errors = -1;
			return;
		}
		fwrite(part, 1, length, stderr);
		if (length >= ERROR_SIZE)
		{
			memcpy(child->error, part + length - ERROR_SIZE, ERROR_SIZE);
			child->error_length = ERROR_SIZE;
			continue;
		}
		if (child->error_length + length > ERROR_SIZE)
		{
			int			kept = ERROR_SIZE - (int) length;

			memmove(child->error, child->error + child->error_length - kept, kept);
			child->error_length = kept;
		}
		memcpy(child->error + child->error_length, part, length);
		child->error_length += (int) length;
	}
}

/* Has it ended? Its own children may live on, and nothing waits for them. */
bool
child_has_ended(Child *child)
{
	if (child->pid > 0 && !child->ended && waitpid(child->pid, &child->status, WNOHANG) == child->pid)
	{
		child->ended = true;
		child_read(child);
	}
	return child->ended;
}

/* Send a signal to it and to what it has started. */
void
child_signal(const Child *child, int signal_number)
{
	if (child->pid > 0 && !child->ended)
		kill(-child->pid, signal_number);
}

/* Forget it. */
void
child_clear(Child *child)
{
	if (child->pid > 0)
	{
		if (child->input >= 0)
			close(child->input);
		if (child->errors >= 0)
			close(child->errors);
	}
	child->pid = 0;
	child->ended = false;
}

/*
 * The end of what it wrote to standard error, as text that a database takes: UTF-8,
 * without bytes 0, and not begun in the middle of a character. The caller frees it.
 */
char *
child_error(const Child *child)
{
	PQExpBufferData out;
	const char *at = child->error;
	const char *end = child->error + child->error_length;

	while (end > at && isspace((unsigned char) end[-1]))
		end--;
	while (at < end && ((unsigned char) *at & 0xc0) == 0x80)
		at++;
	initPQExpBuffer(&out);
	while (at < end)
	{
		int			bytes = *at == '\0' ? -1 : pg_encoding_verifymbchar(PG_UTF8, at, (int) (end - at));

		if (bytes < 0)
			appendPQExpBufferChar(&out, '?');
		else
			appendBinaryPQExpBuffer(&out, at, bytes);
		at += Max(bytes, 1);
	}
	return out.data;
}
