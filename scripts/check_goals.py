#!/usr/bin/env python3
"""Compares committed benchmark results with the goals and prints each as met or missed, with the figure and its worst row.

usage: check_goals.py GOALS RESULTS_FOLDER [--strict]

A goal is about a table: all rows of the matching result files whose fields match `where` (a list means any of its values,
* and ? stand for anything). Their geometric mean must be `at_least` or `at_most` the bar; the worst row is printed
beside it and does not decide. `metric` is a field, or two joined by "/" (their quotient); a dot goes into a nested field,
and "rivals" is the time of the fastest rival over ours. A row without a `condition` (see docs/benchmarking.md) counts
as mixed. `limit` says what bounds a goal that is missed; it never counts. A goal without any row is not measured.
With --strict anything but met is an error; otherwise only an unreadable file is.
"""
import json
import math
import sys
from fnmatch import fnmatchcase
from pathlib import Path


def field(row, path):
    value = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            return None
    return value


def metric_of(row, metric):
    if metric == "rivals":
        times = [rival["median_s"] for rival in row.get("rivals", {}).values()]
        return min(times) / row["median_s"] if times else None
    parts = [field(row, part) for part in metric.split("/")]
    if None in parts:
        return None
    return parts[0] / parts[1] if len(parts) == 2 else parts[0]


def equal(value, wanted):
    if isinstance(value, str) and isinstance(wanted, str):
        return fnmatchcase(value, wanted)
    return value == wanted


def matches(row, where):
    for name, wanted in where.items():
        value = field(row, name)
        if not any(equal(value, one) for one in (wanted if isinstance(wanted, list) else [wanted])):
            return False
    return True


def rows_of(path):
    document = json.loads(path.read_text())
    for row in document["results"]:
        row = {"condition": "mixed"} | row
        if "num_groups" in row and "m" in row and row["num_groups"]:
            row["rows_per_group"] = row["m"] // row["num_groups"]
        yield row


def describe(row):
    names = ["op", "case", "shape", "label", "dtype", "skew", "threads"]
    values = [f"{row[name]:g}" if isinstance(row[name], float) else str(row[name]) for name in names if name in row]
    if "label" not in row and "shape" not in row and "rows_per_group" in row:
        values.append(f"{row['rows_per_group']} rows")
    return " ".join(dict.fromkeys(values))


def shown(value):
    return f"{value:.3f}" if abs(value) > 0.001 else f"{value:.2e}"


def judge(goal, measured):
    """The verdict on (value, row) pairs, and the figures to print."""
    if not measured:
        return "not measured", ""
    upper = "at_most" in goal
    mean = math.exp(sum(math.log(value) for value, _ in measured) / len(measured))
    met = mean <= goal["at_most"] if upper else mean >= goal["at_least"]
    worst, where = (max if upper else min)(measured)
    figure = f"{shown(mean):>9}  of {len(measured)}, worst {shown(worst)}: {where}"
    if not met and "limit" in goal:
        figure += f" (limit: {goal['limit']})"
    return "met" if met else "missed", figure


def bar_of(goal):
    return f"<= {goal['at_most']}" if "at_most" in goal else f">= {goal['at_least']}"


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--strict"]
    if len(arguments) != 2:
        sys.exit(__doc__)
    goals_path, results = Path(arguments[0]), Path(arguments[1])
    counts = {"met": 0, "missed": 0, "not measured": 0}
    for goal in json.loads(goals_path.read_text())["goals"]:
        measured = []
        for path in sorted(results.glob(goal["files"])):
            for row in rows_of(path):
                if matches(row, goal["where"]):
                    value = metric_of(row, goal["metric"])
                    if value is not None:
                        measured.append((value, describe(row)))
        verdict, figure = judge(goal, measured)
        counts[verdict] += 1
        print(f"{verdict:13}{goal['name']:66} {bar_of(goal):<10}{figure}")
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if "--strict" in sys.argv and (counts["missed"] or counts["not measured"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
