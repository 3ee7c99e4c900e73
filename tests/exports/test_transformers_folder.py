"""Folders for transformers without headcount: what a stock transformers makes of them is what the cut model is."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers import small_models, zoo
from helpers.same import close, same_weights
from helpers.small_decoders import decoder
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import headcount as hc
from headcount.errors import BadCheckpoint, Refused
from headcount.exports import transformers_folder as folder_format
from headcount.exports.pipeline import export


class Family(NamedTuple):
    """A tiny model of a family, and the auto class that loads it."""

    kind: str
    auto: str
    config: dict[str, Any]
    inputs: Callable[[], dict[str, Tensor]] = zoo.text


def padded_text() -> dict[str, Tensor]:
    """Two texts, one of which is shorter."""
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    return {**zoo.text(), "attention_mask": mask}


LAYERS = {"num_hidden_layers": 4}
SIDES = {"encoder_layers": 3, "decoder_layers": 3}
MASKED, CAUSAL, PAIRS = "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
WHISPER = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 20, "begin_suppress_tokens": None}
DISTIL = {"vocab_size": zoo.VOCAB, "dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 48}
FAMILIES = {
    "bert": Family("BertForMaskedLM", MASKED, zoo.ENCODER | LAYERS, padded_text),
    "roberta": Family("RobertaForMaskedLM", MASKED, zoo.ENCODER | LAYERS, padded_text),
    "xlm-roberta": Family("XLMRobertaForMaskedLM", MASKED, zoo.ENCODER | LAYERS, padded_text),
    "distilbert": Family("DistilBertForMaskedLM", MASKED, DISTIL, padded_text),
    "mpnet": Family("MPNetForMaskedLM", MASKED, zoo.ENCODER | LAYERS, padded_text),
    "modernbert": Family("ModernBertForMaskedLM", MASKED, zoo.MODERN | LAYERS, padded_text),
    "deberta-v2": Family("DebertaV2ForMaskedLM", MASKED, zoo.DISENTANGLED | LAYERS, padded_text),
    "gpt2": Family("GPT2LMHeadModel", CAUSAL, zoo.GPT | {"n_layer": 4, "n_inner": 48}),
    "llama": Family("LlamaForCausalLM", CAUSAL, zoo.GQA | LAYERS, padded_text),
    "mistral": Family("MistralForCausalLM", CAUSAL, zoo.GQA4 | LAYERS | {"sliding_window": 4}),
    "qwen2": Family("Qwen2ForCausalLM", CAUSAL, zoo.SQUARE | LAYERS | {"tie_word_embeddings": True}),
    "qwen3": Family("Qwen3ForCausalLM", CAUSAL, zoo.GQA4 | LAYERS),
    "gemma": Family("GemmaForCausalLM", CAUSAL, zoo.GQA | LAYERS | {"num_key_value_heads": 1}),
    "phi": Family("PhiForCausalLM", CAUSAL, zoo.DECODER | LAYERS | {"qk_layernorm": True}),
    "marian": Family("MarianMTModel", PAIRS, zoo.SEQ2SEQ | SIDES, zoo.text_to_text),
    "bart": Family("BartForConditionalGeneration", PAIRS, zoo.SEQ2SEQ | SIDES, zoo.text_to_text),
    "t5": Family("T5ForConditionalGeneration", PAIRS, zoo.T5 | {"num_layers": 3}, zoo.text_to_text),
    "vit": Family("ViTForImageClassification", "AutoModelForImageClassification", zoo.VISION | LAYERS, zoo.picture),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        "AutoModelForSpeechSeq2Seq",
        zoo.SEQ2SEQ | SIDES | WHISPER,
        zoo.spectrogram_to_text,
    ),
    # what the table says in other ways: a bias from outside, code that counts on all heads, a model without an auto class
    "bloom": Family(
        "BloomForCausalLM", CAUSAL, {**zoo.SPECIAL, "vocab_size": 64, "hidden_size": 32, "n_head": 4, "n_layer": 3}
    ),
    "codegen": Family("CodeGenForCausalLM", CAUSAL, zoo.GPT | {"n_layer": 3, "n_inner": 48, "rotary_dim": 4}),
    # names of weights on the disk that transformers changes for its own classes only
    "gpt_neox": Family("GPTNeoXForCausalLM", CAUSAL, zoo.DECODER | LAYERS),
}


def made(name: str) -> nn.Module:
    """The whole model of a family, with weights that let every part be felt."""
    import transformers

    kind = getattr(transformers, FAMILIES[name].kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(kind.config_class(**FAMILIES[name].config)).eval()
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data.normal_(std=0.15) if parameter.dim() > 1 else parameter.data.add_(
                    torch.randn_like(parameter), alpha=0.05
                )
    return model


def cut_unevenly(model: nn.Module) -> hc.Plan:
    """One head here, two there, a whole attention, some neurons, a whole MLP, and a layer of each stack that can go."""
    anatomy = hc.find(model)
    heads, mlps = anatomy.heads, anatomy.neurons
    units = [f"{heads[0].name}:0", f"{heads[1].name}:1-2", f"{heads[-1].name}:*"]
    units += [f"{mlps[0].name}:0-4", f"{mlps[1].name}:3", f"{mlps[-1].name}:*"]
    units += [last for s in anatomy.stacks if can_be_cut(model, last := f"{s.name}:{len(s) - 2}")]
    return hc.cut(model, " ".join(units))


class Written(NamedTuple):
    """A cut model, the folder it was exported to, and what a stock transformers made of that."""

    model: nn.Module
    folder: Path
    inputs: dict[str, Tensor]
    generates: bool
    want: dict[str, Tensor]
    got: dict[str, Tensor]
    error: str


@pytest.fixture(scope="module", autouse=True)
def modules_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where transformers copies the code of folders before it runs it, for these tests alone."""
    from transformers import dynamic_module_utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        patch.syspath_prepend(dynamic_module_utils.HF_MODULES_CACHE)
        yield Path(dynamic_module_utils.HF_MODULES_CACHE) / "transformers_modules"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    """Every family, cut, exported, and loaded by one interpreter that has no headcount."""
    place = tmp_path_factory.mktemp("exports")
    out, jobs = {}, []
    for name, family in FAMILIES.items():
        model, inputs = made(name), family.inputs()
        cut_unevenly(model)
        generates = hasattr(model, "generate")
        exported = export(model, "transformers", place / name, batch=inputs)
        assert exported.check.difference <= exported.check.allowed
        save_file(inputs, place / f"{name}.inputs")
        job = {"folder": str(place / name), "auto": family.auto, "generate": generates}
        job |= {"inputs": str(place / f"{name}.inputs"), "outputs": str(place / f"{name}.outputs")}
        jobs.append(job | {"saved": str(place / "again" / name)})
        out[name] = Written(model, place / name, inputs, generates, answers(model, inputs, generates), {}, "")
    errors = by_stock_transformers(place, jobs)
    return {
        name: one._replace(
            got=load_file(place / f"{name}.outputs") if (place / f"{name}.outputs").exists() else {},
            error=errors.get(str(one.folder), ""),
        )
        for name, one in out.items()
    }


