"""`look`: what heads look at on one text, each weight of it, and how much each head takes from each token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data.checks import model_fit
from ..data.encoding import loaded_tokenizer
from ..errors import BadData, BadPlan, Refused
from ..evaluation.evaluator import device_of, is_out_of_memory
from ..formatting import listed
from ..importance.attention import watched
from ..model.anatomy import Anatomy, Site, Units
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from ..model.distributed.refusals import not_tensor_parallel
from ..model.equivalence import evaluating
from ..model.gates import masked as masked_units
from ..model.tensor_trees import tensors
from ..plans import Plan
from ..reporting.pictures.attention_page import AttentionKind, AttentionView, HeadAttention, Token, as_bytes
from .token_texts import token_texts

LONGEST = 512  # tokens, unless more are asked for
WRITTEN = 60  # tokens of a target that the model writes itself
ANSWER = 0.05  # of its largest number: how far what the model answers may move when attention is computed in the open
SAME = {
    torch.float16: 0.03,
    torch.bfloat16: 0.03,
}  # likewise, how far attention times values may be from what a head hands on


def look(
    model: nn.Module | str | Path,
    text: str,
    *,
    tokenizer: Any = None,
    target: str | None = None,
    heads: Units | None = None,
    masked: Units | None = None,
    max_length: int = LONGEST,
    specs: Iterable[ModuleSpec] = (),
) -> AttentionView:
    """What heads look at on one text: every weight, and the tokens on both sides. Shows itself in a notebook.

    The model is run once, with its attention computed in the open. Weights can also be weighted by the norm of what a head
    takes from each token, |W_O v| (Kobayashi et al. 2020): much attention to a token whose value is next to nothing, as to a
    separator, moves little. An encoder-decoder reads `target`, or else what it writes itself. The model is as it was
    afterwards.

    Args:
        model: The model, or its folder or name.
        text: What it reads.
        tokenizer: The tokenizer, or its folder or name; by default that of the model's folder.
        target: For an encoder-decoder, what its decoder reads; by default what the model writes, greedily.
        heads: The heads to show, such as `"3:7 5:*"`; by default all of them.
        masked: Units that are masked while the text is read, such as `"3:7"`.
        max_length: Texts are cut off after this many tokens.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The view: `weights("3:7")` is an array, `save("page.html")` writes a page.

    Examples:
        >>> view = hc.look("my-model", "a dull film", tokenizer="my-model")
        >>> len(view.heads)
        48
        >>> view.weights("0:1").sum(axis=1).round().tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0]
        >>> view.save("attention.html").name
        'attention.html'
    """
    tokens = loaded_tokenizer(_tokenizer_of(model, tokenizer))
    if isinstance(model, str | Path):
        from ..model.checkpoints import load

        model = load(model)
    not_tensor_parallel(model, "what they look at is not shown")
    root, anatomy = unwrap(model), find(model, specs)
    sites = _chosen(anatomy, heads)
    plan = anatomy.plan(masked) if masked is not None else Plan()
    inputs, sides, notes = _read(root, tokens, text, target, max_length)
    with evaluating(root), torch.no_grad():
        if "decoder_input_ids" in inputs and target is None:
            inputs["decoder_input_ids"] = _written(root, inputs, masked, specs)
            notes.append("The model wrote the target itself, one likeliest token after the other.")
        if "decoder_input_ids" in inputs:
            sides["target"] = token_texts(tokens, inputs["decoder_input_ids"][0].tolist())
        seen = _seen(root, sites, inputs, masked, specs)
    notes += _repeated(seen)
    missing = [site.name for site in sites if site.name not in seen]
    sites = [site for site in sites if site.name in seen]
    if not sites:
        raise Refused(f"{missing[0]} does not run on texts, so there is nothing that it looks at.")
    notes += [f"These attentions did not run on the text: {listed(missing)}."] if missing else []
    kinds = _kinds(root, sites, seen, sides, _wanted(anatomy, heads), plan)
    return AttentionView(type(root).__name__, kinds, str(plan) if plan.units else "", tuple(notes))


def _tokenizer_of(model: Any, tokenizer: Any) -> Any:
    if tokenizer is not None or isinstance(model, str | Path):
        return model if tokenizer is None else tokenizer
    name = getattr(getattr(model, "config", None), "_name_or_path", "")
    if not name:
        raise BadData(
            "I do not know the tokenizer of this model; give tokenizer=, the object or the folder of the model."
        )
    return name


def _wanted(anatomy: Anatomy, heads: Units | None) -> Plan | None:
    return None if heads is None else anatomy.plan(heads)


def _chosen(anatomy: Anatomy, heads: Units | None) -> list[Site]:
    """The attentions that have one of these heads; `BadPlan` where units are named that are no heads."""
    wanted = _wanted(anatomy, heads)
    names = {site.name for site in anatomy.heads}
    if wanted is None:
        chosen = [site for site in anatomy.heads if len(site)]
    else:
        others = [unit for unit in wanted if unit.site not in names]
        if others:
            raise BadPlan(
                f"{others[0]} is not an attention head, and only those look at tokens; name heads, such as 3:7."
            )
        chosen = [site for site in anatomy.heads if site.name in wanted.by_site()]
    if not chosen:
        raise BadPlan(f"{anatomy.model_name} has no attention head to look at; `headcount inspect` lists what it has.")
    return chosen


# -- what is read ------------------------------------------------------------------------------------------------------


def _read(
    root: nn.Module, tokenizer: Any, text: str, target: str | None, max_length: int
) -> tuple[dict[str, Tensor], dict[str, tuple[Token, ...]], list[str]]:
    """The model's inputs, the tokens of the source, and what is to be said of them."""
    config = getattr(root, "config", None)
    pairs = bool(getattr(config, "is_encoder_decoder", False))
    if not isinstance(text, str) or not text.strip():
        raise BadData("There is no text to look at; give a sentence (--text).")
    if target is not None and not pairs:
        raise BadData(f"{type(root).__name__} has no decoder that could read a target; leave target (--target) out.")
    positions = model_fit.positions_of(root)
    longest = max_length if positions is None else min(max_length, positions)
    ids = list(tokenizer(text, verbose=False)["input_ids"])
    notes = []
    if len(ids) > longest:
        notes.append(f"The text has {len(ids):,} tokens, of which the first {longest:,} were read.")
        ids = list(tokenizer(text, truncation=True, max_length=longest, verbose=False)["input_ids"])
    _in_vocabulary(root, ids)
    if not ids:
        raise BadData("The tokenizer makes no token of this text; give another one (--text).")
    device = device_of(root)
    inputs = {"input_ids": torch.tensor([ids], device=device)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    sides = {"source": token_texts(tokenizer, ids)}
    if pairs:
        start = getattr(config, "decoder_start_token_id", None)
        start = getattr(config, "bos_token_id", None) if start is None else start
        if start is None:
            raise Refused(
                f"{type(root).__name__} does not say with which token its decoder begins (decoder_start_token_id)."
            )
        written = [] if target is None else list(tokenizer(text_target=target, verbose=False)["input_ids"])[:-1]
        _in_vocabulary(root, written)
        inputs["decoder_input_ids"] = torch.tensor([[start, *written][:longest]], device=device)
    return inputs, sides, notes


def _in_vocabulary(root: nn.Module, ids: Sequence[int]) -> None:
    try:
        rows = int(root.get_input_embeddings().weight.shape[0])
    except (AttributeError, NotImplementedError):
        return
    if ids and max(ids) >= rows:
        raise BadData(
            f"The tokenizer has a token {max(ids)}, and the model {rows} embeddings: give the tokenizer that belongs to it."
        )


def _written(root: nn.Module, inputs: dict[str, Tensor], masked: Units | None, specs: Iterable[ModuleSpec]) -> Tensor:
    """The target that the model writes, from its start token, without the end."""
    source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    with _masking(root, masked, specs):
        try:
            ids = root.generate(**source, max_new_tokens=WRITTEN, do_sample=False, num_beams=1)
        except (TypeError, ValueError, AttributeError, NotImplementedError) as error:
            why = (str(error).splitlines() or [""])[0]
            raise BadData(
                f"{type(root).__name__} cannot write a target itself ({why:.100}); give one (--target)."
            ) from None
    ends = getattr(root.config, "eos_token_id", None)
    ended = ids.shape[1] > 2 and int(ids[0, -1]) in (ends if isinstance(ends, list) else [ends])
    return ids[:, :-1] if ended else ids


@contextmanager
def _masking(root: nn.Module, masked: Units | None, specs: Iterable[ModuleSpec]) -> Iterator[None]:
    with nullcontext() if masked is None else masked_units(root, masked, specs=specs):
        yield


# -- what is seen ------------------------------------------------------------------------------------------------------


class _Site:
    """What is collected of one attention: its weights, each time it runs, and the norms of its values the last time."""

    def __init__(self) -> None:
        self.weights: Tensor | None = None  # (heads, queries, keys), the sum over its runs
        self.last: Tensor | None = None  # those of the last one
        self.times = 0
        self.norms: Tensor | None = None  # (heads, keys)


def _seen(
    root: nn.Module, sites: Sequence[Site], inputs: dict[str, Tensor], masked: Units | None, specs: Iterable[ModuleSpec]
) -> dict[str, _Site]:
    """The attention of every head on the inputs, and the norms of the values; what did not run is not there."""
    found: dict[str, _Site] = {}
    outputs: dict[int, Tensor] = {}  # of readers, by the id of the module
    handed: dict[str, Tensor] = {}  # what writers are given, before any mask

    def see(site: Site, weights: Tensor) -> None:
        one = found.setdefault(site.name, _Site())
        own = weights[0].detach().float()
        if weights.shape[0] != 1 or (one.weights is not None and one.weights.shape != own.shape):
            raise Refused(
                f"{site.name} ({type(site.module).__name__}) does not attend from tokens to tokens of one text."
            )
        one.weights = own if one.weights is None else one.weights + own
        one.last = own
        one.times += 1

    with ExitStack() as stack:
        for site in sites:
            # before the masks, which change what the writer is given in hooks of their own
            stack.callback(site.writer.register_forward_pre_hook(partial(_keep_input, handed, site.name)).remove)
            for reader in {id(reader): reader for reader in site.readers}.values():
                stack.callback(reader.register_forward_hook(partial(_keep_output, outputs)).remove)
        stack.enter_context(_masking(root, masked, specs))
        plain = _output(root, inputs)
        found.clear()
        with watched(root, sites, see):
            opened = _output(root, inputs)
    if not _alike(plain, opened):
        raise Refused(
            f"{type(root).__name__} computes something else when it hands its attention out than when it does not, so what it "
            "shows then is not what it does; transformers has no attention in the open (eager) for it that is the same."
        )
    for site in sites:
        one = found.get(site.name)
        if one is not None and one.last is not None:
            one.norms = _norms(site, one.last, outputs, handed.get(site.name))
    return found


def _output(root: nn.Module, inputs: dict[str, Tensor]) -> Tensor | None:
    """The first tensor that the model answers with."""
    try:
        return next((one.detach().float() for one in tensors(root(**inputs)) if one.is_floating_point()), None)
    except (TypeError, ValueError, AttributeError, KeyError, RuntimeError) as error:
        if isinstance(error, Refused) or is_out_of_memory(error):
            raise
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.100}"
        raise Refused(
            f"{type(root).__name__} does not run on a text ({why}); give a model that reads texts."
        ) from error


