# The command line: each command is run as a person or a script would run it, and what
# it prints, what it changes and how it ends are compared.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run qw(start finish timeout);
use JSON::PP qw(decode_json);
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";
my ($bindir) = run_command([ 'pg_config', '--bindir' ]);
my ($program) = grep { -x $_ } "$bindir/outbox", "$top/cli/outbox";

plan skip_all => 'the command line was not built' if !$program;

my $node = new_node('cli', conf => "outbox.publish_retention = '1d'\nlc_messages = C");
my $dbh = connect_to($node);
my $dir = PostgreSQL::Test::Utils::tempdir();

$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = 'postgres';
$ENV{LC_ALL} = 'C.UTF-8';
delete @ENV{qw(NO_COLOR PG_COLOR PGAPPNAME)};

# Run it with these arguments: its exit code, and what it has written. Options before
# the arguments: { stdin => TEXT }.
sub outbox
{
	my $with = ref $_[0] ? shift : {};
	my ($out, $err, $stdin) = ('', '', $with->{stdin} // '');
	my $run = start([ $program, @_ ], '<', \$stdin, '>', \$out, '2>', \$err, timeout(180));

	finish($run);
	# by a signal, as the shell says it
	return ($? & 127 ? 128 + ($? & 127) : $? >> 8, $out, $err);
}

# It ends well and says nothing on standard error; what it has printed.
sub prints
{
	my ($code, $out, $err) = outbox(@_);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is("$code|$err", '0|', join(' ', 'outbox', grep { !ref } @_) =~ s/[^ -~]/?/gr =~ s/^(.{100}).*/$1 .../r);
	return $out;
}

# The same, read as JSON, or as JSON lines.
sub json { return decode_json(prints(@_, '--json')) }

sub json_lines
{
	return map { decode_json($_) } split /\n/, prints(@_, '--json');
}

# What a worker says of each message; what the commands say is ignored.
sub worked
{
	my ($code, $out) = outbox('work', @_, '--json');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($code, 0, "outbox work $_[0]");
	return map { decode_json($_) } split /\n/, $out;
}

# It ends with this code, and says this on standard error.
sub fails
{
	my ($code, $error, @arguments) = @_;
	my ($ended, $out, $err) = outbox(@arguments);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($ended, $code, join(' ', 'outbox', map { ref $_ ? () : $_ } @arguments) . " ends with $code");
	like($err, $error, '... and says why');
	return $out;
}

# A worker that is started, and ended by the test.
sub start_work
{
	my ($out, $err) = ('', '');
	my $run = start([ $program, 'work', @_ ], '<', \undef, '>', \$out, '2>', \$err, timeout(180));

	return { run => $run, out => \$out, err => \$err };
}

sub end_work
{
	my ($worker) = @_;

	finish($worker->{run});
	return $? & 127 ? 128 + ($? & 127) : $? >> 8;
}

sub states
{
	my ($topic) = @_;
	return join ' ', map { "$_->[0]" } $dbh->selectall_array(
		'SELECT state FROM outbox.messages WHERE topic = ? ORDER BY id', undef, $topic);
}

sub write_script
{
	my ($name, $text) = @_;
	open my $file, '>', "$dir/$name" or die $!;
	print $file "#!/bin/sh\n$text\n";
	close $file or die $!;
	chmod 0755, "$dir/$name";
	return "$dir/$name";
}

# --- Help, options, the connection

my @commands = map { /^([a-z]+(?: [a-z]+)?)\t/ ? $1 : () } split /\n/, prints('--describe');

is(scalar @commands, 26, 'there are so many commands');
like(prints('--help'), qr/^  \Q$_\E +\S/m, "the help names $_") for @commands;
for my $command (@commands)
{
	my @words = split / /, $command;
	my $help = prints(@words, '--help');

	like($help, qr/Usage:\n  outbox \Q$command\E .*--json .*Example:\n  outbox /s, "... and tells what it is for");
	unlike($help, qr/^.{101}/m, '... in lines that are not too long');
	is(prints('help', @words), $help, '... in both ways to ask');
}
like(prints('--version'), qr/^outbox \d+\.\d+\.\d+$/, 'the version');
is(prints('-d', 'nowhere', '--help'), prints('--help'), 'the help behind an option');
is(prints(), prints('--help'), 'without a command it prints the help');
fails(1, qr/there is no command "nonsense"/, 'nonsense');
fails(1, qr/unrecognized option '--nonsense'.*Try "outbox status --help"/s, 'status', '--nonsense');
fails(1, qr/too many arguments, the first of them is "x"/, 'status', 'x');
fails(1, qr/too few arguments: ID/, 'show');
fails(1, qr/must be a number from 1 to/, 'peek', '-n', '1x');
fails(1, qr/must be auto, always or never/, 'status', '--color', 'green');
fails(1, qr/must be a time such as/, 'top', '-i', '5 parsecs');
fails(2, qr/error: connection to server/, '-p', '1', 'status');
fails(2, qr/error: connection to server .* role "no one" does not exist/, 'status', '-U', 'no one');
$node->safe_psql('postgres', 'CREATE DATABASE bare');
fails(1, qr/does not have the extension outbox\noutbox: hint: CREATE EXTENSION outbox/, 'status', '-d', 'bare');
is(prints('topics', '-d', 'dbname=postgres'), prints('topics'), 'a connection string');
is(prints('-d', 'postgresql:///postgres?host=' . $node->host =~ s{/}{%2F}gr . '&port=' . $node->port, 'topics'),
	prints('topics'), 'a URI, before the command');
{
	append_to_file("$dir/services", '[here]' . "\nhost=" . $node->host . "\nport=" . $node->port . "\ndbname=postgres\n");
	local @ENV{qw(PGHOST PGPORT PGDATABASE)} = ('/nowhere', 1, 'nothing');
	local $ENV{PGSERVICEFILE} = "$dir/services";
	is(prints('topics', '-d', 'service=here'), "There are no messages that are not done.\n", 'a service');
}

# --- Enqueue and publish

my $id = prints('enqueue', 'order.placed', '{"order": 1}');

like($id, qr/^[0-9a-f-]{36}\n$/, 'the message_id');
chomp $id;
is(value($dbh, 'SELECT payload FROM outbox.messages WHERE message_id = ?', $id), '{"order": 1}', '... of the message');
prints({ stdin => "from\nstdin\n" }, 'enqueue', 'order.placed');
is(value($dbh, 'SELECT payload FROM outbox.messages ORDER BY id DESC LIMIT 1'), "from\nstdin\n", 'standard input, all of it');
append_to_file("$dir/payload", '');
prints('enqueue', 'order.placed', '--file', "$dir/payload");
is(value($dbh, 'SELECT payload FROM outbox.messages ORDER BY id DESC LIMIT 1'), '', 'an empty file');
my @sent = json_lines({ stdin => "a\n\nc" }, 'enqueue', 'lines', '--lines');
is_deeply([ map { $_->{outcome} } @sent ], [ ('enqueued') x 3 ], 'a message for each line');
is_deeply([ map { $_->[0] } $dbh->selectall_array("SELECT payload FROM outbox.messages WHERE topic = 'lines' ORDER BY id") ],
	[ 'a', '', 'c' ], '... in their order');
prints({ stdin => join '', map { "$_\n" } 1 .. 2500 }, 'enqueue', 'many', '-l');
is(count_of($dbh, "outbox.messages WHERE topic = 'many'"), 2500, 'many lines');
is(value($dbh, "SELECT count(DISTINCT created_at::date) FROM outbox.messages WHERE topic = 'many'"), 1, '... of today');
prints('enqueue', 'headed', 'x', '--header', 'region=eu', '-H', "quote=\"'\\", '--headers', '{"n": 1}',
	'--correlation-id', 'seven', '--priority', '-2', '--namespace', 'crm', '--tenant', owner(5),
	'--stream', owner(6), '--message-id', owner(7), '--due', '+1 hour', '--expires', '+1 day');
my $row = $dbh->selectrow_hashref("SELECT *, due_time - created_at BETWEEN '59 min' AND '61 min' AS due_ok,
  expires_at - created_at BETWEEN '23 h' AND '25 h' AS expires_ok FROM outbox.messages WHERE topic = 'headed'");
is_deeply(decode_json($row->{headers}), { region => 'eu', quote => "\"'\\", n => 1 }, 'headers');
is_deeply([ @$row{qw(correlation_id priority namespace tenant_id stream_id message_id due_ok expires_ok)} ],
	[ 'seven', -2, 'crm', owner(5), owner(6), owner(7), 1, 1 ], 'all options');
like(prints('enqueue', 'keyed', 'x', '--dedupe-key', 'k'), qr/^\S+\n$/, 'a dedupe key');
like(prints('enqueue', 'keyed', 'x', '--dedupe-key', 'k'), qr/^\S+  kept\n$/, '... that is taken');
like(prints('enqueue', 'keyed', 'y', '--dedupe-key', 'k', '--on-duplicate', 'replace'), qr/  replaced\n$/, '... and replaced');
is(prints('enqueue', 'keyed', 'four', '--dry-run'), "would enqueue 4 bytes in topic keyed\n", 'a dry run');
is(states('keyed'), 'ready', '... enqueues nothing');
fails(1, qr/has a byte 0/, { stdin => "a\0b" }, 'enqueue', 'x');
fails(1, qr/line 2 has a byte 0/, { stdin => "a\nb\0" }, 'enqueue', 'x', '--lines');
fails(1, qr/could not open file "\Q$dir\E\/none": No such file/, 'enqueue', 'x', '-f', "$dir/none");
fails(1, qr/must be NAME=VALUE/, 'enqueue', 'x', 'y', '-H', 'novalue');
fails(1, qr/error: topic must not be empty/, 'enqueue', '', 'y');

$dbh->do("SELECT outbox.subscribe('billing', '{invoice.*}'), outbox.subscribe('audit', '{#}')");
is(prints('publish', 'invoice.paid', 'p', '--dry-run'), "would publish 1 bytes in topic invoice.paid, for audit, billing\n",
	'who would get it');
like(prints('publish', 'invoice.paid', 'paid'), qr/^[0-9a-f-]{36}\n$/, 'publish');
is(scalar(my @published = json_lines({ stdin => "1\n2\n" }, 'publish', 'invoice.sent', '-l')), 2, '... lines');
ok(poll(sub { count_of($dbh, "outbox.messages WHERE subscription = 'billing'") == 3 }), '... are delivered');

# --- Looking

my %topic = map { $_->{topic} . ($_->{subscription} ? " > $_->{subscription}" : '') => $_ } @{ json('topics') };
is_deeply([ @{ $topic{many} }{qw(namespace ready leased delayed dead more)} ], [ 'default', 2500, 0, 0, 0, JSON::PP::false ],
	'a topic');
is($topic{headed}{delayed}, 1, '... and one with a delayed message');
is($topic{'invoice.sent > billing'}{ready}, 2, '... and deliveries');
is_deeply([ map { $_->{topic} } @{ json('topics', 'order.*') } ], ['order.placed'], 'a pattern');
is_deeply([ map { $_->{topic} } @{ json('topics', '--namespace', 'crm') } ], ['headed'], 'a namespace');
like(prints('topics'), qr/^TOPIC +NAMESPACE +SUBSCRIPTION +READY .*\nmany +default +2,500 /, '... as a table');
is_deeply([ map { $_->{payload} } @{ json('peek', 'many', '-n', 3) } ], [ 1, 2, 3 ], 'the next messages');
is_deeply([ map { $_->{correlation_id} } @{ json('peek', '-s', 'delayed') } ], ['seven'], 'a delayed one');
is(scalar @{ json('peek', '--subscription', 'billing', '-s', 'ready') }, 3, 'deliveries');
is(states('many') =~ /progress/, '', '... are not touched');
fails(1, qr/must be ready, delayed, leased or dead/, 'peek', '-s', 'done');
is_deeply([ map { $_->{payload} } json_lines('tail', 'many', '--no-follow', '-n', 2) ], [ 2499, 2500 ], 'the last messages');
my $totals = json('status')->{totals};
is($totals->{ready}, value($dbh, "SELECT count(*) FROM outbox.messages WHERE status = 0 AND next_attempt_at <= now()"),
	'the totals');
like(prints('status'), qr/^2,5\d\d ready   0 leased   1 delayed   0 failing   0 dead\n/, '... as text');

# tail, while messages come
{
	my ($out, $err) = ('', '');
	my $tail = start([ $program, 'tail', 'live', '-n', '0', '-i', '50ms', '--json' ], '<', \undef, '>', \$out, '2>', \$err, timeout(60));
	my ($first, $second) = (connect_to($node), connect_to($node));

	ok(poll(sub { count_of($dbh, "pg_stat_activity WHERE application_name = 'outbox tail' AND query LIKE '%is_old%'") }), 'tail looks');
	$first->begin_work;
	$first->do("SELECT outbox.enqueue('live', 'begun first')");
	$second->do("SELECT outbox.enqueue('live', 'committed first')");
	ok(poll(sub { $tail->pump_nb; $out =~ /committed first/ }), 'tail shows what comes');
	$first->commit;
	ok(poll(sub { $tail->pump_nb; $out =~ /begun first/ }), '... also what has an earlier id');
	is(scalar(my @lines = split /\n/, $out), 2, '... once');
	$tail->kill_kill;
}

# --- One message, and hostile ones

my $shown = json('show', $id);
is_deeply([ @{ $shown->{message} }{qw(message_id topic state payload attempts)} ], [ $id, 'order.placed', 'ready', '{"order": 1}', 0 ],
	'show');
ok(!(grep { !$_->{passed} } @{ $shown->{delivery} }), '... can be delivered');
is_deeply(json('show', $shown->{message}{id})->{message}{message_id}, $id, '... by its id');
like(prints('show', $id), qr/^id +\d+\nmessage id +$id\n.*\nDelivery\n.*\nPayload\n\{"order": 1\}\n$/s, '... as text');
fails(4, qr/there is no message 999999999/, 'show', 999999999);
fails(4, qr/there is no message/, 'show', owner(99));
fails(1, qr/must be a number or a UUID/, 'show', "1'; DROP TABLE outbox.topics; --");

my $hostile = "bell\a esc\e[31mred\e]0;title\a csi\x{9b}31m bidi\x{202e}txet del\x7f tab\t cr\r nel\x{85} zero\x{200b} end\n" . ('long' x 30000);
my $topic = "t\e[2J\x{202e}'; DROP TABLE outbox.topics; --";
utf8::encode($hostile);
utf8::encode($topic);
my $mid = prints({ stdin => $hostile }, 'enqueue', $topic);
chomp $mid;
is(prints('show', $mid, '--payload'), $hostile, 'a hostile payload comes back as it was');
for my $command ([ 'show', $mid ], [ 'peek', $topic ], ['topics'], [ 'tail', '--no-follow', '-n', 3 ], ['status'], ['top'],
	[ 'show', $mid, '--json' ], [ 'peek', $topic, '--json' ], [ 'pause', $topic, '--dry-run' ])
{
	my $out = prints(@$command);

	utf8::decode($out);
	unlike($out, qr/[\x00-\x08\x0b-\x1f\x7f-\x9f\x{200b}-\x{200f}\x{202a}-\x{202e}]/, "... and sends nothing to the terminal by $command->[0]")
	  if !grep { $_ eq '--json' } @$command;
	unlike($out, qr/[\x00-\x09\x0b-\x1f\x7f-\x9f]/, "... and no control characters by $command->[0]") if grep { $_ eq '--json' } @$command;
}
my $decoded = json('show', $mid)->{message};
utf8::decode(my $wide = $hostile);
is($decoded->{payload}, $wide, '... in JSON neither');
is(json('topics')->[0]{topic}, 'many', 'the tables are still there');
like(prints('show', $mid), qr/bell\\x07 esc\\x1b\[31mred/, 'control characters are shown as escapes');
{
	local $ENV{LC_ALL} = 'C';
	unlike(prints('show', $mid), qr/[^\x09\x0a\x20-\x7e]/, 'only ASCII where the locale has no more');
}
{
	my $out = `{ '$program' peek many -n 2500; echo \$? >'$dir/code'; } | head -1`;

	like($out, qr/^ID +TOPIC +STATE/, 'a reader that goes away gets its line');
	like(slurp_file("$dir/code"), qr/^(0|141)$/, '... and nothing is said');
}
like(prints('topics', '--color=always'), qr/\e\[1m/, 'colours when asked for');
unlike(prints('topics'), qr/\e/, '... not in a pipe');

# --- Work

my $script = write_script('by_payload', <<'S');
read -r payload
echo "$payload $OUTBOX_TOPIC $OUTBOX_ATTEMPT" >>"$LOG"
case $payload in
fail*) echo "bad data" >&2; exit 65 ;;
retry*) echo "later" >&2; exit 75 ;;
other*) exit 3 ;;
kill*) kill -9 $$ ;;
esac
S
$ENV{LOG} = "$dir/log";
prints({ stdin => "good\nfail\nretry\nother\nkill\n" }, 'enqueue', 'job', '--lines');
{
	my @done = worked('job', '--exec', "exec $script", '--limit', 5, '--retry-delay', '1 hour');
	my %by = map { $_->{id} => $_ } @done;
	my @by = map { $by{$_} } sort { $a <=> $b } keys %by;

	is_deeply([ map { $_->{outcome} } @by ], [qw(acked failed nacked nacked nacked)], 'the exit code decides');
	is_deeply([ map { $_->{exit_code} } @by ], [ 0, 65, 75, 3, undef ], '... as it is told');
	is($by[4]{signal}, 9, '... or the signal');
	is(states('job'), 'done failed ready ready ready', '... and so it is in the database');
	is_deeply([ map { $_->[0] } $dbh->selectall_array("SELECT coalesce(last_error, '') FROM outbox.messages WHERE topic = 'job' ORDER BY id") ],
		[ '', 'exit code 65: bad data', 'exit code 75: later', 'exit code 3', 'killed by signal 9' ], '... with the errors');
	is(value($dbh, "SELECT outbox.reason_name(failure_reason) FROM outbox.dead_letters WHERE topic = 'job'"), 'validation', '... and the reason');
	is(slurp_file("$dir/log"), join('', map { "$_ job 1\n" } qw(good fail retry other kill)), 'each was run once');
}
$dbh->do("SELECT outbox.purge_topic('job')");

