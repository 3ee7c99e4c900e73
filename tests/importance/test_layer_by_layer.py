"""Criteria of a model that is run one layer at a time: the numbers of the ordinary ones, and one layer in memory."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import Fingerprint, says
from helpers.same import alike, close, same_weights
from helpers.small_models import folder_and_data, padded_task, ran, ran_json, texts, zoo_task
from torch import Tensor, nn

import headcount as hc
from headcount import runs
from headcount.errors import Refused
from headcount.evaluation import layer_by_layer
from headcount.importance.criteria import LAYER_BY_LAYER
from headcount.model.loading import lazy_files
from headcount.model.loading.lazy_tensors import is_lazy
from headcount.runs import Run

from .test_activations import KINDS, made

EVERY = [(by, "heads,neurons") for by in LAYER_BY_LAYER] + [("block-influence", "layers"), ("wanda", "kv-groups")]
QUESTION = {"command": "score", "model": "a", "data": "b"}


def stored(model: nn.Module, folder: Path) -> Path:
    return hc.save(model, folder, max_shard_size="20KB")


def same(got: hc.Scores, want: hc.Scores) -> bool:
    assert got.samples is not None
    assert want.samples is not None
    return close(got.raw, want.raw) and close(got.samples, want.samples) and got.units == want.units


def prose(count: int = 5) -> hc.data.Task:
    """Texts of one length, in batches of two."""

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(**batch).logits.tanh().flatten(1).sum(1)

    rows = [{"input_ids": row} for row in texts(count).tolist()]
    return padded_task(rows, loss, {"input_ids": 0}, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_with_padding_every_criterion_is_the_ordinary_one(kind: str, tmp_path: Path) -> None:
    model, task = made(kind)
    folder = stored(model, tmp_path / "m")
    whole, streamed = hc.load(folder), hc.load(folder, lazy=True)
    for each in (whole, streamed):
        each.config.pad_token_id = model.config.pad_token_id
    for by, units in EVERY:
        want, got = (hc.score(each, task, by, units=units) for each in (whole, streamed))
        assert same(got, want), (by, units)
        assert got.signature == want.signature
    assert is_lazy(streamed)


# sliding windows, tied embeddings, position biases from the first layer, experts, layers of two kinds, pictures, two towers
FAMILIES = [
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "phi",
    "opt",
    "t5",
    "mixtral",
    "lfm2",
    "falcon-gqa",
    "mpt",
    "qwen2",
    "qwen3",
    "mistral",
]
FAMILIES += ["vit", "clip", "whisper", "longformer", "modernbert"]


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_scored_as_they_are_ordinarily(family: str, tmp_path: Path) -> None:
    model, task = zoo_task(family)
    folder = stored(model, tmp_path / "m")
    whole, streamed = hc.load(folder), hc.load(folder, lazy=True)
    for by, units in (("flap", "heads"), ("activation", "heads"), ("block-influence", "layers")):
        assert same(hc.score(streamed, task, by, units=units), hc.score(whole, task, by, units=units)), by


class Watch:
    """Of which layers there were weights in memory at once, and how often each tensor was read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.live: dict[str, int] = {}
        self.together: set[frozenset[str]] = set()
        read = lazy_files.read_tensor

        def watched(path: str, name: str) -> Tensor:
            array = read(path, name).numpy().copy()
            layer = name.split("layers.")[1].split(".")[0] if "layers." in name else "none"
            self.names.append(name)
            self.live[layer] = self.live.get(layer, 0) + 1
            self.together.add(frozenset(self.live) - {"none"})
            weakref.finalize(array, self._gone, layer)
            return torch.from_numpy(array)

        monkeypatch.setattr(lazy_files, "read_tensor", watched)

    def _gone(self, layer: str) -> None:
        self.live[layer] -= 1
        if not self.live[layer]:
            del self.live[layer]


def small_llama(layers: int = 3) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=layers, num_attention_heads=2, vocab_size=64,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def test_one_layer_is_in_memory_at_a_time_and_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    streamed = hc.load(stored(small_llama(), tmp_path / "m"), lazy=True)
    watch = Watch(monkeypatch)
    hc.score(streamed, prose(), "wanda", units="heads,neurons")
    assert watch.together == {frozenset(), frozenset("0"), frozenset("1"), frozenset("2")}
    layers = [name for name in watch.names if "layers." in name]
    twice = {name for name in layers if layers.count(name) > 1}
    assert all("o_proj" in name or "down_proj" in name for name in twice), "only wanda's own weights are read again"
    assert max(map(layers.count, layers)) == 2


