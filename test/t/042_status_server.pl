# What status() and explain_message() say of the server around the queue: what keeps rows
# from being removed, another version of the library, a pg_cron that fails, no slot for a
# worker, workers that wait for their turn, that hang, or that are busy. As in 038_status.pl,
# each situation is made, read, and ended.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest qw(:DEFAULT own_installation own_clock status_row status_says status_is_over complaints);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# What a gate of a message says that it does not pass; nothing if it passes.
sub gate
{
	my ($dbh, $message, $gate) = @_;

	return value($dbh, 'SELECT detail FROM outbox.explain_message(?::text) WHERE gate = ? AND NOT passed', $message, $gate) // '';
}

sub gate_says
{
	my ($dbh, $message, $gate, $pattern) = @_;
	my $said;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	poll(sub { ($said = gate($dbh, $message, $gate)) =~ /$pattern/ }, 60);
	return like($said, qr/$pattern/, "explain_message(): $gate: $pattern");
}

# --- pg_cron, whose first run takes up to a minute, so it begins before all else
my ($cron, $plain);
my $conf = "cron.database_name = 'postgres'\ncron.use_background_workers = on\nmax_worker_processes = 20\nshared_preload_libraries = ";
if (-e (run_command([ 'pg_config', '--sharedir' ]))[0] . '/extension/pg_cron.control')
{
	$cron = new_node('cron', conf => "$conf 'outbox,pg_cron'");
	my $dbh = connect_to($cron);
	$dbh->do($_) for 'CREATE EXTENSION pg_cron', "SELECT outbox.create_or_update_job('minutely', 'job', '* * * * *')", "SELECT outbox.create_or_update_job('rare', 'job', '0 3 29 2 *')";
	is(status_row($dbh, 'jobs'), '1 2 scheduled - -', 'status(): jobs');

	# maintenance by pg_cron, from another database, without workers
	$plain = new_node('plain', bare => 1, conf => "$conf 'pg_cron'");
	$plain->safe_psql('postgres', 'CREATE EXTENSION pg_cron');
	$plain->safe_psql('postgres', 'CREATE DATABASE shop');
	$plain->safe_psql('shop', 'CREATE EXTENSION outbox');
	my $shop = connect_to($plain, db => 'shop');
	is(status_row($shop, 'jobs'), '1 0 scheduled - -', 'status(): no jobs');
	$shop->do('SELECT outbox.schedule_maintenance()');

	# what they run fails
	$dbh->do('ALTER DATABASE postgres SET default_transaction_read_only = on');
	$shop->do('ALTER DATABASE shop SET default_transaction_read_only = on');
	$_->disconnect for $dbh, $shop;
}

