"""`generate`: contrast data from templates, for the tasks that circuits are usually looked for with.

- `ioi`: indirect object identification (Wang et al. 2023). "When Mary and John went to the store, John gave a book to" Mary;
  corrupted: the other of the two gives.
- `greater-than` (Hanna et al. 2023). "The war lasted from the year 1743 to the year 17" any later year; corrupted: 1701.
- `induction` (Olsson et al. 2022). Words in any order, and then one of them again, which the same word follows; corrupted:
  another of them again.
- `agreement`: subject and verb (Linzen et al. 2016). "The keys near the door" are; corrupted: the key.
- `colour`: a thing and its colour. "Anna has a red car and Paul has a blue hat. The colour of the car is" red; corrupted: the
  other thing.

Clean and corrupted prompts differ in one word of as many tokens. Words come from short lists, and those are taken that are one
token for the tokenizer at hand.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import BadData
from ..columns import Table
from ..encoding import LONGEST, loaded_tokenizer
from .alignment import Prompts, Reader, Unusable
from .pairs import Answers
from .words import COLOURS, EVENTS, GIFTS, NAMES, NOUNS, NUMERALS, PLACES, THINGS, Vocabulary

PREFIX = "contrast:"
SIZE = 200  # examples, where no limit is given
TRIES = 40  # draws per example: some are there already, or do not align
SEQUENCE = 8  # words of an induction prompt before one comes again


class Row(NamedTuple):
    """A generated example."""

    clean: str
    corrupted: str
    answer: list[str]
    wrong: list[str]
    template: int


Draw = Callable[[random.Random], Row]


def of_generator(kind: str | None) -> bool:
    """Whether a kind of task is written as one that is generated: contrast:NAME."""
    return kind is not None and kind.startswith(PREFIX)


def generate(name: str, tokenizer: Any, *, size: int = SIZE, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of contrast data from templates: clean and corrupted prompt, answer, wrong answers, and the template's number.

    Rows are different from each other; where the words that the tokenizer has make fewer, there are fewer. They are what
    `hc.task("contrast", rows, tokenizer=...)` takes, and one JSON object a line of what `headcount generate` writes.

    Args:
        name: "ioi", "greater-than", "induction", "agreement" or "colour".
        tokenizer: The tokenizer, or the folder of the model.
        size: Number of rows.
        seed: Random seed.

    Returns:
        The rows, as dicts.

    Examples:
        >>> rows = hc.data.contrast.generate("induction", "my-decoder", size=3)
        >>> list(rows[0])
        ['clean', 'corrupted', 'answer', 'wrong', 'template']
    """
    return [row._asdict() for row in generated(name, tokenizer, size, seed)[0]]


def generated(name: str, tokenizer: Any, size: int = SIZE, seed: int = 0) -> tuple[list[Row], tuple[str, ...]]:
    """The rows of `generate`, and notes about the words that had to be taken."""
    if name not in GENERATORS:
        raise BadData(f"There is no contrast task {name!r:.40} to generate; choose one of {', '.join(GENERATORS)}.")
    if size < 1:
        raise BadData(f"The number of examples to generate is {size}; it must be at least 1.")
    tokenizer = loaded_tokenizer(tokenizer)
    words, draws = Vocabulary(tokenizer), random.Random(f"{name}/{seed}")
    draw = GENERATORS[name](words)
    mask = f" {tokenizer.mask_token} ." if tokenizer.mask_token_id is not None else ""
    reader = Reader(tokenizer, LONGEST, as_written=False)
    first: Unusable | None = None
    seen = dict[str, Row]()
    for _ in range(TRIES * size):
        row = draw(draws)
        row = row._replace(clean=row.clean + mask, corrupted=row.corrupted + mask)
        if json.dumps(row) in seen:
            continue
        try:
            answers = Answers(tuple(row.answer), tuple(row.wrong))
            reader.read(Prompts(row.clean, row.corrupted, answers, f"a drawn example of {name}"))
        except Unusable as problem:
            first = first or problem
            continue
        seen[json.dumps(row)] = row
        if len(seen) == size:
            break
    if not seen:
        raise BadData(f"No example of {name} fits this tokenizer; the first: {first}")
    few = f"the words that this tokenizer has make {len(seen)} different examples of {name} and not {size}"
    return list(seen.values()), (*words.notes, *[few] * (len(seen) < size))