def test_the_model_is_as_it_was_afterwards(tmp_path: Path) -> None:
    streamed, task = hc.load(stored(small_llama(), tmp_path / "m"), lazy=True), prose()
    before = Fingerprint(streamed)
    for by, units in EVERY:
        hc.score(streamed, task, by, units=units)
    assert before.changed() == []

    def broken(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        model(**batch)
        raise ValueError("at the end of a pass")

    with pytest.raises(ValueError, match="at the end of a pass"):
        hc.score(streamed, hc.custom_task([{"input_ids": texts(2)}], loss=broken), "wanda")
    assert before.changed() == []


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize(("by", "units"), [("wanda", "heads,neurons"), ("block-influence", "layers")])
def test_a_run_that_is_killed_at_any_write_goes_on_after_the_last_finished_layer(
    by: str, units: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    streamed, task = hc.load(stored(small_llama(), tmp_path / "m"), lazy=True), prose(4)
    with Run.open(tmp_path / "quiet", QUESTION) as run:
        want = hc.score(streamed, task, by, units=units, run=run)
    pieces = {name: runs.read(tmp_path / "quiet").read(name) for name in runs.read(tmp_path / "quiet").pieces}
    assert [len(pieces), list((tmp_path / "quiet").glob("*/"))] == [3, []], "no output of a layer is left"
    write, left = runs.write_whole, 0

    def dying(*arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        write(*arguments)

    monkeypatch.setattr(runs, "write_whole", dying)
    watch, run_folder = Watch(monkeypatch), tmp_path / "killed"
    for after in (
        2,
        3,
        4,
        6,
        7,
        9,
        10,
    ):  # writes until the process dies; the question, two outputs and a piece per layer
        left = after
        try:
            with Run.open(run_folder / str(after), QUESTION) as run:
                hc.score(streamed, task, by, units=units, run=run)
            break
        except Killed:
            pass
        finished = len(runs.read(run_folder / str(after)).pieces)
        left = 1000
        del watch.names[:]
        with Run.open(run_folder / str(after), QUESTION) as run:
            got = hc.score(streamed, task, by, units=units, run=run)
        again = {name.split(".")[2] for name in watch.names if "layers." in name and "input_layernorm" in name}
        assert again == {str(n) for n in range(finished, 3)}, "a finished layer ran again, or another one did not"
        assert same(got, want)
        record = runs.read(run_folder / str(after))
        for name, arrays in pieces.items():
            assert all(close(record.read(name)[key], values) for key, values in arrays.items())
        assert list((run_folder / str(after)).glob("*/")) == []
    assert after == 10, "the last of them lived"


def test_where_outputs_of_layers_were_deleted_they_are_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    streamed, task = hc.load(stored(small_llama(), tmp_path / "m"), lazy=True), prose(4)
    want = hc.score(streamed, task, "wanda")
    through = layer_by_layer._Work.through

    def dying(self: Any, *arguments: Any) -> Any:
        if len(self.done) == 2:
            raise Killed
        return through(self, *arguments)

    with monkeypatch.context() as patch, Run.open(tmp_path / "run", QUESTION) as run:
        patch.setattr(layer_by_layer._Work, "through", dying)
        with pytest.raises(Killed):
            hc.score(streamed, task, "wanda", run=run)
    for path in (tmp_path / "run" / layer_by_layer.FOLDER).iterdir():
        path.unlink()
    with Run.open(tmp_path / "run", QUESTION) as run:
        assert same(hc.score(streamed, task, "wanda", run=run), want)


def test_examples_go_one_by_one_where_a_batch_does_not_tell_padding(tmp_path: Path) -> None:
    """A mask that is one longer than the text; where one example alone has padding in it, nothing can be said."""

    def task(first: int) -> hc.data.Task:
        rows = [
            {"input_ids": row, "attention_mask": [1] * (len(row) + 1)} for row in ([5, 6, 7], [8, 9, 10, 11], [4, 4])
        ]
        rows[0]["attention_mask"][0] = first

        def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
            output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"][:, 1:])
            return output.logits.tanh().flatten(1).sum(1)

        return padded_task(rows, loss, {"input_ids": 0, "attention_mask": 0}, 3)

    folder = stored(small_llama(), tmp_path / "m")
    whole, streamed = hc.load(folder), hc.load(folder, lazy=True)
    for by in ("wanda", "block-influence"):
        assert same(hc.score(streamed, task(1), by), hc.score(whole, task(1), by))
        for model in (whole, streamed):
            with says(Refused, about="padding cannot be told"):
                hc.score(model, task(0), by)


# -- refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["taylor", "fisher", "ablation", "entropy", "lrp-epsilon"])
def test_criteria_that_need_all_layers_are_refused(by: str, tmp_path: Path) -> None:
    streamed = hc.load(stored(small_llama(), tmp_path / "m"), lazy=True)
    with says(Refused, about=f"{by} needs all layers at once"):
        hc.score(streamed, prose(), by)


def test_criteria_without_data_are_as_ever(tmp_path: Path) -> None:
    folder = stored(small_llama(), tmp_path / "m")
    whole, streamed = hc.load(folder), hc.load(folder, lazy=True)
    for by in ("magnitude", "random"):
        assert close(
            hc.score(streamed, by=by, units="heads,neurons").raw, hc.score(whole, by=by, units="heads,neurons").raw
        )


@pytest.mark.parametrize(
    ("family", "about"),
    [
        ("albert", "AlbertLayer runs more than once in a pass"),
        ("xlm", "is in no list of layers"),
        ("siglip", "vision_model.head"),
    ],
)
def test_what_cannot_go_layer_by_layer_is_refused_with_the_reason(family: str, about: str, tmp_path: Path) -> None:
    model, task = zoo_task(family)
    streamed = hc.load(stored(model, tmp_path / "m"), lazy=True)
    before = Fingerprint(streamed)
    with says(Refused, about=about):
        hc.score(streamed, task, "wanda")
    assert before.changed() == []


def test_layers_that_read_what_earlier_ones_made_are_refused(tmp_path: Path) -> None:
    streamed, seen = hc.load(stored(small_llama(), tmp_path / "m"), lazy=True), []
    layers = streamed.model.layers
    layers[0].register_forward_hook(lambda _, __, output: seen.append(output))
    layers[2].register_forward_pre_hook(lambda _, args: (args[0] + seen[-1], *args[1:]))
    with says(Refused, about="LlamaDecoderLayer is given what layers before the last one made"):
        hc.score(streamed, prose(), "wanda")


def test_layers_that_hand_on_more_than_what_they_give_out_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    kinds = ["sliding_attention", "full_attention"] * 2
    config = transformers.Gemma3nTextConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, vocab_size=64, vocab_size_per_layer_input=64, hidden_size_per_layer_input=8, laurel_rank=4,
        num_kv_shared_layers=2, layer_types=kinds, activation_sparsity_pattern=[0.0] * 4, altup_num_inputs=2,
    )  # fmt: skip
    model = transformers.Gemma3nForCausalLM(config).eval()
    streamed = hc.load(stored(model, tmp_path / "m"), lazy=True)
    with says(Refused, about="take keys and values from earlier ones"):
        hc.score(streamed, prose(), "wanda")
    anatomy = hc.find(streamed)  # and where the config did not say so
    own = layer_by_layer.Streamed(streamed, anatomy, prose(), [[0]])
    with torch.no_grad(), says(Refused, about="hands on more than what it gives out"):
        layer_by_layer.layer_by_layer(own, lambda *_: {})


def test_a_model_that_the_loss_calls_twice_is_refused(tmp_path: Path) -> None:
    def twice(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return sum(model(**batch).logits.tanh().flatten(1).sum(1) for _ in range(2))

    streamed = hc.load(stored(small_llama(1), tmp_path / "m"), lazy=True)
    with says(Refused, about="runs more than once"):
        hc.score(streamed, hc.custom_task([{"input_ids": texts(2)}], loss=twice), "wanda")


# -- the commands ---------------------------------------------------------------------------------------------------------


def test_the_commands_from_scores_to_a_smaller_model(tmp_path: Path) -> None:
    folder = folder_and_data(tmp_path, 3)
    results = {}
    for name, score_flags, cut_flags in (("want", [], []), ("got", ["--stream"], ["--shards", "--shard-size", "20KB"])):
        flags = ["--data", folder / "data.tsv", "--by", "wanda", "--units", "heads,neurons", "--batch-size", "8"]
        results[name] = ran_json("score", folder / "model", *flags, "--run", tmp_path / name, *score_flags)
        scores = ["--scores", tmp_path / name / "scores.json", "--remove", "30%"]
        done = ran("cut", folder / "model", *scores, "-o", tmp_path / f"{name}-cut", *cut_flags)
        assert done.exit_code == 0, done.output
    assert alike(*({key: value for key, value in one.items() if key != "run"} for one in results.values()))
    assert same_weights(hc.load(tmp_path / "got-cut"), hc.load(tmp_path / "want-cut"))


def test_a_refusal_of_the_command_is_one_sentence_and_leaves_no_folder(tmp_path: Path) -> None:
    folder = folder_and_data(tmp_path, 2)
    with says(Refused, about="taylor needs all layers at once"):
        ran("score", folder / "model", "--data", folder / "data.tsv", "--stream", "--run", tmp_path / "run")
    assert not (tmp_path / "run").exists()
