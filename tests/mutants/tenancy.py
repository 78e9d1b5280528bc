"""Guards of names and rights: who may move an alias and to what, who wins a race, what ends a key, where from a tenant
may import."""

from __future__ import annotations

from tests.mutants.guard import Guard

REGISTRY = "platform/lorry/registry"
ALIASES = f"{REGISTRY}/aliases/service.py"
ALIAS_SQL = f"{REGISTRY}/aliases/repository.py"
ADAPTER_SQL = f"{REGISTRY}/adapters/repository.py"
TENANTS = f"{REGISTRY}/tenants/service.py"
ROLES = f"{REGISTRY}/tenants/roles.py"
TENANT_SQL = f"{REGISTRY}/tenants/repository.py"
GRANTS = f"{REGISTRY}/grants/service.py"
S3 = f"{REGISTRY}/s3uris.py"
MIGRATION = "migrations/lorry_migrations/versions/0003_tenants_and_limits.py"

UNIT = "tests/unit/registry"
ALIAS_TESTS = f"{UNIT}/test_aliases.py"
ROLLOUT_TESTS = "tests/integration/admin/test_rollouts.py"
RIGHTS_TESTS = f"{UNIT}/test_rights.py"
TARGETS = f"{ALIAS_TESTS}::test_what_may_be_a_target[sqlite]"

