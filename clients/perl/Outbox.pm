# Outbox.pm - a client of outbox for DBD::Pg
#
# Functions that enqueue in the caller's transaction, and workers that run handlers in
# processes of their own. The worker's own process claims, settles and renews; it never
# runs a handler, except in drain(). ../README.md is the design that the clients have in
# common, and says what the options are.
package Outbox;

use strict;
use warnings;
use DBI;
use DBD::Pg ':async';
use JSON::PP;

my $json = JSON::PP->new->canonical->allow_nonref->convert_blessed;
my %CAST = (
	correlation_id => 'text', due_time => 'timestamptz', namespace => 'text', tenant_id => 'uuid',
	dedupe_key => 'text', stream_id => 'uuid', headers => 'jsonb', expires_at => 'timestamptz',
	message_id => 'uuid', dedupe_for => 'interval', on_duplicate => 'text', priority => 'int');

# The rows of a statement. Without preparing it in the server, for PgBouncer.
sub _rows
{
	my ($dbh, $sql, @values) = @_;
	my $statement = $dbh->prepare($sql, { pg_server_prepare => 0 });

	$statement->execute(@values);
	return $statement->fetchall_arrayref;
}

sub _as_text { return ref $_[0] ? $json->encode($_[0]) : $_[0] }

# Options as arguments of the server: traceparent becomes a header.
sub _complete
{
	my (%given) = @_;
	my $trace = delete $given{traceparent} // $ENV{TRACEPARENT};

	for my $name (sort keys %given)
	{
		$CAST{$name} or die "there is no option $name\n";
		delete $given{$name} if !defined $given{$name};
	}
	$given{headers} = { traceparent => $trace, %{ $given{headers} // {} } } if $trace;
	return \%given;
}

sub _one
{
	my ($function, $dbh, $topic, $payload, %options) = @_;
	my $given = _complete(%options);
	my @names = sort keys %$given;
	my $named = join '', map { ", $names[$_] => \$" . ($_ + 3) . "::text::$CAST{$names[$_]}" } 0 .. $#names;

	return _rows($dbh, "SELECT outbox.$function(\$1::text, \$2::text$named)",
		$topic, _as_text($payload), map { _as_text($_) } @$given{@names})->[0][0];
}

sub _batch
{
	my ($dbh, $columns, $function, $messages) = @_;
	my @objects;

	for my $message (@$messages)
	{
		my %options = %$message;
		my ($topic, $payload) = delete @options{qw(topic payload)};
		push @objects, { topic => $topic, payload => _as_text($payload) . '', %{ _complete(%options) } };
	}
	my $rows = _rows($dbh, "SELECT $columns FROM outbox.$function(\$1::text::jsonb) ORDER BY ordinal", $json->encode(\@objects));
	my @names = split /, /, $columns;
	return [ map { my $row = $_; +{ map { $names[$_] => $row->[$_] } 0 .. $#names } } @$rows ];
}

# enqueue($dbh, $topic, $payload, %options): enqueue in the handle's transaction; the
# message_id. A payload that is a reference goes as JSON.
sub enqueue { return _one('enqueue', @_) }

# publish(the same): for all who have subscribed; the published id
sub publish { return _one('publish', @_) }

# enqueue_batch($dbh, [{ topic, payload, options }, ...]): for each message_id, enqueued and
# outcome
sub enqueue_batch { my ($dbh, $messages) = @_; return _batch($dbh, 'message_id, enqueued, outcome', 'enqueue_batch', $messages) }

# publish_batch(the same): for each message_id and deliveries
sub publish_batch { my ($dbh, $messages) = @_; return _batch($dbh, 'message_id, deliveries', 'publish_batch', $messages) }

# advance($dbh, $seconds): for tests; all waiting messages become due that much earlier. How
# many they are.
sub advance
{
	my ($dbh, $seconds) = @_;

	return _rows($dbh, <<'Q', "$seconds s")->[0][0];
SELECT coalesce(sum(outbox.reschedule(ARRAY[id], next_attempt_at - $1::text::interval)), 0)
  FROM outbox.messages WHERE state = 'ready' AND next_attempt_at > clock_timestamp()
Q
}

# Called by a handler, these end it. permanent($text, $reason): the message can never be
# handled, and becomes a dead letter. retry($text, $after): it is handed out again, after so
# many seconds.
sub permanent { my ($text, $reason) = @_; die bless { text => $text, reason => $reason }, 'Outbox::Permanent' }
sub retry { my ($text, $after) = @_; die bless { text => $text, after => $after }, 'Outbox::Retry' }

# A claimed message: the columns of outbox.message
package Outbox::Message;

sub json { my $self = shift; return $json->decode($self->{payload}) }
sub traceparent { my $self = shift; return ($self->{headers} // {})->{traceparent} }

package Outbox::Worker;

use DBD::Pg ':async';
use IO::Handle;
use IO::Select;
use List::Util qw(max min);
use POSIX ();
use Socket;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC sleep);

my @COLUMNS = qw(id message_id namespace topic payload headers correlation_id tenant_id dedupe_key
  stream_id attempts retry_count created_at due_time locked_until owner_token subscription published_id priority);
my $CLAIM = 'SELECT ' . join(', ', @COLUMNS) . '
  FROM outbox.claim($1::text::uuid, $2::text::int, $3::text::int, $4::text, $5::text::text[],
                    $6::text::uuid, $7::text::int, $8::text::int, $9::text)';
my $HELD = 'unnest($1::text::uuid[], $2::text::bigint[], $3::text::int[]) AS held(owner, id, attempt)';
my $ACK = "SELECT coalesce(sum(outbox.ack(owner, ids, attempts)), 0)
             FROM (SELECT owner, array_agg(id), array_agg(attempt) FROM $HELD GROUP BY owner)
                  AS own(owner, ids, attempts)";
my $ACK_ONE = 'SELECT outbox.ack_one($1::text::uuid, $2::text::bigint, $3::text::int, strict => true)';
my $NACK = 'SELECT outbox.nack_one($1::text::uuid, $2::text::bigint, $4::text, $5::text::interval, $3::text::int)';
my $FAIL = 'SELECT outbox.fail_one($1::text::uuid, $2::text::bigint, $4::text, $5::text::int, $3::text::int)';
# renews; its rows are the leases that are lost
my $RENEW = "SELECT id, attempt FROM $HELD WHERE outbox.renew_one(owner, id, \$4::text::int, attempt) = 0";
my $RELEASE = "SELECT outbox.release_one(owner, id) FROM $HELD";
my $RELEASE_ALL = 'SELECT outbox.release($1::text::uuid)';
my ($ACK_SECONDS, $ACK_IDS, $MOST_UNSETTLED, $TRANSACTION_TRIES) = (0.005, 100, 1000, 3);
my $NEVER = 9**9**9;
my $wire = JSON::PP->new->ascii->allow_nonref;

sub _now() { return clock_gettime(CLOCK_MONOTONIC) }

sub _list { return '{' . join(',', map { '"' . s/(["\\])/\\$1/gr . '"' } @_) . '}' }

# Owners, ids and attempts, as statements take them.
sub _parts { my @messages = @_; return map { my $column = $_; _list(map { $_->{$column} } @messages) } qw(owner_token id attempts) }

# The stream of a message, or its id if it has none
sub _key { return $_[0]{stream_id} // $_[0]{id} }

# new(connect => sub { DBI->connect(...) }, options): connect makes a new handle each time.
sub new
{
	my ($class, %options) = @_;
	my %self = (
		concurrency => 10, lease_seconds => 30, wait_ms => 20000, max_batch => 100, shutdown_seconds => 25,
		hook => sub { }, wrap => sub { $_[1]->() }, map({ $_ => undef } qw(connect subscription namespace tenant_id max_attempts)));

	exists $self{$_} or die "there is no option $_\n" for keys %options;
	%self = (%self, %options, handlers => {});
	$self{max_batch} = max(@self{qw(max_batch concurrency)});
	return bless \%self, $class;
}

# handle($topic, sub { my ($message, $dbh) = @_; ... }, timeout_seconds => ..., transaction =>
# 1): for the topic, or for all others if it is '*'. A handler has a handle of the database
# only with transaction; then the ack commits with what it writes.
sub handle
{
	my ($self, $topic, $code, %options) = @_;

	$self->{handlers}{$topic} = { code => $code, %options };
	return $self;
}

sub _connect
{
	my $self = shift;
	my $dbh = $self->{connect}->();

	$dbh->{AutoInactiveDestroy} = $dbh->{RaiseError} = $dbh->{AutoCommit} = 1;
	$dbh->{PrintError} = 0;
	return $dbh;
}

sub _new_owner
{
	open my $random, '<:raw', '/dev/urandom' or die "no random numbers: $!\n";
	read($random, my $bytes, 16) == 16 or die "no random numbers: $!\n";
	return join '-', unpack 'H8H4H4H4H12', $bytes;
}

# The state of a run. What is in hand: waiting, in order, and running by process; strays are
# the owners of claims without an answer; what was retried is not handled again by drain.
sub _reset
{
	my ($self, $draining) = @_;

	keys %{ $self->{handlers} } or die "no topic has a handler\n";
	$self->{$_} = [] for qw(waiting idle acks calls strays);
	$self->{$_} = {} for qw(running retried);
	$self->{$_} = 0 for qw(full stopping handled claimed_at acks_since claim_after settle_after acks_repeated);
	@$self{qw(owner draining target deadline claim error)} = (_new_owner, $draining, $self->{concurrency}, $NEVER, undef, undef);
	@$self{qw(claimer settler claim_delay settle_delay)} = ($self->_connect, $self->_connect, 0.1, 0.1);
	$self->{renew_at} = _now + $self->{lease_seconds} / 3;
}

# run: work until SIGTERM, SIGINT or stop
sub run
{
	my $self = shift;

	$self->_reset(0);
	pipe(my $woken, my $wake) or die "no pipe: $!\n";
	$_->blocking(0) for $woken, $wake;
	$self->{wake} = $wake;
	local @SIG{qw(TERM INT)} = (sub { $self->stop }) x 2;
	local $SIG{PIPE} = 'IGNORE';
	my $done = eval {
		$self->_turn($woken) until $self->{stopping} && !$self->{claim} && !%{ $self->{running} };
		$self->_leave;
		1;
	};
	my $error = $@;
	$_->{socket}->close for @{ $self->{idle} };
	kill 'KILL', keys %{ $self->{running} };
	waitpid $_, 0 for keys %{ $self->{running} }, map { $_->{pid} } @{ $self->{idle} };
	eval { $_->disconnect } for @$self{qw(claimer settler)};
	die $error if !$done;
}

# One turn of the loop. The first error that is for good ends it.
sub _turn
{
	my ($self, $woken) = @_;

	$self->_shut_down if $self->{stopping};
	return if eval {
		$self->_start;
		$self->_begin_claim;
		$self->_settle;
		$self->_await($woken);
		$self->_expire;
		1;
	};
	die $@ if $self->{error};
	$self->{error} = $@;
	$self->stop if !$self->{stopping};
}

# Send what is left, and release all.
sub _leave
{
	my $self = shift;

	$self->{acks_since} = 0;
	for (my $releasing = 0; @{ $self->{acks} } || @{ $self->{calls} } || !$releasing; $self->_settle)
	{
		if (!@{ $self->{acks} } && !@{ $self->{calls} })
		{
			$releasing = 1;
			$self->{calls} = [ map { [ $RELEASE_ALL, $_ ] } splice(@{ $self->{strays} }), $self->{owner} ];
		}
		die $self->{error} // "the server did not answer in time\n" if _now > $self->{deadline} + 2;
		sleep max(0, min(0.1, $self->{settle_after} - _now));
	}
	die $self->{error} if $self->{error};
}

# stop: begin to end run. Called twice, do not wait for handlers.
sub stop
{
	my $self = shift;

	$self->{deadline} = $self->{stopping} ? 0 : _now + $self->{shutdown_seconds};
	$self->{stopping} = 1;
	syswrite $self->{wake}, 'x' if $self->{wake};
}

# drain: for tests; handle, in this process, until nothing is due. How many it were.
sub drain
{
	my $self = shift;

	$self->_reset(1);
	while (my @rows = @{ Outbox::_rows($self->{settler}, $CLAIM, $self->_claim_values($self->{concurrency}, 0)) })
	{
		$self->_take(_now, @rows);
		while (my $message = $self->_next)
		{
			$self->_judge($message, $self->_invoke($message));
			$self->{handled}++;
		}
		$self->{acks_since} = 0;
		$self->_settle;
	}
	$self->_leave;
	$_->disconnect for @$self{qw(claimer settler)};
	return $self->{handled};
}

sub _shut_down
{
	my $self = shift;

	push @{ $self->{calls} }, [ $RELEASE, _parts(splice @{ $self->{waiting} }) ] if @{ $self->{waiting} };
	if ($self->{claim})
	{
		# what it has claimed at this moment is released at the end
		eval { $self->{claimer}->pg_cancel };
		$self->{claim} = undef;
	}
	for my $process (_now > $self->{deadline} ? values %{ $self->{running} } : ())
	{
		$self->_judge($process->{message}, { outcome => 'lost' });
		$self->_cancel($process) if !$process->{kill_at};
	}
}

# After an error on a connection: how long to wait before another try; or dies, if it is for
# good. The next pause is longer.
sub _recover
{
	my ($self, $name, $error) = @_;
	my $dbh = $self->{$name};
	my $state = $DBI::state || $dbh->state || '08000';

	die $error if $state !~ /^(?:08|40001|40P01|53300|57P0[123])/ && $dbh->ping;
	eval { $dbh->disconnect };
	$self->{hook}->('reconnect', error => "DBD::Pg $state");
	my $delay = $name eq 'claimer' ? \$self->{claim_delay} : \$self->{settle_delay};
	my $pause = $$delay * (0.5 + rand 0.5);
	$$delay = $self->{stopping} ? 0.5 : min(2 * $$delay, 5);
	return $pause;
}

# Claim

sub _claim_values
{
	my ($self, $asked, $wait_ms) = @_;
	my $topics = exists $self->{handlers}{'*'} ? undef : _list(keys %{ $self->{handlers} });

	return (@$self{qw(owner lease_seconds)}, $asked, $self->{namespace}, $topics, @$self{qw(tenant_id max_attempts)},
		$wait_ms, $self->{subscription});
}

# How many messages to claim now; 0 if no slot is free for one.
sub _ask
{
	my $self = shift;
	my $free = $self->{concurrency} - keys %{ $self->{running} };
	my $held = @{ $self->{waiting} } + keys %{ $self->{running} };
	my $took = _now - $self->{claimed_at};

	return 0 if $free == 0 || defined $self->_startable || @{ $self->{acks} } + @{ $self->{calls} } >= $MOST_UNSETTLED;
	if (!$self->{full} || $took > 0.5) { $self->{target} = $self->{concurrency} }
	elsif ($took < 0.1) { $self->{target} = min(2 * $self->{target}, $self->{max_batch}) }
	return min(max($self->{target} - $held, $free), $self->{max_batch} - $held);
}

sub _begin_claim
{
	my $self = shift;

	$self->{claim_after} = 0 if _now >= $self->{claim_after};
	return if $self->{claim} || $self->{stopping} || $self->{claim_after} || !(my $asked = $self->_ask);
	$self->_try_claim(sub {
		$self->_reconnect if !$self->{claimer}{Active};
		my $statement = $self->{claimer}->prepare($CLAIM, { pg_server_prepare => 0, pg_async => PG_ASYNC });
		my $sent = _now;
		$statement->execute($self->_claim_values($asked, $self->{wait_ms}));
		$self->{claim} = { statement => $statement, asked => $asked, sent => $sent };
	});
}

# What a claim without an answer has taken is the old owner's: it must not count as held by
# this worker, which knows nothing of it.
sub _reconnect
{
	my $self = shift;

	$self->{claimer} = $self->_connect;
	push @{ $self->{strays} }, $self->{owner};
	$self->{owner} = _new_owner;
}

sub _end_claim
{
	my $self = shift;

	$self->_try_claim(sub {
		$self->{claimer}->pg_ready or return;
		my $claim = $self->{claim};
		$self->{claim} = undef;
		$self->{claimer}->pg_result;
		my @rows = @{ $claim->{statement}->fetchall_arrayref };
		@$self{qw(full claim_delay)} = (@rows == $claim->{asked}, 0.1);
		$self->_take($claim->{sent}, @rows);
		$self->{hook}->('claimed', count => scalar @rows, asked => $claim->{asked});
	});
}

# After an error that passes, the next claim is made later, on a new connection.
sub _try_claim
{
	my ($self, $work) = @_;
	my $error = eval { $work->(); 1 } ? return : $@;

	$self->{claim} = undef;
	return if ($self->{claimer}->state // '') eq '57014';
	$self->{claim_after} = _now + $self->_recover('claimer', $error);
}

# The messages of a claim that was sent at that time. A lease surely does not end before it
# would have if it had begun then: what came late, or to a stopped process, is renewed first.
sub _take
{
	my ($self, $sent, @rows) = @_;

	for my $row (@rows)
	{
		my %message;

		@message{ @COLUMNS, '_until' } = (@$row, $sent + $self->{lease_seconds});
		$message{headers} = $json->decode($message{headers}) if defined $message{headers};
		push @{ $self->{waiting} }, bless \%message, 'Outbox::Message' if !$self->{retried}{ _key(\%message) };
	}
	$self->{claimed_at} = _now;
	$self->{renew_at} = min($self->{renew_at}, $sent + $self->{lease_seconds} / 3);
}

# Handle

# The first message that is not beside another of its stream
sub _startable
{
	my $self = shift;
	my %busy = map { $_->{message}{stream_id} // '' => 1 } values %{ $self->{running} };
	my ($waiting, $now) = ($self->{waiting}, _now);

	delete $busy{''};
	return (grep { !$busy{ $waiting->[$_]{stream_id} // '' } && $now < $waiting->[$_]{_until} } 0 .. $#$waiting)[0];
}

# A message that may be handled now
sub _next
{
	my $self = shift;
	my $index = keys %{ $self->{running} } < $self->{concurrency} ? $self->_startable : undef;

	return defined $index ? splice @{ $self->{waiting} }, $index, 1 : undef;
}

# Sleep until something happens: a claim returns, a handler ends, a signal comes, or
# something is due.
sub _await
{
	my ($self, $woken) = @_;
	my %by = map { fileno($_->{socket}) => $_ } values %{ $self->{running} };
	my $select = IO::Select->new($woken, map { $_->{socket} } values %{ $self->{running} });
	my $fd = $self->{claim} && $self->{claimer}{pg_socket};
	my $due = min($self->{renew_at}, @{ $self->{calls} } ? 0 : (), @{ $self->{acks} } ? $self->{acks_since} + $ACK_SECONDS : ());

	$due = min(max($due, $self->{settle_after}), $self->{claim_after} || (), $self->{stopping} ? _now + 0.1 : (),
		map { $_->{kill_at} // $_->{until} // () } values %{ $self->{running} });
	$select->add($fd) if defined $fd;
	for my $ready ($select->can_read(max($due - _now, 0) + 0.0005))
	{
		if (ref $ready && $ready == $woken) { 1 while sysread $woken, my $bytes, 100 }
		elsif (defined $fd && (ref $ready ? fileno $ready : $ready) == $fd) { $self->_end_claim }
		else { $self->_finish($by{ fileno $ready }) }
	}
}

# Hand messages to processes, which are started when they are needed.
sub _start
{
	my $self = shift;

	while (!$self->{stopping} && (my $message = $self->_next))
	{
		my $handler = $self->{handlers}{ $message->{topic} } // $self->{handlers}{'*'};
		my $process = pop @{ $self->{idle} } // $self->_fork;
		@$process{qw(message began until kill_at)} =
		  ($message, _now, $handler->{timeout_seconds} ? _now + $handler->{timeout_seconds} : undef, undef);
		$self->{running}{ $process->{pid} } = $process;
		$process->{socket}->print($wire->encode({%$message}), "\n");
		$process->{socket}->flush;
	}
}

sub _fork
{
	my $self = shift;

	$_->flush for *STDOUT, *STDERR;
	socketpair(my $ours, my $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die "no socket: $!\n";
	my $pid = fork // die "no process: $!\n";
	return { pid => $pid, socket => $ours } if $pid;
	# The child. It must not keep the sockets of its parent open: neither the server nor
	# the other children would notice that the parent has died.
	POSIX::close($_) for map { $_->{pg_socket} } grep { $_->{Active} } @$self{qw(claimer settler)};
	close $_->{socket} for @{ $self->{idle} }, values %{ $self->{running} };
	close $ours;
	$SIG{$_} = sub { } for qw(TERM INT USR1);    # the parent decides
	while (defined(my $line = readline $theirs))
	{
		my $result = $self->_invoke(bless $wire->decode($line), 'Outbox::Message');
		$_->flush for *STDOUT, *STDERR;
		syswrite $theirs, $wire->encode($result) . "\n" or last;
	}
	POSIX::_exit(0);
}

# Run a handler; what becomes of its message.
sub _invoke
{
	my ($self, $message) = @_;
	my $handler = $self->{handlers}{ $message->{topic} } // $self->{handlers}{'*'};

	for my $left (reverse 0 .. $TRANSACTION_TRIES - 1)
	{
		my $dbh;
		return { outcome => 'ack', settled => $handler->{transaction} ? 1 : 0 } if eval {
			$dbh = $self->_begin if $handler->{transaction};
			{
				local $SIG{USR1} = sub { die bless {}, 'Outbox::LeaseLost' };
				$self->{wrap}->($message, sub { $handler->{code}->($message, $dbh ? $dbh : ()) });
			}
			Outbox::_rows($dbh, $ACK_ONE, @$message{qw(owner_token id attempts)}) if $dbh;
			$dbh->commit if $dbh;
			1;
		};
		my ($error, $state) = ($@, $dbh ? $dbh->state : '');
		eval { $dbh->rollback if $dbh && !$dbh->{AutoCommit}; 1 } or undef $self->{own};
		next if $left && $state =~ /^40(?:001|P01)$/;
		my $outcome = { 'Outbox::Permanent' => 'fail', 'Outbox::Retry' => 'retry' }->{ ref $error };
		return { %$error, outcome => $outcome, text => _clean($error->{text}) } if $outcome;
		return { outcome => 'lost' } if ref $error eq 'Outbox::LeaseLost' || $state eq '55000';
		return { outcome => 'retry', text => _describe($error, $state) };
	}
}

# A handle in a transaction. One that was idle may have broken since.
sub _begin
{
	my $self = shift;

	undef $self->{own} if $self->{own} && !$self->{own}->ping;
	$self->{own} //= $self->_connect;
	$self->{own}->begin_work;
	return $self->{own};
}

# At most 500 characters of a text, as the server takes them
sub _clean { return substr(($_[0] // '') =~ s/\0//gr =~ s/[\x{d800}-\x{dfff}]/?/gr, 0, 500) }

# What is recorded of an error: never a text that may quote the payload. Of a string, only
# the place where it comes from.
sub _describe
{
	my ($error, $state) = @_;
	my $name = ref $error || ($error =~ m{ at (?:\S*/)?([^/\s]+ line \d+)\.?\n?\z} ? "died at $1" : 'died');

	return $state && $state ne '00000' ? "$name, $state" : $name;
}

# A process has answered, or has died.
sub _finish
{
	my ($self, $process) = @_;
	my $line = readline $process->{socket};
	my ($message, $pid) = @$process{qw(message pid)};

	delete $self->{running}{$pid};
	$self->_judge($message, defined $line ? $wire->decode($line) : { outcome => 'retry', text => 'the process has died' });
	defined $line ? push @{ $self->{idle} }, $process : waitpid $pid, 0;
	$self->{hook}->('finished', message => $message, outcome => $message->{_outcome}, seconds => _now - $process->{began});
}

# A handler's process is interrupted, and killed a second later.
sub _cancel
{
	my ($self, $process) = @_;

	kill 'USR1', $process->{pid};
	$process->{kill_at} = _now + 1;
}

sub _expire
{
	my $self = shift;

	for my $process (values %{ $self->{running} })
	{
		kill 'KILL', $process->{pid} if $process->{kill_at} && _now > $process->{kill_at};
		next if $process->{kill_at} || !$process->{until} || _now < $process->{until};
		$self->_judge($process->{message}, { outcome => 'retry', text => 'timeout' });
		$self->_cancel($process);
	}
}

# What becomes of a message is decided once.
sub _judge
{
	my ($self, $message, $result) = @_;
	my $outcome = $result->{outcome};
	my @values = (@$message{qw(owner_token id attempts)}, $result->{text});

	return if $message->{_outcome};
	$message->{_outcome} = $outcome;
	if ($outcome eq 'ack' && !$result->{settled})
	{
		$self->{acks_since} = _now if !@{ $self->{acks} };
		push @{ $self->{acks} }, $message;
	}
	push @{ $self->{calls} }, [ $FAIL, @values, $result->{reason} ] if $outcome eq 'fail';
	if ($outcome eq 'retry')
	{
		push @{ $self->{calls} }, [ $NACK, @values, defined $result->{after} ? "$result->{after} s" : undef ];
		$self->{retried}{ _key($message) } = 1 if $self->{draining};
	}
	# the server takes back what is behind it in its stream
	$self->{waiting} = [ grep { ($_->{stream_id} // '') ne $message->{stream_id} } @{ $self->{waiting} } ]
	  if $outcome =~ /^(?:retry|lost)$/ && defined $message->{stream_id};
}

# Another worker has the message, or soon will have.
sub _lose
{
	my ($self, $message) = @_;

	return if $message->{_outcome};
	$self->{waiting} = [ grep { $_ != $message } @{ $self->{waiting} } ];
	$self->_judge($message, { outcome => 'lost' });
	$self->_cancel($_) for grep { $_->{message} == $message } values %{ $self->{running} };
	$self->{hook}->('lost', message => $message);
}

# Settle and renew

# Send what is due, as far as the server answers.
sub _settle
{
	my $self = shift;

	while (_now >= $self->{settle_after})
	{
		my $ready = _now > $self->{acks_since} + $ACK_SECONDS || @{ $self->{acks} } >= $ACK_IDS;

		if (_now >= $self->{renew_at}) { $self->_renew }
		elsif (@{ $self->{calls} }) { $self->_tell }
		elsif (@{ $self->{acks} } && $ready) { $self->_acknowledge }
		elsif (!$self->_release_stray) { return }
	}
}

# The rows of a statement; undef if the server does not answer at present.
sub _query
{
	my ($self, $sql, @values) = @_;
	my $rows = eval {
		$self->{settler} = $self->_connect if !$self->{settler}{Active};
		Outbox::_rows($self->{settler}, $sql, @values);
	};

	if ($rows) { $self->{settle_delay} = 0.1 }
	else
	{
		$self->{settle_after} = _now + $self->_recover('settler', $@);
		$self->_lose($_) for grep { _now > $_->{_until} } $self->_leased;
	}
	return $rows;
}

sub _tell
{
	my $self = shift;
	my $call = $self->{calls}[0];
	my $rows = eval { [ $self->_query(@$call) ] };

	if (!$rows)
	{
		die $@ if ($self->{settler}->state // '') !~ /^22/ || @$call != 6 || !defined $call->[4];
		# the server does not take what the handler has said
		@$call[ 4, 5 ] = ();
	}
	elsif ($rows->[0]) { shift @{ $self->{calls} } }
}

sub _acknowledge
{
	my $self = shift;
	my @acks = @{ $self->{acks} }[ 0 .. min($ACK_IDS, scalar @{ $self->{acks} }) - 1 ];
	my $rows = $self->_query($ACK, _parts(@acks));

	# how many the first of several calls has acknowledged is not known
	return $self->{acks_repeated} = 1 if !$rows;
	splice @{ $self->{acks} }, 0, scalar @acks;
	$self->{hook}->('settled', count => scalar @acks, lost => $self->{acks_repeated} ? 0 : @acks - $rows->[0][0]);
	$self->{acks_repeated} = 0;
}

# What must be renewed
sub _leased
{
	my $self = shift;

	return (@{ $self->{waiting} }, grep { !$_->{_outcome} } map { $_->{message} } values %{ $self->{running} });
}

# Release what a stray claim may have taken, when nothing of its owner is in hand any more.
sub _release_stray
{
	my $self = shift;
	my %known = map { $_->{owner_token} => 1 } $self->_leased, @{ $self->{acks} };
	my ($stray) = grep { !$known{$_} } @{ $self->{strays} } or return 0;

	$self->{strays} = [ grep { $_ ne $stray } @{ $self->{strays} } ];
	return push @{ $self->{calls} }, [ $RELEASE_ALL, $stray ];
}

sub _renew
{
	my $self = shift;
	my ($began, @held) = (_now, $self->_leased);
	my $rows = @held ? $self->_query($RENEW, _parts(@held), $self->{lease_seconds}) : [] or return;
	my %lost = map { ("@$_" => 1) } @$rows;

	$self->{renew_at} = $began + $self->{lease_seconds} / 3;
	for my $message (@held)
	{
		$message->{_until} = $began + $self->{lease_seconds};
		$self->_lose($message) if $lost{"$message->{id} $message->{attempts}"};
	}
}

1;
