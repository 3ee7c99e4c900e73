"""GGUF files: llama.cpp gives what the cut model gives, and `load` gives the cut model back."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import torch
from helpers import zoo
from helpers.same import close, same_weights
from helpers.small_decoders import CHAT, LLAMA3_ROPE, byte_tokenizer, decoder, sentencepiece_tokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

import headcount as hc
from headcount.cli.app import app
from headcount.data.encoding import loaded_tokenizer
from headcount.errors import BadCheckpoint, BadData, BadMeasure, CheckFailed, Refused
from headcount.exports import gguf_file, gguf_speed
from headcount.exports.formats import Settings
from headcount.exports.llama_cpp import layers, runtime
from headcount.exports.llama_cpp import tokenizer as tokenizers
from headcount.model.loading import gguf_files
from headcount.model.loading.gguf_files import CONFIG, head

gguf = pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")

EXACT = 1e-4  # llama.cpp and torch add up numbers of float32 in other orders
IDS = torch.arange(5, 37)[None]
UNEVEN = "0.mlp:0-32 1:0,1 2.mlp:0-63"
TIED = {"tie_word_embeddings": True}
BIASED = {"attention_bias": True, "mlp_bias": True}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer()


def exported(model: Any, path: Path, tokenizer: Any, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """An export, compared in llama.cpp; and the head of its file."""
    done = hc.export(model, "gguf", path / "model.gguf", tokenizer=tokenizer, **settings)
    assert "llama.cpp" in done.check.runtime
    return done, head(done.path)


# -- what llama.cpp gives ------------------------------------------------------------------------------------------------

# family, what differs in its config, what is cut, and the architecture that holds the rest
CASES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "llama-whole": ("llama", {}, "", "llama"),
    "llama-tied": ("llama", TIED, UNEVEN, "deci"),
    "llama-even": ("llama", {}, "*.mlp:0-31 layers:1", "llama"),
    "llama-uneven": ("llama", {}, UNEVEN, "deci"),
    "llama-biased": ("llama", BIASED, "", "deci"),
    "llama-biased-parts-gone": ("llama", BIASED, "0:* 1:* 1.mlp:* 2.mlp:* 3:0,2", "deci"),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}, "", "llama"),
    "llama3-rope-uneven": ("llama", {"rope_parameters": LLAMA3_ROPE}, UNEVEN, "deci"),
    "llama-linear-rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        UNEVEN,
        "deci",
    ),
    "mistral": ("mistral", {}, UNEVEN, "deci"),
    "qwen2-whole": ("qwen2", TIED, "", "qwen2"),
    "qwen2-uneven": ("qwen2", {}, UNEVEN, "deci"),
    "qwen2-llama3-rope": ("qwen2", {"rope_parameters": LLAMA3_ROPE}, "", "deci"),
    "qwen3-whole": ("qwen3", {}, "", "qwen3"),
    "qwen3-uneven": ("qwen3", TIED, UNEVEN, "openelm"),
    "qwen3-parts-gone": ("qwen3", TIED, "0:* 1:* 2.mlp:* 3:0,2 layers:2", "openelm"),
    "attention-free": ("llama", {}, "1:* 3:* 2:0,2", "deci"),
    "first-attention-free": ("llama", {}, "0:*", "deci"),
    "mlp-free": ("llama", {}, "1.mlp:* 3.mlp:*", "deci"),
    "layers-of-nothing": ("llama", {}, "0:* 0.mlp:* 3:* 3.mlp:*", "llama"),
    "layers-gone": ("qwen2", {}, "layers:0,2 1.mlp:5", "deci"),
}


@pytest.mark.parametrize("case", CASES)
def test_llama_cpp_gives_what_the_cut_model_gives_and_load_gives_the_model(
    case: str, tmp_path: Path, tokenizer: Any
) -> None:
    family, config, plan, architecture = CASES[case]
    model = decoder(family, **config)
    hc.cut(model, plan)
    before, want = copy.deepcopy(model.state_dict()), model(input_ids=IDS).logits
    done, keys = exported(model, tmp_path, tokenizer)
    assert done.check.difference < EXACT
    assert keys["general.architecture"] == architecture
    assert same_weights(model, before), "the model itself is as it was"
    loaded = hc.load(done.path)
    assert type(loaded) is type(model)
    assert hc.removed(loaded).units == hc.removed(model).units
    assert close(loaded(input_ids=IDS).logits, want)
    idle = gguf_files.idle_norms(model)
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in before.items() if name not in idle)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("groups", ["pad", "repeat"])
def test_uneven_groups_are_refused_or_made_even_and_come_back(
    family: str, groups: str, tmp_path: Path, tokenizer: Any
) -> None:
    model = decoder(family, **TIED)
    hc.cut(model, "0:1 1:* 2:0 3:2 layers:2 0.mlp:0-9")
    with pytest.raises(Refused, match=r"layer 0 has groups of 2 and 1 query heads: use --groups pad \(exact"):
        exported(model, tmp_path, tokenizer)
    done, keys = exported(model, tmp_path, tokenizer, groups=groups)
    assert done.check.difference < EXACT
    architecture = keys["general.architecture"]
    counts = zip(*(keys[f"{architecture}.attention.{name}"] for name in gguf_files.COUNTS), strict=True)
    assert all(kv == 0 or heads % kv == 0 for heads, kv in counts)
    loaded = hc.load(done.path)
    assert close(loaded(input_ids=IDS).logits, model(input_ids=IDS).logits)
    if groups == "repeat":  # a copy of a key-value head is no unit; zero heads are heads that are masked
        assert hc.removed(loaded).units == hc.removed(model).units
        idle = gguf_files.idle_norms(model)
        assert all(
            torch.equal(t, loaded.state_dict()[name]) for name, t in model.state_dict().items() if name not in idle
        )
    again = hc.load(hc.save(loaded, tmp_path / "folder"))
    assert same_weights(again, loaded.state_dict())


def test_the_traps_of_llama_cpp_are_gone_around(tmp_path: Path, tokenizer: Any) -> None:
    """A first layer of no heads is not loaded, and beside an MLP of no neurons the attention is dropped without a word."""
    model = decoder("llama")
    hc.cut(model, "0:* 1:* 2.mlp:* 3:0,2")
    done, keys = exported(model, tmp_path, tokenizer)
    assert keys["deci.attention.head_count"] == [1, 0, 4, 2]
    assert keys["deci.attention.head_count_kv"] == [1, 0, 2, 2]
    assert keys["deci.feed_forward_length"] == [96, 96, 32, 96]
    assert "1 attention of nothing is one head with zero output" in done.notes
    assert "32 neurons of zeros are added" in done.notes


def test_a_layer_of_nothing_is_left_out(tmp_path: Path, tokenizer: Any) -> None:
    model = decoder("llama")
    hc.cut(model, "1:* 1.mlp:* 3.mlp:0")
    done, keys = exported(model, tmp_path, tokenizer)
    assert keys["deci.block_count"] == 3
    assert "1 layer of nothing is left out" in done.notes
    hc.cut(model, "0:* 0.mlp:* 2:* 2.mlp:* 3:* 3.mlp:*")
    assert exported(model, tmp_path, tokenizer, force=True)[1]["llama.block_count"] == 1, "llama.cpp wants one layer"


# -- a file that llama.cpp would read wrongly gets no name -----------------------------------------------------------------


def _same(rows: torch.Tensor, _: int) -> torch.Tensor:
    return rows


@pytest.mark.parametrize("bug", ["rotation", "neurons", "scaling", "order of heads"])
def test_a_bug_is_seen_in_llama_cpp(bug: str, tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a mistake that the reader makes too, so that its weights are right and only llama.cpp shows it."""
    model = decoder("llama", rope_parameters=LLAMA3_ROPE, attention_bias=True)
    hc.cut(model, "1.mlp:*")
    assert exported(model, tmp_path, tokenizer)[0].check.difference < EXACT
    if bug == "rotation":
        monkeypatch.setattr(layers, "pairs", _same)
        monkeypatch.setattr(gguf_files, "halves", _same)
    elif bug == "order of heads":
        monkeypatch.setattr(layers, "pairs", lambda rows, size: layers_pairs(rows, size).flip(0))
        monkeypatch.setattr(gguf_files, "halves", lambda rows, size: gguf_halves(rows.flip(0), size))
    elif bug == "neurons":
        monkeypatch.setattr(layers, "NO_NEURONS", 0)
    elif bug == "scaling":
        monkeypatch.setattr(layers, "rope_factors", lambda _: None)
    with pytest.raises(CheckFailed, match=r"llama\.cpp"):
        exported(model, tmp_path / "other", tokenizer)
    assert not (tmp_path / "other" / "model.gguf").exists()


