"""Cutting: what the laws do not already say for every family. Grouped queries, scales, the proof, and the way back."""

from __future__ import annotations

import copy
from functools import partial
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import bits
from helpers import zoo
from helpers.same import close

import headcount as hc
from headcount.model import equivalence
from headcount.model.cutting import kv_groups, surgery


def output(model, inputs):
    return zoo.output(model, inputs)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "phi3", "falcon-gqa", "falcon-mqa", "gpt_bigcode"])
def test_any_set_of_query_heads_can_be_cut(name: str, kernel: str) -> None:
    """Every pair of heads of a grouped attention, whole groups, parts of groups and all between, by whatever manner."""
    model, inputs = zoo.build(name)
    model.set_attn_implementation(kernel)
    site = hc.find(model).heads[0]
    for pair in combinations(site.ids, 2):
        smaller = copy.deepcopy(model)
        plan = hc.Plan.removing({site.name: pair})
        with hc.masked(model, plan):
            want = output(model, inputs)
        hc.cut(smaller, plan)
        assert close(output(smaller, inputs), want)


@pytest.mark.parametrize(
    ("name", "remove", "mode", "cache"),
    [
        ("llama", "0:0-1", "even", 3),  # a whole kv group of two
        ("llama", "0:0 0:2 0:4 0:6", "even", 4),  # one of every group
        ("llama", "0:0", "indexed", 4),  # 1, 2, 2, 2 heads: repeated after the cache
        ("llama", "0:*", "empty", 1),
        ("falcon-gqa", "0:0 0:2", "even", 2),
        ("falcon-gqa", "0:0", "padded", 2),  # uneven, and its own code
        ("falcon-mqa", "0:0", "even", 1),
        ("gpt2", "0:0", "slim", 3),
        ("codegen", "0:0", "padded", 4),
        ("cohere", "0:0 0:2 0:4 0:6", "even", 4),  # its norms have weights of their own for every head
    ],
)
def test_prices_say_the_manner_and_what_the_cache_will_hold(name: str, remove: str, mode: str, cache: int) -> None:
    model, inputs = zoo.build(name)
    (price,) = hc.model.cut_effects(model, remove)
    assert (price.mode, price.kv_left) == (mode, cache)
    before = sum(p.numel() for p in model.parameters())
    hc.cut(model, remove)
    assert before - sum(p.numel() for p in model.parameters()) == price.parameters
    held = model(**inputs, use_cache=True).past_key_values.layers[0].keys
    if name != "falcon-gqa":  # which stores keys after repeating them
        assert held.shape[1] == cache


@pytest.mark.parametrize(("name", "cache"), [("llama", 4), ("falcon-gqa", 2)])
def test_one_head_of_a_group_frees_its_query_rows_and_output_columns_and_no_cache(name: str, cache: int) -> None:
    """Indexed or padded, an uneven cut costs no parameter; copies of keys and values would cost two heads each."""
    model, _ = zoo.build(name)
    site = hc.find(model).heads[0]
    (price,) = hc.model.cut_effects(model, "0:0")
    assert price.parameters == 2 * site.width * model.config.hidden_size
    assert (price.kv_heads, price.kv_left) == (cache, cache)


def test_an_even_cut_followed_by_an_uneven_one_in_an_attention_with_its_own_code() -> None:
    model, inputs = zoo.build("falcon-gqa")
    plan = hc.find(model).plan("0:0-2")
    with hc.masked(model, plan):
        want = output(model, inputs)
    hc.cut(model, "0:0 0:2")
    hc.cut(model, "0:1")
    assert close(output(model, inputs), want)
    assert hc.removed(model) == plan


