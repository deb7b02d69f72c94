"""Where the command `pisco` begins: Ctrl-C is one line from here on, while the rest is imported too."""

import os
import signal
import sys


def main() -> None:
    """The entry point of the command."""

    def ended(number: int, frame: object) -> None:
        os.write(2, b"interrupted; type the command again\n")
        os._exit(130)  # what is half imported raises anything

    plain = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else somebody ignores it on purpose
    if plain:
        signal.signal(signal.SIGINT, ended)
    from pisco.cli.main import main as command

    if plain:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    sys.exit(main())