def by_stock_transformers(place: Path, jobs: list[dict[str, Any]]) -> dict[str, str]:
    """Run jobs in an interpreter without headcount (`helpers/stock_transformers.py`); what went wrong, by folder."""
    (place / "jobs").write_text(json.dumps(jobs))
    script = Path(__file__).parents[1] / "helpers" / "stock_transformers.py"
    environment = {
        "PATH": "",
        "HOME": str(place),
        "HF_HOME": str(place / "hub"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-I", str(script), str(place / "jobs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=place)
    assert done.returncode == 0, done.stderr
    return json.loads((place / "errors").read_text())


def answers(model: Any, inputs: dict[str, Tensor], generates: bool) -> dict[str, Tensor]:
    """What `stock_transformers.answers` gives, of a model that is here; choices of tokens may not be near ties."""
    out = {"logits": zoo.output(model, inputs)}
    if generates:
        first = {n: v[:1] for n, v in inputs.items() if n not in ("decoder_input_ids", "attention_mask")}
        limits = dict(max_new_tokens=5, min_new_tokens=5, do_sample=False)
        result = model.generate(**first, **limits, output_scores=True, return_dict_in_generate=True)
        for scores in result.scores:
            best = scores[0].topk(2).values
            assert best[0] - best[1] > 1e-3, "a near tie: choose another seed"
        out["tokens"] = model.generate(**first, **limits)
    return out


# -- equal ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_stock_transformers_computes_and_generates_what_the_cut_model_does(
    name: str, written: dict[str, Written]
) -> None:
    one = written[name]
    assert not one.error
    assert close(one.got["logits"], one.want["logits"])
    if one.generates:
        assert torch.equal(one.got["tokens"], one.want["tokens"])


