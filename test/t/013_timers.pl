# Timers are dispatched once, when they are due, unless they are cancelled, whatever
# happens to the worker; and pg_cron itself triggers jobs, in its own database and in
# others.

use strict;
use warnings;
use DBI;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use List::Util qw(shuffle);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $seed = seed();
my $scale = scale();
my $us = '(extract(epoch FROM clock_timestamp()) * 1000000)::bigint';
my $with_states = "log_line_prefix = '%m [%p] %e %q%a '";

sub log_lines
{
	my ($server, $pattern) = @_;

	return grep { /$pattern/ } split /\n/, slurp_file($server->logfile);
}

# What a statement says when it fails.
sub complaint
{
	my ($session, $query, @parameters) = @_;

	return '' if eval { $session->do($query, undef, @parameters); 1 };
	return $session->errstr;
}

# ---------------------------------------------------------------------------
# Jobs: what must fire is set up first, and checked last
# ---------------------------------------------------------------------------

my $elsewhere = "shop 'n' \"Co\" \\ \$1";
my ($odd, $long) = ("it's \"a\" job\\ of \$\$ \$1 %s;", 'x' x 254);
my ($server, $cron, $own, $shop);

# A session in a database of whatever name.
sub session
{
	my ($db, $user) = @_;

	local $ENV{PGDATABASE} = $db;
	return DBI->connect(sprintf('dbi:Pg:host=%s;port=%d', $server->host, $server->port), $user // (getpwuid($<))[0], '',
		{ RaiseError => 1, PrintError => 0, AutoCommit => 1, AutoInactiveDestroy => 1, pg_server_prepare => 0 });
}

# What pg_cron has, of this database or of all.
sub schedules
{
	my ($db) = @_;

	return [ $cron->selectall_array('SELECT jobname, schedule, command FROM cron.job WHERE database = ? OR ?::text IS NULL ORDER BY 1', undef, $db, $db) ];
}

# The schedule and the command that a database's pg_cron has for a job.
sub schedule_of
{
	my ($db, $job) = @_;
	my @found = grep { $_->[0] eq "outbox:$db:$job" } @{ schedules() };

	return @found == 1 ? "$found[0][1] in " . value($cron, 'SELECT database FROM cron.job WHERE jobname = ?', $found[0][0]) : scalar @found;
}

