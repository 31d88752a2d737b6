# Many topics, in several databases of one server.
#
# In each database there is a message of each topic, and one of each for a subscription
# that wants all. What one claim costs must not grow with the number of topics, and no
# database may stand still because of another.
#
# OUTBOX_SCALE=20 is 100,000 topics in all, which with the subscription are more lanes
# than shared memory has room for by default.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use Test::More;
use Time::HiRes qw(time);

my @dbs = qw(postgres d1 d2 d3);
my $ntopics = 1250 * (scale() < 20 ? scale() : 20);
my $node = new_node('topics', conf => "outbox.discovery_interval = 1s\noutbox.lane_memory = 128MB\nmax_worker_processes = 20");
my (%dbh, %took);
my $npublished = 0;

sub timed
{
	my ($what, $code) = @_;
	my $began = time;
	my $result = $code->();

	$took{$what}{n}++;
	$took{$what}{s} += time - $began;
	return $result;
}

for my $db (@dbs)
{
	$node->safe_psql('postgres', "CREATE DATABASE $db") if $db ne 'postgres';
	$node->safe_psql($db, 'CREATE EXTENSION outbox') if $db ne 'postgres';
	my $dbh = $dbh{$db} = connect_to($node, db => $db);

	$dbh->do("SELECT outbox.subscribe('all', '{#}'), outbox.subscribe('none', '{other.#}')");
	$dbh->do("SELECT outbox.subscribe('many' || i, '{background}') FROM generate_series(1, 12) i");
	timed("enqueue in $ntopics topics", sub { $dbh->do("SELECT outbox.enqueue('t' || i, 'enqueued'::text) FROM generate_series(1, ?::int) i", undef, $ntopics) });
	timed("publish in $ntopics topics", sub { $dbh->do("SELECT outbox.publish('t' || i, 'published'::text) FROM generate_series(1, ?::int) i", undef, $ntopics) });
	is_deeply([ map { $_->[0] } $dbh->selectall_array("SELECT count(*) FROM outbox.queue WHERE payload = ANY ('{enqueued,published}') GROUP BY payload") ],
		[ $ntopics, $ntopics ], "$db: a message of each topic, and a delivery");
}

# ---- what one call costs

# How often does a call look into the indexes of the queue?
sub looks
{
	my ($dbh, $call) = @_;
	my $scans = sub { value($dbh, "SELECT sum(pg_stat_get_xact_numscans(indexrelid)) FROM pg_index WHERE indrelid = 'outbox.queue'::regclass") };

	$dbh->do('BEGIN');
	my $before = $scans->();
	my $n = $call->();
	my $looks = $scans->() - $before;
	$dbh->do('COMMIT');
	return ($n, $looks);
}

my %claims = (
	'any' => '',
	'of a topic' => ", topics => '{t7}'",
	'of a topic that there is not' => ", topics => '{nothing}'",
	'of a subscription' => ", subscription => 'all'",
	'of a subscription, of a topic' => ", subscription => 'all', topics => '{t8}'",
	'of a subscription that has nothing' => ", subscription => 'none'");

for my $db (@dbs)
{
	my $dbh = $dbh{$db};

	for my $which (sort keys %claims)
	{
		my $claim = sub { value($dbh, "SELECT count(*) FROM outbox.claim(gen_random_uuid(), 60, 1$claims{$which})") };

		# the first one searches for topics with messages
		timed("first claim $which", $claim);
		my ($n, $looks) = looks($dbh, sub { timed("claim $which", $claim) });
		# there was one of a topic
		is($n, $which eq 'any' || $which eq 'of a subscription' ? 1 : 0, "$db: a second claim $which");
		cmp_ok($looks, '<', 10, "$db: a claim $which looks into indexes $looks times");
	}
	timed('claim of 100', sub { value($dbh, 'SELECT count(*) FROM outbox.claim(gen_random_uuid(), 60, 100)') });
	timed('round of maintenance', sub { $dbh->do('SELECT outbox.run_maintenance()') });
	timed('status()', sub { $dbh->do('SELECT count(*) FROM outbox.status()') });
	timed('subscriptions', sub { is(value($dbh, "SELECT ready > 0 FROM outbox.subscriptions WHERE subscription = 'all'"), 1, "$db: the view of subscriptions") });
	timed('unsubscribe', sub { $dbh->do("SELECT outbox.unsubscribe('none')") });
}

# ---- none stands still because of another

sub works
{
	my ($db, $name) = @_;
	my $dbh = $dbh{$db};
	my $payload = 'p' . ++$npublished;

	timed('delivery in the background', sub {
		$dbh->do("SELECT outbox.publish('background', ?::text)", undef, $payload);
		ok(poll(sub { count_of($dbh, "outbox.queue WHERE payload = '$payload'") == 13 }, 30), "$db: $name: what is published is delivered");
	});
	$dbh->do("SELECT outbox.schedule_timer('timed', 'p'::text, clock_timestamp())");
	return ok(poll(sub { value($dbh, "SELECT count(*) FROM outbox.claim(gen_random_uuid(), 60, 1, topics => '{timed}')") }, 30), "$db: $name: a timer comes");
}

works($_, 'with others') for @dbs;
my $stuck = connect_to($node, db => 'd1');

$stuck->do('BEGIN');
$stuck->do('LOCK TABLE outbox.queue IN SHARE MODE');
$dbh{d1}->do("SELECT outbox.publish('background', 'waits'::text)");
ok(poll(sub { count_of($stuck, "pg_locks WHERE relation = 'outbox.queue'::regclass AND NOT granted") }, 30), 'the worker of d1 stands still');
works($_, 'while d1 stands still') for grep { $_ ne 'd1' } @dbs;
$stuck->do('ROLLBACK');
works('d1', 'afterwards');

# and everything can be claimed
for my $db (@dbs)
{
	my $dbh = $dbh{$db};
	my %got;

	for my $subscription ('', 'all')
	{
		$dbh->do('SELECT outbox.release(owner_token) FROM (SELECT DISTINCT owner_token FROM outbox.queue WHERE status = 1) q');
		my $claim = 'SELECT c.topic FROM outbox.claim(gen_random_uuid(), 600, 10000' . ($subscription ? ", subscription => 'all'" : '') . ") c WHERE c.topic ~ '^t[0-9]'";

		timed('claim of 10,000', sub {
			while (my @topics = map { $_->[0] } $dbh->selectall_array($claim)) { $got{"$_ $subscription"}++ for @topics }
		});
	}
	is(scalar keys %got, 2 * $ntopics, "$db: all can be claimed");
	is_deeply([ grep { $_ != 1 } values %got ], [], "$db: each once");
	nothing_stranded($dbh, $db) if $ntopics < 10_000;
}
note(sprintf '%s: %.2f ms', $_, 1000 * $took{$_}{s} / $took{$_}{n}) for sort keys %took;
note('shared memory: ' . value($dbh{postgres}, "SELECT status || ', ' || detail FROM outbox.status() WHERE component = 'shared memory'"));
note('memory of a session: ' . value($dbh{postgres}, "SELECT pg_size_pretty(sum(total_bytes)) || ', of the extension ' || pg_size_pretty(sum(total_bytes) FILTER (WHERE name LIKE 'outbox%')) FROM pg_backend_memory_contexts"));
$node->stop;
done_testing();
