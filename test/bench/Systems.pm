# Systems.pm - the queues: how each is set up, filled and drained
#
# A system has
#	title, history	for the table of rivals: is a finished message kept?
#	version			of whose code
#	missing			true if it cannot be run here
#	setup			makes its template database
#	fill, drain		commands of its client; see Meter.pm
#	finished		SQL: have all messages gone where finished ones go?
#	options			settings of its sessions
# and those that the driver knows, for the scenarios that write SQL,
#	table, ready	its relation, and the index that claims use
#	enqueue			SQL: puts in one message
package Systems;

use strict;
use warnings;

use Exporter 'import';
use FindBin;
use JSON::PP;
use Meter;

our @EXPORT = qw(system_of rival_names template drive drain_filled);

my $driver = $ENV{BENCH_DRIVE} or die "BENCH_DRIVE is not set\n";
my $modules = $ENV{NODE_PATH} // '';

my %systems = (
	'outbox' => {
		title    => 'outbox',
		history  => 'kept',
		version  => sub { extension_version('outbox') },
		setup    => sub { run_sql($_[0], 'CREATE EXTENSION outbox') },
		fill     => driver_fill('outbox'),
		drain    => driver_drain('outbox'),
		finished => 'SELECT (SELECT count(*) FROM outbox.queue) = 0
			AND (SELECT count(*) FROM outbox.archive) = ?',
		table   => 'outbox.queue',
		ready   => 'outbox.queue_ready_idx',
		enqueue => "SELECT outbox.enqueue('bench', 'early')",
	},
	'sql-keep' => {
		title    => 'sql',
		history  => 'kept',
		version  => sub { '' },
		setup    => sub { run_file($_[0], 'sqlq.sql') },
		fill     => driver_fill('sql-keep'),
		drain    => driver_drain('sql-keep'),
		finished => 'SELECT count(*) FILTER (WHERE status = 2) = ? FROM sqlq.queue',
		table    => 'sqlq.queue',
		ready    => 'sqlq.queue_ready',
		enqueue  => "INSERT INTO sqlq.queue (topic, payload) VALUES ('bench', 'early')",
	},
	'pgq' => {
		title   => 'PgQ, one consumer (1)',
		history => 'until rotated',
		version => sub { extension_version('pgq') },
		missing => sub { !extension_version('pgq') },
		setup   => sub { run_file($_[0], 'rivals/pgq.sql') },
		fill    => driver_fill('pgq'),
		# a consumer has the queue to itself
		drain    => sub { [ $driver, 'drain', 'pgq', 1, 100 ] },
		finished => "SELECT count(*) = ? FROM pgq.event_template",
	},
	node_system('outbox-node', 'outbox, from Node',   'kept',      'outbox.js',          'pg'),
	node_system('pg-boss',     'pg-boss (2)',         'kept',      'pg-boss.js',         'pg-boss'),
	node_system('graphile',    'graphile-worker (3)', 'deleted',   'graphile-worker.js', 'graphile-worker'),
);

# the same without history
$systems{'outbox-delete'} = {
	%{ $systems{outbox} },
	history  => 'deleted',
	options  => '-c outbox.retention=0',
	finished => 'SELECT (SELECT count(*) FROM outbox.queue)
		+ (SELECT count(*) FROM outbox.archive) = 0 AND ? > 0',
};
$systems{'sql-delete'} = {
	%{ $systems{'sql-keep'} },
	history  => 'deleted',
	drain    => driver_drain('sql-delete'),
	finished => 'SELECT count(*) = 0 AND ? > 0 FROM sqlq.queue',
};

# what else is measured in: enqueueing beside a plain table
$systems{plain} = {
	setup => sub {
		$systems{outbox}{setup}->($_[0]);
		run_file($_[0], 'plain.sql');
	},
};

sub rival_names
{
	return ('sql-keep', 'outbox', 'outbox-node', 'pg-boss', 'sql-delete',
		'outbox-delete', 'graphile', 'pgq');
}

sub system_of
{
	my ($name) = @_;
	return $systems{$name} // die "there is no system $name\n";
}

sub drive
{
	return $driver;
}

sub driver_fill
{
	my ($name) = @_;
	return sub { my ($count) = @_; [ $driver, 'fill', $name, $count, 100 ] };
}

sub driver_drain
{
	my ($name) = @_;
	return sub { my ($conns, $batch) = @_; [ $driver, 'drain', $name, $conns, $batch ] };
}