def test_an_uneven_cut_with_a_cache_generates_what_it_does_without() -> None:
    model, inputs = zoo.build("llama")
    hc.cut(model, "0:0 1:3 1:4")
    options = {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(model.generate(**inputs, **options), model.generate(**inputs, **options, use_cache=False))


def test_the_kernel_of_an_uneven_attention_follows_the_model() -> None:
    model, inputs = zoo.build("llama")
    hc.cut(model, "0:0")
    with_sdpa = output(model, inputs)
    model.set_attn_implementation("eager")
    assert close(output(model, inputs), with_sdpa)
    attentions = model(**inputs, output_attentions=True).attentions
    assert [a.shape[1] for a in attentions] == [7, 8]


def test_texts_of_different_lengths_go_through_what_is_left_of_torchs_encoder() -> None:
    """Left to itself, it packs padded texts into a nested tensor, which only its own attention can read."""
    model, inputs = zoo.build("torch-encoder")
    padded = {**inputs, "src_key_padding_mask": torch.tensor([[False] * 7, [False] * 4 + [True] * 3])}
    with hc.masked(model, "0:1 1:*"):
        want = output(model, padded)
    hc.cut(model, "0:1 1:*")
    assert close(output(model, padded)[0], want[0])
    assert close(output(model, padded)[1, :4], want[1, :4])


def test_hooks_of_the_user_stay_where_biases_are_filtered() -> None:
    """MPNet's attention is handed a bias for all heads: a hook picks what is left, a later cut replaces that hook."""
    model, inputs = zoo.build("mpnet")
    attention, called = hc.find(model)["0"].module, list[str]()
    attention.register_forward_pre_hook(partial(lambda name, *_: called.append(name), "one"))
    attention.register_forward_pre_hook(lambda *_: called.append("two"))
    with hc.masked(model, "0:0-1"):
        want = output(model, inputs)
    hc.cut(model, "0:0")
    hc.cut(model, "0:1")
    called.clear()
    assert close(output(model, inputs), want)
    assert called == ["one", "two"]


def test_a_bias_by_distance_goes_on_to_the_heads_that_stay() -> None:
    """MPT hands each attention one bias for all heads of one text, without an axis for the batch."""
    model, inputs = zoo.build("mpt")
    with hc.masked(model, "0:1 1:0,3"):
        want = output(model, inputs)
    hc.cut(model, "0:1 1:0,3")
    assert close(output(model, inputs), want)


@pytest.mark.parametrize("gone", [0, 1])
def test_one_of_two_heads_with_a_position_bias_can_go(gone: int) -> None:
    """T5's first attention makes the bias for all layers, so also for the head that it has lost."""
    from transformers import T5Config, T5EncoderModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = T5Config(vocab_size=16, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2)
        model = T5EncoderModel(config).eval()
        torch.nn.init.normal_(model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight, std=2.0)
    for site, text in (("0", [3, 4, 5, 6, 7]), ("1", [3, 4, 5, 6, 7]), ("0", [3]), ("1", [3])):
        inputs, smaller = {"input_ids": torch.tensor([text])}, copy.deepcopy(model)
        with hc.masked(model, f"{site}:{gone}"):
            want = output(model, inputs)
        hc.cut(smaller, f"{site}:{gone}")
        assert close(output(smaller, inputs), want)


def test_an_attention_that_lost_heads_may_be_called_without_its_bias() -> None:
    """MPNet's takes hidden states, a mask and a bias, of which a caller may leave out any from the end."""
    model, _ = zoo.build("mpnet")
    smaller = copy.deepcopy(model)
    hc.cut(smaller, "0:1")
    states = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(0))
    whole, less = (hc.find(one)["0"].module for one in (model, smaller))
    for given in ((states,), (states, None), (states, None, None)):
        with hc.masked(model, "0:1"), torch.no_grad():
            want = whole(*given)[0]
        with torch.no_grad():
            assert close(less(*given)[0], want)


def test_an_attention_that_lost_heads_takes_in_as_much_as_before() -> None:
    """Bloom's says how wide the hidden states are, which is as wide as all its heads were together."""
    model, _ = zoo.build("bloom")
    hc.cut(model, "0:1")
    attention = hc.find(model)["0"].module
    assert (attention.num_heads, attention.hidden_size) == (3, 32)


