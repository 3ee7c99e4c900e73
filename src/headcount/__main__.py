"""`python -m headcount` is the command `headcount`."""

from .cli import main

if __name__ == "__main__":
    main()
