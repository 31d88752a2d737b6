<?php
/** The workers of Outbox.php, which is the file to be required. */

declare(strict_types=1);

namespace Outbox;

use PDO;
use PDOException;
use Throwable;

function now(): float
{
    return hrtime(true) / 1e9;
}

/** A claimed message: its properties are the columns of outbox.message. */
class Message
{
    public ?string $outcome = null; // decided once: ack, retry, fail or lost
    public float $until = 0;        // its lease lasts as long, or longer

    public function __construct(public readonly array $row)
    {
    }

    public function __get(string $column): mixed
    {
        return $this->row[$column];
    }

    public function json(): mixed
    {
        return json_decode($this->payload, true, 512, JSON_THROW_ON_ERROR);
    }

    public function traceparent(): ?string
    {
        return json_decode($this->headers ?? '{}', true)['traceparent'] ?? null;
    }
}

/** A process at the other end of a socket, which answers each line with a line. */
class Process
{
    public ?Message $message = null;
    public float $began = 0;
    public ?float $until = null;  // when its handler has taken too long
    public ?float $killAt = null; // it has been cancelled

    private function __construct(public readonly int $pid, public readonly mixed $socket)
    {
    }

    /** @param Process[] $others whose sockets the new one must not keep open
     * @param callable $orphaned is called if an answer cannot be given any more */
    public static function start(callable $answer, array $others, callable $orphaned): self
    {
        [$ours, $theirs] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        $pid = pcntl_fork();
        if ($pid > 0) {
            fclose($theirs);
            return new self($pid, $ours);
        }
        register_shutdown_function(self::vanish(...)); // also if a handler exits
        foreach ($others as $other) {
            fclose($other->socket);
        }
        fclose($ours);
        foreach ([SIGTERM, SIGINT, SIGUSR1] as $signal) {
            pcntl_signal($signal, fn () => null); // the parent decides
        }
        while (($line = fgets($theirs)) !== false) {
            if (@fwrite($theirs, self::encode($answer(self::decode($line)))) === false) {
                $orphaned();
            }
        }
        self::vanish();
    }

    /** End without destructors: those of PDO would close what is the parent's. */
    private static function vanish(): never
    {
        posix_kill(posix_getpid(), SIGKILL);
        exit;
    }

    private static function encode(mixed $what): string
    {
        return base64_encode(serialize($what)) . "\n";
    }

    private static function decode(string $line): mixed
    {
        return unserialize(base64_decode($line), ['allowed_classes' => false]);
    }

    public function tell(mixed $what): void
    {
        @fwrite($this->socket, self::encode($what));
    }

    /** Its answer; null if it has died. */
    public function answer(): mixed
    {
        $line = fgets($this->socket);
        return $line === false ? null : self::decode($line);
    }

    public function cancel(): void
    {
        posix_kill($this->pid, SIGUSR1);
        $this->killAt = now() + 1;
    }

    public function kill(): void
    {
        posix_kill($this->pid, SIGKILL);
        pcntl_waitpid($this->pid, $status);
    }
}

