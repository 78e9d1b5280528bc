"""Guards of the names of models and objects: whole, never a path, and nothing in place of one that is unknown."""

from __future__ import annotations

from tests.mutants.guard import Guard

NAMES = "platform/lorry/registry/names.py"
SNAPSHOT = "platform/lorry/registry/snapshot.py"
RESOLVING = "platform/lorry/registry/resolving.py"
STORE = "platform/lorry/adapters/store.py"
NOT_A_NAME = "tests/unit/registry/test_names.py::test_not_a_name"
UNKNOWN = "tests/unit/registry/test_snapshot.py::test_unknown_and_never_granted_share_their_words"
KEYS = "tests/integration/store/test_contract.py::test_keys_outside_the_grammar_are_refused"

GUARDS = (
    # Kind 4: names that begin alike, are parsed at a separator or taken as a path.
    Guard(
        "names_of_bases_are_whole",
        NAMES,
        "_BASE_RE.fullmatch(name)",
        "_BASE_RE.match(name)",
        (f"{NOT_A_NAME}[models/a..b]", f"{NOT_A_NAME}[models/a@b]"),
    ),
    Guard(
        "names_of_adapters_are_whole",
        NAMES,
        "        if (found := pattern.fullmatch(name)) is None:\n",
        "        if (found := pattern.match(name)) is None:\n",
        (f"{NOT_A_NAME}[tenants/t/adapters/a:1]", f"{NOT_A_NAME}[tenants/t/adapters/a@b/versions/1]"),
    ),
    Guard(
        "parts_of_names_are_no_paths",
        NAMES,
        '_PART = r"[a-z0-9]+(?:[._-][a-z0-9]+)*"\n',
        '_PART = r"[a-z0-9._/-]+"\n',
        (f"{NOT_A_NAME}[tenants/t/adapters/../adapters/a]", f"{NOT_A_NAME}[models/../x]"),
    ),
    Guard(
        "foo_is_not_foobar",
        SNAPSHOT,
        'self.adapter_names.get((name.tenant, name.adapter), "")',
        'next((i for (t, a), i in self.adapter_names.items() if t == name.tenant and a.startswith(name.adapter)), "")',
        (UNKNOWN,),
    ),
    Guard(
        "names_are_of_their_tenant",
        SNAPSHOT,
        'self.adapter_names.get((name.tenant, name.adapter), "")',
        'next((i for (t, a), i in self.adapter_names.items() if a == name.adapter), "")',
        (UNKNOWN,),
    ),
    Guard(
        "keys_of_objects_are_whole",
        STORE,
        'any(part in (".", "..") or not _SEGMENT.match(part) for part in segments)',
        "any(not _SEGMENT.match(part) for part in segments)",
        (f"{KEYS}[file-../x]", f"{KEYS}[file-a/../b]"),
    ),
    # Kind 5: what is unknown is not answered by the base, nor by another version.
    Guard(
        "an_unknown_name_is_not_the_base",
        SNAPSHOT,
        "        if name is None:\n            raise ModelNotFound(NOT_FOUND)\n",
        "        if name is None:\n"
        '            return Resolution("", 0, None, next(iter(self.tables.bases.values())), "", False, self.epoch)\n',
        (UNKNOWN, "tests/integration/gateway/test_refusals.py::test_models"),
    ),
    Guard(
        "an_unknown_adapter_is_not_the_base",
        SNAPSHOT,
        '        self._require_grant(caller, adapter.id if adapter else "", visible, now)\n',
        "        if adapter is None:\n"
        '            return Resolution("", 0, None, next(iter(self.tables.bases.values())), "", False, self.epoch)\n'
        "        self._require_grant(caller, adapter.id, visible, now)\n",
        (UNKNOWN, "tests/integration/gateway/test_refusals.py::test_models"),
    ),
    Guard(
        "what_was_never_granted_is_unknown",
        SNAPSHOT,
        "        if not visible or grant is None:\n            raise ModelNotFound(NOT_FOUND)\n",
        "        if grant is None:\n            return\n",
        (UNKNOWN,),
    ),
    Guard(
        "an_unknown_version_is_not_another",
        RESOLVING,
        "    if name.version is not None or name.alias:\n        raise ModelNotFound(NOT_FOUND)\n",
        "    if name.version is not None or name.alias:\n        return Picked(_newest(adapter), False, False)\n",
        (UNKNOWN,),
    ),
    Guard(
        "an_unknown_alias_is_not_the_newest",
        RESOLVING,
        "        if alias is None:\n            raise ModelNotFound(NOT_FOUND)\n",
        "        if alias is None:\n            return Picked(_newest(adapter), False, False)\n",
        (UNKNOWN,),
    ),
)

__all__ = ["GUARDS"]
