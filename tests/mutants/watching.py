"""Guards of traces and logs: who is told, what is never told, and that nobody waits for it."""

from __future__ import annotations

from tests.mutants.guard import Guard

OBSERVE = "platform/lorry/gateway/observe"
LOGS = "platform/lorry/logs.py"
TRACES = "tests/integration/gateway/test_traces.py"
SECRETS = "tests/security/test_watched_secrets.py::test_requests_and_admin_calls_are_told_without_secrets"
UNIT = "tests/unit/gateway/observe"
FORMATS = "tests/unit/logs/test_formats.py"

GUARDS = (
    Guard(
        "a_request_that_failed_has_error_status",
        f"{OBSERVE}/spans.py",
        '    error = "" if story.outcome == "OK" else story.outcome\n',
        '    error = ""\n',
        (f"{TRACES}::test_refused_failed_and_aborted",),
    ),
    Guard(
        "a_warm_request_loaded_nothing",
        f"{OBSERVE}/spans.py",
        "    if story.adapter_load_s:\n",
        "    if story.adapter_load_s is not None:\n",
        (f"{TRACES}::test_a_cold_and_a_warm_request",),
    ),
    Guard(
        "no_span_ends_after_its_request",
        f"{OBSERVE}/spans.py",
        "self._end - max(0, round((self._whole - seconds) * 1e9))",
        "self._end - round((self._whole - seconds) * 1e9)",
        (f"{UNIT}/test_spans.py::test_spans_lie_in_each_other",),
    ),
    Guard(
        "what_waits_for_a_collector_is_bounded",
        f"{OBSERVE}/sender.py",
        "            if self._closing or waiting >= self._room:\n",
        "            if self._closing:\n",
        (f"{TRACES}::test_what_waits_is_bounded",),
    ),
    Guard(
        "a_sender_that_is_stuck_ends_in_time",
        f"{OBSERVE}/sender.py",
        "        self._thread.join(within_s)\n",
        "        self._thread.join()\n",
        (f"{TRACES}::test_a_collector_that_is_not_there[silent]",),
    ),
    Guard(
        "what_waits_is_sent_at_the_end",
        "platform/lorry/gateway/server.py",
        "        await self._watch.close(0.0 if self._hurry.is_set() else until - loop.time())\n",
        "",
        (f"{TRACES}::test_a_collector_that_is_not_there[dead]",),
    ),
    Guard(
        "who_is_not_sampled_is_not_sent",
        f"{OBSERVE}/watch.py",
        "story.trace is not None and story.trace.sampled:\n",
        "story.trace is not None:\n",
        (f"{TRACES}::test_who_is_sampled",),
    ),
    Guard(
        "only_a_models_name_is_told",
        f"{OBSERVE}/watch.py",
        'message.model if parse_model(message.model) is not None else ""\n',
        "message.model\n",
        (SECRETS,),
    ),
    Guard(
        "only_a_request_id_is_told",
        "platform/lorry/gateway/generations.py",
        'self._message.request_id if is_request_id(self._message.request_id) else "",\n',
        "self._message.request_id,\n",
        (SECRETS,),
    ),
    Guard(
        "only_a_resources_name_is_told",
        "platform/lorry/api/admin_log.py",
        '            return text if _NAME.fullmatch(text) else ""\n',
        "            return text\n",
        ("tests/unit/api/test_admin_log.py::test_a_line_for_each", SECRETS),
    ),
    Guard(
        "a_trace_of_zeros_is_none",
        f"{OBSERVE}/w3c.py",
        " or not int(trace_id, 16) or not int(span_id, 16):\n",
        ":\n",
        (f"{UNIT}/test_w3c.py::test_no_context",),
    ),
    Guard(
        "a_trace_that_came_twice_is_none",
        f"{OBSERVE}/w3c.py",
        'return parents[0] if len(parents) == 1 else ""',
        'return parents[0] if parents else ""',
        (f"{UNIT}/test_w3c.py::test_headers", f"{TRACES}::test_http_and_a_trace_of_our_own"),
    ),
    Guard(
        "a_state_is_bounded",
        f"{OBSERVE}/w3c.py",
        "    if not text or len(text) > STATE_CHARS:\n",
        "    if not text:\n",
        (f"{UNIT}/test_w3c.py",),
    ),
    Guard(
        "traces_without_the_extra_are_refused",
        f"{OBSERVE}/settings.py",
        "    if not installed():\n",
        "    if False:\n",
        (f"{UNIT}/test_settings.py::test_without_the_extra_it_is_refused_with_the_remedy",),
    ),
    Guard(
        "json_lines_are_ascii",
        LOGS,
        'return json.dumps(found, separators=(",", ":"))',
        'return json.dumps(found, separators=(",", ":"), ensure_ascii=False)',
        (f"{FORMATS}::test_no_value_breaks_a_json_line",),
    ),
    Guard(
        "fields_take_no_name_of_the_records_own",
        LOGS,
        "            found.setdefault(name, _plain(value))\n",
        "            found[name] = _plain(value)\n",
        (f"{FORMATS}::test_no_value_breaks_a_json_line",),
    ),
    Guard(
        "text_cannot_pass_for_a_record",
        LOGS,
        "        return _tame(text)\n",
        "        return text\n",
        (f"{FORMATS}::test_no_value_looks_like_a_record_in_text",),
    ),
    Guard(
        "an_engine_does_not_get_in_at_the_collector",
        "platform/lorry/engine/launch.py",
        '"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS",\n',
        "\n",
        ("tests/unit/edges/test_launch_log.py::test_what_a_child_does_not_get",),
    ),
    Guard(
        "a_json_log_is_told_in_words",
        "platform/lorry/engine/launch.py",
        "readable(line) for line in log.read()",
        "line for line in log.read()",
        ("tests/unit/edges/test_launch_log.py::test_a_json_log_says_why_an_engine_did_not_start",),
    ),
)

__all__ = ["GUARDS"]
