#!/usr/bin/env python3
"""Records Python's answers for patterns that need backtracking, for two files of tests/data/goldens.

    python3 tests/differential/backtracking.py            # writes the files anew
    python3 tests/differential/backtracking.py --compare  # exits 1 if they would change

Recorded with Python 3.11.7; another version is refused unless --any-version is given, whose output
is for comparing and not for committing.

Patterns and names are random under a fixed seed. Each pattern has look-around, a back-reference, a
conditional, an atomic group or a possessive repeat; regex.py writes them. regex_backtracking.jsonl
has the answers of re.search, and regex_groups.json the ranges of the groups where it found the
pattern: character positions by the question's id, group 0 first, null for a group that took no part.

Two defects of Python 3.11 are kept out, because sharding/pattern does not follow them:
  - Python can keep the groups of an alternative that failed within a possessive repeat, and may then
    raise SystemError. No recorded pattern has a group within a possessive repeat.
  - Python's search ignores the flags of a leading group such as (?a:\\W). A pattern for which search
    and match differ is not recorded.
"""

import argparse
import json
import pathlib
import random
import re
import sys
import warnings

from regex import NEEDS_BACKTRACKING, Generator, has_group_in_possessive_repeat, opcodes, sre_parse

warnings.simplefilter("ignore")

GOLDENS = pathlib.Path(__file__).resolve().parents[1] / "data" / "goldens"
VERSION = "3.11.7"
SEED = 20261127
COUNT = 4_000


class BacktrackingGenerator(Generator):
    """Writes well-formed patterns, most of which need backtracking."""

    def character(self):
        draw = self.rng.random()
        if draw < 0.8:
            return self.rng.choice("aaabbc")
        return self.rng.choice("AB_1/. \n\u00e9\u00c9\u017f\u212aks\u0130i\u0131") if draw < 0.95 else super().character()

    def name(self):
        pieces = [self.character() for _ in range(self.rng.choice((1, 2, 3, 4, 6, 9, 12)))]
        if self.rng.random() < 0.3:  # a text that back-references find
            pieces *= 2
        return "".join(pieces)

    def pattern(self):
        self.groups = 0
        self.names = []
        flags = self.pick((12, ""), (3, "(?i)"), (1, "(?m)"), (1, "(?s)"), (0.5, "(?a)"), (0.5, "(?x)"), (0.7, "(?ai)"))
        return flags + self.alternation(3)

    def item(self, depth):
        atom = self.pick((8, self.literal), (2, self.character_class), (1.5, self.escape), (2, lambda: "."),
                         (1.5, lambda: self.rng.choice(["^", "$", "\\b", "\\B", "\\A", "\\Z"])),
                         (6 if depth else 0, lambda: self.group(depth - 1)), (2 if self.groups else 0, self.reference))()
        return atom + (self.quantifier() if self.rng.random() < 0.35 else "")

    def quantifier(self):
        return self.pick((4, "*"), (4, "+"), (4, "?"), (1, "{2}"), (1, "{1,2}"), (1, "{,2}"), (0.5, "{2,}"), (0.2, "{0}")) + \
            self.pick((6, ""), (3, "?"), (2, "+"))

    def group(self, depth):
        kind = self.pick((6, "("), (4, "(?:"), (0.5, "(?i:"), (0.3, "(?-i:"), (0.3, "(?a:"), (1, "(?P<"), (1.5, "(?="),
                         (1.5, "(?!"), (1.2, "(?<="), (1.2, "(?<!"), (1.5, "(?>"), (1.5 if self.groups else 0, "(?("))
        if kind == "(?P<":
            self.groups += 1
            self.names.append("n%d" % len(self.names))
            return "(?P<%s>%s)" % (self.names[-1], self.alternation(depth))
        if kind == "(?(":
            branches = self.sequence(depth) + ("|" + self.sequence(depth) if self.rng.random() < 0.7 else "")
            return "(?(%d)%s)" % (self.rng.randrange(1, self.groups + 1), branches)
        if kind in ("(?<=", "(?<!") and self.rng.random() < 0.8:
            width = self.rng.randrange(1, 3)
            branches = self.rng.choice((1, 1, 2))
            return kind + "|".join(
                "".join(self.pick((3, lambda: re.escape(self.character())), (1, lambda: "."), (1, self.character_class))()
                        for _ in range(width)) for _ in range(branches)) + ")"
        if kind == "(":
            self.groups += 1
        return kind + self.alternation(depth) + ")"


def record(count, seed):
    rng = random.Random(seed)
    generator = BacktrackingGenerator(rng)
    lines = []
    groups = {}
    found_count = 0
    while len(lines) < count:
        pattern, name = generator.pattern(), generator.name()
        try:
            compiled = re.compile(pattern)
            parsed = sre_parse.parse(pattern)
        except (re.error, OverflowError, ValueError):
            continue
        if NEEDS_BACKTRACKING.isdisjoint(opcodes(parsed)) or "\\N{" in pattern or has_group_in_possessive_repeat(parsed):
            continue
        found = compiled.search(name)
        if (found is not None) != any(compiled.match(name, i) for i in range(len(name) + 1)):
            continue
        # As many questions with one answer as with the other.
        if found is None and found_count * 2 < len(lines):
            continue
        case = "regex_backtracking/random/%04d" % (len(lines) + 1)
        lines.append(json.dumps({"id": case, "fn": "re_search", "input": {"pattern": pattern, "name": name},
                                 "expect": found is not None}, separators=(",", ":")))
        if found is not None:
            found_count += 1
            spans = [found.span(i) for i in range(compiled.groups + 1)]
            groups[case] = [None if span == (-1, -1) else span for span in spans]
    document = "{\n%s\n}\n" % ",\n".join('"%s":%s' % (case, json.dumps(spans, separators=(",", ":")))
                                         for case, spans in groups.items())
    return {"regex_backtracking.jsonl": "\n".join(lines) + "\n", "regex_groups.json": document}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=GOLDENS, help="the folder of the two files")
    parser.add_argument("--compare", action="store_true", help="write nothing; exit 1 if a file would change")
    parser.add_argument("--any-version", action="store_true")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED, help="other questions of the same kinds")
    arguments = parser.parse_args()
    version = sys.version.split()[0]
    if version != VERSION and not arguments.any_version:
        sys.exit("Python is %s; the answers are those of %s" % (version, VERSION))
    for name, text in record(arguments.count, arguments.seed).items():
        path = arguments.output / name
        if not arguments.compare:
            path.write_text(text, encoding="ascii")
        elif path.read_text(encoding="ascii") != text:
            sys.exit("%s would change" % path)


if __name__ == "__main__":
    main()
