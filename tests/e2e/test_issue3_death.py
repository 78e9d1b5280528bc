"""The engine dies in the middle of everything: what came is right, every stream says that it was cut, the same request
sent again gives the whole of the same answer, and operators see all of it without seeing anything of a tenant's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lorry.api.v1 import generate_pb2 as pb
from lorry.config import RestartConfig
from tests.e2e.calls import Answer, read_stream
from tests.e2e.random_base import BASE, Files, Lab, ask_ids, ids_of, lab_settings, laboratory

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
Health = health_pb2.HealthCheckResponse
PATIENCE_S = 60.0
MOST_STATE_BYTES = 64 << 10


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mortal(random_files: Files, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    root = tmp_path_factory.mktemp("mortal")
    restarts = RestartConfig(first_s=0.8, most_s=1.0, look_s=0.3, answer_s=2.0)
    async with laboratory(root, random_files, replace(lab_settings(root, random_files), restarts=restarts)) as lab:
        yield lab


async def look(lab: Lab, path: str) -> tuple[int, str]:
    assert lab.world.platform.ops is not None
    url = lab.world.platform.ops.address + path

    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)


async def health(lab: Lab, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(lab.world.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


async def until(what: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await what():
            await asyncio.sleep(0.05)


async def ready_again(lab: Lab) -> None:
    async def is_ready() -> bool:
        return (await look(lab, "/readyz"))[0] == 200 and await health(lab) == Health.SERVING

    await until(is_ready)


def secrets_of(lab: Lab, prompts: list[str]) -> list[str]:
    """Everything that no state may show: prompts, keys, and what lies under the home's secrets."""
    found = [*prompts, lab.acme.key, lab.guest.key, lab.world.admin_key]
    for file in (lab.home / "secrets").iterdir():
        data = file.read_bytes().strip()
        found += [data.hex(), data.decode(errors="ignore")]
    return [secret for secret in found if len(secret) >= 8]


def check_state(body: str, secrets: list[str]) -> dict[str, Any]:
    assert len(body) < MOST_STATE_BYTES, len(body)
    assert not [secret for secret in secrets if secret in body or json.dumps(secret)[1:-1] in body]
    state: dict[str, Any] = json.loads(body)
    assert {"settings", "gateway", "supervisor", "engine"} <= set(state)
    return state


def begun(kinds: list[pb.GenerateRequest], lab: Lab) -> list[Any]:
    return [lab.world.start(lab.acme.key, request) for request in kinds]


