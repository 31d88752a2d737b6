# Counters: what is counted, when, and what becomes of them at a rollback, a
# restart and a crash.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use Test::More;

my ($anna, $berta) = (owner(1), owner(2));
my $dbh;

# The counters that are not 0, by topic.
sub counters
{
	my $rows = $dbh->selectall_arrayref(<<'S', { Slice => {} });
SELECT kind, namespace, subscription, topic, enqueued, claimed, acked, nacked, failed, dead, expired, leases_lost AS lost, bytes,
       (SELECT sum(n) FROM unnest(wait_histogram) n) AS waits, (SELECT sum(n) FROM unnest(service_histogram) n) AS services
  FROM outbox.topic_counters
S
	my %found;
	for my $row (@$rows)
	{
		my $name = join '/', map { $_ // '-' } delete @$row{qw(kind namespace subscription topic)};
		$found{$name} = join ' ', map { $row->{$_} ? "$_=$row->{$_}" : () } qw(enqueued claimed acked nacked failed dead expired lost bytes waits services);
	}
	return \%found;
}

sub enqueue
{
	my ($topic, $n, %more) = @_;
	my @names = sort keys %more;

	$dbh->do("SELECT outbox.enqueue(?, 'four'" . join('', map { ", $_ => ?" } @names) . ') FROM generate_series(1, ?)', undef, $topic, @more{@names}, $n // 1);
	return;
}

sub claim
{
	my ($owner, $topic, $lease, $n) = @_;

	return $dbh->selectcol_arrayref('SELECT id FROM outbox.claim(?, ?, ?, topics => ?)', undef, $owner, $lease // 600, $n // 100, [$topic]);
}

sub reset_all { return $dbh->do('SELECT outbox.stat_reset()') }

# --- without preloading, and with it
for my $preload (0, 1)
{
	my $node = new_node("counted$preload", preload => $preload, conf => "outbox.backoff_base = 0\n" . ($preload ? "outbox.databases = ''" : ''));
	my $with = $preload ? 'preloaded' : 'not preloaded';
	$dbh = connect_to($node);

	enqueue('a', 5);
	my $ids = claim($anna, 'a');
	$dbh->do('SELECT outbox.renew(?, ?)', undef, $anna, $ids);
	$dbh->do('SELECT outbox.ack(?, ?)', undef, $anna, [ @$ids[ 0, 1 ] ]);
	$dbh->do("SELECT outbox.nack(?, ?, 'no')", undef, $anna, [ $ids->[2] ]);
	$dbh->do("SELECT outbox.fail(?, ?, 'no')", undef, $anna, [ $ids->[3] ]);
	$dbh->do('SELECT outbox.release(?, ?)', undef, $anna, [ $ids->[4] ]);
	is_deeply(counters(), { 'message/default/-/a' => 'enqueued=5 claimed=5 acked=2 nacked=1 failed=1 dead=1 bytes=20 waits=5 services=4' },
		"$with: claim, ack, nack, fail, release");

	# a lease that ends is lost, whether a claim or reap notices it; the last attempt is a nack and a death
	reset_all();
	enqueue('l', 2);
	$ids = claim($anna, 'l', 1);
	ok(poll(sub { @{ claim($berta, 'l', 1, 1) } == 1 }), 'a lease ends, and the message is claimed again');
	ok(poll(sub { value($dbh, 'SELECT outbox.reap()') }), 'the other one is reaped') for 1 .. 2;
	like(counters()->{'message/default/-/l'}, qr/^enqueued=2 claimed=3 lost=3 bytes=8 waits=3$/, "$with: leases lost");
	$ids = claim($anna, 'l');
	$dbh->do("SELECT outbox.nack(?, ?, 'no', max_attempts => 1)", undef, $anna, $ids);
	like(counters()->{'message/default/-/l'}, qr/nacked=2 dead=2 lost=3/, "$with: the last attempt");

	# what has expired is dead
	reset_all();
	enqueue('e', 1, expires_at => '2001-01-01');
	is(scalar(@{ claim($anna, 'e') }), 0, 'an expired message is not handed out');
	is_deeply(counters(), { 'message/default/-/e' => 'enqueued=1 dead=1 expired=1 bytes=4' }, "$with: expired");

	# times
	reset_all();
	enqueue('t', 1, due_time => '2001-01-01');
	$dbh->do("UPDATE outbox.queue SET next_attempt_at = now() - interval '3 s' WHERE topic = 't'");
	$ids = claim($anna, 't');
	$dbh->do("UPDATE outbox.queue SET leased_at = now() - interval '1 h' WHERE topic = 't'");
	$dbh->do('SELECT outbox.renew(?, ?)', undef, $anna, $ids);
	$dbh->do('SELECT outbox.ack(?, ?)', undef, $anna, $ids);
	my ($wait, $service, $waits, $services) = $dbh->selectrow_array(<<'S');
SELECT wait_ms BETWEEN 3000 AND 60000, service_ms BETWEEN 3600000 AND 3660000, array_position(wait_histogram, 1), array_position(service_histogram, 1)
  FROM outbox.topic_counters
S
	ok($wait && $service, 'the waiting time begins when it is due, that of the service with the claim, and a renewal does not change it');
	ok($waits >= 13 && $waits <= 17, 'more than 2,048 ms') or diag($waits);
	is($services, 23, 'up to 2^22 ms');

	# rollbacks
	reset_all();
	$dbh->begin_work;
	enqueue('r', 1);
	$dbh->do('SAVEPOINT s');
	enqueue('r', 10);
	enqueue('r2', 10);
	$dbh->do('SAVEPOINT t');
	enqueue('r', 100);
	$dbh->do('RELEASE t');
	$dbh->do('ROLLBACK TO s');
	enqueue('r', 2);
	$dbh->do('SAVEPOINT u');
	enqueue('r3', 7);
	$dbh->do('SAVEPOINT v');
	enqueue('r', 20);
	enqueue('r3', 5);
	$dbh->do('RELEASE v');
	enqueue('r', 30);
	$dbh->do('RELEASE u');
	is_deeply(counters(), {}, 'nothing is counted before the commit');
	$dbh->commit;
	is_deeply(counters(), { 'message/default/-/r' => 'enqueued=53 bytes=212', 'message/default/-/r3' => 'enqueued=12 bytes=48' },
		"$with: what was rolled back to a savepoint is not counted");
	$dbh->begin_work;
	enqueue('r', 5);
	$dbh->rollback;
	$dbh->do(<<'S');
DO $$ BEGIN
    FOR i IN 1 .. 300 LOOP
        BEGIN
            PERFORM outbox.enqueue('r', 'four');
            IF i % 3 = 0 THEN RAISE EXCEPTION 'no'; END IF;
        EXCEPTION WHEN raise_exception THEN NULL;
        END;
    END LOOP;
END $$
S
	is(counters()->{'message/default/-/r'}, 'enqueued=253 bytes=1012', "$with: many subtransactions");
	$dbh->begin_work;
	enqueue('p', 3);
	$dbh->do("PREPARE TRANSACTION 'p'");
	is(counters()->{'message/default/-/p'}, 'enqueued=3 bytes=12', 'a transaction is counted when it is prepared');
	$dbh->do("COMMIT PREPARED 'p'");
	is(counters()->{'message/default/-/p'}, 'enqueued=3 bytes=12', 'and not again when it commits');

	# the other kinds, namespaces, subscriptions
	reset_all();
	enqueue('k', 1, namespace => 'n');
	$dbh->do("SELECT outbox.receive('00000000-0000-4000-8000-0000000000aa', 'handler', 'payload')");
	$dbh->do("SELECT outbox.ack_inbox(?, ARRAY(SELECT id FROM outbox.claim_inbox(?)))", undef, $anna, $anna);
	$dbh->do("SELECT outbox.schedule_timer('k', 'payload', now() + interval '1 h')");
	$dbh->do("SELECT outbox.subscribe('s1', ARRAY['k']), outbox.subscribe('s2', ARRAY['*'])");
	$dbh->do("SELECT outbox.publish('k', 'payload')");
	$dbh->do('CALL outbox.maintain()');
	$dbh->do("SELECT outbox.ack(?, ARRAY(SELECT id FROM outbox.claim(?, subscription => 's2')))", undef, $anna, $anna);
	is_deeply(
		counters(),
		{
			'message/n/-/k' => 'enqueued=1 bytes=4',
			'inbox/default/-/handler' => 'enqueued=1 claimed=1 acked=1 bytes=7 waits=1 services=1',
			'timer/default/-/k' => 'enqueued=1 bytes=7',
			'message/default/s1/k' => 'enqueued=1 bytes=7',
			'message/default/s2/k' => 'enqueued=1 claimed=1 acked=1 bytes=7 waits=1 services=1'
		},
		"$with: kinds, namespaces and subscriptions");
	$dbh->do("SELECT outbox.unsubscribe('s1'), outbox.unsubscribe('s2')");

	my ($stat, $sum) = map { $dbh->selectrow_hashref($_) } 'SELECT * FROM outbox.stat', <<'S';
SELECT sum(enqueued) AS enqueued, sum(claimed) AS claimed, sum(acked) AS acked, sum(bytes) AS bytes FROM outbox.topic_counters
S
	is_deeply([ map { $stat->{$_} } sort keys %$sum ], [ map { $sum->{$_} } sort keys %$sum ], 'outbox.stat has the sums');
	ok(value($dbh, "SELECT stats_since > now() - interval '10 min' AND stats_since <= now() FROM outbox.stat"), 'and since when');

	# calls of handlers
	reset_all();
	$dbh->do($_) for split /;;\n/, <<'S';
CREATE ROLE app LOGIN;;
SELECT outbox.grant_worker('app');;
GRANT CREATE ON DATABASE postgres TO app;;
SET SESSION AUTHORIZATION app;;
CREATE SCHEMA app;;
CREATE FUNCTION app.slow(m outbox.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.05); IF m.payload = 'bad' THEN RAISE EXCEPTION 'no'; END IF; END $$;;
CREATE FUNCTION app.fast(m outbox.message) RETURNS void LANGUAGE sql AS '';;
RESET SESSION AUTHORIZATION;;
SELECT outbox.subscribe('all', '{handled.#}')
S
	$dbh->do('SET SESSION AUTHORIZATION app');
	$dbh->do("SELECT outbox.register_handler('slow', 'app.slow(outbox.message)'), outbox.register_handler('handled.#', 'app.fast(outbox.message)', subscription => 'all')");
	$dbh->do('RESET SESSION AUTHORIZATION');
	enqueue('slow', 3);
	$dbh->do("SELECT outbox.enqueue('slow', 'bad'), outbox.publish('handled.a', 'x'::text), outbox.publish('handled.b', 'x'::text)");
	$dbh->do('CALL outbox.maintain()');
	is(value($dbh, "SELECT string_agg(concat_ws(' ', handler, subscription, calls >= 3, acked), ', ') FROM outbox.handler_stats WHERE topic = 'slow'"), 'app.slow(outbox.message) t 3', "$with: calls of a handler");
	is(value($dbh, "SELECT string_agg(concat_ws(' ', handler, subscription, calls, acked), ', ') FROM outbox.handler_stats WHERE subscription IS NOT NULL"), 'app.fast(outbox.message) all 2 2', "$with: of a subscription, with all its topics");
	is(value($dbh, "SELECT string_agg(topic, ' ') FROM outbox.handler_stats"), 'slow handled.#', 'the slowest comes first');
	ok(value($dbh, "SELECT mean_ms >= 50 AND call_ms >= calls * 50 AND nacked > 0 FROM outbox.handler_stats WHERE topic = 'slow'"), 'with the time that they took')
	  || diag(join ' ', map { $_ // '-' } $dbh->selectrow_array("SELECT * FROM outbox.handler_stats WHERE topic = 'slow'"));
	ok(value($dbh, "SELECT bool_and(s.value = c.n) FROM (SELECT 'outbox_handler_calls_total' AS metric, sum(calls) AS n FROM outbox.topic_counters) c JOIN (SELECT metric, sum(value) AS value FROM outbox.metric_samples() GROUP BY 1) s USING (metric)"), 'metrics have them, too');
	$dbh->do("SELECT outbox.unregister_handler('slow'), outbox.unsubscribe('all', drop_messages => true), outbox.purge_topic('slow')");

	# workers: by their token, or, with a new one for each claim, by their sessions
	enqueue('w', 9);
	my $worker = connect_to($node);
	$worker->do("SET application_name = 'steady'");
	my @had = map { @{ $worker->selectcol_arrayref('SELECT id FROM outbox.claim(?, 600, ?, topics => ?)', undef, owner(5), $_, ['w']) } } 4, 2;
	$worker->do("SELECT pg_sleep(0.1)");
	$worker->do('SELECT outbox.ack(?, ?)', undef, owner(5), [ @had[ 0, 1 ] ]);
	$worker->do('SELECT outbox.nack(?, ?)', undef, owner(5), [ $had[2] ]);
	$worker->do('SELECT outbox.release(?, ?)', undef, owner(5), [ $had[3] ]);
	$worker->do('SELECT outbox.renew(?, ?)', undef, owner(5), [ $had[4] ]);
	my $of = sub { value($dbh, "SELECT concat_ws(' ', owner_token, claimed, ended, released, open, connected) FROM outbox.workers WHERE application = ?", shift) // '' };
	is($of->('steady'), owner(5) . ' 6 3 1 2 t', "$with: what a worker has done");
	ok(value($dbh, "SELECT mean_ms >= 100 AND mean_ms < 60000 AND per_second BETWEEN 0.01 AND 30 AND host = '[local]' AND pid = ? FROM outbox.workers WHERE application = 'steady'", $worker->{pg_pid}), 'and how fast');
	$worker->do("SET application_name = 'changing'");
	for (1 .. 2)
	{
		my ($owner, $id) = $worker->selectrow_array("SELECT owner_token, id FROM outbox.claim(topics => '{w}', batch_size => 1)");
		$worker->do('SELECT outbox.ack(?, ARRAY[?::bigint])', undef, $owner, $id);
	}
	is($of->('changing'), '2 2 0 0 t', "$with: one that changes its token is its session");
	is($of->('steady'), owner(5) . ' 6 3 1 2 t', 'and not the other worker, although it is the same');
	my $mine = $worker->{pg_pid};
	$worker->disconnect;
	poll(sub { !count_of($dbh, "pg_stat_activity WHERE pid = $mine") });
	is($of->('steady'), owner(5) . ' 6 3 1 2 f', 'it is not connected any more');
	# many that are done do not drive out those who hold something
	$dbh->do(<<'S', undef, $berta);
SELECT count(*) FROM generate_series(1, 5000) i,
    LATERAL (SELECT outbox.enqueue('w', 'x') || md5(i::text) AS m) e,
    LATERAL (SELECT c.id, c.owner_token FROM outbox.claim(md5(i || e.m)::uuid, batch_size => 1, topics => '{w}') c WHERE ?::text <> e.m) c,
    LATERAL (SELECT outbox.ack(c.owner_token, ARRAY[c.id]) AS n) a
 WHERE a.n = 1
S
	is($of->('steady'), owner(5) . ' 6 3 1 2 f', "$with: 5,000 others do not drive it out");
	cmp_ok(count_of($dbh, 'outbox._owner_claims()'), '<', 5000, 'though there is not room for all');
	$dbh->do("SELECT outbox.release(?), outbox.purge_topic('w')", undef, owner(5));
	reset_all();

	# a reset concerns this database only, and is not undone
	$dbh->do('CREATE DATABASE other');
	my $other = connect_to($node, db => 'other');
	$other->do('CREATE EXTENSION outbox');
	$other->do("SELECT outbox.enqueue('a', 'four')");
	$dbh->begin_work;
	reset_all();
	$dbh->rollback;
	is_deeply(counters(), {}, 'stat_reset() is not undone by a rollback');
	is(value($dbh, "SELECT enqueued FROM outbox.stat"), 0, 'no sums');
	is(value($other, 'SELECT enqueued FROM outbox.stat'), 1, 'another database keeps its own');
	enqueue('a', 2);
	is_deeply(counters(), { 'message/default/-/a' => 'enqueued=2 bytes=8' }, 'counting goes on');
	$other->disconnect;
	$dbh->do('DROP DATABASE other');
	is(value($dbh, 'SELECT outbox._forget_counters()'), 1, 'what a dropped database has counted is removed');
	is(value($dbh, 'SELECT outbox._forget_counters()'), 0, 'once');

	# not counted
	$dbh->do('SET outbox.track_counters = off');
	enqueue('a', 2);
	$dbh->do('RESET outbox.track_counters');
	is_deeply(counters(), { 'message/default/-/a' => 'enqueued=2 bytes=8' }, 'outbox.track_counters = off counts nothing');
	$dbh->do('CREATE ROLE visitor; CREATE ROLE watcher');
	$dbh->do("SELECT outbox.grant_monitor('watcher')");
	$dbh->do('SET ROLE visitor');
	is(sqlstate($dbh, 'SELECT * FROM outbox.stat'), '42501', 'PUBLIC reads nothing');
	is(sqlstate($dbh, 'SET outbox.track_counters = off'), '42501', 'only a superuser turns counting off');
	$dbh->do('SET ROLE watcher');
	is(value($dbh, 'SELECT enqueued FROM outbox.stat'), 2, 'a monitor reads counters');
	is(sqlstate($dbh, 'SELECT outbox.stat_reset()'), '42501', 'and does not reset them');
	$dbh->do('RESET ROLE');

	if ($preload)
	{
		my $since = value($dbh, 'SELECT stats_since FROM outbox.stat');
		$dbh->disconnect;
		$node->restart;
		$dbh = connect_to($node);
		is_deeply(counters(), { 'message/default/-/a' => 'enqueued=2 bytes=8' }, 'counters are kept over a restart');
		is(value($dbh, 'SELECT stats_since FROM outbox.stat'), $since, 'with their time');
		enqueue('a', 1);
		is(counters()->{'message/default/-/a'}, 'enqueued=3 bytes=12', 'and counting goes on');

		my $pid = $dbh->{pg_pid};
		$dbh->disconnect;
		my $victim = connect_to($node);
		kill_backend($node, $victim->{pg_pid});
		$dbh = connect_to($node);
		is_deeply(counters(), {}, 'after a crash they begin again');
		ok(value($dbh, 'SELECT stats_since > ? FROM outbox.stat', $since), 'and say so');

		# fewer entries, and a damaged file
		enqueue("topic $_", $_) for 1 .. 6;
		$dbh->disconnect;
		$node->append_conf('postgresql.conf', 'outbox.topic_counters_max = 3');
		$node->restart;
		$dbh = connect_to($node);
		my $found = counters();
		is(scalar(keys %$found), 4, 'topics that have no room of their own are counted together');
		ok(exists $found->{'message/-/-/-'}, 'under no topic');
		is(value($dbh, 'SELECT enqueued FROM outbox.stat'), 21, 'and nothing is lost');
		enqueue('topic 100', 10);
		enqueue("topic $_", 1) for 1 .. 6;
		is(value($dbh, 'SELECT enqueued FROM outbox.stat'), 37, 'neither is what comes then');
		$dbh->disconnect;
		$node->stop;
		my $file = $node->data_dir . '/pg_stat/outbox.stat';
		open my $handle, '+<:raw', $file or die "$file: $!";
		seek $handle, 100, 0;
		print {$handle} 'x';
		close $handle;
		$node->start;
		$dbh = connect_to($node);
		is_deeply(counters(), {}, 'a damaged file is ignored');
		like(slurp($node->logfile), qr/ignoring file "pg_stat\/outbox\.stat"/, 'and the log says so');
		ok(!-e $file, 'and it is gone');
	}
	$dbh->disconnect;
	$node->stop;
}

sub slurp
{
	my ($path) = @_;
	open my $handle, '<', $path or die "$path: $!";
	local $/;
	return scalar <$handle>;
}
done_testing();
