#!/usr/bin/env python3
"""Tests scripts/nvcc_no_spill.py with a stand-in for the compiler.

usage: nvcc_launcher_test.py LAUNCHER
"""
import os
import subprocess
import sys
import tempfile
import unittest

LAUNCHER = sys.argv.pop(1)
CLEAN = """ptxas info    : Compiling entry function '_Z4goodPf' for 'sm_90a'
ptxas info    : Function properties for _Z4goodPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
"""
SPILL = CLEAN + """ptxas info    : Compiling entry function '_Z3badPf' for 'sm_90a'
ptxas info    : Function properties for _Z3badPf
    8 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads
"""
SERIALISED = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n"
# Writes its output file and the given report, as nvcc does.
COMPILER = "import sys; open(sys.argv[2], 'w').close(); sys.stderr.write(sys.argv[3]); sys.exit(int(sys.argv[4]))"


class Launcher(unittest.TestCase):
    def compile(self, report, status=0):
        with tempfile.TemporaryDirectory() as folder:
            output = os.path.join(folder, "kernel.o")
            command = [sys.executable, LAUNCHER, sys.executable, "-c", COMPILER, "-o", output, report, str(status)]
            done = subprocess.run(command, capture_output=True, text=True)
            return done.returncode, done.stderr, os.path.exists(output)

    def test_a_clean_kernel_passes_silently(self):
        self.assertEqual(self.compile(CLEAN), (0, "", True))

    def test_a_spill_fails_names_the_kernel_and_leaves_no_object(self):
        status, text, exists = self.compile(SPILL)
        self.assertEqual((status, exists), (1, False))
        self.assertIn("_Z3badPf", text)
        self.assertNotIn("_Z4goodPf", text)

    def test_serialised_wgmma_fails(self):
        for code in range(7508, 7518):
            status, text, _ = self.compile(SERIALISED.replace("7510", str(code)))
            self.assertEqual(status, 1, code)
            self.assertIn(f"C{code}", text)

    def test_other_ptxas_messages_pass(self):
        self.assertEqual(self.compile(SERIALISED.replace("7510", "7507"))[0], 0)

    def test_warnings_are_shown(self):
        self.assertIn("is unused", self.compile("a.cu(3): warning: x is unused\n" + CLEAN)[1])

    def test_the_compilers_own_failure_is_passed_on(self):
        self.assertEqual(self.compile("a.cu(3): error: no\n", status=2)[:2], (2, "a.cu(3): error: no\n"))


if __name__ == "__main__":
    unittest.main()
