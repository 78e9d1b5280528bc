from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, processors

from lorry.errors import InvalidRequest, UnsupportedBase
from lorry.text import TextRefused, Tokenizer, base_end_ids, read_version_text, tokenizer_digest
from lorry.text.files import LIMITS
from tests.unit.text import bases

MESSAGES = [{"role": "user", "content": "Hi"}]
EOS = 3


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = bases.write_base(tmp_path / "base", bases.byte_level())
    (folder / "config.json").write_text(json.dumps({"eos_token_id": EOS}))
    return folder


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "version"
    folder.mkdir()
    return folder


def settings(**changes: Any) -> str:
    return json.dumps({"bos_token": "<s>", "eos_token": "<|im_end|>"} | changes)


def more_tokens(base: Path, version: Path, *words: str) -> None:
    backend = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))
    backend.add_special_tokens(list(words))
    backend.save(str(version / "tokenizer.json"))


def test_without_text_files_nothing_is_its_own(base: Path, version: Path) -> None:
    (version / "adapter_config.json").write_text("{}")
    assert read_version_text(base, version) is None
    assert tokenizer_digest(base, version) == tokenizer_digest(base)


def test_files_that_were_only_saved_again_change_nothing(base: Path, version: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))
    backend.enable_truncation(8)
    backend.save(str(version / "tokenizer.json"), pretty=False)
    (version / "tokenizer_config.json").write_text(settings(model_max_length=8))
    (version / "chat_template.jinja").write_text(bases.TEMPLATE)
    assert (version / "tokenizer.json").read_bytes() != (base / "tokenizer.json").read_bytes()
    assert read_version_text(base, version) is None
    assert tokenizer_digest(base, version) == tokenizer_digest(base)


def test_added_tokens_make_a_text_side_of_its_own(base: Path, version: Path) -> None:
    more_tokens(base, version, "<|tool|>", "<|done|>")
    facts = read_version_text(base, version)
    own = Tokenizer.load(base, version)
    assert facts is not None
    assert (facts.sha256, facts.vocabulary, facts.end_ids) == (own.sha256, own.vocabulary, (EOS,))
    assert facts.sha256 == tokenizer_digest(base, version) != tokenizer_digest(base)
    assert own.vocabulary == Tokenizer.load(base).vocabulary + 2
    assert len(own.encode("a<|tool|>b", False)) == 3
    assert own.render_chat(MESSAGES) == Tokenizer.load(base).render_chat(MESSAGES)


@pytest.mark.parametrize(
    ("base_file", "base_config", "own_file", "own_config", "want"),
    [
        ("BF", "BC", "VF", "VC", "VF"),
        ("BF", "BC", None, "VC", "VC"),
        ("BF", "BC", "VF", None, "VF"),
        ("BF", "BC", None, "", "BF"),
        (None, "BC", None, "", "BC"),
        ("BF", None, None, "VC", "VC"),
        (None, "BC", "VF", "", "VF"),
        (None, "BC", "VF", None, "VF"),
        (None, "BC", None, "VC", "VC"),
        (None, "", None, "VC", "VC"),
    ],
)
def test_the_versions_own_template_goes_first(
    base: Path,
    version: Path,
    base_file: str | None,
    base_config: str | None,
    own_file: str | None,
    own_config: str | None,
    want: str,
) -> None:
    for folder, file, config in ((base, base_file, base_config), (version, own_file, own_config)):
        (folder / "tokenizer_config.json").unlink(missing_ok=True)
        if config is not None:
            (folder / "tokenizer_config.json").write_text(settings(chat_template=config or None))
        if file is not None:
            (folder / "chat_template.jinja").write_text(file)
    own = Tokenizer.load(base, version)
    assert own.render_chat(MESSAGES) == want
    assert (read_version_text(base, version) is None) == (want in ("BF", "BC"))


def test_a_digest_is_that_of_a_folder_that_behaves_the_same(base: Path, version: Path, tmp_path: Path) -> None:
    (base / "chat_template.jinja").write_text("BF")
    (version / "tokenizer_config.json").write_text(settings(chat_template="VC"))
    merged = tmp_path / "merged"
    merged.mkdir()
    for folder in (base, version):
        for path in folder.iterdir():
            (merged / path.name).write_bytes(path.read_bytes())
    assert Tokenizer.load(merged).render_chat(MESSAGES) == "BF", "one folder: the file wins"
    assert tokenizer_digest(base, version) != tokenizer_digest(merged)
    (merged / "chat_template.jinja").unlink()
    assert tokenizer_digest(base, version) == tokenizer_digest(merged)


@pytest.mark.parametrize(
    ("generation", "config", "want"),
    [
        ({"eos_token_id": 5}, None, (5,)),
        ({"eos_token_id": [7, 5, 7]}, None, (5, 7)),
        ({"eos_token_id": []}, None, ()),
        ({"temperature": 0.5}, None, None),
        (None, {"eos_token": "<|end|>"}, (0, EOS)),
        ({"eos_token_id": 9}, {"eos_token": "<|end|>"}, (9,)),
        (None, {"eos_token": {"content": "<|im_end|>"}}, None),
        ({"eos_token_id": EOS}, None, None),
    ],
)
def test_end_ids(
    base: Path, version: Path, generation: dict[str, Any] | None, config: dict[str, Any] | None, want: tuple[int, ...]
) -> None:
    if generation is not None:
        (version / "generation_config.json").write_text(json.dumps(generation))
    if config is not None:
        (version / "tokenizer_config.json").write_text(settings(**config))
    facts = read_version_text(base, version)
    assert (None if facts is None else facts.end_ids) == want


