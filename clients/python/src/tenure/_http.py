"""Calls to the service, over HTTP/1.1. Every call has a connection of its own and a deadline."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import select
import ssl
import threading
import time
import urllib.parse
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ._errors import NoAnswer, ServiceError

_MAX_ANSWER = 1 << 20
_CONNECT = 3.0
_SLICE = 0.1  # how often a call that waits looks whether it was cancelled

_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def now() -> float:
    """Seconds on a clock that nobody can set and that, on Linux, runs while the machine sleeps."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class Transport:
    def __init__(
        self,
        urls: Sequence[str],
        credential: Optional[str],
        credential_file: Optional[str],
        ca_file: Optional[str],
        cert_file: Optional[str],
        key_file: Optional[str],
    ):
        self._hosts: List[Tuple[bool, str, int, str]] = []
        for url in urls:
            u = urllib.parse.urlsplit(url)
            if u.scheme not in ("http", "https") or not u.hostname or u.query or u.fragment or u.username is not None:
                raise ValueError("url: want the address of a service, such as https://10.0.0.1:7400, without credentials")
            secure = u.scheme == "https"
            if not secure and (ca_file or cert_file or key_file):
                raise ValueError("url: must begin with https:// when ca_file, cert_file or key_file is set")
            if not secure and (credential or credential_file) and not _loopback(u.hostname):
                raise ValueError("url: must begin with https:// when a credential is set: it would be sent unencrypted")
            path = u.path.rstrip("/")
            self._hosts.append((secure, u.hostname, u.port or (443 if secure else 80), path[:-3] if path.endswith("/v1") else path))
        if not self._hosts:
            raise ValueError("url: missing; set TENURE_STORE or pass the URL of the service")
        if cert_file and not key_file or key_file and not cert_file:
            raise ValueError("cert_file and key_file: set both")
        self._files = (ca_file, cert_file, key_file)
        self._credential, self._credential_file = credential, credential_file
        self._preferred = 0
        self._tls: Optional[Tuple[Tuple[float, ...], ssl.SSLContext]] = None

    def call(
        self,
        method: str,
        path: str,
        body: Optional[Mapping[str, Any]],
        timeout: float,
        stop: Optional[threading.Event] = None,
    ) -> Dict[str, Any]:
        """Returns the answer, or raises ServiceError or NoAnswer. If a service does not answer or
        fails, the next call tries the next URL."""
        headers = self._authorization()
        data: Optional[bytes] = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        deadline = now() + timeout
        secure, host, port, prefix = self._hosts[self._preferred % len(self._hosts)]
        patience = max(0.001, min(_CONNECT, timeout))
        if secure:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(host, port, timeout=patience, context=self._context())
        else:
            connection = http.client.HTTPConnection(host, port, timeout=patience)
        try:
            return _exchange(connection, method, prefix + "/v1" + path, data, headers, deadline, stop)
        except ServiceError as e:
            if e.status >= 500:
                self._preferred += 1
            raise
        except (NoAnswer, OSError, http.client.HTTPException) as e:
            self._preferred += 1
            raise e if isinstance(e, NoAnswer) else NoAnswer(f"{type(e).__name__}: {e}") from e
        finally:
            connection.close()

    def _context(self) -> ssl.SSLContext:
        # Certificates are replaced while the process runs.
        changed = tuple(os.stat(f).st_mtime for f in self._files if f)
        if self._tls is None or self._tls[0] != changed:
            ca, cert, key = self._files
            context = ssl.create_default_context(cafile=ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if cert:
                context.load_cert_chain(cert, key)
            self._tls = (changed, context)
        return self._tls[1]

    def _authorization(self) -> Dict[str, str]:
        credential = self._credential
        if self._credential_file:  # read for each call: short-lived credentials are replaced there
            with open(self._credential_file, encoding="ascii") as f:
                credential = f.read().strip()
        return {"Authorization": "Bearer " + credential} if credential else {}


def _exchange(
    connection: http.client.HTTPConnection, method: str, path: str, data: Optional[bytes], headers: Mapping[str, str],
    deadline: float, stop: Optional[threading.Event],
) -> Dict[str, Any]:
    connection.request(method, path, data, dict(headers))
    _await(connection.sock, deadline, stop)
    answer = connection.getresponse()
    text = answer.read(_MAX_ANSWER)
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    done = answer.status in (200, 202)
    if not isinstance(body, dict) or not done and "code" not in body:
        raise NoAnswer(f"{answer.status}: the answer is incomplete, or not from the service")
    if done:
        return body
    after = answer.headers.get("Retry-After", "")
    retry: Optional[float] = float(after) if after.isdigit() else None
    if isinstance(body.get("retry_after_ms"), int):
        retry = body["retry_after_ms"] / 1000
    raise ServiceError(answer.status, body, retry)


def _await(sock: Any, deadline: float, stop: Optional[threading.Event]) -> None:
    """Waits until there is something to read. It looks often at `stop`, and at a clock that does
    not stop while the machine is suspended."""
    while not (isinstance(sock, ssl.SSLSocket) and sock.pending()):
        if stop is not None and stop.is_set():
            raise NoAnswer("the call was cancelled")
        left = deadline - now()
        if left <= 0:
            raise NoAnswer("the service did not answer in time")
        if hasattr(select, "poll"):  # select fails for file descriptors above 1023
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            ready = bool(poll.poll(min(left, _SLICE) * 1000))
        else:
            ready = bool(select.select([sock], [], [], min(left, _SLICE))[0])
        if ready:
            break
    sock.settimeout(max(0.001, min(_CONNECT, deadline - now())))


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
