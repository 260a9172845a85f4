#!/usr/bin/env python3
"""Tests that the checks of scripts/ find what they are there to find, each in a small tree of its own.

usage: scripts_test.py SCRIPTS_FOLDER
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path

SCRIPTS = Path(sys.argv.pop(1))


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def run_script(self, name, *arguments):
        (self.root / "scripts").mkdir(exist_ok=True)
        shutil.copy(SCRIPTS / name, self.root / "scripts")
        runner = "bash" if name.endswith(".sh") else sys.executable
        done = subprocess.run([runner, f"scripts/{name}", *arguments], cwd=self.root, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


class Includes(Tree):
    def setUp(self):
        super().setUp()
        for header in ("include/cadre/gmm.h", "src/core/text.h", "src/plan/problem.h", "src/ops/checker.h"):
            self.write(header, "#pragma once\n")

    def check(self, path, include):
        self.write(path, f"#include {include}\n")
        return self.run_script("check_includes.py")

    def test_downward_and_public_includes_pass(self):
        self.write("src/core/text.cc", '#include "core/text.h"\n#include "cadre/gmm.h"\n#include <vector>\n')
        self.assertEqual(self.check("src/plan/problem.cc", '"core/text.h"')[0], 0)

    def test_an_upward_include_fails(self):
        status, text = self.check("src/plan/problem.cc", '"ops/checker.h"')
        self.assertEqual(status, 1)
        self.assertIn("src/plan/problem.cc:1: ops/checker.h: src/plan must not include src/ops", text)

    def test_a_relative_path_is_no_way_around(self):
        self.assertEqual(self.check("src/core/text.cc", '"../plan/problem.h"')[0], 1)

    def test_a_public_header_includes_nothing_internal(self):
        self.assertEqual(self.check("include/cadre/tgmm.h", '"core/text.h"')[0], 1)

    def test_an_example_sees_public_headers_alone(self):
        self.assertEqual(self.check("examples/01_gmm.cc", '"plan/problem.h"')[0], 1)

    def test_a_framework_header_stays_in_its_room(self):
        self.assertEqual(self.check("bindings/torch/shim.cc", "<torch/csrc/stable/library.h>")[0], 0)
        self.assertEqual(self.check("src/ops/gmm.cc", "<torch/csrc/stable/library.h>")[0], 1)


class Regressions(Tree):
    def check(self, *tests):
        self.write("tests/unit/a_test.cc", "TEST(Tail, IsZero) {}\n  TEST_P(OnEveryBackend,\n         KeepsNan) {}\n")
        self.write("tests/python/test_a.py", "class TestA:\n    def test_grad(self):\n        pass\n")
        rows = "".join(f"| {number} | bug | area | {test} |\n" for number, test in enumerate(tests, start=1))
        self.write("docs/regressions.md", "| # | bug | area | test |\n|---|---|---|---|\n" + rows)
        return self.run_script("check_regressions.py")

    def test_existing_tests_files_and_open_rows_pass(self):
        status, text = self.check("`Tail.IsZero`", "`OnEveryBackend.KeepsNan`, `tests/python/test_a.py::TestA::test_grad`",
                                  "`docs/regressions.md`", "not yet: FP8")
        self.assertEqual(status, 0, text)
        self.assertIn("4 bugs, 1 not yet tested", text)

    def test_a_name_that_does_not_exist_fails(self):
        for name in ("Tail.IsOne", "tests/python/test_a.py::test_hessian", "tests/python/test_b.py::test_grad", "docs/none.md"):
            status, text = self.check(f"`{name}`")
            self.assertEqual(status, 1, name)
            self.assertIn(f"row 1: no such test or file: {name}", text)

    def test_a_row_without_a_name_fails(self):
        self.assertEqual(self.check("see the tests")[0], 1)

    def test_a_missing_table_fails(self):
        self.assertEqual(self.run_script("check_regressions.py")[0], 1)


class Summary(Tree):
    GTEST = """<testsuites><testsuite name="S">
        <testcase name="A" classname="S" status="run"/>
        <testcase name="B" classname="S" status="run">{}</testcase>
        </testsuite></testsuites>"""
    CTEST = '<testsuite><testcase name="unit" status="{}"/><testcase name="example" status="run"/></testsuite>'

    def summary(self, inside="", ctest_status="run"):
        self.write("results/unit.xml", self.GTEST.format(inside))
        self.write("results/ctest-junit", self.CTEST.format(ctest_status))
        status, text = self.run_script("test_summary.py", "results")
        return status, text.splitlines()

    def test_cases_and_plain_programs_are_counted(self):
        self.assertEqual(self.summary(), (0, ["== Summary", "3 passed, 0 failed, 0 skipped"]))

    def test_a_skip_is_named_and_not_counted_as_passed(self):
        status, lines = self.summary('<skipped message="x.cc:3&#x0A;no GPU"/>')
        self.assertEqual((status, lines[-1]), (0, "2 passed, 0 failed, 1 skipped"))
        self.assertIn("  skipped: S.B (no GPU)", lines)

    def test_skips_are_only_counted_where_they_are_named_later(self):
        self.summary('<skipped message="no GPU"/>')
        status, text = self.run_script("test_summary.py", "--count", "results")
        self.assertEqual((status, text), (0, "== Summary\n2 passed, 0 failed, 1 skipped\n"))

    def test_a_failure_fails(self):
        status, lines = self.summary('<failure message="no"/>', "fail")
        self.assertEqual((status, lines[-1]), (1, "2 passed, 1 failed, 0 skipped"))

    def test_a_crash_after_the_last_case_fails(self):
        self.assertEqual(self.summary(ctest_status="fail")[0], 1)

    def test_nothing_run_is_a_failure(self):
        self.write("results/ctest-junit", "<testsuite/>")
        self.assertEqual(self.run_script("test_summary.py", "results")[0], 1)


class Goals(Tree):
    ROWS = [
        {"case": "forward", "shape": "a-w1", "skew": 0.0, "of_dense": 1.01},
        {"case": "forward", "shape": "b-w1", "skew": 0.0, "of_dense": 0.93},
        {"case": "forward", "shape": "b-w1", "skew": 1.0, "of_dense": 0.5},
        {"case": "forward", "shape": "b-w1", "skew": 0.0, "of_dense": 0.8, "condition": "sustained"},
        {"case": "host cost", "host_seconds_per_call": 4e-6},
        {"case": "torch", "median_s": 2.0, "rivals": {"slow": {"median_s": 9.0}, "fast": {"median_s": 3.0}}},
    ]

    def check(self, *options, **goal):
        goal = {"name": "a goal", "files": "gpu/*.json", **goal}
        self.write("goals.json", json.dumps({"goals": [goal]}))
        self.write("results/gpu/cuda.json", json.dumps({"results": self.ROWS}))
        status, text = self.run_script("check_goals.py", "goals.json", "results", *options)
        return status, text.splitlines()

    def test_the_geometric_mean_counts_and_the_worst_row_is_named(self):
        where = {"case": "forward", "skew": 0, "shape": ["a-*", "b-*"], "condition": "mixed"}
        status, lines = self.check(where=where, metric="of_dense", at_least=1.0)
        self.assertEqual((status, lines[-1]), (0, "0 met, 1 missed, 0 not measured"))
        self.assertTrue(lines[0].startswith("missed"))
        self.assertIn("0.969  of 2, worst 0.930: forward b-w1 0", lines[0])  # the root of 1.01 x 0.93
        # A row below the bar doesn't miss it for the others.
        self.assertEqual(self.check(where=where, metric="of_dense", at_least=0.96)[1][-1], "1 met, 0 missed, 0 not measured")

    def test_conditions_are_apart(self):
        for condition, figure in (("mixed", "0.930"), ("sustained", "0.800")):
            where = {"shape": "b-w1", "skew": 0, "condition": condition}
            self.assertIn(f"{figure}  of 1, worst {figure}", self.check(where=where, metric="of_dense", at_least=1.0)[1][0])

    def test_a_missed_goal_names_its_limit_and_stays_missed(self):
        where = {"case": "forward", "skew": 0, "condition": "mixed"}
        for bar, verdict, shown in ((1.0, "missed", True), (0.9, "met", False)):
            _, lines = self.check(where=where, metric="of_dense", at_least=bar, limit="0.95 by memory")
            self.assertTrue(lines[0].startswith(verdict))
            self.assertEqual("(limit: 0.95 by memory)" in lines[0], shown)

    def test_a_goal_may_be_an_upper_bound(self):
        for bar, count in ((5e-6, "1 met, 0 missed"), (3e-6, "0 met, 1 missed")):
            _, lines = self.check(where={"case": "host cost"}, metric="host_seconds_per_call", at_most=bar)
            self.assertIn(count, lines[-1])
            self.assertIn("4.00e-06", lines[0])

    def test_the_fastest_rival_counts(self):
        _, lines = self.check(where={"case": "torch"}, metric="rivals", at_least=1.0)
        self.assertIn("1.500", lines[0])

    def test_a_goal_without_a_row_is_not_measured_and_strict_fails(self):
        nothing = {"where": {"case": "nonesuch"}, "metric": "of_dense", "at_least": 1.0}
        self.assertEqual(self.check(**nothing)[0], 0)
        self.assertEqual(self.check(**nothing)[1][-1], "0 met, 0 missed, 1 not measured")
        self.assertEqual(self.check("--strict", **nothing)[0], 1)
        met = {"where": {"shape": "a-w1"}, "metric": "of_dense", "at_least": 1.0}
        self.assertEqual(self.check("--strict", **met)[0], 0)


class ShareOfDense(Tree):
    def figures(self, *rows):
        self.write("results.json", json.dumps({"machine": {"device": "card"}, "results": list(rows)}))
        return self.run_script("plot_share_of_dense.py", "--results", "results.json", "--figures-only")

    @staticmethod
    def row(of_dense, torch, **fields):
        return {"case": "forward", "shape": "mixtral-8x7b-w13", "m": 16384, "num_groups": 8, "of_dense": of_dense,
                "dense_median_s": 1.0, "rivals": {"torch grouped_mm": {"median_s": 1 / torch}}} | fields

    def test_a_bar_is_the_geometric_mean_with_its_worst_and_best_row(self):
        status, text = self.figures(self.row(0.5, 0.4), self.row(0.72, 0.9, skew=1))
        self.assertEqual(status, 0, text)
        self.assertIn("mixed, Mixtral 8x7B, 2048 rows an expert: cadre 0.600 (0.500 to 0.720); "
                      "torch grouped_mm 0.600 (0.400 to 0.900)", text)

    def test_sustained_rows_come_before_mixed_ones(self):
        text = self.figures(self.row(0.5, 0.4), self.row(0.9, 0.8, condition="sustained"))[1]
        self.assertIn("sustained, Mixtral 8x7B, 2048 rows an expert: cadre 0.900", text)
        self.assertNotIn("0.5", text)

    def test_a_file_without_forward_rows_fails(self):
        status, text = self.figures(self.row(0.5, 0.4, case="dgrad"))
        self.assertEqual(status, 1)
        self.assertIn("no forward row", text)


class SharesTable(Tree):
    def test_a_table_for_each_condition_with_sustained_first(self):
        def row(of_dense, **fields):
            return {"case": "forward", "dtype": "bf16", "m": 4096, "num_groups": 8, "of_dense": of_dense} | fields

        rows = [{"case": "machine"}, row(0.8), row(0.45, condition="sustained"), row(0.8, condition="sustained", skew=1),
                row(0.1, dtype="f16"), row(0.7, condition="sustained", m=2048, case="wgrad")]
        self.write("cuda.json", json.dumps({"results": rows}))
        status, text = self.run_script("shares_of_dense.py", "cuda.json")
        self.assertEqual(status, 0, text)
        sustained, mixed = text.split("mixed:")
        self.assertTrue(sustained.startswith("sustained:"))
        self.assertIn("| 512 | 0.60 (0.45 to 0.80) | – | – | – |\n| 256 | – | – | 0.70 (0.70 to 0.70) | – |", sustained)
        self.assertIn("| 512 | 0.80 (0.80 to 0.80) | – | – | – |", mixed)


class Make(unittest.TestCase):
    def commands(self, target):
        done = subprocess.run(["make", "-n", target], cwd=SCRIPTS.parent, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_bench_and_demo_need_and_build_only_the_tool(self):
        for target, groups in (("bench", "build bench"), ("demo", "build")):
            text = self.commands(target)
            self.assertIn(f"setup_apt.sh {groups}\n", text)
            self.assertIn("-DCADRE_TESTS=OFF -DCADRE_EXAMPLES=OFF", text)
            self.assertIn("--target cadre_cli\n", text)

    def test_bench_is_the_quick_one(self):
        self.assertIn("cadre bench --device cpu --quick", self.commands("bench"))


class Steps(Tree):
    def run_steps(self, *lines):
        """Exit status and output of a script of these lines."""
        self.write("run.sh", "\n".join(["source scripts/steps.sh", *lines, "report_steps", "exit $failed", ""]))
        (self.root / "scripts").mkdir()
        shutil.copy(SCRIPTS / "steps.sh", self.root / "scripts")
        done = subprocess.run(["bash", "run.sh"], cwd=self.root, capture_output=True, text=True)
        return done.returncode, done.stdout

    def test_a_failed_step_is_named_and_the_others_run(self):
        status, text = self.run_steps("step one true", "step two false", "step three echo third")
        self.assertEqual(status, 1)
        self.assertRegex(text, r"one +passed in \d+ s, \d+ s of CPU\n  two +FAILED in")
        self.assertIn("third\n", text)

    def test_steps_behind_the_others_count_and_are_printed_whole(self):
        for command, expected in (("true", "passed"), ("false", "FAILED")):
            with self.subTest(command):
                shutil.rmtree(self.root / "scripts", ignore_errors=True)
                status, text = self.run_steps(
                    f"both() {{ step far echo 'from behind'; step near {command}; }}",
                    "step first true", "behind both", "step front echo 'in front'", "collect_behind")
                self.assertEqual(status, 0 if command == "true" else 1, text)
                self.assertLess(text.index("in front"), text.index("from behind"))
                self.assertRegex(text, rf"Steps\n  first +passed in .*\n  front +passed in .*\n  far +passed in .*\n  near +{expected} in")


class RunTests(Tree):
    def test_a_missing_or_unbuilt_preset_is_named(self):
        for arguments, message in (
            ([], "usage: scripts/run_tests.sh"),
            (["--cpp-only"], "usage: scripts/run_tests.sh"),
            (["--frobnicate"], "usage: scripts/run_tests.sh"),
            (["--cpp-only", "nonesuch"], "build/nonesuch is not there"),
        ):
            status, text = self.run_script("run_tests.sh", *arguments)
            self.assertEqual(status, 2, text)
            self.assertIn(message, text)
            self.assertFalse((self.root / "build").exists())


class GpuBundle(Tree):
    def run_bundle(self, *arguments):
        shutil.copy(SCRIPTS / "run_gpu_bundle.sh", self.root / "run.sh")
        done = subprocess.run(["bash", "run.sh", *arguments], cwd=self.root, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_bad_arguments_are_named_and_nothing_runs(self):
        for arguments, message in (
            (["--out"], "--out needs a folder"),
            (["--out", ""], "--out needs a folder"),
            (["tests", "--out", "--help"], "--out needs a folder"),
            (["frobnicate"], "unknown argument frobnicate"),
        ):
            status, text = self.run_bundle(*arguments)
            self.assertEqual(status, 2, text)
            self.assertIn(message, text)
            self.assertNotIn("unbound", text)
            self.assertEqual([path.name for path in self.root.iterdir()], ["run.sh"])

    def test_help_is_the_usage(self):
        status, text = self.run_bundle("--help")
        self.assertEqual(status, 0, text)
        self.assertIn("usage: ./run.sh", text)
        self.assertIn("CADRE_CUBLAS", text)

    def run_sanitizer(self, behaviour, limit_s="30"):
        """racecheck over ten cases of a program that stands in for gpu_tests; case 7 does what `behaviour` says."""
        script = (SCRIPTS / "run_gpu_bundle.sh").read_text().replace("tool_limit_s=240", f"tool_limit_s={limit_s}")
        programs = {
            "run.sh": script,
            "gpu_tests": f"""#!/bin/bash
