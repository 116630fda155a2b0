import { uptime } from 'node:os';
/** Node's own clock stops on Linux while the machine is suspended. The uptime does not. */
export function now() {
    return { steady: Number(process.hrtime.bigint()) / 1e6, boot: process.platform === 'linux' ? uptime() * 1000 : 0 };
}
/** Milliseconds since then. The uptime counts hundredths of a second. */
export function since(then) {
    const at = now();
    return Math.max(at.steady - then.steady, at.boot - then.boot - 10);
}
/** Waits for some milliseconds, or until the signal is aborted. It never fails. */
export function pause(ms, signal) {
    return new Promise((resolve) => {
        if (signal?.aborted)
            return resolve();
        const done = () => {
            clearTimeout(timer);
            signal?.removeEventListener('abort', done);
            resolve();
        };
        const timer = setTimeout(done, ms);
        signal?.addEventListener('abort', done);
    });
}
export function between(least, most) {
    return least + Math.random() * (most - least);
}
