<?php
/** The suite of the PHP client: suite.php produce | send | drain | worker; see ../../test/run.py. */

declare(strict_types=1);

require __DIR__ . '/../Outbox.php';

use Outbox\{Message, Permanent, Retry, Worker};

use function Outbox\{advance, enqueue, enqueue_batch, publish, publish_batch};

const TENANT = '00000000-0000-4000-8000-0000000000aa';
const GIVEN = '01234567-0000-4000-8000-000000000042';
const STREAM = '00000000-0000-4000-8000-000000000007';

function say(mixed ...$words): void
{
    file_put_contents('php://stdout', implode(' ', $words) . "\n");
}

function check(string $name, mixed $got, mixed $expected): void
{
    say($got === $expected ? 'ok' : 'not ok', '-', $name);
    if ($got !== $expected) {
        say('# got', json_encode($got), 'not', json_encode($expected));
    }
}

function connect(): PDO
{
    return new PDO(sprintf('pgsql:host=%s;port=%s;dbname=%s;user=%s', ...array_map(
        getenv(...), ['PGHOST', 'PGPORT', 'PGDATABASE', 'PGUSER'])));
}

function produce(): void
{
    $pdo = connect();
    $pdo->beginTransaction();
    enqueue($pdo, 'p.rolled-back', 'x');
    $pdo->rollBack();
    $pdo->beginTransaction();
    $pdo->exec("INSERT INTO orders VALUES ('php')");
    enqueue($pdo, 'p.committed', ['order' => 7]);
    enqueue($pdo, 'p.text', 'plain "text" é');
    $made = enqueue($pdo, 'p.options', 'x', correlation_id: 'c-1', namespace: 'shop', tenant_id: TENANT,
        due_time: new DateTimeImmutable('2030-01-02T03:04:05Z'), expires_at: '2031-01-02T03:04:05Z',
        dedupe_key: str_replace('-', '', TENANT) . '/k', stream_id: STREAM, message_id: GIVEN,
        headers: ['region' => 'eu'], dedupe_for: '1 hour', on_duplicate: 'keep', priority: 1,
        traceparent: '00-argument');
    enqueue($pdo, 'p.trace', 'x');
    enqueue($pdo, 'p.own', 'x', headers: ['traceparent' => 'own']);
    $pdo->commit();
    check('enqueue answers the message_id', $made, GIVEN);
    try {
        enqueue($pdo, 'p.unknown', 'x', colour: 'red');
    } catch (InvalidArgumentException $error) {
        check('an unknown option is an error', $error->getMessage(), 'there is no option colour');
    }
    $rows = enqueue_batch($pdo, [['topic' => 'p.batch', 'payload' => 'one'],
        ['topic' => 'p.batch', 'payload' => ['n' => 2], 'dedupe_key' => 'twin'],
        ['topic' => 'p.batch', 'payload' => 'three', 'dedupe_key' => 'twin']]);
    check('a batch says what is new', array_map(fn ($row) => [$row['enqueued'], $row['outcome']], $rows),
        [[true, 'enqueued'], [true, 'enqueued'], [false, 'kept']]);
    check('and whose a key is', $rows[1]['message_id'], $rows[2]['message_id']);
    publish($pdo, 'p.news', 'first');
    $rows = publish_batch($pdo, array_map(fn ($n) => ['topic' => 'p.news', 'payload' => $n], ['2', '3']));
    check('publish_batch counts deliveries', array_column($rows, 'deliveries'), [1, 1]);
}

/** Lines of run.py: how a transaction ends, and its messages, as topic,payload,stream. */
function send(): void
{
    $pdo = null;
    while (($line = fgets(STDIN)) !== false) {
        $words = explode(' ', trim($line));
        $how = array_shift($words);
        $messages = array_map(function ($word) {
            [$topic, $payload, $stream] = explode(',', $word);
            return ['topic' => $topic, 'payload' => $payload] + ($stream === '-' ? [] : ['stream_id' => $stream]);
        }, $words);
        try {
            $pdo ??= connect();
            $pdo->beginTransaction();
            $first = array_shift($messages);
            [$one, $many] = str_starts_with($first['topic'], 'pub.') ? [publish(...), publish_batch(...)]
                : [enqueue(...), enqueue_batch(...)];
            $one($pdo, ...$first);
            $many($pdo, $messages);
            $how === 'commit' ? $pdo->commit() : $pdo->rollBack();
        } catch (PDOException $error) {
            say('failed', $error->getCode());
            $pdo = null;
        }
    }
}

