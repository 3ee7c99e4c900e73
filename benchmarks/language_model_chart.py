"""A study of criteria as a picture: perplexity as a multiple of the whole model's, by the share that is removed.

python benchmarks/language_model_chart.py study -o docs/images/llm-shares.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import altair as alt
import pandas as pd
from language_models import Study, perplexity

LINES = {  # what is drawn, and what it is called
    ("fisher", "mean+lstsq-recover"): "Fisher, columns refitted, 200 steps of training",
    ("fisher", "mean+lstsq"): "Fisher, columns refitted",
    ("fisher", "mean"): "Fisher, means in biases",
    ("fisher", "cut"): "Fisher",
    ("flap-global", "mean"): "FLAP, means in biases",
    ("activation-uniform", "cut"): "activation (Minitron)",
    ("taylor-middle", "cut"): "Taylor (LLM-Pruner)",
    ("wanda-uniform", "cut"): "Wanda",
    ("block-influence", "cut"): "block influence (ShortGPT)",
}
OURS = 4  # of these, drawn thick
COLOURS = ["#0b3c6f", "#1f6fb4", "#5ba3d9", "#9ccbee", "#b3541e", "#3f8f4f", "#8d5aa5", "#c9a227", "#7f7f7f"]
MOST = 8.0  # times the whole model's: beyond it nobody would use the model


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    study = Study.read(given.folder)
    whole = perplexity(study.whole["1024"])
    rows = [
        {"share": share, "times": perplexity(cell["1024"]) / whole, "way": label, "ours": place < OURS}
        for place, (way, label) in enumerate(LINES.items())
        for share in (0, *study.shares)
        if (cell := study.whole if share == 0 else study.rows.get((*way, share)))
    ]
    names = list(LINES.values())
    lines = (
        alt.Chart(pd.DataFrame(rows))
        .mark_line(point=True, clip=True)
        .encode(
            alt.X("share:Q", title="% of the parameters that are not embeddings, removed"),
            alt.Y(
                "times:Q", title="perplexity / the whole model's", scale=alt.Scale(type="log", domain=[0.8, MOST])
            ).axis(values=[0.8, 1, 1.3, 2, 3, 4, 6, 8], format="~g"),
            alt.Color("way:N", sort=names, title=None, scale=alt.Scale(domain=names, range=COLOURS)).legend(
                labelLimit=400
            ),
            strokeWidth=alt.condition("datum.ours", alt.value(3), alt.value(1.5)),
        )
    )
    lines.properties(width=460, height=330).configure_axis(labelFontSize=12, titleFontSize=12).configure_legend(
        labelFontSize=12
    ).save(str(given.output), scale_factor=2)


if __name__ == "__main__":
    main()