# what the command sees
prints('enqueue', 'seen', 'p', '-H', 'traceparent=00-1-2-3', '--correlation-id', 'c', '--stream', owner(8));
{
	local $ENV{OUTBOX_SUBSCRIPTION} = 'of an outer command';
	my ($code, $out, $err) = outbox('work', 'seen', '--drain', '--exec', 'env | grep -E "^(OUTBOX_|TRACEPARENT)" | sort; cat');

	is($code, 0, 'the environment');
	like($out, qr/OUTBOX_ATTEMPT=1\nOUTBOX_CORRELATION_ID=c\n.*OUTBOX_HEADERS=\{"traceparent": "00-1-2-3"\}\nOUTBOX_ID=\d+\n.*OUTBOX_MESSAGE_ID=.*OUTBOX_NAMESPACE=default\n.*OUTBOX_STREAM_ID=@{[ owner(8) ]}\nOUTBOX_TOPIC=seen\nTRACEPARENT=00-1-2-3\np$/s,
		'... has all of it');
	unlike($out, qr/OUTBOX_SUBSCRIPTION/, '... and nothing of an outer command');
	is($err, "1 acked, 0 nacked, 0 failed, 0 released, 0 lost\n", 'the summary');
}

# payloads that are larger than a pipe, read and not read
prints({ stdin => 'x' x 3_000_000 }, 'enqueue', 'large') for 1 .. 2;
is((outbox('work', 'large', '--limit', 1, '--exec', 'wc -c'))[1] + 0, 3_000_000, 'a large payload');
is((worked('large', '--limit', 1, '--exec', 'true'))[0]{outcome}, 'acked', '... that is not read');

