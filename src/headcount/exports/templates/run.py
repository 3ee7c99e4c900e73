"""Runs the model of this folder: python run.py "a text" "another text". Needs onnxruntime or openvino, and tokenizers."""

import json
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
CONFIG = json.loads((HERE / "config.json").read_text("utf-8"))
HOW, LABELS, MOST = CONFIG["headcount_export"], CONFIG.get("id2label") or {}, 40  # new tokens at most
TOKENIZER = Tokenizer.from_file(str(HERE / "tokenizer.json"))
TOKENIZER.no_padding()
TOKENIZER.enable_truncation(HOW["max_length"])

if (HERE / "model.onnx").is_file():
    import onnxruntime

    graph = onnxruntime.InferenceSession(str(HERE / "model.onnx"), providers=["CPUExecutionProvider"])
else:
    import openvino

    graph = openvino.Core().compile_model(str(HERE / "openvino_model.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def first_output(**rows: list[int]) -> np.ndarray:
    """The first output of the graph for one example."""
    given = {name: np.array([rows[name]], dtype=np.int64) for name in HOW["inputs"]}
    return graph.run(None, given)[0] if hasattr(graph, "run") else graph(given)[0]


def answer(text: str) -> object:
    """What the model says about a text: labels and probabilities, an embedding, or the tokens that follow."""
    code = TOKENIZER.encode(text)
    rows = {"input_ids": code.ids, "attention_mask": code.attention_mask, "token_type_ids": code.type_ids}
    if HOW["task"] in ("generate", "translate"):
        made = [] if HOW["task"] == "generate" else [HOW["start"]]
        for _ in range(MOST):
            ids = code.ids + made if HOW["task"] == "generate" else code.ids
            rows = {"input_ids": ids, "attention_mask": [1] * len(ids), "decoder_input_ids": made}
            made.append(int(first_output(**rows)[0, -1].argmax()))
            if made[-1] in HOW["end"] or len(code.ids) + len(made) > HOW["positions"]:
                break
        return TOKENIZER.decode(made)
    numbers = first_output(**rows)[0].astype(np.float64)
    if HOW["task"] == "embed":
        return (numbers.mean(0) if HOW["pooling"] == "mean" else numbers[0]).tolist()
    if HOW["task"] == "tag":
        return [[token, LABELS[str(best)]] for token, best in zip(code.tokens, numbers.argmax(-1), strict=True)]
    if HOW["task"] == "classify" and HOW["probabilities"] != "none":
        powers = np.exp(numbers - numbers.max())
        shares = powers / powers.sum() if HOW["probabilities"] == "softmax" else (1 + np.tanh(numbers / 2)) / 2
        return {LABELS[str(number)]: round(share, 6) for number, share in enumerate(shares.tolist())}
    return numbers.tolist()


for text in sys.argv[1:]:
    print(json.dumps(answer(text), ensure_ascii=False))
