import { type Credentials } from './http.js';
import { Term } from './term.js';
import { type Event } from './watch.js';
export interface ClientOptions extends Credentials {
    /** One or more instances of the service. */
    url: string | readonly string[];
    /** The name of this process, the same as in its credential. */
    nodeId: string;
}
export interface LeadOptions {
    /** How long the lease lasts after the last renewal. Default 8000. */
    ttlMs?: number;
    /** How long before the end of the lease work is told to stop. Default a tenth of the TTL. */
    graceMs?: number;
    /** Limit of the campaign. Default none. */
    timeoutMs?: number;
    /** Ends the campaign, or asks work to end. */
    signal?: AbortSignal;
    metadata?: Record<string, string>;
    address?: string;
    priority?: number;
    /** Exit with code 75 if work still runs when the lease ends. Default true. */
    exitOnOverrun?: boolean;
}
/** Calls a Tenure service in the name of one node. Make one per process. */
export declare class Client {
    #private;
    readonly nodeId: string;
    constructor(options: ClientOptions);
    /**
     * Reads TENURE_STORE (several instances: https://a:7400,b:7400), TENURE_STORE_CREDENTIAL or
     * TENURE_STORE_CREDENTIAL_FILE, TENURE_STORE_CA, TENURE_STORE_CERT and TENURE_STORE_KEY, as the
     * command `tenure` does.
     */
    static fromEnv(nodeId: string, env?: NodeJS.ProcessEnv): Client;
    /**
     * Campaigns until this process leads the group, runs work, resigns after work has returned, and
     * returns its result.
     *
     * Work should return soon after term.signal is aborted: the term has ended or is about to be
     * given to another process. If work still runs when the lease ends, the process exits with code
     * 75, unless exitOnOverrun is false.
     *
     * Throws NotElected, ServiceError if the service refuses definitely, TermEnded if the lease
     * ended before work returned, and what work throws.
     */
    lead<T>(group: string, work: (term: Term) => Promise<T> | T, options?: LeadOptions): Promise<T>;
    /**
     * Returns who leads, as docs/api.md describes. It is never a permission to act. Throws
     * ServiceError with the code no_leader if nobody leads.
     */
    leader(group: string): Promise<Record<string, unknown>>;
    /**
     * Yields the state of the groups and then each change once, through interruptions, until the
     * signal is aborted. If changes were missed, it yields an event whose kind is reset, and then
     * the current state.
     */
    watch(groups: string | readonly string[], signal?: AbortSignal): AsyncGenerator<Event>;
}