# one connection, several commands at a time; a stream in its order
prints({ stdin => join '', map { "$_\n" } 1 .. 6 }, 'enqueue', 'slow', '-l');
{
	my $worker = start_work('slow', '-j', 3, '--exec', "cat; touch $dir/at.\$OUTBOX_ID; while [ ! -e $dir/go ]; do sleep 0.05; done", '--limit', 6);

	ok(poll(sub { 3 == (() = glob "$dir/at.*") }), 'three at a time');
	is(value($dbh, "SELECT count(*) || ' ' || count(DISTINCT pid) FROM outbox.leases WHERE topic = 'slow'"), '3 1', '... by one connection');
	my $leased = json('peek', 'slow', '-s', 'leased');
	like($leased->[0]{worker}, qr/^outbox work \d+/, '... which can be seen');
	append_to_file("$dir/go", '');
	is(end_work($worker), 0, '... and it ends');
	is(states('slow'), join(' ', ('done') x 6), '... when all are done');
}
prints({ stdin => join '', map { "$_\n" } 1 .. 8 }, 'enqueue', 'stream', '-l', '--stream', owner(9));
$ENV{LOG} = "$dir/stream";
is((outbox('work', 'stream', '-j', 4, '--limit', 8, '--exec', 'read n; sleep 0.0$((9 - n)); echo $n >>"$LOG"'))[0], 0, 'a stream');
is(slurp_file("$dir/stream"), join('', map { "$_\n" } 1 .. 8), '... is worked on in its order');

