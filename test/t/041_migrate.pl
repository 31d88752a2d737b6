# The scripts in migrate/: what becomes of a message of another queue; and that each one
# is in exactly one place at any moment, while old and new workers run, and the script is
# killed at random.
#
# The tables of other queues are laid out as these do it (test/migrate/*.sql). With the
# modules that src/tools/migrate installs in OUTBOX_MIGRATE, they are these queues
# themselves, except River, and messages come and go through their own clients.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run qw(start finish);
use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $top = "$FindBin::RealBin/../..";
my $modules = $ENV{OUTBOX_MIGRATE};
my $messages = 400;    # in each round
my $kills = 6 * scale();
my $json = JSON::PP->new->canonical;

seed();
my $node = new_node('migrate', bare => 1, workers => 0);

# What the old queues are called here, how their workers take some messages, and finish
# one; $1 is how many, or the key.
my %queue = (
	pgmq => {
		with    => [ queue => 'orders', topic => 'mail' ],
		produce => q{INSERT INTO pgmq.q_orders (vt, message) SELECT clock_timestamp(), jsonb_build_object('n', n) FROM unnest($1::int[]) n},
		take    => q{UPDATE pgmq.q_orders SET vt = clock_timestamp() + interval '1 min', read_ct = read_ct + 1
			WHERE msg_id IN (SELECT msg_id FROM pgmq.q_orders WHERE vt <= clock_timestamp() ORDER BY msg_id LIMIT $1::int FOR UPDATE SKIP LOCKED)
			RETURNING msg_id, message ->> 'n'},
		finish => q{DELETE FROM pgmq.q_orders WHERE msg_id = $1},
		left   => q{SELECT (message ->> 'n')::int FROM pgmq.q_orders}
	},
	'pg-boss' => {
		with    => [ queue => 'mail' ],
		produce => q{INSERT INTO pgboss.job (name, data) SELECT 'mail', jsonb_build_object('n', n) FROM unnest($1::int[]) n},
		take    => q{UPDATE pgboss.job SET state = 'active', started_on = now()
			WHERE name = 'mail' AND id IN (SELECT id FROM pgboss.job WHERE name = 'mail' AND state < 'active' AND start_after < now() ORDER BY created_on LIMIT $1::int FOR UPDATE SKIP LOCKED)
			RETURNING id, data ->> 'n'},
		finish => q{UPDATE pgboss.job SET state = 'completed', completed_on = now() WHERE name = 'mail' AND id = $1 AND state = 'active'},
		left   => q{SELECT (data ->> 'n')::int FROM pgboss.job WHERE state < 'completed'}
	},
	'graphile-worker' => {
		with    => [],
		setup   => q{INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('mail') ON CONFLICT DO NOTHING},
		produce => q{INSERT INTO graphile_worker._private_jobs (task_id, payload) SELECT t.id, json_build_object('n', n) FROM unnest($1::int[]) n, graphile_worker._private_tasks t WHERE identifier = 'mail'},
		take    => q{UPDATE graphile_worker._private_jobs SET locked_at = now(), locked_by = 'test', attempts = attempts + 1
			WHERE id IN (SELECT id FROM graphile_worker._private_jobs WHERE is_available AND run_at <= now() ORDER BY priority, run_at LIMIT $1::int FOR UPDATE SKIP LOCKED)
			RETURNING id, payload ->> 'n'},
		finish => q{DELETE FROM graphile_worker._private_jobs WHERE id = $1},
		left   => q{SELECT (payload ->> 'n')::int FROM graphile_worker._private_jobs}
	},
	river => {
		with    => [],
		produce => q{INSERT INTO public.river_job (kind, args) SELECT 'mail', jsonb_build_object('n', n) FROM unnest($1::int[]) n},
		take    => q{UPDATE public.river_job SET state = 'running', attempt = attempt + 1, attempted_at = now()
			WHERE id IN (SELECT id FROM public.river_job WHERE state = 'available' AND queue = 'default' AND scheduled_at <= now() ORDER BY priority, scheduled_at, id LIMIT $1::int FOR UPDATE SKIP LOCKED)
			RETURNING id, args ->> 'n'},
		finish => q{UPDATE public.river_job SET state = 'completed', finalized_at = now() WHERE id = $1 AND state = 'running'},
		left   => q{SELECT (args ->> 'n')::int FROM public.river_job WHERE finalized_at IS NULL}
	},
	table => {
		with    => [ table => 'public.jobs', topic => 'j.kind', due => 'j.run_at' ],
		produce => q{INSERT INTO jobs (kind, payload) SELECT 'mail', jsonb_build_object('n', n) FROM unnest($1::int[]) n},
		take    => q{UPDATE jobs SET status = 'running', attempts = attempts + 1, locked_until = clock_timestamp() + interval '1 min'
			WHERE id IN (SELECT id FROM jobs WHERE status = 'ready' AND run_at <= now() ORDER BY id LIMIT $1::int FOR UPDATE SKIP LOCKED)
			RETURNING id, payload ->> 'n'},
		finish => q{UPDATE jobs SET status = 'done' WHERE id = $1 AND status = 'running'},
		left   => q{SELECT (payload ->> 'n')::int FROM jobs WHERE status IN ('ready', 'running')}
	});

# With their own clients, if they are there: SQL in pgmq, Node in the others.
my %own = !$modules ? () : (
	pgmq => {
		setup   => "SELECT pgmq.create('orders')",
		produce => q{SELECT count(*) FROM pgmq.send_batch('orders', ARRAY(SELECT jsonb_build_object('n', n) FROM unnest($1::int[]) n))},
		take    => q{SELECT msg_id, message ->> 'n' FROM pgmq.read('orders', 60, $1::int)},
		finish  => q{SELECT FROM pgmq.delete('orders', $1::bigint) d(ok) WHERE ok}
	},
	'pg-boss' => { node => 1 },
	# a job is deleted some time after its task has ended
	'graphile-worker' => { node => 1,
		left => q{SELECT n FROM (SELECT (payload ->> 'n')::int FROM graphile_worker._private_jobs) j(n) WHERE n NOT IN (SELECT n FROM done WHERE who = 'old')} });
