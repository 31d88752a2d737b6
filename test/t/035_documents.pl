# What README.md and the pages in docs show: every block of SQL is run, one page after
# the other as a new user would paste it, and what comes out is compared with the block
# of text below it. Commands of the shell and programs are run where they stand, too.
#
# A block of text that follows a block of SQL, shell or Python is its output. Numbers of
# rows and contexts of errors are left out of it; UUIDs, times, spans of time and the width of columns are not compared. A
# block without one must say nothing but rows: no error, warning or notice. A comment
# (<!-- ... -->) before a block is for this test:
#
#	before: SQL         run first, in the same session
#	when: QUERY         run when this has become true
#	program: FILE       the block is this file, for a block of shell that follows
#	until: QUERY        the commands are ended by SIGTERM when this is true
#	in: DATABASE        run there
#	needs: EXTENSION    the block is left out where this is not installed
#	not run: REASON     the block is not run; never one of SQL
#
# Blocks are run in a folder in which "outbox" is this repository. A program in a language
# that is not among these is in a tutorial: make clients runs those, and this test those of
# Python and Perl.
#
# With OUTBOX_DOCUMENTS the pages are written to that folder as they should be: with what
# came out. It is to be read before it is taken over.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run qw(start pump finish timeout);
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";
my @pages = grep { -f "$top/$_" } 'README.md', (map { s{^\Q$top\E/}{}r } sort glob "$top/docs/*.md"),
  'docs/tutorials/perl.md', 'docs/tutorials/python.md';
my @languages = qw(sql bash python);
# what may not be run, and how often; a page must not hide its blocks from this test
my %not_run;

plan skip_all => 'README.md is not beside the tests' if !@pages;

# The parts of a page, in order: { text => ... }, or a block with its language, the
# comment before it, its first line and, if one follows, the block of its output.
sub parts_of
{
	my ($page) = @_;
	my @parts = ({ text => '' });
	my ($block, $number) = (undef, 0);

	for my $line (split /^/m, slurp_file("$top/$page"))
	{
		$number++;
		if ($block)
		{
			if ($line =~ /^```\s*$/) { $block = undef; push @parts, { text => '' } }
			else { $block->{code} .= $line }
		}
		elsif ($line =~ /^```(\w*)\s*$/)
		{
			my $language = $1;
			my ($comments) = $parts[-1]{text} =~ /((?:<!--(?:(?!-->).)*-->\s*)*)\z/s;
			my %before = $comments =~ /<!-- (before|when|program|until|needs|in|not run): (.*?) -->/sg;

			$block = { language => $language, code => '', line => $number, before => \%before };
			# only space between the two
			my $of = @parts > 1 ? $parts[-2] : undef;
			$of->{shown} = $block if $language eq 'text' && $of && $parts[-1]{text} =~ /\A\s*\z/ && grep { $of->{language} eq $_ } @languages;
			push @parts, $block;
		}
		else { $parts[-1]{text} .= $line }
	}
	die "$page: a block does not end" if $block;
	return @parts;
}

# The output as pages show it: no numbers of rows, no empty lines at the end.
sub tidy
{
	my ($text) = @_;

	$text =~ s/^\(\d+ rows?\)\n//mg;
	$text =~ s/[ \t]+$//mg;
	$text =~ s/\n{2,}/\n\n/g;
	$text =~ s/\A\n+//;
	$text =~ s/\n+\z/\n/;
	return $text;
}

# What must be the same in two outputs.
sub essence
{
	my ($text) = @_;

	$text = tidy($text);
	$text =~ s/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/UUID/g;
	$text =~ s/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d(?::\d\d)?)?/TIME/g;
	$text =~ s/\b\d\d:\d\d:\d\d(?:\.\d+)?\b/TIME/g;
	$text =~ s/\b\d+(?:\.\d+)? (?:ms|s|min|h \d\d)(?!\w)/SPAN/g;
	$text =~ s/-{2,}/-/g;
	$text =~ s/[ \t]+/ /g;
	$text =~ s/^ | $//mg;
	return $text;
}

# A session of psql that goes on from block to block.
sub session
{
	my ($node, $database, $folder) = @_;
	my ($in, $out) = ('', '');
	my $timer = timeout(300);
	my $psql = start(
		[
			'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=0', '-v', 'SHOW_CONTEXT=never', '-P', 'pager=off', '-d', $node->connstr($database)
		],
		init => sub { chdir $folder or die "$folder: $!" },
		'<', \$in, '>&', \$out, $timer);
	my $marks = 0;

	return {
		run => sub {
			my ($sql) = @_;
			my $mark = sprintf '@@ %d @@', ++$marks;

			$out = '';
			$in .= "$sql\n\\echo $mark\n";
			$timer->start(300);
			pump $psql until $out =~ /^\Q$mark\E$/m;
			return $out =~ s/^\Q$mark\E\n//mr;
		},
		end => sub { $in .= "\\q\n"; finish $psql; }
	};
}

