<?php
/** The workers of Outbox.php, which is the file to be required. */

declare(strict_types=1);

namespace Outbox;

use PDO;
use PDOException;
use Throwable;

/** A claimed message: its properties are the columns of outbox.message. */
class Message
{
    public ?string $outcome = null; // decided once: ack, retry, fail or lost

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

    /** @param Process[] $others whose sockets the new one must not keep open */
    public static function start(callable $answer, array $others): self
    {
        [$ours, $theirs] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        $pid = pcntl_fork();
        if ($pid > 0) {
            fclose($theirs);
            return new self($pid, $ours);
        }
        foreach ($others as $other) {
            fclose($other->socket);
        }
        fclose($ours);
        pcntl_signal(SIGTERM, fn () => null); // the parent decides
        pcntl_signal(SIGINT, fn () => null);
        pcntl_signal(SIGUSR1, fn () => null);
        while (($line = fgets($theirs)) !== false) {
            fwrite($theirs, json_encode($answer(json_decode($line, true)), JSON_THROW_ON_ERROR) . "\n");
        }
        self::vanish();
    }

    /** End without destructors: those of PDO would close what is the parent's. */
    public static function vanish(): never
    {
        posix_kill(posix_getpid(), SIGKILL);
        exit;
    }

    public function tell(mixed $what): void
    {
        fwrite($this->socket, json_encode($what, JSON_THROW_ON_ERROR) . "\n");
    }

    /** Its answer; null if it has died. */
    public function answer(): mixed
    {
        $line = fgets($this->socket);
        return $line === false ? null : json_decode($line, true);
    }

    public function cancel(): void
    {
        posix_kill($this->pid, SIGUSR1);
        $this->killAt = microtime(true) + 1;
    }

    public function kill(): void
    {
        posix_kill($this->pid, SIGKILL);
        pcntl_waitpid($this->pid, $status);
    }
}

