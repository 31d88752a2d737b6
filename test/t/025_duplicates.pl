# Keys that are taken for a limited time, and messages that are replaced or debounced,
# where a server of its own is needed: prepared transactions, a restart, a worker.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use Test::More;

my $node = new_node('duplicates');
my ($anna, $berta) = (owner(1), owner(2));
my $dbh = connect_to($node);
my $other = connect_to($node);

sub try_enqueue
{
	my ($dbh, $key, $payload, %more) = @_;
	my @names = sort keys %more;
	my $arguments = join '', map { ", $_ => ?" } @names;

	return value($dbh, "SELECT outcome FROM outbox.try_enqueue('t', ?, dedupe_key => ?$arguments)", $payload, $key, @more{@names});
}

sub claimed { return join ' ', map { $_->[0] } $dbh->selectall_array("SELECT payload FROM outbox.claim(?, topics => '{t}') ORDER BY id", undef, $anna) }

sub prepare
{
	my ($gid, $do) = @_;

	$other->do('BEGIN');
	$do->();
	$other->do("PREPARE TRANSACTION '$gid'");
	return;
}

# What an enqueue says that waits for a prepared transaction, which ends then.
sub after
{
	my ($end, %more) = @_;
	my $waiter = connect_to($node);
	my $query = "SELECT outcome FROM outbox.try_enqueue('t', 'late', dedupe_key => 'k', on_duplicate => '$more{how}')";

	begin_call($waiter, $query);
	ok(poll(sub { value($dbh, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = ?", $waiter->{pg_pid}) }), "$more{name}: it waits");
	$dbh->do("$end PREPARED 'it'");
	my $outcome = end_call($waiter)->{rows}[0][0];
	$waiter->disconnect;
	return $outcome;
}

# --- prepared, and over a restart

for my $restart (0, 1)
{
	my $name = $restart ? 'over a restart' : 'prepared';
	my $again = sub {
		return if !$restart;
		$_->disconnect for $dbh, $other;
		kill_server($node);
		($dbh, $other) = (connect_to($node), connect_to($node));
	};

	for my $end (qw(COMMIT ROLLBACK))
	{
		$dbh->do('TRUNCATE outbox.queue, outbox.dedupe, outbox.dead, outbox.archive');
		is(try_enqueue($dbh, 'k', 'old'), 'enqueued', "$name: a message");
		prepare('it', sub { is(try_enqueue($other, 'k', 'new', on_duplicate => 'replace'), 'replaced', "$name: replaced") });
		$again->();
		is(claimed(), '', "$name: undecided");
		$dbh->do("$end PREPARED 'it'");
		is(claimed(), $end eq 'COMMIT' ? 'new' : 'old', "$name: $end of a replacement");

		$dbh->do('TRUNCATE outbox.queue, outbox.dedupe');
		is(try_enqueue($dbh, 'k', 'old'), 'enqueued', "$name: a message");
		prepare('it', sub { $other->do("SELECT outbox.claim('$berta', topics => '{t}')") });
		$again->();
		$dbh->do("SET lock_timeout = '10ms'");
		is_state($dbh, "SELECT outbox.try_enqueue('t', 'new', dedupe_key => 'k', on_duplicate => 'replace')", '55P03', "$name: not for longer than the caller wants");
		$dbh->do('RESET lock_timeout');
		is(after($end, how => 'replace', name => $name), $end eq 'COMMIT' ? 'kept' : 'replaced', "$name: after the $end of a claim");
		is(value($dbh, "SELECT payload || ' ' || status FROM outbox.messages"), $end eq 'COMMIT' ? 'old 1' : 'late 0', "$name: so it is");

		# who takes a key over whose time is over
		$dbh->do('TRUNCATE outbox.queue, outbox.dedupe');
		is(try_enqueue($dbh, 'k', 'first', dedupe_for => '1 us'), 'enqueued', "$name: a key");
		prepare('it', sub { is(try_enqueue($other, 'k', 'second', dedupe_for => '1 hour'), 'enqueued', "$name: taken over") });
		$again->();
		is(after($end, how => 'keep', name => $name), $end eq 'COMMIT' ? 'kept' : 'enqueued', "$name: after the $end of that");
		is(value($dbh, 'SELECT string_agg(payload, \' \' ORDER BY id) FROM outbox.queue'), $end eq 'COMMIT' ? 'first second' : 'first late', "$name: so it is");
	}
}

# --- a claim that waits takes what is debounced to now

{
	my $claimer = connect_to($node);

	$dbh->do('TRUNCATE outbox.queue, outbox.dedupe');
	is(try_enqueue($dbh, 'k', 'parked', due_time => 'infinity'), 'enqueued', 'a message that is parked');
	begin_call($claimer, "SELECT payload FROM outbox.claim('$berta', topics => '{t}', wait_ms => 60000)");
	ok(poll(sub { sleeps($dbh, $claimer) }), 'a claim waits');
	is(try_enqueue($dbh, 'k', '', on_duplicate => 'debounce'), 'debounced', 'it is due');
	is(end_call($claimer)->{rows}[0][0], 'parked', 'the claim has it');
	$claimer->disconnect;
}

# --- the worker forgets keys, soon after their time, and not before

{
	# it has upkeep some time after it was there first
	$dbh->do("SELECT outbox.schedule_timer('timer', 'p', now())");
	ok(poll(sub { count_of($dbh, "outbox.queue WHERE topic = 'timer'") }), 'the worker has been there');
	$dbh->do('TRUNCATE outbox.queue, outbox.dedupe');
	is(try_enqueue($dbh, 'long', 'p', dedupe_for => '1 hour'), 'enqueued', 'a key for an hour');
	is(try_enqueue($dbh, 'plain', 'p'), 'enqueued', 'one as long as its message is kept');
	is(try_enqueue($dbh, 'short', 'p', dedupe_for => '1 s'), 'enqueued', 'one for a second');
	ok(poll(sub { count_of($dbh, 'outbox.dedupe') < 3 }, 120), 'it is forgotten');
	is(value($dbh, 'SELECT string_agg(m.dedupe_key, \' \' ORDER BY m.id) FROM outbox.dedupe d JOIN outbox.messages m USING (message_id)'), 'long plain', 'the others are there');
}

check_indexes($node);
$node->stop;
done_testing();
