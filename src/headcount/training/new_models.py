"""Models to train: a translator from nothing, a pretrained encoder with a head for these labels, a cut model reborn."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.labels import model_labels, outputs_of
from ..errors import BadCheckpoint, BadData
from ..model.checkpoints import load, read_record, restore_config
from ..model.cutting.surgery import cut, record
from ..model.discovery import unwrap

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"  # in the order of their numbers
HEADS = {
    "classification": ("AutoModelForSequenceClassification", "ForSequenceClassification"),
    "regression": ("AutoModelForSequenceClassification", "ForSequenceClassification"),
    "image-classification": ("AutoModelForImageClassification", "ForImageClassification"),
}


# -- translators ---------------------------------------------------------------------------------------------------------


def new_translator(
    texts: Iterable[str],
    *,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 8,
    width: int = 256,
    ffn: int = 1024,
    vocabulary: int = 8000,
    dropout: float = 0.1,
    longest: int = 128,
    seed: int = 0,
) -> tuple[Any, Any]:
    """A translation model in the manner of Marian with fresh weights, and a tokenizer for both languages.

    `texts` are the sources and the targets that the tokenizer is learned from; it may come out with fewer tokens than
    `vocabulary`. Inputs have at most `longest` tokens. The same texts and seed give the same model, and the random state
    of torch stays as it was.
    """
    deep = layers if decoder_layers is None else decoder_layers
    _check_sizes(layers, deep, heads, width, ffn, vocabulary, dropout, longest)
    from transformers import GenerationConfig, MarianConfig, MarianMTModel

    tokenizer = new_tokenizer(texts, vocabulary, longest)
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}  # Marian begins with padding
    config = MarianConfig(
        vocab_size=len(tokenizer),
        decoder_vocab_size=len(tokenizer),
        d_model=width,
        encoder_layers=layers,
        decoder_layers=deep,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=ffn,
        decoder_ffn_dim=ffn,
        max_position_embeddings=longest,
        dropout=dropout,
        attention_dropout=min(dropout, 0.1),
        activation_dropout=min(dropout, 0.1),
        activation_function="relu",
        scale_embedding=True,
        bos_token_id=None,
        forced_eos_token_id=None,
        **special,
    )
    with _drawn_by(seed):
        model = MarianMTModel(config).eval()
    # padding is never a target, but a model that has learned little may still name it, and would not end
    model.generation_config = GenerationConfig(max_length=longest, num_beams=1, bad_words_ids=[[0]], **special)
    return model, tokenizer


def new_tokenizer(texts: Iterable[str], vocabulary: int = 8000, longest: int = 128) -> Any:
    """A tokenizer of byte-pair encoding (Sennrich et al. 2016) over bytes, learned from these texts.

    Every text can be written with it, in any script, so nothing is ever unknown. Decoding gives back the text in Unicode's
    form NFC, with single spaces. A text ends with the token that ends a sentence.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocabulary < len(alphabet) + 3:
        raise BadData(
            f"vocabulary is {vocabulary}; the {len(alphabet)} bytes and 3 special tokens are in it, so take more."
        )
    tokenizer = Tokenizer(models.BPE(unk_token=UNK))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)  # the first word is spelled as any other
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    nonempty_texts = [text for text in texts if text.strip()]
    if not nonempty_texts:
        raise BadData("There is no text to learn a tokenizer from; give sentences of both languages.")
    tokenizer.train_from_iterator(
        nonempty_texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[PAD, EOS, UNK],
            initial_alphabet=sorted(alphabet),
            min_frequency=2,
            show_progress=False,
        ),
        length=len(nonempty_texts),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A $B {EOS}", special_tokens=[(EOS, 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=longest,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # a text that says </s> means these four characters
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
    )


def _check_sizes(
    layers: int, deep: int, heads: int, width: int, ffn: int, vocabulary: int, dropout: float, longest: int
) -> None:
    sizes = {"layers": layers, "decoder_layers": deep, "heads": heads, "width": width, "ffn": ffn}
    small = next((name for name, value in sizes.items() if value < 1), None)
    if small is not None:
        raise BadData(f"{small} is {sizes[small]}; it is a number of at least 1.")
    if width % heads:
        near = max(1, round(width / heads)) * heads
        raise BadData(f"width is {width} and cannot be shared by {heads} heads; take a width of {near}, say.")
    if not 0 <= dropout < 1:
        raise BadData(f"dropout is {dropout:g}; it is a share from 0 to below 1.")
    if longest < 2 or vocabulary < 1:
        raise BadData(f"longest is {longest} and vocabulary {vocabulary}; they are numbers of tokens, at least 2.")


# -- heads ---------------------------------------------------------------------------------------------------------------