def _alike(plain: Tensor | None, opened: Tensor | None) -> bool:
    if plain is None or opened is None or plain.shape != opened.shape:
        return plain is opened
    # kernels round differently, half precision more so; another mask is off by far more
    return bool((plain - opened).abs().max() <= ANSWER * plain.abs().max().clamp(min=1e-6))


def _keep_input(handed: dict[str, Tensor], name: str, _: nn.Module, args: tuple[Any, ...]) -> None:
    if args and isinstance(args[0], Tensor):
        handed[name] = args[0].detach()


def _keep_output(outputs: dict[int, Tensor], module: nn.Module, _: Any, output: Any) -> None:
    first = next(iter(tensors(output)), None)
    if first is not None:
        outputs[id(module)] = first.detach()


def _norms(site: Site, weights: Tensor, outputs: dict[int, Tensor], handed: Tensor | None) -> Tensor | None:
    """|W_O v| for each head and key, (heads, keys); None where attention times values is not what the head hands on.

    Which rows of which reader are the values is found by trying: with the right ones, attention times values is what the
    writer is given.
    """
    heads, queries, keys = weights.shape
    columns = site.columns
    if handed is None or columns is None or handed.numel() != queries * heads * site.width:
        return None
    given = handed.float().reshape(queries, heads, site.width)
    for reader, parts in reversed(list(zip(site.readers, _tables(site), strict=True))):
        output = outputs.get(id(reader))
        if output is None or output.numel() % keys:
            continue
        rows = output.float().reshape(keys, -1)
        for part in reversed(parts):
            if tuple(part.shape) != (heads, site.width) or int(part.max()) >= rows.shape[1]:
                continue
            values = rows[:, part.to(rows.device)]  # (keys, heads, width)
            made = torch.einsum("hqk,khw->qhw", weights, values)
            if (made - given).abs().max() <= SAME.get(handed.dtype, 1e-3) * given.abs().max().clamp(min=1e-12):
                index = torch.arange(heads * site.width, device=rows.device)
                (weight,) = columns.columns(index).values()
                weight = weight.reshape(weight.shape[0], -1) if columns.column_axis else weight.T
                written = weight.float().reshape(-1, heads, site.width)  # (residual, heads, width)
                gram = torch.einsum("rhv,rhw->hvw", written, written)
                return torch.einsum("khv,hvw,khw->hk", values, gram, values).clamp(min=0).sqrt()
    return None


