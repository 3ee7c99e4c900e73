"""Make the models and the data in src/headcount/embedded: four steps, in this order.

    python tools/train_demo.py data --work WORK --vader vaderSentiment-3.3.2.tar.gz --sst2 SST-2 \\
        --text en_ewt-ud-train.conllu.xz ... --messages wagtail --catalogues django sphinx ... \\
        --pairs train.de.gz train.en.gz --pairs tatoeba.de.gz tatoeba.en.gz --dev-pairs val.de.gz val.en.gz
    python tools/train_demo.py judge --work WORK --teacher TEACHER
    python tools/train_demo.py classifier --work WORK
    python tools/train_demo.py translator --work WORK

`data` writes the sentences that are shipped and, into WORK, the text to learn from, which has none of them. It reads

- the source distribution of vaderSentiment 3.3.2 (PyPI): rated sentences of four domains, and a lexicon;
- SST-2 as GLUE has it (train.tsv, dev.tsv, test.tsv), and any English text for masked-language modelling (--text): ours
  were Universal Dependencies EWT, GLUE's CoLA, MRPC, RTE and STS-B, and the English sides of the pairs;
- folders of unpacked packages with German message catalogues: --messages is Wagtail's, of which some are shipped;
- parallel text, a sentence a line: ours were Multi30k (train; val as --dev-pairs) and the Tatoeba challenge's German-English
  test set (v2021-08-07).

TEACHER is any sequence classifier of sentiment with labels negative and positive in this order (ours: all-MiniLM-L6-v2
fine-tuned on SST-2 for 3 epochs). Both models start from random weights; an H200 trains both in two minutes. Sentences
that are shipped but not made here are written by hand: translator-data/sentences.tsv.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import demo_data as data
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
)

EMBEDDED = Path(__file__).resolve().parent.parent / "src" / "headcount" / "embedded"
LENGTH = 64  # tokens a text may have
MASKED = 0.2  # share of tokens hidden in masked-language modelling
SHARES = {  # how often the classifier sees each kind of text
    "sst2": 0.24,
    "movies": 0.20,
    "augmented": 0.28,
    "products": 0.08,
    "news": 0.08,
    "tweets": 0.08,
    "lexicon": 0.04,
}


# --- data -----------------------------------------------------------------------------------------------------------


def make_data(args: argparse.Namespace) -> None:
    """Write what is shipped to `args.out` and what is learned from to `args.work`."""
    sentiment(args)
    translation(args)


def sentiment(args: argparse.Namespace) -> None:
    """The four domains, labelled.tsv (text, kind, chance of being positive), text.tsv and dev.tsv."""
    domains, lexicon = data.rated(args.vader)
    unseen = {data.letters(text) for split in ("dev", "test") for text, _ in data.sst2(args.sst2, split)}
    drawn = data.chosen_sentences(domains, unseen, args.seed)
    shipped = {domain: [one for one in found if data.presentable(one.text)] for domain, found in drawn.items()}
    for domain, sentences in shipped.items():
        path = args.out / "classifier-data" / f"{domain}.tsv"
        data.write_table(path, ("sentence", "label"), ((one.text, one.label) for one in sentences))
    fence = data.Fence(one.text for sentences in drawn.values() for one in sentences)

    documents = {domain: {one.document for one in sentences} for domain, sentences in drawn.items()}
    rows: list[tuple[str, str, float]] = []
    dev: list[data.Rated] = []
    dropped = 0
    for domain, sentences in domains.items():
        for one in sentences:
            if one.document in documents[domain] or fence.bars(one.text):
                dropped += 1
            elif domain == "movies" and data.letters(one.text) in unseen:
                dev.append(one)
            else:
                rows.append((one.text, domain, one.chance))
    fence_dev = data.Fence(one.text for one in dev)
    labelled = [(text, "sst2", float(label)) for text, label in data.sst2(args.sst2, "train")]
    rows += [row for row in dict.fromkeys(labelled) if not fence.bars(row[0]) and not fence_dev.bars(row[0])]
    rows += [(one.text, "lexicon", one.chance) for one in lexicon]
    data.write_table(args.work / "labelled.tsv", ("text", "kind", "chance"), ((t, k, f"{c:.4f}") for t, k, c in rows))
    data.write_table(args.work / "dev.tsv", ("sentence", "label"), ((o.text, o.label) for o in dev if o.label))

    paths = [*args.text, *(english for _, english in args.pairs)]
    free = dict.fromkeys(" ".join(text.split()) for path in paths for text in data.free_text(path))
    kept = [text for text in free if not fence.bars(text) and not fence_dev.bars(text)]
    data.write_table(args.work / "text.tsv", ("text",), ((text,) for text in kept))
    print(f"shipped { ({domain: len(found) for domain, found in shipped.items()}) }")
    print(
        f"labelled {len(rows)} ({dropped} rated sentences left out), dev {len(dev)}, free text {len(kept)} of {len(free)}"
    )


def translation(args: argparse.Namespace) -> None:
    """messages.tsv, pairs.tsv (kind, German, English) and pairs-dev.tsv. sentences.tsv is written by hand."""
    folder = args.out / "translator-data"

    def found(package: Path) -> list[tuple[str, str]]:
        return [pair for path in sorted(package.rglob("de/LC_MESSAGES/*.po")) for pair in data.catalogue(path)]

    messages = data.chosen_messages(found(args.messages), args.shipped_messages, args.seed)
    data.write_table(folder / "messages.tsv", ("source", "target"), messages)
    shipped = [*messages, *(tuple(row) for row in data.read_table(folder / "sentences.tsv"))]
    catalogues = dict.fromkeys(pair for package in (args.messages, *args.catalogues) for pair in found(package))
    pairs = [("messages", *pair) for pair in data.apart(list(catalogues), shipped)]
    for german, english in args.pairs:
        both = zip(data.lines(german), data.lines(english), strict=True)
        kept = data.apart([pair for pair in dict.fromkeys(both) if all(pair)], shipped)
        pairs += [(german.name.partition(".")[0], *pair) for pair in kept]
        print(f"{german.name}: {len(kept)} pairs")
    dev = [pair for german, english in args.dev_pairs for pair in zip(*map(data.lines, (german, english)), strict=True)]
    data.write_table(args.work / "pairs.tsv", ("kind", "source", "target"), (map(data_cell, row) for row in pairs))
    data.write_table(args.work / "pairs-dev.tsv", ("source", "target"), (pair for pair in dev if all(pair)))
    print(
        f"shipped {len(messages)} messages and {len(shipped) - len(messages)} sentences; {len(pairs)} pairs to learn from"
    )


def data_cell(text: str) -> str:
    """A text on one line."""
    return " ".join(text.split())


# --- teacher --------------------------------------------------------------------------------------------------------


def augmented(texts: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """New texts for a teacher to judge: parts of texts, two in one, some words exchanged for other texts' words."""
    split = [text.split() for text in texts]
    made = set()
    while len(made) < count:
        tokens = list(rng.choice(split))
        way = rng.random()
        if way < 0.35 and len(tokens) > 5:
            size = rng.randint(4, len(tokens))
            start = rng.randint(0, len(tokens) - size)
            tokens = tokens[start : start + size]
        elif way < 0.55:
            tokens += [*rng.choice([[], [","], ["and"], ["but"], ["."]]), *rng.choice(split)]
        share = rng.choice([0.0, 0.1, 0.2])
        tokens = [rng.choice(rng.choice(split)) if rng.random() < share else token for token in tokens[:45]]
        made.add(" ".join(tokens))
    return sorted(made)


