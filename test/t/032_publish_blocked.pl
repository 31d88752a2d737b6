# Which parts of publish and subscribe a transaction that does not end holds up.
#
# One session does something and leaves its transaction open. What needs the same thing
# waits for it, and nothing else does: not the calls of others, and not the worker.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use Test::More;

my $stream = "'53535353-0000-4000-8000-000000000001'";
my $other_stream = "'53535353-0000-4000-8000-000000000002'";
my @names = map { "n$_" } 1 .. 12;
my $node = new_node('blocked', conf => "outbox.publish_retention = '1 d'");
my $holder = connect_to($node);
my $dbh = connect_to($node, settings => [ "SET statement_timeout = '20s'", 'SET outbox.allow_superuser_handlers = on' ]);
my $hasty = connect_to($node, settings => ["SET lock_timeout = '50ms'"]);
my ($what, $n) = ('', 0);

sub hold
{
	$what = shift;
	$holder->do('BEGIN');
	$holder->do($_) for @_;
	return;
}

sub let_go
{
	$holder->do('ROLLBACK');
	ok(poll(sub { !value($dbh, 'SELECT outbox._publishes_later()::int') }), "$what: then nothing is left to do");
	return;
}

sub goes_on { return is(sqlstate($dbh, $_[0]), '', "$what: $_[0] goes on") }

sub must_wait { return is(sqlstate($hasty, $_[0]), '55P03', "$what: $_[0] must wait") }

# A payload that is the only one of its kind, and to publish it.
sub new_payload { return 'payload ' . ++$n }

sub publish_sql
{
	my ($topic, $stream, $payload) = @_;

	return "SELECT outbox.publish('$topic', '$payload'::text" . ($stream ? ", stream_id => $stream" : '') . ')';
}

