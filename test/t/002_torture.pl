# Nothing is lost and nothing is done twice, whatever dies.
#
# Clients - producers and workers - record their calls and the answers, while backends
# and the server are killed, connections are cut, and clients are killed or stopped
# for longer than their leases last. At the end the queue is drained, and the records
# are compared with the contents of the tables:
#
#	- what was reported as committed is there, finished, once; what was rolled back is
#	  not; a transaction whose outcome was not reported is there as a whole or not at
#	  all;
#	- no message is handed out while another lease of it lasts;
#	- a message that was acknowledged is never handed out again, and was
#	  finished by the client that got that answer;
#	- streams are finished in the order in which their transactions committed,
#	  and nothing of a stream is handed out while something before it is open
#	  elsewhere;
#	- no two messages have the same dedupe key.
#
# All times are the server's, in microseconds. Notes are lines of words; those
# of one client are in one file.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use List::Util qw(max min shuffle sum0);
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $seed = seed();
my $scale = scale();
my $nmessages = $ENV{OUTBOX_MESSAGES} // 60_000 * $scale;
my %nfaults = (
	crash => 30 * $scale,	# kill -9 of a server process
	restart => 7 * $scale,	# immediate stop, start
	postmaster => 3 * $scale,	# kill -9 of the postmaster
	terminate => 60 * $scale,	# pg_terminate_backend
	client => 40 * $scale,	# kill -9 of a client
	suspend => 40 * $scale);	# SIGSTOP of a client, for longer than its leases
my ($nproducers, $nworkers) = (4, 5);
my $nstreams = 12;
my $nkeys = int($nmessages / 12);

my $node = new_node('torture', conf => <<'C');
track_commit_timestamp = on
outbox.backoff_base = '30ms'
outbox.backoff_max = '200ms'
max_wal_size = 4GB
C
my $notes = PostgreSQL::Test::Utils::tempdir();
my $us = '(extract(epoch FROM %s) * 1000000)::bigint';
my $parent = $$;
my %gone;	# clients that have ended

sub stop_file { return "$notes/stop.$_[0]" }

# ---------------------------------------------------------------------------
# Clients
# ---------------------------------------------------------------------------

