"""The command line: one thin command per verb, errors in one sentence, exit codes 0 (done), 1 (refused or failed), 2 (usage)."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from .. import __version__
from ..errors import HeadcountError
from . import bench, export, lottery, measure, prune, report, reproduce, roles
from .circuits import attribute, heads, weights
from .cutting import cut, inspect
from .help import demo as walk
from .help import doctor
from .help.panels import arranged
from .interventions import circuit, generate, patch
from .options import out, with_data
from .pruning import curve, tradeoff
from .training import learn, train

if TYPE_CHECKING:
    pass

app = typer.Typer(
    name="headcount",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Which attention heads, neurons and layers of a transformer earn their keep, and how to remove the rest.\n\n"
    "Examples:\n\n"
    "    headcount demo                                     # everything, on embedded models, offline\n\n"
    "    headcount doctor                                   # is all installed, and exact here?\n\n"
    "    headcount prune my-model --data dev.tsv --max-drop 1.0 -o smaller   # the main job\n\n"
    "    headcount tradeoff my-model --data dev.tsv         # what can be had for what\n\n"
    "    headcount inspect my-model                         # a folder, or a name on the hub\n\n"
    "    headcount score my-model --data dev.tsv            # which heads matter\n\n"
    "    headcount ablate my-model --data dev.tsv --each    # what each head is worth, with tests\n\n"
    "    headcount curve my-model --data dev.tsv            # how many can go\n\n"
    "    headcount roles my-model --data dev.conllu         # what each head looks at\n\n"
    '    headcount look my-model --text "..." --open        # attention on one text, as a page\n\n'
    "    headcount patch my-model --task contrast:ioi       # which activations carry the answer\n\n"
    "    headcount circuit my-model --task contrast:ioi     # which heads and MLPs are enough for it\n\n"
    "    headcount attribute my-model --data prompts.tsv --right right --wrong wrong   # what each head adds to a logit\n\n"
    "    headcount weights my-model                         # which heads copy, and how heads compose, by the weights\n\n"
    "    headcount heads my-model                           # induction, successor, retrieval heads, and so on\n\n"
    "    headcount bench my-model smaller                   # is it faster?\n\n"
    "    headcount export smaller --to onnx -o graph        # for other programs: gguf, onnx, vllm, ...\n\n"
    "    headcount train smaller --data train.tsv -o better # let it recover\n\n"
    "    headcount report runs -o page.html                 # one page of all that was found\n\n"
    "    headcount reproduce michel-heads                   # an experiment of a paper, again\n\n"
    "    headcount cut my-model 3:7 5:0-3 -o smaller        # remove five heads\n\n"
    "    headcount cut my-model layers:4 3.mlp:* -o smaller # a whole layer, and all of one MLP\n\n"
    "Units are written SITE:INDICES; `inspect` lists the sites.",
)


STOPPED = 130  # the exit code after Ctrl-C
STOP_SIGNALS = (
    "SIGTERM",
    "SIGHUP",
)  # from `kill`, a scheduler or a closed terminal: they stop a command as Ctrl-C does


def _version(show: bool) -> None:
    if show:
        print(f"headcount {__version__}")
        raise typer.Exit


def do(words: Sequence[str]) -> None:
    """Do what the words after `headcount` say, in this process; whatever keeps it from being done is raised."""
    try:
        code = app(list(words), standalone_mode=False)
    except typer.Abort:  # what Ctrl-C has become
        raise KeyboardInterrupt from None
    if code == STOPPED:
        raise KeyboardInterrupt
    if code:
        raise SystemExit(code)


@app.callback()
def _main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    context.obj = do  # for a command that is made of others


app.command()(inspect.inspect)
app.command()(cut.cut)
app.command()(doctor.doctor)
app.command()(arranged(bench.bench))
app.command()(export.export)
app.command()(generate.generate)
app.command()(report.report)
app.command()(arranged(reproduce.reproduce))
app.command()(arranged(with_data(prune.prune)))
app.command()(with_data(tradeoff.tradeoff))
app.command()(arranged(with_data(train.train)))
app.command()(arranged(with_data(learn.learn)))
app.command()(arranged(with_data(lottery.lottery)))
app.command()(with_data(roles.roles))
app.command()(roles.look)
app.command()(with_data(attribute.attribute))
app.command()(with_data(weights.weights))
app.command()(with_data(heads.heads))
app.command()(arranged(with_data(curve.curve)))
app.command()(arranged(with_data(circuit.circuit)))
for command in (measure.evaluate, measure.score, measure.ablate, measure.transfer, patch.patch):
    app.command()(with_data(command))


@app.command()
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where everything goes.")] = Path(
        "headcount-demo"
    ),
) -> None:
    """Walk through everything on two small models that are part of headcount: offline, in a few minutes.

    Every command is shown before it runs; all of them work on your own model and data too.

    Examples:

        headcount demo

        headcount demo -o somewhere-else
    """
    walk.unpack(output)
    for words in walk.walk(output):
        out.print(f"\n[bold]$ headcount {shlex.join(words)}[/]", soft_wrap=True)
        do(words)
    out.print(f"\nEverything is in {output}: open {output / 'report.html'}", soft_wrap=True, markup=False)


# -- helpers -------------------------------------------------------------------------------------------------------------


def main() -> None:
    """Run the command line; every error that is ours, and every ordinary one, ends as one sentence."""
    with _stop_signals() as received:
        try:
            _run()
        except SystemExit as error:
            if received and error.code == STOPPED:
                raise SystemExit(128 + received[0]) from None
            raise


def _run() -> None:
    from ..progress import lines

    try:
        with lines():
            app(standalone_mode=True)
    except HeadcountError as error:
        sys.stderr.write(f"headcount: {error}\n")
        raise SystemExit(1) from None
    except (KeyboardInterrupt, BrokenPipeError):
        raise SystemExit(STOPPED) from None
    except Exception as error:
        if os.environ.get("HEADCOUNT_DEBUG"):
            raise
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        sys.stderr.write(f"headcount: {type(error).__name__}: {first} (set HEADCOUNT_DEBUG=1 to see where)\n")
        raise SystemExit(1) from None


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Within the block, signals that end a process are Ctrl-C to it; the list has those that came.

    One that is ignored stays so: `nohup` wants that.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for handle in (1, 2):
            try:
                os.write(handle, b"")
            except OSError:  # the terminal is gone, and what is still printed must not end the cleaning up
                with suppress(OSError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), handle)
        raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in STOP_SIGNALS if hasattr(signal, name)]
    replaced = {}
    if threading.current_thread() is threading.main_thread():
        replaced = {
            number: signal.signal(number, stop) for number in numbers if signal.getsignal(number) == signal.SIG_DFL
        }
    try:
        yield received
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
