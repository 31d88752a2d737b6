# Without shared_preload_libraries: the library is loaded by the first call of a
# session, sessions share a dynamic segment, and the behavior is the same as with
# preloading.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest qw(:DEFAULT claim);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('no_preload', preload => 0, conf => "outbox.batch_size = 7\noutbox.lease_seconds = 600");
my ($anna, $berta) = (owner(1), owner(2));

sub enqueue { return $_[0]->do('SELECT outbox.enqueue(?, ?)', undef, @_[ 1, 2 ]) }

sub library { return $_[0]->selectrow_hashref('SELECT preloaded, lanes > 0 AS lanes, lanes_in_use FROM outbox._library()') }

# --- settings from the file hold for the session that loads the library
my $first = connect_to($node);
is(value($first, "SELECT current_setting('outbox.batch_size')"), 7, 'a setting, before the library is there');
$first->do("SELECT outbox.enqueue_many('t', ARRAY(SELECT i::text FROM generate_series(1, 20) i))");
is_deeply([ claim($first, $anna) ], [ 1 .. 7 ], 'the setting holds');
is(value($first, "SELECT max(locked_until - updated_at) FROM outbox.queue WHERE status = 1"), '00:10:00', 'the other one, too');
is_state($first, "SET outbox.batch_size = 0", '22023', 'settings are checked');
is_state($first, "SET outbox.nonsense = 0", '42602', 'and known');
$first->do("SET outbox.batch_size = 3");
is(scalar(claim($first, $anna)), 3, 'settings can be changed');
my $early = connect_to($node, settings => [ "SET outbox.batch_size = '2'", "SET outbox.backoff_base = '250ms'" ]);
is(scalar(claim($early, $berta)), 2, 'a setting made before the library is loaded');
is(value($early, 'SHOW outbox.backoff_base'), '250ms', 'with its unit');
my $wrong = connect_to($node, settings => ["SET outbox.batch_size = 'many'"]);
is(scalar(claim($wrong, $berta)), 7, 'one that is wrong is not taken');
$wrong->disconnect;
my $library = library($first);
is($library->{preloaded}, 0, 'not preloaded');
is($library->{lanes}, 1, 'but with shared memory');
like($node->safe_psql('postgres', 'SELECT string_agg(component || CASE WHEN ok THEN \' ok\' ELSE \' not\' END, \', \') FROM outbox.status()'),
	qr/shared memory ok/, 'and status() says so');

# --- one segment for all
is(count_of($first, "outbox.claim('$anna', batch_size => 100)"), 1, 'the rest');
is(scalar(claim($_, $berta)), 0, 'nothing is left') for $first, $early;
my $late = connect_to($node);
enqueue($late, 't', 'from a session that came late');
is_deeply([ claim($early, $berta) ], ['from a session that came late'], 'one that was there before sees it');
enqueue($early, 'u', 'back');
is_deeply([ claim($late, $berta, topics => ['u']) ], ['back'], 'and the other way round');
$_->do('BEGIN') for $first, $early;
enqueue($first, 't', 'uncommitted');
is(scalar(claim($_, $berta)), 0, 'not before it is committed') for $early, $late;
$early->do('ROLLBACK');
$first->do('COMMIT');
is_deeply([ claim($early, $berta) ], ['uncommitted'], 'but then');
$first->do('BEGIN');
enqueue($first, 't', 'back again');
is_deeply([ claim($first, owner(3)) ], ['back again'], 'claimed by its own transaction');
is(scalar(claim($late, $berta)), 0, 'by no other owner');
$first->do('SELECT outbox.release(?)', undef, owner(3));
$first->do('COMMIT');
is_deeply([ claim($late, $berta) ], ['back again'], 'until it is given back');
is(library($late)->{lanes_in_use}, library($first)->{lanes_in_use}, 'all see the same segment');

# --- a claim that waits, without any session to wake it
{
	my $pid = client(sub { my $dbh = connect_to($node); poll(sub { count_of($dbh, "pg_stat_activity WHERE query LIKE '%wait_ms%' AND state = 'active' AND pid <> pg_backend_pid()") }); enqueue($dbh, 't', 'waited for') });
	is_deeply([ claim($late, $berta, wait_ms => 30_000) ], ['waited for'], 'a claim that waits');
	waitpid $pid, 0;
}

