# Large numbers of failures do not keep other work from being done, do not fill the
# log or the WAL, and are shown by status().

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('troubles', conf => <<'C');
log_line_prefix = '%m [%p] %e %b '
max_locks_per_transaction = 64
C
my $dbh = connect_to($node);

sub log_lines
{
	my ($pattern) = @_;

	return grep { /$pattern/ } split /\n/, slurp_file($node->logfile);
}

sub status_of { return join ' ', map { $_ // '-' } $dbh->selectrow_array('SELECT ok, status, detail FROM outbox.status() WHERE component = ?', undef, shift) }

sub arrives
{
	my ($topic, $n) = @_;

	return poll(sub { count_of($dbh, "outbox.messages WHERE topic = '$topic'") == $n }, 30);
}

$dbh->do($_) for
  q{CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF NEW.topic LIKE 'bad%' THEN
			RAISE EXCEPTION 'no more of these: %', NEW.payload;
		END IF;
		RETURN NEW;
	END $$},
  'CREATE TRIGGER refuse BEFORE INSERT ON outbox.queue FOR EACH ROW EXECUTE FUNCTION refuse()';

subtest 'timers and runs that are refused' => sub {
	my $timers = 300 * scale();

	# so that each is refused a few times, and then for good
	$dbh->do("SELECT outbox.configure_topic(t, kind => k, max_attempts => 4, backoff_base => interval '100 ms', backoff_max => interval '200 ms')
	            FROM unnest(ARRAY['bad timer', 'bad run'], ARRAY['timer', 'job_run']) u(t, k)");
	$dbh->do("INSERT INTO outbox.jobs (job_name, topic, cron_schedule, payload, enabled) VALUES ('bad', 'bad run', '* * * * *', 'secret', false), ('good', 'good run', '* * * * *', 'run', false)");
	$dbh->begin_work;
	$dbh->do("SELECT outbox.schedule_timer('bad timer', 'secret ' || i, now() - interval '1 h') FROM generate_series(1, $timers) i");
	$dbh->do("SELECT outbox.trigger_job('bad') FROM generate_series(1, 60)");
	$dbh->do("SELECT outbox.schedule_timer('good timer', 'timer', now()), outbox.trigger_job('good')");
	$dbh->commit;
	ok(arrives('good timer', 1), 'a timer that is due after all of them');
	ok(arrives('good run', 1), 'a run');
	ok(poll(sub { status_of('failing timers and runs') =~ /^0 \d/ }, 30), 'status() tells of those that fail again and again');
	ok(poll(sub { count_of($dbh, 'outbox.timer_dead') == $timers && count_of($dbh, 'outbox.run_dead') == 60 }, 60), 'in the end they are dead');
	is(value($dbh, "SELECT string_agg(DISTINCT attempts || ' ' || retry_count, ',') FROM (SELECT attempts, retry_count FROM outbox.timer_dead UNION ALL SELECT attempts, retry_count FROM outbox.run_dead) d"),
		'4 3', 'after so many attempts');
	is(count_of($dbh, 'outbox.attempts_log'), 4 * ($timers + 60), 'each of which has left its error');
	is(status_of('dead timers') . ', ' . status_of('dead runs of jobs'), "0 $timers bad timer, 0 60 bad", 'status() tells of them');
	is(status_of('failing timers and runs'), '1 0 -', 'and that none fails any more');
	my @said = log_lines(qr/could not be dispatched together/);
	cmp_ok(scalar @said, '>=', 2, 'the log tells of it');
	# 50 are tried singly in a call, and of runs perhaps fewer, as they came
	cmp_ok(scalar @said, '<=', 2 * ($timers / 50 + 60 / 50 + 2), 'but not with each attempt');
	is(scalar(grep { !/SQLSTATE P0001/ } @said), 0, 'by the SQLSTATE');
	is(scalar(log_lines(qr/secret \d|: secret/)), 0, 'and never what they contain');
	# more than the statistics of the table show is rolled back as well
	ok(poll(sub { value($dbh, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'timer_queue'") > 0 }, 30), 'the statistics come');
	cmp_ok(value($dbh, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'timer_queue'"), '<', 4 * $timers * 4, 'little of what is claimed is undone');
};

subtest 'a table that is locked for long' => sub {
	my $other = connect_to($node);
	my %needs = (
		timer_queue => q{SELECT outbox.schedule_timer('lock timer', 'x', now())},
		run_queue => q{INSERT INTO outbox.jobs (job_name, topic, cron_schedule, payload, enabled) VALUES ('lock', 'lock run', '* * * * *', 'x', false); SELECT outbox.trigger_job('lock')},
		queue => q{SELECT outbox.enqueue('leased', 'x')});

	for my $locked ('inbox_queue', 'timer_queue', 'run_queue')
	{
		$dbh->do('TRUNCATE outbox.queue, outbox.jobs, outbox.timer_queue, outbox.run_queue, outbox.archive');
		$dbh->do($needs{queue});
		$dbh->do('SELECT outbox.claim(?, 1)', undef, owner(1));
		$dbh->do($needs{$_}) for grep { $_ eq $locked } keys %needs;
		# as CREATE INDEX would
		$other->begin_work;
		$other->do("LOCK TABLE outbox.$locked IN SHARE MODE");
		my $rest = connect_to($node);
		$rest->do($needs{$_}) for grep { $_ ne $locked && $_ ne 'queue' } keys %needs;
		ok(poll(sub { value($rest, "SELECT status FROM outbox.queue WHERE topic = 'leased'") == 0 }, 30), "$locked: leases of the queue are reaped");
		ok(arrives('lock timer', 1), "$locked: timers come") if $locked ne 'timer_queue';
		ok(arrives('lock run', 1), "$locked: runs come") if $locked ne 'run_queue';
		ok(poll(sub { count_of($rest, "outbox.status() WHERE component LIKE 'worker: %' AND NOT ok AND detail LIKE '%55P03%'") > 0 }, 30), "$locked: status() says what does not go on")
		  if $locked ne 'inbox_queue';
		$other->rollback;
		ok(arrives('lock timer', 1) && arrives('lock run', 1), "$locked: and all is made up for");
		ok(poll(sub { count_of($rest, "outbox.status() WHERE component LIKE 'worker:%'") == 0 }, 90), "$locked: status() is content");
	}
};

subtest 'many partitions that are kept no longer' => sub {
	my $kept = sub { count_of($dbh, "outbox._partitions() WHERE until < now() - interval '100 days'") };
	my $locks = q{pg_locks WHERE pid = pg_backend_pid() AND relation IS NOT NULL};

	$dbh->do("SELECT outbox._make_partition(-2, date_trunc('day', now()) - interval '200 days' + i * interval '1 min', '1 min') FROM generate_series(1, 130) i");
	is($kept->(), 130, 'there are many');
	$dbh->begin_work;
	is(value($dbh, 'SELECT outbox.cleanup()'), 0, 'cleanup by hand');
	is($kept->(), 30, 'drops a hundred of them');
	cmp_ok(count_of($dbh, $locks), '<', 1000, 'with a bounded number of locks');
	$dbh->commit;
	is(value($dbh, "SELECT status FROM outbox.status() WHERE component = 'archive'"), '30 overdue', 'status() tells of the rest');
	$dbh->do('CALL outbox.maintain()');
	is($kept->(), 0, 'maintain drops the rest');
};

done_testing();
