# What users add to the tables of the extension - triggers, constraints, columns,
# indexes, policies, rules - has the same effect with the functions as with plain SQL,
# on every table that they write, whatever its name; and what a call writes as the
# owner does not depend on the calling role and its settings.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('own_objects', workers => 0, conf => "statement_timeout = '60s'\n");
my $dbh = connect_to($node);
my $anna = owner(1);

$dbh->do('CREATE ROLE worker LOGIN');
$dbh->do("SELECT outbox.grant_worker('worker'), outbox.grant_producer('worker')");
my $worker = connect_to($node, user => 'worker');

# What status() says of the tables.
sub tables { return value($dbh, "SELECT status || coalesce(': ' || detail, '') FROM outbox.status() WHERE component = 'tables'") }

# A message, claimed; its id.
sub claimed
{
	my ($topic, $session, %more) = @_;
	my $arguments = join '', map { ", $_ => $more{$_}" } sort keys %more;

	$session //= $dbh;
	$dbh->do("SELECT outbox.enqueue('$topic', 'p'$arguments)");
	return value($session, "SELECT id FROM outbox.claim('$anna', topics => '{$topic}')");
}

# The error that a statement ends with.
sub message_of
{
	my ($session, $query) = @_;

	return '' if eval { $session->do($query); 1 };
	return $session->errstr =~ /ERROR:\s+(.*)/ ? $1 : 'unknown';
}

sub fresh
{
	$dbh->do('DROP EXTENSION outbox CASCADE');
	$dbh->do('CREATE EXTENSION outbox');
	$dbh->do("SELECT outbox.grant_worker('worker'), outbox.grant_producer('worker')");
	return;
}

# Every table is found out, whatever was added to it, and under whatever name.
is(tables(), 'written directly', 'all tables are written directly');
claimed('first');
$dbh->do("SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.leases");
my @tables = map { $_->[0] } $dbh->selectall_array('SELECT table_name FROM outbox._written_tables()');
my @partitions = grep { /^(archive|publications)_/ } @tables;
is_deeply([ sort grep { !/^(archive|publications)_/ } @tables ],
	[ sort qw(queue archive dead inbox_queue inbox_done inbox_dead timer_queue timer_done timer_dead run_queue run_done run_dead
		dedupe message_deduplication joins join_members join_rechecks join_waits handlers instances publications expansions) ],
	'these tables are written by C');
is_deeply([ sort @partitions ], [qw(archive_unsorted publications_unsorted)], 'and the partitions of the archive and of publications');
is(tables(), 'written directly', 'partitions are, too');

