"""Holds docs/limits.md against the tests and the programs: each row names a test that there is, and each flag that is a
limit has a row with its default.

    limits_test.py PROGRAM...   the programs whose flags are limits, as they were built
    limits_test.py --self-test  show that planted faults are found
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = "docs/limits.md"

# Rows without a test, by their first words, and why.
UNTESTED = {
    "working memory that a thread keeps between kernels": "nothing tells how much a thread keeps",
    "time to compute one answer": "a test would take five minutes",
}

# Flags with a number, a size or a duration that limit nobody, and why.
NO_LIMITS = {
    "exchange-port": "where to serve",
    "heartbeat-interval": "how often, not how long at most",
    "lock-timeout": "for starts alone: nobody is refused anything",
    "min-sharding-size": "a property of layouts",
    "scrub-interval": "how often tiles are compared",
    "scrub-rate": "of the worker's own",
    "threads": "of the worker's own",
}

TEST_NAME = re.compile(r"`([A-Z]\w*)\.([A-Z]\w*)`")
DEFINED = re.compile(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)")
FLAG = re.compile(r"`--([a-z][a-z0-9-]*)`")
HELP_LINE = re.compile(r"^  --([a-z][a-z0-9-]*) (N|SIZE|DURATION) .*?(?:\(default ([^)]*)\))?$", re.MULTILINE)
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "days": 86400}
SIZES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def rows(page):
    """Cells of each row of a table, with the head of its table."""
    head = None
    for line in page.splitlines():
        if not line.startswith("|"):
            head = None
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if head is None:
            head = cells
        elif not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            yield head, cells


def amount(text):
    """The number at the beginning of a text such as `10,000`, `64 MiB` or `1h0m0s`, in units or seconds; None if there
    is none."""
    durations = re.match(r"(?:[0-9.]+(?:ns|us|ms|s|m|h))+(?![0-9a-zA-Z])", text)
    if durations:
        return sum(float(n) * SECONDS[unit] for n, unit in re.findall(r"([0-9.]+)([a-z]+)", durations[0]))
    found = re.match(r"([0-9][0-9,]*)(?: (KiB|MiB|GiB|s|min|h|days)\b)?", text)
    if not found:
        return None
    unit = found[2] or ""
    return int(found[1].replace(",", "")) * (SIZES[unit] if unit in SIZES else SECONDS[unit])


def defined_tests():
    found = set()
    for folder in ("unit", "integration"):
        for source in sorted((ROOT / "tests" / folder).rglob("*.cc")):
            found |= {f"{suite}.{test}" for suite, test in DEFINED.findall(source.read_text(encoding="utf-8"))}
    return found


def flags_of(help_text):
    """Flags with a number, a size or a duration, and their defaults as the help says them, or None."""
    return {name: default or None for name, _, default in HELP_LINE.findall(help_text)}


def faults(page, tests, helps):
    """What is wrong, a sentence each; `helps` are what the programs say of their flags."""
    found = []
    untested = set(UNTESTED)
    named = {}
    for head, cells in rows(page):
        what = cells[0]
        if len(cells) != len(head):
            found.append(f"{what}: {len(cells)} cells in a table of {len(head)} columns")
            continue
        tested = cells[head.index("test")] if "test" in head else cells[-1]
        names = [".".join(name) for name in TEST_NAME.findall(tested)]
        reasons = {key for key in UNTESTED if what.startswith(key)}
        if not names and not reasons and not TEST_NAME.search(" ".join(cells)):
            found.append(f"{what}: names no test as `Suite.Test`")
        if names and reasons:
            found.append(f"{what}: has a test, and stands among those without")
        untested -= reasons
        if names and "test" in head and TEST_NAME.sub("", tested).strip(", "):
            found.append(f"{what}: its column of tests has more than `Suite.Test`, ...: {tested}")
        found += [f"{what}: there is no test {name}" for name in names if name not in tests]
        flag_column = next((i for i, cell in enumerate(head) if cell.startswith("flag")), None)
        if flag_column is not None:
            defaults = cells[head.index("default")].split(";") if "default" in head else []
            for i, flag in enumerate(FLAG.findall(cells[flag_column])):
                named[flag] = defaults[i].strip() if i < len(defaults) else ""
    found += [f"{key}: there is no such row" for key in sorted(untested)]

    known = {}
    for text in helps:
        known.update(flags_of(text))
    for flag, default in sorted(named.items()):
        if flag not in known:
            found.append(f"--{flag}: no program has this flag")
        elif known[flag] is not None and amount(default) != amount(known[flag]):
            found.append(f"--{flag}: its default is {known[flag]}, the page says {default}")
    for flag in sorted(known):
        if flag not in named and flag not in NO_LIMITS:
            found.append(f"--{flag}: has no row; add one, or name it among those that limit nobody")
    found += [f"--{flag}: limits nobody and has a row" for flag in sorted(NO_LIMITS) if flag in named]
    return found


def self_test():
    page = """
