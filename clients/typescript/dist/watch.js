import { between, pause } from './clock.js';
import { ServiceError, TenureError } from './errors.js';
const waitSeconds = 30;
export async function* watch(transport, groups, signal) {
    if (groups.length === 0)
        throw new TypeError('watch: name at least one group');
    const named = new URLSearchParams(groups.map((g) => ['group', g])).toString();
    let cursor = '';
    for (let failures = 0; !signal?.aborted;) {
        const query = named + (cursor ? `&wait=${waitSeconds}s&after=${encodeURIComponent(cursor)}` : '&wait=0s');
        let answer;
        try {
            // The cursor is valid at every instance of the service.
            answer = await transport.call('GET', `/watch?${query}`, undefined, (waitSeconds + 10) * 1000, signal);
        }
        catch (e) {
            if (e instanceof ServiceError && e.code === 'cursor_too_old') {
                cursor = '';
                yield { kind: 'reset' };
                continue;
            }
            if (!(e instanceof TenureError) || !e.retryable)
                throw e;
            const after = e instanceof ServiceError ? e.retryAfterMs : undefined;
            await pause((after ?? Math.min(5000, 100 * 2 ** Math.min(failures++, 8))) * between(1, 1.25), signal);
            continue;
        }
        failures = 0;
        cursor = answer['cursor'];
        for (const e of answer['events'])
            yield decode(e);
    }
}
function decode(e) {
    return {
        kind: e['snapshot'] ? 'snapshot' : 'changed',
        group: e['group'],
        state: e['state'],
        term: e['term'],
        leaderNodeId: e['leader_node_id'],
        reason: e['reason'] ?? '',
        address: e['address'] ?? '',
        sinceMs: e['since_ms'] ?? 0,
    };
}
