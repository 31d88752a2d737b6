# OutboxTest.pm - a server with the extension, and connections to it
package OutboxTest;

use strict;
use warnings;
use DBI;
use DBD::Pg ':async';
use Exporter 'import';
use FindBin;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More ();
use Time::HiRes qw(sleep time);

our @EXPORT = qw(new_node connect_to poll owner kill_backend kill_server wait_for_recovery count_of value
  scale seed client sqlstate is_state check_indexes stranded nothing_stranded begin_call end_call
  is_done sleeps without_memory pgbouncer);
our @EXPORT_OK = qw(claim own_installation own_clock status_row status_says status_is_over complaints);

# How much more than in the short form: OUTBOX_SCALE.
sub scale { return $ENV{OUTBOX_SCALE} // 1 }

# The seed: OUTBOX_SEED, or a random one. It is printed, so that a run can be repeated.
sub seed
{
	my $seed = $ENV{OUTBOX_SEED} // int(rand(1_000_000));

	srand($seed);
	Test::More::note("OUTBOX_SEED=$seed");
	return $seed;
}

# A started server. PRELOAD decides whether the library is preloaded; else
# OUTBOX_PRELOAD does.
sub new_node
{
	my ($name, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name, $options{install_path} ? (install_path => $options{install_path}) : ());
	my $preload = $options{preload} // $ENV{OUTBOX_PRELOAD} // 1;

	$node->init(%{ $options{init} // {} });
	$node->append_conf('postgresql.conf', <<"C");
max_prepared_transactions = 20
max_connections = 50
shared_preload_libraries = '@{[ $preload ? 'outbox' : '' ]}'
restart_after_crash = on
@{[ $preload && !($options{workers} // 1) ? "outbox.databases = ''" : '' ]}
@{[ $options{conf} // '' ]}
C
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION outbox')
	  unless $options{bare};
	return $node;
}

# A copy of the server's installation in which the library can be replaced: where it
# is, for new_node, and how to install the library as that of another version, as a
# package manager does.
sub own_installation
{
	my ($bindir, $sharedir, $pkglibdir) = map { (run_command([ 'pg_config', "--$_" ]))[0] } qw(bindir sharedir pkglibdir);
	my $prefix = $bindir =~ s{/bin$}{}r;
	my $dir = PostgreSQL::Test::Utils::tempdir();

	for my $folder ($prefix, index($sharedir, "$prefix/") == 0 ? () : $sharedir)
	{
		system('mkdir', '-p', "$dir$folder") == 0 && system('cp', '-a', "$folder/.", "$dir$folder") == 0 or die "could not copy $folder";
	}
	my $library = slurp_file("$pkglibdir/outbox.so");
	my ($own) = slurp_file("$sharedir/extension/outbox.control") =~ /^default_version\s*=\s*'([^']+)'/m;
	my $install = sub {
		my $as = shift;
		my $padded = $as . "\0" x (length($own) - length($as));

		(my $changed = $library) =~ s/(?<![0-9.])\Q$own\E\x{0}/$padded\x{0}/g or die "no version $own in the library";
		open my $file, '>:raw', "$dir/new.so" or die $!;
		print $file $changed;
		close $file or die $!;
		chmod 0755, "$dir/new.so";
		rename "$dir/new.so", "$dir$pkglibdir/outbox.so" or die $!;
	};
	return { path => "$dir$prefix", version => $own, install => $install };
}

# A clock for servers, which clock.c moves: how to set it, to so many seconds ahead of
# ours, and how to make a node that has it. Nothing if there is no C compiler.
sub own_clock
{
	my $dir = PostgreSQL::Test::Utils::tempdir_short();
	my ($clock, $library) = ("$dir/clock", "$dir/clock.so");
	my $source = "$FindBin::RealBin/clock.c";

	return if system(($ENV{CC} // 'cc') . " -shared -fPIC -O1 -o '$library' '$source'") != 0;
	# the file is mapped, so it is written in place
	my $set = sub {
		open my $file, -e $clock ? '+<' : '>', $clock or die "could not open $clock: $!";
		syswrite $file, pack 'q', shift;
		close $file;
	};
	$set->(0);
	return {
		file => $clock,
		set => $set,
		new_node => sub {
			local $ENV{LD_PRELOAD} = $library;
			local $ENV{OUTBOX_CLOCK} = $clock;
			local $ENV{ASAN_OPTIONS} = join ':', grep { $_ } $ENV{ASAN_OPTIONS}, 'verify_asan_link_order=0';
			return new_node(@_);
		}
	};
}

# A DBI handle; errors die.
sub connect_to
{
	my ($node, %options) = @_;
	my $dbh = DBI->connect(
		sprintf('dbi:Pg:dbname=%s;host=%s;port=%d',
			$options{db} // 'postgres', $node->host, $node->port),
		$options{user} // $ENV{PGUSER} // (getpwuid($<))[0], '',
		{
			RaiseError => 1,
			PrintError => 0,
			AutoCommit => 1,
			AutoInactiveDestroy => 1,
			pg_server_prepare => 0
		});

	$dbh->do('SET client_min_messages = error');
	$dbh->do($_) for @{ $options{settings} // [] };
	return $dbh;
}

# Run a check until it is true, or too much time has passed.
sub poll
{
	my ($check, $seconds) = @_;
	my $until = time + ($seconds // 60);

	while (time < $until)
	{
		my $result = eval { $check->() };
		return $result if $result;
		sleep 0.05;
	}
	return 0;
}

# Run something in a process of its own; its process id. The process ends with
# it, without cleaning up what belongs to the parent; and at the latest with the test.
my ($tester, @clients) = ($$);

sub client
{
	my $code = shift;
	my $pid = fork // die "could not fork: $!";

	if ($pid)
	{
		push @clients, $pid;
		return $pid;
	}
	eval { $code->(); 1 } or print STDERR "client: $@";
	POSIX::_exit(0);
}

END
{
	local $?;
	# processes that have ended are reaped, so their ids can be reused
	kill 'KILL', grep { waitpid($_, POSIX::WNOHANG()) == 0 } @clients if $$ == $tester;
}

# The owner token of worker number N.
sub owner { return sprintf '00000000-0000-4000-8000-%012d', shift }

# The payloads that this owner claims; other arguments of the call by name. It is
# exported when asked for, because some tests have a claim of their own.
sub claim
{
	my ($dbh, $owner, %more) = @_;
	my @names = sort keys %more;
	my $arguments = join '', map { ", $_ => ?" } @names;

	return map { $_->[0] } $dbh->selectall_array("SELECT payload FROM outbox.claim(?$arguments)", undef, $owner, @more{@names});
}

# kill -9, as the out-of-memory killer would; then wait until all is well again.
sub kill_backend
{
	my ($node, $pid) = @_;

	kill 'KILL', $pid;
	wait_for_recovery($node, $pid);
	return;
}

# A process has crashed. The server detects it, and restarts.
sub wait_for_recovery
{
	my ($node, $pid) = @_;

	poll(sub { !kill 0, $pid });
	poll(sub { connect_to($node)->disconnect; 1 })
	  or die 'the server did not come back';
	return;
}

# kill -9 of the postmaster; then start it again.
sub kill_server
{
	my $node = shift;
	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /(\d+)/;
	my @pids = eval {
		map { $_->[0] } connect_to($node)->selectall_array('SELECT pid FROM pg_stat_activity');
	};

	$node->kill9;
	# the server's processes notice, and end
	poll(sub { !grep { kill 0, $_ } $postmaster, @pids })
	  or die 'the server has not ended';
	$node->start;
	return;
}

# The first column of the first row.
sub value
{
	my ($dbh, $query, @parameters) = @_;

	return ($dbh->selectrow_array($query, undef, @parameters))[0];
}

sub count_of
{
	my ($dbh, $query) = @_;

	return value($dbh, "SELECT count(*) FROM $query");
}

# The SQLSTATE with which a statement ends; '' if it succeeds.
sub sqlstate
{
	my ($dbh, $query, @parameters) = @_;

	return '' if eval { $dbh->do($query, undef, @parameters); 1 };
	return $dbh->state || 'unknown';
}

sub is_state
{
	my ($dbh, $query, $state, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return Test::More::is(sqlstate($dbh, $query), $state, $name // $query);
}

# A call in another session that may have to wait. It is begun, and goes on beside
# the test; end_call returns its rows, its SQLSTATE, and how many seconds it took.
my %calls;

sub begin_call
{
	my ($dbh, $query, @parameters) = @_;
	my $statement = $dbh->prepare($query, { pg_async => PG_ASYNC });

	$calls{ $dbh->{pg_pid} } = { statement => $statement, began => time };
	$statement->execute(@parameters);
	return;
}

# A lost connection ends a call, too.
sub is_done { return eval { $_[0]->pg_ready } // 1 }

sub end_call
{
	my ($dbh, $seconds) = @_;
	my $call = delete $calls{ $dbh->{pg_pid} };
	my $until = time + ($seconds // 60);

	sleep 0.002 until is_done($dbh) || time > $until;
	my $took = time - $call->{began};
	if (!is_done($dbh))
	{
		$dbh->pg_cancel;
		return { rows => [], state => 'did not end', seconds => $took };
	}
	my $state = '';
	# a new DBD::Pg does not raise the error of a call that was cancelled
	my $rows = eval {
		$dbh->pg_result;
		$state = $dbh->state;
		$call->{statement}{NUM_OF_FIELDS} ? $call->{statement}->fetchall_arrayref : [];
	};
	return {
		rows => $rows // [],
		state => $rows ? $state : $dbh->state || '08006',
		seconds => $took
	};
}

# Does a claim of this session wait, and sleep?
sub sleeps
{
	my ($dbh, $waiting) = @_;

	return value($dbh, "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = ?", $waiting->{pg_pid});
}

# A session that could not get at the shared memory, of a server without the library
# preloaded that has dynamic_shared_memory_type = mmap. Another session must have
# used the memory before.
sub without_memory
{
	my ($node, %options) = @_;
	my $dbh = connect_to($node, %options);
	my @files = glob $node->data_dir . '/pg_dynshmem/mmap.*';

	chmod 0, @files;
	my $done = eval { $dbh->do('SELECT outbox._library()'); 1 };
	chmod 0600, @files;
	die $@ if !$done;
	return $dbh;
}

# PgBouncer in front of a server, in transaction pooling mode: how to connect to it
# and to stop it. Nothing if there is none.
sub pgbouncer
{
	my $node = shift;
	my ($program) = grep { -x $_ } map { "$_/pgbouncer" } split(/:/, $ENV{PATH} // ''), '/usr/sbin', '/usr/local/bin';

	return unless $program;
	my $dir = PostgreSQL::Test::Utils::tempdir_short();
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $user = (getpwuid $<)[0];

	append_to_file("$dir/users", "\"$user\" \"\"\n");
	append_to_file("$dir/pgbouncer.ini", <<"I");
[databases]
postgres = host=@{[ $node->host ]} port=@{[ $node->port ]} dbname=postgres
[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = $dir
auth_type = trust
auth_file = $dir/users
pool_mode = transaction
default_pool_size = 4
logfile = $dir/log
pidfile = $dir/pid
ignore_startup_parameters = extra_float_digits
I
	my $pid = client(sub { open STDOUT, '>', "$dir/out"; open STDERR, '>&', \*STDOUT; exec $program, "$dir/pgbouncer.ini" or die $! });
	return {
		connect => sub {
			my $handle;

			poll(sub { $handle = DBI->connect("dbi:Pg:dbname=postgres;host=$dir;port=$port", $user, '', { RaiseError => 1, PrintError => 0, AutoInactiveDestroy => 1, pg_server_prepare => 0 }) }, 10)
			  or die 'no pgbouncer: ' . slurp_file("$dir/out");
			return $handle;
		},
		stop => sub { kill 'INT', $pid; waitpid $pid, 0 }
	};
}

# The complaints about what claims see. The tables are the truth, and with
# use_cursor = off a claim looks at nothing else; so any other claim must hand out
# what such a one does. All of it is rolled back.
sub stranded
{
	my $dbh = shift;
	my %ids;
	my @wrong;
	my $before = value($dbh, 'SELECT clock_timestamp()');

	for my $how (qw(on off))
	{
		$dbh->do('BEGIN');
		$dbh->do("SET LOCAL outbox.use_cursor = $how");
		# what was not due yet when the first one looked does not count
		my %early = map { $_->[0] => 1 } $dbh->selectall_array(<<'Q', undef, $before);
SELECT q.id FROM outbox.queue q WHERE EXISTS (
    SELECT FROM outbox.queue p
     WHERE greatest(p.next_attempt_at, p.locked_until) > $1
       AND (p.id = q.id OR p.stream_id = q.stream_id AND p.stream_seq < q.stream_seq))
Q
		$ids{$how}{ $_->[0] } = 1 for grep { !$early{ $_->[0] } } $dbh->selectall_array(
			'SELECT id FROM outbox.claim(?, 30, 10000, max_attempts => 1000000)', undef, owner(98));
		$dbh->do('ROLLBACK');
	}
	push @wrong, map { "message $_ is stranded" } grep { !$ids{on}{$_} } sort { $a <=> $b } keys %{ $ids{off} };
	push @wrong, map { "message $_ is seen where it is not" } grep { !$ids{off}{$_} } sort { $a <=> $b } keys %{ $ids{on} };
	return @wrong;
}

sub nothing_stranded
{
	my ($dbh, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return Test::More::is_deeply([ stranded($dbh) ], [], "$name: claims see all that there is");
}

# A row of status(), as "ok status detail hint".
sub status_row
{
	my ($dbh, $component) = @_;
	my @row = $dbh->selectrow_array('SELECT ok, status, detail, hint FROM outbox.status() WHERE component = ?', undef, $component);

	return join ' ', map { $_ // '-' } @row;
}

# The components that status() complains of.
sub complaints
{
	my ($dbh) = @_;

	return [ map { @$_ } $dbh->selectall_array('SELECT component FROM outbox.status() WHERE NOT ok ORDER BY 1') ];
}

# The row of a component comes to say that it is not ok, and what.
sub status_says
{
	my ($dbh, $component, $pattern) = @_;
	my $row;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	poll(sub { ($row = status_row($dbh, $component)) =~ /^0 .*$pattern/s }, 90);
	return Test::More::like($row, qr/^0 .*$pattern/s, "status(): $component");
}

# ... and that all is well again.
sub status_is_over
{
	my ($dbh, $component) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return Test::More::ok(poll(sub { status_row($dbh, $component) !~ /^0 / }, 90), "status(): $component is ok again")
	  || Test::More::diag(status_row($dbh, $component));
}

# Do the indexes agree with the tables?
sub check_indexes
{
	my ($node, $name, $db) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return Test::More::is($node->safe_psql($db // 'postgres', <<'Q'), 't', $name // 'the indexes hold what the tables hold');
SET client_min_messages = error;
CREATE EXTENSION IF NOT EXISTS amcheck;
SELECT count(*) > 10 FROM (
    SELECT bt_index_check(c.oid, true) FROM pg_class c JOIN pg_am a ON a.oid = c.relam
     WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'i' AND a.amname = 'btree'
       AND c.relpersistence = 'p' OFFSET 0) checked
Q
}

1;
