from __future__ import annotations

from typing import Any, Mapping, Optional


class TenureError(Exception):
    """Any error of this package. `code` is stable; `retryable` says whether the same call may succeed later."""

    code = "error"
    retryable = False


class ServiceError(TenureError):
    """The service refused a call. docs/api.md lists the codes."""

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after: Optional[float] = None):
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code", "unknown"))
        self.detail = str(problem.get("detail", ""))
        self.retryable = bool(problem.get("retryable", status >= 500))
        # Seconds after which a retry makes sense, or None.
        self.retry_after = retry_after
        self.leader_node_id: Optional[str] = problem.get("leader_node_id")
        self.term: Optional[int] = problem.get("term")
        super().__init__(f"{status} {self.code}: {self.detail}")


class NoAnswer(TenureError):
    """No service gave a complete answer. The call may have taken effect; it can be repeated."""

    code = "no_answer"
    retryable = True


class NotElected(TenureError):
    """The timeout of `lead` passed, or its `stop` was set, before this process led."""

    code = "not_elected"
    retryable = True


class TermEnded(TenureError):
    """Work must not go on. `reason` is one of
    expired (no renewal was acknowledged in time), lost (the service says that the term is over),
    step-down, transfer (an operator asks for the group), cancelled (`stop` was set),
    finished (work has returned), forked (this is a copy of the process that leads)."""

    code = "term_ended"

    def __init__(self, group: str, token: int, reason: str):
        self.group, self.token, self.reason = group, token, reason
        super().__init__(f"{group}: term {token} has ended: {reason}")

    def __reduce__(self) -> Any:
        return (TermEnded, (self.group, self.token, self.reason))
