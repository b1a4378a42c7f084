"""Compares the patterns of sharding/pattern/pattern.h with Python's re, and rewritten exclusions with the originals.

usage: regex.py PATTERN_PROBE [--count N] [--seed N]

Generates pairs of a pattern and a name, asks pattern_probe (see pattern_probe.cc) about them and fails where
  - a pattern that Python accepts is searched for with another result, or called bad;
  - a pattern that Python refuses is accepted, or refused as another class of exception;
  - a pattern is called unsupported that has no \\N{...}, or the reverse;
  - a search takes too many steps though the pattern needs no backtracking, or too many do.
Two defects of Python 3.11 are not followed. Where the first item of a pattern is a group with flags of its own, search may
skip places at which match succeeds; match decides then. Python can keep the groups of an alternative that failed within a
possessive repeat, so pairs with a group in one are not compared.
"""
import argparse
import json
import random
import re
import subprocess
import sys
import warnings

try:
    from re import _constants as sre
    from re import _parser as sre_parse
except ImportError:  # before Python 3.11
    import sre_constants as sre
    import sre_parse

warnings.simplefilter("ignore")

# Few characters, so that patterns find something; among them what Unicode, case and line ends make special.
LETTERS = "aabbck"
OTHERS = list("_1/-. \n") + ["K", "A", "\u00e9", "\u00b2", "\u0663", "\u212a", "\u017f", "\u0131", "\u0130", "\u4e2d",
                            "\x1c", "\x85", "\u00a0", "\u0345", "\U0001f600", "S", "s", "\x00"]
NEEDS_BACKTRACKING = {"ASSERT", "ASSERT_NOT", "GROUPREF", "GROUPREF_EXISTS", "ATOMIC_GROUP", "POSSESSIVE_REPEAT",
                      "FAILURE"}
MAX_REPEAT = 1000  # as Pattern::kMaxRepeat


