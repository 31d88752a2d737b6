# Every prefix of the WAL is a valid queue. A mixed load runs on a server; then the
# server is recovered to the end of one commit after the other, as if it had crashed
# there, and each time all guarantees must hold for what was committed, and all
# remaining messages must be processed.
#
# The load records its actions in tables of its own in the same transactions, so at
# each prefix these records and the queue must agree. OUTBOX_PREFIXES is the number of
# prefixes, which the seed selects.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use File::Path qw(rmtree);
use List::Util qw(shuffle);
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $seed = seed();
my $nprefixes = $ENV{OUTBOX_PREFIXES} || 40 * scale();
my $seconds = 4 + int($nprefixes / 150);
my $nclients = 5;
my $patient = owner(99);
my $settings = "outbox.max_attempts = 1000\noutbox.backoff_base = '50 ms'\nfsync = off\nautovacuum = off";

# --- the load

sub begin_notes
{
	$_[0]->do(<<'Q');
CREATE TABLE sent (payload text PRIMARY KEY, kind text NOT NULL, stream uuid, n bigserial);
CREATE TABLE ended (payload text PRIMARY KEY, how text NOT NULL, n bigserial);
CREATE TABLE waits (payload text PRIMARY KEY, join_id uuid NOT NULL, wait uuid NOT NULL);
CREATE TABLE members (join_id uuid, message uuid, payload text NOT NULL, PRIMARY KEY (join_id, message));
CREATE TABLE handled (payload text NOT NULL);
CREATE ROLE handler LOGIN;
SELECT outbox.grant_worker('handler');
CREATE SCHEMA handlers AUTHORIZATION handler;
GRANT INSERT ON handled, ended TO handler;
GRANT USAGE ON SEQUENCE ended_n_seq TO handler;
SET SESSION AUTHORIZATION handler;
CREATE FUNCTION handlers.handle(m outbox.message) RETURNS void LANGUAGE sql
AS $$ INSERT INTO public.handled VALUES (m.payload); INSERT INTO public.ended VALUES (m.payload, 'done') $$;
SELECT outbox.register_handler('handle', 'handlers.handle(outbox.message)');
RESET SESSION AUTHORIZATION;
Q
	return;
}

