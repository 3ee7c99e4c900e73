"""The text behind the embedded models: what is shipped, what they learn from, and that the two never meet.

Used by tools/train_demo.py. Shipped text comes from vaderSentiment's source distribution (MIT), from the German message
catalogue of Wagtail (BSD) and from our own hands; models also learn from corpora that are not shipped.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import html
import io
import lzma
import math
import random
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

DOMAINS = {
    "movies": ("movieReviewSnippets", 1000),  # file name in the source, sentences shipped of each label
    "products": ("amazonReviewSnippets", 250),
    "news": ("nytEditorialSnippets", 250),
    "tweets": ("tweets", 250),
}
CLEAR = 0.5  # sentences whose mean rating (-4 to 4) is nearer to 0 have no label
RUN = 8  # words in a row that two different sentences are unlikely to share
ALIKE = 0.8  # share of words in common from which two sentences count as one
COARSE = re.compile(r"nigg|fag|fuck|cunt|bitch|shit|whore|slut|retard|pussy|\bdick|\bcock\b|porn|\brap(e|ist)", re.I)
COARSE_TOO = re.compile(  # looked for after drawing: a sentence more or less before it would draw others
    COARSE.pattern
    + r"|fck|fuk|\bnicc?a|\b(?:wtf|stfu|gtfo|omfg|lmf?ao)|\bass(?:es|hole\w*|hat\w*)?\b|\bsuck (?:it|my)\b|\bbastard(?! child)"
    r"|\bpricks?\b|\bpiss|\bwank|\bmorons?\b|hussy|skank|douche|cunnin?l|sex offender|fondl"
    r"|\b[abcdfnps]\w{0,3} ?\*{2,}|\b(?:a|b|c|f|sh)\*\w|\w\*[&#@%$]",  # masked: sh ***, f*ck, F*&N
    re.I,
)
CONTACT = re.compile(  # links, addresses, telephone numbers and user names, but not what the authors put in their place
    r"https?://(?!url_removed)|\bwww\.|\b[\w-]+\.(?:com|org|net|edu|gov|info|ly|tv)\b|@(?!anonymous)\w|\bRT:? \w+:"
    r"|\(\d{3}\) ?\d{3}|\b\d{3}[-. ]\d{3}[-. ]\d{4}\b",
    re.I,
)
# Left out after reading: full names of private people, jeers. Digests, or the names would stand here.
READ_OUT = frozenset(
    {
        "0738daf6bb53", "14e1bc59ec06", "245f662b1097", "269802596904", "294e1da24687", "411e4fd17743",
        "416e55ec742b", "8498b1150d16", "863a9041e6d2", "93098c80b37a", "b2032515b22f", "b6228147a26d",
        "c16e7ed840a8", "cb8c9917732e", "d60af1b826c7", "f7fed753c2c0",
    }
)  # fmt: skip
PLAIN = re.compile(r"[A-ZÄÖÜ][^%{}<>&_|\\/\n\t`*#=():\[\]]+")  # a message without markup or placeholders


class Rated(NamedTuple):
    """A sentence, the mean of its human ratings (-4 to 4), and the document it was taken from."""

    text: str
    mean: float
    document: str

    @property
    def label(self) -> str | None:
        """Its sign as a word; None where the raters were not clear."""
        return None if abs(self.mean) < CLEAR else "positive" if self.mean > 0 else "negative"

    @property
    def chance(self) -> float:
        """The mean rating as a probability of being positive, to learn from."""
        return 1 / (1 + math.exp(-2 * self.mean))


# --- reading --------------------------------------------------------------------------------------------------------


def lines(path: Path) -> list[str]:
    """The lines of a text file, which may be packed with gzip or xz."""
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "rt", encoding="utf-8") as file:
        return file.read().split("\n")


def rated(archive: Path) -> tuple[dict[str, list[Rated]], list[Rated]]:
    """The sentences of every domain, and the words of the lexicon, from vaderSentiment's source distribution."""
    with tarfile.open(archive) as outer:
        inner = next(name for name in outer.getnames() if name.endswith("hutto_ICWSM_2014.tar.gz"))
        packed = outer.extractfile(inner).read()
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:

        def rows(name: str) -> list[list[str]]:
            file = tar.extractfile(f"hutto_ICWSM_2014/{name}.txt").read()
            return [line.split("\t") for line in file.decode("utf-8", "replace").splitlines() if "\t" in line]

        domains = {}
        for domain, (name, _) in DOMAINS.items():
            found = [
                Rated(" ".join(unescaped(" ".join(rest)).split()), float(mean), number.partition("_")[0])
                for number, mean, *rest in rows(f"{name}_GroundTruth")
            ]
            domains[domain] = found
        lexicon = [Rated(row[0].strip(), float(row[1]), "") for row in rows("vader_sentiment_lexicon")]
    return domains, lexicon


