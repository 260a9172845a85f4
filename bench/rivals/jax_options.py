"""The options of jax_ragged_dot.py."""

import argparse
import os

from jax_products import CASES, CPU_SHAPES, GPU_SHAPES, RIVALS


def parse(description):
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shapes = [*GPU_SHAPES, *CPU_SHAPES]
    parser.add_argument(
        "--shape", action="append", choices=shapes, help="may be repeated; default: all of training"
    )
    parser.add_argument(
        "--skew", type=int, action="append", choices=(0, 1), help="of the router; default: 0"
    )
    parser.add_argument("--case", action="append", choices=CASES, help="only this one, likewise")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=("dense", *RIVALS),
        help="leave this contender out",
    )
    parser.add_argument("--dtype", help="default: bfloat16 on a GPU, float32 elsewhere")
    parser.add_argument(
        "--operands",
        action="append",
        choices=("random", "zeros"),
        help="what is timed, likewise; default: random. Results are checked with random ones. With zeros a GPU stays below its power limit "
        "and keeps its clock",
    )
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument(
        "--decide",
        type=float,
        metavar="RATIO",
        help="from six repeats on, stop when the intervals of library over JAX lie on one side of this",
    )
    parser.add_argument(
        "--sample-s", type=float, default=0.02, help="length of one timing, in seconds"
    )
    parser.add_argument("--tolerance", type=float, default=0.02, help="largest relative error")
    parser.add_argument(
        "--limit-s",
        type=float,
        default=float("inf"),
        help="repeat less, and try fewer rivals apart, where the run would take longer than this",
    )
    parser.add_argument(
        "--apart",
        type=float,
        metavar="SECONDS",
        help="the rivals alone, cadre beside each of them, every one in a process that is ended after this long",
    )
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count(), help="of --apart, at the same time"
    )
    parser.add_argument(
        "--only",
        choices=RIVALS,
        help="cadre and this one alone, timed after a line on the standard input: such a process",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    return parser.parse_args()
