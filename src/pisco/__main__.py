"""`python -m pisco` is the command `pisco`."""

from pisco.cli.main import main

if __name__ == "__main__":
    main()