| limit | flag | default | test |
|---|---|---|---|
| apples | `--max-apples` | 1,000 | `AppleTest.AreLimited` |
| bytes of pears; of a caller | `--pear-bytes`, `--pear-bytes-per-caller` | 64 MiB; 8 MiB | `PearTest.AreLimited`, `PearTest.OfACaller` |
| time of figs | `--fig-time` | 10 min | `FigTest.AreEatenInTime` |
""" + "".join(f"| {key} | none | – | – |\n" for key in UNTESTED)
    tests = {"AppleTest.AreLimited", "PearTest.AreLimited", "PearTest.OfACaller", "FigTest.AreEatenInTime"}
    text = """
  --max-apples N             apples (default 1000)
  --pear-bytes SIZE          bytes of pears (default 67108864)
  --pear-bytes-per-caller N  the same of one caller (default 8388608)
  --fig-time DURATION        how long (default 10m)
  --threads N                threads (default 0)
  --name TEXT                no limit
"""
    assert not faults(page, tests, [text]), faults(page, tests, [text])
    planted = [
        (page.replace("`AppleTest.AreLimited`", "`AppleTest.AreNot`"), text, "there is no test AppleTest.AreNot"),
        (page.replace("`AppleTest.AreLimited`", "–"), text, "apples: names no test"),
        (page.replace("`AppleTest.AreLimited`", "`apple_test`, AppleTest"), text, "apples: names no test"),
        (page.replace("`PearTest.OfACaller`", "`OfACaller`"), text, "its column of tests has more than"),
        (page.replace("1,000", "1,001"), text, "--max-apples: its default is 1000, the page says 1,001"),
        (page.replace("8 MiB", "8 KiB"), text, "--pear-bytes-per-caller: its default is"),
        (page.replace("10 min", "10 s"), text, "--fig-time: its default is 10m"),
        (page.replace("| time of figs", "| time of | figs"), text, "5 cells in a table of 4 columns"),
        (page, text.replace("--max-apples", "--max-plums"), "--max-plums: has no row"),
        (page, text.replace("--max-apples", "--max-plums"), "--max-apples: no program has this flag"),
        (page.replace("`--fig-time`", "`--threads`"), text, "--threads: limits nobody and has a row"),
        (page.replace(next(iter(UNTESTED)), "something else"), text, f"{next(iter(UNTESTED))}: there is no such row"),
    ]
    for changed, told, expected in planted:
        found = faults(changed, tests, [told])
        assert any(expected in fault for fault in found), f"{expected}: {found}"


def main(arguments):
    if arguments == ["--self-test"]:
        self_test()
        return 0
    if not arguments:
        print(__doc__)
        return 2
    helps = [subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout for program in arguments]
    found = faults((ROOT / PAGE).read_text(encoding="utf-8"), defined_tests(), helps)
    for fault in found:
        print(f"{PAGE}: {fault}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
