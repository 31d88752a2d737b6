/*
 * command.c
 *		Options of commands: reading them, and the help made of them
 */
#include "postgres_fe.h"

#include <getopt.h>
#include <limits.h>

#include "common/logging.h"
#include "pqexpbuffer.h"

#include "command.h"
#include "terminal.h"

#define MAX_OPTIONS 40

/* where the values go; first those that getopt_long itself reports */
#define VALUE_HELP 256
#define VALUE_FIRST 300

CommonOptions common;
bool		dry_run = false;
bool		assume_yes = false;
const Command *current_command = NULL;

const Option common_options[] = {
	{"host", 'h', OPTION_TEXT, &common.host, "HOSTNAME", "server's host, or directory of its socket"},
	{"port", 'p', OPTION_TEXT, &common.port, "PORT", "server's port"},
	{"username", 'U', OPTION_TEXT, &common.user, "USERNAME", "role to connect as"},
	{"dbname", 'd', OPTION_TEXT, &common.database, "DBNAME", "database, or a connection string or URI"},
	{"no-password", 'w', OPTION_FLAG, &common.no_password, NULL, "never ask for a password"},
	{"password", 'W', OPTION_FLAG, &common.password, NULL, "ask for a password before connecting"},
	{"json", 0, OPTION_FLAG, &common.json, NULL, "write JSON"},
	{"color", 0, OPTION_TEXT, &common.color, "WHEN", "auto, always or never"},
	{NULL}
};

/* End the program because it was called in a wrong way. */
void
wrong_call(const char *format,...)
{
	va_list		arguments;
	char		text[1024];

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	pg_log_error("%s", text);
	if (current_command)
		pg_log_error_hint("Try \"outbox %s --help\".", current_command->name);
	else
		pg_log_error_hint("Try \"outbox --help\".");
	exit(EXIT_TROUBLE);
}

/* A span of time in seconds, which may be given in other units. */
double
parse_span(const char *option, const char *text)
{
	static const struct
	{
		const char *name;
		double		seconds;
	}			units[] = {
		{"", 1}, {"ms", 0.001}, {"s", 1}, {"m", 60}, {"min", 60}, {"h", 3600}, {"d", 86400}
	};
	char	   *end;
	double		number = strtod(text, &end);

	if (end != text && number >= 0 && number <= 3153600000.0)
	{
		while (*end == ' ')
			end++;
		for (int i = 0; i < (int) lengthof(units); i++)
			if (strcmp(end, units[i].name) == 0)
				return number * units[i].seconds;
	}
	wrong_call("invalid value \"%s\" for option --%s: must be a time such as 30, 500ms, 5min, 2h or 7d",
			   text, option);
}

/* Give an option its value. */
static void
set_option(const Option *option, char *text)
{
	switch (option->kind)
	{
		case OPTION_FLAG:
			*(bool *) option->target = true;
			break;
		case OPTION_TEXT:
			*(char **) option->target = text;
			break;
		case OPTION_LIST:
			{
				TextList   *list = option->target;

				list->items = pg_realloc(list->items, (list->count + 1) * sizeof(char *));
				list->items[list->count++] = text;
				break;
			}
		case OPTION_NUMBER:
			{
				char	   *end;
				long		number;

				errno = 0;
				number = strtol(text, &end, 10);
				if (errno != 0 || end == text || *end != '\0' ||
					number < option->low || number > option->high)
					wrong_call("invalid value \"%s\" for option --%s: must be a number from %d to %d",
							   text, option->name, option->low, option->high);
				*(int *) option->target = (int) number;
				break;
			}
		case OPTION_SPAN:
			*(double *) option->target = parse_span(option->name, text);
			break;
	}
}

/*
 * Read options: those that every command has, and these, which may be null. Returns
 * the index of the first argument that is none; all arguments have been moved behind
 * the options then. With only_first it stops at the first argument, which is the
 * name of the command. Returns -1 if help is wanted instead.
 */