# a lease is renewed as long as its command runs
prints('enqueue', 'long', 'x');
unlink "$dir/go";
{
	my $worker = start_work('long', '--lease', 1, '--limit', 1, '--json', '--exec', "while [ ! -e $dir/go ]; do sleep 0.05; done");
	my $until;

	ok(poll(sub { $until = value($dbh, "SELECT locked_until FROM outbox.leases WHERE topic = 'long'") }), 'a lease of a second');
	ok(poll(sub { value($dbh, "SELECT locked_until > ?::timestamptz + interval '2 s' FROM outbox.leases WHERE topic = 'long'", $until) }),
		'... is renewed');
	append_to_file("$dir/go", '');
	is(end_work($worker), 0, '... until the command ends');
	is(decode_json(${ $worker->{out} })->{outcome}, 'acked', '... and is acknowledged');
	is(value($dbh, "SELECT attempts FROM outbox.messages WHERE topic = 'long'"), 1, '... in its only attempt');
}

# a lease that is lost ends the command
prints('enqueue', 'lost', 'x');
{
	my $worker = start_work('lost', '--lease', 3, '--limit', 1, '--json', '--exec', 'sleep 100');

	ok(poll(sub { $dbh->do("SELECT outbox.release(owner_token) FROM outbox.leases WHERE topic = 'lost'") > 0 }), 'a lease is taken away');
	is(end_work($worker), 0, '... and the worker ends');
	is(decode_json(${ $worker->{out} })->{outcome}, 'lost', '... without an acknowledgement');
	like(${ $worker->{err} }, qr/warning: the lease of message \d+ was lost: its command is ended/, '... and says so');
	is(states('lost'), 'ready', '... of what another worker does now');
}

# a timeout
prints('enqueue', 'hangs', 'x');
is((worked('hangs', '--limit', 1, '--timeout', '200ms', '--exec', 'sleep 100'))[0]{error}, 'timed out after 0.2 s', 'a timeout');

