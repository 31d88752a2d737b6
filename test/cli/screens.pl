# The command line on a terminal: what a person sees in tmux, at several sizes, and what
# the keys do. The commands themselves are tested by t/036_cli.pl.

use strict;
use warnings;
use utf8;
use Encode qw(decode encode);
use FindBin;
use lib "$FindBin::RealBin/../t";
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my ($bindir) = run_command([ 'pg_config', '--bindir' ]);
my ($program) = grep { -x $_ } "$bindir/outbox", "$FindBin::RealBin/../../cli/outbox";

plan skip_all => 'the command line was not built' if !$program;
plan skip_all => 'there is no tmux' if system('tmux -V >/dev/null 2>&1') != 0;

my $node = new_node('screens', workers => 0);
my $dbh = connect_to($node);
my $dir = PostgreSQL::Test::Utils::tempdir_short();

delete @ENV{qw(TMUX NO_COLOR PGAPPNAME)};
@ENV{qw(LC_ALL PGHOST PGPORT PGDATABASE PS1 PATH)} =
  ('C.UTF-8', $node->host, $node->port, 'postgres', '$ ', ($program =~ s{/outbox$}{}r) . ":$ENV{PATH}");

sub tmux
{
	my @arguments = @_;
	open my $pipe, '-|', 'tmux', '-S', "$dir/tmux", '-f', '/dev/null', @arguments or die $!;
	local $/;
	my $out = decode('UTF-8', scalar <$pipe> // '');
	close $pipe;
	return $out;
}

sub screen { return tmux('capture-pane', '-p', '-t', 't') }

# The screen, when it looks like this; else a failed test.
sub sees
{
	my ($pattern, $name) = @_;
	my $seen;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(poll(sub { $seen = screen(); $seen =~ $pattern }, 20), $name) or diag(encode('UTF-8', "$pattern is not on the screen:\n$seen"));
	return $seen;
}

sub keys_sent { return tmux('send-keys', '-t', 't', @_) }
sub type { keys_sent('-l', $_[0]); return keys_sent('Enter') }

# Make the terminal so wide, and wait until the shell sees it.
sub resize
{
	my ($columns) = @_;

	tmux('resize-window', '-t', 't', '-x', $columns, '-y', 24);
	poll(sub { type('clear; stty size'); poll(sub { screen() =~ /^24 $columns$/m }, 1) }, 20);
	return;
}

# A screen is as high as the terminal, and no line is wider.
sub fits
{
	my ($columns, $rows, $name) = @_;
	my $seen;

	tmux('resize-window', '-t', 't', '-x', $columns, '-y', $rows);
	# the last line has the keys, as far as there is room for them
	my $last = substr('q quit  s sort', 0, $columns);
	poll(sub {
		$seen = screen();
		my @lines = split /\n/, $seen;
		@lines == $rows && index($lines[-1], $last) == 0 && $lines[0] =~ /^outbox/;
	}, 20);
	my @lines = split /\n/, $seen;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar @lines, $rows, "$name: as high as the terminal") or diag(encode('UTF-8', $seen));
	is((grep { length > $columns } @lines), 0, "$name: not wider");
	like($lines[0], qr/^outbox/, "$name: its first line");
	is(index($lines[-1], $last), 0, "$name: the keys") or diag(encode('UTF-8', $seen));
	return @lines;
}

tmux('new-session', '-d', '-s', 't', '-x', 80, '-y', 24, 'bash --norc --noprofile');
$dbh->do("SELECT outbox.enqueue_many('order.placed', array_fill('x'::text, '{1234}'))");
$dbh->do("SELECT outbox.enqueue_many('mail', array_fill('x'::text, '{20}'), due_time => now() + interval '1 hour')");
$dbh->do("SELECT outbox.enqueue_many('search.index', array_fill('x'::text, '{5}'), 'crm')");
$dbh->do("SELECT outbox.enqueue(E'evil\\x1b[2J\\x1b]0;title\\x07', 'x')");
$dbh->do("SELECT outbox.fail(?, array_agg(id), 'bad') FROM outbox.claim(?, batch_size => 3, topics => '{order.placed}')", undef, owner(1), owner(1));
$dbh->do("SET application_name = 'indexer'");
$dbh->do("SELECT count(*) FROM outbox.claim(?, 600, 2, topics => '{order.placed}')", undef, owner(2));

# --- top

