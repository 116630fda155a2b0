import { now, since } from './clock.js';
import { TermEnded } from './errors.js';
/** The largest difference in rate between this clock and the engine's, as a fraction. */
const drift = 0.02;
/** How long after it sent a call a leader may work, if the call was answered with this TTL. */
export function window(ttlMs, graceMs) {
    return ttlMs * (1 - drift) - Math.max(50, ttlMs / 40) - graceMs;
}
/** One uninterrupted leadership of a group. */
export class Term {
    group;
    nodeId;
    graceMs;
    /** The fencing token: send it with every write. */
    token;
    deployment;
    /** Whether the group's policy says that everything the leader writes to checks the token. */
    fenced;
    /** The operator's request, if there is one. */
    request;
    /** @internal */
    ttlMs;
    /** @internal The lease was last extended by a call sent at `sent`; the term ends `span` ms later. */
    lease;
    /** @internal Why the lease has ended. */
    over;
    /** @internal When it was seen to end. */
    overAt;
    #stop = new AbortController();
    #handle;
    /** @internal */
    constructor(group, nodeId, answer, sent, 
    /** @internal */
    graceMs) {
        this.group = group;
        this.nodeId = nodeId;
        this.graceMs = graceMs;
        this.token = answer['term'];
        this.deployment = answer['deployment'];
        this.fenced = Boolean(answer['fenced']);
        this.ttlMs = answer['ttl_ms'];
        this.#handle = answer['handle'];
        this.lease = { sent, span: answer['held_ms'] + window(this.ttlMs, graceMs) };
        if (!Number.isSafeInteger(this.token) || !Number.isFinite(this.lease.span))
            throw new TypeError('the answer to the campaign is not complete');
    }
    /** Aborted when work should end. Its reason is the TermEnded. */
    get signal() {
        return this.#stop.signal;
    }
    /** Why work should end; undefined while it may go on. */
    get reason() {
        return this.over ?? this.signal.reason?.reason;
    }
    /** Milliseconds until the term ends, if no further renewal is acknowledged. */
    remaining() {
        return this.over ? 0 : Math.max(0, this.lease.span - since(this.lease.sent));
    }
    /**
     * Throws TermEnded if work must not go on. Call it directly before each step. It reads a clock
     * and makes no call.
     */
    check() {
        this.expire();
        if (this.reason)
            throw new TermEnded(this.group, this.token, this.reason);
    }
    /** Returns the stamp for an HTTP request to a fenced resource. */
    headers(seq) {
        const stamp = {
            'Fencing-Deployment': this.deployment,
            'Fencing-Group': this.group,
            'Fencing-Token': String(this.token),
        };
        if (seq !== undefined)
            stamp['Fencing-Seq'] = String(seq);
        return stamp;
    }
    /** @internal */
    claim() {
        return { node_id: this.nodeId, term: this.token, handle: this.#handle };
    }
    /** @internal */
    expire() {
        if (!this.over && this.remaining() <= 0)
            this.end('expired');
    }
    /** @internal A term that has ended stays so, even if the renewal was acknowledged. */
    extend(sent, ttlMs) {
        this.expire();
        if (!this.over)
            this.lease = { sent, span: window(ttlMs, this.graceMs) };
    }
    /** @internal */
    end(over) {
        if (this.over)
            return;
        this.over = over;
        this.overAt = now();
        this.ask(over);
    }
    /** @internal Aborts the signal. The first reason stays. */
    ask(reason) {
        if (!this.signal.aborted)
            this.#stop.abort(new TermEnded(this.group, this.token, reason));
    }
}
