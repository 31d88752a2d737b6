# Figures.pm - figures of several runs, what they come to, and how to write them
package Figures;

use strict;
use warnings;

use Exporter 'import';

our @EXPORT = qw(in_turn only median ratio reached
  per_second us ms bytes count_text);

# The figures of each side: the sides are run in turn, and again, and again, so
# that whatever else the machine does happens to all of them.
sub in_turn
{
	my ($rounds, %side) = @_;
	my %figures;
	for my $round (1 .. $rounds)
	{
		my @names = sort keys %side;
		push @{ $figures{$_} }, $side{$_}->() for $round % 2 ? @names : reverse @names;
	}
	return \%figures;
}

# One figure of sides that have several, by name.
sub only
{
	my ($key, $figures) = @_;
	return { map { $_ => [ map { $_->{$key} } @{ $figures->{$_} } ] } keys %$figures };
}

sub ratio
{
	my ($figures, $over, $under) = @_;
	return median(@{ $figures->{$over} }) / median(@{ $figures->{$under} });
}

sub reached
{
	my ($ratio, $target) = @_;
	my ($sign, $limit) = $target =~ /^([<>]=) ([\d.]+)/ or return '';
	return ($sign eq '>=' ? $ratio >= $limit : $ratio <= $limit) ? 'yes' : 'NO';
}

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	my $middle = int(@sorted / 2);
	return @sorted % 2 ? $sorted[$middle] : ($sorted[ $middle - 1 ] + $sorted[$middle]) / 2;
}

sub per_second { return sprintf '%d/s', $_[0] }
sub us         { return sprintf '%.2f us', $_[0] }
sub ms         { return sprintf '%.3f ms', $_[0] }
sub bytes      { return sprintf '%d B', $_[0] }

sub count_text
{
	my ($n) = @_;
	return $n >= 1e6 ? $n / 1e6 . ' M' : $n >= 1000 ? $n / 1000 . ' k' : $n;
}

1;
