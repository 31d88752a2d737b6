/*
 * topic_pattern.h
 *	  Patterns of topics, by which subscriptions select.
 */
#ifndef OUTBOX_TOPIC_PATTERN_H
#define OUTBOX_TOPIC_PATTERN_H

#include "postgres.h"

extern bool outbox_topic_pattern_is_valid(const text *pattern);
extern bool outbox_topic_pattern_has_wildcard(const text *pattern);
extern bool outbox_topic_pattern_matches(const text *pattern,
										 const text *topic);

#endif							/* OUTBOX_TOPIC_PATTERN_H */
