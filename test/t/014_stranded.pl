# A claim finds the messages that are in the table, whichever way they were written
# and whatever happened since. Each of these cases has once hidden messages from all
# claims.
#
# The tables are authoritative, so at the end of each case a claim that uses nothing
# else is made as well.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest qw(:DEFAULT claim);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('stranded', workers => 0, conf => 'max_connections = 60');
my ($anna, $berta, $carl) = map { owner($_) } 1 .. 3;
my $stream = owner(101);
my $dbh = connect_to($node);

sub ack_all { return value($_[0], 'SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases WHERE owner_token = ?', $_[1], $_[1]) }

# An empty queue, of which everything is known.
sub empty
{
	my $session = shift // $dbh;

	$session->do('TRUNCATE outbox.queue, outbox.dedupe, outbox.dead, outbox.archive');
	$session->do("SELECT outbox.enqueue('t', 'first')");
	is_deeply([ claim($session, $anna) ], ['first'], 'a queue in use');
	ack_all($session, $anna);
	is_deeply([ claim($session, $anna) ], [], 'all of it is known to be done');
	return;
}

# A claim gets these, and leaves nothing.
sub gets
{
	my ($session, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	nothing_stranded($session, $name);
	return is_deeply([ sort(claim($session, $berta, batch_size => 10000)) ], [ sort @$expected ], $name);
}

# --- TRUNCATE
for my $how ('rolled back', 'to a savepoint', 'by a lost session')
{
	my $session = connect_to($node);

	empty();
	$dbh->do("SELECT outbox.enqueue('t', 'p' || i) FROM generate_series(1, 5) i");
	$session->do('BEGIN');
	$session->do('SAVEPOINT s') if $how eq 'to a savepoint';
	$session->do('TRUNCATE outbox.queue');
	is_deeply([ claim($session, $anna) ], [], "TRUNCATE, $how: nothing inside");
	$session->do("SELECT outbox.enqueue('t', 'inside')");
	is_deeply([ claim($session, $anna) ], ['inside'], "TRUNCATE, $how: but what came after it");
	if ($how eq 'to a savepoint')
	{
		$session->do('ROLLBACK TO s');
		is_deeply([ claim($session, $anna, batch_size => 1) ], ['p1'], "TRUNCATE, $how: the transaction sees them again");
		$session->do('COMMIT');
		gets($dbh, [ map { "p$_" } 2 .. 5 ], "TRUNCATE, $how");
	}
	else
	{
		if ($how eq 'rolled back') { $session->do('ROLLBACK') }
		else { value($dbh, 'SELECT pg_terminate_backend(?, 10000)', $session->{pg_pid}) }
		gets($dbh, [ map { "p$_" } 1 .. 5 ], "TRUNCATE, $how");
	}
	$session->disconnect if $how ne 'by a lost session';
}
{
	empty();
	$dbh->do("SELECT outbox.enqueue_many('t', '{1,2,3}', stream_id => ?)", undef, $stream);
	claim($dbh, $anna, batch_size => 1);
	$dbh->do('BEGIN');
	$dbh->do('TRUNCATE outbox.queue');
	$dbh->do("SELECT outbox.enqueue_many('t', '{4,5}', stream_id => ?)", undef, $stream);
	$dbh->do('COMMIT');
	gets($dbh, [ 4, 5 ], 'TRUNCATE, committed');
	is(value($dbh, 'SELECT outbox.release(?)', $berta), 2, 'TRUNCATE, committed: they can be given back');
	# what is prepared is decided later
	$dbh->do('BEGIN');
	$dbh->do('TRUNCATE outbox.queue');
	claim($dbh, $anna);
	$dbh->do("PREPARE TRANSACTION 't'");
	$dbh->do("ROLLBACK PREPARED 't'");
	gets($dbh, [ 4, 5 ], 'TRUNCATE, prepared and rolled back');
}

# --- what was rolled back
{
	my ($one, $other) = (owner(201), owner(202));

	# a tenant's message before one of another's that was acknowledged
	empty();
	$dbh->do("SELECT outbox.enqueue('t', ?, tenant_id => ?, due_time => now() + ? * interval '10 ms')", undef, @$_)
	  for [ 'b1', $other, 1 ], [ 'a1', $one, 3 ];
	ok(poll(sub { value($dbh, 'SELECT max(next_attempt_at) < clock_timestamp() FROM outbox.queue') }), 'a rolled back ack: all are due');
	$dbh->do('BEGIN');
	is_deeply([ claim($dbh, $anna, batch_size => 1, tenant_id => $one) ], ['a1'], 'a rolled back ack: one tenant');
	ack_all($dbh, $anna);
	is_deeply([ claim($dbh, $anna, tenant_id => $one) ], [], 'a rolled back ack: has no more');
	is_deeply([ sort(claim($dbh, $anna)) ], ['b1'], 'a rolled back ack: what others have');
	$dbh->do('ROLLBACK');
	gets($dbh, [qw(a1 b1)], 'a rolled back ack');

	# the same with all that removes or moves a message, and with savepoints
	my $held = "'$anna', array_agg(id)";
	my %acts = (
		ack => "SELECT outbox.ack($held) FROM outbox.leases WHERE topic = 'u'",
		nack => "SELECT outbox.nack($held, 'e', '1 h') FROM outbox.leases WHERE topic = 'u'",
		fail => "SELECT outbox.fail($held) FROM outbox.leases WHERE topic = 'u'",
		DELETE => "DELETE FROM outbox.queue WHERE topic = 'u'",
		'UPDATE of the topic' => "UPDATE outbox.queue SET topic = 'v' WHERE topic = 'u'",
		'UPDATE of the time' => "UPDATE outbox.queue SET next_attempt_at = 'infinity' WHERE topic = 'u'");
	for my $act (sort keys %acts)
	{
		for my $undo ('ROLLBACK', 'ROLLBACK TO s')
		{
			empty();
			$dbh->do("SELECT outbox.enqueue(topic, topic || i) FROM generate_series(1, 3) i, unnest('{t,u}'::text[]) topic");
			$dbh->do('BEGIN');
			$dbh->do('SAVEPOINT s');
			claim($dbh, $anna, topics => ['u'], batch_size => 2);
			$dbh->do($acts{$act});
			claim($dbh, $anna, topics => ['u']);
			claim($dbh, $anna, batch_size => 2);
			claim($dbh, $anna);
			$dbh->do($undo);
			$dbh->do('COMMIT') if $undo =~ /TO/;
			gets($dbh, [qw(t1 t2 t3 u1 u2 u3)], "$act, then $undo");
		}
	}
}

# --- the head of a stream ends while another one joins it
for my $how ('two claims, rolled back', 'a wait that was cancelled', 'a wait that was cut off')
{
	my ($x, $y, $z) = map { connect_to($node) } 1 .. 3;

	empty();
	$dbh->do("SELECT outbox.enqueue('b', 'm1', stream_id => ?)", undef, $stream);
	is_deeply([ claim($x, $anna) ], ['m1'], "$how: the head is leased");
	$x->do('BEGIN');
	ack_all($x, $anna);
	$y->do("SELECT outbox.enqueue('b', 'm2', stream_id => ?)", undef, $stream);
	$x->do('COMMIT');
	if ($how =~ /two/)
	{
		$z->do('BEGIN');
		claim($z, $carl, topics => ['other']) for 1 .. 2;
		$z->do('ROLLBACK');
	}
	else
	{
		$z->do("SET statement_timeout = '300ms'") if $how =~ /cancelled/;
		begin_call($z, "SELECT * FROM outbox.claim(?, topics => '{other}', wait_ms => 30000)", $carl);
		if ($how =~ /cut/)
		{
			ok(poll(sub { sleeps($dbh, $z) }), "$how: it waits");
			$dbh->do('SELECT pg_terminate_backend(?)', undef, $z->{pg_pid});
		}
		like(end_call($z)->{state}, qr/^(57014|57P01|08\d{3}|22000)$/, "$how: it ends");
	}
	gets($dbh, ['m2'], $how);
	$_->disconnect for $x, $y;
}

# --- plain SQL
{
	empty();
	$dbh->do("SELECT outbox.enqueue('old', 'x')");
	claim($dbh, $anna, topics => ['none']);
	$dbh->do("UPDATE outbox.queue SET topic = 'new'");
	is_deeply([ claim($dbh, $anna, topics => ['old']) ], [], 'UPDATE of the topic: not where it was');
	nothing_stranded($dbh, 'UPDATE of the topic');
	is_deeply([ claim($dbh, $anna, topics => ['new']) ], ['x'], 'UPDATE of the topic: where it is');
	$dbh->do("UPDATE outbox.queue SET namespace = 'mine', topic = 'newer'");
	is(value($dbh, 'SELECT outbox.release(?)', $anna), 1, 'UPDATE of the namespace, leased: its owner has it');
	is_deeply([ claim($dbh, $anna, namespace => 'default') ], [], 'UPDATE of the namespace: not where it was');
	nothing_stranded($dbh, 'UPDATE of the namespace');
	is_deeply([ claim($dbh, $anna, namespace => 'mine', topics => ['newer']) ], ['x'], 'UPDATE of the namespace: where it is');
	$dbh->do('SELECT outbox.release(?)', undef, $anna);
	$dbh->do('UPDATE outbox.queue SET tenant_id = ?', undef, owner(201));
	is_deeply([ claim($dbh, $anna, tenant_id => owner(202)) ], [], 'UPDATE of the tenant: not that of another');
	is_deeply([ claim($dbh, $anna, tenant_id => owner(201)) ], ['x'], 'UPDATE of the tenant');
	is_deeply([ $dbh->selectrow_array("SELECT bool_and(passed), count(*) > 3 FROM outbox.explain_message((SELECT id FROM outbox.queue)) WHERE gate <> 'ready' AND gate !~ 'lease'") ], [ 1, 1 ], 'UPDATE of the tenant: explained');

	empty();
	$dbh->do("SELECT outbox.enqueue('t', i::text, due_time => now() + interval '1 h') FROM generate_series(1, 3) i");
	is_deeply([ claim($dbh, $anna) ], [], 'UPDATE of next_attempt_at: not due');
	$dbh->do("UPDATE outbox.queue SET next_attempt_at = now() WHERE payload = '2'");
	gets($dbh, [2], 'UPDATE of next_attempt_at: due');
	$dbh->do("UPDATE outbox.queue SET next_attempt_at = now() + interval '1 h' WHERE payload <> '3'");
	$dbh->do("UPDATE outbox.queue SET next_attempt_at = now() - interval '1 h' WHERE payload = '3'");
	gets($dbh, [3], 'UPDATE of next_attempt_at: back and forth');
	$dbh->do("UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE status = 1");
	gets($dbh, [ 2, 3 ], 'UPDATE of locked_until: the leases have ended') if value($dbh, "UPDATE outbox.queue SET next_attempt_at = now() WHERE payload = '2' RETURNING 1");

	# into a stream, out of it, and out of its order
	empty();
	$dbh->do("SELECT outbox.enqueue_many('t', '{1,2}', stream_id => ?)", undef, $stream);
	$dbh->do("SELECT outbox.enqueue('t', '3')");
	$dbh->do("UPDATE outbox.queue SET stream_id = ? WHERE payload = '3'", undef, $stream);
	is_deeply([ claim($dbh, $anna, batch_size => 1) ], [1], 'UPDATE of the stream: the first');
	is_deeply([ claim($dbh, $berta) ], [], 'UPDATE of the stream: the rest waits');
	$dbh->do("UPDATE outbox.queue SET stream_id = NULL WHERE payload = '2'");
	is_deeply([ claim($dbh, $berta) ], [2], 'UPDATE of the stream: one leaves it');
	$dbh->do("DELETE FROM outbox.queue WHERE payload = '1'");
	gets($dbh, [3], 'DELETE of the head of a stream');

	# a key is for a message that is there
	empty();
	my $id = value($dbh, "SELECT outbox.enqueue('t', 'first')");
	is(value($dbh, "WITH i AS (INSERT INTO outbox.queue (message_id, topic, payload, dedupe_key) VALUES (?, 't', 'second', 'k') ON CONFLICT DO NOTHING RETURNING 1) SELECT count(*) FROM i", $id), 0, 'ON CONFLICT: not inserted');
	is(value($dbh, "SELECT (outbox.try_enqueue('t', 'third', dedupe_key => 'k')).enqueued"), 1, 'ON CONFLICT: the key is free');
	is(value($dbh, "WITH i AS (INSERT INTO outbox.queue (topic, payload, dedupe_key) VALUES ('t', 'fourth', 'k') ON CONFLICT DO NOTHING RETURNING 1) SELECT count(*) FROM i"), 0, 'ON CONFLICT: the key is taken');
	gets($dbh, [qw(first third)], 'ON CONFLICT');

	# COPY, whole and in part, and from a saved copy
	empty();
	$dbh->do('COPY outbox.queue (topic, payload) FROM STDIN');
	$dbh->pg_putcopydata("t\tc$_\n") for 1 .. 3;
	$dbh->pg_putcopyend;
	gets($dbh, [qw(c1 c2 c3)], 'COPY');
	$dbh->do('CREATE TABLE saved AS SELECT * FROM outbox.queue');
	$dbh->do('UPDATE saved SET status = 0, owner_token = NULL, locked_until = NULL');
	for my $how ('a saved copy', 'a saved copy that names no lane', 'with disabled triggers', 'as a replica', 'as a replica, with triggers that do not fire always')
	{
		my $writer = connect_to($node);

		ack_all($dbh, $berta);
		# the ids come back
		$dbh->do('TRUNCATE outbox.archive');
		is_deeply([ claim($dbh, $anna) ], [], "$how: nothing is there");
		$dbh->do('UPDATE saved SET lane = 0') if $how =~ /no lane/;
		$writer->do('ALTER TABLE outbox.queue DISABLE TRIGGER ALL') if $how =~ /disabled/;
		$writer->do('SET session_replication_role = replica') if $how =~ /replica/;
		$writer->do('INSERT INTO outbox.queue SELECT * FROM saved');
		$writer->do('ALTER TABLE outbox.queue ENABLE TRIGGER ALL') if $how =~ /disabled/;
		if ($how =~ /no lane/) { $dbh->do('UPDATE saved SET lane = q.lane FROM outbox.queue q') }
		gets($dbh, [qw(c1 c2 c3)], $how);
		# their triggers fire as they were made
		$dbh->do('ALTER TABLE outbox.queue ENABLE ALWAYS TRIGGER outbox_queue_changed') if $how =~ /disabled/;
		$dbh->do('ALTER TABLE outbox.queue ENABLE TRIGGER outbox_queue_changed') if $how eq 'as a replica';
		$writer->disconnect;
	}
	$dbh->do('ALTER TABLE outbox.queue ENABLE ALWAYS TRIGGER outbox_queue_changed');
	$dbh->do('DROP TABLE saved');
}

# --- an order that does not depend on how the sequence is cached
{
	my $other = connect_to($node);

	empty();
	$dbh->do('ALTER SEQUENCE outbox.message_id_seq CACHE 50');
	my $n = 0;
	$_->do("SELECT outbox.enqueue('t', ?, stream_id => ?)", undef, ++$n, $stream) for $dbh, $other, $dbh, $other;
	$other->do('INSERT INTO outbox.queue (topic, payload, stream_id) VALUES (?, ?, ?)', undef, 't', 5, $stream);
	$dbh->do("SELECT outbox.enqueue('t', '6', stream_id => ?)", undef, $stream);
	is_deeply([ claim($dbh, $anna) ], [ 1 .. 6 ], 'a sequence with a cache: a stream is in order');
	$dbh->do('SELECT outbox.release(?)', undef, $anna);
	gets($dbh, [ 1 .. 6 ], 'a sequence with a cache');
	$dbh->do('ALTER SEQUENCE outbox.message_id_seq CACHE 1');
	$other->disconnect;
}

# --- an extreme number of open transactions
{
	my ($x, $y) = map { connect_to($node) } 1 .. 2;
	my $each = 'DO $$ BEGIN FOR i IN 1 .. 600 LOOP BEGIN %s; EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$';

	empty();
	$x->do('BEGIN');
	$x->do(sprintf $each, "PERFORM outbox.enqueue('t', 'p' || i)");
	is_deeply([ claim($dbh, $anna) ], [], '600 subtransactions: nothing yet');
	is_deeply([ claim($dbh, $anna, topics => ['t']) ], [], '600 subtransactions: nor now');
	$x->do('COMMIT');
	gets($dbh, [ map { "p$_" } 1 .. 600 ], '600 subtransactions');
	$x->do('BEGIN');
	$x->do(sprintf $each, "PERFORM outbox.nack('$berta', ARRAY[id], 'e', '0') FROM outbox.leases ORDER BY id LIMIT 1");
	is_deeply([ claim($dbh, $anna) ], [], '600 messages given back one by one: nothing yet');
	$x->do('COMMIT');
	gets($dbh, [ map { "p$_" } 1 .. 600 ], '600 messages given back one by one');
	ack_all($dbh, $berta);

	# one scan is under way while another one goes over what it has passed
	$dbh->do(<<'Q');
CREATE FUNCTION public.stop() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock(1);
	RETURN NEW;
END $$;
CREATE TRIGGER stop BEFORE UPDATE ON outbox.queue FOR EACH ROW WHEN (NEW.payload = 'stop') EXECUTE FUNCTION public.stop();
Q
	$x->do('BEGIN');
	$x->do(sprintf $each, "PERFORM outbox.enqueue('t', 'p' || i)");
	$y->do('BEGIN');
	$y->do("SELECT outbox.enqueue('t', 'k' || i) FROM generate_series(1, 3) i");
	is_deeply([ claim($dbh, $anna) ], [], 'a scan under way: nothing yet');
	$dbh->do("SELECT outbox.enqueue('t', 'stop')");
	$dbh->do('SELECT pg_advisory_lock(1)');
	my $slow = connect_to($node);
	begin_call($slow, 'SELECT payload FROM outbox.claim(?)', $carl);
	ok(poll(sub { value($dbh, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = ?", $slow->{pg_pid}) }), 'a scan under way: it is stopped');
	$y->do('COMMIT');
	my @lockers = map { connect_to($node) } 1 .. 3;
	for my $i (1 .. 3)
	{
		$lockers[ $i - 1 ]->do('BEGIN');
		$lockers[ $i - 1 ]->do("SELECT id, txid_current() FROM outbox.queue WHERE payload = 'k$i' FOR UPDATE");
	}
	is_deeply([ claim($dbh, $anna) ], [], 'a scan under way: what is locked is passed');
	$dbh->do('SELECT pg_advisory_unlock(1)');
	is_deeply([ map { $_->[0] } @{ end_call($slow)->{rows} } ], ['stop'], 'a scan under way: it goes on');
	$_->do('ROLLBACK') for @lockers;
	gets($dbh, [qw(k1 k2 k3)], 'a scan under way');
	$x->do('COMMIT');
	gets($dbh, [ map { "p$_" } 1 .. 600 ], 'a scan under way: the rest');
	$dbh->do('DROP FUNCTION public.stop() CASCADE');
	$_->disconnect for $x, $y, $slow, @lockers;
}

# --- locks that are shared, one of which ends after the other
{
	my ($x, $y) = map { connect_to($node) } 1 .. 2;

	for my $lock ('FOR SHARE', 'FOR KEY SHARE', 'FOR UPDATE')
	{
		empty();
		$dbh->do("SELECT outbox.enqueue('t', 'p' || i) FROM generate_series(1, 3) i");
		$x->do('BEGIN');
		$y->do('BEGIN');
		$x->do("SELECT id FROM outbox.queue WHERE payload = 'p2' $lock");
		$y->do("SELECT id FROM outbox.queue WHERE payload = '@{[ $lock =~ /SHARE/ ? 'p2' : 'p3' ]}' $lock");
		my $got = join ' ', claim($dbh, $anna);
		like($got, qr/^p1/, "$lock: others are not held up");
		$dbh->do('SELECT outbox.release(?)', undef, $anna);
		$x->do('COMMIT');
		claim($dbh, $anna);
		$dbh->do('SELECT outbox.release(?)', undef, $anna);
		$y->do('ROLLBACK');
		gets($dbh, [qw(p1 p2 p3)], $lock);
	}
	# to look at a message locks nothing
	empty();
	$dbh->do("SELECT outbox.enqueue('t', 'p')");
	$x->do('BEGIN');
	is(value($x, 'SELECT count(*) > 3 FROM outbox.queue, outbox.explain_message(id)'), 1, 'explain_message');
	gets($dbh, ['p'], 'explain_message in an open transaction');
	$x->do('COMMIT');
	$_->disconnect for $x, $y;
}

# --- leases taken by a session that does not use the memory
{
	my $without = connect_to($node, settings => ['SET outbox.use_cursor = off']);

	empty();
	$dbh->do("SELECT outbox.enqueue('t', 'p' || i) FROM generate_series(1, 5) i");
	is(scalar(claim($without, $anna)), 5, 'without the cursor: leased');
	is(value($dbh, 'SELECT outbox.release(?)', $anna), 5, 'without the cursor: others can release them');
	is(scalar(claim($without, $anna, lease_seconds => 1)), 5, 'without the cursor: leased again');
	ok(poll(sub { value($dbh, 'SELECT bool_and(locked_until < clock_timestamp()) FROM outbox.queue') }), 'without the cursor: the leases end');
	is(value($dbh, 'SELECT outbox.reap()'), 5, 'without the cursor: others can reap them');
	gets($dbh, [ map { "p$_" } 1 .. 5 ], 'without the cursor');
	$without->disconnect;
}

# --- another database with the same number
{
	my $admin = connect_to($node);

	$admin->do('CREATE DATABASE golden');
	my $golden = connect_to($node, db => 'golden');
	$golden->do('CREATE EXTENSION outbox');
	$golden->do("SELECT outbox.enqueue('t', 'p' || i) FROM generate_series(1, 4) i");
	$golden->disconnect;
	$admin->do('CREATE DATABASE life TEMPLATE golden');
	my $oid = value($admin, "SELECT oid FROM pg_database WHERE datname = 'life'");
	for my $round (1 .. 3)
	{
		my $life = connect_to($node, db => 'life');

		is_deeply([ claim($life, $anna) ], [ map { "p$_" } 1 .. 4 ], "life $round of a database");
		ack_all($life, $anna);
		is_deeply([ claim($life, $anna) ], [], "life $round of a database: all is done");
		$life->do("SELECT outbox.enqueue('t', 'of this life')") if $round == 2;
		nothing_stranded($life, "life $round of a database");
		$life->disconnect;
		$admin->do('DROP DATABASE life WITH (FORCE)');
		$admin->do("CREATE DATABASE life OID $oid TEMPLATE golden");
	}
	$admin->disconnect;
}

# --- after a restart, whichever view is read first
for my $first ('nobody', 'outbox.leases', 'outbox.topic_stats')
{
	empty();
	$dbh->do("SELECT outbox.enqueue(topic, topic) FROM unnest('{a,b,c}'::text[]) topic, generate_series(1, 3)");
	for my $owner ($anna, $berta)
	{
		$dbh->do("SELECT outbox.heartbeat(?, 'service', 'host', 1)", undef, $owner);
		is(scalar(claim($dbh, $owner, topics => [ $owner eq $anna ? 'a' : 'b' ], lease_seconds => 600)), 3, "$first: leases");
	}
	is(scalar(claim($dbh, $carl, topics => ['c'], lease_seconds => 1)), 3, "$first: leases that end");
	$dbh->do('BEGIN');
	$dbh->do("SELECT outbox.enqueue('d', 'd')");
	is(scalar(claim($dbh, $carl, topics => ['d'], lease_seconds => 1)), 1, "$first: one that is undecided");
	$dbh->do("PREPARE TRANSACTION 'd'");
	$dbh->disconnect;
	$node->restart;
	$dbh = connect_to($node);
	if ($first =~ /leases/) { is(count_of($dbh, $first), 9, "$first: $_") for 'one look', 'another' }
	elsif ($first =~ /stats/) { is(value($dbh, 'SELECT sum(leased + expired) FROM outbox.topic_stats'), 9, "$first: $_") for 'one look', 'another' }
	is(value($dbh, 'SELECT outbox.release(?)', $anna), 3, "$first: release");
	is(value($dbh, 'SELECT outbox.deregister_instance(?)', $berta), 3, "$first: deregister_instance");
	ok(poll(sub { value($dbh, "SELECT bool_and(locked_until < clock_timestamp()) FROM outbox.queue WHERE topic = 'c'") }), "$first: the leases end");
	is(value($dbh, 'SELECT outbox.reap()'), 3, "$first: reap");
	$dbh->do("COMMIT PREPARED 'd'");
	ok(poll(sub { value($dbh, "SELECT bool_and(locked_until < clock_timestamp()) FROM outbox.queue WHERE topic = 'd'") }), "$first: the lease ends");
	is(value($dbh, 'SELECT outbox.reap()'), 1, "$first: reap of what was undecided");
	gets($dbh, [ ('a') x 3, ('b') x 3, ('c') x 3, 'd' ], "$first looks first");
	ack_all($dbh, $berta);
}

$dbh->disconnect;
is_deeply([ grep { /PANIC|TRAP|terminated by signal/ } split /\n/, slurp_file($node->logfile) ], [], 'the log is clean');
check_indexes($node);
$node->stop;

# --- without the library preloaded: sessions that do not share what they know
$node = new_node('unreported', preload => 0, conf => 'dynamic_shared_memory_type = mmap');
$dbh = connect_to($node);
{
	empty();
	my $without = without_memory($node);
	is(value($_, 'SELECT (lanes > 0)::integer FROM outbox._library()'), $_ == $dbh ? 1 : 0, 'one session has the memory, one has not') for $dbh, $without;
	for my $round (1 .. 3)
	{
		$without->do("SELECT outbox.enqueue('t', 'p' || i) FROM generate_series(1, 3) i");
		gets($dbh, [qw(p1 p2 p3)], "a session without memory has written, $round");
		ack_all($dbh, $berta);
	}
	$dbh->do("SELECT outbox.enqueue('t', 'of the other')");
	gets($without, ['of the other'], 'it sees what others write');
	is(value($dbh, 'SELECT outbox.release(?)', $berta), 1, 'others can release what it has leased');
	$without->do('BEGIN');
	$without->do("SELECT outbox.enqueue('t', 'late')");
	gets($dbh, ['of the other'], 'it has not committed');
	$without->do('COMMIT');
	gets($dbh, ['late'], 'it has committed');
	# a claim that waits cannot be called by it, so it looks from time to time
	ack_all($dbh, $berta);
	my $waiting = connect_to($node);
	begin_call($waiting, 'SELECT payload FROM outbox.claim(?, wait_ms => 30000)', $carl);
	ok(poll(sub { sleeps($dbh, $waiting) }), 'a claim waits');
	$without->do("SELECT outbox.enqueue('t', 'waited for')");
	my $end = end_call($waiting);
	is_deeply($end->{rows}, [ ['waited for'] ], 'it gets what a session without memory writes');
	cmp_ok($end->{seconds}, '<', 10, 'soon');
	$_->disconnect for $without, $waiting;
	# when it has ended, everything is as before
	ok(poll(sub { $dbh->do("SELECT outbox.enqueue('t', 'x')"); claim($dbh, $anna) == 1 }), 'it has gone');
}

# --- two versions of the library, each of which knows nothing of the other's memory
{
	my $libdir = value($dbh, "SELECT setting FROM pg_config WHERE name = 'PKGLIBDIR'");
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $library = slurp_file("$libdir/outbox.so");
	my $install = sub {
		# the file is replaced, as a package manager does
		open my $file, '>:raw', "$dir/new" or die $!;
		print $file shift;
		close $file or die $!;
		chmod 0755, "$dir/new";
		rename "$dir/new", "$dir/outbox.so" or die $!;
	};

	cmp_ok((my $next = $library) =~ s/outbox (%s %d %zu)/outboy $1/g, '==', 1, 'the name of the memory is in the library');
	$install->($library);
	$dbh->do("UPDATE pg_proc SET probin = '$dir/outbox' WHERE probin = '\$libdir/outbox'");
	$dbh->disconnect;
	my $old = connect_to($node);
	$dbh = $old;
	empty();
	$install->($next);
	my $new = connect_to($node);
	for my $round (1 .. 2)
	{
		for ([ $old, $new, 'the old library' ], [ $new, $old, 'the new library' ])
		{
			my ($writer, $reader, $who) = @$_;

			is_deeply([ claim($reader, $anna) ], [], "$who: nothing is there");
			$writer->do("SELECT outbox.enqueue('t', 'p' || i) FROM generate_series(1, 3) i");
			gets($reader, [qw(p1 p2 p3)], "$who has written, $round");
			is(value($writer, 'SELECT outbox.release(?)', $berta), 3, "$who: leased by the other");
			gets($writer, [qw(p1 p2 p3)], "$who has them back, $round");
			ack_all($writer, $berta);
		}
	}
	# the last session with the old library ends
	$old->do("SELECT outbox.enqueue('t', 'the last')");
	$old->disconnect;
	gets($new, ['the last'], 'the old library has gone');
	ack_all($new, $berta);
	my $newer = connect_to($node);
	$newer->do("SELECT outbox.enqueue('t', 'only new ones')");
	gets($new, ['only new ones'], 'only the new library is left');
	is(value($newer, 'SELECT lanes > 0 FROM outbox._library()'), 1, 'and has its memory');
	$_->disconnect for $new, $newer;
}
is_deeply([ grep { /PANIC|TRAP|terminated by signal/ } split /\n/, slurp_file($node->logfile) ], [], 'the log is clean');
$node->stop;
done_testing();
