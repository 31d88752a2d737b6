# Allocations of a session fail, at one place after the other: the call fails and does
# nothing, no process crashes, and the same session continues, with nothing lost and
# nothing done twice. The library malloc.c makes allocations fail.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = seed();
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my ($plan, $library) = ("$dir/plan", "$dir/malloc.so");

plan skip_all => 'a sanitizer allocates otherwise' if `pg_config --cflags` =~ /sanitize/;
plan skip_all => 'there is no C compiler'
  if system(($ENV{CC} // 'cc') . " -shared -fPIC -O1 -o '$library' '$FindBin::RealBin/malloc.c'") != 0;

# From now on, so many allocations of a process that are larger than this succeed before one does not; -1: all.
# The file is mapped, so it is written in place.
sub refuse
{
	my ($pid, $after, $larger) = @_;

	open my $file, -e $plan ? '+<' : '>', $plan or die "could not open $plan: $!";
	syswrite $file, pack 'qqq', $pid, $after, $larger // 0;
	close $file;
	return;
}

# How many more would have succeeded.
sub left { return unpack('x8q', slurp_file($plan)) }

refuse(0, -1);
my $node;
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{OUTBOX_MALLOC} = $plan;
	# half initialized, plpgsql cannot be loaded again; with so many connections arrays of snapshots are the largest there are
	$node = new_node('memory', conf => "autovacuum = off\njit = off\noutbox.databases = ''\nlog_statement = none\n"
		  . "session_preload_libraries = plpgsql\nmax_connections = 200");
}
my $dbh = connect_to($node);

# There are MANY of each kind of which a transaction keeps notes.
my @work = (
	"SELECT outbox.enqueue('t' || i, 'p', dedupe_key => CASE WHEN i % 3 = 0 THEN gen_random_uuid()::text END, stream_id => CASE WHEN i % 4 = 0 THEN md5(i::text)::uuid END, expires_at => now() + interval '1 day') FROM generate_series(1, MANY) i",
	"SELECT outbox.enqueue_many('many', array_agg(repeat('x', 100 * i))) FROM generate_series(1, MANY) i",
	"SELECT count(outbox.cancel(m)) FROM (SELECT outbox.enqueue('c' || i, 'p') m FROM generate_series(1, MANY) i) x",
	"SELECT count(outbox.cancel_timer(t)) FROM (SELECT outbox.schedule_timer('t' || i, 'p', now() + interval '1 day') t FROM generate_series(1, MANY) i) x",
	"SELECT outbox.nack(OWNER, array_agg(id), 'again', '0 s') FROM outbox.claim(OWNER, batch_size => MANY)",
	"SELECT outbox.ack(OWNER, array_agg(id)) FROM outbox.claim(OWNER, batch_size => MANY)",
	"SELECT outbox.renew(OWNER, array_agg(id)), outbox.release(OWNER, array_agg(id)) FROM outbox.claim(OWNER, batch_size => MANY, topics => '{many}')",
	"WITH j AS MATERIALIZED (SELECT outbox.start_join('g', MANY) j), s AS MATERIALIZED (SELECT count(outbox.enqueue_step(j, 'step', 'p')) FROM j, generate_series(1, MANY)) SELECT outbox.enqueue_join_wait(j, false, 'next', 'p') FROM j, s",
	"SELECT outbox.ack(OWNER, array_agg(id)) FROM outbox.claim(OWNER, topics => '{step}', batch_size => MANY)",
	"SELECT outbox.ack_inbox(OWNER, array_agg(id)) FROM outbox.claim_inbox(OWNER, batch_size => MANY), (SELECT count(outbox.receive(gen_random_uuid(), 'h' || i, 'p')) FROM generate_series(1, MANY) i) r",
	"SELECT count(*) FROM outbox.process_work_batch(OWNER, 's', 'h', 1, batch_size => MANY)",
	"SELECT outbox.release(OWNER)",
	"SELECT count(outbox.route_store('key ' || i)) FROM generate_series(1, MANY) i",
	'SELECT count(*) FROM outbox.status()',
	'SELECT sum(outbox.process_join_waits()), sum(outbox.reap()) FROM generate_series(1, 2)');

# The error of a piece of work, if there is one; with a savepoint it is one that is not to be kept.
sub work
{
	my ($session, $number, $owner, $many, $savepoint) = @_;
	my $statement = $work[$number] =~ s/OWNER/'$owner'/gr =~ s/MANY/$many/gr;
	my $error = '';

	if ($savepoint)
	{
		$session->begin_work;
		$session->do('SAVEPOINT s');
	}
	eval { $session->do($statement); 1 } or $error = $session->state . ' ' . ($session->errstr // $@);
	if ($savepoint)
	{
		$session->do('ROLLBACK TO SAVEPOINT s') if $session->ping;
		eval { $session->commit };
	}
	return $error;
}

$dbh->do("SELECT outbox.register_store('s' || i, 'dbname=x') FROM generate_series(1, 20) i");
$dbh->do("SELECT outbox.set_default_route('hash')");
is_deeply([ grep { $_ } map { work($dbh, $_, owner(1), 100) } 0 .. $#work ], [], 'the work is done where there is memory');

# One piece of work in a new session, with one allocation refused after so many; how many there were.
my ($failed, $lost, $serial) = (0, 0, 1000);
my (@unexpected, @later);

sub try_piece
{
	my ($number, $again, $larger, $after) = @_;
	my $session = connect_to($node);
	my $owner = owner(++$serial);
	my $savepoint = $after % 2;

	# PostgreSQL 18 makes the arrays of a session's first snapshot in its first query, and
	# crashes in the second one if it had memory for one of them only
	$session->do('SELECT 1');
	# what the server then knows is not asked for again; but arrays are as small as they can be
	work($session, $number, $owner, 4) if $again;
	refuse($session->{pg_pid}, $after, $larger);
	my $error = work($session, $number, $owner, 150, $savepoint);
	my $count = $after - left();
	refuse(0, -1);
	if ($error)
	{
		$failed++;
		push @unexpected, "$error in: $work[$number]" unless $error =~ /^53200|out of memory|TimeZone/;
	}
	if ($session->ping)
	{
		for my $then ($number, 0, 2, 5)
		{
			$error = work($session, $then, $owner, $then == $number ? 150 : 10);
			push @later, "$error in: $work[$then], after: $work[$number]" if $error;
		}
	}
	else
	{
		$lost++;
	}
	$session->disconnect;
	return $count;
}

# a subtransaction for snapshots to have
my $other = connect_to($node);
$other->begin_work;
$other->do('SAVEPOINT s');
$other->do('CREATE TEMP TABLE t ()');

my $started = value($dbh, 'SELECT pg_postmaster_start_time()');
my $tries = 0;
# all but those of other libraries, which are small and come by the hundreds; those of snapshots;
# and arrays that have grown
for my $kind ([ 0, 1000 ], [ 0, 30_000 ], [ 1, 1000 ], [ 1, 9000 ])
{
	for my $number (0 .. $#work)
	{
		my $count = try_piece($number, @$kind, 1_000_000);

		# places all over it
		my $few = 10 * scale();
		my %places = map { int(($_ + rand) * $count / $few) => 1 } 0 .. $few - 1;
		$tries += keys %places;
		note("$count larger than $kind->[1] in: $work[$number]");
		try_piece($number, @$kind, $_) for sort { $a <=> $b } keys %places;
	}
}
$other->rollback if $other->ping;
note("$tries tries, $failed calls failed, $lost sessions ended");
cmp_ok($failed, '>', $tries / 2, 'memory was refused');
cmp_ok($lost, '<', $failed / 4, 'and sessions live on');
is_deeply(\@unexpected, [], 'nothing else is wrong then');
is_deeply(\@later, [], 'they work as before');
is(value($dbh, 'SELECT pg_postmaster_start_time()'), $started, 'the server runs');
is_deeply([ grep { /terminated by signal|PANIC|TRAP/ } split /\n/, slurp_file($node->logfile) ], [], 'no process has crashed');

is(count_of($dbh, '(SELECT id FROM outbox.messages GROUP BY id HAVING count(*) > 1) d'), 0, 'ids are unique');
is(value($dbh, "SELECT count(*) % 2 FROM outbox.messages WHERE topic = 'many'"), 0, 'a call is done as a whole, or not at all');
nothing_stranded($dbh, 'in the end');
check_indexes($node);
$node->stop;
done_testing();
