"""What `roles` costs: its time over that of plain passes with attention in the open, and memory as the data grows.

    python benchmarks/roles.py                    # MiniLM's shape: 6 layers of 12 heads, width 384
    python benchmarks/roles.py --memory           # peak memory of 4 times the sentences over that of the first

Sentences are made up, 24 words each with a random tree of dependencies in 12 relations, so that every statistic is counted.
On a CPU the time is processor time of all threads. Passes and roles take turns; ratios are medians with quartiles.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys


def sentences(count: int, seed: int = 0) -> list:
    from headcount.data.sentences.conllu import Sentence, Word

    draw, made = random.Random(seed), []
    for number in range(count):
        forms = [f"w{min(draw.randrange(1000), draw.randrange(1000))}" for _ in range(24)]
        heads = [-1, *(draw.randrange(place) for place in range(1, 24))]
        words, start = [], 0
        for form, head in zip(forms, heads, strict=True):
            words.append(Word(form, start, start + len(form), head, "root" if head < 0 else f"r{draw.randrange(12)}"))
            start += len(form) + 1
        made.append(Sentence(" ".join(forms), tuple(words), str(number)))
    return made


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, **{f"w{n}": n + 4 for n in range(1000)}}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **named)


def ready(arguments):
    import torch
    import transformers

    import headcount as hc

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    sizes = {"hidden_size": arguments.width, "intermediate_size": 4 * arguments.width, "vocab_size": 1004}
    config = transformers.BertConfig(num_hidden_layers=arguments.layers, num_attention_heads=arguments.heads, **sizes)
    model = transformers.BertForSequenceClassification(config).eval()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    read = hc.head_roles.passages(sentences(arguments.sentences), tokenizer(), batch_size=arguments.batch)
    return model.to(device), read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in {"layers": 6, "heads": 12, "width": 384, "batch": 16, "sentences": 512}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        peaks = []
        for times in (1, 4):
            given = [sys.executable, __file__, "--peak", "--sentences", str(times * arguments.sentences)]
            done = subprocess.run(given, capture_output=True, text=True, check=True)
            peaks.append(json.loads(done.stdout))
        print(json.dumps({"peak MiB": peaks, "4 times the sentences / once": round(peaks[1] / peaks[0], 3)}, indent=2))
        return

    import torch
    from timing import seconds, summary

    from headcount import progress
    from headcount.head_roles.analysis import roles

    model, read = ready(arguments)
    device = next(model.parameters()).device

    def passes() -> None:
        with torch.no_grad():
            for numbers in read.batches():
                model(**{name: value.to(device) for name, value in read.inputs(numbers).items()})

    with progress.quiet():
        if arguments.peak:
            roles(model, read)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
            return
        ratios, fused = [], []
        for _ in range(arguments.repeats):
            model.set_attn_implementation("eager")
            plain = seconds(passes)
            model.set_attn_implementation("sdpa")
            fused.append(seconds(passes) / plain)
            ratios.append(seconds(lambda: roles(model, read)) / plain)
    found = {"roles / eager passes": summary(ratios), "sdpa passes / eager passes": summary(fused)}
    print(json.dumps(found | {"torch": torch.__version__, "device": str(device)}, indent=2))


if __name__ == "__main__":
    main()