async def test_killed_amid_streams_of_choices_and_logprobs(mortal: Lab) -> None:
    prompt = "a prompt that nobody but its tenant may read, not even an operator"
    top = pb.OutputParams(top_logprobs=3, prompt_logprobs=2)
    drawn = pb.SamplingParams(temperature=1.0, n=3, seed=21)
    requests = [
        ask_ids(BASE, ids_of("dies", 0), 400, sampling=drawn, output=top, request_id="the-first-one"),
        ask_ids(mortal.shared, ids_of("dies", 1), 400, sampling=drawn, output=top),
        ask_ids(mortal.shared, ids_of("dies", 2), 400),
        ask_ids(BASE, [], 400, prompt=prompt, sampling=pb.SamplingParams(temperature=0, n=2)),
    ]
    whole = await asyncio.gather(*map(mortal.run, requests))
    secrets = secrets_of(mortal, [prompt, str(ids_of("dies", 1))[1:60]])
    before = check_state((await look(mortal, "/internal/state"))[1], secrets)
    assert before["supervisor"]["restarts"] == 0
    assert await health(mortal) == Health.SERVING
    assert (await look(mortal, "/readyz"))[0] == 200

    calls = begun(requests, mortal)
    streams = [aiter(call) for call in calls]
    came = [Answer([await anext(stream) for _ in range(4)]) for stream in streams]
    unary = asyncio.create_task(mortal.world.generate(mortal.acme.key, requests[0]))
    state = check_state((await look(mortal, "/internal/state"))[1], secrets)
    assert state["gateway"]["live_calls"] >= 4
    pid = mortal.world.platform.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    ends = await asyncio.gather(*map(read_stream, calls))
    for first, rest, want in zip(came, ends, whole, strict=True):
        cut = Answer(first.messages + rest.messages, rest.error, rest.code, rest.trailers)
        check_cut(cut, want)
    alone = await unary
    assert (alone.code, alone.details_reason, alone.messages) == (UNAVAILABLE, "ENGINE_UNAVAILABLE", [])

    assert (await look(mortal, "/healthz"))[0] == 200
    status, body = await look(mortal, "/readyz")
    assert status == 503, body

    async def is_told() -> bool:
        return bool(await health(mortal) == Health.NOT_SERVING)

    await until(is_told)
    check_state(body=(await look(mortal, "/internal/state"))[1], secrets=secrets)
    refused = await mortal.world.stream(mortal.acme.key, requests[2])
    assert (refused.code, refused.messages) == (UNAVAILABLE, [])
    assert refused.retry_after_s is not None

    await ready_again(mortal)
    after = check_state((await look(mortal, "/internal/state"))[1], secrets)
    assert after["supervisor"]["restarts"] == 1
    assert after["supervisor"]["pid"] not in (pid, None)
    again = await asyncio.gather(*map(mortal.run, requests))
    for found, want in zip(again, whole, strict=True):
        assert [choice.ids for choice in found.choices] == [choice.ids for choice in want.choices]
        assert [choice.text for choice in found.choices] == [choice.text for choice in want.choices]
        assert found.usage.cached_prompt_tokens == 0, "pages of the engine that died"
    await mortal.world.idle()


def check_cut(cut: Answer, want: Answer) -> None:
    """UNAVAILABLE, told when to come again, with no end; each choice is the beginning of its whole."""
    kinds = [message.WhichOneof("event") for message in cut.messages]
    assert kinds[0] == "start"
    assert "end" not in kinds
    assert [message.seq for message in cut.messages] == list(range(len(kinds)))
    assert (cut.code, cut.details_reason) == (UNAVAILABLE, "ENGINE_UNAVAILABLE"), cut.error
    assert cut.retry_after_s is not None
    deltas = [message.delta for message in cut.messages if message.WhichOneof("event") == "delta"]
    for choice in want.choices:
        mine = [delta for delta in deltas if delta.choice == choice.index]
        ids = [token for delta in mine for token in delta.token_ids]
        assert ids == choice.ids[: len(ids)]
        assert choice.text.startswith("".join(delta.text for delta in mine))
        scored = [one.token_id for delta in mine for one in delta.logprobs]
        assert scored == (ids if choice.logprobs else [])
    assert len(cut.prompt_logprobs) == len(want.prompt_logprobs)


async def test_what_was_cut_is_billed_for_what_was_handed_out(mortal: Lab) -> None:
    """By the engine's death, and by the client's own leave; with choices."""
    await ready_again(mortal)
    sampling = pb.SamplingParams(temperature=1.0, n=2, seed=1)
    cut_id, left_id, none_id = "cut-by-death", "left-by-client", "never-began"
    asked = [
        ask_ids(mortal.shared, ids_of("billed"), 400, sampling=sampling, request_id=name) for name in (left_id, cut_id)
    ]
    left, cut = begun(asked, mortal)
    read = [await anext(aiter(left)) for _ in range(5)]
    left.cancel()
    first = await anext(aiter(cut))
    for _ in range(3):
        await anext(aiter(cut))
    pid = mortal.world.platform.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    rest = await read_stream(cut)
    assert rest.code is UNAVAILABLE
    refused = await mortal.world.stream(
        mortal.acme.key, ask_ids(BASE, ids_of("billed"), 9, sampling=sampling, request_id=none_id)
    )
    assert refused.code is UNAVAILABLE
    tokens = sum(len(message.delta.token_ids) for message in (*read, first, *rest.messages))
    assert tokens > 0

    async def rows() -> bool:
        return {left_id, cut_id} <= {row["request_id"] for row in await mortal.bills()}

    await until(rows)
    bills = {row["request_id"]: row for row in await mortal.bills()}
    for name in (left_id, cut_id):
        assert bills[name]["prompt_tokens"] == len(ids_of("billed"))
        assert 0 < bills[name]["output_tokens"] < 800
        assert bills[name]["outcome"] not in ("OK", "")
    assert bills[left_id]["output_tokens"] >= sum(len(message.delta.token_ids) for message in read)
    assert bills[cut_id]["output_tokens"] >= sum(len(message.delta.token_ids) for message in rest.messages)
    never = bills.get(none_id, {"output_tokens": 0, "prompt_tokens": 0})
    assert (never["output_tokens"], never["prompt_tokens"]) == (0, 0)
    await ready_again(mortal)


