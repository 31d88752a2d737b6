# Publish and subscribe with many at once.
#
# A worker and sessions that call maintenance beside it; subscriptions that come and go
# while others publish; and many subscriptions to one topic, of which one ends with much
# that was not claimed.
#
# OUTBOX_SCALE says how much: 17 is a thousand comings and goings and subscriptions.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use Test::More;
use Time::HiRes qw(time);

my $scale = scale();
my @streams = map { "53535353-0000-4000-8000-00000000000$_" } 1 .. 3;
my $dir = PostgreSQL::Test::Utils::tempdir();

seed();
my $node = new_node('load', conf => "outbox.publish_retention = '1 d'\ndeadlock_timeout = '200ms'");
my $dbh = connect_to($node);

# A client in a process of its own that goes on until it must end; each time, it writes
# what it returns to its file, as a line.
my %files;

sub run_client
{
	my ($name, $code) = @_;
	my $file = $files{$name} = "$dir/$name";

	return client(sub {
		my $own = connect_to($node);
		open my $out, '>', $file or die $!;
		$out->autoflush(1);
		srand($$);
		while (!-e "$dir/stop")
		{
			my $line = eval { $code->($own) } // "error $@";
			print $out $line =~ s/\n.*//sr . "\n" if $line ne '';
		}
		print $out "end\n";
	});
}

# Their lines.
sub end_clients
{
	my @pids = @_;
	my %lines;

	PostgreSQL::Test::Utils::append_to_file("$dir/stop", '');
	waitpid $_, 0 for @pids;
	unlink "$dir/stop";
	for my $name (sort keys %files)
	{
		my @lines = split /\n/, PostgreSQL::Test::Utils::slurp_file($files{$name});

		is(pop @lines, 'end', "client $name has come to its end");
		is_deeply([ grep { /^error/ } @lines ], [], "client $name: no errors");
		$lines{$name} = \@lines;
	}
	%files = ();
	return \%lines;
}

sub all_is_delivered
{
	my $name = shift;

	return ok(poll(sub { !value($dbh, 'SELECT outbox._publishes_later()::int') }, 100 + 20 * $scale), "$name: nothing is left to do");
}

sub clear
{
	$dbh->do("SELECT outbox.unsubscribe(subscription, drop_messages => true) FROM outbox.subscriptions");
	all_is_delivered('the end of all subscriptions');
	$dbh->do('TRUNCATE outbox.queue, outbox.dead, outbox.publications, outbox.dedupe');
	return;
}

# One publication: its id, when the call began, and when it had been committed.
sub publish_one
{
	my $own = shift;
	my $stream = rand() < 0.5 ? $streams[ rand @streams ] : undef;
	my $began = time;
	my $id = value($own, 'SELECT outbox.publish(?, ?::text, stream_id => ?)', 'a', rand() < 0.1 ? 'x' x 3000 : 'x', $stream);

	return sprintf 'published %s %.6f %.6f', $id, $began, time;
}

# In each stream of a subscription, is the order that of the publications? Those of starts
# and of all that was delivered when it was published.
sub streams_are_in_order
{
	return is(value($dbh, <<'Q'), 0, "$_[0]: streams are in order");
SELECT count(*)
  FROM (SELECT p.seq, lag(p.seq) OVER (PARTITION BY q.subscriber, p.stream_id ORDER BY q.stream_seq) AS before
          FROM outbox.queue q JOIN outbox.publications p USING (published_id)
         WHERE p.stream_id IS NOT NULL
           AND p.subscribers @> ARRAY[q.subscriber]
           AND q.message_id = outbox._delivery_id(q.published_id, q.subscriber)) o
 WHERE o.seq < o.before
Q
}

# ---- a worker, and two sessions that call maintenance

