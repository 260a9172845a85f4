"""python -m cadre.report: result files in, one self-contained HTML page out."""

import argparse
import os
import sys
from pathlib import Path

EPILOG = "exit codes: 0 ok, 2 bad usage or a file that isn't known, 4 jinja2 is missing"


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m cadre.report",
        description="One page, without network, with figures and a table of benchmark results.",
        epilog=EPILOG,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="what --json of a benchmark or of cadre compare wrote")
    parser.add_argument("-o", "--output", default="report.html", metavar="HTML", help="default: %(default)s")
    parser.add_argument("--title", default="cadre: measured", help="default: %(default)s")
    parser.add_argument(
        "--skip-unknown", action="store_true", help="leave out files of another kind; the page names them"
    )
    return parser


def main(arguments=None):
    """Writes the page and returns an exit code."""
    options = _parser().parse_args(arguments)
    try:
        from . import UnknownResults, page, read
    except ImportError as error:
        print(f"cadre.report: {error}; pip install jinja2", file=sys.stderr)
        return 4
    files, skipped = [], {}
    for name in options.files:
        try:
            files.append(read(name))
        except UnknownResults as error:
            if not options.skip_unknown:
                print(f"cadre.report: {error}", file=sys.stderr)
                return 2
            skipped[name] = str(error)
    if not files:
        print("cadre.report: no result file is left", file=sys.stderr)
        return 2
    target = Path(options.output)
    temporary = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        temporary.write_text(page(files, title=options.title, skipped=skipped), encoding="utf-8")
        os.replace(temporary, target)
    except OSError as error:
        print(f"cadre.report: --output = {target}: {error}", file=sys.stderr)
        return 2
    print(f"wrote {target}: {sum(len(file.rows) for file in files)} rows of {len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