@torch.no_grad()
def judged(folder: Path, texts: Sequence[str], device: str) -> np.ndarray:
    """The teacher's probability that each text is positive."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    found = np.zeros(len(texts))
    for start in range(0, len(order), 1024):
        numbers = order[start : start + 1024]
        batch = tokenizer(
            [texts[n] for n in numbers], padding=True, truncation=True, max_length=96, return_tensors="pt"
        )
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(**batch.to(device)).logits.float()
        found[numbers] = logits.softmax(-1)[:, 1].cpu().numpy()
    return found


def judge(args: argparse.Namespace) -> None:
    """judged.tsv: labelled.tsv with the teacher's view of movie reviews mixed in, and texts that only it has judged."""
    labelled = [(text, kind, float(chance)) for text, kind, chance in data.read_table(args.work / "labelled.tsv")]
    reviews = [text for text, kind, _ in labelled if kind in ("sst2", "movies")]
    extra = augmented(reviews, args.augmented, random.Random(args.seed))
    teacher = dict(zip([*reviews, *extra], judged(args.teacher, [*reviews, *extra], args.device), strict=True))
    rows = [(t, k, 0.5 * c + 0.5 * teacher[t] if k in ("sst2", "movies") else c) for t, k, c in labelled]
    rows += [(text, "augmented", teacher[text]) for text in extra]
    data.write_table(args.work / "judged.tsv", ("text", "kind", "chance"), ((t, k, f"{c:.4f}") for t, k, c in rows))
    print(f"{len(rows)} texts with a chance of being positive")


