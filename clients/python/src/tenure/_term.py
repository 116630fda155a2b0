from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Optional

from ._errors import TermEnded
from ._http import now

# The largest difference in rate between this clock and the engine's, as a fraction.
DRIFT = 0.02


def window(ttl: float, grace: float) -> float:
    """How long after it sent a call a leader may work, if the call was answered with this TTL."""
    return ttl * (1 - DRIFT) - max(0.05, ttl / 40) - grace


@dataclass(frozen=True)
class Request:
    """What an operator asks of the leader. Work that returns obeys it."""

    verb: str  # step-down or transfer
    to: str
    reason: str


class Term:
    """One uninterrupted leadership of a group. Any thread may use it."""

    def __init__(self, group: str, node_id: str, answer: Mapping[str, Any], until: float, grace: float):
        self.group, self.node_id = group, node_id
        #: The fencing token: send it with every write.
        self.token = int(answer["term"])
        self.deployment = str(answer["deployment"])
        #: Whether the group's policy says that everything the leader writes to checks the token.
        self.fenced = bool(answer.get("fenced", False))
        #: Set when work should end. `reason` says why.
        self.stop = threading.Event()
        #: The operator's request, if there is one.
        self.request: Optional[Request] = None
        self._grace = grace
        self._handle = str(answer.get("handle", ""))
        self._ttl = answer["ttl_ms"] / 1000
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._until = until
        self._over = ""  # why the lease has ended
        self._asked = ""  # why work should end although the lease lasts
        self._hard = until + grace
        self._mirror: Callable[[Term], None] = lambda _: None

    @property
    def reason(self) -> str:
        """Why work should end; empty while it may go on. TermEnded lists the reasons."""
        return self._over or self._asked

    def remaining(self) -> float:
        """Seconds until the term ends, if no further renewal is acknowledged."""
        return 0.0 if self._over else max(0.0, self._until - now())

    def check(self) -> None:
        """Raises TermEnded if work must not go on. Call it directly before each step. It reads a
        clock and makes no call."""
        self._expire()
        reason = self.reason if os.getpid() == self._pid else "forked"
        if reason:
            raise TermEnded(self.group, self.token, reason)

    def headers(self, seq: Optional[int] = None) -> Dict[str, str]:
        """Returns the stamp for an HTTP request to a fenced resource."""
        stamp = {"Fencing-Deployment": self.deployment, "Fencing-Group": self.group, "Fencing-Token": str(self.token)}
        if seq is not None:
            stamp["Fencing-Seq"] = str(seq)
        return stamp

    def _claim(self) -> Dict[str, Any]:
        return {"node_id": self.node_id, "term": self.token, "handle": self._handle}

    def _expire(self) -> None:
        if not self._over and now() >= self._until:
            self._end("expired")

    def _extend(self, until: float) -> None:
        with self._lock:
            # A term that has ended stays so, even if the renewal was acknowledged.
            if not self._over and now() < self._until:
                self._until = max(self._until, until)
                self._hard = self._until + self._grace
                self._mirror(self)

    def _end(self, reason: str) -> None:
        with self._lock:
            if self._over:
                return
            self._over = reason
            # The service may have granted the group to another process already.
            self._hard = min(self._hard, now() + self._grace)
            self._mirror(self)
        self.stop.set()

    def _ask(self, reason: str) -> None:
        with self._lock:
            self._asked = self._asked or reason
            self._mirror(self)
        self.stop.set()