layers_pairs, gguf_halves = layers.pairs, gguf_files.halves


def test_a_weight_that_is_wrong_by_one_bit_is_seen_by_the_reader(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = gguf_file._stored

    def nearly(tensor: Any, kind: Any) -> Any:
        values = stored(tensor, kind)
        if tensor.name == "blk.2.ffn_up.weight":
            values.view("uint8")[0, 0] ^= 1
        return values

    monkeypatch.setattr(gguf_file, "_stored", nearly)
    with pytest.raises(CheckFailed, match="the weights in the file, beyond their rounding"):
        exported(decoder("llama"), tmp_path, tokenizer)


def test_without_llama_cpp_the_reader_checks_and_says_so(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "is_installed", lambda: False)
    done = hc.export(decoder("llama"), "gguf", tmp_path / "model.gguf", tokenizer=tokenizer)
    assert done.check.runtime == "headcount's own reader"
    assert "llama.cpp is not installed here (pip install xllamacpp)" in str(done)


# -- number formats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0", "q4_0"])
def test_number_formats_round_as_they_say(dtype: str, tmp_path: Path, tokenizer: Any) -> None:
    model = decoder("llama", num_key_value_heads=4)
    hc.cut(model, "0.mlp:0-3 1:0")
    done, keys = exported(model, tmp_path, tokenizer, dtype=dtype, multiple=32)
    assert keys["deci.feed_forward_length"] == [96] * 4
    loaded = hc.load(done.path)
    kinds = {t.name: t.tensor_type.name.lower() for t in gguf.GGUFReader(str(done.path)).tensors}
    odd = "f16" if dtype in gguf_file.BLOCKED else dtype  # rows of three heads are no multiple of 32 numbers
    assert [kinds[f"blk.{n}.attn_output.weight"] for n in (0, 1)] == [dtype, odd]
    assert {kinds["blk.1.attn_q.weight"], kinds["blk.0.ffn_down.weight"]} == {dtype}
    assert kinds["token_embd.weight"] == kinds["output.weight"] == ("q8_0" if dtype == "q4_0" else dtype)
    assert kinds["blk.0.attn_norm.weight"] == "f32"
    rounding = {"f16": 2**-11, "bf16": 2**-8, "q8_0": 1 / 200, "q4_0": 1 / 7.5}[dtype]
    for name, tensor in model.state_dict().items():
        limit = tensor.abs().amax(-1, keepdim=True) * rounding if tensor.dim() > 1 else torch.zeros(1)
        assert ((tensor - loaded.state_dict()[name]).abs() <= limit).all(), name


def test_weights_are_written_in_the_format_that_they_were_stored_in(tmp_path: Path, tokenizer: Any) -> None:
    model = decoder("llama").to(torch.bfloat16)
    loaded = hc.load(hc.save(model, tmp_path / "folder"))
    assert loaded.dtype == torch.float32
    done, _ = exported(loaded, tmp_path, tokenizer)
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(str(done.path)).tensors}
    assert kinds["output.weight"] == "BF16"
    assert same_weights(hc.load(done.path, dtype="auto"), model.state_dict())


