# An upgraded database has the same objects as one in which the new version was
# created; sessions continue, privileges are preserved; and pg_upgrade preserves
# everything.
#
# The new version exists only for this test: src/tools/next-version has put its
# scripts beside those of the installed one. OUTBOX_OLD_BINDIR is the directory of the
# old server's programs for pg_upgrade, with the extension installed; by default it is
# the same server.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest qw(:DEFAULT own_installation);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($next, $anna, $berta) = ('9.9.9', owner(1), owner(2));
my $installation = own_installation();
# first comes the library, and then the SQL
$installation->{install}->($next);
my $node = new_node('upgrade', bare => 1, install_path => $installation->{path}, conf => "wal_level = logical\nlog_line_prefix = '%m [%p] %e %q%a '");
my $catalog = slurp_file("$FindBin::RealBin/../upgrade/catalog.sql");

sub facts { return map { $_->[0] } $_[0]->selectall_array($catalog) }

# What one says and the other does not.
sub differences
{
	my ($one, $other) = @_;
	my %n;

	$n{$_}++ for facts($one);
	$n{$_}-- for facts($other);
	return map { ($n{$_} > 0 ? '+ ' : '- ') . $_ } grep { $n{$_} } sort keys %n;
}

sub grant_all { $_[0]->do("SELECT outbox.grant_$_('a_$_')") for qw(producer worker monitor admin); return }

$node->safe_psql('postgres', join ';', map { "CREATE ROLE a_$_ LOGIN" } qw(producer worker monitor admin stranger));
$node->safe_psql('postgres', "CREATE DATABASE $_") for qw(fresh upgraded);
my $old = $node->safe_psql('fresh', "SELECT default_version FROM pg_available_extensions WHERE name = 'outbox'");

# --- what there is before

my $dbh = connect_to($node, db => 'upgraded');
$dbh->do('CREATE EXTENSION outbox');
grant_all($dbh);
$dbh->do("SELECT outbox.enqueue('t', i::text) FROM generate_series(1, 5) i");
$dbh->do("SELECT outbox.enqueue('paused', 'p'), outbox.pause_topic('paused')");
my @leased = map { $_->[0] } $dbh->selectall_array("SELECT id FROM outbox.claim(?, 600, 2, topics => '{t}')", undef, $anna);

# a session whose plans are made, and one of a producer in a transaction
my $session = connect_to($node, db => 'upgraded', settings => ['SET plan_cache_mode = force_generic_plan']);
my %call = (
	enqueue => [ 'SELECT outbox.enqueue($1, $2)', 'text, text' ],
	claim => [ 'SELECT payload FROM outbox.claim($1, 600, 1, topics => $2)', 'uuid, text[]' ],
	reason => [ 'SELECT outbox.reason_name($1)', 'integer' ],
	cancel => [ 'SELECT outbox.cancel($1)', 'uuid' ],
	stores => [ 'SELECT count(*) FROM outbox.stores WHERE store <> $1', 'text' ],
	topics => [ 'SELECT paused FROM outbox.topics WHERE topic = $1', 'text' ]);
$session->do("PREPARE $_ ($call{$_}[1]) AS $call{$_}[0]") for keys %call;
$session->do(<<'Q');
CREATE FUNCTION public.twice(p text) RETURNS uuid LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.enqueue('twice', p), outbox.reason_name(1);
    RETURN outbox.enqueue('twice', p);
END $$
Q

