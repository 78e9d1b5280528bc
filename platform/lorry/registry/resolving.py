"""Which version a name means to a tenant: bare names, numbers, aliases with canaries, pins. Pure functions."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import NamedTuple

from lorry.adapters.manifest import AdapterRef
from lorry.adapters.plan import TextPlan
from lorry.errors import AdapterQuarantined, ModelNotFound, PinMismatch, VersionNotReady
from lorry.registry.entries import (
    AdapterEntry,
    AliasEntry,
    BaseModelEntry,
    PinEntry,
    VersionEntry,
    VersionState,
)
from lorry.registry.names import AdapterName

NOT_FOUND = "model: no model of this name is available to this tenant; ListModels lists those that are"


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a model name means now. For a base: ``adapter`` and ``adapter_id`` are "", ``version`` 0 and ``ref`` None.

    ``canary``: the alias's canary was drawn. ``pinned``: the tenant's pin decided what the bare name means. ``epoch``
    is that of the snapshot which resolved it. ``vocabulary`` and ``text``: see VersionEntry.
    """

    adapter: str
    version: int
    ref: AdapterRef | None
    base: BaseModelEntry
    alias: str
    canary: bool
    epoch: int
    vocabulary: int | None = None
    text: TextPlan | None = None
    adapter_id: str = ""
    pinned: bool = False

    @property
    def name(self) -> str:
        """The bare name that a request may use: the adapter's, or the base's."""
        return self.adapter or self.base.resource

    @property
    def version_name(self) -> str:
        """`tenants/{t}/adapters/{a}/versions/{n}`; "" for a base."""
        return f"{self.adapter}/versions/{self.version}" if self.adapter else ""

    @property
    def sha256(self) -> str:
        """The version's digest; "" for a base."""
        return self.ref.digest if self.ref else ""

    @property
    def tokenizer_sha256(self) -> str:
        """Of the text side that serves it: the version's own, or the base's."""
        return self.base.tokenizer_sha256 if self.text is None else self.text.sha256


class Picked(NamedTuple):
    version: VersionEntry
    canary: bool
    pinned: bool


def pick(adapter: AdapterEntry, name: AdapterName, pin: PinEntry | None, sticky: str) -> Picked:
    """The version that ``name`` means to a tenant with that pin.

    Raises ModelNotFound for an alias or number that the adapter does not have, PinMismatch where a hard pin says
    another, and VersionNotReady where a bare name has none that could be served.
    """
    number, canary = name.version, False
    if name.alias:
        alias = adapter.aliases.get(name.alias)
        if alias is None:
            raise ModelNotFound(NOT_FOUND)
        number, canary = draw(adapter.id, alias, sticky)
    if number is None:
        if pin is None:
            return Picked(_newest(adapter), False, False)
        number = pin.version
    elif number in adapter.versions and pin is not None and pin.hard and number != pin.version:
        raise PinMismatch(
            f"model: {name} is version {number}, this tenant is pinned to version {pin.version}; "
            "ask for that one or have the pin changed",
            metadata={"want": str(pin.version), "have": str(number)},
        )
    version = adapter.versions.get(number)
    if version is not None:
        bare = name.version is None and not name.alias
        return Picked(version, canary, bare)
    if name.version is not None or name.alias:
        raise ModelNotFound(NOT_FOUND)
    raise VersionNotReady(f"model: the pinned version {number} of {adapter.resource} is not known here yet; try again")


def draw(adapter_id: str, alias: AliasEntry, sticky: str) -> tuple[int, bool]:
    """The version that this sticky key gets, and whether it is the canary. The draw does not depend on the weight, so a
    key that has the canary keeps it while the weight grows. Without a key it is never the canary."""
    if alias.canary_number is None or not sticky:
        return alias.number, False
    digest = hashlib.sha256("\0".join((adapter_id, alias.name, sticky)).encode(errors="surrogatepass")).digest()
    if int.from_bytes(digest[:8], "big") % 1000 < alias.canary_permille:
        return alias.canary_number, True
    return alias.number, False


def require_served(adapter: AdapterEntry, version: VersionEntry) -> None:
    """Raises AdapterQuarantined or VersionNotReady unless the version is READY, deprecated or not."""
    label = f"{adapter.resource}/versions/{version.number}"
    if version.state is VersionState.QUARANTINED:
        raise AdapterQuarantined(f"model: {label} is quarantined; use another version")
    if version.state is not VersionState.READY:
        raise VersionNotReady(f"model: {label} is {version.state}; use a READY version")


def check_digest(expected: str, have: str) -> None:
    """Raises PinMismatch unless nothing is expected or that is what there is."""
    if expected and not hmac.compare_digest(expected.lower(), have):
        raise PinMismatch(
            f"expected_sha256: {expected.lower()} was expected, the name resolves to {have}; nothing was generated",
            metadata={"want": expected.lower(), "have": have},
        )


def _newest(adapter: AdapterEntry) -> VersionEntry:
    newest = max(adapter.versions.values(), key=_serving_order, default=None)
    if newest is None:
        raise VersionNotReady(f"model: {adapter.resource} has no version yet; create one")
    if newest.deprecated and newest.state is VersionState.READY:
        raise VersionNotReady(
            f"model: {adapter.resource} has deprecated versions alone, and its bare name means none of them; name one, "
            f"as in {adapter.resource}/versions/{newest.number}, or create one"
        )
    return newest


def _serving_order(version: VersionEntry) -> tuple[bool, bool, bool, int]:
    """A bare name is the newest READY version that is not deprecated; without one, a deprecated or else a quarantined
    one gives the reason."""
    ready = version.state is VersionState.READY
    return ready and not version.deprecated, ready, version.state is VersionState.QUARANTINED, version.number


__all__ = ["NOT_FOUND", "Picked", "Resolution", "check_digest", "draw", "pick", "require_served"]
