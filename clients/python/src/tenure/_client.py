from __future__ import annotations

import logging
import os
import random
import secrets
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Set, TypeVar, Union

from ._errors import NoAnswer, NotElected, ServiceError, TenureError, TermEnded
from ._http import Transport, now
from ._process import run as run_in_process
from ._term import Request, Term, window
from ._watch import Event, watch

T = TypeVar("T")

_log = logging.getLogger("tenure")

_WAIT = 30.0  # how long a campaign stands in line with one call
_ANSWER = 10.0  # how long the service has to answer beyond that
_RESIGN = 5.0  # limit of the calls that give a group up
_OVERRUN = 75  # exit code of a process whose work has not stopped in time
_OVER = ("not_leader", "session_dead")  # answers to a renewal: the term is over


class Client:
    """Calls a Tenure service in the name of one node. Make one per process; threads may share it.

    urls: one or more instances of the service. node_id: the name of this process, the same as in
    its credential. credential_file is read for each call. ca_file, cert_file and key_file are for
    https; without ca_file the system's authorities are used.
    """

    def __init__(
        self,
        urls: Union[str, Sequence[str]],
        node_id: str,
        *,
        credential: Optional[str] = None,
        credential_file: Optional[str] = None,
        ca_file: Optional[str] = None,
        cert_file: Optional[str] = None,
        key_file: Optional[str] = None,
    ):
        self.node_id = node_id
        self._transport = Transport(
            [urls] if isinstance(urls, str) else urls, credential, credential_file, ca_file, cert_file, key_file
        )
        self._lock = threading.Lock()
        self._pid = 0
        self._renewed_identity()

    @classmethod
    def from_env(cls, node_id: str) -> "Client":
        """Reads TENURE_STORE (several instances: https://a:7400,b:7400), TENURE_STORE_CREDENTIAL or
        TENURE_STORE_CREDENTIAL_FILE, TENURE_STORE_CA, TENURE_STORE_CERT and TENURE_STORE_KEY, as
        the command `tenure` does."""
        scheme, separator, hosts = os.environ.get("TENURE_STORE", "http://127.0.0.1:7400").partition("://")
        if not separator:
            raise ValueError("TENURE_STORE: want the URL of a service, such as https://10.0.0.1:7400")
        urls = [scheme + "://" + host.replace(scheme + "://", "") for host in hosts.split(",")]

        def get(name: str) -> Optional[str]:
            return os.environ.get("TENURE_STORE_" + name) or None

        return cls(
            urls, node_id, credential=get("CREDENTIAL"), credential_file=get("CREDENTIAL_FILE"),
            ca_file=get("CA"), cert_file=get("CERT"), key_file=get("KEY"),
        )  # fmt: skip

    def lead(
        self,
        group: str,
        work: Callable[[Term], T],
        *,
        ttl: float = 8.0,
        grace: Optional[float] = None,
        timeout: Optional[float] = None,
        stop: Optional[threading.Event] = None,
        metadata: Optional[Mapping[str, str]] = None,
        address: str = "",
        priority: int = 0,
        exit_on_overrun: bool = True,
    ) -> T:
        """Campaigns until this process leads the group, runs work(term) in this thread, resigns
        after work has returned, and returns its result.

        Work should return soon after term.stop is set: the term has ended or is about to be given
        to another process. grace is how long it has for that before the lease ends (default a tenth
        of the ttl). If it still runs then, the process exits with code 75, unless exit_on_overrun is
        False.

        timeout bounds the campaign in seconds. stop ends the campaign, or asks work to end.

        Raises NotElected, ServiceError if the service refuses definitely, TermEnded if the lease
        ended before work returned, and what work raises.
        """
        grace = ttl / 10 if grace is None else grace
        if window(ttl, grace) <= 0 or grace <= 0:
            raise ValueError(f"ttl = {ttl} s is too short for grace = {grace} s")
        body: Dict[str, Any] = {"node_id": self.node_id, "ttl_ms": round(ttl * 1000)}
        body.update({k: v for k, v in (("metadata", metadata), ("address", address), ("priority", priority)) if v})
        with self._lock:
            self._renewed_identity()
            if group in self._busy:
                raise RuntimeError(f"lead {group}: this client already campaigns for it or leads it")
            self._busy.add(group)
        body["instance"] = self._instance
        try:
            term = self._campaign(group, body, grace, timeout, stop)
            return self._serve(term, work, stop, exit_on_overrun)
        finally:
            with self._lock:
                self._busy.discard(group)

    def lead_in_process(self, group: str, work: Callable[..., T], *args: Any, **options: Any) -> T:
        """Like lead, but runs work(term, *args) in a new process (multiprocessing, spawn), which is
        killed before the lease ends, also if this process is paused or killed meanwhile. Work,
        arguments and result must be picklable. Processes that work starts are not killed."""
        grace = options.get("grace") or options.get("ttl", 8.0) / 10
        return self.lead(group, lambda term: run_in_process(term, grace, work, args), **options)

    def leader(self, group: str) -> Dict[str, Any]:
        """Returns who leads, as docs/api.md describes. It is never a permission to act.
        Raises ServiceError with the code no_leader if nobody leads."""
        return self._transport.call("GET", f"/groups/{group}/leader", None, _ANSWER)

    def watch(self, *groups: str, stop: Optional[threading.Event] = None) -> Iterator[Event]:
        """Yields the state of the groups and then each change once, through interruptions, until
        stop is set. If changes were missed, it yields an event whose kind is reset, and then the
        current state."""
        return watch(self._transport, groups, stop)

    def _renewed_identity(self) -> None:
        """Chooses the instance. A forked process is another one and leads nothing."""
        if self._pid != os.getpid():
            self._pid, self._instance = os.getpid(), secrets.token_hex(16)
            self._busy: Set[str] = set()
            self._spent: Dict[str, int] = {}  # the newest term of each group that is over for us

    def _campaign(
        self, group: str, body: Mapping[str, Any], grace: float, timeout: Optional[float], stop: Optional[threading.Event]
    ) -> Term:
        end = float("inf") if timeout is None else now() + timeout
        failures = 0
        while True:
            wait = min(_WAIT, end - now())
            if wait <= 0 or stop is not None and stop.is_set():
                raise NotElected(f"lead {group}: not elected in time, or cancelled")
            sent = now()
            pause = random.uniform(0.05, min(2.0, 0.1 * 2 ** min(failures, 8)))
            failures += 1
            try:
                # A retry has the same instance, so it gets the answer that was lost.
                path = f"/groups/{group}/campaign?wait={int(wait * 1000)}ms"
                answer = self._transport.call("POST", path, body, wait + _ANSWER, stop)
                until = sent + answer["held_ms"] / 1000 + window(answer["ttl_ms"] / 1000, grace)
                term = Term(group, self.node_id, answer, until, grace)
            except ServiceError as e:
                if not e.retryable:
                    raise
                if e.retry_after is not None:
                    pause = e.retry_after * random.uniform(1, 1.25)
                _log.info("campaign for %s: %s", group, e)
            except NoAnswer as e:
                _log.info("campaign for %s: %s", group, e)
            else:
                # A term that we have resigned may come again; a late answer may be for a lease
                # that has ended. Neither may be worked with.
                if term.token > self._spent.get(group, 0) and term.remaining() > 0:
                    return term
                self._resign(term)
            pause = max(0.0, min(pause, end - now()))
            (stop or threading.Event()).wait(pause)

    def _serve(self, term: Term, work: Callable[[Term], T], stop: Optional[threading.Event], exit_on_overrun: bool) -> T:
        done = threading.Event()
        threads = [
            threading.Thread(target=self._renew, args=(term, done), name="tenure-renew", daemon=True),
            threading.Thread(target=_watchdog, args=(term, done, stop, exit_on_overrun), name="tenure-watch", daemon=True),
        ]
        for t in threads:
            t.start()
        try:
            result = work(term)
        except BaseException as e:
            self._finish(term, done, threads)
            if term._over and not (isinstance(e, TermEnded) and e.reason == term._over):
                raise TermEnded(term.group, term.token, term._over) from e
            raise
        self._finish(term, done, threads)
        if term._over:
            raise TermEnded(term.group, term.token, term._over)
        return result

    def _finish(self, term: Term, done: threading.Event, threads: Sequence[threading.Thread]) -> None:
        """Gives the group up. Work has returned."""
        term._expire()
        term._ask("finished")
        done.set()
        for t in threads:
            t.join()
        self._resign(term)

    def _resign(self, term: Term) -> None:
        """The service obeys a pending request for a transfer. If no call is answered, the term
        expires."""
        self._spent[term.group] = max(term.token, self._spent.get(term.group, 0))
        if term._over == "lost":
            return
        end = now() + (0 if term._over else _RESIGN)  # a term that has expired gets one try
        while True:
            try:
                self._transport.call("POST", f"/groups/{term.group}/resign", term._claim(), 2.0)
                return
            except (TenureError, OSError) as e:
                if isinstance(e, ServiceError) and e.status < 500 and e.status != 429:
                    return  # the term was over
                if now() >= end:
                    _log.warning("resign %s: %s; the term ends when its TTL has passed", term.group, e)
                    return
            time.sleep(random.uniform(0.05, 0.3))

    def _renew(self, term: Term, done: threading.Event) -> None:
        beat = term._ttl / 4
        pause = beat
        while not done.wait(pause) and not term._over:
            sent = now()
            pause = beat * random.uniform(0.9, 1)
            try:
                # The call ends with the lease at the latest. It is short, to leave time for another.
                answer = self._transport.call(
                    "POST", f"/groups/{term.group}/renew", term._claim(), max(0.001, min(beat, term._until - sent)), done
                )
                term._extend(sent + window(answer["ttl_ms"] / 1000, term._grace))
                for r in answer.get("requests", []):
                    term.request = Request(r["verb"], r.get("to", ""), r.get("reason", ""))
                    term._ask(r["verb"])
            except Exception as e:  # whatever fails, only the clock and these answers end a term
                if isinstance(e, ServiceError) and e.code in _OVER:
                    term._end("lost")
                    return
                after = getattr(e, "retry_after", None) or 0.0
                pause = min(beat, max(after, beat / 8)) * random.uniform(0.75, 1)
                _log.info("renew %s: %s", term.group, e)


def _watchdog(term: Term, done: threading.Event, stop: Optional[threading.Event], exit_on_overrun: bool) -> None:
    """Ends the term in time, and the process if its work does not stop. It looks often at a clock
    that does not stop while the machine is suspended; the clock of Event.wait does."""
    while not done.wait(max(0.001, min(0.05, (term._hard if term._over else term._until) - now()))):
        if stop is not None and stop.is_set():
            term._ask("cancelled")
        term._expire()
        if term._over and now() >= term._hard:
            if exit_on_overrun:
                sys.stderr.write(f"tenure: {term.group}: term {term.token} is {term._over} and work has not stopped; exiting\n")
                sys.stderr.flush()
                os._exit(_OVERRUN)
            return
