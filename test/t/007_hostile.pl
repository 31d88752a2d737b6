# Whatever its arguments, a function does what it should, or fails with an error of
# the contract and changes nothing.

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
	'text[]' => [ "'{}'", "'{NULL}'", "'{a,NULL}'", "'{\"\"}'", "'{h}'", "'{h,h,base}'", "'{{a,b},{c,d}}'", "'[0:1]={a,b}'", "'[-5:-4]={a,b}'", "ARRAY[repeat('x', 256)]", "array_fill('h'::text, ARRAY[100000])", "ARRAY(SELECT 't' || i FROM generate_series(1, 100000) i)", "'{join.wait}'", "ARRAY[E'\\n\\t\\\\', '''\"']", "'{#}'", "'{a.*,*.#.b}'", "'{a#}'" ],
	json => [ "'{}'", "'null'", "'1'", "' [1 , \"x\"] '", "repeat('[', 6000) || repeat(']', 6000)" ],
	jsonb => [ "'{}'", "'[]'", "'null'", "'1'", "'\"x\"'", "'[1]'", "'[null]'", "'[[]]'", "'[{}]'", "'[{}, {}]'",
		"repeat('[', 6000) || repeat(']', 6000)", "repeat('{\"a\":', 6000) || '1' || repeat('}', 6000)",
		map({ "'[$_]'" }
			'{"topic": "h"}', '{"topic": "h", "payload": null}', '{"topic": null, "payload": "p"}', '{"topic": 1, "payload": "p"}', '{"topic": "", "payload": "p"}', '{"topic": "h", "payload": "p"}', '{"topic": "h", "payload": {"a": [1]}}', '{"topic": "h", "payload": "p", "unknown": 1}',
			map({ "{\"topic\": \"h\", \"payload\": \"p\", $_}" } '"due_time": "nonsense"', '"due_time": "infinity"', '"due_time": "-infinity"', '"due_time": "999999-01-01"', '"due_time": 1', '"due_time": {}', '"message_id": "x"', '"message_id": "00000000-0000-0000-0000-000000000000"', '"stream_id": "nil"', '"stream_id": ""', '"tenant_id": "00000000-0000-4000-8000-000000000001", "dedupe_key": "x"', '"dedupe_key": "k"', '"dedupe_key": ""', '"dedupe_key": []', '"headers": 1', '"headers": null', '"headers": "x"', '"namespace": null', '"namespace": ""', '"expires_at": "epoch"', '"topic": "twice"', '"correlation_id": "c"', '"correlation_id": true', '"dedupe_for": "1 hour", "dedupe_key": "k"', '"dedupe_for": "-infinity"', '"dedupe_for": 1', '"on_duplicate": "replace", "dedupe_key": "k"', '"on_duplicate": "debounce", "dedupe_key": "k", "due_time": "infinity"', '"on_duplicate": "?"', '"priority": 2', '"priority": 3', '"priority": "2"', '"priority": 1.5')),
		"(SELECT jsonb_agg('{\"topic\": \"h\", \"payload\": \"p\", \"message_id\": \"00000000-0000-4000-8000-000000000009\"}'::jsonb) FROM generate_series(1, 2))",
		"(SELECT jsonb_agg('{\"topic\": \"h\", \"payload\": \"p\", \"stream_id\": \"00000000-0000-4000-8000-000000000009\", \"dedupe_key\": \"k\"}'::jsonb) FROM generate_series(1, 2000))",
		"jsonb_build_array(jsonb_build_object('topic', repeat('x', 256), 'payload', 'p'))",
		"jsonb_build_array(jsonb_build_object('topic', 'h', 'payload', repeat('[', 6000) || repeat(']', 6000)))" ],
	regrole => [ 'current_user', "'0'", "'4294967295'", "'pg_monitor'", "'\"odd \"\" role\"'" ],
	name => [ "''", "'x'", "'template1'" ],
	xid => [ "'0'", "'3'", "'4294967295'" ],
	'boolean[]' => [ "'{}'", "'{NULL}'", "'{true}'" ],
	'timestamp with time zone[]' => [ "'{}'", "'{NULL}'", "'{now,infinity}'", "'{{now}}'" ],
	date => [ "'infinity'", "'-infinity'", "'epoch'", "'5874897-12-31'", "'4713-01-01 BC'" ],
	'uuid[]' => [ "'{}'", "'{NULL}'", "'{00000000-0000-0000-0000-000000000000}'" ],
	regprocedure => [ "'0'", "'4294967295'", "'pg_catalog.now()'" ],
	anyelement => [ 'NULL::text', '1' ],
	'outbox.jobs' => [ "ROW('j', 't', '* * * * *', 'p', true, NULL, now(), now())::outbox.jobs" ],
	'outbox.join_rechecks' => [ 'ROW(0, NULL, NULL, NULL, NULL, NULL)::outbox.join_rechecks' ],
	'outbox.message' => [ 'ROW(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::outbox.message' ],
	'outbox.topic_stats[]' => [ "'{}'", "'{NULL}'", "'{{NULL},{NULL}}'", 'ARRAY(SELECT s FROM outbox.topic_stats s)', 'ARRAY(SELECT NULL::outbox.topic_stats FROM generate_series(1, 100000))' ],
	regclass => [ "'0'", "'4294967295'", "'outbox.queue'", "'outbox.dead'", "'pg_class'" ]);