def test_numbers_beyond_f16_are_refused(tmp_path: Path, tokenizer: Any) -> None:
    model = decoder("llama")
    model.lm_head.weight.data[3, 3] = 1e5
    with pytest.raises(
        Refused, match=r"in f16: output.weight has a number of 1e\+05, beyond 65504: use --dtype bf16 or f32"
    ):
        exported(model, tmp_path, tokenizer, dtype="f16")


# -- what cannot be held -------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "window": ("mistral", {"sliding_window": 16}, {}, "a sliding window of 16 tokens"),
    "activation": ("llama", {"hidden_act": "gelu"}, {}, "have the activation gelu"),
    "yarn": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
        {},
        "scaled by yarn",
    ),
    "half a rotation": (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {},
        "only a part of each head is rotated",
    ),
    "untied qwen3": ("qwen3", {}, {}, "no output matrix beside the embeddings"),
    "odd width": ("llama", {}, {"dtype": "q8_0"}, r"layer 0 has 92 neurons.*use --multiple 32"),
    "odd hidden": ("llama", {"hidden_size": 48}, {"dtype": "q4_0"}, "this model is 48 wide: use --dtype f16"),
    "k-quants": ("llama", {}, {"dtype": "q4_k_m"}, "llama-quantize FILE.gguf OUT.gguf Q4_K_M"),
    "unknown dtype": ("llama", {}, {"dtype": "f12"}, "no number format 'f12'"),
    "int8": ("llama", {}, {"int8": True}, "use --dtype q8_0"),
    "devices": ("llama", {}, {"tensor_parallel": 2}, "leave it out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_held_is_refused_with_the_reason(case: str, tmp_path: Path, tokenizer: Any) -> None:
    family, config, settings, reason = REFUSED[case]
    model = decoder(family, **config)
    hc.cut(model, "0.mlp:0-3")
    with pytest.raises(Refused, match=reason):
        exported(model, tmp_path, tokenizer, **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bert", "it is a .*, and the decoders that can be written are Llama, Mistral"),
        ("gpt2", "GPT2LMHeadModel.*: export to transformers or onnx"),
        ("qwen3_moe", "is a mixture of experts"),
        ("ministral", "it is a MinistralForCausalLM"),
        ("torch-encoder", "TransformerEncoder"),
    ],
)
def test_other_families_are_refused_by_name(name: str, reason: str) -> None:
    found = gguf_file.limits(zoo.build(name)[0], Settings())
    assert len(found) == 1
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(str(found[0]))


