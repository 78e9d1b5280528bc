"""What a tenant may use, page by page: complete, in order, and at the cost of the page."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lorry.gateway import models
from lorry.gateway.models import TENANTS_KEPT, Catalog, Names
from lorry.ids import TenantId
from lorry.registry import Caller, Snapshot
from lorry.registry.entries import GrantEntry
from lorry.registry.resolving import Resolution
from tests.unit.registry.conftest import NOW
from tests.unit.registry.test_snapshot import ANNA, BERT, adapter, caller, snapshot, version

GRANTS = 10_000
PAGE = 100
__all__ = ["snapshot"]


@pytest.fixture
def many(snapshot: Snapshot) -> Snapshot:
    """Anna has 10,000 adapters, every tenth of which has no version, beside those of ``snapshot``."""
    made = [adapter(f"m{n:05}", ANNA, *[version(1)] * (n % 10 > 0), prod=1) for n in range(GRANTS)]
    return snapshot.replace(8, adapters=made, grants=[GrantEntry(ANNA, one.id, None) for one in made])


def catalog(names: Names, snapshot: Snapshot, who: Caller) -> Catalog:
    admission: Any = SimpleNamespace(now=lambda: NOW)
    return Catalog(admission, names, snapshot, who)


def walk(names: Names, snapshot: Snapshot, who: Caller) -> Iterator[list[str]]:
    after, more = "", True
    while more:
        page, more = catalog(names, snapshot, who).page(after, PAGE)
        yield [model.name for model in page]
        after = page[-1].name if page else ""


def test_pages_are_all_of_it_in_order(many: Snapshot) -> None:
    anna, names = caller(many, "anna"), Names()
    pages = list(walk(names, many, anna))
    assert {len(page) for page in pages[:-1]} == {PAGE}
    wanted = ["models/tiny", "tenants/anna/adapters/foo"]
    wanted += [f"tenants/anna/adapters/m{n:05}" for n in range(GRANTS) if n % 10]
    assert [name for page in pages for name in page] == wanted
    bert = caller(many, "bert")
    assert [name for page in walk(names, many, bert) for name in page] == [
        "tenants/anna/adapters/foo",
        "tenants/bert/adapters/foobar",
    ]


def test_a_page_costs_what_is_in_it(many: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are sorted once for all pages, and resolved for the page and what it passes over."""
    anna, names = caller(many, "anna"), Names()
    looked, named = [], []
    usable, resource_name = Snapshot.usable, Snapshot.resource_name

    def looking(self: Snapshot, who: Caller, resource: str) -> Resolution | None:
        looked.append(resource)
        return usable(self, who, resource)

    def naming(self: Snapshot, resource: str) -> str | None:
        named.append(resource)
        return resource_name(self, resource)

    monkeypatch.setattr(Snapshot, "usable", looking)
    monkeypatch.setattr(Snapshot, "resource_name", naming)
    catalog(names, many, anna).page("", PAGE)
    assert len(named) == GRANTS + 4
    assert PAGE < len(looked) <= 2 * PAGE
    looked.clear()
    named.clear()
    later = many.replace(9, adapters=[adapter("other", BERT, version(1))], grants=[GrantEntry(BERT, "ad_other", None)])
    catalog(names, later, anna).page("tenants/anna/adapters/m09000", PAGE)
    assert named == [], "another tenant's change is none of this one's"
    assert PAGE < len(looked) <= 2 * PAGE


def test_changes_are_seen_at_once(many: Snapshot) -> None:
    anna, names = caller(many, "anna"), Names()
    first = next(walk(names, many, anna))
    revoked = many.replace(9, grants=[GrantEntry(ANNA, "ad_m00001", NOW)])
    assert set(first) - set(next(walk(names, revoked, anna))) == {"tenants/anna/adapters/m00001"}
    assert next(walk(names, many, anna)) == first, "each snapshot is told of by itself"
    served = many.replace(9, adapters=[adapter("m00000", ANNA, version(1))])
    assert set(next(walk(names, served, anna))) - set(first) == {"tenants/anna/adapters/m00000"}


def test_a_grant_on_what_is_not_known_yet_is_listed_when_it_is(snapshot: Snapshot) -> None:
    anna, names = caller(snapshot, "anna"), Names()
    early = snapshot.replace(8, grants=[GrantEntry(ANNA, "ad_late", None)])
    assert "tenants/bert/adapters/late" not in next(walk(names, early, anna))
    known = early.replace(9, adapters=[adapter("late", BERT, version(1))])
    assert "tenants/bert/adapters/late" in next(walk(names, known, anna))


def test_no_more_tenants_are_kept_than_said(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "TENANTS_KEPT", 2)
    assert TENANTS_KEPT > 2
    names = Names()
    for tenant in ("tn_1", "tn_2", "tn_3"):
        names.of(snapshot, TenantId(tenant))
    names.of(snapshot, ANNA)
    assert list(names._kept) == ["tn_3", ANNA]