def test_what_is_left_of_a_convolution_without_channels_is_its_bias() -> None:
    """SqueezeBERT is made of convolutions, which have their channels before the positions."""
    from transformers import SqueezeBertConfig, SqueezeBertModel

    groups = dict.fromkeys(["q_groups", "k_groups", "v_groups", "intermediate_groups", "output_groups"], 1)
    sizes = {"hidden_size": 8, "embedding_size": 8, "intermediate_size": 12, "num_hidden_layers": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = SqueezeBertConfig(vocab_size=16, num_attention_heads=2, **sizes, **groups)
        model = SqueezeBertModel(config).eval()
        for parameter in model.parameters():
            parameter.data.normal_(std=0.3)
    inputs = {"input_ids": torch.tensor([[3, 4, 5, 6, 7]])}
    whole = output(model, inputs)
    for site in hc.find(model):
        smaller = copy.deepcopy(model)
        with hc.masked(model, f"{site.name}:*"):
            want = output(model, inputs)
        hc.cut(smaller, f"{site.name}:*")
        assert close(output(smaller, inputs), want)
        assert not close(want, whole, 1e-3)


# -- scales -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "codegen", "torch-encoder"])
def test_a_folded_scale_equals_the_gate(name: str) -> None:
    model, inputs = zoo.build(name)
    anatomy = hc.find(model)
    generator = torch.Generator().manual_seed(0)
    sites = [anatomy.heads[0], anatomy.neurons[-1]]
    gates = {site.name: 0.5 + torch.rand(len(site), generator=generator) for site in sites}
    plan = hc.Plan.removing({sites[0].name: [1], sites[1].name: range(0, 10)})
    closed = {name: gate.clone() for name, gate in gates.items()}
    closed[sites[0].name][1] = 0
    closed[sites[1].name][:10] = 0
    with hc.gated(model, closed):
        want = output(model, inputs)
    hc.cut(model, plan, scale=gates, check=inputs)
    assert close(output(model, inputs), want)


def test_a_scale_alone_removes_nothing() -> None:
    model, inputs = zoo.build("bert")
    gates = {"0": torch.tensor([2.0, 1.0, 0.5, 1.0])}
    with hc.gated(model, gates):
        want = output(model, inputs)
    hc.cut(model, hc.Plan(), scale=gates)
    assert close(output(model, inputs), want)
    assert not hc.removed(model)


@pytest.mark.parametrize("scale", [{"0": torch.ones(3)}, {"layers": torch.ones(2)}, {"0": torch.ones(1, 1, 4)}])
def test_a_scale_of_another_shape_is_a_bad_plan(scale) -> None:
    model, _ = zoo.build("bert")
    with pytest.raises(hc.errors.BadPlan):
        hc.cut(model, "0:1", scale=scale)


# -- the proof and the way back -----------------------------------------------------------------------------------------


def fingerprint(model) -> list:
    """Identities and bits: the way back must restore the very same objects, as they were."""
    seen = [(name, id(module), type(module)) for name, module in model.named_modules()]
    seen += [(name, id(tensor), tensor.data_ptr(), bits(tensor)) for name, tensor in model.named_parameters()]
    numbers = [
        (n, k, v) for n, m in model.named_modules() for k, v in vars(m).items() if isinstance(v, int | float | str)
    ]
    hooks = [(n, tuple(m._forward_pre_hooks), tuple(m._forward_hooks)) for n, m in model.named_modules()]
    config = model.config.to_dict() if hasattr(model, "config") else None
    return [seen, numbers, hooks, config]


PLANS = {
    "bert": "0:1 1:* 0.mlp:0-9",
    "llama": "1:1 layers:0",
    "t5": "encoder.0:1 decoder.1.cross:* encoder.layers:1",
    "mpnet": "0:1 1:2",
    "swin": "0.0:1",
    "codegen": "0:1 1.mlp:*",
    "torch-encoder": "0:1 1:*",
    "stablelm": "0:1",
    "clip": "text.0:1 vision.layers:1",
}


@pytest.mark.parametrize("name", PLANS)
def test_a_failed_check_puts_the_model_back_bit_for_bit(name: str, monkeypatch) -> None:
    model, inputs = zoo.build(name)
    want, before = output(model, inputs), fingerprint(model)
    right = surgery.Matrix.columns

    def slightly_wrong(self, index, scale=None):
        return {key: tensor * 1.5 for key, tensor in right(self, index, scale).items()}

    monkeypatch.setattr(surgery.Matrix, "columns", slightly_wrong)
    with pytest.raises(hc.errors.CheckFailed, match=r"differs from the masked one by .*first.*nothing was cut"):
        hc.cut(model, PLANS[name], check=inputs)
    assert fingerprint(model) == before
    assert close(output(model, inputs), want)


@pytest.mark.parametrize("name", PLANS)
def test_an_error_halfway_puts_the_model_back_bit_for_bit(name: str, monkeypatch) -> None:
    model, inputs = zoo.build(name)
    want, before = output(model, inputs), fingerprint(model)
    monkeypatch.setattr(surgery, "_write_record", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        hc.cut(model, PLANS[name])
    assert fingerprint(model) == before
    assert close(output(model, inputs), want)


def test_the_check_says_at_which_layer_they_part(monkeypatch) -> None:
    model, inputs = zoo.build("bert")
    right = surgery._cut_site

    def breaks_layer_one(transaction, root, site, keep, *rest):
        right(transaction, root, site, keep, *rest)
        if site.name == "1":
            weight = site.writer.weight.detach() * 2
            transaction.set_tensor(site.writer, "weight", weight)

    monkeypatch.setattr(surgery, "_cut_site", breaks_layer_one)
    with pytest.raises(hc.errors.CheckFailed, match="first at layers:1"):
        hc.cut(model, "0:1 1:1", check=inputs)


def test_the_check_leaves_the_mode_and_draws_no_numbers() -> None:
    model, inputs = zoo.build("bert")
    model.train()
    model.bert.encoder.layer[0].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    hc.cut(model, "0:1", check=inputs)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["olmo2", "bitnet"])
def test_a_norm_over_all_heads_is_refused_by_name_and_can_be_closed(name: str) -> None:
    model, inputs = zoo.build(name)
    base = output(model, inputs)
    with pytest.raises(hc.errors.Refused, match=r"norm.* normalises over all 8 heads at once"):
        hc.cut(model, "0:1")
    with hc.masked(model, "0:1"):
        assert not close(output(model, inputs), base, 1e-3)


def test_the_last_layer_cannot_go() -> None:
    model, _ = zoo.build("bert")
    with pytest.raises(hc.errors.Refused, match="at least one layer"):
        hc.cut(model, "layers:0-1")


@pytest.mark.parametrize("what", ["0:4", "7:0", "0:x", "0", "layers:2", "0.mlp:48", ""])
def test_units_that_are_not_there_are_named_in_one_sentence(what: str) -> None:
    model, _ = zoo.build("bert")
    before = fingerprint(model)
    if what == "":
        assert len(hc.cut(model, what)) == 0
        return
    with pytest.raises((hc.errors.BadPlan, hc.errors.NotFound)) as caught:
        hc.cut(model, what)
    assert "\n" not in str(caught.value)
    assert fingerprint(model) == before


def test_a_unit_cannot_be_cut_twice() -> None:
    model, _ = zoo.build("bert")
    hc.cut(model, "0:1")
    with pytest.raises(hc.errors.BadPlan, match=r"0:1 has been cut already"):
        hc.cut(model, "0:1")


# -- layers and the config ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "remove", "true"),
    [
        ("bert", "layers:0", {"num_hidden_layers": 1}),
        ("t5", "encoder.layers:0", {"num_layers": 1, "num_decoder_layers": 2}),
        ("bart", "decoder.layers:1", {"encoder_layers": 2, "decoder_layers": 1}),
        ("gpt_neo", "layers:0", {"num_layers": 1, "attention_layers": ["local"]}),
        ("gemma3_text", "layers:1", {"num_hidden_layers": 1}),
    ],
)
def test_the_config_stays_true_when_layers_go(name: str, remove: str, true: dict) -> None:
    model, _ = zoo.build(name)
    hc.cut(model, remove)
    assert {key: getattr(model.config, key) for key in true} == true
    types = getattr(model.config, "layer_types", None)
    assert types is None or len(types) == 1