class Generator:
    """Writes patterns of the whole dialect, most of them well formed."""

    def __init__(self, rng):
        self.rng = rng
        self.groups = 0
        self.names = []

    def pick(self, *weighted):
        total = sum(weight for weight, _ in weighted)
        at = self.rng.random() * total
        for weight, value in weighted:
            at -= weight
            if at < 0:
                return value
        return weighted[-1][1]

    def character(self):
        return self.rng.choice(LETTERS) if self.rng.random() < 0.75 else self.rng.choice(OTHERS)

    def name(self):
        return "".join(self.character() for _ in range(self.rng.choice((0, 1, 1, 2, 3, 4, 6, 9))))

    def pattern(self):
        self.groups = 0
        self.names = []
        flags = self.pick((12, ""), (1, "(?i)"), (1, "(?m)"), (1, "(?s)"), (1, "(?a)"), (1, "(?x)"), (0.5, "(?ai)"),
                          (0.3, "(?u)"), (0.2, "(?L)"), (0.3, "(?ms)(?i)"), (0.1, "(?a)(?u)"))
        text = flags + self.alternation(3)
        if self.rng.random() < 0.04:  # a slip of the pen
            at = self.rng.randrange(len(text) + 1)
            text = text[:at] + self.rng.choice("()[]{}*+?|\\^$.-") + text[at + self.rng.randrange(2):]
        return text

    def alternation(self, depth):
        branches = 1 if self.rng.random() < 0.8 else self.rng.choice((2, 2, 3))
        return "|".join(self.sequence(depth) for _ in range(branches))

    def sequence(self, depth):
        return "".join(self.item(depth) for _ in range(self.rng.choice((0, 1, 1, 2, 2, 3, 4))))

    def item(self, depth):
        atom = self.pick((8, self.literal), (4, self.character_class), (3, self.escape), (2, lambda: "."),
                         (1.5, lambda: self.rng.choice(["^", "$", "\\b", "\\B", "\\A", "\\Z"])),
                         (3 if depth else 0, lambda: self.group(depth - 1)), (0.15, self.reference),
                         (0.1, lambda: self.rng.choice([" ", "#", "# c\n", "(?#note)", "\t"])))()
        return atom + (self.quantifier() if self.rng.random() < 0.3 else "")

    def literal(self):
        character = self.character()
        if character in ". -" and self.rng.random() < 0.7 or character == "\x00":
            return re.escape(character)
        return character

    def quantifier(self):
        text = self.pick((4, "*"), (4, "+"), (4, "?"), (1, "{2}"), (1, "{1,2}"), (1, "{,2}"), (0.5, "{2,}"), (0.3, "{0}"),
                         (0.3, "{,}"), (0.2, "{"), (0.2, "{a}"), (0.1, "{2,1}"), (0.1, "{}"), (0.1, "{1"),
                         (0.02, "{4294967295}"), (0.05, "{1001}"))
        return text + self.pick((10, ""), (2, "?"), (0.3, "+"), (0.1, "*"))

    def escape(self):
        return self.pick(
            (3, "\\d"), (3, "\\w"), (2, "\\s"), (2, "\\D"), (2, "\\W"), (2, "\\S"), (0.4, "\\n"), (0.2, "\\t"),
            (0.3, "\\x61"), (0.3, "\\u0062"), (0.2, "\\U00000063"), (0.3, "\\141"), (0.2, "\\0"), (0.2, "\\07"),
            (0.3, "\\/"), (0.3, "\\-"), (0.3, "\\."), (0.1, "\\\u00e9"), (0.1, "\\q"), (0.1, "\\x6"), (0.1, "\\400"),
            (0.1, "\\N{LATIN SMALL LETTER A}"), (0.05, "\\N{NO SUCH NAME}"), (0.1, "\\a"), (0.1, "\\U00110000"),
            (0.05, "\\8"))

    def member(self):
        return self.pick((6, self.set_character), (2, self.range), (1.5, self.class_escape))()

    def set_character(self):
        character = self.character()
        return "\\" + character if character in "-." or self.rng.random() < 0.05 and not character.isalnum() else character

    def range(self):
        low, high = self.character(), self.character()
        if low > high and self.rng.random() < 0.95:
            low, high = high, low
        return "%s-%s" % (low.replace("-", "\\-"), high.replace("-", "\\-"))

    def class_escape(self):
        return self.pick((2, "\\d"), (2, "\\w"), (1, "\\s"), (1, "\\D"), (1, "\\W"), (1, "\\S"), (0.3, "\\b"), (0.2, "\\n"),
                         (0.2, "\\x61"), (0.1, "\\]"), (0.1, "\\q"), (0.1, "\\7"), (0.05, "\\8"), (0.05, "\\B"))

    def character_class(self):
        members = "".join(self.member() for _ in range(self.rng.choice((1, 1, 2, 2, 3))))
        start = self.pick((5, "["), (3, "[^"), (0.1, "[]"), (0.1, "[^]"), (0.05, "[-"), (0.05, "[["))
        return start + members + self.pick((20, "]"), (0.3, "-]"), (0.1, ""), (0.1, "&&b]"), (0.1, "--b]"))

    def group(self, depth):
        kind = self.pick((5, "("), (5, "(?:"), (0.8, "(?i:"), (0.4, "(?-i:"), (0.5, "(?s:"), (0.5, "(?m:"), (0.5, "(?a:"),
                         (0.3, "(?x:"), (0.3, "(?i-s:"), (0.2, "(?u:"), (0.5, "(?P<"), (0.3, "(?="), (0.4, "(?!"),
                         (0.2, "(?<="), (0.2, "(?<!"), (0.2, "(?>"), (0.2, "(?("), (0.1, "(?i)"), (0.05, "(?"), (0.05, "(?P>"))
        if kind == "(?i)":
            return kind
        if kind == "(?P<":
            name = self.pick((5, "n%d" % len(self.names)), (1, "n0"), (0.5, "\u00e9"), (0.3, "1"), (0.3, "a b"), (0.1, ""))
            self.names.append(name)
            self.groups += 1
            return "%s%s>%s)" % (kind, name, self.alternation(depth))
        if kind == "(?(":
            group = self.pick((4, str(self.rng.randrange(3))), (1, "n0"), (0.3, "x y"))
            return "%s%s)%s)" % (kind, group, self.alternation(depth))
        if kind in ("(?<=", "(?<!") and self.rng.random() < 0.7:
            return kind + "".join(self.literal() for _ in range(self.rng.randrange(3))) + ")"
        body = self.alternation(depth)
        if kind == "(":
            self.groups += 1
        return kind + body + (")" if self.rng.random() < 0.99 else "")

    def reference(self):
        if self.names and self.rng.random() < 0.5:
            return "(?P=%s)" % self.rng.choice(self.names)
        return "\\%d" % self.rng.randrange(1, max(2, self.groups + 1))