@pytest.mark.parametrize("name", FAMILIES)
def test_what_transformers_saves_of_it_loads_again_in_several_files_too(name: str, written: dict[str, Written]) -> None:
    one = written[name]
    again = one.folder.parent / "again" / name
    assert (again / folder_format.CODE.name).read_bytes() == folder_format.CODE.read_bytes()
    assert len([*again.glob("model-*.safetensors")]) > 1
    assert close(one.got["again logits"], one.want["logits"])
    assert torch.equal(one.got.get("again tokens", torch.zeros(0)), one.want.get("tokens", torch.zeros(0)))


@pytest.mark.parametrize("name", FAMILIES)
def test_headcount_reads_it_as_the_cut_model(name: str, written: dict[str, Written]) -> None:
    one = written[name]
    for folder in (one.folder, one.folder.parent / "again" / name):
        loaded = hc.load(folder)
        assert type(loaded) is type(one.model)
        assert same_weights(loaded, one.model)
        assert hc.removed(loaded).units == hc.removed(one.model).units
        assert close(zoo.output(loaded, one.inputs), one.want["logits"])
        left = {"auto_map", "headcount_shapes", "transformers_weights", "_heterogeneity_spec"} & vars(
            loaded.config
        ).keys()
        assert not left


# tables of other kinds: several towers and stacks, convolutions, windows, experts, latent attention, padded matrices
OTHERS = (
    "clip",
    "llava",
    "swin",
    "longformer",
    "falcon-gqa",
    "deepseek_v3",
    "qwen3_moe",
    "wav2vec2",
    "bert2bert",
    "imagegpt",
)
NOT_HELD = {"stablelm": r"norms\.7 is gone", "siglip": "is a OpenMultiheadAttention"}
LIBRARY = [name for name in zoo.ZOO if not name.startswith(("torch", "timm"))]


@pytest.mark.parametrize(
    "name",
    [name if name in OTHERS or name in NOT_HELD else pytest.param(name, marks=pytest.mark.slow) for name in LIBRARY],
)
def test_every_family_of_the_zoo_that_can_be_cut_is_held_or_refused(name: str, tmp_path: Path) -> None:
    model, inputs = zoo.build(name)
    anatomy = hc.find(model)
    wanted = [f"{anatomy.heads[0].name}:0", f"{anatomy.heads[-1].name}:*"]
    wanted += [f"{anatomy.neurons[0].name}:0-4", f"{anatomy.neurons[-1].name}:*"] if anatomy.neurons else []
    units = [unit for unit in wanted if can_be_cut(model, unit)]
    if not units:
        pytest.skip("nothing of it can be cut")
    hc.cut(model, " ".join(units))
    if name in NOT_HELD:
        with pytest.raises(Refused, match=NOT_HELD[name]):
            export(model, "transformers", tmp_path / "out", batch=inputs)
        return
    written = export(model, "transformers", tmp_path / "out", batch=inputs)
    assert written.check.difference <= written.check.allowed
    back = hc.load(tmp_path / "out")
    assert same_weights(back, model)


