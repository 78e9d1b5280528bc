"""`lorry serve` as an operator runs it: what it says of its settings, what it refuses, where to look, and how it ends;
and `lorry generate` against it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lorry.api.v1 import generate_pb2_grpc
from lorry.client.admin import AdminClient
from tests.e2e.calls import Answer, read_stream
from tests.e2e.random_base import BASE, Files, ask_ids, ids_of
from tests.e2e.world import bearer
from tests.support.processes import descendants, names, still_alive

LORRY = str(Path(sys.executable).with_name("lorry"))
NAMES = ("max_sequences", "token_budget", "prefill_chunk_tokens", "page_tokens", "threads")
PATIENCE_S = 90.0


async def lorry(*words: str, **environment: str) -> tuple[int, str, str]:
    child = await asyncio.create_subprocess_exec(
        LORRY,
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"COLUMNS": "200"} | environment,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            out, error = await child.communicate()
    finally:
        if child.returncode is None:
            child.terminate()
            await child.wait()
    assert child.returncode is not None
    return child.returncode, out.decode(), error.decode()


@dataclass
class Served:
    """A `lorry serve` that has said that it is ready."""

    child: asyncio.subprocess.Process
    said: list[str]
    address: str
    ops: str
    admin_key: str

    def settings(self) -> dict[str, tuple[str, str]]:
        """Value and reason by name, from its lines."""
        found = (re.match(r"(\w+) = (\S+) [^:]*: (.+)", line) for line in self.said)
        return {match[1]: (match[2], match[3]) for match in found if match}

    async def look(self, path: str) -> tuple[int, str]:
        """Status 0 where nobody listens any more."""

        def fetch() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(self.ops + path, timeout=20) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()
            except OSError:
                return 0, ""

        return await asyncio.to_thread(fetch)

    async def end(self) -> int:
        """Waits for it; what else it said is added."""
        assert self.child.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            self.said += (await self.child.stdout.read()).decode().splitlines()
            return await self.child.wait()


@asynccontextmanager
async def serving(files: Files, home: Path, *flags: str) -> AsyncIterator[Served]:
    """On any ports, in float32; killed with its children where a test leaves it running."""
    port = free_port()
    words = ["serve", "--base", str(files.base_dir), "--home", str(home), "--dtype", "float32"]
    child = await asyncio.create_subprocess_exec(
        LORRY,
        *(*words, "--port", str(port), "--ops-port", "0", "--http-port", "0", "--web-port", "0", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert child.stdout is not None
    said: list[str] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while line := (await child.stdout.readline()).decode():
                said.append(line.rstrip())
                if line.startswith("ready"):
                    break
        whole = "\n".join(said)
        assert said, "it said nothing"
        assert said[-1].startswith("ready"), whole
        ops = re.search(r"http://127\.0\.0\.1:\d+", whole)
        key = re.search(r"Admin API key.*: (\S+)", whole)
        assert ops is not None
        assert key is not None
        yield Served(child, said, f"127.0.0.1:{port}", ops[0], key[1])
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


def free_port() -> int:
    """One that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def a_tenants_key(served: Served, files: Files) -> str:
    admin = AdminClient(served.address, served.admin_key)
    whole = "\n".join(served.said)
    digests = [re.search(rf"{name} +sha256 ([0-9a-f]{{64}})", whole) for name in ("base", "tokenizer")]
    base, tokenizer = (found[1] for found in digests if found)
    await admin.create_base("tracer", base, tokenizer, 256, (files.base_dir / "config.json").read_text())
    await admin.create_tenant("acme", "Acme")
    await admin.grant("acme", BASE)
    key = (await admin.create_key("acme", "developer", "owner")).text
    await admin.close()
    return key


@asynccontextmanager
async def stub_of(served: Served) -> AsyncIterator[tuple[Any, Any]]:
    async with grpc.aio.insecure_channel(served.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield generate_pb2_grpc.GenerateServiceStub(channel), health_pb2_grpc.HealthStub(channel)


async def start_of(stub: Any, key: str, tokens: int) -> tuple[Any, Answer]:
    """A stream that runs, and what of it was read so far; retried while a new key is not known yet."""
    for _ in range(100):
        call = stub.GenerateStream(ask_ids(BASE, ids_of("served", length=20), tokens), metadata=bearer(key))
        try:
            return call, Answer([await anext(aiter(call))])
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.NOT_FOUND):
                raise
            await asyncio.sleep(0.1)
    raise AssertionError("the key is not known after 10 s")