# special values; a long wait that is allowed would really be waited for
my %values_of = (on_duplicate => [ map { "'$_'" } 'keep', 'replace', 'debounce', '', 'Keep', 'x' ], priority => [ -2 .. 2, 3, "'-2147483648'" ], wait_ms => [ 0, 1, -1, 2147483647, "'-2147483648'", 60001 ]);
my %sane = (
	topic => "'h'", payload => "'{}'", payloads => "'{p,q}'", messages => q('[{"topic": "h", "payload": "p"}]'),
	owner_token => "'00000000-0000-4000-8000-000000000001'", ids => 'held.ids', role => "'pg_monitor'",
	namespace => "'default'", stream_id => "'00000000-0000-4000-8000-000000000002'", dedupe_key => "'key'", dedupe_for => "'1 hour'", on_duplicate => "'replace'", priority => "'-1'",
	partition_count => 100, keep => "'-2'", at => 'now()', what => "'it'", value => "'x'", condition => "'false'", tab => "'outbox.dead'",
	join_id => "'00000000-0000-4000-8000-000000000077'", grouping_key => "'g'", expected_steps => 2, fail_if_any_step_failed => 'true',
	on_complete_topic => "'c'", on_complete_payload => "'p'", job_name => "'job'", cron_schedule => "'* * * * *'", enabled => 'false',
	instance_id => "'00000000-0000-4000-8000-000000000003'", service_name => "'s'", host_name => "'h'", process_id => 1,
	receptor_name => "'r'", perspective_name => "'p'", last_message_id => "'00000000-0000-4000-8000-000000000004'",
	handler_name => "'h'", handler => "'public.handle(outbox.message)'", due_time => 'now()', timer_id => "'00000000-0000-4000-8000-000000000005'", id => 'held.ids[1]', attempt => 'held.attempts[1]', reason => 4,
	message_id => 'gen_random_uuid()', status => 1, batch_limit => 10, paused => 'true', 'payloads jsonb' => "'[1]'", 'on_complete_payload json' => "'1'", 'on_complete_payload jsonb' => "'1'", message => "'1'", instances => "'{00000000-0000-0000-0000-000000000000}'", kind => "'worker'", setting => "'max_attempts'", relation => "'outbox.dead'", functions => "'{claim}'", relations => "'{queue}'",
	subscription => "'sub'", 'topics outbox.topic_stats[]' => "'{}'", topics => "'{h}'", patterns => "'{#}'", pattern => "'a.*'", from_time => "'-infinity'", published_id => "'00000000-0000-4000-8000-00000000000b'",
	subscriber => 1, subscribers => "'{1}'", published_at => 'now()', 'published_at timestamp with time zone[]' => "'{now}'", 'published_id uuid[]' => "'{00000000-0000-4000-8000-00000000000b}'", drops => 'false', nonce => 0, place => 0, day => "'2026-01-01'", since => 'now()', until => 'now()',
	store => "'eu'", 'store regclass' => "'outbox.queue'", 'value anyelement' => "'x'::text", 'value integer' => 1, 'value interval' => "'1 s'", 'setting interval' => "'1 d'", connection => "'service=eu'", routing_key => "'00000000-0000-4000-8000-000000000006'", key => "'00000000-0000-4000-8000-000000000006'", rule => "'store:eu'",
	age => "'1 d'", component => "'ids'", backlog_age => "'1 min'", dead_messages => 1, leases_lost => 1, stream_age => "'1 min'", join_age => "'1 d'", retention_lag => "'1 d'", snapshot_age => "'1 h'", lane_memory => 0.5);
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
	# an invalid value here is not a fault
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
SELECT outbox.fail('00000000-0000-4000-8000-000000000001', array_agg(id)) FROM outbox.claim('00000000-0000-4000-8000-000000000001', topics => '{dead}');
SELECT outbox.subscribe('sub', '{held,h,base}'), outbox.subscribe('other', '{#}', filter => '{"a": 1}');
SELECT outbox.publish('held', 'p' || i, stream_id => CASE i WHEN 1 THEN '00000000-0000-4000-8000-000000000002'::uuid END) FROM generate_series(1, 2) i;
SELECT outbox.claim('00000000-0000-4000-8000-000000000001', 3600, subscription => 'sub');
SET outbox.publish_retention = '1 d';
SELECT outbox.publish('base', repeat('p', 3000), message_id => '00000000-0000-4000-8000-00000000000b', headers => '{"a": 1}');
SELECT outbox.replay('sub', now() - interval '1 h');
RESET outbox.publish_retention
Q
	return;
}

