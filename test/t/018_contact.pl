# First use, and the visibility of other sessions to operators: grants while a worker
# runs, waiting claims, what an enqueue waits for, a concurrent drop of the extension.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use Test::More;

my $node = new_node('contact', bare => 1);
my $root = connect_to($node);
my ($anna, $berta) = (owner(1), owner(2));

# --- grants right after CREATE EXTENSION, while the worker of the database begins
$root->do("CREATE ROLE $_ LOGIN") for qw(producer worker monitor admin);
my @failed;
for my $round (1 .. 10)
{
	$root->do("CREATE DATABASE fresh$round");
	my ($status, $out, $err) = $node->psql("fresh$round",
		join("\n", 'CREATE EXTENSION outbox;', map { "SELECT outbox.grant_$_('$_');" } qw(producer worker monitor admin)));
	push @failed, $err if $status != 0 || $err ne '';
	# and at the same time, each in a session of its own
	my @grants = map { my $what = $_; client(sub { connect_to($node, db => "fresh$round")->do("SELECT outbox.$what") }) }
	  map { ("revoke_$_('$_')", "grant_$_('$_')") } qw(producer worker monitor admin);
	for (@grants)
	{
		waitpid($_, 0);
		push @failed, "status $?" if $? != 0;
	}
}
is_deeply(\@failed, [], 'a role can be granted everything right after CREATE EXTENSION, beside the worker and other grants');

# --- roles come and go
$root->do('CREATE EXTENSION outbox');
$root->do("SELECT outbox.grant_$_('monitor')") for qw(producer worker monitor);
my $monitor = connect_to($node, user => 'monitor');
$root->do("SELECT outbox.enqueue('seen', 'secret', headers => '{\"h\": 1}')");
is_deeply([ $monitor->selectrow_array('SELECT topic, state FROM (SELECT * FROM outbox.messages_info) i') ], [qw(seen ready)], 'a monitor reads all columns of messages_info');
is(join(' ', grep { /^(payload|headers|last_error)$/ } keys %{ $monitor->selectrow_hashref('SELECT * FROM outbox.messages_info') }), '', 'none of which is a payload');
is_state($monitor, 'SELECT payload FROM outbox.messages', '42501', 'a payload it does not see');
$root->do("SELECT outbox.revoke_worker('monitor')");
is_state($monitor, "SELECT outbox.enqueue('seen', 'p')", '', 'revoke_worker leaves a producer what it has');
is_state($monitor, 'SELECT outbox.status_name(1)', '', 'and a monitor');
is_state($monitor, 'SELECT * FROM outbox.claim()', '42501', 'but takes what makes a worker');
$root->do("SELECT outbox.revoke_producer('monitor'), outbox.revoke_monitor('monitor')");
is_state($monitor, 'SELECT 1 FROM outbox.topics', '42501', 'nothing is left');
$monitor->disconnect;
for my $kind (qw(producer worker monitor admin))
{
	$root->do("CREATE ROLE gone; SELECT outbox.grant_$kind('gone'); SELECT outbox.revoke_$kind('gone')");
	is_state($root, 'DROP ROLE gone', '', "a role that is $kind no longer can be dropped");
}
$root->do('CREATE ROLE gone');
$root->do("SELECT outbox.grant_$_('gone')") for qw(producer worker monitor admin);
$root->do("SELECT outbox.revoke_admin('gone')");
is_state($root, 'DROP ROLE gone', '', 'so can one that was everything');

# --- a worker that is no producer sends nothing in a round trip
$root->do('CREATE ROLE plain LOGIN');
$root->do("SELECT outbox.grant_worker('plain')");
my $plain = connect_to($node, user => 'plain');
my $trip = "SELECT count(*) FROM outbox.process_work_batch('$anna', 's', 'h', 1, new_outbox_messages => '[{\"topic\": \"trip\", \"payload\": 1}]')";
is_state($plain, $trip, '42501', 'new_outbox_messages are for producers');
is_state($plain, $trip =~ s/new_outbox_messages => '.*'/batch_size => 1/r, '', 'the rest of a round trip is for workers');
$root->do("SELECT outbox.grant_producer('plain')");
is_state($plain, $trip, '', 'who is both does both');

