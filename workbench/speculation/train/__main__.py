"""`python -m workbench.speculation.train COMMAND`: make the text that the EAGLE head is trained on, and train it.

Nothing is fetched: prompts come from templates and Python's own files, answers from the default model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from workbench.config import prepare_process
from workbench.errors import WorkbenchError
from workbench.speculation.train import export_command, generate_command, pack_command, train_command

COMMANDS = {
    "generate": generate_command,
    "pack": pack_command,
    "train": train_command,
    "export": export_command,
}
"""To add a command: a module with `add_arguments(parser)` and `run(args)`, and a line here."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="python -m workbench.speculation.train", description=(__doc__ or "").partition("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").partition("\n")[0]
        module.add_arguments(commands.add_parser(name, help=summary, description=summary))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0, or 2 for an error."""
    args = build_parser().parse_args(arguments)
    prepare_process()
    try:
        COMMANDS[args.command].run(args)
    except WorkbenchError as error:
        sys.stderr.write(f"{args.command}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