$dbh->do('CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$');
$dbh->do('CREATE TABLE public.other (id bigint UNIQUE, u uuid UNIQUE, t timestamptz)');
$dbh->do('INSERT INTO public.other (id) VALUES (1)');
for my $table (@tables)
{
	my $name = "outbox.$table";
	my ($some, $type) = $dbh->selectrow_array(<<"Q");
SELECT quote_ident(attname), format_type(atttypid, NULL) FROM pg_attribute
 WHERE attrelid = '$name'::regclass AND attnum > 0 AND NOT attisdropped AND atttypid IN ('uuid'::regtype, 'int8'::regtype, 'text'::regtype)
 ORDER BY attnotnull, attnum LIMIT 1
Q
	my $referred = { uuid => 'u', bigint => 'id' }->{$type};
	my $nullable = value($dbh, "SELECT NOT attnotnull FROM pg_attribute WHERE attrelid = '$name'::regclass AND quote_ident(attname) = ?", $some);
	my $is_partition = $table =~ /^(archive|publications)_/;
	my %added = (
		'check constraint outbox_queue_status' => [ "ADD CONSTRAINT outbox_queue_status CHECK ($some IS NOT NULL)", 'DROP CONSTRAINT outbox_queue_status' ],
		'check constraint outbox_zz' => [ "ADD CONSTRAINT outbox_zz CHECK (true) NOT VALID", 'DROP CONSTRAINT outbox_zz' ],
		$nullable ? ("column $some is not null" => [ "ALTER $some SET NOT NULL", "ALTER $some DROP NOT NULL" ]) : (),
		$referred ? ('constraint outbox_fk' => [ "ADD CONSTRAINT outbox_fk FOREIGN KEY ($some) REFERENCES public.other ($referred) NOT VALID", 'DROP CONSTRAINT outbox_fk' ]) : (),
		$is_partition ? () : ('column outbox_extra' => [ "ADD outbox_extra int", 'DROP outbox_extra' ]),
		$table eq 'queue' || $table =~ /_queue$/ || $is_partition ? () : ('row level security' => [ 'ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', 'DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY' ]),
	);
	# of the same name as the one of the live tables
	delete $added{'check constraint outbox_queue_status'} if $table =~ /queue$/;
	delete $added{'check constraint outbox_zz'}, delete $added{'constraint outbox_fk'} if $table =~ /^(archive|publications)$/;
	my %done = (
		'a rule' => [ "CREATE RULE outbox_rule AS ON DELETE TO $name DO ALSO SELECT 1", "DROP RULE outbox_rule ON $name" ],
		'trigger outbox_trigger' => [ "CREATE TRIGGER outbox_trigger AFTER INSERT ON $name FOR EACH STATEMENT EXECUTE FUNCTION public.nothing()", "DROP TRIGGER outbox_trigger ON $name" ],
		'index outbox_hash' => [ "CREATE INDEX outbox_hash ON $name USING hash ($some)", 'DROP INDEX outbox.outbox_hash' ],
	);

	$done{$_} = [ map { "ALTER TABLE $name $_" } @{ $added{$_} } ] for keys %added;
	for my $why (sort keys %done)
	{
		$dbh->do('BEGIN');
		$dbh->do($done{$why}[0]);
		is(tables(), "written by SQL: $table: $why", "$table: $why");
		$dbh->do($done{$why}[1]);
		is(tables(), 'written directly', "$table: without it again");
		$dbh->do('ROLLBACK');
	}
}
is(tables(), 'written directly', 'without all that it is as before');
$dbh->do('ALTER TABLE outbox.queue DROP CONSTRAINT outbox_queue_counters, ADD CONSTRAINT outbox_queue_counters CHECK (attempts >= 0 AND attempts < 3)');
is(tables(), 'written by SQL: queue: check constraint outbox_queue_counters', 'a check in place of one of ours');
$dbh->do('ALTER TABLE outbox.queue DROP CONSTRAINT outbox_queue_counters, ADD CONSTRAINT outbox_queue_counters CHECK (attempts >= 0 AND retry_count >= 0 AND waived BETWEEN 0 AND attempts)');
is(tables(), 'written directly', 'the same check is as good as ours');
$dbh->do('ALTER TABLE outbox.queue ADD extra int, ADD generated int GENERATED ALWAYS AS (attempts + 1) STORED');
is(tables(), 'written by SQL: queue: column extra', 'columns of the queue');
$dbh->do('ALTER TABLE outbox.queue DROP extra, DROP generated');
is(tables(), 'written directly', 'columns that were dropped do not matter');
my $id = claimed('dropped');
is(value($dbh, "SELECT outbox.ack('$anna', ARRAY[$id])"), 1, 'and a message goes through the table');

# What was found out holds.
$dbh->do('ALTER TABLE outbox.queue ALTER tenant_id SET NOT NULL');
is_state($dbh, "SELECT outbox.enqueue('nn', 'x')", '23502', 'NOT NULL holds for enqueue');
is_state($dbh, "INSERT INTO outbox.queue (topic, payload) VALUES ('nn', 'x')", '23502', 'as for INSERT');
is(value($dbh, "SELECT count(*) FROM outbox.queue WHERE topic = 'nn'"), 0, 'nothing was stored');
$dbh->do('ALTER TABLE outbox.queue ALTER tenant_id DROP NOT NULL');
$dbh->do('ALTER TABLE outbox.queue ADD CONSTRAINT outbox_queue_needs_tenant CHECK (tenant_id IS NOT NULL)');
is_state($dbh, "SELECT outbox.enqueue('ck', 'x')", '23514', 'a check holds, whatever it is called');
$dbh->do('ALTER TABLE outbox.queue DROP CONSTRAINT outbox_queue_needs_tenant');