async def test_an_engine_that_hangs_is_ended_and_started_again(mortal: Lab) -> None:
    """Stopped in the middle, it answers nobody: its streams end with an error, and another engine serves."""
    await ready_again(mortal)
    call = mortal.world.start(mortal.acme.key, ask_ids(BASE, ids_of("hangs"), 400))
    assert (await anext(aiter(call))).WhichOneof("event") == "start"
    pid = mortal.world.platform.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        cut = await read_stream(call)
    finally:
        if mortal.world.platform.engine.pid == pid:
            os.kill(pid, signal.SIGCONT)
    assert (cut.code, cut.details_reason) == (UNAVAILABLE, "ENGINE_UNAVAILABLE")
    await ready_again(mortal)
    assert mortal.world.platform.engine.pid != pid
    ids = ids_of("hangs")
    assert (await mortal.run(ask_ids(BASE, ids, 30))).ids == mortal.base.greedy(ids, 30)


async def test_killed_while_prompts_and_queues_wait(mortal: Lab) -> None:
    """With more than the engine runs at once: all end with an error or whole and right, and the next engine's answers
    are right."""
    await ready_again(mortal)
    want = {i: mortal.base.greedy(ids_of("storm", i), 20) for i in range(4)}
    sampling = pb.SamplingParams(temperature=0, n=8)
    calls = [
        mortal.world.start(mortal.acme.key, ask_ids(BASE, ids_of("storm", i % 4), 20, sampling=sampling))
        for i in range(24)
    ]
    readers = [asyncio.create_task(read_stream(call)) for call in calls]

    async def some_wait() -> bool:
        return bool((await mortal.world.state())["scheduler"]["waiting"])

    await until(some_wait)
    pid = mortal.world.platform.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    answers = await asyncio.gather(*readers)
    assert any(answer.error is not None for answer in answers)
    for i, answer in enumerate(answers):
        if answer.error is None:
            answer.check_whole()
            assert [choice.ids for choice in answer.choices] == [want[i % 4]] * 8
        else:
            assert (answer.code, answer.details_reason) == (UNAVAILABLE, "ENGINE_UNAVAILABLE")
            assert "end" not in [message.WhichOneof("event") for message in answer.messages]
    await ready_again(mortal)
    answer = await mortal.run(ask_ids(BASE, ids_of("storm", 0), 20))
    assert answer.ids == want[0]
    assert answer.usage.cached_prompt_tokens == 0
    await mortal.world.idle()


async def test_the_state_stays_small_and_silent_under_a_crowd(mortal: Lab) -> None:
    await ready_again(mortal)
    prompt = "what the crowd asks for is between each of them and the engine"
    calls = [
        mortal.world.start(who.key, ask_ids(BASE, [], 300, prompt=f"{prompt} {i}", request_id=f"crowd-{i:0100}"))
        for i in range(200)
        for who in (mortal.acme, mortal.guest)
    ]
    readers = [asyncio.create_task(read_stream(call)) for call in calls]

    async def crowded() -> bool:
        return bool((await mortal.world.state())["scheduler"]["waiting"] > 100)

    await until(crowded)
    check_state((await look(mortal, "/internal/state"))[1], secrets_of(mortal, [prompt, "between each"]))
    for call in calls:
        call.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    await mortal.world.idle(within_s=20.0)  # hundreds of calls end one after another in the client first
