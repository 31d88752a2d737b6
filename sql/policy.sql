-- policies of topics
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
SET outbox.backoff_jitter = off;

SELECT outbox.configure_topic('tp', max_attempts => 3, backoff_base => '10 s', backoff_max => '15 s');
SELECT outbox.configure_topic('tp', backoff_jitter => true, retention => '1 day', dead_retention => '-1 s');
SELECT outbox.configure_topic('tp', 'other', backoff_max => '1 h');
SELECT * FROM outbox.topics WHERE topic = 'tp' ORDER BY namespace;
SELECT outbox.configure_topic('tp', backoff_jitter => false);
SELECT outbox.enqueue('tp', 'p') IS NOT NULL AS ok;
SELECT id AS i FROM outbox.claim(:a, topics => '{tp}') \gset
SELECT outbox.nack(:a, ARRAY[:i]);
SELECT next_attempt_at - updated_at AS delay FROM outbox.messages WHERE id = :i;
UPDATE outbox.queue SET next_attempt_at = now() WHERE id = :i;
SELECT attempts FROM outbox.claim(:a, topics => '{tp}');
SELECT outbox.nack(:a, ARRAY[:i]);
SELECT next_attempt_at - updated_at AS delay FROM outbox.messages WHERE id = :i;
UPDATE outbox.queue SET next_attempt_at = now() WHERE id = :i;
SELECT attempts FROM outbox.claim(:a, topics => '{tp}');
SELECT outbox.nack(:a, ARRAY[:i]);
SELECT status, attempts, retry_count, failure_reason FROM outbox.messages WHERE id = :i;

-- paused: from the next claim on, in every session; leases go on
SELECT outbox.enqueue_many('tp.pause', ARRAY['1', '2', '3']) IS NOT NULL AS ok;
SELECT outbox.enqueue('tp.on', '1', namespace => 'tpns') IS NOT NULL AS ok;
SELECT outbox.enqueue('tp.pause', '4', namespace => 'tpns') IS NOT NULL AS ok;
SELECT id AS i FROM outbox.claim(:a, batch_size => 1, topics => '{tp.pause}', namespace => 'default') \gset
SELECT outbox.pause_topic('tp.pause');
SELECT outbox.pause_topic('tp.pause', 'tpns');
SELECT count(*) FROM outbox.claim(:a, topics => '{tp.pause}');
SELECT topic FROM outbox.claim(:a, namespace => 'tpns');
SELECT outbox.ack(:a, ARRAY[:i]);
SELECT topic, ready, paused FROM outbox.topic_stats WHERE topic = 'tp.pause' ORDER BY namespace;
SELECT outbox.resume_topic('tp.pause', 'tpns');
SELECT payload FROM outbox.claim(:a, topics => '{tp.pause}');
BEGIN;
SELECT outbox.resume_topic('tp.pause');
SELECT payload FROM outbox.claim(:a, topics => '{tp.pause}', batch_size => 1);
ROLLBACK;
SELECT count(*) FROM outbox.claim(:a, topics => '{tp.pause}');
-- plain SQL works as well
UPDATE outbox.topics SET paused = false WHERE topic = 'tp.pause';
SELECT payload FROM outbox.claim(:a, topics => '{tp.pause}');
SELECT outbox.resume_topic('tp.never.paused');
SELECT outbox.reset_topic('tp'), outbox.reset_topic('tp'), outbox.reset_topic('tp', 'other');