def test_deleting_a_layer_of_one_tower_leaves_the_other_tower_and_its_config() -> None:
    model, _ = zoo.build("clip")
    hc.cut(model, "vision.layers:0")
    assert model.config.vision_config.num_hidden_layers == 1
    assert model.config.text_config.num_hidden_layers == 2


@pytest.mark.parametrize(("value", "picks"), [(None, False), ([], False), (0, True), ([1], True)])
def test_layers_stay_where_the_config_picks_some_by_number(value: Any, picks: bool) -> None:
    model, inputs = zoo.build("bert")
    model.config.vision_feature_layer = value
    if picks:
        with pytest.raises(hc.errors.Refused, match=r"picks layers by number \(vision_feature_layer"):
            hc.cut(model, "layers:0")
    else:
        hc.cut(model, "layers:0", check=inputs)


def test_layers_that_change_the_width_are_refused() -> None:
    """The first layer of Hiera's second stage makes the hidden states twice as wide."""
    from transformers import HieraConfig, HieraModel

    sizes = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "num_query_pool": 1, "mlp_ratio": 2.0}
    model = HieraModel(HieraConfig(image_size=[32, 32], **sizes)).eval()
    for layer in (0, 1):
        with pytest.raises(hc.errors.Refused, match=r"its layers change the width of what they take in \(16 to 32\)"):
            hc.cut(model, f"1.layers:{layer}")
    assert [len(stack) for stack in hc.find(model).stacks] == [2, 2]
    hc.cut(model, "0.layers:1")
    assert [len(stack) for stack in hc.find(model).stacks] == [1, 2]