def generated_pairs(kind: str, data: Any, tokenizer: Any, limit: int | None, seed: int | None) -> Table:
    """The table of a generated task, contrast:NAME, of `limit` examples or `SIZE`."""
    if data is not None:
        raise BadData(f"{kind:.60} is generated; leave the data ({data!r:.60}) out, or give it to the kind contrast.")
    name = kind.removeprefix(PREFIX)
    rows, notes = generated(name, tokenizer, SIZE if limit is None else limit, seed or 0)
    answers = [Answers(tuple(row.answer), tuple(row.wrong)) for row in rows]
    prompts = ([row.clean for row in rows], [row.corrupted for row in rows])
    return Table(f"generated {name}", prompts, answers, range(1, len(rows) + 1), notes=notes)


def write(rows: list[Row], path: str | Path) -> None:
    """Write rows as JSON Lines."""
    lines = [json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in rows]
    Path(path).write_text("".join(lines), encoding="utf-8")


def _enough(words: list[str], least: int, what: str) -> list[str]:
    if len(words) < least:
        raise BadData(
            f"This tokenizer has {len(words)} {what} of one length in tokens, and {least} are needed; give data of your own "
            "(hc.task('contrast', rows)) with words that it has."
        )
    return words


# --- templates ------------------------------------------------------------------------------------------------------

_IOI = (
    "When {a} and {b} went to the {place}, {s} gave a {gift} to",
    "While {a} and {b} were at the {place}, {s} handed a {gift} to",
    "After {a} and {b} left the {place}, {s} sent a {gift} to",
    "Then {a} and {b} met at the {place}, where {s} offered a {gift} to",
)


def _ioi(words: Vocabulary) -> Draw:
    names = _enough(words.alike(NAMES, 4, "names"), 2, "names")

    def draw(draws: random.Random) -> Row:
        template = draws.randrange(len(_IOI))
        a, b = draws.sample(names, 2)
        giver, other = draws.sample([a, b], 2)
        filled = {"a": a, "b": b, "place": draws.choice(PLACES), "gift": draws.choice(GIFTS)}
        prompts = [_IOI[template].format(**filled, s=who) for who in (giver, other)]
        return Row(prompts[0], prompts[1], [other], [giver], template)

    return draw


_GREATER = (
    "The {event} lasted from the year {start} to the year {century}",
    "The {event} began in {start} and ended in {century}",
    "The {event} started in the year {start} and went on until the year {century}",
)


