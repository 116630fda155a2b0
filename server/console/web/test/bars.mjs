// The bars of the console, on a machine that does nothing else. TENURE_BENCH_CONSOLE is the number
// of rounds. Changes are made at another instance of the service, so they reach the page through
// the engine.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import * as k from './kit.mjs'

const rounds = Number(process.env.TENURE_BENCH_CONSOLE)
const missed = []
const at = (series, q) => [...series].sort((a, b) => a - b)[Math.min(series.length - 1, Math.floor(q * series.length))]
function bar(what, value, most, unit, more = '') {
  if (!(value <= most)) missed.push(what)
  console.log(`console: bar ${what}: ${value.toFixed(1)} ${unit}${more}; want <= ${most} ${unit}: ${value <= most ? 'met' : 'MISSED'}`)
}

after(k.end)

test('bars', async (t) => {
  const engine = `127.0.0.1:${await k.freePort()}`
  const seen = await k.serve('--engine-listen=' + engine)
  const port = await k.freePort()
  await k.run(process.env.TENURE_BIN, ['serve', '--until-eof', `--listen=127.0.0.1:${port}`, '--store=etcd://' + engine])
  const other = { url: `http://127.0.0.1:${port}` }

  let page = await k.open(t, seen)
  await k.live(page)
  let bytes = 0
  const weigh = await k.open(t, seen, '', { serviceWorkers: 'block' })
  await k.live(weigh)
  for (const file of ['', 'app.js', 'app.css', 'icon.svg']) bytes += (await weigh.evaluate((f) => fetch('./' + f).then(() => performance.getEntriesByName(new URL('./' + f, location.href).href).at(-1).encodedBodySize), file))
  bar('page weight', bytes / 1000, 60, 'kB')
  bar('external requests', page.foreign.length + weigh.foreign.length, 0, 'requests')
  await weigh.context().close()

  // A frame that shows the leader has been drawn when the next one begins.
  const visible = (leader) => page.evaluate((want) => new Promise((done) => {
    const look = () => {
      if (document.querySelector('[data-group=bar] .leader')?.textContent !== want) return false
      requestAnimationFrame(() => done(performance.timeOrigin + performance.now()))
      return true
    }
    if (look()) return
    const seen = new MutationObserver(() => look() && seen.disconnect())
    seen.observe(document.body, { subtree: true, childList: true, characterData: true })
  }), leader)
  const wall = () => performance.timeOrigin + performance.now()
  const took = []
  for (let i = 0; i < rounds + 5; i++) {
    const node = 'node-' + (i % 7)
    const shown = visible(node)
    const begin = wall()
    const term = await k.campaign(other, 'bar', node)
    if (i >= 5) took.push((await shown) - begin)
    else await shown
    const gone = visible('no leader')
    await k.resign(other, term)
    await gone
  }
  bar(`leader change at the engine until it is visible, p95 of ${rounds}`, at(took, 0.95), 200, 'ms', `, p50 ${at(took, 0.5).toFixed(1)} ms, with the campaign itself`)

  const session = await k.many(other, 'many-', 10_000)
  await page.context().close()
  const paints = []
  for (let i = 0; i < 5; i++) {
    const context = await (await k.browser()).newContext({ viewport: { width: 1280, height: 760 } })
    const fresh = await context.newPage()
    await fresh.addInitScript(() => {
      const look = () => {
        if (/^10,0/.test(document.querySelector('.tally')?.textContent ?? '') && document.querySelectorAll('[data-group]').length > 10) requestAnimationFrame(() => (window.painted = performance.now()))
        else requestAnimationFrame(look)
      }
      requestAnimationFrame(look)
    })
    await fresh.goto(seen.url + '/ui/')
    await fresh.waitForFunction(() => window.painted, null, { timeout: k.patience })
    paints.push(await fresh.evaluate(() => window.painted))
    await context.close()
  }
  bar('10,000 groups until all of them are painted, p50 of 5', at(paints, 0.5), 1500, 'ms', `, worst ${Math.max(...paints).toFixed(0)} ms`)

  page = await k.open(t, seen)
  await page.getByText(/^10,0\d\d groups/).waitFor()
  const cdp = await page.context().newCDPSession(page)
  await cdp.send('Performance.enable')
  const script = async () => (await cdp.send('Performance.getMetrics')).metrics.find((m) => m.name === 'ScriptDuration').value * 1000
  const before = await script()
  for (let i = 0; i < rounds; i++) {
    const shown = visible('node-' + i)
    const term = await k.campaign(other, 'bar', 'node-' + i)
    await shown
    const gone = visible('no leader')
    await k.resign(other, term)
    await gone
  }
  bar(`scripting for one change among 10,000 groups, mean of ${2 * rounds}`, ((await script()) - before) / (2 * rounds), 16, 'ms')
  await k.api(other, 'DELETE', `/sessions/${session.handle}`)
  assert.deepEqual(missed, [])
})