@pytest.mark.parametrize("name", ["swin", "llama", "gpt_oss"])
def test_heads_may_go_one_by_one_to_the_last(name: str) -> None:
    """Groups that share keys become uneven and even again; Swin and GPT-OSS have tables with an entry per head."""
    model, inputs = zoo.build(name)
    model.set_attn_implementation("eager")
    whole, site = copy.deepcopy(model), hc.find(model).heads[0]
    for count, unit in enumerate(site.units, 1):
        hc.cut(model, [unit])
        with hc.masked(whole, site.units[:count]):
            assert close(output(model, inputs), output(whole, inputs))


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("autocast", [False, True])
def test_an_emptied_matrix_gives_the_number_format_that_it_gave(autocast: bool, weights: torch.dtype) -> None:
    model, inputs = zoo.build("bart", weights)
    smaller = copy.deepcopy(model)
    hc.cut(smaller, "encoder.0:* encoder.0.mlp:*")
    names = [f"model.encoder.layers.0.{name}" for name in ("self_attn.q_proj", "self_attn.out_proj", "fc1", "fc2")]
    formats: list[list[torch.dtype]] = []
    for one in (model, smaller):
        seen: list[torch.dtype] = []
        for name in names:
            one.get_submodule(name).register_forward_hook(lambda _, __, made, seen=seen: seen.append(made.dtype))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output(one, inputs)
        formats.append(seen)
    assert len(formats[0]) == len(names)
    assert formats[0] == formats[1]


def test_a_bypassed_attention_says_so() -> None:
    model, _ = zoo.build("bert")
    hc.cut(model, "1:*")
    assert "Bypass" in repr(model.bert.encoder.layer[1].attention)
    assert len(hc.find(model)["1"]) == 0


def test_heads_of_a_model_that_makes_masks_for_a_fixed_number_of_them_are_refused() -> None:
    from transformers import BertConfig, BertModel

    class Spreading(BertModel):  # as EoMT does before each of its layers
        def spread(self, mask: torch.Tensor) -> torch.Tensor:
            return mask[:, None, ...].expand(-1, self.config.num_attention_heads, -1, -1)

    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=8, vocab_size=9)
    with pytest.raises(hc.errors.Refused, match="attention masks"):
        hc.cut(Spreading(config), "0:1")
    hc.cut(Spreading(config), "0.mlp:1")
    hc.cut(BertModel(config), "0:1")


def test_two_outputs_in_float64_are_compared_in_float64() -> None:
    """Two numbers that lie on two sides of a step of float32 are near; a difference that float32 cannot hold is one."""
    step = 1 + 2**-24  # half of the way between two numbers of float32
    near = torch.tensor([step - 1e-12, step + 1e-12], dtype=torch.float64)
    assert equivalence.differs([near[:1]], [near[1:]]) is None
    far = torch.tensor([1.0, 1 + 2e-9], dtype=torch.float64)
    assert equivalence.differs([far[:1]], [far[1:]]) == "2.00e-09 (allowed: 1.00e-09)"


def test_two_outputs_may_differ_by_a_share_of_the_largest_entry() -> None:
    """In float32 by one in ten thousand; of outputs that are smaller than one, as of one."""
    for largest, allowed in ((1000.0, 0.1), (1.0, 1e-4), (0.001, 1e-4)):
        want = torch.tensor([0.0, -largest])
        moved = torch.tensor([1.0, 0.0])
        assert equivalence.differs([want], [want + 0.5 * allowed * moved]) is None
        found = equivalence.differs([want], [want + 2 * allowed * moved])
        assert found == f"{2 * allowed:.2e} (allowed: {allowed:.2e})"


class Counted(int):
    """A number that counts how often it is compared with another."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_sharing_key_value_heads_compares_each_with_few_others() -> None:
    n = 400
    spec = SimpleNamespace(layout="split")
    site = SimpleNamespace(kind="head", spec=spec, kv_of=range(n), kv_heads=n, writer=SimpleNamespace())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_groups, "original_kv", lambda _: tuple(Counted(place) for place in range(n)))
        Counted.comparisons = 0
        groups = kv_groups.share(site, tuple(range(n)))  # type: ignore[arg-type]
    assert groups.kv_of == tuple(range(n))
    assert Counted.comparisons <= 4 * n


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_cut_searches_no_list_for_each_unit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unsearchable(tuple):
        def index(self, *_: object) -> int:
            raise AssertionError("a search through all units, for each of them")

    right = surgery.original_kv
    monkeypatch.setattr(surgery, "original_kv", lambda site: Unsearchable(right(site)))
    model = zoo.build(name)[0]
    plan = hc.Plan(frozenset(unit for site in hc.find(model) for unit in site.units[1::2]))
    assert hc.cut(model, plan) == plan


def test_the_units_of_a_site_are_listed_once() -> None:
    anatomy = hc.find(zoo.build("bert")[0])
    for part in (*anatomy.sites, *anatomy.stacks):
        assert part.units is part.units
