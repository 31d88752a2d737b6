# pg_dump and pg_restore preserve everything: messages in every state, policies, keys,
# leases, the order of streams; and processing continues after that.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $lease = 3600;
my $source = new_node('source', workers => 0, init => { extra => [ '--encoding=UTF8', '--locale=C' ] });
my $target = new_node('target', workers => 0, bare => 1, init => { extra => [ '--encoding=UTF8', '--locale=C' ] });
my $dir = PostgreSQL::Test::Utils::tempdir();
my $dbh = connect_to($source);
my ($anna, $berta) = (owner(1), owner(2));
my @streams = map { owner(100 + $_) } 0 .. 4;

sub enqueue
{
	my ($dbh, $topic, $payload, %more) = @_;
	my $arguments = join '', map { ", $_ => ?" } sort keys %more;

	return value($dbh, "SELECT outbox.enqueue(?, ?$arguments)", $topic, $payload, map { $more{$_} } sort keys %more);
}

sub claim
{
	my ($dbh, $owner, $topic, $batch) = @_;

	return map { $_->[0] } $dbh->selectall_array(
		"SELECT payload FROM outbox.claim(?, $lease, ?, topics => ?)", undef, $owner, $batch // 100, [$topic]);
}

sub settle
{
	my ($dbh, $call, $owner, $topic) = @_;

	return value($dbh, "SELECT outbox.$call(?, array_agg(id)) FROM outbox.leases WHERE owner_token = ? AND topic = ?",
		$owner, $owner, $topic);
}

# --- everything that can be in a queue

# the source must be ahead of the target in transactions
$dbh->do(<<'Q');
CREATE TEMP TABLE burnt (i int);
DO $$ BEGIN FOR i IN 1 .. 20000 LOOP BEGIN INSERT INTO burnt VALUES (i); EXCEPTION WHEN others THEN END; END LOOP; END $$
Q
$dbh->do(<<'Q');
SELECT outbox.configure_topic('kept', max_attempts => 3, backoff_base => '3 s', backoff_max => '1 min', retention => '-1 s', dead_retention => '9 days', backoff_jitter => false);
SELECT outbox.configure_topic('hour', 'other', retention => '1 hour', check_dedupe_tenant => false);
SELECT outbox.pause_topic('paused')
Q
$dbh->do(<<'Q');
SELECT outbox.register_store('eu', 'service=eu'), outbox.register_store('us', 'service=us');
SELECT outbox.map_route('key ' || i, CASE i % 3 WHEN 0 THEN 'eu' ELSE 'us' END) FROM generate_series(1, 100) i;
SELECT outbox.set_default_route('hash')
Q
my $routes = "SELECT string_agg(outbox.route_store('key ' || i), ' ' ORDER BY i) FROM generate_series(1, 200) i";
my $routed = value($dbh, $routes);
enqueue($dbh, 'done', "done $_", dedupe_key => "done $_") for 1 .. 30;
enqueue($dbh, 'kept', "kept $_", headers => '{"a": [1, null, "\u00e4"]}', correlation_id => 'c') for 1 .. 5;
enqueue($dbh, 'hour', "hour $_", namespace => 'other', tenant_id => $anna) for 1 .. 5;
# into archive_unsorted, and then into partitions
claim($dbh, $anna, 'hour', 1) && settle($dbh, 'ack', $anna, 'hour');
$dbh->do('SELECT outbox._make_partitions()');
claim($dbh, $anna, $_) && settle($dbh, 'ack', $anna, $_) for qw(done kept hour);
# yesterday's, too
$dbh->do(<<'Q');
SELECT outbox._make_partition(-2, now() - interval '1 day', '1 day');
UPDATE outbox.archive SET processed_at = processed_at - interval '1 day' WHERE topic = 'done' AND id % 2 = 0
Q
enqueue($dbh, 'dead', "dead $_", dedupe_key => "dead $_", stream_id => $streams[4]) for 1 .. 5;
claim($dbh, $anna, 'dead');
$dbh->do('SELECT outbox.fail(?, array_agg(id), ?, 4) FROM outbox.leases WHERE topic = ?', undef, $anna, "b\tad\n\\N '\$\$", 'dead');
enqueue($dbh, 'open', "open $_", dedupe_key => "open $_") for 1 .. 20;
claim($dbh, $anna, 'open', 10);
claim($dbh, $berta, 'open', 5);
# keys that are taken for a time; of two the message is gone, and the time of one is over
enqueue($dbh, 'timed', $_, dedupe_key => $_, dedupe_for => '1 day') for qw(waits gone over);
$dbh->do("DELETE FROM outbox.queue WHERE topic = 'timed' AND payload <> 'waits'");
$dbh->do("UPDATE outbox.dedupe SET taken_until = now() WHERE key = outbox._dedupe_digest('default', 'timed', 'over')");
enqueue($dbh, 'odd', $_) for '', '\\.', "\\N", "tab\there\r\n", "\x{e4}\x{1d11e}", 'x' x 100_000;
enqueue($dbh, 'paused', 'paused');
enqueue($dbh, 'later', 'later', due_time => 'infinity');
enqueue($dbh, 'later', 'tomorrow', due_time => value($dbh, "SELECT now() + interval '1 day'"));
enqueue($dbh, 'expiring', 'expiring', expires_at => value($dbh, "SELECT now() + interval '1 day'"));
# streams: the first leased; some leased; the first waits for its retry; ready
for my $n (0 .. 3)
{
	enqueue($dbh, "s$n", "s$n $_", stream_id => $streams[$n]) for 1 .. 6;
}
claim($dbh, $anna, 's0', 1);
claim($dbh, $anna, 's1', 3);
claim($dbh, $anna, 's2', 1);
$dbh->do("SELECT outbox.nack(?, array_agg(id), 'later', '1 day') FROM outbox.leases WHERE topic = 's2'", undef, $anna);
# one that came while the one before it ended
{
	my $stream = owner(200);
	my $other = connect_to($source);

	enqueue($dbh, 'follower', 'first', stream_id => $stream);
	claim($dbh, $anna, 'follower');
	$other->do('BEGIN');
	is(settle($other, 'ack', $anna, 'follower'), 1, 'the first of a stream is going');
	enqueue($dbh, 'follower', 'second', stream_id => $stream);
	$other->do('COMMIT');
	$other->disconnect;
	is(count_of($dbh, "outbox.queue WHERE topic = 'follower' AND status = 0"), 1, 'the second is there');
}

# --- a database in another encoding
$source->safe_psql('postgres', "CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1'");
$source->safe_psql('latin1', 'CREATE EXTENSION outbox');
my $latin1 = connect_to($source, db => 'latin1');
my $topic = "Gr\x{fc}\x{df}e";
$latin1->do("SELECT outbox.register_store(?, 'c')", undef, "${topic}n $_") for 1 .. 5;
$latin1->do("SELECT outbox.set_default_route('hash')");
my $hashed = "SELECT string_agg(outbox.route_store('K\x{e4}se ' || i), ',' ORDER BY i) FROM generate_series(1, 100) i";
my $shares = value($latin1, $hashed);
enqueue($latin1, $topic, "p\x{e4}yload", dedupe_key => "Schl\x{fc}ssel");

# --- to another database and back

sub dump_of
{
	my ($db, $format, @more) = @_;
	my $file = "$dir/$db." . join '', $format, @more;

	command_ok([ 'pg_dump', '-h', $source->host, '-p', $source->port, "-F$format", @more, '-f', $file, $db ],
		"pg_dump -F$format @more");
	return $file;
}

my @connection = ('-h', $target->host, '-p', $target->port);

sub restore
{
	my ($db, $file, $format) = @_;

	$target->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE template0")
	  unless $target->safe_psql('postgres', "SELECT count(*) FROM pg_database WHERE datname = '$db'");
	my (undef, $complaints) = run_command($format eq 'c'
		? [ 'pg_restore', @connection, '-j4', '-d', $db, $file ]
		: [ 'psql', @connection, '-qX', '-o', '/dev/null', '-d', $db, '-f', $file ]);
	is($complaints, '', "$db: restored");
	return connect_to($target, db => $db);
}

# All rows of something, in order.
sub content
{
	my ($dbh, $relation) = @_;

	return [ map { $_->[0] } $dbh->selectall_array("SELECT r::text FROM $relation r ORDER BY 1") ];
}

my @relations = qw(outbox.messages outbox.topics outbox.queue outbox.dedupe outbox.archive outbox.dead
  outbox.stream_heads outbox.store_connections outbox.routes outbox.default_route);
# without ages, and without the sessions that have claimed
push @relations, '(SELECT topic, namespace, paused, ready, oldest_ready_at, leased, expired, delayed, waiting_in_stream, dead, more FROM outbox.topic_stats)',
  '(SELECT id, topic, namespace, attempts, leased_at, locked_until, expired, owner_token, stream_id, message_id FROM outbox.leases)';
push @relations, '(SELECT last_value, is_called FROM outbox.message_id_seq)';
my %before = map { $_ => content($dbh, $_) } @relations;
is(count_of($dbh, "pg_inherits WHERE inhparent = 'outbox.archive'::regclass"), 8, 'the archive has its partitions')
  or diag(join ' ', map { @$_ } $dbh->selectall_array("SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'outbox.archive'::regclass"));

sub check
{
	my ($name, $new) = @_;

	for my $relation (@relations)
	{
		is_deeply(content($new, $relation), $before{$relation}, "$name: $relation");
	}
	is(count_of($new, "pg_inherits WHERE inhparent = 'outbox.archive'::regclass"), 8, "$name: partitions");

	is(value($new, $routes), $routed, "$name: keys have the same stores");

	# leases go on
	is(scalar(claim($new, $berta, 'open')), 5, "$name: what is leased cannot be claimed");
	is(settle($new, 'ack', $anna, 'open'), 10, "$name: leases can be settled");
	is(settle($new, 'nack', $berta, 'open'), 10, "$name: of both owners");
	is(scalar(claim($new, $berta, $_)), 0, "$name: $_") for qw(paused later);
	is(scalar(claim($new, $berta, 'odd')), 6, "$name: odd payloads");

	# keys are known, ids are new
	my ($there) = $new->selectrow_array("SELECT message_id FROM outbox.messages WHERE dedupe_key = 'done 7'");
	is(enqueue($new, 'done', 'again', dedupe_key => 'done 7'), $there, "$name: the key of a finished message");
	is_deeply([ $new->selectrow_array("SELECT enqueued FROM outbox.try_enqueue('$_', 'again', dedupe_key => '$_ 2')") ], [0], "$name: a key in $_")
	  for qw(open dead);
	is_deeply([ map { value($new, "SELECT outcome FROM outbox.try_enqueue('timed', 'again', dedupe_key => ?)", $_) } qw(waits gone over) ],
		[qw(kept kept enqueued)], "$name: keys that are taken for a time");
	$new->do("SELECT outbox.enqueue_many('new', array_fill('new'::text, ARRAY[200]))");
	is(count_of($new, '(SELECT id FROM outbox.messages GROUP BY id HAVING count(*) > 1) doubles'), 0, "$name: ids are new");
	cmp_ok(value($new, "SELECT min(id) FROM outbox.queue WHERE topic = 'new'"), '>',
		value($new, "SELECT max(id) FROM outbox.messages WHERE topic <> 'new'"), "$name: and greater");

	# streams
	is_deeply([ claim($new, $berta, 's0') ], [], "$name: behind a lease");
	is_deeply([ claim($new, $anna, 's0') ], [ map { "s0 $_" } 2 .. 6 ], "$name: its owner goes on");
	is(settle($new, 'ack', $anna, 's1'), 3, "$name: the first three are done");
	enqueue($new, 's1', 's1 new', stream_id => $streams[1]);
	is_deeply([ claim($new, $berta, 's1') ], [ 's1 4', 's1 5', 's1 6', 's1 new' ], "$name: the rest, and what is new, in order");
	is_deeply([ claim($new, $berta, 's2') ], [], "$name: behind a retry");
	is_deeply([ claim($new, $berta, 's3', 2) ], [ 's3 1', 's3 2' ], "$name: in order");
	is_deeply([ claim($new, $berta, 'follower') ], ['second'], "$name: nothing is before it any more");

	# the dead
	is(value($new, "SELECT outbox.redrive(topic => 'dead')"), 5, "$name: the dead come back");
	is_deeply([ claim($new, $berta, 'dead') ], [ map { "dead $_" } 1 .. 5 ], "$name: in order");

	# history
	enqueue($new, 'kept', 'kept on');
	claim($new, $anna, 'kept');
	is(settle($new, 'ack', $anna, 'kept'), 1, "$name: into the archive");
	is(value($new, "SELECT outbox.cleanup(retention => '1 day')"), 15, "$name: cleanup finds yesterday's");
	is_deeply([ $new->selectrow_array("SELECT enqueued FROM outbox.try_enqueue('done', 'again', dedupe_key => 'done 2')") ], [1], "$name: their keys are free")
	  if 0 == count_of($new, "outbox.messages WHERE dedupe_key = 'done 2'");
	return;
}

my $custom = dump_of('postgres', 'c');
my $plain = dump_of('postgres', 'p');
my $inserts = dump_of('postgres', 'p', '--rows-per-insert=7');

check('-Fc', restore('custom', $custom, 'c'));
check('-Fp', restore('plain', $plain, 'p'));
check('--inserts', restore('inserts', $inserts, 'p'));
$target->safe_psql('postgres', 'CREATE DATABASE prepared TEMPLATE template0');
$target->safe_psql('prepared', 'CREATE EXTENSION outbox');
check('with the extension there', restore('prepared', $plain, 'p'));

my $utf8 = restore('utf8', dump_of('latin1', 'c'), 'c');
is(value($utf8, 'SHOW server_encoding'), 'UTF8', 'another encoding');
is(value($utf8, $hashed), $shares, 'and keys have the same stores');
is(value($utf8, 'SELECT topic FROM outbox.messages'), $topic, 'text is converted');
is_deeply([ $utf8->selectrow_array('SELECT enqueued FROM outbox.try_enqueue(?, ?, dedupe_key => ?)', undef, $topic, 'p', "Schl\x{fc}ssel") ],
	[0], 'dedupe keys are known in the new encoding');
is_deeply([ claim($utf8, $anna, $topic) ], ["p\x{e4}yload"], 'topics are found in the new encoding');

check_indexes($target, "the indexes of $_", $_) for qw(custom plain inserts utf8);
$_->disconnect for $dbh, $latin1, $utf8;
$source->stop;
$target->stop;
done_testing();