function drain(): void
{
    $pdo = connect();
    $seen = $order = [];
    $worker = new Worker(connect(...), concurrency: 2);
    $worker->handle('d.ok', function (Message $message) use (&$seen) {
        $seen[] = $message->payload;
    });
    $worker->handle('d.fail', fn () => throw new Permanent('no such order', 4));
    $worker->handle('d.retry', fn ($message) => $message->attempts > 1 ?: throw new Retry('later', 3600));
    $worker->handle('d.stream', function (Message $message) use (&$order) {
        $order[] = $message->payload;
        $order !== ['1'] || throw new Retry('again', 0);
    });
    foreach (['0', '1', '2'] as $payload) {
        enqueue($pdo, 'd.ok', $payload);
    }
    foreach (['1', '2'] as $payload) {
        enqueue($pdo, 'd.stream', $payload, stream_id: STREAM);
    }
    enqueue($pdo, 'd.ok', 'in an hour', due_time: new DateTimeImmutable('+1 hour'));
    enqueue($pdo, 'd.fail', 'x');
    enqueue($pdo, 'd.retry', 'x');
    check('drain handles what is due', $worker->drain(), 6);
    sort($seen);
    check('and nothing else', $seen, ['0', '1', '2']);
    check('what is dead says why', $pdo->query("SELECT last_error, failure_reason FROM outbox.messages
        WHERE topic = 'd.fail'")->fetch(PDO::FETCH_NUM), ['no such order', 4]);
    check('a message once, and none of its stream after one that goes back', $order, ['1']);
    check('the next drain goes on', [$worker->drain(), $order], [2, ['1', '1', '2']]);
    check('time does not pass by itself', $worker->drain(), 0);
    check('advance moves it', advance($pdo, 3660), 2);
    check('and drain follows', $worker->drain(), 2);
    check('to the end', array_slice($seen, 3), ['in an hour']);
}

function slow(Message $message, float $seconds): void
{
    try {
        usleep((int) (1e6 * $seconds));
    } catch (Outbox\LeaseLost $lost) {
        say('cancelled', $message->id);
        throw $lost;
    }
    say('handled', $message->message_id, $message->topic, $message->attempts);
}

function effect(Message $message, PDO $pdo): void
{
    $pdo->exec("INSERT INTO effects VALUES ('$message->message_id', $message->attempts)");
}

function handlers(Worker $worker): void
{
    $first = fn (Closure $else) => fn ($message) => $message->attempts === 1 ? $else($message) : slow($message, 0);
    $worker->handle('w.ok', fn ($message) => slow($message, 0));
    $worker->handle('w.trace', fn ($message) => say('trace', $message->traceparent()));
    $worker->handle('w.tx', effect(...), transaction: true);
    $worker->handle('w.serial', function (Message $message, PDO $pdo) {
        static $repeated = false;
        effect($message, $pdo);
        if (!$repeated) {
            $repeated = true;
            $pdo->exec("DO \$\$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END \$\$");
        }
    }, transaction: true);
    $worker->handle('w.txfail', function (Message $message, PDO $pdo) {
        effect($message, $pdo);
        $message->attempts > 1 || throw new RuntimeException($message->payload);
    }, transaction: true);
    $worker->handle('w.text', fn () => throw new Permanent(
        "\0" . str_repeat('é', 499) . "\xff" . str_repeat('é', 1000),
        4
    ));
    $worker->handle('w.reason', fn () => throw new Permanent('no such reason', 10 ** 10));
    $worker->handle('w.odd', $first(fn () => exit));
    $worker->handle('w.permanent', fn () => throw new Permanent('no such order', 4));
    $worker->handle('w.retry', $first(fn () => throw new Retry('later', 0.2)));
    $worker->handle('w.error', $first(fn ($message) => throw new RuntimeException($message->payload)));
    $worker->handle('w.slow', fn ($message) => slow($message, $message->json()['seconds']));
    $worker->handle('w.timeout', $first(fn ($message) => slow($message, 5)),
        timeoutSeconds: (float) (getenv('TIMEOUT_SECONDS') ?: 0.3));
    $worker->handle('w.stream', function (Message $message) {
        say('stream', $message->payload);
        usleep(20000);
        if ($message->payload === '3' && $message->attempts === 1) {
            throw new Retry('again', 0);
        }
        say('passed', $message->payload);
    });
}

function work(): void
{
    $subscription = getenv('SUBSCRIPTION') ?: null;
    $worker = new Worker(
        connect(...),
        concurrency: (int) (getenv('CONCURRENCY') ?: 4),
        leaseSeconds: (int) (getenv('LEASE_SECONDS') ?: 30),
        shutdownSeconds: (float) (getenv('SHUTDOWN_SECONDS') ?: 10),
        subscription: $subscription,
        hook: function (string $event, array $fields) {
            unset($fields['seconds']);
            $fields = array_map(fn ($field) => $field instanceof Message ? $field->id : $field, $fields);
            say('event', $event, ...array_values($fields));
        },
        wrap: function (Message $message, Closure $call) {
            say('begin', $message->id, $message->topic);
            $call();
        },
    );
    if ($subscription) {
        $worker->handle('*', fn ($m) => say('delivered', $m->subscription, $m->published_id, $m->payload));
    } else {
        handlers($worker);
    }
    $worker->run();
    say('ended');
}

match ($argv[1]) {
    'produce' => produce(),
    'send' => send(),
    'drain' => drain(),
    'worker' => work(),
};