GUARDS = (
    Guard(
        "of_two_equal_grants_at_once_the_second_finds_the_first",
        GRANTS,
        "await lock_tenant(session, tenant)  # so that of two at once",
        "pass  # so that of two at once",
        (f"{UNIT}/test_settings_at_once.py::test_all_are_answered[postgresql-grant]",),
    ),
    Guard(
        "a_stale_etag_moves_no_alias",
        ALIASES,
        "    check_etag(etag, alias_etag(now))\n    return now\n",
        "    return now\n",
        (
            f"{ALIAS_TESTS}::test_rollbacks_and_canaries_at_once_by_etag[sqlite]",
            "tests/integration/admin/test_aliases.py::test_an_aliass_life",
        ),
    ),
    Guard(
        "a_stale_etag_sets_no_alias",
        ALIASES,
        "            check_etag(etag, None if now is None else alias_etag(now))\n",
        "",
        (f"{ALIAS_TESTS}::test_one_of_many_first_sets_at_once_wins[sqlite]",),
    ),
    Guard(
        "changes_of_an_alias_wait_for_each_other",
        ALIAS_SQL,
        "Adapter.name == name).with_for_update(key_share=True)\n",
        "Adapter.name == name)\n",
        (f"{ALIAS_TESTS}::test_one_of_many_promotes_at_once_wins[postgresql]",),
    ),
    Guard(
        "only_a_canary_is_promoted",
        ALIASES,
        '                raise FailedPrecondition(f"name: {name} has no canary; start one with SetCanary")\n',
        "                return now\n",
        (f"{ALIAS_TESTS}::test_one_of_many_promotes_at_once_wins[sqlite]",),
    ),
    Guard(
        "a_canary_that_ended_does_not_run_on",
        ALIASES,
        '            await repository.end_rollout(session, place.tenant, now, "PROMOTED")\n',
        "",
        (f"{ALIAS_TESTS}::test_a_canary_from_its_start_to_its_promotion_and_back[sqlite]",),
    ),
    Guard(
        "a_rollout_that_ended_has_its_own_part",
        ALIAS_SQL,
        "now if row.ended_at is None else row.canary_permille or 0",
        "now",
        (f"{ROLLOUT_TESTS}::test_every_canary_from_its_start_to_its_end[sqlite]",),
    ),
    Guard(
        "rollouts_are_asked_for_by_tenant",
        ALIAS_SQL,
        "Rollout.adapter_id == adapter_id, _of(tenant, Rollout.adapter_id)",
        "Rollout.adapter_id == adapter_id",
        (f"{ROLLOUT_TESTS}::test_the_query_itself_asks_whose_they_are[sqlite]",),
    ),
    Guard(
        "who_may_not_list_aliases_lists_no_rollouts",
        ALIASES,
        '        require(caller, "list aliases")\n        if name.alias:\n',
        "        if name.alias:\n",
        (
            f"{ROLLOUT_TESTS}::test_for_nobody_else[sqlite]",
            "tests/security/test_rights_walk.py::test_every_role_that_is_too_low_is_refused[ListRollouts]",
        ),
    ),
    Guard(
        "a_canary_quarantined_meanwhile_is_not_promoted",
        ALIASES,
        "            await adapters.require_servable(session, place.adapter, now.canary_number)\n",
        "",
        (f"{ALIAS_TESTS}::test_what_was_quarantined_meanwhile_is_not_gone_back_to[sqlite]",),
    ),
    Guard(
        "what_was_quarantined_meanwhile_is_not_gone_back_to",
        ALIASES,
        "            await adapters.require_servable(session, place.adapter, before.number)\n",
        "",
        (f"{ALIAS_TESTS}::test_what_was_quarantined_meanwhile_is_not_gone_back_to[sqlite]",),
    ),
    Guard(
        "a_second_rollback_goes_further_back",
        ALIASES,
        "Target(before.number, origin=_origin(before))",
        "Target(before.number)",
        (f"{ALIAS_TESTS}::test_rolling_back_goes_further_back_and_never_forth[sqlite]",),
    ),
    Guard(
        "a_rollback_does_not_cross_a_deletion",
        ALIASES,
        "            if before is None or before.deleted:\n",
        "            if before is None:\n",
        (f"{ALIAS_TESTS}::test_a_deleted_alias_counts_on_and_has_no_past[sqlite]",),
    ),
    Guard(
        "a_quarantined_version_is_no_target",
        ADAPTER_SQL,
        "    if state == VersionState.QUARANTINED:\n"
        '        raise AdapterQuarantined(f"version: {number} is quarantined; use another version")\n'
        "    if state != VersionState.READY:\n",
        "    if state == VersionState.REJECTED:\n",
        (TARGETS, f"{RIGHTS_TESTS}::test_what_may_be_pinned[sqlite]"),
    ),
    Guard(
        "a_purged_version_is_no_target",
        ADAPTER_SQL,
        "    if purged_at is not None:\n"
        '        raise VersionNotReady(f"version: {number} is purged, its bytes are destroyed; use another version")\n',
        "    if purged_at is not None:\n        return\n",
        (TARGETS,),
    ),
    Guard(
        "revisions_stay_as_they_were",
        MIGRATION,
        '    ("alias_revision", "UPDATE", "tr_alias_revision_update_6"),\n',
        "",
        (f"{UNIT}/test_migrations.py::test_content_refuses_updates[sqlite]",),
    ),
    Guard(
        "a_part_without_a_canary_is_refused_by_the_database",
        MIGRATION,
        "(canary_number IS NOT NULL AND canary_number <> number ",
        "(canary_number <> number ",
        (f"{UNIT}/test_migrations.py::test_what_a_revision_can_say[sqlite]",),
    ),
    Guard(
        "an_origin_lies_before_its_revision",
        MIGRATION,
        '"origin < revision"',
        '"origin < 99"',
        (f"{UNIT}/test_migrations.py::test_what_a_revision_can_say[sqlite]",),
    ),
    Guard(
        "one_changes_a_tenant_at_a_time",
        TENANT_SQL,
        "Tenant.id == tenant).with_for_update(key_share=True)\n",
        "Tenant.id == tenant)\n",
        (f"{RIGHTS_TESTS}::test_a_tenant_is_changed_by_one_of_many_with_its_etag[postgresql]",),
    ),
    Guard(
        "a_stale_etag_changes_no_tenant",
        TENANTS,
        "            check_etag(etag, tenant_etag(row))\n",
        "",
        (f"{RIGHTS_TESTS}::test_a_tenant_is_changed_by_one_of_many_with_its_etag[sqlite]",),
    ),
    Guard(
        "import_prefixes_are_the_administrators_to_set",
        TENANTS,
        '        require(caller, "change tenants")\n',
        '        require(caller, "create API keys")\n',
        (f"{RIGHTS_TESTS}::test_import_prefixes_are_the_administrators_to_set[sqlite]",),
    ),
    Guard(
        "owners_make_no_administrators",
        ROLES,
        '    if role == Role.PLATFORM_ADMIN:\n        require(caller, "make platform administrators")\n',
        "",
        (f"{RIGHTS_TESTS}::test_an_owner_makes_no_role_above_its_own_and_no_key_of_others[sqlite]",),
    ),
    Guard(
        "administrators_are_of_the_platforms_tenant",
        ROLES,
        "(role == Role.PLATFORM_ADMIN) != (tenant_name == PLATFORM_TENANT) or role not in set(Role)",
        "role not in set(Role)",
        ("tests/integration/admin/test_tenants.py::test_keys",),
    ),
    Guard(
        "a_rotation_prolongs_no_key",
        TENANTS,
        "end if old.expires_at is None else min(old.expires_at, end)",
        "end",
        (
            f"{RIGHTS_TESTS}::test_a_key_that_ends_by_itself_is_not_prolonged[sqlite]",
            f"{RIGHTS_TESTS}::test_a_rotated_key_overlaps_and_ends[sqlite]",
        ),
    ),
    Guard(
        "without_an_overlap_the_old_key_is_revoked",
        TENANTS,
        "            if not overlap:\n                old.revoked_at = now\n",
        "",
        (f"{RIGHTS_TESTS}::test_without_an_overlap_the_old_key_is_dead_whatever_the_clock[sqlite]",),
    ),
    Guard(
        "snapshots_hear_of_the_key_that_was_rotated",
        TENANTS,
        "await changes.record(session, Change(Kind.API_KEY, old.id), Change(Kind.API_KEY, row.id))",
        "await changes.record(session, Change(Kind.API_KEY, row.id))",
        (f"{RIGHTS_TESTS}::test_without_an_overlap_the_old_key_is_dead_whatever_the_clock[sqlite]",),
    ),
    Guard(
        "what_ended_is_not_rotated",
        TENANTS,
        "            if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):\n",
        "            if False:\n",
        (f"{RIGHTS_TESTS}::test_what_cannot_be_rotated[sqlite]",),
    ),
    Guard(
        "one_rotates_a_key_at_a_time",
        TENANT_SQL,
        "query.with_for_update(key_share=True, of=ApiKey)",
        "query",
        (f"{RIGHTS_TESTS}::test_one_of_many_rotations_at_once_wins[postgresql]",),
    ),
    Guard(
        "a_deleted_adapter_is_not_pinned",
        GRANTS,
        "            if adapter is None or granted is None or adapter.deleted_at is not None:\n",
        "            if adapter is None or granted is None:\n",
        (f"{RIGHTS_TESTS}::test_what_may_be_pinned[sqlite]",),
    ),
    Guard(
        "a_prefix_does_not_hold_its_neighbours",
        S3,
        '    return S3Folder(bucket, f"{found[2]}/")\n',
        "    return S3Folder(bucket, found[2])\n",
        (f"{UNIT}/test_s3uris.py::test_an_import_lies_within_a_prefix",),
    ),
    Guard(
        "a_prefix_is_no_path",
        S3,
        'or ".." in text or "." in found[2].split("/")',
        "",
        (f"{UNIT}/test_s3uris.py::test_not_a_folder[s3://bucket/p/../]",),
    ),
    Guard(
        "a_bucket_is_no_address",
        S3,
        " or _ADDRESS.fullmatch(bucket)",
        "",
        (f"{UNIT}/test_s3uris.py::test_not_a_folder[s3://169.254.169.254/latest/]",),
    ),
)

__all__ = ["GUARDS"]
