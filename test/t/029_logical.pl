# Logical replication of all tables, and of named ones: the publisher can do
# everything, and on a subscriber only replicated changes happen, although it has
# workers. After a switchover it continues where the publisher stopped, and the
# publisher can follow, and take over again.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest qw(:DEFAULT claim);
use PostgreSQL::Test::Utils;
use Test::More;

my ($anna, $berta, $carl) = map { owner($_) } 1 .. 3;
my ($stream, $tenant) = (owner(101), owner(102));
my $publisher = new_node('publisher', init => { allows_streaming => 'logical' }, conf => "outbox.discovery_interval = 1\noutbox.publish_retention = '300 d'\nmax_worker_processes = 20\nwal_level = logical\nlog_line_prefix = '%m [%p] %e %q%a '");
my $subscriber = new_node('subscriber', init => { allows_streaming => 'logical' }, bare => 1, conf => <<'C');
outbox.discovery_interval = 1
max_worker_processes = 40
max_logical_replication_workers = 20
wal_retrieve_retry_interval = 200ms
log_line_prefix = '%m [%p] %e %q%a '
C
my $pub = connect_to($publisher);
my @named = map { $_->[0] } $pub->selectall_array(<<'Q');
SELECT c.relname FROM pg_class c
 WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r' AND NOT c.relispartition AND c.relpersistence = 'p' ORDER BY 1
Q

# What a table holds; the archive with its partitions.
sub content_of
{
	my $dbh = shift;

	return { map { $_ => value($dbh, "SELECT count(*) || ' ' || coalesce(md5(string_agg(r::text, '|' ORDER BY r::text)), '') FROM outbox.$_ r") } @named, 'archive', 'publications' };
}

sub differences
{
	my ($is, $should) = (content_of($_[0]), content_of($pub));

	return map { "$_: $is->{$_}, not $should->{$_}" } grep { $is->{$_} ne $should->{$_} } sort keys %$should;
}

sub synchronized { return count_of($_[0], "pg_subscription_rel WHERE srsubstate NOT IN ('r', 's')") == 0 }

# The subscriber has all that the publisher has.
sub caught_up
{
	my ($sub, $name, @but) = @_;
	my @left;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	poll(sub {
		@left = differences($sub);
		for my $table (@but) { @left = grep { !/^$table:/ } @left }
		!@left && synchronized($sub);
	}, 30);
	return is_deeply(\@left, [], "$name: what the publisher has, the subscriber has");
}

