"""The grammar of names: whole matches, no prefixes, no paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry.errors import InvalidRequest
from lorry.registry import names
from lorry.registry.names import AdapterName, BaseName, parse_model

PART = st.from_regex(r"[a-z0-9]{1,8}([._-][a-z0-9]{1,8}){0,3}", fullmatch=True)


@given(PART, PART, st.integers(1, 999_999_999), PART)
def test_round_trip(tenant: str, adapter: str, version: int, alias: str) -> None:
    for name in (
        BaseName(tenant),
        AdapterName(tenant, adapter),
        AdapterName(tenant, adapter, version=version),
        AdapterName(tenant, adapter, alias=alias),
    ):
        assert parse_model(str(name)) == name


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "models/",
        "models/a/b",
        "models/../x",
        "models/a..b",
        "models/.a",
        "models/a\n",
        "models/A",
        "models/a ",
        "models/a@b",
        "xmodels/a",
        "models/ä",
        "models/" + "a" * 64,
        "tenants/t",
        "tenants/t/adapters/",
        "tenants/t/adapters/a/",
        "tenants/t/adapters/a:1",
        "tenants/t/adapters/a@",
        "tenants/t/adapters/a@b@c",
        "tenants/t/adapters/a@b/versions/1",
        "tenants/t/adapters/a/versions/1@b",
        "tenants/t/adapters/a/versions/0",
        "tenants/t/adapters/a/versions/01",
        "tenants/t/adapters/a/versions/-1",
        "tenants/t/adapters/a/versions/1\n",
        "tenants/t/adapters/a/versions/latest",
        "tenants/t/adapters/../adapters/a",
        "tenants//adapters/a",
        "/tenants/t/adapters/a",
        "tenants/t/adapters/a/versions/٣",
        "tenants/t/adapters/" + "a" * 300,
    ],
)
def test_not_a_name(bad: str) -> None:
    assert parse_model(bad) is None


@given(st.text(max_size=60))
def test_what_parses_prints_itself(text: str) -> None:
    found = parse_model(text)
    assert found is None or str(found) == text


def test_admin_names_say_what_they_want() -> None:
    for parse in (names.parse_tenant, names.parse_base, names.parse_key, names.parse_grant):
        with pytest.raises(InvalidRequest, match="field: 'nonsense' is not"):
            parse("field", "nonsense")
    for of_adapter in (names.parse_adapter, names.parse_version, names.parse_alias, names.parse_upload):
        with pytest.raises(InvalidRequest, match="field: 'nonsense' is not"):
            of_adapter("field", "nonsense")
    with pytest.raises(InvalidRequest):
        names.parse_adapter("name", "tenants/t/adapters/a@b")
    for other in ("tenants/t/adapters/a", "tenants/t/adapters/a/versions/1", "models/b", "tenants/t/adapters/a@"):
        with pytest.raises(InvalidRequest):
            names.parse_alias("name", other)
    assert names.parse_alias("name", "tenants/t/adapters/a@b") == AdapterName("t", "a", alias="b")
    assert names.parse_upload("u", f"tenants/t/adapters/a/uploads/{'0' * 32}") == (AdapterName("t", "a"), "0" * 32)
