"""Guards of copies of equal bytes: each adapter has its own, and nobody sees another's."""

from __future__ import annotations

from tests.mutants.guard import Guard

LORRY = "platform/lorry"
SCOPES = "tests/unit/adapters/test_tier_scopes.py"
LOST = "tests/unit/scheduler/test_lost_slots.py"
VERSIONS = "tests/unit/scheduler/test_versions.py::test_equal_bytes_of_another_adapter_are_nothing_to_it"
FOLLOWING = f"{LORRY}/registry/adapters/following.py"
FOLLOWS = "tests/integration/admin/test_purge_follows.py"
PURGE_RACES = "tests/integration/admin/test_purge_races.py"
LIFECYCLE = "tests/integration/admin/test_lifecycle.py::test_equal_bytes_of_another_tenant_stay_and_nobody_is_told"

GUARDS = (
    Guard(
        "a_key_has_its_scope",
        f"{LORRY}/adapters/manifest.py",
        "return AdapterKey(self.digest, self.scope)",
        'return AdapterKey(self.digest, AdapterScope(""))',
        (f"{SCOPES}::test_each_is_fetched_for_itself_and_dropped_for_itself",),
    ),
    Guard(
        "a_folder_has_its_scope",
        f"{LORRY}/adapters/disk.py",
        'f"{key.digest}.{key.scope}"',
        'f"{key.digest}.a_own"',
        (f"{SCOPES}::test_a_damaged_folder_is_one_adapters",),
    ),
    Guard(
        "older_folders_are_swept_away",
        f"{LORRY}/adapters/disk.py",
        "elif _OLDER.fullmatch(entry.name):",
        "elif False:",
        (f"{SCOPES}::test_a_folder_of_a_release_without_scopes_is_swept_away",),
    ),
    Guard(
        "a_scope_is_an_id",
        f"{LORRY}/adapters/disk.py",
        "if not re.fullmatch(_SCOPE, ref.scope):",
        "if False:",
        (f"{SCOPES}::test_a_scope_that_is_no_id_is_refused",),
    ),
    Guard(
        "a_version_on_the_wire_has_a_scope",
        f"{LORRY}/engine/transport_codec.py",
        "if not message.scope:",
        "if False:",
        ("tests/unit/engine_contract/test_codec.py::test_a_version_without_a_scope_is_refused",),
    ),
    Guard(
        "a_row_ran_on_its_own_copy",
        f"{LORRY}/scheduler/running.py",
        "or ran != adapter:",
        "or (ran and ran.digest) != (adapter and adapter.digest):",
        (f"{LOST}::test_a_row_that_ran_on_another_adapters_copy_of_the_same_bytes_is_not_answered",),
    ),
    Guard(
        "a_count_is_of_one_copy",
        f"{LORRY}/scheduler/versions.py",
        "sum(entry.adapter == adapter for",
        "sum(entry.adapter is not None and entry.adapter.digest == adapter.digest for",
        (VERSIONS,),
    ),
    Guard(
        "prefixes_know_the_copy",
        f"{LORRY}/scheduler/prefixes.py",
        "self._key_of(entry.adapter,",
        "self._key_of(entry.adapter and entry.adapter._replace(scope=''),",
        (VERSIONS,),
    ),
    Guard(
        "texts_are_fetched_for_each",
        f"{LORRY}/gateway/texts.py",
        "self._fetched((ref.scope, ",
        'self._fetched((AdapterScope(""), ',
        ("tests/unit/gateway/test_texts.py::test_one_fetch_for_all_who_ask_and_of_text_files_alone",),
    ),
    Guard(
        "texts_are_loaded_for_each",
        f"{LORRY}/text/worker.py",
        '{"scope": text.scope, "sha256"',
        '{"scope": "", "sha256"',
        ("tests/unit/text/test_worker.py::test_an_equal_text_side_of_another_adapter_is_loaded_for_itself",),
    ),
    Guard(
        "a_purge_beside_others_asks_the_store_as_often",
        f"{LORRY}/registry/adapters/content.py",
        "{_BESIDE if shared else ''}",
        "",
        (LIFECYCLE,),
    ),
    Guard(
        "a_purge_is_of_its_own_copy",
        f"{LORRY}/registry/adapters/lifecycle.py",
        "AdapterScope(row.id)",
        'AdapterScope("a_all")',
        (LIFECYCLE,),
    ),
    Guard(
        "no_version_of_an_adapter_that_went_meanwhile",
        f"{LORRY}/registry/adapters/repository.py",
        ", Adapter.deleted_at.is_(None))\n        .values(last_version",
        ")\n        .values(last_version",
        (f"{PURGE_RACES}::test_none_is_made_of_an_adapter_that_went_meanwhile[sqlite-True]",),
    ),
    Guard(
        "what_was_put_for_no_version_is_destroyed",
        f"{LORRY}/registry/adapters/versions.py",
        "                    await self._drop(candidate)\n",
        "",
        (f"{PURGE_RACES}::test_none_is_made_of_an_adapter_that_went_meanwhile[sqlite-False]",),
    ),
    Guard(
        "a_purge_waits_for_no_store_in_a_transaction",
        f"{LORRY}/registry/adapters/lifecycle.py",
        '            await self._objects.exists(f"{prefix}/{PURGED}")\n',
        "",
        ("tests/integration/admin/test_purge_store_down.py::test_a_key_is_revoked_while_a_purge_waits[sqlite]",),
    ),
    Guard(
        "a_purge_of_another_is_followed_until_it_is_done",
        FOLLOWING,
        "            self._pending.add(row.id)\n",
        "",
        (f"{FOLLOWS}::test_an_engine_that_does_not_answer_is_asked_again[sqlite]",),
    ),
    Guard(
        "who_starts_looks_through_all_that_was_purged",
        FOLLOWING,
        "        if known is None:\n            dropped = await self._all(False, errors)\n",
        "        if known is None:\n            self._epoch, dropped = 1 << 40, 0\n",
        (f"{FOLLOWS}::test_who_was_away_follows_when_it_is_back[sqlite]",),
    ),
    Guard(
        "more_changes_than_a_round_takes_are_not_passed_over",
        FOLLOWING,
        " or len(log) == BATCH or (",
        " or (",
        (f"{FOLLOWS}::test_more_changes_than_one_round_takes[sqlite]",),
    ),
    Guard(
        "a_registry_that_was_set_back_is_looked_through",
        FOLLOWING,
        "if epoch < known or ",
        "if ",
        (f"{FOLLOWS}::test_a_registry_that_was_set_back[sqlite]",),
    ),
    Guard(
        "what_came_back_goes_again",
        FOLLOWING,
        "                if looking:\n",
        "                if False:\n",
        (f"{FOLLOWS}::test_what_came_back_goes_again[sqlite]",),
    ),
    Guard(
        "one_that_cannot_be_forgotten_holds_up_no_other",
        FOLLOWING,
        "                errors.append(error)\n",
        "                raise\n",
        (f"{FOLLOWS}::test_one_that_cannot_be_forgotten_holds_up_no_other[sqlite]",),
    ),
    Guard(
        "what_could_not_be_noted_is_noted_later",
        FOLLOWING,
        "        scope = AdapterScope(adapter.id)\n",
        "        scope = AdapterScope(adapter.id)\n        self._unnoted.pop(adapter.id, None)\n",
        (f"{FOLLOWS}::test_what_could_not_be_noted_is_noted_by_the_next_round[sqlite]",),
    ),
    Guard(
        "a_purge_keeps_what_another_put_on_the_receipt",
        f"{LORRY}/registry/adapters/lifecycle.py",
        "            row.purge_receipt = receipt | {",
        "            row.purge_receipt = {",
        (f"{FOLLOWS}::test_two_purges_at_once_keep_each_others_receipt[sqlite]",),
    ),
    Guard(
        "text_files_of_what_was_purged_go",
        f"{LORRY}/gateway/texts.py",
        "(over or found.unwanted)",
        "over",
        ("tests/unit/gateway/test_texts.py::test_a_purged_adapters_files_go_with_the_last_request_that_uses_them",),
    ),
    Guard(
        "what_is_only_deleted_is_not_forgotten",
        f"{LORRY}/registry/adapters/content.py",
        "Adapter.id.in_(ids), Adapter.purged_at.is_not(None)",
        "Adapter.id.in_(ids)",
        (f"{FOLLOWS}::test_engines_behind_others_forget_and_the_receipt_says_so[sqlite]",),
    ),
)

__all__ = ["GUARDS"]
