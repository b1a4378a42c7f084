"""Runs benchmarks by id or group and prints what they measured as a table.

    run.py [ID|GROUP] [--bin FOLDER] [--json FILE]

bench/benchmarks.txt says which command measures what. One command may measure several rows: the ids of rows, such as C1
or R3-million, stand for the commands that measure them, here C1-C2-C3 and R2-R3. Rows of one command that share no such
id, such as K1-first and K5-attention, are listed with a comma between them. Exit code 1 if a benchmark fails to run; a
target that is missed is a result, not a failure.
"""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEYS = ["id", "what", "ours", "peer", "unit", "ratio", "target", "met"]
SPREAD = "spread"  # beside them, where a result tells it
MET = {True: "yes", False: "no", None: "not comparable"}


def listed():
    """The list of groups, and the command, by id."""
    lines = (ROOT / "bench/benchmarks.txt").read_text(encoding="utf-8").splitlines()
    rows = (line.split(maxsplit=2) for line in lines if line and not line.startswith("#"))
    return {key: (groups.split(","), command) for key, groups, command in rows}


def choose(commands, name):
    """The ids of the commands that a name stands for: an id, a group, a row whose name begins with an id (the longest
    one counts), or else a row whose number is part of an id."""
    ids = {key: key.split(",") for key in commands}
    if name is None or any(name in groups for groups, _ in commands.values()):
        return [key for key, (groups, _) in commands.items() if name is None or name in (*ids[key], *groups)]
    parts = name.split("-")
    for count in range(len(parts), 0, -1):
        prefix = "-".join(parts[:count])
        if chosen := [key for key in commands if prefix in ids[key]]:
            return chosen
    return [key for key in commands if any(parts[0] in each.split("-") for each in ids[key])]


def measure(command):
    """Runs a command and returns its results; what it says beside them goes through to standard error."""
    process = subprocess.run(shlex.split(command), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    results = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    if not results:
        raise ValueError("it printed no result")
    for result in results:
        if sorted(set(result) - {SPREAD}) != sorted(KEYS):
            raise ValueError(f"a result has the keys {', '.join(sorted(result))} instead of {', '.join(sorted(KEYS))}")
    return results


def cell(key, value):
    if key == "met":
        return MET[value]
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def print_table(results):
    columns = KEYS + ([SPREAD] if any(SPREAD in result for result in results) else [])
    rows = [columns] + [[cell(key, result.get(key)) for key in columns] for result in results]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id", nargs="?", help="the benchmark, row or group of benchmarks to run; all of them if not given")
    parser.add_argument("--bin", default="build/release/bin", help="folder of the benchmark programs")
    parser.add_argument("--json", type=pathlib.Path, help="also write the results, as a list, to this file")
    arguments = parser.parse_args()

    commands = listed()
    chosen = choose(commands, arguments.id)
    if not chosen:
        groups = dict.fromkeys(group for groups, _ in commands.values() for group in groups)
        parser.error(f"no benchmark {arguments.id}; there are {', '.join(commands)}, in the groups {', '.join(groups)}")
    results, failed = [], False
    for name in chosen:
        try:
            results += measure(commands[name][1].format(bin=arguments.bin))
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
    if results:
        print_table(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
