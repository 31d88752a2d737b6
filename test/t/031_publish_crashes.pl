# What a crash in the middle of a delivery leaves behind.
#
# Publications that many subscriptions want are delivered in the background, and so is
# what was published before a subscription was there, and what is replayed. Whatever is
# killed in the middle of that, the worker, a session that does the same, or the server:
# in the end each subscription has got each publication once, and once more for each
# replay, and streams are in the order in which they were published.
#
# OUTBOX_SEED makes the moments the same; OUTBOX_SCALE says how many crashes there are.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use Test::More;

# More than are served at once, and more publications than are replayed in one step.
my @names = map { "s$_" } 1 .. 11;
my @streams = map { "53535353-0000-4000-8000-00000000000$_" } 1 .. 3;
my $nbefore = 1500;
my $dbh;
my $npublished = 0;
my %more = map { $_ => 0 } @names;

seed();
my $node = new_node('crashes', conf => "outbox.publish_retention = '1 d'");

# One by one and together, with copied and with shared payloads.
sub publish_some
{
	my ($n, @streams) = @_;

	for my $i (1 .. $n)
	{
		my $stream = $streams[ rand @streams ];
		my $payload = rand() < 0.2 ? 'x' x 3000 : 'x';

		if (rand() < 0.7) { $dbh->do("SELECT outbox.publish('a', ?::text, stream_id => ?)", undef, $payload, $stream) }
		else { $dbh->do("SELECT outbox.publish_many('a', ?, stream_id => ?)", undef, [$payload], $stream) }
	}
	$npublished += $n;
	return;
}

sub replay
{
	my $name = $names[ rand @names ];
	my $n = value($dbh, "SELECT outbox.replay(?, '-infinity')", $name);

	is($n, $npublished, 'all that was published is to be replayed');
	$more{$name} += $n;
	return;
}

sub is_left { return value($dbh, 'SELECT outbox._publishes_later()::int') }

# It is killed; the server is, or is stopped at once, if no process is given.
sub crash
{
	my $pid = shift;

	if ($pid) { kill_backend($node, $pid) }
	elsif (rand() < 0.5) { kill_server($node) }
	else
	{
		$node->stop('immediate');
		$node->start;
	}
	$dbh = connect_to($node);
	return;
}

# Each has everything as often as it must, and streams are in order.
sub check_all
{
	my $name = shift;

	ok(poll(sub { !is_left() }, 120), "$name: nothing is left to do");
	my %got = map { $_->[0] => "$_->[1] of $_->[2]" } $dbh->selectall_array(<<'Q');
SELECT s.subscription, count(*), count(DISTINCT q.published_id)
  FROM outbox.queue q JOIN outbox.subscribers s ON s.id = q.subscriber GROUP BY 1
Q
	is_deeply(\%got, { map { $_ => ($npublished + $more{$_}) . " of $npublished" } @names }, "$name: each got all");
	# these ids are unique, so none came twice
	is(value($dbh, <<'Q'), $npublished * @names, "$name: each got each once, but for replays");
SELECT count(*) FROM outbox.queue q WHERE q.message_id = outbox._delivery_id(q.published_id, q.subscriber)
Q
	is(value($dbh, <<'Q'), 0, "$name: streams are in order");
SELECT count(*)
  FROM (SELECT p.seq, lag(p.seq) OVER (PARTITION BY q.subscriber, p.stream_id ORDER BY q.stream_seq) AS before
          FROM outbox.queue q JOIN outbox.publications p USING (published_id)
         WHERE p.stream_id IS NOT NULL
           AND q.message_id = outbox._delivery_id(q.published_id, q.subscriber)) o
 WHERE o.seq < o.before
Q
	return;
}

# ---- at chosen moments

# A session keeps the others from writing messages, the worker in the middle of a
# publication; and may be in the middle of something itself.
sub crash_stopped
{
	my ($what, $call) = @_;
	my $holder = connect_to($node);
	my $worker;

	publish_some(10, @streams);
	$holder->do('BEGIN');
	$holder->do('LOCK TABLE outbox.queue IN SHARE ROW EXCLUSIVE MODE');
	publish_some(5, undef);
	replay();
	$worker = poll(sub { value($dbh, <<'Q') });
SELECT w.pid FROM pg_locks w JOIN pg_locks h USING (pid)
 WHERE w.relation = 'outbox.queue'::regclass AND NOT w.granted
   AND h.relation = 'outbox.expansions'::regclass AND h.mode = 'RowExclusiveLock'
Q
	ok($worker, "$what: the worker is in the middle of a publication");
	ok(poll(sub { value($holder, $call) }), "$what: a session is in the middle of $call") if $call;
	crash({ worker => $worker, session => $holder->{pg_pid}, server => undef }->{$what});
	check_all($what);
	return;
}

# ---- at any moment

sub still_to_do
{
	return value($dbh, <<'Q', $npublished);
SELECT coalesce((SELECT sum(cardinality(subscribers)) FROM outbox.expansions), 0)
       + (SELECT coalesce(sum(? - delivered), 0) FROM outbox.replays)
Q
}

# Undef if there is none just now.
sub worker_pid { return value($dbh, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox worker' AND datname = 'postgres'}) }

sub crash_anywhere
{
	my $what = shift;

	publish_some(100, @streams, undef);
	replay() for 1 .. 1 + rand 3;
	my $until = rand still_to_do();

	poll(sub { still_to_do() <= $until });
	crash($what eq 'server' ? undef : worker_pid());
	check_all("$what, anywhere");
	return;
}

$dbh = connect_to($node);
$dbh->do("SELECT outbox.subscribe('s1', '{a}')");
$dbh->do("SELECT outbox.publish_many('a', array_fill('before'::text, ARRAY[$nbefore]))");
$npublished = $nbefore;
# they get all of that first
$dbh->do('SELECT outbox.subscribe(name, ?, start_at => ?) FROM unnest(?::text[]) name', undef, ['a'], '-infinity', [ @names[ 1 .. $#names ] ]);
crash_anywhere('server');
for (1 .. scale())
{
	crash_stopped('worker');
	crash_stopped('session', 'SELECT (outbox._expand(0)).expanded');
	crash_stopped('session', 'SELECT outbox._replay()');
	crash_stopped('server', 'SELECT outbox._replay()');
	crash_anywhere('worker');
	crash_anywhere('server') if rand() < 0.5;
}
nothing_stranded($dbh, 'in the end');
check_indexes($node);
$node->stop;
done_testing();
