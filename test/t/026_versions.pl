# A library of one version with the SQL of another, in each possible order: sessions
# and workers that have loaded the old one continue beside the new one, and errors
# have hints that say what to do. Nothing is lost, and no session reads memory that
# another version has written.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest qw(:DEFAULT claim own_installation);
use PostgreSQL::Test::Utils;
use Test::More;

my ($anna, $berta, $carl) = map { owner($_) } 1 .. 3;
my $next = '9.9.9';
my $installation = own_installation();
my $old = $installation->{version};
my $conf = "outbox.discovery_interval = 1\nmax_worker_processes = 20\nlog_line_prefix = '%m [%p] %e %q%a '";

sub library_of { return value($_[0], 'SELECT version FROM outbox._library()') }

sub sql_of { return value($_[0], "SELECT extversion FROM pg_extension WHERE extname = 'outbox'") }

sub ack_all { return value($_[0], 'SELECT outbox.ack(?, array_agg(id)) FROM outbox.leases WHERE owner_token = ?', $_[1], $_[1]) }

# What every function answers to nulls, as a SQLSTATE. Of what they do nothing is left.
sub answers
{
	my $dbh = shift;
	my %answers;

	for my $function ($dbh->selectall_array(<<'Q'))
SELECT p.oid::regprocedure::text,
       format('SELECT * FROM outbox.%I(%s)', p.proname,
              (SELECT string_agg(format('NULL::%s', format_type(t, NULL)), ', ' ORDER BY n) FROM unnest(p.proargtypes) WITH ORDINALITY u(t, n)))
  FROM pg_proc p
 WHERE p.pronamespace = 'outbox'::regnamespace AND p.prokind = 'f' AND p.prorettype <> 'trigger'::regtype
   AND p.proname NOT LIKE '%schedule_maintenance' AND p.proname NOT IN ('_require_library', '_grant_again')
 ORDER BY 1
Q
	{
		$dbh->do('BEGIN');
		$answers{ $function->[0] } = sqlstate($dbh, $function->[1]);
		$dbh->do('ROLLBACK');
	}
	return \%answers;
}

# A life of messages; nothing is left of it.
my $lives = 0;

