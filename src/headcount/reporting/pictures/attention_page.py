"""The attention of heads on one text as a value, and as one HTML page that needs nothing but itself. No torch.

Weights are kept as bytes: the square root of each, in 255 steps, so that 0.001 is still told from nothing. A long text is
packed, and the page unpacks a head when it is looked at.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import __version__, notebook
from ...drawing import PALETTES, short_names
from ...errors import BadRun, NotFound
from ...formatting import counted, listed
from ...runs import write_whole
from .in_html import embedded

TEMPLATES = Path(__file__).parents[1] / "templates"
TITLES = {"encoder": "Encoder self-attention", "decoder": "Decoder self-attention", "cross": "Cross-attention"}
SMALL = 1024  # weights of a head that are drawn as they are; of more there is a thumbnail, and they are packed
THUMB = 28  # rows and columns of a thumbnail
LARGEST = 100_000_000  # bytes of a page
INLINE = 8_000_000  # bytes of a page that a notebook is given


class Token(NamedTuple):
    """A token as people read it; `glued` to the one before, without a space; `special` where it stands for no text."""

    text: str
    glued: bool = False
    special: bool = False


class HeadAttention(NamedTuple):
    """What one head looks at: weights (queries, keys) as bytes, and how much it takes from each key."""

    unit: str
    weights: np.ndarray  # uint8: 255 times the square root
    norms: np.ndarray | None  # (keys,): the length of what each key adds to the residual stream at weight 1
    masked: bool = False


class AttentionKind(NamedTuple):
    """The heads of one type of attention, row by row, and the tokens that they look from and at."""

    kind: str  # "encoder", "decoder" or "cross"
    queries: tuple[Token, ...]
    keys: tuple[Token, ...]
    rows: tuple[tuple[str, tuple[HeadAttention, ...]], ...]  # sites and their heads
    causal: bool = False

    @property
    def title(self) -> str:
        """The name of the tab."""
        return TITLES.get(self.kind, "Self-attention")


def as_bytes(weights: np.ndarray) -> np.ndarray:
    """Weights between 0 and 1 as bytes: 255 times their square root."""
    return np.rint(255 * np.sqrt(np.clip(weights, 0.0, 1.0))).astype(np.uint8)


def as_weights(content: np.ndarray) -> np.ndarray:
    """The weights that bytes stand for: within 0.2 percentage points near 0.25, and closer below."""
    return (content.astype(np.float32) / 255) ** 2


def shares(weights: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Weights times the norms of what is looked at, as shares of each row (Kobayashi et al. 2020)."""
    weighted = weights * norms
    total = weighted.sum(-1, keepdims=True)
    return np.divide(weighted, total, out=np.zeros_like(weighted), where=total > 0)


