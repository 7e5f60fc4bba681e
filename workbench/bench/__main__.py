"""`python -m workbench.bench COMMAND`: every figure that this project claims, reproducible.

With `--json` a command prints one object (figures, settings, environment) to standard output and
everything else to standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from workbench.bench import context, exactness, peers, prefix, scheduler, speculation, telemetry, throughput
from workbench.bench.command_line import log, reserved_stdout
from workbench.bench.kernels import command as kernels
from workbench.bench.page import command as page
from workbench.config import prepare_process
from workbench.errors import WorkbenchError
from workbench.foreign_kernels import foreign_kernels_warning

COMMANDS = {
    "throughput": throughput,
    "exactness": exactness,
    "kernels": kernels,
    "context": context,
    "peers": peers,
    "prefix": prefix,
    "scheduler": scheduler,
    "speculation": speculation,
    "telemetry": telemetry,
    "page": page,
}
"""To add a command: a module with `add_arguments(parser)` and `run(args) -> Report`, and a line here."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="python -m workbench.bench", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").partition("\n")[0]
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("--json", action="store_true", help="print one JSON object to standard output")
        module.add_arguments(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0, 1 for a failed check, 2 for an error."""
    args = build_parser().parse_args(arguments)
    prepare_process()
    warning = foreign_kernels_warning()
    if warning is not None:
        log(warning)
    with reserved_stdout() as out:
        try:
            report = COMMANDS[args.command].run(args)
        except WorkbenchError as error:
            log(f"{args.command}: {error}")
            return 2
        out.write((report.to_json() if args.json else report.to_text()) + "\n")
    if report.failure is not None:
        log(f"{args.command}: {report.failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
