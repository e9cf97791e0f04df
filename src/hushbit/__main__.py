"""`python -m hushbit` is the same as the `hushbit` command."""

from hushbit.lab.cli import main

if __name__ == "__main__":
    main()
