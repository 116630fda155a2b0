"""Runs work in a process of its own, which ends before the lease does."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from typing import Any, Callable, Mapping, Sequence, TypeVar

from ._errors import TermEnded
from ._http import now
from ._term import Term

T = TypeVar("T")

_REASONS = ("", "expired", "lost", "step-down", "transfer", "cancelled", "finished")
_LOOK = 0.02


def run(term: Term, grace: float, work: Callable[..., T], args: Sequence[Any]) -> T:
    context = multiprocessing.get_context("spawn")
    # Without locks: a process that is killed could hold one.
    until, hard, reason = context.RawValue("d"), context.RawValue("d"), context.RawValue("i")

    def mirror(t: Term) -> None:
        until.value, hard.value = t._until, t._hard - grace / 2
        reason.value = _REASONS.index(t.reason) if t.reason in _REASONS else 1

    mirror(term)
    term._mirror = mirror
    receive, send = context.Pipe(duplex=False)
    answer = {"term": term.token, "deployment": term.deployment, "fenced": term.fenced, "ttl_ms": term._ttl * 1000}
    child = context.Process(target=_child, args=(work, args, term.group, term.node_id, answer, until, hard, reason, send))
    try:
        child.start()
        send.close()
        while not multiprocessing.connection.wait([receive, child.sentinel], _LOOK):
            if term._over and now() >= hard.value:
                raise TermEnded(term.group, term.token, term.reason)
        try:
            ok, value = receive.recv()
        except EOFError:
            child.join(max(0.0, hard.value - now()))
            raise TermEnded(term.group, term.token, term._over) if term._over else RuntimeError(
                f"work has ended with exit code {child.exitcode}"
            ) from None
        if not ok:
            raise value
        result: T = value
        return result
    finally:
        if child.pid is not None:
            child.kill()
            child.join()
        receive.close()


def _child(
    work: Callable[..., Any], args: Sequence[Any], group: str, node_id: str, answer: Mapping[str, Any],
    until: Any, hard: Any, reason: Any, send: Any,
) -> None:
    term = Term(group, node_id, answer, until.value, 0)

    def watch() -> None:
        # The parent moves the end of the lease. If it is paused or gone, nobody does.
        while True:
            term._until = until.value
            term._expire()
            said = _REASONS[reason.value]
            if said in _REASONS[1:3]:
                term._end(said)
            elif said:
                term._ask(said)
            if now() >= hard.value:
                os._exit(75)
            time.sleep(_LOOK)

    threading.Thread(target=watch, daemon=True).start()
    try:
        outcome = (True, work(term, *args))
    except BaseException as e:
        outcome = (False, e)
    try:
        send.send(outcome)
    except Exception as e:  # it cannot be pickled
        send.send((False, RuntimeError(f"the result of work: {e}; it was {outcome[1]!r}")))