# The arguments of a call: some have the given values, others sane ones.
sub arguments
{
	my ($function, %given) = @_;
	my @arguments;

	for my $i (0 .. $#{ $function->{names} })
	{
		my ($name, $type) = ($function->{names}[$i], $function->{types}[$i]);
		my $value = $given{$name} // $sane{"$name $type"} // $sane{$name};

		# most have defaults
		next if !defined $given{$name} && (!defined $value || $i >= $function->{required} && $function->{name} !~ /^_/);
		push @arguments, "$name => ($value)" . ($type =~ /^any/ ? '' : "::$type");
	}
	return join ', ', @arguments;
}

# A call; returns an SQLSTATE.
sub call
{
	my ($function, %given) = @_;
	my $text = "SELECT count(*) FROM (SELECT array_agg(id) AS ids, array_agg(attempts) AS attempts FROM outbox.queue WHERE topic = 'held') held,"
	  . " LATERAL outbox.$function->{name}(" . arguments($function, %given) . ') called';
	my $state = sqlstate($dbh, $text);
	my $complaint;

	$made++;
	$states{ $state eq '' ? 'success' : $state }++;
	if ($state ne '' && $dbh->ping <= 0)
	{
		# the server has crashed: report it, and go on
		$complaint = "CRASH $function->{name}";
		wait_for_recovery($node, $pid);
		open_connection();
		$dbh->do($_) for 'BEGIN', 'SAVEPOINT s';
	}
	elsif ($state ne '' && !$allowed{$state} && !($function->{name} =~ /^_/ && $state !~ /^(XX|22001|57)/))
	{
		# internal functions may fail with other errors, but not with these
		$complaint = "$state $function->{name}: " . ($dbh->errstr =~ s/\n.*//sr);
	}
	$complaints{$complaint} //= join(', ', map { "$_ => " . substr($given{$_}, 0, 60) } keys %given)
	  if defined $complaint;
	return $state;
}

# Compares what is left to be claimed according to the tables with what is handed out.
sub check_claims
{
	my $after = shift;
	my $due = <<'Q';
subscriber IS NULL AND stream_id IS NULL AND topic <> 'join.wait' AND (expires_at IS NULL OR expires_at > clock_timestamp())
AND (status = 0 AND next_attempt_at <= clock_timestamp() OR status = 1 AND locked_until <= clock_timestamp())
AND NOT EXISTS (SELECT FROM outbox.topics t WHERE t.kind = 'message' AND t.namespace = q.namespace AND t.topic = q.topic AND t.paused)
AND attempts - waived < coalesce((SELECT max_attempts FROM outbox.topics t WHERE t.kind = 'message' AND t.namespace = q.namespace AND t.topic = q.topic), 10)
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
	my $columns = "(SELECT count(*) FROM outbox.queue), (SELECT count(*) FROM outbox.dead), (SELECT count(*) FROM outbox.archive), (SELECT count(*) FROM outbox.topics), (SELECT count(*) FROM outbox.dedupe), (SELECT count(*) FROM outbox.leases), (SELECT count(*) FROM outbox.subscribers), (SELECT count(*) FROM outbox.publications), (SELECT count(*) FROM outbox.expansions), (SELECT count(*) FROM outbox.replays), (SELECT string_agg(s::text, ' ') FROM outbox.stores s)";
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
# the more functions there are, the fewer calls are left
my $left = $ncalls - $made - 1000;
run_calls('many values', random_values($left > $ncalls / 10 ? $left : $ncalls / 10));
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

# ---------------------------------------------------------------------------
# Roles
# ---------------------------------------------------------------------------

# A stranger was granted nothing, a visitor may use the schema, the others are what
# grant_* makes of them. What is not theirs is 42501, whatever the arguments are;
# what is theirs never is. No call changes what its role must not change, or what is leased to
# another owner, or returns a payload that its caller must not see.
my $another = owner(7);
my $secret = 'for no other eyes';

$node->safe_psql('postgres', 'CREATE DATABASE calm');
$node->safe_psql('calm', 'CREATE EXTENSION outbox');
open_database('calm');
$dbh->do("SELECT outbox.enqueue_many('theirs', array_fill('$secret'::text, ARRAY[4]), headers => '{\"h\": \"$secret\"}')");
$dbh->do("SELECT outbox.claim('$another', 86400, topics => '{theirs}')");
$dbh->do("SELECT outbox.receive(gen_random_uuid(), 'theirs', '$secret') FROM generate_series(1, 2)");
$dbh->do("SELECT outbox.claim_inbox('$another', 86400, handler_names => '{theirs}')");
$dbh->do("SELECT outbox.schedule_timer('theirs', '$secret', now() - interval '1 s')");
$dbh->do("SELECT outbox.claim_timers('$another', 86400)");
$dbh->do("SELECT outbox.subscribe('theirs', '{theirs}')");
$dbh->do("SELECT outbox.publish('theirs', '$secret', headers => '{\"h\": \"$secret\"}'), outbox.publish('theirs', repeat('$secret', 200))");
$dbh->do("SELECT outbox.claim('$another', 86400, subscription => 'theirs')");
$dbh->do("SELECT outbox.subscribe('their filter', '{theirs.2}', filter => '{\"h\": \"$secret\"}')");
my @relations = map { $_->[0] } $dbh->selectall_array("SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p', 'v') AND NOT relispartition ORDER BY relname");
my %is_view = map { $_->[0] => 1 } $dbh->selectall_array("SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'v'");
my @kept = map { $_->[0] } $dbh->selectall_array("SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition ORDER BY relname");
$dbh->do(sprintf <<'Q', join(' UNION ALL ', map { "SELECT '$_', md5(coalesce(string_agg(t::text, ' ' ORDER BY t::text), '')) FROM outbox.$_ t" } @kept));
CREATE FUNCTION public.state_of() RETURNS TABLE (what text, state text) LANGUAGE sql SECURITY DEFINER AS $$
    %s
    UNION ALL SELECT 'what is theirs', md5(string_agg(q::text, ' ' ORDER BY id)) FROM outbox.queue q WHERE owner_token = '00000000-0000-4000-8000-000000000007'
    UNION ALL SELECT 'what is theirs of the inbox', md5(string_agg(q::text, ' ' ORDER BY id)) FROM outbox.inbox_queue q WHERE owner_token = '00000000-0000-4000-8000-000000000007'
    UNION ALL SELECT 'what is theirs of timers', md5(string_agg(q::text, ' ' ORDER BY id)) FROM outbox.timer_queue q WHERE owner_token = '00000000-0000-4000-8000-000000000007'
    UNION ALL SELECT 'rights', md5(string_agg(acl::text, ' ' ORDER BY acl::text))
      FROM (SELECT oid::text || proacl::text FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
            UNION ALL SELECT oid::text || relacl::text FROM pg_class WHERE relnamespace = 'outbox'::regnamespace
            UNION ALL SELECT nspacl::text FROM pg_namespace WHERE nspname = 'outbox'
            UNION ALL SELECT rolname || rolsuper || rolcreaterole FROM pg_authid
            UNION ALL SELECT roleid || ' ' || member FROM pg_auth_members) rights(acl)
$$
Q
my @everything = @{ $dbh->selectall_arrayref(<<'Q', { Slice => {} }) };
SELECT p.oid, p.oid::regprocedure::text AS signature, p.proname AS name, p.prokind AS kind, p.proisstrict AS strict, p.prorettype = 'trigger'::regtype AS trigger, p.pronargs - p.pronargdefaults AS required,
       array_remove(array_agg(a.name ORDER BY a.i), NULL) AS names, array_remove(array_agg(format_type(a.type, NULL) ORDER BY a.i), NULL) AS types
  FROM pg_proc p LEFT JOIN LATERAL unnest(p.proargnames, p.proargtypes::oid[]) WITH ORDINALITY a(name, type, i) ON i <= p.pronargs
 WHERE p.pronamespace = 'outbox'::regnamespace
 GROUP BY p.oid ORDER BY p.oid::regprocedure::text
Q
my ($held_ids, $held_attempts) = $dbh->selectrow_array("SELECT array_agg(id)::text, array_agg(attempts)::text FROM outbox.queue WHERE topic = 'held'");

# Which tables a call of the role may change.
my %may_change = (
	stranger => qr/^$/,
	visitor => qr/^$/,
	monitor => qr/^$/,
	producer => qr/^(queue|dedupe|joins|join_\w+|timer_queue|timer_dead|publications\w*|expansions)$/,
	worker => qr/^(queue|archive|dead|dedupe|joins|join_\w+|handlers|inbox_\w+|timer_\w+|run_\w+|instances|message_deduplication|receptor_processing|perspective_checkpoints|attempt_errors|\w*errors)$/,
	admin => qr/^(?!what is theirs|rights)/);
# What is partly theirs.
my %may_refuse = (worker => qr/^(process_work_batch|register_handler|unregister_handler)$/, admin => qr/^(process_work_batch|register_handler|unregister_handler|_start_handlers)$/);

for my $role (qw(stranger visitor monitor producer worker admin))
{
	my $started = time;
	my ($n, @wrong, %seen) = (0);

	$dbh->do("CREATE ROLE $role LOGIN");
	$dbh->do("GRANT USAGE ON SCHEMA outbox TO visitor") if $role eq 'visitor';
	$dbh->do("SELECT outbox.grant_$role('$role')") if $role !~ /stranger|visitor/;
	my $as = connect_to($node, db => 'calm', user => $role, settings => ["SET statement_timeout = '60s'"]);
	my %before = map { @$_ } $as->selectall_array('SELECT * FROM public.state_of()');
	my %may_call = map { @$_ } $dbh->selectall_array("SELECT oid, has_schema_privilege(?, 'outbox', 'USAGE') AND has_function_privilege(?, oid, 'EXECUTE') FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace", undef, $role, $role);

	$as->do('BEGIN');
	for my $function (@everything)
	{
		for my $round (0 .. ($may_call{ $function->{oid} } ? 6 : 1) * ($ncalls < 50_000 ? 1 : 8))
		{
			my %given;

			for my $i (0 .. $#{ $function->{names} })
			{
				my ($name, $type) = ($function->{names}[$i], $function->{types}[$i]);
				# a strict function is not called for a null, so nothing is checked
				my @values = grep { !/00000\b/ && !($function->{strict} && /NULL/) && !($type =~ /^any/ && $_ eq 'NULL') } values_for($name, $type);

				$given{$name} = $values[ rand @values ] if $round && rand() < 0.4;
				$given{$name} //= $values[-1] if $i < $function->{required} && !defined($sane{"$name $type"} // $sane{$name});
			}
			my $arguments = arguments($function, %given) =~ s/held\.ids/('$held_ids'::bigint[])/gr =~ s/held\.attempts/('$held_attempts'::integer[])/gr;
			my $call = "outbox.$function->{name}($arguments)";
			$call = $function->{kind} eq 'p' ? "CALL $call" : $function->{trigger} ? "SELECT $call" : "SELECT string_agg(c::text, ' ') FROM $call c";

			$as->do('SAVEPOINT s');
			my $answer = eval { $function->{kind} eq 'p' ? $as->do($call) : value($as, $call) };
			my $state = $@ ? $as->state : '';
			my $about = substr($call, 0, 300);

			$n++;
			$seen{ $state || 'success' }++;
			if (!$may_call{ $function->{oid} })
			{
				# arguments are checked before privileges
				push @wrong, "$state instead of 42501: $about"
				  if $state ne '42501' && ($state eq '' || sqlstate($dbh, 'SELECT ' . $arguments =~ s/\w+ => //gr) eq '');
			}
			elsif ($state eq '42501')
			{
				push @wrong, "42501: " . ($as->errstr =~ s/\n.*//sr) . ": $about" if $function->{name} !~ ($may_refuse{$role} // qr/^$/);
			}
			elsif ($state ne '' && $as->ping <= 0) { die "the server has crashed: $about" }
			elsif ($state =~ /^XX/) { push @wrong, "$state: " . ($as->errstr =~ s/\n.*//sr) . ": $about" }
			push @wrong, "a payload is given away: $about" if $role ne 'admin' && index($answer // '', $secret) >= 0;
			if ($state eq '')
			{
				my %after = map { @$_ } $as->selectall_array('SELECT * FROM public.state_of()');
				push @wrong, map { "$_ has changed: $about" } grep { $after{$_} ne $before{$_} && $_ !~ $may_change{$role} } sort keys %after;
			}
			$as->do($_) for 'ROLLBACK TO s', 'RELEASE s';
		}
	}
	# all tables are written by calls only, and read only as far as payloads are not in them
	for my $relation (@relations)
	{
		my ($column) = map { $_->[0] } $dbh->selectall_array("SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = ?::regclass AND attnum = 1", undef, "outbox.$relation");
		for my $statement ("INSERT INTO outbox.$relation DEFAULT VALUES", "UPDATE outbox.$relation SET $column = NULL", "DELETE FROM outbox.$relation", "TRUNCATE outbox.$relation", "LOCK outbox.$relation IN ACCESS EXCLUSIVE MODE")
		{
			$as->do('SAVEPOINT s');
			my $state = sqlstate($as, $statement);
			push @wrong, "$state instead of 42501: $statement" if $state ne '42501' && !($state =~ /^(55000|42809)$/ && $is_view{$relation});
			$as->do($_) for 'ROLLBACK TO s', 'RELEASE s';
			$n++;
		}
		$as->do('SAVEPOINT s');
		my $rows = eval { value($as, "SELECT string_agg(r::text, ' ') FROM outbox.$relation r") };
		push @wrong, "a payload is given away: $relation" if $role ne 'admin' && index($rows // '', $secret) >= 0;
		push @wrong, "$relation can be read" if defined $rows && $role !~ /admin|monitor/;
		$as->do($_) for 'ROLLBACK TO s', 'RELEASE s';
		$n++;
	}
	$as->do('ROLLBACK');
	is(join("\n", @wrong), '', "role $role, seed $seed");
	note(sprintf 'role %s: %d calls in %.1f s; %s', $role, $n, time - $started, join ', ', map { "$_: $seen{$_}" } sort keys %seen);
	$as->disconnect;
	$made += $n;
}

# ---------------------------------------------------------------------------
# The sections of process_work_batch
# ---------------------------------------------------------------------------

# Whatever is in a section, the answer is a success or 22023, which says where.
my %fields = (
	outbox_completions => [qw(message_id status)], outbox_failures => [qw(message_id completed_status error reason)],
	receptor_completions => [qw(message_id event_id receptor_name status)], receptor_failures => [qw(message_id receptor_name error)],
	perspective_completions => [qw(stream_id perspective_name last_message_id last_event_id status)], perspective_failures => [qw(stream_id perspective_name error)],
	new_outbox_messages => [qw(topic destination payload correlation_id due_time namespace tenant_id dedupe_key stream_id headers expires_at message_id dedupe_for on_duplicate priority)],
	new_inbox_messages => [qw(message_id handler_name payload source stream_id headers)],
	renew_outbox_lease_ids => []);
$fields{"inbox_$_"} = $fields{"outbox_$_"} for qw(completions failures);
$fields{renew_inbox_lease_ids} = [];
my %fitting = (
	(map { $_ => '"00000000-0000-4000-8000-000000000009"' } qw(message_id event_id stream_id last_message_id last_event_id)), tenant_id => '"00000000-0000-4000-8000-000000000001"', dedupe_key => '"00000000-0000-4000-8000-000000000001/k"',
	(map { $_ => 4 } qw(status completed_status reason)), due_time => '"2026-01-01"', expires_at => '"2096-01-01"', headers => '{"a": 1}',
	dedupe_for => '"1 hour"', on_duplicate => '"replace"', priority => 2);
my @odd = ('null', 'true', 'false', 0, 1, -1, '1.5', '-0.0', '1e3', '1e-300', '1e400', '1e100000', 32767, 32768, 2147483647, 2147483648, -2147483649, '9' x 400,
	'""', '" "', '"x"', '"\u00fc"', '"\ud834\udd1e"', '"\u0001\n\t"', '"%s%n"', '"\'; --"', '"' . 'x' x 255 . '"', '"' . 'x' x 256 . '"', '"' . '\u00fc' x 255 . '"', '"' . '\ud834\udd1e' x 256 . '"', '"' . 'x' x 300_000 . '"',
	'"00000000-0000-0000-0000-000000000000"', '"{00000000-0000-4000-8000-000000000009}"', '"FFFFFFFF-ffff-ffff-ffff-ffffffffffff"', '"00000000-0000-4000-8000-00000000000"',
	'"infinity"', '"-infinity"', '"now"', '"294277-01-01"', '"4714-01-01 BC"', '"allballs"', '"2026-02-30"', '"2026-01-01 00:00:00+99"',
	'{}', '[]', '{"": null}', '[null]', '[[]]', '{"message_id": "00000000-0000-4000-8000-000000000009"}', '[' x 3000 . ']' x 3000, '{"a":' x 3000 . '1' . '}' x 3000);

sub any_of { return $_[ rand @_ ] }

# As users may write it, or not.
sub spelling
{
	my $name = shift;

	return $name if rand() < 0.8;
	return any_of(join('', map { ucfirst } split /_/, $name), lcfirst join('', map { ucfirst } split /_/, $name), uc $name, "_$name", "$name ", "${name}_");
}

sub odd_entry
{
	my $section = shift;
	my @names = @{ $fields{$section} };
	my @pairs;

	return any_of(@odd, '"00000000-0000-4000-8000-000000000009"') if !@names || rand() < 0.1;
	for my $name (@names)
	{
		next if rand() < 0.05;
		push @pairs, sprintf '"%s": %s', spelling($name), rand() < 0.93 ? $fitting{$name} // '"x"' : any_of(@odd);
		push @pairs, sprintf '"%s": %s', spelling($name), any_of(@odd) if rand() < 0.05;
	}
	push @pairs, '"' . any_of('', 'unknown', 'status', 'x' x 10_000) . '": ' . any_of(@odd) if rand() < 0.05;
	return '{' . join(', ', @pairs) . '}';
}

sub odd_section
{
	my $section = shift;

	return any_of(@odd) if rand() < 0.05;
	return '[' . join(', ', map { odd_entry($section) } 1 .. any_of(0, 1, 1, 1, 2, 5)) . ']';
}

{
	my $started = time;
	my $rounds = 2000 * $ncalls / 10_000;
	my @sections = sort keys %fields;
	my $signature = 'outbox.process_work_batch(?, \'s\', \'h\', 1, ';
	my (@wrong, %seen);
	my @heaps = ((map { [ $_, "'[' || repeat('null, ', 200000) || 'null]'" ], [ $_, "'[' || repeat('{}, ', 200000) || '{}]'" ], [ $_, "'[' || repeat('\"00000000-0000-4000-8000-000000000009\", ', 50000) || '\"x\"]'" ] } @sections),
		[ 'outbox_completions', "(SELECT jsonb_agg('{\"message_id\": \"00000000-0000-4000-8000-000000000009\", \"status\": 4}'::jsonb) FROM generate_series(1, 50000))" ],
		[ 'renew_outbox_lease_ids', "(SELECT jsonb_agg(gen_random_uuid()) FROM generate_series(1, 50000))" ],
		[ 'outbox_failures', "jsonb_build_array(jsonb_build_object('message_id', gen_random_uuid(), 'error', repeat('e', 20000000)))" ]);

	open_connection();
	$dbh->do('BEGIN');
	for my $i (1 .. $rounds + @heaps)
	{
		my %given;

		if ($i <= @heaps) { $given{ $heaps[ $i - 1 ][0] } = "($heaps[$i - 1][1])::jsonb" }
		else { $given{$_} = $dbh->quote(odd_section($_)) . '::jsonb' for map { any_of(@sections) } 1 .. any_of(1, 1, 1, 2, 4) }
		$given{metadata} = $dbh->quote(any_of(@odd)) . '::jsonb' if rand() < 0.05;
		# an invalid jsonb is not a fault
		for my $name (keys %given)
		{
			$dbh->do('SAVEPOINT s');
			delete $given{$name} if sqlstate($dbh, "SELECT $given{$name}") ne '';
			$dbh->do($_) for 'ROLLBACK TO s', 'RELEASE s';
		}
		my $call = $signature . join(', ', map { "$_ => $given{$_}" } sort keys %given) . ')';
		$call =~ s/, \)$/)/;
		$dbh->do('SAVEPOINT s');
		my $state = sqlstate($dbh, "SELECT count(*) FROM $call", owner(5));
		my $about = join ' ', map { "$_ => " . substr($given{$_}, 0, 500) } sort keys %given;

		$seen{ $state || 'success' }++;
		$made++;
		if ($state eq '22023')
		{
			push @wrong, 'it does not say where: ' . $dbh->errstr . ": $about" unless grep { $dbh->errstr =~ /\b\Q$_\E\b/ } keys %given;
		}
		elsif ($state ne '' && $state ne '23505') { push @wrong, "$state: " . ($dbh->errstr =~ s/\n.*//sr) . ": $about" }
		die "the server has crashed: $about" if $state ne '' && $dbh->ping <= 0;
		$dbh->do($_) for 'ROLLBACK TO s', 'RELEASE s';
	}
	$dbh->do('ROLLBACK');
	is(join("\n", @wrong), '', "sections of process_work_batch: a success, or an error that says where, seed $seed");
	cmp_ok($seen{success} // 0, '>', $rounds / 20, 'some of it is taken');
	note(sprintf 'sections: %d calls in %.1f s; %s', $rounds + @heaps, time - $started, join ', ', map { "$_: $seen{$_}" } sort keys %seen);
}
$dbh->do('DROP EXTENSION outbox CASCADE');
$dbh->do('CREATE EXTENSION outbox');
$dbh->disconnect;
note(join ', ', map { "$_: $states{$_}" } sort keys %states);
cmp_ok($made, '>=', $ncalls, "$ncalls calls");

# ---------------------------------------------------------------------------
# Circumstances
# ---------------------------------------------------------------------------

$dbh = connect_to($node, db => 'calm');
my $owner = "'" . owner(1) . "'";
my @writers = ("enqueue('t', 'p')", "enqueue('t', '{}'::jsonb)", "try_enqueue('t', 'p')", "enqueue_many('t', '{p}')", "enqueue_batch('[{\"topic\": \"t\", \"payload\": \"p\"}]')",
	"claim($owner)", "claim($owner, wait_ms => 1000)", "ack($owner, '{1}')", "nack($owner, '{1}')", "abandon($owner, '{1}')", "fail($owner, '{1}')", "renew($owner, '{1}')",
	"publish('t', 'p')", "publish_many('t', '{p}')", "publish_batch('[{\"topic\": \"t\", \"payload\": \"p\"}]')", "subscribe('t', '{t}')", "unsubscribe('t')",
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

# --- cursors, fetched in parts
{
	my $leased = sub { count_of($dbh, "outbox.queue WHERE status = 1") };
	my $fetch = sub { scalar @{ $dbh->selectall_arrayref("$_[0] c") } };
	my $other = "'" . owner(2) . "'";
	my $declare = "CURSOR FOR SELECT id FROM outbox.claim($owner, batch_size => 10, topics => '{cur}')";

	$dbh->do("SELECT outbox.enqueue_many('cur', array_fill('p'::text, ARRAY[30]))");
	$dbh->do($_) for 'BEGIN', "DECLARE c $declare";
	is($leased->(), 0, 'a cursor that was not fetched from has claimed nothing');
	is($fetch->('FETCH 1 FROM'), 1, 'one row');
	is($leased->(), 10, 'and all of the batch is leased');
	is(value($dbh, "SELECT outbox.ack($owner, ARRAY[min(id), max(id)]) FROM outbox.queue WHERE status = 1"), 2, 'other calls between two fetches: ack');
	is(count_of($dbh, "outbox.claim($other, batch_size => 5, topics => '{cur}')"), 5, 'another claim');
	is(value($dbh, "SELECT outbox.enqueue('cur', 'more') IS NOT NULL"), 1, 'an enqueue');
	is($fetch->('FETCH 4 FROM'), 4, 'the next ones');
	is(value($dbh, "SELECT outbox.release($owner)"), 8, 'and a release');
	is($fetch->('FETCH ALL FROM'), 5, 'what the claim has returned does not change');
	is($fetch->('FETCH 1 FROM'), 0, 'nor is more claimed at its end');
	$dbh->do($_) for 'CLOSE c', 'COMMIT';
	is($leased->(), 5, 'committed');
	$dbh->do("SELECT outbox.release($other)");

	$dbh->do($_) for 'BEGIN', "DECLARE c SCROLL $declare";
	is($fetch->('FETCH 3 FROM'), 3, 'back and forth');
	is($fetch->('FETCH BACKWARD 2 FROM'), 2, 'back');
	is($fetch->('FETCH ALL FROM'), 9, 'forth');
	$dbh->do('COMMIT');
	is($leased->(), 10, 'leased once');
	is(value($dbh, "SELECT count(*) FROM outbox.queue WHERE status = 1 AND attempts - waived = 1"), 10, 'in one attempt');
	$dbh->do("SELECT outbox.release($owner)");

	$dbh->do($_) for 'BEGIN', 'DECLARE c ' . $declare =~ s/FOR/WITH HOLD FOR/r;
	is($fetch->('FETCH 2 FROM'), 2, 'held');
	$dbh->do('COMMIT');
	is($leased->(), 10, 'a held cursor: leased');
	is($fetch->('FETCH ALL FROM'), 8, 'and read when the transaction is over');
	$dbh->do('CLOSE c');
	$dbh->do("SELECT outbox.release($owner)");

	$dbh->do($_) for 'BEGIN', "DECLARE c $declare", 'SAVEPOINT s';
	is($fetch->('FETCH 2 FROM'), 2, 'first fetched in a savepoint');
	$dbh->do('ROLLBACK TO s');
	is($leased->(), 0, 'which is undone: nothing is leased');
	$dbh->do('SAVEPOINT s');
	my @rest = map { $_->[0] } $dbh->selectall_array('FETCH ALL FROM c');
	is(scalar @rest, 8, 'though the cursor, which the server does not undo, goes on');
	is_state($dbh, "SELECT outbox.ack($owner, '{" . join(',', @rest) . "}', strict => true)", '55000', 'but what it names is leased to no owner');
	$dbh->do('ROLLBACK TO s');
	$dbh->do("DECLARE d $declare");
	is(scalar @{ $dbh->selectall_arrayref('FETCH 2 FROM d') }, 2, 'another cursor');
	$dbh->do('ROLLBACK');
	is($leased->(), 0, 'rolled back');
	is(count_of($dbh, "outbox.claim($other, batch_size => 100, topics => '{cur}')"), 29, 'and all can be claimed');
	$dbh->do("SELECT outbox.ack($other, ARRAY(SELECT id FROM outbox.queue))");
}

# --- claims that are not read to their end, or are written where a value goes
{
	my $leased = sub { my $n = count_of($dbh, "outbox.queue WHERE status = 1"); $dbh->do("SELECT outbox.release($owner)"); $n };
	my $claim = "outbox.claim($owner, batch_size => 10, topics => '{part}')";

	$dbh->do("SELECT outbox.enqueue_many('part', array_fill('p'::text, ARRAY[40]))");
	for (["SELECT id FROM $claim LIMIT 1", 1, 10], ["SELECT $claim LIMIT 1", 1, 10], ["SELECT id FROM $claim OFFSET 8", 2, 10], ["SELECT id FROM $claim WHERE false", 0, 0],
		["SELECT id FROM $claim WHERE id < 0", 0, 10], ["SELECT $claim", 10, 10], ["SELECT 1 WHERE EXISTS (SELECT FROM $claim)", 1, 10], ["SELECT i, $claim FROM generate_series(1, 3) i", 30, 30],
		["SELECT c.id FROM generate_series(1, 2) i, LATERAL outbox.claim($owner, batch_size => i, topics => '{part}') c", 3, 3], ["WITH c AS (SELECT * FROM $claim) SELECT * FROM c x, c y", 100, 10],
		["WITH c AS MATERIALIZED (SELECT * FROM $claim) SELECT 1", 1, 0], ["SELECT ARRAY(SELECT id FROM $claim)", 1, 10], ["SELECT unnest(ARRAY(SELECT id FROM $claim))", 10, 10],
		["SELECT id FROM $claim ORDER BY random() LIMIT 3", 3, 10], ["SELECT generate_series(1, 12), $claim", 12, 10], ["SELECT count(*) FROM ROWS FROM ($claim, generate_series(1, 3)) x", 1, 10],
		["VALUES ((SELECT id FROM $claim LIMIT 1))", 1, 10], ["SELECT CASE WHEN false THEN (SELECT id FROM $claim LIMIT 1) END", 1, 0])
	{
		my ($query, $rows, $leases) = @$_;
		is(scalar @{ $dbh->selectall_arrayref($query) }, $rows, "rows of $query");
		is($leased->(), $leases, 'and leases');
	}
	$dbh->do("SELECT outbox.ack($owner, array_agg(id)) FROM outbox.claim($owner, batch_size => 100)");
}

# --- generic plans, and plans that are older than the tables
{
	my $enqueue = 'EXECUTE enq(%s)';
	my %seen;

	$dbh->do($_) for 'SET plan_cache_mode = force_generic_plan',
	  'PREPARE enq(text, text, uuid, text) AS SELECT outbox.enqueue($1, $2, stream_id => $3, dedupe_key => $4)',
	  'PREPARE cla(uuid, int, text[]) AS SELECT id, payload, attempts FROM outbox.claim($1, batch_size => $2, topics => $3) ORDER BY id',
	  'PREPARE ack(uuid, bigint[]) AS SELECT outbox.ack($1, $2)', 'PREPARE nac(uuid, bigint[], interval) AS SELECT outbox.nack($1, $2, delay => $3)',
	  'PREPARE ren(uuid, bigint[], int) AS SELECT outbox.renew($1, $2, $3)', 'PREPARE rel(uuid) AS SELECT outbox.release($1)',
	  'PREPARE wor(uuid, jsonb) AS SELECT count(*) FROM outbox.process_work_batch($1, \'s\', \'h\', 1, outbox_completions => $2, batch_size => 1)',
	  'PREPARE mes(text) AS SELECT count(*) FROM outbox.messages WHERE topic = $1';
	for my $change ('SELECT 1', 'ALTER TABLE outbox.queue ADD COLUMN more int', 'CREATE INDEX more ON outbox.queue (topic) WHERE false', 'ALTER TABLE outbox.queue DROP COLUMN more', 'VACUUM FULL outbox.queue',
		'SELECT 1', 'DROP EXTENSION outbox CASCADE; CREATE EXTENSION outbox')
	{
		for my $round (1 .. 3)
		{
			my $topic = "plan$round";
			my @own = (owner(1), owner(2));

			$dbh->do("EXECUTE enq('$topic', '$_', NULL, '$_')") for 1 .. 4;
			$dbh->do("EXECUTE enq('$topic', '4', NULL, '4')");
			$dbh->do("EXECUTE enq('$topic', '$_', '$own[0]', NULL)") for 5, 6;
			my @first = $dbh->selectall_array("EXECUTE cla('$own[0]', 2, '{$topic}')");
			my @rest = $dbh->selectall_array("EXECUTE cla('$own[1]', 10, '{$topic}')");
			is(join(' ', map { $_->[1] } @first, @rest), '1 2 3 4 5 6', "generic plans: claims, $change");
			is(value($dbh, "EXECUTE ren('$own[0]', '{$first[0][0],$rest[0][0]}', 60)"), 1, 'renew');
			is(value($dbh, "EXECUTE ack('$own[0]', '{$first[0][0],$rest[0][0]}')"), 1, 'ack');
			is(value($dbh, "EXECUTE nac('$own[0]', '{$first[1][0]}', '0')"), 1, 'nack');
			is(value($dbh, "EXECUTE rel('$own[1]')"), 4, 'release');
			is(value($dbh, "EXECUTE mes('$topic')"), 6, 'messages');
			is(value($dbh, "EXECUTE wor('$own[1]', '[]')"), 1, 'a round trip');
			$dbh->do('DELETE FROM outbox.queue');
			$dbh->do('DELETE FROM outbox.archive');
			$dbh->do('DELETE FROM outbox.dedupe');
		}
		$dbh->do($_) for split /; /, $change;
	}
	is(count_of($dbh, "pg_prepared_statements WHERE generic_plans > 0"), 8, 'all of them have had generic plans');
	$dbh->do($_) for 'DEALLOCATE ALL', 'RESET plan_cache_mode';
}

# --- called wherever an expression is allowed
{
	$dbh->do($_) for split /;\n/, <<'Q';
CREATE FUNCTION in_sql(t text) RETURNS uuid LANGUAGE sql AS 'SELECT outbox.enqueue(t, ''sql'')';
CREATE FUNCTION in_body(t text) RETURNS uuid LANGUAGE sql RETURN outbox.enqueue(t, 'body');
CREATE FUNCTION in_plpgsql(t text) RETURNS uuid LANGUAGE plpgsql AS 'DECLARE m uuid := outbox.enqueue(t, ''declared''); BEGIN m := outbox.enqueue(t, ''assigned''); PERFORM outbox.enqueue(t, ''performed''); IF outbox.enqueue(t, ''if'') IS NULL THEN RETURN NULL; END IF; EXECUTE ''SELECT outbox.enqueue($1, $2)'' INTO m USING t, ''executed''; RETURN outbox.enqueue(t, ''returned''); END';
CREATE PROCEDURE in_procedure(t text) LANGUAGE plpgsql AS 'BEGIN PERFORM outbox.enqueue(t, ''before''); COMMIT; PERFORM outbox.enqueue(t, ''undone''); ROLLBACK; PERFORM outbox.enqueue(t, ''after''); END';
CREATE TABLE defaulted (i int, m uuid DEFAULT outbox.enqueue('where', 'default'), CHECK (outbox.enqueue('where', 'check') IS NOT NULL));
CREATE DOMAIN checked AS int CHECK (outbox.enqueue('where', 'domain') IS NOT NULL);
CREATE TABLE looked (i int);
CREATE VIEW viewed AS SELECT outbox.enqueue('where', 'view') AS m;
CREATE RULE also AS ON INSERT TO looked DO ALSO SELECT outbox.enqueue('where', 'rule');
CREATE FUNCTION tell_all() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM outbox.enqueue(''where'', ''trigger '' || count(*)) FROM added; RETURN NULL; END';
CREATE TRIGGER tell_all AFTER INSERT ON looked REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION tell_all();
CREATE FUNCTION tell_late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM outbox.enqueue(''where'', ''deferred''); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER tell_late AFTER INSERT ON defaulted DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tell_late()
Q
	my $told = sub {
		my $told = value($dbh, "SELECT coalesce(string_agg(payload, ', ' ORDER BY payload COLLATE \"C\"), '') FROM outbox.queue");
		is(count_of($dbh, "outbox.claim($owner, batch_size => 100)"), count_of($dbh, 'outbox.queue'), 'all of it can be claimed');
		$dbh->do('DELETE FROM outbox.queue');
		return $told;
	};
	for (["SELECT in_sql('where'), in_body('where')", 'body, sql'],
		["SELECT in_plpgsql('where')", 'assigned, declared, executed, if, performed, returned'],
		["CALL in_procedure('where')", 'after, before'],
		["INSERT INTO defaulted SELECT generate_series(1, 2)", 'check, check, default, default, deferred, deferred'],
		["INSERT INTO defaulted VALUES (1), (1 / (SELECT 0))", '', '22012'],
		["SELECT 1::checked", 'domain'], ["SELECT * FROM viewed", 'view'],
		["INSERT INTO looked VALUES (1), (2)", 'rule, rule, trigger 2'],
		["DO 'BEGIN PERFORM outbox.enqueue(''where'', ''do''); END'", 'do'],
		["DO 'BEGIN PERFORM outbox.enqueue(''where'', ''do''); COMMIT; PERFORM outbox.enqueue(''where'', ''more''); RAISE ''no''; END'", 'do', 'P0001'],
		["WITH x AS (DELETE FROM looked RETURNING outbox.enqueue('where', 'returning')) SELECT count(*) FROM x", 'returning, returning'],
		["SELECT count(outbox.enqueue('where', i::text)) FILTER (WHERE i > 2) FROM generate_series(1, 4) i", '3, 4'],
		["SELECT i FROM generate_series(1, 3) i ORDER BY outbox.enqueue('where', i::text)", '1, 2, 3'],
		["CREATE TABLE made AS SELECT outbox.enqueue('where', 'made') AS m", 'made'],
		["CREATE MATERIALIZED VIEW seen AS SELECT outbox.enqueue('where', 'seen') AS m", 'seen'], ["REFRESH MATERIALIZED VIEW seen", 'seen'],
		["COPY (SELECT outbox.enqueue('where', 'copied')) TO '/dev/null'", 'copied'],
		["EXPLAIN SELECT outbox.enqueue('where', 'explained')", ''], ["EXPLAIN ANALYZE SELECT outbox.enqueue('where', 'analyzed')", 'analyzed'],
		["CREATE INDEX ON looked (outbox.enqueue('where', i::text))", '', '42P17'],
		["ALTER TABLE looked ADD COLUMN g uuid GENERATED ALWAYS AS (outbox.enqueue('where', 'generated')) STORED", '', '42P17'],
		["ALTER TABLE made ADD COLUMN more uuid DEFAULT outbox.enqueue('where', 'rewritten')", 'rewritten'])
	{
		my ($statement, $told_of, $state) = @$_;
		is_state($dbh, $statement, $state // '', "where: $statement");
		is($told->(), $told_of, 'what was enqueued');
	}
	# and a claim in a loop that works, commits, and goes on
	$dbh->do("SELECT outbox.enqueue_many('loop', array_fill('p'::text, ARRAY[25]))");
	$dbh->do("DO \$\$ DECLARE m record; BEGIN LOOP FOR m IN SELECT * FROM outbox.claim($owner, batch_size => 10, topics => '{loop}') LOOP PERFORM outbox.ack($owner, ARRAY[m.id], strict => true); COMMIT; END LOOP; EXIT WHEN NOT FOUND; END LOOP; END \$\$");
	is(count_of($dbh, "outbox.messages WHERE topic = 'loop' AND status = 2 AND attempts = 1"), 25, 'a loop over claims that commits in the middle');
}

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
		# which can itself come too late
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

	# a lock that another session holds
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
