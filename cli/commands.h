/*
 * commands.h
 *		The commands, each in the file that has its name or its family's
 */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "command.h"

/* status.c */
extern const Command status_command;
extern const Command doctor_command;

/* top.c */
extern const Command top_command;

/* lists.c */
extern const Command topics_command;
extern const Command streams_command;
extern const Command joins_command;
extern const Command instances_command;
extern const Command workers_command;
extern const Command handlers_command;
extern const Command subscriptions_command;
extern const Command timers_command;
extern const Command jobs_command;

/* peek.c, tail.c */
extern const Command peek_command;
extern const Command tail_command;

/* show.c */
extern const Command show_command;

/* send.c */
extern const Command enqueue_command;
extern const Command publish_command;

/* work.c */
extern const Command work_command;

/* dead.c */
extern const Command dead_list_command;
extern const Command dead_show_command;
extern const Command dead_redrive_command;
extern const Command dead_purge_command;

/* pause.c */
extern const Command pause_command;
extern const Command resume_command;
extern const Command replay_command;

/* bench.c */
extern const Command bench_command;

#endif							/* CLI_COMMANDS_H */
