# src/tools/meta notices what is wrong with META.json, and with an archive: each fault is
# made in a clone, and reported. Takes the folder of the clone, which it changes.

use strict;
use warnings;
use JSON::PP;
use Test::More;

my $top = shift @ARGV or die "usage: meta.pl FOLDER\n";
chdir $top or die "$top: $!\n";
$ENV{"GIT_${_}_NAME"} = $ENV{"GIT_${_}_EMAIL"} = 'test' for qw(AUTHOR COMMITTER);

sub slurp
{
	my ($file) = @_;
	open my $handle, '<', $file or die "$file: $!\n";
	local $/;
	return scalar <$handle>;
}

sub spew
{
	my ($file, $text) = @_;
	open my $handle, '>', $file or die "$file: $!\n";
	print $handle $text;
	close $handle or die "$file: $!\n";
	return;
}

my $json = JSON::PP->new->canonical;
my $original = slurp('META.json');
my $control = slurp('outbox.control');
my ($version) = $control =~ /^default_version = '(.*)'/m;
my $name = "outbox-$version";

is(`src/tools/meta`, '', 'META.json keeps to the specification');

# Edits of META.json, with what is reported.
my @faults = (
	(map {
		my $field = $_;
		[ "META.json: has no $field", sub { delete $_[0]{$field} } ]
	} qw(name version abstract maintainer license provides meta-spec)),
	[ 'META.json/name: must be two characters or more, without spaces and slashes', sub { $_[0]{name} = 'out box' } ],
	[ 'META.json/version: must be a semantic version', sub { $_[0]{version} = '0.1' } ],
	[ 'META.json/version: must be a semantic version', sub { $_[0]{version} = '0.01.0' } ],
	[ 'META.json/abstract: must be a string that is not empty', sub { $_[0]{abstract} = '' } ],
	[ 'META.json/abstract: must be a string that is not empty', sub { $_[0]{abstract} = 5 } ],
	[ 'META.json/description: must be a string that is not empty', sub { $_[0]{description} = ['a'] } ],
	[ 'META.json/maintainer: must be a list that is not empty', sub { $_[0]{maintainer} = [] } ],
	[ 'META.json/maintainer/1: is there twice', sub { $_[0]{maintainer} = [ 'a', 'a' ] } ],
	[ 'META.json/license: must be a licence of the list', sub { $_[0]{license} = 'PostgreSQL' } ],
	[ 'META.json/license/PostgreSQL: must be a URL', sub { $_[0]{license} = { PostgreSQL => 'postgresql' } } ],
	[ 'META.json/release_status: must be stable, testing or unstable', sub { $_[0]{release_status} = 'beta' } ],
	[ 'META.json/tags: must be a list that is not empty', sub { $_[0]{tags} = 'queue' } ],
	[ 'META.json/tags/0: must be 2 to 255 characters without slashes', sub { $_[0]{tags}[0] = 'a/b' } ],
	[ 'META.json/tags/1: is there twice', sub { $_[0]{tags}[1] = $_[0]{tags}[0] } ],
	[ 'META.json/meta-spec: has no version', sub { $_[0]{'meta-spec'} = { url => 'https://pgxn.org/meta/spec.txt' } } ],
	[ 'META.json/meta-spec/version: must be 1.0.x', sub { $_[0]{'meta-spec'}{version} = '2.0.0' } ],
	[ 'META.json/meta-spec/url: must be that of the specification', sub { $_[0]{'meta-spec'}{url} = 'spec.txt' } ],
	[ 'META.json/prereqs/running: is no field of the specification', sub { $_[0]{prereqs}{running} = {} } ],
	[ 'META.json/prereqs/runtime/needs: is no field of the specification', sub { $_[0]{prereqs}{runtime}{needs} = {} } ],
	[ 'META.json/prereqs/runtime/requires/PostgreSQL: must be a range of semantic versions', sub { $_[0]{prereqs}{runtime}{requires}{PostgreSQL} = '15' } ],
	[ 'META.json/prereqs/runtime/requires/p g: must be two characters or more, without spaces and slashes', sub { $_[0]{prereqs}{runtime}{requires}{'p g'} = '1.0.0' } ],
	[ 'META.json/no_index/directory/0: must be a path relative to the top folder', sub { $_[0]{no_index}{directory}[0] = '/src' } ],
	[ 'META.json/resources/homepage: must be a URL', sub { $_[0]{resources} = { homepage => 'here' } } ],
	[ 'META.json/colour: is no field of the specification', sub { $_[0]{colour} = 'red' } ],
	[ 'META.json/provides: must be an object that is not empty', sub { $_[0]{provides} = {} } ],
	[ 'META.json/provides/outbox: has no file', sub { delete $_[0]{provides}{outbox}{file} } ],
	[ 'META.json/provides/outbox/docfile: must be a path relative to the top folder', sub { $_[0]{provides}{outbox}{docfile} = '../README.md' } ],
	[ 'META.json/provides/outbox: there is no README.txt', sub { $_[0]{provides}{outbox}{docfile} = 'README.txt' } ],
	[ "META.json/provides/inbox: the version is $version, that of inbox.control none", sub { $_[0]{provides}{inbox} = $_[0]{provides}{outbox} } ],
	[ "META.json/provides/outbox: the version is 9.9.9, that of outbox.control $version", sub { $_[0]{provides}{outbox}{version} = '9.9.9' } ],
	[ "META.json/provides/outbox: the version is $version, that of the release 9.9.9", sub { $_[0]{version} = '9.9.9' } ]);

