"""Show the versions, this machine, its kernel, and settings from the environment."""

import json

from .. import _versions

EXAMPLE = "cadre info --json"


def add_arguments(parser):
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options):
    found = _versions.collect()
    print(json.dumps(found, indent=2) if options.json else _versions.text(found))
    return 0