# --- the library may be loaded in the middle of something
my $unhappy = connect_to($node);
$unhappy->do('BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY');
is(value($unhappy, "SELECT count(*) FROM outbox.leases") > 0, 1, 'by a view, in a transaction that is read only');
$unhappy->do('ROLLBACK');
$unhappy->disconnect;
$unhappy = connect_to($node);
$unhappy->do('BEGIN');
is_state($unhappy, "SELECT outbox.enqueue('', '')", '22023', 'by a call that fails');
$unhappy->do('ROLLBACK');
is_state($unhappy, "LOAD 'outbox'", '', 'LOAD');
enqueue($unhappy, 't', 'happy end');
is_deeply([ claim($first, $anna) ], ['happy end'], 'it works all the same');

# --- other databases have their own
for my $db (qw(one two))
{
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, 'CREATE EXTENSION outbox');
}
my %db = map { $_ => connect_to($node, db => $_) } qw(one two);
enqueue($db{$_}, 't', "of $_") for qw(one two one);
is_deeply([ claim($db{two}, $anna) ], ['of two'], 'the second database');
is_deeply([ claim($db{two}, $anna) ], [], 'has nothing else');
is_deeply([ claim($db{one}, $anna) ], [ ('of one') x 2 ], 'than the first one');
is(scalar(claim($first, $anna)), 0, 'and here is nothing of them');

# --- after a crash
$first->do("SELECT outbox.enqueue_many('crash', ARRAY(SELECT i::text FROM generate_series(1, 100) i))");
is(scalar(claim($first, $anna, topics => ['crash'], batch_size => 40)), 40, 'before a crash');
enqueue($db{one}, 'crash', 'one');
for my $round (1 .. 3)
{
	my $victim = connect_to($node);
	enqueue($victim, 'crash', 'of the victim');
	kill_backend($node, $victim->{pg_pid});
	$first = connect_to($node);
	$late = connect_to($node);
	is(scalar(claim($late, $berta, topics => ['crash'], batch_size => 10)), 10, "crash $round: what was not claimed");
	enqueue($first, 'new', $round);
	is_deeply([ claim($late, $berta, topics => ['new']) ], [$round], "crash $round: and what is new");
	is(library($late)->{lanes}, 1, "crash $round: in a new segment");
}
is(scalar(claim($late, $anna, topics => ['crash'], batch_size => 1000)), 33, 'no more and no less');
%db = map { $_ => connect_to($node, db => $_) } qw(one two);
is_deeply([ claim($db{one}, $anna) ], ['one'], 'in another database');

# --- together with sessions that do not use the shared memory
my $without = connect_to($node, settings => ['SET outbox.use_cursor = off']);
enqueue($without, 'both', $_) for 1 .. 5;
is_deeply([ claim($late, $anna, topics => ['both'], batch_size => 2) ], [ 1, 2 ], 'one with');
is_deeply([ claim($without, $berta, topics => ['both'], batch_size => 2) ], [ 3, 4 ], 'one without');
is_deeply([ claim($late, $anna, topics => ['both'], batch_size => 2) ], [5], 'one with');

# --- no room for it: no error
$_->disconnect for values %db;
$node->append_conf('postgresql.conf', "dynamic_shared_memory_type = posix\nmin_dynamic_shared_memory = 0");
$node->restart;
my @many = map { connect_to($node) } 1 .. 20;
enqueue($many[$_], 'many', $_) for 0 .. $#many;
is(join(' ', sort { $a <=> $b } map { claim($_, $anna, topics => ['many'], batch_size => 1) } reverse @many), join(' ', 0 .. $#many), 'twenty sessions, each one message');
$_->disconnect for @many;

is_deeply([ grep { /PANIC|TRAP|terminated by signal (?!9)|outbox works without/ } split /\n/, slurp_file($node->logfile) ], [], 'the log is clean');
check_indexes($node);
$node->stop;
done_testing();