for my $fault (@faults)
{
	my ($report, $edit) = @$fault;
	my $meta = $json->decode($original);

	$edit->($meta);
	spew('META.json', $json->encode($meta));
	my $before = $json->encode($json->decode($original)) eq $json->encode($meta);
	ok(!$before && (grep { $_ eq $report } split /\n/, `src/tools/meta`), $report);
}

# What must be allowed.
for my $edit (
	[ 'several maintainers and licences', sub { $_[0]{maintainer} = [ 'a', 'b' ]; $_[0]{license} = [ 'postgresql', 'mit' ] } ],
	[ 'a licence of any other name', sub { $_[0]{license} = { 'Our own' => 'https://example.org/licence' } } ],
	[ 'fields of our own', sub { $_[0]{x_ours} = { any => [5] }; $_[0]{provides}{outbox}{X_more} = 1 } ],
	[ 'ranges of versions, and any version', sub { $_[0]{prereqs}{build}{requires} = { a2 => '>= 1.2.0, != 1.5.0-rc1, < 2.0.0', b2 => 0, c2 => '0' } } ])
{
	my ($title, $change) = @$edit;
	my $meta = $json->decode($original);

	$change->($meta);
	spew('META.json', $json->encode($meta));
	is(`src/tools/meta`, '', $title);
}
spew('META.json', '{ "name": ');
like(`src/tools/meta`, qr/^META\.json: is no JSON: /, 'META.json must be JSON');
unlink 'META.json' or die;
is(`src/tools/meta`, "there is no META.json\n", 'META.json must be there');
spew('META.json', $original);
spew('outbox.control', $control =~ s/$version/7.7.7/r);
is(`src/tools/meta`, "META.json/provides/outbox: the version is $version, that of outbox.control 7.7.7\n", 'the control file decides');
spew('outbox.control', $control);

# Archives.
sub archived { return `rm -f *.zip; make -s dist && src/tools/meta $name.zip` }

sub commit
{
	system('rm -f *.zip; git add -Af . >/dev/null && git commit -qm test') == 0 or die "git: $?\n";
	return;
}

is(archived(), '', 'the archive holds what it must');
is(`mv $name.zip other.zip; src/tools/meta other.zip` =~ s/^.* is not in the folder other\n//mgr =~ s/^.* is not in the archive\n//mgr,
	"there is no META.json\n", 'an archive has all in the folder of its name');
is(`git archive --prefix=$name/ -o $name.zip HEAD README.md outbox.control META.json; src/tools/meta $name.zip | grep -c 'is not in the archive'` + 3,
	scalar(grep { !m{(?:^|/)\.} } split /\n/, `git ls-files`), 'each file that is missing in an archive is named');
spew('.gitattributes', '');
commit();
is(archived(), join('', map { "$_ is in the archive, but not for users\n" } grep { m{(?:^|/)\.} } sort split /\n/, `git ls-files`),
	'hidden files are not for users');
system('git reset -q --hard HEAD~1') == 0 or die;
spew('src/left.o', 'built');
commit();
is(archived(), "src/left.o is ignored by git\n", 'what was built does not belong there');

done_testing();
