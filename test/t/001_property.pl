# A claim finds what it must, whatever transactions did before it.
#
# Sessions do random things - begin, enqueue, replace, claim, wait and be cancelled,
# settle, truncate, read views, use savepoints and roll back to them, commit, roll
# back, prepare - one after the other, so that each step ends before the next begins.
# Every few steps the model says what a claim must return, and in which order: what
# SQL finds with FOR UPDATE SKIP LOCKED, and of streams only messages that have
# nothing else before them. The claim is then rolled back, or committed and released,
# which is part of the test. Now and then, and at the end, with open transactions and
# without, a claim must find the same as one that does not use shared memory.
#
# This is done with many seeds, in each of several modes. OUTBOX_SEEDS is the number
# of seeds, OUTBOX_STEPS the number of steps with each; OUTBOX_SEED is the first seed,
# which the others follow.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use Test::More;

# what is overdue can come before what is urgent
use constant BOOST => "SET outbox.priority_boost = '100ms'";

my $first_seed = $ENV{OUTBOX_SEED} || int(rand(1_000_000));
my $nmodes = 8;
my $seeds = int((($ENV{OUTBOX_SEEDS} || 32 * scale()) + $nmodes - 1) / $nmodes);
my $steps = $ENV{OUTBOX_STEPS} || 300;
my $nsessions = 6;
my @streams = map { "51515151-0000-4000-8000-00000000000$_" } 1 .. 3;
my @tenants = map { "52525252-0000-4000-8000-00000000000$_" } 1 .. 2;