$dbh->do('CREATE TABLE public.outbox_audit (queue_id bigint REFERENCES outbox.queue (id))');
$id = claimed('fk');
$dbh->do("INSERT INTO public.outbox_audit VALUES ($id)");
is_state($dbh, "SELECT outbox.ack('$anna', ARRAY[$id])", '23503', 'a key that refers to the queue holds');
is(value($dbh, "SELECT count(*) FROM outbox.queue WHERE id = $id"), 1, 'the message stays');
$dbh->do('DELETE FROM public.outbox_audit');
is(value($dbh, "SELECT outbox.ack('$anna', ARRAY[$id])"), 1, 'until nothing refers to it');
$dbh->do('DROP TABLE public.outbox_audit');
$dbh->do('CREATE TABLE public.outbox_audit (id bigint REFERENCES outbox.dead (id) ON DELETE CASCADE)');
$id = claimed('fk');
$dbh->do("SELECT outbox.fail('$anna', ARRAY[$id])");
$dbh->do("INSERT INTO public.outbox_audit VALUES ($id)");
is(value($dbh, "SELECT outbox.requeue(ARRAY[$id])"), 1, 'a dead message comes back');
is(count_of($dbh, 'public.outbox_audit'), 0, 'and what refers to it goes');
$dbh->do('DROP TABLE public.outbox_audit');
$dbh->do('DELETE FROM outbox.queue');
$dbh->do('ALTER TABLE outbox.queue ADD FOREIGN KEY (stream_seq) REFERENCES public.other (id)');
is_state($dbh, "SELECT outbox.enqueue('fk', 'x', stream_id => '$anna')", '23503', 'a key of the queue holds');
fresh();

# A column of another type can hold no row of ours.
$dbh->do('ALTER TABLE outbox.join_rechecks ALTER status TYPE bigint');
is(tables(), 'written by SQL: join_rechecks: column status has type bigint instead of smallint', 'a changed type is reported');
$dbh->do('ALTER TABLE outbox.instances ALTER process_id TYPE bigint');
is_state($dbh, "SELECT outbox.heartbeat('$anna', 's', 'h', 1)", '55000', 'and nothing is written');
is(message_of($dbh, "SELECT outbox.heartbeat('$anna', 's', 'h', 1)"), 'table "instances" does not have the columns that extension "outbox" requires', 'it says so');
$dbh->do('ALTER TABLE outbox.instances ALTER process_id TYPE int');
is_state($dbh, "SELECT outbox.heartbeat('$anna', 's', 'h', 1)", '', 'until the type is back');
fresh();

# Triggers fire on every table, while a worker without any right on those tables
# that are not for workers does all that there is to do.
$dbh->do('CREATE TABLE public.seen (n serial, name text, op text, who text, path text)');
$dbh->do(<<'Q');
CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql SECURITY INVOKER AS $$ BEGIN
    INSERT INTO public.seen (name, op, who, path) VALUES (TG_TABLE_NAME, TG_OP, current_user, current_setting('search_path'));
    RETURN NULL;
END $$
Q
my @others = qw(archive dead inbox_done inbox_dead timer_done timer_dead run_done run_dead
  dedupe message_deduplication joins join_members join_rechecks handlers instances);
$dbh->do("CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON outbox.$_ FOR EACH ROW EXECUTE FUNCTION public.see()") for @others;
$dbh->do('CREATE INDEX ON outbox.archive USING gin (headers)');
$dbh->do("INSERT INTO outbox.jobs (job_name, topic, cron_schedule) VALUES ('job', 'job.topic', '* * * * *')");
$dbh->do('CREATE SCHEMA worker AUTHORIZATION worker');
my $superuser = value($dbh, 'SELECT current_user');
$worker->do('SET search_path = worker, public');

