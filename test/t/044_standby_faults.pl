# Faults that meet a standby. On the primary the extension is dropped and made again, in
# two transactions and in one, and its database is dropped, while sessions of the standby
# have read it: what they say then, and that they go on; and both servers after a
# promotion without it. And the standby's disk is full: nothing that was acknowledged is
# lost, calls on the primary wait for a synchronous standby, which goes on when there is
# space, and can be promoted.

use strict;
use warnings;
use FindBin;

# A small file system is mounted where only this test and its servers see it. This comes
# first, since the modules below redirect the output.
BEGIN
{
	my @apart = qw(unshare --user --map-current-user --keep-caps --mount);

	if (!$ENV{OUTBOX_MOUNTS} && system("@apart mount -t tmpfs -o size=1m none /tmp >/dev/null 2>&1") == 0)
	{
		$ENV{OUTBOX_MOUNTS} = 1;
		exec @apart, $^X, $0, @ARGV;
	}
}

use lib $FindBin::RealBin;
use OutboxTest qw(:DEFAULT claim);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my ($anna, $berta) = map { owner($_) } 1 .. 2;

# A primary, with small WAL segments, and its standby, before that is started.
sub pair
{
	my ($name, $conf, $before) = @_;
	my $primary = new_node("${name}_primary", init => { allows_streaming => 1, extra => ['--wal-segsize=1'] }, conf => $conf);

	$primary->backup('backup');
	my $standby = PostgreSQL::Test::Cluster->new("${name}_standby");
	$before->($standby) if $before;
	$standby->init_from_backup($primary, 'backup', has_streaming => 1);
	$standby->append_conf('postgresql.conf', "primary_conninfo = '" . $primary->connstr . " application_name=standby'");
	return ($primary, $standby);
}

# The standby shows what the primary has.
sub replayed
{
	my ($primary, $standby) = @_;

	return $primary->wait_for_catchup('standby', 'replay', $primary->lsn('insert'));
}

sub no_internal_errors
{
	return is_deeply([ grep { / XX\d\d\d | (TRAP|PANIC): |terminated by signal/ } map { split /\n/, slurp_file($_->logfile) } @_ ], [], 'no internal errors, no crash');
}

