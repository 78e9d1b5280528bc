"""Guards of a stream's way out of the gateway, and of bills on their way to the ledger."""

from __future__ import annotations

from tests.mutants.guard import Guard

EMPTY = "tests/integration/gateway/test_empty_streams.py"
LEDGER = "tests/unit/gateway/test_ledger.py"

GUARDS = (
    Guard(
        "an_empty_stream_is_no_success",
        "platform/lorry/gateway/interceptors.py",
        '            if seen.last is None or seen.last.WhichOneof("event") != "end":\n',
        "            if False:\n",
        (f"{EMPTY}::test_the_interceptor_makes_an_empty_stream_an_error",),
    ),
    Guard(
        "a_full_batch_is_not_the_last",
        "platform/lorry/gateway/ledger.py",
        "                while (due := await self._one()) is not None and due.full:\n",
        "                if (due := await self._one()) is not None and due.full:\n",
        (f"{LEDGER}::test_rows_that_come_during_a_pass_are_of_the_next_one_and_a_full_batch_is_not_the_last",),
    ),
    Guard(
        "a_pass_ends_though_rows_keep_coming",
        "platform/lorry/gateway/ledger.py",
        "                while (due := await self._one()) is not None and due.full:\n",
        "                while (due := await self._one()) is not None:\n",
        (f"{LEDGER}::test_rows_that_come_during_a_pass_are_of_the_next_one_and_a_full_batch_is_not_the_last",),
    ),
    Guard(
        "a_spool_starts_anew_though_rows_keep_coming",
        "platform/lorry/gateway/ledger.py",
        "        if due is None or not due.full:\n",
        "        if due is None:\n",
        (f"{LEDGER}::test_a_pass_that_reached_the_end_empties_a_large_spool",),
    ),
)
