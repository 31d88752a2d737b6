# OutboxTest.pm - a server with the extension, and connections to it
package OutboxTest;

use strict;
use warnings;
use DBI;
use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(new_node connect_to poll owner kill_backend count_of);

# A started server. PRELOAD decides whether the library is preloaded.
sub new_node
{
	my ($name, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(%{ $options{init} // {} });
	$node->append_conf('postgresql.conf', <<"C");
max_prepared_transactions = 20
max_connections = 50
shared_preload_libraries = '@{[ $options{preload} // 1 ? 'outbox' : '' ]}'
restart_after_crash = on
@{[ $options{conf} // '' ]}
C
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION outbox');
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

# The owner token of worker number N.
sub owner { return sprintf '00000000-0000-4000-8000-%012d', shift }

# kill -9, as the out-of-memory killer would; then wait until all is well again.
sub kill_backend
{
	my ($node, $pid) = @_;

	kill 'KILL', $pid;
	# the server notices, and starts anew
	poll(sub { !kill 0, $pid });
	poll(sub { connect_to($node)->disconnect; 1 })
	  or die 'the server did not come back';
	return;
}

sub count_of
{
	my ($dbh, $query) = @_;

	return ($dbh->selectrow_array("SELECT count(*) FROM $query"))[0];
}

1;
