"""The command `cadre` (also `python -m cadre`): what this installation is, whether it computes right, which kernel a
problem gets, and how fast it is beside what you have. The repository builds a larger tool of the same name in C++, which
also has `demo` and `bench`."""

import argparse
import os
import sys

from ._command import NOT_AVAILABLE, compare, explain, info, verify
from ._library import version

EPILOG = "exit codes: 0 ok, 1 a check failed, 2 bad usage or input, 3 internal error, 4 not available here"


def _parser():
    parser = argparse.ArgumentParser(
        prog="cadre",
        description="Grouped matrix multiplication for mixture-of-experts models.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (info, verify, explain, compare):
        lines = module.__doc__.strip().splitlines()
        command = commands.add_parser(
            module.__name__.rpartition(".")[2],
            help=lines[0].rstrip("."),
            description=module.__doc__,
            epilog=f"example: {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments=None):
    """Runs one command and returns its exit code."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # µ and bars where the encoding has none
    try:
        options = _parser().parse_args(arguments)
        code = options.run(options)
        sys.stdout.flush()
        return code
    except (ValueError, TypeError) as error:
        print(f"cadre: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing may be written when Python closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"cadre: {error}", file=sys.stderr)
        return NOT_AVAILABLE
    except NotImplementedError as error:
        print(f"cadre: {error}", file=sys.stderr)
        return NOT_AVAILABLE
    except RuntimeError as error:
        print(f"cadre: internal error: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
