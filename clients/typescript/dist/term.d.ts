import { type Reason } from './errors.js';
/** How long after it sent a call a leader may work, if the call was answered with this TTL. */
export declare function window(ttlMs: number, graceMs: number): number;
/** What an operator asks of the leader. Work that returns obeys it. */
export interface Request {
    readonly verb: 'step-down' | 'transfer';
    readonly to: string;
    readonly reason: string;
}
/** One uninterrupted leadership of a group. */
export declare class Term {
    #private;
    readonly group: string;
    readonly nodeId: string;
    /** The fencing token: send it with every write. */
    readonly token: number;
    readonly deployment: string;
    /** Whether the group's policy says that everything the leader writes to checks the token. */
    readonly fenced: boolean;
    /** The operator's request, if there is one. */
    request: Request | undefined;
    /** Aborted when work should end. Its reason is the TermEnded. */
    get signal(): AbortSignal;
    /** Why work should end; undefined while it may go on. */
    get reason(): Reason | undefined;
    /** Milliseconds until the term ends, if no further renewal is acknowledged. */
    remaining(): number;
    /**
     * Throws TermEnded if work must not go on. Call it directly before each step. It reads a clock
     * and makes no call.
     */
    check(): void;
    /** Returns the stamp for an HTTP request to a fenced resource. */
    headers(seq?: number): Record<string, string>;
}
