# The extension is created and dropped, its tables are rewritten, databases are copied
# and dropped, sessions live long: no session gets an unexpected error.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest qw(:DEFAULT claim);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $seed = seed();
my $node = new_node('lifecycle', workers => 0, bare => 1, conf => 'max_wal_size = 4GB');
my ($anna, $berta) = (owner(1), owner(2));
my $dbh = connect_to($node);

sub enqueue { return $_[0]->do('SELECT outbox.enqueue(?, ?)', undef, @_[ 1, 2 ]) }

# --- CREATE EXTENSION
$dbh->do('CREATE SCHEMA outbox');
is_state($dbh, 'CREATE EXTENSION outbox', '42P06', 'a schema of that name is there');
is(count_of($dbh, "pg_class WHERE relnamespace = 'outbox'::regnamespace"), 0, 'nothing was made in it');
$dbh->do('DROP SCHEMA outbox');
is_state($dbh, 'CREATE EXTENSION outbox SCHEMA public', '0A000', 'it has its own schema');

$dbh->do('BEGIN');
$dbh->do('CREATE EXTENSION outbox');
enqueue($dbh, 't', 'p');
is_deeply([ claim($dbh, $anna) ], ['p'], 'it works in the transaction that creates it');
$dbh->do('ROLLBACK');
is_state($dbh, "SELECT outbox.enqueue('t', 'p')", '3F000', 'and is gone when that is rolled back');
is(count_of($dbh, "pg_namespace WHERE nspname = 'outbox'"), 0, 'with its schema');
$dbh->do('CREATE EXTENSION IF NOT EXISTS outbox') for 1 .. 2;
enqueue($dbh, 't', 'p');
is_deeply([ claim($dbh, $anna) ], ['p'], 'the session can go on with a new one');

# --- DROP and CREATE, while others use it
my @others = map { connect_to($node) } 1 .. 3;
for my $round (1 .. 3)
{
	for my $other (@others)
	{
		enqueue($other, 'old', 'p');
		claim($other, $anna, batch_size => 1);
		$other->do('SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases', undef, $anna);
	}
	enqueue($dbh, 'old', 'left');
	$dbh->do('BEGIN');
	$dbh->do('DROP EXTENSION outbox CASCADE');
	is_state($dbh, 'SAVEPOINT s', '', "round $round: dropped");
	is_state($dbh, "SELECT outbox.enqueue('t', 'p')", '3F000', "round $round: nothing to call");
	$dbh->do('ROLLBACK TO s');
	$dbh->do($round == 2 ? 'ROLLBACK' : 'CREATE EXTENSION outbox');
	$dbh->do('COMMIT') if $round != 2;
	for my $other (@others)
	{
		my $before = $round == 2 ? 1 : 0;
		is(count_of($other, 'outbox.messages WHERE status = 0'), $before, "round $round: what is there");
		enqueue($other, 'new', 'p');
		is(scalar(claim($other, $berta)), 1 + $before, "round $round: and what is new");
		is(value($other, 'SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases WHERE owner_token = ?', $berta, $berta), 1 + $before, "round $round: acknowledged");
		enqueue($other, 'old', 'left') if $round == 2;
	}
	$dbh->do('SELECT outbox.ack(?, array_agg(id)) FROM outbox.claim(?)', undef, $anna, $anna) if $round == 2;
}
is_state($dbh, 'DROP EXTENSION outbox', '', 'dropped, with partitions in the archive') or note($dbh->errstr);
$dbh->do('DROP EXTENSION IF EXISTS outbox CASCADE');
is_state($others[0], "SELECT outbox.enqueue('t', 'p')", '3F000', 'the others have lost it');
$dbh->do('CREATE EXTENSION outbox');
is(scalar(claim($_, $anna)), 0, 'and have it again') for @others;

