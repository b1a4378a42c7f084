"""Holds docs/errors.md against the contract: the page has one row for each reason of error.proto, and no other. The facts
that errors of a reason carry are the same in error.proto, on the page and in the table of the code, and a test checks an
error of each reason for them. No statement of the code gives an error a fact that its reason does not have. The table of retries is the same on the page and in the code.

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
KEYS = "status/fact_keys.h"
TABLE = "status/fact_keys.cc"
RETRIES = "status/retry.cc"
ATTEMPTS = "status/retry.h"
TESTS = "tests"
CODE = ("client", "process", "program", "rpc", "server", "sharding", "status", "tensor", "worker")

# The status codes of gRPC with which a call of ours may fail.
CODES = {
    "ABORTED", "ALREADY_EXISTS", "CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION", "INTERNAL",
    "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED",
    "UNAVAILABLE", "UNIMPLEMENTED",
}
CORRECTION = "a correction"  # in place of a code: the answer has it, and the call succeeds

REASON = re.compile(r"^\s*REASON_([A-Z0-9_]+) = ([0-9]+);", re.MULTILINE)
ROW = re.compile(r"^\| `([A-Z0-9_]+)` \|(.*)\|$", re.MULTILINE)
FACTS = re.compile(r"// Facts: ([a-z_, \n/]+)\.\n  REASON_([A-Z0-9_]+) = ")
KEY_OF_CONTRACT = re.compile(r"^// \* ([a-z_]+): ", re.MULTILINE)
KEY_OF_PAGE = re.compile(r"^\| `([a-z_]+)` \| [^|]*\|$", re.MULTILINE)
KEY_OF_CODE = re.compile(r"FactKey (k\w+)\{\s*\"([a-z_]+)\"")
ROW_OF_CODE = re.compile(r"FactKey k(\w+)Facts\[\] = \{([^}]*)\}")
CHECKED = re.compile(r"CarriesFacts\(\s*Reason::k(\w+)")
TEXT_OF_CODE = re.compile(r'"(?:[^"\\\n]|\\.)*"')
REASON_OR_FACT = re.compile(r"Reason::k(\w+),|fact::(k\w+)")
# What the page says of the values of SelfRetry; {} stands for kFewAttempts.
SELF_RETRIES = {
    "kUntilDeadline": "repeats the call until the deadline",
    "kFewTimes": "makes {} attempts",
    "kNo": "returns the error",
}
FEW_ATTEMPTS = re.compile(r"kFewAttempts = (\d+);")
CASES_OF_CODE = re.compile(r"((?:\s*case Reason::k\w+:)+)\s*return \{absl::(\w+)\((\d+)\), SelfRetry::(\w+)\};")
ROW_OF_RETRIES = re.compile(r"^\| ([A-Z_]+(?:, [A-Z_]+)*) \| (\d+) (ms|s) \| ([^|]*) \|$", re.MULTILINE)
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
        if len(cells) != 4 or not all(cells):
            found.append(f"{name}: wants a code, a meaning, what the caller does and facts")
            continue
        codes = cells[0].replace(", or " + CORRECTION, "").split(", ")
        found += [f"{name}: {code} is no status code" for code in codes if code not in CODES and code != CORRECTION]
    found += [f"{path}: no such page" for path in LINK.findall(page) if "://" not in path and not exists(path)]
    return found


def camel(name):
    return "".join(part.capitalize() for part in name.split("_"))


def facts_of_contract(contract):
    """The keys of each reason in the comments of error.proto, by the reason's name."""
    table = {}
    for keys, name in FACTS.findall(contract):
        keys = re.sub(r"\s*(//)?\s+", " ", keys).strip()
        table[name] = [] if keys == "none" else keys.split(", ")
    return table


def facts_of_page(page):
    return {name: re.findall(r"`([a-z_]+)`", rest.split("|")[-1]) for name, rest in ROW.findall(page)}


def facts_of_code(keys, code):
    """As facts_of_contract, but by the name in the code; reasons without facts have no row."""
    names = dict(KEY_OF_CODE.findall(keys))
    return {reason: [names.get(key, key) for key in re.findall(r"fact::(\w+)", row)]
            for reason, row in ROW_OF_CODE.findall(code)}