def test_a_model_without_its_language_head_is_refused() -> None:
    assert "it is a LlamaModel" in str(gguf_file.limits(decoder("llama").model, Settings())[0])


def test_a_matrix_of_another_type_is_refused() -> None:
    model = decoder("llama")
    model.model.layers[1].mlp.up_proj = torch.nn.Bilinear(2, 2, 2)
    assert "mlp.up_proj in layer 1 is a Bilinear" in str(gguf_file.limits(model, Settings())[0])


# -- tokenizers ----------------------------------------------------------------------------------------------------------


def tokens_in_llama_cpp(path: Path, texts: Any) -> list[list[int]]:
    with runtime.running(path, 64) as server:
        return [runtime.tokens(server, text) for text in texts]


TRICKY = ["1234 5", "a\n\n b\t c", "I'M they'll'd", "naïve 模型 x", "  two", "end ", "<|im_end|>so"]


@pytest.mark.parametrize("pre", sorted(tokenizers.NAMES.values()))
def test_llama_cpp_makes_the_same_tokens_of_bytes(pre: str, tmp_path: Path) -> None:
    own = byte_tokenizer(pre, chat_template=CHAT)
    done, _ = exported(decoder("llama"), tmp_path, own)
    fields = gguf.GGUFReader(str(done.path)).fields
    read = {
        name.removeprefix("tokenizer."): field.contents()
        for name, field in fields.items()
        if name.startswith("tokenizer.")
    }
    assert (read["ggml.model"], read["ggml.pre"], read["chat_template"]) == ("gpt2", pre, CHAT)
    assert [read[f"ggml.{name}_token_id"] for name in ("bos", "eos", "padding", "unknown")] == [1, 2, 2, 0]
    assert read["ggml.add_bos_token"] is False
    assert read["ggml.token_type"][:4] == [3, 3, 3, 1]
    assert read["ggml.token_type"][len(own) :] == [5] * (420 - len(own)), "embeddings that no piece has"
    assert tokens_in_llama_cpp(done.path, TRICKY) == [own(text)["input_ids"] for text in TRICKY]


