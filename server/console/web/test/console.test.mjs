// The page in a real browser, on a real service and engine. Nothing here waits for a time: each
// step waits for what it needs.
import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { readFileSync } from 'node:fs'
import { after, before, test } from 'node:test'
import * as k from './kit.mjs'

let s, ledger
const evil = '<img src=x onerror="window.broken=1"><script>window.broken=1</script>'
const refusedWrites = [{ id: 1, resource: evil, group: 'hostile', token: 1, current_token: 2, holder: evil, reason: evil, at_ms: 1 }]

before(async () => {
  ledger = createServer((_, r) => r.end(JSON.stringify({ items: refusedWrites, total: refusedWrites.length, kept: 100 })))
  await new Promise((r) => ledger.listen(0, '127.0.0.1', r))
  k.atEnd(() => { ledger.closeAllConnections(); ledger.close() })
  s = await k.serve(`--ledger=http://127.0.0.1:${ledger.address().port}`)
  await k.api(s, 'POST', '/store/set-attributes', { name: 'shard/cells', version: 0, values: { count: '12' } })
})
after(k.end)

const dialog = (page) => page.getByRole('dialog')
const says = (page, text) => page.getByText(text).first().waitFor()

test('a leader change appears, with the reason in the timeline', async (t) => {
  const first = await k.campaign(s, 'change', 'node-1')
  const page = await k.open(t, s, '#/groups/change')
  const leader = k.row(page, 'change').locator('.leader')
  await leader.getByText('node-1').waitFor()
  await k.resign(s, first)
  await leader.getByText('no leader').waitFor()
  const next = await k.campaign(s, 'change', 'node-2', { address: '10.0.0.2:9000', metadata: { zone: 'eu-2' } })
  await leader.getByText('node-2').waitFor()
  const terms = page.locator('.terms li')
  await terms.nth(1).waitFor()
  await terms.first().getByText('node-2').waitFor()
  assert.match(await terms.nth(1).textContent(), /node-1.*ended: resigned/)
  await k.row(page, 'change').locator('.term').getByText(String(next.term), { exact: true }).waitFor()
  await says(page, 'zone=eu-2')
})

test('the page says that it is disconnected, shows no leader as current, and resumes after a restart', async (t) => {
  const own = await k.serve()
  await k.campaign(own, 'restart', 'node-1')
  const page = await k.open(t, own)
  const leader = k.row(page, 'restart').locator('.leader')
  await leader.getByText('node-1', { exact: true }).waitFor()
  await own.stop()
  await page.getByRole('alert').getByText('Disconnected since').waitFor()
  await leader.getByText('was node-1', { exact: true }).waitFor()
  assert.equal(await page.locator('.leader .led').count(), 0)
  await k.shot(page, 'disconnected')
  await own.start()
  await leader.getByText('node-1', { exact: true }).waitFor()
  assert.equal(await page.locator('[data-banner]').count(), 0)
  await k.campaign(own, 'restart-2', 'node-2')
  await k.row(page, 'restart-2').waitFor()
  // A service that is paused keeps its connections, and is silent.
  own.process.child.kill('SIGSTOP')
  await leader.getByText('was node-1', { exact: true }).waitFor()
  own.process.child.kill('SIGCONT')
  await leader.getByText('node-1', { exact: true }).waitFor()
})

test('step-down by click names the term, and the leader gives up', async (t) => {
  const term = await k.campaign(s, 'click', 'node-1')
  const page = await k.open(t, s, '#/groups/click')
  await page.getByRole('button', { name: 'Step down…' }).click()
  await dialog(page).getByText(`leader of term ${term.term}`).waitFor()
  await dialog(page).getByLabel('Reason').fill('maintenance')
  const sent = page.waitForRequest(/step-down\?wait/)
  const asked = k.obey(s, term)
  await dialog(page).getByRole('button', { name: `Step down term ${term.term}` }).click()
  assert.equal((await sent).headers()['if-match'], `"${term.term}"`)
  assert.equal((await asked).reason, 'maintenance')
  await dialog(page).getByText('Done: the leader gave up.').waitFor()
  await dialog(page).getByRole('button', { name: 'Close' }).click()
  await k.row(page, 'click').getByText('no leader').waitFor()
})

test('transfer by click goes to the candidate', async (t) => {
  const term = await k.campaign(s, 'hand', 'node-1')
  const won = k.api(s, 'POST', '/groups/hand/campaign?wait=50s', { node_id: 'node-2', instance: k.instance() })
  const page = await k.open(t, s, '#/groups/hand')
  await page.locator('.cand').getByText('node-2').waitFor()
  await page.getByRole('button', { name: 'Transfer…' }).click()
  await dialog(page).getByLabel('To').selectOption('node-2')
  const asked = k.obey(s, term)
  await dialog(page).getByRole('button', { name: 'Transfer term' }).click()
  assert.equal((await asked).to, 'node-2')
  assert.equal((await won).leader_node_id, 'node-2')
  await dialog(page).getByText('node-2 leads now').waitFor()
})

