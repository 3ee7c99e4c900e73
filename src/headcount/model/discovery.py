"""Where the heads, neurons and layers of a model are: `find` reads it off child names and weight shapes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import nn

from ..errors import NotFound
from . import source_code
from .anatomy import MODULE_STAMPS, STAMP, Anatomy, CutRecord, Site, Stack
from .architectures import COUNT_NAMES, HEADS, NEURONS, RECURRENT, WIDTH_NAMES, ModuleSpec, measure
from .matrices import is_matrix, matrix


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`'s or a data-parallel wrapper; otherwise the module itself."""
    while True:
        inner = model._modules.get("_orig_mod")
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def find(model: nn.Module, specs: Iterable[ModuleSpec] = ()) -> Anatomy:
    """The attentions, MLPs and layers of a model. The user's own rows in `specs` are tried first.

    Raises `NotFound` where there is no attention that any row fits: it names the modules that look like one.

    Args:
        model: Any `torch.nn.Module` that holds a transformer.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The sites (attentions and MLPs) and the stacks of layers.

    Examples:
        >>> model = hc.load("my-model")
        >>> anatomy = hc.find(model)
        >>> [site.name for site in anatomy.sites][:2]
        ['0', '0.mlp']
    """
    root = unwrap(model)
    own = tuple(specs)
    modules = dict(root.named_modules())
    sites_by_path: dict[str, Site] = {}
    writer_ids: set[int] = set()
    for kind, table in (("head", HEADS), ("neuron", NEURONS)):
        rows = [row for row in (*own, *table) if row.kind == kind]
        by_child = _by_first_child(rows)
        for path, module in modules.items():
            site = _site(root, modules, path, module, kind, by_child)
            if site is not None and id(site.writer) not in writer_ids:
                writer_ids.add(id(site.writer))
                sites_by_path[f"{path}/{kind}"] = site
    sites = list(sites_by_path.values())
    recurrent = _recurrent(modules, sites)
    unknown = [path for path in _unknown(modules, sites) if path not in dict(recurrent)]
    if not any(site.kind == "head" for site in sites):
        raise NotFound(_not_found(root, modules, unknown, recurrent))
    stacks = _stacks(modules, sites)
    named, stacks = _together(_named(sites, stacks), stacks)
    containers = {stack.path for stack in stacks}
    order = {path: n for n, path in enumerate(modules)}
    layer = {
        id(site): max((s for s in _prefixes(site.path) if s.rpartition(".")[0] in containers), default=site.path)
        for site in named
    }
    named.sort(key=lambda site: (order[layer[id(site)]], site.kind, order[site.path]))
    return Anatomy(
        type(root).__name__, tuple(named), tuple(stacks), tuple(unknown), (*_experts(modules, sites), *recurrent)
    )


# -- one module ----------------------------------------------------------------------------------------------------------


def _by_first_child(rows: list[ModuleSpec]) -> dict[str, list[tuple[int, ModuleSpec]]]:
    """The rows, each with its number, by the name of the child that their first matrix lies in.

    A model has far more modules than attentions: with this, a module is held against the few rows that it could fit.
    """
    rows_by_child: dict[str, list[tuple[int, ModuleSpec]]] = {}
    for number, row in enumerate(rows):
        rows_by_child.setdefault(row.reads[0].partition(".")[0], []).append((number, row))
    return rows_by_child


def _site(
    root: nn.Module,
    modules: dict[str, nn.Module],
    path: str,
    module: nn.Module,
    kind: str,
    by_child: dict[str, list[tuple[int, ModuleSpec]]],
) -> Site | None:
    """The site that `module` is, by the first row that fits it, or None."""
    if isinstance(module, nn.MultiheadAttention) and kind == "head":
        row = ModuleSpec(("in_proj",), ("out_proj",), "stacked", width=module.head_dim)
        return _fit(root, path, module, module.out_proj, (module,), row)
    candidates = [numbered for name in module._modules for numbered in by_child.get(name, ())]
    candidates.sort(key=lambda numbered: numbered[0])
    parent = modules.get(path.rpartition(".")[0]) if path else None
    for _, row in candidates:
        if row.when is not None and not hasattr(module, row.when):
            continue
        readers = _children(module, row.reads)
        if readers is None:
            continue
        writer = next((w for name in row.writes if (w := _writer(module, parent, name)) is not None), None)
        if writer is None:
            continue
        site = _fit(root, path, module, writer, readers, row)
        if site is not None:
            return site
    return None