{
	my @names = map { "m$_" } 1 .. 12;
	my $log = -s $node->logfile;
	my %more;

	$dbh->do("SELECT outbox.subscribe(name, '{a}') FROM unnest(?::text[]) name", undef, \@names);
	my @pids = (
		run_client('maintain', sub { $_[0]->do('CALL outbox.maintain()'); '' }),
		run_client('round', sub { value($_[0], 'SELECT outbox.run_maintenance()'); '' }),
		map { run_client("publisher$_", \&publish_one) } 1, 2);
	for my $i (1 .. 5 * $scale)
	{
		my $name = $names[ rand @names ];

		$more{$name} += value($dbh, "SELECT outbox.replay(?, '-infinity')", $name);
		$dbh->do("SELECT outbox.subscribe(?, '{a}', start_at => '-infinity')", undef, "late$i");
		push @names, "late$i";
		poll(sub { !count_of($dbh, 'outbox.replays') }, 10);
	}
	my $lines = end_clients(@pids);
	my $n = @{ $lines->{publisher1} } + @{ $lines->{publisher2} };
	all_is_delivered('maintenance');
	my %got = map { $_->[0] => "$_->[1] of $_->[2]" } $dbh->selectall_array(<<'Q');
SELECT s.subscription, count(*), count(DISTINCT q.published_id)
  FROM outbox.queue q JOIN outbox.subscribers s ON s.id = q.subscriber GROUP BY 1
Q
	is_deeply(\%got, { map { $_ => ($n + ($more{$_} // 0)) . " of $n" } @names }, "maintenance: each got all of $n, and all replays");
	streams_are_in_order('maintenance');
	my @wrong = grep { /ERROR|WARNING|FATAL|PANIC|deadlock/ } split /\n/, substr PostgreSQL::Test::Utils::slurp_file($node->logfile), $log;
	is_deeply(\@wrong, [], 'maintenance: nothing in the log');
	clear();
}

# ---- subscriptions that come and go

{
	my $nchanges = 60 * $scale;
	my @stay = map { "stay$_" } 1 .. 5;
	my (%called, %began, %started, $ngone);

	$dbh->do("SELECT outbox.subscribe(name, '{a}') FROM unnest(?::text[]) name", undef, \@stay);
	my @pids = map { run_client("publisher$_", \&publish_one) } 1 .. 3;
	# half of them leave again
	for my $i (1 .. $nchanges / 2)
	{
		my $start = rand() < 0.5 ? value($dbh, "SELECT clock_timestamp() - random() * interval '2 s'") : undef;
		my $name = "come$i";

		$started{$name} = value($dbh, 'SELECT extract(epoch FROM ?::timestamptz)', $start) if $start;
		$called{$name} = time;
		$dbh->do("SELECT outbox.subscribe(?, '{a}', start_at => ?)", undef, $name, $start);
		$began{$name} = time;
		$dbh->do("SELECT outbox.subscribe('go', '{a}')");
		$ngone += value($dbh, "SELECT outbox.unsubscribe('go', drop_messages => ?)::int", rand() < 0.5 ? 1 : 0);
		# no more than the server can take
		if ($i > 15)
		{
			my $old = 'come' . ($i - 15);

			if ($i % 2)
			{
				$dbh->do('SELECT outbox.unsubscribe(?)', undef, $old);
				delete $began{$old};
			}
		}
	}
	my $lines = end_clients(@pids);
	is($ngone, int($nchanges / 2), 'coming and going: each could go');
	all_is_delivered('coming and going');
	my @published = map { [ split / / ] } map { @$_ } @$lines{qw(publisher1 publisher2 publisher3)};
	my %at = map { $_->[0] => $_->[1] } $dbh->selectall_array('SELECT published_id, extract(epoch FROM published_at) FROM outbox.publications');
	my @wrong;

	is(scalar keys %at, scalar @published, 'coming and going: all that was published is kept');
	for my $name (@stay, sort keys %began)
	{
		my %got = map { $_->[0] => $_->[1] } $dbh->selectall_array(<<'Q', undef, $name);
SELECT q.published_id, count(*) FROM outbox.queue q JOIN outbox.subscribers s ON s.id = q.subscriber WHERE s.subscription = ? AND s.state < 2 GROUP BY 1
Q
		for my $one (@published)
		{
			my (undef, $id, $call, $committed) = @$one;
			my $n = $got{$id} // 0;
			my $start = $started{$name};
			my $must = !defined $began{$name} || $call > $began{$name} || defined $start && $at{$id} >= $start;
			# what was in progress when it subscribed is delivered, or not
			my $may = $must || !defined $start && $committed > $called{$name} || defined $start && $at{$id} > $start - 0.05;

			push @wrong, "$name got $id $n times" if $n > $may || $n < $must;
		}
	}
	is_deeply([ splice @wrong, 0, 10 ], [], 'coming and going: ' . @published . ' publications, for ' . (@stay + keys %began) . ' that stayed');
	streams_are_in_order('coming and going');
	is(value($dbh, 'SELECT count(*) FROM outbox.queue q WHERE NOT EXISTS (SELECT FROM outbox.subscribers s WHERE s.id = q.subscriber AND s.state < 2)'),
		0, 'coming and going: nothing is left of those that have gone');
	nothing_stranded($dbh, 'coming and going');
	clear();
}

# ---- many subscriptions to one topic

{
	my $nsubscriptions = 60 * $scale;
	my $npublications = 20;
	my ($began, $published, %took) = time;

	$dbh->do("SELECT outbox.subscribe('many' || i, '{a}') FROM generate_series(1, ?::int) i", undef, $nsubscriptions);
	$took{subscribe} = time - $began;
	$began = time;
	$dbh->do("SELECT outbox.publish('a', 'for all'::text, stream_id => CASE WHEN i % 2 = 0 THEN ?::uuid END) FROM generate_series(1, ?::int) i",
		undef, $streams[0], $npublications);
	$took{publish} = time - $began;
	all_is_delivered('many');
	$took{deliver} = time - $began;
	is_deeply([ $dbh->selectrow_array('SELECT count(*), min(n), max(n) FROM (SELECT count(*) AS n FROM outbox.queue GROUP BY subscriber) s') ],
		[ $nsubscriptions, $npublications, $npublications ], "many: each of $nsubscriptions got all");
	streams_are_in_order('many');
	$began = time;
	is(value($dbh, "SELECT count(*) FROM generate_series(1, 20) i, outbox.claim(gen_random_uuid(), 60, 1, subscription => 'many' || i)"), 20, 'many: claims');
	$took{claim} = (time - $began) / 20;
	note(join ', ', map { sprintf '%s %.2f ms', $_, 1000 * $took{$_} } sort keys %took);
	$dbh->do('SELECT outbox.release(owner_token) FROM (SELECT DISTINCT owner_token FROM outbox.queue WHERE status = 1) q');

	# half of them end, and cannot be forgotten before a transaction has ended; looking
	# after them must not cost as much as all of them times all lanes
	my $holder = connect_to($node);

	$holder->do('BEGIN');
	$holder->do('SELECT pg_current_xact_id()');
	$dbh->do("SELECT outbox.unsubscribe('many' || i) FROM generate_series(1, ?::int, 2) i", undef, $nsubscriptions);
	ok(poll(sub { !count_of($dbh, 'outbox.subscribers WHERE state = 2 AND until IS NULL') && !value($dbh, 'SELECT outbox._forget_subscribers(5000)') }),
		'many: half of them end');
	my $scans = sub { value($dbh, "SELECT sum(pg_stat_get_xact_numscans(indexrelid)) FROM pg_index WHERE indrelid = 'outbox.queue'::regclass") };

	$dbh->do('BEGIN');
	my $before = $scans->();
	is(value($dbh, 'SELECT outbox._forget_subscribers(5000)'), 0, 'many: nothing can be done for them');
	cmp_ok($scans->() - $before, '<', 2 * $nsubscriptions, 'many: that takes a look at each lane, not at each for each of them');
	$dbh->do('COMMIT');
	is(value($dbh, "SELECT status FROM outbox.status() WHERE component = 'subscriptions that are gone'"),
		$nsubscriptions < 200 ? $nsubscriptions / 2 : '100 or more', 'many: status() tells of them');
	$holder->do('ROLLBACK');
	$began = time;
	clear();
	note(sprintf 'until all have gone: %.1f s', time - $began);
}

# ---- the end of one that has claimed little

{
	my $n = $scale < 17 ? 12_000 : 100_000;
	my $ended = 10_000;
	my $other = connect_to($node, settings => ["SET statement_timeout = '10s'"]);

	$dbh->do("SELECT outbox.subscribe('slow', '{a}'), outbox.subscribe('fast', '{a}')");
	$dbh->do("SELECT outbox.publish_many('a', array_fill('p'::text, ARRAY[?::int]))", undef, $n);
	is(value($dbh, 'SELECT count(*) FROM outbox.claim(?, 3600, 1, subscription => ?)', owner(1), 'slow'), 1, 'the end: one is leased');
	my $id = value($dbh, 'SELECT id FROM outbox.queue WHERE status = 1');

	$dbh->do('BEGIN');
	my $began = time;
	is(value($dbh, "SELECT outbox.unsubscribe('slow')::int"), 1, "the end of one with $n messages");
	note(sprintf 'unsubscribe with %d messages: %.3f s, %s locks', $n, time - $began,
		value($dbh, 'SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()'));
	is(count_of($dbh, "outbox.dead WHERE subscription = 'slow'"), $ended, 'the end: the call itself ends only some of them');
	# it holds nothing that others want
	is(value($other, 'SELECT count(*) FROM outbox.claim(?, 60, 10, subscription => ?)', owner(2), 'fast'), 10, 'the end: others claim');
	is(sqlstate($other, $_), '', "the end: $_ goes on")
	  for "SELECT outbox.publish('a', 'during'::text)", "SELECT outbox.subscribe('more', '{b}')", "SELECT outbox.unsubscribe('more')";
	$dbh->do('COMMIT');
	$began = time;
	ok(poll(sub { count_of($dbh, "outbox.dead WHERE subscription = 'slow'") == $n }, 60), 'the end: in the end all are dead but what is leased, and what was published meanwhile');
	note(sprintf 'until the rest was dead: %.2f s', time - $began);
	like(value($dbh, "SELECT status || ': ' || detail FROM outbox.status() WHERE component = 'subscriptions that are gone'"),
		qr{^1: default/slow; 1 of them with messages that are leased, or not removed yet$}, 'the end: status() says what is left');
	is(value($dbh, 'SELECT outbox.ack(?, ?)', owner(1), [$id]), 1, 'the end: what is leased can be settled');
	ok(poll(sub { !value($dbh, 'SELECT outbox._publishes_later()::int') }, 60), 'the end: then it is forgotten');
	is(count_of($dbh, "outbox.queue q JOIN outbox.subscribers s ON s.id = q.subscriber WHERE s.subscription = 'fast'"), $n + 1, 'the end: the other one has all');
	nothing_stranded($dbh, 'the end');
}

# ---- one publication that cannot be delivered, among others
{
	clear();
	$dbh->do("SELECT outbox.subscribe('s' || i, '{f}') FROM generate_series(1, 10) i");
	$dbh->do(<<'Q');
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON outbox.queue
    FOR EACH ROW WHEN (NEW.payload = 'bad') EXECUTE FUNCTION refuse()
Q
	$dbh->do("SELECT outbox.publish('f', CASE WHEN i = 35 THEN 'bad' ELSE 'good' END) FROM generate_series(1, 100) i");
	ok(poll(sub { count_of($dbh, 'outbox.queue') == 990 }, 60), 'a failure: all others are delivered');
	ok(poll(sub { count_of($dbh, "outbox.status() WHERE detail ~ 'P0001'") == 1 }, 60), 'a failure: status() names it');
	is(count_of($dbh, 'outbox.expansions'), 1, 'a failure: it waits');
	$dbh->do('DROP TRIGGER refuse ON outbox.queue');
	ok(poll(sub { count_of($dbh, "outbox.queue WHERE payload = 'bad'") == 10 }, 90), 'a failure: it is delivered when it can be');
	is(count_of($dbh, 'outbox.queue'), 1000, 'a failure: each to each subscription, once');
}

check_indexes($node);
$node->stop;
done_testing();