sub seen
{
	my $what = value($dbh, "SELECT string_agg(DISTINCT name || ' ' || op, ', ') FROM (SELECT regexp_replace(name, '\\d{8}', 'DAY') AS name, op FROM public.seen) s");

	is(count_of($dbh, "public.seen WHERE who <> '$superuser' OR path <> 'pg_catalog, pg_temp'"), 0, 'as the owner, with a search_path of its own');
	$dbh->do('TRUNCATE public.seen');
	return $what;
}

my @ids = map { claimed('see', $worker) } 1 .. 2;
is(value($worker, "SELECT outbox.ack('$anna', ARRAY[$ids[0]])"), 1, 'a worker acknowledges');
is(seen(), 'archive_unsorted INSERT', 'a trigger of the archive fires');
is(value($worker, "SELECT outbox.fail('$anna', ARRAY[$ids[1]])"), 1, 'it fails');
is(seen(), 'dead INSERT', 'a trigger of the dead fires');
is(value($worker, 'SELECT current_user'), 'worker', 'the worker is itself again');
is(value($worker, 'SHOW search_path'), 'worker, public', 'with its own settings');
is(value($dbh, "SELECT outbox.requeue(ARRAY[$ids[1]])"), 1, 'a dead message comes back');
is(seen(), 'dead DELETE', 'the trigger fires');
is(value($worker, "SELECT outbox.enqueue('see.d', 'p', dedupe_key => 'k') IS NOT NULL"), 1, 'a message has a key');
is(seen(), 'dedupe INSERT', 'the trigger fires');
$dbh->do("DELETE FROM outbox.queue WHERE topic = 'see.d'");
is(value($worker, "SELECT (outbox.try_enqueue('see.d', 'p', dedupe_key => 'k')).enqueued"), 1, 'another takes it over');
is(seen(), 'dedupe UPDATE', 'the trigger fires');
is(value($worker, "SELECT outbox.receive('00000000-0000-4000-8000-000000000077', 'h', 'p')"), 1, 'a message is received');
is(seen(), 'message_deduplication INSERT', 'the trigger fires');
is(value($worker, "SELECT outbox.fail_inbox('$anna', array_agg(id)) FROM outbox.claim_inbox('$anna')"), 1, 'it fails');
is(seen(), 'inbox_dead INSERT', 'the trigger fires');
$worker->do("SELECT outbox.heartbeat('$anna', 's', 'h', 1)");
is(seen(), 'instances INSERT', 'a sign of life');
$worker->do("SELECT outbox.heartbeat('$anna', 's', 'h', 2)");
is(seen(), 'instances UPDATE', 'another one');
$worker->do("SELECT outbox.deregister_instance('$anna')");
is(seen(), 'instances DELETE', 'and the last');
$worker->do('CREATE FUNCTION worker.handle(m outbox.message) RETURNS void LANGUAGE sql AS $$ SELECT $$');
$worker->do("SELECT outbox.register_handler('see.h', 'worker.handle(outbox.message)')");
is(seen(), 'handlers INSERT', 'a handler');
$worker->do("SELECT outbox.unregister_handler('see.h')");
is(seen(), 'handlers DELETE', 'is gone');
$worker->do("SELECT outbox.schedule_timer('t', 'p', now()) FROM generate_series(1, 2)");
is(value($worker, "SELECT outbox.ack_timers('$anna', array_agg(id)) FROM outbox.claim_timers('$anna', batch_size => 1)"), 1, 'a timer is done');
is(value($worker, "SELECT outbox.fail_timers('$anna', array_agg(id)) FROM outbox.claim_timers('$anna')"), 1, 'a timer fails');
is(seen(), 'timer_dead INSERT, timer_done INSERT', 'triggers fire');
$dbh->do("SELECT outbox.trigger_job('job') FROM generate_series(1, 2)");
is(value($worker, "SELECT outbox.ack_job_runs('$anna', array_agg(id)) FROM outbox.claim_job_runs('$anna', batch_size => 1)"), 1, 'a run is done');
is(value($worker, "SELECT outbox.fail_job_runs('$anna', array_agg(id)) FROM outbox.claim_job_runs('$anna')"), 1, 'a run fails');
is(seen(), 'run_dead INSERT, run_done INSERT', 'triggers fire');

