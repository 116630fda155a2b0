"""Lead a group of a Tenure service, and fence what the leader writes.

    client = tenure.Client.from_env("node-1")
    client.lead("billing", work)

`work` gets a Term. It runs until it returns or the term ends.

Limitations:

- Python cannot stop a function from outside. `work` must look at `term.stop` or call
  `term.check()`. If it has not returned when the lease ends, the process exits with code 75.
  C code that holds the interpreter lock also delays that exit. `lead_in_process` and
  `tenure exec` kill the work instead.
- A paused process cannot know that its lease has ended. Whatever it writes to must compare
  the token: send `term.headers()` over HTTP, or pass `term.token` to `tenure_guard` in SQL.
- Without Linux's CLOCK_BOOTTIME the lease is measured on a clock that may stop while the
  machine is suspended.
"""

from ._errors import NoAnswer, NotElected, ServiceError, TenureError, TermEnded
from ._client import Client
from ._term import Request, Term
from ._watch import Event

__all__ = ["Client", "Event", "NoAnswer", "NotElected", "Request", "ServiceError", "TenureError", "Term", "TermEnded"]
