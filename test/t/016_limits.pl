# The cost of a call depends on what it does, and not on what else there is: old
# snapshots, finished messages, backlogs of other tenants and instances, topics, old
# partitions of the archive. It is measured in pages and locks, which are the same on
# any machine.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest qw(:DEFAULT claim);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('limits', workers => 0, conf => "max_connections = 60\nautovacuum = off\nfsync = off");
my ($anna, $berta, $carl) = map { owner($_) } 1 .. 3;
my $stream = owner(101);
my $dbh = connect_to($node);

sub empty { $_[0]->do('TRUNCATE outbox.queue, outbox.dedupe, outbox.dead, outbox.archive, outbox.instances'); return }

# How many pages the execution of a statement looks at.
sub pages
{
	my ($session, $statement, @parameters) = @_;
	my $plan = join "\n", map { $_->[0] } $session->selectall_array("EXPLAIN (ANALYZE, BUFFERS, FORMAT json) $statement", undef, @parameters);
	my $n = 0;

	# those of the whole plan come first
	$plan =~ /"Shared $_ Blocks": (\d+)/ and $n += $1 for qw(Hit Read);
	return $n;
}

# The same as before, except for a page that is new, or full.
sub as_before
{
	my ($now, $before, $name, $more) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	note("$name: $before, then $now");
	return cmp_ok($now, '<=', $before + ($more // 12), $name);
}

# --- what was finished, while an old snapshot keeps it
for my $kind ('without a stream', 'of a stream', 'that can expire', 'of a tenant', 'that are tried again')
{
	my $old = connect_to($node);
	my $tenant = $kind =~ /tenant/ ? owner(201) : undef;
	my $enqueue = "SELECT outbox.enqueue('t', 'p', stream_id => ?, tenant_id => ?, expires_at => ?)";
	my @message = ($kind =~ /stream/ ? $stream : undef, $tenant, $kind =~ /expire/ ? '2100-01-01' : undef);
	my @claim = ('SELECT outbox.claim(?, 600, 1, tenant_id => ?)', $anna, $tenant);
	my $held = "SELECT array_agg(id) FROM outbox.queue WHERE owner_token = '$anna' ";
	my %pages;

	empty($dbh);
	$old->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
	count_of($old, 'outbox.queue');
	for my $round (1 .. 1000)
	{
		my $look = $round == 50 || $round == 1000;
		my $call = sub { my $what = shift; $look ? push @{ $pages{$what} }, pages($dbh, @_) : $dbh->do(shift, undef, @_) };

		$call->('enqueue', $enqueue, @message);
		$call->('claim', @claim);
		if ($kind =~ /again/)
		{
			$call->('nack', "SELECT outbox.nack(?, array_agg(id), 'e', '0', max_attempts => 100000) FROM outbox.queue WHERE owner_token = ?", $anna, $anna) if !$look;
			$call->('claim again', @claim);
		}
		my $ids = value($dbh, $held);
		$call->('ack', 'SELECT outbox.ack(?, ?)', $anna, $ids);
		if ($look)
		{
			$call->('an empty claim', @claim);
			$call->('reap', 'SELECT outbox.reap()');
		}
	}
	as_before(@{ $pages{$_} }[ 1, 0 ], "messages $kind, $_") for sort keys %pages;
	is(count_of($dbh, 'outbox.queue'), 0, "messages $kind: all are done");
	$old->do('COMMIT');
	$old->disconnect;
	$dbh->do('VACUUM outbox.queue');
}

# --- backlogs of others
{
	my ($one, $other) = (owner(201), owner(202));
	my @tenant = ('SELECT outbox.claim(?, 600, 1, tenant_id => ?)', $anna, $one);
	my @topics = ("SELECT outbox.claim(?, 600, 1, topics => '{mine}')", $anna);
	my $batch = "SELECT * FROM outbox.process_work_batch(?, 's', 'h', 1)";
	my $measure = sub {
		my %pages;

		$dbh->do("SELECT outbox.enqueue('t', 'p', tenant_id => ?)", undef, $one);
		pages($dbh, @tenant) for 1 .. 2;
		$pages{'an empty claim of a tenant'} = pages($dbh, @tenant);
		$dbh->do("SELECT outbox.enqueue('t', 'p', tenant_id => ?)", undef, $one);
		$pages{'a claim of a tenant'} = pages($dbh, @tenant);
		$dbh->do("SELECT outbox.enqueue('mine', 'p')");
		$pages{'a claim of a topic'} = pages($dbh, @topics);
		return \%pages;
	};

	empty($dbh);
	$dbh->do("SELECT outbox.enqueue('t', 'p', tenant_id => ?)", undef, $other);
	my $before = $measure->();
	$dbh->do("SELECT count(outbox.enqueue('t', 'x', tenant_id => ?)) FROM generate_series(1, 20000)", undef, $other);
	my $after = $measure->();
	as_before($after->{$_}, $before->{$_}, "beside the backlog of another tenant, $_") for sort keys %$before;
	nothing_stranded($dbh, 'tenants');

	# what belongs to an instance that does not work
	empty($dbh);
	$dbh->do($batch, undef, $_) for $anna, $berta;
	$dbh->do("SELECT outbox.enqueue('t', 'p')");
	pages($dbh, $batch, $anna) for 1 .. 3;
	my $few = pages($dbh, $batch, $anna);
	$dbh->do("SELECT count(outbox.enqueue('t', 'x', stream_id => md5(i::text)::uuid)) FROM generate_series(1, 10000) i");
	my $taken = 0;
	poll(sub { my $n = () = $dbh->selectall_array($batch, undef, $anna); $taken += $n; $n == 0 }, 30);
	cmp_ok($taken, '>', 4000, 'an instance takes its own half');
	cmp_ok($taken, '<', 6000, 'and not that of the other');
	as_before(pages($dbh, $batch, $anna), $few, 'then a batch is as before');
	nothing_stranded($dbh, 'instances');
	empty($dbh);
}

# --- many topics named
{
	my $session = connect_to($node, settings => ["SET statement_timeout = '20s'"]);
	my $n = 100_000;
	my $call = "SELECT count(*) FROM outbox.claim(?, namespace => ?, topics => (SELECT array_agg('none' || i) || '{mine}' FROM generate_series(1, $n) i))";

	for my $namespace ('default', undef)
	{
		my $name = $namespace ? 'with a namespace' : 'without one';

		$dbh->do("SELECT outbox.enqueue('mine', 'p')");
		my $start = time;
		is(value($session, $call, $anna, $namespace), 1, "$n topics, $name");
		cmp_ok(time - $start, '<', 10, "$n topics, $name: soon");
		my $other = time;
		is(value($dbh, 'SELECT count(*) FROM outbox.claim(?)', $anna), 0, "$n topics, $name: others go on");
		cmp_ok(time - $other, '<', 5, "$n topics, $name: soon, too");
	}
	$session->disconnect;
	empty($dbh);
}

# --- many partitions of the archive
{
	my $npartitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox.archive'::regclass";
	my %calls = (
		'enqueue with an id' => "SELECT outbox.enqueue('t', 'p', message_id => gen_random_uuid())",
		'enqueue with a key' => "SELECT outbox.enqueue('t', 'p', dedupe_key => 'k')",
		'a batch with a new message' => "SELECT * FROM outbox.process_work_batch('$anna', 's', 'h', 1, new_outbox_messages => jsonb_build_array(jsonb_build_object('message_id', gen_random_uuid(), 'topic', 't', 'payload', 'p')))");
	my $measure = sub {
		my %found;

		for my $call (sort keys %calls)
		{
			$dbh->do($calls{$call}) for 1 .. 2;
			$dbh->do('BEGIN');
			$found{"$call, pages"} = pages($dbh, $calls{$call});
			$found{"$call, locks"} = value($dbh, 'SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()');
			$found{"$call, locks on the archive"} = value($dbh, "SELECT count(*) FROM pg_locks l JOIN pg_inherits i ON i.inhrelid = l.relation WHERE l.pid = pg_backend_pid() AND i.inhparent = 'outbox.archive'::regclass AND l.mode <> 'AccessShareLock'");
			$dbh->do('COMMIT');
		}
		return \%found;
	};

	# a key that is taken by a message that has ended
	$dbh->do($calls{'enqueue with a key'});
	claim($dbh, $anna);
	$dbh->do('SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases', undef, $anna);
	my $before = $measure->();
	$dbh->do("SELECT outbox._make_partition(-1, now() - i * interval '1 day', '1 day') FROM generate_series(2, 61) i");
	cmp_ok(value($dbh, $npartitions), '>=', 60, 'two months are kept');
	my $after = $measure->();
	# each partition has its index, which must be looked into
	as_before($after->{$_}, $before->{$_}, "with many partitions, $_", /pages/ ? 3 * 61 : 2) for sort keys %$before;

	# they can be dropped beside a transaction that has looked for an id
	my $open = connect_to($node);
	$open->do('BEGIN');
	$open->do($calls{'enqueue with an id'});
	$dbh->do("SELECT outbox._make_partition(-2, now() - interval '10 days', '1 day')");
	# future ones are created in the meantime
	$dbh->do('SELECT outbox._make_partitions()');
	my $kept = value($dbh, $npartitions);
	$dbh->do('SELECT outbox.cleanup()');
	cmp_ok(value($dbh, $npartitions), '<', $kept, 'an open transaction with an id does not keep old partitions');
	$open->do('COMMIT');
	$open->disconnect;
	empty($dbh);
}
$dbh->disconnect;
check_indexes($node);
$node->stop;

# --- more topics than there is memory for
$node = new_node('topics', conf => "outbox.lane_memory = 1\nautovacuum = off\nfsync = off\nmax_prepared_transactions = 0");
$dbh = connect_to($node);
{
	my $n = 6000;
	my @named = ("SELECT outbox.claim(?, 600, 1, namespace => 'default', topics => '{topic7}')", $anna);
	my $pages = sub { return pages($dbh, @{ $_[0] }) };

	$dbh->do("SELECT outbox.enqueue('topic' || i, 'p' || i) FROM generate_series(1, 100) i");
	$pages->(\@named);
	my $before = $pages->(\@named);
	$dbh->do("SELECT count(outbox.enqueue('topic' || i, 'p' || i)) FROM generate_series(1, $n) i");
	my ($lanes, $used) = $dbh->selectrow_array('SELECT lanes, lanes_in_use FROM outbox._library()');
	cmp_ok($lanes, '<', $n, 'there are more topics than lanes');
	$pages->(\@named) for 1 .. 2;
	# a few of those without a lane are looked for on the way
	as_before($pages->(\@named), $before, 'more topics than lanes, a claim of one', 16 * 4);
	# as many as are taken are paid for, and not as there are topics
	my @all = ('SELECT outbox.claim(?, 600, 10)', $berta);
	$pages->(\@all) for 1 .. 3;
	my $most = 0;
	for (1 .. 10) { my $now = $pages->(\@all); $most = $now if $now > $most }
	note("claims over all topics: at most $most pages");
	cmp_ok($most, '<', 250, 'more topics than lanes, a claim of all');
	is(value($dbh, "SELECT count(*) FROM outbox.queue WHERE owner_token = ?", $berta), 130, 'it gets as many as it asks for');

	# others find their way
	my ($got, $empty) = (0, 0);
	for (1 .. 2000)
	{
		my $now = claim($dbh, $carl, batch_size => 500, lease_seconds => 3600);
		$got += $now;
		$empty = $now ? 0 : $empty + 1;
		last if $empty == $n / 16;
	}
	is($got, value($dbh, 'SELECT count(*) FROM outbox.queue WHERE owner_token = ?', $carl), 'all that is left can be had');
	is(count_of($dbh, 'outbox.queue WHERE status = 0'), 0, 'all of it');

	# who uses little is not made to pay for who uses much
	$dbh->do('CREATE DATABASE small');
	my $small = connect_to($node, db => 'small');
	$small->do('CREATE EXTENSION outbox');
	$small->do("SELECT outbox.enqueue('t' || i, 'p') FROM generate_series(1, 20) i");
	$small->do("SELECT outbox.ack('$anna', array_agg(id)) FROM outbox.claim('$anna')") for 1 .. 3;
	nothing_stranded($small, 'another database');
	is(pages($small, 'SELECT outbox.claim(?)', $anna), 0, 'another database: an empty claim looks at nothing') or note('lanes ' . join ' of ', reverse $dbh->selectrow_array('SELECT lanes, lanes_in_use FROM outbox._library()'));
	$small->disconnect;
}
$dbh->disconnect;
$node->stop;

# --- workers leave a database, whatever it holds
$node = new_node('leaving', conf => 'fsync = off');
$dbh = connect_to($node);
for my $ntopics (300, 3000)
{
	my $db = "topics$ntopics";

	$dbh->do("CREATE DATABASE $db");
	my $full = connect_to($node, db => $db);
	$full->do('CREATE EXTENSION outbox');
	$full->do("SELECT count(outbox.enqueue('t' || i, 'x')) FROM generate_series(1, $ntopics) i");
	$full->disconnect;
	ok(poll(sub { $dbh->do("DROP DATABASE $db"); 1 }, 30), "a database with $ntopics topics can be dropped");
}
is($node->safe_psql('postgres', "SELECT status FROM outbox.status() WHERE component = 'shared memory'"), 'used', 'and the memory is not full');
$dbh->disconnect;
$node->stop;

# --- many databases
$node = new_node('databases', workers => 0, conf => 'fsync = off');
{
	my %dbh;
	my @databases = map { "d$_" } 1 .. 20;
	my $admin = connect_to($node, db => 'template1');

	$admin->do("CREATE DATABASE $_ TEMPLATE postgres") for @databases;
	$admin->disconnect;
	for my $db (@databases)
	{
		$dbh{$db} = connect_to($node, db => $db);
		$dbh{$db}->do('SELECT outbox.enqueue(?, ?)', undef, $db, $db);
		$dbh{$db}->do("SELECT count(*) FROM outbox.process_work_batch(?, 's', 'h', 1, flags => 0)", undef, $anna);
		is_deeply([ $dbh{$db}->selectrow_array('SELECT payload, owner_token FROM outbox.queue') ], [ $db, $anna ], "database $db");
		$dbh{$db}->do('SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases', undef, $anna);
		claim($dbh{$db}, $anna);
	}
	is(pages($dbh{$_}, 'SELECT outbox.claim(?)', $anna), 0, "database $_: what is known of it is not forgotten for others") for @databases;

	# nor by a session that only looks
	for my $look (qw(outbox.claimers outbox._lanes('outbox.queue') outbox.topic_stats outbox.leases outbox.status()))
	{
		my $looks = connect_to($node, db => $databases[0]);
		$looks->do("SELECT count(*) FROM $look");
		$looks->disconnect;
		is(pages($dbh{ $databases[0] }, 'SELECT outbox.claim(?)', $anna), 0, "$look: what is known is not forgotten");
	}
	$_->disconnect for values %dbh;
}
$dbh = connect_to($node);
empty($dbh);

# --- what was finished behind the head of a stream, which is leased for long
{
	my $old = connect_to($node);
	my $enqueue = "SELECT outbox.enqueue('t', 'p', stream_id => ?)";
	my $claim = 'SELECT outbox.claim(?, 600, 1)';
	my %pages;

	$dbh->do("SELECT outbox.enqueue('t', 'head', stream_id => ?)", undef, $stream);
	$dbh->do($claim, undef, $anna);
	$old->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
	count_of($old, 'outbox.queue');
	for my $round (1 .. 1000)
	{
		my $look = $round == 50 || $round == 1000;
		my $call = sub { my $what = shift; $look ? push @{ $pages{$what} }, pages($dbh, @_) : $dbh->do(shift, undef, @_) };

		$call->('enqueue', $enqueue, $stream);
		$call->('claim', $claim, $anna);
		my $ids = value($dbh, "SELECT array_agg(id) FROM outbox.queue WHERE owner_token = ? AND payload <> 'head'", $anna);
		$call->('ack', 'SELECT outbox.ack(?, ?)', $anna, $ids);
	}
	cmp_ok($pages{$_}[1], '<=', $pages{$_}[0] + 12, "behind the head of a stream, under an old snapshot, $_") for sort keys %pages;
	$old->do('COMMIT');
	$old->disconnect;
}

$dbh->disconnect;
$node->stop;
done_testing();
