"""Versions' templates and tokenizers are programs of tenants: they run under limits, and nothing else suffers."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

from lorry.errors import AdapterLoadFailed, InvalidRequest, ProvenanceMismatch
from lorry.text import Tokenizer, worker
from lorry.text.worker import TextLimits, TextWorkers, VersionText
from tests.unit.text import bases

MESSAGES = [{"role": "user", "content": "Hi"}]
LIMITS = TextLimits(render_s=0.5, encode_s=0.5, memory_bytes=1 << 30, rendered_chars=10_000, ids=1000)
TOO_MUCH = {
    "a long loop": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a long string": "{{ 'a' * 10 ** 12 }}",
    "a string that doubles": "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x*2 %}{% endfor %}",
    "a wide format": "{{ '%3000000000d' | format(1) }}",
    "a wide column": "{{ 'a' | center(10 ** 12) }}",
    "a list": "{{ [0] * 10 ** 12 }}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "the range that jinja bounds": "{{ range(10 ** 9) | list | length }}",
    "a recursion": "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "much text": "{% for i in range(20000) %}a{% endfor %}",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bases.write_base(tmp_path_factory.mktemp("base"), bases.byte_level())


@pytest.fixture
def workers() -> Iterator[TextWorkers]:
    made = TextWorkers(1, LIMITS)
    yield made
    made.close()


def own(base: Path, folder: Path, **files: str) -> VersionText:
    """Files by their names without the suffix."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        suffix = "jinja" if name == "chat_template" else "json"
        (folder / f"{name}.{suffix}").write_text(content)
    return VersionText(Tokenizer.load(base, folder).sha256, base, folder)


def changed(base: Path, **parts: object) -> str:
    """The base's tokenizer.json with other parts of tokenizers.Tokenizer."""
    backend = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))
    for name, part in parts.items():
        setattr(backend, name, part)
    return str(backend.to_str())


def test_the_same_ids_as_in_this_process(base: Path, tmp_path: Path, workers: TextWorkers) -> None:
    text = own(base, tmp_path / "v", chat_template="<|im_start|>{{ messages[0]['content'] }} ü 東")
    tokenizer = Tokenizer.load(base, text.folder)
    assert workers.encode(text, "the lorry ü\ud800".replace("\ud800", "")) == tuple(
        tokenizer.encode("the lorry ü", True)
    )
    want = tuple(tokenizer.encode("<|im_start|>Hi ü 東", False))
    assert workers.encode_chat(text, MESSAGES, True) == want
    other = own(base, tmp_path / "w", chat_template="other")
    assert workers.encode_chat(other, MESSAGES, True) == tuple(tokenizer.encode("other", False))
    assert workers.encode_chat(text, MESSAGES, True) == want


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_template_that_takes_too_much_is_refused_and_harms_no_other(
    base: Path, tmp_path: Path, workers: TextWorkers, what: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        workers.encode_chat(own(base, tmp_path / "v", chat_template=TOO_MUCH[what]), MESSAGES, True)
    assert refused.value.violations[0].field.startswith("chat")
    good = own(base, tmp_path / "w", chat_template="ok")
    assert workers.encode_chat(good, MESSAGES, True)


def test_what_was_ended_once_is_refused_without_a_try_for_a_while(base: Path, tmp_path: Path) -> None:
    now = [0.0]
    workers = TextWorkers(1, LIMITS, clock=lambda: now[0])
    text = own(base, tmp_path / "v", chat_template=TOO_MUCH["a long loop"])
    with pytest.raises(InvalidRequest, match=r"0\.5 s"):
        workers.encode_chat(text, MESSAGES, True)
    child = workers._all[0]._child
    assert child is None
    with pytest.raises(InvalidRequest, match=r"0\.5 s"):
        workers.encode(text, "the prompt is refused too: it is the version that misbehaves")
    assert workers._all[0]._child is None, "nothing was started"
    assert workers.encode(replace(text, tenant="another"), "who has an equal one and did nothing")
    with pytest.raises(InvalidRequest, match=r"0\.5 s"):
        workers.encode(text, "still")
    now[0] = LIMITS.barred_s + 1
    assert workers.encode(text, "lorry")
    workers.close()


def test_a_pattern_that_never_ends_is_ended(base: Path, tmp_path: Path, workers: TextWorkers) -> None:
    split = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated"), pre_tokenizers.ByteLevel(False)]
    )
    text = own(base, tmp_path / "v", tokenizer=changed(base, pre_tokenizer=split))
    with pytest.raises(InvalidRequest) as refused:
        workers.encode(text, "x" * 4000)
    assert refused.value.violations[0].field == "prompt"
    assert workers.encode(own(base, tmp_path / "w", chat_template="ok"), "lorry")


def test_a_normalizer_that_multiplies_is_ended(base: Path, tmp_path: Path, workers: TextWorkers) -> None:
    doubling = normalizers.Sequence([normalizers.Replace("Q", "QQ") for _ in range(40)])
    text = own(base, tmp_path / "v", tokenizer=changed(base, normalizer=doubling))
    with pytest.raises(InvalidRequest, match="prompt"):
        workers.encode(text, "Q")


def test_more_ids_than_any_context_are_refused(base: Path, tmp_path: Path, workers: TextWorkers) -> None:
    text = own(base, tmp_path / "v", chat_template="ok")
    with pytest.raises(InvalidRequest, match=r"prompt: it makes \d+ of at most 1000"):
        workers.encode(text, "東" * 2000)


