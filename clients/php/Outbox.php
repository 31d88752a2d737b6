<?php
/**
 * A client of outbox for PDO: functions that enqueue in the caller's transaction, and workers
 * that run handlers in processes.
 *
 * The worker's own process settles and renews. PDO cannot wait for a query and something else,
 * so the waiting claim has a process, too; and each slot has one that runs handlers.
 * ../README.md is the design that the clients have in common, and says what the options are.
 */

declare(strict_types=1);

namespace Outbox;

use PDO;

require_once __DIR__ . '/Worker.php';

const CASTS = [
    'correlation_id' => 'text', 'due_time' => 'timestamptz', 'namespace' => 'text',
    'tenant_id' => 'uuid', 'dedupe_key' => 'text', 'stream_id' => 'uuid', 'headers' => 'jsonb',
    'expires_at' => 'timestamptz', 'message_id' => 'uuid', 'dedupe_for' => 'interval',
    'on_duplicate' => 'text', 'priority' => 'int',
];

/** The message can never be handled: it becomes a dead letter with this text. */
class Permanent extends \Exception
{
    public function __construct(string $text = '', public readonly ?int $reason = null)
    {
        parent::__construct($text);
    }
}

/** The message is handed out again after so many seconds, or the server's backoff. */
class Retry extends \Exception
{
    public function __construct(string $text = '', public readonly ?float $after = null)
    {
        parent::__construct($text);
    }
}

/** Another worker has the message, or soon will have. */
class LeaseLost extends \Error
{
}

/** The rows of a statement, which is not prepared in the server, for PgBouncer. */
function rows(PDO $pdo, string $sql, array $values): array
{
    $statement = $pdo->prepare($sql, [PDO::PGSQL_ATTR_DISABLE_PREPARES => true]);
    if ($statement === false || !$statement->execute($values)) {
        throw new \LogicException('PDO is not to be silent: set PDO::ERRMODE_EXCEPTION');
    }
    return $statement->fetchAll(PDO::FETCH_ASSOC);
}

function encode(mixed $value): string
{
    if (is_string($value)) {
        return $value;
    }
    return $value instanceof \DateTimeInterface
        ? $value->format('Y-m-d\TH:i:s.uP')
        : json_encode($value, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES);
}

/** The options as arguments of the server: traceparent becomes a header. */
function complete(array $options): array
{
    $trace = $options['traceparent'] ?? (getenv('TRACEPARENT') ?: null);
    unset($options['traceparent']);
    $given = array_filter($options, fn ($value) => $value !== null);
    if ($unknown = array_diff_key($given, CASTS)) {
        throw new \InvalidArgumentException('there is no option ' . implode(', ', array_keys($unknown)));
    }
    if ($trace !== null) {
        $given['headers'] = ($given['headers'] ?? []) + ['traceparent' => $trace];
    }
    return $given;
}

function one(PDO $pdo, string $function, string $topic, mixed $payload, array $options): string
{
    $given = complete($options);
    $named = '';
    foreach (array_keys($given) as $name) {
        $named .= ", $name => ?::text::" . CASTS[$name];
    }
    $values = array_map(encode(...), [$topic, $payload, ...array_values($given)]);
    return rows($pdo, "SELECT outbox.$function(?::text, ?::text$named) AS id", $values)[0]['id'];
}

function batch(PDO $pdo, string $sql, array $messages): array
{
    $objects = [];
    foreach ($messages as $message) {
        $options = array_diff_key($message, ['topic' => 0, 'payload' => 0]);
        $given = array_map(
            fn ($value) => $value instanceof \DateTimeInterface ? encode($value) : $value,
            complete($options)
        );
        $objects[] = ['topic' => $message['topic'], 'payload' => encode($message['payload'])] + $given;
    }
    return rows($pdo, $sql, [encode($objects)]);
}

/** Enqueue a message in the connection's transaction; its message_id. The options are named
 * arguments: enqueue($pdo, 'topic', ['order' => 1], priority: 1). */
function enqueue(PDO $pdo, string $topic, mixed $payload, mixed ...$options): string
{
    return one($pdo, 'enqueue', $topic, $payload, $options);
}

/** Publish a message for all who have subscribed; the published id. */
function publish(PDO $pdo, string $topic, mixed $payload, mixed ...$options): string
{
    return one($pdo, 'publish', $topic, $payload, $options);
}

/** Enqueue arrays with topic, payload and options: for each message_id, enqueued, outcome. */
function enqueue_batch(PDO $pdo, array $messages): array
{
    return batch($pdo, 'SELECT message_id, enqueued, outcome
        FROM outbox.enqueue_batch(?::text::jsonb) ORDER BY ordinal', $messages);
}

/** Publish arrays with topic, payload and options: for each message_id, deliveries. */
function publish_batch(PDO $pdo, array $messages): array
{
    return batch($pdo, 'SELECT message_id, deliveries
        FROM outbox.publish_batch(?::text::jsonb) ORDER BY ordinal', $messages);
}

/** For tests: all waiting messages become due that much earlier; how many. */
function advance(PDO $pdo, float $seconds): int
{
    return (int) rows($pdo, "SELECT coalesce(sum(outbox.reschedule(ARRAY[id],
            next_attempt_at - ?::text::interval)), 0) AS count
        FROM outbox.messages WHERE state = 'ready' AND next_attempt_at > clock_timestamp()",
        ["$seconds s"])[0]['count'];
}