subtest 'a dropped extension' => sub {
	my ($primary, $standby) = pair('drop', "log_line_prefix = '%m [%p] %e %b '\noutbox.discovery_interval = 1\nmax_standby_streaming_delay = 100ms\nwal_receiver_status_interval = 1");
	my $dbh = connect_to($primary);
	my @reads = ('SELECT count(*) FROM outbox.messages', 'SELECT count(*) FROM outbox.status()', 'SELECT count(*) FROM outbox.topic_stats',
		'SELECT count(*) FROM outbox.leases', 'SELECT * FROM outbox.explain_message(1)', 'SELECT outbox.metrics()', 'SELECT count(*) FROM outbox.alerts()');

	$standby->start;
	my $replica = connect_to($standby);
	my $prepared = $replica->prepare('SELECT payload FROM outbox.messages ORDER BY payload', { pg_server_prepare => 1, pg_switch_prepared => 1 });
	my $shown = sub { return join ' ', map { $_->[0] } @{ $replica->selectall_arrayref($prepared) } };
	my $write = "SELECT outbox.enqueue('t', 'refused')";

	for my $round (1 .. 3)
	{
		$dbh->do("SELECT outbox.enqueue('t', 'p$round ' || i) FROM generate_series(1, 3) i");
		$dbh->do("SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.claim('$anna', 600, 1)");
		replayed($primary, $standby);
		is($shown->(), join(' ', map { "p$round $_" } 1 .. 3), "round $round: the standby shows what there is");
		is_state($replica, $_, '', "round $round: $_") for @reads;
		is_state($replica, $write, '25006', "round $round: nothing is written");
		# one that has a snapshot and locks when the drop arrives
		my $busy = connect_to($standby);
		$busy->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
		is(count_of($busy, 'outbox.messages'), 3, "round $round: a transaction has read messages");

		if ($round == 1)
		{
			$dbh->do('DROP EXTENSION outbox CASCADE');
			replayed($primary, $standby);
			is_deeply([ grep { !/^(3F000|42P01|42883)$/ } map { sqlstate($replica, $_) } @reads, $write, 'CALL outbox.maintain()' ], [],
				'without the extension all say that there is none');
			ok(!eval { $shown->(); 1 }, 'also what was prepared');
			is($replica->state, '42P01', 'and why');
			is(value($replica, "SELECT count(*) FROM pg_extension WHERE extname = 'outbox'"), 0, 'it is gone there, too');
			$dbh->do('CREATE EXTENSION outbox');
		}
		elsif ($round == 2)
		{
			$dbh->begin_work;
			$dbh->do('DROP EXTENSION outbox CASCADE');
			$dbh->do('CREATE EXTENSION outbox');
			$dbh->commit;
		}
		else
		{
			$dbh->do('DROP EXTENSION outbox CASCADE');
		}
		replayed($primary, $standby);
		ok(!eval { $busy->do('SELECT 1'); 1 }, "round $round: that transaction gave way to the drop");
		$busy->disconnect;
		next if $round == 3;
		$replica->ping or $replica = connect_to($standby);
		is(value($replica, 'SELECT count(*) FROM outbox.messages'), 0, "round $round: the new one is empty");
		is(value($replica, "SELECT count(*) FROM outbox.status() WHERE component = 'version' AND NOT ok"), 0, "round $round: its version is right");
		$prepared = $replica->prepare('SELECT payload FROM outbox.messages ORDER BY payload', { pg_server_prepare => 1, pg_switch_prepared => 1 }) if $round == 2;
	}

	# --- a promotion without it, and the session goes on
	$primary->stop('immediate');
	$standby->promote;
	is_deeply([ grep { !/^(3F000|42P01|42883)$/ } map { sqlstate($replica, $_) } @reads, $write ], [], 'it is not there after a promotion');
	$replica->do('CREATE EXTENSION outbox');
	$replica->do("SELECT outbox.enqueue('t', i::text) FROM generate_series(1, 4) i");
	is_deeply([ claim($replica, $anna, batch_size => 2) ], [ 1, 2 ], 'the new primary makes it, and the same session works');
	is_deeply([ claim(connect_to($standby), $berta) ], [ 3, 4 ], 'so do others');
	$replica->do("SELECT outbox.schedule_timer('timer', 'came', now())");
	ok(poll(sub { count_of($replica, "outbox.messages WHERE topic = 'timer'") == 1 }, 30), 'and its workers');
	nothing_stranded($replica, 'after the promotion');
	no_internal_errors($primary, $standby);
	$replica->disconnect;
	$standby->stop;
};

subtest 'a dropped database' => sub {
	my ($primary, $standby) = pair('gone', "log_line_prefix = '%m [%p] %e %b '\noutbox.discovery_interval = 1\nmax_standby_streaming_delay = 100ms");

	$standby->start;
	$primary->safe_psql('postgres', 'CREATE DATABASE own');
	$primary->safe_psql('own', "CREATE EXTENSION outbox; SELECT outbox.enqueue('t', 'p')");
	replayed($primary, $standby);
	my $replica = connect_to($standby, db => 'own');
	is(count_of($replica, 'outbox.messages'), 1, 'the standby has it');
	ok(poll(sub { $primary->safe_psql('postgres', 'DROP DATABASE own'); 1 }, 30), 'it is dropped');
	replayed($primary, $standby);
	ok(!eval { $replica->do('SELECT 1'); 1 }, 'the session on the standby ends');
	$standby->promote;
	my $dbh = connect_to($standby);
	$dbh->do("SELECT outbox.enqueue('t', 'p'), outbox.schedule_timer('timer', 'came', now())");
	is_deeply([ claim($dbh, $anna, topics => ['t']) ], ['p'], 'the standby is promoted, and another database works');
	ok(poll(sub { count_of($dbh, "outbox.messages WHERE topic = 'timer'") == 1 }, 30), 'so do its workers');
	is_deeply([ $dbh->selectall_array("SELECT component, status, detail FROM outbox.status() WHERE component = 'workers' AND NOT ok") ], [], 'status() misses none');
	no_internal_errors($primary, $standby);
	$dbh->disconnect;
	$primary->stop;
	$standby->stop;
};

