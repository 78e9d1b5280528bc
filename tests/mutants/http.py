"""Guards of OpenAI's API over HTTP: what is refused, what is never ended well, what is cut."""

from __future__ import annotations

from tests.mutants.guard import Guard

HTTP = "platform/lorry/gateway/http"
UNIT = "tests/unit/gateway/http"
WEB = "tests/integration/gateway/test_http.py"
WIRE = "tests/integration/gateway/test_http_wire.py"
EMPTY = "tests/integration/gateway/test_never_empty.py"
BODY = f"{UNIT}/test_body.py"
ERRORS = f"{UNIT}/test_errors.py"
FIELDS = f"{UNIT}/test_requests.py"

GUARDS = (
    # No stream ends well that did not.
    Guard(
        "http_says_done_after_an_end_alone",
        f"{HTTP}/app.py",
        "        if not ended:\n",
        "        if False:\n",
        (f"{EMPTY}::test_http_does_not_trust_the_service_layer_either",),
    ),
    Guard(
        "http_tells_an_error_in_the_middle",
        f"{HTTP}/exchange.py",
        '            await self.end_stream(b"event: error\\ndata: %b\\n\\n" % found)\n',
        '            await self.end_stream(b"")\n',
        (f"{EMPTY}::test_by_http",),
    ),
    Guard(
        "a_deadline_of_http_holds_in_the_gateway",
        f"{HTTP}/app.py",
        "asyncio.timeout_at(exchange.deadline + _DEADLINE_GRACE_S)",
        "asyncio.timeout_at(exchange.deadline + 3600.0)",
        (f"{WIRE}::test_a_deadline_holds_before_an_engine_is_asked",),
    ),
    Guard(
        "a_deadline_of_http_reaches_the_engine",
        f"{HTTP}/exchange.py",
        "        return None if self._deadline is None else self._deadline - self._loop.time()\n",
        "        return None\n",
        (f"{WEB}::test_a_deadline_reaches_the_engine",),
    ),
    # Clients that leave or do not read.
    Guard(
        "a_client_of_http_that_leaves_aborts",
        f"{HTTP}/exchange.py",
        "        self._watch = asyncio.create_task(self._watch_client())\n",
        "",
        (f"{WIRE}::test_a_client_that_leaves_aborts_its_request_at_once",),
    ),
    Guard(
        "a_write_of_http_waits_only_so_long",
        f"{HTTP}/exchange.py",
        "            async with asyncio.timeout(self._stall_seconds):\n",
        "            async with asyncio.timeout(None):\n",
        (f"{WIRE}::test_slow_readers_are_bounded_and_cut_and_nobody_else_waits[once all is there]",),
    ),
    Guard(
        "an_end_that_nobody_reads_is_dropped",
        f"{HTTP}/server.py",
        "        if self.transport.get_write_buffer_size():\n",
        "        if False:\n",
        (f"{WIRE}::test_an_end_that_nobody_reads_does_not_keep_its_connection",),
    ),
    Guard(
        "a_part_of_a_head_buys_no_time",
        "platform/lorry/guest.py",
        "        if self._head_by is None:\n",
        "        if True:\n",
        (f"{WIRE}::test_a_head_that_does_not_come_ends_the_connection[drips]",),
    ),
    Guard(
        "connections_of_http_are_bounded",
        "platform/lorry/guest.py",
        "        if len(self.connections) > self.most:\n",
        "        if False:\n",
        (f"{WIRE}::test_more_connections_than_there_may_be_are_closed",),
    ),
    Guard(
        "a_body_has_so_long_to_come",
        f"{HTTP}/exchange.py",
        "            async with asyncio.timeout(seconds):\n",
        "            async with asyncio.timeout(None):\n",
        (f"{WIRE}::test_a_body_that_does_not_come_is_refused",),
    ),
    Guard(
        "a_draining_gateway_ends_connections_of_http",
        f"{HTTP}/app.py",
        "        exchange.closing = self._generations.draining\n",
        "",
        (f"{WIRE}::test_a_drain_ends_what_runs_and_refuses_what_comes",),
    ),
    # Requests.
    Guard(
        "http_authenticates_before_it_reads",
        f"{HTTP}/app.py",
        "            _, _, noted.caller = await self._generations.admission.authenticate(exchange)\n",
        "",
        (f"{WIRE}::test_bad_credentials_are_401_before_the_body_is_read",),
    ),
    Guard(
        "a_body_in_parts_is_bounded",
        f"{HTTP}/exchange.py",
        "                    if len(raw) > most_bytes:\n",
        "                    if False:\n",
        (f"{WIRE}::test_bad_bodies_are_400_with_the_field",),
    ),
    Guard(
        "a_head_that_came_at_once_is_bounded",
        f"{HTTP}/exchange.py",
        "        if size > most_bytes:\n",
        "        if False:\n",
        (f"{WIRE}::test_what_is_no_http_or_has_too_large_a_head_is_told_in_json",),
    ),
    Guard(
        "a_body_is_json",
        f"{HTTP}/body.py",
        '    if kind.strip().lower() != _JSON or charset not in ("", "charset=utf-8"):\n',
        "    if False:\n",
        (f"{BODY}::test_heads",),
    ),
    Guard(
        "a_key_is_there_once",
        f"{HTTP}/body.py",
        "    if len(found) != len(pairs):\n",
        "    if False:\n",
        (f"{BODY}::test_what_is_no_request_names_its_place",),
    ),
    Guard(
        "a_number_is_one",
        f"{HTTP}/body.py",
        ", parse_constant=_constant",
        "",
        (f"{BODY}::test_what_is_no_request_names_its_place",),
    ),
    Guard(
        "a_body_is_flat",
        f"{HTTP}/body.py",
        "            if depth > DEPTH_MAX:\n",
        "            if False:\n",
        (f"{BODY}::test_what_is_no_request_names_its_place",),
    ),
    Guard(
        "text_is_unicode",
        f"{HTTP}/body.py",
        "                value.encode()\n",
        "                pass\n",
        (f"{BODY}::test_what_is_no_request_names_its_place",),
    ),
    Guard(
        "unknown_fields_of_openai_refuse",
        f"{HTTP}/fields.py",
        "        for name in self._left:\n",
        "        for name in ():\n",
        (f"{FIELDS}::test_what_is_wrong_is_named",),
    ),
    Guard(
        "unserved_fields_of_openai_refuse",
        f"{HTTP}/served.py",
        "    refuse(wanted)\n",
        "",
        (f"{FIELDS}::test_what_is_not_served_is_named",),
    ),
    Guard(
        "harmless_is_a_value_not_a_name",
        f"{HTTP}/served.py",
        "any(type(value) is type(one) and value == one for one in values)",
        "True",
        (f"{FIELDS}::test_what_is_not_served_is_named",),
    ),
    Guard(
        "several_prompts_refuse",
        f"{HTTP}/requests.py",
        "        if len(prompt) > 1:\n",
        "        if False:\n",
        (f"{FIELDS}::test_what_is_wrong_is_named",),
    ),
    Guard(
        "a_user_keeps_a_target",
        f"{HTTP}/extensions.py",
        '    message.sticky_key = sticky or user or ""\n',
        '    message.sticky_key = sticky or ""\n',
        (f"{FIELDS}::test_every_served_field_of_a_chat", f"{WEB}::test_a_user_stays_with_the_canary"),
    ),
    Guard(
        "the_sticky_key_draws",
        "platform/lorry/gateway/admission.py",
        "        sticky = message.sticky_key or message.request_id or minted\n",
        "        sticky = minted\n",
        (f"{WEB}::test_a_user_stays_with_the_canary",),
    ),
    # Answers.
    Guard(
        "the_proof_s_header_is_the_version_s",
        f"{HTTP}/proof.py",
        "(model.sha256 or model.base_sha256).encode()",
        "model.base_sha256.encode()",
        (f"{WEB}::test_whole_streamed_and_grpc_answers_agree_and_prove_their_weights",),
    ),
    Guard(
        "errors_speak_the_client_s_names",
        f"{HTTP}/app.py",
        "            raise wanted.names.told(error) from error\n",
        "            raise\n",
        (f"{WEB}::test_unknown_and_unserved_fields_never_reach_the_engine",),
    ),
    Guard(
        "a_conflict_is_not_tried_again",
        f"{HTTP}/errors.py",
        "    return isinstance(error, Unavailable | QuotaExceeded)\n",
        "    return not isinstance(error, TokenBudgetSpent)\n",
        (f"{ERRORS}::test_every_error_of_the_tree_has_an_envelope",),
    ),
    Guard(
        "a_spent_budget_has_openai_s_code",
        f"{HTTP}/errors.py",
        "    spent = isinstance(error, TokenBudgetSpent)\n",
        "    spent = False\n",
        (f"{ERRORS}::test_every_error_of_the_tree_has_an_envelope",),
    ),
    Guard(
        "retry_after_is_a_second_at_least",
        f"{HTTP}/errors.py",
        "max(1, math.ceil(error.retry_after_s))",
        "math.ceil(error.retry_after_s)",
        (f"{ERRORS}::test_retry_after_is_whole_seconds_and_at_least_one",),
    ),
    Guard(
        "events_are_one_line",
        f"{HTTP}/exchange.py",
        "allow_nan=False)",
        "allow_nan=False, ensure_ascii=False)",
        (f"{UNIT}/test_logprobs.py::test_events_have_no_line_end_of_any_alphabet",),
    ),
    Guard(
        "long_tokens_are_named_by_number",
        "platform/lorry/text/spelling.py",
        "    if len(data) > SPELLED_BYTES_MAX:\n",
        "    if False:\n",
        ("tests/unit/text/test_spelling.py::test_a_version_s_own_is_spelled_in_its_process_and_long_ones_by_number",),
    ),
)

__all__ = ["GUARDS"]
