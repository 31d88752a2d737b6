# A dump is restored, in every form, into a server whose workers serve the new
# database at once: without an error, and nothing is lost. Then joins continue, what
# was due is sent once, and a copy that must be inactive is inactive.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => "outbox.discovery_interval = 2\nmax_worker_processes = 20");
my $dir = PostgreSQL::Test::Utils::tempdir();
my @server = ('-h', $node->host, '-p', $node->port);
my ($anna, $berta) = (owner(1), owner(2));

# --- a database with something of everything; its workers keep away from it

$node->safe_psql('postgres', 'CREATE DATABASE source');
$node->safe_psql('postgres', 'ALTER DATABASE source SET outbox.workers = off');
$node->safe_psql('postgres', 'CREATE ROLE app LOGIN');
$node->safe_psql('source', 'CREATE EXTENSION outbox');
my $dbh = connect_to($node, db => 'source');
$dbh->do($_) for split /;\n/, <<"Q";
SELECT outbox.grant_worker('app'), outbox.grant_producer('app');
GRANT CREATE ON DATABASE source TO app;
SET ROLE app;
CREATE SCHEMA app;
CREATE FUNCTION app.handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM outbox.enqueue(''handled'', m.payload); END';
SELECT outbox.register_handler('handled.here', 'app.handle(outbox.message)');
RESET ROLE;
CREATE TABLE app.rows AS SELECT i FROM generate_series(1, 1000) i;
SELECT outbox.configure_topic('short', max_attempts => 3, retention => '30 days'), outbox.pause_topic('paused');
SELECT outbox._make_partition(k, now() - d * interval '1 day', '1 day') FROM unnest('{-2,-1,2592000}'::int[]) k, generate_series(0, 20, 10) d;
SELECT outbox.enqueue(t, t || i, dedupe_key => t || i) FROM unnest('{done,short,dead,open,paused}'::text[]) t, generate_series(1, 20) i;
SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.claim('$anna', topics => '{done,short}', batch_size => 100);
UPDATE outbox.archive SET processed_at = processed_at - interval '20 days' WHERE topic = 'done' AND id % 2 = 0;
SELECT outbox.fail('$anna', array_agg(id), 'no', 4) FROM outbox.claim('$anna', topics => '{dead}');
SELECT count(*) FROM outbox.claim('$anna', topics => '{open}', batch_size => 5, lease_seconds => 80000);
SELECT outbox.enqueue('stream', 's' || i, stream_id => '$berta') FROM generate_series(1, 10) i;
SELECT count(*) FROM outbox.claim('$anna', topics => '{stream}', batch_size => 3, lease_seconds => 80000);
SELECT outbox.enqueue('later', 'l', due_time => now() + interval '1 day');
SELECT outbox.receive(md5(i::text)::uuid, 'inbox', 'i' || i) FROM generate_series(1, 20) i;
SELECT outbox.fail_inbox('$anna', array_agg(id), 'no') FROM outbox.claim_inbox('$anna', batch_size => 5);
SELECT count(*) FROM outbox.claim_inbox('$anna', batch_size => 5, lease_seconds => 80000);
SELECT outbox.schedule_timer('timer', 't' || i, now() + interval '1 day') FROM generate_series(1, 10) i;
INSERT INTO outbox.jobs (job_name, topic, cron_schedule) VALUES ('daily', 'job', '0 0 * * *');
SELECT outbox.trigger_job('daily') FROM generate_series(1, 3);
SELECT outbox.fail_job_runs('$anna', array_agg(id)) FROM outbox.claim_job_runs('$anna');
SELECT outbox.heartbeat('$anna', 'service', 'host', 1);
SELECT outbox.start_receptor('$anna', 'receptor'), outbox.start_perspective('$anna', 'perspective');
SET outbox.join_retention = -1;
SELECT count(outbox.enqueue_step(j, 'step', g || '.' || s)) FROM (SELECT outbox.start_join('g' || i, 2) AS j, i AS g FROM generate_series(1, 300) i) x, generate_series(1, 2) s;
SELECT count(outbox.enqueue_join_wait(join_id, false, 'next', grouping_key)) FROM outbox.joins;
SELECT sum(outbox.process_join_waits()) FROM generate_series(1, 8);
SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.claim('$anna', topics => '{step}', batch_size => 300) WHERE payload LIKE '%.1';
SELECT outbox.release('$anna', array_agg(id)) FROM outbox.leases WHERE topic = 'step';
UPDATE outbox.joins SET created_at = created_at - interval '60 days', last_updated_at = last_updated_at - interval '60 days';
SET outbox.publish_retention = '300d';
SELECT outbox.subscribe('quiet', '{pub.*}'), outbox.subscribe('eu', '{pub.a}', filter => '{"eu": true}'), outbox.subscribe('gone', '{pub.a}'), outbox.subscribe('hs', '{hp.*}');
SELECT outbox.configure_subscription('quiet', max_attempts => 4), outbox.pause_subscription('eu');
SELECT outbox._make_publication_partition((now() - d * interval '1 day')::date) FROM generate_series(0, 3) d;
SELECT outbox.publish('pub.a', 'a' || i, headers => '{"eu": true}') FROM generate_series(1, 10) i;
SELECT outbox.publish('pub.big', repeat('b', 5000), dedupe_key => 'pk'), outbox.publish('pub.id', 'x', message_id => '$anna');
SELECT outbox.publish('pub.s', 's' || i, stream_id => '$berta') FROM generate_series(1, 5) i;
SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.claim('$anna', topics => '{pub.a}', batch_size => 3, subscription => 'quiet');
SELECT outbox.fail('$anna', array_agg(id)) FROM outbox.claim('$anna', topics => '{pub.a}', batch_size => 2, subscription => 'quiet');
SELECT outbox.nack('$anna', array_agg(id), 'later', delay => '1 day') FROM outbox.claim('$anna', topics => '{pub.a}', batch_size => 2, subscription => 'quiet');
SELECT count(*) FROM outbox.claim('$anna', topics => '{pub.a,pub.s}', batch_size => 2, lease_seconds => 80000, subscription => 'quiet');
SELECT count(*) FROM outbox.claim('$anna', batch_size => 1, lease_seconds => 80000, subscription => 'gone');
SELECT outbox.unsubscribe('gone');
SET ROLE app;
SELECT outbox.register_handler('hp.*', 'app.handle(outbox.message)', subscription => 'hs');
RESET ROLE;
SELECT outbox.subscribe('m' || i, '{x}', namespace => 'many') FROM generate_series(1, 12) i;
SELECT outbox.publish('x', 'x' || i, namespace => 'many', stream_id => CASE WHEN i > 1 THEN '$anna'::uuid END) FROM generate_series(1, 3) i;
UPDATE outbox.publications SET published_at = published_at - interval '2 days', day = day - 2 WHERE day > '-infinity';
UPDATE outbox.queue SET published_at = published_at - interval '2 days' WHERE published_at IS NOT NULL;
UPDATE outbox.dead SET published_at = published_at - interval '2 days' WHERE published_at IS NOT NULL;
UPDATE outbox.archive SET published_at = published_at - interval '2 days' WHERE published_at IS NOT NULL;
UPDATE outbox.expansions SET published_at = published_at - interval '2 days';
SELECT outbox.subscribe('late', '{x}', namespace => 'many', start_at => '-infinity');
SELECT outbox.replay('m1', now() - interval '10 days', namespace => 'many');
Q
# what is due at once, and would be sent in the source if it had a worker
$dbh->do("SELECT outbox.schedule_timer('overdue', 't' || i, now()) FROM generate_series(1, 5) i");
$dbh->do("SELECT outbox.enqueue('handled.here', 'h' || i) FROM generate_series(1, 5) i");
$dbh->do("SELECT outbox.publish('hp.a', 'p' || i) FROM generate_series(1, 5) i");
$dbh->do("SELECT outbox.start_join('over', 1)");
$dbh->do("SELECT outbox.cancel_join(join_id) FROM outbox.joins WHERE grouping_key = 'over'");
$dbh->do("SELECT outbox.enqueue_join_wait(join_id, false, 'x', 'x', 'cancelled', 'c') FROM outbox.joins WHERE grouping_key = 'over'");