@pytest.mark.parametrize("prefix", ["legacy", "first", "always", "never"])
def test_llama_cpp_makes_the_same_tokens_of_sentencepiece(prefix: str, tmp_path: Path) -> None:
    own = sentencepiece_tokenizer(prefix)
    done, _ = exported(decoder("llama"), tmp_path, own)
    texts = [text.strip() for text in TRICKY if "<|" not in text]
    got = tokens_in_llama_cpp(done.path, texts)
    assert got == [own(text)["input_ids"] for text in texts]
    assert all(row[0] == 1 for row in got), "a text begins with <s>"
    assert any("puts a space before every text" in note for note in done.notes) == (prefix in ("first", "always"))


def test_a_tokenizer_that_llama_cpp_would_read_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = byte_tokenizer("qwen2")
    monkeypatch.setitem(tokenizers.NAMES, (tokenizers.QWEN2, False), "smollm")
    with pytest.raises(Refused, match=r"llama.cpp makes \[.*\] of .* and the model's own makes"):
        exported(decoder("llama"), tmp_path, own)
    assert list(tmp_path.iterdir()) == []


def _changed(change: Any) -> Any:
    data = json.loads(byte_tokenizer().backend_tokenizer.to_str())
    change(data)
    return _tokenizer_of(data)


def _tokenizer_of(data: dict[str, Any]) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)))


def _forget(data: dict[str, Any], byte: str) -> None:
    kept = [piece for piece in data["model"]["vocab"] if byte not in piece]
    merges = [pair for pair in data["model"]["merges"] if "".join(pair) in kept]
    data["model"] |= {"vocab": {piece: number for number, piece in enumerate(kept)}, "merges": merges}


def _name_unknown(data: dict[str, Any]) -> None:
    _forget(data, "$")
    data["model"]["unk_token"] = "!"


