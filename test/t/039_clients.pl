# The clients in clients/, shortly: those of Python, Perl and C enqueue, work off, and stop
# at SIGTERM. make clients does all of it, with all languages.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run qw(run start finish timeout);
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $clients = "$FindBin::RealBin/../../clients";
my $node = new_node('clients', bare => 1);
my $folder = PostgreSQL::Test::Utils::tempdir();
# the installation of the server may be a copy without them
my ($include) = grep { -f "$_/libpq-fe.h" } (run_command([ 'pg_config', '--includedir' ]))[0], '/usr/include/postgresql', '/usr/include';

local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port, TRACEPARENT => '00-environment', LC_ALL => 'C.UTF-8');

ok(run([ 'gcc', '-std=gnu11', '-Wall', "-I$include", "-I$clients/c", glob("$clients/c/*.c"), "$clients/c/test/suite.c", '-o', "$folder/suite", '-lpq', '-pthread' ]),
	'the client in C is built');

my %suites = (
	c => ["$folder/suite"],
	perl => [ 'perl', "$clients/perl/test/suite.pl" ],
	python => [ '/usr/bin/python3', '-B', "$clients/python/test/suite.py" ]);

for my $language (sort keys %suites)
{
	my $suite = $suites{$language};
	my $output = '';

	$node->safe_psql('postgres', "CREATE DATABASE $language");
	local $ENV{PGDATABASE} = $language;
	my $dbh = connect_to($node, db => $language);
	$dbh->do($_) for 'CREATE EXTENSION outbox', 'CREATE TABLE orders (who text)', 'CREATE TABLE effects (message_id uuid, attempts int)',
	  "SELECT outbox.subscribe('readers', '{p.news}')";
	for my $command (qw(drain produce))
	{
		my $out = '';

		ok(run([ @$suite, $command ], '>&', \$out, timeout(60)), "$language: $command ends well");
		is(join('', grep { !/^ok - / } split /^/m, $out), '', "$language: $command finds nothing wrong");
		like($out, qr/^ok - /, "$language: $command has tested something");
	}

	my $worker = start([ @$suite, 'worker' ], '>&', \$output, timeout(60));
	$dbh->do("SELECT outbox.enqueue_many('w.ok', array_agg(i::text)), outbox.enqueue('w.tx', 'x') FROM generate_series(1, 100) i");
	ok(poll(sub { $worker->pump_nb; !count_of($dbh, "outbox.messages WHERE topic IN ('w.ok', 'w.tx') AND state IN ('ready', 'in progress')") }), "$language: a worker handles messages");
	$worker->signal('TERM');
	ok(finish($worker), "$language: and ends at SIGTERM");
	is(() = $output =~ /^handled /mg, 100, "$language: each was handled once");
	is(count_of($dbh, 'effects'), 1, "$language: and the transaction was committed");
	is(count_of($dbh, 'outbox.leases'), 0, "$language: no lease is left");
}

done_testing();