int
parse_options(int argc, char **argv, const Option *options, bool only_first)
{
	struct option table[MAX_OPTIONS + 2] = {0};
	const Option *all[MAX_OPTIONS];
	PQExpBufferData letters;
	int			count = 0;
	int			value;

	for (const Option *o = common_options; o->name; o++)
		all[count++] = o;
	for (const Option *o = options; o && o->name; o++)
		all[count++] = o;
	Assert(count <= MAX_OPTIONS);
	initPQExpBuffer(&letters);
	appendPQExpBufferStr(&letters, only_first ? "+?" : "?");
	for (int i = 0; i < count; i++)
	{
		table[i].name = all[i]->name;
		table[i].has_arg = all[i]->kind != OPTION_FLAG;
		table[i].val = VALUE_FIRST + i;
		if (all[i]->letter)
			appendPQExpBuffer(&letters, "%c%s", all[i]->letter,
							  all[i]->kind != OPTION_FLAG ? ":" : "");
	}
	table[count].name = "help";
	table[count].val = VALUE_HELP;

	while ((value = getopt_long(argc, argv, letters.data, table, NULL)) != -1)
	{
		int			which = value - VALUE_FIRST;

		if (value == VALUE_HELP || (value == '?' && optind <= argc && strcmp(argv[optind - 1], "-?") == 0))
		{
			termPQExpBuffer(&letters);
			return -1;
		}
		if (value == '?')
		{
			/* getopt_long has said what is wrong */
			if (current_command)
				pg_log_error_hint("Try \"outbox %s --help\".", current_command->name);
			else
				pg_log_error_hint("Try \"outbox --help\".");
			exit(EXIT_TROUBLE);
		}
		for (int i = 0; which < 0 && i < count; i++)
			if (all[i]->letter == value)
				which = i;
		set_option(all[which], optarg);
	}
	termPQExpBuffer(&letters);
	return optind;
}

/* Append the lines that explain options. */
static void
append_options(PQExpBuffer out, const Option *options)
{
	for (const Option *o = options; o && o->name; o++)
	{
		PQExpBufferData left;

		initPQExpBuffer(&left);
		if (o->letter)
			appendPQExpBuffer(&left, "  -%c, ", o->letter);
		else
			appendPQExpBufferStr(&left, "      ");
		appendPQExpBuffer(&left, "--%s%s%s", o->name, o->argument ? "=" : "",
						  o->argument ? o->argument : "");
		appendPQExpBuffer(out, "%-30s %s\n", left.data, o->help);
		termPQExpBuffer(&left);
	}
}

/* Print the help of a command. */
void
print_help(const Command *command)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	appendPQExpBuffer(&out, "%s.\n\nUsage:\n  outbox %s [OPTION]...%s%s\n",
					  command->summary, command->name,
					  *command->arguments ? " " : "", command->arguments);
	if (command->details)
		appendPQExpBuffer(&out, "\n%s\n", command->details);
	if (command->options)
	{
		appendPQExpBufferStr(&out, "\nOptions:\n");
		append_options(&out, command->options);
	}
	appendPQExpBufferStr(&out, "\nConnection and output:\n");
	append_options(&out, common_options);
	appendPQExpBufferStr(&out, "  -?, --help                   show this help\n");
	if (command->example)
		appendPQExpBuffer(&out, "\nExample:\n  %s\n", command->example);
	if (command->needs)
		appendPQExpBuffer(&out, "\nThe role needs what outbox.grant_%s() grants.\n", command->needs);
	put_out(&out);
	termPQExpBuffer(&out);
}

/*
 * Print a command for programs, which complete command lines: its name and summary,
 * and its options with their letters, arguments and help, with tabs between.
 */
void
describe_command(const Command *command)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	appendPQExpBuffer(&out, "%s\t%s\t%s\n", command->name, command->arguments, command->summary);
	for (int i = 0; i < 2; i++)
		for (const Option *o = i == 0 ? command->options : common_options; o && o->name; o++)
			appendPQExpBuffer(&out, "\t--%s\t%s%c\t%s\t%s\n", o->name, o->letter ? "-" : " ",
							  o->letter ? o->letter : ' ', o->argument ? o->argument : "", o->help);
	put_out(&out);
	termPQExpBuffer(&out);
}
