#!/usr/bin/env python3
"""A leader in Python's standard library, over the HTTP API of `tenure serve`.

    lead.py GROUP NODE [SECONDS]   campaign for the group, and work while leading
    lead.py watch GROUP            print each change of leader

TENURE_STORE is the URL of the service, TENURE_STORE_CREDENTIAL the bearer credential if the
service needs one. Lease computes its deadline from when the last renewal was sent, so
`leads()` needs no network. It can still be wrong, after a pause for example: the resource
that the work writes to must check the term.
"""

import http.client
import json
import os
import secrets
import sys
import threading
import time
import urllib.error
import urllib.request

# Errors of a call without a complete answer.
NO_ANSWER = (OSError, ValueError, http.client.HTTPException)

# Identifies this process. With it the service recognises a retry, so it stays the same for
# the life of the process, and no longer.
INSTANCE = secrets.token_hex(16)

URL = os.environ.get("TENURE_STORE", "http://127.0.0.1:7400")


def now():
    """Seconds on a clock that cannot be set and that runs while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def request(method, path, body=None, headers=None):
    r = urllib.request.Request(URL + "/v1" + path, method=method, headers=dict(headers or {}))
    if body is not None:
        r.data = json.dumps(body).encode()
        r.add_header("Content-Type", "application/json")
    if os.environ.get("TENURE_STORE_CREDENTIAL"):
        r.add_header("Authorization", "Bearer " + os.environ["TENURE_STORE_CREDENTIAL"])
    return r


def call(method, path, body, timeout):
    """Returns the status and the answer; status 0 without an answer."""
    try:
        with urllib.request.urlopen(request(method, path, body), timeout=timeout) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        try:
            return refusal.code, json.load(refusal)
        except NO_ANSWER:
            return 0, {}  # the answer is not from the service, but from a proxy
    except NO_ANSWER:
        return 0, {}


class Lease:
    """A term of leadership, renewed in the background until it is lost or given up."""

    def __init__(self, group, node, answer, until):
        self.group, self.node = group, node
        self.term, self.handle = answer["term"], answer["handle"]
        self.deployment, self.ttl = answer["deployment"], answer["ttl_ms"] / 1000
        self.asked = threading.Event()  # an operator asked us to give up
        self._until = until - self.ttl / 10  # time to stop
        self._over = threading.Event()
        self._renewer = threading.Thread(target=self._renew, daemon=True)
        self._renewer.start()

    def leads(self):
        return not self._over.is_set() and now() < self._until

    def _claim(self):
        return {"node_id": self.node, "term": self.term, "handle": self.handle}

    def _renew(self):
        while not self._over.wait(self.ttl / 8):
            sent = now()  # the lease is counted from here, not from the answer
            if sent >= self._until:
                return self._over.set()
            status, answer = call("POST", f"/groups/{self.group}/renew", self._claim(), self._until - sent)
            if status == 200:
                self._until = sent + answer["ttl_ms"] / 1000 - self.ttl / 10
                if answer.get("requests"):
                    self.asked.set()
            elif status == 409:  # not_leader: stop now
                return self._over.set()

    def resign(self):
        """Gives up the group. The work must have ended: another node leads at once.

        If an operator asked for a transfer, the service hands the group to that node.
        """
        self._over.set()
        self._renewer.join()
        return call("POST", f"/groups/{self.group}/resign", self._claim(), 5)[0] == 200


def campaign(group, node, ttl_ms=8000):
    """Campaigns until this node leads."""
    while True:
        sent = now()
        body = {"node_id": node, "instance": INSTANCE, "ttl_ms": ttl_ms}
        status, answer = call("POST", f"/groups/{group}/campaign?wait=30s", body, 45)
        if status == 200:
            return Lease(group, node, answer, sent + (answer["held_ms"] + answer["ttl_ms"]) / 1000)
        if status not in (0, 409, 429) and status < 500:
            raise SystemExit(f"campaign: {status} {answer}")
        time.sleep(answer.get("retry_after_ms", 1000) / 1000)


def watch(group):
    """Yields each change, across reconnects: the ids are valid on every instance."""
    last = {}
    while True:
        try:
            with urllib.request.urlopen(request("GET", f"/groups/{group}/watch", headers=last), timeout=60) as stream:
                for line in stream:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    if name == "id":
                        last = {"Last-Event-ID": value}
                    elif name == "data":
                        yield json.loads(value)
        except NO_ANSWER:
            pass
        time.sleep(1)


def say(**what):
    print(json.dumps(what), flush=True)


def main(args):
    if len(args) == 2 and args[0] == "watch":
        for event in watch(args[1]):
            say(**event)
    if len(args) not in (2, 3):
        raise SystemExit(__doc__)
    lease = campaign(args[0], args[1], int(os.environ.get("TENURE_TTL_MS", "8000")))
    say(event="leads", group=lease.group, term=lease.term)
    end = now() + float(args[2]) if len(args) == 3 else float("inf")
    while lease.leads() and not lease.asked.is_set() and now() < end:
        # A real job writes here, with the header Fencing-Token: <term>.
        say(event="works", term=lease.term)
        time.sleep(0.05)
    if not lease.leads():
        say(event="lost", term=lease.term)
        raise SystemExit(75)
    say(event="resigned" if lease.resign() else "not resigned", term=lease.term)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        raise SystemExit(130) from None