# One client in its own process.
package Client
{
	use OutboxTest;
	use Time::HiRes qw(sleep time);

	sub new
	{
		my ($class, $name, $kind) = @_;

		open my $file, '>>', "$notes/$name.log" or die $!;
		return bless {
			name => $name,
			stop => main::stop_file($kind),
			file => $file,
			n => 0
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
		if ($alive && $state !~ /^(57P0|08|$)/)
		{
			$self->note('error', $state, $error =~ s/\s+/ /gr);
			eval { $self->{dbh}->do('ROLLBACK') };
		}
		$self->lose;
		return 0;
	}

	sub lose
	{
		my $self = shift;

		eval { $self->{dbh}->disconnect };
		delete $self->{dbh};
		return;
	}
}

package Producer
{
	use OutboxTest;
	use Time::HiRes qw(sleep time);
	our @ISA = ('Client');

	# Notes:
	#	txn T                 has begun
	#	message T TAG WANTED  wanted: 1, or 0 if it will be rolled back
	#	stream T TAG STREAM SEQ XID
	#	taken T TAG ID        the dedupe key is that message's
	#	maybe T TAG           the message may be a duplicate
	#	sent T, ok T, undone T
	#	prepare T, prepared T

	sub enqueue
	{
		my ($self, $txn, $wanted, $kind, $which) = @_;
		my $tag = $self->{name} . '.' . ++$self->{n};
		my $dbh = $self->{dbh};
		my $topic = 't' . int(rand(5));
		my $namespace = rand() < 0.8 ? 'default' : 'other';

		$self->note('message', $txn, $tag, $wanted);
		if ($kind eq 'stream')
		{
			my $stream = owner(1000 + $which);
			my $id = value($dbh, 'SELECT outbox.enqueue(?, ?, namespace => ?, stream_id => ?)',
				$topic, $tag, $namespace, $stream);
			my ($seq, $xid) = $dbh->selectrow_array(
				'SELECT stream_seq, pg_current_xact_id()::xid FROM outbox.queue WHERE message_id = ?',
				undef, $id);
			$self->note('stream', $txn, $tag, $which, $seq, $xid);
		}
		elsif ($kind eq 'key')
		{
			$self->note('maybe', $txn, $tag);
			my ($id, $enqueued) = $dbh->selectrow_array(
				"SELECT message_id, enqueued FROM outbox.try_enqueue('keyed', ?, dedupe_key => ?)",
				undef, $tag, "k$which");
			$self->note($enqueued ? 'new' : 'taken', $txn, $tag, $id);
		}
		elsif ($kind eq 'many')
		{
			my @tags = ($tag, map { $self->{name} . '.' . ++$self->{n} } 1 .. $which);
			$self->note('message', $txn, $_, $wanted) for @tags[ 1 .. $#tags ];
			$dbh->do('SELECT outbox.enqueue_many(?, ?::text[], ?)', undef, $topic, \@tags, $namespace);
		}
		else
		{
			$dbh->do("SELECT outbox.enqueue(?, ?, namespace => ?, due_time => clock_timestamp() + ? * interval '1 ms')",
				undef, $topic, $tag, $namespace, rand() < 0.1 ? int(rand(300)) : undef);
		}
		return;
	}

	# What one transaction enqueues, in an order in which no two of them can
	# wait for each other.
	sub some_messages
	{
		my ($self, $txn, $wanted, $stream) = @_;

		$self->enqueue($txn, $wanted, 'key', int(rand($nkeys)))
		  if $wanted && rand() < 0.2;
		if (rand() < 0.4)
		{
			$stream += int(rand($nstreams - $stream));
			$self->enqueue($txn, $wanted, 'stream', $stream)
			  for 1 .. 1 + int(rand(3));
		}
		$self->enqueue($txn, $wanted, 'plain') for 1 .. int(rand(3));
		$self->enqueue($txn, $wanted, 'many', int(rand(10))) if rand() < 0.15;
		return $stream;
	}

	sub simple
	{
		my ($self, $txn) = @_;

		$self->note('sent', $txn);
		$self->try(sub { $self->enqueue($txn, 1, rand() < 0.8 ? ('plain') : ('key', int(rand($nkeys)))) })
		  or return;
		$self->note('ok', $txn);
		return;
	}

	sub transaction
	{
		my ($self, $txn, $commit) = @_;
		my $dbh = $self->{dbh};

		$self->try(sub {
			$dbh->do('BEGIN');
			my $stream = $self->some_messages($txn, 1, 0);
			if (rand() < 0.2)
			{
				$dbh->do('SAVEPOINT s');
				$self->some_messages($txn, 0, $stream);
				$dbh->do('ROLLBACK TO s');
				$self->enqueue($txn, 1, 'plain');
			}
		}) or return;
		$self->note('sent', $txn) if $commit;
		$self->try(sub { $dbh->do($commit ? 'COMMIT' : 'ROLLBACK') }) or return;
		$self->note($commit ? 'ok' : 'undone', $txn);
		return;
	}

	sub two_phases
	{
		my ($self, $txn) = @_;
		my $commit = rand() < 0.7;

		$self->try(sub {
			$self->{dbh}->do('BEGIN');
			$self->some_messages($txn, 1, 0);
		}) or return;
		$self->note('prepare', $txn);
		my $told = $self->try(sub { $self->{dbh}->do("PREPARE TRANSACTION '$txn'") });
		$self->note('prepared', $txn) if $told;
		# once it is prepared we must end it, however often we must try
		for (;;)
		{
			$self->connect or return;
			my $there;
			$self->try(sub {
				$there = count_of($self->{dbh}, "pg_prepared_xacts WHERE gid = '$txn'");
			}) or next;
			if (!$there)
			{
				# either nothing was prepared, or we have ended it before
				$self->note($told && $commit ? 'ok' : 'undone', $txn);
				return;
			}
			$told = 1;
			$self->note('prepared', $txn);
			$self->note('sent', $txn) if $commit;
			$self->try(sub { $self->{dbh}->do(($commit ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$txn'") })
			  or next;
			$self->note($commit ? 'ok' : 'undone', $txn);
			return;
		}
	}

	sub run
	{
		my $self = shift;

		while ($self->connect && !$self->stopped)
		{
			my $txn = $self->{name} . '.' . ++$self->{n};
			my $r = rand;

			$self->note('txn', $txn);
			if ($r < 0.3) { $self->simple($txn) }
			elsif ($r < 0.8) { $self->transaction($txn, 1) }
			elsif ($r < 0.9) { $self->transaction($txn, 0) }
			else { $self->two_phases($txn) }
			sleep 0.002;
		}
		return;
	}
}

package Worker
{
	use OutboxTest;
	use Time::HiRes qw(sleep time);
	our @ISA = ('Client');

	# Notes:
	#	claim OWNER NOW END    (id attempts until early)...
	#	try N OP OWNER LEASE   (id attempts)...
	#	did N START END COUNT
	# NOW is the clock as the claim saw it, START and END enclose a call.

	sub new_owner
	{
		my $self = shift;

		$self->{owner} = owner($self->{name} =~ s/\D//gr * 100 + ++$self->{owners});
		return;
	}

	# Settle messages; returns how many, or undef if there was no reply.
	sub settle
	{
		my ($self, $op, $messages, @more) = @_;
		my $n = ++$self->{n};
		my $lease = 1 + int(rand(2));
		my $call = {
			ack => 'ack(?, ?::bigint[], ?::int[])',
			nack => "nack(?, ?::bigint[], attempts => ?::int[], error => 'again', max_attempts => 50)",
			fail => "fail(?, ?::bigint[], attempts => ?::int[], error => 'never')",
			renew => "renew(?, ?::bigint[], attempts => ?::int[], lease_seconds => $lease)"
		}->{$op};
		my @row;

		$self->note('try', $n, $op, $self->{owner}, $lease, map { "$_->{id} $_->{attempts}" } @$messages);
		$self->try(sub {
			@row = $self->{dbh}->selectrow_array(
				join(', ', "SELECT outbox.$call", map { sprintf $us, $_ } 'statement_timestamp()', 'clock_timestamp()'),
				undef, $self->{owner},
				[ map { $_->{id} } @$messages ],
				[ map { $_->{attempts} } @$messages ]);
		}) or return;
		$self->note('did', $n, @row[ 1, 2, 0 ]);
		return $row[0];
	}

	sub claim
	{
		my $self = shift;
		my $lease = 1 + int(rand(2));
		my $batch = rand() < 0.2 ? 100 : 1 + int(rand(20));
		my $rows;

		$self->try(sub {
			$rows = $self->{dbh}->selectall_arrayref(
				sprintf(<<"Q", map { sprintf $us, $_ } 'locked_until', 'clock_timestamp()'), { Slice => {} },
SELECT id, attempts, stream_id, %s AS until, %s AS at,
       (coalesce(due_time > locked_until - interval '$lease s', false))::int AS early
  FROM outbox.claim(?, ?, ?, ?, ?::text[], max_attempts => 50, wait_ms => 20)
Q
				$self->{owner}, $lease, $batch,
				rand() < 0.2 ? 'default' : undef,
				rand() < 0.2 ? [ 't1', 't2', 'keyed' ] : undef);
		}) or return;
		return [] unless @$rows;
		$self->note('claim', $self->{owner},
			$rows->[0]{until} - $lease * 1_000_000, $rows->[0]{at},
			map { "$_->{id} $_->{attempts} $_->{until} $_->{early}" } @$rows);
		return $rows;
	}

	# Handle messages one after the other; false if the connection was lost.
	sub handle
	{
		my ($self, $messages) = @_;

		if (rand() < 0.5)
		{
			return defined $self->settle('ack', $messages);
		}
		for my $message (@$messages)
		{
			my $r = rand;
			my $op = $r < 0.75 ? 'ack' : $r < 0.85 ? 'nack' : $r < 0.87 ? 'fail' : $r < 0.95 ? 'renew' : 'forget';

			kill 'KILL', $$ if rand() < 0.0005;
			next if $op eq 'forget' && !$message->{stream_id};
			$op = 'ack' if $op eq 'forget';
			if ($op eq 'renew')
			{
				defined $self->settle('renew', rand() < 0.5 ? [$message] : $messages) or return 0;
				$op = 'ack';
			}
			defined $self->settle($op, [$message]) or return 0;
		}
		return 1;
	}

	sub run
	{
		my $self = shift;

		$self->new_owner;
		while ($self->connect && !$self->stopped)
		{
			my $messages = $self->claim;

			# what a claim took without a reply belongs to its owner
			if (!$messages) { $self->new_owner; next }
			next if !@$messages || $self->handle($messages);
			# sometimes continue as if nothing had happened: the leases are ours
			if (rand() < 0.5 && $self->connect)
			{
				$self->handle($messages) or $self->new_owner;
			}
			else { $self->new_owner }
		}
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
	my $kind = shift;
	my $name = substr(lc $kind, 0, 1) . ++$nclients{$kind};
	my $chance = int(rand(1_000_000));
	my $pid = client(sub { srand($chance); $kind->new($name, $kind)->run });

	$clients{$pid} = { kind => $kind, name => $name };
	return;
}

# Clients that have ended are replaced.
sub replace_clients
{
	while ((my $pid = waitpid(-1, POSIX::WNOHANG())) > 0)
	{
		my $client = delete $clients{$pid} or next;
		$gone{ $client->{name} } = 1;
		delete $suspended{$pid};
		start_client($client->{kind}) unless -e stop_file($client->{kind});
	}
	for my $pid (grep { $suspended{$_} < time } keys %suspended)
	{
		kill 'CONT', $pid;
		delete $suspended{$pid};
	}
	return;
}

# End prepared transactions whose clients have died.
my %ended;

sub end_prepared
{
	my $sure = poll(sub {
		$admin = connect_to($node) unless $admin && $admin->ping > 0;
		my $busy = 0;
		for my $gid (map { $_->[0] } $admin->selectall_array('SELECT gid FROM pg_prepared_xacts'))
		{
			next unless $gone{ $gid =~ s/\..*//r };
			my $commit = $ended{$gid} // ($ended{$gid} = rand() < 0.5);
			my $state = sqlstate($admin, ($commit ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$gid'");
			# it is being changed: its client's last call
			if ($state eq '42704') { delete $ended{$gid} }
			elsif ($state ne '') { $busy = 1; delete $ended{$gid} if $state eq '55000' }
		}
		!$busy;
	});
	$sure or die 'prepared transactions could not be ended';
	return;
}

# What must be done all the time.
my $tended = 0;

sub tend
{
	replace_clients();
	return if time < $tended + 0.5;
	end_prepared();
	$tended = time;
	return;
}

# How much the clients have written down.
sub noted { return sum0(map { -s } glob "$notes/*.log") }

sub random_client
{
	my @pids = grep { !$suspended{$_} } keys %clients;

	return $pids[ rand @pids ];
}

my %fault = (
	crash => sub {
		my @pids = map { $_->[0] } $admin->selectall_array(
			"SELECT pid FROM pg_stat_activity WHERE backend_type IN ('client backend', 'checkpointer', 'background writer', 'walwriter')");
		kill_backend($node, $pids[ rand @pids ]);
	},
	restart => sub {
		$node->stop('immediate');
		$node->start;
	},
	postmaster => sub { kill_server($node) },
	terminate => sub {
		$admin->do(<<'Q', undef, 1 + int(rand(3)));
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT ?
Q
	},
	client => sub { kill 'KILL', random_client() },
	suspend => sub {
		my $pid = random_client();
		kill 'STOP', $pid;
		$suspended{$pid} = time + 2.5;
	});

start_client('Producer') for 1 .. $nproducers;
start_client('Worker') for 1 .. $nworkers;
my @faults = shuffle(map { ($_) x $nfaults{$_} } keys %nfaults);
# what a message leaves behind in notes, more or less
my $step = 150 * $nmessages / @faults;
my $started = time;

for my $fault (@faults)
{
	my $until = noted() + $step;
	poll(sub { tend(); noted() >= $until }, 120)
	  or diag("slow before $fault");
	$admin = connect_to($node) unless $admin && $admin->ping > 0;
	eval { $fault{$fault}->(); 1 } or $@ =~ /gone|server|connection/ or die $@;
	tend();
	eval { $admin->do('SELECT outbox.reap()') };
}
poll(sub { tend(); noted() >= 150 * $nmessages }, 300);
note(sprintf 'faults: %d in %d s', scalar @faults, time - $started);

# ---------------------------------------------------------------------------
# The end
# ---------------------------------------------------------------------------

sub end_clients
{
	my $kind = shift;

	open my $file, '>', stop_file($kind) or die $!;
	return poll(sub { tend(); !grep { $_->{kind} eq $kind } values %clients });
}

ok(end_clients('Producer'), 'the producers have ended');
# those that were asked to stop may have left something, too
$gone{ "p$_" } = 1 for 1 .. $nclients{Producer};
end_prepared();
is(count_of($admin, 'pg_prepared_xacts'), 0, 'nothing is left prepared');
my $drained = poll(sub { tend(); count_of($admin, 'outbox.queue') == 0 }, 60);
ok($drained, 'the queue was drained') or diag(join "\n", map { join ' ', map { $_ // '-' } @$_ }
	  $admin->selectall_array(<<'Q'));
SELECT id, next_attempt_at, status, attempts, stream_id, stream_seq, locked_until,
       (SELECT count(*) FROM outbox.queue) AS of_all
  FROM outbox.queue ORDER BY stream_id, stream_seq LIMIT 20
Q
ok(end_clients('Worker'), 'the workers have ended');
is(count_of($admin, 'outbox.claim(?, max_attempts => 1000)' =~ s/\?/"'" . owner(1) . "'"/er), 0, 'nothing can be claimed');

# ---------------------------------------------------------------------------
# The checker
# ---------------------------------------------------------------------------

my (%txn, %message, @errors, @settles, %claims);
my %count = (claims => 0, settles => 0, unknown => 0);
my %wrong;

sub wrong
{
	my ($what, $about) = @_;

	push @{ $wrong{$what} }, $about;
	return;
}

sub read_notes
{
	my $file = shift;
	my %tries;

	open my $notes_file, '<', $file or die $!;
	while (<$notes_file>)
	{
		chomp;
		my ($kind, @w) = split /\t/;
		if ($kind eq 'txn') { $txn{ $w[0] } = { messages => [] } }
		elsif ($kind eq 'message')
		{
			push @{ $txn{ $w[0] }{messages} }, $w[1];
			$message{ $w[1] } = { txn => $w[0], wanted => $w[2] };
		}
		elsif ($kind eq 'stream') { @{ $message{ $w[1] } }{qw(stream seq xid)} = @w[ 2 .. 4 ] }
		elsif ($kind eq 'maybe') { $message{ $w[1] }{maybe} = 1 }
		elsif ($kind eq 'new') { $message{ $w[1] }{maybe} = 0 }
		elsif ($kind eq 'taken') { @{ $message{ $w[1] } }{qw(wanted maybe taken)} = (0, 0, $w[2]) }
		elsif ($kind =~ /^(sent|ok|undone|prepare|prepared)$/) { $txn{ $w[0] }{$kind} = 1 }
		elsif ($kind eq 'claim')
		{
			my ($owner, $now, $end, @messages) = @w;
			for (@messages)
			{
				my ($id, $attempts, $until, $early) = split / /;
				my %claim = (owner => $owner, now => $now, end => $end, until => $until, attempts => $attempts, given_back => []);
				wrong('handed out before it was due', $id) if $early;
				wrong('handed out twice in one attempt', $id) if $claims{$id}{$attempts};
				$claims{$id}{$attempts} = \%claim;
				$count{claims}++;
			}
		}
		elsif ($kind eq 'try')
		{
			my ($n, $op, $owner, $lease, @messages) = @w;
			$tries{$n} = { op => $op, owner => $owner, lease => $lease, messages => [ map { [split / /] } @messages ] };
			push @settles, $tries{$n};
		}
		elsif ($kind eq 'did')
		{
			my ($n, $start, $end, $did) = @w;
			@{ $tries{$n} }{qw(start end did)} = ($start, $end, $did);
		}
		elsif ($kind eq 'error') { wrong('an error', "@w") }
	}
	return;
}

read_notes($_) for glob "$notes/*.log";

# Everything there is, by tag and by id.
my (%there, %by_id, %by_message_id);
for my $row (@{ $admin->selectall_arrayref(sprintf(<<'Q', sprintf($us, 'm.updated_at')), { Slice => {} }) })
SELECT m.payload AS tag, m.id, m.message_id, m.status, m.attempts, m.failure_reason,
       coalesce(m.processed_by, d.processed_by) AS finisher, m.dedupe_key,
       %s AS finished
  FROM outbox.messages m LEFT JOIN outbox.dead d ON d.id = m.id
Q
{
	wrong('there twice', $row->{tag}) if $there{ $row->{tag} };
	$there{ $row->{tag} } = $by_id{ $row->{id} } = $by_message_id{ $row->{message_id} } = $row;
}

# --- transactions: all that was committed, nothing else
sub check_transactions
{
	for my $name (keys %txn)
	{
		my $txn = $txn{$name};
		my @certain = grep { $message{$_}{wanted} && !$message{$_}{maybe} } @{ $txn->{messages} };
		my @present = grep { $there{$_} } @{ $txn->{messages} };
		my $fate =
		    exists $ended{$name} ? ($ended{$name} ? 'committed' : 'undone')
		  : $txn->{ok} ? 'committed'
		  : $txn->{undone} || !$txn->{sent} ? 'undone'
		  : $txn->{prepared} ? 'committed'	# it is not prepared any more
		  : 'unknown';

		$txn->{fate} = $fate;
		$count{$fate}++;
		wrong('rolled back to a savepoint, and there', "$name: $_")
		  for grep { !$message{$_}{wanted} && !$message{$_}{taken} } @present;
		wrong('has no dedupe key, and is there', "$name: $_") for grep { $message{$_}{taken} } @present;
		if ($fate eq 'undone')
		{
			wrong('rolled back, and there', "$name: $_") for @present;
		}
		elsif ($fate eq 'committed')
		{
			wrong('LOST', "$name: $_") for grep { !$there{$_} } @certain;
			wrong('the holder of a dedupe key is not there', "$name: $_")
			  for grep { $message{$_}{taken} && !$by_message_id{ $message{$_}{taken} } } @{ $txn->{messages} };
		}
		elsif (grep { !$there{$_} } @certain)
		{
			wrong('half of a transaction', "$name: $_") for @present;
		}
	}
	for my $tag (keys %there)
	{
		wrong('it was not enqueued', $tag) unless $message{$tag};
		wrong('not finished', $tag) unless $there{$tag}{status} =~ /^[23]$/;
	}
	my %keys;
	$keys{ $_->{dedupe_key} }++ for grep { defined $_->{dedupe_key} } values %there;
	wrong('a dedupe key used twice', $_) for grep { $keys{$_} > 1 } keys %keys;
	return;
}

# --- leases: what each settled, and that no two overlap
sub enter_settles
{
	for my $settle (@settles)
	{
		my $known = defined $settle->{did};
		my $all = $known && $settle->{did} == @{ $settle->{messages} };
		my $none = $known && $settle->{did} == 0;

		$count{settles}++;
		$count{unknown}++ unless $known;
		next if $none;
		for (@{ $settle->{messages} })
		{
			my ($id, $attempts) = @$_;
			my $claim = $claims{$id}{$attempts};

			if ($settle->{op} eq 'renew')
			{
				# until then at least; a renewal can also shorten a lease
				my $until = ($settle->{start} // $claim->{now}) + $settle->{lease} * 1_000_000;
				$claim->{until} = $all ? $until : min($claim->{until}, $until);
				next;
			}
			push @{ $claim->{given_back} }, $settle->{start} // 0 if $settle->{op} eq 'nack';
			next if $settle->{op} eq 'nack';
			$claim->{finish_tried} = 1;
			push @{ $by_id{$id}{finishes} }, [ $settle->{op}, $settle->{owner}, $attempts ] if $all;
		}
	}
	return;
}

# Messages of a stream, in their order; what was before them.
my (%streams, %place);

sub before
{
	my $id = shift;
	my $place = $place{$id} or return ();

	return @{ $streams{ $place->[0] } }[ 0 .. $place->[1] - 1 ];
}

# The message was not returned. But if it is in a stream, its lease may have
# been revoked, because something before it that the same owner had was
# given back or ran out.
sub taken_away
{
	my ($id, $claim, $by) = @_;

	for my $earlier (before($id))
	{
		for my $other (grep { $_->{owner} eq $claim->{owner} } values %{ $claims{$earlier} })
		{
			return 1 if $other->{until} <= $by->{end};
			return 1 if grep { $_ <= $by->{end} } @{ $other->{given_back} };
		}
	}
	return 0;
}

# The attempt with which a message has ended, as claim counts: its row counts without
# those that were given back.
sub last_attempt
{
	my $row = shift;
	my ($finish) = @{ $row->{finishes} // [] };
	my @attempts = grep { defined $row->{finisher} && $claims{ $row->{id} }{$_}{owner} eq $row->{finisher} } keys %{ $claims{ $row->{id} } // {} };

	return $finish->[2] if $finish;
	return max(@attempts ? @attempts : keys %{ $claims{ $row->{id} } // {} }) // 0;
}

sub check_leases
{
	for my $id (keys %claims)
	{
		my $row = $by_id{$id};
		my @claims = map { $claims{$id}{$_} } sort { $a <=> $b } keys %{ $claims{$id} };

		if (!$row || !$row->{tag}) { wrong('handed out, and LOST', $id); next }
		for my $i (1 .. $#claims)
		{
			my ($claim, $next) = @claims[ $i - 1, $i ];
			next if $claim->{until} <= $next->{now};
			next if grep { $_ <= $next->{end} } @{ $claim->{given_back} };
			next if taken_away($id, $claim, $next);
			wrong('two leases at once', "$id: attempts $claim->{attempts} of $claim->{owner}, until $claim->{until}, and $next->{attempts} of $next->{owner}, at $next->{now}");
		}
		wrong('handed out after its end', $id) if $claims[-1]{attempts} > last_attempt($row);
	}
	for my $row (values %by_id)
	{
		my $id = $row->{id} // next;
		my @finishes = @{ $row->{finishes} // [] };

		wrong('finished twice', "$id: " . join ', ', map { "@$_" } @finishes) if @finishes > 1;
		for (@finishes)
		{
			my ($op, $owner, $attempts) = @$_;
			wrong('not as its worker was told', "$id: $op $owner $attempts")
			  if ($row->{finisher} // '') ne $owner || $row->{attempts} > $attempts || $row->{status} != ($op eq 'ack' ? 2 : 3);
		}
		# attempts exhausted or expired: without a client
		next if $row->{status} == 3 && !defined $row->{finisher};
		my $claim = $claims{$id}{ last_attempt($row) };
		wrong('finished without a cause', $id) if !$claim || $claim->{owner} ne $row->{finisher} || (!$claim->{finish_tried} && $row->{failure_reason} != 5);
	}
	return;
}

# --- streams: order of commit, of handling, of ends
sub sort_streams
{
	for my $tag (grep { defined $message{$_}{stream} && $there{$_} } keys %message)
	{
		push @{ $streams{ $message{$tag}{stream} } }, $there{$tag}{id};
		$there{$tag}{seq} = $message{$tag}{seq};
	}
	for my $stream (keys %streams)
	{
		my @ids = sort { $by_id{$a}{seq} <=> $by_id{$b}{seq} } @{ $streams{$stream} };
		$streams{$stream} = \@ids;
		$place{ $ids[$_] } = [ $stream, $_ ] for 0 .. $#ids;
	}
	return;
}

# Was the message the owner's at that time?
sub held
{
	my ($id, $claim) = @_;

	for my $other (values %{ $claims{$id} })
	{
		return 1 if $other->{owner} eq $claim->{owner} && $other->{now} <= $claim->{end} && $other->{until} > $claim->{now};
	}
	return 0;
}

sub check_streams
{
	my %committed = map { $_->[0] => $_->[1] } $admin->selectall_array(
		sprintf("SELECT x, $us FROM unnest(?::text[]) x", 'pg_xact_commit_timestamp(x::xid)'), undef,
		[ map { $message{$_}{xid} } grep { defined $message{$_}{xid} && $txn{ $message{$_}{txn} }{fate} eq 'committed' } keys %message ]);

	for my $stream (keys %streams)
	{
		my @ids = @{ $streams{$stream} };
		my ($end, $commit, $last) = (0, 0);

		for my $i (0 .. $#ids)
		{
			my $id = $ids[$i];
			my $row = $by_id{$id};
			my $at = $committed{ $message{ $row->{tag} }{xid} };

			wrong('finished before what came before it', "$stream: $id before $last") if $row->{finished} < $end;
			($end, $last) = ($row->{finished}, $id);
			wrong('later in the stream, but committed before', "$stream: $id") if defined $at && $at < $commit;
			$commit = $at if defined $at;
			for my $claim (values %{ $claims{$id} })
			{
				for (my $j = $i - 1; $j >= 0; $j--)
				{
					my $earlier = $by_id{ $ids[$j] };
					# what is finished has nothing unfinished before it
					last if $earlier->{finished} <= $claim->{now};
					next if $earlier->{finished} <= $claim->{end};
					next if held($ids[$j], $claim);
					wrong('handed out before what came before it', "$stream: $id (attempt $claim->{attempts}) before $ids[$j]");
				}
			}
		}
	}
	return;
}

sort_streams();
check_transactions();
enter_settles();
check_leases();
check_streams();

note(join ', ', map { "$_ $count{$_}" } sort keys %count);
note(sprintf '%d messages, %d of them dead, %d in streams, %d with keys', scalar keys %there,
	scalar(grep { $_->{status} == 3 } values %there), scalar keys %place,
	scalar(grep { defined $_->{dedupe_key} } values %there));
cmp_ok(scalar keys %there, '>=', $nmessages / 2, 'messages enough');
cmp_ok($count{claims}, '>=', scalar keys %there, 'claims enough');
cmp_ok($count{unknown}, '>', 0, 'some were never told');
my @complaints = map {
	my @about = @{ $wrong{$_} };
	"$_: " . @about . ', such as ' . join('; ', @about[ 0 .. min(4, $#about) ])
} sort keys %wrong;
is(join("\n", @complaints), '', "the history has no anomaly, seed $seed");
check_indexes($node);
$admin->disconnect;
$node->stop;
done_testing();
