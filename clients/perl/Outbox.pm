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
use IO::Select;
use List::Util qw(max min);
use POSIX ();
use Socket;
use Time::HiRes qw(sleep time);

my @COLUMNS = qw(id message_id namespace topic payload headers correlation_id tenant_id dedupe_key
  stream_id attempts retry_count created_at due_time locked_until subscription published_id priority);
my $CLAIM = 'SELECT ' . join(', ', @COLUMNS) . '
  FROM outbox.claim($1::text::uuid, $2::text::int, $3::text::int, $4::text, $5::text::text[],
                    $6::text::uuid, $7::text::int, $8::text::int, $9::text)';
my $ACK = 'SELECT outbox.ack($1::text::uuid, $2::text::bigint[], $3::text::int[])';
my $ACK_ONE = 'SELECT outbox.ack_one($1::text::uuid, $2::text::bigint, $3::text::int, strict => true)';
my $NACK = 'SELECT outbox.release($1::text::uuid, $6::text::bigint[]),
                   outbox.nack_one($1::text::uuid, $2::text::bigint, $3::text, $4::text::interval, $5::text::int)';
my $FAIL = 'SELECT outbox.fail_one($1::text::uuid, $2::text::bigint, $3::text, $4::text::int, $5::text::int)';
my $RENEW = 'SELECT outbox.renew($1::text::uuid, $2::text::bigint[], $3::text::int, $4::text::int[])';
my $LOST = 'SELECT id, attempt FROM unnest($2::text::bigint[], $4::text::int[]) AS held(id, attempt)
             WHERE outbox.renew_one($1::text::uuid, id, $3::text::int, attempt) = 0';
my $RELEASE = 'SELECT outbox.release($1::text::uuid, $2::text::bigint[])';
my $RELEASE_ALL = 'SELECT outbox.release($1::text::uuid)';
my ($ACK_SECONDS, $ACK_IDS, $TRANSACTION_TRIES) = (0.005, 100, 3);
my $wire = JSON::PP->new->ascii->allow_nonref;

sub _list { return '{' . join(',', @_) . '}' }

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

# The state of a run. What is in hand: waiting, in order, and running by process.
sub _reset
{
	my $self = shift;

	keys %{ $self->{handlers} } or die "no topic has a handler\n";
	open my $random, '<:raw', '/dev/urandom' or die "no random numbers: $!\n";
	read($random, my $bytes, 16) == 16 or die "no random numbers: $!\n";
	@$self{qw(owner waiting running idle acks calls target full claimed_at acks_since stopping deadline handled)} =
	  (unpack('H*', $bytes), [], {}, [], [], [], $self->{concurrency}, 0, 0, 0, 0, 9**9**9, 0);
	@$self{qw(claimer settler claim claim_after claim_delay)} = ($self->_connect, $self->_connect, undef, 0, 0.1);
	$self->{renew_at} = time + $self->{lease_seconds} / 3;
}

# run: work until SIGTERM, SIGINT or stop
sub run
{
	my $self = shift;

	$self->_reset;
	pipe(my $woken, my $wake) or die "no pipe: $!\n";
	$_->blocking(0) for $woken, $wake;
	$self->{wake} = $wake;
	local @SIG{qw(TERM INT)} = (sub { $self->stop }) x 2;
	local $SIG{PIPE} = 'IGNORE';
	my $done = eval {
		until ($self->{stopping} && !$self->{claim} && !%{ $self->{running} })
		{
			$self->_shut_down if $self->{stopping};
			$self->_start;
			$self->_begin_claim;
			$self->_await($woken);
			$self->_expire;
			$self->_settle;
		}
		$self->_settle(1);
		1;
	};
	my $error = $@;
	$_->{socket}->close for @{ $self->{idle} };
	kill 'KILL', keys %{ $self->{running} };
	waitpid $_, 0 for keys %{ $self->{running} }, map { $_->{pid} } @{ $self->{idle} };
	eval { $_->disconnect } for @$self{qw(claimer settler)};
	die $error if !$done;
}

# stop: begin to end run. Called twice, do not wait for handlers.
sub stop
{
	my $self = shift;

	$self->{deadline} = $self->{stopping} ? 0 : time + $self->{shutdown_seconds};
	$self->{stopping} = 1;
	syswrite $self->{wake}, 'x' if $self->{wake};
}

