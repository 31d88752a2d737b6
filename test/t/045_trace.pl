# Handlers go on with the trace of their message, whatever becomes of the call; and all
# that was set off is found again.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('trace');
my $dbh = connect_to($node);
my $trace = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
my $other = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';

$dbh->do($_) for split /;;\n/, <<'Q';
CREATE ROLE alice LOGIN;;
CREATE TABLE public.seen (topic text, payload text, attempt int, traceparent text);;
GRANT ALL ON public.seen TO alice;;
GRANT USAGE ON SCHEMA public TO alice;;
CREATE FUNCTION public.handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.seen VALUES (m.topic, m.payload, m.attempts, current_setting('outbox.traceparent'));
    IF m.payload = 'fails once' AND m.retry_count = 0 THEN
        PERFORM outbox.enqueue('undone', 'x');
        RAISE EXCEPTION 'not yet';
    END IF;
    IF m.topic = 'first' THEN
        PERFORM outbox.enqueue('second', m.payload);
        PERFORM outbox.schedule_timer('third', m.payload, clock_timestamp());
        PERFORM outbox.publish('news', m.payload);
        -- what the function sets itself ends with the call
        PERFORM set_config('outbox.traceparent', '', false);
    END IF;
END $$;;
GRANT EXECUTE ON FUNCTION public.handle(outbox.message) TO alice;;
SELECT outbox.grant_worker('alice'), outbox.grant_producer('alice');;
SELECT outbox.subscribe('reader', '{news}');;
SET SESSION AUTHORIZATION alice;;
SELECT outbox.register_handler(t, 'public.handle(outbox.message)') FROM unnest('{first,second}'::text[]) t;;
RESET SESSION AUTHORIZATION;;
Q

# All in one transaction, so that the handler gets them in one batch: with a trace, without,
# with another, and one that fails.
$dbh->begin_work;
$dbh->do("SET LOCAL outbox.traceparent = '$trace'");
my $with = value($dbh, "SELECT outbox.enqueue('first', 'with')");
my $fails = value($dbh, "SELECT outbox.enqueue('first', 'fails once')");
$dbh->do("SET LOCAL outbox.traceparent = ''");
my $without = value($dbh, "SELECT outbox.enqueue('first', 'without')");
$dbh->do("SET LOCAL outbox.traceparent = '$other'");
my $another = value($dbh, "SELECT outbox.enqueue('first', 'another')");
$dbh->commit;

ok(poll(sub { value($dbh, "SELECT count(*) FROM outbox.messages WHERE topic IN ('third', 'news')") == 8 && value($dbh, "SELECT count(*) FROM outbox.archive WHERE topic = 'second'") == 4 }, 60), 'all is handled');
is(count_of($dbh, "outbox.messages WHERE topic = 'undone'"), 0, 'what a call that failed has enqueued is undone');

my %expected = (with => $trace, 'fails once' => $trace, without => '', another => $other);

is_deeply({ map { @$_ } $dbh->selectall_array("SELECT payload, traceparent FROM public.seen WHERE topic = 'first'") }, \%expected, 'a handler runs in the trace of its message, or in none');
is_deeply({ map { @$_ } $dbh->selectall_array("SELECT payload, traceparent FROM public.seen WHERE topic = 'second'") }, \%expected, 'so does the handler of what it has enqueued');
for my $topic (qw(second third news))
{
	is_deeply({ map { @$_ } $dbh->selectall_array("SELECT payload, coalesce(headers ->> 'traceparent', '') FROM outbox.messages WHERE topic = '$topic'") }, \%expected, "topic $topic: what handlers make is in their trace");
}

# Everything that a message has caused, in any way.
for my $case ([ with => $with ], [ without => $without ], [ another => $another ], [ 'fails once' => $fails ])
{
	my ($payload, $id) = @$case;
	my $mine = "(SELECT message_id FROM outbox.messages WHERE payload = '$payload' UNION ALL SELECT timer_id FROM outbox.timers WHERE payload = '$payload')";

	is_deeply([ map { "@$_" } $dbh->selectall_array("SELECT DISTINCT kind, topic FROM outbox.trace(?) WHERE relation = 'effect' AND item_id IN $mine ORDER BY 1, 2", undef, $id) ],
		[ 'message news', 'message second', 'message third', 'timer third' ], "$payload: all that it has caused");
	is(value($dbh, "SELECT count(*) FROM outbox.trace(?) WHERE relation = 'effect' AND item_id NOT IN $mine", $id), 0, "$payload: and nothing else");
	is_deeply([ map { @$_ } $dbh->selectall_array("SELECT DISTINCT item_id FROM outbox.trace((SELECT message_id FROM outbox.messages WHERE topic = 'second' AND payload = ?)) WHERE relation = 'cause'", undef, $payload) ],
		[$id], "$payload: what has caused what the handler enqueued");
	is(value($dbh, "SELECT string_agg(topic, ' ' ORDER BY at) FROM outbox.trace((SELECT message_id FROM outbox.messages WHERE topic = 'third' AND payload = ?)) WHERE relation = 'cause' AND event IN ('enqueued', 'scheduled')", $payload),
		'first third', "$payload: a message of a timer, back to what has scheduled that");
}
is(value($dbh, "SELECT count(*) FROM outbox.trace(?) WHERE event = 'failed attempt' AND relation = 'this'", $fails), 1, 'the attempt that failed is there');
like(value($dbh, "SELECT detail FROM outbox.trace(?) WHERE event = 'failed attempt' AND relation = 'this'", $fails), qr/^attempt 1: not yet/, 'with its error');

# More subscriptions than are served at once: their deliveries come later, in the trace.
$dbh->do("SELECT outbox.subscribe('many' || i, '{wide}') FROM generate_series(1, 12) i");
$dbh->begin_work;
$dbh->do("SET LOCAL outbox.traceparent = '$other'");
my $wide = value($dbh, "SELECT outbox.publish('wide', 'x')");
$dbh->commit;
ok(poll(sub { value($dbh, "SELECT count(*) FROM outbox.messages WHERE topic = 'wide' AND headers ->> 'traceparent' = '$other'") == 12 }), 'deliveries in the background are in the trace');
is(value($dbh, "SELECT count(*) FROM outbox.trace(?) WHERE event = 'delivered' AND relation = 'effect'", $wide), 12, 'all deliveries are found by the publication');

# A setting of the database is not that of the workers.
$dbh->do("ALTER DATABASE postgres SET outbox.traceparent = '$other'");
$dbh->do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'outbox worker%'");
my $timer = value($dbh, "SELECT outbox.schedule_timer('plain', 'x', clock_timestamp())");
ok(poll(sub { count_of($dbh, "outbox.messages WHERE topic = 'plain'") == 1 }), 'a worker that starts with another default');
is(value($dbh, "SELECT headers FROM outbox.messages WHERE topic = 'plain'"), undef, 'does not use it');

# What processes wait for has a name.
my $version = $dbh->{pg_server_version};
my $names = $version >= 170000 ? 'OutboxClaim OutboxLauncher' : 'Extension Extension';
my $waiting = client(sub { connect_to($node)->do("SELECT outbox.claim(topics => '{nothing}', wait_ms => 20000)") });

ok(poll(sub {
		value($dbh, "SELECT string_agg(wait_event, ' ' ORDER BY wait_event) FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND (backend_type = 'outbox launcher' OR query LIKE '%nothing%' AND pid <> pg_backend_pid())") eq $names;
}, 15), 'names of wait events');
$dbh->do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%nothing%' AND pid <> pg_backend_pid()");
waitpid $waiting, 0;

$node->stop;
done_testing();