class Worker
{
    private const COLUMNS = 'id, message_id, namespace, topic, payload, headers, correlation_id,
        tenant_id, dedupe_key, stream_id, attempts, retry_count, created_at, due_time, locked_until,
        subscription, published_id, priority';
    private const CLAIM = 'SELECT ' . self::COLUMNS . ' FROM outbox.claim(?::text::uuid, ?::text::int,
        ?::text::int, ?::text, ?::text::text[], ?::text::uuid, ?::text::int, ?::text::int, ?::text)';
    private const ACK = 'SELECT outbox.ack(?::text::uuid, ?::text::bigint[], ?::text::int[]) AS count';
    private const ACK_ONE = 'SELECT outbox.ack_one(?::text::uuid, ?::text::bigint, ?::text::int, strict => true)';
    private const NACK = 'SELECT outbox.release(?::text::uuid, ?::text::bigint[]), outbox.nack_one(
        ?::text::uuid, ?::text::bigint, ?::text, ?::text::interval, ?::text::int)';
    private const FAIL = 'SELECT outbox.fail_one(?::text::uuid, ?::text::bigint, ?::text, ?::text::int,
        ?::text::int)';
    private const RENEW = 'SELECT outbox.renew(?::text::uuid, ?::text::bigint[], ?::text::int,
        ?::text::int[]) AS count';
    private const LOST = 'SELECT id, attempt FROM unnest(?::text::bigint[], ?::text::int[]) AS held(id, attempt)
        WHERE outbox.renew_one(?::text::uuid, id, ?::text::int, attempt) = 0';
    private const RELEASE = 'SELECT outbox.release(?::text::uuid, ?::text::bigint[])';
    private const RELEASE_ALL = 'SELECT outbox.release(?::text::uuid)';
    private const ACK_SECONDS = 0.005, ACK_IDS = 100, TRANSACTION_TRIES = 3;

    private array $handlers = [];
    private string $owner = '';
    private ?PDO $settler = null;
    private ?PDO $own = null;         // of a process: for transactions, or for claims
    private ?Process $claimer = null;
    private array $waiting = [];      // claimed, not begun
    private array $running = [];      // processes, by pid
    private array $idle = [];
    private array $acks = [];
    private array $calls = [];        // what fails or goes back
    private int $asked = 0;           // by the claim that is under way
    private int $target = 0;
    private bool $full = false;
    private float $claimedAt = 0;
    private float $claimAfter = 0;
    private float $claimDelay = 0.1;
    private float $acksSince = 0;
    private float $renewAt = 0;
    private float $deadline = INF;
    private bool $stopping = false;

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
        $this->reset();
        $before = [pcntl_async_signals(true), pcntl_signal_get_handler(SIGTERM), pcntl_signal_get_handler(SIGINT)];
        pcntl_signal(SIGTERM, fn () => $this->stop(), false);
        pcntl_signal(SIGINT, fn () => $this->stop(), false);
        try {
            $this->claimer = $this->start($this->claim(...));
            while (!$this->stopping || $this->running) {
                $this->begin();
                $this->askForMore();
                $this->await();
                $this->expire();
                $this->settle();
                if ($this->stopping) {
                    $this->shutDown();
                }
            }
            $this->shutDown();
            $this->settle(true);
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
        $this->deadline = $this->stopping ? 0 : microtime(true) + $this->shutdownSeconds;
        $this->stopping = true;
    }

    /** For tests: handle, in this process, until nothing is due; how many messages. */
    public function drain(): int
    {
        $this->reset();
        for ($handled = 0; $rows = $this->call(self::CLAIM, $this->claimValues($this->concurrency, 0)); ) {
            foreach ($rows as $row) {
                $this->judge(new Message($row), $this->invoke($row));
                $handled++;
            }
            $this->acksSince = 0;
            $this->settle();
        }
        $this->settler = $this->own = null;
        return $handled;
    }

    private function reset(): void
    {
        $this->handlers || throw new \LogicException('no topic has a handler');
        $this->owner = bin2hex(random_bytes(16));
        $this->waiting = $this->running = $this->idle = $this->acks = $this->calls = [];
        $this->asked = 0;
        $this->target = $this->concurrency;
        $this->full = $this->stopping = false;
        $this->claimAfter = $this->claimedAt = 0;
        $this->claimDelay = 0.1;
        $this->deadline = INF;
        $this->renewAt = microtime(true) + $this->leaseSeconds / 3;
        $this->settler = $this->open();
    }

    private function open(): PDO
    {
        $pdo = ($this->connect)();
        $pdo->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
        return $pdo;
    }

    private function start(\Closure $answer): Process
    {
        return Process::start($answer, array_filter([$this->claimer, ...$this->running, ...$this->idle]));
    }

    /** A statement of settling, repeated until it is answered. */
    private function call(string $sql, array $values, ?bool &$repeated = null): array
    {
        for ($delay = 0.1; ; $delay = min(2 * $delay, 5)) {
            try {
                $this->settler ??= $this->open();
                return rows($this->settler, $sql, $values);
            } catch (PDOException $error) {
                if (!self::repeatable($error) || microtime(true) > $this->deadline + 2) {
                    throw $error;
                }
                $this->settler = null;
                ($this->hook)('reconnect', ['error' => self::describe($error)]);
            }
            usleep((int) (1e6 * $delay * random_int(50, 100) / 100));
            $repeated = true;
        }
    }

    private static function state(Throwable $error): string
    {
        return $error instanceof PDOException ? (string) ($error->errorInfo[0] ?? $error->getCode()) : '';
    }

    /** HY000 is what PDO says of a connection that has gone, and 7 if it cannot be made. */
    private static function repeatable(Throwable $error): bool
    {
        return preg_match('/^(08|40001|40P01|57P0[123]|HY000|7$)/', self::state($error)) === 1;
    }

    /** What is recorded of an error: never a text that may quote the payload. */
    private static function describe(Throwable $error): string
    {
        $text = $error instanceof Permanent || $error instanceof Retry
            ? $error->getMessage()
            : trim(get_class($error) . ' ' . self::state($error));
        return preg_replace('/^(.{500}).*$/us', '$1', str_replace("\0", '', $text));
    }

    // Claim

    private function claimValues(int $asked, int $waitMs): array
    {
        $topics = isset($this->handlers['*']) ? null : '{' . implode(',', array_map(
            fn ($topic) => '"' . addcslashes((string) $topic, '"\\') . '"',
            array_keys($this->handlers)
        )) . '}';
        return [$this->owner, $this->leaseSeconds, $asked, $this->namespace, $topics, $this->tenantId,
            $this->maxAttempts, $waitMs, $this->subscription];
    }

    /** In its process: the rows of a claim, or the error. */
    private function claim(int $asked): array
    {
        try {
            $this->own ??= $this->open();
            return ['rows' => rows($this->own, self::CLAIM, $this->claimValues($asked, $this->waitMs))];
        } catch (PDOException $error) {
            $this->own = null;
            if (self::state($error) === '57014') {
                return ['rows' => []];
            }
            return ['error' => $error->getMessage(), 'about' => self::describe($error), 'again' => self::repeatable($error)];
        }
    }

    /** How many messages to claim now; 0 if no slot is free for one. */
    private function ask(): int
    {
        $free = $this->concurrency - count($this->running);
        $held = count($this->waiting) + count($this->running);
        $took = microtime(true) - $this->claimedAt;
        if ($free === 0 || $this->startable() !== null) {
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
        if ($this->asked === 0 && !$this->stopping && microtime(true) >= $this->claimAfter
            && $this->asked = $this->ask()) {
            $this->claimer->tell($this->asked);
        }
    }

    private function take(array $answer): void
    {
        if (isset($answer['error'])) {
            $answer['again'] || throw new \RuntimeException($answer['error']);
            ($this->hook)('reconnect', ['error' => $answer['about']]);
            $this->claimAfter = microtime(true) + $this->claimDelay * random_int(50, 100) / 100;
            $this->claimDelay = min(2 * $this->claimDelay, 5);
        } else {
            array_push($this->waiting, ...array_map(fn ($row) => new Message($row), $answer['rows']));
            $this->full = count($answer['rows']) === $this->asked;
            $this->claimedAt = microtime(true);
            $this->claimDelay = 0.1;
            ($this->hook)('claimed', ['count' => count($answer['rows']), 'asked' => $this->asked]);
        }
        $this->asked = 0;
    }

    // Handle

    /** The first message that is not beside another of its stream. */
    private function startable(): ?int
    {
        $busy = array_filter(array_map(fn ($process) => $process->message->stream_id, $this->running));
        foreach ($this->waiting as $index => $message) {
            if (!in_array($message->stream_id, $busy, true)) {
                return $index;
            }
        }
        return null;
    }

    private function begin(): void
    {
        while (!$this->stopping && count($this->running) < $this->concurrency && ($index = $this->startable()) !== null) {
            [$message] = array_splice($this->waiting, $index, 1);
            $process = array_pop($this->idle) ?? $this->start($this->invoke(...));
            $timeout = $this->handlerOf($message)['timeout'];
            $process->message = $message;
            $process->began = microtime(true);
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
        pcntl_signal(SIGUSR1, fn () => throw new LeaseLost(), false);
        for ($left = self::TRANSACTION_TRIES - 1; ; $left--) {
            try {
                if (!$handler['transaction']) {
                    ($this->wrap)($message, fn () => $handler['call']($message));
                    $result = ['outcome' => 'ack'];
                } else {
                    $pdo = $this->own ??= $this->open();
                    $pdo->beginTransaction();
                    ($this->wrap)($message, fn () => $handler['call']($message, $pdo));
                    rows($pdo, self::ACK_ONE, [$this->owner, $message->id, $message->attempts]);
                    $pdo->commit();
                    $result = ['outcome' => 'ack', 'settled' => true];
                }
                pcntl_signal(SIGUSR1, fn () => null);
                return $result;
            } catch (LeaseLost) {
                Process::vanish();
            } catch (Throwable $error) {
                $state = self::state($error);
                try {
                    $this->own?->inTransaction() && $this->own->rollBack();
                } catch (PDOException) {
                    $this->own = null;
                }
                if (self::repeatable($error) && !str_starts_with($state, '40')) {
                    $this->own = null;
                }
                if ($left > 0 && $handler['transaction'] && in_array($state, ['40001', '40P01'], true)) {
                    continue;
                }
                pcntl_signal(SIGUSR1, fn () => null);
                return ['outcome' => match (true) {
                    $error instanceof Permanent => 'fail',
                    $handler['transaction'] && $state === '55000' => 'lost',
                    default => 'retry',
                }, 'text' => self::describe($error), 'reason' => $error->reason ?? null, 'after' => $error->after ?? null];
            }
        }
    }

    /** Sleep until something happens or is due. */
    private function await(): void
    {
        $now = microtime(true);
        $due = array_filter([$this->renewAt, $this->acks ? $this->acksSince + self::ACK_SECONDS : null,
            $this->claimAfter > $now ? $this->claimAfter : null, $this->stopping ? $now + 0.05 : null,
            ...array_map(fn ($process) => $process->killAt ?? $process->until, array_values($this->running))]);
        $seconds = $this->calls ? 0 : max(min($due) - $now, 0);
        $read = array_map(fn ($process) => $process->socket, 
            array_filter([...array_values($this->running), $this->claimer]));
        $none = null;
        // a signal between here and there is noticed a second later at most
        if (@stream_select($read, $none, $none, 0, (int) (1e6 * min($seconds + 0.0005, 1))) === false) {
            return;
        }
        foreach ($read as $socket) {
            if ($socket === $this->claimer?->socket) {
                $this->take($this->claimer->answer() ?? throw new \RuntimeException('the process that claims has died'));
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
            'seconds' => microtime(true) - $process->began]);
    }

    private function expire(): void
    {
        $now = microtime(true);
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
        if ($message->outcome === 'ack' && !isset($result['settled'])) {
            $this->acksSince = $this->acks ? $this->acksSince : microtime(true);
            $this->acks[] = $message;
        } elseif ($message->outcome === 'fail') {
            $this->calls[] = [self::FAIL, [$this->owner, $message->id, $result['text'], $result['reason'], $message->attempts]];
        } elseif ($message->outcome === 'retry' || $message->outcome === 'lost') {
            $behind = $this->drop(fn ($other) => $message->stream_id !== null && $other->stream_id === $message->stream_id);
            $after = isset($result['after']) ? "{$result['after']} s" : null;
            if ($message->outcome === 'retry') {
                $this->calls[] = [self::NACK, [$this->owner, $behind, $this->owner, $message->id, $result['text'], $after,
                    $message->attempts]];
            }
        }
    }

    /** Take out what no handler has begun; the ids. */
    private function drop(callable $wanted): string
    {
        $dropped = array_filter($this->waiting, $wanted);
        $this->waiting = array_values(array_filter($this->waiting, fn ($message) => !$wanted($message)));
        return self::list($dropped, 'id');
    }

    private static function list(array $messages, string $column): string
    {
        return '{' . implode(',', array_map(fn ($message) => $message->$column, $messages)) . '}';
    }

    private function shutDown(): void
    {
        // what it has claimed at this moment is released at the end
        $this->claimer?->kill();
        $this->claimer = null;
        if ($this->waiting) {
            $this->calls[] = [self::RELEASE, [$this->owner, $this->drop(fn () => true)]];
        }
        foreach (microtime(true) > $this->deadline ? $this->running : [] as $process) {
            $this->judge($process->message, ['outcome' => 'lost']);
            $process->killAt ?? $process->cancel();
        }
    }

    // Settle and renew

    private function settle(bool $ending = false): void
    {
        while ($this->acks && ($ending || count($this->acks) >= self::ACK_IDS
            || microtime(true) > $this->acksSince + self::ACK_SECONDS)) {
            $acks = array_splice($this->acks, 0, self::ACK_IDS);
            $repeated = false;
            $values = [$this->owner, self::list($acks, 'id'), self::list($acks, 'attempts')];
            $count = $this->call(self::ACK, $values, $repeated)[0]['count'];
            ($this->hook)('settled', ['count' => count($acks), 'lost' => $repeated ? 0 : count($acks) - $count]);
        }
        foreach (array_splice($this->calls, 0) as [$sql, $values]) {
            $this->call($sql, $values);
        }
        if ($ending) {
            $this->call(self::RELEASE_ALL, [$this->owner]);
        } elseif (microtime(true) > $this->renewAt) {
            $this->renew();
        }
    }

    private function renew(): void
    {
        $this->renewAt = microtime(true) + $this->leaseSeconds / 3;
        $running = array_map(fn ($process) => $process->message, array_values($this->running));
        $held = [...$this->waiting, ...array_filter($running, fn ($message) => $message->outcome === null)];
        if (!$held) {
            return;
        }
        [$ids, $attempts] = [self::list($held, 'id'), self::list($held, 'attempts')];
        if ($this->call(self::RENEW, [$this->owner, $ids, $this->leaseSeconds, $attempts])[0]['count'] === count($held)) {
            return;
        }
        $lost = $this->call(self::LOST, [$ids, $attempts, $this->owner, $this->leaseSeconds]);
        foreach ($held as $message) {
            if (!in_array(['id' => $message->id, 'attempt' => $message->attempts], $lost) || $message->outcome !== null) {
                continue;
            }
            $this->drop(fn ($other) => $other === $message);
            $this->judge($message, ['outcome' => 'lost']);
            foreach ($this->running as $process) {
                if ($process->message === $message) {
                    $process->cancel();
                }
            }
            ($this->hook)('lost', ['message' => $message]);
        }
    }
}
