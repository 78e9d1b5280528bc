"""Guards of the client and the command line: what is tried again, what a push makes, where a key goes."""

from __future__ import annotations

from tests.mutants.guard import Guard

CLIENT = "platform/lorry/client"
CLI = "platform/lorry/cli"
RETRY = "tests/unit/client/test_retry.py"
PUSH = "tests/unit/client/test_push.py"
ADMIN = "tests/unit/client/test_admin.py"
PROFILE = "tests/unit/cli/test_profile.py"
TALKING = "tests/integration/cli/test_talking.py"

GUARDS = (
    # What is tried again.
    Guard(
        "a_begun_stream_is_not_begun_again",
        f"{CLIENT}/sync.py",
        "                    if self.begun or self._closed:\n",
        "                    if self._closed:\n",
        (f"{RETRY}::test_a_stream_that_has_begun_is_never_begun_again",),
    ),
    Guard(
        "a_begun_stream_is_not_begun_again_by_asyncio",
        f"{CLIENT}/aio.py",
        "                    if self.begun or self._closed:\n",
        "                    if self._closed:\n",
        (f"{RETRY}::test_a_stream_that_has_begun_is_never_begun_again",),
    ),
    Guard(
        "a_closed_stream_is_not_begun_again",
        f"{CLIENT}/sync.py",
        "        if self._closed:\n            raise RequestCancelled(",
        "        if False:\n            raise RequestCancelled(",
        (f"{RETRY}::test_a_stream_that_is_closed_while_it_waits_is_not_begun_again",),
    ),
    Guard(
        "a_pushback_below_0_ends_it",
        f"{CLIENT}/retry.py",
        " or (pushback is not None and pushback < 0):\n",
        ":\n",
        (f"{RETRY}::test_what_is_never_tried_again",),
    ),
    Guard(
        "a_spent_budget_ends_it",
        f"{CLIENT}/retry.py",
        "        if isinstance(error, TokenBudgetSpent) or ",
        "        if ",
        (f"{RETRY}::test_a_spent_budget_is_not_tried_again_even_where_a_proxy_took_the_pushback_away",),
    ),
    Guard(
        "exhausted_without_a_time_ends_it",
        f"{CLIENT}/retry.py",
        '(error.grpc_code == "RESOURCE_EXHAUSTED" and told is not None)',
        'error.grpc_code == "RESOURCE_EXHAUSTED"',
        (f"{RETRY}::test_what_is_never_tried_again",),
    ),
    Guard(
        "the_servers_time_is_waited",
        f"{CLIENT}/retry.py",
        "        if told is None:\n",
        "        if told is None or told <= self.longest_s:\n",
        (f"{RETRY}::test_it_fails_twice_and_succeeds_and_is_one_request",),
    ),
    Guard(
        "a_time_too_far_is_not_waited",
        f"{CLIENT}/retry.py",
        " if told <= self.longest_s else None\n",
        "\n",
        (f"{RETRY}::test_what_is_never_tried_again",),
    ),
    Guard(
        "a_deadline_bounds_all_tries",
        f"{CLIENT}/retry.py",
        "        return max(0.0, self._deadline - self._retry.clock())\n",
        "        return self._first_timeout\n",
        (f"{RETRY}::test_one_deadline_bounds_all_tries",),
    ),
    Guard(
        "no_wait_goes_past_the_deadline",
        f"{CLIENT}/retry.py",
        "        if self.left_s is not None and wait_s >= self.left_s:\n",
        "        if False:\n",
        (f"{RETRY}::test_one_deadline_bounds_all_tries",),
    ),
    Guard(
        "tries_are_one_request",
        f"{CLIENT}/generating.py",
        "    if not request.request_id:\n        request.request_id = uuid.uuid4().hex\n",
        "",
        (f"{RETRY}::test_it_fails_twice_and_succeeds_and_is_one_request",),
    ),
    Guard(
        "what_must_not_be_done_twice_is_not",
        f"{CLIENT}/retry.py",
        " if self._repeatable else None\n",
        "\n",
        (f"{RETRY}::test_admin_calls_that_may_be_done_twice_are_tried_again_and_others_are_not",),
    ),
    Guard(
        "a_key_is_not_made_twice",
        f"{CLIENT}/admin/keys.py",
        '    return TENANTS.unary("CreateApiKey", request, pb.CreateApiKeyResponse, repeatable=False)\n',
        '    return TENANTS.unary("CreateApiKey", request, pb.CreateApiKeyResponse)\n',
        (f"{RETRY}::test_admin_calls_that_may_be_done_twice_are_tried_again_and_others_are_not",),
    ),
    Guard(
        "an_empty_stream_is_an_error",
        f"{CLIENT}/results.py",
        "        if self.usage is None:\n",
        "        if False:\n",
        (f"{RETRY}::test_a_stream_that_ends_empty_is_an_error_and_not_tried_again",),
    ),
    # A push.
    Guard(
        "a_version_is_of_the_files_that_are_here",
        f"{CLIENT}/admin/push.py",
        "            expected_sha256=files_digest(files),\n",
        "",
        (f"{PUSH}::test_all_files_arrive_and_the_version_must_be_of_them",),
    ),
    Guard(
        "the_server_says_where_to_go_on",
        f"{CLIENT}/admin/push.py",
        "                received.clear()\n"
        "                received.update({one.path: one.received_bytes for one in now.files})\n",
        "",
        (f"{PUSH}::test_a_chunk_that_arrived_though_its_answer_did_not_is_not_sent_again",),
    ),
    Guard(
        "an_upload_is_of_its_adapter",
        f"{CLIENT}/admin/push.py",
        '        if not state.name.startswith(f"{self.adapter}/uploads/"):\n',
        "        if False:\n",
        (f"{PUSH}::test_an_upload_of_another_adapter_and_a_folder_that_is_none",),
    ),
    Guard(
        "an_upload_moves_on_or_ends",
        f"{CLIENT}/admin/push.py",
        "                if size and answer.received_bytes <= offset:\n",
        "                if size and answer.received_bytes <= offset and False:\n",
        (f"{PUSH}::test_a_server_that_stands_still_is_not_sent_to_for_ever",),
    ),
    Guard(
        "a_file_that_shrinks_is_not_pushed",
        f"{CLIENT}/admin/push.py",
        "    if len(data) != size:\n",
        "    if False:\n",
        (f"{PUSH}::test_a_file_that_becomes_shorter_meanwhile_is_not_pushed",),
    ),
    Guard(
        "a_time_has_a_zone",
        f"{CLIENT}/admin/names.py",
        "    if when.tzinfo is None:\n",
        "    if False:\n",
        (f"{ADMIN}::test_values_that_mean_nothing_are_refused_by_name",),
    ),
    # The command line.
    Guard(
        "a_profiles_key_goes_to_its_address_alone",
        f"{CLI}/session.py",
        ' and asked in ("", profile.address) else None\n',
        " else None\n",
        (f"{PROFILE}::test_a_profiles_key_goes_to_its_own_address_alone",),
    ),
    Guard(
        "a_profile_is_its_owners_alone",
        f"{CLI}/profile.py",
        "            if mode & 0o077:\n",
        "            if False:\n",
        (f"{PROFILE}::test_one_that_others_can_read_is_refused",),
    ),
    Guard(
        "a_profile_is_made_for_its_owner",
        f"{CLI}/profile.py",
        "os.O_EXCL, 0o600)",
        "os.O_EXCL, 0o644)",
        (f"{PROFILE}::test_it_comes_back_as_it_was_and_only_its_owner_reads_it",),
    ),
    Guard(
        "a_bad_key_is_not_kept",
        f"{CLI}/commands/account.py",
        "            about = client.whoami()\n",
        "            about = __import__('lorry.client').client.About()\n",
        ("tests/integration/cli/test_account.py::test_a_bad_key_is_not_kept",),
    ),
    Guard(
        "a_servers_words_move_no_cursor",
        f"{CLI}/output.py",
        'char if char.isprintable() else "?"',
        "char",
        ("tests/unit/cli/test_words.py::test_tables_cut_nothing_and_move_no_cursor",),
    ),
    Guard(
        "a_purge_wants_a_yes",
        f"{CLI}/asking.py",
        "    if not sys.stdin.isatty():\n",
        "    if not sys.stdin.isatty():\n        return\n    if False:\n",
        (f"{TALKING}::test_a_purge_wants_a_yes",),
    ),
    Guard(
        "half_an_export_is_no_file",
        f"{CLI}/commands/records.py",
        '        scratch = options.output.with_name(f"{options.output.name}.part")\n',
        "        scratch = options.output\n",
        (f"{TALKING}::test_half_an_export_is_no_file",),
    ),
    Guard(
        "an_unanswered_question_is_not_remembered",
        f"{CLI}/chat.py",
        '        asked = [*self.messages, {"role": "user", "content": text}]\n',
        '        self.messages.append({"role": "user", "content": text})\n        asked = list(self.messages)\n',
        (f"{TALKING}::test_a_person_goes_on_after_an_error_and_the_question_is_forgotten",),
    ),
)

__all__ = ["GUARDS"]