# drain: for tests; handle, in this process, until nothing is due. How many it were.
sub drain
{
	my $self = shift;

	$self->_reset;
	while (my @messages = map { _message($_) } @{ $self->_call($CLAIM, $self->_claim_values($self->{concurrency}, 0)) })
	{
		$self->_judge($_, $self->_invoke($_)) for @messages;
		$self->{handled} += @messages;
		$self->_settle(0, 1);
	}
	$_->disconnect for @$self{qw(claimer settler)};
	return $self->{handled};
}

sub _shut_down
{
	my $self = shift;

	push @{ $self->{calls} }, [ $RELEASE, $self->{owner}, _list(map { $_->{id} } splice @{ $self->{waiting} }) ]
	  if @{ $self->{waiting} };
	if ($self->{claim})
	{
		# what it has claimed at this moment is released at the end
		eval { $self->{claimer}->pg_cancel };
		$self->{claim} = undef;
	}
	if (time > $self->{deadline})
	{
		$self->_cancel($_) for grep { !$_->{kill_at} } values %{ $self->{running} };
		$self->_judge($_->{message}, { outcome => 'lost' }) for values %{ $self->{running} };
	}
}

# A statement of settling, repeated until it is answered. In list context also whether it
# had to be.
sub _call
{
	my ($self, $sql, @values) = @_;
	my ($delay, $repeated) = (0.1, 0);

	while (1)
	{
		my $rows = eval {
			$self->{settler} = $self->_connect if !$self->{settler}{Active};
			Outbox::_rows($self->{settler}, $sql, @values);
		};
		return wantarray ? ($rows, $repeated) : $rows if $rows;
		my $error = $@;
		die $error if !$self->_repeatable($self->{settler}) || time > $self->{deadline} + 2;
		eval { $self->{settler}->disconnect };
		sleep $delay * (0.5 + rand 0.5);
		($delay, $repeated) = (min(2 * $delay, 5), 1);
	}
}

# May it be repeated after the last error?
sub _repeatable
{
	my ($self, $dbh) = @_;
	my $state = $DBI::state || $dbh->state || '08000';
	my $repeatable = $state =~ /^(?:08|40001|40P01|57P0[123])/ || !$dbh->ping;

	$self->{hook}->('reconnect', error => "DBD::Pg $state") if $repeatable;
	return $repeatable;
}

sub _message
{
	my $row = shift;
	my %message;

	@message{@COLUMNS} = @$row;
	$message{headers} = $json->decode($message{headers}) if defined $message{headers};
	return bless \%message, 'Outbox::Message';
}