# graceful stop: no more claims, but the command ends, and is acknowledged
for my $signal ('TERM', 'INT')
{
	my $name = "stop.$signal";

	unlink "$dir/go";
	prints({ stdin => "1\n2\n" }, 'enqueue', $name, '-l');
	my $worker = start_work($name, '--exec', "while [ ! -e $dir/go ]; do sleep 0.05; done");
	poll(sub { count_of($dbh, "outbox.leases WHERE topic = '$name'") });
	$worker->{run}->signal($signal);
	append_to_file("$dir/go", '');
	is(end_work($worker), 0, "SIG$signal ends a worker");
	is(states($name), 'done ready', '... after what it was doing');

	# the second one ends the command, too, and gives the message back
	$dbh->do("SELECT outbox.purge_topic('$name')");
	prints('enqueue', $name, '3');
	$worker = start_work($name, '--json', '--exec', "touch $dir/runs.$signal; sleep 100");
	poll(sub { -e "$dir/runs.$signal" });
	$worker->{run}->signal($signal);
	ok(poll(sub { connect_to($node)->disconnect; $worker->{run}->pump_nb; 1 }), '... the first');
	$worker->{run}->signal($signal) for 1 .. 2;
	is(end_work($worker), 0, '... and the second');
	is(decode_json(${ $worker->{out} })->{outcome}, 'released', '... the message is given back');
	is(value($dbh, "SELECT state || attempts FROM outbox.messages WHERE topic = ? AND payload = '3'", $name), 'ready0', '... as if never claimed');
}

# a worker that waits ends at once, and one that is idle is woken
{
	my $worker = start_work('idle', '--json', '--exec', 'cat >/dev/null');

	ok(poll(sub { value($dbh, "SELECT waiting FROM outbox.claimers WHERE topic = 'idle'") }), 'a worker waits in the server');
	prints('enqueue', 'idle', 'x');
	ok(poll(sub { states('idle') eq 'done' }), '... and is woken');
	# its connection is lost
	$dbh->do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outbox work'");
	prints('enqueue', 'idle', 'y');
	ok(poll(sub { states('idle') eq 'done done' }), '... and connects again');
	$worker->{run}->signal('TERM');
	is(end_work($worker), 0, '... and ends while it waits');
}

# what cannot be run is given back, and the worker ends
prints('enqueue', 'typo', 'x');
fails(1, qr/error: the command cannot be run: exit code 127: .*not found/, 'work', 'typo', '--exec', '/no/such/command');
is(value($dbh, "SELECT state || attempts FROM outbox.messages WHERE topic = 'typo'"), 'ready0', '... and no attempt is counted');
is((worked('typo', '--limit', 1, '--fail-code', 7, '--exec', 'exit 7'))[0]{outcome}, 'failed', 'a code that fails');
fails(1, qr/say what to run/, 'work', 'typo');
fails(1, qr/say what to work on/, 'work', '--exec', 'true');
fails(1, qr/error: subscription "none" does not exist/, 'work', '--subscription', 'none', '--exec', 'true');
like(prints('work', 'typo', '--exec', 'true', '--dry-run'), qr/^would run, for each message of \{"typo"\}: true$/m, 'a dry run');
is((outbox('work', '--subscription', 'billing', '--drain', '-q', '--exec', 'cat; echo'))[1], "paid\n1\n2\n", 'deliveries of a subscription');

# errors that are not UTF-8, or too long
prints('enqueue', 'noisy', 'x');
outbox('work', 'noisy', '--limit', 1, '--exec', q{perl -e 'print STDERR "\xff\xfe", "e" x 5000, "\0end\n"; exit 65'});
like(value($dbh, "SELECT last_error FROM outbox.dead_letters WHERE topic = 'noisy'"), qr/^exit code 65: e{990,}\?end$/, 'the end of a long error');

# --- Dead messages

$dbh->do("SELECT outbox.enqueue_many('broken', ARRAY(SELECT n::text FROM generate_series(1, 2500) n))");
$dbh->do("SELECT outbox.fail(?, array_agg(id), 'no such order') FROM outbox.claim(?, batch_size => 10000, topics => '{broken}')",
	undef, owner(1), owner(1));
my $dead = json('dead', 'list', 'broken', '-n', 2);
is_deeply([ map { "$_->{topic} $_->{reason} $_->{last_error} $_->{attempts}" } @$dead ], [ ('broken unknown no such order 1') x 2 ], 'dead messages');
is(scalar @{ json('dead') }, 20, '... "dead" alone lists them, and not all');
is_deeply([ map { "$_->{topic} $_->{count}" } @{ json('dead', 'list', 'broken', '--summary') } ], ['broken 2500'], '... summed up');
is(json('dead', 'show', $dead->[0]{id})->{failed_attempts}[0]{error}, 'no such order', '... one of them');
is_deeply(json('dead', 'redrive', 'broken', '--dry-run'), { redriven => 2500, dry_run => JSON::PP::true }, 'a dry run');
is(prints('dead', 'redrive', '--id', $dead->[0]{id}), "redriven 1 message\n", 'one is redriven');
is(prints('dead', 'redrive', 'broken', '--batch', 1000), "redriven 2,499 messages\n", '... and the others');
is(value($dbh, "SELECT count(*) FROM outbox.messages WHERE topic = 'broken' AND state = 'ready' AND attempts = 0"), 2500, '... and are ready');
is(prints('dead', 'redrive', 'broken'), "redriven 0 messages\n", '... and none is left');
fails(1, qr/say what to redrive/, 'dead', 'redrive');
fails(1, qr/invalid input syntax for type bigint/, 'dead', 'redrive', '--id', '1 OR true');
$dbh->do("SELECT outbox.fail(?, array_agg(id)) FROM outbox.claim(?, batch_size => 10000, topics => '{broken}')", undef, owner(1), owner(1));
fails(1, qr/this destroys messages, and there is no terminal to ask on\n.*--yes/, 'dead', 'purge', 'broken');
is(prints('dead', 'purge', 'broken', '--dry-run'), "would have purged 2,500 messages\n", 'a dry run');
is(count_of($dbh, "outbox.dead_letters WHERE topic = 'broken'"), 2500, '... destroys nothing');
is_deeply(json('dead', 'purge', 'broken', '--yes', '--batch', 1000), { purged => 2500, dry_run => JSON::PP::false }, 'purged');
is(count_of($dbh, "outbox.messages WHERE topic = 'broken'"), 0, '... for good');

# --- Pause, resume, replay

