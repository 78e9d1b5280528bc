"""Secrets are in no log, no error, no trailer, no ``repr`` and no state, whatever fails and however much is logged."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

import lorry
from lorry import errors
from lorry.adapters.s3 import S3Store
from lorry.api.v1 import adapter_admin_pb2 as a
from lorry.api.v1 import generate_pb2 as g
from lorry.api.v1 import tenant_admin_pb2 as t
from lorry.cli.app import main
from lorry.cli.homes import Home
from lorry.cli.output import written
from lorry.cli.platform import Settings
from lorry.cli.profile import Profile, load_profile
from lorry.cli.remedies import print_error
from lorry.cli.session import Session
from lorry.client import Client, Tls
from lorry.config import EngineConfig, StoreConfig, TierConfig
from lorry.engine.fake import Fault, FaultKind
from lorry.registry import Registry
from lorry.registry.bootstrap import Bootstrap
from lorry.registry.db.engine import async_url
from lorry.registry.keys import Peppers
from lorry.registry.secretfiles import SecretError, load_secrets
from tests.security.leaks import Said, listening
from tests.security.world import CHUNK_BYTES, Outcome, World, world
from tests.unit.engine_contract.fakes import tokenizer

PASSWORD = "pw-3f9c1d7e5b"
S3_SECRET = "s3-secret-7d0b2a99c4"
PROMPT = "prompt-marker-51e0 my card is 4111"
ANSWER = "answer-marker-9a77"
FAULTS = (FaultKind.FAIL, FaultKind.END, FaultKind.HANG, FaultKind.PROVENANCE, FaultKind.DIE)
UNUSED_PORT = 1
"""Nothing listens there, and nothing may: it belongs to the system."""


@dataclass
class Place:
    here: World
    said: Said
    home: Path

    def hear(self, what: str, found: Outcome) -> Outcome:
        self.said.hear(f"{what} {found.code}", f"{found.message} {found.reason} {found.details!r}")
        return found


@pytest.fixture
async def place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> AsyncIterator[Place]:
    """A platform whose every word is heard from its first start on."""
    said = Said({"database password": PASSWORD, "S3 secret": S3_SECRET, "prompt": PROMPT, "answer": ANSWER})
    with listening(said):
        async with world(tmp_path) as here:
            await here.tenant("anna", "owner", "member")
            for who, key in here.keys.items():
                said.secrets[f"key of {who}"] = key.rpartition("_")[2]
            folder = tmp_path / "home" / "secrets"
            for name in ("key_pepper", "kv_salt"):
                text = (folder / name).read_text().strip()
                said.secrets[name] = text
                said.secrets[f"{name} as bytes"] = repr(bytes.fromhex(text))[2:-1]
            said.secrets["MAC of a key"] = here.registry.peppers.mac(
                here.keys["anna owner"], here.registry.peppers.current_id
            )
            here.engine.script = lambda request: tokenizer().encode(ANSWER, add_special=False)
            yield Place(here, said, tmp_path / "home")
    for where, text in zip(("standard output", "standard error"), capfd.readouterr(), strict=True):
        said.hear(where, text)
    assert said.leaks() == []


def generate(model: str, prompt: str = PROMPT, **fields: Any) -> g.GenerateRequest:
    return g.GenerateRequest(model=model, prompt=prompt, stopping=g.StoppingParams(max_tokens=20), **fields)


async def test_what_a_tenants_requests_can_make_it_say(place: Place) -> None:
    """Good ones, bad ones, and engines that fail in every way with the prompt and half an answer in their hands."""
    here = place.here
    anna = await here.furnish("anna")
    key = here.keys["anna owner"]
    paths = [f"lorry.api.v1.GenerateService/{method}" for method in ("Generate", "GenerateStream")]
    good = await here.call(paths[0], generate(anna.adapter), key)
    assert ANSWER in str(good.answers), "the marker is in what the tenant gets"
    for bad in (
        generate("tenants/anna/adapters/none"),
        generate(anna.adapter, labels={"x\n": PROMPT[:20]}),
        generate(anna.adapter, sampling=g.SamplingParams(temperature=-1)),
        generate(anna.adapter, expected_sha256="0" * 64),
        generate(anna.adapter, json_schema="{}"),
        generate(anna.adapter, PROMPT * 100_000),
        g.GenerateRequest(model=anna.adapter, chat=g.Chat(messages=[g.ChatMessage(role="user", content=PROMPT)])),
    ):
        place.hear("bad", await here.call(paths[0], bad, key))
    for body in (
        {"model": anna.adapter, "prompt": PROMPT, "max_tokens": 20},
        {"model": anna.adapter, "prompt": PROMPT, "n": 0},
        {"model": anna.adapter, "prompt": PROMPT, "tools": [1]},
        {"model": anna.adapter, "messages": [{"role": "user", "content": PROMPT}], "logprobs": 9},
    ):
        for route in ("/v1/completions", "/v1/chat/completions"):
            answer = await here.web.post(route, json=body, headers={"authorization": f"Bearer {key}"})
            if answer.status_code != 200:
                place.said.hear(f"HTTP {answer.status_code}", answer.text + repr(answer.headers))
    torn = json.dumps({"model": anna.adapter, "prompt": PROMPT}).encode()[:-5]
    answer = await here.web.post(
        "/v1/completions", content=torn, headers={"authorization": f"Bearer {key}", "content-type": "application/json"}
    )
    place.said.hear("torn body", answer.text)
    for kind in FAULTS:
        for at in (0, 2):
            error = errors.AdapterLoadFailed("adapter: it could not be loaded") if kind is FaultKind.FAIL else None
            fault = Fault(kind, at, error)
            here.engine.fault = lambda r, fault=fault: fault  # type: ignore[misc]
            for path in paths:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        place.hear(path, await here.call(path, generate(anna.adapter), key))
                place.said.hear("state", json.dumps(here.gateway.state()))


async def test_what_bad_keys_make_it_say(place: Place) -> None:
    """What was nearly a key may be one somewhere else: it is not repeated."""
    here = place.here
    wrong = "lorry_0123456789abcdef_" + "feedc0de" * 8
    place.said.secrets["a wrong key"] = "feedc0de" * 8
    for path, request in (
        ("GenerateService/Generate", generate("models/tiny")),
        ("TenantAdminService/GetTenant", t.GetTenantRequest(name="tenants/anna")),
    ):
        for metadata in (
            [("authorization", f"Bearer {wrong}")],
            [("authorization", f"Bearer {wrong} {wrong}")],
            [("authorization", wrong)],
            [("authorization", f"Basic {wrong}")],
            [("authorization", f"Bearer {wrong}"), ("authorization", f"Bearer {wrong}")],
        ):
            place.hear("bad key", await here.call(f"lorry.api.v1.{path}", request, None, metadata))
            answer = await here.web.get("/v1/models", headers=metadata)
            place.said.hear(f"HTTP {answer.status_code}", answer.text + repr(answer.headers))
            assert answer.status_code == 401


async def test_what_failing_handlers_make_it_say(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log gets a traceback under an id, the caller the id alone."""
    here = place.here
    secret = place.said.secrets["words of an exception"] = "inner-words-77ab"
    key = here.keys["anna owner"]

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError(secret)

    heard, place.said.words = place.said.words, []
    monkeypatch.setattr(type(here.registry.tenants), "get", broken)
    monkeypatch.setattr(type(here.gateway._generations), "begin", broken)
    found = await here.call("lorry.api.v1.TenantAdminService/GetTenant", t.GetTenantRequest(name="tenants/anna"), key)
    assert (found.code, found.reason) == ("INTERNAL", "INTERNAL")
    place.hear("admin", found)
    for path in ("Generate", "GenerateStream"):
        place.hear(path, await here.call(f"lorry.api.v1.GenerateService/{path}", generate("models/tiny"), key))
    body = {"model": "models/tiny", "prompt": PROMPT}
    answer = await here.web.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
    assert answer.status_code in (500, 502)
    place.said.hear("HTTP", answer.text + repr(answer.headers))
    logged = [text for where, text in place.said.words if where.startswith("log lorry.") and secret in text]
    assert len(logged) == 4, "the operator finds all of it"
    assert not any("Traceback" in text for where, text in place.said.words if not where.startswith("log "))
    place.said.words = [(where, text) for where, text in place.said.words if text not in logged] + heard


