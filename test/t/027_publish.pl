# Each subscription gets what is published, once.
#
# Sessions subscribe, change and end subscriptions, publish, replay, deliver what is
# left to the background, claim and settle, in interleaved transactions: one call
# after the other, so that it is known what was committed when each began. A model
# says what each subscription must get. At the end, when all transactions have ended
# and there is no work left for the background, each must have got exactly that.
#
# OUTBOX_SEED is the first seed, OUTBOX_SEEDS the number of seeds, OUTBOX_STEPS the
# number of steps with each.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use Test::More;

my $first_seed = $ENV{OUTBOX_SEED} || int(rand(1_000_000));
my $nseeds = $ENV{OUTBOX_SEEDS} || 8 * scale();
my $steps = $ENV{OUTBOX_STEPS} || 400;
my $nsessions = 5;
my @names = map { "s$_" } 0 .. 13;
my @topics = qw(a a.b a.c b.c d.e.f);
my @patterns = (['#'], ['a.*'], ['a.#'], [ 'b.c', 'd.#' ], ['*.c'], ['a'], [ '#.f', 'a' ], ['#']);
my @streams = map { "53535353-0000-4000-8000-00000000000$_" } 1 .. 3;
my $node = new_node('publish', workers => 0, conf => "outbox.publish_retention = '1 d'");

my (@sessions, @prepared, %subscribed, %keys, %publications, @marks, @all_subscriptions, %made, $admin);
my ($step, $nprepared, $npublished, $nids, $calls) = (0, 0, 0, 0, 0);
my %done;

# ---- the model