@dataclass(frozen=True, eq=False)
class AttentionView:
    """What heads look at on one text. Shows itself in a notebook; `save` writes a page that opens in any browser.

    model:  the class of the model
    kinds:  its attentions by type (encoder, decoder, cross), each with its tokens and heads
    masked: the units that were masked when the text was read
    notes:  what a reader should know: a text that was cut off, a target that the model wrote itself
    """

    model: str
    kinds: tuple[AttentionKind, ...]
    masked: str = ""
    notes: tuple[str, ...] = ()

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of all heads."""
        return tuple(head.unit for _, head in self._each())

    def weights(self, unit: str) -> np.ndarray:
        """The attention of one head, (queries, keys), as it is kept: within 1/255 of the square root."""
        return as_weights(self._head(unit).weights)

    def value_weights(self, unit: str) -> np.ndarray:
        """Attention times the norm of what each key adds to the residual stream, as shares of each row."""
        head = self._head(unit)
        if head.norms is None:
            raise NotFound(
                f"The values of {unit} could not be read off this model, so attention cannot be weighted by them."
            )
        return shares(as_weights(head.weights), head.norms)

    def tokens(self, unit: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tokens that a head looks from, and those that it looks at."""
        kind = next((kind for kind, head in self._each() if head.unit == str(unit)), None)
        if kind is None:
            self._head(unit)
        assert kind is not None
        return tuple(token.text for token in kind.queries), tuple(token.text for token in kind.keys)

    def html(self) -> str:
        """The whole page."""
        parts, blobs = _data(self)
        style, script = _template("attention.css"), _template("attention.js")
        colours = "".join(
            f"{':root' if name == 'light' else '@media screen and (prefers-color-scheme: dark) { :root'} "
            f"{{ {''.join(f'--{key}: {value}; ' for key, value in palette.items())}}}{' }' * (name == 'dark')}\n"
            for name, palette in PALETTES.items()
        )
        style = colours + style
        values = {
            "csp": f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; "
            "form-action 'none'",
            "version": __version__,
            "title": html.escape(f"What the heads of {self.model} look at"),
            "facts": html.escape(self.summary),
            "notes": "".join(f'<p class="note">{html.escape(note)}</p>' for note in self._told()),
            "style": style,
            "script": script,
            "data": embedded(parts),
            "blobs": blobs,
        }
        page = _template("attention.html")
        for name, value in values.items():  # the texts of a user come last, and are not looked at again
            page = page.replace(f"<!--{name}-->", value, 1)
        return page

    def save(self, path: Path | str, *, force: bool = False) -> Path:
        """Write the page to a file; what is there is not overwritten without `force`."""
        path = Path(path)
        free_path(path, force)
        page = self.html().encode()
        if len(page) > LARGEST:
            raise BadRun(
                f"The page would have {len(page) / 1e6:,.0f} MB, and browsers stall on that; name fewer heads (--heads 5:*), "
                "or give a shorter text."
            )
        write_whole(path, page)
        return path

    def __repr__(self) -> str:
        names = self.heads
        some = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
        return f"<AttentionView of {self.model}: {self.summary}: {some}; .save(path) writes a page>"

    def _repr_html_(self) -> str:
        page = self.html()
        if len(page) > INLINE:
            told = f"The page has {len(page) / 1e6:.0f} MB, too many for a notebook: .save('attention.html') writes it."
            return notebook.block(notebook.line(repr(self), bold=True), notebook.line(told))
        return (
            f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts allow-downloads" title="Attention of heads" '
            'style="width:100%;height:760px;border:1px solid rgba(128,128,128,.4);border-radius:8px"></iframe>'
        )

    @property
    def summary(self) -> str:
        """How many heads and tokens there are."""
        texts = {id(side): side for kind in self.kinds for side in (kind.keys, kind.queries)}.values()
        return f"{counted(len(self.heads), 'head')} on {listed([counted(len(side), 'token') for side in texts])}"

    def _told(self) -> list[str]:
        masked = f"Seen with {self.masked} masked: those heads add nothing to what later layers read."
        return [*([masked] if self.masked else []), *self.notes]

    def _each(self) -> Iterator[tuple[AttentionKind, HeadAttention]]:
        return ((kind, head) for kind in self.kinds for _, heads in kind.rows for head in heads)

    def _head(self, unit: str) -> HeadAttention:
        for _, head in self._each():
            if head.unit == str(unit):
                return head
        raise NotFound(f"{str(unit)!r:.60} is not a head of this view; it has {', '.join(self.heads[:4])} ...")


def free_path(path: Path, force: bool = False) -> None:
    """Refuse a path that is a folder, or a file that is not to be overwritten."""
    if path.is_dir():
        raise BadRun(f"{path} is a folder; give the name of a file.")
    if os.path.lexists(path) and not force:
        raise BadRun(f"{path} is there already; choose another name, or write over it with --force.")


# -- the page ----------------------------------------------------------------------------------------------------------


def _data(view: AttentionView) -> tuple[dict[str, Any], str]:
    """What the script needs, and the elements with the weights of each head."""
    blobs: list[str] = []

    def headed(kind: AttentionKind, head: HeadAttention) -> dict[str, Any]:
        content, small = head.weights.tobytes(), head.weights.size <= SMALL
        blobs.append(_base64(content if small else zlib.compress(content, 6)))
        out: dict[str, Any] = {"unit": head.unit, "masked": head.masked, "blob": len(blobs) - 1, "packed": not small}
        out["norms"] = None if head.norms is None else [float(f"{norm:.3g}") for norm in head.norms]
        if not small:
            out["thumb"] = _base64(_pooled(head.weights).tobytes())
            if head.norms is not None:
                weighted = as_bytes(shares(as_weights(head.weights), head.norms))
                out["valueThumb"] = _base64(_pooled(weighted).tobytes())
        return out

    kinds = []
    for kind in view.kinds:
        sizes = [min(len(side), THUMB) for side in (kind.queries, kind.keys)]
        names = short_names([site for site, _ in kind.rows])
        rows = [
            {"site": site, "name": name, "heads": [headed(kind, head) for head in heads]}
            for name, (site, heads) in zip(names, kind.rows, strict=True)
        ]
        sides = {"queries": _tokens(kind.queries), "keys": _tokens(kind.keys)}
        kinds.append(
            {"title": kind.title, "kind": kind.kind, "causal": kind.causal, **sides, "rows": rows, "thumb": sizes}
        )
    texts = "\n".join(f'<script type="text/plain" id="w{n}">{text}</script>' for n, text in enumerate(blobs))
    return {"model": view.model, "kinds": kinds, "palettes": PALETTES}, texts


def _tokens(tokens: tuple[Token, ...]) -> list[list[Any]]:
    return [[token.text, int(token.glued), int(token.special)] for token in tokens]


def _pooled(content: np.ndarray) -> np.ndarray:
    """The largest byte of each block, so that there are at most `THUMB` rows and columns."""
    for axis in (0, 1):
        size = content.shape[axis]
        if size > THUMB:
            content = np.maximum.reduceat(content, np.arange(THUMB) * size // THUMB, axis=axis)
    return content


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
