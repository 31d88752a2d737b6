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
#	count			how many messages, if not as many as the others
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

# the same for other claims and for streams; see drive.c
$systems{'outbox-streams'} = { %{ $systems{outbox} }, drain => driver_drain('outbox-streams') };

# the same with priorities, and without, but enqueued in the same way
$systems{$_} = { %{ $systems{outbox} }, fill => driver_fill($_), drain => driver_drain($_) }
  for 'outbox-classes', 'outbox-no-classes';

$systems{'outbox-node'}{version} = $systems{outbox}{version};
$systems{'pg-boss-few'} = {
	%{ $systems{'pg-boss'} },
	title => 'pg-boss, 2 k ready (2)',
	count => 2_000,
};

# another system: enqueueing into a plain table, for comparison
$systems{plain} = {
	setup => sub {
		$systems{outbox}{setup}->($_[0]);
		run_file($_[0], 'plain.sql');
	},
};

sub rival_names
{
	return ('sql-keep', 'outbox', 'outbox-node', 'pg-boss', 'pg-boss-few',
		'sql-delete', 'outbox-delete', 'graphile', 'pgq');
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

# A system whose client is a program for Node, which needs a module.
sub node_system
{
	my ($name, $title, $history, $program, $module) = @_;
	my @command = ('node', "$FindBin::Bin/rivals/$program");
	my $seconds = 5;		# then it stops, done or not
	my %finished = (
		'outbox-node' => 'SELECT count(*) = ? FROM outbox.archive',
		'pg-boss'     => "SELECT count(*) = ? FROM pgboss.job WHERE state = 'completed'",
		'graphile'    => 'SELECT count(*) = 0 AND ? > 0 FROM graphile_worker._private_jobs',
	);
	return $name => {
		title    => $title,
		history  => $history,
		version  => sub { module_version($module) },
		missing  => sub { !module_version($module) },
		setup    => sub { run_client($_[0], [ @command, 'setup' ]) },
		fill     => sub { my ($count) = @_; [ @command, 'fill', $count, 100 ] },
		drain    => sub { my ($conns, $batch) = @_; [ @command, 'drain', $conns, $batch, $seconds ] },
		finished => $finished{$name},
	};
}

# The version that the server offers; none: not installed.
sub extension_version
{
	my ($name) = @_;
	my $dbh = connect_to('postgres');
	my ($version) = $dbh->selectrow_array(
		'SELECT default_version FROM pg_available_extensions WHERE name = ?', undef, $name);
	$dbh->disconnect;
	return $version;
}

sub module_version
{
	my ($name) = @_;
	open my $file, '<', "$modules/$name/package.json" or return;
	local $/;
	return decode_json(readline $file)->{version};
}

sub run_sql
{
	my ($database, $sql) = @_;
	my $dbh = connect_to($database);
	$dbh->do('SET client_min_messages = warning');
	$dbh->do($sql);
	$dbh->disconnect;
	return;
}

sub run_file
{
	my ($database, $path) = @_;
	open my $file, '<', "$FindBin::Bin/$path" or die "$path: $!\n";
	local $/;
	run_sql($database, scalar readline $file);
	return;
}

# The template database of a system.
sub template
{
	my ($name) = @_;
	my $template = 'template_' . $name =~ s/\W/_/gr;
	create_template($template, system_of($name)->{setup});
	return $template;
}

# Fill a new queue, and drain it: the figures of both. Statistics are
# collected in between, because the plans of SQL queues depend on them.
sub drain_filled
{
	my ($name, $count, $conns, $batch, $options) = @_;
	my $system   = system_of($name);
	my $settings = join ' ', grep { $_ } $options, $system->{options};
	my $database = fresh_database(template($name), 'bench_drain');
	my $filled   = metered($database, $system->{fill}->($count), $settings);
	run_sql($database, 'ANALYZE');
	my $drained = metered($database, $system->{drain}->($conns, $batch), $settings);
	my $dbh     = connect_to($database);
	my ($finished) = $dbh->selectrow_array($system->{finished}, undef, $drained->{messages});
	$dbh->disconnect;
	die "$name: $drained->{messages} messages drained, which is not what the tables say\n"
	  unless $finished;
	die "$name: only $drained->{messages} of $count messages drained\n"
	  if $drained->{messages} != $count && !$drained->{stopped};
	drop_databases($database);
	return { fill => $filled, drain => $drained };
}

1;