test('a term that has ended is not stepped down: the dialog says so, and so does the service', async (t) => {
  const first = await k.campaign(s, 'ended', 'node-1')
  const page = await k.open(t, s, '#/groups/ended')
  await page.getByRole('button', { name: 'Step down…' }).click()
  await k.resign(s, first)
  const second = await k.campaign(s, 'ended', 'node-2')
  await dialog(page).getByText(`Term ${first.term} has ended: node-2 leads with term ${second.term} now. Nothing was done.`).waitFor()
  assert.equal(await dialog(page).getByRole('button', { name: 'Step down term' }).isDisabled(), true)
  await dialog(page).getByRole('button', { name: 'Close' }).click()
  // The term ends while the request is on its way.
  let third
  await page.route(/step-down\?wait/, async (route) => {
    await k.resign(s, second)
    third = await k.campaign(s, 'ended', 'node-3')
    await route.continue()
  })
  await page.getByRole('button', { name: 'Step down…' }).click()
  await dialog(page).getByRole('button', { name: 'Step down term' }).click()
  await dialog(page).getByText(`Term ${second.term} has ended. Nothing was done.`).waitFor()
  const now = await k.api(s, 'GET', '/groups/ended/leader')
  assert.deepEqual([now.leader_node_id, now.term], ['node-3', third.term])
})

test('force says what it breaks, and needs a second confirmation', async (t) => {
  await k.campaign(s, 'force', 'node-forced')
  const page = await k.open(t, s, '#/groups/force')
  await page.getByRole('button', { name: 'Force…' }).click()
  await dialog(page).getByText('Only the fence protects what it writes to.').waitFor()
  const go = dialog(page).getByRole('button', { name: 'Close the session of term' })
  assert.equal(await go.isDisabled(), true)
  await dialog(page).getByLabel('two nodes may act').check()
  await k.shot(page, 'force')
  await go.click()
  await dialog(page).getByText('The session was closed.').waitFor()
  await dialog(page).getByRole('button', { name: 'Close', exact: true }).click()
  await k.row(page, 'force').getByText('no leader').waitFor()
  await page.locator('.terms').getByText('forced').first().waitFor()
})

test('a node is cordoned, drained and uncordoned by click', async (t) => {
  const terms = [await k.campaign(s, 'drain-1', 'node-d'), await k.campaign(s, 'drain-2', 'node-d')]
  const page = await k.open(t, s, '#/nodes')
  const node = page.locator('[data-node=node-d]')
  await node.getByText('2 groups').waitFor()
  await node.getByRole('button', { name: 'Drain…' }).click()
  await dialog(page).getByLabel('Reason').fill('new kernel')
  const asked = Promise.all(terms.map((l) => k.obey(s, l)))
  await dialog(page).getByRole('button', { name: 'Cordon and step down' }).click()
  await asked
  await dialog(page).getByText('node-d is cordoned. It gave up 2 groups.').waitFor()
  await dialog(page).getByRole('button', { name: 'Close' }).click()
  await node.getByText('new kernel').waitFor()
  await assert.rejects(k.campaign(s, 'drain-1', 'node-d'), { code: 'cordoned' })
  await node.getByRole('button', { name: 'Uncordon…' }).click()
  await dialog(page).getByRole('button', { name: 'Remove the cordon' }).click()
  await dialog(page).getByRole('status').getByText('node-d may lead again.').waitFor()
  await k.campaign(s, 'drain-1', 'node-d')
})