sub try_calls
{
	my $reason = shift;

	my $id = value($session, "EXECUTE enqueue('c', 'p')");
	is(value($session, "EXECUTE claim('$berta', '{t}')"), shift // die, 'claim');
	is(value($session, 'EXECUTE reason(10)'), $reason, 'reason_name');
	is(value($session, "EXECUTE cancel('$id')"), 1, 'cancel');
	is(value($session, "EXECUTE stores('')"), 0, 'stores');
	is(value($session, "EXECUTE topics('paused')"), 1, 'topics');
	isnt(value($session, "SELECT public.twice('p')"), undef, 'a function');
	return;
}

try_calls(undef, 3);
my $producer = connect_to($node, db => 'upgraded');
$producer->do('SET SESSION AUTHORIZATION a_producer');
$producer->do('BEGIN');
$producer->do("SELECT outbox.enqueue('t', 'in between')");

is_deeply([ $dbh->selectrow_array("SELECT ok, detail FROM outbox.status() WHERE component = 'version'") ], [ 0, "library $next, SQL $old" ], 'status() compares the versions');

# --- the upgrade: it waits for the producer, and nothing else goes wrong
my $upgrade = connect_to($node, db => 'upgraded');
begin_call($upgrade, "ALTER EXTENSION outbox UPDATE TO '$next'");
ok(poll(sub { is_done($upgrade) || value($dbh, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = ?", $upgrade->{pg_pid}) }), 'the upgrade is under way');
$producer->do('COMMIT');
is(end_call($upgrade)->{state}, '', 'it is done');
is(value($dbh, "SELECT extversion FROM pg_extension WHERE extname = 'outbox'"), $next, 'the version is the next');
try_calls('made up', 4);
$producer->do("SELECT outbox.enqueue('t', 'afterwards')");
is(value($dbh, 'SELECT outbox.ack(?, ?, strict => true)', $anna, \@leased), 2, 'leases stand');
is(count_of($dbh, "outbox.claim('$berta', topics => '{paused}')"), 0, 'policies hold');
is(join(' ', map { $_->[0] } $dbh->selectall_array("SELECT payload FROM outbox.claim('$berta', topics => '{t}') ORDER BY id")), '5 in between afterwards', 'nothing is lost');
is(value($dbh, "SELECT ok FROM outbox.status() WHERE component = 'version'"), 1, 'status() compares the versions again');
is_deeply([ log_lines($node) ], [], 'no internal errors');

# --- the same as when created
my $fresh = connect_to($node, db => 'fresh');
$fresh->do("CREATE EXTENSION outbox VERSION '$next'");
grant_all($fresh);
$upgrade->do('DROP FUNCTION public.twice');
is_deeply([ differences($dbh, $fresh) ], [], 'a database that is upgraded has what one has that is new');
cmp_ok(scalar(facts($fresh)), '>', 1500, 'which is a lot');
for my $change ('COMMENT ON COLUMN outbox.topics.note IS NULL', 'DROP INDEX outbox.topics_topic_idx', 'GRANT EXECUTE ON FUNCTION outbox.cancel(uuid, text) TO PUBLIC',
	'REVOKE EXECUTE ON FUNCTION outbox.cancel(uuid, text) FROM a_admin', 'ALTER TABLE outbox.topics ALTER note DROP DEFAULT', 'ALTER TABLE outbox.topics DROP CONSTRAINT outbox_topics_note',
	'ALTER TABLE outbox.topics DISABLE TRIGGER outbox_topics_changed', 'ALTER TABLE outbox.topics RESET (fillfactor)', 'ALTER EXTENSION outbox DROP FUNCTION outbox._cancel(uuid)',
	"UPDATE pg_extension SET extcondition[1] = 'false' WHERE extname = 'outbox'", 'ALTER FUNCTION outbox.cancel(uuid, text) SECURITY INVOKER', 'ALTER SEQUENCE outbox.message_id_seq CACHE 7')
{
	$dbh->do('BEGIN');
	$dbh->do($change);
	isnt(scalar(differences($dbh, $fresh)), 0, "noticed: $change");
	$dbh->do('ROLLBACK');
}

# --- a role that has lost its rights has none afterwards
is_state($producer, "SELECT outbox.cancel(gen_random_uuid())", '42501', 'a producer has not become more');
$_->disconnect for $session, $producer, $upgrade, $fresh, $dbh;
$node->stop;

# --- pg_upgrade, with messages, leases, history, joins, timers, handlers

my $bindir = (run_command([ 'pg_config', '--bindir' ]))[0];
my $old_bindir = $ENV{OUTBOX_OLD_BINDIR} || $bindir;
# since 15.20 columns have an option that servers from before that do not know
my ($knows_old, $knows_new) = map { slurp_file("$_/pg_dump") =~ /pg_attver/ } $old_bindir, $bindir;
if ($knows_old && !$knows_new)
{
	note('no pg_upgrade: the new server is older than the minor version of the old one');
	done_testing();
	exit;
}
my $source = new_node('source', bare => 1, init => { extra => ['--data-checksums'] }, $old_bindir ne $bindir ? (install_path => $old_bindir =~ s{/bin$}{}r) : ());
$source->safe_psql('postgres', join ';', map { "CREATE ROLE a_$_ LOGIN" } qw(producer worker monitor admin));
my $before = connect_to($source);
$before->do('CREATE EXTENSION outbox');
grant_all($before);
$before->do(<<'Q');
CREATE TABLE public.handled (payload text);
CREATE SCHEMA work AUTHORIZATION a_worker;
GRANT INSERT, SELECT ON handled TO a_worker;
SET SESSION AUTHORIZATION a_worker;
CREATE FUNCTION work.handle(m outbox.message) RETURNS void LANGUAGE sql AS 'INSERT INTO public.handled VALUES (m.payload)';
SELECT outbox.register_handler('handle', 'work.handle(outbox.message)');
RESET SESSION AUTHORIZATION;
SELECT outbox.enqueue('handle', 'before');
Q
ok(poll(sub { count_of($before, 'public.handled') == 1 }), 'a handler works');
$before->do("SELECT outbox.enqueue('t', i::text, stream_id => '" . owner(100) . "', dedupe_key => 'key ' || i) FROM generate_series(1, 100) i");
$before->do("SELECT outbox.ack(?, array_agg(id)) FROM outbox.claim(?, 600, 20, topics => '{t}')", undef, $anna, $anna);
$before->do("SELECT outbox.fail(?, array_agg(id), 'e') FROM outbox.claim(?, 600, 5, topics => '{t}')", undef, $anna, $anna);
$before->do("SELECT outbox.claim(?, 3600, 5, topics => '{t}')", undef, $anna);
$before->do("SELECT outbox.schedule_timer('tick', 'p', now() + interval '1 day'), outbox.pause_topic('handle'), outbox.enqueue('handle', 'after')");
my $join = value($before, "SELECT outbox.start_join('g', 2)");
$before->do("SELECT outbox.enqueue_step(?, 'step', i::text) FROM generate_series(1, 2) i", undef, $join);
$before->do("SELECT outbox.enqueue_join_wait(?, false, 'cont', 'both')", undef, $join);
$before->do("SELECT outbox.ack(?, array_agg(id)) FROM outbox.claim(?, 600, 1, topics => '{step}')", undef, $anna, $anna);
ok(poll(sub { value($before, "SELECT next_attempt_at = 'infinity' FROM outbox.queue WHERE topic = 'join.wait'") }), 'the wait is put aside');
my @contents = ('outbox.messages', 'outbox.queue', 'outbox.dedupe', 'outbox.archive', 'outbox.dead', 'outbox.topics', 'outbox.joins', 'outbox.join_members', 'outbox.join_waits', 'outbox.timers', 'outbox.attempts_log');
my $content = sub {
	my $handle = shift;

	return { map { my $what = $_; $what => [ map { $_->[0] } $handle->selectall_array("SELECT r::text FROM $what r ORDER BY 1") ] } @contents };
};
my $was = $content->($before);
my @facts = facts($before);
$before->disconnect;
$source->stop;

my $new = PostgreSQL::Test::Cluster->new('upgraded');
# with checksums, as it is without asking since 18
$new->init(extra => ['--data-checksums']);
$new->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'\nlog_line_prefix = '%m [%p] %e %q%a '\nmax_prepared_transactions = 20");
my $dir = PostgreSQL::Test::Utils::tempdir();
chdir $dir or die $!;
command_ok([ 'env', '-u', 'PGHOST', '-u', 'PGPORT', "$bindir/pg_upgrade", '-b', $old_bindir, '-B', $bindir, '-d', $source->data_dir, '-D', $new->data_dir,
		'-s', $dir, '-p', $source->port, '-P', $new->port ], 'pg_upgrade');
is_deeply([ log_lines($new) ], [], 'no internal errors on the way');
$new->start;
my $after = connect_to($new);
is_deeply($content->($after), $was, 'all is there');
# except for parentheses and views, which are different when they have been written and read
my %known = map { tr/()//dr => 1 } @facts;
# nor does pg_dump know rights on row types
is_deeply([ grep { !$known{ tr/()//dr } && !/^(?:type \S+ kind c|view)/ } facts($after) ], [], 'the catalogs say what they said') if $old_bindir eq $bindir;
is(value($after, 'SELECT count(*) FROM outbox.queue WHERE owner_token = ?', $anna), 5, 'leases are there');
is(value($after, 'SELECT outbox.ack(?, array_agg(id), strict => true) FROM outbox.queue WHERE owner_token = ?', $anna, $anna), 5, 'and stand');
is(join(' ', map { $_->[0] } $after->selectall_array("SELECT payload FROM outbox.claim(?, 600, 3, topics => '{t}')", undef, $berta)), '31 32 33', 'the stream goes on');
is(value($after, "SELECT enqueued FROM outbox.try_enqueue('t', 'again', dedupe_key => 'key 1')"), 0, 'keys are taken');
$after->do("SELECT outbox.ack(?, array_agg(id)) FROM outbox.claim(?, 600, 1, topics => '{step}')", undef, $anna, $anna);
ok(poll(sub { count_of($after, "outbox.queue WHERE topic = 'cont' AND payload = 'both'") == 1 }), 'the join is continued');
is(count_of($after, 'public.handled'), 1, 'a pause holds');
$after->do("SELECT outbox.resume_topic('handle')");
ok(poll(sub { count_of($after, "public.handled WHERE payload = 'after'") == 1 }), 'the handler is found, under another number');
nothing_stranded($after, 'upgraded');
check_indexes($new, 'upgraded');
is_deeply([ log_lines($new) ], [], 'no internal errors');
$after->disconnect;
$new->stop;
done_testing();

# Internal errors, and crashes.
sub log_lines { return -e $_[0]->logfile ? grep { / XX\d\d\d |PANIC|TRAP/ } split /\n/, slurp_file($_[0]->logfile) : () }
