# A hostile environment: objects of other users that have the names of ours, or of the
# server's; settings of the database and of roles; triggers and event triggers that
# raise errors. All work is done as usual, or fails with an error that leaves nothing
# half done; and no code of an attacker runs with the privileges of others.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

our $evil_path = 0;

my $node = new_node('environment', conf => "outbox.discovery_interval = 1s\nmax_locks_per_transaction = 256\n");
my $root = connect_to($node);
my $super = value($root, 'SELECT current_user');
my $serial = 0;

$root->do($_) for split /;\n/, <<'Q';
CREATE ROLE producer LOGIN;
CREATE ROLE worker LOGIN;
CREATE ROLE admin LOGIN;
CREATE ROLE mallory LOGIN;
CREATE SCHEMA evil AUTHORIZATION mallory;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
CREATE SCHEMA app AUTHORIZATION worker;
SELECT outbox.grant_producer('producer'), outbox.grant_worker('worker'), outbox.grant_producer('worker'), outbox.grant_admin('admin');
CREATE TABLE app.handled (payload text, who text);
GRANT INSERT ON app.handled TO worker;
CREATE FUNCTION app.handle(m outbox.message) RETURNS void LANGUAGE sql AS 'INSERT INTO app.handled VALUES (m.payload, current_user)';
ALTER FUNCTION app.handle OWNER TO worker
Q

