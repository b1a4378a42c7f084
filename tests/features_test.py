"""Holds the comment on GetVersionResponse.features against the table of the code: both have the same names, in order.

    features_test.py             compare them
    features_test.py --self-test show that planted faults are found
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTRACT = "proto/shardmesh/v1/cluster_service.proto"
TABLE = "rpc/contract.h"

COMMENT = re.compile(r"((?:  //.*\n)+)  repeated string features = ")
NAME_OF_COMMENT = re.compile(r"^  // \* ([a-z_]+): ", re.MULTILINE)
ROWS = re.compile(r"kFeatures\[\] = \{(.*?)\n\};", re.DOTALL)
NAME_OF_ROW = re.compile(r"^    \{\"([a-z_]+)\"", re.MULTILINE)


def faults(contract, table):
    """What is wrong, a sentence each."""
    comment, rows = COMMENT.search(contract), ROWS.search(table)
    if comment is None:
        return [f"{CONTRACT} has no comment on `features`"]
    if rows is None:
        return [f"{TABLE} has no kFeatures"]
    described = NAME_OF_COMMENT.findall(comment.group(1))
    listed = NAME_OF_ROW.findall(rows.group(1))
    found = [f"{CONTRACT} does not describe the feature {name}" for name in listed if name not in described]
    found += [f"{TABLE} has no feature {name}, which {CONTRACT} describes" for name in described if name not in listed]
    if not listed or not found and described != listed:
        found.append(f"{CONTRACT} and {TABLE} have the features in another order, or none")
    return found


def self_test():
    contract = "  // Names:\n  // * a: A.\n  // * b: B,\n  //   and more.\n  repeated string features = 3;\n"
    table = 'kFeatures[] = {\n    {"a", {"x"}},\n    {"b",\n     {"y"}},\n};\n'
    assert faults(contract, table) == [], faults(contract, table)
    for planted in [
        (contract.replace("* b: B,", "B,"), table),
        (contract, table.replace('"b"', '"c"')),
        (contract.replace("* a:", "* c:").replace("* b:", "* a:").replace("* c:", "* b:"), table),
        (contract, "kFeatures[] = {\n};\n"),
        ("", table),
    ]:
        assert faults(*planted), planted
    print("5 planted faults found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    found = faults((ROOT / CONTRACT).read_text(), (ROOT / TABLE).read_text())
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
