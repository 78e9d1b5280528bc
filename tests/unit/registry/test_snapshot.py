"""Authentication and resolution over a snapshot, without a database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lorry import errors
from lorry.adapters.manifest import AdapterFile, AdapterRef, files_digest
from lorry.ids import AdapterScope, BaseDigest, TenantId
from lorry.layers.spec import DecoderSpec
from lorry.registry import Caller, Peppers, Snapshot
from lorry.registry.entries import (
    AdapterEntry,
    AliasEntry,
    BaseModelEntry,
    GrantEntry,
    KeyEntry,
    PinEntry,
    TenantEntry,
    VersionEntry,
    VersionState,
)
from lorry.registry.snapshot import REVOKED_VISIBLE_S, Tables
from tests.unit.registry.conftest import NOW, PEPPERS, TINY_CONFIG

ANNA, BERT = TenantId("tn_anna"), TenantId("tn_bert")
KEYS = {name: PEPPERS.new_key() for name in ("anna", "bert", "expired", "revoked", "admin")}


def key_entry(name: str, tenant: TenantId, role: str = "owner", **times: float) -> KeyEntry:
    key = KEYS[name]
    return KeyEntry(
        key.key_id, tenant, name, role, key.mac, key.pepper_id, times.get("expires_at"), times.get("revoked_at")
    )


def version(number: int, state: VersionState = VersionState.READY) -> VersionEntry:
    files = (AdapterFile("w", number, f"{number:064x}"),)
    return VersionEntry(number, state, "bm_1", AdapterRef(files_digest(files), "p", files, AdapterScope("a_1")))


def adapter(name: str, owner: TenantId, *versions: VersionEntry, **aliases: int) -> AdapterEntry:
    pointed = {alias: AliasEntry(alias, number) for alias, number in aliases.items()}
    return AdapterEntry(f"ad_{name}", owner, owner.removeprefix("tn_"), name, {v.number: v for v in versions}, pointed)


@pytest.fixture
def snapshot() -> Snapshot:
    base = BaseModelEntry(
        "bm_1", "tiny", BaseDigest("b" * 64), "c" * 64, 256, TINY_CONFIG, DecoderSpec.from_config(TINY_CONFIG)
    )
    adapters = [
        adapter("foo", ANNA, version(1), version(2), version(3, VersionState.REJECTED), prod=1),
        adapter("foobar", BERT, version(9)),
        adapter("empty", ANNA),
        adapter("bad", ANNA, version(4, VersionState.QUARANTINED), version(5, VersionState.REJECTED)),
    ]
    entries = [
        key_entry("anna", ANNA),
        key_entry("bert", BERT, "member"),
        key_entry("expired", ANNA, expires_at=NOW),
        key_entry("revoked", ANNA, revoked_at=NOW - 1),
        key_entry("admin", TenantId("tn_platform"), "platform_admin"),
    ]
    grants = {
        ANNA: ["ad_foo", "ad_empty", "ad_bad", "bm_1"],
        BERT: ["ad_foobar", "ad_foo"],
    }
    tables = Tables(
        tenants={t: TenantEntry(TenantId(t), t[3:], False) for t in (ANNA, BERT, "tn_platform")},
        keys={entry.key_id: entry for entry in entries},
        bases={base.id: base},
        adapters={entry.id: entry for entry in adapters},
        grants={t: {r: GrantEntry(t, r, None) for r in resources} for t, resources in grants.items()},
    )
    return Snapshot.build(7, tables, PEPPERS)


def caller(snapshot: Snapshot, name: str) -> Caller:
    return snapshot.authenticate(KEYS[name].text, NOW)


def test_authenticate(snapshot: Snapshot) -> None:
    anna = caller(snapshot, "anna")
    assert (anna.tenant, anna.tenant_name, anna.principal, anna.role, anna.admin) == (
        ANNA, "anna", "anna", "owner", False,
    )  # fmt: skip
    assert caller(snapshot, "admin").admin


def test_bad_keys_share_their_words(snapshot: Snapshot) -> None:
    good = KEYS["anna"].text
    flipped = good[:-1] + ("0" if good[-1] != "0" else "1")
    stranger = PEPPERS.new_key().text
    said = set()
    bad = ["", "x", flipped, stranger, good + "\n", good.upper(), KEYS["expired"].text, KEYS["revoked"].text, "é" * 90]
    for key in bad:
        with pytest.raises(errors.Unauthenticated) as caught:
            snapshot.authenticate(key, NOW)
        said.add(caught.value.message)
    assert len(said) == 1
    assert snapshot.authenticate(KEYS["expired"].text, NOW - 1).tenant_name == "anna"


def test_a_row_made_under_another_pepper_does_not_open(snapshot: Snapshot) -> None:
    other = Peppers((b"q" * 32,))
    with pytest.raises(errors.Unauthenticated):
        replace(snapshot, peppers=other).authenticate(KEYS["anna"].text, NOW)
    rotated = Peppers((b"q" * 32, *PEPPERS.secrets))
    assert replace(snapshot, peppers=rotated).authenticate(KEYS["anna"].text, NOW).tenant == ANNA


def test_suspended(snapshot: Snapshot) -> None:
    later = snapshot.replace(8, tenants=[TenantEntry(ANNA, "anna", True)])
    with pytest.raises(errors.TenantSuspended):
        caller(later, "anna")
    assert caller(snapshot, "anna")  # the older snapshot is as it was


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("tenants/anna/adapters/foo", 2),
        ("tenants/anna/adapters/foo/versions/1", 1),
        ("tenants/anna/adapters/foo@prod", 1),
    ],
)
def test_resolve(snapshot: Snapshot, name: str, number: int) -> None:
    found = snapshot.resolve(caller(snapshot, "anna"), name, "", NOW)
    assert (found.adapter, found.version, found.epoch, found.canary) == ("tenants/anna/adapters/foo", number, 7, False)
    assert found.ref is not None
    assert found.ref.digest == version(number).ref.digest == found.sha256
    assert found.alias == ("prod" if "@" in name else "")
    assert found.base.resource == "models/tiny"


def test_resolve_base(snapshot: Snapshot) -> None:
    found = snapshot.resolve(caller(snapshot, "anna"), "models/tiny", "B" * 64, NOW)
    assert (found.adapter, found.version, found.ref, found.name) == ("", 0, None, "models/tiny")


def _error(snapshot: Snapshot, who: str, name: str, sha: str = "", now: float = NOW) -> errors.LorryError:
    with pytest.raises(errors.LorryError) as caught:
        snapshot.resolve(caller(snapshot, who), name, sha, now)
    return caught.value


def test_unknown_and_never_granted_share_their_words(snapshot: Snapshot) -> None:
    hidden = [
        ("anna", "tenants/bert/adapters/foobar"),  # never granted
        ("anna", "tenants/bert/adapters/foobar/versions/9"),
        ("anna", "tenants/bert/adapters/nothing"),
        ("anna", "tenants/nobody/adapters/foo"),
        ("anna", "tenants/anna/adapters/fo"),  # a prefix of a name
        ("anna", "tenants/anna/adapters/foobar"),  # a name of another tenant's
        ("anna", "tenants/anna/adapters/foo/versions/77"),
        ("anna", "tenants/anna/adapters/foo@nothing"),
        ("anna", "tenants/anna/adapters/../adapters/foo"),
        ("anna", "models/other"),
        ("anna", "foo"),
        ("anna", ""),
        ("bert", "models/tiny"),
        ("bert", "tenants/anna/adapters/bad"),
        ("admin", "tenants/anna/adapters/foo"),  # administrators need grants too
    ]
    found = [_error(snapshot, who, name) for who, name in hidden]
    assert {type(error) for error in found} == {errors.ModelNotFound}
    assert len({(error.message, tuple(error.metadata)) for error in found}) == 1


def test_unserved_versions(snapshot: Snapshot) -> None:
    assert type(_error(snapshot, "anna", "tenants/anna/adapters/foo/versions/3")) is errors.VersionNotReady
    assert type(_error(snapshot, "anna", "tenants/anna/adapters/empty")) is errors.VersionNotReady
    assert type(_error(snapshot, "anna", "tenants/anna/adapters/bad")) is errors.AdapterQuarantined
    assert type(_error(snapshot, "anna", "tenants/anna/adapters/bad/versions/5")) is errors.VersionNotReady


def test_expected_digest(snapshot: Snapshot) -> None:
    have = version(2).ref.digest
    assert snapshot.resolve(caller(snapshot, "anna"), "tenants/anna/adapters/foo", have.upper(), NOW).version == 2
    error = _error(snapshot, "anna", "tenants/anna/adapters/foo", "0" * 64)
    assert type(error) is errors.PinMismatch
    assert error.metadata == {"want": "0" * 64, "have": have}
    assert type(_error(snapshot, "anna", "models/tiny", "0" * 64)) is errors.PinMismatch
    assert type(_error(snapshot, "anna", "models/tiny", "zz")) is errors.InvalidRequest
    # what may not be seen is not compared
    assert type(_error(snapshot, "bert", "models/tiny", "0" * 64)) is errors.ModelNotFound


def test_grant_revoked_for_a_day(snapshot: Snapshot) -> None:
    later = snapshot.replace(8, grants=[GrantEntry(BERT, "ad_foo", NOW)])
    name = "tenants/anna/adapters/foo"
    assert type(_error(later, "bert", name)) is errors.GrantRevoked
    assert type(_error(later, "bert", name, now=NOW + REVOKED_VISIBLE_S - 1)) is errors.GrantRevoked
    assert type(_error(later, "bert", name, now=NOW + REVOKED_VISIBLE_S)) is errors.ModelNotFound
    assert later.resolve(caller(later, "anna"), name, "", NOW).version == 2  # another tenant's grant stands
    again = later.replace(9, grants=[GrantEntry(BERT, "ad_foo", None)])
    assert again.resolve(caller(again, "bert"), name, "", NOW).epoch == 9


def test_pin(snapshot: Snapshot) -> None:
    pinned = snapshot.replace(8, pins=[(BERT, "ad_foo", PinEntry(BERT, "ad_foo", 1))])
    name = "tenants/anna/adapters/foo"
    assert pinned.resolve(caller(pinned, "bert"), name, "", NOW).version == 1
    assert pinned.resolve(caller(pinned, "bert"), name + "@prod", "", NOW).version == 1
    assert pinned.resolve(caller(pinned, "anna"), name, "", NOW).version == 2
    error = _error(pinned, "bert", name + "/versions/2")
    assert type(error) is errors.PinMismatch
    assert error.metadata == {"want": "1", "have": "2"}
    cleared = pinned.replace(9, pins=[(BERT, "ad_foo", None)])
    assert cleared.resolve(caller(cleared, "bert"), name, "", NOW).version == 2


def test_a_pin_on_a_quarantined_version_never_moves(snapshot: Snapshot) -> None:
    entry = adapter("foo", ANNA, version(1, VersionState.QUARANTINED), version(2))
    later = snapshot.replace(8, adapters=[entry], pins=[(ANNA, "ad_foo", PinEntry(ANNA, "ad_foo", 1))])
    assert type(_error(later, "anna", "tenants/anna/adapters/foo")) is errors.AdapterQuarantined


def test_what_is_usable_under_its_bare_name(snapshot: Snapshot) -> None:
    anna = caller(snapshot, "anna")
    names = {resource: snapshot.usable(anna, resource) for resource in snapshot.grants_of(ANNA)}
    assert {resource: found and found.name for resource, found in names.items()} == {
        "bm_1": "models/tiny",
        "ad_foo": "tenants/anna/adapters/foo",
        "ad_empty": None,
        "ad_bad": None,
    }
    assert snapshot.usable(anna, "ad_none") is None


def test_secrets_stay_out_of_repr(snapshot: Snapshot) -> None:
    shown = repr(snapshot) + repr(KEYS["anna"]) + repr(PEPPERS)
    assert KEYS["anna"].text not in shown
    assert KEYS["anna"].mac not in shown
    assert "ppppp" not in shown
