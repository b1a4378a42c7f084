#!/usr/bin/env python3
"""Runs a test preset of CMakePresets.json and ends with the reasons of its failures.

The log of a stage is long, and readers of a CI result often see its end only.

Usage: run_preset.py PRESET. Exit status: that of ctest.
"""

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

# The first line of a failure: GoogleTest, unittest, sanitizers, libFuzzer, CHECK.
FAILURE = re.compile(
    r": Failure$|^\s*(FAIL|ERROR): |^Traceback|AssertionError|(Address|Undefined|Thread|Leak)Sanitizer|"
    r"runtime error: |Check failed|^==\d+==ERROR|^ERROR: libFuzzer|^\[  FAILED  \] \S+ \(")
LINES_AFTER = 8
LINES_PER_TEST = 60


def reasons(output: str) -> list[str]:
    """The lines of a failed test's output that say why, or its end where none is known to say so."""
    lines = output.splitlines()
    chosen: list[int] = []
    for i, line in enumerate(lines):
        if FAILURE.search(line):
            chosen += [k for k in range(i, min(i + LINES_AFTER, len(lines))) if not chosen or k > chosen[-1]]
    if not chosen:
        return lines[-LINES_AFTER:]
    return [lines[k] for k in chosen[:LINES_PER_TEST]]


def failures(junit: str) -> list[tuple[str, list[str]]]:
    """(name, reasons) of each test in a JUnit file of ctest that failed or could not be started."""
    found = []
    for case in xml.parse(junit).getroot().iter("testcase"):
        if case.get("status") == "fail":
            found.append((case.get("name", ""), reasons(case.findtext("system-out") or "")))
        skipped = case.find("skipped")
        # A test that skips itself is no failure.
        if case.get("status") == "notrun" and skipped is not None:
            why = skipped.get("message", "")
            if "Unable to find executable" in why or "Fixture dependency failed" in why:
                found.append((case.get("name", ""), [why]))
    return found


def run_ctest(preset: str, junit: str) -> tuple[int, list[str]]:
    """Runs ctest and shows what it prints. Returns its status and its list of failed tests, which says which of them
    timed out or crashed."""
    failed: list[str] = []
    with subprocess.Popen(["ctest", "--preset", preset, "--output-junit", junit], stdout=subprocess.PIPE,
                          text=True, errors="replace") as ctest:
        for line in ctest.stdout:
            print(line, end="", flush=True)
            if line.startswith("The following tests FAILED"):
                failed = [line.rstrip()]
            elif failed:
                failed.append(line.rstrip())
    return ctest.returncode, failed


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        junit = os.path.join(folder, "tests.xml")
        status, failed = run_ctest(sys.argv[1], junit)
        if status != 0 and os.path.exists(junit):
            for name, lines in failures(junit):
                print(f"\n=== {name} failed:")
                print("\n".join(lines))
            print("\n" + "\n".join(failed), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
