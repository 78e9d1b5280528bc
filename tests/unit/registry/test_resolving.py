"""Canaries, pins of both kinds, deprecated versions, deleted adapters, and what a live request may still stand on."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry import errors
from lorry.ids import BaseDigest
from lorry.registry import Caller, Resolution, Snapshot
from lorry.registry.entries import AdapterEntry, AliasEntry, GrantEntry, PinEntry, VersionEntry, VersionState
from lorry.registry.resolving import draw
from tests.unit.registry.conftest import NOW
from tests.unit.registry.test_snapshot import ANNA, BERT, adapter, caller, snapshot, version

__all__ = ["snapshot"]

FOO = "tenants/anna/adapters/foo"


def old(number: int) -> VersionEntry:
    return replace(version(number), deprecated=True)


def with_foo(snapshot: Snapshot, *versions: VersionEntry, deleted: bool = False, **aliases: AliasEntry) -> Snapshot:
    entry = adapter("foo", ANNA, *versions)
    return snapshot.replace(8, adapters=[replace(entry, aliases=aliases, deleted=deleted)])


def pinned(snapshot: Snapshot, number: int, hard: bool) -> Snapshot:
    return snapshot.replace(9, pins=[(ANNA, "ad_foo", PinEntry(ANNA, "ad_foo", number, hard))])


def resolve(snapshot: Snapshot, name: str = FOO, sticky: str = "") -> Resolution:
    return snapshot.resolve(caller(snapshot, "anna"), name, "", NOW, sticky)


def refused(snapshot: Snapshot, name: str = FOO, who: str = "anna") -> errors.LorryError:
    with pytest.raises(errors.LorryError) as caught:
        snapshot.resolve(caller(snapshot, who), name, "", NOW)
    return caught.value


# Canaries.


@given(st.text(max_size=128), st.integers(1, 999), st.integers(1, 999))
def test_who_has_the_canary_keeps_it_while_it_grows(sticky: str, one: int, other: int) -> None:
    less, more = sorted((one, other))
    first = draw("ad_1", AliasEntry("prod", 1, 2, less), sticky)
    assert first == draw("ad_1", AliasEntry("prod", 1, 2, less), sticky)
    if first == (2, True):
        assert draw("ad_1", AliasEntry("prod", 1, 2, more), sticky) == (2, True)


def test_a_canary_that_grows_keeps_whom_it_had() -> None:
    less, more = AliasEntry("prod", 1, 2, 100), AliasEntry("prod", 1, 2, 400)
    had = [key for key in map(str, range(300)) if draw("ad_1", less, key)[1]]
    assert had
    assert all(draw("ad_1", more, key)[1] for key in had)


def test_a_canary_gets_its_part() -> None:
    alias = AliasEntry("prod", 1, 2, 100)
    drawn = [draw("ad_1", alias, f"user-{n}")[1] for n in range(20_000)]
    assert 1800 < sum(drawn) < 2200
    others = [draw("ad_2", alias, f"user-{n}")[1] for n in range(20_000)]
    both = sum(a and b for a, b in zip(drawn, others, strict=True))
    assert both < 400, "another adapter's canary is drawn anew"


def test_the_draw_is_what_the_contract_says() -> None:
    """SHA-256 over adapter id, alias and key; pinned, as all gateways of all releases must agree."""
    alias = AliasEntry("prod", 1, 2, 999)
    thresholds = [
        next(n for n in range(1, 1000) if draw("ad_1", replace(alias, canary_permille=n), key)[1]) for key in "abc"
    ]
    assert thresholds == [296, 788, 96]


def test_a_canary_is_resolved_and_said(snapshot: Snapshot) -> None:
    now = with_foo(snapshot, version(1), version(2), prod=AliasEntry("prod", 1, 2, 500))
    found = {f"u{n}": resolve(now, f"{FOO}@prod", f"u{n}") for n in range(40)}
    assert {(each.version, each.canary, each.alias) for each in found.values()} == {
        (1, False, "prod"),
        (2, True, "prod"),
    }
    assert all(resolve(now, f"{FOO}@prod", key) == each for key, each in found.items())
    assert (resolve(now, f"{FOO}@prod").version, resolve(now, f"{FOO}@prod").canary) == (1, False)
    assert not resolve(now, FOO, "u1").canary


def test_a_quarantined_canary_answers_nothing_else(snapshot: Snapshot) -> None:
    bad = version(2, VersionState.QUARANTINED)
    now = with_foo(snapshot, version(1), bad, prod=AliasEntry("prod", 1, 2, 999))
    key = next(f"u{n}" for n in range(9) if draw("ad_foo", AliasEntry("prod", 1, 2, 999), f"u{n}")[1])
    with pytest.raises(errors.AdapterQuarantined):
        resolve(now, f"{FOO}@prod", key)


# Pins.


def test_a_default_pin_is_for_the_bare_name_alone(snapshot: Snapshot) -> None:
    now = pinned(with_foo(snapshot, version(1), version(2), version(3), new=AliasEntry("new", 3)), 1, hard=False)
    bare = resolve(now)
    assert (bare.version, bare.pinned) == (1, True)
    for name, number in ((f"{FOO}/versions/2", 2), (f"{FOO}@new", 3), (f"{FOO}/versions/1", 1)):
        named = resolve(now, name)
        assert (named.version, named.pinned) == (number, False)


def test_a_hard_pin_refuses_every_other_version(snapshot: Snapshot) -> None:
    now = pinned(with_foo(snapshot, version(1), version(2), new=AliasEntry("new", 2)), 1, hard=True)
    assert (resolve(now).version, resolve(now).pinned) == (1, True)
    assert resolve(now, f"{FOO}/versions/1").version == 1
    for name in (f"{FOO}/versions/2", f"{FOO}@new"):
        error = refused(now, name)
        assert type(error) is errors.PinMismatch
        assert error.metadata == {"want": "1", "have": "2"}
    assert type(refused(now, f"{FOO}/versions/9")) is errors.ModelNotFound


def test_no_pin_no_word_of_one(snapshot: Snapshot) -> None:
    assert not resolve(snapshot).pinned
    assert resolve(snapshot).adapter_id == "ad_foo"
    assert resolve(snapshot, "models/tiny").adapter_id == ""


# Deprecated versions.


def test_a_deprecated_version_is_served_to_who_names_it(snapshot: Snapshot) -> None:
    now = with_foo(snapshot, version(1), old(2), prod=AliasEntry("prod", 2))
    assert resolve(now).version == 1
    assert resolve(now, f"{FOO}/versions/2").version == 2
    assert resolve(now, f"{FOO}@prod").version == 2
    for hard in (True, False):
        assert resolve(pinned(now, 2, hard)).version == 2


@pytest.mark.parametrize("other", [(), (version(1, VersionState.REJECTED),), (version(3, VersionState.QUARANTINED),)])
def test_a_bare_name_never_means_a_deprecated_one(snapshot: Snapshot, other: tuple[VersionEntry, ...]) -> None:
    error = refused(with_foo(snapshot, old(2), *other))
    assert type(error) is errors.VersionNotReady
    assert "deprecated" in error.message
    assert f"{FOO}/versions/2" in error.message
    assert with_foo(snapshot, old(2)).usable(caller(snapshot, "anna"), "ad_foo") is None


def test_a_deprecated_quarantined_version_is_quarantined(snapshot: Snapshot) -> None:
    bad = replace(version(2, VersionState.QUARANTINED), deprecated=True)
    assert type(refused(with_foo(snapshot, bad))) is errors.AdapterQuarantined
    assert type(refused(with_foo(snapshot, bad), f"{FOO}/versions/2")) is errors.AdapterQuarantined


# Deleted adapters, and what nobody may see.


def hidden(snapshot: Snapshot) -> tuple[Snapshot, dict[str, str]]:
    """Names that all answer alike to anna."""
    now = with_foo(snapshot, version(1), version(2), deleted=True)
    return now, {
        "deleted": FOO,
        "unknown": "tenants/anna/adapters/fox",
        "never granted": "tenants/bert/adapters/foobar",
        "unknown tenant": "tenants/zora/adapters/foo",
    }


def test_deleted_is_as_never_granted(snapshot: Snapshot) -> None:
    now, names = hidden(snapshot)
    names |= {"version": f"{FOO}/versions/1", "alias": f"{FOO}@prod"}
    said = [refused(now, name) for name in names.values()]
    assert {(type(error), error.message, tuple(error.metadata)) for error in said} == {
        (errors.ModelNotFound, said[0].message, ())
    }
    assert now.usable(caller(now, "anna"), "ad_foo") is None
    revoked = now.replace(9, grants=[GrantEntry(ANNA, "ad_foo", NOW)])
    assert type(refused(revoked)) is errors.ModelNotFound, "a revoked grant does not tell that it was there"
    assert resolve(with_foo(now, version(1))).version == 1, "an undeleted one is there again"


def test_what_is_hidden_costs_the_same(snapshot: Snapshot) -> None:
    """Medians of 1,000 calls in turns; three rounds, as a busy machine may lean on one."""
    now, names = hidden(snapshot)
    asking = caller(now, "anna")
    spreads: list[float] = []
    while len(spreads) < 3 and min(spreads, default=2.0) >= 1.05:
        spreads.append(_spread(now, asking, list(names.values())))
    assert min(spreads) < 1.05, f"the slowest takes {spreads} times the fastest"


def _spread(now: Snapshot, asking: Caller, names: list[str]) -> float:
    taken: dict[str, list[int]] = {name: [] for name in names}
    gc.disable()
    try:
        for _ in range(1000):
            for name in names:
                began = time.perf_counter_ns()
                try:
                    now.resolve(asking, name, "", NOW)
                except errors.ModelNotFound:
                    taken[name].append(time.perf_counter_ns() - began)
    finally:
        gc.enable()
    medians = [statistics.median(times) for times in taken.values()]
    return max(medians) / min(medians)


# What a live request stands on.


def test_held_is_what_a_new_request_for_the_version_would_get(snapshot: Snapshot) -> None:
    now = with_foo(snapshot, version(1), version(2), prod=AliasEntry("prod", 1, 2, 500))
    held = resolve(now, f"{FOO}@prod", "u1")
    asking = caller(now, "anna")
    number = held.version

    def after(changed: Snapshot) -> type[Exception] | None:
        try:
            changed.require_held(asking, held, NOW)
        except errors.LorryError as error:
            return type(error)
        return None

    good, bad = version(number), version(number, VersionState.QUARANTINED)
    assert after(now) is None
    assert after(with_foo(now, good, prod=AliasEntry("prod", 9))) is None, "an alias that moved is for later requests"
    assert after(with_foo(now, good)) is None
    assert after(pinned(now, 3 - number, hard=True)) is None, "a pin is for later requests"
    assert after(with_foo(now, replace(good, deprecated=True))) is None
    assert after(with_foo(now, bad)) is errors.AdapterQuarantined
    assert after(with_foo(now, version(number, VersionState.REJECTED))) is errors.VersionNotReady
    assert after(with_foo(now, good, deleted=True)) is errors.ModelNotFound
    assert after(with_foo(now, replace(version(7), number=number))) is errors.ModelNotFound, "other bytes"
    assert after(with_foo(now)) is errors.ModelNotFound
    assert after(now.replace(9, grants=[GrantEntry(ANNA, "ad_foo", NOW)])) is errors.GrantRevoked
    assert after(now.replace(9, grants=[GrantEntry(BERT, "ad_foo", NOW)])) is None
    assert after(now.replace(9, bases=[replace(held.base, base_digest=BaseDigest("f" * 64))])) is errors.ModelNotFound


def test_a_held_base(snapshot: Snapshot) -> None:
    held, asking = resolve(snapshot, "models/tiny"), caller(snapshot, "anna")
    snapshot.require_held(asking, held, NOW)
    with pytest.raises(errors.GrantRevoked):
        snapshot.replace(8, grants=[GrantEntry(ANNA, "bm_1", NOW)]).require_held(asking, held, NOW)
    with pytest.raises(errors.ModelNotFound):
        snapshot.replace(8, bases=[replace(held.base, base_digest=BaseDigest("f" * 64))]).require_held(
            asking, held, NOW
        )


def test_the_callers_key_says_when_it_ends(snapshot: Snapshot) -> None:
    key = next(entry for entry in snapshot.tables.keys.values() if entry.principal == "anna")
    later = snapshot.replace(8, keys=[replace(key, expires_at=NOW + 5)])
    assert (caller(snapshot, "anna").expires_at, caller(later, "anna").expires_at) == (None, NOW + 5)


def test_an_entry_without_versions(snapshot: Snapshot) -> None:
    empty = AdapterEntry("ad_foo", ANNA, "anna", "foo", {}, {})
    assert type(refused(snapshot.replace(8, adapters=[empty]))) is errors.VersionNotReady
