"""Guards of the hot path: what a name means, what is hidden, what cuts a stream, and how the snapshot keeps up."""

from __future__ import annotations

from tests.mutants.guard import Guard

REGISTRY = "platform/lorry/registry"
GATEWAY = "platform/lorry/gateway"
MAPS = "tests/unit/registry/test_maps.py"
RESOLVING = "tests/unit/registry/test_resolving.py"
SOURCE = "tests/unit/registry/test_source.py"
POLLS = "tests/unit/registry/test_polls.py"
STILL = "tests/integration/registry_gateway/test_stood_still.py"
STALENESS = "tests/unit/gateway/test_staleness.py"
REVOCATION = "tests/integration/registry_gateway/test_revocation.py"

GUARDS = (
    # A delta costs what changed.
    Guard(
        "leaves_are_small",
        f"{REGISTRY}/maps.py",
        "        return _split(leaf, depth), len(leaf) - len(node)\n",
        "        return leaf, len(leaf) - len(node)\n",
        (f"{MAPS}::test_an_update_copies_one_leaf_of_bounded_size_whatever_the_size",),
    ),
    # What a name means.
    Guard(
        "deleted_is_unknown",
        f"{REGISTRY}/snapshot.py",
        "        visible = adapter is not None and not adapter.deleted\n",
        "        visible = adapter is not None\n",
        (f"{RESOLVING}::test_deleted_is_as_never_granted",),
    ),
    Guard(
        "the_draw_is_not_of_the_weight",
        f"{REGISTRY}/resolving.py",
        '"\\0".join((adapter_id, alias.name, sticky))',
        '"\\0".join((adapter_id, alias.name, str(alias.canary_permille), sticky))',
        (f"{RESOLVING}::test_a_canary_that_grows_keeps_whom_it_had",),
    ),
    Guard(
        "a_default_pin_refuses_nothing",
        f"{REGISTRY}/resolving.py",
        "pin is not None and pin.hard and number != pin.version",
        "pin is not None and number != pin.version",
        (f"{RESOLVING}::test_a_default_pin_is_for_the_bare_name_alone",),
    ),
    Guard(
        "a_hard_pin_refuses_others",
        f"{REGISTRY}/resolving.py",
        "pin is not None and pin.hard and number != pin.version",
        "False",
        (f"{RESOLVING}::test_a_hard_pin_refuses_every_other_version",),
    ),
    Guard(
        "a_bare_name_passes_deprecated_ones_over",
        f"{REGISTRY}/resolving.py",
        "    return ready and not version.deprecated, ready,",
        "    return ready, ready,",
        (f"{RESOLVING}::test_a_deprecated_version_is_served_to_who_names_it",),
    ),
    Guard(
        "a_bare_name_is_no_deprecated_one",
        f"{REGISTRY}/resolving.py",
        "    if newest.deprecated and newest.state is VersionState.READY:\n",
        "    if False:\n",
        (f"{RESOLVING}::test_a_bare_name_never_means_a_deprecated_one",),
    ),
    # What a live stream stands on.
    Guard(
        "a_deletion_cuts",
        f"{REGISTRY}/snapshot.py",
        "not held.adapter_id or (adapter is not None and not adapter.deleted)",
        "not held.adapter_id or adapter is not None",
        (f"{RESOLVING}::test_held_is_what_a_new_request_for_the_version_would_get",),
    ),
    Guard(
        "other_bytes_cut",
        f"{REGISTRY}/snapshot.py",
        "version is not None and version.ref.digest == held.sha256",
        "version is not None",
        (f"{RESOLVING}::test_held_is_what_a_new_request_for_the_version_would_get",),
    ),
    Guard(
        "a_quarantine_cuts",
        f"{REGISTRY}/snapshot.py",
        "            require_served(adapter, version)\n\n    def _require_grant",
        "            pass\n\n    def _require_grant",
        (f"{RESOLVING}::test_held_is_what_a_new_request_for_the_version_would_get",),
    ),
    Guard(
        "a_key_that_expires_cuts",
        f"{GATEWAY}/live.py",
        " or (expires_at is not None and expires_at <= now)",
        "",
        (f"{REVOCATION}::test_a_key_that_expires_cuts_too[sqlite]",),
    ),
    Guard(
        "the_newest_end_of_a_key_counts",
        f"{GATEWAY}/live.py",
        "                call.caller = still_holds(snapshot, call, now)\n",
        "                still_holds(snapshot, call, now)\n",
        (f"{STALENESS}::test_a_key_that_is_given_longer_is_not_cut_at_its_first_end",),
    ),
    Guard(
        "a_silent_registry_cuts",
        f"{GATEWAY}/live.py",
        "            self._staleness.require_live(self._source.age())\n",
        "            pass\n",
        (f"{STALENESS}::test_live_streams",),
    ),
    Guard(
        "a_pass_hears_the_registrys_silence",
        f"{GATEWAY}/live.py",
        "            self._require_heard()\n            return self._source",
        "            return self._source",
        (f"{STALENESS}::test_live_streams",),
    ),
    Guard(
        "a_newer_epoch_is_looked_at",
        f"{GATEWAY}/live.py",
        "self.epoch != epoch or (expires_at is not None and expires_at <= now)",
        "expires_at is not None and expires_at <= now",
        (f"{REVOCATION}::test_everything_that_is_taken_back_cuts_and_refuses[sqlite]",),
    ),
    Guard(
        "a_cut_is_counted_once",
        f"{GATEWAY}/live.py",
        "        if call.cut:\n            return\n",
        "",
        (f"{STALENESS}::test_live_streams",),
    ),
    Guard(
        "a_stop_of_the_process_is_not_the_registrys",
        f"{GATEWAY}/live.py",
        "        if not self._source.stood_still():\n",
        "        if True:\n",
        (f"{STILL}::test_who_comes_then_is_served_and_who_is_served_goes_on[sqlite]",),
    ),
    Guard(
        "who_comes_after_a_stop_waits_for_a_poll",
        f"{GATEWAY}/admission.py",
        "            await asyncio.sleep(_LOOK_S)\n",
        "            break\n",
        (f"{STILL}::test_what_was_taken_back_meanwhile_is_known_to_the_first_call[sqlite]",),
    ),
    Guard(
        "a_poll_is_not_given_up_for_a_stop_of_the_process",
        f"{REGISTRY}/source.py",
        "                self._moved_at += late\n",
        "                pass\n",
        (f"{STILL}::test_a_poll_that_was_under_way_goes_on[postgresql]",),
    ),
    Guard(
        "a_stop_excuses_for_a_second",
        f"{REGISTRY}/source.py",
        "        return now - self._noticed_at < GRACE_S\n",
        "        return True\n",
        (f"{STILL}::test_a_registry_that_is_silent_then_is_found_out[sqlite]",),
    ),
    Guard(
        "a_silent_registry_refuses",
        f"{GATEWAY}/admission.py",
        "        self.staleness.require_fresh(self.source.age())\n",
        "",
        (f"{STALENESS}::test_every_call_asks",),
    ),
    # How the snapshot keeps up.
    Guard(
        "changes_are_announced",
        f"{REGISTRY}/changes.py",
        "    await announce(session, epoch)\n",
        "",
        (f"{POLLS}::test_an_announced_change_is_read_at_once",),
    ),
    Guard(
        "who_listens_again_looks",
        f"{REGISTRY}/listening.py",
        "                    self._heard()\n                    async for",
        "                    async for",
        (f"{POLLS}::test_a_killed_listener_comes_back_and_reads_what_it_missed",),
    ),
    Guard(
        "a_poll_ends",
        f"{REGISTRY}/source.py",
        "while not task.done() and time_of() - self._moved_at < self._poll_timeout:",
        "while not task.done():",
        (f"{POLLS}::test_a_poll_of_a_paused_database_is_given_up_and_all_is_well_when_it_answers",),
    ),
    Guard(
        "dead_connections_are_dropped_together",
        f"{REGISTRY}/source.py",
        "            await self._database.engine.dispose()",
        "            await asyncio.sleep(0)",
        (f"{POLLS}::test_dead_connections_cost_one_poll_however_many_wait_in_the_pool",),
    ),
    Guard(
        "epochs_are_whole",
        f"{REGISTRY}/source.py",
        "        log = [change for change in log if change.epoch < log[-1].epoch]\n",
        "        pass\n",
        (f"{SOURCE}::test_an_epoch_that_is_read_in_part_is_not_applied",),
    ),
    Guard(
        "a_load_is_of_one_moment",
        f"{REGISTRY}/db/engine.py",
        'engine.execution_options(isolation_level="REPEATABLE READ")',
        "engine",
        (f"{SOURCE}::test_a_full_load_is_of_one_moment",),
    ),
    # Who waits for a thread.
    Guard(
        "bills_are_written_by_a_thread_of_their_own",
        f"{GATEWAY}/usage.py",
        "run_in_executor(self._thread, self._commit",
        "run_in_executor(None, self._commit",
        ("tests/unit/gateway/test_usage_threads.py::test_a_bill_is_written_while_all_threads_of_others_are_busy",),
    ),
    Guard(
        "stores_have_threads_of_their_own",
        "platform/lorry/adapters/store.py",
        "run_in_executor(_threads, work",
        "run_in_executor(None, work",
        (
            "tests/unit/adapters/test_store_threads.py::test_a_store_that_hangs_keeps_no_thread_of_others",
            "tests/unit/adapters/test_store_threads.py::test_a_store_is_asked_while_all_threads_of_others_are_busy",
        ),
    ),
    Guard(
        "large_answers_are_written_beside_the_loop",
        f"{GATEWAY}/generations.py",
        "if scored <= ASIDE else",
        "if scored >= 0 else",
        ("tests/integration/gateway/test_large_answers.py::test_they_are_written_beside_the_loop",),
    ),
    Guard(
        "the_loop_turns_while_ids_are_gathered",
        f"{GATEWAY}/http/logprobs.py",
        "                await asyncio.sleep(0)\n",
        "                pass\n",
        ("tests/unit/gateway/http/test_many_logprobs.py::test_the_loop_turns_while_ids_are_gathered",),
    ),
)

__all__ = ["GUARDS"]