def fact_faults(page, contract, keys, code):
    """Where contract, page and code disagree about facts, a sentence each."""
    found = []
    expected = facts_of_contract(contract)
    on_page = facts_of_page(page)
    in_code = facts_of_code(keys, code)
    reasons = reasons_of(contract)
    for name in reasons:
        if name not in expected:
            found.append(f"{name}: its comment in the contract has no line of facts")
            continue
        if on_page.get(name) != expected[name]:
            found.append(f"{name}: has the facts {on_page.get(name)} on the page, {expected[name]} in the contract")
        if in_code.get(camel(name), []) != expected[name]:
            found.append(f"{name}: has the facts {in_code.get(camel(name))} in the code, {expected[name]} in the contract")
    known = {camel(name) for name in reasons}
    found += [f"{name}: is in the code's table and no reason of the contract" for name in in_code if name not in known]
    described = KEY_OF_CONTRACT.findall(contract)
    if sorted(described) != sorted(name for _, name in KEY_OF_CODE.findall(keys)):
        found.append("the contract describes other keys than the code has")
    if sorted(described) != sorted(KEY_OF_PAGE.findall(page)):
        found.append("the contract describes other keys than the page")
    used = {key for facts in expected.values() for key in facts}
    found += [f"{key}: no reason has this fact" for key in described if key not in used]
    found += [f"{key}: is not described" for key in sorted(used) if key not in described]
    return found


def attached_faults(keys, code, sources):
    """Facts that a statement of `sources`, the text of each file by its path, gives to an error whose reason does not
    have them. WithReason checks the same at run time, but in builds with assertions only."""
    found = []
    names = dict(KEY_OF_CODE.findall(keys))
    table = facts_of_code(keys, code)
    for path, text in sorted(sources.items()):
        for statement in TEXT_OF_CODE.sub('""', text).split(";"):
            reason = None
            for next_reason, fact in REASON_OR_FACT.findall(statement):
                reason = next_reason or reason
                if fact and reason and names.get(fact, fact) not in table.get(reason, []):
                    found.append(f"{path}: gives an error of {reason} the fact {names.get(fact, fact)}")
    return found


def retries_of_code(code, header):
    """Delay and self-retry of each reason with a row, by the reason's name in the code."""
    units = {"Milliseconds": "ms", "Seconds": "s"}
    few = FEW_ATTEMPTS.search(header).group(1)
    return {reason: (f"{number} {units[unit]}", SELF_RETRIES[self_retry].format(few))
            for cases, unit, number, self_retry in CASES_OF_CODE.findall(code)
            for reason in re.findall(r"Reason::k(\w+):", cases)}


def retry_faults(page, contract, code, header):
    """Where page and code disagree about retries, a sentence each."""
    in_code = retries_of_code(code, header)
    on_page = {camel(name): (f"{number} {unit}", text.split(";")[0])
               for names, number, unit, text in ROW_OF_RETRIES.findall(page) for name in names.split(", ")}
    known = {camel(name) for name in reasons_of(contract)}
    found = [f"{name}: is in the table of retries and no reason of the contract" for name in on_page if name not in known]
    found += [f"{name}: has the retry {on_page.get(name)} on the page, {in_code.get(name)} in the code"
              for name in sorted(known) if on_page.get(name) != in_code.get(name)]
    cases = len(re.findall(r"case Reason::", code))
    if cases != len(in_code):
        found.append(f"{cases} reasons have a case in {RETRIES}, {len(in_code)} of them could be read")
    return found


def untested(contract, tests):
    """Reasons of which no test checks an error for its facts."""
    checked = {name for text in tests for name in CHECKED.findall(text)}
    return [f"{name}: no test has CarriesFacts(Reason::k{camel(name)}, ...)"
            for name in reasons_of(contract) if camel(name) not in checked]