class Worker
{
    private const CLAIM = 'SELECT id, message_id, namespace, topic, payload, headers, correlation_id,
            tenant_id, dedupe_key, stream_id, attempts, retry_count, created_at, due_time, locked_until,
            owner_token, subscription, published_id, priority
        FROM outbox.claim(?::text::uuid, ?::text::int, ?::text::int, ?::text, ?::text::text[],
            ?::text::uuid, ?::text::int, ?::text::int, ?::text)';
    private const HELD = 'unnest(?::text::uuid[], ?::text::bigint[], ?::text::int[]) AS held(owner, id, attempt)';
    private const ACK = 'SELECT coalesce(sum(outbox.ack(owner, ids, attempts)), 0) AS count
        FROM (SELECT owner, array_agg(id), array_agg(attempt) FROM ' . self::HELD . ' GROUP BY owner)
            AS own(owner, ids, attempts)';
    private const ACK_ONE = 'SELECT outbox.ack_one(?::text::uuid, ?::text::bigint, ?::text::int, strict => true)';
    private const NACK = 'SELECT outbox.nack_one(?::text::uuid, ?::text::bigint, attempt => ?::text::int,
        error => ?::text, delay => ?::text::interval)';
    private const FAIL = 'SELECT outbox.fail_one(?::text::uuid, ?::text::bigint, attempt => ?::text::int,
        error => ?::text, reason => ?::text::int)';
    // renews; its rows are the leases that are lost
    private const RENEW = 'SELECT id, attempt FROM ' . self::HELD . '
        WHERE outbox.renew_one(owner, id, ?::text::int, attempt) = 0';
    private const RELEASE = 'SELECT outbox.release_one(owner, id) FROM ' . self::HELD;
    private const RELEASE_ALL = 'SELECT outbox.release(?::text::uuid)';
    private const ACK_SECONDS = 0.005, ACK_IDS = 100, MOST_UNSETTLED = 1000, TRANSACTION_TRIES = 3;

    private array $handlers = [];
    private ?PDO $settler = null;
    private ?PDO $own = null;         // of a process: for transactions, or for claims
    private ?Process $claimer = null;
    private string $owner = '';
    private array $strays = [];       // owners of claims without an answer
    private array $waiting = [];      // claimed, not begun
    private array $running = [];      // processes, by pid
    private array $idle = [];
    private array $acks = [];
    private array $calls = [];        // what fails or goes back
    private array $retried = [];      // ids and streams, while draining
    private int $asked = 0;           // by the claim that is under way
    private int $target = 0;
    private bool $full = false, $draining = false, $acksRepeated = false, $stopping = false;
    private float $claimSent = 0, $claimedAt = 0, $claimAfter = 0, $claimDelay = 0.1;
    private float $acksSince = 0, $settleAfter = 0, $settleDelay = 0.1, $deadline = INF;
    private float $renewAt = 0;
    private ?Throwable $error = null;

    /** $connect returns a new PDO each time. */
    public function __construct(
        private \Closure $connect,
        private int $concurrency = 10,
        private ?string $subscription = null,
        private ?string $namespace = null,
        private ?string $tenantId = null,
        private ?int $maxAttempts = null,
        private int $leaseSeconds = 30,
        private int $waitMs = 20000,
        private int $maxBatch = 100,
        private float $shutdownSeconds = 25,
        private ?\Closure $hook = null,
        private ?\Closure $wrap = null,
    ) {
        $this->maxBatch = max($maxBatch, $concurrency);
        $this->hook ??= fn () => null;
        $this->wrap ??= fn (Message $message, \Closure $call) => $call();
    }

    /** Have $handler(Message $message) run for the topic, or for all others if it is '*'. With
     * transaction it gets a PDO as well, and the ack commits with what it writes there. */
    public function handle(string $topic, callable $handler, ?float $timeoutSeconds = null, bool $transaction = false): static
    {
        $this->handlers[$topic] = ['call' => $handler(...), 'timeout' => $timeoutSeconds, 'transaction' => $transaction];
        return $this;
    }

    /** Work until SIGTERM, SIGINT or stop(). */
    public function run(): void
    {
        $this->reset(false);
        $before = [pcntl_async_signals(true), pcntl_signal_get_handler(SIGTERM), pcntl_signal_get_handler(SIGINT)];
        pcntl_signal(SIGTERM, fn () => $this->stop(), false);
        pcntl_signal(SIGINT, fn () => $this->stop(), false);
        try {
            while (!$this->stopping || $this->running) {
                $this->turn();
            }
            $this->shutDown();
            $this->leave();
        } finally {
            foreach (array_filter([$this->claimer, ...$this->running, ...$this->idle]) as $process) {
                $process->kill();
            }
            $this->settler = $this->claimer = null;
            $this->running = $this->idle = [];
            pcntl_signal(SIGTERM, $before[1]);
            pcntl_signal(SIGINT, $before[2]);
            pcntl_async_signals($before[0]);
        }
    }

    /** Begin to end run(). Called twice, do not wait for handlers. */
    public function stop(): void
    {
        $this->deadline = $this->stopping ? 0 : now() + $this->shutdownSeconds;
        $this->stopping = true;
    }

    /** For tests: handle, in this process, until nothing is due; how many messages. */
    public function drain(): int
    {
        $this->reset(true);
        for ($handled = 0; $rows = rows($this->settler, self::CLAIM, $this->claimValues($this->concurrency, 0)); ) {
            $this->claimSent = now();
            $this->take($rows);
            while (($message = $this->next()) !== null) {
                $this->judge($message, $this->invoke($message->row));
                $handled++;
            }
            $this->acksSince = 0;
            $this->settle();
        }
        $this->leave();
        $this->settler = $this->own = null;
        return $handled;
    }

    private function reset(bool $draining): void
    {
        $this->handlers || throw new \LogicException('no topic has a handler');
        $this->owner = bin2hex(random_bytes(16));
        $this->strays = $this->waiting = $this->running = $this->idle = $this->acks = $this->calls = $this->retried = [];
        $this->asked = 0;
        $this->target = $this->concurrency;
        $this->draining = $draining;
        $this->full = $this->acksRepeated = $this->stopping = false;
        $this->claimAfter = $this->claimedAt = $this->settleAfter = 0;
        $this->claimDelay = $this->settleDelay = 0.1;
        $this->deadline = INF;
        $this->renewAt = now() + $this->leaseSeconds / 3;
        $this->error = null;
        $this->settler = $this->open();
    }

    /** One turn of the loop. The first error that is for good ends it. */
    private function turn(): void
    {
        try {
            $this->begin();
            $this->askForMore();
            $this->await();
            $this->expire();
            $this->settle();
        } catch (Throwable $error) {
            if ($this->error !== null) {
                throw $this->error;
            }
            $this->error = $error;
            $this->stopping || $this->stop();
        }
        if ($this->stopping) {
            $this->shutDown();
        }
    }

    /** Send what is left, and release all. */
    private function leave(): void
    {
        $this->acksSince = 0;
        for ($releasing = false; $this->acks || $this->calls || !$releasing; $this->settle()) {
            if (!$this->acks && !$this->calls) {
                $releasing = true;
                $this->calls = array_map(fn ($owner) => [self::RELEASE_ALL, [$owner]], [...$this->strays, $this->owner]);
                $this->strays = [];
            }
            if (now() > $this->deadline + 2) {
                throw $this->error ?? new \RuntimeException('the server did not answer in time');
            }
            usleep((int) (1e6 * max(0, min(0.1, $this->settleAfter - now()))));
        }
        $this->error === null || throw $this->error;
    }

    private function open(): PDO
    {
        $pdo = ($this->connect)();
        $pdo->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
        return $pdo;
    }

    private function start(\Closure $answer, ?\Closure $orphaned = null): Process
    {
        $others = array_filter([$this->claimer, ...$this->running, ...$this->idle]);
        return Process::start($answer, $others, $orphaned ?? fn () => null);
    }

    private static function state(Throwable $error): string
    {
        return $error instanceof PDOException ? (string) ($error->errorInfo[0] ?? $error->getCode()) : '';
    }

    /** HY000 is what PDO says of a connection that has gone, and 7 if it cannot be made. */
    private static function repeatable(Throwable $error): bool
    {
        return preg_match('/^(08|40001|40P01|53300|57P0[123]|HY000|7$)/', self::state($error)) === 1;
    }

    /** What is recorded of an error: never a text that may quote the payload. */
    private static function describe(Throwable $error): string
    {
        if (!$error instanceof Permanent && !$error instanceof Retry) {
            return trim(get_class($error) . ' ' . self::state($error));
        }
        $text = json_encode(str_replace("\0", '', $error->getMessage()), JSON_INVALID_UTF8_SUBSTITUTE);
        preg_match('/^.{0,500}/us', json_decode($text), $found);
        return $found[0];
    }

    /** How long to wait before another try; the next pause is longer. */
    private function pause(float &$delay): float
    {
        $now = $delay * random_int(50, 100) / 100;
        $delay = $this->stopping ? 0.5 : min(2 * $delay, 5);
        return $now;
    }

    // Claim

    private function claimValues(int $asked, int $waitMs): array
    {
        $topics = isset($this->handlers['*']) ? null : self::list(array_keys($this->handlers));
        return [$this->owner, $this->leaseSeconds, $asked, $this->namespace, $topics, $this->tenantId,
            $this->maxAttempts, $waitMs, $this->subscription];
    }

    /** In its process: the rows of a claim, or the error. */
    private function claim(array $values): array
    {
        $sent = false;
        try {
            $this->own ??= $this->open();
            $sent = true;
            $this->owner = $values[0];
            return ['rows' => rows($this->own, self::CLAIM, $values)];
        } catch (PDOException $error) {
            $this->own = self::repeatable($error) ? null : $this->own;
            return self::state($error) === '57014' ? ['rows' => []] : ['error' => $error->getMessage(),
                'about' => self::describe($error), 'again' => self::repeatable($error), 'sent' => $sent];
        }
    }

    /** In its process: nobody hears of what was claimed. */
    private function releaseClaimed(): void
    {
        rows($this->own, self::RELEASE_ALL, [$this->owner]);
    }

    /** How many messages to claim now; 0 if no slot is free for one. */
    private function ask(): int
    {
        $free = $this->concurrency - count($this->running);
        $held = count($this->waiting) + count($this->running);
        $took = now() - $this->claimedAt;
        if ($free === 0 || $this->startable() !== null || count($this->acks) + count($this->calls) >= self::MOST_UNSETTLED) {
            return 0;
        }
        if (!$this->full || $took > 0.5) {
            $this->target = $this->concurrency;
        } elseif ($took < 0.1) {
            $this->target = min(2 * $this->target, $this->maxBatch);
        }
        return min(max($this->target - $held, $free), $this->maxBatch - $held);
    }

    private function askForMore(): void
    {
        if (now() >= $this->claimAfter) {
            $this->claimAfter = 0;
        }
        if ($this->asked === 0 && !$this->stopping && $this->claimAfter === 0.0 && $this->asked = $this->ask()) {
            $this->claimer ??= $this->start($this->claim(...), $this->releaseClaimed(...));
            $this->claimSent = now();
            $this->claimer->tell($this->claimValues($this->asked, $this->waitMs));
        }
    }

    /** What the process that claims has answered; null if it has died. */
    private function taken(?array $answer): void
    {
        if ($answer === null) {
            $this->claimer->kill();
            $this->claimer = null;
            $answer = ['error' => 'died', 'about' => 'the process that claims has died', 'again' => true, 'sent' => true];
        }
        if (isset($answer['rows'])) {
            $this->take($answer['rows']);
            $this->claimDelay = 0.1;
            ($this->hook)('claimed', ['count' => count($answer['rows']), 'asked' => $this->asked]);
        }
        $this->asked = 0;
        if (isset($answer['error'])) {
            $answer['again'] || throw new \RuntimeException($answer['error']);
            ($this->hook)('reconnect', ['error' => $answer['about']]);
            $this->claimAfter = now() + $this->pause($this->claimDelay);
        }
        if ($answer['sent'] ?? false) {
            // what it may have taken must not count as held by this worker, which knows nothing of it
            $this->strays[] = $this->owner;
            $this->owner = bin2hex(random_bytes(16));
        }
    }

    private function take(array $rows): void
    {
        $this->renewAt = min($this->renewAt, $this->claimSent + $this->leaseSeconds / 3);
        foreach ($rows as $row) {
            $message = new Message($row);
            // surely not sooner: what came late, or to a stopped process, is renewed first
            $message->until = $this->claimSent + $this->leaseSeconds;
            if (!in_array($message->stream_id ?? $message->id, $this->retried, true)) {
                $this->waiting[] = $message;
            }
        }
        $this->full = count($rows) === $this->asked;
        $this->claimedAt = now();
    }

    // Handle

    /** The first message that is not beside another of its stream. */
    private function startable(): ?int
    {
        $busy = array_filter(array_map(fn ($process) => $process->message->stream_id, $this->running));
        foreach ($this->waiting as $index => $message) {
            if (!in_array($message->stream_id, $busy, true) && now() < $message->until) {
                return $index;
            }
        }
        return null;
    }

    /** A message that may be handled now. */
    private function next(): ?Message
    {
        $index = count($this->running) < $this->concurrency ? $this->startable() : null;
        return $index === null ? null : array_splice($this->waiting, $index, 1)[0];
    }

    private function begin(): void
    {
        while (!$this->stopping && ($message = $this->next()) !== null) {
            $process = array_pop($this->idle) ?? $this->start($this->invoke(...));
            $timeout = $this->handlerOf($message)['timeout'];
            $process->message = $message;
            $process->began = now();
            $process->until = $timeout === null ? null : $process->began + $timeout;
            $process->killAt = null;
            $this->running[$process->pid] = $process;
            $process->tell($message->row);
        }
    }

    private function handlerOf(Message $message): array
    {
        return $this->handlers[$message->topic] ?? $this->handlers['*'];
    }

    /** In its process: run the handler of a message; what becomes of it. */
    private function invoke(array $row): array
    {
        $message = new Message($row);
        $handler = $this->handlerOf($message);
        for ($left = self::TRANSACTION_TRIES - 1; ; $left--) {
            try {
                $pdo = $handler['transaction'] ? $this->transaction() : null;
                pcntl_signal(SIGUSR1, fn () => throw new LeaseLost(), false);
                try {
                    ($this->wrap)($message, fn () => $handler['call']($message, ...($pdo ? [$pdo] : [])));
                } finally {
                    pcntl_signal(SIGUSR1, fn () => null);
                }
                if ($pdo) {
                    rows($pdo, self::ACK_ONE, [$message->owner_token, $message->id, $message->attempts]);
                    $pdo->commit();
                }
                return ['outcome' => 'ack', 'settled' => $handler['transaction']];
            } catch (Throwable $error) {
                $state = self::state($error);
                $this->undo($error);
                if ($left > 0 && $handler['transaction'] && in_array($state, ['40001', '40P01'], true)) {
                    continue;
                }
                return ['outcome' => match (true) {
                    $error instanceof Permanent => 'fail',
                    $error instanceof LeaseLost, $handler['transaction'] && $state === '55000' => 'lost',
                    default => 'retry',
                }, 'text' => self::describe($error), 'reason' => $error->reason ?? null, 'after' => $error->after ?? null];
            }
        }
    }

    /** A connection in a transaction. One that was idle may have broken since. */
    private function transaction(): PDO
    {
        try {
            $this->own?->beginTransaction();
        } catch (PDOException) {
            $this->own = null;
        }
        if ($this->own === null) {
            $this->own = $this->open();
            $this->own->beginTransaction();
        }
        return $this->own;
    }

    private function undo(Throwable $error): void
    {
        try {
            $this->own?->inTransaction() && $this->own->rollBack();
        } catch (PDOException $error) {
            $this->own = null;
        }
        if (self::repeatable($error) && !str_starts_with(self::state($error), '40')) {
            $this->own = null;
        }
    }

    /** Sleep until something happens or is due. */
    private function await(): void
    {
        $now = now();
        $due = max($this->settleAfter, min($this->renewAt, $this->calls ? 0 : INF,
            $this->acks ? $this->acksSince + self::ACK_SECONDS : INF));
        $due = min($due, $this->claimAfter ?: INF, $this->stopping ? $now + 0.05 : INF, ...array_map(
            fn ($process) => $process->killAt ?? $process->until ?? INF,
            array_values($this->running)
        ));
        $read = array_map(fn ($process) => $process->socket,
            array_filter([...array_values($this->running), $this->claimer]));
        $none = null;
        // a signal between here and there is noticed a second later at most
        $seconds = min(max($due - $now, 0) + 0.0005, 1);
        if (!$read || @stream_select($read, $none, $none, 0, (int) (1e6 * $seconds)) === false) {
            $read || usleep((int) (1e6 * $seconds));
            return;
        }
        foreach ($read as $socket) {
            if ($socket === $this->claimer?->socket) {
                $this->taken($this->claimer->answer());
                continue;
            }
            foreach ($this->running as $process) {
                if ($process->socket === $socket) {
                    $this->finish($process);
                }
            }
        }
    }

    private function finish(Process $process): void
    {
        $answer = $process->answer();
        $message = $process->message;
        unset($this->running[$process->pid]);
        $this->judge($message, $answer ?? ['outcome' => 'retry', 'text' => 'the process has died']);
        if ($answer === null) {
            $process->kill();
        } else {
            $this->idle[] = $process;
        }
        ($this->hook)('finished', ['message' => $message, 'outcome' => $message->outcome,
            'seconds' => now() - $process->began]);
    }

    private function expire(): void
    {
        $now = now();
        foreach ($this->running as $process) {
            if ($process->killAt !== null && $now > $process->killAt) {
                posix_kill($process->pid, SIGKILL);
            } elseif ($process->killAt === null && $process->until !== null && $now > $process->until) {
                $this->judge($process->message, ['outcome' => 'retry', 'text' => 'timeout']);
                $process->cancel();
            }
        }
    }

    /** What becomes of a message is decided once. */
    private function judge(Message $message, array $result): void
    {
        if ($message->outcome !== null) {
            return;
        }
        $message->outcome = $result['outcome'];
        $values = [$message->owner_token, $message->id, $message->attempts, $result['text'] ?? null];
        if ($message->outcome === 'ack' && empty($result['settled'])) {
            $this->acksSince = $this->acks ? $this->acksSince : now();
            $this->acks[] = $message;
        } elseif ($message->outcome === 'fail') {
            $this->calls[] = [self::FAIL, [...$values, $result['reason']]];
        } elseif ($message->outcome === 'retry' || $message->outcome === 'lost') {
            // the server takes back what is behind it in its stream
            $this->drop(fn ($other) => $message->stream_id !== null && $other->stream_id === $message->stream_id);
        }
        if ($message->outcome === 'retry') {
            $this->calls[] = [self::NACK, [...$values, isset($result['after']) ? "{$result['after']} s" : null]];
            $this->retried = [...$this->retried, ...($this->draining ? [$message->stream_id ?? $message->id] : [])];
        }
    }

    private function lose(Message $message): void
    {
        if ($message->outcome !== null) {
            return;
        }
        $this->drop(fn ($other) => $other === $message);
        $this->judge($message, ['outcome' => 'lost']);
        foreach ($this->running as $process) {
            $process->message === $message && $process->cancel();
        }
        ($this->hook)('lost', ['message' => $message]);
    }

    /** Take out what no handler has begun. */
    private function drop(callable $wanted): array
    {
        $dropped = array_filter($this->waiting, $wanted);
        $this->waiting = array_values(array_filter($this->waiting, fn ($message) => !$wanted($message)));
        return $dropped;
    }

    private static function list(array $values): string
    {
        return '{' . implode(',', array_map(fn ($value) => '"' . addcslashes((string) $value, '"\\') . '"', $values)) . '}';
    }

    /** Owners, ids and attempts, as statements take them. */
    private static function parts(array $messages): array
    {
        return array_map(
            fn ($column) => self::list(array_map(fn ($message) => $message->$column, $messages)),
            ['owner_token', 'id', 'attempts']
        );
    }

    private function shutDown(): void
    {
        if ($this->claimer !== null) {
            $this->claimer->kill();
            $this->claimer = null;
            // what the server is claiming in this moment must be there when all is released
            $this->asked === 0 || usleep(200000);
        }
        if ($this->waiting) {
            $this->calls[] = [self::RELEASE, self::parts($this->drop(fn () => true))];
        }
        foreach (now() > $this->deadline ? $this->running : [] as $process) {
            $this->judge($process->message, ['outcome' => 'lost']);
            $process->killAt ?? $process->cancel();
        }
    }

    // Settle and renew

    /** Send what is due, as far as the server answers. */
    private function settle(): void
    {
        while (now() >= $this->settleAfter) {
            $ready = now() > $this->acksSince + self::ACK_SECONDS || count($this->acks) >= self::ACK_IDS;
            if (now() >= $this->renewAt) {
                $this->renew();
            } elseif ($this->calls) {
                $this->tell();
            } elseif ($this->acks && $ready) {
                $this->acknowledge();
            } elseif (!$this->releaseStray()) {
                return;
            }
        }
    }

    /** The rows of a statement; null if the server does not answer at present. */
    private function query(string $sql, array $values): ?array
    {
        try {
            $this->settler ??= $this->open();
            $rows = rows($this->settler, $sql, $values);
            $this->settleDelay = 0.1;
            return $rows;
        } catch (PDOException $error) {
            if (!self::repeatable($error)) {
                throw $error;
            }
            $this->settler = null;
            $this->settleAfter = now() + $this->pause($this->settleDelay);
            ($this->hook)('reconnect', ['error' => self::describe($error)]);
            foreach ($this->leased() as $message) {
                now() > $message->until && $this->lose($message);
            }
            return null;
        }
    }

    private function tell(): void
    {
        [$sql, $values] = $this->calls[0];
        try {
            $answer = $this->query($sql, $values);
        } catch (PDOException $error) {
            if (!str_starts_with(self::state($error), '22') || count($values) !== 5 || $values[3] === null) {
                throw $error;
            }
            // the server does not take what the handler has said
            $this->calls[0] = [$sql, [...array_slice($values, 0, 3), null, null]];
            return;
        }
        $answer === null || array_shift($this->calls);
    }

    private function acknowledge(): void
    {
        $acks = array_slice($this->acks, 0, self::ACK_IDS);
        $answer = $this->query(self::ACK, self::parts($acks));
        if ($answer === null) {
            $this->acksRepeated = true;
            return;
        }
        array_splice($this->acks, 0, count($acks));
        // how many the first of several calls has acknowledged is not known
        $lost = $this->acksRepeated ? 0 : count($acks) - $answer[0]['count'];
        $this->acksRepeated = false;
        ($this->hook)('settled', ['count' => count($acks), 'lost' => $lost]);
    }

    /** What must be renewed. */
    private function leased(): array
    {
        $running = array_map(fn ($process) => $process->message, array_values($this->running));
        return [...$this->waiting, ...array_filter($running, fn ($message) => $message->outcome === null)];
    }

    /** Release what a stray claim may have taken, when nothing of its owner is in hand any more. */
    private function releaseStray(): bool
    {
        $known = array_map(fn ($message) => str_replace('-', '', $message->owner_token), [...$this->leased(), ...$this->acks]);
        foreach (array_diff($this->strays, $known) as $index => $owner) {
            unset($this->strays[$index]);
            $this->calls[] = [self::RELEASE_ALL, [$owner]];
            return true;
        }
        return false;
    }

    private function renew(): void
    {
        $began = now();
        $held = $this->leased();
        $lost = $held ? $this->query(self::RENEW, [...self::parts($held), $this->leaseSeconds]) : [];
        if ($lost === null) {
            return;
        }
        $this->renewAt = $began + $this->leaseSeconds / 3;
        foreach ($held as $message) {
            $message->until = $began + $this->leaseSeconds;
            in_array(['id' => $message->id, 'attempt' => $message->attempts], $lost) && $this->lose($message);
        }
    }
}
