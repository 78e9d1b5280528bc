"""Names of fields: the service layer speaks of GenerateRequest's, a client of the ones that it sent."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lorry.errors import FieldViolation, InvalidRequest, LorryError, NotServedYet
from lorry.gateway.http.served import not_served

_COMMON = {
    "chat.messages": "messages",
    "chat": "messages",
    "token_ids": "prompt",
    "request_id": "x-request-id",
    "output.token_ids": "return_token_ids",
}
_PREFIX = re.compile(r"^(?:sampling|stopping|output)\.")
_INSIDE = re.compile(r"\b(?:(?:sampling|stopping|output)\.[a-z_]+|chat\.messages)")


class Names:
    """``own``: what this request called fields that have several names."""

    def __init__(self, own: Mapping[str, str] | None = None) -> None:
        self._own = {**_COMMON, **(own or {})}

    def of(self, path: str) -> str:
        """``chat.messages[0].role`` -> ``messages[0].role``."""
        for ours, theirs in self._own.items():
            if path == ours or path.startswith((f"{ours}.", f"{ours}[")):
                return theirs + path[len(ours) :]
        return _PREFIX.sub("", path)

    def told(self, error: LorryError) -> LorryError:
        """The same error in the client's words."""
        if isinstance(error, NotServedYet) and (listed := error.metadata.get("fields")):
            return not_served([self.of(one) for one in listed.split(", ")])
        if not isinstance(error, InvalidRequest) or not error.violations:
            return error
        violations = [FieldViolation(self.of(one.field), self._inside(one.description)) for one in error.violations]
        message = "; ".join(f"{one.field}: {one.description}" for one in violations)
        return type(error)(message, metadata=error.metadata, violations=violations, retry_after_s=error.retry_after_s)

    def _inside(self, description: str) -> str:
        return _INSIDE.sub(lambda found: self.of(found.group()), description)


__all__ = ["Names"]