# --- training -------------------------------------------------------------------------------------------------------


class Clock:
    """Ends a stage of training after so many steps or so many seconds, whichever comes first."""

    def __init__(self, steps: int, seconds: float) -> None:
        self.steps, self.seconds, self.start = steps, seconds, time.perf_counter()

    def passed(self, step: int) -> float:
        """The share of the stage that is over, 1 at its end."""
        return max(step / self.steps, (time.perf_counter() - self.start) / self.seconds)


def recorded(step: Callable[[dict[str, Tensor]], Tensor]) -> Callable[[dict[str, Tensor]], Tensor]:
    """The same step as a CUDA graph for each shape of batch: models this small spend their time on launching kernels."""
    graphs: dict[tuple, tuple] = {}

    def replay(batch: dict[str, Tensor]) -> Tensor:
        key = tuple(tuple(value.shape) for value in batch.values())
        if key not in graphs:
            fixed = {name: value.clone() for name, value in batch.items()}
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    step(fixed)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = step(fixed)
            graphs[key] = fixed, graph, loss
        fixed, graph, loss = graphs[key]
        for name, value in batch.items():
            fixed[name].copy_(value)
        graph.replay()
        return loss

    return replay


def fit(
    model: nn.Module, batches: Iterator[dict[str, Tensor]], loss_of: Callable, clock: Clock, rate: float, graphs: bool
) -> None:
    """Train with AdamW, a warm-up and a cosine decay; the weights become their moving average over the last steps."""
    device = next(model.parameters()).device
    cuda = device.type == "cuda"
    weights = list(model.parameters())
    groups = [
        {"params": [p for p in weights if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in weights if p.ndim < 2], "weight_decay": 0.0},
    ]
    speed = torch.tensor(rate, device=device)
    optimizer = torch.optim.AdamW(groups, lr=speed, betas=(0.9, 0.98), fused=cuda, capturable=cuda, foreach=False)
    mean = [p.detach().clone() for p in weights]

    def step(batch: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda, cache_enabled=False):
            loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(mean, weights, 0.002)
        return loss.detach()

    take = recorded(step) if cuda and graphs else step
    model.train()
    number, shown, halfway, total = 0, 0, False, torch.zeros((), device=device)
    while (passed := clock.passed(number)) < 1:
        cosine = 0.02 + 0.98 * (0.5 + 0.5 * np.cos(np.pi * passed))
        speed.fill_(rate * min((number + 1) / 1000, passed / 0.05 + 1e-3, cosine))
        total += take(next(batches))
        number += 1
        if cuda and number % 50 == 0:
            torch.cuda.synchronize()  # so that the clock does not run behind
        if passed > 0.5 and not halfway:  # the average begins here
            halfway = True
            with torch.no_grad():
                torch._foreach_copy_(mean, weights)
        if passed * 10 > shown + 1:
            shown += 1
            print(f"step {number}, {passed:.0%}: loss {total.item() / number:.4f} so far", flush=True)
    print(f"{number} steps", flush=True)
    with torch.no_grad():
        torch._foreach_copy_(weights, mean)
    model.eval()