# It is published, and these get it, so often.
sub is_delivered
{
	my ($topic, $stream, $subscriptions, %more) = @_;
	my $payload = $more{payload} // new_payload();

	goes_on(publish_sql($topic, $stream, $payload)) if !$more{payload};
	return gets($payload, $subscriptions, $more{times} // 1, $more{seconds});
}

sub gets
{
	my ($payload, $subscriptions, $times, $seconds) = @_;
	my $want = join ' ', map { "$_:$times" } sort @$subscriptions;
	my $got = '';

	poll(sub {
		$got = join ' ', map { "$_->[0]:$_->[1]" } $dbh->selectall_array(<<'Q', undef, $payload);
SELECT s.subscription, count(*) FROM outbox.queue q JOIN outbox.subscribers s ON s.id = q.subscriber WHERE q.payload = ? GROUP BY 1 ORDER BY s.subscription COLLATE "C"
Q
		$got eq $want
	}, $seconds // 8);
	return is($got, $want, "$what: $payload is delivered");
}

sub claims
{
	my $name = shift;

	return ok(value($dbh, 'SELECT count(*) FROM outbox.claim(?, 30, 1, subscription => ?)', owner(++$n), $name), "$what: $name can claim");
}

# x and y want the same, of which n1 to n12 want a part, which are too many to be served
# at once; and z wants something else.
$dbh->do("SELECT outbox.subscribe('x', '{a.#}'), outbox.subscribe('y', '{a.#}'), outbox.subscribe('z', '{c}')");
$dbh->do("SELECT outbox.subscribe(name, '{b}') FROM unnest(?::text[]) name", undef, \@names);
$dbh->do(publish_sql(@$_, new_payload())) for [ 'a', undef ], [ 'a', $stream ], [ 'b', $stream ], [ 'c', undef ];
ok(poll(sub { !value($dbh, 'SELECT outbox._publishes_later()::int') }), 'all is delivered');

# ---- subscribe

hold('a subscription', "SELECT outbox.subscribe('new', '{a}')");
must_wait("SELECT outbox.subscribe('new', '{b}')");
goes_on("SELECT outbox.subscribe('x', '{a.#}')");
is_delivered('a', undef, [qw(x y)]);
is_delivered('a', $stream, [qw(x y)]);
is_delivered('b', $stream, \@names);
let_go();

hold('a change of a subscription', "SELECT outbox.subscribe('x', '{c}')");
must_wait("SELECT outbox.subscribe('x', '{a.#}')");
must_wait("SELECT outbox.unsubscribe('x')");
is_delivered('a', $stream, [qw(x y)]);
is_delivered('b', undef, \@names);
goes_on("SELECT outbox.pause_subscription('x'), outbox.resume_subscription('x')");
goes_on("SELECT outbox.subscribe('w', '{w}'), outbox.unsubscribe('w')");
claims('x');
let_go();

hold('a subscription that starts with what was before', "SELECT outbox.subscribe('new', '{a,b}', start_at => '-infinity')");
is_delivered('a', $stream, [qw(x y)]);
is_delivered('b', $stream, \@names);
my $replayed = new_payload();
goes_on(publish_sql('c', undef, $replayed));
goes_on("SELECT outbox.replay('z', '-infinity')");
gets($replayed, ['z'], 2);
let_go();

# ---- unsubscribe

goes_on("SELECT outbox.subscribe('gone', '{a,b}')");
is_delivered('a', $stream, [qw(gone x y)]);
hold('an end of a subscription', "SELECT outbox.unsubscribe('gone')");
must_wait("SELECT outbox.unsubscribe('gone')");
must_wait("SELECT outbox.subscribe('gone', '{a}')");
is_delivered('a', $stream, [qw(gone x y)]);
is_delivered('b', undef, [ @names, 'gone' ]);
goes_on("SELECT outbox.subscribe('w', '{w}'), outbox.configure_subscription('w', max_attempts => 3), outbox.unsubscribe('w')");
goes_on("CREATE FUNCTION handle(outbox.message) RETURNS void LANGUAGE sql AS ''");
goes_on("SELECT outbox.register_handler('handled', 'handle(outbox.message)')");
goes_on("SELECT outbox.unregister_handler('handled')");
claims('x');
let_go();

hold('a message of a subscription', "SELECT FROM outbox.queue q JOIN outbox.subscribers s ON s.id = q.subscriber WHERE s.subscription = 'gone' FOR UPDATE OF q");
goes_on("SELECT outbox.unsubscribe('gone')");
is_delivered('a', $stream, [qw(x y)]);
let_go();

# ---- publish

hold('a publication in a stream', publish_sql('a', $stream, new_payload()));
must_wait(publish_sql('a.b', $stream, new_payload()));
is_delivered('a', undef, [qw(x y)]);
is_delivered('a', $other_stream, [qw(x y)]);
# others want that, of the same stream
is_delivered('c', $stream, ['z']);
is_delivered('b', $other_stream, \@names);
$replayed = new_payload();
goes_on(publish_sql('c', undef, $replayed));
goes_on("SELECT outbox.replay('x', '-infinity')");
goes_on("SELECT outbox.replay('z', '-infinity')");
gets($replayed, ['z'], 2);
is(value($dbh, "SELECT detail ~ '^waits for a transaction that writes in a stream' FROM outbox.status() WHERE component = 'replay of default/x'"),
	1, "$what: status() tells of the replay that waits");
goes_on("SELECT outbox.subscribe('new', '{a}', start_at => '-infinity')");
goes_on("SELECT outbox.unsubscribe('new')");
claims('y');
let_go();

hold('a publication for many in a stream', publish_sql('b', $stream, new_payload()));
must_wait(publish_sql('b', $stream, new_payload()));
is_delivered('b', $other_stream, \@names);
is_delivered('b', undef, \@names);
is_delivered('a', undef, [qw(x y)]);
let_go();

# ---- replay, and what the worker does

hold('a replay', "SELECT outbox.replay('x', '-infinity')");
is_delivered('a', $stream, [qw(x y)]);
is_delivered('b', $stream, \@names);
goes_on("SELECT outbox.replay('z', now() + '1 h')");
let_go();

# A session does what the worker would do, and does not end; the worker is not there
# until then.
sub hold_step
{
	my ($call, @before) = @_;

	$what = $call;
	set_databases(q{''}, 0);
	$dbh->do($_) for @before;
	$holder->do('BEGIN');
	ok(value($holder, $call), "a session is in the middle of $call");
	set_databases('DEFAULT', 1);
	return;
}

sub set_databases
{
	my ($databases, $serves) = @_;

	$dbh->do("ALTER SYSTEM SET outbox.databases = $databases");
	$dbh->do('SELECT pg_reload_conf()');
	ok(poll(sub { value($dbh, "SELECT (detail ~ 'serves this database: yes')::int FROM outbox.status() WHERE component = 'workers'") == $serves
		  && ($serves || !count_of($dbh, "pg_stat_activity WHERE backend_type = 'outbox worker'")) }), 'the worker is ' . ($serves ? 'there' : 'not there'));
	return;
}

hold_step('SELECT (outbox._expand(0)).expanded', publish_sql('b', $stream, new_payload()));
must_wait(publish_sql('b', $stream, new_payload()));
is_delivered('b', undef, \@names);
is_delivered('b', $other_stream, \@names);
is_delivered('a', undef, [qw(x y)]);
$replayed = new_payload();
goes_on(publish_sql('c', undef, $replayed));
goes_on("SELECT outbox.replay('z', '-infinity')");
gets($replayed, ['z'], 2);
let_go();

hold_step('SELECT outbox._replay()', "SELECT outbox.replay('x', '-infinity')");
must_wait(publish_sql('a', $stream, new_payload()));
is_delivered('a', undef, [qw(x y)]);
is_delivered('b', $stream, \@names);
goes_on(publish_sql('c', undef, $replayed = new_payload()));
goes_on("SELECT outbox.replay('z', '-infinity')");
gets($replayed, ['z'], 2);
goes_on("SELECT outbox.subscribe('new', '{c}'), outbox.unsubscribe('new')");
let_go();

# ---- anything else

# A subscription that starts waits for transactions that have begun before it; the others
# go on in its streams, however much that is.
hold('any transaction', 'SELECT pg_current_xact_id()');
goes_on("SELECT outbox.subscribe('new', '{a,b}', start_at => '-infinity')");
goes_on("SELECT outbox.publish('a', 'many'::text, stream_id => $stream) FROM generate_series(1, 1200)");
is_delivered('a', $stream, [qw(x y)]);
is_delivered('b', $stream, \@names);
is_delivered('b', $other_stream, \@names);
like(value($dbh, "SELECT detail FROM outbox.status() WHERE component = 'start of default/new'"), qr/^waits for transactions before/, "$what: status() says so");
let_go();
gets('many', [qw(new x y)], 1200);

$node->stop;
done_testing();
