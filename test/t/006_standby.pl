# A standby: reading works, calls that write fail with 25006; after a promotion the
# new primary continues where the old one was, and acknowledged changes are preserved.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $seed = seed();
my ($anna, $berta) = (owner(1), owner(2));
my $primary = new_node('primary', init => { allows_streaming => 1 }, conf => "hot_standby_feedback = on\nwal_receiver_status_interval = 1");
my $dbh = connect_to($primary);

$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', "primary_conninfo = '" . ($primary->connstr) . " application_name=standby'");
$standby->start;
$primary->append_conf('postgresql.conf', "synchronous_standby_names = 'standby'\nsynchronous_commit = remote_apply");
$primary->reload;
ok(poll(sub { count_of($dbh, "pg_stat_replication WHERE sync_state = 'sync'") }), 'the standby is synchronous');
$dbh = connect_to($primary);

sub claim
{
	my ($dbh, $owner, $topic, $batch) = @_;

	return map { $_->[0] } $dbh->selectall_array(
		'SELECT payload FROM outbox.claim(?, 600, ?, topics => ?)', undef, $owner, $batch // 100, [$topic]);
}

# --- reading
$dbh->do("SELECT outbox.enqueue_many('read', ARRAY(SELECT i::text FROM generate_series(1, 50) i))");
$dbh->do("SELECT outbox.enqueue('line', i::text, stream_id => ?, dedupe_key => 'k' || i) FROM generate_series(1, 5) i", undef, owner(100));
is(scalar(claim($dbh, $anna, 'read', 10)), 10, 'ten leases');
$dbh->do('SELECT outbox.ack(?, array_agg(id)) FROM (SELECT id FROM outbox.leases LIMIT 3) l', undef, $anna);
$dbh->do('SELECT outbox.fail(?, array_agg(id)) FROM (SELECT id FROM outbox.leases LIMIT 2) l', undef, $anna);
is_deeply([ claim($dbh, $anna, 'line', 2) ], [ 1, 2 ], 'two of a stream');

my $replica = connect_to($standby);
ok(value($replica, 'SELECT pg_is_in_recovery()'), 'the other is a standby');
for my $what ('outbox.messages', '(SELECT id, topic, attempts, leased_at, locked_until, owner_token, stream_id FROM outbox.leases)', '(SELECT id, topic, reason_name, failed_at, last_error, payload FROM outbox.dead_letters)', '(SELECT id, leased_at, owner_token FROM outbox.oldest_leases(4))', 'outbox.stream_heads', '(SELECT namespace, topic, ready, leased, dead FROM outbox.topic_stats)')
{
	is_deeply([ map { $_->[0] } $replica->selectall_array("SELECT r::text FROM $what r ORDER BY 1") ],
		[ map { $_->[0] } $dbh->selectall_array("SELECT r::text FROM $what r ORDER BY 1") ], "the same $what");
}
cmp_ok(count_of($replica, 'outbox.status()'), '>=', 5, 'status() answers');
is(value($replica, "SELECT concat_ws(' ', ok, status, hint) FROM outbox.status() WHERE component = 'shared memory'"), 't none', 'and asks for no memory, which a standby does not use');
is(value($replica, "SELECT outbox.status_name(1)"), 'in progress', 'and so does status_name()');
like(value($replica, 'SELECT outbox.metrics()'), qr/^outbox_topic_ready\{.*# EOF\n\z/ms, 'and metrics()');
is_deeply([ $replica->selectall_array("SELECT name FROM outbox.alerts() WHERE severity = 'critical'") ], [], 'and alerts(), which miss no worker here');

# a lock on the primary is held by the startup process here
$dbh->begin_work;
$dbh->do('LOCK TABLE outbox.queue IN ACCESS EXCLUSIVE MODE');
ok(poll(sub { count_of($replica, "pg_locks WHERE relation = 'outbox.queue'::regclass AND mode = 'AccessExclusiveLock'") }), 'the lock comes to the standby');
like(value($replica, "SELECT detail FROM outbox.status() WHERE component = 'locked tables' AND NOT ok"), qr/^process \d+, startup, has AccessExclusiveLock on outbox.queue, 0 others wait for it$/, 'status() does not wait for it');
$dbh->rollback;

# --- writing: every function but those that only read
my %reads = map { $_ => 1 } qw(status status_name join_status_name reason_name explain_message trace oldest_leases route_store route alerts metrics metric_samples);
my @functions = map { $_->[0] } $dbh->selectall_array(<<'Q');
SELECT p.proname || '(' || coalesce((SELECT string_agg(format('%s => %s::%s', a.name,
           CASE WHEN a.type = 'regrole'::regtype THEN '''pg_monitor'''
                WHEN a.type IN ('jsonb'::regtype, 'json'::regtype) THEN '''[]'''
                WHEN a.type IN ('bigint[]'::regtype, 'text[]'::regtype) THEN '''{1}'''
                WHEN a.type = 'uuid'::regtype THEN '''00000000-0000-4000-8000-000000000001'''
                WHEN a.type = 'text'::regtype THEN '''x'''
                WHEN a.type IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype) THEN '1'
                WHEN a.type = 'boolean'::regtype THEN 'true'
                WHEN a.type = 'timestamptz'::regtype THEN '''infinity'''
                WHEN a.type = 'regprocedure'::regtype THEN '''pg_catalog.now()'''
                ELSE 'NULL' END, format_type(a.type, NULL)), ', ')
           FROM unnest(p.proargnames, p.proargtypes::oid[]) WITH ORDINALITY a(name, type, i)
          WHERE i <= p.pronargs - p.pronargdefaults), '') || ')'
  FROM pg_proc p
 WHERE p.pronamespace = 'outbox'::regnamespace AND p.prokind = 'f' AND p.proname !~ '^_' AND p.prorettype <> 'trigger'::regtype
 ORDER BY 1
Q
my @answers = map { my $call = $_; [ $call, sqlstate($replica, "SELECT outbox.$call") ] } grep { !$reads{ s/\(.*//sr } } @functions;
cmp_ok(scalar @answers, '>', 20, 'all functions that write');
is_deeply([ map { "@$_" } grep { $_->[1] ne '25006' } @answers ], [], 'say 25006');
is_state($replica, "SELECT outbox.claim('$anna', wait_ms => 1000)", '25006', 'a claim that would wait, too');
is_state($replica, 'CALL outbox.maintain()', '25006', 'and the procedure');

# --- promotion, in the middle of it
my $dir = PostgreSQL::Test::Utils::tempdir();

sub notes_of
{
	my $kind = shift;

	return map { split /\n/, slurp_file($_) } glob "$dir/$kind.*";
}

sub note_down
{
	my ($kind, @lines) = @_;

	open my $file, '>>', "$dir/$kind.$$" or die $!;
	syswrite $file, join '', map { "$_\n" } @lines;
	close $file;
	return;
}

# until the primary is gone
my @clients;
for my $n (1 .. 2)
{
	push @clients, client(sub {
		my $dbh = connect_to($primary);
		my $i = 0;

		eval {
			while (1)
			{
				my @tags = map { "$n." . ++$i } 1 .. 3;

				note_down('sent', @tags);
				$dbh->do("SELECT outbox.enqueue_many('busy', ?::text[])", undef, \@tags);
				note_down('enqueued', @tags);
			}
		};
	});
}
for my $n (1 .. 2)
{
	push @clients, client(sub {
		my $dbh = connect_to($primary);
		my $owner = owner(10 + $n);

		eval {
			while (1)
			{
				my @got = $dbh->selectall_array("SELECT id, payload FROM outbox.claim(?, 600, 10, topics => '{busy}')", undef, $owner);
				note_down('claimed', map { "$_->[0] $owner" } @got);
				next unless @got;
				note_down('acking', map { $_->[1] } @got[ 0 .. $#got / 2 ]);
				$dbh->do('SELECT outbox.ack(?, ?::bigint[])', undef, $owner, [ map { $_->[0] } @got[ 0 .. $#got / 2 ] ]);
				note_down('acked', map { $_->[1] } @got[ 0 .. $#got / 2 ]);
			}
		};
	});
}
ok(poll(sub { notes_of('acked') > 300 }), 'clients are busy');
# a transaction that will never be committed, and one that does not wait
$dbh->do('BEGIN');
$dbh->do("SELECT outbox.enqueue('busy', 'never')");
claim($dbh, $anna, 'read', 5);
my $prepared = connect_to($primary);
$prepared->do('BEGIN');
$prepared->do("SELECT outbox.enqueue('line', '6', stream_id => ?)", undef, owner(100));
$prepared->do("PREPARE TRANSACTION 'later'");
my $lease_count = count_of($replica, "outbox.queue WHERE topic = 'read' AND status = 1");

$primary->stop('immediate');
waitpid $_, 0 for @clients;
# the session was there before the promotion
$standby->promote;
# the old standby does not answer
$standby->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$standby->reload;
for my $session ($replica, connect_to($standby))
{
	is(value($session, 'SELECT pg_is_in_recovery()'), 0, 'promoted');
	$session->do("SELECT outbox.enqueue('after', 'p')");
	is_deeply([ claim($session, $berta, 'after') ], ['p'], 'calls work');
}

my %there = map { $_->[0] => $_->[1] } $replica->selectall_array("SELECT payload, status FROM outbox.messages WHERE topic = 'busy'");
my %sent = map { $_ => 1 } notes_of('sent');
my %acking = map { $_ => 1 } notes_of('acking');
is_deeply([ grep { !defined $there{$_} } notes_of('enqueued') ], [], 'nothing that was acknowledged is lost');
is_deeply([ grep { !$sent{$_} } keys %there ], [], 'nothing is there that was not sent');
is_deeply([ grep { $there{$_} != 2 } notes_of('acked') ], [], 'what was done is done');
is_deeply([ grep { $there{$_} == 2 && !$acking{$_} } keys %there ], [], 'and nothing else');
my %owner_of = map { split / / } notes_of('claimed');
is_deeply([ grep { ($owner_of{ $_->[0] } // $_->[1]) ne $_->[1] } $replica->selectall_array("SELECT id, owner_token FROM outbox.queue WHERE topic = 'busy' AND status = 1") ],
	[], 'leases are those of their owners');

# --- leases of before
is(count_of($replica, "outbox.queue WHERE topic = 'read' AND status = 1"), $lease_count, 'leases are there, without those of the transaction that was open');
is(value($replica, "SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases WHERE topic = 'read'", $anna), 5, 'their owner can ack');
is(scalar(claim($replica, $berta, 'read')), 40, 'the others can be claimed');
is(scalar(grep { defined } claim($replica, $berta, 'line')), 0, 'a stream is still its owner\'s');
is_deeply([ claim($replica, $anna, 'line') ], [ 3, 4, 5 ], 'who goes on');
$replica->do("COMMIT PREPARED 'later'");
is_deeply([ claim($replica, $anna, 'line') ], [6], 'what was prepared before can be committed');
is(value($replica, "SELECT enqueued FROM outbox.try_enqueue('line', 'again', dedupe_key => 'k3')"), 0, 'keys are known');

# --- everything else, once
my $left = count_of($replica, "outbox.queue WHERE topic = 'busy' AND status = 0");
my @rest;
while (my @got = claim($replica, $berta, 'busy')) { push @rest, @got }
is(scalar @rest, $left, 'all that was not leased can be claimed');
my %seen;
is_deeply([ grep { $seen{$_}++ } @rest ], [], 'once');
is(count_of($replica, '(SELECT id FROM outbox.messages GROUP BY id HAVING count(*) > 1) d'), 0, 'ids are unique');

check_indexes($standby);
$_->disconnect for $replica;
$standby->stop;
done_testing();