def self_test():
    contract = ("// * tree: a tree's name.\n// * have: how many there are.\n"
                "REASON_UNSPECIFIED = 0;\n  // Facts: tree, have.\n  REASON_APPLE = 1;\n"
                "  // Facts: none.\n  REASON_PEAR_LOST = 2;\n")
    page = ("| `tree` | A tree's name. |\n| `have` | How many there are. |\n"
            "| `APPLE` | NOT_FOUND, or a correction | No apple. | Look at the [tree](tree.md). | `tree`, `have` |\n"
            "| `PEAR_LOST` | a correction | A pear is lost. | Take another. | none |\n")
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
    keys = "FactKey kTree{\"tree\"};\nFactKey kHave{\n    \"have\"};\n"
    code = "constexpr FactKey kAppleFacts[] = {fact::kTree,\n  fact::kHave};\n"
    assert not fact_faults(page, contract, keys, code), fact_faults(page, contract, keys, code)
    planted = [
        ((page.replace("`tree`, `have` |", "`tree` |"), contract, keys, code), "APPLE: has the facts ['tree'] on the page"),
        ((page, contract, keys, code.replace("fact::kHave", "fact::kTree")), "APPLE: has the facts ['tree', 'tree'] in"),
        ((page, contract.replace("  // Facts: none.\n", ""), keys, code), "PEAR_LOST: its comment"),
        ((page, contract, keys, code.replace("kAppleFacts", "kPlumFacts")), "Plum: is in the code's table"),
        ((page, contract, keys.replace("have", "has"), code), "the contract describes other keys than the code"),
        ((page.replace("| `have` | How", "| `had` | How"), contract, keys, code), "the contract describes other keys than the p"),
        ((page, contract.replace("tree, have", "tree"), keys, code), "have: no reason has this fact"),
    ]
    for arguments, expected in planted:
        found = fact_faults(*arguments)
        assert any(fault.startswith(expected) for fault in found), f"{expected}: {found}"
    fine = {"a.cc": 'Error(Reason::kApple, "no apple; buy one", {{fact::kTree, tree}});\nif (x == fact::kHave) {}'}
    assert not attached_faults(keys, code, fine), attached_faults(keys, code, fine)
    planted = [
        ('Error(Reason::kPearLost, "no pear; buy one", {{fact::kTree, tree}});', "a.cc: gives an error of PearLost the fact tree"),
        ('Error(Reason::kApple, "x", {{fact::kTree, 1}, {fact::kSize, 2}});', "a.cc: gives an error of Apple the fact kSize"),
    ]
    for text, expected in planted:
        assert attached_faults(keys, code, {"a.cc": text}) == [expected], attached_faults(keys, code, {"a.cc": text})
    page = "| APPLE, PEAR_LOST | 1 s | makes 5 attempts; more if asked to |\n"
    code = ("    case Reason::kApple:\n    case Reason::kPearLost:\n      return {absl::Seconds(1), SelfRetry::kFewTimes};\n"
            "    default:\n      return {};\n")
    header = "inline constexpr int kFewAttempts = 5;\n"
    assert not retry_faults(page, contract, code, header), retry_faults(page, contract, code, header)
    planted = [
        (page.replace("1 s", "2 s"), code, "Apple: has the retry ('2 s', 'makes 5 attempts') on the page"),
        (page.replace("makes 5 attempts", "returns the error"), code, "Apple: has the retry ('1 s', 'returns the error')"),
        (page.replace(", PEAR_LOST", ""), code, "PearLost: has the retry None on the page"),
        (page.replace("APPLE", "PLUM"), code, "Plum: is in the table of retries"),
        (page, code + "    case Reason::kPlum:\n      return Later();\n", "3 reasons have a case"),
        (page.replace("5 attempts", "6 attempts"), code, "Apple: has the retry ('1 s', 'makes 6 attempts')"),
    ]
    for changed, in_code, expected in planted:
        found = retry_faults(changed, contract, in_code, header)
        assert any(fault.startswith(expected) for fault in found), f"{expected}: {found}"
    assert untested(contract, ["CarriesFacts(Reason::kApple, {})"]) == [
        "PEAR_LOST: no test has CarriesFacts(Reason::kPearLost, ...)"]
    assert not untested(contract, ["CarriesFacts(Reason::kApple", "CarriesFacts(\n    Reason::kPearLost, {}"])


def main(arguments):
    if arguments == ["--self-test"]:
        self_test()
        return 0
    if arguments:
        print(__doc__)
        return 2
    page = ROOT / PAGE
    text, contract, keys, code, retries, attempts = (
        (ROOT / path).read_text(encoding="utf-8") for path in (PAGE, CONTRACT, KEYS, TABLE, RETRIES, ATTEMPTS))
    found = faults(text, contract, lambda path: (page.parent / path).exists())
    found += fact_faults(text, contract, keys, code)
    found += retry_faults(text, contract, retries, attempts)
    found += untested(contract, [path.read_text(encoding="utf-8") for path in (ROOT / TESTS).rglob("*_test.cc")])
    found = [f"{PAGE}: {fault}" for fault in found]
    found += attached_faults(keys, code, {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in CODE for path in (ROOT / folder).rglob("*.cc")})
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