def unescaped(text: str) -> str:
    """A text without HTML entities, however many times they were encoded (&amp;#39; and the like)."""
    while (plain := html.unescape(text)) != text:
        text = plain
    return text


def natural(text: str) -> str:
    """A sentence of SST-2 with its tokens joined again, as people write."""
    text = text.replace("-lrb-", "(").replace("-rrb-", ")").replace("``", "''").replace("\\/", "/")
    text = re.sub(r" (n't|'(?:s|re|ve|ll|d|m)\b)", r"\1", text)
    return re.sub(r" ([.,;:!?)])", r"\1", text).replace("( ", "(").strip()


def sst2(folder: Path, split: str) -> list[tuple[str, int | None]]:
    """Sentences of SST-2 (GLUE's files) and their labels; those of the test file have none."""
    rows = [line.split("\t") for line in lines(folder / f"{split}.tsv")[1:] if line]
    if split == "test":
        return [(natural(row[1]), None) for row in rows]
    return [(natural(row[0]), int(row[1])) for row in rows]


def free_text(path: Path) -> Iterator[str]:
    """The sentences of a file: of CoNLL-U the text comments, of a table every cell of four words or more, else lines."""
    name = path.name
    for line in lines(path):
        if ".conllu" in name:
            if line.startswith("# text = "):
                yield line[9:].strip()
        elif ".tsv" in name:
            yield from (cell.strip() for cell in line.split("\t") if len(cell.split()) > 3)
        elif line.strip():
            yield line.strip()


def catalogue(path: Path) -> list[tuple[str, str]]:
    """The plain German and English messages of a gettext catalogue (.po): no plurals, nothing marked as fuzzy."""
    pairs = []
    for entry in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
        if "#, fuzzy" in entry or "msgid_plural" in entry or "\n#~" in f"\n{entry}":
            continue
        found = re.findall(r'^(msgid|msgstr)((?:\s*"(?:[^"\\]|\\.)*")+)', entry, re.MULTILINE)
        strings = {
            key: "".join(ast.literal_eval(part) for part in value.split("\n") if part.strip()) for key, value in found
        }
        english, german = (" ".join(strings.get(key, "").split()) for key in ("msgid", "msgstr"))
        if english and german and english != german:
            pairs.append((german, english))
    return pairs


# --- what must not meet ---------------------------------------------------------------------------------------------


def words(text: str) -> tuple[str, ...]:
    """The words of a text, whatever the case, the spaces and the punctuation: what two spellings of it share."""
    return tuple(re.findall(r"[^\W_]+", re.sub(r"['’]", "", natural(text.lower()))))


def letters(text: str) -> str:
    """The same without the spaces, so that compounds match however they are written."""
    return "".join(words(text))


class Fence:
    """Keeps training text apart from shipped sentences: from the same sentence, from parts of it, from near copies."""

    def __init__(self, shipped: Iterable[str]) -> None:
        texts = [words(text) for text in shipped]
        self.joined = "|".join("".join(tokens) for tokens in texts)
        self.parts = {
            tokens[i:j] for tokens in texts for i in range(len(tokens)) for j in range(i + 2, len(tokens) + 1)
        }
        self.runs = {tokens[i : i + RUN] for tokens in texts for i in range(len(tokens) - RUN + 1)}
        self.runs |= {tokens for tokens in texts if 2 < len(tokens) < RUN}

    def bars(self, text: str) -> bool:
        """Whether a text is a part of a shipped sentence (two words or more), has one in it, or eight words in a row."""
        tokens, key = words(text), letters(text)
        if tokens in self.parts or (len(tokens) > 1 and len(key) > 7 and key in self.joined):  # also 's good, it 's
            return True
        sizes = range(3, RUN + 1)
        return any(tokens[i : i + size] in self.runs for i in range(len(tokens)) for size in sizes)


