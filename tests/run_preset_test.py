#!/usr/bin/env python3
"""Tests tests/ci/run_preset.py: what it says at the end of a preset whose tests failed."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "ci"))
import run_preset  # noqa: E402

GOOGLETEST = """[ RUN      ] QueueTest.KeepsItsOrder
2026-11-25T23:37:14.487882Z INFO worker attached identity=worker-1
/src/queue_test.cc:71: Failure
Value of: queue.Await(3)
  Actual: false
[  FAILED  ] QueueTest.KeepsItsOrder (60591 ms)
[ RUN      ] QueueTest.Ends
[       OK ] QueueTest.Ends (1 ms)
"""


class ReasonsTest(unittest.TestCase):
    def test_a_failed_expectation_is_shown_with_what_follows(self):
        lines = run_preset.reasons(GOOGLETEST)
        self.assertEqual(lines[0], "/src/queue_test.cc:71: Failure")
        self.assertIn("  Actual: false", lines)
        self.assertEqual(len(lines), len(set(lines)), "no line twice")

    def test_other_programs_failures_are_known(self):
        for line in ("FAIL: test_put (client.PutTest)", "==17==ERROR: AddressSanitizer: heap-use-after-free",
                     "x.cc:3:1: runtime error: shift exponent 64 is too large", "Check failed: ok",
                     "WARNING: ThreadSanitizer: data race (pid=3)", "Traceback (most recent call last):"):
            self.assertEqual(run_preset.reasons(f"before\n{line}\nafter")[0], line)

    def test_an_unknown_failure_is_shown_by_its_end(self):
        lines = run_preset.reasons("\n".join(f"line {i}" for i in range(100)))
        self.assertEqual(lines[-1], "line 99")
        self.assertEqual(len(lines), run_preset.LINES_AFTER)

    def test_one_test_cannot_hide_the_others(self):
        self.assertEqual(len(run_preset.reasons("x.cc:1: Failure\n" * 1000)), run_preset.LINES_PER_TEST)

    def test_a_test_that_could_not_be_started_is_named(self):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as junit:
            junit.write('<testsuite><testcase name="a" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>'
                        '<testcase name="b" status="notrun"><skipped message="Unable to find executable: x"/></testcase>'
                        '</testsuite>')
            junit.flush()
            self.assertEqual(run_preset.failures(junit.name), [("b", ["Unable to find executable: x"])])

    def test_passed_and_skipped_tests_are_left_out(self):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as junit:
            junit.write('<testsuite><testcase name="a" status="run"/>'
                        '<testcase name="b" status="fail"><system-out>x.cc:1: Failure\nwhy</system-out></testcase>'
                        '<testcase name="c" status="notrun"/><testcase name="d" status="fail"/></testsuite>')
            junit.flush()
            self.assertEqual(run_preset.failures(junit.name), [("b", ["x.cc:1: Failure", "why"]), ("d", [])])


if __name__ == "__main__":
    unittest.main()