async def health_of(health: health_pb2_grpc.HealthAsyncStub) -> int | None:
    """None where nobody listens any more: the last stream may have ended since."""
    try:
        found: int = (await health.Check(health_pb2.HealthCheckRequest())).status
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return None
    return found


async def test_each_flag_is_obeyed_and_said_and_sigterm_drains(random_files: Files, tmp_path: Path) -> None:
    """A stream that runs ends whole, who comes is told DRAINING, operators see it, the exit is 0, nothing is left."""
    before = descendants()
    chosen = {
        "max_sequences": "3",
        "token_budget": "48",
        "prefill_chunk_tokens": "32",
        "page_tokens": "8",
        "threads": "1",
    }
    flags = [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", value)]
    async with serving(random_files, tmp_path, "--memory-budget", "8MiB", "--context-tokens", "256", *flags) as served:
        settings = served.settings()
        assert {name: settings[name][0] for name in NAMES} == chosen
        assert all("operator" in settings[name][1] for name in NAMES)
        status, body = await served.look("/internal/state")
        state = json.loads(body)
        assert status == 200
        assert {name: str(state["settings"][name]["value"]) for name in NAMES} == chosen
        scheduler = state["engine"]["scheduler"]
        assert scheduler["max_sequences"] == 3
        assert scheduler["bytes"]["budget"] == 8 << 20
        key = await a_tenants_key(served, random_files)
        async with stub_of(served) as (stub, health):
            assert (
                await health.Check(health_pb2.HealthCheckRequest())
            ).status == health_pb2.HealthCheckResponse.SERVING
            call, answer = await start_of(stub, key, 230)
            assert (await served.look("/readyz"))[0] == 200
            children = descendants(served.child.pid)
            commands = " ".join(names(children))
            assert "lorry.engine.process" in commands
            assert "weed" in commands
            served.child.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_S):
                while (found := await served.look("/readyz"))[0] == 200:
                    await asyncio.sleep(0.01)
            assert found[0] == 503, "it did not wait for the stream"
            assert json.loads(found[1])["reason"] == "DRAINING"
            assert await health_of(health) != health_pb2.HealthCheckResponse.SERVING
            late = await read_stream(stub.GenerateStream(ask_ids(BASE, [1, 2, 3], 4), metadata=bearer(key)))
            rest = await read_stream(call)
        answer.messages += rest.messages
        assert rest.error is None, repr(rest.error)
        answer.check_whole()
        assert answer.ids == random_files.base.greedy(ids_of("served", length=20), 230)
        assert late.code is grpc.StatusCode.UNAVAILABLE, late
        assert await served.end() == 0
        assert still_alive(children) == []
        assert any("drain" in line for line in served.said)
    lines = (tmp_path / "usage.jsonl").read_text().splitlines()
    assert [json.loads(line)["output_tokens"] for line in lines if json.loads(line)["outcome"] == "OK"] == [230]
    assert still_alive(descendants() - before, within_s=10) == []


async def test_derived_settings_are_said_with_their_reasons_and_a_second_signal_hurries(
    random_files: Files, tmp_path: Path
) -> None:
    before = descendants()
    async with serving(random_files, tmp_path, "--memory-budget-mb", "64", "--context-tokens", "256") as served:
        settings = served.settings()
        assert set(NAMES) <= set(settings), served.said
        assert all(len(settings[name][1]) > 20 for name in NAMES), "a reason with its numbers"
        assert not [name for name in NAMES if "operator" in settings[name][1]]
        state = json.loads((await served.look("/internal/state"))[1])
        assert {name: str(state["settings"][name]["value"]) for name in NAMES} == {
            name: settings[name][0] for name in NAMES
        }
        assert state["engine"]["scheduler"]["bytes"]["budget"] == 64 << 20
        assert served.admin_key not in json.dumps(state)
        key = await a_tenants_key(served, random_files)
        async with stub_of(served) as (stub, _):
            await (await start_of(stub, key, 2))[0].wait_for_connection()
        await check_generate(served, key)
        async with stub_of(served) as (stub, _):
            call, _ = await start_of(stub, key, 230)
            served.child.send_signal(signal.SIGINT)
            served.child.send_signal(signal.SIGTERM)
            rest = await read_stream(call)
        assert rest.error is None or rest.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), rest
        assert await served.end() == 0
    assert still_alive(descendants() - before, within_s=10) == []