my $join = value($dbh, "SELECT outbox.start_join('g', 2)");
my @steps = map { value($dbh, "SELECT outbox.enqueue('see.j', 'p', message_id => '00000000-0000-4000-8000-00000000008$_')") } 1 .. 2;
$dbh->do("SELECT outbox.attach_message_to_join('$join', '$steps[0]')");
$dbh->do('TRUNCATE public.seen');
is(value($worker, "SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.claim('$anna', topics => '{see.j}', batch_size => 1)"), 1, 'a step is done');
is(seen(), 'archive_unsorted INSERT, join_members UPDATE, joins UPDATE', 'triggers of joins fire');
my $attaching = connect_to($node);
$attaching->do('BEGIN');
$attaching->do("SELECT outbox.attach_message_to_join('$join', '$steps[1]')");
is(value($worker, "SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.claim('$anna', topics => '{see.j}', batch_size => 1)"), 1, 'another, which is just becoming one');
$attaching->do('COMMIT');
like(seen(), qr/\bjoin_rechecks INSERT\b/, 'a trigger of rechecks fires');

# An error in such a trigger leaves the caller what it was.
$dbh->do('CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION \'no\'; END $$');
$dbh->do('CREATE TRIGGER refuse BEFORE INSERT ON outbox.dead FOR EACH ROW EXECUTE FUNCTION public.refuse()');
$id = claimed('err', $worker);
$worker->do('BEGIN');
$worker->do('SAVEPOINT s');
is_state($worker, "SELECT outbox.fail('$anna', ARRAY[$id])", 'P0001', 'a trigger raises an error');
$worker->do('ROLLBACK TO s');
is(value($worker, 'SELECT current_user'), 'worker', 'the worker is still itself');
is(value($worker, 'SHOW search_path'), 'worker, public', 'with its own settings');
$worker->do('COMMIT');

# Statement triggers and forced policies of the archive count as well.
fresh();
$dbh->do('CREATE TRIGGER see AFTER INSERT ON outbox.archive FOR EACH STATEMENT EXECUTE FUNCTION public.see()');
$id = claimed('st', $worker);
is(value($worker, "SELECT outbox.ack('$anna', ARRAY[$id])"), 1, 'a worker acknowledges');
is(seen(), 'archive INSERT', 'a statement trigger of the archive fires');
is(value($dbh, "SELECT status FROM outbox.messages WHERE id = $id"), 2, 'the message is in the archive');
$dbh->do('DROP TRIGGER see ON outbox.archive');
$dbh->do('CREATE ROLE keeper');
$dbh->do('GRANT USAGE, CREATE ON SCHEMA outbox TO keeper');
$dbh->do("ALTER TABLE outbox.dead OWNER TO keeper");
$dbh->do('ALTER TABLE outbox.dead ENABLE ROW LEVEL SECURITY');
is(tables(), 'written directly', 'policies do not apply to the owner of a table');
$dbh->do('ALTER TABLE outbox.dead FORCE ROW LEVEL SECURITY');
$dbh->do("CREATE POLICY p ON outbox.dead WITH CHECK (topic <> 'forbidden')");
my ($good, $bad) = (claimed('allowed', $worker), claimed('forbidden', $worker));
is_state($worker, "SELECT outbox.fail('$anna', ARRAY[$bad])", '42501', 'unless they are forced');
is_state($worker, "SELECT outbox.fail('$anna', ARRAY[$good])", '', 'what they allow is written');
$worker->do('SET row_security = off');
is_state($worker, "SELECT outbox.fail('$anna', ARRAY[$bad])", '42501', 'and no setting of the caller changes that');
$worker->do('RESET row_security');

