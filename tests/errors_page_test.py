"""Holds docs/errors.md against the contract: the page has one row for each reason of error.proto, and no other.

The rows are also what `shardmesh explain-error` prints: the build compiles the page in, and error_explanations_test.cc
checks that the program finds a row for each reason.

    errors_page_test.py             compare the page with the contract
    errors_page_test.py --self-test show that planted faults are found
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = "docs/errors.md"
CONTRACT = "proto/shardmesh/v1/error.proto"

# The status codes of gRPC with which a call of ours may fail.
CODES = {
    "ABORTED", "ALREADY_EXISTS", "CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION", "INTERNAL",
    "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED",
    "UNAVAILABLE", "UNIMPLEMENTED",
}
CORRECTION = "a correction"  # in place of a code: the answer has it, and the call succeeds

REASON = re.compile(r"^\s*REASON_([A-Z0-9_]+) = ([0-9]+);", re.MULTILINE)
ROW = re.compile(r"^\| `([A-Z0-9_]+)` \|(.*)\|$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)")


def reasons_of(contract):
    """The names of the reasons without their prefix; 0 is not a reason."""
    return [name for name, number in REASON.findall(contract) if number != "0"]


def faults(page, contract, exists):
    """What is wrong, a sentence each; `exists` says of a path of the page whether it leads to a file."""
    found = []
    reasons = reasons_of(contract)
    rows = ROW.findall(page)
    names = [name for name, _ in rows]
    found += [f"{name}: has no row" for name in reasons if name not in names]
    found += [f"{name}: is no reason of the contract" for name in names if name not in reasons]
    found += [f"{name}: has {names.count(name)} rows" for name in sorted(set(names)) if names.count(name) > 1]
    for name, rest in rows:
        cells = [cell.strip() for cell in rest.split("|")]
        if len(cells) != 3 or not all(cells):
            found.append(f"{name}: wants a code, a meaning and what the caller does")
            continue
        codes = cells[0].replace(", or " + CORRECTION, "").split(", ")
        found += [f"{name}: {code} is no status code" for code in codes if code not in CODES and code != CORRECTION]
    found += [f"{path}: no such page" for path in LINK.findall(page) if "://" not in path and not exists(path)]
    return found


def self_test():
    contract = "REASON_UNSPECIFIED = 0;\n  REASON_APPLE = 1;\n  REASON_PEAR_LOST = 2;\n"
    page = ("| `APPLE` | NOT_FOUND, or a correction | There is no apple. | Look at the [tree](tree.md). |\n"
            "| `PEAR_LOST` | a correction | A pear is lost. | Take another. |\n")
    there = {"tree.md"}.__contains__
    assert not faults(page, contract, there), faults(page, contract, there)
    planted = [
        (page.replace("APPLE", "PLUM"), "APPLE: has no row"),
        (page.replace("APPLE", "PLUM"), "PLUM: is no reason of the contract"),
        (page + page, "APPLE: has 2 rows"),
        (page.replace("NOT_FOUND", "LOST"), "APPLE: LOST is no status code"),
        (page.replace("Take another.", ""), "PEAR_LOST: wants a code"),
        (page.replace("tree.md", "bush.md"), "bush.md: no such page"),
    ]
    for changed, expected in planted:
        found = faults(changed, contract, there)
        assert any(fault.startswith(expected) for fault in found), f"{expected}: {found}"


def main(arguments):
    if arguments == ["--self-test"]:
        self_test()
        return 0
    if arguments:
        print(__doc__)
        return 2
    page = ROOT / PAGE
    found = faults(page.read_text(encoding="utf-8"), (ROOT / CONTRACT).read_text(encoding="utf-8"),
                   lambda path: (page.parent / path).exists())
    for fault in found:
        print(f"{PAGE}: {fault}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
