# The suite of the Perl client: suite.pl produce | send | drain | worker; see ../../test/run.py.
use strict;
use warnings;
use utf8;
use open qw(:std :encoding(UTF-8));
use FindBin;
use lib "$FindBin::RealBin/..";
use DBI;
use JSON::PP;
use Outbox;
use POSIX qw(strftime);
use Time::HiRes qw(sleep);

$| = 1;
my $TENANT = '00000000-0000-4000-8000-0000000000aa';
my $GIVEN = '01234567-0000-4000-8000-000000000042';
my $STREAM = '00000000-0000-4000-8000-000000000007';
my $connect = sub { DBI->connect('dbi:Pg:', '', '', { RaiseError => 1, PrintError => 0 }) };

sub say { print "@_\n"; return }

sub check
{
	my ($name, $got, $expected) = map { ref $_ ? JSON::PP->new->canonical->encode($_) : $_ } @_;
	say($got eq $expected ? 'ok' : 'not ok', '-', $name);
	say("# got $got, not $expected") if $got ne $expected;
	return;
}

sub produce
{
	my $dbh = $connect->();
	$dbh->begin_work;
	Outbox::enqueue($dbh, 'p.rolled-back', 'x');
	$dbh->rollback;
	$dbh->begin_work;
	$dbh->do("INSERT INTO orders VALUES ('perl')");
	Outbox::enqueue($dbh, 'p.committed', { order => 7 });
	Outbox::enqueue($dbh, 'p.text', 'plain "text" é');
	my $made = Outbox::enqueue($dbh, 'p.options', 'x',
		correlation_id => 'c-1', namespace => 'shop', tenant_id => $TENANT, due_time => '2030-01-02T03:04:05Z',
		expires_at => '2031-01-02T03:04:05Z', dedupe_key => $TENANT =~ s/-//gr . '/k', stream_id => $STREAM,
		message_id => $GIVEN, headers => { region => 'eu' }, dedupe_for => '1 hour', on_duplicate => 'keep',
		priority => 1, traceparent => '00-argument');
	Outbox::enqueue($dbh, 'p.trace', 'x');
	Outbox::enqueue($dbh, 'p.own', 'x', headers => { traceparent => 'own' });
	$dbh->commit;
	check('enqueue answers the message_id', $made, $GIVEN);
	eval { Outbox::enqueue($dbh, 'p.unknown', 'x', colour => 'red') };
	check('an unknown option is an error', $@, "there is no option colour\n");
	my $rows = Outbox::enqueue_batch($dbh, [
		{ topic => 'p.batch', payload => 'one' },
		{ topic => 'p.batch', payload => { n => 2 }, dedupe_key => 'twin' },
		{ topic => 'p.batch', payload => 'three', dedupe_key => 'twin' } ]);
	check('a batch says what is new', [ map { ($_->{enqueued} ? 1 : 0, $_->{outcome}) } @$rows ],
		[ 1, 'enqueued', 1, 'enqueued', 0, 'kept' ]);
	check('and whose a key is', $rows->[1]{message_id}, $rows->[2]{message_id});
	Outbox::publish($dbh, 'p.news', 'first');
	$rows = Outbox::publish_batch($dbh, [ map { { topic => 'p.news', payload => $_ } } 2, 3 ]);
	check('publish_batch counts deliveries', join(' ', map { $_->{deliveries} } @$rows), '1 1');
	return;
}

# Lines of run.py: how a transaction ends, and its messages, as topic,payload,stream.
sub send_lines
{
	my $dbh;
	while (my $line = <STDIN>)
	{
		my ($how, @words) = split ' ', $line;
		my @messages;
		for my $word (@words)
		{
			my ($topic, $payload, $stream) = split /,/, $word;
			push @messages, { topic => $topic, payload => $payload, $stream eq '-' ? () : (stream_id => $stream) };
		}
		next if eval {
			$dbh //= $connect->();
			$dbh->begin_work;
			my %first = %{ shift @messages };
			my ($one, $many) = $first{topic} =~ /^pub\./ ? (\&Outbox::publish, \&Outbox::publish_batch)
			  : (\&Outbox::enqueue, \&Outbox::enqueue_batch);
			$one->($dbh, delete @first{qw(topic payload)}, %first);
			$many->($dbh, \@messages);
			$how eq 'commit' ? $dbh->commit : $dbh->rollback;
			1;
		};
		say('failed', $@);
		undef $dbh;
	}
	return;
}

