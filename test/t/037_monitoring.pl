# What an operator sees: the text of metrics() is read as strictly as the format
# demands, each fault that has an alert is brought about, the samples of depth are taken
# and removed, and what the dashboards ask is asked.
#
# src/tools/monitoring does the same with Prometheus, its exporters and promtool.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxTest qw(:DEFAULT claim);
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $top = "$FindBin::RealBin/../..";
my $node = new_node('monitoring', conf => <<'C');
outbox.discovery_interval = 1s
outbox.backoff_base = '1ms'
outbox.backoff_max = '2ms'
max_worker_processes = 16
C
my $dbh;

sub connect_again { $dbh = connect_to($node, settings => ['SET outbox.allow_superuser_handlers = on']); return }

# The first round of the worker takes a sample, and others come a minute later.
sub restart
{
	$dbh->disconnect;
	$node->restart;
	connect_again();
	return;
}

connect_again();

# ---- reading OpenMetrics

my $name = qr/[a-zA-Z_:][a-zA-Z0-9_:]*/;
my $number = qr/[+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|Inf|NaN)/;
my $label = qr/([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"/;
my %suffixes = (gauge => [''], counter => ['_total'], histogram => [qw(_bucket _sum _count)]);

# The families and samples of a text, and the faults that it has.
sub read_metrics
{
	my $text = shift;
	my (%families, @samples, %seen, $family, @faults);
	my $wrong = sub { push @faults, "$_[0]: $_"; };

	push @faults, 'there is no # EOF at the end' unless $text =~ s/# EOF\n\z//;
	push @faults, 'the last line does not end' unless $text =~ /\n\z/;
	for (split /\n/, $text)
	{
		if (/^# TYPE ($name) (\w+)$/)
		{
			$wrong->('a family comes twice') if $families{$1};
			$wrong->('unknown type') unless $suffixes{$2};
			$family = $families{$1} = { name => $1, type => $2, samples => [] };
		}
		elsif (/^# (UNIT|HELP) ($name) (\S.*)$/)
		{
			my ($key, $of, $value) = (lc $1, $2, $3);

			$wrong->('not after its type') if $of ne $family->{name} || @{ $family->{samples} };
			$wrong->('comes twice') if defined $family->{$key};
			$wrong->('a unit that the name does not have') if $key eq 'unit' && $of !~ /_\Q$value\E$/;
			$wrong->('a bad escape') if $value =~ /\\(?![\\n"])/;
			$family->{$key} = $value;
		}
		elsif (/^($name)(?:\{((?:$label)(?:,$label)*)\})? ($number)$/)
		{
			my ($metric, $labels, $value) = ($1, $2 // '', $+);
			my %labels;

			while ($labels =~ /$label/g)
			{
				my ($key, $content) = ($1, $2);

				$wrong->('a label comes twice') if exists $labels{$key};
				$content =~ s/\\([\\"n])/$1 eq 'n' ? "\n" : $1/ge;
				$labels{$key} = $content;
			}
			$wrong->('comes twice') if $seen{"$metric $labels"}++;
			$wrong->('not of its family') if !$family || !grep { $metric eq "$family->{name}$_" } @{ $suffixes{ $family->{type} } };
			push @samples, { metric => $metric, labels => \%labels, value => $value };
			push @{ $family->{samples} }, $samples[-1];
		}
		else { $wrong->('no line of the format') }
	}
	for my $it (values %families)
	{
		push @faults, "$it->{name} has no help" unless $it->{help};
		push @faults, "$it->{name} has a negative sample" if grep { $_->{value} < 0 } @{ $it->{samples} };
		push @faults, histogram_faults($it) if $it->{type} eq 'histogram';
	}
	return (\%families, \@samples, \@faults);
}

# Buckets ascend and are cumulative, and the last one is the count.
sub histogram_faults
{
	my $family = shift;
	my (%of, @faults);

	for my $sample (@{ $family->{samples} })
	{
		my %labels = %{ $sample->{labels} };
		my $le = delete $labels{le};
		my $key = join ',', map { "$_=$labels{$_}" } sort keys %labels;
		my $part = $sample->{metric} =~ s/.*_//r;

		if ($part eq 'bucket') { push @{ $of{$key}{buckets} }, [ $le, $sample->{value} ] }
		else { $of{$key}{$part} = $sample->{value} }
	}
	for my $key (sort keys %of)
	{
		my ($buckets, $last) = ($of{$key}{buckets} // [], [ '-1', 0 ]);

		for (@$buckets)
		{
			push @faults, "$family->{name} $key: bucket $_->[0] after $last->[0]" unless $_->[0] > $last->[0] && $_->[1] >= $last->[1];
			push @faults, "$family->{name} $key: $_->[0] is no float" unless $_->[0] =~ /\.|e|^\+Inf$/;
			$last = $_;
		}
		push @faults, "$family->{name} $key has no bucket +Inf" unless $last->[0] eq '+Inf';
		push @faults, "$family->{name} $key: the count is not that of +Inf" unless $last->[1] == ($of{$key}{count} // -1);
		push @faults, "$family->{name} $key has no sum" unless defined $of{$key}{sum};
	}
	return @faults;
}

sub metrics { return read_metrics(value($_[0] // $dbh, 'SELECT outbox.metrics()')) }

# The value of the metric with these labels.
sub sample
{
	my ($samples, $metric, %labels) = @_;
	my @found = grep { my $s = $_; $s->{metric} eq $metric && !grep { ($s->{labels}{$_} // '') ne $labels{$_} } keys %labels } @$samples;

	return @found == 1 ? $found[0]{value} : @found . ' samples';
}

# The alerts of this name: subject, value > threshold, since a time that is not in the future.
sub alerts
{
	my ($alert, $thresholds, $session) = @_;

	return ($session // $dbh)->selectall_array("SELECT * FROM outbox.alerts($thresholds) WHERE name = ?", { Slice => {} }, $alert);
}

my %fired;

sub fires
{
	my ($alert, $thresholds, $subject, $session) = @_;
	my @found;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	poll(sub { @found = grep { ($_->{subject} // '') =~ /$subject/ } alerts($alert, $thresholds, $session); scalar @found }, 30);
	if (!ok(@found, "$alert comes"))
	{
		diag(explain([ alerts($alert, $thresholds, $session) ]));
		return {};
	}
	$fired{$alert} = 1;
	my $row = $found[0];
	cmp_ok($row->{value}, '>', $row->{threshold}, "$alert: the value is beyond the threshold");
	ok($row->{message} && $row->{hint} && $row->{severity} =~ /^(warning|critical)$/, "$alert: says what is wrong, and what to do");
	return $row;
}

# As if the last sample were of a minute ago.
sub next_sample
{
	$dbh->do("UPDATE outbox.depth SET sampled_at = sampled_at - interval '1 min'");
	return value($dbh, 'SELECT outbox._sample_depth()');
}

subtest 'metrics' => sub {
	my ($families, $samples, $faults) = metrics();

	is_deeply($faults, [], 'with nothing in it, the text is valid');
	is_deeply([ alerts('', '') ], [], 'and there is no alert');
	$dbh->do('SELECT outbox.enqueue(?, ?)', undef, "odd \"\\ \n\x{7f}name", 'secret payload');
	$dbh->do("SELECT outbox.enqueue('mail', 'secret payload' || i, tenant_id => '7e7e7e7e-0000-4000-8000-00000000000a') FROM generate_series(1, 10) i");
	$dbh->do("SELECT outbox.subscribe('audit', '{news.#}'), outbox.publish('news.eu', 'secret payload'::text)");
	$dbh->do("SELECT outbox.schedule_timer('mail', 'secret payload', now() + interval '1 h')");
	my @ids = map { $_->[0] } $dbh->selectall_array("SELECT id FROM outbox.claim(?, topics => '{mail}', batch_size => 4)", undef, owner(1));
	$dbh->do('SELECT outbox.ack(?, ?)', undef, owner(1), [ @ids[ 0, 1 ] ]);
	$dbh->do('SELECT outbox.fail(?, ?)', undef, owner(1), [ $ids[2] ]);
	($families, $samples, $faults) = metrics();
	is_deeply($faults, [], 'section 15: metrics is valid OpenMetrics');
	is(sample($samples, 'outbox_topic_ready', topic => "odd \"\\ \n\x{7f}name"), 1, 'a topic with any name');
	is(join(' ', map { sample($samples, "outbox_topic_$_", topic => 'mail') } qw(ready leased dead delayed)), '6 1 1 0', 'what a topic has');
	is(sample($samples, 'outbox_topic_ready', topic => 'news.eu', subscription => 'audit', namespace => 'default'), 1, 'deliveries of a subscription');
	ok(poll(sub { sample((metrics())[1], 'outbox_store_delayed', kind => 'timer') == 1 }, 10), 'timers');
	is(join(' ', map { sample($samples, "outbox_${_}_total", kind => 'message', topic => 'mail') } qw(enqueued claimed acked failed died)), '10 4 2 1 1', 'what was done is counted');
	is(sample($samples, 'outbox_wait_seconds_count', kind => 'message', topic => 'mail'), 4, 'and how long it took until then');
	is(sample($samples, 'outbox_service_seconds_count', kind => 'message', topic => 'mail'), 3, 'and from then on');
	my $text = value($dbh, 'SELECT outbox.metrics()');
	unlike($text, qr/secret|7e7e7e7e|00000000-0000-4000/, 'section 15: metrics identifies no payload, tenant or owner');
	is_deeply([ sort map { "$_->[0] $_->[1]" } $dbh->selectall_array("SELECT metric, count(*) FROM outbox.metric_samples() GROUP BY 1") ],
		[ sort do { my %n; $n{ $_->{metric} }++ for @$samples; map { "$_ $n{$_}" } keys %n } ], 'metric_samples has the same');
	$dbh->begin_work;
	$dbh->do('SET TRANSACTION READ ONLY, ISOLATION LEVEL SERIALIZABLE');
	is_deeply((metrics())[2], [], 'in a read-only transaction');
	$dbh->commit;
};

subtest 'with many topics' => sub {
	$dbh->do("SELECT outbox.enqueue('t' || i, 'p') FROM generate_series(1, 300) i");
	$dbh->do('SET outbox.metrics_topics = 20');
	my ($families, $samples, $faults) = metrics();
	is_deeply($faults, [], 'the text is valid');
	my %topics = map { join('/', map { $_ // '' } @{ $_->{labels} }{qw(kind namespace topic subscription)}) => 1 } grep { $_->{metric} eq 'outbox_enqueued_total' } @$samples;
	# one row for the others of each kind
	cmp_ok(scalar(keys %topics), '<=', 20 + 4, 'section 15: at most metrics_topics topics have numbers of their own');
	is(sample($samples, 'outbox_topic_ready', topic => 'mail'), 6, 'among them those with the most messages');
	my $ready = 0;
	$ready += $_->{value} for grep { $_->{metric} eq 'outbox_topic_ready' } @$samples;
	is($ready, count_of($dbh, 'outbox.queue WHERE status = 0'), 'section 15: the others are summed as other');
	cmp_ok(scalar(@$samples), '<', 20 * 80 + 200, 'so there are not too many series');
	$dbh->do('SET outbox.metrics_topics = 0');
	is(sample((metrics())[1], 'outbox_topic_ready', topic => 'other'), $ready, 'none has its own');
	$dbh->do('RESET outbox.metrics_topics');
	$dbh->do("SELECT outbox.purge_topic('t' || i) FROM generate_series(1, 300) i");
};

subtest 'rights' => sub {
	$dbh->do('CREATE ROLE watcher LOGIN');
	$dbh->do('CREATE ROLE stranger LOGIN');
	my $watcher = connect_to($node, user => 'watcher');
	is_state($watcher, 'SELECT outbox.metrics()', '42501', 'no right at first');
	$dbh->do("SELECT outbox.grant_monitor('watcher'), outbox.grant_worker('stranger')");
	is_state(connect_to($node, user => 'stranger'), $_, '42501', "a worker may not: $_") for 'SELECT outbox.metrics()', 'SELECT * FROM outbox.metric_samples()', 'SELECT * FROM outbox.alerts()';
	is_deeply((metrics($watcher))[2], [], 'a monitor reads metrics');
	is_state($watcher, $_, '', "and $_") for 'SELECT * FROM outbox.alerts()', 'SELECT * FROM outbox.depth', 'SELECT * FROM outbox.metric_samples()';
};

subtest 'samples of depth' => sub {
	restart();
	ok(poll(sub { count_of($dbh, "outbox.depth WHERE topic = 'mail'") > 0 }, 90), 'section 15: the worker takes samples of depth');
	cmp_ok(sample((metrics())[1], 'outbox_worker_seen_age_seconds'), '<', 60, 'and is known to');
	$dbh->do('TRUNCATE outbox.depth');
	# two take turns
	my $other = connect_to($node);
	$dbh->begin_work;
	is(value($dbh, 'SELECT outbox._sample_depth()'), 3, 'a row for each topic');
	begin_call($other, 'SELECT outbox.run_maintenance()');
	$dbh->commit;
	end_call($other);
	is(value($dbh, 'SELECT count(DISTINCT sampled_at) FROM outbox.depth'), 1, 'section 15: there is one sample a minute');
	is(value($dbh, 'SELECT outbox._sample_depth()'), 0, 'another one in the same minute is none');
	is_deeply([ $dbh->selectrow_array("SELECT ready, leased, delayed, dead, subscription, enqueued, acked FROM outbox.depth WHERE topic = 'mail'") ], [ 6, 1, 0, 1, undef, 10, 2 ], 'what it says');
	cmp_ok(value($dbh, "SELECT extract(epoch FROM oldest_age) FROM outbox.depth WHERE topic = 'mail'"), '>', 0, 'how old the oldest one is');
	$dbh->do("SELECT outbox.purge_topic('mail', what => 'all')");
	$dbh->do("SELECT outbox.ack(?, (SELECT array_agg(id) FROM outbox.leases))", undef, owner(1));
	is(next_sample(), 3, 'a topic that has become empty');
	is(value($dbh, "SELECT ready + leased + delayed + dead FROM outbox.depth WHERE topic = 'mail' ORDER BY sampled_at DESC LIMIT 1"), 0, 'gets one more row');
	is(next_sample(), 2, 'and then no other');
	$dbh->do('SET outbox.metrics_topics = 1');
	is(next_sample(), 2, 'many topics are one row');
	is_deeply([ $dbh->selectrow_array('SELECT place, namespace, topic, ready FROM outbox.depth ORDER BY sampled_at DESC, place DESC LIMIT 1') ], [ 2, undef, undef, 1 ], 'which sums them');
	$dbh->do('RESET outbox.metrics_topics');
	$dbh->do("SET outbox.depth_retention = '0'");
	is(next_sample(), 0, 'with no retention none are taken');
	$dbh->do("SET outbox.depth_retention = '1 d'");
	$dbh->do("INSERT INTO outbox.depth SELECT now() - interval '1 d' - i * interval '1 s', 1, 'default', 'old', NULL, 1, 0, 0, 0, NULL, 0, 0, 0, 0 FROM generate_series(1, 6000) i");
	is(value($dbh, "SELECT outbox._cleanup_step('depth')"), 1, 'section 15: samples are kept for depth_retention');
	is(value($dbh, "SELECT outbox._cleanup_step('depth')"), 1, 'and the rest');
	is(count_of($dbh, "outbox.depth WHERE topic = 'old'"), 0, 'all of them');
	$dbh->do('RESET outbox.depth_retention');
};

subtest 'alerts' => sub {
	$dbh->do("SELECT outbox.purge_topic(topic, what => 'all') FROM outbox.topic_stats");
	$dbh->do('TRUNCATE outbox.queue, outbox.depth');
	is_deeply([ $dbh->selectall_array('SELECT name, subject, message FROM outbox.alerts()') ], [], 'there is none when all is well');

	$dbh->do("SELECT outbox.enqueue('slow', 'p')");
	my $row = fires('OutboxBacklogOld', "backlog_age => '10 ms'", 'default/slow');
	is_deeply([ alerts('OutboxBacklogOld', '') ], [], 'within the threshold there is none');
	$dbh->do("SELECT outbox.pause_topic('slow')");
	is_deeply([ alerts('OutboxBacklogOld', "backlog_age => '10 ms'") ], [], 'nor of a topic that is paused');
	$dbh->do("SELECT outbox.resume_topic('slow')");

	$dbh->do("SELECT outbox.fail(?, array_agg(id)) FROM outbox.claim(?, topics => '{slow}')", undef, (owner(2)) x 2);
	$row = fires('OutboxDeadMessages', '', 'default/slow');
	is($row->{value}, 1, 'how many are dead');
	is_deeply([ alerts('OutboxDeadMessages', 'dead_messages => 1') ], [], 'within the threshold there is none');

	$dbh->do("SELECT outbox.enqueue('crash', i::text) FROM generate_series(1, 12) i");
	value($dbh, 'SELECT outbox._sample_depth()');
	$dbh->do('SELECT count(*) FROM outbox.claim(?, 1, 100, topics => ?)', undef, owner(3), ['crash']);
	ok(poll(sub { count_of($dbh, "outbox.queue WHERE topic = 'crash' AND status = 0") == 12 }, 30), 'leases end, and the worker notices');
	next_sample();
	$row = fires('OutboxLeasesLost', '', 'default/crash');
	is($row->{value}, 12, 'how many leases were lost');
	is_deeply([ alerts('OutboxLeasesLost', 'leases_lost => 12') ], [], 'within the threshold there is none');
	$dbh->do("SELECT outbox.purge_topic('crash', what => 'all')");

	my $stream = '57575757-0000-4000-8000-000000000001';
	$dbh->do("SELECT outbox.enqueue('line', i::text, stream_id => ?) FROM generate_series(1, 3) i", undef, $stream);
	is_deeply([ alerts('OutboxStreamStuck', "stream_age => '0'") ], [], 'a stream that has not begun is not stuck');
	for (1 .. 3)
	{
		ok(poll(sub { value($dbh, "SELECT outbox.nack(?, array_agg(id), delay => '0') FROM outbox.claim(?, topics => '{line}')", (owner(4)) x 2) }, 10), 'its first message comes back');
	}
	$row = fires('OutboxStreamStuck', "stream_age => '0'", $stream);
	like($row->{message}, qr{default/line}, 'in which topic');
	is_deeply([ alerts('OutboxStreamStuck', '') ], [], 'within the threshold there is none');
	fires('OutboxProblem', '', 'failing messages');
	is(sample((metrics())[1], 'outbox_problem', component => 'failing messages'), 1, 'metrics have it, too');
	is(sample((metrics())[1], 'outbox_streams_stuck'), 1, 'and how many are stuck');
	$dbh->do("SELECT outbox.purge_topic('line', what => 'all')");

	my $join = value($dbh, "SELECT outbox.start_join('alert', 2)");
	fires('OutboxJoinOverdue', "join_age => '0'", $join);
	is_deeply([ alerts('OutboxJoinOverdue', '') ], [], 'within the threshold there is none');
	$dbh->do('SELECT outbox.cancel_join(?)', undef, $join);

	my $other = connect_to($node);
	$other->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
	$other->do('SELECT 1');
	fires('OutboxSnapshotOld', "snapshot_age => '10 ms'", '');
	is_deeply([ alerts('OutboxSnapshotOld', '') ], [], 'within the threshold there is none');
	$other->do('ROLLBACK');

	$dbh->do("SELECT outbox._make_partition(-2, now() - interval '30 days', '1 day')");
	fires('OutboxRetentionBehind', '', '');
	cmp_ok(sample((metrics())[1], 'outbox_retention_lag_seconds'), '>', 21 * 86400, 'for how long');
	$dbh->do('CALL outbox.maintain()');
	is_deeply([ alerts('OutboxRetentionBehind', '') ], [], 'until maintenance has run');

	# a sampler that fails
	$dbh->do('TRUNCATE outbox.depth');
	$dbh->do('ALTER TABLE outbox.depth RENAME ready TO gone');
	restart();
	fires('OutboxWorkerFailing', '', '^depth');
	is(value($dbh, "SELECT ok::text || ' ' || status FROM outbox.status() WHERE component = 'worker: depth'"), 'false failing', 'status() says so');
	$dbh->do('ALTER TABLE outbox.depth RENAME gone TO ready');
	ok(poll(sub { !alerts('OutboxWorkerFailing', '') }, 90), 'until it succeeds');

	$dbh->do("CREATE FUNCTION handle(outbox.message) RETURNS void LANGUAGE sql AS ''");
	$dbh->do("SELECT outbox.register_handler('handled', 'handle(outbox.message)')");
	$dbh->do('DROP FUNCTION handle(outbox.message)');
	fires('OutboxWorkerFailing', '', 'default/handled');
	is(sample((metrics())[1], 'outbox_handlers_failing'), 1, 'metrics have it, too');
	$dbh->do("SELECT outbox.unregister_handler('handled')");

	# publications that cannot be delivered
	$dbh->do(<<'Q');
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.topic = 'bad' THEN RAISE EXCEPTION 'refused'; END IF; RETURN NEW; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON outbox.queue FOR EACH ROW EXECUTE FUNCTION refuse();
SELECT outbox.subscribe('s' || i, '{bad}') FROM generate_series(1, 12) i;
SELECT outbox.publish('bad', 'p'::text);
Q
	fires('OutboxPublicationsFailing', '', '');
	my ($families, $samples) = metrics();
	is(sample($samples, 'outbox_publications_failing') . sample($samples, 'outbox_publications_pending'), '11', 'metrics have it, too');
	$dbh->do('DROP TRIGGER refuse ON outbox.queue');
	ok(poll(sub { !alerts('OutboxPublicationsFailing', '') }, 90), 'until they are');

	$node->safe_psql('postgres', "ALTER SYSTEM SET outbox.databases = ''");
	$node->reload;
	fires('OutboxWorkerMissing', '', '');
	is(sample((metrics())[1], 'outbox_worker_missing'), 1, 'metrics have it, too');
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET outbox.databases');
	$node->reload;
	ok(poll(sub { !alerts('OutboxWorkerMissing', '') }, 30), 'until it is served again');

	my $small = new_node('small', conf => 'outbox.lane_memory = 1', workers => 0);
	my $crowded = connect_to($small);
	$crowded->do("SELECT outbox.enqueue('t' || i, 'p') FROM generate_series(1, 2500) i");
	$crowded->do("SELECT count(*) FROM outbox.claim(?, 60, 1000)", undef, owner(1)) for 1 .. 3;
	fires('OutboxLaneMemoryFull', '', '', $crowded);
	$small->stop;
};

subtest 'the rules' => sub {
	my @rules = slurp_file("$top/monitoring/rules.yml") =~ /alert: (\w+)/g;
	my $runbooks = slurp_file("$top/docs/monitoring.md");

	# without an exporter there is nothing that could be down
	is_deeply([ sort keys %fired ], [ grep { $_ ne 'OutboxExporterDown' } sort @rules ], 'each alert for Prometheus was brought about as SQL');
	is_deeply([ grep { $runbooks !~ /^### $_$/m } @rules ], [], 'and has a runbook');
};

subtest 'dashboards' => sub {
	my $watcher = connect_to($node, user => 'watcher');
	my $n = 0;

	$dbh->do("SELECT outbox.enqueue('mail', 'p') FROM generate_series(1, 5)");
	$dbh->do("SELECT count(*) FROM outbox.claim(?, topics => '{mail}', batch_size => 2)", undef, owner(5));
	next_sample() for 1 .. 3;
	for my $file (glob "$top/monitoring/grafana/*/*.json")
	{
		my $dashboard = decode_json(slurp_file($file));
		my ($is_sql, $board) = $file =~ m{/(sql/)?(\w+)\.json$};

		is(scalar(grep { !@{ $_->{targets} } } @{ $dashboard->{panels} }), 0, "$file: each panel has a query");
		next if !$is_sql;
		for my $query (map { $_->{query} } grep { $_->{type} eq 'query' } @{ $dashboard->{templating}{list} })
		{
			is(sqlstate($watcher, $query), '', "$board: what a variable can be");
		}
		for my $panel (@{ $dashboard->{panels} })
		{
			for my $target (@{ $panel->{targets} })
			{
				my $query = $target->{rawSql} =~ s/\$__timeFilter\((\w+)\)/$1 BETWEEN now() - interval '1 h' AND now()/gr =~ s/\$topic/mail/gr;
				my $statement = $watcher->prepare($query);

				is(eval { $statement->execute; '' } // $@, '', "$board: $panel->{title}");
				is_deeply([ @{ $statement->{NAME} }[ 0 .. 2 ] ], [qw(time metric value)], "$board: $panel->{title} can be drawn") if $target->{format} eq 'time_series';
				$n++;
				$statement->finish;
			}
		}
	}
	cmp_ok($n, '>', 40, 'the queries of the dashboards can be run');
	cmp_ok(count_of($watcher, "outbox.depth WHERE topic = 'mail' AND ready = 3"), '>=', 3, 'on what there is');
	is(system("$top/monitoring/grafana/dashboards.py", '--check'), 0, 'the files are those that dashboards.py writes');
};

subtest 'without the library preloaded' => sub {
	my $plain = new_node('plain', preload => 0);
	my $here = connect_to($plain);

	is_deeply([ (metrics($here))[2], [ alerts('OutboxWorkerMissing', '', $here) ] ], [ [], [] ], 'metrics are valid, and nothing is missing');
	$here->do("SELECT outbox.enqueue('mail', 'p')");
	is(value($here, 'SELECT outbox.run_maintenance()'), 0, 'maintenance');
	is(count_of($here, "outbox.depth WHERE topic = 'mail' AND ready = 1"), 1, 'takes the samples');
	$here->do("UPDATE outbox.queue SET created_at = now() - interval '1 h'");
	$here->do("UPDATE outbox.depth SET sampled_at = now() - interval '1 h'");
	fires('OutboxWorkerMissing', '', '', $here);
	$here->do('CALL outbox.maintain()');
	is_deeply([ alerts('OutboxWorkerMissing', '', $here) ], [], 'which is missed when it does not run');
	$plain->stop;
};

$node->stop;
done_testing();