def with_head(
    folder: str | Path,
    kind: str,
    labels: Sequence[str],
    *,
    in_order: bool = False,
    new_head: bool = False,
    seed: int = 0,
    dtype: Any = None,
    trust_remote_code: bool = False,
) -> Any:
    """The model of a folder or hub name with one output for each of the labels (one in all for regression).

    A classifier of these labels is loaded as it is; with `in_order` the labels are said to be those of its outputs, by
    whatever names. One of other labels is refused, unless it may get a `new_head`. Anything else, such as a pretrained
    encoder, gets a fresh head, drawn by the seed. A cut model stays cut.
    """
    if kind not in HEADS:
        raise BadData(f"{kind} has no head of labels; a head is for {', '.join(HEADS)}.")
    options = {} if dtype is None else {"dtype": dtype}
    model = load(folder, trust_remote_code=trust_remote_code, **options)
    config = getattr(model, "config", None)
    if config is None:
        raise BadCheckpoint(f"{folder} has no config to make a model with a head from; give a transformers model.")
    if type(model).__name__.endswith(HEADS[kind][1]) and not new_head:
        trouble = _misfit(config, kind, labels, in_order)
        if trouble is None:
            return model
        raise BadData(f"{folder} {trouble}; give data with its labels, or new_head (--new-head) to replace its head.")
    return _headed(model, folder, kind, labels, seed, trust_remote_code)


def ordered(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels in the order of the outputs of a new head: by number where all are numbers, else by name."""
    names = sorted(set(labels))
    return tuple(sorted(names, key=int) if all(name.removeprefix("-").isdecimal() for name in names) else names)


def _misfit(config: Any, kind: str, labels: Sequence[str], in_order: bool) -> str | None:
    """Why a model with a head is not one of these labels; None if it is."""
    outputs = int(config.num_labels)
    if kind == "regression":
        return None if outputs == 1 else f"has {outputs} outputs and regression needs one"
    names = model_labels(config, outputs)
    try:
        outputs_of(
            dict.fromkeys(labels, 1),
            outputs,
            source="the data",
            user_names=labels if in_order else None,
            model_names=names,
        )
    except BadData:
        outputs_text = f"the labels {_some(names)}" if names else f"{outputs} outputs without names"
        return f"is a classifier with {outputs_text} and the data has {_some(labels)}"
    return None


def _headed(model: Any, folder: str | Path, kind: str, labels: Sequence[str], seed: int, trust: bool) -> Any:
    """The body of the model under a fresh head."""
    import transformers

    config, plan, rows = _original_config(model)
    if kind == "regression":
        config.num_labels, config.problem_type = 1, "regression"
    else:
        if len(labels) < 2:
            raise BadData(f"The data has the labels {_some(labels)}; a classifier needs two or more to tell apart.")
        config.id2label = dict(enumerate(labels))
        config.label2id = {name: number for number, name in enumerate(labels)}
        config.problem_type = "single_label_classification"
    body = getattr(model, model.base_model_prefix, model)
    try:
        with _drawn_by(seed):
            new_model = getattr(transformers, HEADS[kind][0]).from_config(config, trust_remote_code=trust)
    except ValueError as error:
        first = str(error).strip().splitlines()[0]
        raise BadData(
            f"{type(model).__name__} in {folder} cannot get a head for {kind} ({first[:120]}); take an encoder."
        ) from None
    if plan:
        cut(new_model, plan, specs=rows)
    new_model = new_model.to(device=model.device, dtype=model.dtype)
    goal = getattr(new_model, new_model.base_model_prefix)
    weights, places = body.state_dict(), goal.state_dict()
    strange = [name for name, value in weights.items() if name in places and places[name].shape != value.shape]
    if strange or not weights.keys() & places.keys():
        mismatch = strange[0] if strange else "all weights"
        raise BadCheckpoint(
            f"The body of {folder} does not fit under a new head, first at {mismatch}; take another model."
        )
    goal.load_state_dict(weights, strict=False)
    return new_model.eval()


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:40]) for name in names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


# -- born again ----------------------------------------------------------------------------------------------------------


def reinitialized(model: nn.Module, seed: int = 0) -> Any:
    """The same architecture with the same units cut, and fresh weights drawn by the seed, where the model is.

    Trained from there it is the control "as sparse, and never trained while whole" (Budhraja et al. 2020). The weights are
    those of the whole model as its class draws them, less the units that are gone.
    """
    root: Any = unwrap(model)
    if not hasattr(root, "config") or not hasattr(root, "base_model_prefix"):
        raise BadCheckpoint(f"{type(root).__name__} has no config to be built from anew; give a transformers model.")
    config, plan, rows = _original_config(root)
    with _drawn_by(seed):
        new_model = type(root)(config)
    if plan:
        cut(new_model, plan, specs=rows)
    if getattr(root, "generation_config", None) is not None:
        new_model.generation_config = copy.deepcopy(root.generation_config)
    return new_model.to(device=root.device, dtype=root.dtype).train(root.training)


def _original_config(model: Any) -> tuple[Any, Any, list[Any]]:
    """The config of the model before anything was cut, what was cut, and the module specs it was found by."""
    written = record(model)
    plan, rows = read_record(written)
    config = copy.deepcopy(model.config)
    if plan:
        restore_config(config, written)
    return config, plan, rows


@contextmanager
def _drawn_by(seed: int) -> Iterator[None]:
    """Within the block, weights on the CPU are drawn by the seed; the random state is as it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would change the state of GPUs as well
        yield
