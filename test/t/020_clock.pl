# The server's clock is set back by a day, and forward by two hours, while workers and
# clients are at work: nothing is lost, nothing is delivered before its time by the
# new clock, what is due by it is delivered at once, and without work there is no
# activity. The clock is moved by clock.c, for the server only.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest qw(:DEFAULT claim own_clock);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $own_clock = own_clock() or plan skip_all => 'there is no C compiler';
my $clock = $own_clock->{file};
my ($anna, $berta, $carl) = map { owner($_) } 1 .. 3;

# How many seconds the server's clock is ahead of ours, from now on.
sub set_clock { return $own_clock->{set}->(shift) }

my $node = $own_clock->{new_node}->('clock', conf => "log_min_messages = debug1\nlog_line_prefix = '%m [%p] %e '\nautovacuum = off\noutbox.max_workers = 2\noutbox.lease_seconds = 2");
my $dbh = connect_to($node);

# Seconds that the server's clock is ahead of ours.
sub ahead { return value($dbh, 'SELECT extract(epoch FROM clock_timestamp())') - time }

sub status_of { return value($dbh, 'SELECT outbox.status_name(status) FROM outbox.messages WHERE payload = ?', shift) }

# What status() complains about, except for what this test leaves unclaimed.
sub complaints
{
	$dbh->do("SELECT outbox.purge_topic(t, what => 'all') FROM unnest('{tick,tock,timer,continued,dying,left,gone}'::text[]) t");
	return return [ map { join ': ', map { $_ // '-' } @$_ } $dbh->selectall_array('SELECT component, status, detail FROM outbox.status() WHERE NOT ok') ];
}

sub starts { return scalar(() = slurp_file($node->logfile) =~ /starting background worker process "outbox worker/g) }

sub claims { return join ' ', claim($dbh, $anna, topics => [shift]) }

my $serial = 0;

# All that a server is there for, while others are at work.
sub works
{
	my $when = shift;
	my $n = ++$serial;
	my $waiting = connect_to($node);

	begin_call($waiting, 'SELECT payload FROM outbox.claim(?, topics => ?, wait_ms => 30000)', $berta, ['awaited']);
	poll(sub { sleeps($dbh, $waiting) });
	$dbh->do("SELECT outbox.enqueue('awaited', ?)", undef, $n);
	is_deeply(end_call($waiting)->{rows}, [ [$n] ], "$when: a claim that waits gets its message");
	$dbh->do("SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases WHERE topic = 'awaited'", undef, $berta);
	$waiting->disconnect;

	$dbh->do("SELECT outbox.schedule_timer('tick', ?, clock_timestamp())", undef, $n);
	$dbh->do("SELECT outbox.schedule_timer('tock', ?, clock_timestamp() + interval '2 s')", undef, $n);
	$dbh->do("SELECT outbox.enqueue('handled', ?)", undef, $n);
	$dbh->do(<<'Q', undef, $n);
WITH j AS MATERIALIZED (SELECT outbox.start_join('g', 1) AS id),
     s AS MATERIALIZED (SELECT outbox.enqueue_step(j.id, 'step', 'p') FROM j)
SELECT outbox.enqueue_join_wait(j.id, false, 'continued', ?) FROM j, s
Q
	$dbh->do("SELECT outbox.ack(?, array_agg(id)) FROM outbox.claim(?, topics => '{step}')", undef, $carl, $carl);
	$dbh->do("SELECT outbox.enqueue('dying', ?, expires_at => clock_timestamp() + interval '1 s')", undef, $n);
	for ([ 'tick', 'a timer that is due' ], [ 'tock', 'one that is due in a moment' ], [ 'continued', 'the continuation of a join' ])
	{
		my ($topic, $what) = @$_;
		ok(poll(sub { count_of($dbh, "outbox.messages WHERE topic = '$topic' AND payload = '$n'") == 1 }, 20), "$when: $what comes");
	}
	ok(poll(sub { count_of($dbh, "outbox.messages WHERE topic = 'handled' AND payload = '$n' AND status = 2") == 1 }, 20), "$when: a handler does its work");
	ok(poll(sub { count_of($dbh, "outbox.dead WHERE topic = 'dying' AND payload = '$n' AND failure_reason = 6") == 1 }, 20), "$when: what expires is dead");
	return;
}

# Clients that enqueue, and that claim and acknowledge, until they must stop, those that enqueue
# first.
my $stop = "$clock.stop";
my @load;

sub start_load
{
	unlink $stop, "$stop.enqueue";
	push @load, client(sub {
		my $mine = connect_to($node);
		for (my $i = 1; !-e "$stop.enqueue" && !-e $stop; $i++)
		{
			$mine->do("SELECT outbox.enqueue('load', ?, stream_id => CASE WHEN ? % 3 = 0 THEN md5((? % 7)::text)::uuid END, due_time => CASE WHEN ? % 5 = 0 THEN clock_timestamp() + interval '300 ms' END)", undef, $i, $i, $i, $i);
			sleep 0.005;
		}
	});
	for my $owner (owner(10), owner(11))
	{
		push @load, client(sub {
			my $mine = connect_to($node);
			$mine->do("SELECT outbox.ack(?, array_agg(id ORDER BY id)) FROM outbox.claim(?, 5, 10, topics => '{load}', wait_ms => 200)", undef, $owner, $owner)
			  until -e $stop;
		});
	}
	ok(poll(sub { count_of($dbh, "outbox.archive WHERE topic = 'load'") > 0 }), 'clients are at work');
	return;
}

sub end_load
{
	append_to_file($stop, '');
	waitpid $_, 0 for splice @load;
	return;
}

# Without activity, nothing is done.
sub rests
{
	my $when = shift;
	my $transactions = sub { value($dbh, 'SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()') };
	my ($starts, $commits);

	# what is not known is searched for with growing delays
	ok(poll(sub {
			return 0 if count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker'");
			($starts, $commits) = (starts(), $transactions->());
			sleep 6;
			($starts, $commits) = (starts() - $starts, $transactions->() - $commits);
			return $starts == 0 && $commits <= 20; }, 90), "$when: the server comes to rest")
	  or diag("in six seconds: $starts workers started, $commits transactions");
	return;
}

# --- what is there when the clock is moved
cmp_ok(abs(ahead()), '<', 5, 'the clock is right');
$dbh->do($_) for split /;\n/, <<'Q';
CREATE ROLE app LOGIN;
SELECT outbox.grant_worker('app');
CREATE SCHEMA app AUTHORIZATION app;
SET SESSION AUTHORIZATION app;
CREATE FUNCTION app.handle(m outbox.message) RETURNS void LANGUAGE sql AS '';
SELECT outbox.register_handler('handled', 'app.handle(outbox.message)');
RESET SESSION AUTHORIZATION;
SELECT outbox.enqueue('held', 'held ' || i) FROM generate_series(1, 5) i;
SELECT outbox.enqueue('taken', 'taken');
SELECT outbox.enqueue('left', 'left');
SELECT outbox.enqueue('gone', 'gone');
SELECT outbox.enqueue('again', 'again');
SELECT outbox.enqueue('soon', 'soon', due_time => clock_timestamp() + interval '1 hour');
SELECT outbox.enqueue('far', 'far', due_time => clock_timestamp() + interval '30 hours');
SELECT outbox.enqueue('mortal', 'mortal', expires_at => clock_timestamp() + interval '1 hour');
SELECT outbox.enqueue('line', 'line ' || i, stream_id => '00000000-0000-4000-8000-000000000077') FROM generate_series(1, 2) i;
SELECT outbox.schedule_timer('timer', 'timer soon', clock_timestamp() + interval '1 hour');
SELECT outbox.schedule_timer('timer', 'timer far', clock_timestamp() + interval '30 hours')
Q
my @held = map { $_->[0] } $dbh->selectall_array("SELECT id FROM outbox.claim(?, 60, topics => '{held}')", undef, $anna);
is(scalar(@held), 5, 'five leases');
is(scalar(claim($dbh, $berta, lease_seconds => 60, topics => ['taken'])), 1, 'and one whose worker does not return');
is(scalar(claim($dbh, $berta, lease_seconds => 60, batch_size => 1, topics => ['line'])), 1, 'and the head of a stream');
is(value($dbh, "SELECT outbox.nack(?, array_agg(id), delay => '90 minutes') FROM outbox.claim(?, topics => '{again}')", $anna, $anna), 1, 'one that is to be tried again');
$dbh->do("SELECT outbox.heartbeat(?, 's', 'h', 1)", undef, $_) for owner(21), owner(22);
is(scalar(claim($dbh, $carl, lease_seconds => 60, topics => ['left'])), 1, 'one that its worker will give back');
is(scalar(claim($dbh, owner(22), lease_seconds => 60, topics => ['gone'])), 1, 'and one whose instance will be silent');
works('before');

# --- a day back
start_load();
set_clock(-86400);
cmp_ok(abs(ahead() + 86400), '<', 5, 'the clock is a day behind');
works('a day back');
is(claims($_), '', "a day back: $_ is not due") for qw(soon far again line taken);
is_deeply([ map { status_of($_) } 'held 1', 'taken', 'line 1', 'line 2', 'mortal' ], [ 'in progress', 'in progress', 'in progress', 'ready', 'ready' ], 'a day back: leases stand');
is(value($dbh, 'SELECT outbox.ack(?, ?)', $anna, [ @held[ 0, 1 ] ]), 2, 'a day back: and can be acknowledged');
is(count_of($dbh, "outbox.leases WHERE topic = 'left'"), 1, 'a day back: and are shown');
is(value($dbh, 'SELECT outbox.release(?)', $carl), 1, 'a day back: and can be given back');
is(status_of('left'), 'ready', 'a day back: then the message is ready');
is(count_of($dbh, 'outbox.timer_queue'), 2, 'a day back: timers wait');
end_load();
# the sign of life of an instance is from the future; it has died all the same
ok(poll(sub {
		$dbh->do("SELECT outbox.process_work_batch(?, 's', 'h', 1, stale_threshold_seconds => 1)", undef, owner(21));
		return count_of($dbh, 'outbox.instances') == 1 }, 20), 'a day back: an instance that is silent is removed');
$dbh->do('SELECT outbox.release(?)', undef, owner(21));
ok(poll(sub { status_of('gone') eq 'ready' }, 20), 'a day back: and its lease ends');
nothing_stranded($dbh, 'a day back');
is_deeply(complaints(), [], 'a day back: status() has nothing to say');
rests('a day back');

# --- two hours forward, while all sleep
my $waiting = connect_to($node);
begin_call($waiting, "SELECT payload FROM outbox.claim(?, topics => '{soon}', wait_ms => 60000)", $carl);
ok(poll(sub { sleeps($dbh, $waiting) }), 'a claim waits');
set_clock(7200);
ok(poll(sub { count_of($dbh, "outbox.messages WHERE topic = 'timer' AND payload = 'timer soon'") == 1 }, 30), 'two hours forward: a timer that is due now comes');
is_deeply(end_call($waiting)->{rows}, [ ['soon'] ], 'two hours forward: a claim that waits gets what is due now');
$waiting->disconnect;
ok(poll(sub { status_of('taken') eq 'ready' && status_of('held 3') eq 'ready' }, 30), 'two hours forward: leases have ended');
ok(poll(sub { status_of('mortal') eq 'failed' }, 30), 'two hours forward: a message has expired');
is(claims('again'), 'again', 'two hours forward: what was to be tried again is');
is(claims('line'), 'line 1 line 2', 'two hours forward: a stream goes on, in its order');
is(claims('far'), '', 'two hours forward: what is later waits');
is(count_of($dbh, 'outbox.timer_queue'), 1, 'two hours forward: as does a timer');
start_load();
works('two hours forward');

# --- back and forth under load
for my $ahead (0, 7200, -3600, 7200)
{
	set_clock($ahead);
	works("$ahead s ahead");
}
ok(poll(sub { count_of($dbh, "outbox.queue WHERE topic = 'load' AND next_attempt_at > clock_timestamp() + interval '1 s'") == 0 }, 20), 'nothing is due later than it should be');
append_to_file("$stop.enqueue", '');
ok(poll(sub { count_of($dbh, "outbox.queue WHERE topic = 'load'") == 0 }), 'all messages are handled');
end_load();
is(count_of($dbh, "outbox.dead WHERE topic = 'load'"), 0, 'none has died');
nothing_stranded($dbh, 'in the end');
$dbh->do('SELECT outbox.release(owner_token) FROM (SELECT DISTINCT owner_token FROM outbox.leases) o');
$dbh->do("SELECT outbox.purge_topic(t, what => 'all') FROM unnest('{soon,again,line,held,taken,awaited,handled,mortal}'::text[]) t");
is_deeply(complaints(), [], 'in the end: status() has nothing to say');
rests('in the end');
is_deeply([ grep { / XX\d\d\d |PANIC|TRAP|terminated by signal/ } split /\n/, slurp_file($node->logfile) ], [], 'the log is clean');
$node->stop;
done_testing();
