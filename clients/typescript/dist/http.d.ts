export interface Credentials {
    /** The bearer credential. */
    credential?: string | undefined;
    /** A file with the bearer credential, read for each call. */
    credentialFile?: string | undefined;
    /** The authorities that sign the service's certificate. Default: those of Node. */
    caFile?: string | undefined;
    /** The client certificate and its key. */
    certFile?: string | undefined;
    keyFile?: string | undefined;
}
export type Body = Record<string, unknown>;
/**
 * Calls to the service. Every call has a connection of its own and a deadline. Not fetch: it
 * cannot send a client certificate without another package.
 */
export declare class Transport {
    #private;
    constructor(urls: readonly string[], how: Credentials);
    /**
     * Returns the answer, or throws ServiceError or NoAnswer. If a service does not answer or
     * fails, the next call tries the next URL.
     */
    call(method: string, path: string, body: Body | undefined, timeoutMs: number, signal?: AbortSignal): Promise<Body>;
}