# --- tables are rewritten under load
{
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $note = sub { open my $file, '>>', "$dir/$_[0].$$" or die $!; syswrite $file, join '', map { "$_\n" } @_[ 1 .. $#_ ]; close $file };
	my $notes = sub { map { split /\n/, slurp_file($_) } glob "$dir/$_[0].*" };
	my @clients = map {
		my $n = $_;
		client(sub {
			my $dbh = connect_to($node);
			my $i = 0;

			until (-e "$dir/stop")
			{
				my @tags = map { "$n." . ++$i } 1 .. 5;
				eval {
					if ($n <= 2)
					{
						$dbh->do("SELECT outbox.enqueue_many('load', ?::text[], stream_id => ?)", undef, \@tags, $i % 2 ? owner(100 + $n) : undef);
						$note->('enqueued', @tags);
					}
					else
					{
						my @got = $dbh->selectall_array("SELECT id, payload FROM outbox.claim(?, 600, 20)", undef, owner($n));
						my @done = map { $_->[0] } @{ $dbh->selectall_arrayref('SELECT id FROM unnest(?::bigint[]) id WHERE outbox.ack(?, ARRAY[id]) = 1', undef, [ map { $_->[0] } @got ], owner($n)) };
						my %done = map { $_ => 1 } @done;
						$note->('done', map { $_->[1] } grep { $done{ $_->[0] } } @got);
						$note->('undone', map { $_->[1] } grep { !$done{ $_->[0] } } @got);
					}
					1;
				} or $note->('error', ($dbh->state // '') . ' ' . $@ =~ s/\s+/ /gr);
			}
		});
	} 1 .. 4;
	my $until = 0;
	for my $command ('VACUUM FULL outbox.queue', 'REINDEX TABLE CONCURRENTLY outbox.queue', 'VACUUM outbox.queue', 'CLUSTER outbox.queue USING queue_pkey',
		'REINDEX TABLE outbox.queue', 'ANALYZE outbox.queue', 'VACUUM FULL outbox.dead', 'REINDEX TABLE CONCURRENTLY outbox.queue', 'VACUUM FULL outbox.queue')
	{
		$until += 300;
		ok(poll(sub { $notes->('done') >= $until }), "before $command");
		is_state($dbh, $command, '');
	}
	ok(poll(sub { $notes->('done') >= $until + 300 }), 'the load goes on');
	# a snapshot that is held, and a transaction that has enqueued
	my $holder = connect_to($node);
	$holder->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
	$holder->do('SELECT count(*) FROM outbox.queue');
	enqueue($holder, 'load', 'held');
	$until = $notes->('done') + 1500;
	ok(poll(sub { $notes->('done') >= $until }), 'the load goes on under a held snapshot');
	$dbh->do('VACUUM outbox.queue');
	$holder->do('COMMIT');
	$note->('enqueued', 'held');
	open my $stop, '>', "$dir/stop" or die $!;
	waitpid $_, 0 for @clients;
	my @rest = claim($dbh, $anna, batch_size => 10_000);
	my %seen;
	is_deeply([ grep { $seen{$_}++ } $notes->('done'), @rest ], [], 'nothing was handled twice');
	is_deeply([ grep { !$seen{$_} } $notes->('enqueued') ], [], 'nothing was lost');
	is_deeply([ eval { $notes->('undone') } ], [], 'no lease was lost');
	is_deeply([ eval { $notes->('error') } ], [], 'no call has failed');
	$dbh->do('SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases', undef, $anna);
	is(count_of($dbh, 'outbox.queue'), 0, 'the queue is empty');
	check_indexes($node, 'the indexes of the rewritten tables');
}

# --- a claiming session is terminated
{
	enqueue($dbh, 'victim', $_) for 1 .. 5;
	my $victim = connect_to($node);
	$victim->do('BEGIN');
	is(scalar(claim($victim, $berta)), 5, 'claimed, not committed');
	is(scalar(claim($dbh, $anna)), 0, 'nothing for others');
	my $waiter = connect_to($node);
	my $pid = client(sub { eval { connect_to($node)->do("SELECT outbox.claim('$berta', topics => '{wait}', wait_ms => 60000)") } });
	my $found = "pg_stat_activity WHERE query LIKE '%wait_ms%' AND state = 'active' AND pid <> pg_backend_pid()";
	ok(poll(sub { count_of($dbh, $found) == 1 }), 'another waits');
	my $started = time;
	$dbh->do("SELECT pg_terminate_backend(pid) FROM $found");
	$dbh->do('SELECT pg_terminate_backend(?)', undef, $victim->{pg_pid});
	is(waitpid($pid, 0), $pid, 'it ends');
	cmp_ok(time - $started, '<', 10, 'at once');
	ok(poll(sub { !count_of($dbh, "pg_stat_activity WHERE pid = $victim->{pg_pid}") }), 'the victim is gone');
	is_deeply([ claim($dbh, $anna) ], [ 1 .. 5 ], 'what it had is free');
	$dbh->do('SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases', undef, $anna);
	$waiter->disconnect;
}

# --- as a replication worker would
{
	my $replica = connect_to($node, settings => ['SET session_replication_role = replica']);
	enqueue($replica, 'replica', 'by a call');
	is_deeply([ claim($dbh, $anna) ], ['by a call'], 'replica role: enqueue');
	$dbh->do('SELECT outbox.release(?)', undef, $anna);
	is_deeply([ claim($replica, $berta) ], ['by a call'], 'replica role: claim');
	is(value($replica, 'SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases', $berta), 1, 'replica role: ack');
	# rows as another server has made them
	enqueue($dbh, 'replica', 'original');
	is_deeply([ claim($dbh, $anna, topics => ['replica']) ], ['original'], 'replica role: the cursor has passed');
	$replica->do(<<'Q', undef, $_) for 1 .. 3;
INSERT INTO outbox.queue
SELECT r.* FROM outbox.queue q, LATERAL (SELECT ? AS n) i,
       LATERAL jsonb_populate_record(q, jsonb_build_object('id', q.id + 1000000 + i.n::int, 'message_id', gen_random_uuid(),
           'payload', 'row ' || i.n, 'status', 0, 'owner_token', NULL, 'locked_until', NULL)) r
 WHERE q.topic = 'replica' AND q.payload = 'original'
Q
	is_deeply([ claim($dbh, $berta, topics => ['replica']) ], [ map { "row $_" } 1 .. 3 ], 'rows that replication has inserted are seen');
	$dbh->do("SELECT outbox.ack(owner_token, array_agg(id)) FROM outbox.leases WHERE topic = 'replica' GROUP BY owner_token");
	enqueue($dbh, 'replica', 'to be updated');
	is(scalar(claim($dbh, $anna)), 1, 'leased here');
	$replica->do("UPDATE outbox.queue SET status = 0, owner_token = NULL, locked_until = NULL WHERE topic = 'replica'");
	is_deeply([ claim($dbh, $berta) ], ['to be updated'], 'what replication has made ready is seen');
	$replica->do("DELETE FROM outbox.queue WHERE topic = 'replica'");
	is(value($dbh, 'SELECT outbox.ack(?, array_agg(id)) FROM outbox.messages', $berta), 0, 'what it has deleted is gone');
	$replica->disconnect;
}

# --- databases
{
	my $source = 'source';
	$node->safe_psql('postgres', "CREATE DATABASE $source");
	$node->safe_psql($source, 'CREATE EXTENSION outbox');
	my $in_source = connect_to($node, db => $source);
	enqueue($in_source, 't', $_) for 1 .. 20;
	$in_source->do("SELECT outbox.enqueue('s', i::text, stream_id => ?, dedupe_key => 'k' || i) FROM generate_series(1, 5) i", undef, $anna);
	is(scalar(claim($in_source, $anna, batch_size => 5)), 5, 'five leases');
	$in_source->disconnect;
	my $started = time;
	is_state($dbh, "CREATE DATABASE copy TEMPLATE $source", '');
	cmp_ok(time - $started, '<', 5, 'no session blocks it');
	for my $db ('copy', $source)
	{
		my $in = connect_to($node, db => $db);
		is_deeply([ claim($in, $berta, topics => ['t'], batch_size => 100) ], [ 6 .. 20 ], "$db: messages can be claimed");
		is_deeply([ claim($in, $berta, topics => ['s']) ], [ 1 .. 5 ], "$db: in order");
		is(value($in, "SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases WHERE owner_token = ?", $anna, $anna), 5, "$db: leases stand");
		is(value($in, "SELECT enqueued FROM outbox.try_enqueue('s', 'again', dedupe_key => 'k1')"), 0, "$db: keys are known");
		$in->disconnect;
	}
	for my $command ('ALTER DATABASE copy RENAME TO renamed', "DROP DATABASE $source", 'DROP DATABASE renamed')
	{
		$started = time;
		is_state($dbh, $command, '');
		cmp_ok(time - $started, '<', 5, 'at once');
	}
	# a database of the same name knows nothing about the other
	$node->safe_psql('postgres', "CREATE DATABASE $source");
	$node->safe_psql($source, 'CREATE EXTENSION outbox');
	$in_source = connect_to($node, db => $source);
	is(scalar(claim($in_source, $anna)), 0, 'a new database is empty');
	enqueue($in_source, 't', 'new');
	is_deeply([ claim($in_source, $anna) ], ['new'], 'and works');
	$in_source->disconnect;
}

# --- a session that lives long
{
	my $long = connect_to($node);
	my $rounds = $ENV{OUTBOX_ROUNDS} // 1000 * scale();
	my $memory = sub { value($long, 'SELECT sum(total_bytes) FROM pg_backend_memory_contexts') };
	my $work = sub {
		my $rounds = shift;

		# 100 messages each time, with all that there is
		$long->do("SELECT outbox.enqueue_many('life', array_fill('p'::text, ARRAY[90]))");
		$long->do("SELECT outbox.enqueue('life', 'p', dedupe_key => ?, stream_id => ?)", undef, "k$rounds.$_", owner(1000 + $_)) for 1 .. 10;
		my $got = $long->selectcol_arrayref('SELECT id FROM outbox.claim(?, batch_size => 100)', undef, $anna);
		$long->do('SELECT outbox.renew(?, ?::bigint[])', undef, $anna, $got);
		$long->do("SELECT outbox.nack(?, ?::bigint[], 'again', '0')", undef, $anna, [ @{$got}[ 0 .. 4 ] ]);
		sqlstate($long, 'SELECT outbox.ack(?, ?::bigint[], strict => true)', $berta, $got);
		$long->do('SELECT outbox.ack(?, ?::bigint[])', undef, $anna, $got);
		return scalar @$got;
	};
	my $done = 0;
	$done += $work->($_) for 1 .. 50;
	my $before = $memory->();
	$done += $work->($_) for 51 .. 50 + $rounds;
	my $after = $memory->();
	cmp_ok($done, '>=', $rounds * 95, "$done messages in one session");
	cmp_ok($after - $before, '<', 1_000_000, 'its memory does not grow') or diag(join "\n", map { "@$_" } $long->selectall_array(
		'SELECT name, sum(total_bytes), count(*) FROM pg_backend_memory_contexts GROUP BY name ORDER BY 2 DESC LIMIT 10'));
	note("from $before to $after bytes");
	is(count_of($long, "pg_locks WHERE pid = pg_backend_pid() AND locktype <> 'virtualxid' AND relation IS DISTINCT FROM 'pg_locks'::regclass"), 0, 'and it holds no locks');
	$long->disconnect;
}

# --- calls that have waited for DROP EXTENSION fail with an error that says so
{
	my %calls = (
		enqueue => "SELECT outbox.enqueue('t', 'p')",
		claim => "SELECT outbox.claim('$anna')",
		ack => "SELECT outbox.ack('$anna', '{1}')",
		schedule_timer => "SELECT outbox.schedule_timer('t', 'p', now())");

	for my $call (sort keys %calls)
	{
		my ($dropping, $waiting) = map { connect_to($node) } 1 .. 2;

		# it has the function, and knows the tables
		is_state($waiting, $calls{$call}, '', "$call works");
		enqueue($dropping, 't', 'for a claim');
		$dropping->do('BEGIN');
		$dropping->do('DROP EXTENSION outbox CASCADE');
		begin_call($waiting, $calls{$call});
		ok(poll(sub { value($dropping, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = ?", $waiting->{pg_pid}) }), "$call waits for DROP EXTENSION");
		$dropping->do('COMMIT');
		like(end_call($waiting)->{state}, qr/^(42P01|3F000|42883)$/, "$call finds that the extension is gone");
		$dropping->do('CREATE EXTENSION outbox');
		$_->disconnect for $dropping, $waiting;
	}
	# trigger functions are for the extension's tables only
	$dbh->do('CREATE TABLE public.other (a integer)');
	for my $function (qw(_queue_written _queue_changed _queue_truncated))
	{
		my ($when, $what) = $function =~ /truncated/ ? ('BEFORE TRUNCATE', 'STATEMENT') : $function =~ /written/ ? ('BEFORE INSERT', 'ROW') : ('AFTER INSERT', 'ROW');

		$dbh->do("CREATE TRIGGER strange $when ON public.other FOR EACH $what EXECUTE FUNCTION outbox.$function()");
		is_state($dbh, $what eq 'ROW' ? 'INSERT INTO public.other VALUES (1)' : 'TRUNCATE public.other', '42809', "$function on another table");
		$dbh->do('DROP TRIGGER strange ON public.other');
	}
	$dbh->do('DROP TABLE public.other');
}

is_deeply([ grep { /PANIC|TRAP|terminated by signal|WARNING/ } split /\n/, slurp_file($node->logfile) ], [], 'the log is clean');
check_indexes($node);
$_->disconnect for @others, $dbh;
$node->stop;
done_testing();