$queue{$_} = { %{ $queue{$_} }, %{ $own{$_} } } for keys %own;
$queue{'pg-boss-10'} = { %{ $queue{'pg-boss'} }, script => 'pg-boss' } if $modules;

# A program of Node for the old queue of a database.
sub own_client
{
	my ($database, $system, @arguments) = @_;

	return ('env', 'PGHOST=' . $node->host, 'PGPORT=' . $node->port, "PGDATABASE=$database", 'PGUSER=' . (getpwuid $<)[0],
		"$modules/node_modules/.bin/node", "$top/test/migrate/old.mjs", $system, @arguments);
}

# A database with an old queue and outbox.
sub new_database
{
	my ($name, $system) = @_;
	my $queue = $queue{$system};

	$node->safe_psql('postgres', "CREATE DATABASE $name");
	$node->safe_psql($name, 'CREATE EXTENSION outbox');
	if ($queue->{node}) { is(system(own_client($name, $system, 'setup')), 0, "$system makes its tables") }
	elsif ($modules && $system eq 'pgmq')
	{
		my ($install) = grep { !/--.*--/ } glob "$modules/pgmq/share/postgresql/extension/pgmq--*.sql";

		$node->safe_psql($name, slurp_file($install));
	}
	else { $node->safe_psql($name, slurp_file("$top/test/migrate/$system.sql")) }
	$node->safe_psql($name, $queue->{setup}) if $queue->{setup};
	return connect_to($node, db => $name);
}

sub command
{
	my ($database, $script, @variables) = @_;
	$script = $queue{$script}{script} // $script;
	my @command = ('psql', '-X', '-d', $node->connstr($database));

	while (my ($name, $value) = splice @variables, 0, 2) { push @command, '-v', "$name=$value" }
	return (@command, '-P', 'format=unaligned', '-f', "$top/migrate/$script.sql");
}