if [[ $* == *list_tests* ]]; then echo All/Fake. && printf '  case%d\\n' {{0..9}} && exit; fi
for ((i = GTEST_SHARD_INDEX; i < 10; i += GTEST_TOTAL_SHARDS)); do
  echo "[ RUN      ] All/Fake.case$i"
  if ((i == 7)); then {behaviour}; fi
  echo "[       OK ] All/Fake.case$i ($i ms)"
done
""",
            "compute-sanitizer": "#!/bin/bash\necho '========= RACECHECK SUMMARY: 0 hazards'; shift 4; exec \"$@\"\n",
        }
        for name, text in programs.items():
            (self.root / name).write_text(text)
            (self.root / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{self.root}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "run.sh", "sanitize", "racecheck"], cwd=self.root, capture_output=True, text=True,
                              env=environment)
        return done.returncode, done.stdout + done.stderr

    def test_a_sanitizer_counts_every_case_once(self):
        status, text = self.run_sanitizer(":")
        self.assertEqual(status, 0, text)
        self.assertIn("10 passed, 0 failed, 0 skipped", text)
        self.assertIn("slowest: 9 ms All/Fake.case9;8 ms All/Fake.case8", text)
        self.assertNotIn("never ended", text)

    def test_a_case_that_hangs_under_a_sanitizer_is_named_and_fails(self):
        status, text = self.run_sanitizer("exec sleep 60", limit_s="2")
        self.assertEqual(status, 1, text)
        self.assertIn("began and never ended: All/Fake.case7", text)
        self.assertIn("9 passed, 1 failed, 0 skipped", text)

    def test_a_failed_case_under_a_sanitizer_is_no_case_without_an_end(self):
        failure = "echo '[  FAILED  ] All/Fake.case7, where GetParam() = 3 (7 ms)'; exit 1"
        status, text = self.run_sanitizer(failure)
        self.assertEqual(status, 1, text)
        self.assertNotIn("never ended", text)
        self.assertIn("9 passed, 1 failed, 0 skipped", text)


class Release(Tree):
    """release.py names everything that a release lacks, and writes the notes of one that lacks nothing."""

    VERSION = "3.4.5"

    def setUp(self):
        super().setUp()
        self.write("CMakeLists.txt", f"project(cadre\n  VERSION {self.VERSION}\n")
        self.write("CHANGELOG.md", f"# Changelog\n\n## [Unreleased]\n\n## [{self.VERSION}] - 2026-01-02\n\n### Added\n\n- This.\n\n## [3.4.4] - 2025-01-01\n\n- Old.\n")
        info = f"cadre_gmm-{self.VERSION}.dist-info"
        self.wheel = {"cadre/lib/libcadre.so": "", "cadre/py.typed": "", f"{info}/licenses/LICENSE": "", f"{info}/METADATA": f"Version: {self.VERSION}\n"}
        self.sdist = ("CMakeLists.txt", "PKG-INFO", "LICENSE", "include/cadre/cadre.h")
        self.make_artefacts()

    def make_artefacts(self, tag="manylinux_2_34_x86_64"):
        shutil.rmtree(self.root / "dist", ignore_errors=True)
        self.write("dist/.keep", "")
        name = f"cadre_gmm-{self.VERSION}"
        with zipfile.ZipFile(self.root / f"dist/{name}-py3-none-{tag}.whl", "w") as files:
            for path, text in self.wheel.items():
                files.writestr(path, text)
        with tarfile.open(self.root / f"dist/{name}.tar.gz", "w:gz") as files:
            for path in self.sdist:
                files.addfile(tarfile.TarInfo(f"{name}/{path}"))

    def check(self):
        return self.run_script("release.py")

    def test_a_complete_release_has_its_notes(self):
        status, text = self.check()
        self.assertEqual(status, 0, text)
        self.assertEqual((self.root / "dist/RELEASE_NOTES.md").read_text(), f"# cadre {self.VERSION}\n\n### Added\n\n- This.\n")

    def test_a_version_that_the_changelog_does_not_have_fails(self):
        self.write("CMakeLists.txt", "project(cadre\n  VERSION 3.5.0\n")
        status, text = self.check()
        self.assertEqual(status, 1)
        for part in ("CHANGELOG.md has no section [3.5.0]", "dist/cadre_gmm-3.5.0-*.whl is missing: make wheel", "of another version"):
            self.assertIn(part, text)
        self.assertFalse((self.root / "dist/RELEASE_NOTES.md").exists())

    def test_what_is_not_released_yet_fails(self):
        text = (self.root / "CHANGELOG.md").read_text().replace("[Unreleased]\n", "[Unreleased]\n\n- More.\n").replace(" - 2026-01-02", "")
        self.write("CHANGELOG.md", text)
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertIn("[Unreleased] is not empty", text)
        self.assertIn("expected - YYYY-MM-DD", text)

    def test_a_wheel_for_no_glibc_or_without_its_library_fails(self):
        del self.wheel["cadre/lib/libcadre.so"]
        self.sdist = self.sdist[1:]
        self.make_artefacts(tag="linux_x86_64")
        status, text = self.check()
        self.assertEqual(status, 1)
        for part in ("its tag names no glibc", "cadre/lib/libcadre.so is missing", "CMakeLists.txt is missing"):
            self.assertIn(part, text)

    def test_a_wheel_that_reads_no_tuning_tables_fails(self):
        source = (SCRIPTS.parent / "src/backend/tuning_file.cc").read_text()
        (said,) = set(re.findall(r'return "(this build reads no [^"]+)"', source))
        self.wheel["cadre/lib/libcadre.so"] = f"\0{said}\0"
        self.make_artefacts()
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertIn("its library reads no tuning tables: install nlohmann-json", text)

    def test_a_file_that_is_no_wheel_fails(self):
        self.write(f"dist/cadre_gmm-{self.VERSION}-py3-none-manylinux_2_34_x86_64.whl", "nothing")
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertIn("can't be read as an artefact", text)


if __name__ == "__main__":
    unittest.main()