def test_the_bases_end_ids_are_of_both_files(base: Path) -> None:
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 1]}))
    assert base_end_ids(base) == (1, 2, EOS)
    assert base_end_ids(base, (8,)) == (1, 2, 8), "the caller's reading of config.json"


def test_end_ids_alone_keep_the_bases_digest(base: Path, version: Path) -> None:
    (version / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
    facts = read_version_text(base, version)
    assert facts is not None
    assert facts.sha256 == tokenizer_digest(base) == tokenizer_digest(base, version)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer.json", "[" * 100_000, "cannot be read"),
        ("tokenizer.json", b"\xff\xfe", "cannot be read"),
        (
            "tokenizer.json",
            json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}),
            "cannot be read",
        ),
        ("tokenizer_config.json", "[]", "no JSON object"),
        ("tokenizer_config.json", "[" * 100_000, "cannot be read"),
        ("tokenizer_config.json", b"\xff", "cannot be read"),
        ("tokenizer_config.json", settings(eos_token="<nowhere>"), "no token"),
        ("tokenizer_config.json", settings(chat_template="x" * (LIMITS["chat_template.jinja"] + 1)), "over"),
        ("tokenizer_config.json", settings(chat_template="{% if %}"), "compiled"),
        ("chat_template.jinja", "{{ 'a' | shout }}", "shout"),
        ("chat_template.jinja", "{{ " + "9" * 5000 + " }}", "compiled"),
        ("chat_template.jinja", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "compiled"),
        ("chat_template.jinja", "x" * (LIMITS["chat_template.jinja"] + 1), "over"),
        ("chat_template.jinja", b"\xff", "cannot be read"),
        ("generation_config.json", "nope", "cannot be read"),
        ("generation_config.json", '{"eos_token_id": -1}', "no token id"),
        ("generation_config.json", '{"eos_token_id": "2"}', "no token id"),
        ("generation_config.json", '{"eos_token_id": true}', "no token id"),
        ("generation_config.json", json.dumps({"eos_token_id": list(range(65))}), "over 64"),
    ],
)
def test_broken_files_are_refused_by_name(
    base: Path, version: Path, name: str, content: str | bytes, words: str
) -> None:
    (version / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(TextRefused, match=words) as refused:
        read_version_text(base, version)
    assert refused.value.file == name


def test_links_folders_and_giants_are_not_read(base: Path, version: Path, tmp_path: Path) -> None:
    (version / "chat_template.jinja").symlink_to(base / "tokenizer_config.json")
    with pytest.raises(TextRefused, match="not a plain file"):
        read_version_text(base, version)
    (version / "chat_template.jinja").unlink()
    (version / "tokenizer.json").mkdir()
    with pytest.raises(TextRefused, match="not a plain file"):
        read_version_text(base, version)
    (version / "tokenizer.json").rmdir()
    with (version / "tokenizer.json").open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(TextRefused, match=r"tokenizer\.json has"):
        read_version_text(base, version)


def test_reading_a_template_runs_nothing_of_it(base: Path, version: Path) -> None:
    """jinja folds constants when it compiles: this one alone would take all memory there is."""
    (version / "chat_template.jinja").write_text("{{ 'a' * 10 ** 12 }}{{ 10 ** 10 ** 10 }}{{ 'a' | center(10 ** 12) }}")
    assert read_version_text(base, version) is not None


@pytest.mark.parametrize(
    "steps",
    [
        [decoders.Replace("a", "a" * 100)] * 5,
        [decoders.Replace("a", "aa")] * 3,
        [decoders.Replace("", "x")],
    ],
)
def test_a_decoder_that_multiplies_is_refused(base: Path, version: Path, steps: list[Any]) -> None:
    """The engine joins its text, for everybody."""
    backend = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))
    backend.decoder = decoders.Sequence([*steps, decoders.Fuse()])
    backend.save(str(version / "tokenizer.json"))
    with pytest.raises(TextRefused, match=r"tokenizer\.json decoder: .*Replace"):
        read_version_text(base, version)


def test_a_token_that_is_a_text_is_refused(base: Path, version: Path) -> None:
    more_tokens(base, version, "x" * 5000)
    with pytest.raises(TextRefused, match=r"tokenizer\.json has a token of 5000 characters, over 4096"):
        read_version_text(base, version)