# Runs a script to its end; what it answers, by column, what else it says, and its exit
# status.
sub move
{
	my ($database, $script, @variables) = @_;
	my ($out, $err) = ('', '');
	my $process = start([ command($database, $script, @variables) ], '>', \$out, '2>', \$err);

	finish $process;
	my ($names, $values) = split /\n/, $out;
	my %answer = (said => $err, status => $? >> 8);
	@answer{ split /\|/, $names // '' } = split /\|/, $values // '';
	return \%answer;
}

sub numbers { my ($answer) = @_; return join ' ', map { $answer->{$_} // '-' } qw(moved key_taken failed remaining) }

# The messages in outbox, by number; times as whether they are in the future.
sub in_outbox
{
	my ($dbh) = @_;
	my %by_number;

	for my $row (@{ $dbh->selectall_arrayref(<<'Q', { Slice => {} }) })
SELECT payload::jsonb ->> 'n' AS n, topic, namespace, payload, coalesce(headers - 'migrated', '{}') AS headers, headers -> 'migrated' AS migrated,
       dedupe_key, stream_id, coalesce(priority, 0) AS priority, due_time, expires_at IS NOT NULL AS expires, message_id
  FROM outbox.queue
Q
	{
		$row->{$_} = $json->decode($row->{$_}) for grep { defined $row->{$_} } 'headers', 'migrated';
		delete $row->{migrated}{created_at} if $row->{migrated};
		$by_number{ $row->{n} } = $row;
	}
	return \%by_number;
}

sub some
{
	my ($row, @names) = @_;
	return { map { $_ => $row->{$_} } @names };
}

# ----------------------------------------------------------------------
# What becomes of a message
# ----------------------------------------------------------------------

sub try_pgmq
{
	my $dbh = new_database('pgmq_rows', 'pgmq');

	$dbh->do(<<'Q');
INSERT INTO pgmq.q_orders (vt, read_ct, message, headers) VALUES
    (now(),                            0, '{"n": 1}', NULL),
    (now() + interval '1 hour',        0, '{"n": 2}', '{"trace": "x"}'),
    (now() - interval '1 second',      3, '{"n": 3}', NULL),
    (now() + interval '1 hour',        1, '{"n": 4}', NULL),
    (now(),                            0, '{"n": 5}', '{"x-pgmq-group": "7"}'),
    (now(),                            0, '{"n": 6}', '{"x-pgmq-group": "7"}'),
    (now(),                            0, '{"n": 7}', '{"x-pgmq-group": "8"}'),
    (now() + interval '1 hour',        1, '{"n": 8}', '{"x-pgmq-group": "8"}'),
    (now(),                            0, '{"n": 9}', '"no object"'),
    (now(),                            0, NULL,       NULL)
Q
	my $answer = move('pgmq_rows', 'pgmq', queue => 'orders', topic => 'order.placed', namespace => 'shop');
	is(numbers($answer), '7 0 0 3', 'pgmq: what may be moved is, what is leased and its group is not');
	is($answer->{said}, '', 'pgmq: without a word');
	my $new = in_outbox($dbh);

	is_deeply(some($new->{1}, qw(topic namespace payload headers migrated due_time stream_id priority)),
		{ topic => 'order.placed', namespace => 'shop', payload => '{"n": 1}', headers => {}, migrated => { from => 'pgmq', queue => 'orders', id => 1, attempts => 0 }, due_time => undef, stream_id => undef, priority => 0 },
		'pgmq: a message');
	is_deeply($new->{2}{headers}, { trace => 'x' }, 'pgmq: headers are kept');
	is($new->{2}{due_time}, value($dbh, "SELECT due_time FROM outbox.queue WHERE due_time BETWEEN now() + interval '59 min' AND now() + interval '1 hour'"), 'pgmq: a delay is kept');
	is($new->{3}{migrated}{attempts}, 3, 'pgmq: attempts are noted');
	is_deeply($new->{9}{headers}, {}, 'pgmq: headers that are no object are left out');
	is(value($dbh, "SELECT count(*) FROM outbox.queue WHERE payload = 'null'"), 1, 'pgmq: a message that is null');
	is($new->{5}{stream_id}, value($dbh, "SELECT md5('order.placed 7')::uuid"), 'pgmq: a group is a stream');
	is(value($dbh, "SELECT string_agg(payload, ',' ORDER BY stream_seq) FROM outbox.queue WHERE stream_id IS NOT NULL"), '{"n": 5},{"n": 6}', 'pgmq: in its order');
	is(value($dbh, "SELECT string_agg(message ->> 'n', ',' ORDER BY msg_id) FROM pgmq.q_orders"), '4,7,8', 'pgmq: what is in work stays, with all of its group');

	# the leases end
	$dbh->do("UPDATE pgmq.q_orders SET vt = now() WHERE read_ct > 0");
	is(numbers(move('pgmq_rows', 'pgmq', queue => 'orders')), '3 0 0 0', 'pgmq: and is moved when its lease has ended');
	is(numbers(move('pgmq_rows', 'pgmq', queue => 'orders')), '0 0 0 0', 'pgmq: once');
	my $wrong = move('pgmq_rows', 'pgmq');
	is($wrong->{status}, 3, 'pgmq: without a queue it is an error');
	like($wrong->{said}, qr/say which queue/, 'pgmq: which says what is missing');
	$wrong = move('pgmq_rows', 'pgmq', queue => 'none');
	like($wrong->{said}, qr/relation "pgmq.q_none" does not exist/, 'pgmq: a queue that does not exist');
}

sub try_pg_boss
{
	my ($system) = @_;
	my $rows = 'rows_' . $system =~ s/\W/_/gr;
	my $dbh = new_database($rows, $system);

	$dbh->do(<<'Q');
INSERT INTO pgboss.job (id, name, data, state, start_after, retry_count, started_on, priority, policy, singleton_key, output, completed_on) VALUES
    ('00000000-0000-4000-8000-000000000001', 'mail', '{"n": 1}', 'created', now(), 0, NULL, 5, 'standard', 'k', NULL, NULL),
    (gen_random_uuid(), 'mail', '{"n": 2}', 'created', now() + interval '1 hour', 0, NULL, -1, 'standard', 'k', NULL, NULL),
    (gen_random_uuid(), 'mail', '{"n": 3}', 'retry', now(), 1, now(), 0, 'standard', NULL, '{"message": "busy"}', NULL),
    (gen_random_uuid(), 'mail', '{"n": 4}', 'active', now(), 0, now(), 0, 'standard', NULL, NULL, NULL),
    (gen_random_uuid(), 'mail', '{"n": 5}', 'completed', now(), 0, now(), 0, 'standard', NULL, NULL, now()),
    (gen_random_uuid(), 'mail', '{"n": 6}', 'failed', now(), 2, now(), 0, 'standard', NULL, NULL, now()),
    (gen_random_uuid(), 'mail', '{"n": 7}', 'cancelled', now(), 0, NULL, 0, 'standard', NULL, NULL, now()),
    (gen_random_uuid(), 'mail', NULL, 'created', now(), 0, NULL, 0, 'standard', NULL, NULL, NULL),
    (gen_random_uuid(), 'once', '{"n": 8}', 'created', now(), 0, NULL, 0, 'short', 'doc 5', NULL, NULL),
    (gen_random_uuid(), 'once', '{"n": 9}', 'retry', now(), 0, now(), 0, 'short', 'doc 5', NULL, NULL),
    (gen_random_uuid(), 'serial', '{"n": 10}', 'created', now(), 0, NULL, 0, 'singleton', 'a', NULL, NULL),
    (gen_random_uuid(), 'serial', '{"n": 11}', 'active', now(), 0, now(), 0, 'singleton', 'a', NULL, NULL),
    (gen_random_uuid(), 'serial', '{"n": 12}', 'created', now(), 0, NULL, 0, 'singleton', 'b', NULL, NULL),
    (gen_random_uuid(), 'serial', '{"n": 13}', 'created', now() + interval '1 hour', 0, NULL, 0, 'singleton', 'b', NULL, NULL)
Q
	is(numbers(move($rows, $system, queue => 'mail')), '4 0 0 1', "$system: what is not active is moved");
	my $new = in_outbox($dbh);
	is_deeply(some($new->{1}, qw(topic payload migrated due_time stream_id priority dedupe_key message_id expires)),
		{ topic => 'mail', payload => '{"n": 1}', migrated => { from => 'pg-boss', queue => 'mail', id => '00000000-0000-4000-8000-000000000001', attempts => 0, key => 'k' }, due_time => undef, stream_id => undef, priority => 2, dedupe_key => undef, message_id => '00000000-0000-4000-8000-000000000001', expires => 1 },
		"$system: a job, with its id");
	ok($new->{2}{due_time}, "$system: a delay is kept");
	is($new->{2}{priority}, -1, "$system: so is a priority");
	is_deeply(some($new->{3}{migrated}, qw(attempts error)), { attempts => 2, error => { message => 'busy' } }, "$system: attempts and error are noted");
	is(value($dbh, "SELECT count(*) FROM outbox.queue WHERE payload = 'null'"), 1, "$system: a job without data");
	is(value($dbh, "SELECT string_agg(data ->> 'n', ',' ORDER BY data ->> 'n') FROM pgboss.job WHERE name = 'mail'"), '4,5,6,7', "$system: what is active or has ended stays");

	is(numbers(move($rows, $system, queue => 'once', topic => 'index')), '2 1 0 0', "$system: two jobs with a key that one may have");
	$new = in_outbox($dbh);
	is_deeply([ sort map { $_ // 'none' } $new->{8}{dedupe_key}, $new->{9}{dedupe_key} ], [ 'doc 5', 'none' ], "$system: none of them is lost");

	is(numbers(move($rows, $system, queue => 'serial')), '1 0 0 3', "$system: of a singleton, nothing beside an active job, and nothing that would stop others");
	is(in_outbox($dbh)->{12}{stream_id}, value($dbh, "SELECT md5('serial b')::uuid"), "$system: its key is a stream");
	is(numbers(move($rows, $system, queue => 'serial')), '0 0 0 3', "$system: again");
	like(move($rows, $system)->{said}, qr/say which queue/, "$system: without a queue it is an error");

	# a job that others wait for
	SKIP: {
		skip 'this version of pg-boss has no flows', 1 if !value($dbh, "SELECT count(*) FROM pg_attribute WHERE attrelid = 'pgboss.job'::regclass AND attname = 'blocking'");
		$dbh->do(q{INSERT INTO pgboss.job (name, data, blocking, blocked, policy) VALUES ('flow', '{"n": 20}', true, false, 'standard'), ('flow', '{"n": 21}', false, true, 'standard')});
		is(numbers(move($rows, $system, queue => 'flow')), '0 0 0 2', "$system: flows stay");
	}
}

sub try_graphile_worker
{
	my $dbh = new_database('graphile_rows', 'graphile-worker');

	$dbh->do(q{INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('ship')});
	$dbh->do(q{INSERT INTO graphile_worker._private_job_queues (queue_name) VALUES ('account 7'), ('account 8')});
	$dbh->do(<<'Q');
INSERT INTO graphile_worker._private_jobs (task_id, job_queue_id, payload, priority, run_at, attempts, max_attempts, last_error, key, locked_at, locked_by, flags)
SELECT t.id, q.id, v.payload::json, v.priority, now() + v.after, v.attempts, v.most, v.error, v.key, now() - v.locked, CASE WHEN v.locked IS NOT NULL THEN 'w' END, v.flags::jsonb
  FROM (VALUES
    ('mail', NULL, '{"n":  1}', 0, interval '0', 0, 25, NULL, 'doc 5', NULL::interval, '{"slow": true}'),
    ('ship', NULL, '{"n":2}', -5, '1 hour', 2, 25, 'busy', NULL, NULL, NULL),
    ('mail', NULL, '{"n":3}', 1, '0', 1, 25, NULL, NULL, '1 min', NULL),
    ('mail', NULL, '{"n":4}', 1, '0', 1, 25, NULL, NULL, '5 hours', NULL),
    ('mail', NULL, '{"n":5}', 0, '0', 25, 25, 'no', NULL, NULL, NULL),
    ('mail', 'account 7', '{"n":7}', 5, '0', 0, 25, NULL, NULL, NULL, NULL),
    ('mail', 'account 7', '{"n":6}', 0, '0', 0, 25, NULL, NULL, NULL, NULL),
    ('mail', 'account 7', '{"n":8}', 0, '1 hour', 0, 25, NULL, NULL, NULL, NULL),
    ('mail', 'account 8', '{"n":9}', 0, '0', 0, 25, NULL, NULL, NULL, NULL),
    ('mail', 'account 8', '{"n":10}', 0, '0', 1, 25, NULL, NULL, '1 min', NULL)) v(task, queue, payload, priority, after, attempts, most, error, key, locked, flags)
  JOIN graphile_worker._private_tasks t ON t.identifier = v.task
  LEFT JOIN graphile_worker._private_job_queues q ON q.queue_name = v.queue
Q
	is(numbers(move('graphile_rows', 'graphile-worker', task => 'ship')), '1 0 0 0', 'graphile-worker: one task');
	is(numbers(move('graphile_rows', 'graphile-worker')), '4 0 0 4', 'graphile-worker: and all others');
	my $new = in_outbox($dbh);
	is_deeply(some($new->{1}, qw(topic payload headers migrated due_time stream_id priority dedupe_key)),
		{ topic => 'mail', payload => '{"n":  1}', headers => {}, migrated => { from => 'graphile-worker', id => $new->{1}{migrated}{id}, attempts => 0, flags => { slow => JSON::PP::true } }, due_time => undef, stream_id => undef, priority => 0, dedupe_key => 'doc 5' },
		'graphile-worker: a job');
	is_deeply(some($new->{2}, qw(topic priority)), { topic => 'ship', priority => 2 }, 'graphile-worker: a low number is urgent');
	is_deeply(some($new->{2}{migrated}, qw(attempts error)), { attempts => 2, error => 'busy' }, 'graphile-worker: attempts and error are noted');
	ok($new->{2}{due_time}, 'graphile-worker: a delay is kept');
	ok($new->{4}, 'graphile-worker: a lock of five hours is none');
	is(value($dbh, "SELECT string_agg(payload, ',' ORDER BY stream_seq) FROM outbox.queue WHERE stream_id = md5('account 7')::uuid"), '{"n":6},{"n":7}', 'graphile-worker: a named queue is a stream, in its order');
	is(value($dbh, "SELECT string_agg(payload ->> 'n', ',' ORDER BY (payload ->> 'n')::int) FROM graphile_worker._private_jobs"), '3,5,8,9,10', 'graphile-worker: what is locked, out of attempts, or would stop others, stays');
}

sub try_river
{
	my $dbh = new_database('river_rows', 'river');

	$dbh->do(<<'Q');
INSERT INTO public.river_job (kind, args, state, attempt, scheduled_at, finalized_at, priority, queue, metadata, tags, errors, unique_key) VALUES
    ('mail', '{"n": 1}', 'available', 0, now(), NULL, 1, 'default', '{"trace": "x"}', '{}', NULL, '\x0aff'),
    ('mail', '{"n": 2}', 'scheduled', 0, now() + interval '1 hour', NULL, 2, 'slow', '{}', '{a,b}', NULL, NULL),
    ('ship', '{"n": 3}', 'retryable', 2, now() + interval '1 min', NULL, 4, 'default', '{}', '{}', ARRAY['{"error": "one"}', '{"error": "two"}']::jsonb[], NULL),
    ('mail', '{"n": 4}', 'running', 1, now(), NULL, 1, 'default', '{}', '{}', NULL, NULL),
    ('mail', '{"n": 5}', 'pending', 0, now(), NULL, 1, 'default', '{}', '{}', NULL, NULL),
    ('mail', '{"n": 6}', 'completed', 1, now(), now(), 1, 'default', '{}', '{}', NULL, NULL),
    ('mail', '{"n": 7}', 'discarded', 25, now(), now(), 1, 'default', '{}', '{}', NULL, NULL),
    ('mail', '{"n": 8}', 'cancelled', 1, now(), now(), 1, 'default', '{}', '{}', NULL, NULL)
Q
	is(numbers(move('river_rows', 'river', kind => 'mail', queue => 'default')), '1 0 0 2', 'River: one kind of one queue');
	is(numbers(move('river_rows', 'river')), '2 0 0 2', 'River: and all others');
	my $new = in_outbox($dbh);
	is_deeply(some($new->{1}, qw(topic payload headers migrated due_time priority dedupe_key)),
		{ topic => 'mail', payload => '{"n": 1}', headers => { trace => 'x' }, migrated => { from => 'River', queue => 'default', id => 1, attempts => 0 }, due_time => undef, priority => 0, dedupe_key => '0aff' },
		'River: a job');
	is_deeply(some($new->{2}, qw(priority migrated)), { priority => -1, migrated => { from => 'River', queue => 'slow', id => 2, attempts => 0, tags => [ 'a', 'b' ] } }, 'River: queue, tags and priority');
	ok($new->{2}{due_time} && $new->{3}{due_time}, 'River: delays are kept');
	is_deeply(some($new->{3}{migrated}, qw(attempts error)), { attempts => 2, error => 'two' }, 'River: attempts and the last error are noted');
	is($new->{3}{priority}, -2, 'River: the lowest priority');
	is(value($dbh, "SELECT string_agg(args ->> 'n', ',' ORDER BY id) FROM public.river_job"), '4,5,6,7,8', 'River: what runs, is pending or has ended stays');
}

sub try_table
{
	my $dbh = new_database('table_rows', 'table');
	my @table = (table => 'public.jobs', topic => "'old.' || j.kind");
	my $other = connect_to($node, db => 'table_rows');

	$dbh->do(<<'Q');
INSERT INTO jobs (kind, payload, status, run_at, locked_until) VALUES
    ('a', '{"n": 1}', 'ready', now(), NULL),
    ('a', '{"n": 2}', 'running', now(), now() + interval '1 hour'),
    ('a', '{"n": 3}', 'running', now(), now() - interval '1 hour'),
    ('a', '{"n": 4}', 'done', now(), NULL),
    ('a', '{"n": 5}', 'ready', now() + interval '1 hour', NULL),
    ('b', '{"n": 6}', 'ready', now(), NULL)
Q
	# an open transaction has one of them
	$other->do('BEGIN');
	$other->do("SELECT FROM jobs WHERE kind = 'b' FOR UPDATE");
	is(numbers(move('table_rows', 'table', @table, due => 'j.run_at', priority => '1', headers => q{'{"a": 1}'})), '3 0 0 2', 'a table: what is not leased or locked');
	$other->do('COMMIT');
	my $new = in_outbox($dbh);
	is_deeply(some($new->{1}, qw(topic payload headers migrated priority)), { topic => 'old.a', payload => '{"n": 1}', headers => { a => 1 }, migrated => undef, priority => 1 }, 'a table: a row');
	ok($new->{5}{due_time} && $new->{3}, 'a table: one that is due later, one whose lease has ended');
	is(numbers(move('table_rows', 'table', @table, mark => "status = 'moved'")), '1 0 0 1', 'a table: rows that are marked, when the lock is gone');
	is_deeply(in_outbox($dbh)->{6}{migrated}, { from => 'public.jobs', id => 6 }, 'a table: where it comes from');
	is(value($dbh, "SELECT string_agg(status, ',' ORDER BY id) FROM jobs"), 'running,done,moved', 'a table: the mark');

	$dbh->do(q{TRUNCATE jobs, outbox.queue, outbox.dedupe});
	$dbh->do(q{INSERT INTO jobs (kind, payload) SELECT CASE WHEN n = 70 THEN repeat('x', 300) ELSE 'x' END, jsonb_build_object('n', n) FROM generate_series(1, 100) n});
	my $answer = move('table_rows', 'table', @table, batch => 30);
	is(numbers($answer), '99 0 1 1', 'one row that outbox does not take keeps back no other');
	like($answer->{said}, qr/^\S+ WARNING:  id \d+ of public.jobs cannot be moved: .*topic.*255/m, 'and the warning says which, and why');
	is($answer->{status}, 0, 'and the script ends well');
	is(value($dbh, "SELECT string_agg(payload::jsonb ->> 'n', ',' ORDER BY id) FROM outbox.queue"), join(',', grep { $_ != 70 } 1 .. 100), 'in their order');

	$dbh->do(q{INSERT INTO jobs (kind, payload) SELECT repeat('x', 300), '{}' FROM generate_series(1, 99)});
	$answer = move('table_rows', 'table', @table);
	is(numbers($answer), '0 0 100 100', 'a hundred of them');
	is(scalar(() = $answer->{said} =~ /WARNING/g), 21, 'and not as many warnings');

	# keys
	$dbh->do(q{TRUNCATE jobs, outbox.queue, outbox.dedupe});
	$dbh->do(q{SELECT outbox.enqueue('old.x', '{"n": 0}', dedupe_key => 'k1')});
	$dbh->do(q{INSERT INTO jobs (kind, payload) SELECT 'x', jsonb_build_object('n', n) FROM generate_series(1, 3) n});
	$other->do('BEGIN');
	$other->do(q{SELECT outbox.enqueue('old.x', '{"n": 9}', dedupe_key => 'k3')});
	is(numbers(move('table_rows', 'table', @table, dedupe_key => q{'k' || (j.payload ->> 'n')}, duplicates => 'drop')), '2 1 0 1', 'a key that an open transaction takes keeps back that row only; a taken one drops the message');
	$other->do('ROLLBACK');
	is(numbers(move('table_rows', 'table', @table, dedupe_key => q{'k' || (j.payload ->> 'n')})), '1 0 0 0', 'and it is moved later');
	is(value($dbh, "SELECT string_agg(dedupe_key || payload, ',' ORDER BY id) FROM outbox.queue"), 'k1{"n": 0},k2{"n": 2},k3{"n": 3}', 'each key once');

	# streams: a row that is locked by another keeps back its group
	$dbh->do(q{TRUNCATE jobs, outbox.queue, outbox.dedupe});
	$dbh->do(q{INSERT INTO jobs (kind, payload) SELECT 'g' || n % 2, jsonb_build_object('n', n) FROM generate_series(1, 6) n});
	$other->do('BEGIN');
	$other->do("SELECT FROM jobs WHERE payload ->> 'n' = '5' FOR UPDATE");
	my @stream = (@table, stream_id => 'md5(j.kind)::uuid', batch => 1);
	is(numbers(move('table_rows', 'table', @stream)), '3 0 0 3', 'a group with a locked row stays, another is moved whole');
	$other->do('COMMIT');
	is(numbers(move('table_rows', 'table', @stream)), '3 0 0 0', 'until the lock is gone');

	# mistakes
	my %wrong = (
		'say which table' => [],
		'say which topic' => [ table => 'public.jobs' ],
		'column "number" of public.jobs does not exist' => [ @table, key => 'number' ],
		'relation "jobs" does not exist' => [ table => 'jobs', topic => "'x'" ],
		'batch must be between 1 and 10000' => [ @table, batch => 0 ],
		'duplicates must be send or drop' => [ @table, duplicates => 'keep' ],
		'column "nothing" does not exist' => [ @table, payload => 'nothing' ],
		'a row that is marked is still live' => [ @table, mark => 'attempts = 7' ]);
	$dbh->do(q{INSERT INTO jobs (kind, payload) VALUES ('x', '{"n": 1}')});
	for my $error (sort keys %wrong)
	{
		my $answer = move('table_rows', 'table', @{ $wrong{$error} });

		like($answer->{said}, qr/ERROR:  .*\Q$error\E/, "an error: $error");
		is($answer->{status}, 3, 'and the exit status says so');
	}
	is(value($dbh, "SELECT status || attempts FROM jobs"), 'ready0', 'and nothing was changed');
	like(move('table_rows', 'table', @table, priority => '9')->{said}, qr/WARNING: .*priority must be between -2 and 2/, 'a bad value is of its row');

	# a role with the rights for that, and no others
	$dbh->do(q{CREATE ROLE mover LOGIN; SELECT outbox.grant_producer('mover'); GRANT SELECT, DELETE ON jobs TO mover});
	local $ENV{PGUSER} = 'mover';
	like(move('table_rows', 'table', @table)->{said}, qr/ERROR:  permission denied for table jobs/, 'to lock rows takes UPDATE');
	$dbh->do(q{GRANT UPDATE ON jobs TO mover});
	is(numbers(move('table_rows', 'table', @table)), '1 0 0 0', 'the rights that are needed');
}

# ----------------------------------------------------------------------
# Killed at random
# ----------------------------------------------------------------------

# Code with a connection, which is made again when it is lost.
sub insist
{
	my ($database, $code) = @_;
	my $dbh;

	while (1)
	{
		last if eval { $dbh //= connect_to($node, db => $database); $code->($dbh); 1 };
		my $error = $@;
		die $error if $dbh && $dbh->ping;
		eval { $dbh->disconnect } if $dbh;
		undef $dbh;
		sleep 0.05;
	}
	return;
}

# A worker of the old queue: takes some, and finishes each together with its effect.
sub old_worker
{
	my ($database, $queue) = @_;
	my @taken;

	insist($database, sub {
		my ($dbh) = @_;
		my ($take, $finish) = map { s/\$1(?:::int)?/?/r } @$queue{qw(take finish)};

		while (1)
		{
			@taken = map { [@$_] } $dbh->selectall_array($take, undef, 1 + int rand 20) if !@taken;
			sleep 0.05 if !@taken;
			while (@taken)
			{
				my ($key, $n) = @{ $taken[0] };

				$dbh->begin_work;
				my $mine = $dbh->do($finish, undef, $key);
				$dbh->do('INSERT INTO done VALUES (?, ?)', undef, $n, 'old') if $mine == 1;
				$dbh->commit;
				shift @taken;
			}
		}
	});
}

sub new_worker
{
	my ($database, $number) = @_;
	my $me = owner($number);

	insist($database, sub {
		my ($dbh) = @_;

		# what was leased when the connection broke
		$dbh->do('SELECT outbox.release(?)', undef, $me);
		while (1)
		{
			for my $row ($dbh->selectall_array("SELECT id, payload::jsonb ->> 'n' FROM outbox.claim(?, 300, ?, topics => '{mail}', wait_ms => 50)", undef, $me, 1 + int rand 20))
			{
				$dbh->begin_work;
				$dbh->do('SELECT outbox.ack_one(?, ?, strict => true)', undef, $me, $row->[0]);
				$dbh->do('INSERT INTO done VALUES (?, ?)', undef, $row->[1], 'new');
				$dbh->commit;
			}
		}
	});
}

# The numbers that are not in exactly one place.
sub misplaced
{
	my ($dbh, $queue) = @_;

	return map { "@$_" } $dbh->selectall_array(<<"Q");
SELECT coalesce(m.n, p.n) AS number, string_agg(coalesce(p.place, 'nowhere'), ' and ') FROM made m
  FULL JOIN (SELECT n, 'old' AS place FROM ($queue->{left}) o(n)
             UNION ALL SELECT (payload::jsonb ->> 'n')::int, 'new' FROM outbox.queue
             UNION ALL SELECT (payload::jsonb ->> 'n')::int, 'dead' FROM outbox.dead
             UNION ALL SELECT n, 'done' FROM done) p ON p.n = m.n
 GROUP BY 1 HAVING count(*) <> 1 OR count(m.n) <> 1 OR count(p.n) <> 1 LIMIT 5
Q
}

sub try_kills
{
	my ($system) = @_;
	my $queue = $queue{$system};
	my $name = 'kills_' . $system =~ s/\W/_/gr;
	my $dbh = new_database($name, $system);
	my @pids;

	$dbh->do('CREATE TABLE made (n int PRIMARY KEY)');
	$dbh->do('CREATE TABLE done (n int, who text)');
	my $produce = sub {
		my ($session, @numbers) = @_;
		my $list = '{' . join(',', @numbers) . '}';

		$session->begin_work;
		$session->do($queue->{produce} =~ s/\$1/?/r, undef, $list);
		$session->do('INSERT INTO made SELECT unnest(?::int[])', undef, $list);
		$session->commit;
	};
	push @pids, client(sub { $queue->{node} ? exec own_client($name, $system, 'work') : old_worker($name, $queue) }) for 1 .. 2;
	push @pids, map { my $number = $_; client(sub { new_worker($name, $number) }) } 1, 2;

	# an old producer that goes on all the time, two at a time
	my $producer = client(sub {
		my $next = 1_000_001;

		exec own_client($name, $system, 'produce', $next, $next + $messages - 1, 2) if $queue->{node};
		insist($name, sub {
			my ($session) = @_;
			while ($next <= 1_000_000 + $messages)
			{
				# it may have been committed when the connection broke
				$produce->($session, $next, $next + 1) if !value($session, 'SELECT count(*) FROM made WHERE n = ?', $next);
				$next += 2;
				sleep 0.002;
			}
		});
	});

	my ($interrupted, $made, @wrong) = (0, 0);
	for my $round (1 .. $kills)
	{
		if ($queue->{node}) { system(own_client($name, $system, 'produce', $made + 1, $made + $messages, $messages)) == 0 or die "could not produce" }
		else { $produce->($dbh, $made + 1 .. $made + $messages) }
		$made += $messages;
		my $process = start([ command($name, $system, @{ $queue->{with} }, batch => 1 + int rand 5) ], '>', \my $out, '2>', \my $err);
		my ($backend, $until) = (undef, time + 5);
		while (!$backend && time < $until)
		{
			$backend = value($dbh, q{SELECT pid FROM pg_stat_activity WHERE query LIKE '%CALL pg_temp.outbox_move(%' AND state = 'active' AND pid <> pg_backend_pid()});
		}
		sleep rand 0.1;
		# the clients of other queues need not survive a crash of the server
		if ($round == $kills && !$queue->{node}) { kill_backend($node, $backend) if $backend }
		elsif (rand() < 0.8) { $dbh->do('SELECT pg_terminate_backend(?)', undef, $backend) if $backend }
		else { $process->kill_kill }
		finish $process;
		$interrupted++ if $?;
		poll(sub { $dbh = connect_to($node, db => $name); 1 });
		push @wrong, map { "round $round: $_" } misplaced($dbh, $queue);
	}
	cmp_ok($interrupted, '>', $kills / 3, "$system: the script was killed while it moved messages");
	is_deeply(\@wrong, [], "$system: each message is in one place, whenever the script was killed");
	waitpid $producer, 0;
	my ($moved, $answer) = 0;
	ok(poll(sub {
		$answer = move($name, $system, @{ $queue->{with} });
		$moved += $answer->{moved} // 0;
		($answer->{remaining} // 1) == 0 && !count_of($dbh, 'outbox.queue');
	}), "$system: all are moved or done in the end") or diag(numbers($answer), $answer->{said});
	is_deeply([ misplaced($dbh, $queue) ], [], "$system: each once");
	is(count_of($dbh, 'made'), $made + $messages, "$system: and there were as many as were made");
	note(join ', ', map { "@$_" } $dbh->selectall_array('SELECT who, count(*) FROM done GROUP BY who'));
	cmp_ok(count_of($dbh, "done WHERE who = 'new'"), '>', 0, "$system: new workers did some of them");
	kill 'KILL', @pids;
	waitpid $_, 0 for @pids;
	$dbh->disconnect;
}

# ----------------------------------------------------------------------
# One at a time, in order
# ----------------------------------------------------------------------

# Jobs of named queues, while old workers, new workers and the script run.
sub try_order
{
	my $name = 'one_at_a_time';
	my $dbh = new_database($name, 'graphile-worker');
	my ($groups, $each) = (4, 30 * scale());

	$dbh->do('CREATE TABLE working (grp text PRIMARY KEY)');
	$dbh->do('CREATE TABLE done (at bigserial, grp text, n int, who text)');
	$dbh->do('CREATE TABLE broken (grp text, who text)');
	$dbh->do("INSERT INTO graphile_worker._private_job_queues (queue_name) SELECT 'g' || g FROM generate_series(1, $groups) g");
	$dbh->do(<<"Q");
INSERT INTO graphile_worker._private_jobs (task_id, job_queue_id, payload)
SELECT t.id, q.id, json_build_object('g', queue_name, 'n', n)
  FROM generate_series(1, $each) n, graphile_worker._private_tasks t, graphile_worker._private_job_queues q
 WHERE identifier = 'mail' AND queue_name ~ '^g'
Q
	# work on a message, so that others would see it
	my $work = sub {
		my ($session, $group, $who) = @_;

		$session->do('INSERT INTO broken VALUES (?, ?)', undef, $group, $who) if $session->do('INSERT INTO working VALUES (?) ON CONFLICT DO NOTHING', undef, $group) != 1;
		sleep rand($who eq 'old' ? 0.04 : 0.002);
	};
	my $finish = sub {
		my ($session, $group, $n, $who) = @_;

		$session->do('DELETE FROM working WHERE grp = ?', undef, $group);
		$session->do('INSERT INTO done (grp, n, who) VALUES (?, ?, ?)', undef, $group, $n, $who);
	};
	my @pids = map {
		client(sub {
			exec own_client($name, 'graphile-worker', 'order') if $queue{'graphile-worker'}{node};
			my $session = connect_to($node, db => $name);

			while (1)
			{
				my ($id, $queue, $group, $n) = $session->selectrow_array(<<'Q');
WITH j AS (SELECT id, job_queue_id FROM graphile_worker._private_jobs
            WHERE is_available AND run_at <= now()
              AND job_queue_id IN (SELECT id FROM graphile_worker._private_job_queues WHERE is_available FOR UPDATE SKIP LOCKED)
            ORDER BY priority, run_at, id LIMIT 1 FOR UPDATE SKIP LOCKED),
     q AS (UPDATE graphile_worker._private_job_queues q SET locked_at = now() FROM j WHERE q.id = j.job_queue_id)
UPDATE graphile_worker._private_jobs o SET locked_at = now(), attempts = attempts + 1 FROM j WHERE o.id = j.id
RETURNING o.id, o.job_queue_id, payload ->> 'g', payload ->> 'n'
Q
				if (!defined $id) { sleep 0.01; next }
				$work->($session, $group, 'old');
				$session->begin_work;
				$finish->($session, $group, $n, 'old');
				$session->do('DELETE FROM graphile_worker._private_jobs WHERE id = ?', undef, $id);
				$session->do('UPDATE graphile_worker._private_job_queues SET locked_at = NULL WHERE id = ?', undef, $queue);
				$session->commit;
			}
		})
	} 1, 2;
	push @pids, map {
		my $me = owner($_);

		client(sub {
			my $session = connect_to($node, db => $name);

			while (1)
			{
				for my $row ($session->selectall_array("SELECT id, payload::jsonb ->> 'g', payload::jsonb ->> 'n' FROM outbox.claim(?, 300, 3, wait_ms => 50)", undef, $me))
				{
					$work->($session, $row->[1], 'new');
					$session->begin_work;
					$finish->($session, @$row[ 1, 2 ], 'new');
					$session->do('SELECT outbox.ack_one(?, ?, strict => true)', undef, $me, $row->[0]);
					$session->commit;
				}
			}
		})
	} 1, 2;
	ok(poll(sub { count_of($dbh, 'working') }), 'old workers are at work');
	my $last;
	ok(poll(sub {
		$last = move($name, 'graphile-worker', batch => 7);
		($last->{remaining} // 1) == 0 && count_of($dbh, 'done') == $groups * $each;
	}), 'jobs of named queues are all done in the end') or diag(numbers($last), $last->{said});
	is_deeply([ map { "@$_" } $dbh->selectall_array('SELECT * FROM broken') ], [], 'never two of a queue at a time, in the old or the new');
	is(value($dbh, 'SELECT count(*) FROM (SELECT n, lag(n, 1, 0) OVER (PARTITION BY grp ORDER BY at) AS before FROM done) d WHERE n <> before + 1'), 0, 'and in their order');
	is(value($dbh, 'SELECT count(DISTINCT who) FROM done'), 2, 'of old and of new workers');
	kill 'KILL', @pids;
	waitpid $_, 0 for @pids;
}

if ($modules)
{
	my $page = slurp_file("$top/docs/migrating.md");
	my %uses = %{ $json->decode(slurp_file("$top/test/migrate/package.json"))->{dependencies} };
	my ($pgmq) = map { /pgmq--([\d.]+)\.sql$/ } grep { !/--.*--/ } glob "$modules/pgmq/share/postgresql/extension/pgmq--*.sql";

	like($page, qr/^\| pgmq \|[^|]*\| \Q$pgmq\E \|$/m, 'the page has the version of pgmq');
	like($page, qr/^\| pg-boss \|[^|]*\| \Q@{[ $uses{'pg-boss-10'} =~ s{.*@}{}r ]}, $uses{'pg-boss'}\E \|$/m, 'of pg-boss');
	like($page, qr/^\| graphile-worker \|[^|]*\| \Q$uses{'graphile-worker'}\E \|$/m, 'of graphile-worker');
}
try_order();
try_pgmq();
try_pg_boss($_) for grep { /^pg-boss/ } sort keys %queue;
try_graphile_worker();
try_river();
try_table();
try_kills($_) for sort keys %queue;

done_testing();
