#!/usr/bin/env python3
"""dashboards.py - write the dashboards for Grafana

    dashboards.py [--check]

Each is defined here once, by its panels, and written to prometheus/ and sql/ as Grafana
imports it. --check writes nothing, and fails if a file is not what it would write.
"""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
WIDTH, HEIGHT = 8, 8            # of a panel; the page is 24 wide

# A panel: title, unit, and its queries, with what the legend says of each; a table or a
# single number instead of lines is said by the kind.
OVERVIEW = [
    ('Alerts', 'stat', 'short', [('', 'sum(ALERTS{alertname=~"Outbox.+",alertstate="firing"}) or vector(0)')]),
    ('Oldest ready message', 'stat', 's', [('', 'max(outbox_topic_oldest_ready_age_seconds)')]),
    ('Workers', 'stat', 'short', [('running', 'max(outbox_workers_running)'), ('waiting', 'max(outbox_workers_waiting)'), ('failing', 'max(outbox_workers_failing)')]),
    ('Ready messages', 'timeseries', 'short', [('{{topic}} {{subscription}}', 'topk(10, outbox_topic_ready)')]),
    ('Age of the oldest ready message', 'timeseries', 's', [('{{topic}} {{subscription}}', 'topk(10, outbox_topic_oldest_ready_age_seconds)')]),
    ('Leased messages', 'timeseries', 'short', [('{{topic}} {{subscription}}', 'topk(10, outbox_topic_leased)')]),
    ('Rates', 'timeseries', 'ops', [
        ('enqueued', 'sum(rate(outbox_enqueued_total{kind="message"}[5m]))'),
        ('claimed', 'sum(rate(outbox_claimed_total{kind="message"}[5m]))'),
        ('done', 'sum(rate(outbox_acked_total{kind="message"}[5m]))')]),
    ('Failures', 'timeseries', 'ops', [
        ('retried', 'sum(rate(outbox_nacked_total[5m]))'),
        ('failed', 'sum(rate(outbox_failed_total[5m]))'),
        ('dead', 'sum(rate(outbox_died_total[5m]))'),
        ('expired', 'sum(rate(outbox_expired_total[5m]))'),
        ('leases lost', 'sum(rate(outbox_leases_lost_total[5m]))')]),
    ('Dead messages', 'timeseries', 'short', [('{{topic}} {{subscription}}', 'topk(10, outbox_topic_dead > 0)')]),
    ('Time until claimed', 'timeseries', 's', [
        (f'{p} %', f'histogram_quantile({p / 100}, sum by (le) (rate(outbox_wait_seconds_bucket{{kind="message"}}[5m])))')
        for p in (50, 95, 99)]),
    ('Time from claim to end', 'timeseries', 's', [
        (f'{p} %', f'histogram_quantile({p / 100}, sum by (le) (rate(outbox_service_seconds_bucket{{kind="message"}}[5m])))')
        for p in (50, 95, 99)]),
    ('Growing topics', 'table', 'short', [('', 'topk(10, delta(outbox_topic_ready[15m]) > 0)')]),
    ('Inbox, timers, runs of jobs', 'timeseries', 'short', [
        ('{{kind}} ready', 'outbox_store_ready'), ('{{kind}} delayed', 'outbox_store_delayed'), ('{{kind}} dead', 'outbox_store_dead')]),
    ('Retention, and the oldest snapshot', 'timeseries', 's', [
        ('retention is behind', 'outbox_retention_lag_seconds'), ('oldest snapshot', 'outbox_snapshot_age_seconds')]),
    ('Shared memory for lanes', 'timeseries', 'percentunit', [('in use', 'outbox_lane_memory_used / outbox_lane_memory_size')]),
    ('Problems in outbox.status()', 'table', 'short', [('', 'outbox_problem')]),
]