test('a login: wrong, without rights, with rights, and revoked', async (t) => {
  const [watcher, operator, nobody] = await Promise.all(['watcher', 'operator', 'nobody'].map(k.credential))
  const dir = k.folder()
  const credentials = (...all) => k.write(dir, 'credentials.json', { credentials: all.map((c) => c.entry) })
  const policy = k.write(dir, 'policy.json', {
    roles: {
      watch: [{ prefix: 'team-', verbs: ['observe'] }],
      operate: [{ prefix: '', verbs: ['observe', 'campaign', 'step-down', 'admin'] }],
    },
    names: { watcher: ['watch'], operator: ['operate'] },
  })
  const own = await k.serve('--credentials=' + credentials(watcher, operator, nobody), '--policy=' + policy)
  const as = { Authorization: 'Bearer ' + operator.credential }
  await k.campaign(own, 'team-1', 'operator', {}, as)
  await k.campaign(own, 'other', 'operator', {}, as)
  const page = await k.open(t, own, '#/groups/team-1')
  const login = async (text) => {
    await page.getByLabel('Bearer credential or JWT').fill(text)
    await page.getByRole('button', { name: 'Sign in' }).click()
  }
  // A request with the wrong credential is held back. Its answer comes after a better login.
  let release, polled
  const held = new Promise((r) => (release = r))
  const late = new Promise((r) => (polled = r))
  await page.route(/history|whoami/, async (route) => {
    if (route.request().headers().authorization === 'Bearer wrong') {
      if (route.request().url().includes('whoami')) await late
      else {
        polled(route.request())
        await held
      }
    }
    await route.continue()
  })
  await login('wrong')
  await page.getByRole('alert').getByText('credential').waitFor()
  await login(nobody.credential)
  await page.getByRole('alert').getByText('may not observe').first().waitFor()
  await page.getByRole('button', { name: 'Sign out' }).click()
  await login(watcher.credential)
  await k.live(page)
  await k.row(page, 'team-1').waitFor()
  await page.locator('.terms li').first().waitFor()
  release()
  const answer = await (await late).response()
  assert.equal(answer.status(), 401)
  await answer.finished()
  await page.locator('.terms li').first().waitFor()
  await k.live(page)
  assert.equal(await k.row(page, 'other').count(), 0, 'a group that it may not observe')
  assert.equal(await page.locator('.actions button').count(), 0, 'it may not steer')
  await page.getByRole('link', { name: 'Nodes' }).click()
  await page.locator('[data-node=operator]').waitFor()
  assert.equal(await page.locator('[data-node] .buttons button').count(), 0, 'it may not cordon')
  await page.getByRole('button', { name: 'Sign out' }).click()
  await login(operator.credential)
  await k.live(page)
  await page.locator('[data-node=operator]').getByRole('button', { name: 'Cordon…' }).waitFor()
  await page.getByRole('link', { name: 'Groups' }).click()
  await k.row(page, 'other').getByRole('link').click()
  await page.getByRole('button', { name: 'Step down…' }).waitFor()
  // The credential is in this tab alone, and in no address.
  const where = await page.evaluate(() => [location.href, JSON.stringify(localStorage), document.cookie, performance.getEntriesByType('resource').map((e) => e.name).join(' ')].join(' '))
  assert.ok(!where.includes(operator.credential))
  credentials(watcher, nobody) // the service reads the file again
  await page.getByRole('button', { name: 'Sign in' }).waitFor()
  await page.getByRole('alert').waitFor()
  assert.ok(!readFileSync(own.dir + '/audit', 'utf8').includes(operator.credential))
})

test('hostile names, metadata and reasons are shown as text', async (t) => {
  await k.campaign(s, 'hostile', 'node-1', { address: evil, metadata: { ['key' + evil]: evil, long: 'x'.repeat(2000) } })
  await k.api(s, 'PUT', '/nodes/node-evil/cordon', { reason: evil })
  const page = await k.open(t, s, '#/groups/hostile')
  await page.locator('.detail .facts').getByText(evil, { exact: true }).waitFor()
  await page.locator('.detail .tag').getByText(`key${evil}=${evil}`, { exact: true }).first().waitFor()
  await page.getByRole('link', { name: 'Nodes' }).click()
  await page.locator('[data-node=node-evil]').getByText(evil).waitFor()
  await page.getByRole('link', { name: 'Refused writes' }).click()
  await page.locator('.write-row').getByText(evil).first().waitFor()
  for (const hash of ['#/groups/' + encodeURIComponent(evil), '#/<script>', '#/groups/%']) {
    await page.goto(s.url + '/ui/' + hash)
    await page.getByRole('heading', { name: 'Tenure' }).waitFor()
  }
  assert.equal(await page.evaluate(() => window.broken), undefined)
  assert.equal(await page.locator('img[src=x]').count(), 0)
})

test('a group that is deleted meanwhile is said to be deleted', async (t) => {
  await k.api(s, 'PUT', '/groups/deleted', {})
  const term = await k.campaign(s, 'deleted', 'node-1')
  const page = await k.open(t, s, '#/groups/deleted')
  await page.locator('.detail').getByText('node-1').first().waitFor()
  await k.resign(s, term)
  await k.api(s, 'DELETE', '/groups/deleted')
  await page.getByRole('alert').getByText('This group was deleted.').waitFor()
  assert.equal(await page.getByRole('button', { name: 'Step down…' }).isDisabled(), true)
})

test('10,000 groups: few rows exist, and search and filters find the right ones', async (t) => {
  await k.many(s, 'many-', 10_000)
  const page = await k.open(t, s)
  await page.getByRole('status').getByText(/10,\d\d\d groups/).waitFor()
  assert.ok((await page.locator('[data-group]').count()) < 100)
  await page.keyboard.press('/')
  await page.keyboard.type('many-07777')
  await page.getByRole('status').getByText('1 of 10,').waitFor()
  await k.row(page, 'many-07777').getByText('node-many').waitFor()
  await page.getByLabel('Search groups and leaders').fill('')
  await page.locator('.rows').evaluate((e) => e.scrollTo(0, e.scrollHeight))
  await k.row(page, 'many-09999').waitFor()
  const lone = await k.campaign(s, 'zz-lone', 'node-1')
  await k.resign(s, lone)
  await page.getByRole('button', { name: 'No leader' }).click()
  await k.row(page, 'zz-lone').waitFor()
  assert.equal(await page.locator('[data-group^=many-]').count(), 0)
})

