#!/usr/bin/env python3
"""The program that the tests run: the same as ../../typescript/test/candidate.mjs.

    candidate.py GROUP NODE [SECONDS]   lead once, and work for that long
    candidate.py watch GROUP            print each event

Every line of output is a JSON object. Exit codes: 75 the lease ended, 1 another error.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
import tenure  # noqa: E402


def say(event, **more):
    print(json.dumps({"event": event, **more}, separators=(",", ":")), flush=True)


def write(term):
    """Writes to the fenced resource, if there is one."""
    if not os.environ.get("TEST_SINK"):
        return say("works", term=term.token, remaining=term.remaining() * 1000)
    r = urllib.request.Request(os.environ["TEST_SINK"], data=b"x", headers=term.headers())
    try:
        urllib.request.urlopen(r, timeout=30).close()
        say("works", term=term.token)
    except urllib.error.HTTPError as e:
        say("refused", term=term.token, status=e.code)


def work(term, seconds):
    say("leads", term=term.token, deployment=term.deployment, fenced=term.fenced, remaining=term.remaining() * 1000)
    end = time.monotonic() + seconds
    stuck = bool(os.environ.get("TEST_STUCK"))
    while time.monotonic() < end:
        try:
            term.check()
        except tenure.TermEnded:
            if not stuck:
                break
        write(term)
        term.stop.wait(0.05) if not stuck else time.sleep(0.05)
    request = term.request and {"verb": term.request.verb, "to": term.request.to}
    say("stopped", term=term.token, reason=term.reason, request=request, at=time.clock_gettime(time.CLOCK_MONOTONIC) * 1000)
    if os.environ.get("TEST_LATE"):
        write(term)


def lead(client, group, seconds):
    options = {"ttl": int(os.environ.get("TENURE_TTL_MS", "8000")) / 1000, "exit_on_overrun": not os.environ.get("TEST_LATE")}
    if os.environ.get("TEST_TIMEOUT_MS"):
        options["timeout"] = int(os.environ["TEST_TIMEOUT_MS"]) / 1000
    if os.environ.get("TEST_PROCESS"):
        client.lead_in_process(group, work, seconds, **options)
    else:
        client.lead(group, lambda term: work(term, seconds), **options)


def main(args):
    if args[0] == "watch":
        for e in tenure.Client.from_env("watcher").watch(args[1]):
            say(e.kind, group=e.group, state=e.state, term=e.term, leader_node_id=e.leader_node_id, reason=e.reason)
    client = tenure.Client.from_env(args[1])
    try:
        for _ in range(int(os.environ.get("TEST_TERMS", "1"))):
            lead(client, args[0], float(args[2]) if len(args) == 3 else float("inf"))
            say("resigned")
    except tenure.TermEnded as e:
        say("lost", term=e.token, reason=e.reason)
        raise SystemExit(75) from None
    except tenure.TenureError as e:
        say("error", code=e.code, retryable=e.retryable)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main(sys.argv[1:])