sub copy_schema
{
	my ($from, $to, $name, $db) = @_;
	my $dump = PostgreSQL::Test::Utils::tempdir() . '/schema';

	command_ok([ 'pg_dump', '-s', '--no-publications', '-h', $from->host, '-p', $from->port, '-f', $dump, $name ], "$db: the schema is dumped");
	return command_ok([ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-h', $to->host, '-p', $to->port, '-d', $db, '-f', $dump ], "$db: and restored");
}

sub ack_all { return value($_[0], 'SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases WHERE owner_token = ?', $_[1], $_[1]) }

# --- there is something of everything, and workers that must not do it twice

$publisher->safe_psql('postgres', 'CREATE ROLE app LOGIN; SELECT outbox.grant_worker(\'app\'), outbox.grant_producer(\'app\'); GRANT CREATE ON DATABASE postgres TO app');
$subscriber->safe_psql('postgres', 'CREATE ROLE app LOGIN');
$pub->do('ALTER DATABASE postgres SET outbox.workers = off');
$pub->do($_) for split /;\n/, <<"Q";
SET ROLE app;
CREATE SCHEMA app;
CREATE FUNCTION app.handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM outbox.enqueue(''handled'', m.payload); END';
RESET ROLE;
SELECT outbox._make_partition(-2, now(), '1 day');
SELECT outbox.enqueue('t', 'early ' || i, dedupe_key => 'key ' || i) FROM generate_series(1, 20) i;
SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.claim('$anna', batch_size => 10);
SELECT outbox.fail('$anna', array_agg(id), 'no') FROM outbox.claim('$anna', batch_size => 2);
SELECT count(*) FROM outbox.claim('$anna', batch_size => 2, lease_seconds => 80000);
SELECT outbox.register_store('here', 'dbname=here'), outbox.set_default_route('store:here');
SELECT outbox.receive(md5(i::text)::uuid, 'inbox', 'i' || i) FROM generate_series(1, 5) i;
SELECT outbox.schedule_timer('overdue', 't', now());
SELECT outbox.subscribe('s' || i, '{news.*}') FROM generate_series(1, 10) i;
Q
my $steps = value($pub, "SELECT outbox.start_join('steps', 4)");
my $done = value($pub, "SELECT outbox.start_join('done', 2)");
my $late = value($pub, "SELECT outbox.start_join('late', 1)");
$pub->do("SELECT outbox.enqueue_step(?, 'step', i::text) FROM generate_series(1, 4) i", undef, $steps);
$pub->do("SELECT outbox.enqueue_step(?, 'step2', i::text) FROM generate_series(1, 2) i", undef, $done);
$pub->do("SELECT outbox.enqueue_join_wait(?, false, 'next', 'n')", undef, $_) for $steps, $done;

# --- two subscribers: of all tables, and of those that are named

my %publish = (
	every => 'FOR ALL TABLES',
	named => 'FOR TABLE ' . join(', ', map { "outbox.$_" } @named));
my %sub;
$publisher->safe_psql('postgres', "CREATE PUBLICATION $_ $publish{$_}") for sort keys %publish;
$publisher->safe_psql('postgres', "CREATE PUBLICATION history FOR TABLE outbox.archive, outbox.publications WITH (publish = 'insert', publish_via_partition_root = true)");
for my $db (sort keys %publish)
{
	$subscriber->safe_psql('postgres', "CREATE DATABASE $db");
	copy_schema($publisher, $subscriber, 'postgres', $db);
	$sub{$db} = connect_to($subscriber, db => $db);
	# so that all is known, and nothing is there
	is_deeply([ claim($sub{$db}, $carl) ], [], "$db: nothing is there");
	$sub{$db}->do("CREATE SUBSCRIPTION of_$db CONNECTION '@{[ $publisher->connstr ]} dbname=postgres' PUBLICATION $db" . ($db eq 'named' ? ', history' : ''));
}
caught_up($sub{$_}, "$_: what was there before") for sort keys %sub;

# --- the publisher can write each table

for my $table ($pub->selectall_array("SELECT c.oid::regclass::text, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = 1 WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p') ORDER BY 1"))
{
	is_state($pub, $_, '') for "UPDATE $table->[0] SET $table->[1] = $table->[1] WHERE false", "DELETE FROM $table->[0] WHERE false";
}
is_deeply([ $pub->selectall_array("SELECT component, status, detail FROM outbox.status() WHERE component = 'tables'") ], [ [ 'tables', 'written directly', undef ] ], 'tables are written directly');
# if a publication could not identify a row, it cannot be changed
$pub->do('ALTER TABLE outbox.queue REPLICA IDENTITY NOTHING');
is_state($pub, "SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.leases", '55000', 'no replica identity: no ack');
is_state($pub, "SELECT count(*) FROM outbox.claim('$berta')", '55000', 'no replica identity: no claim');
like(value($pub, "SELECT detail FROM outbox.status() WHERE component = 'tables'"), qr/^queue: a publication, and its replica identity/, 'no replica identity: status() says so');
$pub->do('ALTER TABLE outbox.queue REPLICA IDENTITY DEFAULT');
is(value($pub, "SELECT status FROM outbox.status() WHERE component = 'tables'"), 'written directly', 'a replica identity: all is well');

# --- what is done at the publisher arrives, and nothing else happens

for my $db (sort keys %sub)
{
	my $row = $sub{$db}->selectrow_hashref("SELECT * FROM outbox.status() WHERE component = 'replication'");
	is_deeply([ @$row{qw(ok status detail)} ], [ 1, 'subscribed', "subscriptions of_$db" ], "$db: status() says that it is subscribed");
	is($sub{$db}->selectrow_array('SELECT outbox.run_maintenance() + outbox.process_join_waits() + outbox.reconcile_joins() + outbox.dispatch_due()'), 0, "$db: maintenance does nothing");
}
# sessions that remember what they have seen
my %before = map { my $db = $_; $db => do {
	$sub{$db}->do('BEGIN');
	my @seen = claim($sub{$db}, $carl, topics => ['late']);
	$sub{$db}->do('COMMIT');
	scalar @seen } } keys %sub;
is_deeply(\%before, { every => 0, named => 0 }, 'nothing in a topic');
$pub->do($_) for split /;\n/, <<"Q";
ALTER DATABASE postgres RESET outbox.workers;
SELECT outbox.enqueue('late', 'l' || i) FROM generate_series(1, 5) i;
SELECT outbox.enqueue_many('stream', '{1,2,3,4}', stream_id => '$stream');
SELECT count(*) FROM outbox.claim('$anna', topics => '{stream}', batch_size => 2, lease_seconds => 80000);
SELECT outbox.ack('$anna', array[min(id)]) FROM outbox.leases WHERE topic = 'stream';
SELECT outbox.enqueue('p', 'paused'), outbox.pause_topic('p'), outbox.configure_topic('t', max_attempts => 3);
SELECT outbox.ack('$berta', array_agg(id)) FROM outbox.claim('$berta', topics => '{step}', batch_size => 2);
SELECT outbox.ack('$berta', array_agg(id)) FROM outbox.claim('$berta', topics => '{step2}', batch_size => 2);
SELECT outbox.nack('$berta', array_agg(id), 'again', '0') FROM outbox.claim('$berta', topics => '{t}', batch_size => 2);
SELECT outbox.redrive('t');
SELECT outbox.ack_inbox('$berta', array_agg(id)) FROM outbox.claim_inbox('$berta', batch_size => 2);
SELECT outbox.fail_inbox('$berta', array_agg(id), 'no') FROM outbox.claim_inbox('$berta', batch_size => 1);
SELECT outbox.schedule_timer('tick', 't', now() + interval '1 day');
SELECT outbox.heartbeat('$anna', 'service', 'host', 1);
SELECT outbox.start_receptor('$anna', 'receptor'), outbox.start_perspective('$anna', 'perspective');
SELECT outbox.map_route('key', 'here');
SELECT outbox.publish('news.big', repeat('b', 5000), dedupe_key => 'news key');
SELECT outbox.publish('news.small', 'n' || i, stream_id => '$tenant') FROM generate_series(1, 3) i;
Q
$pub->do('SET ROLE app');
$pub->do("SELECT outbox.register_handler('handled.here', 'app.handle(outbox.message)')");
$pub->do('RESET ROLE');
$pub->do("SELECT outbox.enqueue('handled.here', 'h')");
ok(poll(sub { count_of($pub, "outbox.queue WHERE topic ~ '^news'") == 40 }), 'and deliver what is published');
ok(poll(sub { count_of($pub, "outbox.messages WHERE (topic, payload) IN (('next', 'n'), ('overdue', 't'), ('handled', 'h'))") == 3 }), "the publisher's workers do what is due");
for my $db (sort keys %sub)
{
	caught_up($sub{$db}, "$db: what was done");
	is(join(' ', map { "@$_" } $sub{$db}->selectall_array('SELECT grouping_key, completed_steps, status FROM outbox.joins ORDER BY 1')), 'done 2 1 late 0 0 steps 2 0', "$db: joins are counted once");
	is(value($sub{$db}, "SELECT outbox.route_store('key')"), 'here', "$db: routes");
	# memory knows of what has come
	$sub{$db}->do('BEGIN');
	is_deeply([ sort(claim($sub{$db}, $carl, topics => ['late'])) ], [ map { "l$_" } 1 .. 5 ], "$db: messages can be claimed");
	is_deeply([ claim($sub{$db}, $carl, topics => ['p']) ], [], "$db: but those of a topic that is paused");
	is_deeply([ claim($sub{$db}, $carl, topics => ['stream']) ], [], "$db: nor those behind another owner's lease");
	is(join(' ', map { substr $_, 0, 10 } claim($sub{$db}, $carl, subscription => 's1')), 'bbbbbbbbbb n1 n2 n3', "$db: what was published has its payload");
	$sub{$db}->do('ROLLBACK');
	nothing_stranded($sub{$db}, $db);
}

# --- a claim that waits there is woken by what comes

{
	my $waiting = connect_to($subscriber, db => 'every');

	begin_call($waiting, "SELECT payload FROM outbox.claim(?, topics => '{soon}', wait_ms => 30000)", $carl);
	ok(poll(sub { sleeps($sub{every}, $waiting) }), 'a claim waits at the subscriber');
	$pub->do("SELECT outbox.enqueue('soon', 's')");
	my $end = end_call($waiting);
	is_deeply($end->{rows}, [ ['s'] ], 'it gets what is enqueued at the publisher');
	cmp_ok($end->{seconds}, '<', 10, 'soon');
	$waiting->disconnect;
	# what a subscriber writes itself is its own fault
	$pub->do("SELECT outbox.ack(?, array_agg(id)) FROM outbox.claim(?, topics => '{soon}')", undef, $anna, $anna);
	caught_up($sub{every}, 'every: what was claimed there');
}

# --- sessions that have read a policy read it again

for my $how ("SELECT outbox.resume_topic('p')", "UPDATE outbox.topics SET paused = true WHERE topic = 'p'", "DELETE FROM outbox.topics WHERE topic = 'p'", "SELECT outbox.pause_topic('p')", 'TRUNCATE outbox.topics')
{
	my $expected = $how =~ /resume|DELETE|TRUNCATE/ ? 1 : 0;

	$pub->do($how);
	for my $db (sort keys %sub)
	{
		my @got;

		ok(poll(sub {
			$sub{$db}->do('BEGIN');
			@got = claim($sub{$db}, $carl, topics => ['p']);
			$sub{$db}->do('ROLLBACK');
			@got == $expected;
		}), "$db: $how");
	}
}
$pub->do('UPDATE outbox.handlers SET batch_size = 7');
$pub->do("SELECT outbox.pause_topic('p'), outbox.configure_topic('kept', retention => '30 days')");

# --- TRUNCATE, and what a large transaction does

$pub->do('TRUNCATE outbox.inbox_queue, outbox.inbox_dead, outbox.message_deduplication');
$pub->do("SELECT outbox.receive(md5(i::text)::uuid, 'inbox', 'again ' || i) FROM generate_series(1, 3) i");
$pub->do('BEGIN');
$pub->do("SELECT outbox.enqueue('large', repeat(md5(i::text), 20), dedupe_key => 'large ' || i) FROM generate_series(1, 5000) i");
$pub->do("SAVEPOINT s");
$pub->do("SELECT outbox.enqueue('rolled back', i::text) FROM generate_series(1, 5000) i");
$pub->do("ROLLBACK TO s");
$pub->do('COMMIT');
$pub->do("SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.claim('$anna', topics => '{large}', batch_size => 4000)");
for my $db (sort keys %sub)
{
	caught_up($sub{$db}, "$db: TRUNCATE, and a large transaction");
	$sub{$db}->do('BEGIN');
	is(scalar(claim($sub{$db}, $carl, topics => ['large'], batch_size => 10000)), 1000, "$db: the rest of it");
	is(count_of($sub{$db}, "outbox.claim_inbox('$carl')"), 3, "$db: what was received after TRUNCATE");
	$sub{$db}->do('ROLLBACK');
	nothing_stranded($sub{$db}, "$db: TRUNCATE, and a large transaction");
}

# --- partitions: those that the publisher makes, subscribers make themselves

{
	$pub->do("SELECT outbox.enqueue('kept', 'k' || i) FROM generate_series(1, 3) i");
	$pub->do("SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.claim('$anna', topics => '{kept}', batch_size => 1)");
	ok(poll(sub { count_of($pub, "outbox._partitions() WHERE keep = 2592000") >= 1 }), 'the publisher has made a partition of another class');
	$pub->do("SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.claim('$anna', topics => '{kept}', batch_size => 2)");
	is(count_of($pub, 'outbox.archive WHERE keep = 2592000'), 2, 'and used it');
	ok(poll(sub { count_of($sub{$_}, 'outbox._partitions() WHERE keep = 2592000') >= 1 }), "$_: so has the subscriber") for sort keys %sub;
	caught_up($sub{named}, 'named: a partition that is new');
	# of all tables: what is in a new one comes when the subscription is refreshed
	ok(poll(sub { $sub{every}->do('ALTER SUBSCRIPTION of_every REFRESH PUBLICATION'); 1 }), 'every: the subscription is refreshed');
	caught_up($sub{every}, 'every: a partition that is new');
	# one that only the subscriber has does no harm
	$sub{$_}->do("SELECT outbox._make_partition(3600, now(), '1 hour')") for sort keys %sub;
	# nor is one that only the publisher has dropped
	$pub->do("SELECT outbox._make_partition(-2, '2001-01-01', '1 day')");
	is(value($pub, 'SELECT outbox.cleanup() >= 0'), 1, 'the publisher drops a partition');
	$pub->do("SELECT outbox.enqueue('late', 'l6')");
	caught_up($sub{$_}, "$_: other partitions") for sort keys %sub;
}

# --- nothing was done at the subscribers, and all is there: they take over

$pub->do('ALTER DATABASE postgres SET outbox.workers = off');
is(value($pub, 'SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = \'outbox worker\' UNION ALL SELECT true LIMIT 1'), 1, 'the publisher stops working');
$pub->do("SELECT outbox.schedule_timer('overdue', 'once more', now())");
$pub->do("SELECT outbox.enqueue('handled.here', 'again')");
$pub->do("SELECT outbox.enqueue_join_wait(?, false, 'next', 'late')", undef, $late);
$pub->do('SELECT outbox.cancel_join(?)', undef, $late);
for my $db (sort keys %sub)
{
	my $own = $sub{$db};

	caught_up($own, "$db: before the change");
	is(count_of($own, "outbox.timer_queue WHERE topic = 'overdue'"), 1, "$db: what is due was left alone");
	my $status = $own->selectrow_hashref("SELECT * FROM outbox.status() WHERE component = 'ids'");
	is_deeply([ @$status{qw(ok status)} ], [ 0, 'set back' ], "$db: status() says that the sequence is behind");
	$own->do("DROP SUBSCRIPTION of_$db");
	my ($advance) = $status->{hint} =~ /(SELECT setval.*);/;
	$own->do($advance);
	is(value($own, "SELECT ok FROM outbox.status() WHERE component = 'ids'"), 1, "$db: it is ahead, as status() tells how");
	is(value($own, "SELECT status FROM outbox.status() WHERE component = 'replication'"), 'none', "$db: status() says that it is no subscriber any more");
	ok(poll(sub { count_of($own, "outbox.messages WHERE topic = 'overdue'") == 2
				&& count_of($own, "outbox.messages WHERE topic = 'handled'") == 2 }), "$db: workers do what is due")
	  or diag(join "\n", map { join ' | ', map { $_ // '-' } @$_ } $own->selectall_array('SELECT * FROM outbox.status() WHERE NOT ok'));
	is(ack_all($own, $anna) > 0, 1, "$db: leases stand");
	is_deeply([ claim($own, $berta, topics => ['stream']) ], [ 3, 4 ], "$db: the stream goes on");
	is_deeply([ sort(claim($own, $berta, topics => ['late'])) ], [ map { "l$_" } 1 .. 6 ], "$db: messages are there");
	is(value($own, "SELECT outbox.ack('$carl', array_agg(id)) FROM outbox.claim('$carl', topics => '{step}')"), 2, "$db: the rest of the steps");
	ok(poll(sub { count_of($own, "outbox.messages WHERE topic = 'next' AND payload = 'n'") == 2 }), "$db: the join is continued, once");
	is(join(' ', map { "@$_" } $own->selectall_array("SELECT grouping_key, completed_steps, status FROM outbox.joins ORDER BY 1")), 'done 2 1 late 0 3 steps 4 1', "$db: joins are complete");
	is(value($own, "SELECT enqueued FROM outbox.try_enqueue('t', 'x', dedupe_key => 'key 1')"), 0, "$db: keys are taken, of what is done, too");
	is(join(' ', map { length } claim($own, $berta, subscription => 's2')), '5000 2 2 2', "$db: deliveries");
	is(value($own, "SELECT outbox.publish('news.big', 'x', dedupe_key => 'news key') = published_id FROM outbox.publications WHERE dedupe_key = 'news key'"), 1, "$db: a publication's key is taken");
	$own->do("SET outbox.publish_retention = '300 d'");
	is(value($own, "SELECT outbox.replay('s3', '-infinity')"), 4, "$db: what was published can be replayed");
	ok(poll(sub { count_of($own, "outbox.messages WHERE subscription = 's3'") == 8 }), "$db: and is");
	$own->do("SELECT outbox.enqueue('new', i::text) FROM generate_series(1, 100) i");
	is(scalar(claim($own, $berta, topics => ['new'], batch_size => 1000)), 100, "$db: new messages");
	nothing_stranded($own, "$db: afterwards");
	$own->disconnect;
	check_indexes($subscriber, "$db: indexes", $db);
}

# --- there and back: what had nothing when it was copied, the change, and the way back

sub stop_working
{
	my ($dbh) = @_;

	$dbh->do('ALTER DATABASE there SET outbox.workers = off');
	$dbh->do("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'outbox worker' AND datname = 'there'");
	return;
}

sub advance_ids
{
	my ($dbh) = @_;
	my ($advance) = (value($dbh, "SELECT hint FROM outbox.status() WHERE component = 'ids'") // '') =~ /(SELECT setval.*);/;

	$dbh->do($advance) if $advance;
	return is(value($dbh, "SELECT ok FROM outbox.status() WHERE component = 'ids'"), 1, 'ids are ahead');
}

{
	my $origin = !grep { $_->safe_psql('postgres', 'SHOW server_version_num') < 160000 } $publisher, $subscriber;
	$_->safe_psql('postgres', 'CREATE DATABASE there') for $publisher, $subscriber;
	$publisher->safe_psql('there', "ALTER DATABASE there SET outbox.publish_retention = '1 d'; CREATE EXTENSION outbox");
	copy_schema($publisher, $subscriber, qw(there there));
	my ($old, $new) = map { connect_to($_, db => 'there') } $publisher, $subscriber;
	my $tables = join ', ', map { "outbox.$_" } @named;
	for my $dbh ($old, $new)
	{
		$dbh->do("CREATE PUBLICATION work FOR TABLE $tables");
		$dbh->do("CREATE PUBLICATION history FOR TABLE outbox.archive, outbox.publications WITH (publish = 'insert', publish_via_partition_root = true)");
	}
	$new->do("CREATE SUBSCRIPTION there CONNECTION '@{[ $publisher->connstr ]} dbname=there' PUBLICATION work, history");
	$pub->disconnect;
	$pub = $old;
	caught_up($new, 'there: nothing');

	# the first rows of the archive, and of publications, are in partitions that the subscriber does not have
	stop_working($old);
	ok(value($old, "SELECT outbox._make_partition(-2, now(), '1 day')"), 'there: a partition that only the publisher has');
	ok(value($old, 'SELECT outbox.run_maintenance()') >= 0, 'there: and another one');
	$old->do($_) for split /;\n/, <<"Q";
SELECT outbox.subscribe('s' || i, '{news.*}') FROM generate_series(1, 9) i;
SELECT outbox.publish('news.big', repeat('b', 5000), dedupe_key => 'news key');
SELECT outbox.enqueue('t', i::text, dedupe_key => 'key ' || i) FROM generate_series(1, 4) i;
SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.claim('$anna', topics => '{t}', batch_size => 2);
SELECT outbox.enqueue_many('stream', '{1,2,3,4}', stream_id => '$stream');
SELECT count(*) FROM outbox.claim('$anna', topics => '{stream}', batch_size => 2, lease_seconds => 80000);
Q
	is(count_of($old, 'outbox.archive_unsorted') + count_of($old, 'outbox.publications_unsorted'), 0, 'there: all that is kept is in partitions');
	caught_up($new, 'there: what came into new partitions');

	# each subscribes to the other, and while it does, neither works
	$old->do("CREATE SUBSCRIPTION back CONNECTION '@{[ $subscriber->connstr ]} dbname=there' PUBLICATION work, history WITH (copy_data = false"
		  . ($origin ? ', origin = none)' : ')'));
	ok(poll(sub { synchronized($old) }), 'back: the old one is subscribed');
	is(value($_, "SELECT status FROM outbox.status() WHERE component = 'replication'"), 'subscribed', 'both are') for $old, $new;
	if ($origin)
	{
		$old->do("SELECT outbox.schedule_timer('both', 'old', now()), outbox.enqueue('late', 'old')");
		caught_up($new, 'both: from the old one');
		advance_ids($new);
		$new->do("SELECT outbox.schedule_timer('both', 'new', now()), outbox.enqueue('late', 'new')");
		ok(poll(sub { !differences($new) }, 30), 'both: from the new one');
		$_->do('ALTER DATABASE there RESET outbox.workers') for $old, $new;
		is($_->selectrow_array('SELECT outbox.run_maintenance() + outbox.dispatch_due()'), 0, 'both: nothing is done') for $old, $new;
		is(count_of($_, "outbox.timer_queue WHERE topic = 'both'"), 2, 'both: nor by workers') for $old, $new;
		stop_working($old);
	}

	# the new one takes over, and the old one follows
	$new->do('DROP SUBSCRIPTION there');
	$new->do("ALTER DATABASE there SET outbox.publish_retention = '1 d'");
	$new->disconnect;
	$new = connect_to($subscriber, db => 'there');
	advance_ids($new);
	$old->do('ALTER DATABASE there RESET outbox.workers');
	my $join = value($new, "SELECT outbox.start_join('g', 2)");
	$new->do($_) for split /;\n/, <<"Q";
SELECT outbox.enqueue_step('$join', 'step', i::text) FROM generate_series(1, 2) i;
SELECT outbox.enqueue_join_wait('$join', false, 'next', 'n');
SELECT outbox.schedule_timer('overdue', 't', now());
SELECT outbox.publish('news.small', 'small');
SELECT outbox.ack('$anna', array[min(id)]) FROM outbox.leases WHERE topic = 'stream';
SELECT outbox.ack('$berta', array_agg(id)) FROM outbox.claim('$berta', topics => '{step}', batch_size => 1);
SELECT outbox.enqueue('t', 'new ' || i, dedupe_key => 'new key ' || i) FROM generate_series(1, 4) i;
SELECT outbox.fail('$berta', array_agg(id), 'no') FROM outbox.claim('$berta', topics => '{t}', batch_size => 1);
Q
	ok(poll(sub { count_of($new, "outbox.messages WHERE topic = 'overdue'") == 1 && count_of($new, "outbox.queue WHERE topic ~ '^news'") == 18 }), 'the new one works');
	is(count_of($new, "outbox.messages WHERE topic = 'both'"), 2, 'also on what came while it did not') if $origin;
	$pub = $new;
	caught_up($old, 'back');
	is(value($old, "SELECT status FROM outbox.status() WHERE component = 'replication'"), 'subscribed', 'back: the old one does nothing');

	# and back
	stop_working($new);
	$new->do("SELECT outbox.schedule_timer('overdue', 'back', now())");
	$new->do("SELECT outbox.ack('$berta', array_agg(id)) FROM outbox.claim('$berta', topics => '{step}', batch_size => 1)");
	caught_up($old, 'back: before the change');
	$old->do('DROP SUBSCRIPTION back');
	advance_ids($old);
	ok(poll(sub { count_of($old, "outbox.messages WHERE topic = 'overdue'") == 2 && count_of($old, "outbox.messages WHERE topic = 'next'") == 1 }), 'back: workers do what is due')
	  or diag(join "\n", map { join ' | ', map { $_ // '-' } @$_ } $old->selectall_array('SELECT * FROM outbox.status() WHERE NOT ok'));
	is(ack_all($old, $anna), 1, 'back: a lease of before stands');
	is_deeply([ claim($old, $berta, topics => ['stream']) ], [ 3, 4 ], 'back: the stream goes on');
	is(join(' ', sort(claim($old, $carl, topics => ['t']))), '4 new 1 new 2 new 3 new 4', 'back: messages are there');
	is(value($old, "SELECT count(*) FROM unnest('{key 1, new key 4}'::text[]) k, outbox.try_enqueue('t', 'x', dedupe_key => k) e WHERE e.enqueued"), 0, 'back: keys are taken');
	is(join(' ', sort { $a <=> $b } map { length } claim($old, $berta, subscription => 's9')), '5 5000', 'back: deliveries');
	nothing_stranded($old, 'back');
	$_->disconnect for $old, $new;
	check_indexes($publisher, 'back: indexes', 'there');
}

is_deeply([ grep { / XX\d\d\d |PANIC|TRAP|terminated by signal/ } map { split /\n/, slurp_file($_->logfile) } $publisher, $subscriber ], [], 'no internal errors, no crash');
$_->stop for $subscriber, $publisher;
done_testing();
