/** Any error of this package. `code` is stable; `retryable` says whether the same call may succeed later. */
export class TenureError extends Error {
  readonly code: string
  readonly retryable: boolean

  constructor(message: string, code: string, retryable: boolean, options?: ErrorOptions) {
    super(message, options)
    this.name = new.target.name
    this.code = code
    this.retryable = retryable
  }
}

/** The service refused a call. docs/api.md lists the codes. */
export class ServiceError extends TenureError {
  readonly status: number
  readonly detail: string
  /** The whole answer. */
  readonly problem: Readonly<Record<string, unknown>>
  /** Milliseconds after which a retry makes sense, if the service said so. */
  readonly retryAfterMs: number | undefined
  readonly leaderNodeId: string | undefined
  readonly term: number | undefined

  constructor(status: number, problem: Record<string, unknown>, retryAfterMs?: number) {
    const code = String(problem['code'] ?? 'unknown')
    const detail = String(problem['detail'] ?? '')
    super(`${status} ${code}: ${detail}`, code, Boolean(problem['retryable'] ?? status >= 500))
    this.status = status
    this.detail = detail
    this.problem = problem
    this.retryAfterMs = retryAfterMs
    this.leaderNodeId = problem['leader_node_id'] as string | undefined
    this.term = problem['term'] as number | undefined
  }
}

/** No service gave a complete answer. The call may have taken effect; it can be repeated. */
export class NoAnswer extends TenureError {
  constructor(message: string, cause?: unknown) {
    super(message, 'no_answer', true, { cause })
  }
}

/** The timeout of `lead` passed, or its signal was aborted, before this process led. */
export class NotElected extends TenureError {
  constructor(group: string) {
    super(`lead ${group}: not elected in time, or cancelled`, 'not_elected', true)
  }
}

/**
 * Why work must not go on: expired (no renewal was acknowledged in time), lost (the service says
 * that the term is over), step-down, transfer (an operator asks for the group), cancelled (the
 * signal was aborted), finished (work has returned).
 */
export type Reason = 'expired' | 'lost' | 'step-down' | 'transfer' | 'cancelled' | 'finished'

/** Work must not go on. */
export class TermEnded extends TenureError {
  constructor(
    readonly group: string,
    readonly token: number,
    readonly reason: Reason,
    cause?: unknown,
  ) {
    super(`${group}: term ${token} has ended: ${reason}`, 'term_ended', false, { cause })
  }
}
