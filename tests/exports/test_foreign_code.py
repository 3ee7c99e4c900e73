"""Code that lies in the source's folder, and that its JSON files name, does not run when a model is exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import small_models

import headcount as hc
from headcount.errors import Refused
from headcount.exports.pipeline import export

CUTS = {"the fixed file": "0:1 1:0-1 0.mlp:4-9", "a stock config": "0.mlp:4-9 1.mlp:0-5 2.mlp:1-6"}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder in which planted code leaves a file when it runs."""
    folder = tmp_path / "traces"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def modules_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers copies the code of folders before it runs it, for this test alone."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))


def plant(path: Path, traces: Path) -> None:
    """A Python file that leaves a trace when it is imported, and has a class of every name."""
    text = f"import pathlib\npathlib.Path({str(traces)!r}, {path.stem!r}).touch()\n"
    text += "import transformers\n"
    for name in ("BertForSequenceClassification", "BertModel", "PreTrainedTokenizerFast"):
        text += f"class {name}(transformers.{name}):\n    pass\n"  # (transformers puts a mark on classes that it loads)
    path.write_text(text, encoding="utf-8")


def change(path: Path, **values: Any) -> None:
    old = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(old | values), encoding="utf-8")


def source_with_code(tmp_path: Path, traces: Path) -> Path:
    """A classifier whose folder names code for its model and its tokenizer, some by the name of headcount's own file."""
    folder = tmp_path / "source"
    hc.save(small_models.classifier(), folder)
    small_models.word_tokenizer([" ".join(small_models.WORDS)]).save_pretrained(folder)
    for name in ("modeling_headcount", "modeling_evil", "tokenization_evil"):
        plant(folder / f"{name}.py", traces)
    code = {
        "AutoModelForSequenceClassification": "modeling_headcount.BertForSequenceClassification",
        "AutoModel": "modeling_evil.BertModel",
    }
    change(folder / "config.json", auto_map=code)
    change(
        folder / "tokenizer_config.json",
        auto_map={"AutoTokenizer": [None, "tokenization_evil.PreTrainedTokenizerFast"]},
    )
    return folder


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", ["transformers", "sentence-transformers"])
def test_no_code_of_the_source_runs(kind: str, cut: str, tmp_path: Path, traces: Path) -> None:
    if kind != "transformers":
        pytest.importorskip("sentence_transformers")
    source = source_with_code(tmp_path, traces)
    model = hc.load(source)
    hc.cut(model, CUTS[cut])
    written = export(model, kind, tmp_path / "out", source=source)
    assert [path.name for path in traces.iterdir()] == []
    out = written.path
    named = json.loads((out / "config.json").read_text(encoding="utf-8")).get("auto_map", {})
    assert {name.split(".")[0] for name in named.values()} == ({"modeling_headcount"} if "file" in cut else set())
    if named:
        assert "traces" not in (out / "modeling_headcount.py").read_text(encoding="utf-8")


def test_modules_with_code_of_their_own_are_refused(tmp_path: Path, traces: Path) -> None:
    pytest.importorskip("sentence_transformers")
    source = source_with_code(tmp_path, traces)
    rows = [{"idx": 0, "name": "0", "path": "", "type": "modeling_evil.BertModel"}]
    (source / "modules.json").write_text(json.dumps(rows), encoding="utf-8")
    model = hc.load(source)
    hc.cut(model, CUTS["the fixed file"])
    with pytest.raises(Refused, match=r"asks for modeling_evil\.BertModel, .* use --to transformers"):
        export(model, "sentence-transformers", tmp_path / "out", source=source)
    assert [path.name for path in traces.iterdir()] == []
    assert not (tmp_path / "out").exists()


def test_a_processor_that_needs_its_own_code_is_refused(tmp_path: Path, traces: Path) -> None:
    pytest.importorskip("sentence_transformers")
    source = source_with_code(tmp_path, traces)
    plant(source / "processing_evil.py", traces)
    change(source / "processor_config.json", auto_map={"AutoProcessor": "processing_evil.PreTrainedTokenizerFast"})
    model = hc.load(source)
    hc.cut(model, CUTS["a stock config"])
    with pytest.raises(Refused, match="comes with code, and headcount runs none: use --to transformers"):
        export(model, "sentence-transformers", tmp_path / "out", source=source)
    assert [path.name for path in traces.iterdir()] == []
    assert not (tmp_path / "out").exists()


def test_a_trace_is_left_where_code_does_run(tmp_path: Path, traces: Path) -> None:
    """So that the tests above can fail."""
    from transformers import AutoModel

    AutoModel.from_pretrained(source_with_code(tmp_path, traces), trust_remote_code=True)
    assert [path.name for path in traces.iterdir()] == ["modeling_evil"]
