"""`python -m hushbit` is the same as the `hushbit` command."""

from hushbit.cli import main

if __name__ == "__main__":
    main()
