"""The commands of `python -m cadre`, one module for each: add_arguments(parser), run(options) -> exit code, EXAMPLE."""

import itertools
import os
import sys

NOT_AVAILABLE = 4


def exit_if_running(error):
    """Ends the process with one line if it is the command `cadre`, whose package can't be imported."""
    as_module = ("-m", "cadre") in itertools.pairwise(sys.orig_argv)
    as_script = bool(sys.argv) and os.path.basename(sys.argv[0]) == "cadre"
    if as_module or as_script:
        print(error, file=sys.stderr)
        sys.exit(NOT_AVAILABLE)
