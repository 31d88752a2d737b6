# A waiting claim is woken at once by what it waits for, and by nothing else; and it
# ends when it is cancelled or released.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $seed = seed();
my $node = new_node('wakeups', conf => "max_connections = 90\noutbox.poll_interval = '60s'");
my ($anna, $berta) = (owner(1), owner(2));
my $dbh = connect_to($node);
my $us = '(extract(epoch FROM clock_timestamp()) * 1000000)::bigint';

# Processes that wait, each with a connection of its own; they read what to do, and
# write the results, line by line.
sub waiter
{
	my (%options) = @_;
	pipe(my $from, my $told) or die $!;
	pipe(my $answers, my $tell) or die $!;
	my $pid = client(sub {
		my $waiting = ($options{connect} // sub { connect_to($node, %options) })->();

		$_->autoflush(1) for $tell;
		print $tell ($waiting->{pg_pid}, "\n");
		close $told;
		while (my $call = <$from>)
		{
			chomp $call;
			my $start = time;
			my ($got) = eval { map { $_ // '' } $waiting->selectrow_array("SELECT string_agg(payload, ' ') || ' ' || $us FROM outbox.claim($call)") };
			my $state = $@ ? $waiting->state : '';
			printf $tell "%s\t%.6f\t%s\n", $state, time - $start, $got // '';
		}
	});
	close $from;
	close $tell;
	$told->autoflush(1);
	chomp(my $backend = <$answers>);
	return { pid => $pid, told => $told, answers => $answers, backend => $backend };
}

sub begin_wait
{
	my ($waiter, $call, $settled) = @_;

	$waiter->{told}->print("$call\n");
	poll(sub { is_asleep($waiter) }, 20) or diag('no claim waits') unless $settled;
	return;
}

sub is_asleep
{
	return value($dbh, "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = ?", $_[0]{backend});
}

sub end_wait
{
	my $waiter = shift;
	my $line = readline($waiter->{answers}) // "gone\t0\t";
	chomp $line;
	my ($state, $seconds, $got) = split /\t/, $line, 3;
	my ($payload, $at) = $got =~ /^(.*) (\d+)$/ ? ($1, $2) : ('', 0);

	return { state => $state, seconds => $seconds, payload => $payload, at => $at };
}

sub call
{
	my ($owner, $topic, $ms) = @_;

	return "'$owner', 60, topics => '{$topic}', wait_ms => " . ($ms // 30_000);
}

# The server's time, in microseconds.
sub now { return value($dbh, "SELECT $us") }

my $waiter = waiter();

# A wait that ends with the action of another session.
sub is_woken
{
	my ($topic, $act, $name, $payload, $within) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	begin_wait($waiter, call($anna, $topic));
	my $from = now();
	$act->();
	my $end = end_wait($waiter);
	is($end->{payload}, $payload // 'p', $name);
	my $ms = ($end->{at} - $from) / 1000;
	cmp_ok($ms, '<', $within // 1000, "$name, at once");
	note(sprintf('%s: %.1f ms', $name, $ms));
	return;
}

# --- how soon
{
	my $rounds = 200;
	my @took;

	begin_wait($waiter, call($anna, 'fast'));
	for my $round (1 .. $rounds)
	{
		poll(sub { is_asleep($waiter) }, 20) if $round > 1 && !is_asleep($waiter);
		# the time of the commit, as precisely as it can be known: before it
		my $from = value($dbh, "WITH e AS MATERIALIZED (SELECT outbox.enqueue('fast', 'p')) SELECT $us FROM e");
		my $end = end_wait($waiter);
		push @took, ($end->{at} - $from) / 1000;
		$waiter->{told}->print(call($anna, 'fast') . "\n") if $round < $rounds;
	}
	@took = sort { $a <=> $b } @took;
	cmp_ok($took[ $rounds / 2 ], '<', 5, 'a commit wakes within milliseconds');
	cmp_ok($took[-1], '<', 1000, 'always');
	diag(sprintf('from the commit to the claim: median %.2f ms, 99 %% %.2f ms, at most %.2f ms', $took[ $rounds / 2 ], $took[ $rounds * 0.99 - 1 ], $took[-1]));
}

# --- what wakes it
is_woken('commit', sub { $dbh->do("SELECT outbox.enqueue('commit', 'p')") }, 'a commit');
is_woken('row', sub { $dbh->do("INSERT INTO outbox.queue (topic, payload) VALUES ('row', 'p')") }, 'a plain INSERT');
is_woken('savepoint', sub { $dbh->do('BEGIN'); $dbh->do('SAVEPOINT s'); $dbh->do("SELECT outbox.enqueue('savepoint', 'undone')"); $dbh->do('ROLLBACK TO s'); $dbh->do("SELECT outbox.enqueue('savepoint', 'p')"); $dbh->do('COMMIT') },
	'a commit, with savepoints');
is_woken('any', sub { $dbh->do("SELECT outbox.enqueue('t' || i, 'x', namespace => 'elsewhere') FROM generate_series(1, 100) i; SELECT outbox.enqueue('any', 'p')") }, 'a commit with many topics');
{
	my $other = connect_to($node);
	my $hold = sub {
		my ($topic, $begin) = @_;

		$dbh->do("SELECT outbox.enqueue('$topic', 'p')");
		$other->do('BEGIN') if $begin;
		return value($other, "SELECT id FROM outbox.claim(?, 600, topics => ARRAY[?])", $berta, $topic);
	};

	my $id = $hold->('nack');
	is_woken('nack', sub { $other->do("SELECT outbox.nack(?, ARRAY[?::bigint], 'e', '0')", undef, $berta, $id) }, 'a nack of another session');
	$hold->('rollback', 1);
	is_woken('rollback', sub { $other->do('ROLLBACK') }, 'the rollback of another claim');
	$dbh->do("SELECT outbox.enqueue('partial', 'p')");
	$other->do('BEGIN');
	$other->do('SAVEPOINT s');
	$other->do("SELECT outbox.claim(?, 600, topics => '{partial}')", undef, $berta);
	is_woken('partial', sub { $other->do('ROLLBACK TO s') }, 'its rollback to a savepoint');
	$other->do('COMMIT');
	$id = $hold->('release');
	is_woken('release', sub { $other->do('SELECT outbox.release(?)', undef, $berta) }, 'a release');
	$id = $hold->('redrive');
	$other->do("SELECT outbox.fail(?, ARRAY[?::bigint])", undef, $berta, $id);
	is_woken('redrive', sub { $other->do("SELECT outbox.redrive(topic => 'redrive')") }, 'a redrive');
	$hold->('gone', 1);
	is_woken('gone', sub { $dbh->do('SELECT pg_terminate_backend(?)', undef, $other->{pg_pid}) }, 'the end of a session that had claimed');
	$other = connect_to($node);
	# the first of a stream is done
	$dbh->do("SELECT outbox.enqueue_many('line', '{first,p}', stream_id => ?)", undef, owner(100));
	$id = value($other, "SELECT id FROM outbox.claim(?, 600, 1, topics => '{line}')", $berta);
	is_woken('line', sub { $other->do('SELECT outbox.ack(?, ARRAY[?::bigint])', undef, $berta, $id) }, 'the end of the one before in a stream');
	$other->disconnect;
}
$dbh->do("SELECT outbox.pause_topic('paused')");
$dbh->do("SELECT outbox.enqueue('paused', 'p')");
is_woken('paused', sub { $dbh->do("SELECT outbox.resume_topic('paused')") }, 'resume_topic');
begin_wait($waiter, call($anna, 'pausing', 1000));
$dbh->do("SELECT outbox.pause_topic('pausing')");
sleep 0.2;	# nothing shows that it was seen, so there is nothing to poll for
$dbh->do("SELECT outbox.enqueue('pausing', 'p')");
is(end_wait($waiter)->{payload}, '', 'what is paused in the meantime is not claimed');
is_woken('due', sub { $dbh->do("SELECT outbox.enqueue('due', 'p', due_time => clock_timestamp() + interval '0.5 s')") }, 'a due time', 'p', 1000);
$dbh->do("SELECT outbox.enqueue('soon', 'p', due_time => clock_timestamp() + interval '0.8 s')");
is_woken('soon', sub { }, 'a due time that was known', 'p', 1200);
$dbh->do("SELECT outbox.enqueue('lease', 'p')");
is(value($dbh, "SELECT count(*) FROM outbox.claim(?, 1, topics => '{lease}')", $berta), 1, 'a lease of a second');
is_woken('lease', sub { }, 'the end of a lease', 'p', 1500);

# --- a claim that takes another message than the one it was called for
{
	my $second = waiter();

	# the first waits for both, and was there before
	begin_wait($waiter, "'$anna', 60, 1, topics => '{one,other}', wait_ms => 20000");
	begin_wait($second, "'$berta', 60, 1, topics => '{one}', wait_ms => 20000");
	my $from = now();
	$dbh->do("SELECT outbox.enqueue('one', 'other'), outbox.enqueue('other', 'urgent', priority => 2)");
	my ($first, $rest) = (end_wait($waiter), end_wait($second));
	is($first->{payload}, 'urgent', 'it takes what is more urgent');
	is($rest->{payload}, 'other', 'and another claim is called for the rest');
	cmp_ok(($rest->{at} - $from) / 1000, '<', 1000, 'at once');
}

# --- nothing else does
{
	my $start = time;

	begin_wait($waiter, "'$anna', 60, namespace => 'mine', topics => '{mine}', wait_ms => 1500");
	for (1 .. 20)
	{
		$dbh->do("SELECT outbox.enqueue('mine', 'x'), outbox.enqueue('yours', 'x', namespace => 'mine'), outbox.enqueue('yours', 'x')");
		sleep 0.02;
	}
	ok(is_asleep($waiter), 'other topics and namespaces do not end the wait');
	my $end = end_wait($waiter);
	is($end->{payload} . $end->{state}, '', 'they are not what it gets');
	cmp_ok($end->{seconds}, '>=', 1.5, 'it ends with its time');
	cmp_ok($end->{seconds}, '<', 4, 'not later');
	begin_wait($waiter, call($anna, 'undone', 1000));
	$dbh->do('BEGIN');
	$dbh->do("SELECT outbox.enqueue('undone', 'x')");
	$dbh->do('ROLLBACK');
	$end = end_wait($waiter);
	is($end->{payload}, '', 'nothing comes of what was rolled back');
	cmp_ok($end->{seconds}, '>=', 1, 'nor does it end the wait');
	# an idle wait of some topic does nothing: its transaction is the same
	begin_wait($waiter, call($anna, 'nothing', 60_000));
}

# --- it ends when asked to
for ([ 'pg_cancel_backend', '57014' ], [ 'pg_terminate_backend', '57P01' ])
{
	my ($how, $state) = @$_;
	my $start = time;

	$dbh->do("SELECT $how(?)", undef, $waiter->{backend});
	my $end = end_wait($waiter);
	# a session that is terminated may find the connection gone
	like($end->{state}, qr/^($state|08\d{3})$/, "$how ends it");
	cmp_ok(time - $start, '<', 2, "$how: at once");
	if ($how eq 'pg_cancel_backend')
	{
		is_woken('again', sub { $dbh->do("SELECT outbox.enqueue('again', 'p')") }, 'the session can wait again');
		begin_wait($waiter, call($anna, 'nothing', 60_000));
	}
	else { $waiter = waiter() }
}
{
	my $timed = waiter(settings => ["SET statement_timeout = '300ms'"]);

	begin_wait($timed, call($anna, 'nothing'), 1);
	my $end = end_wait($timed);
	is($end->{state}, '57014', 'statement_timeout ends it');
	cmp_ok($end->{seconds}, '<', 3, 'in time');
	close $timed->{told};
	waitpid $timed->{pid}, 0;
}

# --- many
{
	my $n = 50;
	my @many = map { waiter() } 1 .. $n;
	my $asleep = sub { count_of($dbh, "pg_stat_activity WHERE wait_event_type = 'Extension' AND query ~ 'wait_ms'") };

	begin_wait($many[$_], "'" . owner(100 + $_) . "', 60, 1, topics => '{many}', wait_ms => 30000", 1) for 0 .. $n - 1;
	ok(poll(sub { $asleep->() == $n }, 20), "$n wait at once");
	my $start = time;
	$dbh->do("SELECT outbox.enqueue_many('many', ARRAY(SELECT i::text FROM generate_series(1, $n) i))");
	my @ends = map { end_wait($_) } @many;
	is_deeply([ sort { $a <=> $b } map { $_->{payload} || 0 } @ends ], [ 1 .. $n ], 'each gets one');
	cmp_ok(time - $start, '<', 5, 'soon');
	# one message for all of them: one gets it, the others wait on
	begin_wait($many[$_], "'" . owner(100 + $_) . "', 60, 1, topics => '{many}', wait_ms => 3000", 1) for 0 .. $n - 1;
	ok(poll(sub { $asleep->() == $n }, 20), 'they wait again');
	$dbh->do("SELECT outbox.enqueue('many', 'one')");
	ok(poll(sub { $asleep->() == $n - 1 }, 2), 'one message: the others wait on');
	@ends = map { end_wait($_) } @many;
	is(join(' ', grep { $_ } map { $_->{payload} } @ends), 'one', 'one message: one gets it');
	is(scalar(grep { !$_->{payload} && $_->{seconds} >= 3 } @ends), $n - 1, 'one message: the others to the end of their time');
	close $_->{told} for @many;
	waitpid $_->{pid}, 0 for @many;
}

# --- through PgBouncer, in transaction pooling mode
SKIP:
{
	my $bouncer = pgbouncer($node);

	skip 'there is no pgbouncer', 4 unless $bouncer;
	my $through = $bouncer->{connect};
	my $pooled = waiter(connect => $through);
	my $sender = $through->();
	my $asleep = "pg_stat_activity WHERE wait_event_type = 'Extension' AND query ~ 'wait_ms'";
	my @took;
	for my $round (1 .. 20)
	{
		begin_wait($pooled, call($berta, 'pooled'), 1);
		poll(sub { count_of($dbh, $asleep) == 1 }, 10);
		my $from = now();
		$sender->do("SELECT outbox.enqueue('pooled', ?)", undef, "p$round");
		my $end = end_wait($pooled);
		is($end->{payload}, "p$round", 'through PgBouncer') if $round == 1 || $end->{payload} ne "p$round";
		push @took, ($end->{at} - $from) / 1000;
	}
	@took = sort { $a <=> $b } @took;
	cmp_ok($took[10], '<', 20, 'through PgBouncer, as soon');
	diag(sprintf('through PgBouncer: median %.2f ms', $took[10]));
	is(value($sender, "SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases WHERE topic = 'pooled'", $berta), 20, 'any of its connections can acknowledge');
	begin_wait($pooled, call($berta, 'pooled', 600), 1);
	my $end = end_wait($pooled);
	is($end->{payload} . $end->{state}, '', 'a wait that ends empty');
	$sender->disconnect;
	close $pooled->{told};
	waitpid $pooled->{pid}, 0;
	$bouncer->{stop}->();
}

# --- a transaction that was prepared: its end is not reported, so it may take the interval
$node->append_conf('postgresql.conf', "outbox.poll_interval = '300ms'");
$node->reload;
ok(poll(sub { value($dbh, 'SHOW outbox.poll_interval') eq '300ms' }, 10), 'a shorter interval');
$dbh->do('BEGIN');
$dbh->do("SELECT outbox.enqueue('prepared', 'p')");
$dbh->do("PREPARE TRANSACTION 'one'");
is_woken('prepared', sub { $dbh->do("COMMIT PREPARED 'one'") }, 'COMMIT PREPARED', 'p', 2000);
$dbh->do("SELECT outbox.enqueue('unprepared', 'p')");
$dbh->do('BEGIN');
$dbh->do("SELECT outbox.claim(?, 600, topics => '{unprepared}')", undef, $berta);
$dbh->do("PREPARE TRANSACTION 'two'");
is_woken('unprepared', sub { $dbh->do("ROLLBACK PREPARED 'two'") }, 'ROLLBACK PREPARED', 'p', 2000);
is_woken('still', sub { $dbh->do("SELECT outbox.enqueue('still', 'p')") }, 'a commit, as before', 'p', 200);

close $waiter->{told};
waitpid $waiter->{pid}, 0;
is_deeply([ grep { /PANIC|TRAP|terminated by signal|WARNING/ } split /\n/, slurp_file($node->logfile) ], [], 'the log is clean');
$dbh->disconnect;
$node->stop;

# --- without the library preloaded
{
	$node = new_node('polling', preload => 0, conf => "outbox.poll_interval = '100ms'");
	$dbh = connect_to($node);
	$waiter = waiter();
	is_woken('plain', sub { $dbh->do("SELECT outbox.enqueue('plain', 'p')") }, 'not preloaded: a commit', 'p', 2000);
	begin_wait($waiter, call($anna, 'plain', 700));
	my $end = end_wait($waiter);
	is($end->{payload}, '', 'not preloaded: nothing comes');
	cmp_ok($end->{seconds}, '>=', 0.7, 'not preloaded: the time is waited');
	close $waiter->{told};
	waitpid $waiter->{pid}, 0;
	# not even with shared memory
	$waiter = waiter(settings => ['SET outbox.use_cursor = off']);
	is_woken('alone', sub { $dbh->do("SELECT outbox.enqueue('alone', 'p')") }, 'without shared memory: a commit', 'p', 2000);
	begin_wait($waiter, call($anna, 'alone', 60_000));
	my $start = time;
	$dbh->do('SELECT pg_cancel_backend(?)', undef, $waiter->{backend});
	is(end_wait($waiter)->{state}, '57014', 'without shared memory: cancelled');
	cmp_ok(time - $start, '<', 2, 'without shared memory: at once');
	close $waiter->{told};
	waitpid $waiter->{pid}, 0;
	$dbh->disconnect;
	$node->stop;
}
done_testing();
