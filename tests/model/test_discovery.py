"""The finder reads heads, neurons and layers off a model alone, gives them names, and touches nothing."""

from __future__ import annotations

import copy
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import close, same_weights
from torch import Tensor, nn

import headcount as hc
from headcount import Plan
from headcount.errors import NotFound, Refused
from headcount.model import ModuleSpec
from headcount.model.architectures import measure
from headcount.model.matrices import matrix


@pytest.mark.parametrize("name", zoo.ZOO)
def test_finder_agrees_with_what_a_person_reads_off_the_config(name: str) -> None:
    family = zoo.ZOO[name]
    model, _ = zoo.build(name)
    before = Fingerprint(model)
    anatomy = hc.find(model)
    assert not before.changed()

    heads, neurons = Counter[Any](), Counter[Any]()
    for row in family.attentions:
        heads[row.type, row.heads, row.kv_heads, row.width] += row.count
    for count, size in family.neurons:
        neurons[size] += count
    assert Counter((s.attention, len(s), s.kv_heads, s.width) for s in anatomy.heads) == heads
    assert Counter(len(s) for s in anatomy.neurons) == neurons
    assert sum(map(len, anatomy.stacks)) == family.layers
    assert anatomy.unknown == ()

    parts = (*anatomy.sites, *anatomy.stacks)
    assert len({part.name for part in parts}) == len(parts), "every name is used once"
    for part in parts:
        assert anatomy[part.name] is part
        assert anatomy[part.path] is part, "the module's path is a name, too"
        assert model.get_submodule(part.path) is (part.module if isinstance(part, hc.model.Site) else part.container)
        assert Plan.of(*map(str, part.units)) == anatomy.plan(f"{part.name}:*"), "names can be written and read"
        assert list(part.ids) == list(range(part.of))
    supported = {id(module) for site in anatomy for module in (*site.readers, site.writer)}
    assert not [path for path, _ in anatomy.refused if id(model.get_submodule(path)) in supported]