type('outbox top -i 500ms');
my $first = sees(qr/^order\.placed +1,229/m, 'top shows topics');
like($first, qr/^ready +1,23\d .*leased +2 +delayed +20 +dead +3$/m, '... and totals');
like($first, qr/^crm\/search\.index +5/m, '... with their namespaces');
like($first, qr/^evil\\x1b\[2J/m, '... and what would be an escape is none');
like($first, qr/^indexer .* 2 /m, '... and who works');
like($first, qr/^✗ dead messages: 3  order\.placed: 3$/m, '... and what is wrong');
is(length((split /\n/, $first)[0]), 80, 'the clock is at the right edge');
sees(qr/[▁-█]{5}/, 'the depth is drawn');
fits(80, 24, '80x24');
my @wide = fits(132, 50, '132x50');
ok((grep { /^TOPIC.*READY.*DEPTH.*LEASED.*DELAYED.*DEAD.*OLDEST/ } @wide), '132x50: all columns');
fits(60, 16, '60x16');
fits(40, 10, '40x10');
fits(20, 5, '20x5');
fits(300, 100, '300x100');
my @small = fits(80, 24, 'and back');
is((grep { /^WORKER/ } @small), 1, 'and back: who works');

keys_sent('s');
sees(qr/sort: oldest/, 's: the next order');
# there is one order more where the extension counts
poll(sub { my ($sort) = screen() =~ /sort: (\w+)/; return 1 if $sort eq 'name'; keys_sent('s'); poll(sub { screen() !~ /sort: $sort/ }, 5); 0 });
my $by_name = sees(qr/sort: name/, '... and so on');
like($by_name, qr/TOPIC▾.*\ncrm.*\nevil.*\nmail.*\norder/, '... the topics are in it');
keys_sent('r');
sees(qr/TOPIC▴.*\norder.*\nmail.*\nevil.*\ncrm/, 'r: the other way round');
keys_sent('w');
sees(qr/\A(?!.*^WORKER)/ms, 'w: without who works');
keys_sent('?');
sees(qr/^q  Ctrl-C +quit\n.*READY can be claimed now/ms, '?: the help');
keys_sent('?');
keys_sent('/');
keys_sent('-l', 'serch');
keys_sent('BSpace', 'BSpace', 'BSpace');
keys_sent('-l', 'arch');
sees(qr/^topics with: search/m, '/: what is typed');
my $found = sees(qr/\A(?!.*order\.placed +1).*crm\/search/s, '... is looked for');
keys_sent('Enter');
sees(qr/\/ find: search/, '... and stays');
keys_sent('Escape');
sees(qr/order\.placed +1,229/, '... until Escape');
keys_sent('p');
my $paused = sees(qr/paused/, 'p: paused');
my ($clock) = $paused =~ /(\d\d:\d\d:\d\d)/;
$dbh->do("SELECT outbox.enqueue('while.paused', 'x')");
keys_sent('w');
like(sees(qr/^WORKER/m, '... it draws still'), qr/\Q$clock\E/, '... but nothing new');
unlike(screen(), qr/while\.paused/, '... at all');
keys_sent('Space');
sees(qr/^while\.paused/m, 'space: and goes on');
keys_sent('+');
sees(qr/every 0\.5 s/, '+: not more often than twice a second');
keys_sent('-', '-');
sees(qr/every 2 s/, '-: less often');
keys_sent('C-z');
sees(qr/Stopped .*outbox top/, 'Ctrl-Z: the shell');
type('fg');
sees(qr/^TOPIC/m, '... and back');
keys_sent('q');
my $after = sees(qr/\$ +outbox top -i 500ms\n/, 'q: the shell is back, with what it showed before');
unlike($after, qr/^TOPIC/m, '... and nothing of the screen');
type('echo it ech""oes');
sees(qr/\$ echo it ech""oes\nit echoes$/m, '... and the terminal is as it was');
type('clear; outbox top');
sees(qr/^TOPIC/m, 'again');
keys_sent('C-c');
sees(qr/\A(?!.*^TOPIC)/ms, 'Ctrl-C ends it, too');

# --- tables that fit, colours

type('clear');
resize(40);
$dbh->do("SELECT outbox.enqueue('a.topic.with.a.very.long.name.that.does.not.fit.at.all', 'x')");
type('clear; outbox peek -n 30 a.topic.with.a.very.long.name.that.does.not.fit.at.all');
my $table = sees(qr/^ID .*PAY/m, 'a table on a narrow terminal is cut');
like($table, qr/^\d+ +a\S*… +ready +0 .*x\n\S*\$/m, '... and no line is broken');
resize(80);
type('clear; outbox topics');
sees(qr/^order\.placed/m, 'topics');
like(tmux('capture-pane', '-p', '-e', '-t', 't'), qr/\e\[1m(?:\e\[\d+m)*TOPIC/, '... in colours');
type('clear; NO_COLOR=1 outbox topics');
sees(qr/^order\.placed/m, 'topics');
unlike(tmux('capture-pane', '-p', '-e', '-t', 't'), qr/\e\[1m/, '... without, where NO_COLOR says so');
type('clear; outbox show --payload $(outbox enqueue ansi "$(printf \'\\033[7mX\')")');
sees(qr/^\\x1b\[7mX$/m, 'a payload on a terminal is escaped');

# --- questions and progress

type('clear; outbox dead purge order.placed');
sees(qr/^Destroy 3 dead messages of order\.placed for good\? \[y\/N\]/m, 'what destroys is asked for');
type('n');
sees(qr/^Nothing was changed\.$/m, '... no');
is(count_of($dbh, 'outbox.dead_letters'), 3, '... nothing is gone');
type('clear; outbox dead purge order.placed');
sees(qr/\[y\/N\]/, 'again');
type('y');
sees(qr/^purged 3 messages$/m, '... yes');
is(count_of($dbh, 'outbox.dead_letters'), 0, '... they are gone');
type('clear; outbox pause mail');
sees(qr/^Stop the delivery of mail\? \[y\/N\]/m, 'a change is asked for');
type('y');
sees(qr/^paused mail$/m, '... and done');
$dbh->do("SELECT outbox.fail(?, array_agg(id)) FROM outbox.claim(?, batch_size => 2000, topics => '{order.placed}')", undef, owner(1), owner(1));
type('clear; outbox dead redrive order.placed --batch 1 --yes');
sees(qr/^redriven ━*─* [\d,]+ of 1,229/m, 'a progress bar');
sees(qr/^redriven 1,229 messages$/m, '... that goes away');

# --- a worker on a terminal

$dbh->do("SELECT outbox.enqueue('slow', 'x')");
type("clear; outbox work slow -v --exec 'echo started; while [ ! -e $dir/go ]; do sleep 0.05; done'");
sees(qr/^started$/m, 'a worker');
keys_sent('C-c');
is(value($dbh, "SELECT count(*) FROM outbox.leases WHERE topic = 'slow'"), 1, 'Ctrl-C does not end its command');
append_to_file("$dir/go", '');
sees(qr/^(?:\^C)?slow \d+: acked after .*\n1 acked, 0 nacked, 0 failed, 0 released, 0 lost$/m, '... which is acknowledged');
type('clear; outbox tail slow -n 1');
sees(qr/^\d\d:\d\d:\d\d +\d+  done +slow  x$/m, 'tail');
$dbh->do("SELECT outbox.enqueue('slow', repeat('y', 500))");
like(sees(qr/ready +slow  y+/, '... follows'), qr/y…$/m, '... and cuts what is long');
keys_sent('C-c');

# --- completion in zsh

$dbh->do('SELECT outbox.enqueue(?, ?)', undef, "hostile \$(touch $dir/touched)", 'x');
type('zsh -f');
type("PS1='zsh> '; fpath=($FindBin::RealBin/../../cli/completion \$fpath); autoload -Uz compinit; compinit -u -d $dir/dump; clear");
sees(qr/\Azsh> *$/m, 'zsh');
for ([ 'outbox pee', qr/^zsh> outbox peek *$/m, 'completes a command' ], [ 'outbox show --pay', qr/^zsh> outbox show --payload *$/m, '... options' ],
	[ 'outbox pause slo', qr/^zsh> outbox pause slow *$/m, '... topics' ], [ 'outbox -d postgres pause slo', qr/^zsh> outbox -d postgres pause slow *$/m, '... of the database that was given' ],
	[ 'outbox -p 1 pause slo', qr/^zsh> outbox -p 1 pause slo *$/m, '... and none where there is no server' ],
	[ 'outbox pause host', qr/^zsh> outbox pause hostile\\ \\\$\\\(touch/m, '... quoted, whatever they are' ])
{
	my ($typed, $pattern, $name) = @$_;

	keys_sent('-l', $typed);
	keys_sent('Tab');
	sees($pattern, $name);
	# the line is given up
	keys_sent('C-c');
	type('clear');
	poll(sub { screen() =~ /\Azsh> *\n\s*\z/ });
}
ok(!-e "$dir/touched", '... and nothing of them is run');
type('exit');
type('exit');
ok(poll(sub { tmux('list-sessions') eq '' }), 'the end');
tmux('kill-server');
done_testing();
