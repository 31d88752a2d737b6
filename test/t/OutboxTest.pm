# OutboxTest.pm - a server with the extension, and connections to it
package OutboxTest;

use strict;
use warnings;
use DBI;
use Exporter 'import';
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More ();
use Time::HiRes qw(sleep time);

our @EXPORT = qw(new_node connect_to poll owner kill_backend kill_server wait_for_recovery count_of value
  scale seed client sqlstate is_state check_indexes);

# How much more than in the short form: OUTBOX_SCALE.
sub scale { return $ENV{OUTBOX_SCALE} // 1 }

# Where chance begins: OUTBOX_SEED, or anywhere. It is told, to be repeated.
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
	my $node = PostgreSQL::Test::Cluster->new($name);
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
# it, without cleaning up what is the parent's; and at the latest with the test.
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
	# those that have ended are waited for, so their numbers are not others'
	kill 'KILL', grep { waitpid($_, POSIX::WNOHANG()) == 0 } @clients if $$ == $tester;
}

# The owner token of worker number N.
sub owner { return sprintf '00000000-0000-4000-8000-%012d', shift }

# kill -9, as the out-of-memory killer would; then wait until all is well again.
sub kill_backend
{
	my ($node, $pid) = @_;

	kill 'KILL', $pid;
	wait_for_recovery($node, $pid);
	return;
}

# A process has crashed. The server notices, and starts anew.
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

# Do the indexes hold what the tables hold?
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
