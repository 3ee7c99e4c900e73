"""How schools of code spell an attention or an MLP: which children read, how their rows are laid out, which child writes.

One row covers every model built that way, because it is keyed on the names of a module's children and the shapes of
their weights, never on the model's name. To teach headcount a new way of building, add a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass

from torch import Tensor, arange

from ..errors import BadPlan

MOST_NAMES = 20
_CHILD = re.compile(r"(\.\./)*(?!__)\w{1,100}(\.(?!__)\w{1,100}){0,20}")


@dataclass(frozen=True)
class ModuleSpec:
    """One way of building an attention (`kind="head"`) or an MLP (`kind="neuron"`).

    reads:  children whose output rows fill the units, in the order query, key, value (or gate, up)
    writes: candidates for the child whose input columns are the units; a leading `../` starts at the parent module
    layout: the name of the row layout, one of `LAYOUTS`
    width:  the head width, or the name of the attribute that holds it; None looks for the usual names
    when:   the row is only for modules that have this attribute
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    layout: str = "split"
    kind: str = "head"
    width: int | str | None = None
    when: str | None = None

    def to_json(self) -> dict[str, object]:
        """A JSON-able form, so that a checkpoint cut with a user's own row can be loaded again."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> ModuleSpec:
        """The row in `data`, or `BadPlan` if it is not one."""
        fields = {"reads", "writes", "layout", "kind", "width", "when"}
        if not isinstance(data, dict) or not {"reads", "writes"} <= set(data) <= fields:
            raise BadPlan(
                f'A module spec needs "reads" and "writes" and may have {sorted(fields)}; I got {str(data)[:80]}.'
            )
        names = [data["reads"], data["writes"]]
        if not all(isinstance(n, list | tuple) and n and all(isinstance(x, str) for x in n) for n in names):
            raise BadPlan('"reads" and "writes" of a module spec are lists of child names.')
        wrong = next((name for part in names for name in part if not _CHILD.fullmatch(name)), None)
        if wrong is not None or max(map(len, names)) > MOST_NAMES:
            raise BadPlan(
                f'{wrong!r:.60} in a module spec is not the name of a child; names look like "query" or "../dense".'
            )
        texts = [data.get("layout", "split"), data.get("kind", "head")]
        condition, width = data.get("when"), data.get("width")
        if not all(isinstance(text, str) for text in texts) or not _is_attribute(condition):
            raise BadPlan('"layout", "kind" and "when" of a module spec are names.')
        if not (_is_attribute(width) or (type(width) is int and 0 < width < 1_000_000)):
            raise BadPlan('"width" of a module spec is a positive number, or the name of an attribute.')
        row = cls(**{**data, "reads": tuple(data["reads"]), "writes": tuple(data["writes"])})
        if row.layout not in LAYOUTS or row.kind not in ("head", "neuron"):
            raise BadPlan(f"A module spec's layout is one of {', '.join(LAYOUTS)} and its kind is head or neuron.")
        return row


def _is_attribute(name: object) -> bool:
    """Whether it is the name of a plain attribute, or None."""
    return name is None or (isinstance(name, str) and name.isidentifier() and not name.startswith("__"))


# -- layouts: the row numbers of each reading matrix, seen unit by unit -------------------------------------------------
# A layout takes `kv_of` (for each query head, the key-value head it uses), the number of key-value heads, and the rows
# that each matrix spends on one head. It returns, for each matrix, tables of shape (units, width); query heads that
# share a key-value head name the same rows.

Tables = list[list[Tensor]]


def split(kv_of: Tensor, kv: int, widths: tuple[int, ...]) -> Tables:
    """One matrix each for query, key and value: a block of rows per query head in the first, per kv head in the others."""
    return [[_blocks(len(kv_of), widths[0])], *([_blocks(kv, width)[kv_of]] for width in widths[1:])]


def per_head(kv_of: Tensor, kv: int, widths: tuple[int, ...]) -> Tables:
    """Every matrix has one block of rows per query head (multi-head latent attention's up-projections)."""
    return [[_blocks(len(kv_of), width)] for width in widths]


def stacked(kv_of: Tensor, kv: int, widths: tuple[int, ...]) -> Tables:
    """One matrix: all query heads, then all key heads, then all value heads."""
    rows = _blocks(len(kv_of) + 2 * kv, widths[0])
    query, key, value = rows.split([len(kv_of), kv, kv])
    return [[query, key[kv_of], value[kv_of]]]


def grouped(kv_of: Tensor, kv: int, widths: tuple[int, ...]) -> Tables:
    """One matrix, kv head by kv head: its query heads, its key, its value. With one query head each: (q, k, v) triples."""
    group = len(kv_of) // max(1, kv)
    rows = arange(kv * (group + 2) * widths[0]).view(kv, group + 2, widths[0])
    return [[rows[:, :group].reshape(-1, widths[0]), rows[kv_of, group], rows[kv_of, group + 1]]]


def query_and_pair(kv_of: Tensor, kv: int, widths: tuple[int, ...]) -> Tables:
    """One matrix for queries, and one with all keys, then all values."""
    key, value = _blocks(2 * kv, widths[1]).split([kv, kv])
    return [[_blocks(len(kv_of), widths[0])], [key[kv_of], value[kv_of]]]


def sharded(kv_of: Tensor, kv: int, widths: tuple[int, ...]) -> Tables:
    """One matrix in four shards, each with its part of all queries, then values, then keys (CodeGen)."""
    heads = len(kv_of)
    query, value, key = arange(3 * heads * widths[0]).view(4, 3, heads // 4, widths[0]).unbind(1)
    return [[part.reshape(heads, widths[0]) for part in (query, key, value)]]


def neurons(kv_of: Tensor, kv: int, widths: tuple[int, ...]) -> Tables:
    """Each matrix has one row per neuron, or several stacked blocks of them (a fused gate and up projection)."""
    return [[part[:, None] for part in arange(len(kv_of) * n).view(n, -1)] for n in widths]


def _blocks(count: int, width: int) -> Tensor:
    return arange(count * width).view(count, width)


LAYOUTS: dict[str, Callable[[Tensor, int, tuple[int, ...]], Tables]] = {
    "split": split,
    "per_head": per_head,
    "stacked": stacked,
    "grouped": grouped,
    "query_and_pair": query_and_pair,
    "sharded": sharded,
    "neurons": neurons,
}


def measure(layout: str, rows: tuple[int, ...], units: int, width: int) -> tuple[int, tuple[int, ...]] | None:
    """(kv heads, rows per head of each matrix) of a layout, read off the matrices' shapes; None if they do not fit."""
    if units == 0 or width == 0:
        return None
    if layout == "neurons":
        fits = all(n % units == 0 and 1 <= n // units <= 2 for n in rows)
        return (units, tuple(n // units for n in rows)) if fits else None
    if layout == "per_head":
        return (units, tuple(n // units for n in rows)) if all(n and n % units == 0 for n in rows) else None
    if layout in ("stacked", "grouped"):
        kv, remainder = divmod(rows[0] // width - units, 2)
        return (kv, (width,)) if kv > 0 and not remainder and not rows[0] % width and not units % kv else None
    if layout == "sharded":
        return (units, (width,)) if rows[0] == 3 * units * width and units % 4 == 0 else None
    kv, remainder = divmod(rows[-1], width * (2 if layout == "query_and_pair" else 1))
    if remainder or kv <= 0 or units % kv or rows[0] % units or any(n % kv for n in rows[1:]):
        return None
    if layout == "query_and_pair":
        return kv, (rows[0] // units, width)
    return kv, (rows[0] // units, *(n // kv for n in rows[1:]))


# -- the table ---------------------------------------------------------------------------------------------------------

HEADS = (
    ModuleSpec(
        ("q_proj", "k_proj", "v_proj"), ("o_proj", "out_proj", "dense", "proj", "c_proj", "Wo", "projection_layer")
    ),
    ModuleSpec(
        ("query", "key", "value"),
        ("out_proj", "dense", "proj", "output", "../output.dense", "../post_attention.conv1d"),
    ),
    ModuleSpec(("query_proj", "key_proj", "value_proj"), ("../output.dense", "out_proj")),
    ModuleSpec(("q_proj.linear", "k_proj.linear", "v_proj.linear"), ("o_proj.linear", "post.linear")),
    ModuleSpec(("q_proj", "k_proj", "v_proj"), ("../post", "output_projection.o_proj", "output_projection.proj")),
    ModuleSpec(("q", "k", "v"), ("o", "proj")),
    ModuleSpec(("q_head", "k_head", "v_head"), ("post_proj",)),
    ModuleSpec(("project_q", "project_k", "project_v"), ("attention_out",)),
    ModuleSpec(("to_q", "to_k", "to_v"), ("to_out", "to_out.0")),
    ModuleSpec(("to_q", "to_kv"), ("to_out",), "query_and_pair"),
    ModuleSpec(("value_proj",), ("output_proj",), "per_head", when="n_points"),
    ModuleSpec(("q_lin", "k_lin", "v_lin"), ("out_lin",)),
    ModuleSpec(("linear_q", "linear_k", "linear_v"), ("linear_out",)),
    ModuleSpec(("Wq", "Wk", "Wv"), ("dense",)),
    ModuleSpec(("projection_query", "projection_key", "projection_value"), ("../output.dense",)),
    ModuleSpec(("experts.input_linear", "kv_proj"), ("experts.output_linear",), "query_and_pair"),
    ModuleSpec(("q_b_proj", "kv_b_proj"), ("o_proj",), "per_head", width="v_head_dim"),
    ModuleSpec(("q_gate_proj", "kv_b_proj"), ("o_proj",), "per_head", width="v_head_dim"),
    ModuleSpec(("q_proj", "kv_b_proj"), ("o_proj",), "per_head", width="v_head_dim"),
    ModuleSpec(("q_attn", "c_attn"), ("c_proj",), "query_and_pair"),
    ModuleSpec(("c_attn",), ("c_proj",), "grouped", when="multi_query"),
    ModuleSpec(("c_attn",), ("c_proj",), "stacked"),
    ModuleSpec(("qkv",), ("proj", "projection", "../output.dense"), "stacked"),
    ModuleSpec(("qkv_proj",), ("out_proj",), "sharded"),
    ModuleSpec(("qkv_proj",), ("o_proj",), "stacked"),
    ModuleSpec(("Wqkv",), ("Wo", "out_proj"), "stacked"),
    ModuleSpec(("query_key_value",), ("dense",), "grouped"),
    ModuleSpec(("in_proj",), ("../output.dense",), "grouped"),
)

NEURONS = tuple(
    ModuleSpec(reads, (writes,), "neurons", "neuron")
    for reads, writes in (
        (("gate_proj", "up_proj"), "down_proj"),
        (("gate_up_proj",), "down_proj"),
        (("up_proj",), "down_proj"),
        (("fc1",), "fc2"),
        (("c_fc",), "c_proj"),
        (("wi_0", "wi_1"), "wo"),
        (("wi",), "wo"),
        (("w1", "w3"), "w2"),
        (("weights_in",), "weights_out"),
        (("lin1",), "lin2"),
        (("linear1",), "linear2"),
        (("intermediate.dense",), "output.dense"),
        (("dense_h_to_4h",), "dense_4h_to_h"),
        (("fc_in",), "fc_out"),
        (("Wi",), "Wo"),
        (("ffn",), "ffn_output"),
        (("intermediate_dense",), "output_dense"),
        (("dense1",), "dense2"),
        (("intermediate",), "output"),
        (("intermediate.conv1d",), "output.conv1d"),
        (("0",), "3"),
        (("0",), "2"),
    )
)

# The names under which modules keep the width of a head, and the number of heads: looked up in this order.
WIDTH_NAMES = (
    "v_head_dim",
    "head_dim",
    "attention_head_size",
    "key_value_proj_dim",
    "head_size",
    "dim_head",
    "dim_per_head",
)
COUNT_NAMES = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_attn_heads", "heads")

# Names of classes that mix positions by a recurrence or a short convolution; KimiLinear is the name of a model with attention.
RECURRENT = re.compile(
    r"((mamba\d?|bamba|falconh1)\w*(mixer|layer)|delta(net|attention)|(?<!kimi)linearattention|lightningattention"
    r"|rwkv\w*selfattention|recurrentblock|shortconv)$",
    re.IGNORECASE,
)