def opcodes(parsed):
    """Names of all operations in a parsed pattern."""
    if isinstance(parsed, (list, tuple, sre_parse.SubPattern)):
        for item in parsed:
            yield from opcodes(item)
    elif isinstance(parsed, type(sre.LITERAL)):
        yield str(parsed)


def has_group_in_possessive_repeat(parsed, inside=False):
    if isinstance(parsed, sre_parse.SubPattern):
        return any(has_group_in_possessive_repeat(item, inside) for item in parsed)
    if isinstance(parsed, (list, tuple)):
        if len(parsed) == 2 and parsed[0] is sre.SUBPATTERN and parsed[1][0] is not None and inside:
            return True
        inside = inside or (len(parsed) == 2 and parsed[0] is sre.POSSESSIVE_REPEAT)
        return any(has_group_in_possessive_repeat(item, inside) for item in parsed)
    return False


def repeats_too_often(parsed, times=1):
    """Whether repeats within repeats multiply to more than the limit."""
    if isinstance(parsed, (list, tuple, sre_parse.SubPattern)):
        if len(parsed) == 3 and isinstance(parsed[1], int) and isinstance(parsed[2], sre_parse.SubPattern):
            least, most, body = parsed
            count = times * max(1, least if most is sre.MAXREPEAT else most)
            return count > MAX_REPEAT or repeats_too_often(body, count)
        return any(repeats_too_often(item, times) for item in parsed)
    return False


def python_answer(pattern, name):
    """What Python says, in the words of pattern_probe: (answer, may be called unsupported, may exceed a limit, may take
    too many steps). The answer is None where Python has a defect."""
    try:
        compiled = re.compile(pattern)
        parsed = sre_parse.parse(pattern)
    except (re.error, RecursionError, OverflowError, ValueError) as problem:
        # Only a table of all names could tell the good ones in \N{...}: they are unsupported alike.
        unknown_name = str(problem).startswith("undefined character name")
        return {"bad": type(problem).__name__}, unknown_name, False, False
    if has_group_in_possessive_repeat(parsed):
        return None, False, False, False
    found = compiled.search(name) is not None
    if not found:  # the defect described above
        found = any(compiled.match(name, i) is not None for i in range(len(name) + 1))
    backtracks = not NEEDS_BACKTRACKING.isdisjoint(opcodes(parsed))
    return {"match": found}, "\\N{" in pattern, repeats_too_often(parsed), backtracks


def compare_searches(probe, count, seed):
    rng = random.Random(seed)
    generator = Generator(rng)
    pairs = [(generator.pattern(), generator.name()) for _ in range(count)]
    answers = ask(probe, [{"pattern": pattern, "name": name} for pattern, name in pairs])
    tally = {}
    differences = []
    long_searches = 0
    for (pattern, name), given in zip(pairs, answers):
        expected, unsupported, large, backtracks = python_answer(pattern, name)
        kind = next(iter(given))
        if expected is None:
            same = True
        elif kind == "unsupported":
            same = unsupported
        elif "bad" in expected:
            same = given == expected or (kind == "bad" and unsupported)  # what follows the name may be bad too
        elif kind == "limit":
            too_many_steps = "takes more than" in given["limit"]
            long_searches += too_many_steps
            same = backtracks if too_many_steps else large
        else:
            same = given == expected and not unsupported
        outcome = kind if kind != "match" else "found" if given["match"] else "not found"
        tally[outcome] = tally.get(outcome, 0) + 1
        if not same:
            differences.append("pattern %r in %r: Python %s%s, here %s" % (
                pattern, name, expected, " and has a name" if unsupported else "", given))
    if long_searches * 1_000 > count:
        differences.append("%d of %d searches took too many steps" % (long_searches, count))
    print("%d searches: %s" % (count, ", ".join("%s %d" % item for item in sorted(tally.items()))))
    return differences


