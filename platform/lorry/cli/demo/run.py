"""``lorry demo``: start everything, do the main job, show it, stop everything."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lorry.cli.demo.picture import Picture
from lorry.cli.demo.refusals import Refusal, refuse_all
from lorry.cli.demo.scenario import QUESTIONS, Ask, first_wave, second_wave
from lorry.cli.demo.setup import Made, fill, register_base
from lorry.cli.demo.show import figures_table, live_table, mix_table, refusal_table, text_table
from lorry.cli.demo.streams import Call, run_all
from lorry.cli.homes import Home, HomeLock
from lorry.cli.model import prepare_smollm2, rich_progress
from lorry.cli.platform import Platform, Settings
from lorry.client.admin import AdminClient
from lorry.config import WEB_PORT, GatewayConfig, SchedulerConfig
from lorry.engine.contract import EngineInfo
from lorry.engine.weight_type import type_here
from lorry.errors import InternalError, ResourceNotFound

_REFRESH_PER_S = 8


def demo_home(home: Path) -> Home:
    """The demo's own platform: emptied at each run, so that it never touches a real one."""
    return Home(home / "demo")


def _examples_folder() -> Path:
    """examples/ of the source tree that this package runs from."""
    folder = Path(__file__).resolve().parents[4] / "examples"
    if not (folder / "adapters").is_dir():
        raise ResourceNotFound("examples/adapters is not here; run the demo from a clone of the repository")
    return folder


async def run_demo(home: Path, console: Console, svg: Path | None = None) -> int:
    """The exit status: 0 where every call was answered as it should be and every refusal refused. ``svg`` is
    where the tables go as a picture."""
    began = time.monotonic()
    picture = Picture(svg)
    examples = _examples_folder()
    with rich_progress() as progress:
        base_dir = await asyncio.to_thread(prepare_smollm2, home, progress)
    own = demo_home(home)
    with HomeLock(own):
        await asyncio.to_thread(_empty, own.root)
    settings = Settings(
        own,
        base_dir,
        gateway=replace(GatewayConfig(), port=0),
        scheduler=SchedulerConfig(context_tokens=1024),
        dtype=type_here(base_dir).value,
    )

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {line}")

    async with Platform(settings, say) as platform:
        assert platform.admin_key is not None
        admin = AdminClient(platform.address, platform.admin_key)
        try:
            config_json = await asyncio.to_thread((base_dir / "config.json").read_text)
            await register_base(admin, platform.info, config_json)
            made = await fill(admin, examples / "adapters", say)
            waves, distinct = await _generate(platform, made, console, picture, say)
            say("asking for what must be refused")
            bad = await _bad_adapter(examples, own)
            refusals = await refuse_all(platform.address, admin, made, bad)
            _show(refusal_table(refusals), console, picture)
        finally:
            await admin.close()
        say("stopping")
    faults = _faults(waves, distinct, refusals)
    report = _report(platform.info, made, waves, distinct, refusals, faults, time.monotonic() - began)
    _write(own, made, report)
    picture.save()
    _closing_words(console, own, made, time.monotonic() - began)
    for fault in faults:
        console.print(f"[red]{fault}[/red]")
    return 1 if faults else 0


async def _generate(
    platform: Platform, made: Made, console: Console, picture: Picture, say: Callable[[str], None]
) -> tuple[list[list[Call]], list[int]]:
    waves: list[list[Call]] = []
    titles = ("First calls: every adapter comes from S3", "The same adapters again: on the device now")
    assert platform.engine.client is not None
    distinct: list[int] = []
    for title, asks in zip(titles, (first_wave(), second_wave()), strict=True):
        say(f"{len(asks)} concurrent GenerateStream calls")
        calls = await _watched(platform.address, made, asks, console)
        _show(figures_table(calls, title), console, picture)
        if not waves:
            console.print(text_table(calls))
            picture.add(text_table([call for call in calls if call.ask.question == QUESTIONS[0]]))
        waves.append(calls)
        state = await platform.engine.client.state()
        distinct = state["distinct_adapters"]
    _show(mix_table(distinct), console, picture)
    return waves, distinct