def apart(pairs: Sequence[tuple[str, str]], shipped: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs of which neither side is, or has four fifths of its words in common with, a shipped one's."""
    kept = list(pairs)
    for side in (0, 1):
        whole = {letters(pair[side]) for pair in shipped}
        sets = [frozenset(words(pair[side])) for pair in shipped]
        holders = defaultdict(list)
        for number, found in enumerate(sets):
            for word in found:
                holders[word].append(number)

        def close(text: str, whole: set[str] = whole, sets: list = sets, holders: dict = holders) -> bool:
            own = frozenset(words(text))
            shared = Counter(number for word in own for number in holders.get(word, ()))
            near = any(count >= ALIKE * len(own | sets[number]) for number, count in shared.items() if count > 1)
            return letters(text) in whole or near

        kept = [pair for pair in kept if not close(pair[side])]
    return kept


# --- choosing -------------------------------------------------------------------------------------------------------


def balanced(sentences: Sequence[Rated], each: int, rng: random.Random) -> list[Rated]:
    """`each` positive and `each` negative sentences, drawn by whole documents, in random order."""
    seen: set[str] = set()
    usable = []
    for one in sentences:
        key = letters(one.text)
        if one.label and key not in seen and not COARSE.search(one.text) and 3 <= len(words(one.text)) <= 50:
            usable.append(one)
        seen.add(key)
    documents = sorted({one.document for one in usable})
    rng.shuffle(documents)
    rank = {document: place for place, document in enumerate(documents)}
    chosen: set[Rated] = set()
    for label in ("negative", "positive"):
        chosen |= set(sorted((one for one in usable if one.label == label), key=lambda one: rank[one.document])[:each])
    return rng.sample(sorted(chosen), len(chosen))


def chosen_sentences(domains: dict[str, list[Rated]], unseen: set[str], seed: int) -> dict[str, list[Rated]]:
    """The sentences drawn of every domain. Movies: only those in `unseen`, SST-2's dev and test sentences.

    They are the reviews that no phrase of SST-2's training set was cut from, so a teacher trained on it has not seen them.
    Those that are not presentable are not shipped, but nothing is drawn in their place, and no model learns from them.
    """
    chosen = {}
    for domain, (_, each) in DOMAINS.items():
        own = [one for one in domains[domain] if domain != "movies" or letters(one.text) in unseen]
        chosen[domain] = balanced(own, each, random.Random(f"{seed} {domain}"))
    return chosen


def digest(text: str) -> str:
    """What stands for a text in READ_OUT."""
    return hashlib.sha256(letters(text).encode()).hexdigest()[:12]


def presentable(text: str) -> bool:
    """Whether a drawn sentence may be shipped: no coarse word, no way to reach anybody, not left out by hand."""
    return not COARSE_TOO.search(text) and not CONTACT.search(text) and digest(text) not in READ_OUT


def chosen_messages(pairs: Sequence[tuple[str, str]], count: int, seed: int) -> list[tuple[str, str]]:
    """Short messages that are plain text in both languages, no two alike."""
    kept: list[tuple[str, str]] = []
    seen: set[str] = set()
    for german, english in pairs:
        sides = {letters(german), letters(english)}
        short = all(4 <= len(words(side)) <= 16 and PLAIN.fullmatch(side) for side in (german, english))
        if short and not sides & seen:
            kept.append((german, english))
            seen |= sides
    random.Random(f"{seed} messages").shuffle(kept)
    return kept[:count]


# --- writing --------------------------------------------------------------------------------------------------------


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A TSV file, whole or not at all."""
    table = [[str(cell) for cell in row] for row in rows]
    if any("\t" in cell or "\n" in cell for row in table for cell in row):
        raise ValueError(f"a cell for {path.name} has a tab or a line break in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join("\t".join(row) + "\n" for row in [header, *table]), encoding="utf-8", newline="\n")
    partial.replace(path)


def read_table(path: Path) -> list[list[str]]:
    """The rows of a TSV file below its header."""
    return [line.split("\t") for line in lines(path)[1:] if line]
