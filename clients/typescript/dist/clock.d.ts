/** A point in time, on clocks that nobody can set. In milliseconds. */
export interface Instant {
    readonly steady: number;
    readonly boot: number;
}
/** Node's own clock stops on Linux while the machine is suspended. The uptime does not. */
export declare function now(): Instant;
/** Milliseconds since then. The uptime counts hundredths of a second. */
export declare function since(then: Instant): number;
/** Waits for some milliseconds, or until the signal is aborted. It never fails. */
export declare function pause(ms: number, signal?: AbortSignal): Promise<void>;
export declare function between(least: number, most: number): number;
