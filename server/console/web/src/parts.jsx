// Small parts that several views use.
import { useEffect, useRef, useState } from 'preact/hooks'
import { current, link_to, now, serverNow } from './model.js'

// span writes a duration in words.
export function span(ms) {
  const s = Math.max(0, Math.floor(ms / 1000))
  if (s < 60) return s + ' s'
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`
}

const same = new Intl.DateTimeFormat(undefined, { timeStyle: 'medium' })
const other = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' })
export function clock(ms) {
  if (!ms) return ''
  const d = new Date(ms)
  return (d.toDateString() === new Date(now.peek()).toDateString() ? same : other).format(d)
}
export const Time = ({ ms }) => <time dateTime={new Date(ms).toISOString()} title={new Date(ms).toISOString()}>{clock(ms)}</time>

export const since = (ms) => (ms ? span(serverNow() - ms) : '')

const reasons = {
  expired: 'its lease ran out: no renewal arrived in time',
  lost: 'its session was found dead',
  closed: 'its session was closed',
  resigned: 'the leader resigned',
  transferred: 'handed to a successor',
  'stepped-down': 'an operator asked it to step down',
  unhealthy: 'the leader was unhealthy and gave up',
  forced: 'an operator closed its session by force',
  died: 'its process died',
  suspected: 'its process had probably died',
}
export const because = (reason) => reasons[reason] ?? ''

export const bars = {
  cordoned: 'cordoned',
  cooling_down: 'cooling down',
  not_a_member: 'not a member',
  unknown_group: 'the group does not exist',
  ttl_out_of_bounds: 'TTL out of bounds',
}

// Leader says who leads, and never calls a leader current that may have changed.
export function Leader({ g }) {
  if (!current.value) return <span class="leader was"><i class="mark unknown" aria-hidden="true" />{g.state === 'led' ? `was ${g.leader_node_id}` : 'unknown'}</span>
  if (g.state === 'led') return <span class="leader"><i class="mark led" aria-hidden="true" />{g.leader_node_id}</span>
  return <span class="leader none"><i class="mark vacant" aria-hidden="true" />{g.term ? 'no leader' : 'never led'}</span>
}

// Lease shows how long a lease lasts at most.
export function Lease({ lease }) {
  if (!current.value || lease?.lease_remaining_ms === undefined) return <span class="faint">–</span>
  const left = Math.max(0, lease.lease_remaining_ms - (now.value - lease.read))
  return (
    <span class="lease" title={`at most ${span(left)} of ${lease.ttl_ms / 1000} s, if it is not renewed`}>
      <meter min="0" max={lease.ttl_ms} low={lease.ttl_ms / 3} value={left} aria-label="remaining lease" />
      <span>≤ {(left / 1000).toFixed(1)} s</span>
    </span>
  )
}

export const GroupLink = ({ name }) => <a href={link_to('groups', name)}>{name}</a>

// List renders the visible rows of many only.
export function List({ items, height, row, head, label, keyOf, onVisible }) {
  const box = useRef(null)
  const [at, setAt] = useState({ top: 0, room: 800 })
  useEffect(() => {
    const el = box.current
    if (!el) return
    const measure = () => setAt({ top: el.scrollTop, room: el.clientHeight })
    const seen = new ResizeObserver(measure)
    seen.observe(el)
    measure()
    return () => seen.disconnect()
  }, [])
  const first = Math.max(0, Math.floor(at.top / height) - 4)
  const count = Math.ceil(at.room / height) + 8
  const shown = items.slice(first, first + count)
  const key = shown.map(keyOf).join(' ')
  useEffect(() => onVisible?.(shown), [key])
  return (
    <div class="list" role="table" aria-label={label} aria-rowcount={items.length + 1}>
      {head}
      <div class="rows" role="rowgroup" ref={box} tabIndex={0} aria-label={label + ', scrolls'} onScroll={(e) => setAt({ top: e.currentTarget.scrollTop, room: e.currentTarget.clientHeight })}>
        <div role="presentation" style={{ height: items.length * height + 'px', position: 'relative' }}>
          <div role="presentation" style={{ transform: `translateY(${first * height}px)` }}>{shown.map((item, i) => row(item, first + i + 2))}</div>
        </div>
      </div>
    </div>
  )
}

// usePoll calls f at once, when deps change, and every ms while the page is visible.
export function usePoll(f, ms, deps) {
  useEffect(() => {
    let gone = false
    let timer
    const turn = async () => {
      if (!document.hidden) await f(() => !gone).catch(() => {})
      if (!gone) timer = setTimeout(turn, ms)
    }
    turn()
    return () => {
      gone = true
      clearTimeout(timer)
    }
  }, deps)
}

export const Trouble = ({ text }) => text && <p class="trouble" role="alert">{text}</p>
export const plural = (n, word) => `${n.toLocaleString('en')} ${word}${n === 1 ? '' : 's'}`