is(prints('pause', 'many', '--dry-run'), "would have paused many\n", 'a dry run');
is(json('topics', 'many')->[0]{paused}, JSON::PP::false, '... pauses nothing');
is(prints('pause', 'many'), "paused many\n", 'pause');
is(json('topics', 'many')->[0]{paused}, JSON::PP::true, '... a topic');
like(prints('topics', 'many'), qr/ paused$/m, '... as is shown');
is_deeply(json('resume', 'many'), { resumed => 'many', namespace => 'default', dry_run => JSON::PP::false }, 'resume');
is(json('topics', 'many')->[0]{paused}, JSON::PP::false, '... the topic');
prints('pause', 'billing', '--subscription');
is(json('subscriptions', 'billing')->[0]{paused}, JSON::PP::true, '... a subscription');
prints('resume', 'billing', '--subscription');
fails(1, qr/error: /, 'pause', 'none', '--subscription');
is_deeply(json('replay', 'billing', '--from', '-1 hour', '--dry-run'), { publications => 3, done => JSON::PP::false, dry_run => JSON::PP::true }, 'how much would be replayed');
is(count_of($dbh, "outbox.messages WHERE subscription = 'billing' AND state = 'ready'"), 0, '... and is not');
is(prints('replay', 'billing', '--from', '-1 hour', '--topic', 'invoice.sent'), "replayed 2 publications\n", 'replay');
is(count_of($dbh, "outbox.messages WHERE subscription = 'billing' AND state = 'ready'"), 2, '... and they are there');
fails(1, qr/say from when on/, 'replay', 'billing');

# --- The other lists

is_deeply(json('subscriptions', 'billing')->[0]{topics}, ['invoice.*'], 'subscriptions');
prints({ stdin => "1\n2\n3\n" }, 'enqueue', 'ordered', '-l', '--stream', owner(11));
my $stream = json('streams', owner(11))->[0];
is_deeply([ @$stream{qw(topic state behind)} ], [ 'ordered', 'ready', 2 ], 'streams');
my $join = value($dbh, "SELECT outbox.start_join('order 7', 3)");
$dbh->do("SELECT outbox.enqueue_step(?, 'step', 's')", undef, $join);
my ($progress) = @{ json('joins') };
is_deeply([ @$progress{qw(join_id grouping_key status expected_steps missing_steps members)} ], [ $join, 'order 7', 'pending', 3, 3, 1 ], 'joins');
is(json('joins', $join)->[0]{grouping_key}, 'order 7', '... by the id');
is(json('show', value($dbh, "SELECT message_id FROM outbox.messages WHERE topic = 'step'"))->{joins}[0]{join_id}, $join, '... of a step');
$dbh->do("SELECT outbox.cancel_join(?)", undef, $join);
is_deeply(json('joins'), [], '... that are pending');
is(json('joins', 'order 7')->[0]{status}, 'cancelled', '... or have ended');
$dbh->do("SELECT outbox.heartbeat(?, 'shop', 'host1', 4711, NULL)", undef, owner(12));
is_deeply([ @{ json('instances', 'shop')->[0] }{qw(instance_id service_name host_name process_id)} ], [ owner(12), 'shop', 'host1', 4711 ], 'instances');
{
	my $mailer = connect_to($node);
	my $ask = sub { (grep { $_->{application} eq 'mailer' } @{ json('workers', @_) })[0] };
	$mailer->do("SET application_name = 'mailer'");
	$mailer->do("SELECT outbox.enqueue('mailed', 'x') FROM generate_series(1, 3)");
	$mailer->do("SELECT outbox.ack(?, ARRAY[min(c.id)]) FROM outbox.claim(?, topics => '{mailed}') c", undef, owner(13), owner(13));
	is_deeply([ @{ $ask->() }{qw(pid host open claimed ended gone owner_token)} ], [ $mailer->{pg_pid}, '[local]', 2, 3, 1, JSON::PP::false, undef ], 'workers');
	is($ask->('mailer')->{open}, 2, '... by their application');
	is_deeply(json('workers', 'postman'), [], '... and no others');
	like(prints('workers', 'mailer'), qr/^WORKER +HOST +PROCESS +OPEN +CLAIMED +ENDED +MEAN +A SECOND +CLAIMED AGO +ENDED AGO\nmailer +\[local\] +\d+ +2 +3 +1 +\S+ \S+ +\S+ +/, '... as text');
	$mailer->do('SELECT outbox.release(?)', undef, owner(13));
	$mailer->disconnect;
	$dbh->do("SELECT outbox.purge_topic('mailed')");
}
is_deeply(json('handlers'), [], 'handlers');
$dbh->do("SET outbox.allow_superuser_handlers = on");
$dbh->do("CREATE FUNCTION public.handle_it(m outbox.message) RETURNS void LANGUAGE sql AS ''");
$dbh->do("SELECT outbox.register_handler('it', 'public.handle_it(outbox.message)')");
is_deeply([ @{ json('handlers')->[0] }{qw(topic namespace subscription handler calls mean_seconds dead)} ], [ 'it', 'default', undef, 'public.handle_it(outbox.message)', 0, undef, 0 ], '... with one');
like(prints('handlers', 'it'), qr/^TOPIC +HANDLER +ROLE +CALLS +MEAN +TOTAL +DONE +RETRIED +DEAD\nit +public\.handle_it\(outbox\.message\) /, '... as text');
$dbh->do("SELECT outbox.unregister_handler('it')");
$dbh->do("SELECT outbox.schedule_timer('remind', 'x', now() + interval '1 hour', 'about it')");
is_deeply([ @{ json('timers')->[0] }{qw(topic state correlation_id)} ], [ 'remind', 'ready', 'about it' ], 'timers');
cmp_ok(json('timers', 'remind')->[0]{due_in_seconds}, '>', 3500, '... and when they are due');
is_deeply(json('jobs'), [], 'jobs');
is(prints('jobs'), "There are no jobs.\n", '... as text');
like(prints('instances'), qr/^INSTANCE +SERVICE +HOST +PROCESS +SILENT FOR +UP FOR\n/, '... and instances');

# --- Doctor, top, bench

