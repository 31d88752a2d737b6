/*
 * show.h
 *		Showing one message
 */
#ifndef CLI_SHOW_H
#define CLI_SHOW_H

extern int	show_message(const char *id);

#endif							/* CLI_SHOW_H */