# One client: its name, its connection, and what it may still settle.
package Client {
	sub new
	{
		my ($class, $number, $node) = @_;

		srand($seed * 100 + $number);
		return bless { number => $number, dbh => OutboxTest::connect_to($node), serial => 0, joins => [], timers => [], sent => [] }, $class;
	}

	sub do { my ($self, $sql, @args) = @_; return $self->{dbh}->do($sql, undef, @args) }
	sub value { my ($self, $sql, @args) = @_; return OutboxTest::value($self->{dbh}, $sql, @args) }
	sub name { my ($self, $kind) = @_; return sprintf '%s %d-%05d', $kind, $self->{number}, ++$self->{serial} }
	sub note { my ($self, $payload, $kind, $stream) = @_; $self->do('INSERT INTO sent VALUES (?, ?, ?)', $payload, $kind, $stream); return $payload }

	sub enqueue
	{
		my ($self, $topic, %more) = @_;
		my $payload = $self->note($self->name($topic), $topic, $more{stream_id});
		my @names = sort keys %more;
		my $arguments = join '', map { ", $_ => ?" } @names;

		$payload .= ' ' . 'x' x 100_000 if $topic eq 'work' && rand() < 0.02;
		return $self->value("SELECT outbox.enqueue(?, ?$arguments)", $topic, $payload, @more{@names});
	}

	# one of its own streams: the order in which it enqueues is theirs
	sub stream { my $self = shift; return OutboxTest::owner(1000 + 10 * $self->{number} + int(rand(3))) }

	sub send_some
	{
		my $self = shift;
		my $r = rand();

		if ($r < 0.3) { $self->enqueue('work') for 1 .. 1 + int(rand(5)) }
		elsif ($r < 0.55) { $self->enqueue('stream', stream_id => $self->stream) }
		elsif ($r < 0.65) { $self->enqueue('work', due_time => $self->value("SELECT clock_timestamp() + random() * interval '1 s'")) }
		elsif ($r < 0.75) { $self->enqueue('handle') }
		elsif ($r < 0.85)
		{
			my $payload = $self->name('key');
			my $key = 'key ' . int(rand(400));
			my $new = $self->value('SELECT enqueued FROM outbox.try_enqueue(?, ?, dedupe_key => ?)', 'work', $payload, $key);

			$self->note($payload, 'work') if $new;
		}
		elsif ($r < 0.93)
		{
			my $payload = $self->note($self->name('tick'), 'timer');
			my $timer = $self->value("SELECT outbox.schedule_timer('tick', ?, clock_timestamp() + random() * interval '1 s')", $payload);

			push @{ $self->{timers} }, [ $payload, $timer ];
		}
		else
		{
			my $payload = $self->name('inbox');

			$self->note($payload, 'inbox');
			$self->do("SELECT outbox.receive(gen_random_uuid(), 'h', ?)", $payload);
		}
		return;
	}

	sub join_some
	{
		my $self = shift;
		my $steps = 1 + int(rand(4));
		my $join = $self->value("SELECT outbox.start_join('g', ?)", $steps + 1);

		for (1 .. $steps)
		{
			my $payload = $self->note($self->name('step'), 'step');
			my $message = $self->value("SELECT outbox.enqueue_step(?, 'step', ?)", $join, $payload);

			$self->do('INSERT INTO members VALUES (?, ?, ?)', $join, $message, $payload);
		}
		$self->{late} = $join;
		for (1 .. 1 + int(rand(2)))
		{
			my $payload = $self->name('cont');
			my $wait = $self->value("SELECT outbox.enqueue_join_wait(?, false, 'cont', ?)", $join, $payload);

			$self->do('INSERT INTO waits VALUES (?, ?, ?)', $payload, $join, $wait);
		}
		return;
	}

	# the last step of a join is a message that is there already, and may be over; but
	# not one that retention could take away before it is attached
	sub attach_late
	{
		my $self = shift;
		my ($message, $payload) = $self->{dbh}->selectrow_array(<<'Q', undef);
SELECT m.message_id, m.payload FROM outbox.messages m
 WHERE m.topic = 'work' AND m.payload LIKE 'work %' AND (m.status IN (0, 1) OR m.processed_at > clock_timestamp() - interval '500 ms') ORDER BY random() LIMIT 1
Q
		my $join = delete $self->{late};

		# its transaction may have been rolled back
		return if !defined $message || !defined $join || !$self->value('SELECT count(*) FROM outbox.joins WHERE join_id = ?', $join);
		$self->do('SELECT outbox.attach_message_to_join(?, ?)', $join, $message);
		$self->do('INSERT INTO members VALUES (?, ?, ?)', $join, $message, $payload =~ s/ x+$//r);
		return;
	}

	sub cancel_some
	{
		my $self = shift;
		my $timer = splice @{ $self->{timers} }, int(rand(@{ $self->{timers} })), 1;

		return if !$timer;
		$self->do("INSERT INTO ended VALUES (?, 'cancelled')", $timer->[0])
		  if $self->value('SELECT outbox.cancel_timer(?)', $timer->[1]);
		return;
	}

	# each claim is another worker's: one that has messages of a stream already may get
	# later ones and end them first
	sub owner { my $self = shift; return OutboxTest::owner(100_000 * $self->{number} + ++$self->{claims}) }

	# what is claimed is settled in a transaction of its own, or not at all
	sub work_some
	{
		my $self = shift;
		my $owner = $self->owner;
		my $rows = $self->{dbh}->selectall_arrayref("SELECT id, attempts, payload FROM outbox.claim(?, 1, ?, topics => '{work,stream,step,cont,tick}')", undef, $owner, 1 + int(rand(20)));
		my @ids = map { $_->[0] } @$rows;
		my @attempts = map { $_->[1] } @$rows;
		my @payloads = map { $_->[2] =~ s/ x+$//r } @$rows;
		my $r = rand();

		return if !@ids || $r < 0.1;
		$self->do('BEGIN');
		if ($r < 0.25) { $self->do("SELECT outbox.nack(?, ?, 'e', random() * interval '200 ms', attempts => ?)", $owner, \@ids, \@attempts) }
		elsif ($r < 0.3) { $self->do('SELECT outbox.release(?, ?)', $owner, \@ids) }
		else
		{
			my ($call, $how) = $r < 0.35 ? ('fail', 'failed') : ('ack', 'done');

			$self->do("INSERT INTO ended SELECT p, ? FROM unnest(?::text[]) p", $how, \@payloads);
			$self->do("SELECT outbox.$call(?, ?, attempts => ?, strict => true)", $owner, \@ids, \@attempts);
		}
		return $r < 0.95 ? $self->finish : $self->do('ROLLBACK');
	}

	sub receive_some
	{
		my $self = shift;
		my $owner = $self->owner;
		my $rows = $self->{dbh}->selectall_arrayref('SELECT id, payload FROM outbox.claim_inbox(?, 1, 5)', undef, $owner);

		return if !@$rows;
		$self->do('BEGIN');
		$self->do("INSERT INTO ended SELECT p, 'done' FROM unnest(?::text[]) p", [ map { $_->[1] } @$rows ]);
		$self->do('SELECT outbox.ack_inbox(?, ?, strict => true)', $owner, [ map { $_->[0] } @$rows ]);
		return $self->finish;
	}

	# a transaction ends in one way or another
	sub finish
	{
		my $self = shift;

		return $self->do('COMMIT') if rand() < 0.85;
		my $gid = sprintf 'gid %d-%d', $self->{number}, ++$self->{gids};
		$self->do("PREPARE TRANSACTION '$gid'");
		return $self->do((rand() < 0.8 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$gid'");
	}

	sub step
	{
		my $self = shift;
		my $r = rand();

		return $self->work_some if $r < 0.35;
		return $self->receive_some if $r < 0.4;
		return $self->do('SELECT outbox.reap(100), outbox.reap_inbox(100)') if $r < 0.43;
		return $self->do("SELECT outbox.cleanup(retention => '3 s')") if $r < 0.44;
		$self->do('BEGIN');
		$self->send_some;
		$self->join_some if rand() < 0.2;
		$self->attach_late if rand() < 0.3;
		$self->cancel_some if rand() < 0.2;
		if (rand() < 0.2)
		{
			my ($serial, @timers) = ($self->{serial}, @{ $self->{timers} });

			$self->do('SAVEPOINT s');
			$self->send_some;
			if (rand() < 0.5)
			{
				$self->do('ROLLBACK TO s');
				$self->{timers} = \@timers;
			}
		}
		return rand() < 0.9 ? $self->finish : $self->do('ROLLBACK');
	}

	# a lease is short, so some calls come too late; that aborts their transaction
	sub run
	{
		my ($self, $until) = @_;

		while (Time::HiRes::time() < $until)
		{
			next if eval { $self->step; 1 };
			my $state = $self->{dbh}->state;
			die $@ if $state !~ /^(55000|40P01|40001)$/;
			$self->do('ROLLBACK');
		}
		return;
	}
}

# --- what holds at each prefix: statements that find nothing

# the payloads of what waits, without their padding
my $waiting = "(SELECT regexp_replace(payload, ' x+\$', '') AS payload, topic FROM outbox.queue)";

# The payloads of what was sent that are not in exactly one of these, or among what has
# ended. Each is read once: correlated subqueries take seconds.
sub once
{
	my ($sent, @joins) = @_;
	my $places = join ' UNION ALL ', map { "SELECT s.payload, 1 FROM $sent s $_" } @joins, 'JOIN ended e USING (payload)';

	return "SELECT payload FROM (SELECT payload, 0 FROM $sent s UNION ALL $places) o(payload, n) GROUP BY payload HAVING sum(n) <> 1";
}

my @invariants = (
	'what was sent and has not ended is in the queue' => "SELECT payload FROM sent WHERE kind IN ('work', 'stream', 'step', 'handle') AND payload NOT IN (SELECT payload FROM ended) EXCEPT SELECT payload FROM $waiting q",
	'what is in the queue was sent, and has not ended' => "SELECT payload FROM $waiting q WHERE topic IN ('work', 'stream', 'step', 'handle') EXCEPT (SELECT payload FROM sent EXCEPT SELECT payload FROM ended)",
	'nothing is there twice' => 'SELECT payload FROM outbox.queue WHERE topic <> \'join.wait\' GROUP BY payload HAVING count(*) > 1',
	'what has failed is dead' => "SELECT payload FROM ended WHERE how = 'failed' EXCEPT SELECT regexp_replace(payload, ' x+\$', '') FROM outbox.dead",
	'what is dead has failed' => "SELECT regexp_replace(payload, ' x+\$', '') FROM outbox.dead EXCEPT SELECT payload FROM ended WHERE how = 'failed'",
	'what is done was acknowledged' => "SELECT regexp_replace(payload, ' x+\$', '') FROM outbox.archive WHERE topic <> 'join.wait' EXCEPT SELECT payload FROM ended WHERE how = 'done'",
	'a message is in one place' => 'SELECT message_id FROM (SELECT message_id FROM outbox.queue UNION ALL SELECT message_id FROM outbox.archive UNION ALL SELECT message_id FROM outbox.dead) m GROUP BY 1 HAVING count(*) > 1',
	'a message that waits has its key' => 'SELECT q.id FROM outbox.queue q WHERE dedupe_key IS NOT NULL AND NOT EXISTS (SELECT FROM outbox.dedupe d WHERE d.message_id = q.message_id)',
	'a key has its message' => 'SELECT message_id FROM outbox.dedupe EXCEPT (SELECT message_id FROM outbox.queue UNION ALL SELECT message_id FROM outbox.archive UNION ALL SELECT message_id FROM outbox.dead)',
	'a place in a stream is given once' => 'SELECT stream_id, stream_seq FROM outbox.queue WHERE stream_id IS NOT NULL GROUP BY 1, 2 HAVING count(*) > 1',
	'streams end in order' => "SELECT payload, before FROM (SELECT lead(payload) OVER w AS payload, payload AS before, s.n > lead(s.n) OVER w AS wrong FROM sent s JOIN ended e USING (payload) WHERE s.kind = 'stream' WINDOW w AS (PARTITION BY s.stream ORDER BY e.n)) o WHERE wrong",
	'no message of a stream has ended before an earlier one' => "SELECT a.payload FROM sent a JOIN sent b ON b.stream = a.stream AND b.n > a.n WHERE a.kind = 'stream' AND a.payload NOT IN (SELECT payload FROM ended) AND b.payload IN (SELECT payload FROM ended)",
	'joins count their members' => 'SELECT join_id FROM outbox.joins j WHERE (completed_steps, failed_steps) <> (SELECT count(*) FILTER (WHERE status = 1), count(*) FILTER (WHERE status = 2) FROM outbox.join_members m WHERE m.join_id = j.join_id)',
	'members are those that were given' => 'SELECT join_id, message FROM members EXCEPT SELECT join_id, message_id FROM outbox.join_members',
	'a step is counted only if it has ended' => "SELECT m.payload FROM members m JOIN outbox.join_members o ON o.join_id = m.join_id AND o.message_id = m.message WHERE o.status <> (CASE (SELECT how FROM ended e WHERE e.payload = m.payload) WHEN 'done' THEN 1 WHEN 'failed' THEN 2 ELSE 0 END) AND (o.status <> 0 OR NOT EXISTS (SELECT FROM outbox.join_rechecks d WHERE d.join_id IS NULL OR d.join_id = m.join_id))",
	'a wait is open, or has one continuation' => once('waits', 'JOIN outbox.queue q ON q.message_id = s.wait', "JOIN outbox.queue q ON q.topic = 'cont' AND q.payload = s.payload"),
	'a timer waits, is a message, or has ended' => once("(SELECT * FROM sent WHERE kind = 'timer')", 'JOIN outbox.timer_queue t USING (payload)', "JOIN outbox.queue q ON q.topic = 'tick' AND q.payload = s.payload"),
	'what was received waits, or has ended' => once("(SELECT * FROM sent WHERE kind = 'inbox')", 'JOIN outbox.inbox_queue i USING (payload)'),
	'handlers run once for each message' => "SELECT payload FROM handled GROUP BY payload HAVING count(*) > 1 UNION ALL (SELECT payload FROM ended WHERE payload LIKE 'handle %' EXCEPT SELECT payload FROM handled)",
);

# What would be wrong, and what must be said of it then.
my @plants = (
	"DELETE FROM outbox.queue WHERE id = (SELECT min(id) FROM outbox.queue WHERE topic IN ('work', 'stream', 'step'))" => 'what was sent and has not ended is in the queue',
	"INSERT INTO ended SELECT payload, 'done' FROM outbox.queue WHERE topic IN ('work', 'stream', 'step') AND payload NOT LIKE '% x%' LIMIT 1" => 'what is in the queue was sent, and has not ended',
	"UPDATE outbox.queue SET payload = (SELECT max(payload) FROM outbox.queue WHERE topic = 'work') WHERE topic = 'work'" => 'nothing is there twice',
	'DELETE FROM outbox.dead WHERE id = (SELECT min(id) FROM outbox.dead)' => 'what has failed is dead',
	"DELETE FROM ended WHERE how = 'failed'" => 'what is dead has failed',
	"DELETE FROM ended WHERE payload LIKE 'work %' AND how = 'done'" => 'what is done was acknowledged',
	'UPDATE outbox.dead SET message_id = (SELECT message_id FROM outbox.archive LIMIT 1) WHERE id = (SELECT min(id) FROM outbox.dead)' => 'a message is in one place',
	"WITH q AS (UPDATE outbox.queue SET dedupe_key = 'k' RETURNING 1) DELETE FROM outbox.dedupe" => 'a message that waits has its key',
	'UPDATE outbox.dedupe SET message_id = gen_random_uuid()' => 'a key has its message',
	"UPDATE outbox.queue SET stream_id = gen_random_uuid(), stream_seq = 1; UPDATE outbox.queue SET stream_id = '00000000-0000-4000-8000-000000000001'" => 'a place in a stream is given once',
	"UPDATE ended SET n = -n WHERE payload LIKE 'stream %'" => 'streams end in order',
	"DELETE FROM ended WHERE payload IN (SELECT payload FROM sent WHERE kind = 'stream' ORDER BY n LIMIT 1)" => 'no message of a stream has ended before an earlier one',
	'UPDATE outbox.join_members SET status = 0' => 'joins count their members',
	'DELETE FROM outbox.join_members' => 'members are those that were given',
	"DELETE FROM ended WHERE payload LIKE 'step %'" => 'a step is counted only if it has ended',
	"DELETE FROM ended WHERE payload LIKE 'cont %'" => 'a wait is open, or has one continuation',
	"DELETE FROM ended WHERE payload LIKE 'tick %'" => 'a timer waits, is a message, or has ended',
	"DELETE FROM ended WHERE payload LIKE 'inbox %'" => 'what was received waits, or has ended',
	'INSERT INTO handled SELECT * FROM handled' => 'handlers run once for each message',
);

# A change is made without triggers, looked at, and undone.
sub try_plants
{
	my $dbh = shift;

	while (my ($change, $name) = splice @plants, 0, 2)
	{
		$dbh->do('BEGIN');
		$dbh->do('SET LOCAL session_replication_role = replica');
		$dbh->do($_) for split /; /, $change;
		is(scalar(grep { /^\Q$name\E:/ } violations($dbh)), 1, "noticed: $change");
		$dbh->do('ROLLBACK');
	}
	return;
}

# The invariants that do not hold, with the first rows that show it.
sub violations
{
	my $dbh = shift;
	my $inside = $dbh->ping == 3;
	my @wrong;

	$dbh->do('BEGIN ISOLATION LEVEL REPEATABLE READ') if !$inside;
	for (my $i = 0; $i < @invariants; $i += 2)
	{
		my @rows = $dbh->selectall_array($invariants[ $i + 1 ]);

		push @wrong, "$invariants[$i]: " . join ', ', map { join ' ', map { $_ // 'null' } @$_ } @rows[ 0 .. ($#rows < 4 ? $#rows : 4) ] if @rows;
	}
	$dbh->do('COMMIT') if !$inside;
	return @wrong;
}

# --- what is left comes to its end

sub drain
{
	my $dbh = shift;

	$dbh->do((rand() < 0.5 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$_->[0]'") for $dbh->selectall_array('SELECT gid FROM pg_prepared_xacts');
	# joins that lack a step get it
	$dbh->do(<<'Q');
WITH lacking AS MATERIALIZED (
    SELECT j.join_id, 'step 0-' || row_number() OVER () AS payload FROM outbox.joins j
     WHERE j.expected_steps > (SELECT count(*) FROM members m WHERE m.join_id = j.join_id)
), steps AS MATERIALIZED (
    SELECT l.*, outbox.enqueue_step(l.join_id, 'step', l.payload) AS message FROM lacking l
), notes AS (
    INSERT INTO members SELECT join_id, message, payload FROM steps
)
INSERT INTO sent SELECT payload, 'step' FROM steps
Q
	return poll(sub {
			my $rows = $dbh->selectall_arrayref("SELECT id, payload FROM outbox.claim(?, 60, 1000, topics => '{work,stream,step,cont,tick}')", undef, $patient);
			my $received = $dbh->selectall_arrayref('SELECT id, payload FROM outbox.claim_inbox(?, 60, 1000)', undef, $patient);

			$dbh->do('BEGIN');
			$dbh->do("INSERT INTO ended SELECT regexp_replace(p, ' x+\$', ''), 'done' FROM unnest(?::text[]) p", undef, [ map { $_->[1] } @$rows, @$received ]);
			$dbh->do('SELECT outbox.ack(?, ?, strict => true)', undef, $patient, [ map { $_->[0] } @$rows ]);
			$dbh->do('SELECT outbox.ack_inbox(?, ?, strict => true)', undef, $patient, [ map { $_->[0] } @$received ]);
			$dbh->do('COMMIT');
			return !@$rows && !@$received && !value($dbh, <<'Q') }, 60);
SELECT EXISTS (SELECT FROM outbox.queue) OR EXISTS (SELECT FROM outbox.timer_queue) OR EXISTS (SELECT FROM outbox.inbox_queue)
    OR EXISTS (SELECT FROM outbox.joins WHERE status = 0)
Q
}

# --- the server, and its WAL

my $archive = PostgreSQL::Test::Utils::tempdir();
my $main = new_node('main', init => { allows_streaming => 1, extra => ['--wal-segsize=1'] }, conf => "$settings\narchive_mode = on\narchive_command = 'cp \"%p\" \"$archive/%f\"'");
my $dbh = connect_to($main);
begin_notes($dbh);
$main->backup('base');
my $from = value($dbh, 'SELECT pg_current_wal_lsn()');
my $until = time + $seconds;
my @pids = map { my $number = $_; client(sub { eval { Client->new($number, $main)->run($until); 1 } or print(STDERR $@), POSIX::_exit(1) }) } 1 .. $nclients;
is(scalar(grep { waitpid($_, 0); $? } @pids), 0, 'the load has run');
is_deeply([ violations($dbh) ], [], 'at the end of the load: all that was promised holds');
cmp_ok(count_of($dbh, 'sent'), '>', 300, 'there was something to do');
ok(count_of($dbh, $_) > 10, "$_ are among it") for 'waits', 'members', 'handled', 'outbox.archive', 'outbox.dead', "ended WHERE payload LIKE 'tick %'", "ended WHERE how = 'cancelled'";
my $to = value($dbh, 'SELECT pg_current_wal_lsn()');
my $segment = value($dbh, 'SELECT pg_walfile_name(pg_current_wal_lsn())');
$dbh->do('SELECT pg_switch_wal()');
ok(poll(sub { -e "$archive/$segment" }, 60), 'the WAL is archived');

# the end of a commit is the beginning of the next record, for a recovery that does not
# include the record at its target
my ($waldump, $errors) = run_command([ 'pg_waldump', '--path', $archive, '--start', $from, '--end', $to ]);
my @places;
my $is_end = 0;
for (split /\n/, $waldump)
{
	my ($rmgr, $lsn, $what) = /^rmgr: (\S+) .* lsn: (\S+), prev \S+, desc: (\S+)/ or next;

	push @places, $lsn if $is_end;
	$is_end = $rmgr eq 'Transaction' && $what =~ /^(COMMIT|PREPARE|ABORT|COMMIT_PREPARED|ABORT_PREPARED)/;
}
cmp_ok(scalar(@places), '>', 500, 'there are prefixes to choose from');
note(scalar(@places) . " prefixes, $nprefixes of them");

try_plants($dbh);
my ($ndrained, $began) = (0, time);
for my $place ((shuffle(@places))[ 0 .. ($nprefixes < @places ? $nprefixes : @places) - 1 ])
{
	my $node = PostgreSQL::Test::Cluster->new('at_' . $place =~ tr/\//_/r);
	my @wrong;

	$node->init_from_backup($main, 'base');
	$node->append_conf('recovery.signal', '');
	$node->append_conf('postgresql.conf', "archive_mode = off\nrestore_command = 'cp \"$archive/%f\" \"%p\"'\nrecovery_target_lsn = '$place'\nrecovery_target_inclusive = off\nrecovery_target_action = 'promote'\noutbox.databases = ''");
	$node->start;
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'no end of recovery';
	my $at = connect_to($node);
	push @wrong, map { "recovered: $_" } violations($at);
	push @wrong, map { "recovered: $_" } stranded($at);
	set_workers($node);
	push @wrong, 'not drained: ' . left($at) if !drain($at);
	push @wrong, map { "drained: $_" } violations($at);
	push @wrong, map { "drained: step not counted: @$_" } $at->selectall_array('SELECT join_id, message_id FROM outbox.join_members WHERE status = 0');
	is_deeply(\@wrong, [], "at $place") or diag("OUTBOX_SEED=$seed, $place");
	check_indexes($node, "at $place") if ++$ndrained % 10 == 1;
	$at->disconnect;
	$node->stop('immediate');
	rmtree($node->basedir);
}
note(sprintf '%d prefixes recovered and drained in %.0f s', $ndrained, time - $began);
is_deeply([ grep { / XX\d\d\d |PANIC|TRAP/ } split /\n/, slurp_file($main->logfile) ], [], 'no internal errors');
$dbh->disconnect;
$main->stop;
done_testing();

# The workers come when what was recovered has been looked at.
sub set_workers
{
	my $node = shift;

	$node->append_conf('postgresql.conf', "outbox.databases = '*'");
	$node->reload;
	return;
}

# What is left when nothing goes on.
sub left
{
	return join '; ', map { join ' ', map { $_ // 'null' } @$_ } $_[0]->selectall_array(<<'Q');
(SELECT 'queue', id::text, topic, left(payload, 80), status::text, next_attempt_at::text FROM outbox.queue LIMIT 5)
UNION ALL (SELECT 'timers', id::text, topic, payload, status::text, next_attempt_at::text FROM outbox.timer_queue LIMIT 5)
UNION ALL (SELECT 'join', join_id::text, completed_steps::text, failed_steps::text, expected_steps::text, status::text FROM outbox.joins WHERE status = 0 LIMIT 5)
Q
}