NAMES = {
    "bert": ["0", "1", "0.mlp", "1.mlp", "layers"],
    "gpt2": ["0", "1", "0.mlp", "1.mlp", "layers"],
    "torch-encoder": ["0", "1", "0.mlp", "1.mlp", "layers"],
    "bart": ["encoder.1", "decoder.1.self", "decoder.1.cross", "encoder.1.mlp", "decoder.1.mlp", "encoder.layers",
             "decoder.layers"],
    "t5": ["encoder.1", "decoder.1.self", "decoder.1.cross", "encoder.0.mlp", "decoder.0.mlp", "encoder.layers"],
    "torch-transformer": ["encoder.0", "decoder.0.self", "decoder.0.cross", "decoder.0.mlp", "decoder.layers"],
    "clip": ["text.0", "vision.1", "text.0.mlp", "vision.1.mlp", "text.layers", "vision.layers"],
    "siglip": ["text.0", "vision.1", "vision_model.head.attention", "vision_model.head.mlp"],
    "swin": ["0.0", "0.1", "1.0", "1.1", "0.1.mlp", "0.layers", "1.layers"],
    "wav2vec2-conformer": ["0", "0.mlp.ffn1", "0.mlp.ffn2"],
    "xlm": ["transformer.attentions.1", "transformer.ffns.0"],
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_are_short_and_say_where_a_site_is(name: str) -> None:
    anatomy = hc.find(zoo.build(name)[0])
    assert set(NAMES[name]) <= {part.name for part in (*anatomy.sites, *anatomy.stacks)}


def test_names_mean_the_right_modules() -> None:
    bart = zoo.build("bart")[0]
    anatomy = hc.find(bart)
    layer = bart.model.decoder.layers[1]
    assert anatomy["decoder.1.self"].module is layer.self_attn
    assert anatomy["decoder.1.cross"].module is layer.encoder_attn
    assert anatomy["decoder.1.mlp"].writer is layer.fc2
    assert anatomy["decoder.1.cross"].layer == 1
    assert anatomy["encoder.layers"].blocks == tuple(bart.model.encoder.layers)
    swin = zoo.build("swin")[0]
    assert hc.find(swin)["1.0"].module.num_attention_heads == 8
    blocks = swin.swin.encoder.layers[1].blocks
    assert any(hc.find(swin)["1.0"].module is module for module in blocks[0].modules())


def test_a_plan_may_use_names_paths_stars_and_units_alike() -> None:
    bert = zoo.build("bert")[0]
    anatomy = hc.find(bert)
    path = anatomy["1"].path
    want = Plan.of("1:0-3", "0:2")
    for what in (f"1:* {path}:0 0:2", [f"{path}:*", hc.Unit("0", 2)], Plan.of(f"{path}:0-3", "0:2"), want):
        assert anatomy.plan(what) == want
    assert anatomy.plan(hc.Unit(path, 3)) == Plan.of("1:3")


@pytest.mark.parametrize(
    ("what", "near"),
    [
        ("encoder.7:0", "encoder.0"),
        ("decoder.1.crosss:0", "decoder.1.cross"),
        ("3:7", "encoder.0"),
        ("x:*", "encoder.0"),
    ],
)
def test_an_unknown_name_is_answered_with_near_ones(what: str, near: str) -> None:
    anatomy = hc.find(zoo.build("bart")[0])
    with says(NotFound, about=near) as caught:
        anatomy.plan(what)
    assert repr(what.rpartition(":")[0]) in str(caught.value)


def test_an_index_out_of_range_is_answered_with_the_range() -> None:
    anatomy = hc.find(zoo.build("bert")[0])
    with says(hc.errors.BadPlan, about="from 0 to 3"):
        anatomy.plan("0:4")
    with says(hc.errors.BadPlan, about="from 0 to 1"):
        anatomy.plan("layers:2")


def test_printing_gives_a_table_with_one_line_per_site_and_stack() -> None:
    model, _ = zoo.build("llama")
    hc.cut(model, "1:0-1 0.mlp:5 ")
    anatomy = hc.find(model)
    lines = str(anatomy).splitlines()
    assert lines[0].startswith("LlamaForCausalLM: ")
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:] if not line.startswith("layers")}
    assert rows == {
        "0": ["decoder", "0", "8", "8", "4", "8"],
        "0.mlp": ["mlp", "0", "47", "48", "1"],
        "1": ["decoder", "1", "6", "8", "3", "8"],
        "1.mlp": ["mlp", "1", "48", "48", "1"],
    }
    assert lines[1].split() == ["site", "type", "layer", "units", "of", "kv", "width"]
    assert lines[-1] == "layers: 2 of 2 layers"


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_stacked_experts_are_listed_as_not_supported(name: str) -> None:
    anatomy = hc.find(zoo.build(name)[0])
    assert [path.rpartition(".")[2] for path, _ in anatomy.refused] == ["experts", "experts"]
    assert "not supported" in str(anatomy)


def test_a_layer_by_itself_is_found_as_in_the_model() -> None:
    """Its MLP is the layer itself and has no path for a name; what only holds an attention is not unknown."""
    bert, bart = zoo.build("bert")[0].bert.encoder.layer[0], zoo.build("bart")[0].model.decoder.layers[0]
    assert [site.name for site in hc.find(bert)] == ["mlp", "attention.self"]
    assert [site.name for site in hc.find(bart)] == ["mlp", "self_attn", "encoder_attn"]
    assert hc.find(bert).unknown == ()


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel])
def test_wrappers_are_looked_through(wrap: Any) -> None:
    model, _ = zoo.build("bert")
    anatomy = hc.find(wrap(model))
    assert anatomy.model_name == "BertForMaskedLM"
    assert [site.name for site in anatomy] == [site.name for site in hc.find(model)]


# -- a stranger's way of building ------------------------------------------------------------------------------------


