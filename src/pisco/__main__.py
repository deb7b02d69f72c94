"""`python -m pisco` is the command `pisco`."""

from pisco_start import main

if __name__ == "__main__":
    main()