def _show(table: Table, console: Console, picture: Picture) -> None:
    console.print(table)
    picture.add(table)


async def _bad_adapter(examples: Path, home: Home) -> Path:
    """An adapter that PiSSA started: right on a base that PEFT changes as it loads, and wrong on this one."""
    script, out = examples / "make_bad_adapters.py", home.root / "bad_adapters"
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), str(out), "changed-base", stdout=asyncio.subprocess.DEVNULL
    )
    if await process.wait() != 0:
        raise InternalError(f"{script.name} failed")
    return out / "changed-base"


async def _watched(address: str, made: Made, asks: Sequence[Ask], console: Console) -> list[Call]:
    calls: list[Call] = []
    work = asyncio.create_task(run_all(address, made.keys, asks, calls))
    if console.is_terminal:
        with Live(console=console, refresh_per_second=_REFRESH_PER_S, transient=True) as live:
            while not work.done():
                live.update(live_table(calls))
                await asyncio.wait([work], timeout=1 / _REFRESH_PER_S)
    await work
    return calls


def _faults(waves: Sequence[Sequence[Call]], distinct: Sequence[int], refusals: Sequence[Refusal]) -> list[str]:
    """What a run must show; empty where all of it was shown."""
    faults = [
        f"{call.ask.tenant.name} {call.ask.model}: {call.state}"
        for wave in waves
        for call in wave
        if call.state != "done"
    ]
    faults += [f"{refusal.case}: was not refused" for refusal in refusals if not refusal.code]
    faults += [f"{refusal.case}: yielded {refusal.tokens} tokens" for refusal in refusals if refusal.tokens]
    if max(distinct, default=0) < 2:
        faults.append("no batch held more than one adapter")
    answers = {call.ask.model: call.text for call in waves[1]}
    if len(set(answers.values())) != len(answers):
        faults.append("two adapters gave one text")
    return faults


def _report(
    info: EngineInfo,
    made: Made,
    waves: Sequence[Sequence[Call]],
    distinct: Sequence[int],
    refusals: Sequence[Refusal],
    faults: Sequence[str],
    seconds: float,
) -> dict[str, Any]:
    return {
        "engine": {
            "build": info.engine_build,
            "base_sha256": info.base,
            "dtype": info.dtype,
        },
        "versions": [asdict(version) for version in made.versions],
        "calls": [call.row() for wave in waves for call in wave],
        "distinct_adapters_by_step": list(distinct),
        "refusals": [refusal.row() for refusal in refusals],
        "faults": list(faults),
        "seconds": round(seconds, 1),
    }


def _empty(folder: Path) -> None:
    """Removes what an earlier demo left, but for its lock."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.name == "lock":
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _write(home: Home, made: Made, report: dict[str, Any]) -> None:
    (home.root / "demo.json").write_text(json.dumps(report, indent=2) + "\n")
    descriptor = os.open(home.keys, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        json.dump(made.keys, handle, indent=2)


def _closing_words(console: Console, home: Home, made: Made, seconds: float) -> None:
    tenant, key = next(iter(made.keys.items()))
    model = next(v.adapter for v in made.versions if v.adapter.startswith(f"tenants/{tenant}/"))
    port = GatewayConfig().port
    logins = "\n".join(f"    {user}   {password}" for user, password in made.passwords.items())
    console.print(
        f"""
Done in {seconds:.0f} s; everything that was started has been stopped. The same as JSON: {home.root / "demo.json"}

Keep it running, with these tenants and adapters:
    make serve ARGS=--demo
See it on http://127.0.0.1:{WEB_PORT}, with what was just asked and what it cost, as a tenant or as its operator:
{logins}
Call it from another shell:
    export LORRY_API_KEY={key}
    .venv/bin/lorry generate --model {model} "What is the capital of France?"
Or from Python:
    from lorry.client import Client
    with Client("127.0.0.1:{port}", "{key}") as client:
        answer = client.generate("{model}", messages=[{{"role": "user", "content": "Hi"}}])
        print(answer.text)
        print(answer.resolved.sha256)
""",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


__all__ = ["demo_home", "run_demo"]