async def test_what_a_path_can_write_into_the_log(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a line of its own, and nothing that moves a terminal's cursor."""
    from lorry.gateway.http import app

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(app, "show_model", broken)
    key = place.here.keys["anna member"]
    evil = "/v1/models/x%0aERROR%20all%20is%20lost%1b[2J%e2%80%a8"
    assert (await place.here.web.get(evil, headers={"authorization": f"Bearer {key}"})).status_code in (500, 502)
    (line,) = [text for where, text in place.said.words if "failed, request id" in text and "all is lost" in text]
    first = line.partition("\n")[0]
    assert "all is lost" in first
    assert first.isascii()
    assert first.isprintable()


async def test_what_a_lost_database_makes_it_say(place: Place) -> None:
    """Down from the start, and down under way; the password is in the address."""
    url = f"postgresql://lorry:{PASSWORD}@127.0.0.1:{UNUSED_PORT}/lorry"
    registry = Registry(url, Peppers((b"p" * 32,)))
    try:
        source = registry.snapshots()
        running = asyncio.create_task(source.run())
        with pytest.raises(errors.Unavailable) as caught:
            await source.refresh()
        await asyncio.sleep(0.3)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        place.said.hear("unavailable", f"{caught.value} {caught.value.__cause__}")
        for thing in (registry, registry.database, registry.database.engine, source, registry.tenants):
            place.said.hear("repr", repr(thing))
    finally:
        await registry.close()
    for broken in (f"postgresql://lorry:{PASSWORD}", f"mysql://lorry:{PASSWORD}@h/d", PASSWORD):
        with pytest.raises(ValueError, match="registry url") as wrong:
            async_url(broken)
        place.said.hear("bad url", "".join([str(wrong.value), repr(wrong.value.__context__ and "")]))
    place.said.hear("url", repr(async_url(url)))
    await place.here.registry.database.engine.dispose()
    (place.here.folder / "registry.db").rename(place.here.folder / "gone.db")
    (place.here.folder / "registry.db").write_bytes(b"not a database" * 100)
    for path, request in (
        ("TenantAdminService/GetTenant", t.GetTenantRequest(name="tenants/anna")),
        ("AdapterAdminService/CreateAdapter", a.CreateAdapterRequest(parent="tenants/anna", adapter_id="x")),
    ):
        found = await place.here.call(f"lorry.api.v1.{path}", request, place.here.keys["anna owner"])
        assert found.code in ("UNAVAILABLE", "INTERNAL")
        place.hear("lost", found)


async def test_what_a_constraint_makes_it_say(place: Place) -> None:
    """Values that a statement carries are in no message of the database's: its parameters are hidden."""
    from sqlalchemy import exc, text

    value = place.said.secrets["a statement's value"] = "row-value-5512aa"
    database = place.here.registry.database
    for statement in ("INSERT INTO tenant (id, name) VALUES (:v, :v)", "SELECT :v FROM nowhere"):
        with pytest.raises((errors.LorryError, exc.SQLAlchemyError)) as caught:
            async with database.write() as session:
                await session.execute(text(statement), {"v": value})
        place.said.hear("raised", f"{caught.value} {caught.value.__cause__}")
    from lorry.registry.db.engine import _constraint_of

    class Diagnosis:
        table_name, constraint_name = "tenant", "uq_tenant_name"

    class OfPostgres(Exception):
        diag = Diagnosis()

    told = _constraint_of(exc.IntegrityError("INSERT", {}, OfPostgres(f"Failing row contains ({value})")))
    assert told == "tenant, uq_tenant_name"


async def test_what_a_failing_store_makes_it_say(place: Place) -> None:
    config = StoreConfig(
        url="s3://bucket/prefix",
        endpoint_url=f"http://127.0.0.1:{UNUSED_PORT}",
        access_key="AKIAEXAMPLE",
        secret_key=S3_SECRET,
        attempts=1,
    )
    store = S3Store(config, "bucket", "prefix")
    for step in (store.prepare_sync, lambda: store.exists_sync("a/b")):
        with pytest.raises(errors.ObjectStoreUnavailable) as caught:
            step()
        place.said.hear("store", f"{caught.value} {caught.value.__cause__} {caught.value.metadata}")
    store.close()
    home = Home(place.home)
    for thing in (
        store,
        config,
        EngineConfig(place.home, config, TierConfig(place.home)),
        Settings(home, place.home, store=config),
    ):
        place.said.hear("repr", repr(thing) + str(thing))
    place.here.store.now = store  # as far as registration needs one
    owner = place.here.client("anna owner")
    await owner.call("CreateAdapter", a.CreateAdapterRequest(parent="tenants/anna", adapter_id="json"))
    upload = await owner.upload("tenants/anna/adapters/json", place.here.files, CHUNK_BYTES)
    request = a.CreateAdapterVersionRequest(parent="tenants/anna/adapters/json", upload=upload, base="models/tiny")
    found = await place.here.call("lorry.api.v1.AdapterAdminService/CreateAdapterVersion", request, owner.key)
    assert found.code in ("UNAVAILABLE", "INTERNAL")
    place.hear("registration", found)


async def test_what_admin_calls_make_it_say(place: Place) -> None:
    """A key's text is in the one answer that makes it, and nowhere after it: no list, no audit, no second look."""
    here = place.here
    owner = here.client("anna owner")
    made = await owner.call(
        "CreateApiKey", t.CreateApiKeyRequest(parent="tenants/anna", principal="robot", role=t.ROLE_MEMBER)
    )
    turned = await owner.call("RotateApiKey", t.RotateApiKeyRequest(name=made.api_key.name))
    for at, answer in enumerate((made, turned)):
        place.said.secrets[f"new key {at}"] = answer.text.rpartition("_")[2]
    for method, request in (
        ("ListApiKeys", t.ListApiKeysRequest(parent="tenants/anna")),
        ("ListAuditEvents", t.ListAuditEventsRequest(parent="tenants/anna")),
        ("RevokeApiKey", t.RevokeApiKeyRequest(name=turned.api_key.name)),
        ("GetTenant", t.GetTenantRequest(name="tenants/anna")),
    ):
        place.said.hear(method, str(await owner.call(method, request)))
    mask = FieldMask(paths=["import_prefixes"])
    bad = t.Tenant(name="tenants/anna", import_prefixes=[f"s3://user:{PASSWORD}@bucket/x/"])
    refused = await here.call(
        "lorry.api.v1.TenantAdminService/UpdateTenant",
        t.UpdateTenantRequest(tenant=bad, update_mask=mask),
        here.keys["admin"],
    )
    assert refused.code == "INVALID_ARGUMENT"


async def test_what_the_command_line_says(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With its own key, a wrong one, none, a server that is away and a broken profile; with and without --json."""
    here, key = place.here, place.here.keys["anna owner"]
    monkeypatch.setenv("LORRY_PROFILE", str(tmp_path / "profile.toml"))
    monkeypatch.delenv("LORRY_TENANT", raising=False)
    wrong = "lorry_0123456789abcdef_" + "feedc0de" * 8
    place.said.secrets["a wrong key"] = "feedc0de" * 8
    monkeypatch.setenv("LORRY_ADDRESS", here.gateway.address)
    commands = (
        ["whoami"],
        ["keys", "list", "--tenant", "anna"],
        ["adapters", "show", "tenants/anna/adapters/none"],
        ["generate", "tenants/anna/adapters/none", PROMPT],
        ["tenants", "list"],
        ["doctor"],
    )
    for env in (key, wrong):
        monkeypatch.setenv("LORRY_API_KEY", env)
        for command in commands:
            for json_too in ([], ["--json"]):
                with contextlib.suppress(SystemExit):
                    await asyncio.to_thread(main, [*command, *json_too])
    monkeypatch.setenv("LORRY_ADDRESS", f"127.0.0.1:{UNUSED_PORT}")
    await asyncio.to_thread(main, ["whoami", "--json", "--retries", "0"])
    monkeypatch.delenv("LORRY_ADDRESS")
    monkeypatch.delenv("LORRY_API_KEY")
    await asyncio.to_thread(main, ["whoami", "--json"])
    assert await asyncio.to_thread(main, ["login", "--address", here.gateway.address, "--key", key, "--json"]) == 0
    profile = load_profile()
    assert profile is not None
    assert profile.api_key == key
    place.said.hear("repr", repr(profile))
    path = tmp_path / "profile.toml"
    path.write_text(path.read_text() + "\nnonsense")
    assert await asyncio.to_thread(main, ["whoami", "--json"]) == 1
    path.chmod(0o644)
    assert await asyncio.to_thread(main, ["whoami"]) == 1
    for where, text in zip(("stdout", "stderr"), capfd.readouterr(), strict=True):
        place.said.hear(where, text)
        assert where == "stdout" or "UNAUTHENTICATED" in text


async def test_what_secret_files_make_it_say(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "own" / "secrets"
    folder.mkdir(parents=True)
    text = place.said.secrets["a damaged secret"] = "deadbeefdeadbeef" * 3
    for damage in (text, f"{text}zz", f"{text},{text}"):
        for name in ("key_pepper", "kv_salt"):
            (folder / name).write_text(damage)
            (folder / name).chmod(0o600)
        with pytest.raises(SecretError) as caught:
            load_secrets(tmp_path / "own", {})
        place.said.hear("damaged", f"{caught.value} {caught.value.__context__ and caught.value.__suppress_context__}")
    with pytest.raises(SecretError) as caught:
        load_secrets(tmp_path / "own", {"LORRY_KEY_PEPPER": text, "LORRY_KV_SALT": text})
    place.said.hear("by environment", str(caught.value))
    secrets = load_secrets(place.home, {})
    start = Bootstrap(f"postgresql://u:{PASSWORD}@h/d", secrets, place.here.keys["admin"])
    session = Session("h:1", place.here.keys["admin"], Tls(), "anna", "here")
    for thing in (
        secrets,
        secrets.peppers,
        secrets.peppers.new_key(),
        start,
        session,
        Profile("h:1", place.here.keys["admin"]),
        place.here.source.current(),
        place.here.registry,
        place.here.gateway,
        place.here.gateway._generations.admission,
    ):
        place.said.hear(f"repr of {type(thing).__name__}", repr(thing) + str(thing))
    with Client("127.0.0.1:1", place.here.keys["admin"]) as client:
        place.said.hear("repr of a client", repr(client))


def test_terminals_get_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a model or a server wrote moves no cursor; what goes into a pipe is as it came."""
    evil = "a\x1b[2J\x9b2J\x07b\tc\nd\u200de"
    assert written(evil) == evil
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert written(evil) == "a[2J2Jb\tc\nd\u200de"
    print_error(errors.InvalidRequest(f"field: {evil}"), as_json=False)
    told = capsys.readouterr().err
    assert told.strip().isprintable()


SENSITIVE = {
    "access_key", "admin_key", "answer", "api_key", "cache_salt", "keys", "kv_salt", "logprobs", "mac", "password",
    "pepper", "peppers", "prompt", "prompt_logprobs", "salt", "salts", "secret", "secret_key", "secrets", "spare",
    "tenant_salt", "text", "token", "token_ids", "tokens",
}  # fmt: skip
HARMLESS = {
    ("Choice", "text"), ("Choice", "token_ids"), ("Delta", "text"), ("Delta", "token_ids"),  # a client's own answer
    ("Choice", "logprobs"), ("Delta", "logprobs"), ("Result", "prompt_logprobs"),
    ("_Growing", "text"), ("_Growing", "token_ids"), ("_Growing", "logprobs"),
    ("Outer", "spare"), ("_Question", "answer"), ("Admitted", "answer"),  # no text: how one is to look
    ("Call", "text"),  # of the demo, whose prompts are printed
    ("Tables", "keys"),  # entries, whose own repr hides the MAC
    ("Entry", "keys"),  # hashes of KV blocks
    ("LoraFields", "tokens"), ("EmbeddingPlan", "token_ids"), ("HeadPlan", "token_ids"), ("HeadExtras", "token_ids"),
    ("OutputParams", "prompt_logprobs"),  # how many are wanted
    ("Tick", "text"), ("Bills", "prompt"), ("Price", "prompt"),  # of a chart, tokens, an amount
}  # fmt: skip
_HIDDEN = re.compile(r"repr=False")


def test_no_dataclass_prints_what_is_secret() -> None:
    """Every field with a telling name is left out of its ``repr``, or is named here as harmless."""
    root = Path(lorry.__file__).parents[2]
    found = []
    for path in sorted([*root.glob("platform/lorry/**/*.py"), *root.glob("admin/**/*.py")]):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "@dataclass" in source else ():
            if not isinstance(node, ast.ClassDef):
                continue
            made = [ast.unparse(one) for one in node.decorator_list if "dataclass" in ast.unparse(one)]
            if not made or _HIDDEN.search(made[0]):
                continue
            for field in node.body:
                if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                    continue
                name, kind = field.target.id, ast.unparse(field.annotation)
                hidden = field.value is not None and _HIDDEN.search(ast.unparse(field.value))
                number = name in ("tokens", "text") and kind not in ("str", "tuple[int, ...]", "list[str]")
                number |= kind.startswith(("bool", "type["))
                if name in SENSITIVE and not hidden and not number and (node.name, name) not in HARMLESS:
                    found.append(f"{path.relative_to(root)}: {node.name}.{name}: {kind}")
    assert found == []