def _fit(
    root: nn.Module, path: str, module: nn.Module, writer: nn.Module, readers: tuple[nn.Module, ...], row: ModuleSpec
) -> Site | None:
    """The site, if the shapes agree with the row; its counts come from the shapes alone."""
    stamp: CutRecord | None = getattr(writer, STAMP, None) or getattr(module, MODULE_STAMPS[row.kind], None)
    columns = _inputs(writer)
    width = 1 if row.kind == "neuron" else stamp.width if stamp else _width(module, row, columns)
    if not width or columns % width or (not columns and stamp is None):
        return None
    units = columns // width
    shapes = tuple(_outputs(reader, module) for reader in readers)
    sizes: tuple[int, tuple[int, ...]] | None
    if stamp is not None and stamp.whole is not None:
        sizes = stamp.whole.kv_heads, stamp.whole.widths
    elif stamp is not None and (units == 0 or stamp.kv_of is not None):
        sizes = (0, tuple(0 for _ in readers)) if units == 0 else _uneven_sizes(row, shapes, units, width, stamp)
    else:
        sizes = measure(row.layout, shapes, units, width)
    if sizes is None:
        return None
    kv, widths = sizes
    first, last = matrix(readers[0]), matrix(writer)
    if row.reads[0].isdigit() and (first is None or last is None or first.shape[1] != last.shape[0]):
        return None  # a numbered list of layers is an MLP only if it hands on as much as it takes in
    kv_of: Sequence[int]
    if row.kind == "neuron":
        kv_of = range(units)
    elif stamp and stamp.whole:
        original_kv_of = dict(zip(stamp.whole.ids, stamp.whole.kv_of, strict=True))
        kv_of = tuple(original_kv_of[index] for index in stamp.ids)
    else:
        kv_of = (
            stamp.kv_of if stamp and stamp.kv_of is not None else tuple(u * kv // max(1, units) for u in range(units))
        )
    return Site(
        name=stamp.name if stamp else "",
        kind=row.kind,
        path=path,
        module=module,
        writer=writer,
        readers=readers,
        spec=row,
        width=width,
        widths=widths,
        kv_heads=kv,
        kv_of=kv_of,
        ids=stamp.ids if stamp else range(units),
        of=stamp.of if stamp else units,
        attention=_attention_type(root, path, module) if row.kind == "head" else None,
        whole=stamp.whole if stamp else None,
        calls_writer=_calls_writer(module, writer),
        per_example=not _mixes_examples(path, module, writer),
    )


def _uneven_sizes(
    row: ModuleSpec, shapes: tuple[int, ...], units: int, width: int, stamp: CutRecord
) -> tuple[int, tuple[int, ...]] | None:
    """Sizes of an attention whose kv groups were cut unevenly: the counts are on record, the shapes must agree."""
    kv = max(stamp.kv_of or (-1,)) + 1
    if row.layout == "stacked":
        return (kv, (width,)) if shapes[0] == (units + 2 * kv) * width else None
    return (kv, (shapes[0] // units, *(rows // kv for rows in shapes[1:])))


def _children(module: nn.Module, paths: Sequence[str]) -> tuple[nn.Module, ...] | None:
    """The children of these names, or None where one is missing: most rows fail at their first name, so it stops there."""
    children = []
    for path in paths:
        child = _child(module, path)
        if child is None:
            return None
        children.append(child)
    return tuple(children)


def _child(module: nn.Module, path: str) -> nn.Module | None:
    for name in path.split("."):
        module = module._modules.get(name)  # type: ignore[assignment]
        if module is None:
            return None
    return module if is_matrix(module) else None


def _writer(module: nn.Module, parent: nn.Module | None, name: str) -> nn.Module | None:
    if not name.startswith("../"):
        return _child(module, name)
    return None if parent is None else _child(parent, name[3:])


def _inputs(writer: nn.Module) -> int:
    """Columns of the writer, also where it cannot be sliced (a quantised weight still says its input features)."""
    weight_matrix = matrix(writer)
    return (
        weight_matrix.shape[1]
        if weight_matrix
        else int(getattr(writer, "in_features", getattr(writer, "in_channels", 0)) or 0)
    )


def _outputs(reader: nn.Module, module: nn.Module) -> int:
    if reader is module and isinstance(module, nn.MultiheadAttention):
        return module.in_proj_weight.shape[0] if module.in_proj_weight is not None else 3 * module.embed_dim
    weight_matrix = matrix(reader)
    return (
        weight_matrix.shape[0]
        if weight_matrix
        else int(getattr(reader, "out_features", getattr(reader, "out_channels", 0)) or 0)
    )


def _width(module: nn.Module, row: ModuleSpec, columns: int) -> int | None:
    """The one number that is read from the module: the width of a head at the writer."""
    if row.width is not None:
        width = row.width if isinstance(row.width, int) else getattr(module, row.width, None)
        return width if isinstance(width, int) else None
    for owner in (module, getattr(module, "config", None)):
        for name in WIDTH_NAMES:
            width = getattr(owner, name, None)
            if type(width) is int and width > 0 and columns % width == 0:
                return width
        for name in COUNT_NAMES:
            count = getattr(owner, name, None)
            if type(count) is int and count > 0 and columns % count == 0:
                return columns // count
    return None


def _attention_type(root: nn.Module, path: str, module: nn.Module) -> str:
    """`cross`, `decoder` or `encoder`: by what the module says of itself, else by its path, else by what the model is."""
    around = [type(root), *(type(root.get_submodule(prefix)) for prefix in _prefixes(path) if path)]
    names = f"{path}.{type(module).__name__}.".lower().replace("_", "")
    cross = getattr(module, "is_cross_attention", None)
    if cross is True or (cross is None and re.search(r"cross(att|\.)|encoderatt|encdec|multiheadattn\.", names)):
        return "cross"
    if len(around) > 1 and "Pooling" in around[-2].__name__:
        return "cross"  # a learned query looks at the sequence
    if re.search(r"(^|\.)(vision|audio|image|visual)[a-z_]*\.", path.lower()) and "decoder" not in names:
        return "encoder"
    says = [getattr(module, name) for name in ("is_decoder", "is_causal") if type(getattr(module, name, None)) is bool]
    if any(says) or any("decoder" in part for part in path.lower().split(".")[:-1]):
        return "decoder"
    if says or "encoder" in path.lower():
        return "encoder"
    if any(re.search(r"Decoder(Layer|Block)?$", kind.__name__) and "Encoder" not in kind.__name__ for kind in around):
        return "decoder"
    config = getattr(root, "config", None)
    causal = getattr(config, "causal", None)
    if type(causal) is bool:
        return "decoder" if causal else "encoder"
    if getattr(dict(module.named_buffers(recurse=False)).get("bias"), "dtype", None) is torch.bool:
        return "decoder"  # the triangle of a causal mask
    generates = getattr(root, "can_generate", lambda: False)() and not getattr(config, "is_encoder_decoder", False)
    return "decoder" if generates else "encoder"


def _calls_writer(module: nn.Module, writer: nn.Module) -> bool:
    """Whether the module calls its writer; if it hands the writer's weight to a function, no hook there ever fires."""
    if isinstance(module, nn.MultiheadAttention):
        return True  # once `multihead` has opened it
    name = next((name for name, child in module.named_children() if child is writer), None)
    code = source_code.text(type(module))
    uses = re.search(rf"self\.{name}\.weight\b", code) is not None
    return name is None or not uses or re.search(rf"self\.{name}\(", code) is not None


def _mixes_examples(path: str, module: nn.Module, writer: nn.Module) -> bool:
    """Whether the first axis of what the writer sees is not the batch: tokens packed, routed, or time first."""
    code = getattr(type(module).forward, "__code__", None)
    packed = code is not None and any("cu_seq" in name for name in code.co_varnames[: code.co_argcount])
    own = next((name for name, child in module.named_modules() if child is writer), None)
    return packed or "expert" in f"{path}.{own}".lower() or (own is not None and _is_time_first(module))


def _is_time_first(module: nn.Module) -> bool:
    """Whether an attention takes (time, batch, width), as its code says (FSMT)."""
    return (
        re.search(r"(tgt_len|seq_len|seq_length), (bsz|batch_size), \w+ = ", source_code.text(type(module))) is not None
    )


# -- the whole model ----------------------------------------------------------------------------------------------------


def _stacks(modules: dict[str, nn.Module], sites: list[Site]) -> list[Stack]:
    """The lists of layers: for each attention, the innermost list element that holds it and an MLP as well."""
    mlp_paths = {site.path for site in sites if site.kind == "neuron"}
    mlp_paths |= {path for path in modules if path.endswith(("mlp", "ffn", "feed_forward", "experts"))}
    containers: dict[str, None] = {}
    for site in sites:
        if site.kind != "head":
            continue
        elements = [path for path in _prefixes(site.path) if _is_layer_list(modules, path.rpartition(".")[0])]
        full = [path for path in elements if any(mlp == path or mlp.startswith(path + ".") for mlp in mlp_paths)]
        if full:
            containers[full[-1].rpartition(".")[0]] = None
    stacks = []
    for path in containers:
        if ".forward(" in source_code.text(type(modules[path.rpartition(".")[0]])):
            continue  # the layers are not called as modules: no hook on them would fire
        stamp: CutRecord | None = getattr(modules[path], STAMP, None)
        blocks = tuple(modules[path].children())
        ids = stamp.ids if stamp else tuple(range(len(blocks)))
        name = stamp.name if stamp else ""
        stacks.append(Stack(name, path, modules[path], blocks, ids, stamp.of if stamp else len(blocks)))
    labels = _stack_labels([stack.path for stack in stacks])
    return [
        stack if stack.name else replace(stack, name=f"{label}.layers".lstrip("."))
        for stack, label in zip(stacks, labels, strict=True)
    ]


def _is_layer_list(modules: dict[str, nn.Module], path: str) -> bool:
    return isinstance(modules.get(path), nn.ModuleList | nn.Sequential)


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def _stack_labels(paths: list[str]) -> list[str]:
    """A short name for each stack: the first part of its path that not all of them share (`encoder`, `text`, `0`)."""
    parts = [path.split(".") for path in paths]
    shared = set.intersection(*map(set, parts)) if parts else set()
    own = [[part for part in path if part not in shared] for path in parts]
    short = [re.sub(r"_(model|tower)$", "", path[0]) if path else "" for path in own]
    return [s if short.count(s) == 1 else ".".join(path) for s, path in zip(short, own, strict=True)]


def _named(sites: list[Site], stacks: list[Stack]) -> list[Site]:
    """The sites with names: stack, layer, and what tells them apart inside the layer; their path where that is not unique."""
    places = [_place(site, stacks) for site in sites]
    together = Counter((id(stack), layer, site.kind) for site, (stack, layer, _) in zip(sites, places, strict=True))
    crowded = {(key, kind) for (key, _, kind), count in together.items() if count > 1}
    names = []
    for site, (stack, layer, _) in zip(sites, places, strict=True):
        role = ["mlp"] if site.kind == "neuron" else []
        if stack is not None and (id(stack), site.kind) in crowded:
            role = ["cross" if site.attention == "cross" else "self"] if site.kind == "head" else role
        label = "" if stack is None else stack.name.removesuffix("layers").rstrip(".")
        names.append(".".join([label, str(layer), *role]).lstrip(".") if stack is not None else _alone(site))
    names = _told_apart(names, [place[2] for place in places])
    uses = Counter(names)
    unique = [name if uses[name] == 1 else site.path for name, site in zip(names, sites, strict=True)]
    return [
        replace(site, name=site.name or name, layer=place[1])
        for site, name, place in zip(sites, unique, places, strict=True)
    ]


def _alone(site: Site) -> str:
    """The name of a site outside any list of layers: its path, or its role where it is the whole model."""
    return site.path or ("self" if site.kind == "head" else "mlp")


def _together(named: list[Site], stacks: list[Stack]) -> tuple[list[Site], list[Stack]]:
    """Where an attention does not see examples one by one, neither do the MLPs and layers around it."""
    odd = {
        stack.path
        for stack in stacks
        for site in named
        if site.kind == "head" and site.path.startswith(stack.path + ".")
        if (not site.per_example and "expert" not in str(site.spec.writes))
        or getattr(site.module, "batch_first", True) is False
    }
    around = [
        s if s.kind == "head" or not any(s.path.startswith(p + ".") for p in odd) else replace(s, per_example=False)
        for s in named
    ]
    return around, [replace(stack, per_example=False) if stack.path in odd else stack for stack in stacks]


def _told_apart(names: list[str], inner: list[str]) -> list[str]:
    """Names that occur twice get the parts of their inner path in which they differ."""
    out = list(names)
    for name in [name for name, count in Counter(names).items() if count > 1]:
        same = [n for n, candidate in enumerate(names) if candidate == name]
        parts = [inner[n].split(".") for n in same]
        shared = set.intersection(*map(set, parts))
        for n, path in zip(same, parts, strict=True):
            out[n] = ".".join([name, *(part for part in path if part not in shared)])
    return out


def _place(site: Site, stacks: list[Stack]) -> tuple[Stack | None, int | None, str]:
    """(stack, original layer index, path inside the layer) of a site; the innermost stack that holds it."""
    holding = [stack for stack in stacks if site.path.startswith(stack.path + ".")]
    if not holding:
        return None, None, site.path
    stack = max(holding, key=lambda stack: len(stack.path))
    child, _, inner = site.path[len(stack.path) + 1 :].partition(".")
    position = list(stack.container._modules).index(child)
    return stack, stack.ids[position], inner


def _unknown(modules: dict[str, nn.Module], sites: list[Site]) -> list[str]:
    """Innermost modules that look like attention and hold no site."""
    site_paths = {site.path for site in sites}
    below = {prefix for path in site_paths for prefix in _prefixes(path)}
    looks = []
    for path, module in modules.items():
        if not re.search(r"attention|attn", type(module).__name__, re.IGNORECASE) or path in below:
            continue
        if site_paths.isdisjoint(_prefixes(path)) and sum(matrix(child) is not None for child in module.modules()) >= 2:
            looks.append(path)
    return [path for path in looks if not any(candidate.startswith(path + ".") for candidate in looks)]


def _experts(modules: dict[str, nn.Module], sites: list[Site]) -> list[tuple[str, str]]:
    """Routed experts whose weights are stacked in one tensor: no module is called with their neurons, so none can be gated."""
    reason = "the neurons of stacked experts have no writer module to gate"
    module_ids = {id(module) for site in sites for module in (site.writer, *site.readers)}
    return [
        (path, reason)
        for path, module in modules.items()
        if "expert" in type(module).__name__.lower()
        and any(p.dim() == 3 for p in module.parameters(recurse=False))
        and id(module) not in module_ids
    ]


def _recurrent(modules: dict[str, nn.Module], sites: list[Site]) -> list[tuple[str, str]]:
    """Modules that mix positions without attention: state spaces, linear attention, short convolutions."""
    inside = {prefix for site in sites for prefix in _prefixes(site.path)}
    return [
        (path, f"{type(module).__name__} mixes positions without attention, and has no heads that could go one by one")
        for path, module in modules.items()
        if RECURRENT.search(type(module).__name__) and path not in inside
    ]


def _not_found(
    root: nn.Module, modules: dict[str, nn.Module], unknown: list[str], recurrent: list[tuple[str, str]]
) -> str:
    name = type(root).__name__
    if recurrent:
        path, reason = recurrent[0]
        return f"I found no attention in {name}: {path} ({reason}); give a model with attention in some of its layers."
    if not unknown:
        return f"I found no attention in {name}: none of its {len(modules)} modules looks like one."
    module = modules[unknown[0]]
    children = [child for child, inner in module.named_modules() if child and matrix(inner) is not None]
    *reads, writes = children
    row = f"hc.model.ModuleSpec(reads={tuple(reads)!r}, writes=({writes!r},), layout='split', width='head_dim')"
    places = ", ".join(unknown[:4]) + (" ..." if len(unknown) > 4 else "")
    return (
        f"I found no attention in {name} that is built in a way I know; {places} look like attention: "
        f"say how they are built, for example find(model, specs=[{row}])."
    )
