// What an operator may do. Every action names the term or node that is meant, and is confirmed.
import { signal } from '@preact/signals'
import { useEffect, useRef, useState } from 'preact/hooks'
import { call, may, post } from './api.js'
import { all, current, group } from './model.js'
import { plural, Trouble } from './parts.jsx'

const open = signal(null)
export const acted = signal(0) // moves after an action

// ask opens the dialog for an action on the term that is shown now.
export const ask = (verb, g, candidates) => (open.value = { verb, group: g.group, term: g.term, node: g.leader_node_id, candidates })
export const askNode = (verb, node, reason) => (open.value = { verb, node, reason })

const groupPath = (name) => '/groups/' + encodeURIComponent(name)
const nodePath = (name) => '/nodes/' + encodeURIComponent(name) + '/cordon'
// A leader gets the request with its next renewal, which is a quarter of its TTL away at most.
const wait = '?wait=20s'
const match = (term) => ({ 'If-Match': `"${term}"` })

// ended says that the term that was meant is not the present one.
function ended(o) {
  if (!o.term) return ''
  const g = group(o.group)
  if (g?.term === o.term && g.state === 'led') return ''
  const now = g?.state === 'led' ? `${g.leader_node_id} leads with term ${g.term} now` : 'nobody leads now'
  return `Term ${o.term} has ended: ${now}. Nothing was done.`
}

const said = {
  done: 'Done: the leader gave up.',
  refused: 'The leader refused.',
  ended: 'The term is over, and the group did not go to the node that was meant.',
  waiting: 'The leader has not answered yet. It gets the request with its next renewal.',
  forced: 'The session was closed.',
}

function result(r) {
  const now = r.leader_node_id ? ` ${r.leader_node_id} leads now.` : ''
  const also = r.also_ended?.length ? ` Also ended: ${r.also_ended.join(', ')}.` : ''
  return (said[r.outcome] ?? r.outcome) + (r.detail ? ` (${r.detail})` : '') + now + also
}

// drain cordons a node and asks it to give up each group that it leads, with the term of each.
async function drain(o, reason, tell, stopped) {
  await call('PUT', nodePath(o.node), { body: { reason } })
  const mine = all.peek().filter((g) => g.state === 'led' && g.leader_node_id === o.node)
  const work = mine.filter((g) => may('step-down', g.group))
  const count = { done: 0, other: 0, failed: [] }
  const next = async () => {
    for (let g; (g = work.shift()) && !stopped(); ) {
      try {
        const r = await post(groupPath(g.group) + '/step-down' + wait, { reason }, match(g.term))
        if (r.outcome === 'done') count.done++
        else count.failed.push(`${g.group}: ${r.outcome}`)
      } catch (e) {
        if (e.code === 'stale_term' || e.code === 'no_leader') count.other++
        else count.failed.push(`${g.group}: ${e.message}`)
      }
      tell(`${count.done + count.other + count.failed.length} of ${plural(mine.length, 'group')} …`)
    }
  }
  await Promise.all([next(), next(), next(), next()])
  const skipped = mine.filter((g) => !may('step-down', g.group)).length
  return `${o.node} is cordoned. It gave up ${plural(count.done, 'group')}.` +
    (count.other ? ` ${plural(count.other, 'term')} had ended already.` : '') +
    (skipped ? ` You may not step down ${plural(skipped, 'group')} that it leads.` : '') +
    (work.length ? ` Stopped before ${plural(work.length, 'group')}.` : '') +
    (count.failed.length ? ` Not done: ${count.failed.slice(0, 8).join('; ')}${count.failed.length > 8 ? ' …' : ''}` : '')
}

const verbs = {
  'step-down': {
    title: (o) => `Step down ${o.node} from ${o.group}`,
    does: (o) => `Asks ${o.node}, the leader of term ${o.term}, to finish its work and give up ${o.group}. Another candidate leads then.`,
    button: (o) => `Step down term ${o.term}`,
    run: (o, f) => post(groupPath(o.group) + '/step-down' + wait, { reason: f.reason, ...(f.cool && { cool_down_ms: +f.cool }) }, match(o.term)).then(result),
  },
  transfer: {
    title: (o) => `Transfer ${o.group}`,
    does: (o) => `Asks ${o.node}, the leader of term ${o.term}, to finish its work and hand ${o.group} to the candidate that you choose.`,
    button: (o) => `Transfer term ${o.term}`,
    run: (o, f) => post(`${groupPath(o.group)}/transfer${wait}&to=${encodeURIComponent(f.to)}`, { reason: f.reason }, match(o.term)).then(result),
  },
  force: {
    title: (o) => `Force ${o.node} out of ${o.group}`,
    does: (o) => `Closes the session of ${o.node} (term ${o.term}) without asking it.`,
    button: (o) => `Close the session of term ${o.term}`,
    danger: true,
    run: (o, f) => post(groupPath(o.group) + '/step-down?force=true', { reason: f.reason }, match(o.term)).then(result),
  },
  cordon: {
    title: (o) => `Cordon ${o.node}`,
    does: (o) => `${o.node} begins no further term until the cordon is removed. It keeps what it leads now.`,
    button: () => 'Cordon',
    run: (o, f) => call('PUT', nodePath(o.node), { body: { reason: f.reason } }).then(() => `${o.node} is cordoned.`),
  },
  uncordon: {
    title: (o) => `Remove the cordon of ${o.node}`,
    does: (o) => `${o.node} may lead again.`,
    button: () => 'Remove the cordon',
    plain: true,
    run: (o) => call('DELETE', nodePath(o.node)).then(() => `${o.node} may lead again.`),
  },
  drain: {
    title: (o) => `Drain ${o.node}`,
    does: (o) => `Cordons ${o.node}, then asks it to give up each group that it leads, by the term that is shown now: ${plural(all.value.filter((g) => g.state === 'led' && g.leader_node_id === o.node).length, 'group')}.`,
    button: () => 'Cordon and step down',
    run: (o, f, tell, stopped) => drain(o, f.reason, tell, stopped),
  },
}