sub matches
{
	my ($subscription, $publication) = @_;

	return 0 if $subscription->{filter} && ($publication->{n} // '') ne $subscription->{filter};
	for my $pattern (@{ $subscription->{patterns} })
	{
		my $regex = join '\.', map { $_ eq '*' ? '[^.]*' : $_ } split /\./, $pattern;

		# one or more segments, or none
		$regex =~ s/#\\\.|\\\.#|#/\0/g;
		$regex =~ s/^\0(?=.)/(?:.*\\.)?/;
		$regex =~ s/(?<=.)\0$/(?:\\..*)?/;
		$regex =~ s/^\0$/.*/;
		return 1 if $publication->{topic} =~ /^$regex$/;
	}
	return 0;
}

# What a session sees: what is committed, and what it has done itself.
sub view
{
	my ($session, $committed, $kind) = @_;
	my %view = %$committed;

	for my $event (grep { $_->{kind} eq $kind } @{ $session->{events} })
	{
		if (defined $event->{value}) { $view{ $event->{key} } = $event->{value} }
		else { delete $view{ $event->{key} } }
	}
	return \%view;
}

# Something happens in a transaction; it counts when that is committed.
sub note_event
{
	my ($session, %event) = @_;

	push @{ $session->{events} }, \%event;
	commit_events($session->{events}, splice @{ $session->{events} }) if !$session->{open};
	return;
}

sub commit_events
{
	my (undef, @events) = @_;

	for my $event (@events)
	{
		my ($kind, $key, $value) = @{$event}{qw(kind key value)};

		$done{$kind}++;
		if ($kind eq 'subscription')
		{
			if (defined $value)
			{
				push @all_subscriptions, $value->{born} if !$value->{born}{is_known}++;
				$subscribed{$key} = $value;
			}
			else
			{
				@{ $subscribed{$key}{born} }{qw(gone drops)} = (1, $event->{drops});
				delete $subscribed{$key};
			}
		}
		elsif ($kind eq 'key') { $keys{$key} = $value }
		elsif ($kind eq 'publication')
		{
			$publications{$key} = $value;
		}
		elsif ($kind eq 'replay')
		{
			$event->{born}{replayed}{$_}++ for @{$value};
			$event->{born}{is_replayed} = 1;
		}
		elsif ($kind eq 'got')
		{
			push @{ $event->{born}{got} }, $key;
		}
	}
	return;
}

# ---- what is done

sub random_of { return $_[ rand @_ ] }

sub is_frozen
{
	my ($dbh, $subscription) = @_;

	# a replay goes by the topics of its own time
	return 1 if grep { $_->{kind} eq 'replay' } map { @{ $_->{events} } } @sessions, @prepared;
	return value($dbh, 'SELECT count(*) FROM outbox.replays WHERE subscriber = ?', $subscription->{id});
}

sub subscribe
{
	my ($session, $name) = @_;
	my $dbh = $session->{dbh};
	my $now = view($session, \%subscribed, 'subscription')->{$name};
	my $patterns = random_of(@patterns);
	my $filter = rand() < 0.25 ? random_of(1, 2) : undef;
	my $mark = !$now && rand() < 0.4 ? random_of(@marks) : undef;

	return if $now && is_frozen($dbh, $now);
	# some other transaction may be at it
	$dbh->do('SELECT outbox.subscribe(?, ?, filter => ?, start_at => ?)', undef, $name, $patterns,
		$filter && "{\"n\": $filter}", $mark && $mark->{at});
	my $id = value($dbh, 'SELECT id FROM outbox.subscribers WHERE subscription = ? AND state < 2', $name);
	my %subscription = (name => $name, patterns => $patterns, filter => $filter, id => $id);

	if ($now && $now->{id} == $id) { $subscription{born} = $now->{born} }
	else
	{
		$subscription{born} = { %subscription, number => ++$calls, start => $mark && $mark->{step} };
	}
	note_event($session, kind => 'subscription', key => $name, value => \%subscription);
	return;
}

sub unsubscribe
{
	my ($session, $name) = @_;
	my $now = view($session, \%subscribed, 'subscription')->{$name};
	my $drops = rand() < 0.3 ? 1 : 0;
	my $gone = value($session->{dbh}, 'SELECT outbox.unsubscribe(?, drop_messages => ?)::int', $name, $drops);

	# one that an older snapshot does not see stays
	die "unsubscribe of $name was $gone" if $session->{mode} ne 'REPEATABLE READ' && $gone != ($now ? 1 : 0);
	note_event($session, kind => 'subscription', key => $name, value => undef, drops => $drops) if $gone;
	return;
}

# A publication that has been made: who gets it is known from now on.
sub note_publication
{
	my ($session, $id, %publication) = @_;
	my $view = view($session, \%subscribed, 'subscription');
	my %publication_now = (%publication, id => $id, step => $step, number => ++$calls,
		kept => $publication{topic} eq 'b.c' ? 0 : 1,
		knew => { map { $_->{id} => 1 } values %$view },
		live => { map { $_->{id} => 1 } grep { matches($_, \%publication) } values %$view });

	note_event($session, kind => 'publication', key => $id, value => \%publication_now);
	return scalar keys %{ $publication_now{live} };
}

sub publish
{
	my $session = shift;
	my $dbh = $session->{dbh};
	my $r = rand;
	my $topic = random_of(@topics);
	my $stream = rand() < 0.5 ? random_of(@streams) : undef;
	my $n = rand() < 0.4 ? random_of(1, 2) : undef;
	my $headers = $n && "{\"n\": $n, \"m\": 1}";
	my $payload = 'p' . ++$npublished . (rand() < 0.2 ? 'x' x 3000 : '');
	my %publication = (topic => $topic, n => $n, stream => $stream);

	if ($r < 0.15)
	{
		my @payloads = map { "$payload.$_" } 1 .. 1 + rand 3;
		my $ids = value($dbh, 'SELECT outbox.publish_many(?, ?, headers => ?, stream_id => ?)', $topic, \@payloads, $headers, $stream);

		note_publication($session, $ids->[$_], %publication, payload => $payloads[$_]) for 0 .. $#payloads;
	}
	elsif ($r < 0.3)
	{
		my @made = map { { %publication, topic => random_of(@topics), stream => rand() < 0.5 ? random_of(@streams) : undef, payload => "$payload.$_" } } 1 .. 1 + rand 5;
		my $json = join ', ', map { sprintf '{"topic": "%s", "payload": "%s", "headers": %s, "stream_id": %s}', $_->{topic}, $_->{payload}, $headers // 'null', $_->{stream} ? "\"$_->{stream}\"" : 'null' } @made;

		for my $row ($dbh->selectall_array('SELECT ordinal, message_id, deliveries FROM outbox.publish_batch(?) ORDER BY 1', undef, "[$json]"))
		{
			my $n = note_publication($session, $row->[1], %{ $made[ $row->[0] - 1 ] });

			die "$n deliveries were expected, and $row->[2] were told" if $n != $row->[2];
		}
	}
	elsif ($r < 0.4)
	{
		my $key = random_of(qw(k1 k2 k3));
		my $holder = view($session, \%keys, 'key')->{"$topic/$key"};
		my $id = value($dbh, 'SELECT outbox.publish(?, ?, headers => ?, stream_id => ?, dedupe_key => ?, message_id => ?)',
			$topic, $payload, $headers, $stream, $key, rand() < 0.3 && $holder ? $holder : undef);

		if (defined $holder)
		{
			die "key $key of $topic is that of $holder, and $id got it" if $id ne $holder;
			return;
		}
		note_event($session, kind => 'key', key => "$topic/$key", value => $id);
		note_publication($session, $id, %publication, payload => $payload);
	}
	elsif ($r < 0.5)
	{
		my ($taken) = rand() < 0.3 ? grep { $_->{given} } values %publications : ();
		my $id = $taken ? $taken->{id} : sprintf '54545454-0000-4000-8000-%012d', ++$nids;
		my $state = sqlstate($dbh, 'SELECT outbox.publish(?, ?, headers => ?, stream_id => ?, message_id => ?)', $topic, $payload, $headers, $stream, $id);

		die "publication $id was made again: $state" if $taken && $state !~ /^(23505|55P03)$/;
		die $dbh->errstr . "\n" if $state;
		note_publication($session, $id, %publication, payload => $payload, given => 1);
	}
	else
	{
		my $later = !$stream && rand() < 0.1 ? '1 h' : undef;
		my $id = value($dbh, 'SELECT outbox.publish(?, ?, headers => ?, stream_id => ?, due_time => now() + ?::interval, priority => ?)',
			$topic, $payload, $headers, $stream, $later, $stream ? undef : random_of(undef, -2 .. 2));

		note_publication($session, $id, %publication, payload => $payload);
	}
	return;
}

# Once more: what is committed now, of those that are kept.
sub replay
{
	my ($session, $name) = @_;
	my $now = view($session, \%subscribed, 'subscription')->{$name} or return;
	my $mark = random_of(@marks);

	# its topics are those of the time of the delivery
	return if $session->{mode} eq 'REPEATABLE READ'
	  || grep { $_->{kind} eq 'subscription' && $_->{key} eq $name } map { @{ $_->{events} } } @sessions, @prepared;
	$session->{dbh}->do('SELECT outbox.replay(?, ?)', undef, $name, $mark->{at});
	note_event($session, kind => 'replay', key => $name, born => $now->{born},
		value => [ map { $_->{id} } grep { $_->{kept} && $_->{step} > $mark->{step} && matches($now, $_) } values %publications ]);
	return;
}

sub claim
{
	my ($session, $name) = @_;
	my $dbh = $session->{dbh};
	my $owner = owner(100 + $calls++);
	my $now = view($session, \%subscribed, 'subscription')->{$name};
	my @claimed;

	# it takes what its statement does not see
	return if $session->{mode} eq 'REPEATABLE READ';
	is_gone($dbh, $name, $owner) if !$now;
	@claimed = $dbh->selectall_array(<<'Q', undef, $owner, int(1 + rand 6), $name);
SELECT c.id, c.published_id, (SELECT q.subscriber FROM outbox.queue q WHERE q.id = c.id), c.payload, c.subscription
  FROM outbox.claim(?, 60, ?, subscription => ?, max_attempts => 100000) c
Q
	for (@claimed)
	{
		my ($publication) = view($session, \%publications, 'publication')->{ $_->[1] };

		die "$name got a message of another one" if $_->[2] != $now->{id} || $_->[4] ne $name;
		die "$name got what was not published" if !$publication;
		die "$name got a wrong payload" if $_->[3] ne $publication->{payload};
	}
	return if !@claimed;
	my @ids = map { $_->[0] } @claimed;
	my $r = rand;

	if ($r < 0.1) { $dbh->do('SELECT outbox.release(?, ?)', undef, $owner, \@ids) }
	elsif ($r < 0.2) { $dbh->do("SELECT outbox.nack(?, ?, 'e', '0', max_attempts => 100000)", undef, $owner, \@ids) }
	elsif ($r < 0.25) { $dbh->do('SELECT outbox.fail(?, ?)', undef, $owner, \@ids) }
	else { $dbh->do('SELECT outbox.ack(?, ?)', undef, $owner, \@ids) }
	my %left = map { $_->[0] => 1 } $dbh->selectall_array('SELECT id FROM outbox.queue WHERE id = ANY (?)', undef, \@ids);
	note_event($session, kind => 'got', key => $_->[1], born => $now->{born}) for grep { !$left{ $_->[0] } } @claimed;
	return;
}

# There can be no claim for it; the transaction has failed then.
sub is_gone
{
	my ($dbh, $name, $owner) = @_;
	my $state = sqlstate($dbh, 'SELECT id FROM outbox.claim(?, subscription => ?)', $owner, $name);

	die "a claim for $name ended with $state" if $state !~ /^(42704|55P03)$/;
	die "subscription does not exist\n";
}

sub go_on
{
	my ($session, $r) = @_;
	my $dbh = $session->{dbh};

	if ($r < 0.2)
	{
		return if @{ $session->{savepoints} } == 3;
		push @{ $session->{savepoints} }, scalar @{ $session->{events} };
		$dbh->do('SAVEPOINT s' . @{ $session->{savepoints} });
	}
	elsif ($r < 0.35) { roll_back($session) if @{ $session->{savepoints} } }
	elsif ($r < 0.45)
	{
		return if !@{ $session->{savepoints} };
		$dbh->do('RELEASE s' . @{ $session->{savepoints} });
		pop @{ $session->{savepoints} };
	}
	elsif ($r < 0.55 && @prepared < 3)
	{
		my $gid = 'p' . ++$nprepared;

		$dbh->do("PREPARE TRANSACTION '$gid'");
		push @prepared, { gid => $gid, events => [ splice @{ $session->{events} } ] };
		@$session{qw(open savepoints mode)} = (0, [], '');
	}
	else { end_transaction($session, $r < 0.87) }
	return;
}

sub end_transaction
{
	my ($session, $commits) = @_;
	my @events = splice @{ $session->{events} };

	@$session{qw(open savepoints mode)} = (0, [], '');
	$session->{dbh}->do($commits ? 'COMMIT' : 'ROLLBACK');
	commit_events(undef, @events) if $commits;
	return;
}

# To the last savepoint, or to the beginning.
sub roll_back
{
	my $session = shift;
	my $n = @{ $session->{savepoints} };

	return end_transaction($session, 0) if !$n;
	$session->{dbh}->do("ROLLBACK TO s$n");
	splice @{ $session->{events} }, $session->{savepoints}[-1];
	return;
}

sub end_prepared
{
	my $prepared = splice @prepared, int(rand @prepared), 1;
	my $commits = rand() < 0.6;

	$admin->do(($commits ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$prepared->{gid}'");
	commit_events(undef, @{ $prepared->{events} }) if $commits;
	return;
}

sub act
{
	my $session = shift;
	my $dbh = $session->{dbh};
	my $name = random_of(@names);
	my $r = rand;

	if (!$session->{open} && rand() < 0.3)
	{
		$session->{mode} = rand() < 0.15 ? 'REPEATABLE READ' : 'READ COMMITTED';
		$dbh->do("BEGIN ISOLATION LEVEL $session->{mode}");
		@$session{qw(open savepoints)} = (1, []);
	}
	elsif ($r < 0.12) { subscribe($session, $name) }
	elsif ($r < 0.15) { unsubscribe($session, $name) }
	elsif ($r < 0.42) { publish($session) }
	elsif ($r < 0.44) { replay($session, $name) }
	elsif ($r < 0.60) { $dbh->do('SELECT outbox._publish_step()') }
	elsif ($r < 0.61) { $dbh->do('SELECT outbox.run_maintenance()') }
	elsif ($r < 0.84) { claim($session, $name) }
	elsif ($session->{open}) { go_on($session, ($r - 0.84) / 0.16) }
	elsif (@prepared) { end_prepared() }
	elsif ($r > 0.95) { push @marks, { step => $step, at => value($admin, 'SELECT clock_timestamp()') } }
	return;
}

# ---- what must be so in the end

# How often a subscription must have got a publication.
sub expected
{
	my ($born, $publication) = @_;
	my $n = $born->{replayed}{ $publication->{id} } // 0;

	return $n + 1 if $publication->{live}{ $born->{id} };
	# published before it was there, or without knowing it
	$n++ if defined $born->{start} && $publication->{kept} && $publication->{step} > $born->{start}
	  && !$publication->{knew}{ $born->{id} } && matches($born, $publication);
	return $n;
}

sub check_subscription
{
	my ($born, $dead) = @_;
	my %got;
	my @wrong;

	$got{$_}++ for @{ $born->{got} };
	$got{ $_->[0] } += $_->[1]
	  for $admin->selectall_array('SELECT published_id, count(*) FROM outbox.queue WHERE subscriber = ? GROUP BY 1', undef, $born->{id});
	for my $publication (values %publications)
	{
		my $expected = expected($born, $publication);
		my $got = delete $got{ $publication->{id} } // 0;

		# what is gone has left nothing behind, and was not given more than that
		push @wrong, "$born->{name} ($born->{id}) got $publication->{id} ($publication->{topic}, step $publication->{step}) $got times instead of $expected"
		  if $born->{gone} ? $got > $expected : $got != $expected;
	}
	push @wrong, map { "$born->{name} got $_, which was not published" } keys %got;
	push @wrong, check_order($born);
	return @wrong;
}

# In each stream, what it got because it had subscribed comes in the order of the calls.
sub check_order
{
	my $born = shift;
	my %last;
	my @wrong;

	return if $born->{is_replayed};
	for my $publication (map { $publications{$_} // () } @{ $born->{got} })
	{
		next if !$publication->{stream};
		my $last = \$last{ $publication->{stream} };
		my $live = $publication->{live}{ $born->{id} };

		push @wrong, "$born->{name} got $publication->{id} after a later one" if $$last && $publication->{number} < $$last;
		$$last = $publication->{number} if $live;
	}
	return @wrong;
}

# What was left for one that is gone is among the dead, unless it was dropped.
sub check_dead
{
	my $name = shift;
	my @born = grep { $_->{name} eq $name } @all_subscriptions;
	my %dead = map { $_->[0] => $_->[1] } $admin->selectall_array(
		q{SELECT published_id, count(*) FROM outbox.dead WHERE subscription = ? AND last_error = 'unsubscribed' GROUP BY 1}, undef, $name);
	my @wrong;

	return if grep { $_->{drops} || $_->{is_replayed} || defined $_->{start} } @born;
	for my $publication (values %publications)
	{
		my $expected = grep { $_->{gone} && $publication->{live}{ $_->{id} } } @born;
		my $got = ($dead{ $publication->{id} } // 0) + grep { $_ eq $publication->{id} } map { @{ $_->{got} // [] } } grep { $_->{gone} } @born;

		push @wrong, "$got instead of $expected of $publication->{id} are left of $name" if $got != $expected;
	}
	return @wrong;
}

sub reset_all
{
	$admin = connect_to($node, settings => ["SET lock_timeout = '5s'"]);
	@sessions = map { { dbh => connect_to($node, settings => ["SET lock_timeout = '30ms'"]), open => 0, savepoints => [], events => [], mode => '' } } 1 .. $nsessions;
	$admin->do('TRUNCATE outbox.queue, outbox.dedupe, outbox.dead, outbox.archive, outbox.subscribers, outbox.publications, outbox.expansions, outbox.replays');
	(%subscribed, %keys, %publications, @all_subscriptions, @prepared) = ();
	%subscribed = %keys = %publications = ();
	@all_subscriptions = @prepared = ();
	@marks = ({ step => -1, at => '-infinity' });
	return;
}

sub run_seed
{
	my $seed = shift;
	my @wrong;

	srand($seed);
	reset_all();
	for my $i (1 .. $steps)
	{
		$step = $i;
		my $session = random_of(@sessions);
		next if eval { act($session); 1 };
		my $error = $@;

		if ($error !~ /lock timeout|could not serialize|transaction is aborted|message_id already exists|subscription does not exist/)
		{
			push @wrong, "step $step: $error";
			last;
		}
		$done{errors}++;
		roll_back($session) if $session->{open};
	}
	end_transaction($_, rand() < 0.7) for grep { $_->{open} } @sessions;
	end_prepared() while @prepared;
	# of claims whose end has failed
	$admin->do('SELECT outbox.release(owner_token) FROM (SELECT DISTINCT owner_token FROM outbox.queue WHERE status = 1) q');
	my $rounds = 0;
	$rounds++ while $rounds < 10000 && value($admin, 'SELECT outbox._publish_step()') > 0;
	# two in a row
	$rounds++ while $rounds < 10000 && value($admin, 'SELECT outbox._publish_step()') > 0;
	push @wrong, 'something is left to do' if value($admin, 'SELECT outbox._publishes_later()::int');
	push @wrong, map { check_subscription($_) } @all_subscriptions;
	push @wrong, map { check_dead($_) } @names;
	push @wrong, 'messages of subscriptions that are gone are left'
	  if count_of($admin, 'outbox.queue q WHERE NOT EXISTS (SELECT FROM outbox.subscribers s WHERE s.id = q.subscriber)');
	is_deeply([ splice @wrong, 0, 20 ], [], "seed $seed");
	nothing_stranded($admin, "seed $seed");
	$_->{dbh}->disconnect for @sessions;
	$admin->disconnect;
	return;
}

$node->safe_psql('postgres', q{SELECT outbox.configure_topic('b.c', publish_retention => '0')});
run_seed($_) for $first_seed .. $first_seed + $nseeds - 1;
note(join ', ', map { "$_ $done{$_}" } sort keys %done);
cmp_ok($done{$_} // 0, '>', $_ eq 'replay' ? 0 : $nseeds, "enough of each: $_") for qw(got key publication replay subscription);
check_indexes($node);
$node->stop;
done_testing();
