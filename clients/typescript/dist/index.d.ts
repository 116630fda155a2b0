/**
 * Lead a group of a Tenure service, and fence what the leader writes.
 *
 * Limitations: README.md.
 *
 * @packageDocumentation
 */
export { Client, type ClientOptions, type LeadOptions } from './client.js';
export { NoAnswer, NotElected, type Reason, ServiceError, TenureError, TermEnded } from './errors.js';
export type { Credentials } from './http.js';
export type { Request, Term } from './term.js';
export type { Event, ResetEvent, StateEvent } from './watch.js';
