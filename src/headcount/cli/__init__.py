"""The command line: one module for each command, `app` puts them together."""


def main() -> None:
    """Run the command line: the entry point `headcount`, and `python -m headcount.cli`."""
    from .app import main as run

    run()
