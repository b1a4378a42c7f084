"""Each documented flag is tried: a flag of a program's help or manual is used by a test or by a block of the docs that a
test runs. A flag of a command of `shardmesh` is used with that command: its words stand before the flag in the same
statement or line.

    documented_flags_test.py BIN        BIN: the folder of the programs
    documented_flags_test.py --self-test  show that a flag that nobody uses is found

Flags that only print help are not looked for. What a flag does is checked where it is used.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SERVERS = ["shardmesh-coordinator", "shardmesh-worker"]
NOT_LOOKED_FOR = {"--help", "--version"}
MANUAL = re.compile(r"^\\fB([^\n]*)\\fR", re.MULTILINE)
FLAG = re.compile(r"--[a-z][a-z0-9-]*")
FENCE = re.compile(r"^```(?:bash|sh|console|yaml)?[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


# The string literals of a source, and what ends a command among them.
CPP = re.compile(r'"(?:[^"\\\n]|\\.)*"|[;}]')
PYTHON = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[\];}]|\n\s*\n')
LITERALS = {".cc": CPP, ".h": CPP, ".py": PYTHON}
COMMAND_END = re.compile(r"[;|]|&&|(?<!\\)\n")
WORD = re.compile(r"(?<![\w-])(?:--[a-z][a-z0-9-]*|[a-z][a-z-]*(?![\w-]))")
COMMON = ".SH COMMON OPTIONS"

# Flags that this test does not find with their command, and why. A row that is not needed fails, so that the table only
# shrinks.
KNOWN_GAPS = {
    "admin check": {"--cluster-of": "cli_cluster_test.cc adds it to the command in another statement",
                    "--ranks": "cli_usage_test.cc adds it to the command in another statement"},
    "admin quarantine drop": {"--even-partly": "no test uses it"},
    "man": {"--dir": "this file uses it"},
}


def flags_of_manual(page):
    """The flags that one page of the manual has an entry for."""
    found = set()
    for label in MANUAL.findall(page):
        label = label.replace("\\-", "-")
        if label.startswith("-"):
            found |= set(FLAG.findall(label))
    return found


def documented(folder):
    """The documented flags, each with the pages that have it, and the flags of each command that are not common to all:
    {("admin", "check"): {"--name"}}."""
    pages = {}
    commands = {}
    with tempfile.TemporaryDirectory() as manual:
        subprocess.run([folder / "shardmesh", "man", "--dir", manual], check=True, stdout=subprocess.DEVNULL)
        for path in sorted(pathlib.Path(manual).glob("*.1")):
            page = path.read_text()
            for flag in flags_of_manual(page):
                pages.setdefault(flag, []).append(path.stem)
            command = re.search(r"^\\fBshardmesh ([a-z \\-]+)\\fR", page, re.MULTILINE)
            if command:
                words = tuple(command[1].replace("\\-", "-").split())
                commands[words] = flags_of_manual(page.split(COMMON)[0]) - NOT_LOOKED_FOR
    # `array put` is `put` under another name.
    commands = {words: flags for words, flags in commands.items()
                if words[0] != "array" or commands.get(words[1:]) != flags}
    for name in SERVERS:
        text = subprocess.run([folder / name, "--help"], check=True, capture_output=True, text=True).stdout
        for line in text.splitlines():
            if re.match(r"^\s*(-\w,? ?)?--", line):
                for flag in FLAG.findall(line.strip().split("  ")[0]):
                    pages.setdefault(flag, []).append(name)
    return pages, commands


def used_flags(texts):
    return {flag for text in texts for flag in FLAG.findall(text)}


def lines_of(text, suffix):
    """The words of each command line of a text, roughly: of string literals up to the end of a list or statement in a
    source, of a line elsewhere."""
    if suffix not in LITERALS:
        for line in COMMAND_END.split(text):
            yield WORD.findall(line)
        return
    words = []
    for piece in LITERALS[suffix].findall(text):
        if piece[0] in "\"'":
            words += WORD.findall(piece)
        else:
            yield words
            words = []
    yield words


def used_with_commands(texts, commands):
    """The pairs of a command and a flag that stands after it in one command line."""
    used = set()
    longest = max(map(len, commands))
    for text, suffix in texts:
        for words in lines_of(text, suffix):
            before = []  # the commands so far
            i = 0
            while i < len(words):
                length = next((n for n in range(longest, 0, -1) if tuple(words[i:i + n]) in commands), 0)
                if length:
                    before.append(tuple(words[i:i + length]))
                elif words[i].startswith("--"):
                    used |= {(command, words[i]) for command in before}
                i += max(length, 1)
    return used


def faults_of_commands(commands, used, gaps):
    needed = {(command, flag) for command, flags in commands.items() for flag in flags}
    missing = needed - used
    known = {(tuple(command.split()), flag) for command, flags in gaps.items() for flag in flags}
    unused = [f"{flag} of {' '.join(command)}: no test uses it with this command"
              for command, flag in sorted(missing - known)]
    return unused + [f"{flag} of {' '.join(command)}: a test uses it, or it is gone; take it out of KNOWN_GAPS"
                     for command, flag in sorted(known - missing)]


def texts_of_tests():
    """Each text with the suffix of its file."""
    this = pathlib.Path(__file__).name
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix in (".cc", ".h", ".sh", ".py") and path.name != this:
            yield path.read_text(errors="replace"), path.suffix
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield "\n".join(FENCE.findall(path.read_text())), path.suffix
    # Manifests of which a test runs the programs with all arguments.
    for path in sorted((ROOT / "deploy").rglob("*.yaml")):
        yield path.read_text(), path.suffix


def faults(pages, used):
    return [f"{flag} of {', '.join(where[:3])}: no test uses it" for flag, where in sorted(pages.items())
            if flag not in used | NOT_LOOKED_FOR]


def self_test():
    page = "\\fB\\-h,\\-\\-help\\fR\n\\fB\\-\\-as\\fR TEXT\nsee \\fB\\-\\-other\\fR\n\\fB\\-q,\\-\\-quiet,\\-\\-still\\fR\n"
    assert flags_of_manual(page) == {"--help", "--as", "--quiet", "--still"}, flags_of_manual(page)
    assert faults({"--as": ["put"], "--help": ["put"]}, used_flags(["put --as-is x"])) == ["--as of put: no test uses it"]
    assert not faults({"--as": ["put"]}, used_flags(['Run({"put", "--as", "x"})']))
    commands = {("put",): {"--as"}, ("catalog", "put"): {"--as", "--strict"}}
    for text, suffix, expected in [
            ('Run({"put", x, "--as", "y"});', ".cc", {(("put",), "--as")}),
            ('Run({"catalog", "put", x, StrCat("--strict=", y)});', ".cc", {(("catalog", "put"), "--strict")}),
            ('{{"put", "x"}, {"ls", "--as"}}', ".cc", set()),
            ("run('put', x)\n\nrun('ls', '--as')", ".py", set()),
            ("$ shardmesh --watch put x \\\n  --as y\n$ ls --strict", ".md", {(("put",), "--as")}),
            ("shardmesh put x | ls --as", ".sh", set()),
            ('Run({"input", "--as"}); Run({"put-it", "--as"});', ".cc", set())]:
        used = used_with_commands([(text, suffix)], commands)
        assert {pair for pair in used if pair[1] != "--watch"} == expected, (text, used)
    used = {(("put",), "--as"), (("catalog", "put"), "--as")}
    assert faults_of_commands(commands, used, {}) == ["--strict of catalog put: no test uses it with this command"]
    assert faults_of_commands(commands, used, {"catalog put": ["--strict"]}) == []
    assert len(faults_of_commands(commands, used, {"catalog put": ["--strict"], "put": ["--as"]})) == 1
    print("planted faults are found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    pages, commands = documented(pathlib.Path(sys.argv[1]))
    if len(pages) < 100 or len(commands) < 50:
        sys.exit(f"only {len(pages)} flags of {len(commands)} commands are documented: the pages cannot be read")
    texts = list(texts_of_tests())
    found = faults(pages, used_flags(text for text, _ in texts))
    found += faults_of_commands(commands, used_with_commands(texts, commands), KNOWN_GAPS)
    print(f"{len(pages)} flags, {sum(map(len, commands.values()))} pairs of command and flag, {len(found)} faults")
    if found:
        sys.exit("\n".join(found))
    return None


if __name__ == "__main__":
    main()