def drawn(
    lengths: np.ndarray, odds: np.ndarray, batch: int, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, int]]:
    """Row numbers of batches without end, and the length to fill each up to: texts of about one length go together."""
    ends = np.cumsum(odds / odds.sum())
    while True:
        numbers = np.minimum(np.searchsorted(ends, rng.random(16 * batch)), len(ends) - 1)
        numbers = numbers[np.argsort(lengths[numbers] + rng.random(len(numbers)))]
        chunks = numbers.reshape(16, batch)
        for place in rng.permutation(16):
            yield chunks[place], int(-(-lengths[chunks[place]].max() // 8) * 8)


def matrix(lists: Sequence[Sequence[int]], width: int, device: str) -> Tensor:
    """Token lists as the rows of a tensor, filled up with 0."""
    rows = np.zeros((len(lists), width), dtype=np.int64)
    for row, tokens in zip(rows, lists, strict=True):
        row[: len(tokens)] = tokens
    return torch.tensor(rows, device=device)


def seen(ids: Tensor) -> Tensor:
    """What may be attended to, (batch, 1, length, length): every place that holds a token."""
    return (ids > 0)[:, None, None, :].expand(-1, 1, ids.shape[1], -1)


def save(model: nn.Module, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """The model in float16 with its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).half().cpu().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder.name}: {model.num_parameters():,} parameters, {size / 1e6:.2f} MB")


# --- classifier -----------------------------------------------------------------------------------------------------


def word_pieces(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """A lower-casing tokenizer of word pieces, learned from these texts."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, limit_alphabet=120, min_frequency=2)
    )
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    tokenizer.decoder = decoders.WordPiece()
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=LENGTH,
        model_input_names=inputs,
        clean_up_tokenization_spaces=False,
        **names,
    )


def packed(lists: Sequence[Sequence[int]], rng: random.Random) -> np.ndarray:
    """Token lists in a new order, several to a row of LENGTH: one [CLS], and a [SEP] after each."""
    rows, row = [], []
    for number in rng.sample(range(len(lists)), len(lists)):
        tokens = lists[number]
        if row and len(row) + len(tokens) - 1 > LENGTH:
            rows.append(row + [0] * (LENGTH - len(row)))
            row = []
        row = [*row, *tokens[1:]] if row else list(tokens)
    return np.array(rows, dtype=np.int64)


def pretrain(config: BertConfig, lists: Sequence[Sequence[int]], args: argparse.Namespace) -> BertForMaskedLM:
    """A model that learned to fill in words that were hidden."""
    model = BertForMaskedLM(config).to(args.device)
    rng, mask, hidden = random.Random(args.seed), 4, round(MASKED * LENGTH)
    packings = [torch.tensor(packed(lists, rng), device=args.device) for _ in range(4)]

    def batches() -> Iterator[dict[str, Tensor]]:
        while True:
            rows = rng.choice(packings)
            rows = rows[torch.randperm(len(rows), device=args.device)]
            for start in range(0, len(rows) - args.batch + 1, args.batch):
                ids = rows[start : start + args.batch]
                chance = torch.rand(ids.shape, device=args.device).masked_fill(ids <= mask, 2.0)
                places = chance.argsort(1)[:, :hidden]
                truth = ids.gather(1, places)
                luck = torch.rand(truth.shape, device=args.device)
                other = torch.randint(5, config.vocab_size, truth.shape, device=args.device)
                shown = torch.where(luck < 0.8, mask, torch.where(luck < 0.9, truth, other))
                shown = torch.where(truth > mask, shown, truth)  # a short row has fewer words than are to be hidden
                truth = torch.where(truth > mask, truth, -100)
                yield {"ids": ids.scatter(1, places, shown), "places": places, "truth": truth}

    def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        states = model.bert(batch["ids"], attention_mask=seen(batch["ids"])).last_hidden_state
        states = states.gather(1, batch["places"][:, :, None].expand(-1, -1, states.shape[-1]))
        return cross_entropy(model.cls(states).float().flatten(0, 1), batch["truth"].flatten())

    fit(model, batches(), loss_of, Clock(args.pretrain_steps, args.pretrain_seconds), 1e-3, args.graphs)
    return model


def train_classifier(args: argparse.Namespace) -> None:
    """Word pieces, masked-language modelling, then sentiment from people's ratings and a teacher's judgements."""
    rows = [(text, kind, float(chance)) for text, kind, chance in data.read_table(args.work / "judged.tsv")]
    labelled = [row for row in rows if row[1] != "augmented"]
    free = [text for (text,) in data.read_table(args.work / "text.tsv")]
    sentences = [text for text, kind, _ in labelled if kind != "lexicon"] + free
    tokenizer = word_pieces([*sentences, *(text for text, kind, _ in labelled if kind == "lexicon")], args.vocabulary)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.width,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=2 * args.width,
        max_position_embeddings=LENGTH,
        type_vocab_size=1,
        pad_token_id=0,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    torch.manual_seed(args.seed)
    long = [text for text in sentences if len(text.split()) > 4]
    lists = tokenizer(long, truncation=True, max_length=LENGTH)["input_ids"]
    print(f"{len(long)} texts, {sum(map(len, lists)):,} tokens", flush=True)
    base = pretrain(config, lists, args)

    tokens = tokenizer([row[0] for row in rows], truncation=True, max_length=LENGTH)["input_ids"]
    ids = matrix(tokens, LENGTH, args.device)
    chances = torch.tensor([row[2] for row in rows], dtype=torch.float32, device=args.device)
    sizes = Counter(row[1] for row in rows)
    odds = np.array([SHARES[row[1]] / sizes[row[1]] for row in rows])
    model = BertForSequenceClassification(config).to(args.device)
    model.bert.load_state_dict(base.bert.state_dict(), strict=False)

    def batches() -> Iterator[dict[str, Tensor]]:
        lengths = np.array([len(one) for one in tokens])
        for numbers, length in drawn(lengths, odds, args.batch, np.random.default_rng(args.seed)):
            chosen = torch.tensor(numbers, device=args.device)
            yield {"ids": ids[chosen, :length], "chance": chances[chosen]}

    def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["ids"], attention_mask=seen(batch["ids"])).logits.float()
        return cross_entropy(logits, torch.stack([1 - batch["chance"], batch["chance"]], 1))

    fit(model, batches(), loss_of, Clock(args.steps, args.seconds), 4e-4, args.graphs)
    save(model, tokenizer, args.out / "classifier")
    for path in (args.work / "dev.tsv", *sorted((args.out / "classifier-data").glob("*.tsv"))):
        table = data.read_table(path)
        lists = tokenizer([row[0] for row in table], truncation=True, max_length=LENGTH)["input_ids"]
        with torch.no_grad():
            guesses = model(found := matrix(lists, LENGTH, args.device), attention_mask=seen(found)).logits.argmax(-1)
        right = [guess == (row[1] == "positive") for guess, row in zip(guesses.tolist(), table, strict=True)]
        print(f"{path.name}: accuracy {np.mean(right):.4f} of {len(table)}")