# A job as the extension knows it.
sub job
{
	my ($session, $name) = @_;
	my @job = $session->selectrow_array('SELECT topic, cron_schedule, payload, enabled FROM outbox.jobs WHERE job_name = ?', undef, $name);

	return join ' ', map { $_ // 'null' } @job;
}

sub set_job
{
	my ($session, $name, $topic, $schedule, $payload) = @_;

	return complaint($session, 'SELECT outbox.create_or_update_job(?, ?, ?, ?)', $name, $topic, $schedule, $payload);
}

sub begin_jobs
{
	$server = new_node('jobs', bare => 1, conf => <<"C");
$with_states
shared_preload_libraries = 'outbox,pg_cron'
cron.database_name = 'postgres'
cron.use_background_workers = on
max_worker_processes = 24
C
	# the one database is pg_cron's own, the other is not
	$own = connect_to($server);
	$own->do($_) for 'CREATE EXTENSION outbox', 'CREATE DATABASE ' . $own->quote_identifier($elsewhere), 'CREATE ROLE app LOGIN', 'CREATE ROLE app2 LOGIN';
	$shop = session($elsewhere);
	$shop->do('CREATE EXTENSION outbox');
	return;
}

# Preloaded, but not created.
sub try_without_pg_cron
{
	for ([ $own, 'pg_cron\'s own database' ], [ $shop, 'another database' ])
	{
		my ($session, $where) = @$_;

		like(set_job($session, 'early', 't', '* * * * *'), qr/pg_cron is not installed.*\nHINT: .*CREATE EXTENSION pg_cron/s, "without pg_cron, in $where: a hint");
		is($session->state, '0A000', 'and its state');
		is(count_of($session, 'outbox.jobs'), 0, 'nothing is stored');
		is_state($session, 'SELECT outbox.schedule_maintenance()', '0A000', 'nor is maintenance scheduled');
		$session->do("INSERT INTO outbox.jobs (job_name, topic, cron_schedule) VALUES ('early', 'early', '* * * * *')");
		is(value($session, "SELECT outbox.trigger_job('early') IS NOT NULL"), 1, 'a job can be triggered');
		is_state($session, "SELECT outbox.set_job_enabled('early', false)", '', 'switched off');
		is_state($session, "SELECT outbox.delete_job('early')", '', 'and deleted');
		is(count_of($session, 'outbox.jobs'), 0, 'then it is gone');
		$session->do('DELETE FROM outbox.jobs');
	}
	return;
}

sub begin_to_fire
{
	is(set_job($own, 'every minute', 'fires', '* * * * *', 'own'), '', 'a job is scheduled');
	is(set_job($shop, 'every minute', 'fires', '* * * * *', 'shop'), '', 'in another database too');
	is(set_job($own, $odd, 'odd', '* * * * *', 'own'), '', 'a job with an odd name');
	is(set_job($shop, $odd, 'odd', '* * * * *', 'shop'), '', 'in a database with an odd name');
	is(schedule_of('postgres', $odd), '* * * * * in postgres', 'its schedule');
	is(schedule_of($elsewhere, $odd), "* * * * * in $elsewhere", 'and the one of the other database');
	for ([ $own, 'own' ], [ $shop, 'shop' ])
	{
		my ($session, $payload) = @$_;

		$session->do("SELECT outbox.create_or_update_job('off', 'off', '* * * * *'), outbox.set_job_enabled('off', false)");
		$session->do("SELECT outbox.create_or_update_job('gone', 'gone', '* * * * *'), outbox.delete_job('gone')");
		is(set_job($session, "$long$_", "long $_", '* * * * *', $payload), '', 'a job with the longest name') for 1, 2;
		is(count_of($cron, q{cron.job WHERE command LIKE '%xxx%' AND database = } . $cron->quote($payload eq 'own' ? 'postgres' : $elsewhere)), 2, 'each has its schedule');
	}
	# names that collide
	$own->do('CREATE DATABASE "postgres:a"');
	my $colon = session('postgres:a');
	$colon->do('CREATE EXTENSION outbox');
	is(set_job($own, 'a:b', 'never', '7 0 1 1 *'), '', 'a job with a colon in its name');
	is(set_job($colon, 'b', 'never', '8 0 1 1 *'), '', 'and one with a colon in the name of its database');
	is(schedule_of('postgres', 'a:b'), '7 0 1 1 * in postgres', 'the first has its own schedule');
	is(value($cron, "SELECT schedule FROM cron.job WHERE database = 'postgres:a'"), '8 0 1 1 *', 'and so has the other');
	is(value($colon, "SELECT outbox.delete_job('b')"), 1, 'it is deleted');
	is(schedule_of('postgres', 'a:b') . count_of($cron, "cron.job WHERE database = 'postgres:a'"), '7 0 1 1 * in postgres0', 'and the first stays');
	$own->do("SELECT outbox.delete_job('a:b')");
	# a database that is renamed, or restored under another name
	is(set_job($colon, 'renamed', 'never', '9 0 1 1 *'), '', 'a job of a database');
	$colon->disconnect;
	ok(poll(sub { $own->do('ALTER DATABASE "postgres:a" RENAME TO renamed') }), 'which is renamed');
	my $renamed = session('renamed');
	is(join(' ', $renamed->selectrow_array("SELECT ok, status, detail FROM outbox.status() WHERE component = 'jobs'")),
		'0 1 not scheduled pg_cron does not know: renamed', 'pg_cron does not know the job by its new name');
	$renamed->do('SELECT outbox.set_job_enabled(job_name, true) FROM outbox.jobs WHERE enabled');
	is(schedule_of('renamed', 'renamed'), '9 0 1 1 * in renamed', 'it can be scheduled again');
	$renamed->do("SELECT outbox.delete_job('renamed')");
	$cron->do("SELECT cron.unschedule(jobid) FROM cron.job WHERE database = 'postgres:a'");
	$renamed->disconnect;
	return;
}

# An admin that is not a superuser.
sub try_as_admin
{
	$_->do("SELECT outbox.grant_admin('app'), outbox.grant_admin('app2')") for $own, $shop;
	my ($here, $there, $second) = (session('postgres', 'app'), session($elsewhere, 'app'), session($elsewhere, 'app2'));

	is(set_job($here, 'admin', 'admin', '0 0 1 1 *'), '', 'an admin schedules jobs in pg_cron\'s own database');
	is(schedule_of('postgres', 'admin'), '0 0 1 1 * in postgres', 'really');
	is_state($here, "SELECT outbox.set_job_enabled('admin', false)", '', 'and switches them off');
	is(schedule_of('postgres', 'admin'), 0, 'really');
	is_state($here, "SELECT outbox.set_job_enabled('admin', true)", '', 'and on');
	is_state($here, "SELECT outbox.trigger_job('admin')", '', 'triggers');
	is_state($here, "SELECT outbox.delete_job('admin')", '', 'and deletes');
	is(schedule_of('postgres', 'admin'), 0, 'really');
	is_state($here, "SELECT outbox.schedule_maintenance('0 0 1 1 *'), outbox.schedule_maintenance(NULL)", '', 'and schedules maintenance');
	is_state($here, 'SELECT outbox.run_maintenance()', '', 'or does it');

	like(set_job($there, 'admin', 'fires', '* * * * *', 'admin'), qr/permission denied for .*cron/, 'in another database an admin needs a right of pg_cron');
	is($there->state, '42501', 'its state');
	is(job($there, 'admin'), '', 'nothing is stored');
	$cron->do('GRANT USAGE ON SCHEMA cron TO app, app2');
	$cron->do('GRANT EXECUTE ON FUNCTION cron.schedule_in_database TO app, app2');
	is(set_job($there, 'admin', 'fires', '* * * * *', 'admin'), '', 'to have the schema and schedule_in_database is enough');
	is(value($cron, 'SELECT username FROM cron.job WHERE jobname = ?', "outbox:$elsewhere:admin"), 'app', 'pg_cron calls in the name of the admin');
	is_state($there, "SELECT outbox.schedule_maintenance('0 0 1 1 *'), outbox.schedule_maintenance(NULL)", '', 'the same goes for maintenance');

	# two of them share the jobs
	$there->do("SELECT outbox.create_or_update_job('shared', 't', '1 0 1 1 *')");
	is(set_job($second, 'shared', 't', '2 0 1 1 *'), '', 'another admin changes the job');
	is(schedule_of($elsewhere, 'shared'), "2 0 1 1 * in $elsewhere", 'then it has its new schedule only');
	$there->do("SELECT outbox.create_or_update_job('shared', 't', '1 0 1 1 *')");
	is(schedule_of($elsewhere, 'shared'), "1 0 1 1 * in $elsewhere", 'and so back');
	is_state($second, "SELECT outbox.set_job_enabled('shared', false)", '', 'another admin switches it off');
	is(schedule_of($elsewhere, 'shared'), 0, 'then it has no schedule');
	$there->do("SELECT outbox.set_job_enabled('shared', true)");
	is_state($second, "SELECT outbox.delete_job('shared')", '', 'another admin deletes it');
	is(schedule_of($elsewhere, 'shared'), 0, 'then no schedule is left');
	return;
}

sub try_changes
{
	my ($session, $db) = @_;
	my $name = 'change it';
	my $never = '0 0 1 1 *';
	my $runs = sub { join ' | ', map { "$_->[0] $_->[1]" } $session->selectall_array("SELECT topic, payload FROM outbox.job_runs WHERE job_name = '$name' AND status = 0") };

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$session->do("SELECT outbox.create_or_update_job('$name', 'old', '$never', 'old')");
	is(schedule_of($db, $name), "$never in $db", "$db: a job has its schedule");
	# in one transaction, so that no worker takes the run in between
	$session->do('BEGIN');
	$session->do("SELECT outbox.trigger_job('$name')");
	is($runs->(), 'old old', "$db: a run waits");
	is(set_job($session, $name, 'new', '5 0 1 1 *', 'new'), '', "$db: the job is changed");
	is($runs->(), 'new new', "$db: and so is the run");
	$session->do('COMMIT');
	is(schedule_of($db, $name), "5 0 1 1 * in $db", "$db: and the schedule");
	is(job($session, $name), 'new 5 0 1 1 * new 1', "$db: and the job");
	ok(poll(sub { count_of($session, "outbox.messages WHERE topic = 'new' AND payload = 'new'") == 1 }, 20), "$db: the run arrives as it was last");

	like(set_job($session, $name, 'bad', 'at noon', 'bad'), qr/invalid schedule: at noon/, "$db: a bad schedule is pg_cron's error");
	is($session->state, '22023', "$db: its state") or diag($session->errstr);
	is(job($session, $name) . ' ' . schedule_of($db, $name), "new 5 0 1 1 * new 1 5 0 1 1 * in $db", "$db: nothing is changed");
	like(set_job($session, 'bad', 'bad', '99 * * * *'), qr/invalid schedule/, "$db: so with a new job");
	is(job($session, 'bad') . schedule_of($db, 'bad'), '0', "$db: nothing is stored");

	$session->do("SELECT outbox.set_job_enabled('$name', false)");
	is(schedule_of($db, $name), 0, "$db: switched off, a job has no schedule");
	is(set_job($session, $name, 'newer', '6 0 1 1 *'), '', "$db: it is changed in the meantime");
	is(schedule_of($db, $name), 0, "$db: and stays off");
	is(value($session, "SELECT outbox.trigger_job('$name', true)"), undef, "$db: pg_cron cannot trigger it");
	isnt(value($session, "SELECT outbox.trigger_job('$name')"), undef, "$db: but a hand can");
	$session->do("SELECT outbox.set_job_enabled('$name', true)");
	is(schedule_of($db, $name), "6 0 1 1 * in $db", "$db: switched on, it has its last one");

	# pg_cron may call twice
	my ($minute, @ids) = ('');
	while ($minute ne value($session, "SELECT date_trunc('minute', clock_timestamp())"))
	{
		$session->do("UPDATE outbox.jobs SET last_fired_at = NULL WHERE job_name = '$name'");
		$minute = value($session, "SELECT date_trunc('minute', clock_timestamp())");
		@ids = map { value($session, "SELECT outbox.trigger_job('$name', true)") } 1 .. 3;
	}
	is(scalar(grep { defined } @ids), 1, "$db: triggered again within a minute, pg_cron's is one run");

	# status() says that pg_cron does not know a job any more
	my $status = sub { join ' ', map { $_ // '-' } $session->selectrow_array("SELECT ok, status, detail FROM outbox.status() WHERE component = 'jobs'") };
	my $known = count_of($session, 'outbox.jobs WHERE enabled');
	is($status->(), "1 $known scheduled -", "$db: pg_cron knows all jobs");
	$cron->do('SELECT cron.unschedule(jobid) FROM cron.job WHERE database = ? AND jobname = ?', undef, $db, "outbox:$db:$name");
	is($status->(), "0 1 not scheduled pg_cron does not know: $name", "$db: and now one less");
	$session->do('SELECT outbox.set_job_enabled(job_name, true) FROM outbox.jobs WHERE enabled');
	is($status->(), "1 $known scheduled -", "$db: as status() says, they can be scheduled again");
	is(schedule_of($db, $name), "6 0 1 1 * in $db", "$db: as they were");

	is(value($session, "SELECT outbox.delete_job('$name')"), 1, "$db: a job is deleted");
	is(schedule_of($db, $name), 0, "$db: and its schedule");

	# maintenance
	my $maintenance = value($session, "SELECT outbox.schedule_maintenance('7 0 1 1 *')");
	my $scheduled = sub { value($cron, 'SELECT schedule || command FROM cron.job WHERE jobname = ? AND database = ?', $maintenance, $db) };
	is($scheduled->(), '7 0 1 1 *CALL outbox.maintain()', "$db: maintenance is scheduled");
	is(complaint($session, "SELECT outbox.schedule_maintenance('8 0 1 1 *')"), '', "$db: again");
	is($scheduled->(), '8 0 1 1 *CALL outbox.maintain()', "$db: in place of the first");
	is_state($session, "SELECT outbox.schedule_maintenance('often')", '22023', "$db: a bad schedule");
	is($scheduled->(), '8 0 1 1 *CALL outbox.maintain()', "$db: changes nothing");
	$session->do('SELECT outbox.schedule_maintenance(NULL)');
	is($scheduled->(), undef, "$db: no more");
	return;
}

sub try_transactions
{
	$own->do('BEGIN');
	$own->do("SELECT outbox.create_or_update_job('undone', 't', '* * * * *')");
	is(schedule_of('postgres', 'undone'), 0, 'before the commit no session sees a schedule');
	$own->do('ROLLBACK');
	is(job($own, 'undone') . schedule_of('postgres', 'undone'), '0', 'what is rolled back leaves none');

	# elsewhere the schedule is pg_cron's at once; what it calls says what to do
	$shop->do('BEGIN');
	$shop->do("SELECT outbox.create_or_update_job('undone', 't', '0 0 1 1 *')");
	$shop->do('ROLLBACK');
	my ($command) = map { $_->[2] } grep { $_->[0] =~ /undone/ } @{ schedules($elsewhere) };
	ends_by_hint(complaint($shop, $command), 'undone');
	return;
}

# A hint says how to end a schedule; that works.
sub ends_by_hint
{
	my ($said, $job) = @_;
	my ($remedy) = $said =~ /HINT: .*?(SELECT cron\.unschedule.*?) in the database/;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(schedule_of($elsewhere, $job), "0 0 1 1 * in $elsewhere", "$job: what is left");
	ok($remedy, "$job: a hint tells how to end it") or diag($said);
	is_state($cron, $remedy // 'SELECT', '', "$job: it is right");
	return is(schedule_of($elsewhere, $job), 0, "$job: nothing is left");
}

# What is left when the extension or its database is dropped, and created again.
sub try_drops
{
	$own->do("CREATE DATABASE dropped");
	my $theirs = connect_to($server, db => 'dropped');
	$theirs->do('CREATE EXTENSION outbox');
	$theirs->do("SELECT outbox.create_or_update_job('j', 't', '0 0 1 1 *'), outbox.create_or_update_job('k', 't', '0 0 1 1 *')");
	$theirs->do("SELECT outbox.delete_job('k')");
	$theirs->do('DROP EXTENSION outbox CASCADE');
	is(schedule_of('dropped', 'j'), '0 0 1 1 * in dropped', 'DROP EXTENSION leaves the schedules of jobs that were not deleted');
	$theirs->do('CREATE EXTENSION outbox');
	my $said = complaint($theirs, (map { $_->[2] } @{ schedules('dropped') })[0]);
	my ($remedy) = $said =~ /HINT: .*?(SELECT cron\.unschedule.*?) in the database/;
	is_state($cron, $remedy // 'SELECT none', '', 'the extension, created again, tells how to end them');
	is(schedule_of('dropped', 'j'), 0, 'so they end');

	$theirs->do("SELECT outbox.create_or_update_job('j', 't', '0 0 1 1 *')");
	$theirs->disconnect;
	ok(poll(sub { $own->do('DROP DATABASE dropped'); 1 }, 20), 'DROP DATABASE, with a job');
	is(schedule_of('dropped', 'j'), '0 0 1 1 * in dropped', 'it leaves the schedule');
	# by the name that the contract promises
	$cron->do(q{SELECT cron.unschedule('outbox:dropped:j')});
	is(schedule_of('dropped', 'j'), 0, 'which can be ended by its name');
	return;
}

sub end_jobs
{
	my $fired = sub { join ' ', sort map { $_->[0] } $_[0]->selectall_array("SELECT DISTINCT topic || ':' || payload FROM outbox.messages WHERE topic IN ('fires', 'odd', 'off', 'gone') OR topic LIKE 'long%'") };
	my @jobs = ([ $own, 'long 1:own long 2:own odd:own fires:own' ], [ $shop, 'fires:admin fires:shop long 1:shop long 2:shop odd:shop' ]);
	my $all = sub { join ' ', sort split /(?<!long) /, $_[0] };

	poll(sub { 2 == grep { $fired->($_->[0]) eq $all->($_->[1]) } @jobs }, 70);
	is($fired->($_->[0]), $all->($_->[1]), 'what pg_cron triggers arrives as messages, and nothing else') for @jobs;
	for my $session ($own, $shop)
	{
		my $odd_run = $session->selectrow_hashref("SELECT m.headers ->> 'job' AS job, r.status, r.output FROM outbox.messages m JOIN outbox.job_runs r ON r.id = (m.headers ->> 'run')::bigint WHERE m.topic = 'odd' LIMIT 1");
		is_deeply($odd_run, { job => $odd, status => 2, output => undef }, 'a message tells its job and run, which is done');
		is(value($session, "SELECT max(n) FROM (SELECT count(*) AS n FROM outbox.messages WHERE topic = 'odd' GROUP BY date_trunc('minute', created_at)) m"), 1, 'one a minute');
		isnt(value($session, 'SELECT last_fired_at FROM outbox.jobs WHERE job_name = ?', $odd), undef, 'the job knows when');
	}
	ok(poll(sub { count_of($cron, "cron.job_run_details WHERE status = 'succeeded'") >= 9 }, 5), 'pg_cron is content');
	is_deeply([ $cron->selectall_array("SELECT command, return_message FROM cron.job_run_details WHERE status = 'failed'") ], [], 'always');
	is_deeply([ log_lines($server, qr/ XX\d\d\d | 40P01 |PANIC|TRAP/) ], [], 'no internal errors, and no deadlocks');
	$_->disconnect for $own, $shop, $cron;
	$server->stop;
	return;
}

# ---------------------------------------------------------------------------
# Timers
# ---------------------------------------------------------------------------

my $node = new_node('timers', conf => $with_states);
my $dbh = connect_to($node);
my $anna = owner(1);

sub set
{
	my ($name, $value) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET $name = $value");
	$node->reload;
	return;
}

sub worker_is_gone
{
	return poll(sub { count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker'") == 0 }, 20);
}

# A process that claims one topic again and again; what comes, and when.
sub claimer
{
	my $topic = shift;
	pipe(my $answers, my $tell) or die $!;
	client(sub {
		my $waiting = connect_to($node);

		$tell->autoflush(1);
		print $tell "$waiting->{pg_pid}\n";
		while (1)
		{
			my @got = $waiting->selectall_array("SELECT payload, $us FROM outbox.claim(?, 600, topics => ARRAY[?], wait_ms => 20000)", undef, $anna, $topic);
			print $tell "$_->[0] $_->[1]\n" for @got;
		}
	});
	close $tell;
	chomp(my $backend = <$answers>);
	return { answers => $answers, backend => $backend };
}

sub is_asleep
{
	return value($dbh, "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = ?", $_[0]{backend});
}

# How long after its due time a timer is claimed, in milliseconds.
sub lateness
{
	my ($claimer, $topic, $payload, $delay) = @_;

	poll(sub { is_asleep($claimer) }, 20) unless is_asleep($claimer);
	my $due = value($dbh, "WITH due AS MATERIALIZED (SELECT clock_timestamp() + ?::interval AS at), t AS MATERIALIZED (SELECT outbox.schedule_timer(?, ?, at) FROM due) SELECT (extract(epoch FROM at) * 1000000)::bigint FROM due, t",
		$delay, $topic, $payload);
	my ($got, $at) = split ' ', readline($claimer->{answers}) // '';

	return $got eq $payload ? ($at - $due) / 1000 : 999_999;
}

sub try_lateness
{
	my $claimer = claimer('soon');
	my @took = map { lateness($claimer, 'soon', $_, '0') } 1 .. 100;
	my $first = shift @took;

	@took = sort { $a <=> $b } @took;
	diag(sprintf('from a timer due now to a waiting claim: median %.2f ms, at most %.2f ms; the first, which calls the worker, %.2f ms', $took[ @took / 2 ], $took[-1], $first));
	cmp_ok($took[ @took / 2 ], '<', 20, 'a timer due now reaches a waiting claim within milliseconds');
	cmp_ok($took[-1], '<', 1000, 'always');
	my $late = lateness($claimer, 'soon', 'second', '1 s');
	cmp_ok($late, '>=', 0, 'a timer due in a second does not come before');
	cmp_ok($late, '<', 500, 'and within half a second then');
	diag(sprintf('a timer due in a second: %.2f ms late', $late));
	# unexpected work: the worker has left
	worker_is_gone();
	$late = lateness($claimer, 'soon', 'alone', '0');
	cmp_ok($late, '<', 1000, 'a timer calls a worker that has left');
	diag(sprintf('a timer due now, without a worker: %.2f ms', $late));
	# paused timers stay, and keep neither the worker nor other timers
	$dbh->do("SELECT outbox.pause_topic('held', kind => 'timer'), outbox.schedule_timer('held', 'p', now())");
	ok(worker_is_gone(), 'a timer that is due and paused does not keep the worker');
	$late = lateness($claimer, 'soon', 'beside', '2 s');
	cmp_ok($late, '<', 500, 'a timer beside one that is due and paused: within half a second');
	is(count_of($dbh, "outbox.messages WHERE topic = 'held'"), 0, 'which stays');
	$dbh->do("SELECT outbox.resume_topic('held', kind => 'timer')");
	ok(poll(sub { count_of($dbh, "outbox.messages WHERE topic = 'held'") == 1 }, 5), 'resumed, it is dispatched at once');
	return;
}

sub try_without_dispatch
{
	set('outbox.dispatch_timers', 'off');
	# a worker that is there may not know it yet
	ok(worker_is_gone(), 'the worker leaves');
	$dbh->do("SELECT outbox.schedule_timer('kept', i::text, now()) FROM generate_series(1, 3) i");
	# the worker makes a round
	$dbh->do("SELECT outbox.enqueue_join_wait(j, false, 'round', 'made'), outbox.cancel_join(j) FROM outbox.start_join('g', 1) j");
	$dbh->do("SELECT outbox.enqueue_join_wait(j, false, 'round', 'made'), outbox.report_step_completed(j, outbox.enqueue_step(j, 'step', 's')) FROM outbox.start_join('g', 1) j");
	ok(poll(sub { count_of($dbh, "outbox.messages WHERE topic = 'round'") == 1 }, 20), 'a worker works');
	ok(worker_is_gone(), 'and leaves');
	is(count_of($dbh, "outbox.messages WHERE topic = 'kept'"), 0, 'without outbox.dispatch_timers no timer becomes a message');
	is(value($dbh, "SELECT string_agg(payload, ' ' ORDER BY payload) FROM outbox.claim_timers(?, 60)", $anna), '1 2 3', 'they are for claim_timers');
	$dbh->do("SELECT outbox.abandon_timers(?, ARRAY(SELECT id FROM outbox.timers WHERE status = 1 AND payload = '3'), delay => '0')", undef, $anna);
	$dbh->do("SELECT outbox.ack_timers(?, ARRAY(SELECT id FROM outbox.timers WHERE status = 1))", undef, $anna);
	set('outbox.dispatch_timers', 'on');
	ok(poll(sub { count_of($dbh, "outbox.messages WHERE topic = 'kept'") > 0 }, 20), 'switched on again, they are dispatched');
	is(value($dbh, "SELECT string_agg(payload, ' ') FROM outbox.messages WHERE topic = 'kept'"), '3', 'those that were not taken');
	return;
}

# Timers on the way, and those that cancel some of them; what is known of each.
my $batch = 0;

sub schedule_load
{
	my ($n, $span) = @_;
	my $topic = 'load' . ++$batch;

	return ($topic, map { $_->[0] } $dbh->selectall_array(
			"SELECT outbox.schedule_timer(?, i::text, clock_timestamp() + random() * ?::interval) FROM generate_series(1, ?::integer) i", undef, $topic, $span, $n));
}

# Cancels these, one after the other; a file tells which were.
sub canceller
{
	my ($file, @timers) = @_;

	return client(sub {
		my $canceller;

		open my $notes, '>', $file or die $!;
		$notes->autoflush(1);
		for my $timer (@timers)
		{
			$canceller //= poll(sub { connect_to($node) }, 60);
			my ($cancelled) = eval { value($canceller, 'SELECT outbox.cancel_timer(?)', $timer) };
			if ($@)
			{
				my $state = $canceller->state // '';
				# the server is gone: the outcome is unknown
				print $notes "$timer ", $state =~ /^(57P0|08|$)/ ? 'unknown' : "error:$state", "\n";
				undef $canceller;
				next;
			}
			print $notes "$timer ", $cancelled ? 'cancelled' : 'late', "\n";
		}
	});
}

# The replies that a canceller got, by timer.
sub said
{
	return { map { split ' ' } split /\n/, slurp_file($_[0]) };
}

# What happened to the timers of a topic, once none waits any more.
sub check_load
{
	my ($name, $topic, $timers, @files) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok(poll(sub { count_of($dbh, "outbox.timer_queue WHERE topic = '$topic'") == 0 }, 30), "$name: all is over");
	my %said = map { %{ said($_) } } @files;
	my %count;
	$count{$_}++ for values %said;
	my %sent = map { @$_ } $dbh->selectall_array('SELECT payload, count(*) FROM outbox.messages WHERE topic = ? GROUP BY 1', undef, $topic);
	my ($both, $lost, $twice) = (0, 0, 0);
	for my $i (1 .. @$timers)
	{
		my $said = $said{ $timers->[ $i - 1 ] } // 'left';
		my $sent = $sent{$i} // 0;

		$twice++ if $sent > 1;
		$both++ if $sent && $said eq 'cancelled';
		$lost++ if !$sent && $said ne 'cancelled' && $said ne 'unknown';
	}
	is_deeply([ grep { /error/ } keys %count ], [], "$name: no errors");
	is($twice, 0, "$name: no timer becomes two messages");
	is($both, 0, "$name: no cancelled one becomes a message");
	is($lost, 0, "$name: each other one does");
	is(value($dbh, 'SELECT count(*) FROM outbox.timers WHERE topic = ? AND status = 2', $topic), scalar(keys %sent), "$name: those that did are done");
	diag("$name: " . join ', ', map { "$_ $count{$_}" } sort keys %count);
	return %count;
}

sub try_cancels
{
	my ($topic, @timers) = schedule_load(8000 * $scale, '700 ms');
	my @order = shuffle(@timers);
	my @files = map { $node->basedir . "/cancels.$_" } 1 .. 4;
	# two of them for each timer: at most one gets the reply that it was in time
	my @pids = map { canceller($files[$_], $_ < 2 ? @order[ $_ * 2000 * $scale .. ($_ + 1) * 2000 * $scale - 1 ] : @order[ 4000 * $scale .. 7000 * $scale - 1 ]) } 0 .. 3;

	waitpid $_, 0 for @pids;
	my @twice = map { said($_) } @files[ 2, 3 ];
	is(scalar(grep { $twice[0]{$_} eq 'cancelled' && ($twice[1]{$_} // '') eq 'cancelled' } keys %{ $twice[0] }), 0, 'cancels: of two that cancel a timer, one gets true');
	# the two as one: cancelled if either reply says so
	open my $merged, '>', "$files[2].both" or die $!;
	print $merged "$_ ", $twice[0]{$_} eq 'cancelled' ? 'cancelled' : $twice[1]{$_} // 'missing', "\n" for keys %{ $twice[0] };
	close $merged;
	my %count = check_load('cancels', $topic, \@timers, @files[ 0, 1 ], "$files[2].both");
	cmp_ok($count{cancelled} // 0, '>', 100, 'cancels: many were in time');
	cmp_ok($count{late} // 0, '>', 100, 'cancels: and many too late');
	is(($count{cancelled} // 0) + count_of($dbh, "outbox.messages WHERE topic = '$topic'"), scalar(@timers), 'cancels: with the messages, they are all the timers');
	return;
}

sub try_crashes
{
	my ($topic, @timers) = schedule_load(12_000 * $scale, '4 s');
	my $file = $node->basedir . '/crash.cancels';
	my $pid = canceller($file, (shuffle(@timers))[ 0 .. 4000 * $scale ]);
	my ($killed, $busy) = (0, 0);

	for my $round (1 .. 4)
	{
		my $worker;
		my $until = time + 10;

		# while it dispatches, if we are in time
		until ($worker || time > $until)
		{
			$worker = eval { value($dbh, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox worker' AND state = 'active' AND query LIKE '%dispatch_due%'") };
		}
		last unless $worker;
		if ($round == 3)
		{
			$node->stop('immediate');
			$node->start;
		}
		else
		{
			kill 'KILL', $worker;
			wait_for_recovery($node, $worker);
		}
		$killed++;
		$dbh = connect_to($node);
	}
	is($killed, 4, 'crashes: of a worker that dispatches, and of the server');
	waitpid $pid, 0;
	my %count = check_load('crashes', $topic, \@timers, $file);
	cmp_ok($count{cancelled} // 0, '>', 0, 'crashes: some were cancelled');
	check_indexes($node);
	return;
}

# ---------------------------------------------------------------------------

my $has_cron = -e $node->config_data('--sharedir') . '/extension/pg_cron.control';
if ($has_cron)
{
	begin_jobs();
	try_without_pg_cron();
	$own->do('CREATE EXTENSION pg_cron');
	$cron = connect_to($server);
	begin_to_fire();
	try_as_admin();
	try_changes($own, 'postgres');
	try_changes($shop, $elsewhere);
	try_transactions();
	try_drops();
}
try_lateness();
try_without_dispatch();
try_cancels();
try_crashes();
is_deeply([ log_lines($node, qr/ XX\d\d\d | 40P01 |PANIC|TRAP/) ], [], 'no internal errors, and no deadlocks');
$dbh->disconnect;
$node->stop;
SKIP:
{
	skip 'pg_cron is not installed', 1 unless $has_cron;
	end_jobs();
}
done_testing();