# --- what keeps rows from being removed
{
	my $primary = new_node('primary', init => { allows_streaming => 'logical' }, conf => 'autovacuum = off');
	my $dbh = connect_to($primary);
	my $name = 'xmin horizon';

	$dbh->do('CREATE DATABASE elsewhere');
	$dbh->do('CREATE TABLE public.large AS SELECT i, repeat(\'x\', 1000) FROM generate_series(1, 20000) i');
	$dbh->do("SELECT pg_create_physical_replication_slot('held')");
	$dbh->do("SELECT pg_create_logical_replication_slot('decoded', 'test_decoding')");
	$primary->backup('backup');
	my @standbys;
	for my $slot ('', 'held')
	{
		my $standby = PostgreSQL::Test::Cluster->new("standby$slot");
		$standby->init_from_backup($primary, 'backup', has_streaming => 1);
		$standby->append_conf('postgresql.conf', "hot_standby_feedback = on\nwal_receiver_status_interval = 1\nmax_standby_streaming_delay = -1\n" . ($slot ? "primary_slot_name = '$slot'" : ''));
		$standby->start;
		push @standbys, $standby;
	}
	is(status_row($dbh, $name) =~ /^1 /, 1, 'nothing holds it for long');

	# each of them, in this order; another database's sessions hold nothing here, and neither
	# does a vacuum
	my %session = map { $_ => connect_to($primary, db => $_ eq 'elsewhere' ? 'elsewhere' : 'postgres') } qw(elsewhere snapshot writer prepared vacuum);
	$session{elsewhere}->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
	$session{elsewhere}->do('SELECT 1');
	$session{vacuum}->do('SET vacuum_cost_delay = 100');
	$session{vacuum}->do('SET vacuum_cost_limit = 1');
	begin_call($session{vacuum}, 'VACUUM public.large');
	poll(sub { count_of($dbh, 'pg_stat_progress_vacuum') == 1 });
	$session{snapshot}->do("SET application_name = 'report'");
	$session{snapshot}->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
	$session{snapshot}->do('SELECT 1');
	# it has an id, and no snapshot
	$session{writer}->do('BEGIN');
	$session{writer}->do('CREATE TABLE public.other_work ()');
	$session{prepared}->do('BEGIN');
	$session{prepared}->do('CREATE TABLE public.more_work ()');
	$session{prepared}->do("PREPARE TRANSACTION 'left'");
	my @readers = map { my $reader = connect_to($_); $reader->do('BEGIN ISOLATION LEVEL REPEATABLE READ'); $reader->do('SELECT 1'); $reader } @standbys;
	ok(poll(sub { count_of($dbh, 'pg_stat_replication WHERE backend_xmin IS NOT NULL') == 1 && count_of($dbh, 'pg_replication_slots WHERE xmin IS NOT NULL') == 1 }), 'standbys tell what they read');
	$dbh->do('SET synchronous_commit = off');
	$dbh->do('DO $$ BEGIN FOR i IN 1 .. 1000100 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$');

	status_says($dbh, $name, 'End the session or the transaction, see to the standby, or drop the slot');
	my $writer = qr/session $session{writer}{pg_pid}, idle in transaction, application \S+, since /;
	# what is said of each, and what ends it
	my @holders = (
		[ qr/replication slot decoded, not in use, rows of system catalogs/ => sub { $dbh->do("SELECT pg_drop_replication_slot('decoded')") } ],
		[ qr/session $session{snapshot}{pg_pid}, idle in transaction, application report, since / => sub { $session{snapshot}->do('ROLLBACK') } ],
		[ $writer => sub { $session{writer}->do('ROLLBACK') } ],
		[ qr/prepared transaction 'left', since / => sub { $dbh->do("ROLLBACK PREPARED 'left'") } ],
		[ qr/standby standby(?!\w)/ => sub { $readers[0]->do('ROLLBACK') } ],
		[ qr/replication slot held, used by process \d+/ => sub { $_->stop for @standbys } ],
		[ qr/replication slot held, not in use/ => sub { $dbh->do("SELECT pg_drop_replication_slot('held')") } ]);
	my @named = split /; /, (status_row($dbh, $name) =~ /^0 \d+ transactions behind (.*) Finished rows/)[0] // '';
	is(scalar(@named), @holders - 1, 'all that hold it are named, and no others') || diag(join "\n", @named);
	is(value($dbh, "SELECT value > 1000000 FROM outbox.metric_samples() WHERE metric = 'outbox_snapshot_age_transactions'"), 1, 'metrics() counts them');
	my $oldest = sub { value($dbh, "SELECT subject FROM outbox.alerts(snapshot_age => '1 s') WHERE name = 'OutboxSnapshotOld'") // '' };
	like($oldest->(), $holders[1][0], 'alerts() names the oldest');
	for my $holder (@holders)
	{
		status_says($dbh, $name, $holder->[0]);
		$holder->[1]->();
		ok(poll(sub { status_row($dbh, $name) !~ /$holder->[0]/ }), "ended: $holder->[0]") || diag(status_row($dbh, $name));
		like($oldest->(), $writer, 'a transaction without a snapshot is old, too') if $holder == $holders[1];
	}
	ok(poll(sub { count_of($dbh, 'pg_stat_replication') == 0 }), 'the standbys are gone');
	is(count_of($dbh, 'pg_stat_progress_vacuum'), 1, 'the vacuum goes on');
	status_is_over($dbh, $name);
	$session{vacuum}->pg_cancel;
	$_->disconnect for values %session, $dbh;
	$primary->stop;
}

# --- another version of the library
{
	my $installation = own_installation();
	my $node = new_node('versions', conf => 'outbox.discovery_interval = 1', install_path => $installation->{path});
	my $dbh = connect_to($node);

	is(status_row($dbh, 'version'), "1 $installation->{version} library $installation->{version}, SQL $installation->{version} -", 'status(): version');
	$dbh->do("SELECT outbox.enqueue('t', 'x')");
	$dbh->disconnect;
	$installation->{install}->('9.9.9');
	$node->restart;
	$dbh = connect_to($node);
	status_says($dbh, 'version', "library 9\\.9\\.9, SQL \Q$installation->{version}\E .*ALTER EXTENSION outbox UPDATE");
	is_deeply(complaints($dbh), ['version'], 'all else is well');
	is(value($dbh, "SELECT count(*) FROM outbox.explain_message((SELECT id FROM outbox.queue)) WHERE NOT passed"), 0, 'and messages are delivered');
	$dbh->do('ALTER EXTENSION outbox UPDATE TO \'9.9.9\'');
	status_is_over($dbh, 'version');
	$dbh->disconnect;
	# and back again, as after a restore of the server's files
	$installation->{install}->($installation->{version});
	$node->restart;
	$dbh = connect_to($node);
	status_says($dbh, 'version', "library \Q$installation->{version}\E, SQL 9\\.9\\.9");
	$dbh->disconnect;
	$node->stop;
}

# --- no slot for a worker, and no turn for it
{
	my $node = new_node('slots', conf => "max_worker_processes = 3\nmax_logical_replication_workers = 0\nmax_parallel_workers = 3");
	my ($dbh, $other) = map { connect_to($node) } 1 .. 2;
	my $timer = sub { value($dbh, "SELECT outbox.schedule_timer('tick', 'x', clock_timestamp())") };

	# a query of others takes all that are left, once the worker has gone
	$dbh->do('ALTER SYSTEM SET outbox.max_workers = 1');
	ok(poll(sub { count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker'") == 0 }), 'the worker has nothing to do');
	$other->do(($dbh->{pg_server_version} < 160000 ? 'SET force_parallel_mode' : 'SET debug_parallel_query') . ' = on');
	my @hogs;
	for (1 .. 2)
	{
		my $hog = connect_to($node);
		$hog->do(($dbh->{pg_server_version} < 160000 ? 'SET force_parallel_mode' : 'SET debug_parallel_query') . ' = on');
		begin_call($hog, 'SELECT pg_sleep(600)');
		push @hogs, $hog;
	}
	ok(poll(sub { count_of($dbh, "pg_stat_activity WHERE backend_type = 'parallel worker'") == 2 }), 'all slots are taken');
	my $waits = $timer->();
	gate_says($dbh, $waits, 'dispatched', '^the server has no slot for a worker');
	status_says($dbh, 'workers', 'The server has no free slot for a worker: increase max_worker_processes');
	is(value($dbh, "SELECT message FROM outbox.alerts() WHERE name = 'OutboxWorkerMissing'"), 'no background worker can serve this database', 'alerts() says so, too');
	$_->pg_cancel for @hogs;
	$_->disconnect for @hogs;
	status_is_over($dbh, 'workers');
	ok(poll(sub { count_of($dbh, 'outbox.timer_queue') == 0 }), 'then the timer goes on');

	# the only worker that may run is stopped, in the other database
	$dbh->do('CREATE DATABASE second');
	$node->safe_psql('second', 'CREATE EXTENSION outbox');
	$node->reload;
	my $second = connect_to($node, db => 'second');
	ok(poll(sub { count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker'") == 0 }), 'the workers have nothing to do');
	$second->do("SELECT outbox.schedule_timer('tick', 'x', clock_timestamp())");
	my $pid;
	poll(sub { $pid = value($dbh, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox worker' AND datname = 'second'") });
	ok($pid && kill('STOP', $pid), 'the worker of the second database stands still');
	$waits = $timer->();
	gate_says($dbh, $waits, 'dispatched', '^the worker waits for its turn; outbox.max_workers is 1$');
	kill 'CONT', $pid;
	ok(poll(sub { count_of($dbh, 'outbox.timer_queue') == 0 }), 'then it is its turn');

	# handlers of two roles, and one of them takes long
	$dbh->do("ALTER SYSTEM SET outbox.max_handler_workers = 1");
	$node->reload;
	for my $role (qw(anna berta))
	{
		$dbh->do($_) for "CREATE ROLE $role LOGIN", "GRANT CREATE ON DATABASE postgres TO $role", "SELECT outbox.grant_worker('$role')", "SET SESSION AUTHORIZATION $role", "CREATE SCHEMA $role",
		  "CREATE FUNCTION $role.handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS \$\$ BEGIN IF m.payload = 'slow' THEN PERFORM pg_sleep(600); END IF; END \$\$",
		  "SELECT outbox.register_handler('$role', '$role.handle(outbox.message)', timeout => '1 hour')", "SELECT outbox.register_handler('$role too', '$role.handle(outbox.message)')", 'RESET SESSION AUTHORIZATION';
	}
	$dbh->do("SELECT outbox.enqueue('anna', 'slow')");
	ok(poll(sub { count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker' AND usename = 'anna' AND wait_event = 'PgSleep'") == 1 }), 'a handler takes long');
	my $behind = value($dbh, "SELECT outbox.enqueue('anna too', 'x')");
	my $waiting = value($dbh, "SELECT outbox.enqueue('berta', 'x')");
	gate_says($dbh, $waiting, 'handler is called', '^the worker of role berta waits for its turn; outbox.max_handler_workers is 1$');
	gate_says($dbh, $behind, 'handler is called', '^the worker of role anna has been busy since .*\(process \d+, outbox: handler .*anna');
	$dbh->do("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox worker' AND usename = 'anna'");
	ok(poll(sub { count_of($dbh, "outbox.queue WHERE topic IN ('anna too', 'berta')") == 0 }), 'then the others are handled');
	$_->disconnect for $dbh, $other, $second;
	$node->stop;
}

# --- a worker that hangs; five minutes pass by the server's clock
SKIP:
{
	my $clock = own_clock() or skip 'there is no C compiler', 1;
	my $node = $clock->{new_node}->('hangs');
	my $dbh = connect_to($node);

	ok(poll(sub { status_row($dbh, 'workers') =~ /^1 / && value($dbh, 'SELECT seen_at FROM outbox._workers()') }), 'a worker has been there');
	ok(poll(sub { count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker'") == 0 }), 'and has gone');
	$dbh->do("SELECT outbox.schedule_timer('tick', 'x', clock_timestamp())");
	my $pid;
	poll(sub { $pid = value($dbh, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox worker'") });
	ok($pid && kill('STOP', $pid), 'it stands still');
	my $timer = value($dbh, "SELECT outbox.schedule_timer('tick', 'x', clock_timestamp())");
	is(status_row($dbh, 'workers') =~ /^1 /, 1, 'which is not known yet');
	$clock->{set}->(400);
	status_says($dbh, 'workers', 'no round has been finished here for 00:0[5-7]:\d\d The worker hangs: see its row of pg_stat_activity');
	gate_says($dbh, $timer, 'dispatched', '^the worker has not finished a round for minutes');
	is(value($dbh, "SELECT message FROM outbox.alerts() WHERE name = 'OutboxWorkerMissing'"), 'the background worker has not finished a round', 'alerts() says so, too');
	kill 'CONT', $pid;
	status_is_over($dbh, 'workers');
	ok(poll(sub { count_of($dbh, 'outbox.timer_queue') == 0 }), 'then the timer goes on');
	$dbh->disconnect;
	$node->stop;
}

# --- by now pg_cron has tried
SKIP:
{
	skip 'pg_cron is not installed', 1 unless $cron;
	my $dbh = connect_to($cron);
	my $shop = connect_to($plain, db => 'shop');

	status_says($dbh, 'jobs', '1 failing the last run has failed: minutely at .*cron.job_run_details in database postgres has the errors');
	unlike(status_row($dbh, 'jobs'), qr/rare/, 'what has not run has not failed');
	status_says($shop, 'jobs', '1 failing the last run has failed: the maintenance at');
	is(count_of($dbh, "outbox.alerts() WHERE name = 'OutboxProblem' AND subject = 'jobs'"), 1, 'alerts() has it');
	$_->do('SET default_transaction_read_only = off') for $dbh, $shop;
	$dbh->do('ALTER DATABASE postgres RESET default_transaction_read_only');
	$shop->do('ALTER DATABASE shop RESET default_transaction_read_only');
	status_is_over($_, 'jobs') for $dbh, $shop;
	# many of them, known in another database
	$shop->do("SELECT outbox.create_or_update_job('many ' || i, 'job', '0 3 29 2 *') FROM generate_series(1, 60) i");
	my $in_cron = connect_to($plain);
	$in_cron->do("INSERT INTO cron.job_run_details (jobid, runid, database, status, start_time, end_time) SELECT jobid, nextval('cron.runid_seq'), database, 'failed', now(), now() FROM cron.job WHERE jobname ~ 'many'");
	is($in_cron->do("UPDATE cron.job SET jobname = 'renamed ' || jobname WHERE jobname ~ 'many [1-5]\$'"), 5, 'five have lost their name');
	$in_cron->disconnect;
	status_says($shop, 'jobs', '5 not scheduled, 55 failing pg_cron does not know: many 1, many 2, many 3, many 4, many 5; the last run has failed: many 10 at .*, many 14 at [^,]*, [.][.][.] ');
	$shop->disconnect;
	$plain->stop;
	$dbh->do("SELECT cron.unschedule('outbox:postgres:rare')");
	status_says($dbh, 'jobs', '1 not scheduled pg_cron does not know: rare .*set_job_enabled');
	$dbh->do("SELECT outbox.set_job_enabled('rare', true)");
	status_is_over($dbh, 'jobs');
	# its library is not loaded any more
	$dbh->disconnect;
	$cron->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'");
	$cron->restart;
	$dbh = connect_to($cron);
	status_says($dbh, 'jobs', '2 scheduled pg_cron has no process Is pg_cron in shared_preload_libraries');
	$dbh->disconnect;
	$cron->stop;
}

done_testing();
