# Instances share streams, and nothing is lost, doubled or out of order,
# whichever instance dies, leaves, falls silent or returns.
#
# Eight instances make their round trips with process_work_batch, over streams,
# messages without one, and received messages, while producers add more, and some
# instances add their own. Server processes and clients are killed, connections are
# cut, and instances are stopped for longer than the others wait for them. Two of the
# instances disagree with the rest on partitions, two on which ones are stale. Each
# instance records its requests and the answers; at the end everything is drained, and
# the records are compared with the contents of the tables:
#
#	- what was reported as committed is there, done, once; what was rolled back
#	  is not;
#	- a received message is taken in once, however often it is delivered;
#	- no message is handed out while another lease of it lasts, nor after its
#	  end; and it was completed by the instance that had the lease;
#	- streams are completed in order, and nothing of a stream is handed out
#	  while something before it is open elsewhere.
#
# A lease ends by its time, by release, when its instance leaves, when a message
# before it in its stream becomes ready again, or when another instance finds that its
# owner has been silent for too long. All times are the server's, in microseconds.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use JSON::PP ();
use List::Util qw(max min shuffle sum0);
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $seed = seed();
my $scale = scale();
my $volume = 6_000_000 * $scale;	# of notes, in bytes
my %nfaults = (
	crash => 12 * $scale,	# kill -9 of a server process
	restart => 2 * $scale,	# immediate stop, start
	terminate => 30 * $scale,	# pg_terminate_backend
	client => 30 * $scale,	# kill -9 of a client
	suspend => 30 * $scale);	# SIGSTOP of a client, until it is considered dead
my ($nproducers, $ninstances) = (3, 8);
my $nstreams = 200;
my $second = 1_000_000;

my $node = new_node('instances', conf => <<'C');
outbox.backoff_base = '30ms'
outbox.backoff_max = '200ms'
outbox.max_attempts = 100000
C
my $notes = PostgreSQL::Test::Utils::tempdir();
my $us = '(extract(epoch FROM %s) * 1000000)::bigint';
my $parent = $$;

sub stop_file { return "$notes/stop.$_[0]" }
sub stream { return $_[0] < 0 ? undef : owner(1000 + $_[0]) }

# ---------------------------------------------------------------------------
# Clients
# ---------------------------------------------------------------------------

