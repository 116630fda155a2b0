/** Any error of this package. `code` is stable; `retryable` says whether the same call may succeed later. */
export class TenureError extends Error {
    code;
    retryable;
    constructor(message, code, retryable, options) {
        super(message, options);
        this.name = new.target.name;
        this.code = code;
        this.retryable = retryable;
    }
}
/** The service refused a call. docs/api.md lists the codes. */
export class ServiceError extends TenureError {
    status;
    detail;
    /** The whole answer. */
    problem;
    /** Milliseconds after which a retry makes sense, if the service said so. */
    retryAfterMs;
    leaderNodeId;
    term;
    constructor(status, problem, retryAfterMs) {
        const code = String(problem['code'] ?? 'unknown');
        const detail = String(problem['detail'] ?? '');
        super(`${status} ${code}: ${detail}`, code, Boolean(problem['retryable'] ?? status >= 500));
        this.status = status;
        this.detail = detail;
        this.problem = problem;
        this.retryAfterMs = retryAfterMs;
        this.leaderNodeId = problem['leader_node_id'];
        this.term = problem['term'];
    }
}
/** No service gave a complete answer. The call may have taken effect; it can be repeated. */
export class NoAnswer extends TenureError {
    constructor(message, cause) {
        super(message, 'no_answer', true, { cause });
    }
}
/** The timeout of `lead` passed, or its signal was aborted, before this process led. */
export class NotElected extends TenureError {
    constructor(group) {
        super(`lead ${group}: not elected in time, or cancelled`, 'not_elected', true);
    }
}
/** Work must not go on. */
export class TermEnded extends TenureError {
    group;
    token;
    reason;
    constructor(group, token, reason, cause) {
        super(`${group}: term ${token} has ended: ${reason}`, 'term_ended', false, { cause });
        this.group = group;
        this.token = token;
        this.reason = reason;
    }
}