# Commands of the shell, with the server as the one that libpq finds, in a folder. With
# a query they are ended when it is true.
sub run_commands
{
	my ($node, $database, $folder, $code, $until) = @_;
	my $out = '';

	# a command that will be ended is the process itself
	$code = "exec $code" if defined $until && $code !~ /^exec /;
	write_file("$folder/commands", "cd $folder\n$code");
	# the command line is where the server's programs are, unless it was not installed
	local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => $database,
		LC_ALL => 'C.UTF-8', PATH => "$ENV{PATH}:$top/cli");
	my $shell = start([ 'bash', '-e', "$folder/commands" ], '<', \undef, '>&', \$out, timeout(120));
	if (defined $until)
	{
		my $dbh = connect_to($node, db => $database);

		ok(poll(sub { $shell->pump_nb; value($dbh, $until) }, 60), "it has come to: $until");
		$shell->signal('TERM');
	}
	finish $shell;
	$out .= 'exit status ' . ($? >> 8) . "\n" if $?;
	return $out;
}

sub write_file
{
	my ($file, $text) = @_;

	open my $handle, '>', $file or die "$file: $!";
	print $handle $text;
	close $handle or die "$file: $!";
	return;
}

my $psycopg = system('python3 -c "import psycopg" 2>/dev/null') == 0;

# Run the blocks of a page, those of some sections only if they are given.
sub try_page
{
	my ($node, $page, $sections) = @_;
	my $database = ($page =~ s{.*/|\.md$}{}gr) =~ tr/A-Z/a-z/r;
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my ($section, @parts) = ('', parts_of($page));

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	symlink $top, "$folder/outbox" or die "$folder/outbox: $!";
	my $session = session($node, $database, $folder);
	for my $part (@parts)
	{
		$section = $1 if !defined $part->{language} && $part->{text} =~ /.*^## ([^\n]*)$/ms;
		next if !defined $part->{language} || $sections && $section !~ $sections;

		my $name = "$page, line $part->{line}: $part->{language}";
		if (!grep { $part->{language} eq $_ } @languages)
		{
			next if $part->{language} =~ /^(?:text)?$/;
			ok(in_a_tutorial($part), "$name is in a tutorial");
			write_file("$folder/$part->{before}{program}", $part->{code}) if $part->{before}{program};
			next;
		}
		my $out;

		my %before = %{ $part->{before} };
		my $why = $before{'not run'}
		  // ($before{needs} && !has_extension($node, $before{needs}) ? "there is no $before{needs}" : undef)
		  // (!$psycopg && $part->{code} =~ /\bpython3\b/ ? 'there is no psycopg' : undef);

		if (defined $why)
		{
			note("$name is not run: $why");
			$not_run{$part->{language}}++ if $before{'not run'};
			next;
		}
		is($session->{run}->("$before{before};"), '', "$name: what comes before it") if defined $before{before};
		ok(poll(sub { value(connect_to($node, db => $database), $before{when}) }), "$name: $before{when}") if $before{when};
		if ($part->{language} eq 'python')
		{
			write_file("$folder/$before{program}", $part->{code});
			is(system('python3', '-B', '-m', 'py_compile', "$folder/$before{program}"), 0, $name);
			next;
		}
		elsif ($part->{language} eq 'bash') { $out = run_commands($node, $database, $folder, $part->{code}, $before{until}) }
		elsif ($before{in})
		{
			my $elsewhere = session($node, $before{in}, $folder);

			$out = $elsewhere->{run}->($part->{code});
			$elsewhere->{end}->();
		}
		else { $out = $session->{run}->($part->{code}) }

		if ($part->{shown})
		{
			is(essence($out), essence($part->{shown}{code}), $name);
			$part->{shown}{code} = tidy($out) if essence($out) ne essence($part->{shown}{code});
		}
		else
		{
			unlike($out, qr/^(?:psql:|ERROR|FATAL|WARNING|NOTICE|Traceback|exit status)/m, $name) or diag($out);
		}
	}
	$session->{end}->();
	return @parts;
}

# Is the block in one of the tutorials, up to empty lines?
sub in_a_tutorial
{
	my ($part) = @_;

	my $code = $part->{code} =~ s/^\n//mgr;

	return grep { index(slurp_file($_) =~ s/^\n//mgr, "```$part->{language}\n$code```\n") >= 0 } glob "$top/docs/tutorials/*.md";
}

# pg_cron, where it is installed
sub has_extension { my ($node, $name) = @_; return -e $node->config_data('--sharedir') . "/extension/$name.control" }

my $node = new_node('documents', bare => 1);

if (has_extension($node, 'pg_cron'))
{
	$node->append_conf('postgresql.conf', <<"C");
shared_preload_libraries = 'outbox,pg_cron'
cron.database_name = 'postgres'
cron.use_background_workers = on
C
	$node->restart;
	$node->safe_psql('postgres', 'CREATE EXTENSION pg_cron');
}

for my $page (@pages)
{
	my @parts = try_page($node, $page);

	if (my $folder = $ENV{OUTBOX_DOCUMENTS})
	{
		my $file = "$folder/" . $page =~ s{.*/}{}r;

		write_file($file, join '', map { defined $_->{language} ? "```$_->{language}\n$_->{code}```\n" : $_->{text} } @parts);
	}
}
$node->stop;

# what a new user sees first holds without the library preloaded, too
my $plain = new_node('plain', bare => 1, preload => 0);
try_page($plain, 'README.md', qr/^Quick start/);

is($not_run{sql} // 0, 0, 'all blocks of SQL are run');

done_testing();
