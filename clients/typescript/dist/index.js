/**
 * Lead a group of a Tenure service, and fence what the leader writes.
 *
 * Limitations: README.md.
 *
 * @packageDocumentation
 */
export { Client } from './client.js';
export { NoAnswer, NotElected, ServiceError, TenureError, TermEnded } from './errors.js';