sub lives
{
	my ($dbh, $name) = @_;
	my ($tag, $stream) = ('life ' . ++$lives, owner(1000 + $lives));
	my $is = sub { local $Test::Builder::Level = $Test::Builder::Level + 2; is($_[0], $_[1], "$name: $_[2]") };
	my $one = sub { value($dbh, @_) };

	$is->(join(' ', library_of($dbh), sql_of($dbh)), $_[2], 'library and SQL');
	$dbh->do("SELECT outbox.enqueue('$tag', i::text, dedupe_key => '$tag' || i) FROM generate_series(1, 6) i");
	$is->($one->("SELECT enqueued FROM outbox.try_enqueue('$tag', 'x', dedupe_key => '${tag}1')"), 0, 'a key');
	$is->(join(' ', claim($dbh, $anna, topics => [$tag], batch_size => 6)), '1 2 3 4 5 6', 'claim');
	my @ids = map { $_->[0] } $dbh->selectall_array("SELECT id FROM outbox.leases WHERE owner_token = '$anna' ORDER BY id");
	$is->($one->('SELECT outbox.ack(?, ?)', $anna, [ @ids[ 0, 1 ] ]), 2, 'ack');
	$is->($one->("SELECT outbox.nack(?, ?, 'e', '0')", $anna, [ $ids[2] ]), 1, 'nack');
	$is->($one->("SELECT outbox.fail(?, ?, 'e')", $anna, [ $ids[3] ]), 1, 'fail');
	$is->($one->('SELECT outbox.renew(?, ?, 600)', $anna, [ @ids[ 4, 5 ] ]), 2, 'renew');
	$is->($one->('SELECT outbox.release(?, ?)', $anna, [ $ids[4] ]), 1, 'release');
	$is->($one->('SELECT outbox.requeue(?)', [ $ids[3] ]), 1, 'requeue');
	$is->(join(' ', sort(claim($dbh, $berta, topics => [$tag], max_attempts => 100))), '3 4 5', 'claim again');
	$is->(ack_all($dbh, $berta) + ack_all($dbh, $anna), 4, 'ack of the rest');
	$dbh->do("SELECT outbox.enqueue_many('$tag', '{a,b,c}', stream_id => '$stream')");
	$is->(join(' ', claim($dbh, $anna, topics => [$tag], batch_size => 2)), 'a b', 'a stream');
	$is->(scalar(claim($dbh, $berta, topics => [$tag])), 0, 'a stream has one owner');
	$is->(ack_all($dbh, $anna) . join(' ', claim($dbh, $berta, topics => [$tag])) . ack_all($dbh, $berta), '2c1', 'a stream goes on');
	my $join = $one->("SELECT outbox.start_join('$tag', 2)");
	$dbh->do("SELECT outbox.enqueue_step(?, '$tag', 's') FROM generate_series(1, 2)", undef, $join);
	$dbh->do("SELECT outbox.enqueue_join_wait(?, false, 'next $tag', 'n')", undef, $join);
	$is->(scalar(claim($dbh, $anna, topics => [$tag])) . ack_all($dbh, $anna), '22', 'steps');
	$is->(poll(sub { $dbh->do('SELECT outbox.process_join_waits()'); claim($dbh, $anna, topics => ["next $tag"]) }) . ack_all($dbh, $anna), '11', 'a continuation');
	$dbh->do("SELECT outbox.schedule_timer('timer $tag', 't', now())");
	$is->(poll(sub { $dbh->do('SELECT outbox.dispatch_due()'); claim($dbh, $anna, topics => ["timer $tag"]) }) . ack_all($dbh, $anna), '11', 'a timer');
	$dbh->do("SELECT outbox.receive(gen_random_uuid(), '$tag', 'i')");
	$is->($one->("SELECT outbox.ack_inbox('$anna', array_agg(id)) FROM outbox.claim_inbox('$anna')"), 1, 'the inbox');
	$is->($one->("SELECT outbox.cancel(outbox.enqueue('$tag', 'c'))"), 1, 'cancel');
	$dbh->do("SELECT outbox.configure_topic('$tag', max_attempts => 2), outbox.pause_topic('$tag'), outbox.enqueue('$tag', 'p')");
	$is->(scalar(claim($dbh, $anna, topics => [$tag])), 0, 'pause');
	$dbh->do("SELECT outbox.resume_topic('$tag'), outbox.reset_topic('$tag')");
	$is->(scalar(claim($dbh, $anna, topics => [$tag])) . ack_all($dbh, $anna), '11', 'resume');
	$is->($one->('SELECT count(*) > 10 FROM outbox.status()'), 1, 'status');
	$is->($one->("SELECT outbox.purge_topic('$tag', what => 'dead')"), 1, 'purge');
	$is->($one->('SELECT outbox.cleanup() >= 0'), 1, 'cleanup');
	return;
}

