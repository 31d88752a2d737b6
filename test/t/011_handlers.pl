# Functions that handle messages inside the database: the privileges with which they
# run, what happens to their changes, and what they cannot do, however they end.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $seed = seed();
my $node = new_node('handlers', conf => <<'C');
log_line_prefix = '%m [%p] %e %q%a '
outbox.backoff_base = '50ms'
outbox.backoff_max = '1s'
outbox.backoff_jitter = off
C
my $dbh = connect_to($node);
my $anna = owner(1);

# What handlers report is kept where all roles may write.
$dbh->do(<<'Q');
CREATE TABLE public.seen (
    n serial, topic text, payload text, attempts int, who text, session text,
    xid bigint DEFAULT pg_current_xact_id()::text::bigint, at timestamptz DEFAULT clock_timestamp());
CREATE SEQUENCE public.calls;
CREATE FUNCTION public.see(m outbox.message) RETURNS void LANGUAGE sql AS $$
    INSERT INTO public.seen (topic, payload, attempts, who, session)
    VALUES (m.namespace || '/' || m.topic, m.payload, m.attempts, current_user, session_user) $$;
Q
for my $role (qw(alice bob mallory))
{
	$dbh->do("CREATE ROLE $role LOGIN");
	$dbh->do("CREATE SCHEMA $role AUTHORIZATION $role");
	$dbh->do("SELECT outbox.grant_worker('$role')");
	$dbh->do("GRANT INSERT, SELECT ON public.seen TO $role");
	$dbh->do("GRANT USAGE ON SEQUENCE public.seen_n_seq, public.calls TO $role");
}
my %as = map { $_ => connect_to($node, user => $_) } qw(alice bob mallory);
is_state($as{alice}, 'CREATE FUNCTION alice.first(m outbox.message) RETURNS void LANGUAGE sql AS \'\'', '', 'who may register a handler may write one');
$dbh->do("GRANT USAGE ON TYPE outbox.message TO $_") for keys %as;	# so that the rest can be tried

# A handler of a role, with this body.
sub handler
{
	my ($role, $topic, $body, %more) = @_;
	my $name = "$role.h_" . $topic =~ s/\W/_/gr;
	my $arguments = join '', map { ", $_ => $more{$_}" } sort keys %more;

	$as{$role}->do("CREATE FUNCTION $name(m outbox.message) RETURNS void LANGUAGE plpgsql AS \$body\$ BEGIN $body END \$body\$");
	$as{$role}->do("SELECT outbox.register_handler('$topic', '$name(outbox.message)'$arguments)");
	return;
}

sub enqueue
{
	my ($topic, @payloads) = @_;

	$dbh->do('SELECT outbox.enqueue_many(?, ?::text[])', undef, $topic, \@payloads);
	return;
}

sub policy
{
	my ($topic, $attempts) = @_;

	$dbh->do('SELECT outbox.configure_topic(?, max_attempts => ?)', undef, $topic, $attempts);
	return;
}

sub payloads_seen
{
	my $topic = shift;

	return [ map { $_->[0] } $dbh->selectall_array('SELECT payload FROM public.seen WHERE topic = ? ORDER BY n', undef, "default/$topic") ];
}

# How many of a topic are in this state: 0 ready, 1 leased, 2 done, 3 dead.
sub in_state
{
	my ($topic, $status) = @_;

	return value($dbh, 'SELECT count(*) FROM outbox.messages WHERE topic = ? AND status = ?', $topic, $status);
}