test('the shards of a set are a map that shows moves', async (t) => {
  await k.many(s, 'cells-', 8, 'node-a', 0)
  const page = await k.open(t, s, '#/shards/cells')
  await page.getByRole('status').getByText('4 without an owner').waitFor()
  await page.getByLabel('shard 3: node-a').waitFor()
  await k.campaign(s, 'cells-9', 'node-b')
  await page.getByLabel('shard 9: node-b').waitFor()
  await page.locator('[data-shard="9"].moved').waitFor()
  assert.equal(await page.locator('[data-shard].moved').count(), 1)
})

test('the keyboard is enough, and axe finds nothing serious in any view, light, dark and narrow', async (t) => {
  await k.campaign(s, 'axe', 'node-1', { metadata: { zone: 'eu' } })
  // Colours alone differ in the dark.
  const check = async (page, what, rules) => {
    const found = await page.evaluate((only) => window.axe.run(document, { resultTypes: ['violations'], ...(only && { runOnly: only }) }), rules)
    const bad = found.violations.filter((v) => v.impact === 'serious' || v.impact === 'critical')
    assert.deepEqual(bad.map((v) => `${what}: ${v.id}: ${v.nodes.map((n) => n.target + ' ' + n.failureSummary).join('; ')}`), [])
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth > innerWidth), false, `${what} scrolls sideways`)
  }
  for (const [name, options, rules] of [
    ['light', {}], ['dark', { colorScheme: 'dark' }, ['color-contrast']], ['phone', { viewport: { width: 390, height: 800 }, hasTouch: true }, ['color-contrast']],
  ]) {
    const page = await k.open(t, s, '#/groups', { ...options, bypassCSP: true }) // axe makes elements from text
    await k.live(page)
    await page.evaluate(k.axe)
    await page.keyboard.press('/')
    await page.keyboard.type('axe')
    await k.row(page, 'axe').getByRole('link').focus()
    await page.keyboard.press('Enter')
    await page.locator('.terms li').first().waitFor()
    await check(page, name + ' group', rules)
    await page.getByRole('button', { name: 'Force…' }).press('Enter')
    await dialog(page).getByLabel('Reason').waitFor()
    await check(page, name + ' dialog', rules)
    await page.keyboard.press('Escape')
    await dialog(page).waitFor({ state: 'detached' })
    for (const [view, ready] of Object.entries({ nodes: '[data-node]', shards: '.map .cell', writes: '.write-row .name', health: '.card.ok' })) {
      await page.goto(s.url + '/ui/#/' + view)
      await page.locator(ready).first().waitFor()
      await check(page, `${name} ${view}`, rules)
    }
  }
})

test('pages of other sites and other host names are refused', async () => {
  const evil = await fetch(s.url + '/v1/nodes/node-1/cordon', { method: 'PUT', headers: { Origin: 'https://evil.example', 'Sec-Fetch-Site': 'cross-site' }, body: '{}' })
  assert.equal(evil.status, 403)
  const { request } = await import('node:http')
  for (const path of ['/ui/', '/v1/overview', '/v1/whoami']) {
    const status = await new Promise((done, fail) => request(s.url + path, { headers: { Host: 'evil.example' } }, (r) => { r.destroy(); done(r.statusCode) }).on('error', fail).end())
    assert.equal(status, 403, path)
  }
})

test('the picture of docs/console.md', async (t) => {
  const own = await k.serve()
  for (const [i, g] of ['billing', 'invoices', 'mail', 'orders-0', 'orders-1', 'orders-2', 'orders-3', 'payments', 'search-index', 'sessions-gc'].entries()) await k.campaign(own, g, `node-${1 + (i % 3)}`, { ttl: '30s' })
  for (const n of ['node-1', 'node-3']) await k.resign(own, await k.campaign(own, 'reports', n))
  await k.campaign(own, 'reports', 'node-2', { ttl: '30s', address: '10.0.0.2:9000', metadata: { zone: 'eu-2', version: '1.4.2' } })
  await k.resign(own, await k.campaign(own, 'thumbnails', 'node-3'))
  const page = await k.open(t, own, '#/groups/reports', { viewport: { width: 1060, height: 560 } })
  await page.locator('.terms li').nth(2).waitFor()
  await page.locator('.detail meter').waitFor()
  await k.shot(page, 'console')
})