{
	my ($code, $out, $err) = outbox('doctor', '--json');
	my $doctor = decode_json($out);
	my %check = map { $_->{check} => $_ } @{ $doctor->{checks} };

	is("$code$err", '3', 'doctor has found something');
	is($check{'dead messages'}{ok}, JSON::PP::false, '... dead messages');
	isnt($check{'dead messages'}{hint}, '', '... and what to do');
	is($check{rights}{status}, 'admin', '... the rights');
	is($doctor->{found}, scalar(grep { !$_->{ok} } @{ $doctor->{checks} }), '... and counted them');
	like((outbox('doctor'))[1], qr/^\xe2\x9c\x97 dead messages: .*\n  \xe2\x86\x92 /m, '... as text');
	$node->safe_psql('postgres', 'CREATE DATABASE well');
	$node->safe_psql('well', 'CREATE EXTENSION outbox');
	like(prints('doctor', '-d', 'well'), qr/\n\d+ checks passed, 0 found something\n$/, '... and nothing where there is nothing');
}
{
	my ($one, $two) = json_lines('top', '-n', 2, '-i', '100ms');
	my ($many) = grep { $_->{topic} eq 'many' } @{ $two->{topics} };

	is($many->{ready}, 2500, 'top');
	is($one->{in_per_second}, undef, '... knows no rate at first');
	is(ref $two->{problems}, 'ARRAY', '... and what is wrong');
	my $screen = prints('top', '--filter', 'man', '--sort', 'name');
	like($screen, qr/^outbox  postgres on .*\n\nready +\S+ .*\nTOPIC\S+ +READY .*\nmany +2,500 /s, '... as text');
	unlike($screen, qr/order\.placed .*0/, '... and only what is asked for');
}
is_deeply([ map { $_->{name} } @{ json('bench', '-n', 500, '--wakeups', 3, '--yes') } ],
	[ 'enqueue', 'claim and ack', 'enqueue one', 'wake a claim' ], 'bench');
is(count_of($dbh, "outbox.messages WHERE namespace LIKE 'outbox bench%'") + count_of($dbh, "outbox.topics WHERE namespace LIKE 'outbox bench%'"),
	0, '... leaves nothing');
is(prints('bench', '--dry-run'), "would send 10000 messages of 200 bytes through a topic of its own\n", '... a dry run');

# What newer versions count, alert and trace: the real ones, or others of the same form.
{
	my $counted = connect_to($node, db => 'well');

	$counted->do(<<'Q') if !value($counted, "SELECT to_regclass('outbox.topic_counters')");
CREATE SEQUENCE outbox_looks;
CREATE VIEW outbox.topic_counters AS
    SELECT 'message'::text AS kind, 'default'::text AS namespace, NULL::text AS subscription, 'counted'::text AS topic,
           nextval('outbox_looks') * 10 AS enqueued, 7::bigint AS acked;
Q
	$counted->do(<<'Q') if !value($counted, "SELECT count(*) FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname = 'alerts'");
CREATE FUNCTION outbox.alerts(OUT name text, OUT severity text, OUT since timestamptz, OUT value float8,
    OUT threshold float8, OUT subject text, OUT message text, OUT hint text) RETURNS SETOF record LANGUAGE sql
    AS $$ SELECT 'Backlog', 'critical', now(), 1.0, 0.5, 'counted', 'too many', 'Do.' $$;
Q
	$counted->do(<<'Q') if !value($counted, "SELECT to_regprocedure('outbox.trace(uuid)')");
CREATE FUNCTION outbox.trace(message_id uuid, OUT at timestamptz, OUT event text) RETURNS SETOF record LANGUAGE sql
    AS $$ SELECT now(), 'enqueued' $$;
Q
	my $traced = prints('enqueue', 'counted', 'x', '-d', 'well') =~ s/\n//r;
	my ($first, $second) = json_lines('top', '-n', 2, '-i', '200ms', '-d', 'well');

	ok(defined $second->{topics}[0]{in_per_second}, 'top knows rates where the extension counts');
	like(prints('top', '-d', 'well'), qr/^in\/s.*\nout\/s.*^TOPIC.* IN\/s +OUT\/s$/ms, '... and shows them');
	ok(ref json('show', $traced, '-d', 'well')->{trace} eq 'ARRAY', 'show has the trace');
	my ($alert) = grep { $_->{check} eq 'critical alert Backlog' } @{ decode_json((outbox('doctor', '--json', '-d', 'well'))[1])->{checks} };
	is($alert->{hint}, 'Do.', 'doctor has the alerts')
	  if value($counted, "SELECT prosrc LIKE '%too many%' FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname = 'alerts'");
	$counted->disconnect;
}

# --- Rights

$dbh->do("CREATE ROLE $_ LOGIN") for qw(eye hand voice stranger);
$dbh->do("SELECT outbox.grant_monitor('eye'), outbox.grant_worker('hand'), outbox.grant_producer('voice')");
{
	local $ENV{PGUSER} = 'eye';

	prints(@$_)
	  for ['status'], ['topics'], [ 'peek', 'many' ], [ 'peek', '-s', 'leased' ], [ 'peek', '-s', 'dead' ], [ 'tail', '--no-follow' ],
	  [ 'show', $id ], ['streams'], ['joins'], ['instances'], ['workers'], ['handlers'], ['subscriptions'], ['timers'], ['jobs'], ['dead'], [ 'dead', 'list', '-s' ],
	  ['top'];
	is(json('show', $id)->{message}{payload}, undef, 'a monitor sees no payload');
	is_deeply([ map { $_->{payload} } @{ json('peek', 'many', '-n', 2) } ], [ undef, undef ], '... nowhere');
	fails(1, qr/this role may not read payloads/, 'show', $id, '--payload');
	fails(1, qr/permission denied.*needs what outbox\.grant_admin/s, 'dead', 'purge', 'job', '--yes');
	fails(1, qr/permission denied.*needs what outbox\.grant_admin/s, 'pause', 'many');
	fails(1, qr/permission denied.*needs what outbox\.grant_producer/s, 'enqueue', 'a', 'b');
	fails(1, qr/permission denied.*needs what outbox\.grant_worker/s, 'work', 'many', '--exec', 'true', '--drain');
	is((grep { $_->{check} eq 'rights' } @{ decode_json((outbox('doctor', '--json'))[1])->{checks} })[0]{status}, 'monitor', 'doctor knows');
}
{
	local $ENV{PGUSER} = 'voice';
	like(prints('enqueue', 'spoken', 'x'), qr/^\S{36}\n$/, 'a producer enqueues');
	like(prints('publish', 'spoken', 'x'), qr/^\S{36}\n$/, '... and publishes');
	fails(1, qr/needs what outbox\.grant_monitor/, 'topics');
}
{
	local $ENV{PGUSER} = 'hand';
	is((worked('spoken', '--limit', 1, '--exec', 'true'))[0]{outcome}, 'acked', 'a worker works');
}
{
	local $ENV{PGUSER} = 'stranger';
	fails(1, qr/permission denied for schema outbox/, 'topics');
	is((outbox('doctor'))[0], 3, '... and doctor says so');
}

