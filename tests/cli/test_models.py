"""What may stand in the place of MODEL on the command line, and what the commands say about it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import zoo
from helpers.gguf_files import write_gguf
from typer.testing import CliRunner, Result

import headcount as hc
from headcount.cli import main
from headcount.cli.app import app
from headcount.model.loading import configs


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf")
    return write_gguf(zoo.build("llama")[0], tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_gguf_file_is_inspected_evaluated_and_cut(gguf_file: Path, tmp_path: Path) -> None:
    looked = run("inspect", gguf_file)
    assert (looked.exit_code, "LlamaForCausalLM" in looked.stdout) == (0, True)
    assert "note: the weights come from a GGUF file" in looked.stderr
    (tmp_path / "text.txt").write_text("a b ab a\nb ab a b\nab ab b a\n" * 4)
    task = ["--data", tmp_path / "text.txt", "--task", "language-modelling", "--max-length", 4, "--json"]
    values = []
    for name in (gguf_file, gguf_file.parent):
        measured = run("evaluate", name, *task, "-o", tmp_path / f"run-{len(values)}")
        assert measured.exit_code == 0, measured.output
        values.append(json.loads(measured.stdout)["value"])
    assert values[0] == pytest.approx(values[1], rel=1e-4)  # a mean of float32 losses, computed twice
    cut = run("cut", gguf_file, "0:0-1", "-o", tmp_path / "cut")
    assert cut.exit_code == 0, cut.output
    assert run("evaluate", tmp_path / "cut", *task, "-o", tmp_path / "run-cut").exit_code == 0
    run_file = json.loads((tmp_path / "run-0" / "run.json").read_text())
    assert run_file["question"]["model"]["weights"], "a run knows its model by the content of the file"


def test_an_adapter_says_what_it_is_merged_into(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, _ = zoo.build("bert")
    model.save_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["query"]))
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter")
    for words in (["inspect", tmp_path / "adapter"], ["cut", tmp_path / "adapter", "0:1", "-o", tmp_path / "cut"]):
        done = run(*words)
        assert done.exit_code == 0, done.output
        assert f"merged into {tmp_path / 'base'}" in " ".join(done.stderr.split())


def test_a_cut_says_how_to_load_what_it_wrote(tmp_path: Path) -> None:
    zoo.build("bert")[0].save_pretrained(tmp_path / "whole")
    done = run("cut", tmp_path / "whole", "0:1", "-o", tmp_path / "smaller")
    line = next(line for line in done.stdout.splitlines() if line.startswith("in Python: "))
    assert "a stock from_pretrained refuses it; headcount export writes it for other programs" in line
    names: dict[str, Any] = {}
    exec(line.removeprefix("in Python: "), names)
    assert hc.removed(names["model"]) == hc.Plan.of("0:1")
    done = run("cut", tmp_path / "whole", "layers:1", "-o", tmp_path / "stock", "--portable")
    assert "without headcount" in done.stdout


def test_what_a_stock_loader_says_of_a_cut_model_can_be_done(tmp_path: Path) -> None:
    """Both ways that its error names: the call, and the command."""
    import transformers

    zoo.build("bert")[0].save_pretrained(tmp_path / "whole")
    assert run("cut", tmp_path / "whole", "0:1", "-o", tmp_path / "smaller").exit_code == 0
    with pytest.raises(Exception, match="THIS MODEL WAS CUT BY HEADCOUNT") as caught:
        transformers.AutoModel.from_pretrained(tmp_path / "smaller")
    said = str(caught.value)
    call = re.search(r"headcount\.load\(.*?\)", said)
    command = re.search(r'headcount (export "THIS FOLDER" --to transformers -o EXPORTED)', said)
    assert call is not None
    assert command is not None
    smaller, exported = str(tmp_path / "smaller"), str(tmp_path / "exported")
    loaded = eval(call[0].replace("THIS FOLDER", smaller), {"headcount": hc})
    words = command[1].replace('"THIS FOLDER"', smaller).replace("EXPORTED", exported).split()
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert hc.removed(loaded) == hc.removed(hc.load(exported)) == hc.Plan.of("0:1")


def test_inspect_says_how_weights_are_stored(tmp_path: Path) -> None:
    import torch

    model, _ = zoo.build("bert", torch.float16)
    model.save_pretrained(tmp_path / "half")
    assert "stored in float16" in run("inspect", tmp_path / "half").stdout
    path = tmp_path / "half" / "config.json"
    settings = {"quant_method": "gptq", "bits": 4}
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": settings}))
    looked = run("inspect", tmp_path / "half")
    assert "stored in gptq, 4 bits" in looked.stdout
    assert "quantise the smaller one" in " ".join(looked.stdout.split())


WORDS = {
    "score": ["--data", "x.tsv"],
    "ablate": ["--data", "x.tsv"],
    "prune": ["--data", "x.tsv", "--remove", "1", "--dry-run"],
    "bench": [],
    "inspect": [],
    "cut": ["0:1", "--dry-run"],
}


@pytest.mark.parametrize("command", WORDS)
def test_a_typo_gets_the_same_answer_from_every_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "minilm-sst2").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(configs, "_can_reach_hub", lambda: False)
    monkeypatch.setattr("sys.argv", ["headcount", command, "minilm-sst3", *WORDS[command]])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    shown = capsys.readouterr().err
    assert "nearest here: minilm-sst2" in shown
    assert "Traceback" not in shown