# --- who waits, and who claimed last
my $waiter = client(sub { connect_to($node, settings => ["SET application_name = 'waiter'"])->do("SELECT * FROM outbox.claim('$berta', topics => '{wait.a,wait.b}', namespace => 'default', wait_ms => 60000)") });
ok(poll(sub { value($root, "SELECT string_agg(topic || waiting, ' ' ORDER BY topic) FROM outbox.claimers WHERE waiting > 0") eq 'wait.a1 wait.b1' }), 'the topics that a claim waits for are seen');
is(value($root, "SELECT count(*) FROM outbox.claimers c JOIN pg_stat_activity a ON a.pid = c.waiting_pids[1] WHERE a.application_name = 'waiter'"), 2, 'with its process');
$root->do("SELECT outbox.enqueue('wait.b', 'p')");
waitpid($waiter, 0);
is(value($root, "SELECT waiting || ' ' || last_application FROM outbox.claimers WHERE topic = 'wait.b'"), '0 waiter', 'then it has claimed last');
is(value($root, "SELECT application FROM outbox.leases WHERE topic = 'wait.b'"), 'waiter', 'and has the lease, though the session has ended');
is(value($root, "SELECT count(*) FROM outbox.claimers WHERE topic = 'wait.a'"), 0, 'no claim waits for the other topic');
# also one that polls, because its session uses no memory
$waiter = client(sub { connect_to($node, settings => ["SET application_name = 'poller'", 'SET outbox.use_cursor = off', "SET outbox.poll_interval = '1 min'"])->do("SELECT * FROM outbox.claim('$berta', topics => '{wait.poll}', wait_ms => 60000)") });
ok(poll(sub { value($root, "SELECT coalesce(sum(waiting), 0) FROM outbox.claimers WHERE topic = 'wait.poll'") == 1 }), 'a claim that polls is seen');
is(value($root, "SELECT a.application_name FROM outbox.claimers c JOIN pg_stat_activity a ON a.pid = c.waiting_pids[1] WHERE c.topic = 'wait.poll'"), 'poller', 'with its process');
$root->do("SELECT outbox.release('$berta')");
waitpid($waiter, 0);
is($?, 0, 'its owner can end it');
is(value($root, "SELECT count(*) FROM outbox.claimers WHERE topic = 'wait.poll'"), 0, 'then it waits no more');

# and one for a subscription, which is apart from the topic
$root->do("SELECT outbox.subscribe('waited', '{wait.#}')");
$waiter = client(sub { connect_to($node, settings => ["SET application_name = 'waiter'"])->do("SELECT * FROM outbox.claim('$berta', topics => '{wait.s}', namespace => 'default', wait_ms => 60000, subscription => 'waited')") });
ok(poll(sub { value($root, "SELECT string_agg(concat_ws(' ', topic, subscription, waiting), ',') FROM outbox.claimers WHERE waiting > 0") eq 'wait.s waited 1' }), 'the subscription that a claim waits for is seen');
$root->do("SELECT outbox.enqueue('wait.s', 'not for it'), outbox.publish('wait.s', 'p')");
waitpid($waiter, 0);
is(value($root, "SELECT string_agg(concat_ws(' ', topic, subscription, waiting, last_application), ',') FROM outbox.claimers WHERE subscription = 'waited'"), 'waited 0 waiter', 'then it has claimed for the subscription last');
is(value($root, "SELECT string_agg(concat_ws(' ', topic, subscription, application), ',') FROM outbox.leases WHERE topic = 'wait.s'"), 'wait.s waited waiter', 'and has the delivery, not what was enqueued');
$root->do("SELECT outbox.unsubscribe('waited', drop_messages => true)");

# --- what an enqueue waits for
my $first = connect_to($node);
my $stream = '5ec5ec5e-0000-4000-8000-000000000001';
$first->begin_work;
$first->do("SELECT outbox.enqueue('turn', '1', stream_id => '$stream', dedupe_key => 'k')");
$root->do("SET lock_timeout = '100ms'; SET client_min_messages = notice");
is_state($root, "SELECT outbox.enqueue('turn', '2', stream_id => '$stream')", '55P03', 'an enqueue waits for its turn in the stream');
like($root->errstr, qr/while waiting for transaction \d+ to end\n.*enqueueing in stream $stream/s, 'and says so');
is_state($root, "SELECT outbox.enqueue('turn', '2', dedupe_key => 'k')", '55P03', 'an enqueue waits for its key');
like($root->errstr, qr/taking the dedupe key of a message of topic "turn"/, 'and says so');
$root->do('RESET lock_timeout; SET client_min_messages = error');
$first->rollback;

# --- the extension is dropped while a session enqueues for the first time
$first->begin_work;
$first->do('LOCK TABLE outbox.queue');
my $second = connect_to($node, settings => ["SET application_name = 'second'"]);
$second->do("SELECT outbox.enqueue('t', 'p')", { pg_async => DBD::Pg::PG_ASYNC() });
poll(sub { value($root, "SELECT wait_event_type FROM pg_stat_activity WHERE application_name = 'second'") eq 'Lock' }) or BAIL_OUT('no wait');
$first->do('DROP EXTENSION outbox CASCADE');
$first->commit;
eval { $second->pg_result };
is($second->state, '42P01', 'the one that comes too late gets an error that says so');

# --- over an encrypted connection
SKIP:
{
	skip 'the server is built without SSL, or there is no openssl', 1
	  if $node->safe_psql('postgres', 'SHOW ssl_library') ne 'OpenSSL' || system('openssl version >/dev/null 2>&1') != 0;
	my $dir = $node->data_dir;

	system(qq{openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 2 -keyout "$dir/server.key" -out "$dir/server.crt" 2>/dev/null}) == 0 or BAIL_OUT('no certificate');
	chmod 0600, "$dir/server.key";
	$node->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'\nssl = on");
	$node->restart;
	$node->safe_psql('postgres', 'CREATE EXTENSION outbox');
	my ($status, $out, $err) = $node->psql('postgres', <<"Q", connstr => 'host=127.0.0.1 port=' . $node->port . ' dbname=postgres sslmode=require');
SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid();
SELECT outbox.enqueue('safe', 'p') IS NULL;
SELECT payload FROM outbox.claim('$anna', topics => '{safe}');
SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.leases;
Q
	is("$status $out", "0 t\nf\np\n1", 'OBX-126: all is done over an encrypted connection as well') or diag($err);
}

done_testing();