@pytest.mark.parametrize(
    "around",
    [
        processors.BertProcessing(("</s>", 9999), ("<s>", 1)),
        processors.RobertaProcessing(("</s>", 1), ("<s>", 9999)),
        processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing("<s> $A", None, [("<s>", 9999)])]),
    ],
)
def test_ids_put_around_a_text_are_of_the_vocabulary(base: Path, version: Path, around: Any) -> None:
    backend = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))
    backend.post_processor = around
    backend.save(str(version / "tokenizer.json"))
    facts = read_version_text(base, version)
    assert facts is not None
    assert facts.vocabulary == 10_000


@pytest.mark.parametrize(
    "named",
    [
        {"added_tokens_decoder": {"342": {"content": "<tool>", "special": True}}},
        {"added_tokens_decoder": {"7": {"content": "<s>", "special": True}}},
        {"additional_special_tokens": ["<tool>"]},
        {"extra_special_tokens": {"tool_token": "<tool>"}},
        {"bos_token": "<tool>"},
    ],
)
def test_tokens_that_only_the_settings_name_are_refused(base: Path, version: Path, named: dict[str, Any]) -> None:
    """transformers would add them: the version was trained on other ids than tokenizer.json makes."""
    (version / "tokenizer_config.json").write_text(settings(**named))
    with pytest.raises(TextRefused, match=r"names the token '<") as refused:
        read_version_text(base, version)
    assert refused.value.file == "tokenizer_config.json"
    if "added_tokens_decoder" not in named:
        more_tokens(base, version, "<tool>")
        assert read_version_text(base, version) is not None


def test_what_the_bases_settings_name_is_no_fault_of_a_version(base: Path, version: Path) -> None:
    (base / "tokenizer_config.json").write_text(settings(additional_special_tokens=["<tool>"]))
    (version / "tokenizer_config.json").write_text(settings(additional_special_tokens=["<tool>"], legacy=True))
    assert read_version_text(base, version) is None


@pytest.mark.parametrize("file", ["tokenizer.json", "generation_config.json"])
def test_a_fault_of_the_base_is_not_the_versions(base: Path, version: Path, file: str) -> None:
    (version / "chat_template.jinja").write_text("ok")
    (base / file).write_text('{"eos_token_id": "x"}')
    with pytest.raises(UnsupportedBase, match=file):
        read_version_text(base, version)


@pytest.mark.parametrize("source", ["{% include 'a' %}", "{% extends 'a' %}", "a{% from 'a' import b %}"])
def test_a_template_in_several_files_is_refused(base: Path, version: Path, source: str) -> None:
    (version / "chat_template.jinja").write_text(source)
    with pytest.raises(TextRefused, match="no other template"):
        read_version_text(base, version)


def test_memory_that_a_short_file_takes_is_counted(base: Path, version: Path) -> None:
    made = json.loads((base / "tokenizer.json").read_text())
    words = [["<unk>", 0.0], *([f"{'x' * at}", -1.0] for at in range(1, 1000))]
    made |= {"model": {"type": "Unigram", "unk_id": 0, "vocab": words}, "added_tokens": []}
    (version / "tokenizer.json").write_text(json.dumps(made))
    assert Tokenizer.load(base, version).nbytes > 300 * 499_500
    made |= {"model": {"type": "BPE", "vocab": {f"{at}": at for at in range(50_000)}, "merges": []}}
    (version / "tokenizer.json").write_text(json.dumps(made, separators=(",", ":")))
    assert Tokenizer.load(base, version).nbytes > 400 * 50_000


def test_what_equals_the_base_is_shared_with_it(base: Path, version: Path) -> None:
    (version / "chat_template.jinja").write_text("VF")
    own = Tokenizer.load(base, version)
    assert own.nbytes < Tokenizer.load(base).nbytes
    assert own.encode("the lorry", False) == Tokenizer.load(base).encode("the lorry", False)
    more_tokens(base, version, "<|tool|>")
    assert Tokenizer.load(base, version).nbytes > 4 * (version / "tokenizer.json").stat().st_size


def test_equal_files_are_loaded_once_while_somebody_has_them(base: Path, version: Path) -> None:
    one = Tokenizer.load(base)
    assert Tokenizer.load(base) is one
    (version / "chat_template.jinja").write_text("VF")
    own = Tokenizer.load(base, version)
    assert Tokenizer.load(base, version) is own is not one
    (version / "chat_template.jinja").write_text("other")
    assert Tokenizer.load(base, version).render_chat(MESSAGES) == "other"
    (base / "chat_template.jinja").write_text("BF")
    assert Tokenizer.load(base) is not one


def test_generation_marks_add_nothing(base: Path) -> None:
    (base / "chat_template.jinja").write_text("a{% generation %}b{% endgeneration %}c")
    assert Tokenizer.load(base).render_chat(MESSAGES) == "abc"


def test_a_template_that_fails_over_its_own_code_refuses_the_chat(base: Path, version: Path) -> None:
    for source in ("{{ 1 // 0 }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ [].pop() }}"):
        (version / "chat_template.jinja").write_text(source)
        with pytest.raises(InvalidRequest, match="chat"):
            Tokenizer.load(base, version).render_chat(MESSAGES)


def test_the_bases_own_template_is_compiled_at_load(base: Path) -> None:
    (base / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(UnsupportedBase, match="compiled"):
        Tokenizer.load(base)
