"""Templates. Everything that is put into one is escaped; nothing is put into a script or a style."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.api.v1 import user_admin_pb2 as user_pb
from lorry.client.admin.differences import state_word
from lorry_admin.web import formats
from lorry_admin.web.agents import agent_words
from lorry_admin.web.statics import shared_statics

_TICKED = re.compile(r"`([^`]{1,200})`")
FOLDER = Path(__file__).parent / "templates"
SAID: Mapping[str, str] = {
    "adapter-created": "Adapter created. Give it a first version.",
    "adapter-deleted": "Adapter deleted. It can be taken back until it is purged.",
    "adapter-undeleted": "The deletion was taken back.",
    "adapter-renamed": "Display name changed.",
    "version-made": "Version registered.",
    "version-quarantined": "Version quarantined. Nothing is answered by it any more.",
    "version-deprecated": "Version deprecated. Only requests that name it get it.",
    "version-loaded": "Version loaded.",
    "version-evicted": "Version taken out of device memory.",
    "alias-set": "Alias set.",
    "alias-deleted": "Alias deleted.",
    "canary-set": "Canary set.",
    "canary-promoted": "Canary promoted.",
    "alias-rolled-back": "Rolled back.",
    "pin-set": "Pin set.",
    "pin-cleared": "Pin cleared.",
    "key-revoked": "Key revoked. Calls with it are refused from now on.",
    "tenant-created": "Tenant created.",
    "tenant-changed": "Tenant changed.",
    "quota-set": "Quota set.",
    "quota-deleted": "Quota deleted.",
    "grant-given": "Grant given.",
    "grant-revoked": "Grant revoked.",
    "base-created": "Base model registered.",
    "replica-drained": "The gateway refuses new requests; those that run end.",
    "replica-undrained": "The gateway takes requests again.",
    "user-changed": "User changed.",
    "session-ended": "Session ended.",
    "price-set": "Price set.",
    "password-changed": "Password changed. Your other sessions have ended.",
    "logged-out": "You are logged out.",
}
"""All that a redirect can have the next page say: words of this list alone, so none can be put in from outside."""


@cache
def templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        number=formats.number,
        short_number=formats.short_number,
        size=formats.size,
        seconds=formats.seconds,
        stamp=formats.stamp,
        iso=formats.iso,
        ago=formats.ago,
        pretty_json=formats.pretty_json,
        figure=formats.figure,
        price=formats.price,
        agent=agent_words,
        ticked=ticked,
        last=lambda name: name.rsplit("/", 1)[-1],
    )
    made.globals.update(
        static=shared_statics().url,
        percent=formats.percent,
        SAID=SAID,
        state_word=state_word,
        alias_words=formats.alias_words,
        role_word=role_word,
        quota_value=quota_value,
    )
    made.globals["m"] = made.get_template("m.html").module
    return made


def ticked(text: str) -> Markup:
    """An error's words, with what stands between backticks as code. Everything is escaped."""
    return Markup(_TICKED.sub(r"<code>\1</code>", str(escape(text))))


def role_word(whose: pb.ApiKey | user_pb.User) -> str:
    return pb.Role.Name(whose.role).removeprefix("ROLE_").lower().replace("_", " ")


def quota_value(quota: pb.Quota, limit: str) -> int:
    """One of its limits, by name."""
    return int(getattr(quota.limits, limit))


def rendered(template: str, **context: Any) -> str:
    return templates().get_template(template).render(**context)


__all__ = ["FOLDER", "SAID", "quota_value", "rendered", "role_word", "templates", "ticked"]