sub _claim_values
{
	my ($self, $asked, $wait_ms) = @_;
	my @topics = exists $self->{handlers}{'*'} ? () : map { s/(["\\])/\\$1/gr } keys %{ $self->{handlers} };
	my $topics = @topics ? '{' . join(',', map { "\"$_\"" } @topics) . '}' : undef;

	return (@$self{qw(owner lease_seconds)}, $asked, $self->{namespace}, $topics, @$self{qw(tenant_id max_attempts)},
		$wait_ms, $self->{subscription});
}

# How many messages to claim now; 0 if no slot is free for one.
sub _ask
{
	my $self = shift;
	my $free = $self->{concurrency} - keys %{ $self->{running} };
	my $held = @{ $self->{waiting} } + keys %{ $self->{running} };
	my $took = time - $self->{claimed_at};

	return 0 if $free == 0 || defined $self->_startable;
	if (!$self->{full} || $took > 0.5) { $self->{target} = $self->{concurrency} }
	elsif ($took < 0.1) { $self->{target} = min(2 * $self->{target}, $self->{max_batch}) }
	return min(max($self->{target} - $held, $free), $self->{max_batch} - $held);
}

# The first message that is not beside another of its stream
sub _startable
{
	my $self = shift;
	my %busy = map { $_->{message}{stream_id} // '' => 1 } values %{ $self->{running} };
	my $waiting = $self->{waiting};

	delete $busy{''};
	return (grep { !$busy{ $waiting->[$_]{stream_id} // '' } } 0 .. $#$waiting)[0];
}

sub _begin_claim
{
	my $self = shift;

	return if $self->{claim} || $self->{stopping} || time < $self->{claim_after} || !(my $asked = $self->_ask);
	$self->_try_claim(sub {
		$self->{claimer} = $self->_connect if !$self->{claimer}{Active};
		my $statement = $self->{claimer}->prepare($CLAIM, { pg_server_prepare => 0, pg_async => PG_ASYNC });
		$statement->execute($self->_claim_values($asked, $self->{wait_ms}));
		$self->{claim} = { statement => $statement, asked => $asked };
	});
}

sub _end_claim
{
	my $self = shift;

	$self->_try_claim(sub {
		$self->{claimer}->pg_ready or return;
		my $claim = $self->{claim};
		$self->{claim} = undef;
		$self->{claimer}->pg_result;
		my @messages = map { _message($_) } @{ $claim->{statement}->fetchall_arrayref };
		push @{ $self->{waiting} }, @messages;
		@$self{qw(full claimed_at claim_delay)} = (@messages == $claim->{asked}, time, 0.1);
		$self->{hook}->('claimed', count => scalar @messages, asked => $claim->{asked});
	});
}

# After an error that passes, the next claim is made later, on a new connection.
sub _try_claim
{
	my ($self, $work) = @_;

	my $error = eval { $work->(); 1 } ? return : $@;

	$self->{claim} = undef;
	return if ($self->{claimer}->state // '') eq '57014';
	die $error if !$self->_repeatable($self->{claimer});
	eval { $self->{claimer}->disconnect };
	$self->{claim_after} = time + $self->{claim_delay} * (0.5 + rand 0.5);
	$self->{claim_delay} = min(2 * $self->{claim_delay}, 5);
}

# Sleep until something happens: a claim returns, a handler ends, a signal comes, or
# something is due.
sub _await
{
	my ($self, $woken) = @_;
	my %by = map { fileno($_->{socket}) => $_ } values %{ $self->{running} };
	my $select = IO::Select->new($woken, map { $_->{socket} } values %{ $self->{running} });
	my $fd = $self->{claim} && $self->{claimer}{pg_socket};
	my @due = ($self->{renew_at}, $self->{claim_after} > time ? $self->{claim_after} : (), map { $_->{kill_at} // $_->{until} // () } values %{ $self->{running} });

	push @due, $self->{acks_since} + $ACK_SECONDS if @{ $self->{acks} };
	push @due, $self->{deadline} if $self->{stopping} && $self->{deadline} > time;
	$select->add($fd) if defined $fd;
	for my $ready ($select->can_read(@{ $self->{calls} } ? 0 : max(min(@due) - time, 0) + 0.0005))
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

	while (!$self->{stopping} && keys %{ $self->{running} } < $self->{concurrency} && defined(my $index = $self->_startable))
	{
		my $message = splice @{ $self->{waiting} }, $index, 1;
		my $handler = $self->{handlers}{ $message->{topic} } // $self->{handlers}{'*'};
		my $process = pop @{ $self->{idle} } // $self->_fork;
		@$process{qw(message began until kill_at)} =
		  ($message, time, $handler->{timeout_seconds} ? time + $handler->{timeout_seconds} : undef, undef);
		$self->{running}{ $process->{pid} } = $process;
		$process->{socket}->print($wire->encode({%$message}), "\n");
		$process->{socket}->flush;
	}
}

sub _fork
{
	my $self = shift;

	socketpair(my $ours, my $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die "no socket: $!\n";
	my $pid = fork // die "no process: $!\n";
	return { pid => $pid, socket => $ours } if $pid;
	# The child. It must not keep the sockets of its parent open: neither the server nor
	# the other children would notice that the parent has died.
	POSIX::close($_) for map { $_->{pg_socket} } @$self{qw(claimer settler)};
	close $_->{socket} for @{ $self->{idle} }, values %{ $self->{running} };
	close $ours;
	$SIG{$_} = sub { } for qw(TERM INT);    # the parent decides
	$SIG{USR1} = sub { };
	while (defined(my $line = readline $theirs))
	{
		my $message = bless $wire->decode($line), 'Outbox::Message';
		local $SIG{USR1} = sub { $self->{cancelled} = 1; die bless {}, 'Outbox::LeaseLost' };
		my $result = eval { $self->_invoke($message) };
		POSIX::_exit(0) if $self->{cancelled} || !syswrite $theirs, $wire->encode($result) . "\n";
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
			if (!$handler->{transaction})
			{
				$self->{wrap}->($message, sub { $handler->{code}->($message) });
				return 1;
			}
			$self->{own} //= $self->_connect;
			$dbh = $self->{own};
			$dbh->begin_work;
			$self->{wrap}->($message, sub { $handler->{code}->($message, $dbh) });
			Outbox::_rows($dbh, $ACK_ONE, $self->{owner}, @$message{qw(id attempts)});
			$dbh->commit;
			1;
		};
		my ($error, $state) = ($@, $dbh ? $dbh->state : '');
		eval { $dbh->rollback if $dbh && !$dbh->{AutoCommit}; 1 } && (!$dbh || $dbh->ping) or undef $self->{own};
		next if $left && $state =~ /^40(?:001|P01)$/;
		return { outcome => 'fail', %$error } if ref $error eq 'Outbox::Permanent';
		return { outcome => 'retry', %$error } if ref $error eq 'Outbox::Retry';
		return { outcome => 'lost' } if ref $error eq 'Outbox::LeaseLost' || $state eq '55000';
		return { outcome => 'retry', text => _describe($error, $state) };
	}
}

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
	$self->{hook}->('finished', message => $message, outcome => $message->{_outcome}, seconds => time - $process->{began});
}

# A handler's process is interrupted, and killed a second later.
sub _cancel
{
	my ($self, $process) = @_;

	kill 'USR1', $process->{pid};
	$process->{kill_at} = time + 1;
}

sub _expire
{
	my $self = shift;

	for my $process (values %{ $self->{running} })
	{
		kill 'KILL', $process->{pid} if $process->{kill_at} && time > $process->{kill_at};
		next if $process->{kill_at} || !$process->{until} || time < $process->{until};
		$self->_judge($process->{message}, { outcome => 'retry', text => 'timeout' });
		$self->_cancel($process);
	}
}

# What becomes of a message is decided once.
sub _judge
{
	my ($self, $message, $result) = @_;
	my $outcome = $result->{outcome};
	my $text = substr(($result->{text} // '') =~ s/\0//gr, 0, 500);

	return if $message->{_outcome};
	$message->{_outcome} = $outcome;
	if ($outcome eq 'ack' && !$result->{settled})
	{
		$self->{acks_since} = time if !@{ $self->{acks} };
		push @{ $self->{acks} }, $message;
	}
	push @{ $self->{calls} }, [ $FAIL, $self->{owner}, $message->{id}, $text, $result->{reason}, $message->{attempts} ]
	  if $outcome eq 'fail';
	if ($outcome eq 'retry')
	{
		my $after = defined $result->{after} ? "$result->{after} s" : undef;
		push @{ $self->{calls} }, [ $NACK, $self->{owner}, $message->{id}, $text, $after, $message->{attempts}, $self->_drop_stream($message) ];
	}
	$self->_drop_stream($message) if $outcome eq 'lost';
}

# What is behind a message in its stream is not to be handled now, if it goes back; the ids.
sub _drop_stream
{
	my ($self, $message) = @_;
	my $behind = sub { defined $message->{stream_id} && $message->{stream_id} eq ($_[0]{stream_id} // '') };
	my @dropped = grep { $behind->($_) } @{ $self->{waiting} };

	$self->{waiting} = [ grep { !$behind->($_) } @{ $self->{waiting} } ];
	return _list(map { $_->{id} } @dropped);
}

sub _settle
{
	my ($self, $ending, $all) = @_;

	while (my @acks = splice @{ $self->{acks} }, 0,
		$ending || $all || @{ $self->{acks} } >= $ACK_IDS || time > $self->{acks_since} + $ACK_SECONDS ? $ACK_IDS : 0)
	{
		my ($rows, $repeated) = $self->_call($ACK, $self->{owner}, _list(map { $_->{id} } @acks), _list(map { $_->{attempts} } @acks));
		$self->{hook}->('settled', count => scalar @acks, lost => $repeated ? 0 : @acks - $rows->[0][0]);
	}
	$self->_call(@$_) for splice @{ $self->{calls} };
	$self->_call($RELEASE_ALL, $self->{owner}) if $ending;
	$self->_renew if time > $self->{renew_at};
}

sub _renew
{
	my $self = shift;
	my @held = (@{ $self->{waiting} }, grep { !$_->{_outcome} } map { $_->{message} } values %{ $self->{running} });

	$self->{renew_at} = time + $self->{lease_seconds} / 3;
	return if !@held;
	my @values = ($self->{owner}, _list(map { $_->{id} } @held), $self->{lease_seconds}, _list(map { $_->{attempts} } @held));
	return if $self->_call($RENEW, @values)->[0][0] == @held;
	my %lost = map { ("@$_" => 1) } @{ $self->_call($LOST, @values) };
	for my $message (grep { $lost{"$_->{id} $_->{attempts}"} && !$_->{_outcome} } @held)
	{
		$self->{waiting} = [ grep { $_ != $message } @{ $self->{waiting} } ];
		$self->_judge($message, { outcome => 'lost' });
		$self->_cancel($_) for grep { $_->{message} == $message } values %{ $self->{running} };
		$self->{hook}->('lost', message => $message);
	}
}

1;