my $node = new_node('property', workers => 0, preload => $ENV{OUTBOX_PRELOAD} // 1, conf => "outbox.debounce_max = '100ms'");
my ($admin, @sessions, @prepared);
my ($nprepared, $nchecks, $nordered) = (0, 0, 0);
my $has_room;
my %mode;

sub open_session
{
	my $i = shift;
	my $open = $mode{open}[$i] // \&connect_to;
	my $dbh = $open->($node, settings => [ "SET lock_timeout = '30ms'", BOOST, @{ $mode{settings} } ]);

	$sessions[$i] = {
		dbh => $dbh,
		open => 0,
		savepoints => 0,
		owner => owner($i + 1),
		held => []
	};
	return;
}

# New sessions, since the old ones have ended.
sub open_sessions
{
	$admin = connect_to($node, settings => [ "SET lock_timeout = '5s'", BOOST, @{ $mode{settings} } ]);
	# it uses the shared memory before others may have to work without it
	$has_room = value($admin, 'SELECT lanes > 256 FROM outbox._library()');
	open_session($_) for 0 .. $nsessions - 1;
	return;
}

sub reset_all
{
	open_sessions();
	$admin->do("ROLLBACK PREPARED '$_->[0]'")
	  for $admin->selectall_array('SELECT gid FROM pg_prepared_xacts');
	$admin->do('TRUNCATE outbox.queue, outbox.dedupe, outbox.dead, outbox.archive');
	@prepared = ();
	return;
}

sub random_topic { return 't' . int(rand(3)) }

sub random_tenant { return rand() < 0.6 ? 'NULL' : "'$tenants[rand @tenants]'" }

sub random_due
{
	my $r = rand;
	return 'NULL' if $r < 0.7;
	return sprintf("clock_timestamp() + interval '%d ms'", rand(40)) if $r < 0.85;
	return sprintf("clock_timestamp() - interval '%d ms'", rand(4000));
}

sub random_priority { return rand() < 0.5 ? undef : int(rand(5)) - 2 }

# Several at once, of any topics and priorities.
sub enqueue_batch
{
	my ($session, $stream) = @_;
	my @messages;

	for (1 .. 1 + int(rand(12)))
	{
		my $priority = random_priority() // 'null';
		my $tenant = random_tenant() =~ s/NULL/null/r =~ tr/'/"/r;

		push @messages, sprintf('{"topic": "%s", "payload": "p", "priority": %s, "tenant_id": %s, "stream_id": %s}',
			random_topic(), $priority, $tenant, $stream =~ s/NULL/null/r =~ tr/'/"/r);
	}
	$session->{dbh}->do('SELECT count(*) FROM outbox.enqueue_batch(?)', undef, '[' . join(', ', @messages) . ']');
	return;
}

sub enqueue
{
	my $session = shift;
	my $topic = random_topic();
	my $due = random_due();
	my $stream = $mode{streams} && rand() < 0.5 ? "'$streams[rand @streams]'" : 'NULL';

	my $tenant = random_tenant();
	my $priority = random_priority() // 'NULL';
	if (rand() < 0.15)
	{
		enqueue_batch($session, $stream);
	}
	elsif ($tenant eq 'NULL' && rand() < 0.3)
	{
		my $n = 1 + int(rand(12));
		$session->{dbh}->do("SELECT outbox.enqueue_many('$topic', array_fill('p'::text, ARRAY[$n]), due_time => $due, stream_id => $stream)");
	}
	else
	{
		$session->{dbh}->do("SELECT outbox.enqueue('$topic', 'p', due_time => $due, stream_id => $stream, tenant_id => $tenant, priority => $priority)");
	}
	return;
}

# A message that is replaced or postponed by others like it, or that takes over their key.
sub enqueue_keyed
{
	my $session = shift;
	my $topic = random_topic();
	my $due = random_due();
	my $stream = $mode{streams} && rand() < 0.5 ? "'$streams[rand @streams]'" : 'NULL';
	my $for = rand() < 0.5 ? 'NULL' : sprintf("interval '%d ms'", 1 + rand(60));
	my $what = (qw(keep replace debounce))[rand 3];

	$session->{dbh}->do("SELECT outbox.try_enqueue('$topic', 'k', due_time => $due, stream_id => $stream, dedupe_key => ?, dedupe_for => $for, on_duplicate => '$what')",
		undef, 'k' . int(rand(6)));
	return;
}

sub claim
{
	my ($session, $wait_ms) = @_;
	my $topics = rand() < 0.5 ? 'NULL' : "ARRAY['" . random_topic() . "']";
	my $namespace = rand() < 0.5 ? 'NULL' : "'default'";
	my $tenant = rand() < 0.7 ? 'NULL' : random_tenant();
	my $batch = 1 + int(rand(rand() < 0.2 ? 200 : 12));

	$topics = "'{none}'" if $wait_ms && rand() < 0.5;
	push @{ $session->{held} }, map { $_->[0] } $session->{dbh}->selectall_array(
		"SELECT id FROM outbox.claim('$session->{owner}', 1, $batch, $namespace, $topics, tenant_id => $tenant, max_attempts => 1000, wait_ms => @{[ $wait_ms // 0 ]})");
	return;
}

# Wait, and perhaps be cancelled.
sub wait_a_while
{
	my $session = shift;
	my $cancelled = rand() < 0.7;

	$session->{dbh}->do("SET statement_timeout = '15ms'") if $cancelled;
	my $done = eval { claim($session, $cancelled ? 1000 : 10); 1 };
	my $error = $@;
	# the end of a transaction that has failed undoes it
	$session->{dbh}->do('RESET statement_timeout') if $done || !$session->{open};
	die $error if !$done;
	return;
}

# Read the views, as monitoring does.
sub look
{
	my $dbh = shift->{dbh};
	my $r = rand;

	if ($r < 0.4) { count_of($dbh, 'outbox.leases') }
	elsif ($r < 0.7) { value($dbh, 'SELECT sum(ready + leased) FROM outbox.topic_stats') }
	else { $dbh->selectall_array('SELECT e.* FROM (SELECT id FROM outbox.queue OFFSET ? LIMIT 2) q, outbox.explain_message(q.id) e', undef, int(rand(20))) }
	return;
}

# End whatever is open, one way or the other.
sub end_all
{
	for my $session (@sessions)
	{
		$session->{dbh}->do(rand() < 0.5 ? 'COMMIT' : 'ROLLBACK') if $session->{open};
		$session->{open} = 0;
	}
	$admin->do((rand() < 0.5 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$_'") for splice @prepared;
	return;
}

# TRUNCATE waits for all others, and they for it; so it is done alone. What follows in
# its transaction sees none of the earlier messages.
sub truncate_all
{
	my $session = shift;
	my $dbh = $session->{dbh};
	my $r = rand;

	end_all();
	$dbh->do('BEGIN');
	enqueue($session) if rand() < 0.3;
	claim($session) if rand() < 0.3;
	$dbh->do('SAVEPOINT t');
	$dbh->do('TRUNCATE outbox.queue');
	claim($session) if rand() < 0.7;
	enqueue($session) if rand() < 0.5;
	claim($session) if rand() < 0.5;
	$dbh->do('ROLLBACK TO t') if $r < 0.5;
	if ($r < 0.25) { @$session{qw(open savepoints)} = (1, 0) }
	else { $dbh->do($r < 0.4 || $r > 0.9 ? 'COMMIT' : 'ROLLBACK') }
	return;
}

sub settle
{
	my $session = shift;
	my $held = $session->{held};
	my @ids;
	my $r = rand;

	push @ids, splice(@$held, int(rand(@$held)), 1)
	  for 1 .. 1 + int(rand(@$held < 15 ? @$held : 15));
	my $ids = 'ARRAY[' . join(',', @ids) . ']::bigint[]';
	my $call =
	    $r < 0.40 ? "ack(%s, $ids)"
	  : $r < 0.65 ? sprintf("nack(%%s, $ids, 'e', interval '%d ms', max_attempts => 1000)", rand(30))
	  : $r < 0.75 ? "release(%s, $ids)"
	  : $r < 0.85 ? "renew(%s, $ids, 2)"
	  : $r < 0.95 ? "fail(%s, $ids)"
	  :             'release(%s)';
	push @$held, @ids if $call =~ /^renew/;
	$session->{dbh}->do('SELECT outbox.' . sprintf($call, "'$session->{owner}'"));
	return;
}

# Things that only make sense within a transaction.
sub go_on
{
	my ($session, $r) = @_;
	my $dbh = $session->{dbh};

	if ($r < 0.25)
	{
		$dbh->do('SAVEPOINT s' . ++$session->{savepoints}) if $session->{savepoints} < 3;
	}
	elsif ($r < 0.45)
	{
		$dbh->do("ROLLBACK TO s$session->{savepoints}") if $session->{savepoints};
	}
	elsif ($r < 0.55)
	{
		$dbh->do('RELEASE s' . $session->{savepoints}--) if $session->{savepoints};
	}
	elsif ($r < 0.65 && @prepared < 4)
	{
		my $gid = 'p' . ++$nprepared;
		$dbh->do("PREPARE TRANSACTION '$gid'");
		push @prepared, $gid;
		$session->{open} = 0;
	}
	else
	{
		$dbh->do($r < 0.9 ? 'COMMIT' : 'ROLLBACK');
		$session->{open} = 0;
	}
	return;
}

sub act
{
	my $session = shift;
	my $dbh = $session->{dbh};
	my $r = rand;

	if (!$session->{open} && rand() < 0.5)
	{
		$dbh->do('BEGIN' . (rand() < 0.1 ? ' ISOLATION LEVEL REPEATABLE READ' : ''));
		@$session{qw(open savepoints)} = (1, 0);
	}
	elsif ($r < 0.19) { enqueue($session) }
	elsif ($r < 0.24) { enqueue_keyed($session) }
	elsif ($r < 0.48) { claim($session) }
	elsif ($r < 0.50) { wait_a_while($session) }
	elsif ($r < 0.52) { look($session) }
	elsif ($r < 0.53) { truncate_all($session) }
	elsif ($r < 0.78) { settle($session) if @{ $session->{held} } }
	elsif ($r < 0.82) { $dbh->do('SELECT outbox.reap()') }
	elsif ($r < 0.84) { $dbh->do('SELECT outbox.redrive(batch_limit => 20)') }
	elsif ($session->{open}) { go_on($session, ($r - 0.84) / 0.16) }
	elsif (@prepared)
	{
		my $gid = splice(@prepared, int(rand(@prepared)), 1);
		$dbh->do((rand() < 0.5 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$gid'");
	}
	return;
}

# What the model knows: which messages could be locked, and which of them must be claimed.
sub expect
{
	my %known;

	$admin->do('BEGIN');
	my ($now) = $admin->selectrow_array('SELECT clock_timestamp()');
	my $due = "((status = 0 AND next_attempt_at <= '$now') OR (status = 1 AND locked_until <= '$now'))";
	$known{free}{ $_->[0] } = 1
	  for $admin->selectall_array('SELECT id FROM outbox.queue FOR UPDATE SKIP LOCKED');
	$known{due}{ $_->[0] } = 1
	  for $admin->selectall_array(
		"SELECT id FROM outbox.queue WHERE stream_id IS NULL AND $due FOR UPDATE SKIP LOCKED");
	my %line;
	push @{ $line{ $_->[1] } }, $_
	  for $admin->selectall_array(
		"SELECT id, stream_id, $due, status, attempts FROM outbox.queue WHERE stream_id IS NOT NULL ORDER BY stream_seq");
	for my $line (values %line)
	{
		while (@$line)
		{
			my ($id, undef, $is_due, undef, $attempts) = @{ shift @$line };

			last if !$is_due || !$known{free}{$id};
			# not again while a lease behind it is being settled
			my ($rest) = grep { $_->[3] == 0 || !$known{free}{ $_->[0] } } @$line;
			last if $attempts > 0 && $rest && $rest->[3] == 1;
			$known{in_line}{$id} = 1;
		}
	}
	$admin->do('ROLLBACK');
	return \%known;
}

sub claim_all
{
	return map { $_->[0] } $admin->selectall_array(
		'SELECT id FROM outbox.claim(?, 30, 10000, max_attempts => 100000)', undef, owner(99));
}

# Is this the order, apart from messages of streams? It is promised as long as there is
# memory for all lanes, or none is used.
sub check_order
{
	my @got = @_;

	return if !@got || !$has_room;
	my $ids = join ',', @got;
	my @order = map { $_->[0] } $admin->selectall_array(
		"SELECT id FROM outbox.queue WHERE id IN ($ids) AND stream_id IS NULL
		  ORDER BY next_attempt_at - coalesce(priority, 0) * current_setting('outbox.priority_boost')::interval, id");
	my %ordered = map { $_ => 1 } @order;

	@got = grep { $ordered{$_} } @got;
	$nordered += @got > 1;
	return "@got" eq "@order" ? () : "got @got instead of @order";
}

# Compare a claim with the model; returns the complaints.
sub check
{
	my $known = expect();
	my @wrong;

	$nchecks++;
	$admin->do('BEGIN');
	my @got = claim_all();
	my %got = map { $_ => 1 } @got;
	push @wrong, map { "message $_ was not seen" } grep { !$got{$_} } keys %{ $known->{due} };
	push @wrong, map { "message $_ is another claim's" } grep { !$known->{free}{$_} } @got;
	if ($mode{streams} && @got)
	{
		my $ids = join ',', @got;
		push @wrong, map { "message $_->[0] was taken before $_->[1]" } $admin->selectall_array(
			"SELECT a.id, b.id FROM outbox.queue a JOIN outbox.queue b ON b.stream_id = a.stream_id
			    AND b.stream_seq < a.stream_seq WHERE a.id IN ($ids) AND b.id NOT IN ($ids)");
	}
	push @wrong, map { "message $_ of a stream was not seen" } grep { !$got{$_} } keys %{ $known->{in_line} };
	push @wrong, check_order(@got);
	if (rand() < 0.7)
	{
		$admin->do('ROLLBACK');
	}
	else
	{
		$admin->do('COMMIT');
		$admin->do('SELECT outbox.release(?)', undef, owner(99));
	}
	return @wrong;
}

sub run_seed
{
	my ($name, $seed, %how) = @_;
	my @wrong;

	%mode = (streams => 1, settings => [], crashes => 0, restarts => 0, open => [], %how);
	srand($seed);
	reset_all();
	for my $step (1 .. $steps)
	{
		my $session = $sessions[ rand @sessions ];

		if (!eval { act($session); 1 })
		{
			$@ =~ /lock timeout|could not serialize|transaction is aborted|savepoint .* does not exist|statement timeout/
			  or die "step $step: $@";
			if ($session->{savepoints} && $session->{open} && rand() < 0.5)
			{
				$session->{dbh}->do("ROLLBACK TO s$session->{savepoints}");
			}
			else
			{
				$session->{dbh}->do('ROLLBACK');
				$session->{open} = 0;
			}
		}
		if ($mode{crashes} && $step % int($steps / $mode{crashes}) == 0)
		{
			kill_backend($node, $sessions[ rand @sessions ]{dbh}{pg_pid});
			open_sessions();
		}
		if ($mode{restarts} && $step % int($steps / $mode{restarts}) == 0)
		{
			$_->{dbh}->disconnect for @sessions;
			$admin->disconnect;
			$node->restart;
			open_sessions();
		}
		push @wrong, map { "step $step: $_" } check() if $step % 5 == 0;
		push @wrong, map { "step $step: $_" } stranded($admin) if $step % 48 == 0;
		last if @wrong;
	}
	is_deeply(\@wrong, [], "$name, seed $seed");
	nothing_stranded($admin, "$name, seed $seed, with open transactions");
	end_all();
	nothing_stranded($admin, "$name, seed $seed, without");
	$_->{dbh}->disconnect for @sessions;
	$admin->disconnect;
	return;
}

sub run
{
	my ($name, %how) = @_;

	run_seed($name, $_, %how) for $first_seed .. $first_seed + $seeds - 1;
	return;
}

run('messages without streams', streams => 0);
run('messages with streams');
run('without the cursor', settings => ['SET outbox.use_cursor = off']);
run('one of them without the cursor', open => [ sub { my ($node, %options) = @_; connect_to($node, settings => [ @{ $options{settings} }, 'SET outbox.use_cursor = off' ]) } ]);
run('written by SQL', settings => ['SET outbox.use_direct = off']);
run('with crashes', crashes => 2);
run('with restarts', restarts => 1);
check_indexes($node);
$node->stop;

# the library is not preloaded, so that there can be sessions that cannot reach
# the memory that others have
$node = new_node('alone', preload => 0, conf => "dynamic_shared_memory_type = mmap\noutbox.debounce_max = '100ms'");
run('one of them without shared memory', open => [ \&without_memory ]);
cmp_ok($nchecks, '>=', $seeds * $nmodes * int($steps / 5), 'as often as intended');
cmp_ok($nordered, '>', $nchecks / 10, 'and the order often, too') if $has_room;
check_indexes($node);
$node->stop;
done_testing();