ONE = 'topic=~"$topic"'
TOPIC = [
    ('Ready', 'stat', 'short', [('', f'sum(outbox_topic_ready{{{ONE}}})')]),
    ('Oldest ready message', 'stat', 's', [('', f'max(outbox_topic_oldest_ready_age_seconds{{{ONE}}})')]),
    ('Dead', 'stat', 'short', [('', f'sum(outbox_topic_dead{{{ONE}}})')]),
    ('Messages', 'timeseries', 'short', [
        (f'{state} {{{{subscription}}}}', f'sum by (subscription) (outbox_topic_{state}{{{ONE}}})')
        for state in ('ready', 'leased', 'delayed', 'dead')]),
    ('Age of the oldest ready message', 'timeseries', 's', [
        ('{{namespace}} {{subscription}}', f'outbox_topic_oldest_ready_age_seconds{{{ONE}}}')]),
    ('Rates', 'timeseries', 'ops', [
        (name, f'sum(rate(outbox_{metric}_total{{kind="message",{ONE}}}[5m]))')
        for name, metric in (('enqueued', 'enqueued'), ('claimed', 'claimed'), ('done', 'acked'))]),
    ('Failures', 'timeseries', 'ops', [
        (name, f'sum(rate(outbox_{metric}_total{{kind="message",{ONE}}}[5m]))')
        for name, metric in (('retried', 'nacked'), ('failed', 'failed'), ('dead', 'died'), ('expired', 'expired'), ('leases lost', 'leases_lost'))]),
    ('Time until claimed', 'heatmap', 's', [
        ('{{le}}', f'sum by (le) (increase(outbox_wait_seconds_bucket{{kind="message",{ONE}}}[5m]))')]),
    ('Time from claim to end', 'heatmap', 's', [
        ('{{le}}', f'sum by (le) (increase(outbox_service_seconds_bucket{{kind="message",{ONE}}}[5m]))')]),
    ('Bytes enqueued', 'timeseries', 'Bps', [('', f'sum(rate(outbox_enqueued_bytes_total{{kind="message",{ONE}}}[5m]))')]),
]

JOINS = [
    ('Open joins', 'timeseries', 'short', [('open', 'outbox_joins_open')]),
    ('Longest time without a change', 'timeseries', 's', [('join', 'outbox_join_unchanged_age_seconds')]),
    ('Stuck streams', 'timeseries', 'short', [('stuck', 'outbox_streams_stuck')]),
    ('Age of the oldest message that holds up a stream', 'timeseries', 's', [('message', 'outbox_stream_stuck_age_seconds')]),
    ('Publications to deliver', 'timeseries', 'short', [('pending', 'outbox_publications_pending')]),
    ('Age of the oldest of them', 'timeseries', 's', [('publication', 'outbox_publications_pending_age_seconds')]),
    ('Delivery fails', 'timeseries', 'short', [('failing', 'outbox_publications_failing')]),
    ('Deliveries that wait', 'timeseries', 'short', [('{{subscription}}', 'sum by (subscription) (outbox_topic_ready{subscription!=""})')]),
]

# The same from SQL. A query for lines returns time, metric and value.
LATEST = '(SELECT max(sampled_at) FROM outbox.depth)'
NAME = "coalesce(topic, 'other') || coalesce(' ' || subscription, '') AS metric"


def over_time(value, where='true'):
    return (f'SELECT sampled_at AS time, {NAME}, {value} AS value FROM outbox.depth '
            f'WHERE $__timeFilter(sampled_at) AND place <= 10 AND {where} ORDER BY 1')


def rates(columns, where='true'):
    """Differences between samples, by the second; what counts from 0 again is left out."""
    return [(name, f"SELECT sampled_at AS time, '{name}' AS metric, "
                   f'sum(greatest(0, n) / seconds) AS value FROM (SELECT sampled_at, '
                   f'{column} - lag({column}) OVER topic AS n, extract(epoch FROM sampled_at - '
                   f'lag(sampled_at) OVER topic) AS seconds FROM outbox.depth '
                   f'WHERE $__timeFilter(sampled_at) AND {where} '
                   f'WINDOW topic AS (PARTITION BY namespace, topic, subscription ORDER BY sampled_at)) d '
                   f'WHERE seconds > 0 GROUP BY 1 ORDER BY 1')
            for name, column in columns]