def _greater_than(words: Vocabulary) -> Draw:
    """Years of two tokens where the tokenizer has them; else the first digit after the century is asked for."""
    pairs = {century: _halves(words, century) for century in range(11, 20)}
    most = max(map(len, pairs.values()))
    digits = most < 10
    if digits:
        words.notes.append(
            "this tokenizer reads years digit by digit, so the first digit after the century is asked for"
        )

    def draw(draws: random.Random) -> Row:
        template, event = draws.randrange(len(_GREATER)), draws.choice(EVENTS)
        century = draws.choice([c for c in pairs if digits or len(pairs[c]) >= 10])
        if digits:
            ten, one = draws.randint(2, 7), draws.randint(2, 9)
            start, low = f"{century}{ten}{one}", f"{century}0{one}"
            right, wrong = [str(n) for n in range(ten + 1, 10)], [str(n) for n in range(ten)]
        else:
            ends = pairs[century]
            place = draws.randrange(len(ends) // 5, len(ends) - len(ends) // 5)
            start, low = f"{century}{ends[place]}", f"{century}{ends[0]}"
            right, wrong = ends[place + 1 :], ends[: place + 1]
        prompts = [_GREATER[template].format(event=event, start=year, century=century) for year in (start, low)]
        return Row(prompts[0], prompts[1], right, wrong, template)

    return draw


def _halves(words: Vocabulary, century: int) -> list[str]:
    """The endings of a century's years that are one token behind it, both in a year and where it is continued."""
    whole = words.tokens(str(century))
    ends = []
    for numeral in NUMERALS:
        year = words.tokens(f"{century}{numeral}")
        if year[: len(whole)] == whole and len(year) == len(whole) + 1:
            ends.append(numeral)
    return ends


def _induction(words: Vocabulary) -> Draw:
    pool = [*THINGS, *PLACES, *GIFTS, *EVENTS, *(noun.split(":")[0] for noun in NOUNS)]
    least = SEQUENCE + 2
    known = words.alike(list(dict.fromkeys(pool)), least, "words")
    many = min(SEQUENCE, len(_enough(known, 5, "words")) - 1)

    def draw(draws: random.Random) -> Row:
        chosen = draws.sample(known, many)
        one, other = draws.sample([0, *range(2, many - 1)], 2)  # what comes after one of them is not the other
        other = other if abs(one - other) > 1 else 0
        start = " ".join(chosen)
        return Row(f"{start} {chosen[one]}", f"{start} {chosen[other]}", [chosen[one + 1]], [chosen[other + 1]], 0)

    return draw


_AGREEMENT = (
    "The {subject} near the {other}",
    "The {subject} behind the {other}",
    "The {subject} that the {other} saw",
    "I think that the {subject} next to the {other}",
)
_VERBS = (("is", "are"), ("was", "were"), ("has", "have"))


def _agreement(words: Vocabulary) -> Draw:
    both = [(one, many) for one, _, many in (noun.partition(":") for noun in NOUNS)]
    known = set(words.alike([word for pair in both for word in pair], 8, "nouns in singular and plural"))
    nouns = [pair for pair in both if known.issuperset(pair)]
    if len(nouns) < 2:  # the length is what counts: any two forms of as many tokens
        known_words = _enough(words.alike([word for pair in both for word in pair], 8, "nouns"), 4, "nouns")
        nouns = list(zip(known_words[::2], known_words[1::2], strict=False))
    known_verbs = [pair for pair in _VERBS if all(words.tokens(verb) for verb in pair)]
    firsts = [{words.tokens(pair[form])[0] for pair in known_verbs} for form in (0, 1)]
    verbs = known_verbs if known_verbs and not firsts[0] & firsts[1] else [_VERBS[0]]

    def draw(draws: random.Random) -> Row:
        template, (subject, other) = draws.randrange(len(_AGREEMENT)), draws.sample(nouns, 2)
        number, distractor = draws.randrange(2), draws.randrange(2)
        prompts = [
            _AGREEMENT[template].format(subject=subject[form], other=other[distractor]) for form in (number, 1 - number)
        ]
        return Row(
            prompts[0], prompts[1], [pair[number] for pair in verbs], [pair[1 - number] for pair in verbs], template
        )

    return draw


_COLOUR = (
    "{a} has a {one} {x} and {b} has a {two} {y}. The colour of the {asked} is",
    "{a} bought a {one} {x} while {b} bought a {two} {y}. The colour of the {asked} is",
    "There is a {one} {x} next to a {two} {y}. The colour of the {asked} is",
)


def _colour(words: Vocabulary) -> Draw:
    names = _enough(words.alike(NAMES, 4, "names"), 2, "names")
    colours = _enough(words.alike(COLOURS, 3, "colours"), 2, "colours")
    things = _enough(words.alike(THINGS, 3, "things"), 2, "things")

    def draw(draws: random.Random) -> Row:
        template = draws.randrange(len(_COLOUR))
        (a, b), (one, two), (x, y) = (draws.sample(some, 2) for some in (names, colours, things))
        filled = {"a": a, "b": b, "one": one, "two": two, "x": x, "y": y}
        first = draws.randrange(2)
        prompts = [_COLOUR[template].format(**filled, asked=(x, y)[place]) for place in (first, 1 - first)]
        return Row(prompts[0], prompts[1], [(one, two)[first]], [(one, two)[1 - first]], template)

    return draw


GENERATORS: Mapping[str, Callable[[Vocabulary], Draw]] = {
    "ioi": _ioi,
    "greater-than": _greater_than,
    "induction": _induction,
    "agreement": _agreement,
    "colour": _colour,
}
