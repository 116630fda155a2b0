import { readFileSync } from 'node:fs';
import * as http from 'node:http';
import * as https from 'node:https';
import { now, pause, since } from './clock.js';
import { NoAnswer, ServiceError } from './errors.js';
const maxAnswer = 1 << 20;
/**
 * Calls to the service. Every call has a connection of its own and a deadline. Not fetch: it
 * cannot send a client certificate without another package.
 */
export class Transport {
    #bases;
    #how;
    #preferred = 0;
    constructor(urls, how) {
        const { caFile, certFile, keyFile, credential, credentialFile } = how;
        this.#bases = urls.map((text) => {
            const u = new URL(text);
            if ((u.protocol !== 'http:' && u.protocol !== 'https:') || u.username || u.password || u.search || u.hash) {
                throw new TypeError('url: want the address of a service, such as https://10.0.0.1:7400, without credentials');
            }
            if (u.protocol === 'http:' && (caFile || certFile || keyFile)) {
                throw new TypeError('url: must begin with https:// when caFile, certFile or keyFile is set');
            }
            if (u.protocol === 'http:' && (credential || credentialFile) && !/^(localhost|127(\.\d+){3}|\[::1\])$/.test(u.hostname)) {
                throw new TypeError('url: must begin with https:// when a credential is set: it would be sent unencrypted');
            }
            return new URL(u.pathname.replace(/\/+$/, '').replace(/\/v1$/, '') + '/v1', u);
        });
        if (this.#bases.length === 0)
            throw new TypeError('url: missing; set TENURE_STORE or pass the URL of the service');
        if (!certFile !== !keyFile)
            throw new TypeError('certFile and keyFile: set both');
        this.#how = how;
    }
    /**
     * Returns the answer, or throws ServiceError or NoAnswer. If a service does not answer or
     * fails, the next call tries the next URL.
     */
    async call(method, path, body, timeoutMs, signal) {
        const base = this.#bases[this.#preferred % this.#bases.length];
        const options = this.#options(method);
        const ended = new AbortController();
        const stop = () => ended.abort();
        if (signal?.aborted)
            stop();
        signal?.addEventListener('abort', stop);
        try {
            void expire(ended, timeoutMs);
            return await exchange(new URL(base.href + path), options, body, ended.signal);
        }
        catch (e) {
            if (!(e instanceof ServiceError) || e.status >= 500)
                this.#preferred++;
            throw e instanceof ServiceError || e instanceof NoAnswer ? e : new NoAnswer(String(e), e);
        }
        finally {
            stop();
            signal?.removeEventListener('abort', stop);
        }
    }
    // Files are read for each call: credentials and certificates are replaced while a process runs.
    #options(method) {
        const { caFile, certFile, keyFile, credential, credentialFile } = this.#how;
        const headers = { 'Content-Type': 'application/json' };
        const bearer = credentialFile ? readFileSync(credentialFile, 'utf8').trim() : credential;
        if (bearer)
            headers['Authorization'] = 'Bearer ' + bearer;
        return {
            method,
            headers,
            agent: false,
            minVersion: 'TLSv1.2',
            ...(caFile ? { ca: readFileSync(caFile) } : {}),
            ...(certFile && keyFile ? { cert: readFileSync(certFile), key: readFileSync(keyFile) } : {}),
        };
    }
}
/** Aborts after some time, on a clock that does not stop while the machine is suspended. */
async function expire(call, timeoutMs) {
    const sent = now();
    for (let left = timeoutMs; left > 0 && !call.signal.aborted; left = timeoutMs - since(sent)) {
        await pause(Math.min(left, 250), call.signal);
    }
    call.abort();
}
function exchange(url, options, body, signal) {
    return new Promise((resolve, reject) => {
        const send = url.protocol === 'https:' ? https.request : http.request;
        const request = send(url, { ...options, signal }, (response) => {
            const pieces = [];
            let size = 0;
            response.on('data', (piece) => {
                pieces.push(piece);
                size += piece.length;
                if (size > maxAnswer)
                    request.destroy(new NoAnswer('the answer is too long'));
            });
            response.on('error', reject);
            response.on('aborted', () => reject(new NoAnswer('the answer is incomplete')));
            response.on('end', () => {
                try {
                    resolve(decode(response, Buffer.concat(pieces).toString()));
                }
                catch (e) {
                    reject(e);
                }
            });
        });
        request.on('error', reject);
        request.end(body === undefined ? undefined : JSON.stringify(body));
    });
}
function decode(response, text) {
    const status = response.statusCode ?? 0;
    const done = status === 200 || status === 202;
    let body;
    try {
        body = JSON.parse(text);
    }
    catch {
        body = undefined;
    }
    if (typeof body !== 'object' || body === null || (!done && !('code' in body))) {
        throw new NoAnswer(`${status}: the answer is incomplete, or not from the service`);
    }
    if (done)
        return body;
    const problem = body;
    const header = response.headers['retry-after'] ?? '';
    let after = /^\d+$/.test(header) ? Number(header) * 1000 : undefined;
    if (typeof problem['retry_after_ms'] === 'number')
        after = problem['retry_after_ms'];
    throw new ServiceError(status, problem, after);
}
