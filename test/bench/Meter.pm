# Meter.pm - databases to measure in, clients to load them, and the meters
#
# A client is a program that says "ready" when it has its connections, starts
# at a line of input, prints its figures as name=value on one line, and ends
# with its input: see drive.c and rivals/client.js. Because all backends are
# there before and after, the server's CPU time can be read exactly.
package Meter;

use strict;
use warnings;

use DBI;
use Exporter 'import';
use IPC::Open2;
use POSIX ();
use Time::HiRes;

our @EXPORT = qw(connect_to create_template fresh_database drop_databases
  checkpoint start_client go result finish run_client metered server_cpu
  wal_position on_server once);

# What is remembered of each server, by its port:
#	admin		a connection for all that needs no database of its own
#	postmaster	its process
#	made		what was made there once; see once()
my %servers;

sub connect_to
{
	my ($name) = @_;
	return DBI->connect("dbi:Pg:dbname=$name", '', '',
		{ RaiseError => 1, PrintError => 0, PrintWarn => 0, AutoCommit => 1,
			pg_server_prepare => 0 });
}

# The server in use: the one at $PGHOST and $PGPORT.
sub server
{
	return $servers{ $ENV{PGPORT} // '' } //= {};
}

# Run code on another server.
sub on_server
{
	my ($port, $code) = @_;
	local $ENV{PGPORT} = $port;
	return $code->();
}

# Returns what the code returns, which runs at the first call for this name on a server.
sub once
{
	my ($name, $code) = @_;
	my $made = server()->{made} //= {};
	$made->{$name} = $code->() unless exists $made->{$name};
	return $made->{$name};
}

sub admin
{
	return server()->{admin} //= connect_to('postgres');
}

sub value
{
	return (admin()->selectrow_array($_[0]))[0];
}

# ----------------------------------------------------------------------
# Databases
# ----------------------------------------------------------------------

# Create a database by the code, unless it exists.
sub create_template
{
	my ($name, $make) = @_;
	once("template $name", sub {
		drop_databases($name);
		admin()->do("CREATE DATABASE $name TEMPLATE template0");
		$make->($name);
		return 1;
	});
	return;
}

# A new database like the template, in the place of the last of that name.
sub fresh_database
{
	my ($template, $name) = @_;
	drop_databases($name);
	admin()->do("CREATE DATABASE $name TEMPLATE $template");
	checkpoint();
	return $name;
}

sub drop_databases
{
	admin()->do("DROP DATABASE IF EXISTS $_ WITH (FORCE)") for @_;
	return;
}

sub checkpoint
{
	admin()->do('CHECKPOINT');
	return;
}

# ----------------------------------------------------------------------
# Clients
# ----------------------------------------------------------------------

# Start a client on a database, and wait until it is ready. Options are
# settings for its sessions.
sub start_client
{
	my ($database, $command, $options) = @_;
	local $ENV{PGDATABASE} = $database;
	local $ENV{PGOPTIONS} = $options // '';
	my $pid = open2(my $out, my $in, @$command);
	my $ready = <$out> // '';
	die "@$command: not ready\n" if $ready ne "ready\n";
	return { pid => $pid, in => $in, out => $out, name => "@$command" };
}

sub go
{
	my ($client) = @_;
	syswrite $client->{in}, "\n";
	return;
}

# What the client reports about its work.
sub result
{
	my ($client) = @_;
	my $line = readline($client->{out}) // '';
	my %figures = $line =~ /(\w+)=(\S+)/g;
	die "$client->{name}: failed\n" unless $figures{seconds};
	$figures{per_second} =
	  ($figures{messages} || $figures{calls}) / $figures{seconds};
	return \%figures;
}

sub finish
{
	my ($client) = @_;
	close $client->{in};
	waitpid $client->{pid}, 0;
	return;
}

sub run_client
{
	my $client = start_client(@_);
	go($client);
	my $figures = result($client);
	finish($client);
	return $figures;
}

# Run a client, and add to its figures what the server spent in that time: CPU
# seconds of all its processes, and bytes of WAL.
sub metered
{
	my $client = start_client(@_);
	my $wal = wal_position();
	my $cpu = server_cpu();
	go($client);
	my $figures = result($client);
	$figures->{cpu} = server_cpu() - $cpu;
	$figures->{wal} = wal_position() - $wal;
	finish($client);
	return $figures;
}

# ----------------------------------------------------------------------
# Meters
# ----------------------------------------------------------------------

sub wal_position
{
	return value("SELECT pg_current_wal_insert_lsn() - '0/0'");
}

# CPU seconds of the server so far: its processes, and those that have ended.
sub server_cpu
{
	my $postmaster = server()->{postmaster} //= value(
		q{SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1)});
	my $ticks = POSIX::sysconf(POSIX::_SC_CLK_TCK());
	my $total = 0;
	opendir my $proc, '/proc' or die "/proc: $!\n";
	for my $pid (grep { /^\d+$/ } readdir $proc)
	{
		# after the name: state, parent, ...; 11 to 14 are the times of the
		# process in user and system mode, and of its children that have ended
		my $stat = slurp("/proc/$pid/stat") // next;
		my @field = split ' ', $stat =~ s/.*\) //sr;
		next if $pid != $postmaster && $field[1] != $postmaster;
		my ($exact) = (slurp("/proc/$pid/schedstat") // '') =~ /^(\d+)/;
		$total += defined $exact ? $exact / 1e9 : ($field[11] + $field[12]) / $ticks;
		$total += ($field[13] + $field[14]) / $ticks if $pid == $postmaster;
	}
	closedir $proc;
	return $total;
}

# A process may be gone before it is read.
sub slurp
{
	open my $file, '<', $_[0] or return;
	local $/;
	return scalar readline $file;
}

1;
