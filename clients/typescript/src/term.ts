import { type Instant, now, since } from './clock.js'
import { type Reason, TermEnded } from './errors.js'
import type { Body } from './http.js'

/** The largest difference in rate between this clock and the engine's, as a fraction. */
const drift = 0.02

/** How long after it sent a call a leader may work, if the call was answered with this TTL. */
export function window(ttlMs: number, graceMs: number): number {
  return ttlMs * (1 - drift) - Math.max(50, ttlMs / 40) - graceMs
}

/** What an operator asks of the leader. Work that returns obeys it. */
export interface Request {
  readonly verb: 'step-down' | 'transfer'
  readonly to: string
  readonly reason: string
}

/** One uninterrupted leadership of a group. */
export class Term {
  /** The fencing token: send it with every write. */
  readonly token: number
  readonly deployment: string
  /** Whether the group's policy says that everything the leader writes to checks the token. */
  readonly fenced: boolean
  /** The operator's request, if there is one. */
  request: Request | undefined
  /** @internal */
  readonly ttlMs: number
  /** @internal The lease was last extended by a call sent at `sent`; the term ends `span` ms later. */
  lease: { sent: Instant; span: number }
  /** @internal Why the lease has ended. */
  over: 'expired' | 'lost' | undefined
  /** @internal When it was seen to end. */
  overAt: Instant | undefined
  readonly #stop = new AbortController()
  readonly #handle: string

  /** @internal */
  constructor(
    readonly group: string,
    readonly nodeId: string,
    answer: Body,
    sent: Instant,
    /** @internal */
    readonly graceMs: number,
  ) {
    this.token = answer['term'] as number
    this.deployment = answer['deployment'] as string
    this.fenced = Boolean(answer['fenced'])
    this.ttlMs = answer['ttl_ms'] as number
    this.#handle = answer['handle'] as string
    this.lease = { sent, span: (answer['held_ms'] as number) + window(this.ttlMs, graceMs) }
    if (!Number.isSafeInteger(this.token) || !Number.isFinite(this.lease.span)) throw new TypeError('the answer to the campaign is not complete')
  }

  /** Aborted when work should end. Its reason is the TermEnded. */
  get signal(): AbortSignal {
    return this.#stop.signal
  }

  /** Why work should end; undefined while it may go on. */
  get reason(): Reason | undefined {
    return this.over ?? (this.signal.reason as TermEnded | undefined)?.reason
  }

  /** Milliseconds until the term ends, if no further renewal is acknowledged. */
  remaining(): number {
    return this.over ? 0 : Math.max(0, this.lease.span - since(this.lease.sent))
  }

  /**
   * Throws TermEnded if work must not go on. Call it directly before each step. It reads a clock
   * and makes no call.
   */
  check(): void {
    this.expire()
    if (this.reason) throw new TermEnded(this.group, this.token, this.reason)
  }

  /** Returns the stamp for an HTTP request to a fenced resource. */
  headers(seq?: number): Record<string, string> {
    const stamp: Record<string, string> = {
      'Fencing-Deployment': this.deployment,
      'Fencing-Group': this.group,
      'Fencing-Token': String(this.token),
    }
    if (seq !== undefined) stamp['Fencing-Seq'] = String(seq)
    return stamp
  }

  /** @internal */
  claim(): Body {
    return { node_id: this.nodeId, term: this.token, handle: this.#handle }
  }

  /** @internal */
  expire(): void {
    if (!this.over && this.remaining() <= 0) this.end('expired')
  }

  /** @internal A term that has ended stays so, even if the renewal was acknowledged. */
  extend(sent: Instant, ttlMs: number): void {
    this.expire()
    if (!this.over) this.lease = { sent, span: window(ttlMs, this.graceMs) }
  }

  /** @internal */
  end(over: 'expired' | 'lost'): void {
    if (this.over) return
    this.over = over
    this.overAt = now()
    this.ask(over)
  }

  /** @internal Aborts the signal. The first reason stays. */
  ask(reason: Reason): void {
    if (!this.signal.aborted) this.#stop.abort(new TermEnded(this.group, this.token, reason))
  }
}