export function Dialog() {
  const o = open.value
  return o && <Form key={JSON.stringify([o.verb, o.group, o.term, o.node])} o={o} />
}

function Form({ o }) {
  const box = useRef(null)
  const [form, setForm] = useState({ reason: '', to: '', cool: '', sure: false })
  const [state, setState] = useState({})
  const stopped = useRef(false)
  useEffect(() => {
    box.current.showModal()
    return () => (stopped.current = true)
  }, [])
  const verb = verbs[o.verb]
  const over = state.done || state.busy ? '' : ended(o)
  const close = () => (open.value = null)
  const set = (name) => (e) => setForm({ ...form, [name]: e.currentTarget.type === 'checkbox' ? e.currentTarget.checked : e.currentTarget.value })
  const others = all.value.filter((g) => g.state === 'led' && g.leader_node_id === o.node && g.group !== o.group)
  const able = (o.candidates ?? []).filter((c) => !c.leads && !c.barred && c.node_id !== o.node)
  const ready = current.value && !over && !state.busy && (o.verb !== 'transfer' || form.to) && (o.verb !== 'force' || form.sure)
  const submit = async (e) => {
    e.preventDefault()
    if (!ready) return
    setState({ busy: true })
    try {
      setState({ done: await verb.run(o, form, (text) => setState({ busy: true, text }), () => stopped.current) })
    } catch (e) {
      if (e.code === 'stale_term' || e.code === 'no_leader') setState({ failed: `Term ${o.term} has ended. Nothing was done. ${e.message}` })
      else if (e.status) setState({ failed: e.message })
      else setState({ failed: 'The service did not answer. It may have been done: look before you try again.' })
    }
    acted.value++
  }
  return (
    <dialog ref={box} onClose={close} onCancel={close} aria-labelledby="dialog-title">
      <form onSubmit={submit}>
        <h2 id="dialog-title">{verb.title(o)}</h2>
        <p>{verb.does(o)}</p>
        {o.verb === 'force' && (
          <div class="danger-box">
            <p><b>What it breaks.</b> Until its TTL is over, {o.node} may believe that it leads and act, while another node leads too (guarantee G3). Only the fence protects what it writes to.</p>
            <p>Everything else that this session leads ends with it. {o.node} leads {plural(others.length, 'other group')}{others.length ? `: ${others.slice(0, 6).map((g) => g.group).join(', ')}${others.length > 6 ? ' …' : '.'}` : '.'}</p>
          </div>
        )}
        {!state.done && <>
          {o.verb === 'transfer' && (
            <label>To
              <select value={form.to} onChange={set('to')} required>
                <option value="">{able.length ? 'Choose a candidate' : 'No candidate can lead'}</option>
                {able.map((c) => <option key={c.node_id} value={c.node_id}>{c.node_id}</option>)}
              </select>
            </label>
          )}
          {!verb.plain && <label>Reason<input value={form.reason} onInput={set('reason')} maxLength={200} placeholder="for the leader and the audit" /></label>}
          {o.verb === 'step-down' && (
            <label>May lead again
              <select value={form.cool} onChange={set('cool')}>
                <option value="">at once</option>
                <option value="60000">after 1 minute</option>
                <option value="600000">after 10 minutes</option>
                <option value="3600000">after 1 hour</option>
              </select>
            </label>
          )}
          {o.verb === 'force' && <label class="check"><input type="checkbox" checked={form.sure} onChange={set('sure')} />I know that two nodes may act at the same time.</label>}
        </>}
        <Trouble text={state.failed || over} />
        {!current.value && !state.done && <Trouble text="The page is not connected: nothing can be done now." />}
        <p role="status" class="outcome">{state.done ?? state.text ?? (state.busy ? 'Asking …' : '')}</p>
        <footer>
          <button type="button" onClick={close}>{state.done || over || state.failed ? 'Close' : 'Cancel'}</button>
          {!state.done && <button type="submit" class={verb.danger ? 'primary danger' : 'primary'} disabled={!ready}>{verb.button(o)}</button>}
        </footer>
      </form>
    </dialog>
  )
}