subtest 'a full disk' => sub {
	plan skip_all => 'no file system can be mounted here' if !$ENV{OUTBOX_MOUNTS};

	my ($primary, $standby) = pair('full', "log_line_prefix = '%m [%p] %e %b '\nmax_wal_size = 32MB\nmin_wal_size = 2MB\nwal_keep_size = 400MB\nwal_receiver_status_interval = 1",
		sub { system('mount', '-t', 'tmpfs', '-o', 'size=300m,mode=0700', 'none', $_[0]->basedir) == 0 or die 'could not mount' });
	my $filler = $standby->basedir . '/filler';
	my $dbh;

	$standby->start;
	$primary->append_conf('postgresql.conf', "synchronous_standby_names = 'standby'\nsynchronous_commit = on");
	$primary->reload;
	$dbh = connect_to($primary);
	ok(poll(sub { count_of($dbh, "pg_stat_replication WHERE sync_state = 'sync'") }), 'the standby is synchronous');

	my $sent = 0;
	for my $round (1 .. 2)
	{
		$dbh->do("SELECT outbox.enqueue('early', i::text) FROM generate_series(1, 20) i");
		my $complaints = () = slurp_file($standby->logfile) =~ /No space left on device/g;

		system('dd', 'if=/dev/zero', "of=$filler", 'bs=64k', 'status=none', 'oflag=append', 'conv=notrunc');
		# it is not noticed at once: there may be room in the file of WAL, and in pages
		my $waits = 0;
		for (1 .. 200)
		{
			begin_call($dbh, "SELECT outbox.enqueue_many('t', ARRAY(SELECT i || repeat(' ', 2000) FROM generate_series(?::int, ?) i))", $sent + 1, $sent + 50);
			$sent += 50;
			$waits = !poll(sub { is_done($dbh) }, 3);
			last if $waits;
			is(end_call($dbh)->{state}, '', 'enqueued') || last;
		}
		ok($waits, "round $round: a transaction waits for the standby");
		ok(poll(sub { (() = slurp_file($standby->logfile) =~ /No space left on device/g) > $complaints }), "round $round: whose disk is full");
		my $other = connect_to($primary, settings => ['SET synchronous_commit = local']);
		# what waits for the standby has committed, but not for others to see
		is(count_of($other, "outbox.messages WHERE topic = 't'"), $sent - 50, "round $round: it does not show");
		is(scalar(claim($other, $anna, topics => ['early'], batch_size => 10)), 10, "round $round: calls that do not wait go on");
		is(value($other, 'SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases', $anna), 10, "round $round: and end messages");
		$other->disconnect;
		unlink $filler or die $!;
		# it may have gone on by itself, or the process that replays has ended it
		if (system('pg_ctl', '-D', $standby->data_dir, 'status') != 0)
		{
			$standby->stop('immediate', fail_ok => 1);
			$standby->start;
		}
		is(end_call($dbh)->{state}, '', "round $round: with space again the transaction ends");
	}
	my $all = value($dbh, "SELECT count(*) || ' ' || md5(string_agg(id || payload || status, ' ' ORDER BY id)) FROM outbox.messages");
	is(count_of($dbh, "outbox.messages WHERE status = 2"), 20, 'what has ended has ended');
	is(count_of($dbh, 'outbox.messages'), $sent + 40, 'all that was sent is there');
	$primary->stop('immediate');
	$standby->promote;
	$standby->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$standby->reload;
	my $replica = connect_to($standby);
	is(value($replica, "SELECT count(*) || ' ' || md5(string_agg(id || payload || status, ' ' ORDER BY id)) FROM outbox.messages"), $all, 'on the standby, too, after a promotion');
	nothing_stranded($replica, 'there');
	is(scalar(claim($replica, $berta, batch_size => 10000)), $sent + 20, 'and can be claimed');
	check_indexes($standby);
	$replica->disconnect;
	$standby->stop;
	system('umount', $standby->basedir);
};

done_testing();
