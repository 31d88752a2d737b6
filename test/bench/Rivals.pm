# Rivals.pm - the table of queues side by side
package Rivals;

use strict;
use warnings;

use Exporter 'import';
use Figures;
use Systems;
use Table;

our @EXPORT = qw(compare_rivals);

use constant NOTES => <<'END';

(1) A consumer of PgQ has whole batches, made up by the ticker (here of 100 events), and finishes
    them as a whole: no message has a lease, an attempt count or a state of its own, and two
    workers cannot share them. The work of consuming is mostly done when enqueueing.
(2) A fetch sorts all that is ready. Filled like the others, it is stopped after 5 seconds; the
    second row is what it does when little is ready.
(3) As its documentation has it for throughput: a local queue of 500, 24 jobs at a time.
END

# The rivals that are installed, and can be set up on this server.
sub available
{
	return grep {
		my $missing = system_of($_)->{missing};
		!($missing && $missing->()) && (eval { template($_); 1 } || !warn $@);
	} @_;
}

# A row with the medians of its runs, for one message.
sub cells
{
	my ($system, $results) = @_;
	my $each = sub {
		my ($part, $meter, $scale) = @_;
		return median(map { $_->{$part}{$meter} * $scale / $_->{$part}{messages} } @$results);
	};
	return (
		$system->{version}->(),
		$system->{history},
		us($each->('fill', 'cpu', 1e6)),
		bytes($each->('fill', 'wal', 1)),
		int median(map { $_->{drain}{per_second} } @$results),
		us($each->('drain', 'cpu', 1e6)),
		bytes($each->('drain', 'wal', 1)),
		count_text(median(map { $_->{drain}{messages} } @$results)));
}

sub compare_rivals
{
	my ($count, $runs) = @_;
	my $table = Table->new(
		'queue'       => 24,
		'version'     => 13,
		'history'     => 13,
		'enqueue CPU' => 11,
		'enqueue WAL' => 11,
		'drain/s'     => 9,
		'drain CPU'   => 9,
		'drain WAL'   => 9,
		'drained'     => 8);
	my %side;
	for my $name (available(rival_names()))
	{
		my $messages = system_of($name)->{count} // $count;
		$side{$name} = sub { drain_filled($name, $messages, 2, 100) };
	}
	my $results = in_turn($runs, %side);

	printf "\nRivals: %s enqueued in transactions of 100, then drained in batches of 100 by"
	  . " 2 workers.\nServer CPU and WAL are for one message.\n\n", count_text($count);
	for my $name (rival_names())
	{
		my $system = system_of($name);
		$table->row($system->{title},
			$results->{$name} ? cells($system, $results->{$name}) : 'not available');
	}
	print NOTES;
	return;
}

1;