# A partition that is no part of the archive any more gets nothing.
fresh();
claimed('detach');
$dbh->do("SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.leases");
ok(value($dbh, 'SELECT outbox._make_partitions()') > 0, 'partitions are made');
my $today = value($dbh, "SELECT 'archive_default_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')");
$dbh->do("ALTER TABLE outbox.archive DETACH PARTITION outbox.$today");
$id = claimed('detach');
is_state($dbh, "SELECT outbox.ack('$anna', ARRAY[$id])", '', 'a detached partition does not block it');
is(value($dbh, "SELECT tableoid::regclass FROM outbox.archive WHERE id = $id"), 'outbox.archive_unsorted', 'the message goes elsewhere');
$dbh->do("ALTER TABLE outbox.$today RENAME TO kept");
is(value($dbh, 'SELECT outbox._make_partitions()'), 1, 'when it has made way, there is another one');

# What a caller cannot see is an answer, and is not retried forever.
fresh();
my ($a, $b) = ('aaaaaaaa-0000-4000-8000-000000000001', 'bbbbbbbb-0000-4000-8000-000000000001');
$dbh->do('GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.queue TO worker');
$dbh->do("CREATE POLICY p ON outbox.queue USING (tenant_id::text = current_setting('app.tenant', true))");
$dbh->do('ALTER TABLE outbox.queue ENABLE ROW LEVEL SECURITY');
$dbh->do("SELECT outbox.enqueue('rls', 'x', tenant_id => '$a')");
$worker->do("SET app.tenant = '$a'");
$id = value($worker, "SELECT id FROM outbox.claim('$anna')");
$worker->do("SET app.tenant = '$b'");
$worker->do("SET statement_timeout = '10s'");
for my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	$worker->do("BEGIN ISOLATION LEVEL $level");
	is(value($worker, "SELECT outbox.$_('$anna', ARRAY[$id])"), 0, "$level: a policy hides the message from $_")
	  for qw(ack nack fail renew release);
	$worker->do('COMMIT');
}
$worker->do("SET app.tenant = '$a'");
is(value($worker, "SELECT outbox.ack('$anna', ARRAY[$id])"), 1, 'and no longer');
fresh();

# A message that is newer than the snapshot; each of the tables is written by SQL.
my $old = connect_to($node, settings => [ 'SET outbox.use_direct = off', "SET statement_timeout = '10s'" ]);

sub too_new
{
	my ($query, $name, $level) = @_;

	is_state($old, $query, '40001', "$level: $name");
	$old->do('ROLLBACK');
	return;
}
for my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	for my $call (qw(ack nack fail renew release))
	{
		$old->do("BEGIN ISOLATION LEVEL $level");
		count_of($old, 'outbox.queue');
		$id = claimed('new');
		too_new("SELECT outbox.$call('$anna', ARRAY[$id])", $call, $level);
		$dbh->do("SELECT outbox.ack('$anna', ARRAY[$id])");
	}
	$old->do("BEGIN ISOLATION LEVEL $level");
	count_of($old, 'outbox.queue');
	$id = claimed('new');
	$dbh->do("SELECT outbox.fail('$anna', ARRAY[$id])");
	too_new("SELECT outbox.requeue(ARRAY[$id])", 'requeue', $level);

	$old->do("BEGIN ISOLATION LEVEL $level");
	count_of($old, 'outbox.queue');
	$dbh->do("SELECT outbox.enqueue('new.d', 'p', dedupe_key => '$level')");
	$dbh->do("DELETE FROM outbox.queue WHERE topic = 'new.d'");
	too_new("SELECT outbox.enqueue('new.d', 'p', dedupe_key => '$level')", 'the key of a message that is gone', $level);

	$join = value($dbh, "SELECT outbox.start_join('g', 1)");
	my $step = value($dbh, "SELECT outbox.enqueue_step('$join', 'new.j', 'p')");
	$id = value($dbh, "SELECT id FROM outbox.claim('$anna', topics => '{new.j}')");
	$old->do("BEGIN ISOLATION LEVEL $level");
	count_of($old, 'outbox.queue');
	$dbh->do("UPDATE outbox.joins SET metadata = 'changed' WHERE join_id = '$join'");
	too_new("SELECT outbox.ack('$anna', ARRAY[$id])", 'the join of a step', $level);
	is(value($dbh, "SELECT outbox.ack('$anna', ARRAY[$id])"), 1, 'which ends in another transaction');
}

