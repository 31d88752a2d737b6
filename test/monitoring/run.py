"""run.py - metrics, alerts and dashboards with Prometheus and its exporters

    run.py host=SOCKETS port=PORT source=TREE folder=FOLDER

For src/tools/monitoring, which starts the server. FOLDER is for files; whatever this starts
ends with it. Prints a line in TAP's format for each assertion.
"""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

arguments = dict(a.split('=', 1) for a in sys.argv[1:])
HOST, PORT, SOURCE = arguments['host'], arguments['port'], arguments['source']
FOLDER = os.path.join(arguments['folder'], 'prometheus')
JOBS = ('outbox', 'postgres_exporter', 'sql_exporter')
ENVIRONMENT = dict(os.environ, PGHOST=HOST, PGPORT=PORT, PGDATABASE='postgres')
OWNER = '00000000-0000-4000-8000-000000000001'
STREAM = '57575757-0000-4000-8000-000000000001'

number = failed = 0
processes = {}


def check(is_well, title, detail=''):
    global number, failed
    number += 1
    if not is_well:
        failed += 1
    print(f'{"" if is_well else "not "}ok {number} - {title}', flush=True)
    if not is_well and detail:
        print('\n'.join('# ' + line for line in str(detail).splitlines()), flush=True)


def sql(statement, user='postgres'):
    done = subprocess.run(['psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-U', user], input=statement,
                          env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.strip()


def poll(question, seconds=120):
    until = time.monotonic() + seconds
    while True:
        answer = question()
        if answer or time.monotonic() > until:
            return answer
        time.sleep(0.2)


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def start(name, command, **environment):
    log = open(os.path.join(FOLDER, name + '.log'), 'w')
    processes[name] = subprocess.Popen(command, cwd=FOLDER, env=dict(ENVIRONMENT, **environment),
                                       stdout=log, stderr=subprocess.STDOUT)


def stop(name):
    process = processes.pop(name)
    process.terminate()
    process.wait()


def configure(name, *changes):
    """Copy a file of monitoring/ with these changes, each of which must change something."""
    with open(os.path.join(SOURCE, 'monitoring', name)) as file:
        text = file.read()
    for pattern, replacement in changes:
        text, n = re.subn(pattern, replacement, text)
        assert n, f'{name} has no {pattern}'
    with open(os.path.join(FOLDER, name), 'w') as file:
        file.write(text)


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode(), answer.headers
    except (urllib.error.URLError, OSError) as error:
        return '', {'error': str(error)}


def ask(what, **parameters):
    body, headers = get(f'{prometheus}/api/v1/{what}?{urllib.parse.urlencode(parameters)}')
    return json.loads(body)['data'] if body else {'error': headers.get('error')}


def query(expression):
    return ask('query', query=expression).get('result', [])


def promtool(*command):
    done = subprocess.run(['promtool', *command], cwd=os.path.join(SOURCE, 'monitoring'),
                          capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def fires(alert, jobs=JOBS):
    """Does it fire, through each of the exporters?"""
    def firing():
        found = {a['metric'].get('job') for a in query(f'ALERTS{{alertname="{alert}",alertstate="firing"}}')}
        return found >= set(jobs)
    check(poll(firing), f'{alert} fires' + (' through ' + ', '.join(j for j in jobs if j) if any(jobs) else ''),
          query(f'ALERTS{{alertname="{alert}"}}'))
    fired.add(alert)


def test_rules():
    for command in (['check', 'rules', 'rules.yml'], ['check', 'config', 'prometheus.yml'],
                    ['test', 'rules', 'rules_test.yml']):
        check(*promtool(*command)[:1], f'promtool {" ".join(command)}', promtool(*command)[1])
    # tests that notice nothing are none: change each rule, one after the other
    with open(os.path.join(SOURCE, 'monitoring', 'rules.yml')) as file:
        rules = file.read()
    with open(os.path.join(SOURCE, 'monitoring', 'rules_test.yml')) as file:
        tests = file.read()
    names = re.findall(r'alert: (\w+)', rules)
    for name in names:
        start_of = rules.index('alert: ' + name)
        changed = rules[:start_of] + re.sub(r' > ([0-9.]+)', r' > 1\g<1>00000', rules[start_of:], count=1)
        os.makedirs(os.path.join(FOLDER, 'changed'), exist_ok=True)
        for file_name, text in (('rules.yml', changed), ('rules_test.yml', tests)):
            with open(os.path.join(FOLDER, 'changed', file_name), 'w') as file:
                file.write(text)
        is_well = subprocess.run(['promtool', 'test', 'rules', 'rules_test.yml'], capture_output=True,
                                 cwd=os.path.join(FOLDER, 'changed')).returncode == 0
        check(not is_well, f'the tests notice another threshold of {name}')
    return names


def start_all():
    global prometheus
    ports = {name: free_port() for name in (*JOBS, 'prometheus')}
    configure('prometheus.yml', (r'localhost:9188', f'127.0.0.1:{ports["outbox"]}'),
              (r'localhost:9187', f'127.0.0.1:{ports["postgres_exporter"]}'),
              (r'localhost:9237', f'127.0.0.1:{ports["sql_exporter"]}'), (r'scrape_interval: 15s', 'scrape_interval: 5s'), (r'15s', '1s'))
    # the faults of this test are young, and there is no time to wait; but samples
    # come once a minute
    configure('rules.yml', (r'\n +for: \w+', ''), (r'(?<!seen_age_seconds) > (300|900|3600|86400)', ' > 1'))
    configure('postgres_exporter.yml')
    configure('sql_exporter.yml', (r'15s', '1s'), (r'postgres://.*', f'postgres:///postgres?host={HOST}&port={PORT}&user=watcher&sslmode=disable'))
    server = [os.path.join(SOURCE, 'monitoring', 'metrics_server'), f'127.0.0.1:{ports["outbox"]}']
    start('outbox', server, PGUSER='stranger')
    check(poll(lambda: '503' in get(f'http://{server[1]}/metrics')[1].get('error', '')), 'metrics_server answers 503 if the server does not let it in')
    stop('outbox')
    with open(os.path.join(FOLDER, 'outbox.log')) as log:
        line = log.readline()
        check(line.startswith('psql: error: ') and line.endswith('role "stranger" does not exist\n'), 'and says why', line)
    start('outbox', server, PGUSER='watcher')
    start('postgres_exporter', ['prometheus-postgres-exporter', f'--web.listen-address=127.0.0.1:{ports["postgres_exporter"]}',
                                '--extend.query-path=postgres_exporter.yml'],
          DATA_SOURCE_NAME=f'postgresql:///postgres?host={HOST}&port={PORT}&user=watcher')
    start('sql_exporter', ['prometheus-sql-exporter', '-web.listen-address', f'127.0.0.1:{ports["sql_exporter"]}',
                           '-config.file', 'sql_exporter.yml'])
    start('prometheus', ['prometheus', '--config.file=prometheus.yml', '--storage.tsdb.path=data',
                         f'--web.listen-address=127.0.0.1:{ports["prometheus"]}'])
    prometheus = f'http://127.0.0.1:{ports["prometheus"]}'
    body, headers = poll(lambda: (lambda answer: answer[0] and answer)(get(f'http://127.0.0.1:{ports["outbox"]}/metrics')))
    check(headers['Content-Type'].startswith('application/openmetrics-text') and body.endswith('# EOF\n'), 'metrics_server serves OpenMetrics')


def test_metrics():
    def healthy():
        return {t['labels']['job']: t['lastError'] for t in ask('targets').get('activeTargets', []) if t['health'] == 'up'}
    check(poll(lambda: set(healthy()) == set(JOBS)), 'Prometheus scrapes all three', ask('targets'))
    for metric, value in (('outbox_topic_ready{topic="mail"}', 5), ('outbox_enqueued_total{topic="mail",kind="message"}', 5),
                          ('outbox_topic_ready{topic="odd \\"\\\\ \\nname"}', 1),
                          ('histogram_quantile(1, outbox_wait_seconds_bucket{topic="done",kind="message"}) > bool 0', 1),
                          ('outbox_wait_seconds_count{topic="done",kind="message"}', 2)):
        def values():
            return {r['metric']['job']: float(r['value'][1]) for r in query(metric)}
        check(poll(lambda: values() == {job: value for job in JOBS}), f'{metric} is {value} through each', values())
    metadata = ask('metadata', metric='outbox_wait_seconds')
    check(metadata.get('outbox_wait_seconds', [{}])[0].get('type') == 'histogram', 'Prometheus knows the types', metadata)


def test_alerts(names):
    # that there are no metrics was true at first
    check(poll(lambda: not query('ALERTS{alertname=~"Outbox.*"}')), 'no alert before anything is wrong', query('ALERTS'))
    sql(f"""SELECT outbox.enqueue('mail', 'p') FROM generate_series(1, 5);
            SELECT outbox.enqueue(E'odd "\\\\ \\nname', 'p');
            SELECT outbox.enqueue('crash', 'p') FROM generate_series(1, 30);
            SELECT outbox.enqueue('done', 'p') FROM generate_series(1, 2);
            SELECT outbox.ack('{OWNER}', array_agg(id)) FROM outbox.claim('{OWNER}', topics => '{{done}}');""")
    test_metrics()
    fires('OutboxBacklogOld')
    sql(f"SELECT outbox.enqueue('dead', 'p'); SELECT outbox.fail('{OWNER}', array_agg(id)) FROM outbox.claim('{OWNER}', topics => '{{dead}}')")
    fires('OutboxDeadMessages')
    sql(f"SELECT count(*) FROM outbox.claim('{OWNER}', 1, 100, topics => '{{crash}}')")
    fires('OutboxLeasesLost')
    sql(f"SELECT outbox.enqueue('line', i::text, stream_id => '{STREAM}') FROM generate_series(1, 3) i")
    for _ in range(3):
        poll(lambda: sql(f"SELECT outbox.nack('{OWNER}', array_agg(id), delay => '0') FROM outbox.claim('{OWNER}', topics => '{{line}}')") != '0')
    fires('OutboxStreamStuck')
    fires('OutboxProblem')
    sql("SELECT outbox.start_join('alert', 2)")
    fires('OutboxJoinOverdue')
    sql("SELECT outbox._make_partition(-2, now() - interval '30 days', '1 day')")
    fires('OutboxRetentionBehind')
    holder = subprocess.Popen(['psql', '-Xq', '-U', 'postgres'], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    holder.stdin.write('BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT 1;\n')
    holder.stdin.flush()
    fires('OutboxSnapshotOld')
    holder.stdin.close()
    holder.wait()
    sql("""SET outbox.allow_superuser_handlers = on;
           CREATE FUNCTION handle(outbox.message) RETURNS void LANGUAGE sql AS '';
           SELECT outbox.register_handler('handled', 'handle(outbox.message)');
           DROP FUNCTION handle(outbox.message);""")
    fires('OutboxWorkerFailing')
    sql("""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
           CREATE TRIGGER refuse BEFORE INSERT ON outbox.queue FOR EACH ROW WHEN (NEW.topic = 'bad') EXECUTE FUNCTION refuse();
           SELECT outbox.subscribe('s' || i, '{bad}') FROM generate_series(1, 12) i;
           SELECT outbox.publish('bad', 'p'::text);""")
    fires('OutboxPublicationsFailing')
    test_dashboards()
    sql(f"""SELECT outbox.enqueue('t' || i, 'p') FROM generate_series(1, 2500) i;
            SELECT count(*) FROM outbox.claim('{OWNER}', 600, 1000);
            SELECT count(*) FROM outbox.claim('{OWNER}', 600, 1000);
            SELECT count(*) FROM outbox.claim('{OWNER}', 600, 1000);""")
    fires('OutboxLaneMemoryFull')
    series = int(query('count({__name__=~"outbox_.+",job="outbox"})')[0]['value'][1])
    check(series < 100 * 80 + 200, f'with 2,500 topics there are {series} series')
    check(len(query('outbox_topic_ready{job="outbox"}')) <= 101, 'of no more than a hundred topics, and the others')
    sql("ALTER SYSTEM SET outbox.databases = ''")
    sql('SELECT pg_reload_conf()')
    fires('OutboxWorkerMissing')
    for job in JOBS:
        stop(job)
    fires('OutboxExporterDown', jobs=(None,))
    check(fired == set(names), 'each alert has fired', set(names) - fired)


def test_dashboards():
    """Each query can be run, and most have an answer, since there is something of all kinds."""
    for name in ('overview', 'topic', 'joins'):
        with open(os.path.join(SOURCE, 'monitoring', 'grafana', 'prometheus', name + '.json')) as file:
            dashboard = json.load(file)
        for panel in dashboard['panels']:
            for target in panel['targets']:
                expression = target['expr'].replace('$topic', 'done')
                result = ask('query', query=expression)
                # nothing of these has grown for 15 minutes, and there are no deliveries yet
                may_be_empty = panel['title'] in ('Growing topics', 'Deliveries that wait')
                check('result' in result and (result['result'] or may_be_empty), f'{name}: {panel["title"]}: {expression}', result)
        for variable in dashboard['templating']['list']:
            if variable['type'] == 'query':
                metric, label = re.fullmatch(r'label_values\((\w+), (\w+)\)', variable['query']).groups()
                values = ask(f'label/{label}/values', **{'match[]': metric})
                check('done' in values, f'{name}: the values of {label}', values)


fired = set()
os.makedirs(FOLDER)
try:
    rule_names = test_rules()
    sql("CREATE EXTENSION outbox; CREATE ROLE watcher LOGIN; SELECT outbox.grant_monitor('watcher'); GRANT pg_monitor TO watcher")
    start_all()
    poll(lambda: query('outbox_lane_memory_size') and len(query('outbox_lane_memory_size')) == 3)
    test_alerts(rule_names)
except Exception as error:                                      # noqa: BLE001
    check(False, 'the test comes to its end', repr(error))
finally:
    for process_name in list(processes):
        stop(process_name)
    if failed:
        for log_name in sorted(os.listdir(FOLDER)):
            if log_name.endswith('.log'):
                with open(os.path.join(FOLDER, log_name)) as log_file:
                    print(f'# the end of {log_name}:\n# ' + '# '.join(log_file.readlines()[-10:]))
    shutil.rmtree(FOLDER)
print(f'1..{number}')
print(f'{number - failed} passed, {failed} failed')
sys.exit(failed != 0)