# What an application does in its life, in sessions of its own; what came of each step.
sub life
{
	my %as = map { $_ => connect_to($node, user => $_) } qw(producer worker admin);
	my ($p, $w, $a) = @as{qw(producer worker admin)};
	my $n = ++$serial;
	my ($owner, $stream) = (owner($n), sprintf('00000000-0000-4000-9000-%012d', $n));
	my @done;
	my $did = sub { push @done, join ' ', map { $_ // 'null' } @_ };
	my $claim = sub { [ $w->selectall_array('SELECT id, payload FROM outbox.claim(?, 60, topics => ARRAY[?])', undef, $owner, "$_[0]$n") ] };
	my $ids = sub { '{' . join(',', map { $_->[0] } @{ $_[0] }) . '}' };

	for my $session (values %as) { $session->do('SET search_path = evil, pg_catalog, public') if $main::evil_path }
	# enqueue, in all its forms
	$p->do("SELECT outbox.enqueue('one$n', 'text', headers => '{\"h\": 1}')");
	$p->do("SELECT outbox.enqueue('one$n', '{\"a\": [1.50]}'::pg_catalog.jsonb)");
	$did->(value($p, "SELECT pg_catalog.cardinality(outbox.enqueue_many('one$n', '{c,d}'))"), count_of($p, "outbox.enqueue_batch('[{\"topic\": \"one$n\", \"payload\": \"e\", \"due_time\": \"2020-02-03 04:05:06+00\"}]')"));
	$did->(map { value($p, "SELECT enqueued FROM outbox.try_enqueue('key$n', 'p', dedupe_key => 'k')") } 1, 2);
	$p->do("SELECT outbox.enqueue('stream$n', '$_', stream_id => '$stream')") for 1 .. 3;
	# claims, and all that becomes of them
	my $got = $claim->('one');
	$did->(map { $_->[1] } @$got);
	$did->(value($w, 'SELECT outbox.ack(?, ?::pg_catalog.int8[])', $owner, $ids->([ @$got[0 .. 1] ])), value($w, 'SELECT outbox.nack(?, ?::pg_catalog.int8[], delay => \'0\')', $owner, $ids->([ $got->[2] ])),
		value($w, 'SELECT outbox.fail(?, ?::pg_catalog.int8[], \'bad\', 4)', $owner, $ids->([ $got->[3] ])), value($w, 'SELECT outbox.renew(?, ?::pg_catalog.int8[])', $owner, $ids->([ $got->[4] ])), value($w, 'SELECT outbox.release(?)', $owner));
	$did->(value($a, 'SELECT outbox.redrive(?, \'default\')', "one$n"));
	$got = $claim->('one');
	$did->(sort map { $_->[1] } @$got);
	$did->(value($w, 'SELECT outbox.ack(?, ?::pg_catalog.int8[], strict => true)', $owner, $ids->($got)));
	$got = $claim->('stream');
	$did->(map { $_->[1] } @$got);
	$did->(value($w, 'SELECT outbox.ack(?, ?::pg_catalog.int8[])', $owner, $ids->($got)));
	# a round trip
	$did->(map { $_->[0] } $w->selectall_array("SELECT payload FROM outbox.process_work_batch(?, 's', 'h', 1, new_outbox_messages => ?) ORDER BY 1", undef, $owner, "[{\"topic\": \"trip$n\", \"payload\": {\"x\": 1}}]"));
	$did->(value($w, 'SELECT outbox.deregister_instance(?)', $owner));
	$w->do('SELECT outbox.ack(?, array_agg(id)) FROM outbox.claim(?, topics => ARRAY[?])', undef, $owner, $owner, "trip$n");
	# the inbox
	$did->(map { value($w, "SELECT outbox.receive('00000000-0000-4000-a000-" . sprintf('%012d', $n) . "', 'in', 'p')") } 1, 2);
	$did->(value($w, 'SELECT outbox.ack_inbox(?, array_agg(id)) FROM outbox.claim_inbox(?)', $owner, $owner));
	# a policy, a pause, and what an operator does
	$did->(sqlstate($a, "SELECT outbox.configure_topic('key$n', max_attempts => 3, retention => '2 days'), outbox.pause_topic('key$n')"), scalar @{ $claim->('key') }, sqlstate($a, "SELECT outbox.resume_topic('key$n')"), value($a, "SELECT max_attempts FROM outbox.policies WHERE topic OPERATOR(pg_catalog.=) 'key$n'"));
	$did->(value($a, "SELECT outbox.cancel_by_key('key$n', 'k')"), value($a, "SELECT count(DISTINCT status) FROM outbox.messages WHERE topic OPERATOR(pg_catalog.=) 'one$n'"), value($a, "SELECT outbox.purge_topic('key$n', 'default', 'all')"), sqlstate($a, 'SELECT outbox.cleanup()'));
	$did->(value($a, "SELECT count(*) OPERATOR(pg_catalog.>) 3 FROM outbox.status()"), value($a, "SELECT count(*) OPERATOR(pg_catalog.>) 0 FROM outbox.messages m, outbox.explain_message(m.id) WHERE m.topic OPERATOR(pg_catalog.=) 'one$n'"));
	# the router
	$a->do("SELECT outbox.register_store('s$n', 'service=x'), outbox.map_route('k$n', 's$n')");
	$did->(value($p, "SELECT outbox.route_store('k$n')"));
	# joins, timers and handlers, which workers see to
	$p->do("SELECT outbox.enqueue_join_wait(j, true, 'joined$n', 'all') FROM outbox.start_join('g', 2) j, LATERAL outbox.enqueue_step(j, 'step$n', 'a') a, LATERAL outbox.enqueue_step(j, 'step$n', 'b') b");
	$w->do('SELECT outbox.ack(?, array_agg(id)) FROM outbox.claim(?, topics => ARRAY[?])', undef, $owner, $owner, "step$n");
	$p->do("SELECT outbox.schedule_timer('timer$n', 'rang', pg_catalog.now())");
	$w->do("SELECT outbox.register_handler('handled$n', 'app.handle(outbox.message)')");
	$p->do("SELECT outbox.enqueue('handled$n', 'handled $n')");
	for my $topic ('joined', 'timer')
	{
		my $what;
		poll(sub { my $g = $claim->($topic); $what = $g->[0][1] if @$g; $w->do('SELECT outbox.ack(?, ?::pg_catalog.int8[])', undef, $owner, $ids->($g)) if @$g; @$g }, 20);
		$did->($what);
	}
	$did->(poll(sub { value($root, 'SELECT who FROM app.handled WHERE payload = ?', "handled $n") }, 20));
	$w->do("SELECT outbox.unregister_handler('handled$n')");
	$_->disconnect for values %as;
	return join "\n", @done;
}

my $good = life();
is($good, <<'Q' =~ s/\n$//r, 'an application\'s life');
2 1
1 0
text {"a": [1.50]} c d e
2 1 1 1 1
1
c d e
3
1 2 3
3
p {"x": 1}
2
1 0
1
 0  3
1 1 1 
1 1
s1
all
rang
worker
Q
$good =~ s/^s1$/STORE/m;

# Those that come have the settings of then.
sub workers_leave { return poll(sub { !count_of($root, "pg_stat_activity WHERE backend_type LIKE 'outbox worker%'") }, 20) || die 'workers stay' }

# As ever; but cleanup may end with an error.
sub lives_on
{
	my ($name, $cleanup) = (@_, '');
	my $expected = $good =~ s/^1 1 1 $/1 1 1 $cleanup/mr;
	my $began = time;
	my $got = eval { life() } // "died: $@";

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$got =~ s/^s\d+$/STORE/m;
	$got =~ s/\{"x": ?1\}/{"x": 1}/;
	note(sprintf '%.1f s', time - $began);
	return is($got, $expected, $name);
}

# --- objects of an attacker, called as what the server has, or as ours are
{
	my $mallory = connect_to($node, user => 'mallory');

	$mallory->do($_) for 'CREATE TABLE evil.caught (what text, who text, session text)', 'GRANT ALL ON evil.caught TO PUBLIC';
	# every function of the server that ours name, with the same arguments
	$root->do(<<'Q');
CREATE VIEW public.named AS
SELECT DISTINCT p.oid, p.proname, pg_get_function_identity_arguments(p.oid) AS arguments, format_type(p.prorettype, NULL) AS result
  FROM pg_proc p, (SELECT DISTINCT regexp_matches(coalesce(prosrc, '') || ' ' || coalesce(pg_get_functiondef(oid), ''), '[a-z_0-9]+', 'g') AS word FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND prokind <> 'a') w
 WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = w.word[1] AND p.prokind = 'f' AND NOT p.proretset
   AND p.prorettype <> ALL ('{internal,cstring,trigger,anyelement,anyarray,anycompatible,anycompatiblearray,record,anyrange,anymultirange,anycompatiblerange,void}'::regtype[])
   AND NOT p.proargtypes::oid[]::regtype[] && '{internal,cstring}'::regtype[] AND p.provariadic = 0
Q
	my ($planted, $failed) = (0, 0);
	for ($root->selectall_array('SELECT proname, arguments, result FROM public.named'))
	{
		my ($name, $arguments, $result) = @$_;
		my $made = sqlstate($mallory, sprintf q(CREATE FUNCTION evil.%s(%s) RETURNS %s LANGUAGE plpgsql AS $x$ BEGIN INSERT INTO evil.caught VALUES ('function %s', current_user, session_user); RETURN NULL; END $x$), $mallory->quote_identifier($name), $arguments =~ s/\bOUT \S+ \S+//r, $result, $name);
		$made eq '' ? $planted++ : $failed++;
	}
	cmp_ok($planted, '>', 60, "functions: $planted are planted, $failed not");
	# operators on what we compare
	my @operators;
	for my $type (qw(text uuid bigint integer smallint boolean timestamptz interval jsonb name oid regclass regprocedure text[] bigint[]))
	{
		my $name = $type =~ tr/a-z//cdr;
		for my $operator (qw(= <> < > <= >=))
		{
			$mallory->do(sprintf q(CREATE FUNCTION evil.op_%s_%d(%s, %s) RETURNS boolean LANGUAGE plpgsql AS $x$ BEGIN INSERT INTO evil.caught VALUES ('operator %s', current_user, session_user); RETURN NULL; END $x$), $name . ($type =~ /\[/ ? 's' : ''), scalar @operators, $type, $type, $operator);
			push @operators, sprintf 'CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.op_%s_%d)', $operator, $type, $type, $name . ($type =~ /\[/ ? 's' : ''), scalar @operators;
		}
	}
	for my $pair ('text text', 'timestamptz interval', 'bigint bigint', 'integer integer', 'jsonb jsonb')
	{
		my ($left, $right) = split / /, $pair;
		for my $operator ('+', '-', '||', '~', '!~', '->>', '->')
		{
			$mallory->do(sprintf q(CREATE FUNCTION evil.other_%s_%d(%s, %s) RETURNS %s LANGUAGE plpgsql AS $x$ BEGIN INSERT INTO evil.caught VALUES ('operator %s', current_user, session_user); RETURN NULL; END $x$), $left, scalar @operators, $left, $right, $operator =~ /~/ ? 'boolean' : $left, $operator);
			push @operators, sprintf 'CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.other_%s_%d)', $operator, $left, $right, $left, scalar @operators;
		}
	}
	$mallory->do($_) for @operators;
	# tables and types
	my @relations = map { $_->[0] } $root->selectall_array("SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p', 'v') AND NOT relispartition");
	$mallory->do("CREATE TABLE evil.$_ (x text)") for @relations, qw(pg_class pg_proc pg_inherits pg_namespace pg_roles pg_attribute pg_type pg_settings pg_stat_activity pg_locks pg_database pg_extension);
	$mallory->do("CREATE DOMAIN evil.$_ AS int") for qw(uuid text bigint boolean regclass jsonb message work_item enqueue_result);
	$mallory->do("GRANT ALL ON ALL TABLES IN SCHEMA evil TO PUBLIC");

	$main::evil_path = 1;
	lives_on('with a path that leads to them first');
	$main::evil_path = 0;
	$root->do('ALTER DATABASE postgres SET search_path = evil, pg_catalog, public');
	$root->do("ALTER ROLE $_ SET search_path = evil, pg_temp, pg_catalog, public") for 'worker', "\"$super\"";
	workers_leave();
	lives_on('with that path in the settings of the database and of roles');
	my $administered = connect_to($node);
	is(value($administered, 'SHOW search_path'), 'evil, pg_temp, pg_catalog, public', 'a superuser with that path');
	is_state($administered, $_, '', $_)
	  for 'CALL outbox.maintain()', "SELECT outbox.grant_worker('mallory')", "SELECT outbox.revoke_worker('mallory')", 'SELECT outbox.run_maintenance()', 'SELECT outbox.reconcile_joins()', 'SELECT * FROM outbox.status()',
	  (map { "SELECT * FROM outbox.$_" } grep { $_ !~ /^cleanup_progress$/ } @relations);
	$administered->disconnect;
	is(join(', ', map { "@$_" } $root->selectall_array('SELECT DISTINCT what, who, session FROM evil.caught')), '', 'nothing of theirs was called, by any session');
	$root->do('ALTER DATABASE postgres RESET search_path');
	$root->do("ALTER ROLE $_ RESET search_path") for 'worker', "\"$super\"";

	# in the session's own pg_temp, which is searched first if it is not named
	my $temp = connect_to($node, user => 'worker');
	$temp->do($_) for (map { "CREATE TEMP TABLE $_ (x text)" } @relations, qw(pg_class pg_proc pg_inherits pg_roles pg_attribute pg_type)),
	  (map { "CREATE DOMAIN pg_temp.$_ AS int" } qw(uuid text bigint message)), 'CREATE FUNCTION pg_temp.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT NULL::timestamptz $$';
	$temp->do("SELECT outbox.enqueue('temp'::pg_catalog.text, 'p'::pg_catalog.text)");
	is(value($temp, "SELECT outbox.ack('" . owner(1000) . "', array_agg(id)) FROM outbox.claim('" . owner(1000) . "', topics => '{temp}')"), 1, 'pg_temp with our names');
	is(value($temp, "SELECT count(outbox.schedule_timer('temp', 'p', pg_catalog.now() + interval '1 day'))"), 1, 'and those of the server');
	is(value($temp, "SELECT outbox.process_join_waits() + outbox.dispatch_due() + outbox.reap()"), 0, 'also for what runs with the owner\'s rights');
	$temp->disconnect;
}

# --- casts of users, which make other calls possible or ambiguous
{
	my @casts = ('text AS uuid', 'varchar AS uuid', 'text AS jsonb', 'text AS bigint', 'text AS interval', 'text AS timestamptz', 'text AS regclass', 'text AS boolean', 'bigint AS text', 'uuid AS text', 'jsonb AS text', 'integer AS text', 'text AS integer', 'text AS json');
	my @made = grep { sqlstate($root, "CREATE CAST ($_) WITH INOUT AS IMPLICIT") eq '' } @casts;

	cmp_ok(scalar @made, '>', 5, 'casts are made');
	lives_on('with implicit casts between all that we use');
	$root->do("DROP CAST ($_)") for @made;
}

# --- settings of the database, and of roles
my %settings = (
	'spelling' => [ "standard_conforming_strings = off", "backslash_quote = off", "bytea_output = escape", "extra_float_digits = -15", "DateStyle = 'SQL, DMY'", "IntervalStyle = 'sql_standard'", "TimeZone = 'Asia/Kathmandu'", 'quote_all_identifiers = on', 'array_nulls = off', 'transform_null_equals = on', "lc_messages = 'C'", "lc_numeric = 'C'", "xmlbinary = hex", "xmloption = document" ],
	'more spelling' => [ "DateStyle = 'German'", "IntervalStyle = 'iso_8601'", "TimeZone = '-12:34'", "timezone_abbreviations = 'India'", "default_text_search_config = 'simple'", "bytea_output = hex", "extra_float_digits = 3", "client_encoding = 'LATIN1'", 'check_function_bodies = off', "default_toast_compression = 'pglz'" ],
	'plans' => [ (map { "enable_$_ = off" } qw(seqscan indexscan indexonlyscan bitmapscan hashjoin mergejoin nestloop sort material memoize hashagg tidscan gathermerge)), 'plan_cache_mode = force_generic_plan', 'jit = on', 'jit_above_cost = 0', 'jit_inline_above_cost = 0', 'jit_optimize_above_cost = 0', 'from_collapse_limit = 1', 'join_collapse_limit = 1', 'geqo_threshold = 2', 'work_mem = 64', 'constraint_exclusion = on', 'cursor_tuple_fraction = 0' ],
	'parallel' => [ 'parallel_setup_cost = 0', 'parallel_tuple_cost = 0', 'min_parallel_table_scan_size = 0', 'min_parallel_index_scan_size = 0', 'plan_cache_mode = force_custom_plan', 'enable_partitionwise_join = on', 'enable_partitionwise_aggregate = on', value($root, "SELECT name FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')") . ' = on' ],
	'transactions' => [ "default_transaction_isolation = 'serializable'", 'default_transaction_deferrable = on', 'row_security = off', "idle_in_transaction_session_timeout = '5s'", "lock_timeout = '2s'", "statement_timeout = '20s'", "synchronous_commit = off", "vacuum_freeze_min_age = 0", "client_min_messages = debug5", "log_min_messages = panic" ],
	'ours' => [ "outbox.lease_seconds = 1", "outbox.batch_size = 10000", "outbox.poll_interval = '1ms'", "outbox.log_level = notice", "outbox.notify = on", "outbox.use_cursor = off", "outbox.backoff_base = 0", "outbox.backoff_max = 0", "outbox.check_dedupe_tenant = off" ]);
for my $name (sort keys %settings)
{
	for my $where ('DATABASE postgres', 'ROLE')
	{
		my @of = $where eq 'ROLE' ? map { "ROLE $_" } qw(producer worker admin) : $where;

		for my $of (@of) { $root->do("ALTER $of SET $_") for @{ $settings{$name} } }
		workers_leave() if $where ne 'ROLE';
		lives_on("settings of the " . lc($where) =~ s/ .*//r . ": $name");
		$root->do("ALTER $_ RESET ALL") for @of;
	}
}

# --- session_replication_role = replica: no trigger fires, as requested; nothing is lost
{
	$root->do('ALTER ROLE producer SET session_replication_role = replica');
	my $producer = connect_to($node, user => 'producer');
	is(value($producer, 'SHOW session_replication_role'), 'replica', 'session_replication_role = replica');
	$producer->do("SELECT outbox.enqueue_many('replica', '{a,b,c}')");
	my $worker = connect_to($node, user => 'worker');
	is(value($worker, "SELECT string_agg(payload, '') FROM outbox.claim('" . owner(2000) . "', topics => '{replica}')"), 'abc', 'what it enqueues is claimed');
	is(value($root, "SELECT outbox.ack('" . owner(2000) . "', array_agg(id)) FROM outbox.leases WHERE topic = 'replica'"), 3, 'and done');
	$root->do('ALTER ROLE producer RESET ALL');
	$_->disconnect for $producer, $worker;
}

# --- a database that is read-only, or where every session has another role
{
	$root->do('ALTER DATABASE postgres SET default_transaction_read_only = on');
	my $producer = connect_to($node, user => 'producer');
	is_state($producer, "SELECT outbox.enqueue('t', 'p')", '25006', 'read only: says so');
	$producer->disconnect;
	$root->do('SET default_transaction_read_only = off');
	$root->do("SELECT outbox.schedule_timer('quiet', 'p', now())");
	ok(poll(sub { count_of($root, "outbox.queue WHERE topic = 'quiet'") == 1 }, 20), 'but workers work');
	$root->do('ALTER DATABASE postgres RESET ALL');
	$root->do("SELECT outbox.purge_topic('quiet')");
	$root->do('GRANT mallory TO worker');
	$root->do('ALTER ROLE worker SET role = mallory');
	my $other = connect_to($node, user => 'worker');
	is(value($other, 'SELECT current_user'), 'mallory', 'a role that becomes another');
	is_state($other, "SELECT outbox.claim()", '42501', 'has the rights of that one');
	is_state($other, "SELECT outbox.enqueue('t', 'p')", '42501', 'and no others');
	$other->disconnect;
	$root->do('ALTER ROLE worker RESET ALL');
	$root->do('REVOKE mallory FROM worker');
	lives_on('afterwards');
}

# --- event triggers and triggers that raise, or never end
{
	$root->do(q(CREATE FUNCTION public.refuse_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no DDL: %', tg_tag USING ERRCODE = 'ZZ001'; END $$));
	$root->do("DROP TABLE $_->[0]") for $root->selectall_array("SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'outbox.archive'::regclass AND inhrelid <> 'outbox.archive_unsorted'::regclass");
	$root->do("CREATE EVENT TRIGGER $_ ON $_ EXECUTE FUNCTION public.refuse_ddl()") for qw(ddl_command_start ddl_command_end);
	is_state($root, 'CALL outbox.maintain()', 'ZZ001', 'no DDL: maintenance fails, and says why');
	is(value($root, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox.archive'::regclass"), 1, 'no partition is made');
	lives_on('but there is a place for what is done', 'ZZ001');
	$root->do("ALTER EVENT TRIGGER $_ DISABLE") for qw(ddl_command_start ddl_command_end);
	$root->do("DROP EVENT TRIGGER $_") for qw(ddl_command_start ddl_command_end);
	is_state($root, 'CALL outbox.maintain()', '', 'without them all is well');
	cmp_ok(value($root, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox.archive'::regclass"), '>', 1, 'and there are partitions');

	my $producer = connect_to($node, user => 'producer');
	my $worker = connect_to($node, user => 'worker');
	my $claim = "SELECT payload FROM outbox.claim('" . owner(3000) . "', topics => '{trig}')";
	$root->do('GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.queue TO producer, worker');
	$root->do(q(CREATE FUNCTION public.raise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.payload = 'bad' THEN RAISE EXCEPTION 'no' USING ERRCODE = 'ZZ002'; END IF; RETURN NEW; END $$));
	$root->do('CREATE TRIGGER raise BEFORE INSERT ON outbox.queue FOR EACH ROW EXECUTE FUNCTION public.raise()');
	is_state($producer, "SELECT outbox.enqueue_many('trig', '{good,bad}', stream_id => '" . owner(3001) . "')", 'ZZ002', 'a trigger raises: the whole call has failed');
	is_state($producer, "SELECT outbox.enqueue('trig', 'bad', dedupe_key => 'k')", 'ZZ002', 'with a key');
	is_state($producer, "SELECT outbox.enqueue('trig', 'good', dedupe_key => 'k')", '', 'which is free');
	is(join(' ', map { $_->[0] } $worker->selectall_array($claim)), 'good', 'and no message is there but that');
	$root->do('DROP TRIGGER raise ON outbox.queue');
	$root->do('CREATE TRIGGER raise BEFORE UPDATE ON outbox.queue FOR EACH ROW EXECUTE FUNCTION public.raise()');
	$producer->do("SELECT outbox.enqueue_many('trig', '{bad,fine}')");
	is_state($worker, $claim, 'ZZ002', 'a trigger raises on a claim');
	is(value($root, "SELECT count(*) FROM outbox.queue WHERE topic = 'trig' AND status = 0"), 2, 'then nothing is leased');
	is_state($worker, "SELECT outbox.release('" . owner(3000) . "')", '', 'others can be given back');
	$root->do('DROP TRIGGER raise ON outbox.queue');
	is(join(' ', sort map { $_->[0] } $worker->selectall_array($claim)), 'bad fine good', 'without it all can be claimed');
	$worker->do("SELECT outbox.ack('" . owner(3000) . "', array_agg(id)) FROM outbox.queue WHERE topic = 'trig'");

	$root->do(q(CREATE FUNCTION public.again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM outbox.enqueue(NEW.topic, NEW.payload); RETURN NULL; END $$));
	$root->do('CREATE TRIGGER again AFTER INSERT ON outbox.queue FOR EACH ROW EXECUTE FUNCTION public.again()');
	is_state($producer, "SELECT outbox.enqueue('trig', 'for ever')", '54001', 'a trigger that never ends');
	$root->do('DROP TRIGGER again ON outbox.queue');
	$root->do('CREATE TRIGGER again AFTER INSERT ON outbox.queue FOR EACH ROW WHEN (pg_trigger_depth() < 3) EXECUTE FUNCTION public.again()');
	is_state($producer, "SELECT outbox.enqueue('trig', 'again')", '', 'one that ends');
	is(join(' ', map { $_->[0] } $worker->selectall_array($claim)), 'again again again again', 'after three');
	$root->do('DROP TRIGGER again ON outbox.queue');
	$worker->do("SELECT outbox.ack('" . owner(3000) . "', array_agg(id)) FROM outbox.queue WHERE topic = 'trig'");

	$root->do(q(CREATE FUNCTION public.claims() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM outbox.claim('00000000-0000-4000-8000-000000003009', topics => '{trig}', wait_ms => 20); RETURN NULL; END $$));
	$root->do('CREATE TRIGGER claims AFTER UPDATE ON outbox.queue FOR EACH ROW WHEN (pg_trigger_depth() < 3) EXECUTE FUNCTION public.claims()');
	$producer->do("SELECT outbox.enqueue_many('trig', '{1,2,3}')");
	is(scalar @{ $worker->selectall_arrayref($claim =~ s/'\{trig\}'/'{trig}', batch_size => 1, wait_ms => 100/r) }, 1, 'a trigger that claims within a claim');
	$root->do('DROP TRIGGER claims ON outbox.queue');
	is(value($root, 'SELECT count(*) FROM outbox.queue WHERE topic = \'trig\' AND owner_token IN (?, ?)', owner(3000), owner(3009)), 3, 'each message has one owner');
	$root->do('SELECT outbox.ack(owner_token, array_agg(id)) FROM outbox.leases GROUP BY owner_token');
	$root->do('REVOKE SELECT, INSERT, UPDATE, DELETE ON outbox.queue FROM producer, worker');
	$_->disconnect for $producer, $worker;
}

# --- what users make of our tables
{
	my $grantee = connect_to($node, user => 'mallory');

	$root->do($_) for 'CREATE PUBLICATION everything FOR ALL TABLES', 'CREATE VIEW public.of_queue AS SELECT * FROM outbox.queue', 'CREATE MATERIALIZED VIEW public.of_archive AS SELECT * FROM outbox.archive_unsorted',
	  'CREATE TABLE public.like_queue (LIKE outbox.queue INCLUDING ALL)', 'CREATE STATISTICS public.of_topics ON topic, namespace FROM outbox.queue', 'CREATE RULE also AS ON INSERT TO public.of_queue DO INSTEAD NOTHING', 'COMMENT ON TABLE outbox.queue IS \'mine\'', 'ALTER TABLE outbox.queue CLUSTER ON queue_pkey';
	lives_on('a publication for all tables, views, copies, statistics');
	is_state($grantee, $_, '42501', "a stranger: $_") for 'CREATE TABLE outbox.mine (x int)', 'CREATE FUNCTION outbox.mine() RETURNS int LANGUAGE sql AS \'SELECT 1\'', 'CREATE TABLE evil.p PARTITION OF outbox.archive DEFAULT', 'CREATE TRIGGER t BEFORE INSERT ON outbox.queue FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()', 'CREATE POLICY p ON outbox.queue', 'ALTER TABLE outbox.queue OWNER TO mallory', 'CREATE TABLE evil.typed OF outbox.message', 'SET outbox.allow_superuser_handlers = on';
	$root->do($_) for 'DROP PUBLICATION everything', 'DROP VIEW public.of_queue', 'DROP MATERIALIZED VIEW public.of_archive', 'DROP TABLE public.like_queue', 'DROP STATISTICS public.of_topics';
	$grantee->disconnect;
}

is_deeply([ grep { /PANIC|TRAP|terminated by signal/ } split /\n/, slurp_file($node->logfile) ], [], 'no process has crashed');
nothing_stranded($root, 'the end');
check_indexes($node);
$root->disconnect;
$node->stop;
done_testing();