# Keys: what a trigger refuses, and what several have locked.
$dbh->do("SELECT outbox.enqueue('key', 'p', dedupe_key => 'k')");
$dbh->do("DELETE FROM outbox.queue WHERE topic = 'key'");
$dbh->do('CREATE TRIGGER nothing BEFORE UPDATE ON outbox.dedupe FOR EACH ROW EXECUTE FUNCTION public.nothing()');
$dbh->do("SET statement_timeout = '10s'");
is(value($dbh, "SELECT (outbox.try_enqueue('key', 'p', dedupe_key => 'k')).enqueued"), 0, 'a key that cannot be taken over is taken');
$dbh->do('DROP TRIGGER nothing ON outbox.dedupe');
my @lockers = map { connect_to($node) } 1 .. 2;
for my $locker (@lockers)
{
	$locker->do('BEGIN');
	$locker->do('SELECT FROM outbox.dedupe FOR SHARE');
}
for my $direct (qw(on off))
{
	$dbh->do("SET outbox.use_direct = $direct");
	$dbh->do("SET statement_timeout = '300ms'");
	is_state($dbh, "SELECT outbox.enqueue('key', 'p', dedupe_key => 'k')", '57014', "use_direct = $direct: who wants a key that others have locked waits");
	$dbh->do('RESET statement_timeout');
}
$_->do('ROLLBACK') for @lockers;
is(value($dbh, "SELECT (outbox.try_enqueue('key', 'p', dedupe_key => 'k')).enqueued"), 1, 'and has it then');
$dbh->do('RESET outbox.use_direct');

# Partitions belong to the owner, whichever role creates them.
fresh();
my $maker = connect_to($node);
$dbh->do('SET allow_in_place_tablespaces = on');
$dbh->do("CREATE TABLESPACE $_ LOCATION ''") for qw(theirs ours);
$dbh->do(<<'Q');
CREATE TABLE public.ddl (tag text, settings text);
CREATE FUNCTION public.note_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO public.ddl SELECT TG_TAG, string_agg(name || '=' || setting, ' ' ORDER BY lower(name)) FROM pg_settings
     WHERE name IN ('search_path', 'default_tablespace', 'DateStyle', 'TimeZone', 'check_function_bodies', 'default_toast_compression', 'row_security');
END $$;
CREATE EVENT TRIGGER note ON ddl_command_end EXECUTE FUNCTION public.note_ddl();
Q