-- what was received, timers and runs of jobs have policies of their own
SELECT outbox.receive('dddddddd-0000-4000-8000-000000000001', 'tp.kind', 'r') AS received;
SELECT outbox.schedule_timer('tp.kind', 't', now()) IS NOT NULL AS scheduled;
INSERT INTO outbox.jobs (job_name, topic, cron_schedule, payload) VALUES ('tp.job', 'tp.kind', '0 0 1 1 *', 'j');
SELECT outbox.trigger_job('tp.job') IS NOT NULL AS run;
SELECT outbox.enqueue('tp.kind', 'm') IS NOT NULL AS enqueued;
SELECT outbox.pause_topic('tp.kind', kind => k) FROM unnest('{inbox,timer,job_run}'::text[]) k;
SELECT payload FROM outbox.claim(:a, topics => '{tp.kind}');
SELECT count(*) FROM outbox.claim_inbox(:a, handler_names => '{tp.kind}');
SELECT count(*) FROM outbox.claim_timers(:a);
SELECT count(*) FROM outbox.claim_job_runs(:a);
SELECT outbox.dispatch_due();
SELECT outbox.pause_topic('tp.kind');
SELECT outbox.resume_topic('tp.kind', kind => k) FROM unnest('{inbox,timer,job_run}'::text[]) k;
SELECT outbox.configure_topic('tp.kind', kind => 'inbox', max_attempts => 2, backoff_base => '0', retention => '1 hour');
SELECT outbox.configure_topic('tp.kind', kind => 'timer', backoff_base => '7 s', dead_retention => '0');
SELECT outbox.configure_topic('tp.kind', kind => 'job_run', max_attempts => 1);
SELECT kind, paused, max_attempts, backoff_base, retention, dead_retention FROM outbox.topics WHERE topic = 'tp.kind' ORDER BY kind COLLATE "C";
-- the inbox: two attempts, no delay; what is done is kept
SELECT id AS i, attempts FROM outbox.claim_inbox(:a, handler_names => '{tp.kind}') \gset
SELECT outbox.nack_inbox(:a, ARRAY[:i]);
SELECT id AS i, attempts FROM outbox.claim_inbox(:a, handler_names => '{tp.kind}') \gset
SELECT outbox.nack_inbox(:a, ARRAY[:i]);
SELECT status, attempts, failure_reason FROM outbox.inbox WHERE id = :i;
SELECT outbox.requeue_inbox(ARRAY[:i]);
SELECT count(*) FROM outbox.claim_inbox(:a, handler_names => '{tp.kind}');
SELECT outbox.ack_inbox(:a, ARRAY[:i]);
SELECT keep, handler_name, payload FROM outbox.inbox_done WHERE id = :i;
-- timers: seven seconds of delay, and the dead are not kept
SELECT id AS i FROM outbox.claim_timers(:a) \gset
SELECT outbox.abandon_timers(:a, ARRAY[:i]);
SELECT next_attempt_at - updated_at AS delay FROM outbox.timer_queue WHERE id = :i;
UPDATE outbox.timer_queue SET next_attempt_at = now() WHERE id = :i;
SELECT count(*) FROM outbox.claim_timers(:a);
SELECT outbox.fail_timers(:a, ARRAY[:i]);
SELECT count(*) FROM outbox.timers WHERE id = :i;
-- runs: one attempt
SELECT id AS i FROM outbox.claim_job_runs(:a) \gset
SELECT outbox.abandon_job_runs(:a, ARRAY[:i]);
SELECT status, failure_reason FROM outbox.job_runs WHERE id = :i;
-- messages of the same name have theirs
SELECT count(*) FROM outbox.claim(:a, topics => '{tp.kind}');
SELECT outbox.reset_topic('tp.kind', setting => 'max_attempts', kind => 'inbox'), outbox.reset_topic('tp.kind', setting => 'max_attempts', kind => 'timer');
SELECT outbox.reset_topic('tp.kind', kind => k) FROM unnest('{inbox,timer,job_run,message}'::text[]) k;
SELECT outbox.pause_topic('tp.unknown', kind => k) FROM unnest('{inbox,timer,job_run,message}'::text[]) k;
DELETE FROM outbox.jobs;
TRUNCATE outbox.inbox_done, outbox.message_deduplication, outbox.run_dead;
DELETE FROM outbox.topics WHERE topic = 'tp.unknown';

\set VERBOSITY sqlstate
SELECT outbox.configure_topic(NULL);
SELECT outbox.configure_topic('');
SELECT outbox.configure_topic(repeat('x', 256));
SELECT outbox.configure_topic('t', NULL);
SELECT outbox.configure_topic('t', '');
SELECT outbox.configure_topic('t', max_attempts => 0);
SELECT outbox.configure_topic('t', backoff_base => '-1 s');
SELECT outbox.configure_topic('t', backoff_max => '-1 day');
SELECT outbox.pause_topic(NULL);
SELECT outbox.pause_topic('');
SELECT outbox.resume_topic('t', NULL);
SELECT outbox.reset_topic(NULL);
SELECT outbox.pause_topic('t', kind => 'queue');
SELECT outbox.resume_topic('t', kind => NULL);
SELECT outbox.configure_topic('t', kind => 'Message');
SELECT outbox.configure_topic('t', kind => 'timer', check_dedupe_tenant => true);
SELECT outbox.reset_topic('t', kind => '');
SELECT outbox.reset_topic('t', setting => 'kind');
INSERT INTO outbox.topics (kind, topic) VALUES ('x', 't');
\set VERBOSITY default
SELECT outbox.configure_topic('');
SELECT count(*) FROM outbox.topics WHERE topic = 't';
DELETE FROM outbox.topics;

-- the policies in effect, in readable form
SET client_min_messages = warning;
SELECT outbox.configure_topic('tp.kept', retention => '-1', dead_retention => '0', max_attempts => 3);
SELECT outbox.configure_topic('tp.paused', kind => 'inbox', backoff_base => '7 s', retention => '30 days');
SELECT outbox.pause_topic('tp.paused', kind => 'inbox');
RESET client_min_messages;
SELECT kind, topic, namespace, paused, max_attempts, backoff_base, retention, dead_retention FROM outbox.policies;
SET outbox.dead_retention = '90d';
SELECT topic, dead_retention FROM outbox.policies ORDER BY topic;
RESET outbox.dead_retention;
DELETE FROM outbox.topics;

-- settings are checked
SHOW outbox.lease_seconds;
SHOW outbox.retention;
SHOW outbox.dead_retention;
SHOW outbox.backoff_base;
SHOW outbox.backoff_max;
SHOW outbox.poll_interval;
SELECT name, boot_val, unit, context, min_val, max_val FROM pg_settings
 WHERE name LIKE 'outbox.%' AND context NOT IN ('postmaster', 'sighup') ORDER BY name COLLATE "C";
\set VERBOSITY sqlstate
SET outbox.lease_seconds = 0;
\set VERBOSITY default
SET outbox.batch_size = 10001;
SET outbox.log_level = 'loud';
SET outbox.join_wait_topic = '';
SET outbox.no_such_setting = 1;
SET client_min_messages = log;
SET outbox.log_level = log;
SELECT outbox.enqueue('tp.log', 'secret', 'corr') IS NOT NULL AS ok;
SELECT count(*) FROM outbox.claim(:a, topics => '{tp.log}');