# Refused, with what to do.
sub is_refused
{
	my ($dbh, $query, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_state($dbh, $query, '55000', "$name: refused");
	return like($dbh->errstr, qr/version 9\.9\.9 of outbox cannot be installed while the library of version \Q$old\E is loaded.*HINT:  Restart the server if .* connect again/s, "$name: which says what to do");
}

sub handlers
{
	my $dbh = shift;

	$dbh->do($_) for 'CREATE ROLE app LOGIN', "SELECT outbox.grant_worker('app'), outbox.grant_producer('app')", 'GRANT CREATE ON DATABASE postgres TO app', 'SET ROLE app', 'CREATE SCHEMA app',
	  q{CREATE FUNCTION app.handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM outbox.enqueue(''handled'', m.payload); END'},
	  "SELECT outbox.register_handler('handle', 'app.handle(outbox.message)')", 'RESET ROLE';
	return;
}

# No crash.

sub log_is_clean
{
	my ($node, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_deeply([ grep { /PANIC|TRAP|terminated by signal/ } split /\n/, slurp_file($node->logfile) ], [], "$name: no crash");
}

# --- preloaded

my ($baseline, $baseline_next);
{
	my $node = new_node('preloaded', conf => $conf, install_path => $installation->{path});
	my $dbh = connect_to($node);
	my $waits = connect_to($node);

	lives($dbh, 'preloaded', "$old $old");
	handlers($dbh);
	$baseline = answers($dbh);
	cmp_ok(scalar(keys %$baseline), '>', 150, 'functions are called');

	# the file is replaced, and the server goes on
	begin_call($waits, "SELECT payload FROM outbox.claim(?, topics => '{waited}', wait_ms => 60000)", $carl);
	ok(poll(sub { sleeps($dbh, $waits) }), 'preloaded, a new file: a claim waits');
	$installation->{install}->($next);
	my $later = connect_to($node);
	lives($_->[0], "preloaded, a new file: $_->[1]", "$old $old") for [ $dbh, 'a session' ], [ $later, 'a session that is new' ];
	is_deeply(answers($later), $baseline, 'preloaded, a new file: functions answer what they did');
	$later->do("SELECT outbox.enqueue('waited', 'w'), outbox.enqueue('handle', 'h1'), outbox.schedule_timer('tick', 't', now())");
	is_deeply(end_call($waits)->{rows}, [ ['w'] ], 'preloaded, a new file: the claim is woken');
	ok(poll(sub { count_of($dbh, "outbox.queue WHERE (topic, payload) IN (('handled', 'h1'), ('tick', 't'))") == 2 }), 'preloaded, a new file: workers work');
	is_refused($_->[0], "ALTER EXTENSION outbox UPDATE TO '$next'", "preloaded, a new file: UPDATE by $_->[1]") for [ $dbh, 'a session' ], [ $later, 'a session that is new' ];
	$dbh->do('CREATE DATABASE other');
	my $other = connect_to($node, db => 'other');
	is_refused($other, "CREATE EXTENSION outbox VERSION '$next'", 'preloaded, a new file: CREATE EXTENSION');
	is_state($other, "CREATE EXTENSION outbox VERSION '$old'", '', 'preloaded, a new file: CREATE EXTENSION of the old version');
	$_->disconnect for $dbh, $waits, $later, $other;

	# the server is restarted
	$node->restart;
	$dbh = connect_to($node);
	lives($dbh, 'preloaded, after the restart', "$next $old");
	is_deeply(answers($dbh), $baseline, 'preloaded, after the restart: functions answer what they did');
	is_deeply([ $dbh->selectrow_array("SELECT ok, detail, hint FROM outbox.status() WHERE component = 'version'") ],
		[ 0, "library $next, SQL $old", 'Restart the server if the library is new, or run ALTER EXTENSION outbox UPDATE.' ], 'preloaded, after the restart: status() says what to do');
	$dbh->do("SELECT outbox.enqueue('handle', 'h2'), outbox.enqueue('kept', i::text) FROM generate_series(1, 3) i");
	ok(poll(sub { count_of($dbh, "outbox.queue WHERE (topic, payload) = ('handled', 'h2')") == 3 }), 'preloaded, after the restart: workers work');
	claim($dbh, $anna, topics => ['kept'], batch_size => 1);
	$later = connect_to($node);
	is(scalar(claim($later, $berta, topics => ['kept'], batch_size => 1)), 1, 'preloaded: a lease before the update');
	is_state($dbh, "ALTER EXTENSION outbox UPDATE TO '$next'", '', 'preloaded, after the restart: UPDATE');
	is(join(' ', ack_all($dbh, $anna), ack_all($later, $berta), claim($later, $berta, topics => ['kept'])), '1 1 3', 'preloaded, updated: nothing is lost');
	ack_all($later, $berta);
	lives($_->[0], "preloaded, updated: $_->[1]", "$next $next") for [ $dbh, 'a session' ], [ $later, 'another' ];
	$baseline_next = answers($dbh);
	is_deeply([ grep { exists $baseline_next->{$_} && $baseline_next->{$_} ne $baseline->{$_} } sort keys %$baseline ], [], 'preloaded, updated: functions answer what they did');
	$_->disconnect for $dbh, $later;

	# the new library has gone, the new SQL has stayed
	$installation->{install}->($old);
	$node->restart;
	$dbh = connect_to($node);
	lives($dbh, 'preloaded, the old library with the new SQL', "$old $next");
	is_deeply(answers($dbh), $baseline_next, 'preloaded, the old library with the new SQL: functions answer what they did');
	is(value($dbh, "SELECT detail FROM outbox.status() WHERE component = 'version'"), "library $old, SQL $next", 'preloaded, the old library with the new SQL: status() says so');
	$dbh->do("SELECT outbox.enqueue('handle', 'h3')");
	ok(poll(sub { count_of($dbh, "outbox.queue WHERE (topic, payload) = ('handled', 'h3')") == 1 }), 'preloaded, the old library with the new SQL: workers work');
	nothing_stranded($dbh, 'preloaded');
	$dbh->disconnect;
	check_indexes($node, 'preloaded: indexes');
	$node->stop;
	log_is_clean($node, 'preloaded');
}

# --- not preloaded: each session loads what is there when it needs it

{
	my $node = new_node('plain', preload => 0, conf => "max_worker_processes = 20\nlog_line_prefix = '%m [%p] %e %q%a '", install_path => $installation->{path});
	my $of_old = connect_to($node);
	my $waits = connect_to($node);

	lives($of_old, 'not preloaded', "$old $old");
	handlers($of_old);
	begin_call($waits, "SELECT payload FROM outbox.claim(?, topics => '{waited}', wait_ms => 60000)", $carl);
	ok(poll(sub { sleeps($of_old, $waits) }), 'not preloaded: a claim waits');

	$installation->{install}->($next);
	my $of_new = connect_to($node);
	my %session = ('the old library' => $of_old, 'the new library' => $of_new);
	my $both = sub {
		my ($when, $sql, $answers) = @_;

		lives($of_old, "not preloaded, $when: the old library", "$old $sql");
		lives($of_new, "not preloaded, $when: the new library", "$next $sql");
		is_deeply(answers($session{$_}), $answers, "not preloaded, $when: functions answer what they did, with $_") for sort keys %session;
		# what one writes, the other finds; a lease of one stands for the other
		for my $pair ([ $of_old, $of_new ], [ $of_new, $of_old ])
		{
			my ($writer, $reader) = @$pair;

			is_deeply([ claim($reader, $anna, topics => ['t']) ], [], "not preloaded, $when: nothing is there");
			$writer->do("SELECT outbox.enqueue('t', i::text) FROM generate_series(1, 3) i");
			is_deeply([ sort(claim($reader, $anna, topics => ['t'], batch_size => 2)) ], [ 1, 2 ], "not preloaded, $when: what one enqueues, the other claims");
			is_deeply([ claim($writer, $berta, topics => ['t']) ], [3], "not preloaded, $when: and no more");
			is(ack_all($writer, $anna) . ack_all($reader, $berta), '21', "not preloaded, $when: each can ack the other's");
			nothing_stranded($reader, "not preloaded, $when");
		}
	};
	$both->('a new file', $old, $baseline);
	$of_new->do("SELECT outbox.enqueue('waited', 'w')");
	my $end = end_call($waits);
	is_deeply($end->{rows}, [ ['w'] ], 'not preloaded, a new file: a claim that waits gets what the new library writes');
	cmp_ok($end->{seconds}, '<', 60, 'not preloaded, a new file: in time');

	# handlers run in a process that loads the new library, whatever its starter has
	$of_old->do("SELECT outbox.enqueue('handle', 'h')");
	is(value($of_old, 'SELECT outbox._start_handlers()'), 0, 'not preloaded, a new file: handlers are not run for the old library');
	like(slurp_file($node->logfile), qr/55000 .*FATAL:  the library of outbox is of version 9\.9\.9, but the session that has started this process uses version \Q$old\E/, 'not preloaded, a new file: and the log says why');
	is(count_of($of_old, "outbox.queue WHERE topic = 'handle' AND status = 0 AND attempts = 0"), 1, 'not preloaded, a new file: the message waits');
	is(value($of_new, 'SELECT outbox._start_handlers()'), 1, 'not preloaded, a new file: it is handled for the new one');

	is_refused($of_old, "ALTER EXTENSION outbox UPDATE TO '$next'", 'not preloaded, a new file: UPDATE with the old library');
	is_state($of_new, "ALTER EXTENSION outbox UPDATE TO '$next'", '', 'not preloaded, a new file: UPDATE with the new one');
	$both->('updated', $next, $baseline_next);
	# the last session with the old library goes, and the memory is the new one's
	$_->disconnect for $of_old, $waits;
	ok(poll(sub { my $s = connect_to($node); my $lanes = value($s, 'SELECT lanes > 0 FROM outbox._library()'); $s->disconnect; $lanes }), 'not preloaded: the new library has a memory');
	lives($of_new, 'not preloaded, only the new library', "$next $next");
	nothing_stranded($of_new, 'not preloaded, only the new library');
	$of_new->disconnect;
	check_indexes($node, 'not preloaded: indexes');
	$node->stop;
	log_is_clean($node, 'not preloaded');
}
$installation->{install}->($old);
done_testing();
