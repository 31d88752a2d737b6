# Whatever a function is called with: it does what it should, or says so with
# an error of the contract, and nothing is changed.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $seed = seed();
my $ncalls = $ENV{OUTBOX_CALLS} // 10_000 * scale();
my $node = new_node('hostile', workers => 0, conf => "outbox.check_dedupe_tenant = on\nmax_locks_per_transaction = 256\nlog_statement = none", init => { extra => [ '--encoding=UTF8', '--locale=C' ] });

# What the contract allows.
my %allowed = map { $_ => 1 } qw(22004 22023 2BP01 42501 42704 42710 23505 55000 0A000);
my (%states, %complaints);
my $made = 0;

# ---------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------

my @long = map { my $char = $_; map { "repeat($char, $_)" } 255, 256 } "'x'", "U&'\\+01D11E'", "U&'\\00FC'";
my %values = (
	text => [ "''", "' '", "'h'", "'''\"\\\$'", q(E'\n'), q(E'\x01\x7f\t\b'), "'%s%n'", "'a.b'", "'default'", "'join.wait'", @long, "repeat('x', 1000000)" ],
	uuid => [ "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "'00000000-0000-4000-8000-000000000001'" ],
	integer => [ 0, 1, -1, 2, 50, 10000, 10001, 86400, 86401, 2147483647, "'-2147483648'" ],
	'double precision' => [ 0, 1, -1, 3600, "'1e300'", "'NaN'", "'Infinity'" ],
	smallint => [ 0, 1, -1, 4, 99, 32767, "'-32768'" ],
	bigint => [ 0, -1, "9223372036854775807", "'-9223372036854775808'" ],
	boolean => [ 'true', 'false' ],
	'timestamp with time zone' => [ "'infinity'", "'-infinity'", "'294276-12-31 23:59:59'", "'4713-01-01 BC'", "'epoch'", 'now()', "now() + interval '1 ms'", "now() + interval '1 year'" ],
	interval => [ "'0'", "'1 us'", "'-1 us'", "'1 day'", "'-1 day'", "'100 years'", "'178000000 years'", "'-178000000 years'", "'2147483647 days'", "'1 month -40 days'", "'9223372036854775807 us'", "'infinity'", "'-infinity'" ],
	'bigint[]' => [ "'{}'", "'{NULL}'", "'{1,NULL,2}'", "'{{1,2},{3,4}}'", "'{{1},{NULL}}'", "'[0:1]={1,2}'", "'[-5:-4]={1,2}'", "'{0,-1,9223372036854775807,-9223372036854775808}'", "'{1,1,1}'", "ARRAY(SELECT i FROM generate_series(1, 100000) i)", "array_fill(7::bigint, ARRAY[100000])", "array_fill(NULL::bigint, ARRAY[100000])", 'held.ids', 'held.ids || held.ids' ],
	'integer[]' => [ "'{}'", "'{NULL}'", "'{1}'", "'{1,1}'", "'{1,1,1,1}'", "'{{1},{1}}'", "'[-5:-4]={1,1}'", "'{-1,2147483647}'", "array_fill(1, ARRAY[100000])", 'held.attempts' ],
	'text[]' => [ "'{}'", "'{NULL}'", "'{a,NULL}'", "'{\"\"}'", "'{h}'", "'{h,h,base}'", "'{{a,b},{c,d}}'", "'[0:1]={a,b}'", "'[-5:-4]={a,b}'", "ARRAY[repeat('x', 256)]", "array_fill('h'::text, ARRAY[100000])", "ARRAY(SELECT 't' || i FROM generate_series(1, 100000) i)", "'{join.wait}'", "ARRAY[E'\\n\\t\\\\', '''\"']" ],
	json => [ "'{}'", "'null'", "'1'", "' [1 , \"x\"] '", "repeat('[', 6000) || repeat(']', 6000)" ],
	jsonb => [ "'{}'", "'[]'", "'null'", "'1'", "'\"x\"'", "'[1]'", "'[null]'", "'[[]]'", "'[{}]'", "'[{}, {}]'",
		"repeat('[', 6000) || repeat(']', 6000)", "repeat('{\"a\":', 6000) || '1' || repeat('}', 6000)",
		map({ "'[$_]'" }
			'{"topic": "h"}', '{"topic": "h", "payload": null}', '{"topic": null, "payload": "p"}', '{"topic": 1, "payload": "p"}', '{"topic": "", "payload": "p"}', '{"topic": "h", "payload": "p"}', '{"topic": "h", "payload": {"a": [1]}}', '{"topic": "h", "payload": "p", "unknown": 1}',
			map({ "{\"topic\": \"h\", \"payload\": \"p\", $_}" } '"due_time": "nonsense"', '"due_time": "infinity"', '"due_time": "-infinity"', '"due_time": "999999-01-01"', '"due_time": 1', '"due_time": {}', '"message_id": "x"', '"message_id": "00000000-0000-0000-0000-000000000000"', '"stream_id": "nil"', '"stream_id": ""', '"tenant_id": "00000000-0000-4000-8000-000000000001", "dedupe_key": "x"', '"dedupe_key": "k"', '"dedupe_key": ""', '"dedupe_key": []', '"headers": 1', '"headers": null', '"headers": "x"', '"namespace": null', '"namespace": ""', '"expires_at": "epoch"', '"topic": "twice"', '"correlation_id": "c"', '"correlation_id": true')),
		"(SELECT jsonb_agg('{\"topic\": \"h\", \"payload\": \"p\", \"message_id\": \"00000000-0000-4000-8000-000000000009\"}'::jsonb) FROM generate_series(1, 2))",
		"(SELECT jsonb_agg('{\"topic\": \"h\", \"payload\": \"p\", \"stream_id\": \"00000000-0000-4000-8000-000000000009\", \"dedupe_key\": \"k\"}'::jsonb) FROM generate_series(1, 2000))",
		"jsonb_build_array(jsonb_build_object('topic', repeat('x', 256), 'payload', 'p'))",
		"jsonb_build_array(jsonb_build_object('topic', 'h', 'payload', repeat('[', 6000) || repeat(']', 6000)))" ],
	regrole => [ 'current_user', "'0'", "'4294967295'", "'pg_monitor'", "'\"odd \"\" role\"'" ],
	name => [ "''", "'x'", "'template1'" ],
	xid => [ "'0'", "'3'", "'4294967295'" ],
	'boolean[]' => [ "'{}'", "'{NULL}'", "'{true}'" ],
	'uuid[]' => [ "'{}'", "'{NULL}'", "'{00000000-0000-0000-0000-000000000000}'" ],
	regprocedure => [ "'0'", "'4294967295'", "'pg_catalog.now()'" ],
	anyelement => [ 'NULL::text', '1' ],
	'outbox.jobs' => [ "ROW('j', 't', '* * * * *', 'p', true, NULL, now(), now())::outbox.jobs" ],
	'outbox.join_doubts' => [ 'ROW(0, NULL, NULL, NULL, NULL, NULL)::outbox.join_doubts' ],
	'outbox.message' => [ 'ROW(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::outbox.message' ],
	regclass => [ "'0'", "'4294967295'", "'outbox.queue'", "'outbox.dead'", "'pg_class'" ]);
# a wait that is allowed would be waited for
my %values_of = (wait_ms => [ 0, 1, -1, 2147483647, "'-2147483648'", 60001 ]);
my %sane = (
	topic => "'h'", payload => "'{}'", payloads => "'{p,q}'", messages => q('[{"topic": "h", "payload": "p"}]'),
	owner_token => "'00000000-0000-4000-8000-000000000001'", ids => 'held.ids', role => "'pg_monitor'",
	namespace => "'default'", stream_id => "'00000000-0000-4000-8000-000000000002'", dedupe_key => "'key'",
	partition_count => 100, keep => "'-2'", at => 'now()', what => "'it'", value => "'x'", condition => "'false'", tab => "'outbox.dead'",
	join_id => "'00000000-0000-4000-8000-000000000077'", grouping_key => "'g'", expected_steps => 2, fail_if_any_step_failed => 'true',
	on_complete_topic => "'c'", on_complete_payload => "'p'", job_name => "'job'", cron_schedule => "'* * * * *'", enabled => 'false',
	instance_id => "'00000000-0000-4000-8000-000000000003'", service_name => "'s'", host_name => "'h'", process_id => 1,
	receptor_name => "'r'", perspective_name => "'p'", last_message_id => "'00000000-0000-4000-8000-000000000004'",
	handler_name => "'h'", handler => "'public.handle(outbox.message)'", due_time => 'now()', timer_id => "'00000000-0000-4000-8000-000000000005'", id => 'held.ids[1]', attempt => 'held.attempts[1]', reason => 4,
	message_id => 'gen_random_uuid()', status => 1, batch_limit => 10, paused => 'true', 'payloads jsonb' => "'[1]'", 'on_complete_payload json' => "'1'", 'on_complete_payload jsonb' => "'1'", message => "'1'", instances => "'{00000000-0000-0000-0000-000000000000}'", kind => "'worker'", setting => "'max_attempts'", relation => "'outbox.dead'", functions => "'{claim}'", relations => "'{queue}'",
	store => "'eu'", connection => "'service=eu'", routing_key => "'00000000-0000-4000-8000-000000000006'", key => "'00000000-0000-4000-8000-000000000006'", rule => "'store:eu'");
# ---------------------------------------------------------------------------
# Calls
# ---------------------------------------------------------------------------

my ($dbh, $pid, $database, @functions, %possible);

sub open_connection
{
	$dbh = connect_to($node, db => $database, settings => [ "SET statement_timeout = '60s'", 'SET outbox.backoff_base = 0' ]);
	$pid = $dbh->{pg_pid};
	return;
}

sub open_database
{
	$database = shift;
	open_connection();
	@functions = @{ $dbh->selectall_arrayref(<<'Q', { Slice => {} }) };
SELECT p.oid::regprocedure AS signature, p.proname AS name, p.pronargs - p.pronargdefaults AS required,
       array_agg(a.name ORDER BY a.i) AS names, array_agg(format_type(a.type, NULL) ORDER BY a.i) AS types
  FROM pg_proc p, unnest(p.proargnames, p.proargtypes::oid[]) WITH ORDINALITY a(name, type, i)
 WHERE p.pronamespace = 'outbox'::regnamespace AND p.prorettype <> 'trigger'::regtype
   AND i <= p.pronargs AND p.pronargs > 0
 GROUP BY p.oid ORDER BY p.oid::regprocedure::text
Q
	# what is no value here is nobody's fault
	%possible = ();
	for my $type (keys %values)
	{
		$possible{$type} = [ 'NULL', grep { /held/ || sqlstate($dbh, "SELECT ($_)::$type") eq '' } @{ $values{$type} } ];
	}
	$dbh->do(<<'Q');
CREATE FUNCTION public.handle(outbox.message) RETURNS void LANGUAGE sql AS '';
INSERT INTO outbox.joins (join_id, expected_steps) VALUES ('00000000-0000-4000-8000-000000000077', 5);
SELECT outbox.register_store('eu', 'service=eu'), outbox.map_route('00000000-0000-4000-8000-000000000006', 'eu');
INSERT INTO outbox.jobs (job_name, topic, cron_schedule) VALUES ('job', 'h', '* * * * *');
SELECT outbox.enqueue_many('base', array_fill('p'::text, ARRAY[20]));
SELECT outbox.enqueue('base', 's' || i, stream_id => '00000000-0000-4000-8000-000000000002') FROM generate_series(1, 5) i;
SELECT outbox.enqueue('base', 'k', dedupe_key => 'key');
SELECT outbox.enqueue_many('held', array_fill('p'::text, ARRAY[4]));
SELECT outbox.claim('00000000-0000-4000-8000-000000000001', 3600, topics => '{held}');
SELECT outbox.enqueue_many('dead', array_fill('p'::text, ARRAY[4]));
SELECT outbox.fail('00000000-0000-4000-8000-000000000001', array_agg(id)) FROM outbox.claim('00000000-0000-4000-8000-000000000001', topics => '{dead}')
Q
	return;
}

# A call: some arguments are what they are, others sane. The answer is an
# SQLSTATE.
sub call
{
	my ($function, %given) = @_;
	my (@arguments, $text);

	for my $i (0 .. $#{ $function->{names} })
	{
		my ($name, $type) = ($function->{names}[$i], $function->{types}[$i]);
		my $value = $given{$name} // $sane{"$name $type"} // $sane{$name};

		# most have defaults
		next if !defined $given{$name} && (!defined $value || $i >= $function->{required} && $function->{name} !~ /^_/);
		push @arguments, "$name => ($value)::$type";
	}
	$text = "SELECT count(*) FROM (SELECT array_agg(id) AS ids, array_agg(attempts) AS attempts FROM outbox.queue WHERE topic = 'held') held,"
	  . " LATERAL outbox.$function->{name}(" . join(', ', @arguments) . ') called';
	my $state = sqlstate($dbh, $text);
	my $complaint;

	$made++;
	$states{ $state eq '' ? 'success' : $state }++;
	if ($state ne '' && $dbh->ping <= 0)
	{
		# the server has crashed: say so, and go on
		$complaint = "CRASH $function->{name}";
		wait_for_recovery($node, $pid);
		open_connection();
		$dbh->do($_) for 'BEGIN', 'SAVEPOINT s';
	}
	elsif ($state ne '' && !$allowed{$state} && !($function->{name} =~ /^_/ && $state !~ /^(XX|22001|57)/))
	{
		# what is not for callers may fail in its own words; this is not that
		$complaint = "$state $function->{name}: " . ($dbh->errstr =~ s/\n.*//sr);
	}
	$complaints{$complaint} //= join(', ', map { "$_ => " . substr($given{$_}, 0, 60) } keys %given)
	  if defined $complaint;
	return $state;
}

# What is left to be claimed, as the tables say, against what is handed out.
sub check_claims
{
	my $after = shift;
	my $due = <<'Q';
stream_id IS NULL AND topic <> 'join.wait' AND (expires_at IS NULL OR expires_at > clock_timestamp())
AND (status = 0 AND next_attempt_at <= clock_timestamp() OR status = 1 AND locked_until <= clock_timestamp())
AND NOT EXISTS (SELECT FROM outbox.topics t WHERE t.namespace = q.namespace AND t.topic = q.topic AND t.paused)
AND attempts - waived < coalesce((SELECT max_attempts FROM outbox.topics t WHERE t.namespace = q.namespace AND t.topic = q.topic), 10)
Q
	my $expected = join ' ', map { $_->[0] } $dbh->selectall_array("SELECT id FROM outbox.queue q WHERE $due ORDER BY id LIMIT 10000");
	my $got = join ' ', sort { $a <=> $b } map { $_->[0] }
	  $dbh->selectall_array('SELECT id FROM outbox.claim(?, batch_size => 10000) WHERE stream_id IS NULL', undef, owner(99));
	$complaints{"a claim after an error sees something else"} //= "$after: expected ($expected), got ($got)"
	  if $expected ne $got;
	return;
}

# Calls, some of them kept until the end of the transaction.
sub run_calls
{
	my ($name, $calls) = @_;
	my $n = 0;
	my $started = time;
	my $before = $made;
	my $failed = 0;
	my $columns = "(SELECT count(*) FROM outbox.queue), (SELECT count(*) FROM outbox.dead), (SELECT count(*) FROM outbox.archive), (SELECT count(*) FROM outbox.topics), (SELECT count(*) FROM outbox.dedupe), (SELECT count(*) FROM outbox.leases), (SELECT string_agg(s::text, ' ') FROM outbox.stores s)";
	my @counts = $dbh->selectrow_array("SELECT $columns");

	%complaints = ();
	$dbh->do('BEGIN');
	while (my $call = $calls->())
	{
		my ($function, %given) = @$call;
		$dbh->do('SAVEPOINT s');
		my $state = call($function, %given);
		my $big = grep { /100000|2000/ } values %given;

		if ($state ne '' || $big || rand() < 0.7) { $dbh->do('ROLLBACK TO s') }
		else { $dbh->do('RELEASE s') }
		check_claims(join ', ', $function->{name}, %given) if $state ne '' && rand() < 0.02;
		next if ++$n % 40;
		$dbh->do('ROLLBACK');
		$dbh->do('BEGIN');
	}
	$dbh->do('ROLLBACK');
	check_claims('the end');
	$dbh->do('SELECT outbox.release(?)', undef, owner(99));
	is(join("\n", map { "$_ ($complaints{$_})" } sort keys %complaints), '', "$name: every error is of the contract, seed $seed");
	is_deeply([ $dbh->selectrow_array("SELECT $columns") ], \@counts, "$name: nothing has changed");
	note(sprintf '%s: %d calls in %.1f s', $name, $made - $before, time - $started);
	return;
}

sub values_for
{
	my ($name, $type) = @_;

	return ('NULL', @{ $values_of{$name} }) if $values_of{$name};
	die "no values for type $type" unless $possible{$type};
	return @{ $possible{$type} };
}

# Each argument of each function with each value.
sub each_value
{
	my @calls;

	for my $function (@functions)
	{
		for my $i (0 .. $#{ $function->{names} })
		{
			my ($name, $type) = ($function->{names}[$i], $function->{types}[$i]);
			push @calls, map { [ $function, $name, $_ ] } values_for($name, $type);
		}
	}
	return sub { shift @calls };
}

# Several arguments at once; the biggest values are rare.
sub random_values
{
	my $n = shift;

	return sub {
		return if $n-- <= 0;
		my $function = $functions[ rand @functions ];
		my %given;
		for my $i (0 .. $#{ $function->{names} })
		{
			next if rand() < 0.5;
			my ($name, $type) = ($function->{names}[$i], $function->{types}[$i]);
			my @values = values_for($name, $type);
			@values = grep { !/00000\b/ } @values if rand() < 0.98;
			$given{$name} = $values[ rand @values ];
		}
		return [ $function, %given ];
	};
}

$node->safe_psql('postgres', 'CREATE ROLE "odd "" role"');
open_database('postgres');
my @missing = grep { !$values{$_} } map { @{ $_->{types} } } @functions;
is_deeply(\@missing, [], 'there are values for all types');
run_calls('each value', each_value());
run_calls('many values', random_values($ncalls - $made - 1000));
$dbh->disconnect;
for my $encoding (qw(LATIN1 SQL_ASCII))
{
	my $db = lc $encoding;
	$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE template0 ENCODING '$encoding'");
	$node->safe_psql($db, 'CREATE EXTENSION outbox');
	open_database($db);
	run_calls($encoding, random_values($ncalls / 20));
	# 255 characters, not bytes; in SQL_ASCII they are the same
	is_state($dbh, "SELECT outbox.enqueue(repeat(E'\\xe4', 255)::text, E'\\xe4')", '', "$encoding: 255 characters") if $encoding eq 'SQL_ASCII';
	is_state($dbh, 'SELECT outbox.enqueue(repeat(chr(228), 255), chr(228))', '', "$encoding: 255 characters") if $encoding eq 'LATIN1';
	$dbh->disconnect;
}
note(join ', ', map { "$_: $states{$_}" } sort keys %states);
cmp_ok($made, '>=', $ncalls, "$ncalls calls");

# ---------------------------------------------------------------------------
# Circumstances
# ---------------------------------------------------------------------------

$node->safe_psql('postgres', 'CREATE DATABASE calm');
$node->safe_psql('calm', 'CREATE EXTENSION outbox');
$dbh = connect_to($node, db => 'calm');
my $owner = "'" . owner(1) . "'";
my @writers = ("enqueue('t', 'p')", "enqueue('t', '{}'::jsonb)", "try_enqueue('t', 'p')", "enqueue_many('t', '{p}')", "enqueue_batch('[{\"topic\": \"t\", \"payload\": \"p\"}]')",
	"claim($owner)", "claim($owner, wait_ms => 1000)", "ack($owner, '{1}')", "nack($owner, '{1}')", "abandon($owner, '{1}')", "fail($owner, '{1}')", "renew($owner, '{1}')",
	"release($owner)", "release($owner, '{1}')", 'reap()', 'reap_expired()', "requeue('{1}')", 'redrive()', 'cleanup()',
	"configure_topic('t')", "pause_topic('t')", "resume_topic('t')", "grant_worker('pg_monitor')");

# --- read only
$dbh->do('SET default_transaction_read_only = on');
is_state($dbh, "SELECT outbox.$_", '25006', "read only: $_") for @writers;
is_state($dbh, "SELECT * FROM $_", '', "read only: $_")
  for qw(outbox.messages outbox.topic_stats outbox.dead_letters outbox.leases outbox.stream_heads outbox.status());
$dbh->do('SET default_transaction_read_only = off');

# --- other isolation levels: 40001, or as it should be
{
	my $other = connect_to($node, db => 'calm');
	my %seen;
	my (@got, @acked);

	$dbh->do("SELECT outbox.enqueue_many('iso', array_fill('p'::text, ARRAY[3000]))");
	$dbh->do("SELECT outbox.enqueue('iso', 'p', stream_id => ('00000000-0000-4000-8000-00000000000' || i % 4)::uuid) FROM generate_series(1, 400) i");
	for my $i (1 .. 200)
	{
		my $level = $i % 2 ? 'REPEATABLE READ' : 'SERIALIZABLE';
		my ($state, @mine) = ('');

		$dbh->do("BEGIN ISOLATION LEVEL $level");
		$dbh->do('SELECT 1 FROM outbox.queue LIMIT 1');
		my @theirs = map { $_->[0] } $other->selectall_array('SELECT id FROM outbox.claim(?, batch_size => ?)', undef, owner(2), 1 + int(rand(3)));
		$other->do(rand() < 0.5 ? 'SELECT outbox.ack(?, ?::bigint[])' : "SELECT outbox.nack(?, ?::bigint[], delay => '0')", undef, owner(2), \@theirs);
		eval {
			$dbh->do("SELECT outbox.enqueue('iso', 'more')") if rand() < 0.2;
			@mine = map { $_->[0] } $dbh->selectall_array("SELECT id FROM outbox.claim($owner, batch_size => 5)");
			$dbh->do("SELECT outbox.ack($owner, ?::bigint[])", undef, \@mine) if rand() < 0.8;
			$dbh->do("SELECT outbox.release($owner)") if rand() < 0.5;
			$dbh->do('COMMIT');
			1;
		} or $state = $dbh->state;
		$dbh->do('ROLLBACK') if $state ne '';
		$seen{$state}++;
	}
	is_deeply([ grep { !/^(40001)?$/ } keys %seen ], [], 'above read committed: 40001 only');
	cmp_ok($seen{''} // 0, '>', 20, 'and not always');
	note(join ', ', map { "'$_': $seen{$_}" } keys %seen);
	$_->do('SELECT outbox.release(?)', undef, owner(1)) for $dbh;
	my $left = count_of($dbh, "outbox.queue WHERE status = 0 AND next_attempt_at <= clock_timestamp()");
	is(count_of($dbh, "outbox.claim($owner, batch_size => 10000)"), $left, 'all that is left can be claimed');
	$dbh->do("SELECT outbox.ack($owner, ARRAY(SELECT id FROM outbox.queue))");
	is(count_of($dbh, 'outbox.queue'), 0, 'and finished');
	$other->disconnect;
}

# --- subtransactions
$dbh->do(<<'Q');
DO $$
BEGIN
    FOR i IN 1 .. 100 LOOP
        BEGIN
            PERFORM outbox.enqueue('sub', i::text, stream_id => CASE WHEN i % 2 = 0 THEN '00000000-0000-4000-8000-000000000001'::uuid END, dedupe_key => 'k' || i % 50);
            PERFORM outbox.claim('00000000-0000-4000-8000-000000000001', batch_size => 1);
            IF i % 4 = 3 THEN
                PERFORM 1 / 0;
            ELSIF i % 4 = 2 THEN
                PERFORM outbox.enqueue('', '');
            END IF;
        EXCEPTION
            WHEN division_by_zero OR invalid_parameter_value THEN
                NULL;
        END;
    END LOOP;
    PERFORM outbox.release('00000000-0000-4000-8000-000000000001');
END
$$
Q
# of each four two fail, and of the others every key comes twice
my $subs = value($dbh, "SELECT string_agg(payload, ' ' ORDER BY payload::int) FROM outbox.queue");
my (@expected, %used);
for my $i (1 .. 100)
{
	push @expected, $i if $i % 4 < 2 && !$used{ $i % 50 }++;
}
is($subs, "@expected", 'exception blocks');
is(value($dbh, "SELECT string_agg(payload, ' ' ORDER BY payload::int) FROM outbox.claim($owner, batch_size => 1000)"), "@expected", 'and what they left can be claimed');
$dbh->do("SELECT outbox.ack($owner, ARRAY(SELECT id FROM outbox.queue))");

$dbh->do('BEGIN');
for my $i (1 .. 100)
{
	$dbh->do("SAVEPOINT s$i");
	$dbh->do("SELECT outbox.enqueue('deep', ?)", undef, $i);
	$dbh->do("SELECT outbox.claim($owner, batch_size => 1)") if $i % 3 == 0;
}
$dbh->do('ROLLBACK TO s61');
$dbh->do('RELEASE s21');
is(count_of($dbh, "outbox.claim('" . owner(2) . "')"), 40, '100 savepoints: 60 messages, 20 of them claimed');
$dbh->do('ROLLBACK TO s20');
is(count_of($dbh, "outbox.claim('" . owner(2) . "')"), 13, 'or 19, and 6');
$dbh->do('COMMIT');
is(count_of($dbh, "outbox.queue WHERE status = 1"), 19, 'and so it is in the end');
$dbh->do("SELECT outbox.ack(owner_token, array_agg(id)) FROM outbox.leases GROUP BY owner_token");

# --- in a trigger
$dbh->do(<<'Q');
CREATE TABLE orders (id int PRIMARY KEY);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.enqueue('orders', NEW.id::text, stream_id => ('00000000-0000-4000-8000-00000000000' || NEW.id % 3)::uuid);
    RETURN NEW;
END $$;
CREATE TRIGGER tell AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION tell()
Q
$dbh->do('BEGIN');
$dbh->do('INSERT INTO orders SELECT generate_series(1, 500)');
is(count_of($dbh, "outbox.claim($owner, batch_size => 1000)"), 500, 'a trigger enqueues');
$dbh->do('ROLLBACK');
is(count_of($dbh, 'outbox.queue'), 0, 'it is rolled back');
$dbh->do('COPY orders FROM STDIN');
$dbh->pg_putcopydata("$_\n") for 1 .. 300;
$dbh->pg_putcopyend;
is_state($dbh, 'INSERT INTO orders VALUES (1000), (300)', '23505', 'a statement that fails');
is(value($dbh, "SELECT string_agg(payload, ' ' ORDER BY payload::int) FROM outbox.claim($owner, batch_size => 1000)"),
	join(' ', 1 .. 300), 'COPY, through a trigger');
$dbh->do("SELECT outbox.ack($owner, ARRAY(SELECT id FROM outbox.queue))");

# --- parallel query
my $force = value($dbh, "SELECT name FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')");
$dbh->do("SET $_") for "$force = on", 'parallel_setup_cost = 0', 'parallel_tuple_cost = 0', 'min_parallel_table_scan_size = 0';
$dbh->do(<<'Q');
CREATE FUNCTION sneak() RETURNS uuid LANGUAGE sql PARALLEL SAFE AS $$ SELECT outbox.enqueue('t', 'p') $$;
CREATE FUNCTION sneak_a_claim() RETURNS bigint LANGUAGE sql PARALLEL SAFE AS $$ SELECT count(*) FROM outbox.claim('00000000-0000-4000-8000-000000000001') $$
Q
is_state($dbh, "SELECT outbox.enqueue('par', i::text) FROM generate_series(1, 100) i", '', 'parallel query: enqueue');
is(count_of($dbh, "outbox.claim($owner, batch_size => 60)"), 60, 'parallel query: claim');
is(count_of($dbh, "outbox.messages WHERE topic = 'par' AND partition_number IS NULL"), 100, 'parallel query: messages');
is(count_of($dbh, 'outbox.leases'), 60, 'parallel query: leases');
is(value($dbh, "SELECT ready FROM outbox.topic_stats WHERE topic = 'par'"), 40, 'parallel query: topic_stats');
is_state($dbh, "SELECT $_() FROM orders LIMIT 1", '25000', "parallel query: $_") for qw(sneak sneak_a_claim);
$dbh->do("RESET $_") for $force, qw(parallel_setup_cost parallel_tuple_cost min_parallel_table_scan_size);
$dbh->do("SELECT outbox.release($owner)");
is(value($dbh, "SELECT outbox.ack($owner, array_agg(id)) FROM outbox.claim($owner, batch_size => 1000)"), 100, 'and all is well');

# --- timeouts
{
	my %seen;

	$dbh->do("SELECT outbox.enqueue_many('time', array_fill('p'::text, ARRAY[3000]))");
	$dbh->do("SELECT outbox.enqueue('time', 'p', stream_id => '00000000-0000-4000-8000-000000000001') FROM generate_series(1, 300)");
	for my $i (1 .. 150)
	{
		my $call = (
			"enqueue_many('time', array_fill('p'::text, ARRAY[2000]))",
			"claim($owner, batch_size => 2000)", "release($owner)",
			"nack($owner, ARRAY(SELECT id FROM outbox.queue), delay => '0', max_attempts => 1000)",
			"ack($owner, ARRAY(SELECT id FROM outbox.queue LIMIT 20))", 'reap()')[ rand 6 ];
		$dbh->do(sprintf 'SET statement_timeout = %d', 1 + int(rand(12)));
		my $state = sqlstate($dbh, "SELECT outbox.$call");
		# which can come too late itself
		poll(sub { $dbh->do('SET statement_timeout = 0') }) or die 'the timeout stays';
		$seen{$state}++;
		# keep it small
		$dbh->do("SELECT outbox.release($owner)"), $dbh->do("SELECT outbox.ack($owner, ARRAY(SELECT id FROM outbox.claim($owner, batch_size => 10000, max_attempts => 10000)))")
		  if count_of($dbh, 'outbox.queue') > 20_000;
	}
	is_deeply([ grep { !/^(57014)?$/ } keys %seen ], [], 'statement_timeout: 57014 only');
	cmp_ok($seen{57014} // 0, '>', 10, 'and often');
	$dbh->do("SELECT outbox.release($owner)");
	my $left = count_of($dbh, 'outbox.queue');
	my $got = 0;
	while (my $n = count_of($dbh, "outbox.claim($owner, batch_size => 10000, max_attempts => 1000000)")) { $got += $n }
	is($got, $left, 'all that is left can be claimed');
	$dbh->do("SELECT outbox.ack($owner, ARRAY(SELECT id FROM outbox.queue))");

	# a lock that somebody holds
	my $other = connect_to($node, db => 'calm');
	$dbh->do("SELECT outbox.enqueue_many('lock', '{1,2}', stream_id => '00000000-0000-4000-8000-000000000007')");
	my ($first, $second) = map { $_->[0] } $dbh->selectall_array("SELECT id FROM outbox.claim($owner)");
	$other->do('BEGIN');
	$other->do("SELECT outbox.ack($owner, ?)", undef, [$first]);
	$other->do("SELECT outbox.enqueue('lock', '3', stream_id => '00000000-0000-4000-8000-000000000007', dedupe_key => 'lock')");
	$dbh->do("SET lock_timeout = '20ms'");
	is_state($dbh, "SELECT outbox.$_", '55P03', "lock_timeout: $_")
	  for "ack($owner, '{$first}')", "nack($owner, '{$first,$second}')", "renew($owner, '{$first}')", "release($owner, '{$first}')",
	  "enqueue('lock', '4', stream_id => '00000000-0000-4000-8000-000000000007')", "enqueue('lock', '5', dedupe_key => 'lock')";
	is_state($dbh, "SELECT outbox.$_", '', "never waits: $_") for "claim('" . owner(2) . "')", 'reap()';
	$other->do('ROLLBACK');
	is(value($dbh, "SELECT outbox.nack($owner, '{$first,$second}', delay => '0')"), 2, 'once it is free');
	is_deeply([ map { $_->[0] } $dbh->selectall_array("SELECT id FROM outbox.claim($owner)") ], [ $first, $second ], 'in order');
	$dbh->do('RESET lock_timeout');
	$other->disconnect;
}

is_deeply([ grep { /PANIC|TRAP|terminated by signal/ } split /\n/, slurp_file($node->logfile) ], [], 'no process has crashed');
check_indexes($node, undef, $_) for qw(postgres latin1 sql_ascii calm);
$dbh->disconnect;
$node->stop;
done_testing();
