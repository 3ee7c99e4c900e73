"""`--help`: what most people need comes first, every flag has a group, and presets set flags that exist and no others."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headcount.cli import options, prune
from headcount.cli.app import app
from headcount.cli.help import panels

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
ONLY_A_RUN = ["evaluate", "score", "ablate", "transfer", "curve", "roles", "lottery", "bench", "circuit"]


def _flags(name: str, group: str | None = None) -> list[str]:
    """The flags of a command that `--help` shows in a group, or outside of all."""
    shown = [p for p in COMMANDS[name].params if p.param_type_name == "option" and not getattr(p, "hidden", False)]
    return [str(p.name) for p in shown if getattr(p, "rich_help_panel", None) == group]


def test_six_flags_of_prune_come_first() -> None:
    first = [name for name in _flags("prune") if name != "help"]
    assert first == ["data", "output", "max_drop", "speedup", "units", "dry_run"]


@pytest.mark.parametrize("name", panels.GROUPS)
def test_every_flag_of_a_large_command_has_a_group(name: str) -> None:
    assert _flags(name, panels.MORE) == []
    assert len([flag for flag in _flags(name) if flag != "help"]) == 6


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_command_shows_more_than_a_dozen_flags_outside_of_groups(name: str) -> None:
    assert len(_flags(name)) <= 14


@pytest.mark.parametrize("name", panels.GROUPS)
def test_no_flag_is_in_two_groups(name: str) -> None:
    names = [flag for group in panels.GROUPS[name].values() for flag in group.split()]
    assert len(names) == len(set(names))


def test_the_command_gets_what_was_typed() -> None:
    words = ["m", "--data", "d", "--max-drop", "2", "--tune"]
    with COMMANDS["prune"].make_context("prune", words) as context:
        values = context.params
    assert (values["model"], values["data"], values["max_drop"], values["tune"]) == ("m", "d", 2.0, True)


# -- presets ---------------------------------------------------------------------------------------------------------


def _set(preset: str, *words: str) -> tuple[dict[str, Any], str]:
    """What prune is called with under a preset, beside what it is called with without; and what is printed."""
    calls: list[dict[str, Any]] = []

    stand_in = typer.Typer()

    @stand_in.callback()
    def _main() -> None:
        """Make it a group."""

    def record(**values: Any) -> None:
        values.pop("typer_context")
        calls.append(values)

    joined = options.with_data(prune.prune)
    record.__signature__ = inspect.signature(joined)  # type: ignore[attr-defined]
    record.__annotations__ = joined.__annotations__
    record.__name__ = "prune"
    stand_in.command()(panels.arranged(record))
    outputs = [CliRunner().invoke(stand_in, ["prune", "m", "--data", "d", *words, *extra]) for extra in ([], [preset])]
    assert [out.exit_code for out in outputs] == [0, 0], outputs[1].output
    plain, preset_values = calls
    return {name: value for name, value in preset_values.items() if plain[name] != value}, outputs[1].output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--fast", "--remove", "4"], {"limit": 2000}),
        (["--fast", "--max-drop", "1"], {"step": "10%"}),
        (["--fast", "--max-drop", "1", "--step", "3"], {}),
        (["--fast", "--remove", "4", "--limit", "9", "--score-data", "t"], {"score_limit": 500}),
        (["--careful", "--remove", "4"], {"tune": True}),
        (["--careful", "--max-drop", "1", "--score-data", "t"], {"tune": True, "step": "2.5%", "score_limit": 5000}),
        (["--careful", "--max-drop", "1", "--score-data", "t", "--score-limit", "7"], {"tune": True, "step": "2.5%"}),
    ],
)
def test_a_preset_sets_flags_that_were_not_given_and_says_so(words: list[str], expected: dict[str, Any]) -> None:
    changed, printed = _set(words[0], *words[1:])
    assert changed == expected
    line = next(line for line in printed.splitlines() if line.startswith("note: "))
    for name, value in expected.items():
        flag = "--" + name.replace("_", "-")
        assert (flag if value is True else f"{flag} {value}") in line
    assert expected or "nothing" in line


def test_two_presets_are_a_usage_error() -> None:
    result = CliRunner().invoke(app, ["prune", "m", "--data", "d", "--fast", "--careful"])
    assert result.exit_code == 2
    assert "choose one" in result.output


# -- where results go ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    sorted(
        set(COMMANDS)
        - {"inspect", "cut", "export", "generate", "look", "report", "reproduce", "demo", "doctor", "gather", "status"}
    ),
)
def test_the_run_folder_is_run_in_every_command(name: str) -> None:
    assert "--run" in {opt for p in COMMANDS[name].params for opt in p.opts}


@pytest.mark.parametrize("name", ONLY_A_RUN)
def test_where_the_run_folder_is_all_there_is_both_flags_name_it(name: str) -> None:
    (option,) = [p for p in COMMANDS[name].params if "--run" in p.opts]
    assert {"-o", "--output"} <= set(option.opts)


@pytest.mark.parametrize("name", ["prune", "learn", "train"])
def test_where_a_model_is_written_the_two_flags_differ(name: str) -> None:
    (run,) = [p for p in COMMANDS[name].params if "--run" in p.opts]
    (output,) = [p for p in COMMANDS[name].params if "-o" in p.opts]
    assert run is not output
