"""Folders for SentenceTransformer(...): those for transformers, with the modules that make one vector of a text.

Pooling and what follows it come along from the folder that the model came from. A plain encoder gets the mean over its tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Refused
from ..model.discovery import unwrap
from ..model.loading.number_formats import STORED, stored_format
from ..model_files import MODULES
from . import transformers_folder
from .formats import Check, Limit, Settings

TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "*.spm",
    "spiece.model",
    "sentencepiece*.model",
)
# names that sentence-transformers has read since its second version
MEAN = (
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
)


def limits(model: nn.Module, settings: Settings) -> list[Limit]:
    """What of a model, or of what is asked for, such a folder cannot hold."""
    root: Any = unwrap(model)
    out = transformers_folder.limits(root, settings)
    if out:
        return out
    if getattr(root, "main_input_name", "") != "input_ids":
        return [Limit("it does not read text", "use --to transformers")]
    if getattr(root.config, "is_encoder_decoder", False):
        return [Limit("it has a decoder, and an embedding is what an encoder makes", "export its encoder by itself")]
    return []


def write(
    model: nn.Module, target: Path, settings: Settings, *, source: str | None, tokenizer: Any = None
) -> tuple[str, ...]:
    """Write the folder; returns notes for the user."""
    root = unwrap(model)
    encoder = _encoder(root)
    if encoder is not root:
        setattr(encoder, STORED, stored_format(root))
    notes = transformers_folder.write(encoder, target, settings, source=source, tokenizer=tokenizer)
    if encoder is not root:
        notes += (
            f"the {type(encoder).__name__} in the {type(root).__name__} is what makes embeddings: it alone is there",
        )
    if not any(path for pattern in TOKENIZERS for path in target.glob(pattern)):
        raise Refused(
            "SentenceTransformer reads texts, and no tokenizer came along: give the folder of the model, or a tokenizer."
        )
    if (target / MODULES).is_file():
        _refuse_code(target)
        return notes
    pooling = {"word_embedding_dimension": encoder.config.hidden_size, "pooling_mode_mean_tokens": True}
    _write(target / MODULES, list(MEAN))
    _write(target / "1_Pooling" / "config.json", pooling | {"pooling_mode_cls_token": False})
    return (*notes, "the embedding of a text is the mean over its tokens: the model says nothing about pooling")


def _refuse_code(folder: Path) -> None:
    """Refuse modules with code of their own: sentence-transformers would import it while the folder is compared."""
    rows = json.loads((folder / MODULES).read_text(encoding="utf-8"))
    kinds = [str(row.get("type")) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else [str(rows)]
    strange = [kind for kind in kinds if not kind.startswith("sentence_transformers.")]
    if strange:
        raise Refused(
            f"{MODULES} asks for {strange[0]:.80}, which is code that comes with the model, and headcount runs none: "
            "use --to transformers."
        )


def check(model: nn.Module, target: Path, settings: Settings, *, batch: Mapping[str, Any]) -> Check:
    """Compare the outputs in transformers with the model's and, where sentence-transformers is installed, the embeddings."""
    encoder = _encoder(unwrap(model))
    done = transformers_folder.check(encoder, target, settings, batch=batch)
    try:
        from sentence_transformers import SentenceTransformer, __version__
    except ImportError:
        return done._replace(notes=("sentence-transformers is not installed: outputs were compared, not embeddings",))
    # Trust is for the fixed file alone: not for code that a tokenizer or a module of the source may name.
    trust = {"trust_remote_code": transformers_folder.has_own_code(target)}
    options = {"model_kwargs": {"dtype": next(encoder.parameters()).dtype, **trust}, "local_files_only": True}
    features = {"attention_mask": torch.ones_like(batch["input_ids"]), **batch}
    with transformers_folder.quiet():
        try:
            embedder = SentenceTransformer(str(target), device="cpu", **options).eval()
        except ValueError as error:
            if "custom code" not in str(error):
                raise
            raise Refused(
                "The tokenizer or a module of it comes with code, and headcount runs none: use --to transformers."
            ) from error
        name = "model" if "model" in embedder[0]._modules else "auto_model"
        transformers_folder.forget_code(getattr(embedder[0], name))
        got = _embeddings(embedder, features)
        setattr(embedder[0], name, encoder.base_model)
        want = _embeddings(embedder, features)
    apart = max(transformers_folder.difference([want], [got]), done.difference)
    return done._replace(
        runtime=f"sentence-transformers {__version__}", difference=apart, compared=f"the embeddings of {len(got)} texts"
    )


def _embeddings(embedder: Any, features: Mapping[str, Tensor]) -> Tensor:
    with torch.no_grad():
        out: Tensor = embedder(dict(features))["sentence_embedding"]
    return out


def _encoder(root: Any) -> Any:
    """What is written: the model under the head of a classifier, or all of it where that misses a part that it has alone.

    A model that predicts masked words has no pooler, and the same encoder alone has one, which makes no embeddings.
    """
    base = getattr(root, "base_model", root)
    return root if transformers_folder.model_limits(base) else base


def _write(path: Path, values: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
