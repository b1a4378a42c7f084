#!/usr/bin/env python3
"""Checks the prose of the pages: lines of at most 100 columns, and numbers of README.md that docs/benchmarks.md has.

usage: prose_test.py [--self-test]

A line may be longer where it is a table's row, a command or output in a fence or an indented block, or holds a link
that cannot be cut. docs/api.md is generated from the comments of the protos, which have a width of their own.
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = 100
FOLDERS = ("bench", "client", "deploy", "docs", "proto", "tests")
# Not ours to wrap: generated, or a copy of what others wrote.
OTHERS = ("docs/api.md", "tests/data/", "LICENSE")
# Which rows of docs/benchmarks.md hold the numbers of a row of README.md's comparison.
ROWS = {"eformer": ("R2-library", "R2-wire", "R3-match"), "`jax.device_put`": ("S1-first",),
        "OpenMPI": ("C1",), "Gloo": ("C2",)}


def wide_lines(page: str) -> list[int]:
    """The numbers of a page's lines of prose that are too wide."""
    wide, fenced, hidden = [], False, False
    for number, line in enumerate(page.splitlines(), 1):
        hidden = line.startswith("<!--") or hidden
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        excused = fenced or hidden or line.startswith(("|", "    ")) or re.search(r"\S{60,}", line)
        if len(line) > COLUMNS and not excused:
            wide.append(number)
        hidden = hidden and "-->" not in line
    return wide


def cells(page: str) -> list[list[str]]:
    """The rows of a page's tables."""
    return [[cell.strip() for cell in line.strip("|").split("|")]
            for line in page.splitlines() if line.startswith("|")]


def numbers(text: str) -> set[str]:
    """The ratios in a text: numbers with a decimal point, and those before "times as fast"."""
    return set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", text)) | set(re.findall(r"(\d+) times as fast", text))


def unfounded(readme: str, benchmarks: str) -> list[str]:
    """What README.md's comparison says and docs/benchmarks.md does not."""
    _, begun, comparison = readme.partition("## Beside other software")
    if not begun:
        return ["README.md has no section \"Beside other software\""]
    comparison = comparison.partition("\n## ")[0]
    measured: dict[str, set[str]] = {}
    for row in cells(benchmarks):
        if len(row) >= 7:
            ratios = re.findall(r"\d+(?:\.\d+)?", row[4])
            measured.setdefault(row[0].split(" ")[0], set()).update(ratios)
    faults, known = [], 0
    for row in cells(comparison):
        for software, ids in ROWS.items():
            if row[0].startswith(software):
                known += 1
                have = set().union(*(measured.get(row_id, set()) for row_id in ids))
                faults += [f"README.md says {number} of {row[0]}; no row {' or '.join(ids)} of docs/benchmarks.md has it"
                           for number in sorted(numbers(row[2]) - have)]
    if known != len(ROWS):
        faults.append(f"README.md compares with {known} of the {len(ROWS)} programs that this test knows")
    return faults


class SelfTest(unittest.TestCase):
    def test_finds_wide_prose_alone(self):
        long = "word " * 30
        self.assertEqual(wide_lines(f"short\n{long}\n| {long} |\n```\n{long}\n```\n"
                                    f"    {long}\n<!-- run:\n{long}\n-->\nsee <https://{'x' * 99}>"), [2])

    def test_finds_numbers_that_were_not_measured(self):
        page = ("## Beside other software\n| eformer | x | 52 times as fast |\n| `jax.device_put` | x | 0.92 |\n"
                "| OpenMPI | x | 0.31 |\n| Gloo | x | 0.5 |\n## Next\n| Gloo | x | 9.9 |")
        rows = "".join(f"| {row_id} | what | 1 | 2 | {ratio} | t | yes |\n"
                       for row_id, ratio in (("R3-match", "52"), ("S1-first", "0.92"), ("C1", "0.3"), ("C2", "0.5, 0.6")))
        self.assertEqual(len(unfounded(page, rows)), 1)
        self.assertIn("0.31", unfounded(page, rows)[0])
        self.assertTrue(unfounded("no comparison", rows))


def main() -> int:
    if sys.argv[1:] == ["--self-test"]:
        return unittest.main(argv=sys.argv[:1])
    files = [*ROOT.glob("*.md"), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.md"))]
    pages = [str(file.relative_to(ROOT)) for file in files]
    faults = [f"{page}:{number}: wider than {COLUMNS} columns" for page in pages if not page.startswith(OTHERS)
              for number in wide_lines((ROOT / page).read_text())]
    faults += unfounded((ROOT / "README.md").read_text(), (ROOT / "docs/benchmarks.md").read_text())
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
