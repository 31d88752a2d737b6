/*
 * main.c
 *		outbox, the command line of the extension
 *
 * Finds the command, reads its options, connects, and runs it. Everything that a
 * command does is done by the extension's public functions and views, with the rights
 * of the role that is connected.
 */
#include "postgres_fe.h"

#include <getopt.h>
#include <locale.h>
#include <signal.h>

#include "common/logging.h"
#include "pqexpbuffer.h"

#include "commands.h"
#include "database.h"
#include "terminal.h"
#include "text.h"

/* in the order in which the help names them */
static const struct
{
	const char *family;
	const Command *commands[10];
}			families[] =

{
	{"Look", {&status_command, &doctor_command, &top_command, &topics_command, &peek_command,
	&tail_command, &show_command}},
	{"Send and work", {&enqueue_command, &publish_command, &work_command}},
	{"Step in", {&dead_list_command, &dead_show_command, &dead_redrive_command,
	&dead_purge_command, &pause_command, &resume_command, &replay_command}},
	{"More to look at", {&workers_command, &handlers_command, &streams_command, &joins_command,
	&instances_command, &subscriptions_command, &timers_command, &jobs_command}},
	{"Measure", {&bench_command}}
};

/* Print what the program can do. */
static void
print_overview(void)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	appendPQExpBufferStr(&out, "outbox looks into queues of the extension outbox, and works with them.\n\n"
						 "Usage:\n  outbox COMMAND [OPTION]... [ARGUMENT]...\n");
	for (int i = 0; i < (int) lengthof(families); i++)
	{
		appendPQExpBuffer(&out, "\n%s%s%s\n", style_on(STYLE_HEADER), families[i].family,
						  style_off(STYLE_HEADER));
		for (const Command *const *c = families[i].commands; *c; c++)
			appendPQExpBuffer(&out, "  %-14s %s\n", (*c)->name, (*c)->summary);
	}
	appendPQExpBufferStr(&out, "\nIt connects as psql does: by -h, -p, -U and -d, the environment (PGHOST,\n"
						 "PGSERVICE ...), or a connection string or URI given to -d.\n"
						 "\"outbox COMMAND --help\" says more of a command; the manual is outbox(1).\n"
						 "\nExit codes: 0 done; 1 failed, or called in a wrong way; 2 no connection;\n"
						 "3 doctor has found something; 4 there is no such message.\n");
	put_out(&out);
	termPQExpBuffer(&out);
}

/*
 * Find a command by its first word, or its first two. Sets how many words its name
 * has; null if there is none.
 */
static const Command *
find_command(int count, char **words, int *length)
{
	for (int i = 0; i < (int) lengthof(families); i++)
	{
		for (const Command *const *c = families[i].commands; *c; c++)
		{
			size_t		first = strcspn((*c)->name, " ");

			if (strncmp((*c)->name, words[0], first) != 0 || words[0][first] != '\0')
				continue;
			*length = 1;
			if ((*c)->name[first] == '\0')
				return *c;
			*length = 2;
			if (count > 1 && strcmp((*c)->name + first + 1, words[1]) == 0)
				return *c;
			/* its family alone is its first command */
			if (count == 1 || words[1][0] == '-')
			{
				*length = 1;
				return *c;
			}
		}
	}
	return NULL;
}

/* For completions: all commands, as programs read them. */
static void
describe_all(void)
{
	for (int i = 0; i < (int) lengthof(families); i++)
		for (const Command *const *c = families[i].commands; *c; c++)
			describe_command(*c);
}

/* Find the command, and run it. */
int
main(int argc, char **argv)
{
	const Command *command;
	int			first;
	int			length = 1;
	int			count;

	setlocale(LC_CTYPE, "");
	pg_logging_init(argv[0]);
	text_init();
	signal(SIGPIPE, SIG_IGN);

	if (argc > 1 && strcmp(argv[1], "--describe") == 0)
	{
		describe_all();
		return 0;
	}
	if (argc > 1 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0))
	{
		printf("outbox %s\n", OUTBOX_VERSION);
		return 0;
	}
	if (argc == 1 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0 ||
		(argc == 2 && strcmp(argv[1], "help") == 0))
	{
		terminal_init(NULL);
		print_overview();
		return 0;
	}

	first = parse_options(argc, argv, NULL, true);
	if (first < 0)
	{
		terminal_init(common.color);
		print_overview();
		return 0;
	}
	if (first >= argc)
		wrong_call("no command given");
	if (strcmp(argv[first], "help") == 0 && first + 1 < argc)
	{
		terminal_init(NULL);
		command = find_command(argc - first - 1, argv + first + 1, &length);
		if (command == NULL)
			wrong_call("there is no command \"%s\"", argv[first + 1]);
		print_help(command);
		return 0;
	}
	command = find_command(argc - first, argv + first, &length);
	if (command == NULL)
		wrong_call("there is no command \"%s\"", argv[first]);
	current_command = command;

	/* the last word of the name stands where getopt_long expects the program */
	argv[first + length - 1] = argv[0];
	argc -= first + length - 1;
	argv += first + length - 1;
	optind = 0;
	first = parse_options(argc, argv, command->options, false);
	if (first < 0)
	{
		terminal_init(common.color);
		print_help(command);
		return 0;
	}
	if (!terminal_init(common.color))
		wrong_call("invalid value \"%s\" for option --color: must be auto, always or never", common.color);
	pg_logging_init(argv[0]);
	count = argc - first;
	if (count < command->least)
		wrong_call("too few arguments: %s", command->arguments);
	if (count > command->most)
		wrong_call("too many arguments, the first of them is \"%s\"", argv[first + command->most]);

	connect_database();
	return command->run(count, argv + first);
}
