import type { Transport } from './http.js';
/** The state of a group, or a change of it. */
export interface StateEvent {
    /** snapshot: the current state. changed: it has changed. */
    readonly kind: 'snapshot' | 'changed';
    readonly group: string;
    readonly state: 'led' | 'vacant' | 'unknown';
    /** Of the newest term, ended or not. */
    readonly term: number;
    /** Who leads or, if the state is vacant, led last. */
    readonly leaderNodeId: string;
    /** Why the term ended. */
    readonly reason: string;
    readonly address: string;
    /** When the term began, by the engine's wall clock. */
    readonly sinceMs: number;
}
/** Changes were missed; snapshots follow. */
export interface ResetEvent {
    readonly kind: 'reset';
}
export type Event = StateEvent | ResetEvent;
export declare function watch(transport: Transport, groups: readonly string[], signal?: AbortSignal): AsyncGenerator<Event>;