async def check_generate(served: Served, key: str) -> None:
    """`lorry generate` with what issue 3 added: choices, penalties, bias, logprobs, scope, JSON."""
    words = ("generate", "--address", served.address, "--model", BASE, "--raw", "--max-tokens", "12", "--seed", "3")
    known = {"LORRY_API_KEY": key}
    extra = ("--n", "3", "--temperature", "1", "--top-logprobs", "2", "--cache-scope", "me")
    bias = ("--logit-bias", "70=100", "--repetition-penalty", "1.2", "--presence-penalty", "0.5")
    prompt = "a prompt that is longer than a page, so that it can be found again"
    plain, told, forced, wrong = await asyncio.gather(
        lorry(*words, *extra, prompt, **known),
        lorry(*words, *extra, "--json", prompt, **known),
        lorry(*words, *bias, "--frequency-penalty", "0.1", prompt, **known),
        lorry(*words, "--n", "17", prompt, **known),
    )
    assert plain[0] == told[0] == forced[0] == 0, (plain, told, forced)
    answer = json.loads(told[1])
    assert len(answer["choices"]) == 3
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(set(texts)) == 3
    assert not [text for text in texts if text.strip() and text.strip() not in plain[1]], (texts, plain[1])
    assert "gggggg" in forced[1], "id 70 is a g"
    assert wrong[0] != 0
    assert "n" in wrong[2]
    assert "17" in wrong[2]
    assert "Traceback" not in wrong[2]
    again = json.loads((await lorry(*words, *extra, "--json", prompt, **known))[1])
    assert [choice["text"] for choice in again["choices"]] == texts


BAD = [
    ("--memory-budget", "0"),
    ("--memory-budget", "-1GiB"),
    ("--memory-budget", "plenty"),
    ("--memory-budget", "2GB2"),
    ("--memory-budget-mb", "0"),
    ("--max-sequences", "0"),
    ("--token-budget", "0"),
    ("--prefill-chunk-tokens", "-4"),
    ("--page-tokens", "0"),
    ("--max-rank", "0"),
    ("--adapter-fraction", "0"),
    ("--extras-fraction", "-0.1"),
    ("--kv-fraction", "1"),
    ("--threads", "0"),
    ("--context-tokens", "0"),
    ("--dtype", "int8"),
    ("--ops-port", "70000"),
    ("--http-port", "70000"),
    ("--port", "-1"),
]


ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from lorry.cli import main
for words in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            status = main(words)
        except SystemExit as left:
            status = left.code
    print(json.dumps([status, said.getvalue()]), flush=True)
"""
"""Command lines in one process: what is imported takes many times as long as to refuse them."""


async def test_bad_flags_are_refused_in_words(random_files: Files, tmp_path: Path) -> None:
    """A message that names the flag or the setting and the value, no traceback, and nothing is begun."""
    home = tmp_path / "home"
    own = ["--port=0", "--ops-port=0"]
    where = ["serve", "--base", str(random_files.base_dir), "--home", str(home), *own]
    lines = [[*where, f"{flag}={value}"] for flag, value in BAD]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ONE_AFTER_ANOTHER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            out, _ = await child.communicate(json.dumps(lines).encode())
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    found = [json.loads(line) for line in out.splitlines()]
    assert len(found) == len(BAD), "the next one ended it, or was served"
    for (flag, value), (status, said) in zip(BAD, found, strict=True):
        assert status in (1, 2), (flag, value, said)
        assert "Traceback" not in said
        assert flag in said, said
        assert value in said, said
    code, _, said = await lorry("serve", "--memory-budget", "1GiB", "--memory-budget-mb", "5")
    assert code == 2
    assert "not allowed with" in said
    code, _, said = await lorry(*where, "--memory-budget=0")
    assert code in (1, 2)
    assert "--memory-budget" in said
    assert "Traceback" not in said
    assert not home.exists()
