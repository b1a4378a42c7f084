"""Each documented flag is tried: a flag of a program's help or manual is used by a test or by a block of the docs that a
test runs.

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


def flags_of_manual(page):
    """The flags that one page of the manual has an entry for."""
    found = set()
    for label in MANUAL.findall(page):
        label = label.replace("\\-", "-")
        if label.startswith("-"):
            found |= set(FLAG.findall(label))
    return found


def documented(folder):
    """The documented flags, each with the pages that have it."""
    pages = {}
    with tempfile.TemporaryDirectory() as manual:
        subprocess.run([folder / "shardmesh", "man", "--dir", manual], check=True, stdout=subprocess.DEVNULL)
        for path in sorted(pathlib.Path(manual).glob("*.1")):
            for flag in flags_of_manual(path.read_text()):
                pages.setdefault(flag, []).append(path.stem)
    for name in SERVERS:
        text = subprocess.run([folder / name, "--help"], check=True, capture_output=True, text=True).stdout
        for line in text.splitlines():
            if re.match(r"^\s*(-\w,? ?)?--", line):
                for flag in FLAG.findall(line.strip().split("  ")[0]):
                    pages.setdefault(flag, []).append(name)
    return pages


def used_flags(texts):
    return {flag for text in texts for flag in FLAG.findall(text)}


def texts_of_tests():
    this = pathlib.Path(__file__).name
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix in (".cc", ".h", ".sh", ".py") and path.name != this:
            yield path.read_text(errors="replace")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield "\n".join(FENCE.findall(path.read_text()))
    # Manifests of which a test runs the programs with all arguments.
    for path in sorted((ROOT / "deploy").rglob("*.yaml")):
        yield path.read_text()


def faults(pages, used):
    return [f"{flag} of {', '.join(where[:3])}: no test uses it" for flag, where in sorted(pages.items())
            if flag not in used | NOT_LOOKED_FOR]


def self_test():
    page = "\\fB\\-h,\\-\\-help\\fR\n\\fB\\-\\-as\\fR TEXT\nsee \\fB\\-\\-other\\fR\n\\fB\\-q,\\-\\-quiet,\\-\\-still\\fR\n"
    assert flags_of_manual(page) == {"--help", "--as", "--quiet", "--still"}, flags_of_manual(page)
    assert faults({"--as": ["put"], "--help": ["put"]}, used_flags(["put --as-is x"])) == ["--as of put: no test uses it"]
    assert not faults({"--as": ["put"]}, used_flags(['Run({"put", "--as", "x"})']))
    print("planted faults are found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    pages = documented(pathlib.Path(sys.argv[1]))
    if len(pages) < 100:
        sys.exit(f"only {len(pages)} flags are documented: the pages cannot be read")
    found = faults(pages, used_flags(texts_of_tests()))
    print(f"{len(pages)} flags, {len(found)} of them unused")
    if found:
        sys.exit("\n".join(found))
    return None


if __name__ == "__main__":
    main()