# One client in its own process.
package Client
{
	use OutboxTest;
	use Time::HiRes qw(sleep time);

	# Notes:
	#	send T ID STREAM TAG   a message in transaction T, '' without a stream
	#	deliver T ID STREAM    a received one; others may deliver it as well
	#	sent T, ok T, undone T
	#	fresh ID               it had not been received before

	sub new
	{
		my ($class, $name, $kind, $number) = @_;

		open my $file, '>>', "$notes/$name.log" or die $!;
		return bless {
			name => $name,
			number => $number,
			stop => main::stop_file($kind),
			file => $file,
			n => 0,
			delivered => 0
		}, $class;
	}

	# one system call, so that a note is written completely or not at all
	sub note
	{
		my ($self, @words) = @_;

		syswrite $self->{file}, join("\t", @words) . "\n";
		return;
	}

	sub stopped { return -e $_[0]{stop} || getppid() != $parent }

	sub connect
	{
		my $self = shift;

		while (!$self->{dbh})
		{
			return 0 if $self->stopped;
			$self->{dbh} = eval { connect_to($node) } or sleep 0.02;
		}
		return 1;
	}

	# Run something; false if the connection was lost. Other errors are notes,
	# and wrong.
	sub try
	{
		my ($self, $code) = @_;

		return 1 if eval { $code->(); 1 };
		my $state = $self->{dbh}->state // '';
		my $error = $@;
		my $alive = eval { $self->{dbh}->ping > 0 };
		# 57P01..03 and 08xxx, or nothing at all: the server has gone away
		$self->note('error', $state, $error =~ s/\s+/ /gr)
		  if $alive && $state !~ /^(57P0|08|$)/;
		eval { $self->{dbh}->disconnect };
		delete $self->{dbh};
		return 0;
	}

	# Words of a transaction: it has a name.
	sub begin_transaction
	{
		my $self = shift;

		return $self->{name} . '.' . ++$self->{n};
	}

	# A message, to be sent in transaction T; five columns.
	sub new_message
	{
		my ($self, $txn, $stream) = @_;
		my $n = ++$self->{n};
		my $kind = ord $self->{name};
		my %message = (
			message_id => sprintf('%02x%06x-0000-4000-8000-%012d', $kind, $self->{number}, $n),
			topic => 't' . int(rand(3)),
			payload => "$self->{name}.$n",
			stream_id => main::stream($stream));

		$self->note('send', $txn, $message{message_id}, $message{stream_id} // '', $message{payload});
		return \%message;
	}

	# A received message, maybe not for the first time.
	sub new_delivery
	{
		my ($self, $txn) = @_;
		my $group = $self->{number} % 3;
		my $n = $self->{delivered} += int(rand(3));
		my %message = (
			message_id => sprintf('feed%04x-0000-4000-8000-%012d', $group, $n),
			handler_name => 'h' . $n % 3,
			payload => "$group.$n",
			stream_id => main::stream($n % 3 == 0 ? -1 : $n * 7 % $nstreams));

		$self->note('deliver', $txn, $message{message_id}, $message{stream_id} // '');
		return \%message;
	}
}

package Producer
{
	use OutboxTest;
	use Time::HiRes qw(sleep time);
	our @ISA = ('Client');

	sub enqueue
	{
		my ($self, $txn, $stream) = @_;
		my $message = $self->new_message($txn, $stream);

		$self->{dbh}->do('SELECT outbox.enqueue(?, ?::text, stream_id => ?, message_id => ?)',
			undef, @{$message}{qw(topic payload stream_id message_id)});
		return;
	}

	sub receive
	{
		my ($self, $txn) = @_;
		my $message = $self->new_delivery($txn);

		$self->{fresh} = value($self->{dbh}, 'SELECT outbox.receive(?, ?, ?, stream_id => ?)',
			@{$message}{qw(message_id handler_name payload stream_id)}) ? $message->{message_id} : undef;
		return;
	}

	# Within a transaction: messages of one stream and some of none, then at
	# most one that was received, so that no two wait for each other.
	sub some_messages
	{
		my ($self, $txn) = @_;
		my $stream = int(rand($nstreams));

		$self->enqueue($txn, rand() < 0.8 ? $stream : -1) for 1 .. 1 + int(rand(4));
		$self->receive($txn) if rand() < 0.5;
		return;
	}

	sub send
	{
		my ($self, $txn, $commit) = @_;
		my $dbh = $self->{dbh};

		delete $self->{fresh};
		if (rand() < 0.3)
		{
			$self->note('sent', $txn);
			$self->try(sub {
				rand() < 0.5 ? $self->receive($txn) : $self->enqueue($txn, int(rand($nstreams + 40)) - 40);
			}) or return;
			$commit = 1;
		}
		else
		{
			$self->try(sub { $dbh->do('BEGIN'); $self->some_messages($txn) }) or return;
			$self->note('sent', $txn) if $commit;
			$self->try(sub { $dbh->do($commit ? 'COMMIT' : 'ROLLBACK') }) or return;
		}
		$self->note($commit ? 'ok' : 'undone', $txn);
		$self->note('fresh', $self->{fresh}) if $commit && $self->{fresh};
		return;
	}

	sub run
	{
		my $self = shift;

		while ($self->connect && !$self->stopped)
		{
			$self->send($self->begin_transaction, rand() < 0.9);
			sleep 0.01;
		}
		return;
	}
}

package Instance
{
	use OutboxTest;
	use List::Util qw(min);
	use Time::HiRes qw(sleep time);
	our @ISA = ('Client');

	# Notes:
	#	try N INSTANCE LEASE STALE KEEP (what key attempts status)...
	#	did N START END (key attempts sequence stream)...
	#	bye INSTANCE
	# START and END enclose the call. A key is o or i, for outbox or inbox, and
	# the message's id; what: c completion, f failure, r renewal.

	my $json = JSON::PP->new;
	my %done = (o => 4, i => 2);

	# Another instance; the leases that it had before belong to no instance.
	sub new_instance
	{
		my $self = shift;

		$self->{instance} = owner($self->{number} * 1000 + ++$self->{ninstances});
		$self->{held} = {};
		return;
	}

	# What happens to the messages that we have? Of a stream, all that follow one
	# that is not done wait for it; or, if we are careless, the server has to
	# see to that.
	sub decide
	{
		my $self = shift;
		my @held = sort { $a->{seq} <=> $b->{seq} } values %{ $self->{held} };
		my (%stuck, @deeds);

		for my $message (@held)
		{
			my $line = substr($message->{key}, 0, 1) . ($message->{stream} || $message->{key});
			my $r = rand;
			my $deed = $stuck{$line}
			  // ($r < 0.85 ? 'done' : $r < 0.9 ? 'fail' : $r < 0.93 ? 'part' : $r < 0.95 ? 'release' : $r < 0.98 ? 'renew' : 'stay');

			push @deeds, [ $deed, $message ];
			$stuck{$line} //= $deed =~ /renew|stay/ || rand() < 0.3 ? 'stay' : 'release'
			  if $deed ne 'done';
		}
		return @deeds;
	}

	# The sections of a call about the messages that we have, and the words to note.
	sub report
	{
		my ($self, $sections) = @_;
		my @words;

		for ($self->decide)
		{
			my ($deed, $message) = @$_;
			my ($side, $id) = (substr($message->{key}, 0, 1), substr($message->{key}, 1));
			my $box = $side eq 'o' ? 'outbox' : 'inbox';
			my $status = { done => $done{$side}, part => 1, release => 0 }->{$deed};

			next if $deed eq 'stay';
			if ($deed eq 'fail')
			{
				push @{ $sections->{"${box}_failures"} }, { message_id => $id, error => 'again' };
			}
			elsif ($deed eq 'renew')
			{
				push @{ $sections->{"renew_${box}_lease_ids"} }, $id;
			}
			else
			{
				push @{ $sections->{"${box}_completions"} }, { message_id => $id, status => $status };
			}
			delete $self->{held}{ $message->{key} } if $deed ne 'renew';
			push @words, join ' ', { fail => 'f', renew => 'r' }->{$deed} // 'c',
			  $message->{key}, $message->{attempts}, $status // 0;
		}
		return @words;
	}

	sub add_messages
	{
		my ($self, $txn, $sections) = @_;

		push @{ $sections->{new_outbox_messages} }, $self->new_message($txn, int(rand($nstreams + 40)) - 40)
		  for 1 .. int(rand(4));
		push @{ $sections->{new_inbox_messages} }, $self->new_delivery($txn)
		  for 1 .. int(rand(4));
		return;
	}

	# How this call is made: most instances agree, some do not.
	sub settings
	{
		my $self = shift;
		my $number = $self->{number} % $ninstances;
		my %settings = (
			lease_seconds => 2 + int(rand(3)),
			stale_threshold_seconds => 2,
			partition_count => 10000,
			batch_size => rand() < 0.5 ? 100 : 1 + int(rand(10)),
			flags => $number == 0 ? 0 : 4);

		return %settings if -e main::stop_file('Dissent');
		$settings{partition_count} = (10000, 7, 64)[ rand 3 ] if $number >= 6;
		$settings{stale_threshold_seconds} = $number % 2 ? 1 : 600 if $number == 4 || $number == 5;
		$settings{max_partitions_per_instance} = 20 if $number == 3;
		return %settings;
	}

	# Is the result in order, and no more than we asked for?
	sub check_result
	{
		my ($self, $settings, $rows) = @_;
		my (%last, %n, %partitions);

		$self->note('error', 'the inbox came before the outbox')
		  if join(' ', map { $_->{source} } @$rows) =~ /inbox outbox/;
		for my $row (@$rows)
		{
			$n{ $row->{source} }++;
			next unless defined $row->{stream_id};
			my $line = "$row->{source} $row->{stream_id}";
			$self->note('error', "not in order: $line") if ($last{$line} // 0) > $row->{sequence_order};
			$last{$line} = $row->{sequence_order};
			$partitions{ $row->{partition_number} } = 1;
		}
		$self->note('error', 'too many messages') if grep { $_ > $settings->{batch_size} } values %n;
		$self->note('error', 'too many partitions')
		  if keys %partitions > ($settings->{max_partitions_per_instance} // 1_000_000);
		return;
	}

	# One round; false if the connection was lost.
	sub round
	{
		my $self = shift;
		my $txn = $self->begin_transaction;
		my $n = $self->{n};
		my %settings = $self->settings;
		my (%sections, $rows);
		my @words = $self->report(\%sections);

		$self->add_messages($txn, \%sections) if rand() < 0.2 && !-e main::stop_file('Producer');
		$self->note('sent', $txn);
		$self->note('try', $n, $self->{instance}, @settings{qw(lease_seconds stale_threshold_seconds)},
			$settings{flags}, @words);
		my @names = (sort(keys %settings), sort keys %sections);
		$self->try(sub {
			$rows = $self->{dbh}->selectall_arrayref(
				sprintf(<<'Q', (map { sprintf $us, $_ } 'statement_timestamp()', 'clock_timestamp()'), join '', map { ", $_ => ?" } @names), { Slice => {} },
SELECT b.*, %s AS call_start, %s AS call_end
  FROM (SELECT) x LEFT JOIN outbox.process_work_batch(?, 'test', 'here', ?%s) b ON true
Q
				$self->{instance}, $$,
				map { $settings{$_} // $json->encode($sections{$_}) } @names);
		}) or return 0;
		my ($start, $end) = @{ $rows->[0] }{qw(call_start call_end)};
		$rows = [ grep { defined $_->{id} } @$rows ];
		$self->note('did', $n, $start, $end,
			map { join ' ', substr($_->{source}, 0, 1) . $_->{message_id}, @{$_}{qw(attempts sequence_order)}, $_->{stream_id} // '' } @$rows);
		$self->note('ok', $txn);
		$self->check_result(\%settings, $rows);
		for my $row (@$rows)
		{
			my $key = substr($row->{source}, 0, 1) . $row->{message_id};
			$self->{held}{$key} = {
				key => $key,
				attempts => $row->{attempts},
				seq => $row->{sequence_order},
				stream => $row->{stream_id}
			};
		}
		kill 'KILL', $$ if rand() < 0.0003;
		sleep(@$rows ? 0.005 : 0.02);
		return 1;
	}

	sub leave
	{
		my $self = shift;

		$self->note('bye', $self->{instance});
		$self->try(sub { $self->{dbh}->do('SELECT outbox.deregister_instance(?)', undef, $self->{instance}) });
		$self->new_instance;
		return;
	}

	sub run
	{
		my $self = shift;

		$self->new_instance;
		while ($self->connect && !$self->stopped)
		{
			# what a call took without a reply must not be known to others, either
			$self->round or $self->new_instance;
			$self->leave if rand() < 0.003 && $self->{dbh};
		}
		$self->leave if $self->{dbh} && rand() < 0.5;
		return;
	}
}

package main;

# ---------------------------------------------------------------------------
# Faults
# ---------------------------------------------------------------------------

my (%clients, %suspended, %nclients);
my $admin;

sub start_client
{
	my ($kind, $number) = @_;
	my $n = ++$nclients{$kind};
	my $name = substr(lc $kind, 0, 1) . $n;
	my $chance = int(rand(1_000_000));
	# an instance that takes another's place continues its work
	my $self = $number // $n;
	my $pid = client(sub { srand($chance); $kind->new($name, $kind, $self)->run });

	$clients{$pid} = { kind => $kind, number => $self };
	return;
}

# Clients that have ended are replaced.
sub tend
{
	while ((my $pid = waitpid(-1, POSIX::WNOHANG())) > 0)
	{
		my $client = delete $clients{$pid} or next;
		delete $suspended{$pid};
		# 24: a multiple of all that numbers are divided by
		start_client($client->{kind}, $client->{number} + 24)
		  unless -e stop_file($client->{kind});
	}
	for my $pid (grep { $suspended{$_} < time } keys %suspended)
	{
		kill 'CONT', $pid;
		delete $suspended{$pid};
	}
	return;
}

# How much the clients have written down.
sub noted { return sum0(map { -s } glob "$notes/*.log") }

sub random_client
{
	my $kind = shift;
	my @pids = grep { !$suspended{$_} && $clients{$_}{kind} =~ $kind } keys %clients;

	return $pids[ rand @pids ];
}

my %fault = (
	crash => sub {
		my @pids = map { $_->[0] } $admin->selectall_array(
			"SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'");
		kill_backend($node, $pids[ rand @pids ]);
	},
	restart => sub {
		$node->stop('immediate');
		$node->start;
	},
	terminate => sub {
		$admin->do(<<'Q', undef, 1 + int(rand(3)));
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT ?
Q
	},
	client => sub { kill 'KILL', random_client(qr/./) },
	suspend => sub {
		my $pid = random_client(qr/Instance/);
		kill 'STOP', $pid;
		$suspended{$pid} = time + 2.5;
	});

start_client('Producer') for 1 .. $nproducers;
start_client('Instance') for 1 .. $ninstances;
my @faults = shuffle(map { ($_) x $nfaults{$_} } keys %nfaults);
my $started = time;

for my $fault (@faults)
{
	my $until = noted() + $volume / @faults;
	poll(sub { tend(); noted() >= $until }, 60)
	  or diag("slow before $fault");
	$admin = connect_to($node) unless $admin && $admin->ping > 0;
	eval { $fault{$fault}->(); 1 } or $@ =~ /gone|server|connection/ or die $@;
	tend();
}
note(sprintf 'faults: %d in %d s', scalar @faults, time - $started);

# ---------------------------------------------------------------------------
# The end
# ---------------------------------------------------------------------------

sub stop
{
	open my $file, '>', stop_file($_[0]) or die $!;
	return;
}

sub end_clients
{
	my $kind = shift;

	stop($kind);
	return poll(sub { tend(); !grep { $_->{kind} eq $kind } values %clients });
}

ok(end_clients('Producer'), 'the producers have ended');
stop('Dissent');
$admin = connect_to($node) unless $admin && $admin->ping > 0;
ok(poll(sub { tend(); count_of($admin, 'outbox.queue') + count_of($admin, 'outbox.inbox_queue') == 0 }, 90),
	'everything was handled: each stream has an instance')
  or diag(join "\n", map { join ' ', map { $_ // '-' } @$_ } $admin->selectall_array(<<'Q'));
SELECT id, next_attempt_at, status, attempts, stream_id, stream_seq, locked_until
  FROM outbox.queue ORDER BY stream_id, stream_seq LIMIT 20
Q
ok(end_clients('Instance'), 'the instances have ended');
ok(poll(sub {
		$admin->do("SELECT outbox.process_work_batch(?, 'test', 'here', 1, stale_threshold_seconds => 1)", undef, owner(1));
		count_of($admin, 'outbox.instances') == 1;
	}, 20), 'who has left is known to have left, and who has died, too');
is(count_of($admin, 'outbox.dead') + count_of($admin, 'outbox.inbox_dead'), 0, 'nothing has failed for good');

# ---------------------------------------------------------------------------
# The checker
# ---------------------------------------------------------------------------

my (%txn, %message, %delivered, %claims, %calls, %byes, %line, %wrong);
my %count = (calls => 0, unknown => 0, claims => 0, removed => 0);

sub wrong
{
	my ($what, $about) = @_;

	push @{ $wrong{$what} }, $about;
	return;
}

# A call took messages.
sub enter_claims
{
	my ($call, @messages) = @_;

	for (@messages)
	{
		my ($key, $attempts, $seq, $stream) = split / /;
		my %claim = (
			owner => $call->{owner}, start => $call->{start}, end => $call->{end}, attempts => $attempts,
			# it lasts until then at least, and at most
			until => $call->{start} + $call->{lease} * $second,
			until_max => $call->{end} + $call->{lease} * $second,
			given_back => []);

		wrong('handed out twice in one attempt', $key) if $claims{$key}{$attempts};
		$claims{$key}{$attempts} = \%claim;
		$line{$key} = { line => substr($key, 0, 1) . $stream, seq => $seq } if $stream;
		$count{claims}++;
	}
	return;
}

sub read_notes
{
	my $file = shift;
	my (%tries, @untold, $told);

	open my $notes_file, '<', $file or die $!;
	while (<$notes_file>)
	{
		chomp;
		my ($kind, @w) = split /\t/, $_, -1;
		if ($kind eq 'send') { $message{"o$w[1]"} = { txn => $w[0], stream => $w[2], tag => $w[3] } }
		elsif ($kind eq 'deliver') { push @{ $delivered{"i$w[1]"}{txns} }, $w[0] }
		elsif ($kind eq 'fresh') { $delivered{"i$w[0]"}{fresh}++ }
		elsif ($kind =~ /^(sent|ok|undone)$/) { $txn{ $w[0] }{$kind} = 1 }
		elsif ($kind eq 'bye') { push @{ $byes{ $w[0] } }, $told // 0 }
		elsif ($kind eq 'try')
		{
			my ($n, $owner, $lease, $stale, $flags, @deeds) = @w;
			# unless more is known, it was made at any time since the last one
			$tries{$n} = {
				owner => $owner, lease => $lease, stale => $stale, keep => $flags & 4, deeds => [ map { [split / /] } @deeds ],
				start => $told // 0, end => 9e18
			};
			push @{ $calls{$owner} }, $tries{$n};
			$count{calls}++;
		}
		elsif ($kind eq 'did')
		{
			my ($n, $start, $end, @messages) = @w;
			@{ $tries{$n} }{qw(start end did)} = ($start, $end, 1);
			$told = $end;
			enter_claims($tries{$n}, @messages);
		}
		elsif ($kind eq 'error') { wrong('an error', "@w") }
	}
	$count{unknown} += grep { !$_->{did} } values %tries;
	return;
}

read_notes($_) for glob "$notes/*.log";

# Everything there is.
my %there;
for my $row (@{ $admin->selectall_arrayref(sprintf(<<'Q', map { sprintf $us, $_ } ('processed_at') x 2), { Slice => {} }) })
SELECT 'o' || message_id AS key, status, attempts, processed_by, %s AS finished FROM outbox.messages
UNION ALL
SELECT 'i' || message_id, status, attempts, processed_by, %s FROM outbox.inbox
Q
{
	wrong('there twice', $row->{key}) if $there{ $row->{key} };
	$row->{finished_max} = $row->{finished};
	$there{ $row->{key} } = $row;
}
my %seen = map { ("i$_->[0]" => 1) } $admin->selectall_array('SELECT message_id FROM outbox.message_deduplication');

sub fate
{
	my $txn = $txn{ $_[0] };

	return $txn->{ok} ? 'committed' : $txn->{undone} || !$txn->{sent} ? 'undone' : 'unknown';
}

# --- what was sent is there, and done; and so for what was received
sub check_messages
{
	for my $key (keys %message)
	{
		my $fate = fate($message{$key}{txn});

		wrong('LOST', $key) if $fate eq 'committed' && !$there{$key};
		wrong('rolled back, and there', $key) if $fate eq 'undone' && $there{$key};
	}
	for my $key (keys %delivered)
	{
		my %fates = map { fate($_) => 1 } @{ $delivered{$key}{txns} };

		wrong('LOST', $key) if $fates{committed} && !$seen{$key};
		wrong('rolled back, and received', $key) if $seen{$key} && !$fates{committed} && !$fates{unknown};
		wrong('received for the first time twice', $key) if ($delivered{$key}{fresh} // 0) > 1;
	}
	for my $key (keys %there)
	{
		wrong('it was not sent', $key) unless $message{$key} || $delivered{$key};
		wrong('not done', $key) unless $there{$key}{status} == 2;
	}
	for my $key (keys %seen)
	{
		wrong('not kept, and never handed out', $key) unless $there{$key} || $claims{$key};
	}
	return;
}

# --- what calls did to leases

# Only an instance that asks for it keeps what is done of the inbox; when the
# others were done is known from their calls.
sub enter_completion
{
	my ($key, $claim, $call) = @_;

	$claim->{completed} = 1;
	return if $there{$key} || $call->{keep};
	push @{ $delivered{$key}{completions} }, [ $call->{start}, $call->{end}, $call->{owner}, $claim->{attempts} ];
	return;
}

sub enter_deeds
{
	for my $call (sort { $a->{start} <=> $b->{start} } map { @$_ } values %calls)
	{
		for (@{ $call->{deeds} })
		{
			my ($what, $key, $attempts, $status) = @$_;
			my $claim = $claims{$key}{$attempts};

			if ($what eq 'r')
			{
				# if the lease was over it may have been renewed, or not
				my $sure = $call->{did} && $claim->{until} > $call->{end};
				my $until = $call->{start} + $call->{lease} * $second;

				$claim->{until} = $sure ? $until : min($claim->{until}, $until);
				$claim->{until_max} = max($claim->{until_max}, $call->{end} + $call->{lease} * $second);
			}
			elsif ($what eq 'c' && $status & ($key =~ /^o/ ? 4 : 2)) { enter_completion($key, $claim, $call) }
			else { push @{ $claim->{given_back} }, $call->{start} }
		}
	}
	return;
}

# --- leases

# The calls that may have removed others, by their starts; and those whose ends are not known.
my (@told, @untold, $longest);

sub sort_calls
{
	my @calls = sort { $a->{start} <=> $b->{start} } map { @$_ } values %calls;

	@told = grep { $_->{did} } @calls;
	@untold = grep { !$_->{did} } @calls;
	$longest = max(0, map { $_->{end} - $_->{start} } @told);
	return;
}

# How many of these calls start at that time or before it.
sub started
{
	my ($calls, $time) = @_;
	my ($low, $high) = (0, scalar @$calls);

	while ($low < $high)
	{
		my $middle = ($low + $high) >> 1;
		if ($calls->[$middle]{start} <= $time) { $low = $middle + 1 }
		else { $high = $middle }
	}
	return $low;
}

# When an instance was silent for a second: spans of time. A sign of life may be
# 100 ms older than the call that gave it.
my %silences;

sub silences
{
	my $owner = shift;

	return @{ $silences{$owner} } if $silences{$owner};
	my @alive = sort { $a->{start} <=> $b->{start} } grep { $_->{did} } @{ $calls{$owner} };
	my @spans = map { [ $alive[$_]{start} - $second / 10, $_ < $#alive ? $alive[ $_ + 1 ]{end} : 9e18 ] } 0 .. $#alive;

	$silences{$owner} = [ grep { $_->[1] - $_->[0] >= $second } @spans ];
	return @{ $silences{$owner} };
}

# May others have removed the instance between these times? A few of all calls are
# looked at, since there is an instance for each fault.
sub was_removed
{
	my ($owner, $start, $end) = @_;

	for my $silence (silences($owner))
	{
		my ($since, $until) = @$silence;
		next if $since + $second > $end || $until < $start;
		my $first = max($since + $second, $start) - $longest;
		my $last = min($until, $end);
		my @calls = (@told[ started(\@told, $first - 1) .. started(\@told, $last) - 1 ],
			@untold[ 0 .. started(\@untold, $last) - 1 ]);
		for my $call (grep { $_->{owner} ne $owner } @calls)
		{
			my $from = max($since + $call->{stale} * $second, $call->{start});
			my $to = min($until, $call->{end});
			return 1 if $from <= $to && $from <= $end && $to >= $start;
		}
	}
	return 0;
}

# Had this lease ended when the other call was made?
sub had_ended
{
	my ($claim, $end) = @_;

	return 1 if $claim->{until} <= $end;
	return 1 if grep { $_ <= $end } @{ $claim->{given_back} };
	return 1 if grep { $_ >= $claim->{start} && $_ <= $end } @{ $byes{ $claim->{owner} } // [] };
	return 0 unless was_removed($claim->{owner}, $claim->{start}, $end);
	$count{removed}++;
	return 1;
}

my (%streams, %place);

# Messages before this one in its stream.
sub before
{
	my $key = shift;
	my $place = $place{$key} or return ();

	return @{ $streams{ $place->[0] } }[ 0 .. $place->[1] - 1 ];
}

# The lease may have been revoked, because something before it that the same
# instance had was returned.
sub taken_away
{
	my ($key, $claim, $end) = @_;

	for my $earlier (before($key))
	{
		return 1 if grep { $_->{owner} eq $claim->{owner} && had_ended($_, $end) } values %{ $claims{$earlier} };
	}
	return 0;
}

sub check_end
{
	my $key = shift;
	my $row = $there{$key};

	if ($row)
	{
		# the row counts without the attempts that were given back
		my $last = max(grep { $claims{$key}{$_}{completed} && $claims{$key}{$_}{owner} eq ($row->{processed_by} // '') } keys %{ $claims{$key} });

		wrong('completed by no instance that had it', $key) if !defined $last || $row->{attempts} > $last;
		wrong('handed out after its end', $key) if defined $last && grep { $_ > $last } keys %{ $claims{$key} };
		return;
	}
	return if $key =~ /^o/;
	# it was not kept: one of these calls was the end of it
	my $completions = $delivered{$key}{completions};
	if (!$completions) { wrong('not kept, and not completed', $key); return }
	my $last = max(keys %{ $claims{$key} });
	wrong('handed out after its end', $key) unless grep { $_->[3] == $last } @$completions;
	@{ $delivered{$key} }{qw(finished finished_max)} = @{ $completions->[0] } if @$completions == 1;
	return;
}

sub check_leases
{
	for my $key (keys %claims)
	{
		my @claims = map { $claims{$key}{$_} } sort { $a <=> $b } keys %{ $claims{$key} };

		wrong('handed out, and LOST', $key) if $key =~ /^o/ && !$there{$key};
		for my $i (1 .. $#claims)
		{
			my ($claim, $next) = @claims[ $i - 1, $i ];
			next if had_ended($claim, $next->{end}) || taken_away($key, $claim, $next->{end});
			wrong('two leases at once', "$key: attempts $claim->{attempts} of $claim->{owner}, $claim->{start} until $claim->{until}, and $next->{attempts} of $next->{owner}, at $next->{start}");
		}
	}
	check_end($_) for keys %there, grep { !$there{$_} } keys %seen;
	return;
}

# --- streams
sub sort_streams
{
	push @{ $streams{ $line{$_}{line} } }, $_ for keys %line;
	for my $stream (keys %streams)
	{
		my @keys = sort { $line{$a}{seq} <=> $line{$b}{seq} } @{ $streams{$stream} };
		$streams{$stream} = \@keys;
		$place{ $keys[$_] } = [ $stream, $_ ] for 0 .. $#keys;
	}
	return;
}

# When the message was done, at the earliest and at the latest, if that is known.
sub finished
{
	my $row = $there{ $_[0] } // $delivered{ $_[0] };

	return @{$row}{qw(finished finished_max)};
}

# Was the message the instance's at that time?
sub held
{
	my ($key, $claim) = @_;

	return scalar grep { $_->{owner} eq $claim->{owner} && $_->{start} <= $claim->{end} && $_->{until_max} > $claim->{start} }
	  values %{ $claims{$key} };
}

sub check_claims_of
{
	my ($key, @earlier) = @_;

	for my $claim (values %{ $claims{$key} })
	{
		for my $other (reverse @earlier)
		{
			my ($from, $to) = finished($other);
			next unless defined $from;
			# what is done has nothing open before it
			last if $to <= $claim->{start};
			next if $from <= $claim->{end} || held($other, $claim);
			wrong('handed out before what came before it', "$key (attempt $claim->{attempts}, $claim->{start}) before $other");
		}
	}
	return;
}

sub check_streams
{
	for my $stream (keys %streams)
	{
		my @keys = @{ $streams{$stream} };
		my (%sent, $last);
		my $end = 0;

		for my $i (0 .. $#keys)
		{
			my $key = $keys[$i];
			my ($from, $to) = finished($key);

			if (my $message = $message{$key})
			{
				my ($sender, $n) = split /\./, $message->{tag};
				wrong('not in the order in which it was sent', "$stream: $key") if ($sent{$sender} // 0) > $n;
				$sent{$sender} = $n;
			}
			if (defined $from)
			{
				wrong('done before what came before it', "$stream: $key before $last") if $to < $end;
				($end, $last) = ($from, $key) if $from > $end;
			}
			check_claims_of($key, @keys[ max(0, $i - 200) .. $i - 1 ]);
		}
	}
	return;
}

sort_streams();
check_messages();
enter_deeds();
sort_calls();
check_leases();
check_streams();

note(join ', ', map { "$_ $count{$_}" } sort keys %count);
note(sprintf '%d messages, %d received, %d streams', scalar(grep { /^o/ } keys %there), scalar keys %seen, scalar keys %streams);
cmp_ok(scalar keys %streams, '>=', $nstreams, 'streams enough');
cmp_ok(scalar keys %there, '>=', 2000 * min(1, $scale), 'messages enough');
cmp_ok($count{unknown}, '>', 0, 'some were never told');
cmp_ok($count{removed}, '>', 0, 'some were taken for dead');
my @complaints = map {
	my @about = @{ $wrong{$_} };
	"$_: " . @about . ', such as ' . join('; ', @about[ 0 .. min(4, $#about) ])
} sort keys %wrong;
is(join("\n", @complaints), '', "the history has no anomaly, seed $seed");
check_indexes($node);
$admin->disconnect;
$node->stop;
done_testing();
