/*
 * command.h
 *		What a command is, and its options
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

/* Exit codes, besides 0. */
#define EXIT_TROUBLE 1			/* an error, or a wrong call */
#define EXIT_CONNECTION 2		/* no connection, or it was lost */
#define EXIT_FOUND 3			/* doctor: there is something to do */
#define EXIT_NOTHING 4			/* there is no such message */

typedef struct TextList
{
	int			count;
	char	  **items;
} TextList;

typedef enum OptionKind
{
	OPTION_FLAG,				/* bool */
	OPTION_TEXT,				/* char * */
	OPTION_LIST,				/* TextList: the option can be repeated */
	OPTION_NUMBER,				/* int, from low to high */
	OPTION_SPAN					/* double, in seconds: 30, 500ms, 5min, 2h, 7d */
} OptionKind;

typedef struct Option
{
	const char *name;
	char		letter;			/* 0 if it has none */
	OptionKind	kind;
	void	   *target;
	const char *argument;		/* what the help calls it; null for a flag */
	const char *help;
	int			low;			/* of a number */
	int			high;
} Option;

typedef struct Command
{
	const char *name;			/* one word or two */
	const char *arguments;		/* for the help, as in "TOPIC [ID...]" */
	const char *summary;
	const char *details;		/* may be null */
	const char *example;
	const char *needs;			/* monitor, worker, producer or admin */
	const Option *options;		/* ends with one without name; may be null */
	int			least;			/* how many arguments it takes */
	int			most;
	int			(*run) (int count, char **arguments);
} Command;

/* Options that every command has. */
typedef struct CommonOptions
{
	char	   *host;
	char	   *port;
	char	   *user;
	char	   *database;
	char	   *color;
	bool		no_password;
	bool		password;
	bool		json;
} CommonOptions;

/* Those of commands that change something. */
#define CHANGE_OPTIONS \
	{"dry-run", 0, OPTION_FLAG, &dry_run, NULL, "only say what would be done"}, \
	{"yes", 'y', OPTION_FLAG, &assume_yes, NULL, "do it without asking"}

extern CommonOptions common;
extern bool dry_run;
extern bool assume_yes;
extern const Command *current_command;

extern const Option common_options[];

extern int	parse_options(int argc, char **argv, const Option *options, bool only_first);
extern void print_help(const Command *command);
extern void describe_command(const Command *command);
extern double parse_span(const char *option, const char *text);
extern _Noreturn void wrong_call(const char *format,...) pg_attribute_printf(1, 2);

#endif							/* CLI_COMMAND_H */