SQL_OVERVIEW = [
    ('Alerts', 'table', 'short', [('', 'SELECT name, severity, since, value, threshold, subject, message, hint FROM outbox.alerts()')]),
    ('Oldest ready message', 'stat', 's', [('', f'SELECT coalesce(max(extract(epoch FROM oldest_age)), 0) AS value FROM outbox.depth WHERE sampled_at = {LATEST}')]),
    ('Totals since counting began', 'table', 'short', [('', 'SELECT stats_since, enqueued, claimed, acked, nacked, failed, dead, expired, leases_lost FROM outbox.stat')]),
    ('Ready messages', 'timeseries', 'short', [('', over_time('ready'))]),
    ('Age of the oldest ready message', 'timeseries', 's', [('', over_time('extract(epoch FROM oldest_age)'))]),
    ('Leased messages', 'timeseries', 'short', [('', over_time('leased'))]),
    ('Rates', 'timeseries', 'ops', rates([('enqueued', 'enqueued'), ('done', 'acked')])),
    ('Failures', 'timeseries', 'ops', rates([('retried', 'nacked'), ('leases lost', 'leases_lost')])),
    ('Dead messages', 'timeseries', 'short', [('', over_time('dead'))]),
    ('Topics', 'table', 'short', [('', 'SELECT topic, namespace, subscription, paused, ready, oldest_ready_age, leased, expired, delayed, failing, dead FROM outbox.topic_stats LIMIT 50')]),
    ('Growing topics', 'table', 'short', [('', 'SELECT d.topic, d.subscription, d.ready, d.ready - b.ready AS grown FROM outbox.depth d JOIN outbox.depth b ON b.topic = d.topic AND b.namespace = d.namespace AND b.subscription IS NOT DISTINCT FROM d.subscription WHERE d.sampled_at = ' + LATEST + " AND b.sampled_at = (SELECT min(sampled_at) FROM outbox.depth WHERE sampled_at > now() - interval '15 minutes') AND d.ready > b.ready ORDER BY grown DESC LIMIT 10")]),
    ('What failed', 'table', 'short', [('', 'SELECT topic, namespace, subscription, reason_name, count, first_at, last_at, last_id FROM outbox.failures LIMIT 20')]),
    ('Who claims', 'table', 'short', [('', 'SELECT * FROM outbox.claimers LIMIT 50')]),
    ('Inbox, timers, runs of jobs', 'table', 'short', [('', "SELECT metric, kind, value FROM outbox.metric_samples() WHERE metric LIKE 'outbox_store_%'")]),
    ('Status', 'table', 'short', [('', 'SELECT component, ok, status, detail, hint FROM outbox.status()')]),
]

