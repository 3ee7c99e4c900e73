"""`python -m headcount.cli` is the command `headcount`."""

from . import main

if __name__ == "__main__":
    main()
