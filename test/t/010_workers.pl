# Background workers do the work of all databases, do not block other sessions, and
# failures of workers only cause a short delay.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use List::Util qw(max sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use POSIX ();
use Time::HiRes qw(sleep time);

my $seed = seed();
my $anna = owner(1);
my $with_states = "log_line_prefix = '%m [%p] %e %q%a '";
my $serial = 0;

sub log_lines
{
	my ($node, $pattern) = @_;

	return grep { /$pattern/ } split /\n/, slurp_file($node->logfile);
}

# A join with a wait, whose continuation has a payload of its own.
sub begin_fan_in
{
	my ($dbh, $steps) = @_;
	my $name = "fan $$ " . ++$serial;

	$dbh->do(<<'Q', undef, $steps, $steps, $name);
WITH j AS MATERIALIZED (SELECT outbox.start_join('g', ?) AS id),
     s AS MATERIALIZED (SELECT outbox.enqueue_step(j.id, 'step', i::text) FROM j, generate_series(1, ?) i)
SELECT outbox.enqueue_join_wait(j.id, false, 'cont', ?) FROM j, (SELECT count(*) FROM s) n
Q
	return $name;
}

# All its steps are done, one by one.
sub end_fan_in
{
	my $dbh = shift;

	while (my @got = map { $_->[0] } $dbh->selectall_array("SELECT id FROM outbox.claim(?, 600, topics => '{step}')", undef, $anna))
	{
		$dbh->do('SELECT outbox.ack(?, ARRAY[?::bigint])', undef, $anna, $_) for @got;
	}
	return;
}

sub continuations { return count_of($_[0], "outbox.messages WHERE topic = 'cont'") }

# How often has the continuation of a join come?
sub continued
{
	my ($dbh, $name) = @_;

	return value($dbh, "SELECT count(*) FROM outbox.messages WHERE topic = 'cont' AND payload = ?", $name);
}

