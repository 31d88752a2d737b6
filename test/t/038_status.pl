# status() and explain_message() name every way in which a message can stay undelivered, and
# every way in which a worker can stand still. Each situation is made, read, and ended; then
# they have nothing to say any more.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest qw(:DEFAULT status_row status_says status_is_over complaints);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = new_node('status');
my $dbh = connect_to($node);
my $me = owner(1);

# In the session of this test, unless another one is given.
sub says
{
	my ($component, $pattern, $session) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return status_says($session // $dbh, $component, $pattern);
}

sub is_over
{
	my ($component, $session) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return status_is_over($session // $dbh, $component);
}

# The gates that a message does not pass, and that each says what it should.
sub explains
{
	my ($id, $name, %gates) = @_;
	my %found = map { $_->[0] => $_->[1] // '' } $dbh->selectall_array('SELECT gate, detail FROM outbox.explain_message(?::text) WHERE NOT passed', undef, $id);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_deeply([ sort keys %found ], [ sort keys %gates ], "explain_message(): $name");
	like($found{$_} // '', qr/$gates{$_}/, "explain_message(): $name: $_") for sort keys %gates;
	return;
}

sub enqueue
{
	my ($topic, %more) = @_;
	my @names = sort keys %more;

	return value($dbh, "SELECT outbox.enqueue('$topic', 'x'" . join('', map { ", $_ => ?" } @names) . ')', @more{@names});
}

sub id_of { return value($dbh, 'SELECT id FROM outbox.messages WHERE message_id = ?', shift) }
sub clear { $dbh->do('DELETE FROM outbox.queue'); $dbh->do('DELETE FROM outbox.dead'); return }

# In a session of its own, because rows with an id look as if it loaded a dump.
sub apart { $node->safe_psql('postgres', shift); return }

is_deeply(complaints($dbh), [], 'in the beginning status() has nothing to say');

# --- transactions that stay open, looked at in the end, when they are old enough
my $stream = owner(77);
$node->safe_psql('postgres', 'CREATE DATABASE held');
$node->safe_psql('held', 'CREATE EXTENSION outbox');
my ($held, $open, $second) = map { connect_to($node, db => 'held') } 1 .. 3;
$open->do("SET application_name = 'forgetful'");
$open->begin_work;
$open->do("SELECT outbox.enqueue('slow', 'x', stream_id => '$stream')");
my $blocked = client(sub { connect_to($node, db => 'held')->do("SELECT outbox.enqueue('slow', 'y', stream_id => '$stream')") });
$second->do('BEGIN');
$second->do("SELECT outbox.enqueue('slow', 'z')");
$second->do("PREPARE TRANSACTION 'forgotten'");
$second->disconnect;
$second = connect_to($node);
my $locker = connect_to($node, db => 'held');
$locker->do("SET application_name = 'indexer'");
$locker->begin_work;
$locker->do('LOCK TABLE outbox.routes IN SHARE MODE');
my $began = time;

# --- one message, and what keeps it
my $owner = owner(2);
my $m = id_of(enqueue('t'));
explains($m, 'nothing');
explains(id_of(enqueue('t', due_time => '2100-01-01')), 'later', due => 'not before 2100-01-01');
explains(id_of(enqueue('t', due_time => 'infinity')), 'parked', due => 'not before infinity');
$m = id_of(enqueue('t', expires_at => value($dbh, "SELECT clock_timestamp() + interval '0.1 s'")));
ok(poll(sub { value($dbh, "SELECT detail FROM outbox.explain_message($m) LIMIT 1") =~ /^failed at .*reason: lease or message expired/ }), 'explain_message(): expired, and buried');
clear();
$m = id_of(enqueue('t'));
$dbh->do("SELECT outbox.claim('$owner', 600, topics => '{t}')");
explains($m, 'leased', 'not leased' => "by $owner until .*, claimed by process \\d+");
$dbh->do("SELECT outbox.nack('$owner', '{$m}', 'x', delay => '1 hour')");
explains($m, 'retry', due => 'a retry after 1 failed attempts, reason: unknown');
clear();
$m = id_of(enqueue('t'));
$second->begin_work;
my $pid = value($second, 'SELECT pg_backend_pid()');
$second->do("SELECT outbox.claim('$owner', 600, topics => '{t}')");
explains($m, 'claimed by an open transaction', 'not locked' => "by transaction \\d+, which has not ended, of process $pid");
$second->rollback;
$dbh->do("SELECT outbox.pause_topic('t')");
explains($m, 'paused', 'topic not paused' => 'resume_topic');
$dbh->do("UPDATE outbox.queue SET next_attempt_at = now() - interval '2 hours' WHERE id = $m");
says('paused', 'message default/t, with messages due since .*resume_topic');
$dbh->do("SELECT outbox.resume_topic('t')");
is_over('paused');
says('oldest ready message', 'topic "t", namespace "default"');
$dbh->do("UPDATE outbox.queue SET topic = 'lonely' WHERE id = $m");
explains($m, 'there are no workers', 'claimed for' => 'no claim for it has been made for five minutes');
my $waiting = client(sub { connect_to($node)->do("SELECT outbox.claim(topics => '{other,lonely}', wait_ms => 60000, tenant_id => '$owner')") });
ok(poll(sub { !@{ $dbh->selectall_arrayref("SELECT FROM outbox.explain_message($m) WHERE NOT passed") } }), 'explain_message(): a claim waits');
$dbh->do("SELECT pg_terminate_backend(pid) FROM outbox._waiting_claims()");
waitpid $waiting, 0;
clear();
is_over('oldest ready message');
$m = id_of(enqueue('t'));
$dbh->do("UPDATE outbox.queue SET attempts = 10, next_attempt_at = 'infinity' WHERE id = $m");
explains($m, 'no attempts left', 'attempts left' => '10 of 10', due => 'infinity');
clear();

# streams
my ($first, $next) = map { id_of(enqueue('t', stream_id => owner(5))) } 1 .. 2;
$dbh->do("SELECT outbox.claim('$owner', 600, topics => '{t}', batch_size => 1)");
explains($next, 'behind a lease', 'first in stream' => "message $first is before it: in progress by $owner");
is_over('streams');
$dbh->do("UPDATE outbox.queue SET updated_at = updated_at - interval '10 minutes' WHERE id = $first");
$dbh->do("UPDATE outbox.queue SET next_attempt_at = now() - interval '10 minutes' WHERE id = $next");
says('streams', "message $first of topic \"t\", leased until");
$dbh->do("SELECT outbox.nack('$owner', '{$first}', 'x', delay => '1 hour')");
explains($next, 'behind a retry', 'first in stream' => "message $first is before it: ready, due");
says('streams', "1 stuck message $first of topic \"t\", due .*, after 1 failed attempts .*outbox.discard");
$dbh->do("SELECT outbox.discard('{$first}')");
is_over('streams');
clear();
# one that has had many messages is found under an old snapshot, and without its cursor
my $old = connect_to($node);
$old->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
$old->do('SELECT 1');
enqueue('t', stream_id => owner(5)) for 1 .. 40;
clear();
($first, $next) = map { id_of(enqueue('t', stream_id => owner(5))) } 1 .. 2;
$dbh->do("UPDATE outbox.queue SET next_attempt_at = now() + (CASE id WHEN $first THEN '1 hour' ELSE '-10 minutes' END)::interval");
my $blind = connect_to($node);
$blind->do('SET outbox.use_cursor = off');
says('streams', "1 stuck message $first of topic \"t\", due", $_) for $dbh, $blind;
$old->do('ROLLBACK');
$_->disconnect for $old, $blind;
clear();
$dbh->do("SELECT outbox.purge_topic('t')");

# instances
my ($i1, $i2) = (owner(11), owner(12));
$dbh->do("SELECT outbox.process_work_batch('$_', 'svc', 'host$_', 1)") for $i1, $i2;
$m = id_of(enqueue('t', stream_id => owner(5)));
explains($m, 'partition of an instance', 'for any instance' => 'partition \d+ of 10000 belongs to instance');
$dbh->do("UPDATE outbox.instances SET last_heartbeat_at = now() - interval '1 hour' WHERE instance_id = '$i2'");
like(status_row($dbh, 'instances'), qr/^1 2 svc on host$i2, process 1, silent since .*deregister_instance/, 'status(): a silent instance');
$dbh->do("SELECT outbox.deregister_instance('$i1'), outbox.deregister_instance('$i2')");
is_over('instances');
clear();

# triggers, row level security, read-only
$dbh->do('ALTER TABLE outbox.queue DISABLE TRIGGER outbox_queue_written');
apart("INSERT INTO outbox.queue (id, lane, next_attempt_at, updated_at, created_at, message_id, topic, payload) VALUES (nextval('outbox.message_id_seq'), 1, now(), now(), now(), gen_random_uuid(), 'raw', 'x')");
says('triggers', 'outbox_queue_written of outbox.queue is disabled .*ENABLE TRIGGER');
$m = value($dbh, "SELECT id FROM outbox.queue WHERE topic = 'raw'");
explains($m, 'written without triggers', 'in its lane' => 'without the triggers');
is(value($dbh, "SELECT count(*) FROM outbox.claim(topics => '{raw}')"), 0, 'claims do not find it');
$dbh->do('ALTER TABLE outbox.queue ENABLE TRIGGER outbox_queue_written');
is_over('triggers');
$dbh->do("UPDATE outbox.queue SET topic = topic WHERE id = $m");
is(value($dbh, "SELECT count(*) FROM outbox.claim(topics => '{raw}')"), 1, 'after an UPDATE they do');
clear();
$dbh->do('ALTER TABLE outbox.queue DISABLE TRIGGER outbox_queue_changed');
says('triggers', 'outbox_queue_changed of outbox.queue is disabled');
$dbh->do('ALTER TABLE outbox.queue ENABLE TRIGGER outbox_queue_changed');
$dbh->do('ALTER TABLE outbox.queue ENABLE ALWAYS TRIGGER outbox_queue_changed');
is_over('tables');
$m = id_of(enqueue('t'));
$dbh->do('ALTER TABLE outbox.queue ENABLE ROW LEVEL SECURITY');
explains($m, 'row level security', 'visible to all' => 'row level security');
$dbh->do('ALTER TABLE outbox.queue DISABLE ROW LEVEL SECURITY');
$dbh->do('SET default_transaction_read_only = on');
explains($m, 'read-only', 'claims can write' => 'default_transaction_read_only');
$dbh->do('SET default_transaction_read_only = off');
$dbh->do('CREATE INDEX mine ON outbox.queue (status)');
says('queue indexes', 'mine');
$dbh->do('DROP INDEX outbox.mine');
is_over('queue indexes');
# nothing is left behind by TRUNCATE
$dbh->do('TRUNCATE outbox.queue');
is_deeply(complaints($dbh), [], 'TRUNCATE: status() has nothing to say');
explains($m, 'after TRUNCATE', unfinished => 'no such message');
enqueue('t');
is(value($dbh, "SELECT count(*) FROM outbox.claim(topics => '{t}')"), 1, 'TRUNCATE: a new message is claimed');
clear();

# --- settings of the database: workers ignore them, others cannot work
$dbh->do("ALTER DATABASE postgres SET $_") for 'default_transaction_read_only = on', "default_transaction_isolation = 'serializable'", "session_replication_role = 'replica'", 'statement_timeout = 1', 'lock_timeout = 1', 'idle_in_transaction_session_timeout = 1', 'outbox.use_cursor = off';
$dbh->do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox worker'");
$dbh->do("SELECT outbox.schedule_timer('tick', 'x', clock_timestamp())");
ok(poll(sub { count_of($dbh, "outbox.messages WHERE topic = 'tick'") == 1 }), 'a worker works in spite of them');
says('settings', 'default_transaction_isolation=serializable, default_transaction_read_only=on, outbox.use_cursor=off, session_replication_role=replica');
$dbh->do("ALTER DATABASE postgres RESET ALL");
is_over('settings');
$dbh->do("CREATE ROLE alice LOGIN");
$dbh->do("ALTER ROLE alice SET default_transaction_read_only = on");
says('settings', 'default_transaction_read_only=on of role alice');
$dbh->do("ALTER ROLE alice RESET ALL");
is_over('settings');

# --- joins and waits
my $join = value($dbh, "SELECT outbox.start_join('g', 2)");
my $step = value($dbh, "SELECT outbox.enqueue_step('$join', 'step', 'x')");
my $wait = value($dbh, "SELECT outbox.enqueue_join_wait('$join', false, 'then', 'x')");
ok(poll(sub { value($dbh, "SELECT next_attempt_at = 'infinity' FROM outbox.queue WHERE message_id = '$wait'") }), 'a wait is parked');
explains(id_of($wait), 'a wait', due => 'infinity', 'for any worker' => 'a wait for a join', 'join has ended' => "join $join: 0 of 2 steps completed, 0 failed, 1 attached; not all steps are attached");
$dbh->do("UPDATE outbox.joins SET created_at = now() - interval '2 days', last_updated_at = now() - interval '2 days'");
says('joins', '1 stuck .*outbox.join_progress');
$second->begin_work;
my $xid = value($second, 'SELECT pg_current_xact_id()::xid');
apart("INSERT INTO outbox.join_rechecks (id, waits_for, join_id) VALUES (nextval('outbox.message_id_seq'), '$xid', '$join')");
says('join rechecks', '1 of them depend on transactions that have not ended');
$second->rollback;
$dbh->do("DELETE FROM outbox.joins");
is_over('joins');
is_over('join rechecks');
clear();
$dbh->do('DELETE FROM outbox.join_rechecks');

# --- publications
$dbh->do("SELECT outbox.subscribe('reader', '{news}')");
$dbh->do("SELECT outbox.publish('news', 'x')");
$m = value($dbh, "SELECT id FROM outbox.messages WHERE subscription = 'reader'");
explains($m, 'a delivery', 'for any worker' => 'only claims that name its subscription');
$dbh->do("SELECT outbox.pause_subscription('reader')");
explains($m, 'a paused subscription', 'for any worker' => 'a delivery', 'subscription not paused' => 'resume_subscription');
$dbh->do("UPDATE outbox.queue SET next_attempt_at = now() - interval '2 hours' WHERE id = $m");
says('paused', 'subscription default/reader');
$dbh->do("SELECT outbox.resume_subscription('reader')");
is_over('paused');
says('subscriptions', 'no claims for default/reader');
explains($m, 'a delivery that is not claimed', 'for any worker' => 'a delivery', 'claimed for' => 'five minutes');
$dbh->do("SELECT outbox.claim('$owner', 600, subscription => 'reader')");
$dbh->do("SELECT outbox.unsubscribe('reader')");
explains($m, 'unsubscribed', 'for any worker' => 'a delivery', subscribed => 'has unsubscribed: the message can still be settled', 'not leased' => $owner);
$dbh->do("SELECT outbox.ack('$owner', '{$m}')");
is_over('subscriptions');

# --- handlers
$dbh->do($_) for split /;;\n/, <<'Q';
GRANT USAGE, CREATE ON SCHEMA public TO alice;;
SELECT outbox.grant_worker('alice');;
CREATE FUNCTION public.handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN IF m.payload = 'bad' THEN RAISE EXCEPTION 'bad'; END IF; END $$;;
ALTER FUNCTION public.handle(outbox.message) OWNER TO alice;;
SET SESSION AUTHORIZATION alice;;
SELECT outbox.register_handler('handled', 'public.handle(outbox.message)', lease_seconds => 600);;
RESET SESSION AUTHORIZATION;;
Q
enqueue('handled');
ok(poll(sub { value($dbh, "SELECT count(*) FROM outbox.archive WHERE topic = 'handled'") == 1 }), 'a handler is called');
my $handled = sub { enqueue('handled'); return value($dbh, "SELECT id FROM outbox.queue WHERE topic = 'handled'") };
my $to_alice = 'handled by public.handle';
# the worker that is there would go on for a second
my $no_worker = sub { $dbh->do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox worker' AND usename = 'alice'"); poll(sub { !count_of($dbh, "pg_stat_activity WHERE usename = 'alice'") }) };
$no_worker->();
$dbh->do('REVOKE CONNECT ON DATABASE postgres FROM PUBLIC');
$m = $handled->();
says('worker of role alice', 'cannot run has ended with an error \d+ times in a row; .*Role alice has no privilege to connect to the database');
explains($m, 'a role that may not connect', 'for any worker' => $to_alice, 'handler is called' => 'the worker of role alice cannot start');
like(status_row($dbh, 'workers'), qr/^0 .*failing: [1-9]/, 'status(): workers');
$dbh->do('GRANT CONNECT ON DATABASE postgres TO PUBLIC');
is_over('worker of role alice');
ok(poll(sub { !count_of($dbh, "outbox.queue WHERE topic = 'handled'") }, 90), 'it is called again');
$no_worker->();
$dbh->do('ALTER ROLE alice SUPERUSER');
$m = $handled->();
says('handler of default/handled', 'cannot be called .*superuser');
explains($m, 'a role that is a superuser now', 'for any worker' => $to_alice, 'handler is called' => 'superuser');
$dbh->do('ALTER ROLE alice NOSUPERUSER');
is_over('handler of default/handled');
ok(poll(sub { !count_of($dbh, "outbox.queue WHERE topic = 'handled'") }, 90), 'it is called again');
if ($dbh->{pg_server_version} < 170000)
{
	$no_worker->();
	$dbh->do('ALTER ROLE alice NOLOGIN');
	$m = $handled->();
	says('handler of default/handled', 'cannot be called .*cannot log in');
	explains($m, 'a role that cannot log in', 'for any worker' => $to_alice, 'handler is called' => 'cannot log in');
	$dbh->do('ALTER ROLE alice LOGIN');
	is_over('handler of default/handled');
	ok(poll(sub { !count_of($dbh, "outbox.queue WHERE topic = 'handled'") }, 90), 'it is called again');
}
$no_worker->();
$dbh->do('ALTER FUNCTION public.handle(outbox.message) RENAME TO handle_other');
$dbh->do('DROP FUNCTION public.handle_other(outbox.message)');
$m = $handled->();
says('handler of default/handled', 'has lost its function');
explains($m, 'a function that is gone', 'for any worker' => $to_alice, 'handler is called' => 'has lost its function');
$dbh->do("SELECT outbox.unregister_handler('handled')");
clear();
is_over('handler of default/handled');

# --- one part of a worker's round
$dbh->do($_) for split /;;\n/, <<'Q';
CREATE FUNCTION public.no_ticks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no ticks' USING ERRCODE = 'YY001'; END $$;;
CREATE TRIGGER no_ticks BEFORE UPDATE ON outbox.timer_queue FOR EACH ROW EXECUTE FUNCTION public.no_ticks();;
Q
my $timer = value($dbh, "SELECT outbox.schedule_timer('tick', 'x', clock_timestamp())");
says('worker: timers', 'failing \d+ times in a row since .*, SQLSTATE YY001');
explains($timer, 'a timer', 'for any worker' => 'a timer', dispatched => 'it has failed \d+ times since .*, SQLSTATE YY001');
says('tables', 'timer_queue: trigger no_ticks');
$dbh->do('DROP TRIGGER no_ticks ON outbox.timer_queue');
is_over('worker: timers');
is_over('tables');
clear();

# --- workers that are not there
$dbh->do('ALTER DATABASE postgres SET outbox.dispatch_timers = off');
$dbh->do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox worker'");
my $own = connect_to($node);
$timer = value($own, "SELECT outbox.schedule_timer('tick', 'x', now())");
like(value($own, "SELECT detail FROM outbox.explain_message('$timer') WHERE gate = 'dispatched'"), qr/^outbox.dispatch_timers is off/, 'explain_message(): dispatch_timers');
$dbh->do("UPDATE outbox.timer_queue SET due_time = now() - interval '1 hour'");
says('overdue timers and runs', '1 tick: 1; the oldest since');
$dbh->do('ALTER DATABASE postgres RESET ALL');
$own->disconnect;
$dbh->do("SELECT outbox.dispatch_due()");
is_over('overdue timers and runs');
clear();

$dbh->do('ALTER DATABASE postgres SET outbox.workers = off');
my $off = connect_to($node);
says('workers', 'off .*outbox.workers is off', $off);
$dbh->do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox worker'");
$timer = value($off, "SELECT outbox.schedule_timer('tick', 'x', now())");
like(value($off, "SELECT detail FROM outbox.explain_message('$timer') WHERE gate = 'dispatched'"), qr/^outbox.workers is off/, 'explain_message(): workers are off');
$dbh->do("SELECT outbox.subscribe('many' || i, '{wide}') FROM generate_series(1, 12) i");
my $published = value($off, "SELECT outbox.publish('wide', 'x')");
$dbh->do("UPDATE outbox.expansions SET published_at = now() - interval '10 minutes'");
says('publications to deliver', '1 the oldest was published at', $off);
is(value($off, "SELECT count(*) FROM outbox.explain_message('$published') WHERE NOT passed AND detail = 'still to be delivered, in the background'"), 12, 'explain_message(): a publication');
# what nothing ends
$m = id_of(enqueue('gone', expires_at => value($dbh, "SELECT clock_timestamp() + interval '0.01 s'")));
ok(poll(sub { value($dbh, "SELECT detail FROM outbox.explain_message($m) WHERE gate = 'not expired' AND NOT passed") =~ /^expired at / }), 'explain_message(): expired');
enqueue('t');
$off->do("SELECT outbox.claim('$owner', 1, topics => '{t}')");
says('expired leases', '1 t: 1', $off);
$dbh->do('ALTER DATABASE postgres RESET ALL');
$off->disconnect;
$dbh->do("CALL outbox.maintain()");
$dbh->do("SELECT outbox.unsubscribe('many' || i, drop_messages => true) FROM generate_series(1, 12) i");
is_over($_) for 'workers', 'publications to deliver', 'expired leases';
clear();

$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION outbox');
my $other = connect_to($node, db => 'other');
is_over('workers', $other);
$dbh->do('ALTER DATABASE other ALLOW_CONNECTIONS false');
$node->reload;
says('workers', 'serves this database: no.*the database does not allow connections: ALTER DATABASE', $other);
$dbh->do('ALTER DATABASE other ALLOW_CONNECTIONS true');
$dbh->do('ALTER DATABASE other IS_TEMPLATE true');
$node->reload;
says('workers', 'serves this database: no.*the database is a template', $other);
$dbh->do('ALTER DATABASE other IS_TEMPLATE false');
$dbh->do("ALTER SYSTEM SET outbox.databases = 'postgres'");
$node->reload;
says('workers', 'serves this database: no.*outbox.databases does not name the database .*Is the database in outbox.databases', $other);
$timer = value($other, "SELECT outbox.schedule_timer('tick', 'x', now())");
like(value($other, "SELECT detail FROM outbox.explain_message('$timer') WHERE gate = 'dispatched'"), qr/^workers do not serve this database/, 'explain_message(): a database that is not served');
$dbh->do("ALTER SYSTEM RESET outbox.databases");
$node->reload;
is_over('workers', $other);
# a dump is being loaded there
$second = connect_to($node, db => 'other');
$second->begin_work;
$second->do("INSERT INTO outbox.timer_queue SELECT (jsonb_populate_record(t, jsonb_build_object('id', t.id + 1000000, 'message_id', gen_random_uuid()))).* FROM outbox.timer_queue t");
$second->do("INSERT INTO outbox.queue (id, lane, next_attempt_at, updated_at, created_at, message_id, topic, payload) VALUES (1000001, 1, now(), now(), now(), gen_random_uuid(), 'loaded', 'x')");
says('restore', 'under way sessions', $other);
$second->rollback;
$second->disconnect;
is_over('restore', $other);
# the timer becomes a message, for which an id is taken
ok(poll(sub { !value($other, 'SELECT count(*) FROM outbox.timer_queue') }), 'the timer is dispatched when the dump is loaded');
# as after a restore on top of data
$other->do("SELECT outbox.enqueue('t', 'x'), outbox.enqueue('t', 'y')");
$other->do("SELECT setval('outbox.message_id_seq', 1)");
says('ids', 'set back the next id is 2, but \d+ is in use .*setval', $other);
$other->do("SELECT setval('outbox.message_id_seq', 1000)");
is_over('ids', $other);
$other->disconnect;

# --- what has failed, is retried, and was received
my @ids = map { id_of(enqueue('f')) } 1 .. 2;
for (1 .. 3)
{
	$dbh->do("SELECT outbox.claim('$owner', 600, topics => '{f}')");
	$dbh->do("SELECT outbox.nack('$owner', '{$ids[0]}', 'x', delay => '0')");
	$dbh->do("SELECT outbox.release('$owner')");
}
says('failing messages', '1 f: 1 .*attempts_log');
$dbh->do("SELECT outbox.claim('$owner', 600, topics => '{f}')");
$dbh->do("SELECT outbox.fail('$owner', '{$ids[0],$ids[1]}', 'x')");
says('dead messages', '2 f: 2 .*requeue');
explains($ids[0], 'dead', unfinished => 'failed at .*, reason: unknown; outbox.dead_letters has the error');
$dbh->do("SELECT outbox.purge_topic('f', what => 'dead')");
is_over($_) for 'failing messages', 'dead messages';

$dbh->do("SELECT outbox.receive(gen_random_uuid(), 'in', 'x', stream_id => '" . owner(5) . "') FROM generate_series(1, 2)");
my ($in, $behind) = map { @$_ } $dbh->selectall_array('SELECT id FROM outbox.inbox_queue ORDER BY id');
explains($in, 'received', 'for any worker' => 'only outbox.claim_inbox gets it');
explains($behind, 'received, in a stream', 'for any worker' => 'claim_inbox', 'first in stream' => "message $in is before it");
$dbh->do("SELECT outbox.pause_topic('in', kind => 'inbox')");
explains($in, 'received, and paused', 'for any worker' => 'claim_inbox', 'topic not paused' => 'resume_topic');
$dbh->do("SELECT outbox.resume_topic('in', kind => 'inbox')");
$dbh->do("UPDATE outbox.inbox_queue SET next_attempt_at = now() - interval '1 hour'");
says('oldest ready inbox message', 'handler_name in .*claim_inbox');
$dbh->do("SELECT outbox.claim_inbox('$owner', 600, handler_names => '{in}', batch_size => 1)");
explains($in, 'received, and leased', 'for any worker' => 'claim_inbox', 'not leased' => $owner);
$dbh->do("UPDATE outbox.inbox_queue SET retry_count = 3 WHERE id = $in");
says('failing inbox messages', '1 in');
$dbh->do("SELECT outbox.fail_inbox('$owner', '{$in}', 'x')");
says('dead inbox messages', '1 in .*dead_inbox');
explains($in, 'received, and dead', unfinished => 'failed at .*outbox.dead_inbox has the error, outbox.requeue_inbox');
$dbh->do('DELETE FROM outbox.inbox_queue');
$dbh->do('DELETE FROM outbox.inbox_dead');
is_over($_) for 'oldest ready inbox message', 'failing inbox messages', 'dead inbox messages';

$dbh->do("ALTER DATABASE postgres SET outbox.dispatch_timers = off");
$dbh->do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox worker'");
$own = connect_to($node);
$own->do("SELECT outbox.schedule_timer('tick', 'x', now()), outbox._add_run('job', 'ran', 'x')");
$own->do("SELECT outbox.fail_timers('$owner', array_agg(id), 'x') FROM outbox.claim_timers('$owner')");
$own->do("SELECT outbox.fail_job_runs('$owner', array_agg(id), 'x') FROM outbox.claim_job_runs('$owner')");
says('dead timers', '1 tick .*dead_timers');
says('dead runs of jobs', '1 job .*dead_job_runs');
$dbh->do('DELETE FROM outbox.timer_dead');
$dbh->do('DELETE FROM outbox.run_dead');
$dbh->do('ALTER DATABASE postgres RESET ALL');
$own->disconnect;
is_over($_) for 'dead timers', 'dead runs of jobs';

# pg_cron is not there, or does not know the job
$dbh->do("INSERT INTO outbox.jobs (job_name, topic, cron_schedule) VALUES ('nightly', 'job', '0 3 * * *')");
says('jobs', '1 not scheduled pg_cron does not know: nightly pg_cron is not installed');
$dbh->do('DELETE FROM outbox.jobs');
is_over('jobs');

# --- retention that cannot
$dbh->do("SET timezone = 'UTC'");
$dbh->do("SELECT outbox._make_partition(-2, date_trunc('day', now() - interval '60 days'), '1 day')");
my $old = value($dbh, "SELECT min(name) FROM outbox._partitions()");
$dbh->do("CREATE VIEW public.depends AS SELECT id FROM outbox.$old");
says('archive', "1 overdue partitions .*$old; in the way: .*depends");
$dbh->do('DROP VIEW public.depends');
$dbh->do("CALL outbox.maintain()");
is_over('archive');
enqueue('late');
$dbh->do("SELECT outbox.ack('$owner', array_agg(id)) FROM outbox.claim('$owner', topics => '{late}')");
apart("INSERT INTO outbox.archive_unsorted SELECT (jsonb_populate_record(a, jsonb_build_object('keep', -1000, 'processed_at', now() - interval '3 hours'))).* FROM outbox.archive a WHERE topic = 'late'");
$dbh->do("DROP TABLE outbox.$_") for map { $_->[0] } $dbh->selectall_array('SELECT name FROM outbox._partitions()');
says('partitions', 'missing the archive has no partition for what is done now');
$dbh->do('CALL outbox.maintain()');
is_over('partitions');
$dbh->do('DELETE FROM outbox.archive_unsorted');

# --- now the open transactions are old enough
sleep 0.5 while time < $began + 61;
my $since = 'idle in transaction, since [-0-9:+ ]*';
says('open transactions', "2 process \\d+, application forgetful, $since, 1 others wait for it; process \\d+, application indexer, $since, has ShareLock on outbox.routes, 0 others wait for it .*pg_terminate_backend", $held);
says('prepared transactions', "1 'forgotten' since .*ROLLBACK PREPARED", $held);
is_deeply(complaints($held), [ 'open transactions', 'prepared transactions' ], 'there is no other complaint');
is_deeply(complaints($dbh), [], 'none in another database');
$_->commit for $open, $locker;
waitpid $blocked, 0;
$held->do("ROLLBACK PREPARED 'forgotten'");
is_over($_, $held) for 'open transactions', 'prepared transactions';

# --- a table that cannot be read: status() does not wait, and says for whom
$locker->begin_work;
$locker->do('LOCK TABLE outbox.queue IN ACCESS EXCLUSIVE MODE');
$blocked = client(sub { connect_to($node, db => 'held')->do("SELECT outbox.enqueue('slow', 'w')") });
says('locked tables', "cannot be read process $locker->{pg_pid}, application indexer, $since, has AccessExclusiveLock on outbox.queue, 1 others wait for it Until then nothing can be enqueued or claimed", $held);
is(value($held, 'SELECT string_agg(component, $$,$$ ORDER BY component) FROM outbox.status()'), 'locked tables,open transactions,prepared transactions', 'other rows are not known');
like(value($held, 'SELECT concat_ws($$ $$, name, subject, message) FROM outbox.alerts()'), qr/^OutboxProblem locked tables cannot be read; process $locker->{pg_pid}, /, 'alerts(): locked tables');
$locker->commit;
waitpid $blocked, 0;
is(count_of($held, "outbox.messages WHERE payload = 'w'"), 1, 'the enqueue goes on');

# a prepared transaction has no process
$locker->do($_) for 'BEGIN', 'LOCK TABLE outbox.queue IN ACCESS EXCLUSIVE MODE', "PREPARE TRANSACTION 'keeper'";
says('locked tables', "cannot be read prepared transaction 'keeper' since [-0-9:+ ]*, has AccessExclusiveLock on outbox.queue Until then", $held);
$locker->do("ROLLBACK PREPARED 'keeper'");
is_over('locked tables', $held);

# it is only asked for, behind a prepared transaction that has written, and a session that has read the table
$locker->do($_) for 'BEGIN', "SELECT outbox.enqueue('slow', 'v')", "PREPARE TRANSACTION 'writer'";
$open->begin_work;
$open->do('SELECT FROM outbox.queue LIMIT 1');
$blocked = client(sub { connect_to($node, db => 'held')->do('CLUSTER outbox.queue USING queue_pkey') });
says('locked tables', "cannot be read process $open->{pg_pid}, application forgetful, $since, 1 others wait for it; prepared transaction 'writer' since [-0-9:+ ]*; process \\d+, .*active, since [-0-9:+ ]*, waits for AccessExclusiveLock on outbox.queue, 0 others wait for it Until then", $held);
$open->commit;
$locker->do("COMMIT PREPARED 'writer'");
waitpid $blocked, 0;
is(value($held, "SELECT indisclustered FROM pg_index WHERE indexrelid = 'outbox.queue_pkey'::regclass"), 1, 'CLUSTER goes on');
is_over('locked tables', $held);
ok(poll(sub { !@{ complaints($held) } }, 90), 'all is well, also for the worker');

clear();
$dbh->do('DELETE FROM outbox.joins');
is_deeply(complaints($dbh), [], 'in the end status() has nothing to say');
$_->disconnect for $dbh, $second, $open, $locker, $held;
$node->stop;

# --- no room in shared memory
$node = new_node('full', conf => "outbox.lane_memory = 1\noutbox.databases = ''\nfsync = off");
$dbh = connect_to($node);
$dbh->do("SELECT outbox.enqueue('topic' || i, 'x') FROM generate_series(1, 3000) i");
$dbh->do("SELECT count(*) FROM outbox.claim(batch_size => 10000)");
says('shared memory', 'full \d+ of \d+ lanes in use .*Raise outbox.lane_memory to 2 MB, and restart');
$dbh->disconnect;
$node->stop;

# --- without the library, and with too few processes
$node = new_node('without', preload => 0);
$dbh = connect_to($node);
like(status_row($dbh, 'library'), qr/^0 loaded on demand/, 'status(): not preloaded');
like(status_row($dbh, 'workers'), qr/^0 none .*outbox.maintain/, 'status(): no workers');
$timer = value($dbh, "SELECT outbox.schedule_timer('tick', 'x', now())");
like(value($dbh, "SELECT detail FROM outbox.explain_message('$timer') WHERE gate = 'dispatched'"), qr/^the library is not preloaded/, 'explain_message(): not preloaded');
$dbh->disconnect;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'\nmax_worker_processes = 0");
$node->restart;
$dbh = connect_to($node);
like(status_row($dbh, 'workers'), qr/^0 no launcher .*max_worker_processes/, 'status(): no launcher');
like(value($dbh, "SELECT detail FROM outbox.explain_message('$timer') WHERE gate = 'dispatched'"), qr/^the launcher does not run/, 'explain_message(): no launcher');
$dbh->disconnect;
$node->append_conf('postgresql.conf', "max_worker_processes = 1\nmax_logical_replication_workers = 0");
$node->restart;
$dbh = connect_to($node);
$dbh->do("SELECT outbox.schedule_timer('tick', 'y', now())");
says('workers', 'The server has no free slot for a worker: increase max_worker_processes');
like(value($dbh, "SELECT detail FROM outbox.explain_message('$timer') WHERE gate = 'dispatched'"), qr/^the server has no slot/, 'explain_message(): no slot');
$dbh->disconnect;
$node->stop;

# --- a standby
my $primary = new_node('first', init => { allows_streaming => 1 });
$primary->safe_psql('postgres', "SELECT outbox.enqueue('t', 'x')");
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('second');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
$dbh = connect_to($standby);
like(status_row($dbh, 'server'), qr/^0 standby .*ask the primary/, 'status(): a standby');
explains(value($dbh, 'SELECT id FROM outbox.queue'), 'a standby', 'claims can write' => 'standby');
$dbh->disconnect;
$standby->stop;
$primary->stop;

done_testing();
