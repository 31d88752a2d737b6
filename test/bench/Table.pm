# Table.pm - tables, printed row by row as figures come in
package Table;

use strict;
use warnings;

# new(heading => width, ...); the first column is text, the others numbers.
sub new
{
	my ($class, @columns) = @_;
	my (@headings, @widths);
	while (my ($heading, $width) = splice @columns, 0, 2)
	{
		push @headings, $heading;
		push @widths,   $width;
	}
	return bless { headings => \@headings, widths => \@widths }, $class;
}

sub line
{
	my ($self, @cells) = @_;
	my $text = '';
	for my $i (0 .. $#cells)
	{
		my $width = $self->{widths}[$i];
		$text .= sprintf $i == 0 ? '%-*s' : '  %*s', $width, $cells[$i] // '';
	}
	return $text =~ s/ +$//r . "\n";
}

# Headings come with the first row.
sub row
{
	my ($self, @cells) = @_;
	if (!$self->{begun}++)
	{
		print $self->line(@{ $self->{headings} });
		print $self->line(map { '-' x $_ } @{ $self->{widths} });
	}
	print $self->line(@cells);
	return;
}

1;