# A join from its start to its continuation: does a worker serve this database?
sub is_served
{
	my ($dbh, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $name = begin_fan_in($dbh, 2);
	end_fan_in($dbh);
	return ok(poll(sub { continued($dbh, $name) == 1 }, 60), $what) || note($_) for join "\n", map { join ' ', map { $_ // '-' } @$_ } $dbh->selectall_array('SELECT * FROM outbox.status()');
}

sub workers_in
{
	my ($dbh, $db) = @_;

	return map { $_->[0] } $dbh->selectall_array(
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox worker' AND (datname = ? OR ?::text IS NULL)", undef, $db, $db);
}

# How long a statement takes.
sub seconds
{
	my ($dbh, $statement) = @_;
	my $start = time;

	eval { $dbh->do($statement); 1 } or do { diag($@); return 999 };
	return time - $start;
}

sub set
{
	my ($node, %settings) = @_;

	$node->safe_psql('postgres', join "\n", map { "ALTER SYSTEM SET $_ = $settings{$_};" } sort keys %settings);
	$node->reload;
	return;
}

my $node = new_node('workers', conf => "$with_states\noutbox.backoff_base = '20ms'");
my $dbh = connect_to($node);

# --- a worker evaluates waits by itself
{
	my @took;

	for my $round (1 .. 20)
	{
		my $name = begin_fan_in($dbh, 3);
		end_fan_in($dbh);
		my $start = time;
		sleep 0.001 until continued($dbh, $name) || time > $start + 20;
		push @took, time - $start;
	}
	cmp_ok(max(@took), '<', 1, 'a continuation comes within a second of the last ack');
	@took = sort { $a <=> $b } @took;
	diag(sprintf('from the last ack to the continuation: median %.1f ms, at most %.1f ms', 1000 * $took[10], 1000 * $took[-1]));
	is(continuations($dbh), 20, 'each once');
	is(count_of($dbh, "outbox.queue WHERE topic = 'join.wait'"), 0, 'no wait is left');
	is(count_of($dbh, "outbox.messages WHERE topic = 'join.wait' AND status = 2"), 20, 'all are done');
	my $row = $dbh->selectrow_hashref("SELECT * FROM outbox.status() WHERE component = 'workers'");
	is($row->{ok}, 1, 'status() is content');
	like($row->{detail}, qr/serves this database: yes; .*failing: 0/, 'and says so');
}

# --- messages and leases whose time is over
{
	$dbh->do("SELECT outbox.enqueue('expires', 'p', expires_at => clock_timestamp() + interval '1.2 s')");
	$dbh->do("SELECT outbox.configure_topic('dies', max_attempts => 1)");
	$dbh->do("SELECT outbox.enqueue('dies', 'p')");
	my $dying = connect_to($node);
	is(value($dying, "SELECT count(*) FROM outbox.claim(?, 1, topics => '{dies}')", $anna), 1, 'the last lease');
	$dying->disconnect;
	$dbh->do("SELECT outbox.enqueue('returns', 'p')");
	is(value($dbh, "SELECT count(*) FROM outbox.claim(?, 1, topics => '{returns}')", $anna), 1, 'one that is not the last');
	for (['expires', 6], ['dies', 5])
	{
		my ($topic, $reason) = @$_;

		ok(poll(sub { value($dbh, 'SELECT status FROM outbox.messages WHERE topic = ?', $topic) == 3 }, 20), "$topic: dead, without a claim");
		is(value($dbh, 'SELECT failure_reason FROM outbox.messages WHERE topic = ?', $topic), $reason, "$topic: and why");
	}
	ok(poll(sub { value($dbh, "SELECT status FROM outbox.messages WHERE topic = 'returns'") == 0 }, 20), 'OBX-053: workers reap by themselves: a lease that has ended is given back');
}

# --- an idle worker leaves; the database can be copied, renamed and dropped
{
	$dbh->do('CREATE DATABASE idle');
	my $idle = connect_to($node, db => 'idle');
	$idle->do('CREATE EXTENSION outbox');
	is_served($idle, 'a database that was created later is discovered at once');
	$idle->disconnect;
	ok(poll(sub { !workers_in($dbh, 'idle') }, 10), 'the worker leaves it');
	cmp_ok(seconds($dbh, 'CREATE DATABASE copied TEMPLATE idle'), '<', 2, 'it can be copied at once');
	cmp_ok(seconds($dbh, 'ALTER DATABASE idle RENAME TO renamed'), '<', 2, 'and renamed');
	for my $db (qw(copied renamed))
	{
		my $other = connect_to($node, db => $db);
		is_served($other, "the $db database is served");
		$other->disconnect;
	}
	ok(poll(sub { !workers_in($dbh, 'renamed') && !workers_in($dbh, 'copied') }, 10), 'the workers leave');
	cmp_ok(seconds($dbh, "DROP DATABASE $_"), '<', 2, "the $_ database can be dropped at once") for qw(renamed copied);
	# a lease is left behind, so a worker is still needed there
	$dbh->do('CREATE DATABASE doomed');
	my $doomed = connect_to($node, db => 'doomed');
	$doomed->do('CREATE EXTENSION outbox');
	$doomed->do("SELECT outbox.enqueue('t', 'p', expires_at => clock_timestamp() + interval '3 s')");
	$doomed->do('SELECT outbox.claim(?, 2)', undef, $anna);
	$doomed->disconnect;
	ok(poll(sub { !workers_in($dbh, 'doomed') }, 10), 'no worker waits for what is to come');
	cmp_ok(seconds($dbh, 'DROP DATABASE doomed WITH (FORCE)'), '<', 5, 'one with things to come can be dropped');
	is_served($dbh, 'all goes on');
	ok(poll(sub { !workers_in($dbh, undef) }, 20), 'idle workers leave all databases');
}

# --- the list of databases
{
	my %other;

	for my $db ('listed', 'unlisted', 'Mixed, Case')
	{
		$dbh->do("CREATE DATABASE \"$db\"");
		$node->safe_psql($db, 'CREATE EXTENSION outbox');
		$other{$db} = connect_to($node, db => "'$db'");
	}
	set($node, 'outbox.databases' => q{'listed, absent, "Mixed, Case"'});
	ok(poll(sub { log_lines($node, qr/database "absent" in outbox.databases/) }, 10), 'a missing database of the list is logged');
	is_served($other{$_}, "database $_ is served") for 'listed', 'Mixed, Case';
	is(value($other{$_}, 'SELECT serves FROM outbox._workers()'), 1, "database $_ knows it") for 'listed', 'Mixed, Case';
	is(value($other{unlisted}, 'SELECT serves FROM outbox._workers()'), 0, 'the other one is not served');
	# the worker that was there leaves, even if there is something to do
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $pid = client(sub {
		my $busy = connect_to($node, db => 'unlisted');

		until (-e "$dir/stop" || getppid() == 1) { begin_fan_in($busy, 1); end_fan_in($busy); sleep 0.02 }
	});
	ok(poll(sub { !workers_in($dbh, 'unlisted') }, 10), 'OBX-078: a worker leaves what is not on the list, whatever there is to do');
	append_to_file("$dir/stop", '');
	waitpid $pid, 0;
	ok(poll(sub { !workers_in($dbh, 'unlisted') }, 10), 'no worker is there');
	my $name = begin_fan_in($other{unlisted}, 1);
	end_fan_in($other{unlisted});
	is_served($other{listed}, 'the launcher has looked');
	is(continued($other{unlisted}, $name), 0, 'and started no worker there');
	is(scalar(log_lines($node, qr/database "absent" in outbox.databases/)), 1, 'one line in the log');
	is(scalar(log_lines($node, qr/LOG: .*in outbox.databases does not/)), 1, 'and none of others');
	$dbh->do('CREATE DATABASE absent');
	$node->safe_psql('absent', 'CREATE EXTENSION outbox');
	$node->reload;
	my $absent = connect_to($node, db => 'absent');
	is_served($absent, 'once it is there, it is served after a reload');
	$absent->disconnect;
	is_state($dbh, "ALTER SYSTEM SET outbox.databases = 'a b, ,'", '22023', 'a list that is none');
	$dbh->do('ALTER SYSTEM RESET outbox.databases');
	$node->reload;
	ok(poll(sub { continued($other{unlisted}, $name) == 1 }, 20), 'with * again, the other one is served');
	$_->disconnect for values %other;
}

# --- more databases than workers
for my $strategy (qw(round_robin drain_first))
{
	my @dbs = map { "many$_" } 1 .. 6;
	my %many;

	set($node, 'outbox.max_workers' => 2, 'outbox.selection_strategy' => $strategy);
	for my $db (@dbs)
	{
		if ($strategy eq 'round_robin')
		{
			$dbh->do("CREATE DATABASE $db");
			$node->safe_psql($db, 'CREATE EXTENSION outbox');
		}
		$many{$db} = connect_to($node, db => $db);
		$many{$db}->do("TRUNCATE outbox.archive");
	}
	# more than one batch of a worker for each
	for my $db (@dbs)
	{
		$many{$db}->do('BEGIN');
		begin_fan_in($many{$db}, 1) for 1 .. 120;
		$many{$db}->do('COMMIT');
	}
	$many{$_}->do('SELECT outbox.ack(?, array_agg(id)) FROM outbox.claim(?, 600, 1000, topics => ?)', undef, $anna, $anna, ['step']) for @dbs;
	my $most = 0;
	ok(poll(sub {
			$most = max($most, scalar workers_in($dbh, undef));
			sum0(map { continuations($many{$_}) >= 120 } @dbs) == 6 }, 40), "$strategy: six databases and two workers");
	is_deeply([ map { continuations($many{$_}) } @dbs ], [ (120) x 6 ], "$strategy: each continuation once");
	cmp_ok($most, '<=', 2, "$strategy: never more workers than allowed");
	for my $db (@dbs)
	{
		$many{$db}->do('SELECT outbox.ack(?, array_agg(id)) FROM outbox.claim(?, 600, 1000)', undef, $anna, $anna);
		$many{$db}->disconnect;
	}
}
$node->safe_psql('postgres', "ALTER SYSTEM RESET outbox.max_workers; ALTER SYSTEM RESET outbox.selection_strategy;");
$node->reload;

# --- one worker, and four databases with three batches each; databases that come and go
{
	my $turns = new_node('turns', conf => <<'C');
outbox.log_level = log
outbox.databases = ''
outbox.max_workers = 1
max_worker_processes = 16
C
	my $main = connect_to($turns);
	my @stores = map { "store$_" } 1 .. 4;
	my (%store, %names, $bare);

	for my $db (@stores, 'bare')
	{
		$main->do("CREATE DATABASE $db");
		$turns->safe_psql($db, 'CREATE EXTENSION outbox') if $db ne 'bare';
		$store{$db} = connect_to($turns, db => $db);
	}
	$bare = delete $store{bare};
	for my $strategy (qw(round_robin drain_first))
	{
		set($turns, 'outbox.databases' => q{''}, 'outbox.selection_strategy' => $strategy);
		ok(poll(sub { !workers_in($main, undef) && !value($store{store1}, 'SELECT serves FROM outbox._workers()') }, 20), "$strategy: no worker runs");
		for my $db (@stores)
		{
			$store{$db}->do("DELETE FROM outbox.queue; DELETE FROM outbox.joins; TRUNCATE outbox.archive");
			$names{$db} = [];
			$store{$db}->do('BEGIN');
			push @{ $names{$db} }, begin_fan_in($store{$db}, 1) for 1 .. 140;
			$store{$db}->do('COMMIT');
			$store{$db}->do('SELECT outbox.ack(?, array_agg(id)) FROM outbox.claim(?, 600, 1000, topics => ?)', undef, $anna, $anna, ['step']);
		}
		set($turns, 'outbox.databases' => q{'store1, store2, store3, store4'});
		ok(poll(sub { sum0(map { continuations($_) } values %store) == 560 }, 60), "$strategy: all is done");
		# the databases whose continuations came one after the other
		my @came = sort { $a->[0] <=> $b->[0] } map {
			my $db = $_;
			map { [ $_->[0], $db ] } $store{$db}->selectall_array("SELECT extract(epoch FROM created_at) FROM outbox.messages WHERE topic = 'cont'")
		} @stores;
		my @turns;
		for (@came)
		{
			push @turns, [ $_->[1], 0 ] if !@turns || $turns[-1][0] ne $_->[1];
			$turns[-1][1]++;
		}
		note("$strategy: " . join ' ', map { "$_->[0] ($_->[1])" } @turns);
		my @order = map { $_->[0] } @turns;
		is_deeply([ sort @order[ 0 .. 3 ] ], \@stores, "$strategy: each has its turn");
		if ($strategy eq 'round_robin')
		{
			is_deeply(\@order, [ (@order[ 0 .. 3 ]) x 3 ], 'OBX-067, OBX-068: round_robin goes through all databases in the same order, again and again');
			is_deeply([ map { $_->[1] } @turns ], [ (50) x 8, (40) x 4 ], 'OBX-068: round_robin takes one batch of a database before it goes on');
		}
		else
		{
			is_deeply([ map { $_->[1] } @turns ], [ (140) x 4 ], 'OBX-067, OBX-069: drain_first stays with a database until nothing is left there, then goes to the next');
		}
		is_deeply({ map { my $db = $_; ($db => [ map { @$_ } $store{$db}->selectall_array("SELECT payload FROM outbox.messages WHERE topic = 'cont' ORDER BY payload COLLATE \"C\"") ]) } @stores },
			{ map { ($_ => [ sort @{ $names{$_} } ]) } @stores }, 'OBX-066: each database has its own messages and continuations, and no other\'s');
	}

	# the name of a database is in what is logged about it
	my %wait_of;
	for my $db (@stores) { $wait_of{ $_->[0] } = $db for $store{$db}->selectall_array("SELECT message_id FROM outbox.messages WHERE topic = 'join.wait'") }
	my $named = sub {
		my %told;
		my $log = slurp_file($turns->logfile);
		while ($log =~ /outbox join wait: (\S+) is over.*\n.* CONTEXT:  background process in database "(\S+)"/g) { $told{$1}{$2}++ if $wait_of{$1} }
		return { map { ($_ => join ',', sort keys %{ $told{$_} }) } keys %told };
	};
	is(scalar(keys %wait_of), 560, 'there are waits in the log');
	is_deeply($named->(), \%wait_of, 'OBX-070, OBX-071, OBX-107: what a worker logs has the name of the database, the same each time');

	# one that works, while others come and go without a call
	set($turns, 'outbox.databases' => q{'*'}, 'outbox.max_workers' => 7, 'outbox.discovery_interval' => 1, 'outbox.selection_strategy' => 'round_robin');
	$main->do('CREATE DATABASE late');
	$turns->safe_psql('late', 'CREATE EXTENSION outbox');
	my $late = connect_to($turns, db => 'late');
	$main->do('ALTER DATABASE late IS_TEMPLATE true');
	ok(poll(sub { !value($late, 'SELECT serves FROM outbox._workers()') }, 20), 'a template is not served');
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $busy = client(sub {
		my $client = connect_to($turns, db => 'store1');
		until (-e "$dir/stop" || getppid() == 1) { begin_fan_in($client, 1); end_fan_in($client); sleep 0.02 }
	});
	my $name = begin_fan_in($late, 1);
	end_fan_in($late);
	my ($worker, $since);
	ok(poll(sub { ($worker, $since) = $main->selectrow_array("SELECT pid, backend_start FROM pg_stat_activity WHERE backend_type = 'outbox worker' AND datname = 'store1'") }, 20), 'a worker is busy');
	$main->do('ALTER DATABASE late IS_TEMPLATE false');
	ok(poll(sub { continued($late, $name) == 1 }, 20), 'OBX-075, OBX-077: a database that can be served from now on is found at the next look, without a call, and its work is done');
	$main->do('ALTER DATABASE late IS_TEMPLATE true');
	ok(poll(sub { !value($late, 'SELECT serves FROM outbox._workers()') }, 20), 'OBX-075, OBX-078: a database that cannot be served any more is dropped at the next look');
	$main->do('ALTER DATABASE late IS_TEMPLATE false');
	ok(poll(sub { value($late, 'SELECT serves FROM outbox._workers()') }, 20), 'and taken on again');
	is_deeply([ $main->selectrow_array("SELECT pid, backend_start FROM pg_stat_activity WHERE backend_type = 'outbox worker' AND datname = 'store1'") ], [ $worker, $since ],
		'OBX-079: the worker of a database that has not changed goes on through all these looks');
	append_to_file("$dir/stop", '');
	waitpid $busy, 0;

	# one without the extension
	$bare->do('CREATE TABLE here (i int)');
	$turns->reload;
	is_served($store{store1}, 'the launcher has looked');
	ok(poll(sub { !workers_in($main, undef) }, 30), 'the workers have left');
	is_deeply([ $bare->selectrow_array("SELECT to_regnamespace('outbox'), count(*) FROM pg_extension WHERE extname = 'outbox'") ], [ undef, 0 ], 'OBX-109: workers make nothing in a database without the extension');
	$_->disconnect for $main, $late, $bare, values %store;
	$turns->stop;
}

# --- workers are terminated, cancelled
{
	my $pid_of = sub {
		my $pid;

		# one that comes while other databases wait for theirs is gone in a moment
		poll(sub { $dbh->do('SELECT outbox._wake_worker()'); ($pid) = workers_in($dbh, 'postgres') }, 20);
		return $pid;
	};

	for my $how (qw(pg_terminate_backend pg_cancel_backend))
	{
		my $name = begin_fan_in($dbh, 1);
		my $pid = $pid_of->();
		ok($pid, "$how: a worker is there");
		ok(poll(sub { $dbh->do("SELECT $how(?)", undef, $pid); !grep { $_ == $pid } workers_in($dbh, 'postgres') }, 10), "$how: it ends");
		end_fan_in($dbh);
		ok(poll(sub { continued($dbh, $name) == 1 }, 20), "$how: another one comes");
	}
	my $launcher = sub { value($dbh, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox launcher'") };
	my $first = $launcher->();
	my $name = begin_fan_in($dbh, 1);
	ok($pid_of->(), 'a worker is there');
	$dbh->do('SELECT pg_terminate_backend(?)', undef, $first);
	ok(poll(sub { ($launcher->() // $first) != $first }, 20), 'another launcher comes');
	end_fan_in($dbh);
	ok(poll(sub { continued($dbh, $name) == 1 }, 20), 'and all goes on');
	is_served($dbh, 'and on');
	ok(poll(sub { !workers_in($dbh, undef) }, 20), 'workers still leave');
	is_served($dbh, 'and come again');

	# failures between which a worker has worked for longer than it had to wait are not in a row
	my $busy = client(sub { my $mine = connect_to($node); while (1) { $mine->do("SELECT outbox.schedule_timer('often', 'p', clock_timestamp())"); sleep 0.02 } });
	my $took;
	for (1 .. 4)
	{
		my $since = time;
		my $pid;
		ok(poll(sub { ($pid) = workers_in($dbh, 'postgres') }, 20), 'cancelled now and then: a worker comes');
		$took = time - $since;
		# it, or another one after it, if a database had to have its turn
		ok(poll(sub { ($pid) = workers_in($dbh, 'postgres'); $pid && count_of($dbh, "pg_stat_activity WHERE pid = $pid AND backend_start < clock_timestamp() - interval '2.5 s'") }, 30), 'it works for a while');
		# a cancel that comes in the middle of one part of a round ends that part alone
		ok(poll(sub { $dbh->do('SELECT pg_cancel_backend(?)', undef, $pid); !grep { $_ == $pid } workers_in($dbh, 'postgres') }, 10), 'it ends');
	}
	cmp_ok($took, '<', 3.5, 'cancelled now and then: soon');
	kill 'KILL', $busy;
	waitpid $busy, 0;
}

# --- transactions that are prepared, whose end is not reported
{
	my $do = sub { my ($name, $query, @parameters) = @_; $dbh->do('BEGIN'); $dbh->do($query, undef, @parameters); $dbh->do("PREPARE TRANSACTION '$name'") };
	my $fan = begin_fan_in($dbh, 1);

	$dbh->do("SELECT outbox.claim(?, 600, topics => '{step}')", undef, $anna);
	$do->('timer', "SELECT outbox.schedule_timer('prepared', 'p', clock_timestamp())");
	$do->('join', 'SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases WHERE owner_token = ?', $anna, $anna);
	# what they do cannot be seen yet, so the workers leave
	ok(poll(sub { !workers_in($dbh, 'postgres') }, 20), 'prepared: no worker stays to wait for it');
	$dbh->do("COMMIT PREPARED '$_'") for 'timer', 'join';
	ok(poll(sub { count_of($dbh, "outbox.messages WHERE topic = 'prepared'") == 1 }, 40), 'prepared: a timer comes');
	ok(poll(sub { continued($dbh, $fan) == 1 }, 40), 'prepared: what comes after a join, too');
}

# --- the extension is dropped, created and updated under a busy worker
{
	$dbh->do('CREATE DATABASE busy');
	$node->safe_psql('busy', 'CREATE EXTENSION outbox');
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $pid = client(sub {
		my $busy = connect_to($node, db => 'busy');

		until (-e "$dir/stop" || getppid() == 1)
		{
			eval { begin_fan_in($busy, 2); end_fan_in($busy); 1 } or $busy->state !~ /^XX/ or print STDERR "busy: $@";
		}
	});
	my $busy = connect_to($node, db => 'busy');
	for my $round (1 .. 3)
	{
		ok(poll(sub { continuations($busy) >= 20 }, 20), "round $round: the worker is busy");
		is_state($busy, 'ALTER EXTENSION outbox UPDATE', '', "round $round: ALTER EXTENSION UPDATE");
		# sessions that use the tables may be part of a deadlock
		ok(poll(sub { sqlstate($busy, 'DROP EXTENSION outbox CASCADE') =~ /^(42704)?$/ }, 20), "round $round: DROP EXTENSION");
		ok(poll(sub { sqlstate($busy, 'CREATE EXTENSION outbox') eq '' }, 20), "round $round: CREATE EXTENSION");
	}
	ok(poll(sub { continuations($busy) >= 20 }, 20), 'the worker has survived');
	append_to_file("$dir/stop", '');
	waitpid $pid, 0;
	end_fan_in($busy);
	is_served($busy, 'and goes on');
	ok(poll(sub { !count_of($busy, "outbox.queue WHERE topic = 'join.wait'") }, 20), 'no wait is left');
	$busy->do('DROP EXTENSION outbox CASCADE');
	$busy->disconnect;
	ok(poll(sub { !workers_in($dbh, 'busy') }, 10), 'without the extension, no worker stays');
	cmp_ok(seconds($dbh, 'DROP DATABASE busy'), '<', 2, 'nor is in the way');
}
is_deeply([ log_lines($node, qr/ XX\d\d\d |PANIC|TRAP/) ], [], 'no internal errors');

# --- a worker is killed in the middle of continuations
{
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $nkills = 3 * scale();
	my @pids = map {
		my $n = $_;
		client(sub {
			my $client;
			my $i = 0;

			until (-e "$dir/stop" || getppid() == 1)
			{
				$client //= eval { connect_to($node) };
				if (!$client) { sleep 0.05; next }
				eval {
					$client->begin_work;
					my $join = value($client, 'SELECT outbox.start_join(?, 3)', "load $n");
					$client->do("SELECT outbox.enqueue_step(?, 'step', 'p') FROM generate_series(1, 3)", undef, $join);
					$client->do("SELECT outbox.enqueue_join_wait(?, false, 'after', ?)", undef, $join, "$n." . ++$i) for 1 .. 2;
					$client->commit;
					my @got = map { $_->[0] } $client->selectall_array("SELECT id FROM outbox.claim(?, 5, 7, topics => '{step}')", undef, owner(10 + $n));
					$client->do('SELECT outbox.ack(?, ?::bigint[])', undef, owner(10 + $n), \@got);
					1;
				} or undef $client;
			}
		});
	} 1 .. 2;
	my $after = "outbox.messages WHERE topic = 'after'";
	for my $round (1 .. $nkills)
	{
		my $from = count_of($dbh, $after);
		ok(poll(sub { count_of($dbh, $after) >= $from + 40 }, 30), "kill $round: continuations come");
		my $pid;
		# a worker in the middle of something
		poll(sub { $pid = value($dbh, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox worker' AND datname = 'postgres' AND state = 'active'") }, 20);
		ok($pid, "kill $round: a worker is at it");
		kill_backend($node, $pid);
		$dbh = connect_to($node);
	}
	ok(poll(sub { count_of($dbh, $after) >= 40 * $nkills + 40 }, 30), 'they go on coming');
	append_to_file("$dir/stop", '');
	waitpid $_, 0 for @pids;
	# what was leased to a process that died comes back at the end of its lease
	ok(poll(sub { end_fan_in($dbh); !count_of($dbh, "outbox.queue WHERE topic IN ('step', 'join.wait')") }, 30), 'all steps and waits are over');
	is(count_of($dbh, "outbox.joins j WHERE grouping_key LIKE 'load%' AND (status <> 1 OR completed_steps <> 3 OR failed_steps <> 0)"), 0, 'the joins are exact');
	is(count_of($dbh, "(SELECT payload FROM $after GROUP BY payload HAVING count(*) <> 1) doubled"), 0, 'no continuation came twice');
	my $joins = count_of($dbh, "outbox.joins WHERE grouping_key LIKE 'load%'");
	is(count_of($dbh, $after), 2 * $joins, "one continuation for each wait of $joins joins");
	is(count_of($dbh, 'outbox.join_waits'), 0, 'nothing waits');
}

# --- one part of a round fails, the others go on
{
	my $trouble = sub { return [ map { @$_ } $dbh->selectall_array("SELECT component FROM outbox.status() WHERE NOT ok AND component LIKE 'worker:%'") ] };
	my $broken = qr/outbox worker in database "postgres": dispatching timers cannot be done: no ticks \(SQLSTATE YY001\)/;
	my $again = qr/outbox worker in database "postgres": dispatching timers can be done again/;
	my $agains = log_lines($node, $again);

	$dbh->do(<<'Q');
CREATE FUNCTION public.no_ticks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no ticks' USING ERRCODE = 'YY001'; END $$;
CREATE TRIGGER no_ticks BEFORE UPDATE ON outbox.timer_queue FOR EACH ROW WHEN (NEW.topic = 'tick') EXECUTE FUNCTION public.no_ticks();
SELECT outbox.schedule_timer('tick', 'p', clock_timestamp());
Q
	ok(poll(sub { log_lines($node, $broken) }, 20), 'a part that fails is logged');
	is_deeply($trouble->(), ['worker: timers'], 'status() names it');
	is_served($dbh, 'waits go on');
	$dbh->do("SELECT outbox.enqueue('gone', 'p', expires_at => clock_timestamp())");
	ok(poll(sub { value($dbh, "SELECT status FROM outbox.messages WHERE topic = 'gone'") == 3 }, 20), 'reaping goes on');
	ok(poll(sub { value($dbh, "SELECT failures >= 3 FROM outbox._worker_troubles() WHERE part = 'timers' AND sqlstate = 'YY001'") }, 20), 'it is tried again');
	is(scalar(log_lines($node, $broken)), 1, 'and not logged again');
	$dbh->do('DROP TRIGGER no_ticks ON outbox.timer_queue');
	ok(poll(sub { count_of($dbh, "outbox.messages WHERE topic = 'tick'") == 1 }, 30), 'it is done as soon as it can be');
	ok(poll(sub { !@{ $trouble->() } }, 10), 'status() has nothing to say then');
	is(scalar(log_lines($node, $again)), $agains + 1, 'nor has the log, but that');

	# another transaction stays open, and has a table locked
	my $idle = connect_to($node);
	$idle->do('BEGIN');
	$idle->do('LOCK TABLE outbox.timer_queue');
	$dbh->do("SELECT outbox._wake_worker()");
	# not by status(), which reads the table
	ok(poll(sub { count_of($dbh, "outbox._worker_troubles() WHERE part = 'timers' AND sqlstate = '55P03'") }, 30), 'a lock is not waited for without end');
	my $name = begin_fan_in($dbh, 1);
	end_fan_in($dbh);
	ok(poll(sub { continued($dbh, $name) == 1 }, 20), 'waits go on, whatever is locked');
	$idle->do('ROLLBACK');
	$idle->disconnect;
	ok(poll(sub { !@{ $trouble->() } }, 90), 'and all is well afterwards');
}

# --- settings of the database do not reach its worker
{
	$dbh->do('CREATE DATABASE "set"');
	$node->safe_psql('set', 'CREATE EXTENSION outbox');
	$dbh->do('CREATE ROLE powerless');
	$dbh->do("ALTER DATABASE \"set\" SET $_") for 'role = powerless', 'standard_conforming_strings = off', 'default_transaction_read_only = on', "search_path = ''", 'row_security = off', "default_transaction_isolation = 'serializable'", 'lock_timeout = 1';
	ok(poll(sub { !workers_in($dbh, 'set') }, 10), 'the worker has left');
	my $set = connect_to($node, db => 'set', settings => [ 'RESET role', 'SET role none', 'SET default_transaction_read_only = off', 'SET standard_conforming_strings = on', "SET default_transaction_isolation = 'read committed'", 'SET search_path = public', 'SET lock_timeout = 0' ]);
	is_served($set, 'settings of the database do not reach the worker');
	$set->disconnect;
	$dbh->do('DROP DATABASE "set" WITH (FORCE)');
}

# How many workers have been started?
sub starts { return scalar(log_lines($_[0], qr/starting background worker process "outbox worker/)) }

# Seconds of CPU that the server's processes have used, those that have ended too.
sub cpu_seconds
{
	my $of = shift;
	my ($postmaster) = slurp_file($of->data_dir . '/postmaster.pid') =~ /(\d+)/;
	my $ticks = 0;

	for my $stat (glob '/proc/[0-9]*/stat')
	{
		my ($pid, $line) = $stat =~ /(\d+)/ ? ($1, eval { slurp_file($stat) }) : next;
		my @fields = split ' ', ($line // next) =~ s/^.*\) //sr;
		$ticks += $fields[11] + $fields[12] if $pid == $postmaster || $fields[1] == $postmaster;
		$ticks += $fields[13] + $fields[14] if $pid == $postmaster;
	}
	return $ticks / POSIX::sysconf(POSIX::_SC_CLK_TCK());
}

# --- which workers are called, and how often; and an idle server
{
	my $quiet = new_node('quiet', conf => "$with_states\nlog_min_messages = debug1\noutbox.lane_memory = 1\nmax_worker_processes = 16\nautovacuum = off");
	my $here = connect_to($quiet);
	my $rest = sub { poll(sub { !workers_in($here, undef) }, 30) };
	my $role = sub {
		my ($name, $topic, $body) = @_;

		$here->do("CREATE ROLE $name LOGIN");
		$here->do("SELECT outbox.grant_worker('$name')");
		$here->do("CREATE SCHEMA $name AUTHORIZATION $name");
		$here->do("SET SESSION AUTHORIZATION $name");
		$here->do("CREATE FUNCTION $name.h(m outbox.message) RETURNS void LANGUAGE plpgsql AS 'BEGIN $body END'");
		$here->do("SELECT outbox.register_handler('$topic', '$name.h(outbox.message)')");
		$here->do('RESET SESSION AUTHORIZATION');
	};
	my $done = sub { return count_of($here, "outbox.messages WHERE topic = '$_[0]' AND status = 2") };

	# B18: a busy handler, and seven that have nothing to do
	$role->("r$_", "t$_", '') for 1 .. 8;
	ok(poll(sub { count_of($here, 'outbox.handlers') == 8 }, 10) && $rest->(), 'eight roles with handlers, and nothing to do');
	my $before = starts($quiet);
	for (1 .. 100) { $here->do("SELECT outbox.enqueue('t1', 'p')"); sleep 0.01 }
	ok(poll(sub { $done->('t1') == 100 }, 20), 'one of them is busy');
	cmp_ok(starts($quiet) - $before, '<=', 3, 'the workers of the others are not called');

	# A9: round_robin also holds for databases that are called while the worker is busy
	$rest->();
	set($quiet, 'outbox.max_handler_workers' => 1);
	$role->('busy', 'busy', 'PERFORM pg_sleep(0.02);');
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $pid = client(sub {
		my $client = connect_to($quiet);
		until (-e "$dir/stop" || getppid() == 1) { $client->do("SELECT outbox.enqueue('busy', 'p')"); sleep 0.005 }
	});
	ok(poll(sub { $done->('busy') >= 100 }, 30), 'a handler that has always something to do');
	$here->do("SELECT outbox.enqueue('t2', 'p')");
	ok(poll(sub { $done->('t2') == 1 }, 5), 'round_robin: another one has its turn');
	append_to_file("$dir/stop", '');
	waitpid $pid, 0;
	$here->do("SET SESSION AUTHORIZATION busy");
	$here->do("SELECT outbox.unregister_handler('busy')");
	$here->do('RESET SESSION AUTHORIZATION');

	# A5: handlers have places of their own
	set($quiet, 'outbox.max_handler_workers' => 4, 'outbox.max_workers' => 1);
	$role->("slow$_", "slow$_", 'PERFORM pg_sleep(600);') for 1 .. 4;
	$here->do("SELECT outbox.enqueue('slow' || i, 'p') FROM generate_series(1, 4) i");
	ok(poll(sub { count_of($here, "pg_stat_activity WHERE backend_type = 'outbox worker' AND usename LIKE 'slow%' AND wait_event = 'PgSleep'") == 4 }, 20), 'OBX-060: four handlers are at work at the same time, each at a message of its own');
	is_served($here, 'they do not hinder the extension\'s own work');
	$here->do("SELECT outbox.pause_topic('slow' || i) FROM generate_series(1, 4) i");
	$here->do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox worker'");
	set($quiet, 'outbox.max_workers' => 4);

	# P1: more than 256 of them
	$here->do(<<'Q');
DO $$ BEGIN
    FOR i IN 1 .. 300 LOOP
        EXECUTE format('CREATE ROLE many%s LOGIN', i);
        EXECUTE format('GRANT USAGE ON SCHEMA outbox, r1 TO many%s', i);
        EXECUTE format('GRANT EXECUTE ON FUNCTION outbox.register_handler TO many%s', i);
        EXECUTE format('SET ROLE many%s', i);
        PERFORM outbox.register_handler('many' || i, 'r1.h(outbox.message)');
        RESET ROLE;
    END LOOP;
END $$;
SELECT outbox.enqueue('many' || i, 'p') FROM generate_series(1, 300) i;
Q
	ok(poll(sub { $done->("many$_[0]"); count_of($here, "outbox.messages WHERE topic LIKE 'many%' AND status = 2") == 300 }, 120), '300 roles with handlers: all are served');

	# B19: one that is not served causes no other searches
	$here->do('CREATE DATABASE unserved');
	$quiet->safe_psql('unserved', 'CREATE EXTENSION outbox');
	$here->do("CREATE DATABASE other$_") for 1 .. 3;
	$quiet->safe_psql("other$_", 'CREATE EXTENSION outbox') for 1 .. 3;
	my $unserved = connect_to($quiet, db => 'unserved');
	is_served($unserved, 'a database, while it is served');
	$here->do('ALTER DATABASE unserved IS_TEMPLATE true');
	$quiet->reload;
	ok(poll(sub { !value($unserved, 'SELECT serves FROM outbox._workers()') }, 20), 'a template is not served');
	is_deeply([ $unserved->selectrow_array("SELECT ok, hint FROM outbox.status() WHERE component = 'workers'") ],
		[ 0, 'Is the database in outbox.databases, no template, and open to connections?' ], 'status() says so');
	ok($rest->(), 'all have left');
	$before = starts($quiet);
	for (1 .. 40) { $unserved->do("SELECT outbox.schedule_timer('t', 'p', clock_timestamp()), outbox.enqueue('join.wait', '{}'), outbox._wake_worker()"); sleep 0.05 }
	# a lease that ends somewhere may start one
	my @started = map { /(process "outbox worker.*)/ } log_lines($quiet, qr/starting background worker process "outbox worker/);
	note(join "\n", @started[ $before .. $#started ]);
	cmp_ok(starts($quiet) - $before, '<=', 3, 'its calls start no worker anywhere');
	$unserved->disconnect;

	# G1: whatever it holds, an idle server uses nothing; with more topics than there is memory for
	for my $db ('postgres', 'other1', 'other2', 'other3')
	{
		my $full = connect_to($quiet, db => $db);
		$full->do("SELECT count(outbox.enqueue('topic ' || i, 'p')) FROM generate_series(1, 5000) i");
		$full->do("SELECT outbox.schedule_timer('later', 'p', clock_timestamp() + interval '1 day')");
		$full->do("SELECT count(*) FROM outbox.claim(?, 86400, 1000)", undef, $anna);
		$full->disconnect;
	}
	ok($rest->(), 'with 20,000 topics, all leave');
	my ($starts, $cpu, $calm);
	# what is not known is searched for with growing delays
	ok(poll(sub {
			($starts, $cpu) = (starts($quiet), cpu_seconds($quiet));
			sleep 5;
			($starts, $cpu) = (starts($quiet) - $starts, cpu_seconds($quiet) - $cpu);
			return $starts <= 4 && $cpu < 0.25; }, 60), 'OBX-122, SHARED-18: an idle server comes to rest: nothing polls')
	  or diag("in five seconds: $starts workers started, $cpu s of CPU");
	note("in five seconds: $starts workers started, $cpu s of CPU");
	$here->disconnect;
	is_deeply([ log_lines($quiet, qr/ XX\d\d\d |PANIC|TRAP/) ], [], 'no internal errors');
	$quiet->stop;
}

# --- shutdown, with workers at work
{
	$dbh->do(<<'Q');
CREATE ROLE slow LOGIN;
CREATE FUNCTION public.slow(m outbox.message) RETURNS void LANGUAGE plpgsql SECURITY INVOKER AS 'BEGIN PERFORM pg_sleep(600); END';
GRANT USAGE ON SCHEMA outbox TO slow;
SELECT outbox.grant_worker('slow');
SET ROLE slow;
SELECT outbox.register_handler('slow', 'public.slow(outbox.message)', lease_seconds => 600);
RESET ROLE;
Q
	my $name = begin_fan_in($dbh, 1);
	$dbh->do("SELECT outbox.enqueue('slow', 'p')");
	ok(poll(sub { count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker' AND wait_event = 'PgSleep'") == 1 }, 20), 'a worker is in the middle of a handler');
	$dbh->disconnect;
	my $start = time;
	$node->stop('fast');
	cmp_ok(time - $start, '<', 5, 'the server stops at once');
	is_deeply([ log_lines($node, qr/FATAL: .*outbox launcher/) ], [], 'which is no error of the launcher');
	$node->start;
	$dbh = connect_to($node);
	end_fan_in($dbh);
	ok(poll(sub { continued($dbh, $name) == 1 }, 20), 'and goes on where it was');
	check_indexes($node);
	$dbh->disconnect;
	$node->stop;
}

# --- the server has no free slot for a worker
{
	my $small = new_node('small', conf => "$with_states\nmax_worker_processes = 2\nmax_logical_replication_workers = 0");
	my $status = sub { value($_[0], "SELECT ok::text || ' ' || coalesce(hint, '') FROM outbox.status() WHERE component = 'workers'") };
	my $few = connect_to($small);

	is_served($few, 'a server with room for one worker');
	ok(poll(sub { !workers_in($few, undef) }, 10), 'it leaves');
	# a parallel query takes the place
	my $always = value($few, 'SHOW server_version_num') >= 160000 ? 'debug_parallel_query' : 'force_parallel_mode';
	my $pid = client(sub {
		my $parallel = connect_to($small, settings => ["SET $always = on"]);
		eval { $parallel->do('SELECT pg_sleep(600)') };
	});
	ok(poll(sub { count_of($few, "pg_stat_activity WHERE backend_type = 'parallel worker'") == 1 }, 20), 'no room is left');
	my $name = begin_fan_in($few, 1);
	end_fan_in($few);
	ok(poll(sub { $status->($few) =~ /^false .*max_worker_processes/ }, 10), 'status() says so, and what to do');
	begin_fan_in($few, 1), end_fan_in($few) for 1 .. 50;
	is(scalar(log_lines($small, qr/outbox launcher: could not register background process/)), 1, 'one line in the log');
	is(continuations($few), 1, 'nothing is done in the meantime');
	is(value($few, 'SELECT outbox.process_join_waits(1000)'), 51, 'but by hand');
	my $last = begin_fan_in($few, 1);
	end_fan_in($few);
	$few->do("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query ~ '^SELECT pg_sleep' AND backend_type = 'client backend'");
	waitpid $pid, 0;
	ok(poll(sub { continued($few, $last) == 1 }, 30), 'with room again, a worker comes');
	is_deeply([ $status->($few), continuations($few) ], [ 'true ', 53 ], 'and all is well');
	is(scalar(log_lines($small, qr/could not register background process/)), 1, 'still one line in the log');
	$few->disconnect;
	$small->stop;

	# not even for the launcher
	$small->append_conf('postgresql.conf', 'max_worker_processes = 0');
	$small->start;
	$few = connect_to($small);
	like($status->($few), qr/^false .*max_worker_processes/, 'without a launcher: status() says so');
	begin_fan_in($few, 1);
	end_fan_in($few);
	is(value($few, 'SELECT outbox.run_maintenance()') > 0, 1, 'without a launcher: by hand');
	is(continuations($few), 54, 'without a launcher: it is done');
	$few->disconnect;
	$small->stop;
}

# --- a standby
{
	my $primary = new_node('primary', init => { allows_streaming => 1 }, conf => $with_states);
	my $writer = connect_to($primary);
	my $name = begin_fan_in($writer, 1);

	is_served($writer, 'the primary');
	$primary->backup('backup');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($primary, 'backup', has_streaming => 1);
	$standby->start;
	my $late = begin_fan_in($writer, 1);
	$primary->wait_for_catchup('standby');
	my $reader = connect_to($standby);
	is(count_of($reader, "pg_stat_activity WHERE backend_type LIKE 'outbox%'"), 0, 'a standby has no worker');
	is(value($reader, "SELECT status FROM outbox.status() WHERE component = 'workers'"), 'no launcher', 'and says so');
	is_state($reader, 'SELECT outbox.run_maintenance()', '25006', 'nor is it done by hand');
	$writer->disconnect;
	$primary->stop('immediate');
	$standby->promote;
	end_fan_in($reader);
	ok(poll(sub { continued($reader, $name) == 1 && continued($reader, $late) == 1 }, 30), 'after the promotion, a worker comes');
	is_served($reader, 'and goes on');
	$reader->disconnect;
	$standby->stop;
}

# --- without the library preloaded
{
	my $plain = new_node('plain', preload => 0, conf => $with_states);
	my $hand = connect_to($plain);
	my $name = begin_fan_in($hand, 2);

	end_fan_in($hand);
	$hand->do("SELECT outbox.configure_topic('dies', max_attempts => 1)");
	$hand->do("SELECT outbox.enqueue('dies', 'p'), outbox.enqueue('expires', 'p', expires_at => clock_timestamp() + interval '1 s')");
	is(value($hand, "SELECT count(*) FROM outbox.claim(?, 1, topics => '{dies}')", $anna), 1, 'by hand: a lease');
	$hand->do(<<'Q');
CREATE ROLE app LOGIN;
CREATE TABLE public.handled (payload text, who text);
GRANT INSERT ON public.handled TO app;
CREATE FUNCTION public.handler(m outbox.message) RETURNS void LANGUAGE sql AS 'INSERT INTO public.handled VALUES (m.payload, current_user)';
SELECT outbox.grant_worker('app');
SET ROLE app;
SELECT outbox.register_handler('handled', 'public.handler(outbox.message)');
RESET ROLE;
SELECT outbox.enqueue('handled', 'p');
Q
	my $late = value($hand, "SELECT outbox.start_join('late', 1)");
	$hand->do("SELECT outbox.enqueue_join_wait(?, false, 'cont', 'late')", undef, $late);
	my $message = value($hand, "SELECT outbox.enqueue('early', 'p')");
	$hand->do("SELECT outbox.ack(?, array_agg(id)) FROM outbox.claim(?, topics => '{early}')", undef, $anna, $anna);
	$hand->do('SELECT outbox.attach_message_to_join(?, ?)', undef, $late, $message);
	ok(poll(sub {
			$hand->do('SELECT outbox.run_maintenance()');
			count_of($hand, "outbox.messages WHERE topic IN ('dies', 'expires') AND status = 3") == 2 }, 20), 'by hand: what is over');
	ok(poll(sub { $hand->do('SELECT outbox.run_maintenance()'); continued($hand, 'late') }, 20), 'by hand: a member that had ended before');
	is(continued($hand, $_), 1, "by hand: $_") for $name, 'late';
	is(count_of($hand, 'public.handled'), 0, 'by hand: run_maintenance runs no handlers');
	is(value($hand, 'SELECT outbox._start_handlers()'), 1, 'by hand: handlers are run in processes of their own');
	is_deeply([ $hand->selectall_array('SELECT * FROM public.handled') ], [ [ 'p', 'app' ] ], 'by hand: as their role');
	is(value($hand, "SELECT status FROM outbox.messages WHERE topic = 'handled'"), 2, 'by hand: and their messages are done');
	is(value($hand, 'SELECT outbox._start_handlers()'), 0, 'by hand: until nothing is left');
	$hand->do('BEGIN');
	$hand->do("SELECT outbox.enqueue('handled', 'p')");
	is_state($hand, 'SELECT outbox._start_handlers()', '25001', 'by hand: not in a transaction that they could wait for');
	$hand->do('ROLLBACK');
	is(count_of($hand, "pg_stat_activity WHERE backend_type LIKE 'outbox%'"), 0, 'there is no worker');
	$hand->disconnect;
	is_deeply([ log_lines($plain, qr/ XX\d\d\d |PANIC|TRAP/) ], [], 'by hand: no internal errors');
	$plain->stop;
}

is_deeply([ log_lines($node, qr/ XX\d\d\d |PANIC|TRAP/) ], [], 'no internal errors');
done_testing();
