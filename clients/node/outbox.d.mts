/** What enqueue and publish take beside topic and payload. dedupeFor is an interval: '1 hour'. */
export interface Options {
  namespace?: string, correlationId?: string, messageId?: string, tenantId?: string
  streamId?: string, priority?: -2 | -1 | 0 | 1 | 2
  dueTime?: Date | string, expiresAt?: Date | string
  dedupeKey?: string, dedupeFor?: string, onDuplicate?: 'keep' | 'replace' | 'debounce'
  headers?: Record<string, unknown>, traceparent?: string
}

export interface BatchMessage extends Options { topic: string, payload: unknown }

/** A client or pool of pg, or an instance or transaction of postgres. */
export type Conn =
  | { query(text: string, values: unknown[]): Promise<{ rows: any[] }> }
  | { unsafe(text: string, values: any[]): PromiseLike<any[]> }

export function enqueue(
  conn: Conn, topic: string, payload: unknown, options?: Options): Promise<string>
export function publish(
  conn: Conn, topic: string, payload: unknown, options?: Options): Promise<string>
export function enqueueBatch(conn: Conn, messages: BatchMessage[]):
  Promise<{ messageId: string, enqueued: boolean, outcome: string }[]>
export function publishBatch(conn: Conn, messages: BatchMessage[]):
  Promise<{ messageId: string, deliveries: number }[]>
export function advance(conn: Conn, seconds: number): Promise<number>

export class Permanent extends Error { constructor(text?: string, reason?: number | null) }
export class Retry extends Error { constructor(text?: string, after?: number | null) }
export class LeaseLost extends Error {}

/** The columns of outbox.message. */
export interface Message {
  id: string, messageId: string, namespace: string, topic: string, payload: string
  headers: Record<string, unknown> | null, correlationId: string | null
  tenantId: string | null, dedupeKey: string | null, streamId: string | null
  attempts: number, retryCount: number, priority: number
  createdAt: Date, dueTime: Date | null, lockedUntil: Date, ownerToken: string
  subscription: string | null, publishedId: string | null
  /** Aborted when the lease is lost or the handler has taken too long. */
  readonly signal: AbortSignal
  readonly traceparent: string | null
  json(): any
}

export interface WorkerOptions {
  concurrency?: number, maxBatch?: number, leaseSeconds?: number, waitMs?: number
  shutdownSeconds?: number, maxAttempts?: number | null
  subscription?: string | null, namespace?: string | null, tenantId?: string | null
  hook?: (
    event: 'claimed' | 'finished' | 'settled' | 'lost' | 'reconnect',
    fields: Record<string, any>) => void
  wrap?: (message: Message, call: () => Promise<void>) => Promise<void>
}

/** C is what connect makes: the type of the connection that handlers get. */
export class Worker<C = any> {
  constructor(connect: () => C | Promise<C>, options?: WorkerOptions)
  handle(topic: string, handler: (message: Message, conn: C) => unknown,
    options?: { timeoutSeconds?: number | null, transaction?: boolean }): this
  run(): Promise<void>
  drain(): Promise<number>
  stop(): void
}
