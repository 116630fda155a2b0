from __future__ import annotations

import random
import threading
import urllib.parse
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Optional, Sequence

from ._errors import NoAnswer, ServiceError
from ._http import Transport

_WAIT = 30


@dataclass(frozen=True)
class Event:
    """The state of a group, or a change of it."""

    #: snapshot: the current state. changed: it has changed. reset: changes were missed, and
    #: snapshots follow; the other fields are empty.
    kind: str
    group: str = ""
    state: str = ""  # led, vacant or unknown
    term: int = 0  # of the newest term, ended or not
    leader_node_id: str = ""  # who leads or, if the state is vacant, led last
    reason: str = ""  # why the term ended
    address: str = ""
    since_ms: int = 0  # when the term began, by the engine's wall clock


def watch(transport: Transport, groups: Sequence[str], stop: Optional[threading.Event]) -> Iterator[Event]:
    if not groups:
        raise ValueError("watch: name at least one group")
    stop = stop or threading.Event()
    named = urllib.parse.urlencode([("group", g) for g in groups])
    cursor = ""
    failures = 0
    while not stop.is_set():
        query = named + ("&wait=0s" if not cursor else f"&wait={_WAIT}s&after={urllib.parse.quote(cursor)}")
        try:
            # The cursor is valid at every instance of the service.
            answer = transport.call("GET", "/watch?" + query, None, _WAIT + 10, stop)
        except (NoAnswer, ServiceError) as e:
            if e.code == "cursor_too_old":
                cursor = ""
                yield Event("reset")
                continue
            if not e.retryable:
                raise
            pause = getattr(e, "retry_after", None) or min(5.0, 0.1 * 2 ** min(failures, 8))
            failures += 1
            stop.wait(pause * random.uniform(1, 1.25))
            continue
        failures = 0
        cursor = str(answer["cursor"])
        for event in answer["events"]:
            yield _event(event)


def _event(e: Mapping[str, Any]) -> Event:
    return Event(
        "snapshot" if e.get("snapshot") else "changed", e["group"], e["state"], e["term"], e["leader_node_id"],
        e.get("reason", ""), e.get("address", ""), e.get("since_ms", 0),
    )  # fmt: skip