OF_TOPIC = "topic = '$topic'"
SQL_TOPIC = [
    ('Now', 'table', 'short', [('', f'SELECT namespace, subscription, paused, handler, ready, oldest_ready_age, leased, expired, delayed, waiting_in_stream, failing, dead FROM outbox.topic_stats WHERE {OF_TOPIC}')]),
    ('Policy', 'table', 'short', [('', f'SELECT * FROM outbox.policies WHERE {OF_TOPIC}')]),
    ('Counters', 'table', 'short', [('', f"SELECT namespace, subscription, enqueued, claimed, acked, nacked, failed, dead, expired, leases_lost, wait_ms / nullif(claimed, 0) AS mean_wait_ms FROM outbox.topic_counters WHERE kind = 'message' AND {OF_TOPIC}")]),
    ('Messages', 'timeseries', 'short', [
        (state, f"SELECT sampled_at AS time, '{state}' || coalesce(' ' || subscription, '') AS metric, {state} AS value FROM outbox.depth WHERE $__timeFilter(sampled_at) AND {OF_TOPIC} ORDER BY 1")
        for state in ('ready', 'leased', 'delayed', 'dead')]),
    ('Age of the oldest ready message', 'timeseries', 's', [('', f'SELECT sampled_at AS time, {NAME}, extract(epoch FROM oldest_age) AS value FROM outbox.depth WHERE $__timeFilter(sampled_at) AND {OF_TOPIC} ORDER BY 1')]),
    ('Rates', 'timeseries', 'ops', rates([('enqueued', 'enqueued'), ('done', 'acked'), ('retried', 'nacked'), ('leases lost', 'leases_lost')], OF_TOPIC)),
    ('Time until claimed', 'barchart', 'short', [('', f"SELECT 'up to ' || 2 ^ (h.i - 1) || ' ms' AS metric, sum(h.n) AS value FROM outbox.topic_counters c, unnest(c.wait_histogram) WITH ORDINALITY h(n, i) WHERE kind = 'message' AND {OF_TOPIC} GROUP BY h.i ORDER BY h.i")]),
    ('Time from claim to end', 'barchart', 'short', [('', f"SELECT 'up to ' || 2 ^ (h.i - 1) || ' ms' AS metric, sum(h.n) AS value FROM outbox.topic_counters c, unnest(c.service_histogram) WITH ORDINALITY h(n, i) WHERE kind = 'message' AND {OF_TOPIC} GROUP BY h.i ORDER BY h.i")]),
    ('Who has what', 'table', 'short', [('', f'SELECT id, subscription, attempts, time_left, pid, application, host, leased_at, owner_token FROM outbox.leases WHERE {OF_TOPIC} ORDER BY leased_at LIMIT 50')]),
    ('What failed', 'table', 'short', [('', f'SELECT reason_name, subscription, count(*), max(failed_at) AS last FROM outbox.dead_letters WHERE {OF_TOPIC} GROUP BY 1, 2 ORDER BY 3 DESC')]),
    ('Who claims', 'table', 'short', [('', f'SELECT * FROM outbox.claimers WHERE {OF_TOPIC} LIMIT 50')]),
]

SQL_JOINS = [
    ('Open joins, the oldest first', 'table', 'short', [('', "SELECT join_id, grouping_key, expected_steps, completed_steps, failed_steps, missing_steps, waits, created_at, last_updated_at FROM outbox.join_progress WHERE state = 'pending' ORDER BY created_at LIMIT 50")]),
    ('Joins by the hour', 'timeseries', 'short', [('', "SELECT date_trunc('hour', created_at) AS time, outbox.join_status_name(status) AS metric, count(*) AS value FROM outbox.joins WHERE $__timeFilter(created_at) GROUP BY 1, 2 ORDER BY 1")]),
    ('Joins that do not end', 'table', 'short', [('', "SELECT subject AS join_id, since, value AS seconds FROM outbox.alerts() WHERE name = 'OutboxJoinOverdue'")]),
    ('First messages of streams', 'table', 'short', [('', 'SELECT stream_id, topic, namespace, subscription, state, behind, attempts, created_at, next_attempt_at, locked_until FROM (SELECT * FROM (SELECT stream_id, id, topic, namespace, subscription, state, behind, attempts, created_at, next_attempt_at, locked_until FROM outbox.stream_heads LIMIT 1000) h) h ORDER BY attempts DESC, created_at LIMIT 50')]),
    ('Stuck streams', 'table', 'short', [('', "SELECT subject AS stream_id, since, value AS seconds, message FROM outbox.alerts() WHERE name = 'OutboxStreamStuck'")]),
    ('Subscriptions', 'table', 'short', [('', 'SELECT namespace, subscription, topics, paused, ready, leased, dead, oldest_ready_age, starting FROM outbox.subscriptions LIMIT 50')]),
    ('Publications to deliver', 'table', 'short', [('', "SELECT component, ok, status, detail FROM outbox.status() WHERE component ~ '^(publications|start|replay|subscriptions)'")]),
    ('Deliveries that wait', 'timeseries', 'short', [('', 'SELECT sampled_at AS time, subscription AS metric, sum(ready) AS value FROM outbox.depth WHERE $__timeFilter(sampled_at) AND subscription IS NOT NULL GROUP BY 1, 2 ORDER BY 1')]),
]


