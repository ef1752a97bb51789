"""Lets ``python -m regraft`` do what the installed command does."""

from regraft.cli import main

if __name__ == "__main__":
    main()
