# A restart preserves leases, due times and the order of streams, and loses only the
# contents of shared memory.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use Test::More;

my $node = new_node('restart', workers => 0);
my $lease = 4;
my ($anna, $berta) = (owner(1), owner(2));
my ($s1, $s2) = (owner(101), owner(102));
my $dbh;

sub claim
{
	my ($owner, $topic, $batch, $seconds) = @_;

	return map { $_->[0] } $dbh->selectall_array(
		'SELECT payload FROM outbox.claim(?, ?, ?, topics => ?)', undef, $owner, $seconds // 60, $batch // 10_000, [$topic]);
}

sub ids_of { return [ map { $_->[0] } $dbh->selectall_array('SELECT id FROM outbox.queue WHERE topic = ? ORDER BY id', undef, shift) ] }

sub state_of
{
	return join "\n", map { $_->[0] } $dbh->selectall_array('SELECT m::text FROM outbox.messages m ORDER BY id');
}

sub restart
{
	my $how = shift;
	my $before = state_of();

	if ($how eq 'kill')
	{
		kill_server($node);
	}
	else
	{
		$dbh->disconnect;
		$node->stop($how);
		$node->start;
	}
	$dbh = connect_to($node);
	is(state_of(), $before, "$how: every message is as it was");
	return;
}

for my $how (qw(fast immediate kill))
{
	$dbh = connect_to($node);
	$dbh->do('TRUNCATE outbox.queue, outbox.dedupe, outbox.dead, outbox.archive');

	# 10,000 leases of one, some of another; one that will have ended
	$dbh->do("SELECT outbox.enqueue_many('open', ARRAY(SELECT i::text FROM generate_series(1, 10000) i))");
	$dbh->do("SELECT outbox.enqueue_many('kept', '{1,2,3}')");
	$dbh->do("SELECT outbox.enqueue_many('ready', ARRAY(SELECT i::text FROM generate_series(1, 200) i))");
	$dbh->do("SELECT outbox.enqueue('due', ?, due_time => clock_timestamp() + ?::interval)", undef, @$_)
	  for [ 'soon', "$lease s" ], [ 'tomorrow', '1 day' ];
	for my $stream ($s1, $s2)
	{
		$dbh->do("SELECT outbox.enqueue('line', i::text, stream_id => ?) FROM generate_series(1, 5) i", undef, $stream);
	}
	is(scalar(claim($anna, 'kept', 3)), 3, "$how: three leases that last");
	claim($anna, 'ready', 100);
	$dbh->do("SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases WHERE topic = 'ready'", undef, $anna);
	# the first of one stream is leased, that of the other waits for its retry
	is_deeply([ claim($anna, 'line', 1) ], [1], "$how: the first of a stream");
	is(value($dbh, "SELECT outbox.nack(?, array_agg(id), 'wait', ?::interval) FROM outbox.leases WHERE stream_id = ?", $anna, "$lease s", $s1), 1, "$how: it waits");
	is_deeply([ claim($anna, 'line', 1) ], [1], "$how: the first of the other");
	my @open = claim($berta, 'open', 10_000, $lease);
	is(scalar @open, 10_000, "$how: 10,000 leases");
	my $until = value($dbh, "SELECT extract(epoch FROM min(locked_until)) FROM outbox.queue WHERE topic = 'open'");

	restart($how);

	# claims find the messages without shared memory
	is_deeply([ sort { $a <=> $b } claim($anna, 'ready') ], [ 101 .. 200 ], "$how: the first claim sees all that is ready");
	is(count_of($dbh, 'outbox.leases'), 10_000 + 3 + 1 + 100, "$how: the leases are there");

	# leases
	my $early = scalar claim($anna, 'open');
	if (value($dbh, 'SELECT extract(epoch FROM clock_timestamp())') < $until)
	{
		is($early, 0, "$how: what is leased cannot be claimed");
	}
	else { fail("$how: the restart was too slow to tell") }
	my $ids = ids_of('open');
	is(value($dbh, 'SELECT outbox.ack(?, ?::bigint[], array_fill(1, ARRAY[100]))', $berta, [ @{$ids}[ 0 .. 99 ] ]), 100, "$how: the owner can ack");
	is(value($dbh, 'SELECT outbox.nack(?, ?::bigint[])', $anna, [ @{$ids}[ 100 .. 199 ] ]), 0, "$how: no other owner can");
	is(value($dbh, 'SELECT outbox.renew(?, ?::bigint[], 60)', $berta, [ @{$ids}[ 100 .. 299 ] ]), 200, "$how: the owner can renew");

	# streams, and what is due
	is_deeply([ claim($berta, 'line') ], [], "$how: behind a retry, and behind a lease");
	is_deeply([ claim($anna, 'line', 2) ], [ 2, 3 ], "$how: the holder goes on");
	is_deeply([ claim($anna, 'due') ], [], "$how: not due yet");
	ok(poll(sub { value($dbh, 'SELECT extract(epoch FROM clock_timestamp()) > ?::float', $until + 0.5) }), "$how: time passes");
	my $got = 0;
	poll(sub { $got += claim($anna, 'open'); $got >= 9700 });
	is($got, 9700, "$how: leases that have ended can be claimed");
	is(count_of($dbh, "outbox.queue WHERE topic = 'open' AND attempts = 2"), 9700, "$how: for the second time");
	is_deeply([ claim($anna, 'due') ], ['soon'], "$how: due");
	is_deeply([ claim($berta, 'line') ], [ 1 .. 5 ], "$how: the retry, and what is behind it, in order");
	is(value($dbh, "SELECT outbox.ack(?, array_agg(id)) FROM outbox.queue WHERE topic = 'line'", $anna), 3, "$how: the other stream goes on");
	is_deeply([ claim($berta, 'line') ], [ 4, 5 ], "$how: in order");
	is(value($dbh, "SELECT outbox.ack(?, array_agg(id)) FROM outbox.queue WHERE topic = 'kept'", $anna), 3, "$how: leases that last");

	# now the cursor corresponds to the contents of the table
	is(count_of($dbh, "outbox.claim('$anna', topics => '{ready,open,due,kept,line}')"), 0, "$how: nothing is left");
	$dbh->do("SELECT outbox.enqueue('ready', 'new')");
	is_deeply([ claim($anna, 'ready') ], ['new'], "$how: but what is new");
	$dbh->disconnect;
}

# --- what has been committed is there after a crash
{
	$dbh = connect_to($node);
	my $open = connect_to($node);

	$open->begin_work;
	$open->do("SELECT outbox.enqueue('durable', 'open')");
	$dbh->do("SELECT outbox.enqueue('crashed', 'p')");
	is_deeply([ claim($anna, 'crashed', 1, 1) ], ['p'], 'a lease of a worker that dies with the server');
	$dbh->do("SELECT outbox.enqueue('durable', ?)", undef, $_) for 1 .. 20;
	kill_server($node);
	$dbh = connect_to($node);
	is_deeply([ claim($anna, 'durable') ], [ 1 .. 20 ], 'OBX-001: what was enqueued survives a kill -9 of the server, and can be claimed');
	ok(poll(sub { join(' ', claim($berta, 'crashed')) eq 'p' }, 20), 'SHARED-20, SHARED-43: what a worker had when the server died is claimed by another when the lease is over');
	$dbh->disconnect;
}

# --- settings and sessions: a claim that waits ends with the server
{
	$dbh = connect_to($node);
	my $pid = client(sub {
		my $other = connect_to($node);
		$other->do("SELECT outbox.claim('$berta', topics => '{none}', wait_ms => 60000)");
	});
	ok(poll(sub { count_of($dbh, "pg_stat_activity WHERE query LIKE '%wait_ms%' AND pid <> pg_backend_pid() AND state = 'active'") }), 'a claim waits');
	$dbh->disconnect;
	$node->stop('fast');
	is(waitpid($pid, 0), $pid, 'it ends with the server');
	$node->start;
}

check_indexes($node);
$node->stop;
done_testing();
