/*
 * loading.h
 *	  Whether a dump is being loaded, or rows come by replication.
 */
#ifndef OUTBOX_LOADING_H
#define OUTBOX_LOADING_H

extern void outbox_loading_note(void);
extern bool outbox_loading_elsewhere(void);
extern bool outbox_loading_by_replication(void);

#endif							/* OUTBOX_LOADING_H */