sub drain
{
	my $dbh = $connect->();
	my (@seen, @order);
	my $worker = Outbox::Worker->new(connect => $connect, concurrency => 2);
	$worker->handle('d.ok' => sub { push @seen, $_[0]{payload} });
	$worker->handle('d.fail' => sub { Outbox::permanent('no such order', 4) });
	$worker->handle('d.retry' => sub { Outbox::retry('later', 3600) if $_[0]{attempts} == 1 });
	$worker->handle('d.stream' => sub { push @order, $_[0]{payload}; Outbox::retry('again', 0) if @order == 1 });
	Outbox::enqueue($dbh, 'd.ok', $_) for 0 .. 2;
	Outbox::enqueue($dbh, 'd.stream', $_, stream_id => $STREAM) for 1, 2;
	Outbox::enqueue($dbh, 'd.ok', 'in an hour', due_time => strftime('%FT%TZ', gmtime(time + 3600)));
	Outbox::enqueue($dbh, $_, 'x') for qw(d.fail d.retry);
	check('drain handles what is due', $worker->drain, 6);
	check('and nothing else', join(' ', sort @seen), '0 1 2');
	check('what is dead says why', join(' ', $dbh->selectrow_array(
		"SELECT last_error, failure_reason FROM outbox.messages WHERE topic = 'd.fail'")), 'no such order 4');
	check('a message once, and none of its stream after one that goes back', "@order", '1');
	check('the next drain goes on', $worker->drain, 2);
	check('in order', "@order", '1 1 2');
	check('time does not pass by itself', $worker->drain, 0);
	check('advance moves it', Outbox::advance($dbh, 3660), 2);
	check('and drain follows', $worker->drain, 2);
	check('to the end', $seen[3], 'in an hour');
	return;
}

sub slow
{
	my ($message, $seconds) = @_;
	eval { sleep $seconds; 1 } or do { my $error = $@; say('cancelled', $message->{id}); die $error };
	say('handled', @$message{qw(message_id topic attempts)});
	return;
}

sub handlers
{
	my $worker = shift;
	my $repeated = 0;
	my $first = sub { my $else = shift; sub { $_[0]{attempts} == 1 ? $else->($_[0]) : slow($_[0], 0) } };
	my $effect = sub {
		my ($message, $dbh) = @_;
		$dbh->do('INSERT INTO effects VALUES (?, ?)', { pg_server_prepare => 0 }, @$message{qw(message_id attempts)});
	};
	$worker->handle('w.ok' => sub { slow($_[0], 0) });
	$worker->handle('w.trace' => sub { say('trace', $_[0]->traceparent) });
	$worker->handle('w.tx' => $effect, transaction => 1);
	$worker->handle('w.serial' => sub {
		my ($message, $dbh) = @_;
		$effect->($message, $dbh);
		$dbh->do(q(DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$)) if !$repeated++;
	}, transaction => 1);
	$worker->handle('w.txfail' => sub { $effect->(@_); die $_[0]{payload} if $_[0]{attempts} == 1 }, transaction => 1);
	$worker->handle('w.text' => sub { Outbox::permanent("\0" . 'é' x 499 . "\x{d800}" . 'é' x 1000, 4) });
	$worker->handle('w.reason' => sub { Outbox::permanent('no such reason', 10**10) });
	$worker->handle('w.odd' => $first->(sub { exit }));
	$worker->handle('w.permanent' => sub { Outbox::permanent('no such order', 4) });
	$worker->handle('w.retry' => $first->(sub { Outbox::retry('later', 0.2) }));
	$worker->handle('w.error' => $first->(sub { die $_[0]{payload} }));
	$worker->handle('w.slow' => sub { slow($_[0], $_[0]->json->{seconds}) });
	$worker->handle('w.timeout' => $first->(sub { slow($_[0], 5) }), timeout_seconds => $ENV{TIMEOUT_SECONDS} // 0.3);
	$worker->handle('w.stream' => sub {
		my $message = shift;
		say('stream', $message->{payload});
		sleep 0.02;
		Outbox::retry('again', 0) if $message->{payload} eq '3' && $message->{attempts} == 1;
		say('passed', $message->{payload});
	});
	return;
}

sub work
{
	my $worker = Outbox::Worker->new(
		connect => $connect, concurrency => $ENV{CONCURRENCY} // 4, lease_seconds => $ENV{LEASE_SECONDS} // 30,
		shutdown_seconds => $ENV{SHUTDOWN_SECONDS} // 10, subscription => $ENV{SUBSCRIPTION},
		hook => sub {
			my ($event, %fields) = @_;
			$fields{message} = $fields{message}{id} if $fields{message};
			say('event', $event, grep { defined } @fields{qw(message outcome count asked lost error)});
		},
		wrap => sub { say('begin', @{ $_[0] }{qw(id topic)}); $_[1]->() });
	if ($ENV{SUBSCRIPTION})
	{
		$worker->handle('*' => sub { say('delivered', @{ $_[0] }{qw(subscription published_id payload)}) });
	}
	else { handlers($worker) }
	$worker->run;
	say('ended');
	return;
}

({ produce => \&produce, send => \&send_lines, drain => \&drain, worker => \&work }->{ $ARGV[0] })->();
