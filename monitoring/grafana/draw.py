#!/usr/bin/env python3
"""draw.py - draw a dashboard on Prometheus, without Grafana

    draw.py PROMETHEUS DASHBOARD.json PICTURE.png [topic=NAME] [minutes=N]

PROMETHEUS is its address, as http://localhost:9090. Asks the queries of the panels for the
last N (10) minutes and draws what they return, with matplotlib, in the order of Grafana: it
shows the data, and not what Grafana looks like. The pictures in docs are made by this.
"""
import datetime
import json
import re
import sys
import time
import urllib.parse
import urllib.request

import matplotlib
matplotlib.use('Agg')
import matplotlib.dates
import matplotlib.pyplot as plt
import matplotlib.ticker

SERVER, DASHBOARD, PICTURE = sys.argv[1:4]
OPTIONS = dict(option.split('=', 1) for option in sys.argv[4:])
SECONDS = 60 * int(OPTIONS.get('minutes', 10))
NOW = time.time()
COLUMNS = 3


def ask(what, **parameters):
    with urllib.request.urlopen(f'{SERVER}/api/v1/{what}?{urllib.parse.urlencode(parameters)}') as answer:
        return json.load(answer)['data']['result']


def legend(target, labels):
    if not target.get('legendFormat'):
        return ' '.join(v for k, v in labels.items() if k not in ('__name__', 'instance', 'job', 'namespace'))
    return re.sub(r'\{\{(\w+)\}\}', lambda m: labels.get(m[1], ''), target['legendFormat']).strip()


def human(value, unit):
    if unit == 's':
        return f'{value:.0f} s' if value >= 1 or value == 0 else f'{1000 * value:.0f} ms'
    if unit == 'percentunit':
        return f'{100 * value:.1f} %'
    return f'{value:,.0f}' if value >= 10 or value == int(value) else f'{value:.2g}'


def draw_lines(axes, panel, queries):
    any_line = False
    for target, query in queries:
        for series in ask('query_range', query=query, start=NOW - SECONDS, end=NOW, step=max(5, SECONDS // 120)):
            points = [(datetime.datetime.fromtimestamp(t, datetime.timezone.utc), float(v))
                      for t, v in series['values'] if v not in ('NaN', '+Inf')]
            if points:
                axes.plot(*zip(*points), label=legend(target, series['metric']) or None, linewidth=1.2)
                any_line = True
    unit = panel['fieldConfig']['defaults']['unit']
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda v, _: human(v, unit)))
    axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter('%H:%M'))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if any_line and axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=6, loc='upper left', framealpha=0.6)


def draw_numbers(axes, panel, queries):
    unit = panel['fieldConfig']['defaults']['unit']
    answers = [(legend(target, r['metric']), human(float(r['value'][1]), unit))
               for target, query in queries for r in ask('query', query=query)]
    text = '\n'.join(f'{name} {value}'.strip() for name, value in answers) or 'no data'
    axes.text(0.5, 0.5, text, ha='center', va='center', fontsize=22 if len(answers) == 1 else 13)
    axes.axis('off')


def draw_table(axes, _, queries):
    rows = [f'{" ".join(v for k, v in r["metric"].items() if k not in ("__name__", "instance", "job", "namespace"))}'
            f'  {float(r["value"][1]):.0f}' for _, query in queries for r in ask('query', query=query)]
    axes.text(0.02, 0.95, '\n'.join(rows[:10]) or 'none', va='top', fontsize=8, family='monospace')
    axes.axis('off')


def draw_heatmap(axes, _, queries):
    series = ask('query_range', query=queries[0][1], start=NOW - SECONDS, end=NOW, step=max(10, SECONDS // 60))
    series.sort(key=lambda s: float(s['metric']['le'].replace('+Inf', 'inf')))
    if series:
        times = sorted({t for s in series for t, _ in s['values']})
        cumulative = [[float(dict(s['values']).get(t, 0)) for t in times] for s in series]
        counts = [[max(0, b - a) for a, b in zip([0] * len(times) if i == 0 else cumulative[i - 1], row)]
                  for i, row in enumerate(cumulative)]
        axes.imshow(counts, aspect='auto', origin='lower', cmap='viridis', interpolation='nearest')
        axes.set_yticks(range(0, len(series), 3), [series[i]['metric']['le'] + ' s' for i in range(0, len(series), 3)], fontsize=6)
        axes.set_xticks([0, len(times) - 1], [time.strftime('%H:%M', time.gmtime(times[i])) for i in (0, -1)])


with open(DASHBOARD) as file:
    dashboard = json.load(file)
panels = dashboard['panels']
rows = -(-len(panels) // COLUMNS)
figure, grid = plt.subplots(rows, COLUMNS, figsize=(14, 2.3 * rows), squeeze=False)
draw = {'timeseries': draw_lines, 'stat': draw_numbers, 'table': draw_table, 'heatmap': draw_heatmap}
for axes, panel in zip(grid.flat, panels):
    topic = OPTIONS.get('topic', '.*')
    draw[panel['type']](axes, panel, [(t, t['expr'].replace('$topic', topic)) for t in panel['targets']])
    axes.set_title(panel['title'], fontsize=9, loc='left')
    axes.tick_params(labelsize=6)
for axes in list(grid.flat)[len(panels):]:
    axes.axis('off')
figure.suptitle(f'{dashboard["title"]}: the answers to the queries of this dashboard, drawn by draw.py (not Grafana)', fontsize=9)
figure.tight_layout(rect=(0, 0, 1, 0.98))
figure.savefig(PICTURE, dpi=75)