# Nothing is set in the session, so it works behind a pooler that shares it.
SKIP:
{
	my $bouncer = pgbouncer($node);
	skip 'there is no PgBouncer', 4 if !$bouncer;
	my $handle = $bouncer->{connect}->();

	my ($host) = $handle->{Name} =~ /host=([^;]+)/;
	my ($port) = $handle->{Name} =~ /port=(\d+)/;
	local @ENV{qw(PGHOST PGPORT)} = ($host, $port);
	is(json('topics', 'many')->[0]{ready}, 2500, 'behind PgBouncer');
	prints('enqueue', 'pooled', 'x');
	is((worked('pooled', '--limit', 1, '--exec', 'true'))[0]{outcome}, 'acked', '... it works');
	is(value($handle, 'SHOW search_path'), '"$user", public', '... and leaves the session as it was');
	$handle->disconnect;
	$bouncer->{stop}->();
}

# --- Completions and the manual know the same commands and options

my %options;
{
	my $command;
	for (split /\n/, prints('--describe'))
	{
		if (/^([a-z ]+)\t/) { $command = $1 }
		elsif (/^\t(--[a-z-]+)\t/) { $options{$command}{$1} = 1 }
	}
}
SKIP:
{
	skip 'there is no bash', 5 if system('bash -c true 2>/dev/null') != 0;
	my $complete = sub {
		my @words = @_;
		local $ENV{PATH} = ($program =~ s{/outbox$}{}r) . ":$ENV{PATH}";
		my $script = '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9; _outbox; printf "%s\\n" "${COMPREPLY[@]}"';
		open my $pipe, '-|', 'bash', '--norc', '-c', $script, "$top/cli/completion/completion.bash", @words or die $!;
		local $/;
		my $out = <$pipe> // '';
		close $pipe;
		return [ sort split /\n/, $out ];
	};
	my %first = map { (split / /)[0] => 1 } @commands;

	is_deeply($complete->('outbox', ''), [ sort keys(%first), 'help' ], 'bash completes commands');
	is_deeply($complete->('outbox', 'dead', 're'), ['redrive'], '... of two words');
	is_deeply($complete->('outbox', 'show', '--pay'), ['--payload'], '... options');
	is_deeply($complete->('outbox', 'work', '--'), [ sort keys %{ $options{work} }, '--help' ], '... all of them');
	is_deeply($complete->('outbox', 'pause', 'man'), ['many'], '... and topics');
	# what others have made of the name of a topic is a name
	my $touched = PostgreSQL::Test::Utils::tempdir() . '/touched';
	my @hostile = ("hostile \$(touch $touched)", "hostile `touch $touched`", "hostile\$IFS;touch $touched;", 'hostile * ?', "hostile '");
	$dbh->do('SELECT outbox.enqueue(?, ?)', undef, $_, 'x') for @hostile;
	is_deeply($complete->('outbox', 'peek', 'host'), [ sort map { s/([^\w\/.-])/\\$1/gr } @hostile ], '... quoted, whatever they are');
	is(scalar(@{ $complete->('outbox', 'peek', 'hostile $(') }), 1, '... and what is typed is not run');
	ok(!-e $touched, '... and nothing of them is run');
	$dbh->do('SELECT outbox.purge_topic(?)', undef, $_) for @hostile;
	is_deeply($complete->('outbox', '-d', 'well', 'peek', ''), ['counted'], '... those of the database that was given');
	is_deeply($complete->('outbox', '--dbname', '=', 'well', 'peek', ''), ['counted'], '... in either way');
	is_deeply($complete->('outbox', '-p', '1', 'peek', ''), [], '... and none where there is no server');
	is_deeply($complete->('outbox', 'no/;such', ''), [], '... and none of what is no command');
}
{
	my $manual = slurp_file("$top/cli/outbox.1");

	for my $command (@commands)
	{
		my ($section) = $manual =~ /^\.SS "?outbox \Q$command\E\b(?! (?:list|show|redrive|purge))(.*?)(?=^\.S[SH])/ms;

		ok($section, "the manual has outbox $command") or next;
		my %named = map { $_ => 1 } $section =~ s/\\f.//gr =~ s/\\-/-/gr =~ /(--[a-z-]+)/g;
		my %common = map { $_ => 1 } qw(--host --port --username --dbname --no-password --password --json --color);
		is_deeply([ grep { !$common{$_} && !$named{$_} } sort keys %{ $options{$command} } ], [], '... with its options');
	}
	for my $option (qw(host port username dbname no-password password json color))
	{
		like($manual =~ s/\\-/-/gr, qr/--\Q$option\E\b/, "... and --$option");
	}
	SKIP:
	{
		skip 'there is no groff', 1 if system('groff --version >/dev/null 2>&1') != 0;
		is(`groff -man -Tutf8 -ww -z '$top/cli/outbox.1' 2>&1`, '', '... and is well-formed');
	}
	my $page = slurp_file("$top/docs/command_line.md");
	like($page, qr/^#+ .*`outbox \Q$_\E/m, "the page has outbox $_") for @commands;
}

is(prints('status', '--all', '--json') =~ /\A\{.*\}\n\z/s, 1, 'a document ends with a newline');
done_testing();