def can_be_cut(model: nn.Module, units: str) -> bool:
    try:
        hc.cut(model, units, dry_run=True)
    except Refused:
        return False
    return True


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "t5", "gpt_neox"])
def test_stock_classes_refuse_it_and_say_what_to_pass(name: str, written: dict[str, Written]) -> None:
    import transformers

    with pytest.raises(Exception, match="pass trust_remote_code=True"):
        getattr(transformers, FAMILIES[name].auto).from_pretrained(written[name].folder)


def test_decoders_say_the_sizes_of_their_layers_in_the_config(written: dict[str, Written]) -> None:
    values = json.loads((written["llama"].folder / "config.json").read_text())
    assert values["head_dim"] == 8
    assert values["per_layer_config"] == {
        "0": {"num_attention_heads": 7, "intermediate_size": 43},
        "1": {"num_attention_heads": 6, "intermediate_size": 47},
        "2": {"num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 1},
    }


@pytest.mark.parametrize("name", ["llama", "t5", "mpnet", "bloom"])
def test_it_computes_the_same_by_every_attention_kernel(name: str, written: dict[str, Written]) -> None:
    one = written[name]
    for kernel in ("eager", "sdpa"):
        try:
            loaded = loaded_from(one.folder, FAMILIES[name].auto, attn_implementation=kernel)
        except ValueError:
            assert name in ("bloom", "mpnet")  # they have one of their own
            continue
        assert close(zoo.output(loaded, one.inputs), one.want["logits"])
        assert loaded.config._attn_implementation == kernel


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_pass_without_gradients_leaves_later_ones_able_to_train(name: str, written: dict[str, Written]) -> None:
    one = written[name]
    loaded = loaded_from(one.folder, FAMILIES[name].auto)
    with torch.inference_mode():
        loaded(**one.inputs)
    zoo.judged(loaded(**one.inputs)).sum().backward()
    readers = hc.find(one.model).heads[0].readers
    path = next(path for path, module in one.model.named_modules() if module is readers[0])
    assert loaded.get_submodule(path).weight.grad.any()


# -- what goes along -------------------------------------------------------------------------------------------------------


def classifier(**config: Any) -> nn.Module:
    """A cut BERT with names of labels."""
    labels = {"id2label": {0: "bad", 1: "good", 2: "dull"}, "label2id": {"bad": 0, "good": 1, "dull": 2}}
    model = small_models.classifier(**labels, **config)
    hc.cut(model, "0:1 1:0-1 2:* 0.mlp:4-9")
    return model


def loaded_from(folder: Path, auto: str, **options: Any) -> Any:
    import transformers

    return getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True, **options)