def test_refusals_of_the_template_itself_name_the_chat(base: Path, tmp_path: Path, workers: TextWorkers) -> None:
    for source, words in (
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ 1 // 0 }}", "zero"),
    ):
        with pytest.raises(InvalidRequest, match=words) as refused:
            workers.encode_chat(own(base, tmp_path / "v", chat_template=source), MESSAGES, True)
        assert refused.value.violations[0].field == "chat.messages"
    (tmp_path / "bare").mkdir()
    bare = bases.write_base(tmp_path / "bare", bases.byte_level(), {})
    with pytest.raises(InvalidRequest, match="no chat template"):
        workers.encode_chat(
            own(bare, tmp_path / "w", tokenizer=changed(bare, normalizer=normalizers.NFC())), MESSAGES, True
        )


def test_a_reason_is_cut_that_a_template_makes_long(base: Path, tmp_path: Path, workers: TextWorkers) -> None:
    text = own(base, tmp_path / "v", chat_template="{{ raise_exception('no' * 10 ** 6) }}")
    with pytest.raises(InvalidRequest, match="refuses them: nono") as refused:
        workers.encode_chat(text, MESSAGES, True)
    assert len(refused.value.message) < 1000


def test_what_others_left_in_the_child_is_not_held_against_a_version(base: Path, tmp_path: Path) -> None:
    workers = TextWorkers(1, replace(LIMITS, memory_bytes=205 << 20))
    draw = random.Random(0)

    def large() -> str:
        made = json.loads(changed(base))
        words = ["".join(draw.choices("abcdefgh", k=2000)) for _ in range(100)]
        vocab = [["<unk>", 0.0], *([word, -1.0] for word in words)]
        made |= {"model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}, "added_tokens": []}
        return json.dumps(made)

    texts = [own(base, tmp_path / str(i), tokenizer=large()) for i in range(3)]
    children = set()
    for i, text in enumerate(texts):
        assert workers.encode(replace(text, tenant=str(i)), "lorry")
        children.add(workers._all[0]._child)
    workers.close()
    assert len(children) > 1, "the last did not fit beside the others, and has a child of its own"


def test_files_that_are_not_those_that_were_registered(base: Path, tmp_path: Path, workers: TextWorkers) -> None:
    text = own(base, tmp_path / "v", chat_template="registered")
    (text.folder / "chat_template.jinja").write_text("changed")
    with pytest.raises(ProvenanceMismatch, match=text.sha256):
        workers.encode_chat(text, MESSAGES, True)
    (text.folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(AdapterLoadFailed, match="compiled"):
        workers.encode_chat(text, MESSAGES, True)
    (text.folder / "chat_template.jinja").write_text("registered")
    assert workers.encode_chat(text, MESSAGES, True)


def test_an_equal_text_side_of_another_adapter_is_loaded_for_itself(
    base: Path, tmp_path: Path, workers: TextWorkers
) -> None:
    """What one adapter's is loaded from serves no other: its own folder is read, and takes its time."""
    theirs = replace(own(base, tmp_path / "v", chat_template="equal"), scope="a_theirs")
    assert workers.encode_chat(theirs, MESSAGES, True)
    absent = replace(theirs, scope="a_own", folder=tmp_path / "absent")
    with pytest.raises(ProvenanceMismatch):
        workers.encode_chat(absent, MESSAGES, True)
    assert workers.encode_chat(replace(theirs, folder=tmp_path / "absent"), MESSAGES, True), "it is loaded"


def test_a_template_sees_no_secret_and_no_insides(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORRY_KEY_PEPPER", "secret")
    workers = TextWorkers(1, LIMITS)
    workers.encode(own(base, tmp_path / "w", chat_template="ok"), "x")
    child = workers._all[0]._child
    assert child is not None
    environment = Path(f"/proc/{child.pid}/environ").read_bytes()
    assert b"PATH=" in environment
    assert b"secret" not in environment
    for source in ("{{ messages.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}"):
        with pytest.raises(InvalidRequest, match="unsafe"):
            workers.encode_chat(own(base, tmp_path / source[3:8], chat_template=source), MESSAGES, True)
    workers.close()
    assert not os.path.exists(f"/proc/{child.pid}"), "it ends with its workers"


def test_a_child_that_died_is_started_again(base: Path, tmp_path: Path, workers: TextWorkers) -> None:
    text = own(base, tmp_path / "v", chat_template="ok")
    first = workers.encode(text, "lorry")
    child = workers._all[0]._child
    assert child is not None
    child.kill()
    child.wait()
    assert workers.encode(text, "lorry") == first


def test_a_child_that_its_alarm_does_not_end_is_killed(
    base: Path, tmp_path: Path, workers: TextWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = own(base, tmp_path / "v", chat_template=TOO_MUCH["a long loop"])
    assert workers.encode(text, "lorry")
    monkeypatch.setattr(worker, "_BACKSTOP_S", -10.0)
    with pytest.raises(InvalidRequest, match="took more than"):
        workers.encode_chat(text, MESSAGES, True)


def test_several_threads_at_once(base: Path, tmp_path: Path) -> None:
    workers = TextWorkers(2, LIMITS)
    texts = [own(base, tmp_path / str(i), chat_template=f"t{i}") for i in range(4)]
    plain = Tokenizer.load(base)
    wrong: list[object] = []

    def ask(index: int) -> None:
        want = tuple(plain.encode(f"t{index}", False))
        wrong.extend(got for _ in range(20) if (got := workers.encode_chat(texts[index], MESSAGES, True)) != want)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    workers.close()
    assert wrong == []


def test_specials_of_the_version_reach_its_template(base: Path, tmp_path: Path, workers: TextWorkers) -> None:
    config = json.dumps({"bos_token": "<|end|>", "chat_template": "{{ bos_token }}{{ eos_token }}"})
    text = own(base, tmp_path / "v", tokenizer_config=config)
    assert workers.encode_chat(text, MESSAGES, True) == (0,)