STRANGE = {
    "another way to split": lambda data: data.update(pre_tokenizer={"type": "Whitespace"}),
    "another rule": lambda data: data["pre_tokenizer"].update(
        pretokenizers=[
            {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ]
    ),
    "lower case": lambda data: data.update(normalizer={"type": "Lowercase"}),
    "bytes that are missing": _name_unknown,
}


@pytest.mark.parametrize(
    ("case", "reason"),
    zip(
        STRANGE,
        (
            "split by Whitespace",
            r"no name for \(x\+\)",
            "normalised by Lowercase",
            "1 bytes are no pieces of it, and it puts '!' there",
        ),
        strict=True,
    ),
)
def test_a_tokenizer_that_llama_cpp_does_not_have_is_refused(case: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=reason):
        exported(decoder("llama"), tmp_path, _changed(STRANGE[case]))


def test_pieces_that_no_merge_makes_are_refused(tmp_path: Path) -> None:
    """llama.cpp joins whatever is a piece; the model's tokenizer only what a merge joins."""
    own = sentencepiece_tokenizer()
    data = json.loads(own.backend_tokenizer.to_str())
    data["model"]["merges"] = [pair for pair in data["model"]["merges"] if "ea" not in "".join(pair)]
    with pytest.raises(Refused, match=r"of its pieces are joined by no merge, first '.*ea.*'"):
        exported(decoder("llama"), tmp_path, _tokenizer_of(data))


def test_bytes_that_a_tokenizer_drops_are_dropped(tmp_path: Path) -> None:
    own = _changed(lambda data: _forget(data, "$"))
    done, _ = exported(decoder("llama"), tmp_path, own)
    texts = ["$x", "x$", "a$b", "a $5"]
    assert tokens_in_llama_cpp(done.path, texts) == [own(text)["input_ids"] for text in texts]
    assert "a$b" in [row["text"] for row in json.loads(head(done.path)[gguf_file.PROOFS])]
    # a letter that is dropped: the model's tokenizer joins what is around it, and llama.cpp does not
    with pytest.raises(Refused, match=r"llama.cpp makes \[.*\] of 'aQb'"):
        exported(decoder("llama"), tmp_path / "other", _changed(lambda data: _forget(data, "Q")))


def test_a_tokenizer_is_needed_and_must_be_the_models_own(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(Refused, match="none was given: pass tokenizer="):
        exported(decoder("llama"), tmp_path, None)
    with pytest.raises(Refused, match="it is another model's"):
        exported(decoder("llama", vocab_size=300), tmp_path, tokenizer, batch={"input_ids": IDS})


def test_llama_cpp_answers_nobody_else_while_it_runs(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = exported(decoder("llama"), tmp_path, tokenizer)[0].path
    with runtime.running(path, 64) as server:
        assert runtime.tokens(server, "x") == tokenizer("x")["input_ids"]
        monkeypatch.setattr(runtime, "SECRET", "a guess")
        with pytest.raises(HTTPError, match="401"):
            runtime.tokens(server, "x")


# -- reading -------------------------------------------------------------------------------------------------------------


def test_inspect_and_an_empty_model_show_what_is_in_a_file(tmp_path: Path, tokenizer: Any) -> None:
    model = decoder("qwen3", **TIED)
    hc.cut(model, "1:0,1 2.mlp:*")
    done, _ = exported(model, tmp_path, tokenizer)
    assert str(hc.find(hc.load(done.path, weights=False))) == str(hc.find(model))
    shown = CliRunner().invoke(app, ["inspect", str(done.path)])
    assert shown.exit_code == 0
    assert "Qwen3ForCausalLM" in shown.output


def rewritten(path: Path, change: Any) -> Path:
    """A file with other keys, without tensors."""
    writer = gguf.GGUFWriter(str(path), change.pop("architecture"))
    for name, value in change.items():
        writer.add_string(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def test_files_of_others_with_uneven_layers_are_named(tmp_path: Path) -> None:
    path = rewritten(tmp_path / "other.gguf", {"architecture": "deci"})
    with pytest.raises(BadCheckpoint, match=r"architecture deci.*headcount did not write it.*give the folder"):
        hc.load(path)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("{", "is damaged"),
        ('{"model_type": "bert"}', "is damaged"),
        ('{"model_type": "llama", "headcount": 3}', "damaged|plan"),
    ],
)
def test_a_damaged_config_is_said_in_one_sentence(written: str, reason: str, tmp_path: Path) -> None:
    path = rewritten(tmp_path / "damaged.gguf", {"architecture": "deci", CONFIG: written})
    with pytest.raises(hc.errors.HeadcountError, match=reason):
        hc.load(path)


def test_weights_that_do_not_fit_the_config_are_refused(tmp_path: Path, tokenizer: Any) -> None:
    done, keys = exported(decoder("llama"), tmp_path, tokenizer)
    for change in (
        {"num_hidden_layers": 5},
        {"num_hidden_layers": 3},
        {"intermediate_size": 95},
        {"intermediate_size": 97},
    ):
        text = json.dumps({**json.loads(keys[CONFIG]), **change})
        room = len(keys[CONFIG])
        assert len(text) <= room
        data = done.path.read_bytes().replace(keys[CONFIG].encode(), text.ljust(room).encode())
        (tmp_path / "changed.gguf").write_bytes(data)
        with pytest.raises(BadCheckpoint, match="do not fit its config"):
            hc.load(tmp_path / "changed.gguf")


def test_the_head_of_a_damaged_file_is_empty(tmp_path: Path, tokenizer: Any) -> None:
    done, keys = exported(decoder("llama"), tmp_path, tokenizer)
    assert keys["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-6)
    data = done.path.read_bytes()
    for broken in (b"", b"GGUF", data[:40], data[:24] + b"\xff" * 40, b"GGML" + data[4:]):
        (tmp_path / "broken.gguf").write_bytes(broken)
        assert head(tmp_path / "broken.gguf") == {}


# -- speed ---------------------------------------------------------------------------------------------------------------


def test_tokens_per_second_are_compared_in_turns(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With times that are known, on a machine that becomes slower all the time."""
    small = decoder("llama", **TIED)
    hc.cut(small, "*.mlp:0-63")
    files = {}
    for name, model in (("whole", decoder("llama", **TIED)), ("small", small)):
        files[name] = exported(model, tmp_path / name, tokenizer)[0].path
    calls: list[str] = []

    def completed(server: Path, asked: dict[str, Any]) -> dict[str, Any]:
        calls.append(server.parent.name)
        slow = 1.5 ** ((len(calls) - 1) // 2)
        cost = {"whole": (80, 40), "small": (40, 32)}[calls[-1]]
        assert len(asked["prompt"]) == 16
        return {"timings": {"prompt_ms": cost[0] * slow, "predicted_ms": cost[1] * slow, "predicted_n": 8}}

    class Server:
        def __init__(self, path: Path, *_: Any, **__: Any) -> None:
            self.path = path

        def __enter__(self) -> Path:
            return self.path

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(runtime, "running", Server)
    monkeypatch.setattr(runtime, "completed", completed)
    monkeypatch.setattr(gguf_speed, "waited", lambda: 0.0)
    rows = gguf_speed.token_speeds(files, prompt=16, generated=8, repeats=6)
    assert [(row.file, row.work, row.tokens) for row in rows] == [
        ("whole", "prompt", 16), ("whole", "generation", 8), ("small", "prompt", 16), ("small", "generation", 8)
    ]  # fmt: skip
    assert [tuple(row.ratio)[:3] for row in rows] == [pytest.approx((value,) * 3) for value in (1, 1, 2, 1.25)]
    assert all(sorted(calls[n : n + 2]) == ["small", "whole"] for n in range(0, 14, 2)), (
        "side by side in each repetition"
    )
    wide, narrow, attention = 64 * 96 * 3, 64 * 32 * 3, 64 * 64 * 2 + 64 * 32 * 2
    assert rows[2].limit == pytest.approx((wide + attention) / (narrow + attention))
    output = 420 * 64 / 4  # read once for a token, in a model of four layers
    assert rows[3].limit == pytest.approx((wide + attention + output) / (narrow + attention + output))


def test_llama_cpp_can_be_called_with_a_batch_and_its_speed_asked(tmp_path: Path, tokenizer: Any) -> None:
    path = exported(decoder("llama", max_position_embeddings=512), tmp_path, tokenizer)[0].path
    call = gguf_speed.caller(path)
    for length in (4, 300):  # the shortest cache that llama.cpp makes is of 256
        answers = call(input_ids=torch.arange(2 * length).reshape(2, length) % 400, attention_mask=None)
        assert [one["usage"]["prompt_tokens"] for one in answers] == [length] * 2
    rows = gguf_speed.token_speeds({"a": path, "b": path}, prompt=8, generated=4, repeats=1)
    assert [row.tokens for row in rows] == [8, 4, 8, 4]
    assert all(row.tokens_per_second > 0 and row.limit == 1 for row in rows)


def test_what_cannot_be_timed_is_said(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = exported(decoder("llama"), tmp_path, tokenizer)[0].path
    with pytest.raises(BadMeasure, match=r"reads at most 128 tokens, and 100 \+ 29 were asked for"):
        gguf_speed.token_speeds({"a": known}, prompt=100, generated=29)
    with pytest.raises(BadMeasure, match="at least one file"):
        gguf_speed.token_speeds({})
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(BadMeasure, match="is no GGUF file of a language model"):
        gguf_speed.token_speeds({"a": path})
    monkeypatch.setattr(runtime, "is_installed", lambda: False)
    with pytest.raises(BadMeasure, match="pip install xllamacpp"):
        gguf_speed.token_speeds({"a": path})


def test_the_tokenizer_beside_a_file_is_read_and_a_missing_one_is_asked_for(tmp_path: Path, tokenizer: Any) -> None:
    """transformers knows no architecture `deci`, and so no tokenizer of one."""
    model = decoder("llama")
    hc.cut(model, UNEVEN)
    done, _ = exported(model, tmp_path, tokenizer)
    with pytest.raises(BadData, match=r"put tokenizer\.json and tokenizer_config\.json of the model"):
        loaded_tokenizer(done.path)
    tokenizer.save_pretrained(tmp_path)
    assert loaded_tokenizer(done.path)("12 films")["input_ids"] == tokenizer("12 films")["input_ids"]
    hc.save(hc.load(done.path), tmp_path / "saved", source=done.path)
    assert loaded_tokenizer(tmp_path / "saved")("12 films")["input_ids"] == tokenizer("12 films")["input_ids"]


def test_llama_cpp_has_answered_before_it_can_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for its own loop when it is deleted, for ever if that has not begun."""
    xllamacpp = pytest.importorskip("xllamacpp")
    asked = []

    class Server:
        def __init__(self, params: object) -> None:
            asked.append("made")

        def handle_completions(self, request: dict[str, Any]) -> dict[str, Any]:
            asked.append("answered")
            return {"error": "no such token"}

    monkeypatch.setattr(xllamacpp, "Server", Server)
    with runtime.running("some.gguf", 8):
        assert asked == ["made", "answered"]


@pytest.mark.parametrize(
    ("family", "to", "settings"),
    [
        ("llama", "transformers", {}),
        ("qwen2", "vllm", {"groups": "pad"}),
        ("mistral", "vllm", {"groups": "repeat"}),
        ("llama", "gguf", {"groups": "pad"}),
        ("llama", "gguf", {"groups": "repeat"}),
        ("qwen2", "gguf", {"groups": "pad", "dtype": "q8_0", "multiple": 32}),
    ],
)
def test_what_stands_in_for_units_is_written_as_biases_that_the_family_does_not_have(
    family: str, to: str, settings: dict[str, Any], tmp_path: Path, tokenizer: Any
) -> None:
    model = decoder(family, hidden_size=64)
    generator = torch.Generator().manual_seed(0)
    fill = {s.name: torch.randn(len(s) * s.width, generator=generator) for s in hc.find(model)}
    repeated = (to, settings.get("groups")) == ("vllm", "repeat")  # a folder for transformers alone, without zero units
    hc.cut(model, "0.mlp:0-2 1:0" + ("" if repeated else " 0:* 1.mlp:* 2:* 2.mlp:*"), fill=fill)
    place = tmp_path / ("model.gguf" if to == "gguf" else "folder")
    done = hc.export(model, to, place, tokenizer=tokenizer, **settings)
    assert done.check.runtime.startswith("llama.cpp" if to == "gguf" else "transformers")
    if repeated:
        return
    again = hc.load(done.path, dtype=torch.float32)
    with torch.no_grad():
        got, wanted = again(IDS).logits, model(IDS).logits
    assert (got - wanted).abs().max() <= (0.1 if "dtype" in settings else 1e-5) * wanted.abs().max()