class StrangeAttention(nn.Module):
    """Four matrices under names of its own."""

    def __init__(self, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.wo = nn.Linear(width, width)
        self.heads, self.head_dim = heads, width // heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class StrangeLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixer, self.big, self.small = StrangeAttention(), nn.Linear(24, 40), nn.Linear(40, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(x)
        return x + self.small(self.big(x).relu())


class Stranger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.ModuleList(StrangeLayer() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.tower:
            x = layer(x)
        return x


HEADS = ModuleSpec(("wq", "wk", "wv"), ("wo",))
MLP = ModuleSpec(("big",), ("small",), "neurons", "neuron")
X = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def stranger() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Stranger().eval()


def test_a_strangers_attention_is_named_and_the_row_it_needs_is_shown(stranger: nn.Module) -> None:
    with says(NotFound, about="tower.0.mixer, tower.1.mixer, tower.2.mixer look like attention") as caught:
        hc.find(stranger)
    row = re.search(r"hc\.model\.ModuleSpec\(.*\)(?=\]\))", str(caught.value))
    assert row is not None
    anatomy = hc.find(stranger, specs=[eval(row[0], {"hc": hc})])
    assert [(site.path, len(site), site.width) for site in anatomy.heads] == [
        (f"tower.{n}.mixer", 3, 8) for n in range(3)
    ]


def test_one_strange_attention_is_enough_to_show_the_row() -> None:
    with says(NotFound, about="reads=('wq', 'wk', 'wv'), writes=('wo',)"):
        hc.find(nn.Sequential(StrangeAttention()))


def test_a_model_without_attention_says_so() -> None:
    with says(NotFound, about="no attention in Sequential"):
        hc.find(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))


@pytest.mark.parametrize("names", ["wq", [], [1], None])
def test_the_names_of_a_row_are_lists_of_texts(names: Any) -> None:
    for row in ({"reads": names, "writes": ["wo"]}, {"reads": ["wq"], "writes": names}):
        with says(hc.errors.BadPlan, about="lists of child names"):
            ModuleSpec.from_json(row)


@pytest.mark.parametrize(("rows", "fits"), [(16, None), (32, 1), (40, None), (64, 2), (96, None)])
def test_an_mlp_reads_one_row_per_neuron_or_a_gate_besides(rows: int, fits: int | None) -> None:
    assert measure("neurons", (rows,), 32, 1) == (None if fits is None else (32, (fits,)))


def test_a_convolution_is_a_matrix_if_it_sees_one_place_at_a_time() -> None:
    kernels = [(1, 1), (1, 3), (3, 1), (3, 3)]
    assert [matrix(nn.Conv2d(4, 6, kernel)) is not None for kernel in kernels] == [True, False, False, False]


def test_with_his_own_rows_a_stranger_can_be_closed_cut_saved_and_loaded(stranger: nn.Module, tmp_path: Path) -> None:
    rows, what = [HEADS, MLP], "0:1 2:0,2 1.mlp:3-20 layers:1"
    anatomy = hc.find(stranger, rows)
    assert [part.name for part in (*anatomy.heads, *anatomy.neurons, *anatomy.stacks)] == [
        *("0", "1", "2"), *("0.mlp", "1.mlp", "2.mlp"), "layers",
    ]  # fmt: skip
    whole = stranger(X)
    with hc.masked(stranger, what, specs=rows):
        want = stranger(X)
    assert close(stranger(X), whole)
    assert (want - whole).abs().max() > 0.01
    small = copy.deepcopy(stranger)
    hc.cut(small, what, check=X, specs=rows)
    assert close(small(X), want)
    assert small.tower[0].mixer.wq.weight.shape == (16, 24)
    assert len(small.tower) == 2

    hc.save(small, tmp_path / "small")
    again = hc.load(tmp_path / "small", into=Stranger())
    assert same_weights(again, small)
    assert close(again(X), small(X))
    assert hc.removed(again) == hc.removed(small)
    assert not again.training


class Rolling(StrangeAttention):
    """Adds to each value its neighbours, channel by channel."""

    def __init__(self) -> None:
        super().__init__()
        self.local = nn.Conv1d(24, 24, 5, padding=2, groups=24)

    def forward(self, x: Tensor) -> Tensor:
        values = self.local(self.wv(x).transpose(1, 2)).unflatten(1, (self.heads, self.head_dim)).transpose(2, 3)
        q, k = (w(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk))
        return self.wo(nn.functional.scaled_dot_product_attention(q, k, values).transpose(1, 2).flatten(2))


def test_a_convolution_within_each_head_runs_on_as_wide_as_it_was(stranger: nn.Module) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        stranger.tower[0].mixer = Rolling()
    assert hc.model.cut_effects(stranger, "0:1", specs=[HEADS, MLP])[0].mode == "padded"
    with hc.masked(stranger, "0:1", specs=[HEADS, MLP]):
        want = stranger(X)
    hc.cut(stranger, "0:1", specs=[HEADS, MLP])
    assert close(stranger(X), want)


class Fixed(StrangeAttention):
    """Joins its heads to a width that it remembers."""

    hidden_size = 24

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        joined = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.wo(joined.reshape(*x.shape[:2], self.hidden_size))


class Flattening(StrangeLayer):
    """Its MLP sees the tokens of all examples in one list."""

    hidden_size = 24

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(x)
        tokens = x.reshape(-1, self.hidden_size)
        return x + self.small(self.big(tokens).relu()).view_as(x)


class Loud(StrangeAttention):
    """Multiplies each head by a number of its own, under a name that nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.loudness = nn.Parameter(torch.tensor([0.5, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        heads = nn.functional.scaled_dot_product_attention(q, k, v) * self.loudness[:, None, None]
        return self.wo(heads.transpose(1, 2).flatten(2))


class Tempered(StrangeAttention):
    """Has parameters that say nothing of single heads: a number, and the weights of a polynomial of it."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature, self.powers = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.tensor([0.5, 1, 2, 1, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (self.powers * self.temperature ** torch.arange(5)).sum())


def _cut_is_closed(model: nn.Module, what: str) -> str:
    """Cut the model, compare it with the masked one, and give the manner of the first cut."""
    rows = [HEADS, MLP]
    mode = hc.model.cut_effects(model, what, specs=rows)[0].mode
    with hc.masked(model, what, specs=rows):
        want = model(X)
    hc.cut(model, what, specs=rows)
    assert close(model(X), want)
    return mode


@pytest.mark.parametrize(("attention", "mode"), [(Fixed, "padded"), (Loud, "padded"), (Tempered, "slim")])
def test_an_attention_runs_on_as_wide_as_it_was_only_where_its_code_or_a_parameter_counts_heads(
    stranger: nn.Module, attention: type[nn.Module], mode: str
) -> None:
    """A remembered width or an entry per head of an unknown name counts them; other parameters do not."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        stranger.tower[0].mixer = attention()
    assert _cut_is_closed(stranger, "0:1") == mode
    assert stranger.tower[0].mixer.wv.weight.shape == (16, 24)


def test_an_mlp_that_lists_its_tokens_by_the_width_of_the_model_gets_narrower(stranger: nn.Module) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        stranger.tower[0] = Flattening()
    assert _cut_is_closed(stranger, "0.mlp:3-20") == "slim"
    assert stranger.tower[0].big.weight.shape == (22, 24)


@pytest.mark.parametrize(
    "told",
    [{"head_dim": 8}, {"heads": 3}, {"head_dim": 5, "heads": 3}, {"head_dim": 48, "heads": 3}],
    ids=["a width", "a number", "a width that does not fit", "a width above all"],
)
def test_the_width_of_a_head_is_what_the_module_says_where_that_fits(told: dict[str, int]) -> None:
    attention = StrangeAttention()
    del attention.heads, attention.head_dim
    vars(attention).update(told)
    (site,) = hc.find(nn.Sequential(attention), [HEADS])
    assert (site.width, len(site)) == (8, 3)


class Part(nn.Module):
    """Anything that holds something else."""


class Writer(Part):
    """A model that writes texts."""

    def can_generate(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("kind", "path", "attention"),
    [
        (Part, "model.layers.0.mixer", "encoder"),
        (Part, "model.decoder.layers.0.mixer", "decoder"),
        (Part, "model.text_decoder.layers.0.mixer", "decoder"),
        (Writer, "model.layers.0.mixer", "decoder"),
        (Writer, "model.encoder.layers.0.mixer", "encoder"),
        (Writer, "model.vision_tower.layers.0.mixer", "encoder"),
        (Writer, "visual.blocks.0.mixer", "encoder"),
        (Part, "image_model.decoder.layers.0.mixer", "decoder"),
    ],
)
def test_an_attention_that_says_nothing_is_what_its_place_says(
    kind: type[nn.Module], path: str, attention: str
) -> None:
    """Part of a decoder, or of what sees and hears; else what the model does."""
    root = module = kind()
    *above, last = path.split(".")
    for name in above:
        module.add_module(name, Part())
        module = module.get_submodule(name)
    module.add_module(last, StrangeAttention())
    assert [site.attention for site in hc.find(root, [HEADS])] == [attention]


class Packed(StrangeAttention):
    """Takes the tokens of all examples in one list, and where each begins."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        ends = cu_seqlens.tolist()
        return torch.cat([super(Packed, self).forward(x[None, a:b])[0] for a, b in pairwise(ends)])


@pytest.mark.parametrize(("attention", "per_example"), [(StrangeAttention, True), (Packed, False)])
def test_packed_tokens_are_not_taken_for_examples(attention: type[nn.Module], per_example: bool) -> None:
    (site,) = hc.find(nn.Sequential(attention()), [HEADS])
    assert site.per_example is per_example


@pytest.mark.parametrize("matrix", ["wq", "wv", "wo"])
def test_a_matrix_that_another_module_uses_too_is_not_cut(stranger: nn.Module, matrix: str) -> None:
    one, other = (layer.mixer.get_submodule(matrix) for layer in stranger.tower[:2])
    other.weight = one.weight
    before = Fingerprint(stranger)
    for site in ("0", "1"):
        with says(Refused, about="tied to another module"):
            hc.cut(stranger, f"{site}:1", specs=[HEADS, MLP])
    assert not before.changed()
    hc.cut(stranger, "2:1", check=X, specs=[HEADS, MLP])


# -- nn.MultiheadAttention -------------------------------------------------------------------------------------------


class Holder(nn.Module):
    """A module with one attention in it, called as it is."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 4, **options)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.attn.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.attn(*args, **kwargs)


def _draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


PADDING = torch.tensor([[False] * 6, [False] * 4 + [True] * 2, [False] * 3 + [True] * 3])
CAUSAL = torch.ones(5, 6, dtype=torch.bool).triu(2)
MASKS: dict[str, dict[str, Tensor]] = {
    "no mask": {},
    "padding": {"key_padding_mask": PADDING},
    "float padding": {"key_padding_mask": PADDING.float() * -3},
    "2-D": {"attn_mask": CAUSAL},
    "float 2-D": {"attn_mask": _draw(5, 6)},
    "3-D": {"attn_mask": torch.stack([CAUSAL.roll(n, 1) for n in range(12)])},
    "float 3-D": {"attn_mask": _draw(12, 5, 6)},
    "both": {"key_padding_mask": PADDING, "attn_mask": CAUSAL},
    "both, float": {"key_padding_mask": PADDING.float() * -3, "attn_mask": _draw(12, 5, 6)},
}
WEIGHTS: list[dict[str, bool]] = [{"need_weights": False}, {}, {"average_attn_weights": False}]


def _same(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert close(a, b)


@pytest.mark.parametrize("weights", WEIGHTS, ids=["without weights", "average weights", "weights per head"])
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(
    "options", [{"batch_first": True}, {}, {"bias": False}, {"kdim": 12, "vdim": 20}, {"batch_first": True, "kdim": 12}]
)
def test_an_opened_attention_equals_the_closed_one(options: Any, masks: Any, weights: Any) -> None:
    holder = Holder(**options).eval()
    q, k, v = _draw(3, 5, 16), _draw(3, 6, options.get("kdim", 16)), _draw(3, 6, options.get("vdim", 16))
    if not options.get("batch_first"):
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    want = holder(q, k, v, **masks, **weights)
    with hc.gated(holder, {"attn": torch.ones(4)}):
        assert type(holder.attn) is not nn.MultiheadAttention
        _same(holder(q, k, v, **masks, **weights), want)
    assert type(holder.attn) is nn.MultiheadAttention
    with hc.masked(holder, "attn:0"):
        assert (holder(q, k, v, **masks, **weights)[0] - want[0]).abs().max() > 0.01


@pytest.mark.parametrize("weights", WEIGHTS, ids=["without weights", "average weights", "weights per head"])
@pytest.mark.parametrize(
    "masks", [{}, {"key_padding_mask": PADDING[1]}, {"attn_mask": CAUSAL}, {"attn_mask": _draw(4, 5, 6)}]
)
def test_an_opened_attention_takes_one_example_without_a_batch(masks: Any, weights: Any) -> None:
    holder = Holder().eval()
    q, k = _draw(5, 16), _draw(6, 16)
    want = holder(q, k, k, **masks, **weights)
    with hc.gated(holder, {"attn": torch.ones(4)}):
        _same(holder(q, k, k, **masks, **weights), want)


def test_causal_is_only_a_hint_next_to_its_mask() -> None:
    holder = Holder(batch_first=True).eval()
    x, mask = _draw(3, 5, 16), nn.Transformer.generate_square_subsequent_mask(5)
    for need in (True, False):
        want = holder(x, x, x, attn_mask=mask, is_causal=True, need_weights=need)
        with hc.gated(holder, {"attn": torch.ones(4)}):
            _same(holder(x, x, x, attn_mask=mask, is_causal=True, need_weights=need), want)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 12, "vdim": 20}])
def test_an_opened_attention_begins_anew_as_the_closed_one_does(options: Any) -> None:
    one, other = Holder(**options), Holder(**options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one.attn._reset_parameters()
        torch.manual_seed(0)
        with hc.gated(other, {"attn": torch.ones(4)}):
            other.attn._reset_parameters()
    assert same_weights(one, other)
    assert options == {"bias": False} or not one.attn.out_proj.bias.any()


def test_weights_of_two_widths_can_be_closed_and_not_cut() -> None:
    holder = Holder(kdim=12, vdim=20, batch_first=True).eval()
    before = Fingerprint(holder)
    q, k, v = _draw(3, 5, 16), _draw(3, 6, 12), _draw(3, 6, 20)
    with hc.masked(holder, "attn:*"):
        assert close(holder(q, k, v)[0], holder.attn.out_proj.bias.expand(3, 5, 16))
    with says(Refused):
        hc.cut(holder, "attn:1")
    assert not before.changed()


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_an_attention_with_positions_of_its_own_is_refused(option: str) -> None:
    holder = Holder(**{option: True}).eval()
    before = Fingerprint(holder)
    with says(Refused, about="adds positions"), hc.masked(holder, "attn:1"):
        pytest.fail("entered")
    with says(Refused, about="adds positions"):
        hc.cut(holder, "attn:1")
    assert not before.changed()


def test_an_attention_alone_can_be_named_and_closed() -> None:
    attention = Holder(batch_first=True).eval().attn
    assert [site.name for site in hc.find(attention)] == ["self"]
    x = _draw(3, 5, 16)
    with hc.masked(attention, "self:0-3"):
        assert close(attention(x, x, x)[0], attention.out_proj.bias.expand(3, 5, 16))


@pytest.mark.parametrize(
    ("name", "sizes", "about"),
    [
        ("Mamba", {"state_size": 8}, "backbone.layers.0.mixer (MambaMixer mixes positions without attention"),
        ("Rwkv", {"attention_hidden_size": 16}, "rwkv.blocks.0.attention (RwkvSelfAttention mixes positions without"),
    ],
)
def test_a_model_without_attention_is_refused_by_what_it_has(name: str, sizes: dict[str, int], about: str) -> None:
    config = getattr(transformers, f"{name}Config")(vocab_size=20, hidden_size=16, num_hidden_layers=2, **sizes)
    with says(NotFound, about=about):
        hc.find(getattr(transformers, f"{name}ForCausalLM")(config))


def test_of_a_model_with_linear_attention_in_some_layers_the_others_are_cut() -> None:
    config = zoo.build("qwen3_next")[0].config.to_dict() | {"layer_types": ["linear_attention", "full_attention"]}
    torch.manual_seed(0)
    model = transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**config)).eval()
    anatomy = hc.find(model)
    assert [site.name for site in anatomy.heads] == ["1"]
    assert [path for path, _ in anatomy.refused] == ["model.layers.0.linear_attn"]
    assert "Qwen3NextGatedDeltaNet mixes positions without attention" in str(anatomy)
    hc.cut(model, "1:0 0.mlp:1-5", check={"input_ids": torch.arange(3, 15).view(2, 6)})
