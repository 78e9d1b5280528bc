"""Guards of what is kept of the past: the audit chain, the usage ledger, its sums and its files."""

from __future__ import annotations

from tests.mutants.guard import Guard

AUDIT = "platform/lorry/registry/audit"
USAGE = "platform/lorry/registry/usage"
GATEWAY = "platform/lorry/gateway"
CHAIN = "tests/unit/registry/test_audit.py"
TAMPERING = f"{CHAIN}::test_tampering_is_found_and_named"
LEDGER = "tests/unit/registry/test_usage_ledger.py"
REPORTS = "tests/unit/registry/test_usage_reports.py"
CHECKS = "tests/unit/gateway/test_checks.py"
SPOOL = "tests/unit/gateway/test_usage.py"

GUARDS = (
    Guard(
        "writers_have_turns",
        "platform/lorry/registry/db/engine.py",
        "async with self._turns.turn() if self._turns else nullcontext(), self._write",
        "async with self._write",
        ("tests/unit/registry/test_turns.py::test_they_write_in_the_order_in_which_they_came",),
    ),
    Guard(
        "a_cancelled_write_lets_go",
        "platform/lorry/registry/db/engine.py",
        "        await connection.rollback()\n",
        "        pass\n",
        ("tests/unit/registry/test_turns.py::test_who_is_cancelled_amid_a_statement_lets_go_of_the_lock",),
    ),
    Guard(
        "turns_end",
        "platform/lorry/registry/db/engine.py",
        "async with asyncio.timeout(TURN_S):",
        "async with asyncio.timeout(None):",
        ("tests/unit/registry/test_turns.py::test_who_waits_for_too_long_is_told_and_the_others_go_on",),
    ),
    # The chain is sealed, whatever a service does.
    Guard(
        "events_are_sealed_in_the_order_of_tenants",
        f"{AUDIT}/appending.py",
        "groupby(sorted(waiting, key=lambda one: one.tenant), lambda one: one.tenant)",
        "groupby(waiting, lambda one: one.tenant)",
        (f"{CHAIN}::test_one_transaction_may_have_events_of_several_tenants_and_two_of_them_never_wait_in_a_circle",),
    ),
    Guard(
        "the_end_of_a_chain_is_locked",
        f"{AUDIT}/repository.py",
        "AuditHead.tenant_id == tenant).with_for_update()",
        "AuditHead.tenant_id == tenant)",
        (f"{CHAIN}::test_one_transaction_may_have_events_of_several_tenants_and_two_of_them_never_wait_in_a_circle",),
    ),
    Guard(
        "what_is_rolled_back_is_forgotten",
        f"{AUDIT}/appending.py",
        "        session.info.pop(_WAITING, None)\n",
        "        pass\n",
        (f"{CHAIN}::test_a_session_that_goes_on_after_a_rollback_has_forgotten_what_it_noted",),
    ),
    Guard(
        "a_savepoint_seals_nothing",
        f"{AUDIT}/appending.py",
        "    if session.in_nested_transaction():\n        raise",
        "    if False:\n        raise",
        (f"{CHAIN}::test_an_event_is_there_with_its_transaction_alone",),
    ),
    Guard(
        "an_event_needs_a_session_that_seals",
        f"{AUDIT}/appending.py",
        "    if not isinstance(session.sync_session, WriteSession) or not session.in_transaction():\n",
        "    if False:\n",
        (f"{CHAIN}::test_an_event_is_there_with_its_transaction_alone",),
    ),
    # Tampering is found.
    *(
        Guard(
            f"hashes_cover_the_{name}",
            f"{AUDIT}/chain.py",
            f"        {text},\n",
            "",
            (f"{TAMPERING}[sqlite-{kind}]",),
        )
        for name, text, kind in (
            ("id", "event.id", "id"),
            ("actor", "event.actor", "actor"),
            ("action", "event.action", "action"),
            ("subject", "event.subject", "subject"),
            ("details", "canonical(event.details)", "details"),
            ("time", "microseconds", "time"),
        )
    ),
    Guard(
        "hashes_cover_the_one_before",
        f"{AUDIT}/chain.py",
        "        microseconds,\n        previous,\n",
        "        microseconds,\n",
        (f"{CHAIN}::test_hashes_depend_on_every_field",),
    ),
    Guard(
        "fields_are_told_apart",
        f"{AUDIT}/chain.py",
        ' + len(data).to_bytes(8, "big") + data',
        " + data",
        (f"{CHAIN}::test_hashes_depend_on_every_field",),
    ),
    Guard(
        "a_gap_is_a_break",
        f"{AUDIT}/chain.py",
        "        if event.sequence > wanted:\n",
        "        if False:\n",
        (f"{TAMPERING}[sqlite-removed]",),
    ),
    Guard(
        "one_more_is_a_break",
        f"{AUDIT}/chain.py",
        "        if event.sequence < wanted:\n",
        "        if False:\n",
        (f"{TAMPERING}[sqlite-one more]",),
    ),
    Guard(
        "pages_split_no_sequence",
        f"{AUDIT}/repository.py",
        "tuple_(AuditEvent.sequence, AuditEvent.id) > tuple_(*after)",
        "AuditEvent.sequence > after.sequence",
        (f"{TAMPERING}[sqlite-one more over a page's edge]",),
    ),
    Guard(
        "a_cut_tail_is_a_break",
        f"{AUDIT}/chain.py",
        "        if self.sequence < sequence:\n",
        "        if False:\n",
        (f"{TAMPERING}[sqlite-the tail cut]",),
    ),
    Guard(
        "the_head_s_hash_counts",
        f"{AUDIT}/chain.py",
        "        elif self.hash != head_hash:\n",
        "        elif False:\n",
        (f"{TAMPERING}[sqlite-the head's hash]",),
    ),
    Guard(
        "events_beyond_the_head_are_a_break",
        f"{AUDIT}/service.py",
        "            if not last == count == end:\n",
        "            if False:\n",
        (f"{TAMPERING}[sqlite-one more far off]", f"{TAMPERING}[sqlite-the head moved back]"),
    ),
    Guard(
        "a_noted_hash_is_compared",
        f"{AUDIT}/service.py",
        "        if found == known_hash:\n",
        "        if True:\n",
        (f"{CHAIN}::test_a_noted_hash_finds_a_chain_that_was_written_anew",),
    ),
    Guard(
        "members_read_no_events",
        f"{AUDIT}/service.py",
        '        require(caller, "read audit events")\n',
        "",
        (f"{CHAIN}::test_who_may_read_and_verify",),
    ),
    # Sums are the ledger's.
    Guard(
        "a_row_is_counted_when_it_is_new",
        f"{USAGE}/repository.py",
        "    return [wanted[ledger_id] for ledger_id in made]\n",
        "    return list(wanted.values())\n",
        (f"{LEDGER}::test_a_row_that_is_there_is_counted_once",),
    ),
    Guard(
        "a_row_is_once_in_a_batch",
        f"{USAGE}/repository.py",
        "        wanted.setdefault(row.ledger_id, row)\n",
        "        wanted[row.ledger_id] = row\n",
        (f"{LEDGER}::test_a_row_that_is_there_is_counted_once",),
    ),
    Guard(
        "sums_are_locked_before_they_are_read",
        f"{USAGE}/repository.py",
        ".order_by(*_GROUP).with_for_update()",
        ".order_by(*_GROUP)",
        (f"{LEDGER}::test_writers_of_one_sum_add_to_each_other",),
    ),
    Guard(
        "ledger_ids_are_written_in_order",
        f"{USAGE}/repository.py",
        "for ledger_id in sorted(wanted)]",
        "for ledger_id in wanted]",
        (f"{LEDGER}::test_writers_of_the_same_rows_lock_them_in_one_order",),
    ),
    Guard(
        "an_older_use_of_a_key_changes_nothing",
        f"{USAGE}/repository.py",
        "        where=KeyUse.used_at < step.excluded.used_at,\n",
        "",
        (f"{LEDGER}::test_keys_know_when_they_were_used_last",),
    ),
    Guard(
        "sums_are_made_anew_of_nothing_else",
        f"{USAGE}/repository.py",
        '        await session.execute(text("LOCK TABLE usage_rollup IN SHARE ROW EXCLUSIVE MODE"))\n',
        "        pass\n",
        (f"{LEDGER}::test_sums_made_anew_keep_writers_waiting",),
    ),
    Guard(
        "members_read_no_usage",
        f"{USAGE}/reports.py",
        '        require(caller, "read usage")\n        query = Query.of(start, end, dimensions, PageRequest',
        "        query = Query.of(start, end, dimensions, PageRequest",
        (f"{REPORTS}::test_who_may_read",),
    ),
    Guard(
        "members_export_no_usage",
        f"{USAGE}/reports.py",
        '        require(caller, "export usage")\n',
        "",
        (f"{REPORTS}::test_who_may_read",),
    ),
    Guard(
        "cells_are_no_formulas",
        f"{USAGE}/export.py",
        '    return f"\'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text\n',
        "    return text\n",
        (f"{REPORTS}::test_no_cell_is_a_formula_and_all_of_them_are_read_back",),
    ),
    Guard(
        "pieces_are_bounded",
        f"{USAGE}/export.py",
        "        if held and size + len(one) > limit:\n",
        "        if False:\n",
        (f"{REPORTS}::test_pieces_are_whole_lines_within_their_limit",),
    ),
    # What comes in.
    Guard(
        "labels_are_counted",
        f"{GATEWAY}/checks.py",
        "    if len(request.labels) > LABELS_MAX:\n",
        "    if False:\n",
        (CHECKS,),
    ),
    Guard(
        "labels_have_no_control_characters",
        f"{GATEWAY}/checks.py",
        'unicodedata.category(one) in ("Cc", "Zl", "Zp")',
        "False",
        (CHECKS,),
    ),
    Guard(
        "keys_of_labels_are_whole",
        f"{GATEWAY}/checks.py",
        "_LABEL_KEY.fullmatch(key)",
        "_LABEL_KEY.match(key)",
        (CHECKS,),
    ),
    Guard(
        "rows_of_newer_releases_are_read",
        f"{GATEWAY}/usage.py",
        "{name: found[name] for name in found.keys() & _FIELDS}",
        "found",
        (f"{SPOOL}::test_rows_of_older_and_newer_releases_are_read",),
    ),
)

__all__ = ["GUARDS"]