def target(source, kind, number, legend, query):
    common = {'refId': chr(ord('A') + number), 'datasource': {'type': source, 'uid': '${datasource}'}}
    if source == 'prometheus':
        return {**common, 'expr': query, 'legendFormat': legend, 'instant': kind in ('stat', 'table'),
                'range': kind not in ('stat', 'table'), **({'format': 'table'} if kind == 'table' else {}),
                **({'format': 'heatmap'} if kind == 'heatmap' else {})}
    return {**common, 'rawQuery': True, 'editorMode': 'code', 'rawSql': query,
            'format': 'time_series' if kind == 'timeseries' else 'table'}


def dashboard(name, title, source, panels, variable=None):
    variables = [{'name': 'datasource', 'type': 'datasource', 'query': source, 'label': 'Data source'}]
    if variable:
        variables.append({'name': 'topic', 'type': 'query', 'label': 'Topic', 'refresh': 2,
                          'datasource': {'type': source, 'uid': '${datasource}'}, 'query': variable})
    placed, x, y = [], 0, 0
    for number, (heading, kind, unit, queries) in enumerate(panels):
        wide = 24 if kind == 'table' and source == 'postgres' else WIDTH
        if x + wide > 24:
            x, y = 0, y + HEIGHT
        placed.append({
            'id': number + 1, 'type': kind, 'title': heading,
            'datasource': {'type': source, 'uid': '${datasource}'},
            'gridPos': {'x': x, 'y': y, 'w': wide, 'h': HEIGHT},
            'fieldConfig': {'defaults': {'unit': unit, 'min': 0} if kind == 'timeseries' else {'unit': unit},
                            'overrides': []},
            'options': {},
            'targets': [target(source, kind, n, legend, query) for n, (legend, query) in enumerate(queries)]})
        x += wide
    return {'uid': f'outbox-{name}-{source}', 'title': title, 'tags': ['outbox'], 'schemaVersion': 38,
            'version': 1, 'editable': True, 'refresh': '30s', 'time': {'from': 'now-6h', 'to': 'now'},
            'timezone': '', 'templating': {'list': variables}, 'annotations': {'list': []}, 'panels': placed}


FILES = {
    'prometheus/overview.json': dashboard('overview', 'outbox', 'prometheus', OVERVIEW),
    'prometheus/topic.json': dashboard('topic', 'outbox: one topic', 'prometheus', TOPIC, 'label_values(outbox_topic_ready, topic)'),
    'prometheus/joins.json': dashboard('joins', 'outbox: joins and streams', 'prometheus', JOINS),
    'sql/overview.json': dashboard('overview', 'outbox (SQL)', 'postgres', SQL_OVERVIEW),
    'sql/topic.json': dashboard('topic', 'outbox: one topic (SQL)', 'postgres', SQL_TOPIC, 'SELECT DISTINCT topic FROM outbox.depth WHERE topic IS NOT NULL ORDER BY 1'),
    'sql/joins.json': dashboard('joins', 'outbox: joins and streams (SQL)', 'postgres', SQL_JOINS),
}

stale = 0
for name, content in FILES.items():
    text = json.dumps(content, indent=1) + '\n'
    file = HERE / name
    if '--check' in sys.argv:
        if not file.exists() or file.read_text() != text:
            print(f'{name} is not what dashboards.py writes')
            stale = 1
    else:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
sys.exit(stale)
