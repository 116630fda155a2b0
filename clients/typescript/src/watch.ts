import { between, pause } from './clock.js'
import { ServiceError, TenureError } from './errors.js'
import type { Body, Transport } from './http.js'

const waitSeconds = 30

/** The state of a group, or a change of it. */
export interface StateEvent {
  /** snapshot: the current state. changed: it has changed. */
  readonly kind: 'snapshot' | 'changed'
  readonly group: string
  readonly state: 'led' | 'vacant' | 'unknown'
  /** Of the newest term, ended or not. */
  readonly term: number
  /** Who leads or, if the state is vacant, led last. */
  readonly leaderNodeId: string
  /** Why the term ended. */
  readonly reason: string
  readonly address: string
  /** When the term began, by the engine's wall clock. */
  readonly sinceMs: number
}

/** Changes were missed; snapshots follow. */
export interface ResetEvent {
  readonly kind: 'reset'
}

export type Event = StateEvent | ResetEvent

export async function* watch(transport: Transport, groups: readonly string[], signal?: AbortSignal): AsyncGenerator<Event> {
  if (groups.length === 0) throw new TypeError('watch: name at least one group')
  const named = new URLSearchParams(groups.map((g): [string, string] => ['group', g])).toString()
  let cursor = ''
  for (let failures = 0; !signal?.aborted; ) {
    const query = named + (cursor ? `&wait=${waitSeconds}s&after=${encodeURIComponent(cursor)}` : '&wait=0s')
    let answer: Body
    try {
      // The cursor is valid at every instance of the service.
      answer = await transport.call('GET', `/watch?${query}`, undefined, (waitSeconds + 10) * 1000, signal)
    } catch (e) {
      if (e instanceof ServiceError && e.code === 'cursor_too_old') {
        cursor = ''
        yield { kind: 'reset' }
        continue
      }
      if (!(e instanceof TenureError) || !e.retryable) throw e
      const after = e instanceof ServiceError ? e.retryAfterMs : undefined
      await pause((after ?? Math.min(5000, 100 * 2 ** Math.min(failures++, 8))) * between(1, 1.25), signal)
      continue
    }
    failures = 0
    cursor = answer['cursor'] as string
    for (const e of answer['events'] as Body[]) yield decode(e)
  }
}

function decode(e: Body): StateEvent {
  return {
    kind: e['snapshot'] ? 'snapshot' : 'changed',
    group: e['group'] as string,
    state: e['state'] as StateEvent['state'],
    term: e['term'] as number,
    leaderNodeId: e['leader_node_id'] as string,
    reason: (e['reason'] as string | undefined) ?? '',
    address: (e['address'] as string | undefined) ?? '',
    sinceMs: (e['since_ms'] as number | undefined) ?? 0,
  }
}