# --- translator -----------------------------------------------------------------------------------------------------


def byte_pairs(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of byte-pair encoding for both languages, learned from these texts."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")]
    )
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, special_tokens=special, limit_alphabet=120, min_frequency=2)
    )
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A $B </s>", [("</s>", 2)])
    tokenizer.decoder = decoders.Metaspace()
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), special, strict=True))
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=128,
        model_input_names=inputs,
        clean_up_tokenization_spaces=False,
        **names,
    )


def spellings(
    tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], count: int, dropout: float
) -> list[list[list[int]]]:
    """The texts as tokens, `count` times, with merges left out at random (BPE dropout; Provilkov et al. 2020)."""
    loose = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    loose.model.dropout = dropout
    return [[encoded.ids for encoded in loose.encode_batch(list(texts))] for _ in range(count)]


def train_translator(args: argparse.Namespace) -> None:
    """German to English, from pairs."""
    pairs = data.read_table(args.work / "pairs.tsv")
    tokenizer = byte_pairs([text for pair in pairs for text in pair[1:]], args.vocabulary)
    config = MarianConfig(
        vocab_size=len(tokenizer),
        d_model=args.width,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2 * args.width,
        decoder_ffn_dim=2 * args.width,
        max_position_embeddings=128,
        dropout=args.dropout,
        attention_dropout=0.1,
        activation_dropout=0.1,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    torch.manual_seed(args.seed)
    model = MarianMTModel(config).to(args.device)
    lists = [
        [one for texts in spellings(tokenizer, [pair[side] for pair in pairs], args.spellings, 0.1) for one in texts]
        for side in (1, 2)
    ]
    lengths = np.array([max(map(len, both)) for both in zip(*lists, strict=True)])
    odds = (lengths <= LENGTH).astype(float)
    source, target = (matrix([tokens[:LENGTH] for tokens in side], LENGTH, args.device) for side in lists)
    print(f"{len(pairs)} pairs, {model.num_parameters():,} parameters", flush=True)

    def batches() -> Iterator[dict[str, Tensor]]:
        for numbers, length in drawn(lengths, odds, args.batch, np.random.default_rng(args.seed)):
            chosen = torch.tensor(numbers, device=args.device)
            yield {"ids": source[chosen, :length], "truth": target[chosen, :length]}

    def loss_of(model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.1) -> Tensor:
        ids, truth = batch["ids"], batch["truth"]
        given = torch.cat([torch.ones_like(truth[:, :1]), truth[:, :-1]], 1)
        past = torch.ones(truth.shape[1], truth.shape[1], dtype=torch.bool, device=truth.device).tril()
        states = model.model(
            ids,
            attention_mask=seen(ids),
            decoder_input_ids=given,
            decoder_attention_mask=past.expand(len(truth), 1, -1, -1),
            use_cache=False,
        ).last_hidden_state
        logits = (model.lm_head(states) + model.final_logits_bias).float()
        return cross_entropy(logits.flatten(0, 1), truth.flatten(), ignore_index=0, label_smoothing=smoothing)

    fit(model, batches(), loss_of, Clock(args.steps, args.seconds), args.rate, args.graphs)
    save(model, tokenizer, args.out / "translator")
    for path in (args.work / "pairs-dev.tsv", *sorted((args.out / "translator-data").glob("*.tsv"))):
        table = data.read_table(path)
        sides = (
            [tokens[:LENGTH] for tokens in tokenizer([row[side] for row in table])["input_ids"]] for side in (0, 1)
        )
        batch = dict(zip(("ids", "truth"), (matrix(side, LENGTH, args.device) for side in sides), strict=True))
        with torch.no_grad():
            print(f"{path.name}: {loss_of(model, batch, 0.0).item():.3f} nats a token of {len(table)} pairs")
        for german, english in table[:: max(1, len(table) // 5)][:5]:
            ids = model.generate(**tokenizer(german, return_tensors="pt").to(args.device), max_new_tokens=60)
            print(f"  {german} -> {tokenizer.decode(ids[0], skip_special_tokens=True)} ({english})")


# --- command line ---------------------------------------------------------------------------------------------------


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--work", type=Path, required=True, help="folder of the text to learn from")
    both.add_argument("--out", type=Path, default=EMBEDDED, help="folder of what is shipped")
    both.add_argument("--seed", type=int, default=0)
    train = argparse.ArgumentParser(add_help=False)
    train.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    train.add_argument("--eager", dest="graphs", action="store_false", help="no CUDA graphs")

    found = commands.add_parser("data", parents=[both], help="choose the sentences")
    found.set_defaults(run=make_data)
    found.add_argument("--vader", type=Path, required=True, help="vaderSentiment-3.3.2.tar.gz")
    found.add_argument("--sst2", type=Path, required=True, help="folder with train.tsv, dev.tsv and test.tsv")
    found.add_argument("--text", type=Path, nargs="*", default=[], help="more English text")
    found.add_argument("--messages", type=Path, required=True, help="folder of the package whose messages are shipped")
    found.add_argument("--shipped-messages", type=int, default=200)
    found.add_argument("--catalogues", type=Path, nargs="*", default=[], help="folders of more packages, to learn from")
    found.add_argument("--pairs", type=Path, nargs=2, action="append", default=[], metavar=("GERMAN", "ENGLISH"))
    found.add_argument("--dev-pairs", type=Path, nargs=2, action="append", default=[], metavar=("GERMAN", "ENGLISH"))

    zero = commands.add_parser("judge", parents=[both, train], help="ask a teacher")
    zero.set_defaults(run=judge)
    zero.add_argument("--teacher", type=Path, required=True, help="folder of a sentiment classifier")
    zero.add_argument("--augmented", type=int, default=150_000, help="made-up texts that the teacher judges")

    one = commands.add_parser("classifier", parents=[both, train], help="train the classifier")
    one.set_defaults(run=train_classifier)
    one.add_argument("--vocabulary", type=int, default=8000)
    one.add_argument("--width", type=int, default=192)
    one.add_argument("--pretrain-steps", type=int, default=3500)
    one.add_argument("--pretrain-seconds", type=float, default=np.inf)
    one.add_argument("--steps", type=int, default=3900)
    one.add_argument("--seconds", type=float, default=np.inf)
    one.add_argument("--batch", type=int, default=256)

    two = commands.add_parser("translator", parents=[both, train], help="train the translator")
    two.set_defaults(run=train_translator)
    two.add_argument("--vocabulary", type=int, default=6000)
    two.add_argument("--width", type=int, default=256)
    two.add_argument("--dropout", type=float, default=0.2)
    two.add_argument("--rate", type=float, default=1e-3)
    two.add_argument("--steps", type=int, default=7500)
    two.add_argument("--seconds", type=float, default=np.inf)
    two.add_argument("--batch", type=int, default=256)
    two.add_argument("--spellings", type=int, default=4)
    return parser.parse_args(argv)


def main() -> None:
    """Run the step that was asked for."""
    args = parsed()
    args.run(args)


if __name__ == "__main__":
    main()
