/*
 * child.h
 *		The command that works on a message
 */
#ifndef CLI_CHILD_H
#define CLI_CHILD_H

#include <sys/types.h>

#include "libpq-fe.h"

#define ERROR_SIZE 1000

typedef struct Child
{
	pid_t		pid;			/* 0 if there is none */
	int			input;			/* its standard input, -1 once all is written */
	int			errors;			/* its standard error, -1 at its end */
	const char *payload;		/* what is left to write of it */
	size_t		left;
	bool		ended;
	int			status;			/* as waitpid has it, if it has ended */
	char		error[ERROR_SIZE + 1];	/* the end of what it wrote there */
	int			error_length;
} Child;

extern void child_start(Child *child, const char *command, PGresult *message, bool output_apart);
extern void child_write(Child *child);
extern void child_read(Child *child);
extern bool child_has_ended(Child *child);
extern void child_signal(const Child *child, int signal_number);
extern void child_clear(Child *child);
extern char *child_error(const Child *child);
extern double now_seconds(void);

#endif							/* CLI_CHILD_H */