def test_labels_the_tokenizer_and_the_number_format_come_along(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, pipeline

    tokenizer = small_models.word_tokenizer([" ".join(small_models.WORDS)])
    model = classifier().to(torch.bfloat16)
    export(model, "transformers", tmp_path / "out", tokenizer=tokenizer)
    loaded = loaded_from(tmp_path / "out", "AutoModelForSequenceClassification")
    assert loaded.dtype == torch.bfloat16
    assert loaded.config.id2label == {0: "bad", 1: "good", 2: "dull"}
    assert same_weights(loaded, model)
    assert (
        AutoTokenizer.from_pretrained(tmp_path / "out")("the film")["input_ids"] == tokenizer("the film")["input_ids"]
    )
    answer = pipeline("text-classification", str(tmp_path / "out"), trust_remote_code=True, device="cpu")(
        "the film is dull"
    )
    assert answer[0]["label"] in ("bad", "good", "dull")


def test_the_base_model_loads_by_itself(tmp_path: Path) -> None:
    model: Any = classifier()
    export(model, "transformers", tmp_path / "out")
    base = loaded_from(tmp_path / "out", "AutoModel")
    assert type(base).__name__ == "BertModel"
    assert same_weights(base, model.bert)


def test_weights_that_are_tied_stay_tied_and_generation_goes_as_configured(tmp_path: Path) -> None:
    model: Any = made("qwen2")
    cut_unevenly(model)
    model.generation_config.max_new_tokens = 3
    export(model, "transformers", tmp_path / "out")
    loaded = loaded_from(tmp_path / "out", "AutoModelForCausalLM")
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert loaded.generate(zoo.text()["input_ids"]).shape[1] == 7 + 3
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")


def test_other_number_formats_are_written_on_request(tmp_path: Path) -> None:
    model = classifier()
    export(model, "transformers", tmp_path / "half", dtype="f16")
    assert loaded_from(tmp_path / "half", "AutoModel").dtype == torch.float16
    assert model.dtype == torch.float32
    again = hc.load(tmp_path / "half")  # in float32, and stored in float16
    export(again, "transformers", tmp_path / "whole", dtype="f32")
    assert loaded_from(tmp_path / "whole", "AutoModel").dtype == torch.float32
    export(again, "transformers", tmp_path / "same")
    assert loaded_from(tmp_path / "same", "AutoModel").dtype == torch.float16


def test_it_trains_and_what_was_trained_loads_again(tmp_path: Path) -> None:
    export(classifier(), "transformers", tmp_path / "out")
    model = loaded_from(tmp_path / "out", "AutoModelForSequenceClassification").train()
    model(input_ids=small_models.texts(2), labels=torch.tensor([0, 1])).loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(0.1 * parameter.grad if parameter.grad is not None else torch.zeros_like(parameter))
    model.eval().save_pretrained(tmp_path / "trained")
    texts = {"input_ids": small_models.texts(3, seed=1)}
    assert close(zoo.output(hc.load(tmp_path / "trained"), texts), zoo.output(model, texts))


def test_where_a_stock_config_says_the_cut_there_is_no_code(tmp_path: Path) -> None:
    model = small_models.classifier()
    hc.cut(model, "0.mlp:4 1.mlp:5 2.mlp:6 layers:1")
    exported = export(model, "transformers", tmp_path / "out")
    assert not [*(tmp_path / "out").glob("*.py")]
    assert "auto_map" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert any("no trust_remote_code" in note for note in exported.notes)
    from transformers import AutoModelForSequenceClassification

    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert close(zoo.output(loaded, zoo.text()), zoo.output(model, zoo.text()))


def test_what_is_cut_further_and_saved_by_headcount_has_no_code_left(tmp_path: Path) -> None:
    export(classifier(), "transformers", tmp_path / "out")
    model = hc.load(tmp_path / "out")
    hc.cut(model, "0:0")
    hc.save(model, tmp_path / "further", source=tmp_path / "out")
    assert not [*(tmp_path / "further").glob("*.py")]
    assert "headcount_shapes" not in (tmp_path / "further" / "config.json").read_text()
    export(model, "transformers", tmp_path / "again", source=tmp_path / "out")
    assert same_weights(loaded_from(tmp_path / "again", "AutoModelForSequenceClassification"), model)


# -- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"int8": True}, "eight bits"), ({"multiple": 8}, "any size"), ({"dtype": "q4_0"}, "no weights of 'q4_0'")],
)
def test_what_it_cannot_write_is_refused_with_a_remedy(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=reason):
        export(classifier(), "transformers", tmp_path / "out", batch=zoo.text(), **settings)
    assert not (tmp_path / "out").exists()


def test_models_of_others_are_refused(tmp_path: Path) -> None:
    model, inputs = zoo.build("torch-encoder")
    with pytest.raises(Refused, match=r"TransformerEncoder is not a class of transformers: .*hc\.save"):
        export(model, "transformers", tmp_path / "out", batch=inputs)


def test_a_module_that_the_table_has_no_words_for_is_refused(tmp_path: Path) -> None:
    model: Any = classifier()
    model.bert.encoder.layer[0].attention.self.query = nn.Sequential(model.bert.encoder.layer[0].attention.self.query)
    with pytest.raises(Refused, match="query is a Sequential and the stock model's a Linear"):
        export(model, "transformers", tmp_path / "out", batch=zoo.text())


