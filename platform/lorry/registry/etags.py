"""Etags: opaque words that change whenever a resource does.

They are derived from its id and revision and stored nowhere. Who sends one back says what it saw, and a change made by
another in between answers ABORTED.
"""

from __future__ import annotations

import hashlib
import hmac

from lorry.errors import AlreadyExists, InvalidRequest, StaleEtag

ETAG_MAX = 64
NEW = "new"
"""Sent in place of an etag: the resource must not be there."""


def etag_of(*parts: str | int) -> str:
    """16 hex digits over ``parts`` (kind, id, revision). Each part has its length before it, so no two lists of parts
    share their bytes."""
    framed = "".join(f"{len(text)}:{text}" for text in map(str, parts))
    return hashlib.sha256(framed.encode()).hexdigest()[:16]


def check_etag(given: str, current: str | None) -> None:
    """Compares what a request sent in its field ``etag`` with the resource's own; ``current`` is None where there is no
    such resource. "" asks for no check.

    Raises AlreadyExists for ``new`` where the resource is there; StaleEtag for any other word but the current one;
    InvalidRequest for a word that is too long to be one.
    """
    if not given:
        return
    if len(given) > ETAG_MAX:
        raise InvalidRequest.field("etag", f"{len(given)} characters; send back the one that was answered")
    if given == NEW:
        if current is not None:
            raise AlreadyExists(
                f"etag: {NEW!r} asks for one that is not there yet, but it is; read it and change that one"
            )
        return
    if current is None or not hmac.compare_digest(given.encode(), current.encode()):
        raise StaleEtag(f"etag: {given!r} is not the current one; read it again and decide anew")


__all__ = ["ETAG_MAX", "NEW", "check_etag", "etag_of"]