sub partitions
{
	return join ' ', map { "@$_" } $dbh->selectall_array(<<'Q');
SELECT DISTINCT c.relkind, pg_get_userbyid(c.relowner), coalesce(t.spcname, 'default')
  FROM pg_class c LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace
 WHERE c.relname ~ '^archive_default_\d{8}' AND c.relnamespace = 'outbox'::regnamespace ORDER BY 1, 3
Q
}
for my $setting ('default_tablespace = theirs', "DateStyle = 'German, DMY'", "TimeZone = 'Pacific/Auckland'",
	'check_function_bodies = off', 'row_security = off', 'search_path = public')
{
	$maker->do("SET $setting");
}
for my $ours ('default', 'ours')
{
	$dbh->do('ALTER TABLE outbox.archive SET TABLESPACE ours') if $ours eq 'ours';
	$dbh->do("DROP TABLE outbox.$_->[0]") for $dbh->selectall_array("SELECT relname FROM pg_class WHERE relname ~ '^archive_default_\\d{8}\$'");
	$id = claimed('tbs', $worker);
	is(value($worker, "SELECT outbox.ack('$anna', ARRAY[$id])"), 1, 'a worker acknowledges');
	$dbh->do('TRUNCATE public.ddl');
	is(value($maker, 'SELECT outbox._make_partitions()'), 2, 'partitions are made for today and tomorrow');
	is(partitions(), "i $superuser $ours r $superuser $ours", "partitions and their indexes are in tablespace $ours");
	is(count_of($dbh, "public.ddl WHERE settings LIKE '%search_path=pg_catalog, pg_temp%' AND tag = 'CREATE TABLE'"), 2, 'an event trigger sees both');
	is(value($dbh, 'SELECT string_agg(DISTINCT settings, E\'\n\') FROM public.ddl WHERE tag ~ \'CREATE|ALTER|COMMENT\''),
		'check_function_bodies=on DateStyle=ISO, MDY default_tablespace=' . ($ours eq 'ours' ? 'ours' : '')
		  . ' default_toast_compression=pglz row_security=on search_path=pg_catalog, pg_temp TimeZone=UTC',
		'whatever the settings of the session are');
}
is(value($maker, 'SHOW default_tablespace'), 'theirs', 'which are its own again');
$maker->disconnect;
$dbh->do('DROP EVENT TRIGGER note');

# Trigger functions do their work for the tables that they are made for.
$dbh->do('CREATE TABLE public.small (a int)');
$dbh->do('INSERT INTO public.small VALUES (1)');
for my $case (
	[ '_queue_written', 'BEFORE INSERT ON public.small FOR EACH ROW', 'INSERT INTO public.small VALUES (1)', '42809' ],
	[ '_queue_changed', 'AFTER UPDATE ON public.small FOR EACH ROW', 'UPDATE public.small SET a = 2', '42809' ],
	[ '_queue_truncated', 'BEFORE TRUNCATE ON public.small FOR EACH STATEMENT', 'TRUNCATE public.small', '42809' ],
	[ '_queue_ended', 'AFTER DELETE ON public.small FOR EACH STATEMENT', 'DELETE FROM public.small', '42809' ],
	[ '_topics_changed', 'AFTER UPDATE ON public.small FOR EACH ROW', 'UPDATE public.small SET a = 2', '42809' ],
	[ '_topics_changed', 'AFTER TRUNCATE ON public.small FOR EACH STATEMENT', 'TRUNCATE public.small', '42809' ],
	[ '_topics_changed', 'AFTER INSERT ON outbox.topics FOR EACH STATEMENT', "SELECT outbox.pause_topic('t')", '39P01' ],
	[ '_join_goes', 'BEFORE DELETE ON public.small FOR EACH ROW', 'DELETE FROM public.small', '42809' ],
	[ '_queue_changed', 'AFTER INSERT ON outbox.queue FOR EACH STATEMENT', "INSERT INTO outbox.queue (topic, payload) VALUES ('t', 'p')", '39P01' ],
	[ '_queue_written', 'BEFORE DELETE ON outbox.queue FOR EACH ROW', 'DELETE FROM outbox.queue', '39P01' ],
	[ '_queue_truncated', 'AFTER INSERT ON outbox.queue FOR EACH ROW', "INSERT INTO outbox.queue (topic, payload) VALUES ('t', 'p')", '39P01' ])
{
	my ($function, $when, $statement, $state) = @$case;

	$dbh->do("INSERT INTO outbox.queue (topic, payload) VALUES ('t', 'p')");
	$dbh->do('BEGIN');
	$dbh->do("CREATE TRIGGER wrong $when EXECUTE FUNCTION outbox.$function()");
	is_state($dbh, $statement, $state, "$function $when");
	$dbh->do('ROLLBACK');
}

done_testing();