# all rows of a table, but of what is due
my %content = (
	queue => "topic NOT IN ('overdue', 'handled', 'handled.here', 'hp.a', 'cancelled') AND namespace <> 'many' AND NOT (topic = 'join.wait' AND next_attempt_at <> 'infinity')",
	archive => "topic NOT IN ('join.wait', 'handled.here', 'hp.a')",
	dead => 'true', dedupe => 'true', topics => 'true', handlers => 'true',
	inbox_queue => 'true', inbox_dead => 'true', message_deduplication => 'true',
	timer_queue => "topic <> 'overdue'", timer_dead => 'true',
	run_queue => 'true', run_dead => 'true', jobs => 'true', instances => 'true',
	receptor_processing => 'true', perspective_checkpoints => 'true',
	joins => 'true', join_members => 'true', subscribers => 'true', publications => 'true',
	join_waits => "join_id NOT IN (SELECT join_id FROM outbox.joins WHERE grouping_key = 'over')");

sub content_of
{
	my $dbh = shift;

	# a handler is bound to the role and function of its new home, and a publication is
	# a transaction's that is in progress; a subscription ends its start
	my %columns = (
		handlers => 'namespace, topic, subscription, handler, role, batch_size, lease_seconds, timeout_ms, owner',
		publications => 'day, seq, published_at, published_id, kept, given, namespace, topic, dedupe_key, subscribers, headers, payload',
		subscribers => "id, namespace, subscription, topics, filter, created_at, state = 2 AS gone, drops");
	return { map { $_ => value($dbh, "SELECT count(*) || ' ' || coalesce(md5(string_agg(r::text, '|' ORDER BY r::text)), '') FROM "
			. "(SELECT " . ($columns{$_} // '*') . " FROM outbox.$_) r WHERE $content{$_}") } keys %content };
}

my $before = content_of($dbh);
is($before->{join_waits} =~ /^(\d+)/ && $1, 300, 'waits');
is(count_of($dbh, "outbox.joins WHERE completed_steps = 1 AND status = 0") > 100, 1, 'joins have a step that is done');
my $steps_left = count_of($dbh, "outbox.queue WHERE topic = 'step'");
my $partitions = count_of($dbh, "pg_inherits WHERE inhparent = 'outbox.archive'::regclass");

sub run_ok
{
	my ($name, @command) = @_;
	my ($stdout, $stderr) = run_command(\@command);

	is($stderr, '', "$name: no error");
	return;
}

sub psql_file { return ('psql', @server, '-qX', '-o', '/dev/null', '-v', 'ON_ERROR_STOP=1', @_) }

my %dump = (c => "$dir/dump.c", p => "$dir/dump.p", d => "$dir/dump.d");
run_ok("pg_dump -F$_", 'pg_dump', @server, "-F$_", '-f', $dump{$_}, 'source') for sort keys %dump;
# the tables belong to the extension, so it must be named beside the schema
run_ok('pg_dump of two schemas', 'pg_dump', @server, '-n', 'outbox', '-n', 'app', '-e', 'outbox', '-f', "$dir/schemas", 'source');
run_ok('pg_dump --data-only', 'pg_dump', @server, '-a', '-f', "$dir/data", 'source');

# What was published: each subscription goes on where it stood, what was to come has
# come, once, and so have a start and a replay.
sub published
{
	my ($name, $new) = @_;

	ok(poll(sub { count_of($new, 'outbox.expansions') + count_of($new, 'outbox.replays') == 0 }), "$name: publications are delivered, replays done")
	  or diag(join "\n", map { join ' | ', map { $_ // '-' } @$_ } $new->selectall_array('SELECT component, status, detail FROM outbox.status() WHERE component ~ \'start|replay|publ\''));
	is(value($new, "SELECT string_agg(n || ' x ' || subscriptions, ', ' ORDER BY n) FROM (SELECT n, count(*) AS subscriptions FROM (SELECT subscription, count(*) AS n FROM outbox.messages WHERE namespace = 'many' GROUP BY 1) s GROUP BY n) g"),
		'3 x 12, 6 x 1', "$name: each of them has got each, one of them twice");
	is(count_of($new, "(SELECT FROM outbox.messages WHERE namespace = 'many' AND subscription <> 'm1' GROUP BY subscription, published_id HAVING count(*) > 1) twice"), 0, "$name: and none twice");
	is(value($new, "SELECT string_agg(payload, ',') FROM outbox.claim('$berta', namespace => 'many', subscription => 'm7') WHERE stream_id IS NOT NULL"), 'x2,x3', "$name: a stream is in order");
	is(value($new, "SELECT string_agg(payload, ',' ORDER BY id) FROM outbox.claim('$berta', topics => '{pub.a}', subscription => 'quiet')"), 'a10', "$name: what was not claimed");
	is(value($new, "SELECT string_agg(length(payload)::text, ',') FROM outbox.claim('$berta', topics => '{pub.big}', subscription => 'quiet')"), '5000', "$name: a payload that is shared");
	is(count_of($new, "outbox.claim('$berta', topics => '{pub.s}', subscription => 'quiet')"), 5, "$name: a stream");
	is(value($new, "SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.leases WHERE owner_token = '$anna' AND topic = 'pub.a' AND subscription = 'quiet'"), 2, "$name: its leases stand");
	is(count_of($new, "outbox.claim('$berta', subscription => 'eu')"), 0, "$name: a subscription is paused");
	is(value($new, "SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.leases WHERE owner_token = '$anna' AND subscription = 'gone'"), 1, "$name: one that is gone settles its lease");
	is(value($new, "SELECT outbox.redrive(subscription => 'quiet')"), 2, "$name: its dead come back");
	is(value($new, "SELECT outbox.publish('pub.big', 'y', dedupe_key => 'pk') = (SELECT published_id FROM outbox.publications WHERE dedupe_key = 'pk')"), 1, "$name: keys of publications are known");
	is_state($new, "SELECT outbox.publish('pub.id', 'x', message_id => '$anna')", '23505', "$name: and ids");
	$new->do("SELECT outbox.subscribe('new', '{pub.new}')");
	$new->do("SELECT outbox.publish('pub.new', 'n')");
	is(value($new, "SELECT string_agg(subscription, ',' ORDER BY subscription) FROM outbox.messages WHERE topic = 'pub.new'"), 'new,quiet', "$name: what is published now");
	return;
}

# Has all arrived, and does life go on?
sub check
{
	my ($name, $db) = @_;
	my $new = connect_to($node, db => $db);

	is_deeply(content_of($new), $before, "$name: nothing is lost");
	is(count_of($new, "pg_inherits WHERE inhparent = 'outbox.archive'::regclass"), $partitions, "$name: partitions of the archive");

	# what was due, once; the worker does it, now that the dump is there
	ok(poll(sub { count_of($new, "outbox.messages WHERE topic = 'overdue'") == 5
				&& count_of($new, "outbox.messages WHERE topic = 'handled'") == 10
				&& count_of($new, "outbox.messages WHERE topic = 'cancelled'") == 1 }),
		"$name: timers, handlers and waits")
	  or diag(join ' ', map { @$_ } $new->selectall_array('SELECT topic, count(*) FROM outbox.messages GROUP BY 1'));

	# the joins complete
	my $acked = 0;
	while (1)
	{
		my $n = value($new, "SELECT outbox.ack('$berta', array_agg(id)) FROM outbox.claim('$berta', topics => '{step}', batch_size => 1000)");
		last if $n == 0;
		$acked += $n;
	}
	is($acked, $steps_left, "$name: the rest of the steps");
	ok(poll(sub { count_of($new, "outbox.messages WHERE topic = 'next'") == 300 }), "$name: continuations");
	is(count_of($new, 'outbox.joins WHERE status = 0') . ' ' . count_of($new, 'outbox.join_waits'), '0 0', "$name: no join is left");
	is(count_of($new, '(SELECT payload FROM outbox.messages WHERE topic IN (\'next\', \'overdue\', \'handled\') GROUP BY topic, payload HAVING count(*) > 1) twice'), 0,
		"$name: nothing twice");
	is(value($new, "SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.leases WHERE owner_token = '$anna' AND topic = 'open'"), 5, "$name: leases stand");
	published($name, $new);
	is(value($new, "SELECT string_agg(DISTINCT detail, '') FROM outbox.status() WHERE component = 'jobs'"), 'pg_cron does not know: daily', "$name: status() names jobs without a schedule");
	is(value($new, "SELECT ok FROM outbox.status() WHERE component = 'restore'"), 1, "$name: the restore is over");
	$new->disconnect;
	check_indexes($node, "$name: indexes", $db);
	return;
}

sub make_database
{
	$node->safe_psql('postgres', "CREATE DATABASE $_[0] TEMPLATE template0");
	return;
}

make_database($_) for qw(custom plain folder single);
run_ok('-Fc', 'pg_restore', @server, '-d', 'custom', $dump{c});
check('-Fc', 'custom');
run_ok('-Fp', psql_file('-d', 'plain', '-f', $dump{p}));
check('-Fp', 'plain');
run_ok('-Fd -j4', 'pg_restore', @server, '-j4', '-d', 'folder', $dump{d});
check('-Fd -j4', 'folder');
run_ok('-1', 'pg_restore', @server, '-1', '-d', 'single', $dump{c});
check('-1', 'single');

make_database('sections');
run_ok("section $_", 'pg_restore', @server, "--section=$_", '-d', 'sections', $dump{c}) for qw(pre-data data post-data);
check('by section', 'sections');

make_database($_) for qw(data quick data_plain data_folder);
for my $db (qw(data quick data_plain data_folder))
{
	run_ok("$db: schema only", 'pg_restore', @server, '-s', '-d', $db, $dump{c});
}
run_ok('--data-only', 'pg_restore', @server, '-a', '-d', 'data', $dump{c});
check('--data-only', 'data');
run_ok('--data-only -j4', 'pg_restore', @server, '-a', '-j4', '-d', 'data_folder', $dump{d});
check('--data-only -j4', 'data_folder');
run_ok('--data-only --disable-triggers', 'pg_restore', @server, '-a', '--disable-triggers', '-d', 'quick', $dump{c});
# these rows were not reported
$node->safe_psql('quick', 'SELECT outbox.reconcile_joins()');
check('--data-only --disable-triggers', 'quick');
run_ok('--data-only by psql', psql_file('-d', 'data_plain', '-f', "$dir/data"));
check('--data-only by psql', 'data_plain');

make_database('schemas');
run_ok('by schema', psql_file('-d', 'schemas', '-f', "$dir/schemas"));
check('by schema', 'schemas');

# --- in two halves, with maintenance between them, in any order of tables

{
	my ($list) = run_command([ 'pg_restore', '-l', $dump{c} ]);
	my @entries = split /\n/, $list;
	my @data = grep { /TABLE DATA outbox/ } @entries;

	for my $order ('forwards', 'backwards')
	{
		my @tables = $order eq 'forwards' ? @data : reverse @data;
		my $half = int(@tables / 2);
		my $db = "halves_$order";

		make_database($db);
		# workers would send what is due when the first session has ended
		$node->safe_psql('postgres', "ALTER DATABASE $db SET outbox.workers = off");
		run_ok("$order: schema", 'pg_restore', @server, '-s', '-d', $db, $dump{c});
		for my $part ([ 'first', @tables[0 .. $half - 1] ], [ 'second', @tables[$half .. $#tables], grep { /SEQUENCE SET/ } @entries ])
		{
			my ($name, @some) = @$part;

			append_to_file("$dir/$db.$name", join "\n", @some, '');
			run_ok("$order: $name half", 'pg_restore', @server, '-L', "$dir/$db.$name", '-d', $db, $dump{c});
			next if $name eq 'second';
			# a retention that drops nothing of the archive
			$node->safe_psql($db, "SELECT outbox.cleanup(retention => '60 days')");
			$node->safe_psql($db, 'SELECT outbox._purge_joins(interval \'0\', 10000, false), outbox.reconcile_joins()');
			$node->safe_psql($db, "SELECT outbox._expand(0), outbox._forget_subscribers(100)");
		}
		$node->safe_psql('postgres', "ALTER DATABASE $db RESET outbox.workers");
		my $new = connect_to($node, db => $db);
		is_deeply([ map { (split / /, content_of($new)->{$_})[0] } qw(joins join_members join_waits) ],
			[ map { (split / /, $before->{$_})[0] } qw(joins join_members join_waits) ], "$order: nothing of joins is lost");
		ok(poll(sub { count_of($new, 'outbox.expansions') == 0 }), "$order: what was published is delivered");
		is(count_of($new, "outbox.messages WHERE namespace = 'many' AND subscription BETWEEN 'm2' AND 'm9'"), 24, "$order: to each of them");
		is(count_of($new, "outbox.messages WHERE topic = 'pub.big' AND length(payload) = 5000"), 1, "$order: payloads are there");
		$new->disconnect;
	}
}

# --- while a session loads a dump, workers do nothing; when it has ended, they work

{
	make_database('loading');
	$node->safe_psql('loading', 'CREATE EXTENSION outbox');
	my ($loader, $other) = map { connect_to($node, db => 'loading') } 1 .. 2;
	my $timer = $other->selectrow_hashref("SELECT outbox.schedule_timer('overdue', 't', now() + interval '1 hour') AS id");

	ok(!value($other, 'SELECT outbox._is_loading()'), 'the functions are no restore');
	# as a dump has it
	$loader->do("INSERT INTO outbox.timer_queue SELECT (jsonb_populate_record(t, jsonb_build_object('id', t.id + 1000000, 'message_id', gen_random_uuid(), 'next_attempt_at', now(), 'due_time', now()))).* FROM outbox.timer_queue t");
	ok(value($other, 'SELECT outbox._is_loading()'), 'a row with an id is');
	is($other->selectrow_array("SELECT status FROM outbox.status() WHERE component = 'restore'"), 'under way', 'status() says so');
	is(value($other, 'SELECT outbox.run_maintenance() + outbox.process_join_waits() + outbox.reconcile_joins()'), 0, 'maintenance does nothing');
	is(count_of($other, "outbox.messages WHERE topic = 'overdue'"), 0, 'nor does the worker');
	ok(!value($loader, 'SELECT outbox._is_loading()'), 'the session itself may go on');
	eval { $loader->do('SELECT 1/0') };
	ok(value($other, 'SELECT outbox._is_loading()'), 'an error there does not end it');
	$loader->disconnect;
	ok(poll(sub { count_of($other, "outbox.messages WHERE topic = 'overdue'") == 1 }), 'then the worker dispatches the timer')
	  or diag(join "\n", map { join ' | ', map { $_ // '-' } @$_ } $other->selectall_array("SELECT component, ok, status, detail FROM outbox.status() WHERE component IN ('workers', 'restore')"),
		$other->selectall_array("SELECT id, status, next_attempt_at, clock_timestamp() FROM outbox.timer_queue"));
	$other->disconnect;
}

# --- a copy for staging

make_database('staging');
$node->safe_psql('postgres', 'ALTER DATABASE staging SET outbox.workers = off');
run_ok('staging', 'pg_restore', @server, '-d', 'staging', $dump{c});
{
	my $staging = connect_to($node, db => 'staging');
	my $served = connect_to($node, db => 'custom');

	# workers have been everywhere since
	$served->do("SELECT outbox.schedule_timer('marker', 'm', now() + interval '5 s')");
	ok(poll(sub { count_of($served, "outbox.messages WHERE topic = 'marker'") == 1 }), 'another database is served');
	is_deeply(content_of($staging), $before, 'staging: all is there');
	is(count_of($staging, "outbox.messages WHERE topic IN ('overdue', 'handled', 'cancelled')"), 0, 'staging: nothing was sent');
	is(count_of($staging, 'outbox.expansions') . ' ' . count_of($staging, 'outbox.replays') . ' ' . count_of($staging, "outbox.messages WHERE namespace = 'many'"), '3 2 0', 'staging: nothing was delivered');
	is(count_of($staging, "outbox.timer_queue WHERE topic = 'overdue'"), 5, 'staging: the timers wait');
	$node->safe_psql('postgres', 'ALTER DATABASE staging RESET outbox.workers');
	ok(poll(sub { count_of($staging, "outbox.messages WHERE topic = 'overdue'") == 5 }), 'staging: until workers are let in');
	$_->disconnect for $staging, $served;
}

$dbh->disconnect;
$node->stop;
done_testing();
