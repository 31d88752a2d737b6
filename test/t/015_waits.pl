# A waiting claim holds no locks that block others, does not affect what it does not
# wait for, costs nothing, and ends when its client disconnects.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest qw(:DEFAULT claim);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('waits', workers => 0, conf => "max_connections = 60\noutbox.poll_interval = '60s'");
my ($anna, $berta, $carl) = map { owner($_) } 1 .. 3;
my $stream = owner(101);
my $dbh = connect_to($node);

sub begin_wait
{
	my ($session, $owner, $topic, $ms) = @_;

	begin_call($session, 'SELECT payload FROM outbox.claim(?, 60, topics => ?, wait_ms => ?)', $owner, [$topic], $ms // 30_000);
	return;
}

# ... and is asleep.
sub wait_in
{
	my ($session, $owner, $topic, $ms) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	begin_wait(@_);
	return ok(poll(sub { sleeps($dbh, $session) }), "a claim waits for $topic");
}

# It ends, with these.
sub gets
{
	my ($session, $expected, $name, $within) = @_;
	my $end = end_call($session);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_deeply([ map { $_->[0] } @{ $end->{rows} } ], $expected, $name);
	is($end->{state}, '', "$name: without an error");
	cmp_ok($end->{seconds}, '<', $within, "$name: in time") if $within;
	return;
}

sub empty { $dbh->do('TRUNCATE outbox.queue, outbox.dedupe, outbox.dead, outbox.archive, outbox.joins CASCADE'); return }

# How often the sessions that log it have been put to sleep, in statements that
# have ended since a place in the log.
sub sleeps_since
{
	my $from = shift;
	my $n = 0;

	$n += $_ for slurp_file($node->logfile, $from) =~ m{^\s*!\s+(\d+)/\d+ \[\d+/\d+\] voluntary/involuntary context switches}mg;
	return $n;
}

sub log_end { return -s $node->logfile }

# --- it holds nothing
{
	my $waiting = connect_to($node);

	wait_in($waiting, $anna, 'none');
	is(value($dbh, 'SELECT count(backend_xid) FROM pg_stat_activity WHERE pid = ?', $waiting->{pg_pid}), 0, 'a wait has no transaction id');
	is(value($dbh, "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE l.pid = ? AND c.relkind <> 'i'", $waiting->{pg_pid}), 0, 'a wait has no table locked');
	is(sqlstate($dbh, "SET lock_timeout = '5s'; ALTER TABLE outbox.queue SET (fillfactor = 45); RESET lock_timeout"), '', 'a table can be altered in the meantime');
	$dbh->do("SELECT outbox.enqueue('none', 'p')");
	gets($waiting, ['p'], 'and the claim waits on', 20);

	# it does not sleep in a transaction that has written
	my $notices = 0;
	local $SIG{__WARN__} = sub { $notices += $_[0] =~ /claim does not wait/ };
	$waiting->do('SET client_min_messages = notice');
	$waiting->do('BEGIN');
	$waiting->do("SELECT outbox.enqueue('other', 'p')");
	begin_wait($waiting, $anna, 'none');
	gets($waiting, [], 'a claim in a transaction that has written', 10);
	is($notices, 1, 'and says why it does not wait');
	$waiting->do('ROLLBACK');
	$waiting->disconnect;
}

# --- what it does not wait for
{
	my ($x, $y, $waiting) = map { connect_to($node) } 1 .. 3;

	# a stream, the head of which ends while another message joins it
	empty();
	$dbh->do("SELECT outbox.enqueue('b', 'm1', stream_id => ?)", undef, $stream);
	is_deeply([ claim($x, $anna) ], ['m1'], 'the head of a stream');
	$x->do('BEGIN');
	is(value($x, 'SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases', $anna), 1, 'is acknowledged');
	$y->do("SELECT outbox.enqueue('b', 'm2', stream_id => ?)", undef, $stream);
	$x->do('COMMIT');
	wait_in($waiting, $carl, 'other', 20_000);
	is_deeply([ claim($y, $berta, topics => ['b']) ], ['m2'], 'a stream goes on beside a wait in another topic');
	ok(!is_done($waiting), 'which lasts');
	is(value($dbh, 'SELECT outbox.release(?)', $carl), 0, 'and is ended');
	gets($waiting, [], 'with nothing', 20);

	# a member of a join that has expired
	empty();
	my $join = value($dbh, "SELECT outbox.start_join('j', 3)");
	$dbh->do("SELECT outbox.enqueue_step(?, 'x', 'p1', expires_at => clock_timestamp() + interval '100 ms')", undef, $join);
	$dbh->do("SELECT outbox.enqueue_step(?, 'y', 'p2')", undef, $join);
	is_deeply([ claim($y, $berta, topics => ['y']) ], ['p2'], 'a member of a join');
	ok(poll(sub { value($dbh, "SELECT expires_at < clock_timestamp() FROM outbox.queue WHERE topic = 'x'") }), 'another one expires');
	begin_wait($waiting, $carl, 'x', 20_000);
	$y->do("SET lock_timeout = '5s'");
	ok(poll(sub { count_of($dbh, 'outbox.dead') == 1 }, 10), 'a claim that would wait moves it to the dead, and commits that');
	is(value($y, 'SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases', $berta), 1, 'the other one can be acknowledged');
	gets($waiting, [], 'the claim has ended early', 10);
	$_->disconnect for $x, $y, $waiting;
}

# --- what becomes due for its owner alone
{
	my $waiting = connect_to($node);

	empty();
	$dbh->do("SELECT outbox.enqueue('t', 'm1', stream_id => ?)", undef, $stream);
	is_deeply([ claim($dbh, $anna, lease_seconds => 600) ], ['m1'], 'the head of a stream is held');
	$dbh->do("SELECT outbox.enqueue('t', 'm2', stream_id => ?, due_time => clock_timestamp() + interval '1 s')", undef, $stream);
	wait_in($waiting, $anna, 't');
	gets($waiting, ['m2'], 'its holder gets the next one when it is due', 10);
	$dbh->do("SELECT outbox.nack(?, array_agg(id), 'e', '1 s') FROM outbox.queue WHERE payload = 'm2'", undef, $anna);
	wait_in($waiting, $anna, 't');
	gets($waiting, ['m2'], 'also when that is tried again', 10);
	$dbh->do("SELECT outbox.enqueue('t', 'm3', stream_id => ?)", undef, $stream);
	wait_in($waiting, $berta, 't', 300);
	gets($waiting, [], 'no other claim does', 10);
	wait_in($waiting, $berta, 't');
	$dbh->do('SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases', undef, $anna);
	gets($waiting, ['m3'], 'until all that is held has ended', 10);
	$waiting->disconnect;
}

# --- what becomes claimable at once, of which it is not known how much it is
{
	my @waiting = map { connect_to($node) } 1 .. 3;
	my $other = connect_to($node);
	my $calls = 0;
	# Three claims of one message each, and what is done when they sleep.
	my $each_gets_one = sub {
		my ($name, $topic, $act) = @_;

		begin_call($_, 'SELECT payload FROM outbox.claim(?, 60, 1, topics => ?, wait_ms => 20000)', owner(200 + ++$calls), [$topic]) for @waiting;
		for my $session (@waiting)
		{
			poll(sub { sleeps($dbh, $session) }) or diag("$name: does not sleep");
		}
		my $began = time;
		$act->() if $act;
		my @ends = map { end_call($_) } @waiting;
		# one that sleeps looks by itself after five seconds
		cmp_ok(time - $began, '<', 4.5, "$name: in time");
		is_deeply([ sort map { map { $_->[0] } @{ $_->{rows} } } @ends ], [ 'x', 'y', 'z' ], "$name: each claim gets one");
		return;
	};
	my $enqueue = sub { return $dbh->do("SELECT outbox.enqueue_many(?, '{x,y,z}')", undef, @_) };

	empty();
	$each_gets_one->('due at once', 'due', sub { $dbh->do("SELECT outbox.enqueue_many('due', '{x,y,z}', due_time => clock_timestamp() + interval '1 s')") });
	$enqueue->('leases');
	is(scalar(claim($dbh, $anna, lease_seconds => 2, topics => ['leases'])), 3, 'three leases that end at once');
	$each_gets_one->('leases that end at once', 'leases');
	$enqueue->('undone');
	$other->do('BEGIN');
	is(scalar(claim($other, $anna, topics => ['undone'])), 3, 'a claim of three');
	$each_gets_one->('a claim that is rolled back', 'undone', sub { $other->do('ROLLBACK') });
	# a claim that looks remembers whose they are, but not how many
	$enqueue->('locked');
	$other->do('BEGIN');
	$other->do("SELECT outbox.enqueue('other', 'p')");
	is(scalar($other->selectall_array("SELECT id FROM outbox.queue WHERE topic = 'locked' FOR UPDATE")), 3, 'three rows that are locked');
	$each_gets_one->('rows that were locked', 'locked', sub { $other->do('ROLLBACK') });
	$_->disconnect for @waiting, $other;
}

# --- its client disconnects
SKIP:
{
	my $bouncer = pgbouncer($node);
	my %connect = ('directly' => sub { connect_to($node) });
	$connect{'through PgBouncer'} = $bouncer->{connect} if $bouncer;

	empty();
	for my $how (sort keys %connect)
	{
		for my $signal (qw(KILL TERM))
		{
			my $waiters = "pg_stat_activity WHERE wait_event_type = 'Extension' AND query ~ 'for gone'";
			my $pid = client(sub { $connect{$how}->()->do("SELECT 'for gone' FROM outbox.claim(?, 600, topics => '{gone}', wait_ms => 60000)", undef, $anna) });
			my $live = connect_to($node);

			ok(poll(sub { count_of($dbh, $waiters) == 1 }), "$how, $signal: a client waits");
			kill $signal, $pid;
			waitpid $pid, 0;
			my $from = time;
			ok(poll(sub { count_of($dbh, $waiters) == 0 }, 10), "$how, $signal: it goes, and so does the session");
			cmp_ok(time - $from, '<', 3, "$how, $signal: at once");
			$dbh->do("SELECT outbox.enqueue('gone', 'p')");
			is_deeply([ claim($live, $berta, topics => ['gone']) ], ['p'], "$how, $signal: another one gets the message");
			is(value($dbh, "SELECT attempts FROM outbox.queue WHERE topic = 'gone'"), 1, "$how, $signal: it was not handed out before");
			empty();
			$live->disconnect;
		}
	}
	# without the moment in which the session could notice by itself
	for my $how (sort keys %connect)
	{
		my @gone = map { my $owner = owner(300 + $_); client(sub { $connect{$how}->()->do("SELECT 'for gone' FROM outbox.claim(?, 600, 1, topics => '{gone}', wait_ms => 60000)", undef, $owner) }) } 1 .. 3;
		my $live = connect_to($node);

		ok(poll(sub { count_of($dbh, "pg_stat_activity WHERE wait_event_type = 'Extension' AND query ~ 'for gone'") == 3 }), "$how: three clients wait");
		wait_in($live, $berta, 'gone');
		kill 'STOP', map { $_->[0] } $dbh->selectall_array("SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND query ~ 'for gone'");
		kill 'KILL', @gone;
		waitpid $_, 0 for @gone;
		$bouncer && $how =~ /Bouncer/ && ok(poll(sub { value($bouncer->{connect}->(), 'SELECT 1') }), 'PgBouncer has noticed');
		$dbh->do("SELECT outbox.enqueue('gone', 'p')");
		kill 'CONT', map { $_->[0] } $dbh->selectall_array("SELECT pid FROM pg_stat_activity WHERE query ~ 'for gone' AND pid <> pg_backend_pid()");
		gets($live, ['p'], "$how: who is there gets what others were called for", 20);
		is(value($dbh, "SELECT attempts FROM outbox.queue WHERE topic = 'gone'"), 1, "$how: it was not handed out to those before");
		$live->disconnect;
		empty();
	}
	$bouncer->{stop}->() if $bouncer;
	skip 'there is no pgbouncer', 1 unless $bouncer;
}

# --- its owner stops
{
	my @waiting = map { connect_to($node) } 1 .. 3;

	wait_in($waiting[$_], $anna, "t$_") for 0, 1;
	wait_in($waiting[2], $berta, 't0');
	is(value($dbh, 'SELECT outbox.release(?)', $anna), 0, 'release by another session');
	gets($waiting[$_], [], 'all waits of the owner end', 20) for 0, 1;
	ok(sleeps($dbh, $waiting[2]), 'others do not');
	$dbh->do('BEGIN');
	$dbh->do('SELECT outbox.release(?)', undef, $berta);
	ok(!is_done($waiting[2]), 'nor before the transaction has committed');
	$dbh->do('COMMIT');
	gets($waiting[2], [], 'but then', 20);
	# the next call waits again
	wait_in($waiting[0], $anna, 't0');
	$dbh->do("SELECT outbox.enqueue('t0', 'p')");
	gets($waiting[0], ['p'], 'and the next call is as before', 20);
	$_->disconnect for @waiting;
}

# --- one inside another
{
	empty();
	$dbh->do(<<'Q');
CREATE FUNCTION public.busy() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM outbox.claim(gen_random_uuid(), topics => '{none}', wait_ms => 50);
	RETURN NEW;
END $$;
CREATE TRIGGER busy BEFORE UPDATE ON outbox.queue FOR EACH ROW EXECUTE FUNCTION public.busy();
CREATE TRIGGER busy_too AFTER DELETE ON outbox.queue FOR EACH ROW EXECUTE FUNCTION public.busy();
Q
	my $waiting = connect_to($node);
	my $backend = $waiting->{pg_pid};

	wait_in($waiting, $anna, 'nested');
	$dbh->do("SELECT outbox.enqueue('nested', 'p')");
	gets($waiting, ['p'], 'a claim that waits in a trigger', 20);
	$dbh->do("SELECT outbox.enqueue('nested', 'x', due_time => clock_timestamp() + interval '200 ms', expires_at => clock_timestamp() + interval '100 ms')");
	begin_wait($waiting, $anna, 'nested', 3000);
	gets($waiting, [], 'also where one is moved to the dead', 20);
	is(value($waiting, 'SELECT pg_backend_pid()'), $backend, 'the session lives');
	# a cursor that is read while another claim waits
	$dbh->do('DROP FUNCTION public.busy() CASCADE');
	wait_in($waiting, $anna, 'nested');
	$dbh->do("SELECT outbox.enqueue('nested', 'q')");
	gets($waiting, ['q'], 'and can wait', 20);
	$waiting->disconnect;
}

# --- what it costs
my @logging = ('SET log_statement_stats = on');
{
	my ($nwaiters, $nmessages) = (20, 100);
	my @waiting = map { connect_to($node, settings => \@logging) } 1 .. $nwaiters;
	my $begin = sub { begin_call($waiting[ $_[0] ], "SELECT payload FROM outbox.claim(?, 60, 1, topics => '{herd}', wait_ms => 60000)", owner(100 + $_[0])) };

	empty();
	$begin->($_) for 0 .. $#waiting;
	ok(poll(sub { count_of($dbh, "pg_stat_activity WHERE wait_event_type = 'Extension' AND query ~ 'herd'") == $nwaiters }), "$nwaiters claims wait");
	my $from = log_end();
	my $lost = 0;
	for my $message (1 .. $nmessages)
	{
		$dbh->do("SELECT outbox.enqueue('herd', ?)", undef, $message);
		my $winner;
		poll(sub { ($winner) = grep { is_done($waiting[$_]) } 0 .. $#waiting; defined $winner }) or last;
		$lost++ if end_call($waiting[$winner])->{rows}[0][0] ne $message;
		$begin->($winner);
		poll(sub { sleeps($dbh, $waiting[$winner]) });
	}
	is($lost, 0, "$nmessages messages, each to one of them");
	for (0 .. $#waiting)
	{
		$dbh->do('SELECT outbox.release(?)', undef, owner(100 + $_));
		end_call($waiting[$_]);
	}
	my $slept = sleeps_since($from);
	note("$slept context switches");
	cmp_ok($slept, '>=', $nmessages, 'one is woken by each');
	cmp_ok($slept, '<', 6 * $nmessages, 'the others sleep on');
	$_->disconnect for @waiting;
}
{
	my $waiting = connect_to($node, settings => [ @logging, "SET outbox.poll_interval = '5ms'" ]);
	my $cost = sub {
		my $from = log_end();

		begin_wait($waiting, $anna, 'idle', 1000);
		is(end_call($waiting)->{state}, '', 'an idle wait of a second');
		return sleeps_since($from);
	};

	empty();
	cmp_ok($cost->(), '<', 10, 'is asleep all the time');
	$dbh->do('BEGIN');
	$dbh->do("SELECT outbox.enqueue('idle', 'p')");
	$dbh->do("PREPARE TRANSACTION 'one'");
	note('while one is prepared: ' . $cost->());
	wait_in($waiting, $anna, 'idle');
	$dbh->do("COMMIT PREPARED 'one'");
	gets($waiting, ['p'], 'the end of a prepared transaction is noticed', 20);
	$dbh->do('BEGIN');
	$dbh->do("SELECT outbox.enqueue('idle', 'q')");
	$dbh->do("PREPARE TRANSACTION 'two'");
	$cost->();
	$dbh->do("ROLLBACK PREPARED 'two'");
	$cost->();
	cmp_ok($cost->(), '<', 10, 'when it is over, that is no reason to poll');
	$waiting->disconnect;
}
{
	# memory: a claim that looks all the time
	my $waiting = connect_to($node, settings => [ 'SET outbox.use_cursor = off', "SET outbox.poll_interval = '1ms'" ]);
	my $memory = sub {
		my $from = log_end();

		$dbh->do('SELECT pg_log_backend_memory_contexts(?)', undef, $waiting->{pg_pid});
		my $total;
		poll(sub { ($total) = slurp_file($node->logfile, $from) =~ /Grand total: (\d+) bytes/ });
		return $total // 0;
	};

	empty();
	$dbh->do("SELECT outbox.enqueue('t' || i, 'x', tenant_id => ?) FROM generate_series(1, 20) i", undef, owner(201));
	begin_call($waiting, 'SELECT payload FROM outbox.claim(?, tenant_id => ?, wait_ms => 60000)', $anna, owner(202));
	ok(poll(sub { sleeps($dbh, $waiting) }), 'it has looked');
	my $before = $memory->();
	my $until = time + 2;
	poll(sub { time > $until });
	my $after = $memory->();
	note("$before bytes, then $after");
	cmp_ok($before, '>', 100_000, 'its memory is known');
	cmp_ok($after, '<', $before + 100_000, 'many looks need no more of it than the first');
	$dbh->do('SELECT pg_cancel_backend(?)', undef, $waiting->{pg_pid});
	is(end_call($waiting)->{state}, '57014', 'it can be cancelled');
	$waiting->disconnect;
}

$dbh->disconnect;
is_deeply([ grep { /PANIC|TRAP|terminated by signal|WARNING/ } split /\n/, slurp_file($node->logfile) ], [], 'the log is clean');
$node->stop;

# --- where no transaction can be prepared, locks of other sessions end unnoticed, too
$node = new_node('unprepared', workers => 0, conf => 'max_prepared_transactions = 0');
$dbh = connect_to($node);
{
	my ($locker, $waiting) = map { connect_to($node) } 1 .. 2;

	for my $undo (qw(COMMIT ROLLBACK))
	{
		$dbh->do("SELECT outbox.enqueue('t', 'p')");
		$locker->do('BEGIN');
		is(value($locker, 'SELECT count(*) FROM (SELECT id FROM outbox.queue FOR UPDATE) q'), 1, 'a session has locked a message');
		wait_in($waiting, $anna, 't');
		$locker->do($undo);
		gets($waiting, ['p'], "its $undo is noticed", 10);
		empty();
	}
	$_->disconnect for $locker, $waiting;
}
$dbh->disconnect;
$node->stop;
done_testing();
