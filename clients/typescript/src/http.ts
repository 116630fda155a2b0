import { readFileSync } from 'node:fs'
import * as http from 'node:http'
import * as https from 'node:https'
import { now, pause, since } from './clock.js'
import { NoAnswer, ServiceError } from './errors.js'

export interface Credentials {
  /** The bearer credential. */
  credential?: string | undefined
  /** A file with the bearer credential, read for each call. */
  credentialFile?: string | undefined
  /** The authorities that sign the service's certificate. Default: those of Node. */
  caFile?: string | undefined
  /** The client certificate and its key. */
  certFile?: string | undefined
  keyFile?: string | undefined
}

export type Body = Record<string, unknown>

const maxAnswer = 1 << 20

/**
 * Calls to the service. Every call has a connection of its own and a deadline. Not fetch: it
 * cannot send a client certificate without another package.
 */
export class Transport {
  readonly #bases: URL[]
  readonly #how: Credentials
  #preferred = 0

  constructor(urls: readonly string[], how: Credentials) {
    const { caFile, certFile, keyFile, credential, credentialFile } = how
    this.#bases = urls.map((text) => {
      const u = new URL(text)
      if ((u.protocol !== 'http:' && u.protocol !== 'https:') || u.username || u.password || u.search || u.hash) {
        throw new TypeError('url: want the address of a service, such as https://10.0.0.1:7400, without credentials')
      }
      if (u.protocol === 'http:' && (caFile || certFile || keyFile)) {
        throw new TypeError('url: must begin with https:// when caFile, certFile or keyFile is set')
      }
      if (u.protocol === 'http:' && (credential || credentialFile) && !/^(localhost|127(\.\d+){3}|\[::1\])$/.test(u.hostname)) {
        throw new TypeError('url: must begin with https:// when a credential is set: it would be sent unencrypted')
      }
      return new URL(u.pathname.replace(/\/+$/, '').replace(/\/v1$/, '') + '/v1', u)
    })
    if (this.#bases.length === 0) throw new TypeError('url: missing; set TENURE_STORE or pass the URL of the service')
    if (!certFile !== !keyFile) throw new TypeError('certFile and keyFile: set both')
    this.#how = how
  }

  /**
   * Returns the answer, or throws ServiceError or NoAnswer. If a service does not answer or
   * fails, the next call tries the next URL.
   */
  async call(method: string, path: string, body: Body | undefined, timeoutMs: number, signal?: AbortSignal): Promise<Body> {
    const base = this.#bases[this.#preferred % this.#bases.length] as URL
    const options = this.#options(method)
    const ended = new AbortController()
    const stop = (): void => ended.abort()
    if (signal?.aborted) stop()
    signal?.addEventListener('abort', stop)
    try {
      void expire(ended, timeoutMs)
      return await exchange(new URL(base.href + path), options, body, ended.signal)
    } catch (e) {
      if (!(e instanceof ServiceError) || e.status >= 500) this.#preferred++
      throw e instanceof ServiceError || e instanceof NoAnswer ? e : new NoAnswer(String(e), e)
    } finally {
      stop()
      signal?.removeEventListener('abort', stop)
    }
  }

  // Files are read for each call: credentials and certificates are replaced while a process runs.
  #options(method: string): https.RequestOptions {
    const { caFile, certFile, keyFile, credential, credentialFile } = this.#how
    const headers: Record<string, string> = { 'Content-Type': 'application/json' }
    const bearer = credentialFile ? readFileSync(credentialFile, 'utf8').trim() : credential
    if (bearer) headers['Authorization'] = 'Bearer ' + bearer
    return {
      method,
      headers,
      agent: false,
      minVersion: 'TLSv1.2',
      ...(caFile ? { ca: readFileSync(caFile) } : {}),
      ...(certFile && keyFile ? { cert: readFileSync(certFile), key: readFileSync(keyFile) } : {}),
    }
  }
}

/** Aborts after some time, on a clock that does not stop while the machine is suspended. */
async function expire(call: AbortController, timeoutMs: number): Promise<void> {
  const sent = now()
  for (let left = timeoutMs; left > 0 && !call.signal.aborted; left = timeoutMs - since(sent)) {
    await pause(Math.min(left, 250), call.signal)
  }
  call.abort()
}

function exchange(url: URL, options: https.RequestOptions, body: Body | undefined, signal: AbortSignal): Promise<Body> {
  return new Promise((resolve, reject) => {
    const send = url.protocol === 'https:' ? https.request : http.request
    const request = send(url, { ...options, signal }, (response) => {
      const pieces: Buffer[] = []
      let size = 0
      response.on('data', (piece: Buffer) => {
        pieces.push(piece)
        size += piece.length
        if (size > maxAnswer) request.destroy(new NoAnswer('the answer is too long'))
      })
      response.on('error', reject)
      response.on('aborted', () => reject(new NoAnswer('the answer is incomplete')))
      response.on('end', () => {
        try {
          resolve(decode(response, Buffer.concat(pieces).toString()))
        } catch (e) {
          reject(e)
        }
      })
    })
    request.on('error', reject)
    request.end(body === undefined ? undefined : JSON.stringify(body))
  })
}

function decode(response: http.IncomingMessage, text: string): Body {
  const status = response.statusCode ?? 0
  const done = status === 200 || status === 202
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch {
    body = undefined
  }
  if (typeof body !== 'object' || body === null || (!done && !('code' in body))) {
    throw new NoAnswer(`${status}: the answer is incomplete, or not from the service`)
  }
  if (done) return body as Body
  const problem = body as Body
  const header = response.headers['retry-after'] ?? ''
  let after = /^\d+$/.test(header) ? Number(header) * 1000 : undefined
  if (typeof problem['retry_after_ms'] === 'number') after = problem['retry_after_ms']
  throw new ServiceError(status, problem, after)
}
