/** Any error of this package. `code` is stable; `retryable` says whether the same call may succeed later. */
export declare class TenureError extends Error {
    readonly code: string;
    readonly retryable: boolean;
    constructor(message: string, code: string, retryable: boolean, options?: ErrorOptions);
}
/** The service refused a call. docs/api.md lists the codes. */
export declare class ServiceError extends TenureError {
    readonly status: number;
    readonly detail: string;
    /** The whole answer. */
    readonly problem: Readonly<Record<string, unknown>>;
    /** Milliseconds after which a retry makes sense, if the service said so. */
    readonly retryAfterMs: number | undefined;
    readonly leaderNodeId: string | undefined;
    readonly term: number | undefined;
    constructor(status: number, problem: Record<string, unknown>, retryAfterMs?: number);
}
/** No service gave a complete answer. The call may have taken effect; it can be repeated. */
export declare class NoAnswer extends TenureError {
    constructor(message: string, cause?: unknown);
}
/** The timeout of `lead` passed, or its signal was aborted, before this process led. */
export declare class NotElected extends TenureError {
    constructor(group: string);
}
/**
 * Why work must not go on: expired (no renewal was acknowledged in time), lost (the service says
 * that the term is over), step-down, transfer (an operator asks for the group), cancelled (the
 * signal was aborted), finished (work has returned).
 */
export type Reason = 'expired' | 'lost' | 'step-down' | 'transfer' | 'cancelled' | 'finished';
/** Work must not go on. */
export declare class TermEnded extends TenureError {
    readonly group: string;
    readonly token: number;
    readonly reason: Reason;
    constructor(group: string, token: number, reason: Reason, cause?: unknown);
}
