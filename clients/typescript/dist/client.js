import { randomBytes } from 'node:crypto';
import { between, now, pause, since } from './clock.js';
import { NotElected, ServiceError, TenureError, TermEnded } from './errors.js';
import { Transport } from './http.js';
import { Term, window } from './term.js';
import { watch } from './watch.js';
const waitMs = 30_000; // how long a campaign stands in line with one call
const answerMs = 10_000; // how long the service has to answer beyond that
const resignMs = 5_000; // limit of the calls that give a group up
const overrun = 75; // exit code of a process whose work has not stopped in time
/** Calls a Tenure service in the name of one node. Make one per process. */
export class Client {
    nodeId;
    #transport;
    // Identifies this start of the process. A restart never repeats it.
    #instance = randomBytes(16).toString('hex');
    #busy = new Set();
    #spent = new Map(); // the newest term of each group that is over for us
    constructor(options) {
        this.nodeId = options.nodeId;
        this.#transport = new Transport(typeof options.url === 'string' ? [options.url] : options.url, options);
    }
    /**
     * Reads TENURE_STORE (several instances: https://a:7400,b:7400), TENURE_STORE_CREDENTIAL or
     * TENURE_STORE_CREDENTIAL_FILE, TENURE_STORE_CA, TENURE_STORE_CERT and TENURE_STORE_KEY, as the
     * command `tenure` does.
     */
    static fromEnv(nodeId, env = process.env) {
        const [scheme, hosts] = (env['TENURE_STORE'] || 'http://127.0.0.1:7400').split(/:\/\/(.*)/s);
        if (!hosts)
            throw new TypeError('TENURE_STORE: want the URL of a service, such as https://10.0.0.1:7400');
        const get = (name) => env['TENURE_STORE_' + name] || undefined;
        return new Client({
            url: hosts.split(',').map((host) => `${scheme}://${host.replace(`${scheme}://`, '')}`),
            nodeId,
            credential: get('CREDENTIAL'),
            credentialFile: get('CREDENTIAL_FILE'),
            caFile: get('CA'),
            certFile: get('CERT'),
            keyFile: get('KEY'),
        });
    }
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
    async lead(group, work, options = {}) {
        const ttlMs = options.ttlMs ?? 8000;
        const graceMs = options.graceMs ?? ttlMs / 10;
        if (!(graceMs > 0) || !(window(ttlMs, graceMs) > 0))
            throw new RangeError(`ttlMs = ${ttlMs} is too short for graceMs = ${graceMs}`);
        if (this.#busy.has(group))
            throw new Error(`lead ${group}: this client already campaigns for it or leads it`);
        this.#busy.add(group);
        try {
            const body = { node_id: this.nodeId, instance: this.#instance, ttl_ms: Math.round(ttlMs) };
            for (const name of ['metadata', 'address', 'priority'])
                if (options[name])
                    body[name] = options[name];
            const term = await this.#campaign(group, body, graceMs, options);
            return await this.#serve(term, work, options);
        }
        finally {
            this.#busy.delete(group);
        }
    }
    /**
     * Returns who leads, as docs/api.md describes. It is never a permission to act. Throws
     * ServiceError with the code no_leader if nobody leads.
     */
    leader(group) {
        return this.#transport.call('GET', `/groups/${group}/leader`, undefined, answerMs);
    }
    /**
     * Yields the state of the groups and then each change once, through interruptions, until the
     * signal is aborted. If changes were missed, it yields an event whose kind is reset, and then
     * the current state.
     */
    watch(groups, signal) {
        return watch(this.#transport, typeof groups === 'string' ? [groups] : groups, signal);
    }
    async #campaign(group, body, graceMs, options) {
        const { timeoutMs = Infinity, signal } = options;
        const began = now();
        const left = () => timeoutMs - since(began);
        for (let failures = 0;; failures++) {
            const wait = Math.min(waitMs, left());
            if (wait <= 0 || signal?.aborted)
                throw new NotElected(group);
            const sent = now();
            let again = between(50, Math.min(2000, 100 * 2 ** Math.min(failures, 8)));
            try {
                // A retry has the same instance, so it gets the answer that was lost.
                const path = `/groups/${group}/campaign?wait=${Math.floor(wait)}ms`;
                const answer = await this.#transport.call('POST', path, body, wait + answerMs, signal);
                const term = new Term(group, this.nodeId, answer, sent, graceMs);
                // A term that we have resigned may come again; a late answer may be for a lease that has
                // ended. Neither may be worked with.
                if (term.token > (this.#spent.get(group) ?? 0) && term.remaining() > 0)
                    return term;
                await this.#resign(term);
            }
            catch (e) {
                if (!(e instanceof TenureError) || !e.retryable)
                    throw e;
                if (e instanceof ServiceError && e.retryAfterMs !== undefined)
                    again = e.retryAfterMs * between(1, 1.25);
            }
            await pause(Math.max(0, Math.min(again, left())), signal);
        }
    }
    async #serve(term, work, options) {
        const done = new AbortController();
        const background = [this.#renew(term, done.signal), watchdog(term, done.signal, options)];
        // Work has returned: give the group up.
        const finish = async (cause) => {
            term.expire();
            term.ask('finished');
            done.abort();
            await Promise.all(background);
            await this.#resign(term);
            if (term.over)
                throw new TermEnded(term.group, term.token, term.over, cause);
        };
        let result;
        try {
            result = await work(term);
        }
        catch (e) {
            await finish(e);
            throw e;
        }
        await finish();
        return result;
    }
    /** The service obeys a pending request for a transfer. If no call is answered, the term expires. */
    async #resign(term) {
        this.#spent.set(term.group, Math.max(term.token, this.#spent.get(term.group) ?? 0));
        if (term.over === 'lost')
            return;
        const began = now();
        for (;;) {
            try {
                await this.#transport.call('POST', `/groups/${term.group}/resign`, term.claim(), 2000);
                return;
            }
            catch (e) {
                if (e instanceof ServiceError && e.status < 500 && e.status !== 429)
                    return; // the term was over
                if (term.over || since(began) >= resignMs)
                    return; // one try if it has expired
            }
            await pause(between(50, 300));
        }
    }
    async #renew(term, done) {
        const beat = term.ttlMs / 4;
        for (let next = beat;;) {
            await pause(next, done);
            if (done.aborted || term.over)
                return;
            const sent = now();
            next = beat * between(0.9, 1);
            try {
                // The call ends with the lease at the latest. It is short, to leave time for another.
                const limit = Math.max(1, Math.min(beat, term.remaining()));
                const answer = await this.#transport.call('POST', `/groups/${term.group}/renew`, term.claim(), limit, done);
                if (typeof answer['ttl_ms'] === 'number')
                    term.extend(sent, answer['ttl_ms']);
                for (const r of (answer['requests'] ?? [])) {
                    const verb = r['verb'] === 'transfer' ? 'transfer' : 'step-down';
                    term.request = { verb, to: r['to'] ?? '', reason: r['reason'] ?? '' };
                    term.ask(verb);
                }
            }
            catch (e) {
                // Whatever fails, only the clock and these answers end a term.
                if (e instanceof ServiceError && (e.code === 'not_leader' || e.code === 'session_dead'))
                    return term.end('lost');
                const after = e instanceof ServiceError ? (e.retryAfterMs ?? 0) : 0;
                next = Math.min(beat, Math.max(after, beat / 8)) * between(0.75, 1);
            }
        }
    }
}
/**
 * Ends the term in time, and the process if its work does not stop. It looks often at a clock that
 * does not stop while the machine is suspended; that of timers does.
 */
async function watchdog(term, done, options) {
    const cancel = () => term.ask('cancelled');
    if (options.signal?.aborted)
        cancel();
    options.signal?.addEventListener('abort', cancel);
    while (!done.aborted) {
        term.expire();
        let left = term.remaining();
        if (term.overAt) {
            left = term.graceMs - since(term.overAt);
            // After a pause the lease may have ended long before it was seen.
            left = Math.min(left, term.lease.span + term.graceMs - since(term.lease.sent));
            if (left <= 0) {
                if (options.exitOnOverrun ?? true) {
                    process.stderr.write(`tenure: ${term.group}: term ${term.token} is ${term.over} and work has not stopped; exiting\n`);
                    process.exit(overrun);
                }
                break;
            }
        }
        await pause(Math.max(1, Math.min(left, 50)), done);
    }
    options.signal?.removeEventListener('abort', cancel);
}
