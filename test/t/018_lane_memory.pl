# Claims find all messages even if shared memory has no room for all topics.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use Test::More;

my $node = new_node('lane_memory', preload => 1, conf => "outbox.lane_memory = '1MB'\noutbox.databases = ''\n");
my $dbh = connect_to($node);
my $owner = owner(1);

sub claim_ids
{
	my ($topics) = @_;
	return scalar @{ $dbh->selectcol_arrayref(
		"SELECT id FROM outbox.claim('$owner', 300, 100, 'default', ?)", undef, $topics) };
}

# more topics than there is room for, all with a message; and one that comes last
$dbh->do(q(SELECT count(outbox.enqueue('t' || i, 'p')) FROM generate_series(1, 10000) i));
$dbh->do(q(SELECT outbox.enqueue_many('late', array_fill('p'::text, ARRAY[250]))));
$dbh->do(q(SELECT outbox.enqueue_many('later', array_fill('p'::text, ARRAY[50]))));
$dbh->do(q(SELECT count(outbox.enqueue('classes', 'p', priority => i % 5 - 2)) FROM generate_series(1, 50) i));
$dbh->do(q(SELECT count(outbox.enqueue('urgent', 'p', priority => 2)) FROM generate_series(1, 3) i));
is(value($dbh, 'SELECT lanes_in_use = lanes FROM outbox._library()'), 1, 'the memory is full');

is_deeply([ map { claim_ids(['late']) } 1 .. 4 ], [ 100, 100, 50, 0 ],
	'claims that name a topic without a place in memory find all it has');
is(claim_ids([ 'none', 'later', 't9999' ]), 51, 'and so if they name more topics');

is(claim_ids(['classes']), 50, 'a claim finds messages of all priorities');
is_deeply([ map { claim_ids([ 'urgent', 'late' ]) } 1 .. 2 ], [ 3, 0 ], 'and where there is nothing of priority 0');

# claims over all topics get there in time
my $got = 0;
for (1 .. 10_000)
{
	$got += claim_ids(undef);
	last if $got == 9_999;
}
is($got, 9_999, 'claims over all topics find the rest');

$dbh->disconnect;
$node->stop;

# --- more topics than there is memory for
$node = new_node('full', conf => "outbox.lane_memory = 1\nfsync = off");
$dbh = connect_to($node);
my $anna = owner(1);
{
	my $n = 6000;
	my @named = map { $_ * 300 } 1 .. 19;
	my $waiting = connect_to($node);

	$dbh->do("SELECT count(outbox.enqueue('topic' || i, 'p' || i)) FROM generate_series(1, $n) i");
	$dbh->do('SELECT outbox.claim(?, 60, 1)', undef, $anna);
	is_deeply([ grep { !value($dbh, "SELECT count(*) FROM outbox.claim(?, 60, 1, namespace => 'default', topics => ?)", $anna, ["topic$_"]) } @named ], [], 'a claim of a topic gets what is in it');
	$dbh->do('SELECT outbox.release(?)', undef, $anna);
	my @missed;
	for my $topic (map { $_ + 1 } @named[ 0 .. 7 ])
	{
		begin_call($waiting, "SELECT payload FROM outbox.claim(?, 60, 1, namespace => 'default', topics => ?, wait_ms => 2000)", $anna, ["topic$topic"]);
		push @missed, $topic if !@{ end_call($waiting)->{rows} };
	}
	is_deeply(\@missed, [], 'one that waits, too');
	$waiting->disconnect;

	# and workers leave a database all the same
	$dbh->do('CREATE DATABASE other');
	my $other = connect_to($node, db => 'other');
	$other->do('CREATE EXTENSION outbox');
	$other->do("SELECT count(outbox.enqueue('t' || i, 'x')) FROM generate_series(1, 3000) i");
	$other->disconnect;
	ok(poll(sub { $dbh->do('DROP DATABASE other'); 1 }, 20), 'a database with many topics can be dropped');
}
$dbh->disconnect;
$node->stop;
done_testing();