def _tables(site: Site) -> list[list[Tensor]]:
    try:
        return [list(parts) for parts in site.tables()]
    except (RuntimeError, ValueError, IndexError):  # a layout of which some matrices are elsewhere
        return [[] for _ in site.readers]


def _repeated(seen: dict[str, _Site]) -> list[str]:
    times = {name: one.times for name, one in seen.items() if one.times > 1}
    return [f"{listed(list(times))} ran {max(times.values())} times on the text; the mean is shown."] if times else []


def _kinds(
    root: nn.Module,
    sites: Sequence[Site],
    seen: dict[str, _Site],
    sides: dict[str, tuple[Token, ...]],
    wanted: Plan | None,
    plan: Plan,
) -> tuple[AttentionKind, ...]:
    """The attentions by type, as values."""
    pairs = "target" in sides
    out = []
    for kind in dict.fromkeys(site.attention for site in sites):
        queries = sides["target"] if pairs and kind in ("decoder", "cross") else sides["source"]
        keys = sides["target"] if pairs and kind == "decoder" else sides["source"]
        rows = []
        causal = len(queries) > 1 and kind == "decoder"
        for site in (site for site in sites if site.attention == kind):
            one = seen[site.name]
            assert one.weights is not None
            weights = (one.weights / one.times).cpu()
            wanted_shape = (len(site), len(queries), len(keys))
            if tuple(weights.shape) != wanted_shape:
                raise Refused(
                    f"{site.name} ({type(site.module).__name__}) has attention of shape {tuple(weights.shape)} where heads, "
                    f"tokens and tokens are {wanted_shape}, so it cannot be said at which tokens it looks."
                )
            causal = causal and not bool(weights.triu(1).any())
            norms = None if one.norms is None else one.norms.cpu().numpy()
            heads = [
                HeadAttention(
                    str(unit), as_bytes(weights[n].numpy()), None if norms is None else norms[n], unit in plan
                )
                for n, unit in enumerate(site.units)
                if wanted is None or unit in wanted
            ]
            rows.append((site.name, tuple(heads)))
        out.append(AttentionKind(str(kind), queries, keys, tuple(rows), causal))
    return tuple(out)