sub settled
{
	my ($topic, $name, $seconds) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(poll(sub { value($dbh, 'SELECT count(*) = 0 FROM outbox.queue WHERE topic = ?', $topic) }, $seconds // 20), $name);
}

# From now on the launcher starts no workers, and these messages wait.
sub set_up_by_hand
{
	my ($topic, @payloads) = @_;

	$dbh->do("ALTER SYSTEM SET outbox.databases = ''");
	$node->reload;
	poll(sub { !value($dbh, 'SELECT serves FROM outbox._workers()') && !count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker'") }, 20)
	  or die 'workers do not leave';
	enqueue($topic, @payloads);
	return;
}

sub by_workers
{
	$dbh->do('ALTER SYSTEM RESET outbox.databases');
	$node->reload;
	return;
}

# Lines of the log, but not those that repeat what was sent.
sub log_lines
{
	my $pattern = shift;

	return grep { /$pattern/ && !/LOG:  statement: |STATEMENT: / } split /\n/, slurp_file($node->logfile);
}

# --- a function that is gone
handler('alice', 'vanishing', 'PERFORM public.see(m);');
$dbh->do('DROP FUNCTION alice.h_vanishing');
enqueue('vanishing', 'p');
ok(poll(sub { log_lines(qr/WARNING:  handler "alice.h_vanishing.*" of topic "vanishing" in database "postgres" cannot be called: it has lost its function/) }, 20), 'OBX-055: a function that is gone is warned of');
ok(poll(sub { in_state('vanishing', 0) == 1 }, 20), 'OBX-055: the message of a function that is gone is put back');
is(value($dbh, "SELECT attempts - waived || ' ' || retry_count FROM outbox.queue WHERE topic = 'vanishing'"), '0 0', 'a function that is gone: that is no attempt');
is_deeply([ $dbh->selectrow_array("SELECT ok, status, detail FROM outbox.status() WHERE component = 'handler of default/vanishing'") ],
	[ 0, 'cannot be called', 'alice.h_vanishing(outbox.message), registered by alice, has lost its function' ], 'a function that is gone: status() says so');
$as{alice}->do('CREATE FUNCTION alice.h_vanishing(m outbox.message) RETURNS void LANGUAGE sql AS $$ SELECT public.see(m) $$');
settled('vanishing', 'made again by its owner, it is called', 70);
is_deeply(payloads_seen('vanishing'), ['p'], 'and once');
is(scalar(log_lines(qr/handler "alice.h_vanishing/)), 2, 'one line that it cannot be called, and one that it can again');
is(count_of($dbh, "outbox.status() WHERE component LIKE 'handler%' OR component LIKE 'worker:%'"), 0, 'and status() has nothing to say');
$as{alice}->do("SELECT outbox.unregister_handler('vanishing')");
$dbh->do('TRUNCATE public.seen');

# --- with which privileges
{
	handler('alice', 'who', 'PERFORM public.see(m);');
	handler('bob', 'whose', 'PERFORM public.see(m);');
	enqueue($_, 1 .. 50) for qw(who whose);
	settled($_, "$_: all are handled") for qw(who whose);
	is_deeply($dbh->selectall_arrayref('SELECT DISTINCT topic, who, session FROM public.seen ORDER BY 1'),
		[ [qw(default/who alice alice)], [qw(default/whose bob bob)] ], 'each with the privileges of the role that has registered it');
	is(value($dbh, 'SELECT count(DISTINCT (topic, payload)) || \' of \' || count(*) FROM public.seen'), '100 of 100', 'each message once');
	is_deeply(payloads_seen('who'), [ 1 .. 50 ], 'in their order');
	is(value($dbh, 'SELECT count(*) FROM public.seen s JOIN outbox.archive a ON s.topic = a.namespace || \'/\' || a.topic AND s.payload = a.payload AND a.xmin::text::bigint = s.xid'),
		100, 'what it writes and the end of the message are one transaction');
}

# --- registering
{
	my $alice = $as{alice};
	my $taken = "SELECT outbox.register_handler('who', 'public.see(outbox.message)')";

	is_state($alice, $taken, '42710', 'a second handler');
	is_state($as{bob}, $taken, '42710', 'a second handler, of another role');
	is_state($dbh, "SELECT outbox.register_handler('super', 'public.see(outbox.message)')", '42501', 'as superuser');
	is_state($dbh, "SELECT outbox.unregister_handler('nowhere')", '42704', 'there is none to unregister');
	is_state($alice, "SELECT outbox.unregister_handler('who', 'elsewhere')", '42704', 'nor in another namespace');
	is_state($alice, "SELECT outbox.unregister_handler('whose')", '42501', 'that of another role');
	is_state($alice, "SELECT outbox.register_handler('new', 'public.nothing(outbox.message)')", '42883', 'a function that does not exist');
	is_state($alice, "SELECT outbox.register_handler('new', 123456::regprocedure)", '42704', 'not even as a number');
	$dbh->do(<<'Q');
CREATE FUNCTION public.secret(m outbox.message) RETURNS void LANGUAGE sql AS '';
REVOKE ALL ON FUNCTION public.secret(outbox.message) FROM PUBLIC;
CREATE FUNCTION public.f0() RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION public.f2(m outbox.message, n int DEFAULT 1) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION public.ft(m text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION public.fr(m outbox.message) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION public.fs(m outbox.message) RETURNS SETOF void LANGUAGE sql AS '';
CREATE PROCEDURE public.fp(m outbox.message) LANGUAGE sql AS '';
Q
	is_state($alice, "SELECT outbox.register_handler('new', 'public.secret(outbox.message)')", '42501', 'a function one may not call');
	is_state($alice, "SELECT outbox.register_handler('new', '$_'::regprocedure)", '22023', "wrong kind: $_")
	  for 'public.f0()', 'public.f2(outbox.message, int)', 'public.ft(text)', 'public.fr(outbox.message)', 'public.fs(outbox.message)', 'public.fp(outbox.message)', 'pg_catalog.sum(int)';
	is_state($alice, "SELECT outbox.register_handler($_)", '22004', "null: $_")
	  for "NULL, 'public.see(outbox.message)'", "'new', NULL", "'new', 'public.see(outbox.message)', NULL";
	is_state($alice, "SELECT outbox.unregister_handler($_)", '22004', "null: $_") for 'NULL', "'who', NULL";
	is_state($alice, "SELECT outbox.register_handler('new', 'public.see(outbox.message)', $_)", '22023', $_)
	  for "''", 'batch_size => 0', 'batch_size => 10001', 'lease_seconds => 0', 'lease_seconds => 86401', "repeat('x', 256)";
	is_state($alice, "SELECT outbox.register_handler($_, 'public.see(outbox.message)')", '22023', "topic $_") for "''", "repeat('x', 256)";
	$dbh->do('CREATE ROLE nobody LOGIN');
	my $nobody = connect_to($node, user => 'nobody');
	is_state($nobody, "SELECT outbox.register_handler('new', 'public.see(outbox.message)')", '42501', 'without the right to');
	$nobody->disconnect;
	is(count_of($dbh, "outbox.handlers WHERE topic = 'new'"), 0, 'none of them was registered');
	$alice->do('BEGIN');
	$alice->do("SELECT outbox.register_handler('new', 'public.see(outbox.message)')");
	is_state($alice, "SELECT outbox.register_handler('new', 'public.see(outbox.message)')", '42710', 'twice in a transaction');
	$alice->do('ROLLBACK');
	is(count_of($dbh, "outbox.handlers WHERE topic = 'new'"), 0, 'rolled back');
}

# --- namespaces, and which handler gets what
{
	$as{alice}->do("SELECT outbox.register_handler('place', 'public.see(outbox.message)', namespace => 'one')");
	$as{bob}->do("SELECT outbox.register_handler('place', 'public.see(outbox.message)', namespace => 'two')");
	$dbh->do("SELECT outbox.enqueue('place', n, namespace => n) FROM unnest('{one,two,three}'::text[]) n");
	ok(poll(sub { in_state('place', 2) == 2 }, 20), 'handlers in two namespaces');
	is_deeply([ map { @$_ } $dbh->selectall_array("SELECT topic || ' ' || payload || ' ' || who FROM public.seen WHERE topic LIKE '%/place' ORDER BY 1") ],
		[ 'one/place one alice', 'two/place two bob' ], 'each has its own');
	is_deeply([ map { @$_ } $dbh->selectall_array("SELECT payload FROM outbox.claim('$anna', topics => '{place}')") ], ['three'], 'the third has none');

	# no worker for what is paused: it stays to be seen
	handler('alice', 'mine', 'PERFORM public.see(m);');
	$dbh->do("SELECT outbox.pause_topic('mine')");
	enqueue('mine', 'a', 'b');
	enqueue('others', 'c');
	is_deeply([ map { @$_ } $dbh->selectall_array("SELECT payload FROM outbox.claim('$anna')") ], ['c'], 'claim without topics does not get it');
	$dbh->do('BEGIN');
	$dbh->do("SELECT outbox.resume_topic('mine')");
	is_deeply([ map { @$_ } $dbh->selectall_array("SELECT payload FROM outbox.claim('$anna')") ], [], 'nor when it goes on');
	is_deeply([ map { @$_ } $dbh->selectall_array("SELECT payload FROM outbox.claim('$anna', topics => '{mine}', batch_size => 1)") ], ['a'], 'by name it does');
	$dbh->do('ROLLBACK');
	$as{alice}->do("SELECT outbox.unregister_handler('mine')");
	$dbh->do("SELECT outbox.resume_topic('mine')");
	is_deeply([ map { @$_ } $dbh->selectall_array("SELECT payload FROM outbox.claim('$anna')") ], [ 'a', 'b' ], 'without the handler, any claim does');
	is_deeply(payloads_seen('mine'), [], 'the handler has had none');
	$dbh->do("SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases", undef, $anna);
}

# --- a function that fails
{
	my ($hidden, $told) = ('payload-not-to-be-told', 'error-not-to-be-told');

	handler('alice', 'fails', "PERFORM public.see(m); PERFORM nextval('public.calls'); IF m.payload <> 'good' THEN RAISE EXCEPTION '% %', reverse('" . reverse($told) . "'), m.payload USING ERRCODE = 'YY123', DETAIL = m.payload, HINT = m.payload; END IF;");
	$dbh->do("SELECT outbox.configure_topic('fails', max_attempts => 3, backoff_base => '0.3 s')");
	$dbh->do("SELECT outbox.enqueue('fails', 'good'), outbox.enqueue('fails', reverse('" . reverse($hidden) . "')), outbox.enqueue('fails', 'good')");
	ok(poll(sub { in_state('fails', 3) == 1 }, 20), 'OBX-056: a message whose handler always fails is dead after its attempts');
	is(in_state('fails', 2), 2, 'the others are done');
	is_deeply(payloads_seen('fails'), [ 'good', 'good' ], 'what it wrote is undone');
	is(value($dbh, 'SELECT last_value FROM public.calls'), 6, 'it was called three times, and once more alone');
	my $dead = $dbh->selectrow_hashref("SELECT id, attempts, failure_reason, last_error FROM outbox.messages WHERE topic = 'fails' AND status = 3");
	is($dead->{attempts}, 3, 'at the third attempt');
	is($dead->{last_error}, "$told $hidden\nSQLSTATE: YY123\nDETAIL: $hidden\nHINT: $hidden\nCONTEXT: PL/pgSQL function alice.h_fails(outbox.message) line 1 at RAISE", 'OBX-105: last_error of the message has the exception, its details and where it was');
	my @lines = log_lines(qr/handler "alice.h_fails/);
	is(scalar @lines, 3, 'each attempt is logged');
	is(scalar(grep { /topic "fails" .* message $dead->{id}, attempt \d, SQLSTATE YY123/ } @lines), 3, 'OBX-105: each exception of a handler is logged with message, attempt and SQLSTATE');
	is_deeply([ log_lines(qr/$hidden|$told/) ], [], 'OBX-125: of an exception of a handler neither its text nor the payload is logged');
	my @times = map { /^(\S+ \S+ \S+)/ } @lines;
	my ($first, $second) = $dbh->selectrow_array('SELECT extract(epoch FROM ?::timestamptz - ?::timestamptz), extract(epoch FROM ?::timestamptz - ?::timestamptz)', undef, @times[ 1, 0, 2, 1 ]);
	cmp_ok($first, '>=', 0.29, 'the first retry after its delay');
	cmp_ok($second, '>=', 0.59, 'the second after twice that');
	cmp_ok($second, '<', 5, 'but not much later');
}

# --- streams
{
	my $stream = owner(100);

	policy('line', 3);
	handler('bob', 'line', "PERFORM public.see(m); IF m.payload = '3' AND m.attempts < 3 THEN RAISE EXCEPTION 'not yet'; END IF;");
	$dbh->do("SELECT outbox.enqueue_many('line', ARRAY(SELECT i::text FROM generate_series(1, 30) i), stream_id => ?)", undef, $stream);
	settled('line', 'a stream is handled');
	is(in_state('line', 3), 0, 'none of it dies of waiting for another');
	is_deeply(payloads_seen('line'), [ 1 .. 30 ], 'in its order, also when one has to be tried again');
}

# --- one that takes longer than its lease
{
	handler('alice', 'long', "PERFORM nextval('public.calls'); PERFORM public.see(m); PERFORM pg_sleep(3.5);", lease_seconds => 1);
	$dbh->do("SELECT setval('public.calls', 1, false)");
	enqueue('long', 'p');
	ok(poll(sub { value($dbh, 'SELECT is_called FROM public.calls') }, 20), 'a long one has begun');
	# others try everything to get it
	my $until = time + 3;
	my $stolen = 0;
	while (time < $until)
	{
		$dbh->do('SELECT outbox.reap()');
		$stolen += value($dbh, "SELECT count(*) FROM outbox.claim('$anna', topics => '{long}')");
		$dbh->do('SELECT outbox.run_maintenance()');
		sleep 0.2;
	}
	is($stolen, 0, 'OBX-059: a message is handed to no one else while its handler runs, though its lease would be over');
	$dbh->do("SELECT outbox.release('$anna')") if $stolen;
	settled('long', 'it ends');
	is_deeply(payloads_seen('long'), ['p'], 'what it does is done once');
	is(value($dbh, 'SELECT last_value FROM public.calls'), 1, 'OBX-059: a handler that takes longer than its lease is called once');
	is(in_state('long', 2), 1, 'and the message is done');
}

# --- messages of a transaction that is prepared, whose end is not reported
{
	handler('alice', 'prepared', 'PERFORM public.see(m);');
	$dbh->do('BEGIN');
	enqueue('prepared', 'p');
	$dbh->do("PREPARE TRANSACTION 'handled'");
	ok(poll(sub { !count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker'") }, 20), 'prepared: no worker stays to wait for it');
	$dbh->do("COMMIT PREPARED 'handled'");
	ok(poll(sub { in_state('prepared', 2) == 1 }, 40), 'prepared: the message is handled');
}

# --- one that fails when the transaction is committed
{
	$dbh->do('CREATE TABLE public.late (payload text UNIQUE DEFERRABLE INITIALLY DEFERRED); GRANT INSERT ON public.late TO alice');
	$dbh->do("INSERT INTO public.late VALUES ('bad')");
	policy('late', 2);
	handler('alice', 'late', 'INSERT INTO public.late VALUES (m.payload); PERFORM public.see(m);');
	enqueue('late', 'a', 'b', 'bad', 'c', 'd');
	settled('late', 'one that fails at COMMIT: all come to an end');
	is(in_state('late', 2), 4, 'one that fails at COMMIT: the others are done');
	is_deeply([ map { @$_ } $dbh->selectall_array("SELECT payload, attempts FROM outbox.messages WHERE topic = 'late' AND status = 3") ], [ 'bad', 2 ], 'one that fails at COMMIT: it is dead after its attempts');
	is_deeply([ sort @{ payloads_seen('late') } ], [qw(a b c d)], 'one that fails at COMMIT: what it wrote is undone');
	is(value($dbh, "SELECT string_agg(payload, ' ' ORDER BY payload) FROM public.late"), 'a b bad c d', 'one that fails at COMMIT: that of the others is there');
	my $bad = value($dbh, "SELECT id FROM outbox.messages WHERE topic = 'late' AND payload = 'bad'");
	my @lines = log_lines(qr/handler "alice.h_late/);
	is_deeply([ grep { !/message $bad, .*SQLSTATE 23505/ } @lines ], [], 'one that fails at COMMIT: nothing is said of the others');
	is(scalar(grep { /message $bad, / } @lines), 2, 'one that fails at COMMIT: it is logged');
}

# --- what it raises is its own; what it sets is gone with it
{
	for (['57014', 'cancel'], ['57P01', 'shutdown'], ['40001', 'serialize'], ['XX001', 'corrupt'], ['P0004', 'assert'])
	{
		my ($state, $topic) = @$_;

		policy($topic, 2);
		handler('bob', $topic, "IF m.payload = 'bad' THEN RAISE EXCEPTION 'no' USING ERRCODE = '$state'; END IF; PERFORM public.see(m);", lease_seconds => 1);
		enqueue($topic, 'a', 'bad', 'b');
		settled($topic, "SQLSTATE $state: all come to an end", 40);
		is(in_state($topic, 3), 1, "SQLSTATE $state: it is dead");
		is_deeply([ sort @{ payloads_seen($topic) } ], [qw(a b)], "SQLSTATE $state: the others are done, once");
	}

	$dbh->do('CREATE ROLE friend');
	$dbh->do('GRANT friend TO bob');
	$dbh->do('GRANT INSERT ON public.seen TO friend; GRANT USAGE ON SEQUENCE public.seen_n_seq TO friend');
	my %same = (
		search_path => 'bob',
		statement_timeout => '1ms',
		role => 'friend',
		default_transaction_read_only => 'on',
		default_transaction_isolation => 'serializable',
		'outbox.use_direct' => 'off',
		'outbox.max_attempts' => '1',
		'bob.mark' => 'x');
	handler('bob', 'settings', 'INSERT INTO public.seen (topic, payload, who) SELECT \'default/settings\', string_agg(s || \'=\' || coalesce(current_setting(s, true), \'\'), \' \' ORDER BY s), current_user FROM unnest(ARRAY['
		  . join(', ', map { "'$_'" } sort keys %same) . ']) s; ' . join(' ', map { "PERFORM set_config('$_', '$same{$_}', false);" } sort keys %same), batch_size => 1);
	enqueue('settings', 1 .. 3);
	settled('settings', 'settings: handled');
	my @then = @{ payloads_seen('settings') };
	is(scalar @then, 3, 'settings: three times');
	is_deeply([ @then[ 1, 2 ] ], [ ($then[0]) x 2 ], 'settings: what a handler sets ends with it');
	is(value($dbh, "SELECT string_agg(DISTINCT who, ' ') FROM public.seen WHERE topic = 'default/settings'"), 'bob', 'settings: nor does it become another role');
}

# --- it cannot become superuser
{
	# with the error that a session of this role would get
	$dbh->do(<<'Q');
CREATE TABLE mallory.got (mode text, trick text, who text, session text, super text);
ALTER TABLE mallory.got OWNER TO mallory;
Q
	$as{mallory}->do(<<'Q');
CREATE FUNCTION mallory.note(mode text, trick text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO mallory.got VALUES (mode, trick, current_user, session_user, current_setting('is_superuser')) $$;
CREATE FUNCTION mallory.plus(a bigint, b bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM mallory.note('operator', 'plus');
    RETURN a OPERATOR(pg_catalog.+) b;
END $$;
CREATE OPERATOR mallory.+ (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = mallory.plus);
CREATE FUNCTION mallory.now() RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
    PERFORM mallory.note('function', 'now');
    RETURN pg_catalog.now();
END $$;
CREATE FUNCTION mallory.deferred() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM mallory.note('deferred', 'trigger');
    RETURN NULL;
END $$;
CREATE TABLE mallory.trap (i int);
CREATE CONSTRAINT TRIGGER trap AFTER INSERT ON mallory.trap DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION mallory.deferred();
Q
	my $superuser = value($dbh, 'SELECT session_user');
	handler('mallory', 'tricks', <<"Q");
    DECLARE
        trick text;
    BEGIN
        FOREACH trick IN ARRAY ARRAY[
            'RESET ROLE', 'SET ROLE NONE', 'SET ROLE "$superuser"', 'SET LOCAL ROLE "$superuser"',
            'RESET SESSION AUTHORIZATION', 'SET SESSION AUTHORIZATION DEFAULT', 'SET SESSION AUTHORIZATION "$superuser"',
            'SET LOCAL SESSION AUTHORIZATION "$superuser"', 'RESET ALL', 'DISCARD ALL', 'DISCARD TEMP',
            'DECLARE c CURSOR WITH HOLD FOR SELECT mallory.note(''hold'', ''cursor'')',
            'PREPARE p AS SELECT mallory.note(''prepared'', ''statement'')',
            'SET outbox.allow_superuser_handlers = on', 'ALTER ROLE mallory SUPERUSER',
            'INSERT INTO mallory.trap VALUES (1)']
        LOOP
            BEGIN
                EXECUTE trick;
            EXCEPTION WHEN OTHERS THEN
                NULL;
            END;
            PERFORM mallory.note(m.payload, trick);
        END LOOP;
        PERFORM set_config('search_path', 'mallory, pg_catalog', false);
    END;
Q
	enqueue('tricks', 'worker');
	settled('tricks', 'tricks: in a worker');
	# by hand: in a process of its own, and the session that started it is left alone
	set_up_by_hand('tricks', 'by hand');
	my $hand = connect_to($node);
	my $path = value($hand, 'SHOW search_path');
	cmp_ok(value($hand, 'SELECT outbox._start_handlers()'), '>=', 1, 'tricks: by hand');
	is(value($hand, 'SHOW search_path'), $path, 'tricks: the path of the session is what it was');
	is_deeply([ $hand->selectrow_array('SELECT current_user, session_user') ], [ ($superuser) x 2 ], 'tricks: and so is the user');
	$hand->do('SELECT now()');
	$hand->disconnect;
	by_workers();
	for my $mode ('worker', 'by hand')
	{
		cmp_ok(value($dbh, 'SELECT count(*) FROM mallory.got WHERE mode = ?', $mode), '>=', 16, "tricks: all were tried, $mode");
	}
	is_deeply($dbh->selectall_arrayref("SELECT mode, trick, who, session FROM mallory.got WHERE who <> 'mallory'"), [], 'tricks: none became superuser');
	is(count_of($dbh, "mallory.got WHERE session <> 'mallory' OR super <> 'off'"), 0, 'tricks: not even the session is');
	is(value($dbh, "SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'"), 0, 'tricks: nor is the role');
	is(value($dbh, 'SHOW outbox.allow_superuser_handlers'), 'off', 'tricks: nor may it be');
}

# --- a role that has become superuser, and one that may
{
	handler('alice', 'rise', 'PERFORM public.see(m);');
	enqueue('rise', 'before');
	settled('rise', 'before its role is superuser');
	$dbh->do('BEGIN');
	$dbh->do('ALTER ROLE alice SUPERUSER');
	enqueue('rise', 'as superuser');
	$dbh->do('COMMIT');
	# bob's worker comes after the worker that checks which roles may
	handler('bob', 'after', 'PERFORM public.see(m);');
	enqueue('after', 'p');
	settled('after', 'others go on');
	is_deeply(payloads_seen('rise'), ['before'], 'when its role has become superuser, it is not called');
	$dbh->do('ALTER ROLE alice NOSUPERUSER');
	$as{bob}->do("SELECT outbox.unregister_handler('after')");
	settled('rise', 'and is again when it is no longer', 45);	# it may have been put back for a while

	$node->append_conf('postgresql.conf', 'outbox.allow_superuser_handlers = on');
	$node->reload;
	ok(poll(sub { value($dbh, 'SHOW outbox.allow_superuser_handlers') eq 'on' }, 10), 'allowed');
	$dbh->do("SELECT outbox.register_handler('super', 'public.see(outbox.message)')");
	enqueue('super', 'p');
	settled('super', 'a superuser\'s handler, when that is allowed');
	is(value($dbh, "SELECT who = session_user FROM public.seen WHERE topic = 'default/super'"), 1, 'is called as superuser');
	$node->append_conf('postgresql.conf', 'outbox.allow_superuser_handlers = off');
	$node->reload;
	ok(poll(sub { value($dbh, 'SHOW outbox.allow_superuser_handlers') eq 'off' }, 10), 'no longer allowed');
	ok(poll(sub { !count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker'") }, 20), 'the workers have left');
	enqueue('super', 'not');
	enqueue('who', 'last');
	settled('who', 'others are handled');
	is_deeply(payloads_seen('super'), ['p'], 'it is not called');
	is(in_state('super', 0), 1, 'and its message waits');
	$dbh->do("SELECT outbox.unregister_handler('super')");
}

# --- a timeout
{
	my $took = sub { return value($dbh, "SELECT last_error FROM outbox.messages WHERE topic = ? AND payload = 'bad'", $_[0]) };

	policy($_, 2) for qw(slow stubborn);
	handler('alice', 'slow', "IF m.payload = 'bad' THEN PERFORM pg_sleep(600); END IF; PERFORM public.see(m);", timeout => "'0.4 s'");
	enqueue('slow', 'a', 'bad', 'b');
	settled('slow', 'one that takes too long: all come to an end');
	is(in_state('slow', 3), 1, 'one that takes too long is dead');
	like($took->('slow'), qr/^cancelled after 400 ms\nSQLSTATE: 57014\nCONTEXT: .*pg_sleep/s, 'OBX-057: a handler that takes too long is cancelled in what it does');
	is_deeply(payloads_seen('slow'), [ 'a', 'b' ], 'one that takes too long: the others are done, once');
	is(scalar(log_lines(qr/handler "alice.h_slow.* has failed for message \d+, attempt \d, SQLSTATE 57014/)), 2, 'one that takes too long: each attempt is logged, and is one call');
	handler('bob', 'stubborn', "IF m.payload = 'bad' THEN LOOP BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END IF; PERFORM public.see(m);", timeout => "'0.3 s'", lease_seconds => 1);
	enqueue('stubborn', 'a', 'bad', 'b');
	settled('stubborn', 'one that will not be cancelled: all come to an end', 60);
	is(in_state('stubborn', 3), 1, 'one that will not be cancelled: it is dead, its process was ended');
	is_deeply([ sort @{ payloads_seen('stubborn') } ], [ 'a', 'b' ], 'one that will not be cancelled: the others are done, once');
	is(value($dbh, 'SHOW outbox.handler_timeout'), '1min', 'the limit of others');
	is_state($as{alice}, "SELECT outbox.register_handler('new', 'public.see(outbox.message)', timeout => '$_')", '22023', "a limit of $_")
	  for '0', '-1 s', '25 hours', '1 month';
}

# --- handlers of one transaction conflict with each other
{
	policy('temp', 2);
	handler('alice', 'temp', 'CREATE TEMP TABLE work ON COMMIT DROP AS SELECT m.payload; PERFORM public.see(m);');
	enqueue('temp', 1 .. 60);
	settled('temp', 'those that fail beside others are tried alone');
	is_deeply([ in_state('temp', 2), in_state('temp', 3) ], [ 60, 0 ], 'so all are done');
	is(value($dbh, "SELECT max(attempts) FROM outbox.messages WHERE topic = 'temp'"), 1, 'in one attempt');
}

# --- what a crash has left behind
{
	handler('bob', 'left', 'PERFORM public.see(m);', batch_size => 400);
	$dbh->do("SELECT outbox.pause_topic('left')");
	enqueue('left', 1 .. 400);
	$dbh->do("UPDATE outbox.queue SET attempts = 1 WHERE topic = 'left'");
	my $updates = sub { $dbh->do('SELECT pg_stat_force_next_flush()'); value($dbh, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'queue'") };
	my $before = $updates->();
	my $start = time;
	$dbh->do("SELECT outbox.resume_topic('left')");
	settled('left', 'what a crash has left behind is handled', 60);
	note(sprintf('400 messages that a crash has left: %.1f s', time - $start));
	is(scalar @{ payloads_seen('left') }, 400, 'once each');
	ok(poll(sub { !count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker'") }, 20), 'the worker has left, and told the statistics');
	cmp_ok($updates->() - $before, '<=', 6 * 400, 'in linear time');
}

# --- steps of joins: no deadlock with a plain ack, nor does it wait for a batch
{
	handler('alice', 'step', 'PERFORM public.see(m); PERFORM pg_sleep(0.15);');
	my @joins = map { value($dbh, 'SELECT outbox.start_join(?, 2)', "j$_") } 1 .. 6;
	$dbh->do("SELECT outbox.enqueue_step(?, 'mine too', 'p')", undef, $_) for @joins;
	my @ids = map { $_->[0] } $dbh->selectall_array("SELECT id FROM outbox.claim('$anna', 600, topics => '{mine too}')");
	$dbh->do('BEGIN');
	$dbh->do("SELECT outbox.enqueue_step(?, 'step', 'p')", undef, $_) for reverse @joins;
	$dbh->do('COMMIT');
	ok(poll(sub { count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker' AND wait_event = 'PgSleep'") }, 20), 'a handler is at work on steps of joins');
	sleep 0.3;	# so that it has one behind it
	my $start = time;
	is(value($dbh, "SELECT outbox.ack('$anna', ?::bigint[])", \@ids), 6, 'an ack of the other steps');
	cmp_ok(time - $start, '<', 0.5, 'it does not wait for the batch');
	ok(poll(sub { count_of($dbh, "outbox.joins WHERE grouping_key LIKE 'j_' AND status = 1") == 6 }, 20), 'all joins are completed');
	is(scalar @{ payloads_seen('step') }, 6, 'each handler was called once');
	is_deeply([ log_lines(qr/deadlock/) ], [], 'there was no deadlock');
}

# --- bound to a function and a role, not to their names
{
	my $problem = sub { return value($dbh, "SELECT detail FROM outbox.status() WHERE component = 'handler of default/$_[0]'") };

	# the function passes to another owner
	$dbh->do('CREATE SCHEMA shared; GRANT ALL ON SCHEMA shared TO alice, mallory');
	$as{alice}->do('CREATE FUNCTION shared.h(m outbox.message) RETURNS void LANGUAGE sql AS $$ SELECT public.see(m) $$');
	$as{alice}->do("SELECT outbox.register_handler('passed', 'shared.h(outbox.message)')");
	$as{alice}->do('DROP FUNCTION shared.h');
	$as{mallory}->do('CREATE FUNCTION shared.h(m outbox.message) RETURNS void LANGUAGE sql AS $$ SELECT public.see(m) $$');
	enqueue('passed', 'p');
	ok(poll(sub { log_lines(qr/WARNING:  handler "shared.h.* cannot be called: it has a function that belongs to another owner now/) }, 20), 'a function of another owner: a warning');
	like($problem->('passed'), qr/belongs to another owner now/, 'a function of another owner: status()');
	is_deeply(payloads_seen('passed'), [], 'a function of another owner: it is not called');
	is(in_state('passed', 0), 1, 'a function of another owner: the message waits');
	$as{alice}->do("SELECT outbox.unregister_handler('passed')");

	# the role is renamed; dropped, and created again
	$dbh->do('CREATE ROLE temp LOGIN; GRANT INSERT ON public.seen TO temp; GRANT USAGE ON SEQUENCE public.seen_n_seq TO temp');
	$dbh->do("SELECT outbox.grant_worker('temp')");
	my $temp = connect_to($node, user => 'temp');
	$temp->do("SELECT outbox.register_handler('renamed', 'public.see(outbox.message)')");
	$temp->disconnect;
	$dbh->do('ALTER ROLE temp RENAME TO renamed');
	enqueue('renamed', 'p');
	settled('renamed', 'a role that was renamed: its handler is called');
	is(value($dbh, "SELECT who FROM public.seen WHERE topic = 'default/renamed'"), 'renamed', 'a role that was renamed: it is the same');
	ok(poll(sub { !count_of($dbh, "pg_stat_activity WHERE usename = 'renamed'") }, 20), 'its worker leaves');
	$dbh->do('DROP OWNED BY renamed; DROP ROLE renamed; CREATE ROLE temp LOGIN; GRANT INSERT ON public.seen TO temp; CREATE ROLE renamed LOGIN');
	$dbh->do("SELECT outbox.grant_worker('renamed'), outbox.grant_worker('temp')");
	enqueue('renamed', 'p');
	ok(poll(sub { log_lines(qr/of topic "renamed" in database "postgres" cannot be called: it was registered by a role that has been dropped/) }, 20), 'a role of the same name: a warning');
	is(in_state('renamed', 0), 1, 'a role of the same name: it is another, and the message waits');
	is_state($as{alice}, "SELECT outbox.unregister_handler('renamed')", '42501', 'no other role may remove the handler');
	$dbh->do("SELECT outbox.unregister_handler('renamed')");

	# one that cannot log in; since 17 a worker can connect as it all the same
	handler('bob', 'login', 'PERFORM public.see(m);');
	$dbh->do('ALTER ROLE bob NOLOGIN');
	ok(poll(sub { !count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker'") }, 20), 'the workers have left')
	  or diag(join "\n", (map { join ' ', map { $_ // '-' } @$_ } $dbh->selectall_array("SELECT usename, backend_start, state, query FROM pg_stat_activity WHERE backend_type = 'outbox worker'"), $dbh->selectall_array('SELECT * FROM outbox._worker_troubles()')), (split /\n/, slurp_file($node->logfile))[-30 .. -1]);
	enqueue('login', 'p');
	if (value($dbh, 'SHOW server_version_num') < 170000)
	{
		ok(poll(sub { log_lines(qr/of topic "login" in database "postgres" cannot be called: it was registered by a role that cannot log in now/) }, 20), 'a role that cannot log in: a warning');
		like($problem->('login'), qr/registered by bob, was registered by a role that cannot log in now/, 'a role that cannot log in: status()');
	}
	$dbh->do('ALTER ROLE bob LOGIN');
	settled('login', 'a role that can log in again: its handler is called', 70);

	# in a restored database names are looked up, once
	$dbh->do('CREATE DATABASE restored');
	my $target = connect_to($node, db => 'restored');
	$node->command_ok([ 'sh', '-c', "pg_dump -Fc -d '" . $node->connstr('postgres') . "' | pg_restore -d '" . $node->connstr('restored') . "' || true" ], 'a copy is made');
	ok(poll(sub { count_of($target, "outbox.handlers WHERE topic = 'who' AND home LIKE '%/' || (SELECT oid FROM pg_database WHERE datname = 'restored') || '/%' AND function_oid = 'alice.h_who(outbox.message)'::regprocedure") == 1 }, 20), 'a handler is bound again where it was restored');
	$target->do("SELECT outbox.enqueue('who', 'restored')");
	ok(poll(sub { count_of($target, "public.seen WHERE payload = 'restored' AND who = 'alice'") == 1 }, 20), 'and is called');
	$target->disconnect;
	$dbh->do('DROP DATABASE restored WITH (FORCE)');
}

# --- nothing that a handler leaves behind reaches a session that runs handlers by hand
{
	$as{mallory}->do(<<'Q');
CREATE FUNCTION mallory.evil(v text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM mallory.note('evil', 'domain');
    RETURN true;
END $$;
Q
	handler('mallory', 'plants', 'CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (mallory.evil(VALUE)); GRANT USAGE ON TYPE pg_temp.text TO PUBLIC; PERFORM public.see(m);');
	set_up_by_hand('plants', 'p');
	my $hand = connect_to($node);
	is(value($hand, 'SELECT outbox.run_maintenance()') >= 0 && in_state('plants', 0), 1, 'run_maintenance runs no handlers');
	cmp_ok(value($hand, 'SELECT outbox._start_handlers()'), '>=', 1, 'handlers are run by hand');
	is_deeply(payloads_seen('plants'), ['p'], 'one that plants something');
	is(value($hand, q{SELECT 'x'::text}), 'x', 'the session goes on');
	is_deeply($dbh->selectall_arrayref("SELECT who, super FROM mallory.got WHERE mode = 'evil' AND who <> 'mallory'"), [], 'and meets nothing of it');
	$hand->disconnect;
	by_workers();
}

# --- calls are logged, at outbox.log_level
{
	$dbh->do("ALTER SYSTEM SET outbox.log_level = log");
	$node->reload;
	# a worker that starts now knows it
	ok(poll(sub { value($dbh, 'SHOW outbox.log_level') eq 'log' && !count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker'") }, 20), 'the workers have left');
	enqueue('who', 'logged');
	settled('who', 'a handler is called');
	my $id = value($dbh, "SELECT id FROM outbox.messages WHERE topic = 'who' AND payload = 'logged'");
	is(scalar(log_lines(qr/LOG:  outbox handler: "alice.h_who\(outbox.message\)" in database "postgres", topic "who", message $id, attempt 1/)), 1, 'OBX-071, OBX-104, OBX-107: a call is logged with topic, message and database');
	$dbh->do('ALTER SYSTEM RESET outbox.log_level');
	$node->reload;
}

# --- it serves a subscription, as one subscriber among others
{
	my $body = "INSERT INTO public.seen (topic, payload, attempts, who, session) VALUES (m.subscription || ':' || m.topic, m.payload, m.attempts, current_user, m.stream_id); IF m.payload = 'bad' THEN RAISE 'no'; END IF;";
	my $seen = sub { [ map { $_->[0] } $dbh->selectall_array("SELECT concat_ws(' ', topic, payload, who) FROM public.seen WHERE topic LIKE ? ORDER BY n", undef, "$_[0]:%") ] };
	my $waits = sub { value($dbh, 'SELECT count(*) FROM outbox.messages WHERE subscription = ? AND status < 2', $_[0]) };

	$as{alice}->do("CREATE FUNCTION alice.h_mail(m outbox.message) RETURNS void LANGUAGE plpgsql AS \$body\$ BEGIN $body END \$body\$");
	is_state($as{alice}, "SELECT outbox.register_handler('pub.*', 'alice.h_mail(outbox.message)', subscription => 'mail')", '42501', 'a subscription: who may not subscribe cannot make one');
	$dbh->do("SELECT outbox.subscribe('mail', '{pub.*}', filter => '{\"a\": 1}'), outbox.subscribe('other', '{pub.#}')");
	$dbh->do("SELECT outbox.publish('pub.a', 'before', headers => '{\"a\": 1}')");
	$as{alice}->do("SELECT outbox.register_handler('pub.*', 'alice.h_mail(outbox.message)', subscription => 'mail')");
	is_state($as{alice}, "SELECT outbox.register_handler('pub.*', 'alice.h_mail(outbox.message)', subscription => 'mail')", '42710', 'a subscription: it has one handler');
	is_state($as{alice}, "SELECT outbox.register_handler('pub.a', 'alice.h_mail(outbox.message)', subscription => 'mail')", '42710', 'a subscription: whatever the pattern');
	is_state($as{bob}, "SELECT outbox.unregister_handler(NULL, subscription => 'mail')", '42501', 'a subscription: its handler is whose who registered it');
	$dbh->do("SELECT outbox.publish('pub.a', 'one', headers => '{\"a\": 1}'), outbox.publish('pub.b', 'two'), outbox.enqueue('pub.a', 'plain')");
	ok(poll(sub { $waits->('mail') == 0 }, 20), 'a subscription: what waited is handled, and what comes');
	is_deeply($seen->('mail'), [ 'mail:pub.a before alice', 'mail:pub.a one alice' ], 'a subscription: its filter stays; what was enqueued is not for it');
	is(value($dbh, "SELECT string_agg(payload, ',' ORDER BY id) FROM outbox.claim(subscription => 'other')"), 'before,one,two', 'a subscription: another one has its own');
	is(value($dbh, "SELECT string_agg(payload, ',') FROM outbox.claim() WHERE topic = 'pub.a'"), 'plain', 'a subscription: its pattern reserves no topic');
	is(value($dbh, "SELECT handler FROM outbox.topic_stats WHERE subscription = 'mail'"), undef, 'a subscription: it has nothing left');

	# a pause, and a claim beside it
	$dbh->do("SELECT outbox.pause_subscription('mail')");
	$dbh->do("SELECT outbox.publish('pub.a', 'paused', headers => '{\"a\": 1}', stream_id => '00000000-0000-4000-8000-000000000011')");
	is_deeply([ $dbh->selectrow_array("SELECT handler, paused, ready FROM outbox.topic_stats WHERE subscription = 'mail'") ], [ 'alice.h_mail(outbox.message)', 1, 1 ], 'a subscription: topic_stats knows its handler');
	$dbh->do("SELECT outbox.resume_subscription('mail')");
	ok(poll(sub { $waits->('mail') == 0 }, 20), 'a subscription: it goes on when it is resumed');
	is(value($dbh, "SELECT session FROM public.seen WHERE payload = 'paused'"), '00000000-0000-4000-8000-000000000011', 'a subscription: the stream is the published one');

	# it fails
	$dbh->do("SELECT outbox.configure_subscription('mail', max_attempts => 2)");
	$dbh->do("SELECT outbox.publish('pub.a', 'bad', headers => '{\"a\": 1}')");
	ok(poll(sub { value($dbh, "SELECT count(*) FROM outbox.dead_letters WHERE subscription = 'mail' AND payload = 'bad'") == 1 }, 20), 'a subscription: its policy says when one is dead');
	ok(scalar(log_lines(qr/handler "alice.h_mail.*" of subscription "mail" in database "postgres" has failed for message/)) == 2, 'a subscription: the log names it');

	# an admin's handler makes its subscription, and a second registration changes it
	$dbh->do("SELECT outbox.grant_admin('bob')");
	$as{bob}->do("CREATE FUNCTION bob.h_own(m outbox.message) RETURNS void LANGUAGE plpgsql AS \$body\$ BEGIN $body END \$body\$");
	$as{bob}->do("SELECT outbox.register_handler('own.*', 'bob.h_own(outbox.message)', subscription => 'own')");
	$as{bob}->do("SELECT outbox.unregister_handler('own.*', subscription => 'own')");
	$as{bob}->do("SELECT outbox.register_handler('own.#', 'bob.h_own(outbox.message)', subscription => 'own')");
	is(value($dbh, "SELECT topics::text FROM outbox.subscriptions WHERE subscription = 'own'"), '{own.#}', 'a subscription: it is made, and changed');
	is_deeply([ $dbh->selectrow_array("SELECT topic, subscription, role FROM outbox.handlers WHERE subscription = 'own'") ], [ 'own.#', 'own', 'bob' ], 'a subscription: outbox.handlers has it');
	$dbh->do("SELECT outbox.publish('own.a.b', 'deep')");
	ok(poll(sub { $waits->('own') == 0 }, 20), 'a subscription: two levels match');
	is_deeply($seen->('own'), ['own:own.a.b deep bob'], 'a subscription: once');

	# it ends: the subscription stays; or both do
	$as{bob}->do("SELECT outbox.unregister_handler(NULL, subscription => 'own')");
	$dbh->do("SELECT outbox.publish('own.x', 'left')");
	is(value($dbh, "SELECT payload FROM outbox.claim(subscription => 'own')"), 'left', 'a subscription: without its handler it is for others');
	is_state($as{bob}, "SELECT outbox.unregister_handler('own.#', subscription => 'own')", '42704', 'a subscription: it has no handler now');
	$dbh->do("SELECT outbox.unsubscribe('mail', drop_messages => true)");
	is(count_of($dbh, 'outbox.handlers WHERE subscription <> \'\''), 0, 'a subscription: unsubscribe ends its handler');
	$dbh->do("SELECT outbox.subscribe('mail', '{pub.*}')");
	$as{alice}->do("SELECT outbox.register_handler('pub.*', 'alice.h_mail(outbox.message)', subscription => 'mail')");
	$dbh->do("SELECT outbox.publish('pub.c', 'again')");
	ok(poll(sub { $waits->('mail') == 0 }, 20), 'a subscription: one that comes back is another, which has a handler');
	is($seen->('mail')->[-1], 'mail:pub.c again alice', 'a subscription: and gets its messages');

	# a row without a subscription, as a part of a dump has it
	$dbh->do("UPDATE outbox.subscribers SET state = 2 WHERE subscription = 'mail' AND state < 2");
	is_deeply([ $dbh->selectrow_array("SELECT ok, status, detail FROM outbox.status() WHERE component = 'handler of subscription default/mail'") ],
		[ 0, 'cannot be called', 'alice.h_mail(outbox.message), registered by alice, serves a subscription that does not exist' ], 'a subscription that is gone: status() says so');
	$as{alice}->do("SELECT outbox.unregister_handler(NULL, subscription => 'mail')");
	$dbh->do("SELECT outbox.unsubscribe(subscription, drop_messages => true) FROM outbox.subscriptions");
	$dbh->do("SELECT outbox.revoke_admin('bob'), outbox.grant_worker('bob')");
	$dbh->do("GRANT USAGE ON TYPE outbox.message TO bob");
	$dbh->do('TRUNCATE public.seen');
}

# --- it takes its server process down, or all of them
{
	policy($_, 2) for qw(kills crashes);
	handler('alice', 'kills', "PERFORM public.see(m); IF m.payload = 'bad' THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); END IF;", lease_seconds => 1);
	enqueue('kills', 'good', 'bad', 'fine');
	settled('kills', 'one that ends its worker: all come to an end', 40);
	is_deeply([ in_state('kills', 3), in_state('kills', 2) ], [ 1, 2 ], 'one that ends its worker: it is dead, the others are done');
	is_deeply([ sort @{ payloads_seen('kills') } ], [qw(fine good)], 'one that ends its worker: what it wrote is undone');

	$dbh->do('GRANT pg_execute_server_program TO bob');
	handler('bob', 'crashes', "PERFORM public.see(m); IF m.payload = 'bad' THEN COPY (SELECT 1) TO PROGRAM 'kill -9 \$PPID'; PERFORM pg_sleep(10); END IF;", lease_seconds => 1, batch_size => 1);
	enqueue('crashes', 'bad', 'good');
	my $again = sub { $dbh = eval { connect_to($node) } // $dbh; $_[0]->() };
	ok(poll(sub { $again->(sub { in_state('crashes', 3) == 1 }) }, 60), 'one that takes the server down: it is dead');
	ok(poll(sub { $again->(sub { in_state('crashes', 2) == 1 }) }, 60), 'one that takes the server down: the other is done');
	is(value($dbh, "SELECT attempts FROM outbox.messages WHERE topic = 'crashes' AND payload = 'bad'"), 2, 'one that takes the server down: after its attempts');
	is_deeply(payloads_seen('crashes'), ['good'], 'one that takes the server down: what it wrote is undone');
	is(scalar(log_lines(qr/terminated by signal 9/)), 2, 'one that takes the server down: as often');
}

is_deeply([ log_lines(qr/ XX000 |PANIC|TRAP/) ], [], 'no internal errors');
ok(poll(sub { !count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker'") }, 20), 'in the end, all workers leave');
check_indexes($node);
$dbh->disconnect;
$node->stop;
done_testing();
