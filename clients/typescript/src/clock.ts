import { uptime } from 'node:os'

/** A point in time, on clocks that nobody can set. In milliseconds. */
export interface Instant {
  readonly steady: number
  readonly boot: number
}

/** Node's own clock stops on Linux while the machine is suspended. The uptime does not. */
export function now(): Instant {
  return { steady: Number(process.hrtime.bigint()) / 1e6, boot: process.platform === 'linux' ? uptime() * 1000 : 0 }
}

/** Milliseconds since then. The uptime counts hundredths of a second. */
export function since(then: Instant): number {
  const at = now()
  return Math.max(at.steady - then.steady, at.boot - then.boot - 10)
}

/** Waits for some milliseconds, or until the signal is aborted. It never fails. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve()
    const done = (): void => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal?.addEventListener('abort', done)
  })
}

export function between(least: number, most: number): number {
  return least + Math.random() * (most - least)
}
