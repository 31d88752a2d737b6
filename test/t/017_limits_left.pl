# Costs and waits that still depend on what others have left; see 016_limits.pl.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use Test::More;

my $node = new_node('left', workers => 0, conf => "autovacuum = off\nfsync = off");
my ($anna, $berta) = map { owner($_) } 1 .. 2;
my $stream = owner(101);
my $dbh = connect_to($node);

# How many pages the execution of a statement looks at.
sub pages
{
	my ($session, $statement, @parameters) = @_;
	my $plan = join "\n", map { $_->[0] } $session->selectall_array("EXPLAIN (ANALYZE, BUFFERS, FORMAT json) $statement", undef, @parameters);
	my $n = 0;

	# those of the whole plan come first
	$plan =~ /"Shared $_ Blocks": (\d+)/ and $n += $1 for qw(Hit Read);
	return $n;
}

# --- what was finished behind the head of a stream, which is leased for long
{
	my $old = connect_to($node);
	my $enqueue = "SELECT outbox.enqueue('t', 'p', stream_id => ?)";
	my $claim = 'SELECT outbox.claim(?, 600, 1)';
	my %pages;

	$dbh->do("SELECT outbox.enqueue('t', 'head', stream_id => ?)", undef, $stream);
	$dbh->do($claim, undef, $anna);
	$old->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
	count_of($old, 'outbox.queue');
	for my $round (1 .. 1000)
	{
		my $look = $round == 50 || $round == 1000;
		my $call = sub {
			my ($what, @call) = @_;

			if ($look) { push @{ $pages{$what} }, pages($dbh, @call) }
			else { $dbh->do($call[0], undef, @call[ 1 .. $#call ]) }
		};

		$call->('enqueue', $enqueue, $stream);
		$call->('claim', $claim, $anna);
		my $ids = value($dbh, "SELECT array_agg(id) FROM outbox.queue WHERE owner_token = ? AND payload <> 'head'", $anna);
		$call->('ack', 'SELECT outbox.ack(?, ?)', $anna, $ids);
	}
	cmp_ok($pages{$_}[1], '<=', $pages{$_}[0] + 12, "behind the head of a stream, under an old snapshot, $_") for sort keys %pages;
	$old->do('COMMIT');
	$old->disconnect;
}

# --- instances that give signs of life, while an old snapshot keeps them
{
	my $old = connect_to($node);
	my $batch = "SELECT * FROM outbox.process_work_batch(?, 's', 'h', 1)";

	$dbh->do($batch, undef, $_) for $anna, $berta;
	$old->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
	count_of($old, 'outbox.instances');
	pages($dbh, $batch, $anna);
	my $before = pages($dbh, $batch, $anna);
	$dbh->do('UPDATE outbox.instances SET last_heartbeat_at = last_heartbeat_at') for 1 .. 2000;
	cmp_ok(pages($dbh, $batch, $anna), '<=', $before + 12, 'a batch after 2000 signs of life');
	$old->do('COMMIT');
	$old->disconnect;
}
$dbh->disconnect;
$node->stop;

# --- more topics than there is memory for
$node = new_node('full', conf => "outbox.lane_memory = 1\nfsync = off");
$dbh = connect_to($node);
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
