#!/usr/bin/env python3
"""Tests tests/with_packages.py: which interpreter it runs, and how it ends where none has the packages."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(__file__).resolve().with_name("with_packages.py")


class WithPackagesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "tests").mkdir()
        shutil.copy(PROGRAM, self.root / "tests")

    def interpreter(self, path, text):
        """An interpreter at a path below the root: a script of the shell."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(f"#!/bin/sh\n{text}\n")
        (self.root / path).chmod(0o755)

    def having(self, path):
        """An interpreter that has the packages; it prints its path and its arguments."""
        self.interpreter(path, f'[ "$1" = -c ] || echo {path} "$@"')

    def run_program(self, *arguments, ci=None):
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        environment["PATH"] = str(self.root / "path")
        if ci is not None:
            environment["CI"] = ci
        return subprocess.run([sys.executable, self.root / "tests" / "with_packages.py", *arguments], env=environment,
                              capture_output=True, text=True, check=False)

    def test_runs_the_first_interpreter_that_has_the_packages(self):
        found = []
        for path in ("path/python3", "build/peers/bin/python", "build/python/bin/python"):
            self.having(path)
            found.append((path, self.run_program("a.py", "b c").stdout))
        self.assertEqual(found, [(path, f"{path} a.py b c\n") for path, _ in found])
        self.interpreter("build/python/bin/python", "exit 1")
        self.assertEqual(self.run_program("a.py").stdout, "build/peers/bin/python a.py\n")

    def test_its_exit_code_is_that_of_the_interpreter(self):
        self.interpreter("path/python3", '[ "$1" = -c ] || exit 3')
        self.assertEqual(self.run_program("a.py").returncode, 3)

    def test_without_the_packages_it_is_skipped_loudly(self):
        self.interpreter("path/python3", "exit 1")
        for ci in (None, "false"):
            done = self.run_program("a.py", ci=ci)
            self.assertEqual(done.returncode, 77)
            self.assertIn("NOT RUN WITH NUMPY AND SAFETENSORS: a.py", done.stderr)
            self.assertIn("./dev test packages", done.stderr)

    def test_without_the_packages_ci_fails(self):
        self.assertEqual(self.run_program("a.py", ci="true").returncode, 1)

    def test_installs_nothing_where_an_interpreter_has_the_packages(self):
        self.having("path/python3")
        self.assertEqual(self.run_program("--install").returncode, 0)
        self.assertFalse((self.root / "build").exists())

    def test_installs_in_a_new_environment(self):
        # `python3 -m venv FOLDER` makes an interpreter that has the packages once `-m pip` has run.
        self.interpreter("made", 'case $1 in -m) : >"$0.installed" ;; -c) [ -e "$0.installed" ] ;; *) echo "$@" ;; esac')
        self.interpreter("path/python3", '[ "$1" = -m ] && /bin/mkdir -p "$3/bin" && '
                         f'/bin/cp {self.root}/made "$3/bin/python" && /bin/cp {self.root}/made "$3/bin/pip"')
        self.assertEqual(self.run_program("a.py").returncode, 77)
        self.assertEqual(self.run_program("--install").returncode, 0)
        self.assertEqual(self.run_program("a.py").stdout, "a.py\n")

    def test_without_the_package_index_the_tests_behind_it_still_run(self):
        self.interpreter("path/python3", "exit 1")
        for ci in (None, "true"):
            done = self.run_program("--install", ci=ci)
            self.assertEqual(done.returncode, 77)
            self.assertIn("THE PACKAGES ARE MISSING", done.stderr)


if __name__ == "__main__":
    unittest.main()