def exclusion_rules(rng):
    words = ["bias", "norm", "kernel", "mlp", "attn", "lora_a", "b", "\\d", "ab?c", "[kq]_proj", "(?:wi|wo)", "q|k",
             "layers/\\d+", "."]

    def word():
        return rng.choice(words)

    def body():
        inner = word() if rng.random() < 0.7 else "(%s|%s)" % (word(), word())
        return rng.choice(["", ".*", ".*", ".*"]) + inner + rng.choice(["", "", "$", "\\Z"])

    def exclusion():
        heads = "".join("(?!%s)" % body() for _ in range(rng.choice((1, 1, 1, 2))))
        rest = rng.choice(["", ".*", ".*", "%s"]) if rng.random() < 0.5 else ".*%s" + rng.choice(["", "$"])
        return "^" + heads + (rest.replace("%s", "(?:%s)" % word()))

    rules = []
    for _ in range(rng.choice((1, 2, 2, 3))):
        rules.append(exclusion() if rng.random() < 0.6 else word())
    if rng.random() < 0.5:
        rules.append(".*")
    return rules


def compare_exclusions(probe, count, seed):
    """Every name must find the same rule by the rewritten patterns in Python as by the original ones."""
    rng = random.Random(seed)
    pieces = ["bias", "norm", "kernel", "mlp", "attn", "lora_a", "b", "7", "abc", "ac", "q_proj", "wi", "q", "k", "layers/",
              "/", "_", "x", "\n", "\u00e9", "\u0663", "bia", "ker", "kernelkernel"]
    names = ["".join(rng.choice(pieces) for _ in range(rng.randrange(6))) for _ in range(150)]
    lists = [exclusion_rules(rng) for _ in range(count)]
    answers = ask(probe, [{"rules": rules} for rules in lists])
    refused = 0
    differences = []
    for rules, given in zip(lists, answers):
        if "refused" in given:
            refused += 1
            continue
        original = [(re.compile(pattern), i) for i, pattern in enumerate(rules)]
        rewritten = [(re.compile(pattern), origin) for pattern, origin in given["rules"]]
        for name in names:
            expected = next((i for pattern, i in original if pattern.search(name)), None)
            found = next((origin for pattern, origin in rewritten if pattern.search(name)), None)
            if expected != found:
                differences.append("rules %r on %r: rule %s, rewritten as %r: rule %s" % (
                    rules, name, expected, given["rules"], found))
                break
    print("%d lists of rules with exclusions: %d rewritten, %d refused" % (count, count - refused, refused))
    if refused * 4 > count:
        differences.append("more than a quarter of the lists was refused, such as %s" %
                           next(given["refused"] for given in answers if "refused" in given))
    return differences


def ask(probe, questions):
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    run = subprocess.run([probe], input=lines, stdout=subprocess.PIPE, check=True, text=True, encoding="utf-8")
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    if len(answers) != len(questions):
        sys.exit("%d questions, %d answers" % (len(questions), len(answers)))
    return answers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=20260109)
    arguments = parser.parse_args()
    differences = compare_searches(arguments.probe, arguments.count, arguments.seed)
    differences += compare_exclusions(arguments.probe, max(1, arguments.count // 100), arguments.seed)
    for difference in differences[:40]:
        print(difference)
    if differences:
        sys.exit("%d differences" % len(differences))


if __name__ == "__main__":
    main()