def test_a_value_that_the_table_has_no_words_for_is_refused(tmp_path: Path) -> None:
    model: Any = classifier()
    model.bert.encoder.layer[1].attention.self.scaling = 0.5
    with pytest.raises(Refused, match=r"layer\.1\.attention\.self has another scaling than the stock model's"):
        export(model, "transformers", tmp_path / "out", batch=zoo.text())


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    model: Any = classifier()
    query = model.bert.encoder.layer[0].attention.self.query
    query.weight = nn.Parameter(query.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(Refused, match="its weights are quantised: load it without"):
        export(model, "transformers", tmp_path / "out", batch=zoo.text())


def test_a_model_made_from_the_config_alone_has_weights_to_train(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    export(classifier(), "transformers", tmp_path / "out")
    config = AutoConfig.from_pretrained(tmp_path / "out")
    fresh = AutoModelForSequenceClassification.from_config(config, trust_remote_code=True)
    assert all(
        parameter.any() for name, parameter in fresh.named_parameters() if name.endswith("weight") and parameter.numel()
    )


def test_the_check_finds_a_wrong_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, really = classifier(), folder_format.write

    def shuffled(*args: Any, **options: Any) -> Any:
        notes = really(*args, **options)
        path = args[1] / "model.safetensors"
        weights = load_file(path)
        weights["bert.encoder.layer.0.attention.self.query.weight"].neg_()
        save_file(weights, path, {"format": "pt"})
        return notes

    monkeypatch.setattr(folder_format, "write", shuffled)
    with pytest.raises(hc.errors.CheckFailed, match="differ from the model's"):
        export(model, "transformers", tmp_path / "out", batch=zoo.text())
    assert not (tmp_path / "out").exists()


def test_repeated_key_value_heads_are_what_only_the_code_can_hold(tmp_path: Path) -> None:
    model = made("llama")
    hc.cut(model, "0:0")
    export(model, "transformers", tmp_path / "out", groups="repeat", batch=zoo.text())
    loaded = loaded_from(tmp_path / "out", "AutoModelForCausalLM")
    assert close(zoo.output(loaded, zoo.text()), zoo.output(model, zoo.text()))
    with pytest.raises(BadCheckpoint, match="only the code in the folder holds"):
        hc.load(tmp_path / "out")


# -- code and data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", [False, True])
def test_headcount_does_not_run_the_code_in_a_folder(trust: bool, tmp_path: Path) -> None:
    model = classifier()
    export(model, "transformers", tmp_path / "out")
    bait = f"\nopen({str(tmp_path / 'ran')!r}, 'w').close()\n"
    (tmp_path / "out" / folder_format.CODE.name).write_text(folder_format.CODE.read_text() + bait)
    assert same_weights(hc.load(tmp_path / "out", trust_remote_code=trust), model)
    assert not (tmp_path / "ran").exists()
    loaded_from(tmp_path / "out", "AutoModel")
    assert (tmp_path / "ran").exists()  # it is run by those who ask for it


def test_the_code_stands_alone_and_is_the_same_for_all(written: dict[str, Written]) -> None:
    text = folder_format.CODE.read_text()
    assert all((one.folder / folder_format.CODE.name).read_text() == text for one in written.values())
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported == {"__future__", "inspect", "functools", "typing", "torch", "transformers"}
    assert not {"eval", "exec", "compile", "open", "__import__"} & {
        node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)
    }


@pytest.fixture(scope="module")
def code() -> Any:
    """The fixed file as a module."""
    spec = importlib.util.spec_from_file_location("modeling_headcount", folder_format.CODE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["AutoModel", "pipeline", "BertConfig", "utils", "NoModel", "_LazyModule"])
def test_the_code_gives_model_classes_of_transformers_and_nothing_else(name: str, code: Any) -> None:
    with pytest.raises(AttributeError, match="is not a model class of transformers"):
        getattr(code, name)


QUERY = "encoder.layer.0.attention.self.query"
BAD_TABLES: dict[str, Any] = {
    "no module": {"encoder.layer.9": {}},
    "keys that mean nothing": {QUERY: {"code": "print()"}},
    "no list": {QUERY: {"shapes": {"weight": "24"}}},
    "no whole number from 0": {QUERY: {"shapes": {"weight": [-1, 32]}}},
    "64 times as large": {QUERY: {"shapes": {"weight": [10**9, 32]}}},
    "no parameter 'forward'": {QUERY: {"shapes": {"forward": [1, 2]}}},
    "of 1 axes": {QUERY: {"shapes": {"weight": [24]}}},
    "has no whole number 'forward'": {QUERY: {"numbers": {"forward": 1}}},
    "has no whole number 'training'": {QUERY: {"numbers": {"training": 1}}},
    "'24' for": {QUERY: {"numbers": {"out_features": "24"}}},
    "reads no 'model_type'": {"encoder.layer.0.attention.self": {"config": {"model_type": 1}}},
    "heads beyond": {"encoder.layer.0.attention.self": {"heads": [4], "of": 4}},
    "takes no 'self'": {"encoder.layer.0.attention.self": {"heads": [1], "of": 4, "slices": [["self", 0, 1]]}},
    "not triples": {"encoder.layer.0.attention.self": {"heads": [1], "of": 4, "slices": [[1]]}},
    "is not a matrix": {"encoder.layer.0": {"outputs": 8}},
    "64 times as many numbers": {QUERY: {"outputs": 10**12, "shapes": {"weight": [0, 32], "bias": [0]}}},
    "64 times as many rows": {QUERY: {"rows": [1], "in_all": 10**12}},
    "rows beyond": {QUERY: {"rows": [9], "in_all": 9}},
    "does not map": {QUERY: {"shapes": [1]}},
}


@pytest.mark.parametrize("what", BAD_TABLES)
def test_a_damaged_table_is_said_in_one_sentence(what: str, code: Any) -> None:
    config = small_models.classifier().config
    config.headcount_shapes = {"version": 1, "modules": BAD_TABLES[what]}
    with pytest.raises(ValueError, match=rf"headcount_shapes in config\.json cannot be used: .*{what}"):
        code.BertForSequenceClassification(config)


def test_a_bias_that_the_stock_matrix_lacks_has_one_number_for_each_output(code: Any) -> None:
    config = decoder("llama").config
    config.headcount_shapes = {"version": 1, "modules": {"layers.0.mlp.down_proj": {"shapes": {"bias": [3]}}}}
    with pytest.raises(ValueError, match="its bias has other sizes"):
        code.LlamaForCausalLM(config)


@pytest.mark.parametrize("table", [7, {}, {"version": 1}, {"version": 2, "modules": {}}, {"version": 1, "modules": []}])
def test_what_is_no_table_is_refused(table: Any, code: Any) -> None:
    config = small_models.classifier().config
    config.headcount_shapes = table
    with pytest.raises(ValueError, match=r"headcount_shapes in config\.json cannot be used"):
        code.BertForSequenceClassification(config)


def test_an_earlier_transformers_is_told_apart(code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    config = small_models.classifier().config
    config.headcount_shapes = {"version": 1, "modules": {}}
    code.BertForSequenceClassification(config)
    monkeypatch.setattr(transformers, "__version__", "4.57.3")
    with pytest.raises(
        ValueError, match=r"in other ways by transformers 4\.57\.3; .*the transformers_version that config"
    ):
        code.BertForSequenceClassification(config)


def test_the_copy_of_the_code_that_checking_made_is_gone(tmp_path: Path, modules_folder: Path) -> None:
    export(classifier(), "transformers", tmp_path / "out", batch=zoo.text())
    assert not [*modules_folder.glob("*unfinished*")]
    loaded_from(tmp_path / "out", "AutoModel")
    assert [*modules_folder.glob("out/*/*.py")]  # it is there that it would have been
