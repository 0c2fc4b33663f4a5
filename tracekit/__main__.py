"""`python -m tracekit` is the command `tracekit`."""

from tracekit.cli import main

if __name__ == "__main__":
    main()
