"""Runs the commands that README.md and the pages of docs/ show.

    run_blocks.py BIN_FOLDER PAGE   run the blocks of one page, such as docs/tutorial.md, with the programs of BIN_FOLDER
    run_blocks.py --check PAGE...   check the markup of all pages, and that PAGE... are those that have commands
    run_blocks.py --self-test       show that planted faults are found

Each page gets one shell and one new folder, which has docs/, deploy/ and build/release/bin as a clone has. The blocks run in
order. The first command that fails ends the page.

    ```sh          Commands. Each of them has to succeed. Their output is not compared.
    ```console     A session. A line after `$ ` is a command; a backslash at its end carries it on. The lines below it are its
                   output, on both streams. A command without lines below it only has to succeed. A command whose last line
                   is `shardmesh: ... (REASON)` has to fail.

A line of output is compared as it stands, with these exceptions:

    ...            Any text of one line; on a line of its own, any number of lines.
    volatile parts A time, a duration, a rate, a port of 127.0.0.1, a pid, a revision, an id of 32 hexadecimal digits, a number
                   of ten or more digits and the folder /run/user/N match another value of their kind.
    columns        Two or more blanks match any number of blanks.
    progress       Lines such as `loading 28%  26.0 MB of 90.9 MB`, which a terminal replaces by the next, are left out.

Comments of the page that a reader does not see:

    <!-- not run: REASON -->   The line before a fence. The block cannot run in a test.
    <!-- file: NAME -->        The line before a fence. The block is written to the file NAME.
    <!-- run:                  The lines up to `-->` are commands, run as an ```sh block is: what the page takes for granted,
                               and checks of what a block left.
"""

import collections
import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MAX_PRINTED = 40  # lines of an output
PAGE_SECONDS = 150  # below the limit of ctest, which would leave a cluster behind

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# kind: "sh", "console", "hidden", "file" or "skipped"; note: the reason of a skipped block, the name of a file.
Block = collections.namedtuple("Block", "kind line lines note")
# shown: the lines of output, or none.
Command = collections.namedtuple("Command", "line text shown")

FENCE = re.compile(r"( *)```(.*)")
NOT_RUN = re.compile(r" *<!-- not run:(.*)-->")
FILE = re.compile(r" *<!-- file: (\S+) -->")
HIDDEN = re.compile(r" *<!-- run:")
# Commands outside of the blocks that are run.
COMMAND = re.compile(r"\s*(\$ \S|(shardmesh|shardmesh-coordinator|shardmesh-worker|kubectl|kustomize|docker|prometheus|\./dev) )")
PROGRESS = re.compile(r"\w+ +\d+%  .* of .*")
ERROR = re.compile(r"shardmesh: .*\([A-Z_]+\)")

VOLATILE = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in {
    "anything": r"\.\.\.",
    "time": r"\d{4}-\d\d-\d\dT[0-9:.]+Z|\d\d:\d\d:\d\d\.\d+",
    "rate": r"\b\d+(?:\.\d+)? (?:[kMGT]|[KMGT]i)?B/s",
    "duration": r"\b\d+(?:\.\d+)? ?(?:ns|us|ms|s)\b",
    "pid_column": r"\b\d+ +(?=127\.0\.0\.1:\d)",
    "address": r"\b127\.0\.0\.1:\d+",
    "pid": r"\bpid \d+",
    "revision": r"\brevision[= ]\d+",
    "id": r"\b[0-9a-f]{32}\b",
    "large": r"\b\d{10,}\b",
    "folder": r"/run/user/\d+",
    "columns": r" {2,}",
}.items()))
MATCHING = {
    "anything": ".*", "time": r"[0-9T:.-]+Z?", "rate": r"\d+(?:\.\d+)? (?:[kMGT]|[KMGT]i)?B/s",
    "duration": r"(?:\d+(?:\.\d+)? ?(?:ns|us|ms|s|m|h))+", "pid_column": r"\d+ +", "address": r"127\.0\.0\.1:\d+",
    "pid": r"pid \d+", "revision": r"revision[= ]\d+", "id": "[0-9a-f]{32}", "large": r"\d{10,}", "folder": r"/\S+?/run", "columns": " +",
}


def blocks_of(page):
    """The blocks of a page's text, and what is wrong with its markup, a sentence each."""
    blocks, faults = [], []
    lines = page.splitlines()
    at = 0
    marker = None  # (kind, note, line) of the comment in the line before

    def take_until(end):
        nonlocal at
        begin = at
        while at < len(lines) and not end(lines[at]):
            at += 1
        if at == len(lines):
            faults.append(f"line {begin}: is not closed")
        at += 1
        return lines[begin:at - 1]

    while at < len(lines):
        line = lines[at]
        at += 1
        number = at
        before, marker = marker, None
        fence = FENCE.fullmatch(line)
        if before and not fence:
            faults.append(f"line {before[2]}: the comment is not on the line before a fence")
        if fence:
            indent, language = len(fence[1]), fence[2]
            content = [each[indent:] for each in take_until(lambda each: each.strip() == "```")]
            if language in ("sh", "console"):
                if before and before[0] == "file":
                    faults.append(f"line {number}: commands are no file")
                kind, note = ("skipped", before[1]) if before and before[0] == "skipped" else (language, "")
                blocks.append(Block(kind, number, content, note))
                if language == "console" and not (content and content[0].startswith("$ ")):
                    faults.append(f"line {number}: a session begins with a command")
                continue
            if before and before[0] == "skipped":
                faults.append(f"line {before[2]}: the block below is of no kind that is run")
            if before and before[0] == "file":
                blocks.append(Block("file", number, content, before[1]))
            faults += [f"line {number + i}: a command in a block that is not run: {each.strip()}"
                       for i, each in enumerate(content, 1) if COMMAND.match(each)]
        elif NOT_RUN.fullmatch(line):
            reason = NOT_RUN.fullmatch(line)[1].strip()
            if not reason:
                faults.append(f"line {number}: gives no reason why the block is not run")
            marker = ("skipped", reason, number)
        elif FILE.fullmatch(line):
            marker = ("file", FILE.fullmatch(line)[1], number)
        elif HIDDEN.fullmatch(line):
            blocks.append(Block("hidden", number, take_until(lambda each: each.strip() == "-->"), ""))
        elif "<!--" in line:
            faults.append(f"line {number}: a comment that is none of `not run: REASON`, `file: NAME` and `run:`")
        elif line.startswith("    ") and COMMAND.match(line):
            faults.append(f"line {number}: a command outside of a block: {line.strip()}")
    return blocks, faults


def commands_of(block):
    """The commands of a session."""
    commands = []
    is_open = False  # the command goes on in the next line
    for number, line in enumerate(block.lines, block.line + 1):
        if is_open:
            commands[-1] = commands[-1]._replace(text=commands[-1].text + "\n" + line)
        elif line.startswith("$ "):
            commands.append(Command(number, line[2:], []))
        else:
            commands[-1].shown.append(line)
            continue
        is_open = line.endswith("\\")
    for command in commands:
        while command.shown and not command.shown[-1].strip():
            command.shown.pop()
    return commands


def pattern_of(shown):
    """A regular expression for the output of which a page shows these lines."""
    pattern = ""
    for line in shown:
        line = line.strip()
        if line == "...":
            pattern += r"(?:.*\n)*"
            continue
        end = 0
        for found in VOLATILE.finditer(line):
            pattern += re.escape(line[end:found.start()]) + MATCHING[found.lastgroup]
            end = found.end()
        pattern += re.escape(line[end:]) + r"\n"
    return pattern


def matches(shown, output):
    lines = [line.strip() for line in output.splitlines() if not PROGRESS.fullmatch(line)]
    while lines and not lines[-1]:
        lines.pop()
    return re.fullmatch(pattern_of(shown), "".join(line + "\n" for line in lines)) is not None


def end_of(output):
    """The last lines of an output."""
    return "\n".join(output.splitlines()[-MAX_PRINTED:])


def difference(shown, output):
    """The first shown line that the output lacks, and the output's first lines."""
    least = next((line for end, line in enumerate(shown, 1)
                  if not re.match(pattern_of(shown[:end]), "".join(each.strip() + "\n" for each in output.splitlines()
                                                                    if not PROGRESS.fullmatch(each)))), "further lines")
    lines = output.splitlines()
    return "\n".join([f"    not there: {least.strip()}", *(f"    | {line}" for line in lines[:MAX_PRINTED]),
                      *(["    ..."] if len(lines) > MAX_PRINTED else [])])


class Ended(Exception):
    """The page's shell cannot go on; the text says why."""


# Reads `HOW FILE` lines from the descriptor COMMANDS, runs each file in this shell and writes its status to ANSWERS.
DRIVER = r"""
while read -r -u COMMANDS blocks_how blocks_file; do
  blocks_status=0
  if [[ $blocks_how == may-fail ]]; then
    source "$blocks_file" >"$blocks_file.out" 2>&1 </dev/null COMMANDS<&- ANSWERS>&- || blocks_status=$?
  else
    source "$blocks_file" >"$blocks_file.out" 2>&1 </dev/null COMMANDS<&- ANSWERS>&-
  fi
  echo "$blocks_status" >&ANSWERS
done
"""


def await_end_of_group(group, seconds=2):
    """Waits until no process of a killed group is left: the kernel ends them one after the other."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)


class Shell:
    """The shell of one page, in a new folder. `stop` ends all that the page began."""

    def __init__(self, programs, seconds=PAGE_SECONDS):
        self._programs = programs
        self._deadline = time.monotonic() + seconds
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="blocks-"))
        self.clone = self._folder / "clone"
        self._process = None
        self._count = 0
        self._answers = b""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self):
        for name in ("run", "tmp", "home", "files", "clone/build/release"):
            (self._folder / name).mkdir(mode=0o700, parents=True)
        for name in ("docs", "deploy"):  # copies, as a page may write into them
            shutil.copytree(ROOT / name, self.clone / name, symlinks=True)
        (self.clone / "build/release/bin").symlink_to(self._programs)
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDMESH_")}
        self._environment.update(
            PATH=f"{self._programs}:{os.environ['PATH']}", XDG_RUNTIME_DIR=str(self._folder / "run"),
            TMPDIR=str(self._folder / "tmp"), HOME=str(self._folder / "home"), LANG="C.UTF-8")
        commands, self._commands = os.pipe()
        self._answer, answers = os.pipe()
        driver = DRIVER.replace("COMMANDS", str(commands)).replace("ANSWERS", str(answers))
        with open(self._folder / "shell.log", "wb") as log:
            self._process = subprocess.Popen(
                ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", driver], cwd=self.clone, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(commands, answers), start_new_session=True)
        os.close(commands)
        os.close(answers)

    def run(self, text, may_fail=False):
        """Runs the text; returns its exit status and output. Raises Ended if it fails and may not."""
        self._count += 1
        file = self._folder / "files" / str(self._count)
        file.write_text(text + "\n", encoding="utf-8")
        os.write(self._commands, f"{'may-fail' if may_fail else 'run'} {file}\n".encode())
        status = self._read_answer()
        output = pathlib.Path(f"{file}.out")
        printed = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        if status is None:
            raise Ended(f"exit status {self._process.wait()}\n{end_of(printed)}")
        if status == "late":
            raise Ended(f"the page took more than its time\n{end_of(printed)}")
        return status, printed

    def finish(self):
        """Ends the shell as the end of its input does, so that its traps run."""
        os.close(self._commands)
        self._commands = None
        try:
            status = self._process.wait(max(1, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Ended("the shell does not end") from None
        if status != 0:
            raise Ended(f"at its end: exit status {status}\n" +
                        (self._folder / "shell.log").read_text(encoding="utf-8", errors="replace"))

    def _read_answer(self):
        """The status, None if the shell has ended, or "late"."""
        while b"\n" not in self._answers:
            left = self._deadline - time.monotonic()
            if left <= 0 or not select.select([self._answer], [], [], left)[0]:
                return "late"
            piece = os.read(self._answer, 100)
            if not piece:
                return None
            self._answers += piece
        line, self._answers = self._answers.split(b"\n", 1)
        return int(line)

    def stop(self):
        """Stops clusters, the shell's process group and what else has the page's environment. Returns what is wrong."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            return self._stop()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _stop(self):
        faults = []
        for record in sorted((self._folder / "run/shardmesh").glob("*/cluster.json")):
            try:
                down = subprocess.run([self._programs / "shardmesh", "down", "--cluster", record.parent.name],
                                      env=self._environment, capture_output=True, text=True, timeout=60, check=False)
                if down.returncode != 0:
                    faults.append(f"the cluster {record.parent.name} was not stopped: {down.stderr.strip()}")
            except (OSError, subprocess.TimeoutExpired) as error:
                faults.append(f"the cluster {record.parent.name} was not stopped: {error}")
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait()
            await_end_of_group(self._process.pid)
            for descriptor in (self._commands, self._answer):
                if descriptor is not None:
                    os.close(descriptor)
            self._process = None
        faults += [f"left a process behind: {name}" for name in self._kill_rest()]
        shutil.rmtree(self._folder, ignore_errors=True)
        return faults

    def _kill_rest(self):
        mark = f"XDG_RUNTIME_DIR={self._folder / 'run'}".encode()
        killed = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if mark not in (process / "environ").read_bytes().split(b"\0"):
                    continue
                name = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if name:  # a process that the kill above has just ended has no name any more
                    os.kill(int(process.name), signal.SIGKILL)
                    killed.append(name)
            except OSError:
                continue
        return killed


def run_block(shell, block, faults):
    """Runs one block. Adds an output that differs to `faults`; raises Ended for a failure."""
    if block.kind == "file":
        file = shell.clone / block.note
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        return
    if block.kind in ("sh", "hidden"):
        try:
            shell.run("\n".join(block.lines))
        except Ended as ended:
            raise Ended(f"line {block.line}: the block failed: {ended}") from None
        return
    for command in commands_of(block):
        has_to_fail = bool(command.shown) and ERROR.fullmatch(command.shown[-1]) is not None
        try:
            status, output = shell.run(command.text, may_fail=has_to_fail)
        except Ended as ended:
            raise Ended(f"line {command.line}: `{command.text}` failed: {ended}") from None
        if has_to_fail and status == 0:
            faults.append(f"line {command.line}: `{command.text}` did not fail as shown\n{output}")
        elif command.shown and not matches(command.shown, output):
            faults.append(f"line {command.line}: `{command.text}` printed other lines than shown\n" +
                          difference(command.shown, output))


def run_page(page, programs, seconds=PAGE_SECONDS):
    """Runs the blocks of a page's text. Returns the numbers of blocks that ran and that did not, and what is wrong."""
    blocks, faults = blocks_of(page)
    ran = 0
    skipped = [block for block in blocks if block.kind == "skipped"]
    if faults or not any(block.kind in ("sh", "console") for block in blocks):
        return ran, len(skipped), faults
    shell = Shell(programs, seconds)
    try:
        for block in blocks:
            if block.kind != "skipped":
                run_block(shell, block, faults)
                ran += block.kind in ("sh", "console")
        shell.finish()
    except Ended as ended:
        faults.append(str(ended))
    finally:
        faults += shell.stop()
    return ran, len(skipped), faults


def check_pages(named):
    """What is wrong with the markup of all pages, and with the list of those that have commands."""
    found, with_commands = [], set()
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        name = str(file.relative_to(ROOT))
        blocks, faults = blocks_of(file.read_text(encoding="utf-8"))
        found += [f"{name}: {fault}" for fault in faults]
        if any(block.kind in ("sh", "console", "skipped") for block in blocks):
            with_commands.add(name)
    found += [f"{name}: has commands, but no test" for name in sorted(with_commands - set(named))]
    found += [f"{name}: has a test, but no commands" for name in sorted(set(named) - with_commands)]
    return found


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        programs = pathlib.Path(folder)
        # Stands for the program: its `up` leaves a process of a session of its own and a record, its `down` ends that.
        (programs / "shardmesh").write_text("""#!/usr/bin/env bash
record=$XDG_RUNTIME_DIR/shardmesh/default/cluster.json
case $1 in
  up)
    mkdir -p "$(dirname "$record")"
    setsid sleep 1234 >/dev/null 2>&1 </dev/null &
    echo $! >"$record"
    ;;
  down)
    pid=$(cat "$record")
    kill "$pid"
    while grep -q '^State:[[:space:]]*[^ZX]' "/proc/$pid/status" 2>/dev/null; do sleep 0.01; done
    rm "$record"
    echo down >>%s/calls
    ;;
  fail) echo "shardmesh: it went wrong after 12 ms (NOT_FOUND)" >&2; exit 1 ;;
esac
""" % shlex.quote(folder))
        (programs / "shardmesh").chmod(0o755)

        def run(text, seconds=20):
            return run_page(text.replace("'''", "```"), programs, seconds)

        good = """Title
<!-- run:
echo hidden > hidden
-->
<!-- file: sub/rules.yaml -->
'''yaml
rules: []
'''
'''sh
value=kept   # the shell stays
cd sub
'''
   '''console
   $ echo "$value in" \\
       3 ms  # carried on
   kept in 27 ms
   $ cat rules.yaml ../hidden
   rules: []
   hidden
   $ printf '%s\\n' one two three "a   b 127.0.0.1:80 $(printf 'a%.0s' {1..32})"
   one
   ...
   a  b 127.0.0.1:4711 0123456789abcdef0123456789abcdef
   $ echo 'loading 28%  26.0 MB of 90.9 MB, 142 MB/s'; echo done
   done
   $ shardmesh fail
   shardmesh: it ... after 3 ms (NOT_FOUND)

   $ shardmesh up
   '''
<!-- not run: needs another host -->
'''sh
false
'''
"""
        assert run(good) == (2, 1, []), run(good)
        assert (programs / "calls").read_text() == "down\n", "the page's cluster was not stopped"
        planted = [
            ("'''sh\nfalse\ntrue\n'''\n", "line 1: the block failed: exit status 1"),
            ("'''sh\nfalse | true\n'''\n", "line 1: the block failed"),
            ("'''sh\necho $no_such\n'''\n", "line 1: the block failed"),
            ("'''sh\nexit 0\n'''\n", "line 1: the block failed: exit status 0"),
            ("'''console\n$ echo one\none\n$ false\n'''\n", "line 4: `false` failed: exit status 1"),
            ("'''console\n$ echo one\ntwo\n'''\n", "line 2: `echo one` printed other lines than shown"),
            ("'''console\n$ echo 3 tensors\n4 tensors\n'''\n", "line 2: `echo 3 tensors` printed other"),
            ("'''console\n$ echo one; echo two\none\n'''\n", "line 2: `echo one; echo two` printed other"),
            ("'''console\n$ true\nshardmesh: it is wrong (NOT_FOUND)\n'''\n", "line 2: `true` did not fail as shown"),
            ("'''console\n$ shardmesh fail\nshardmesh: it is wrong (NOT_FOUND)\n'''\n", "line 2: `shardmesh fail` printed other"),
            ("'''console\none\n'''\n", "line 1: a session begins with a command"),
            ("'''sh\ntrue\n", "line 1: is not closed"),
            ("<!-- run:\ntrue\n", "line 1: is not closed"),
            ("<!-- run:\nfalse\n-->\n'''sh\ntrue\n'''\n", "line 1: the block failed"),
            ("<!-- not run: -->\n'''sh\ntrue\n'''\n", "line 1: gives no reason"),
            ("<!-- not run -->\n'''sh\ntrue\n'''\n", "line 1: a comment that is none of"),
            ("<!-- not run: no host -->\n\n'''sh\ntrue\n'''\n", "line 1: the comment is not on the line before a fence"),
            ("<!-- not run: no host -->\n'''yaml\na: b\n'''\n", "line 1: the block below is of no kind that is run"),
            ("Text:\n\n    $ shardmesh status\n", "line 3: a command outside of a block"),
            ("Text:\n\n    shardmesh status\n", "line 3: a command outside of a block"),
            ("'''\nkubectl get pods\n'''\n", "line 2: a command in a block that is not run"),
            ("'''sh\nsetsid sleep 4321 >/dev/null 2>&1 </dev/null &\nsleep 0.2\n'''\n", "left a process behind: sleep 4321"),
            ("'''sh\ntrap 'exit 3' EXIT\n'''\n", "at its end: exit status 3"),
        ]
        for text, expected in planted:
            found = run(text)[2]
            assert any(fault.startswith(expected) for fault in found), f"{expected}: {found}"
        late = run("'''sh\nshardmesh up\nsleep 600\n'''\n", seconds=5)[2]
        assert late == ["line 1: the block failed: the page took more than its time\n"], late
        assert (programs / "calls").read_text() == "down\n" * 2, "the cluster of a late page was not stopped"
    assert any("no/such.md: has a test, but no commands" in fault for fault in check_pages(["no/such.md"]))
    assert any("README.md: has commands, but no test" in fault for fault in check_pages([]))


def main(arguments):
    if arguments == ["--self-test"]:
        self_test()
        return 0
    if arguments[:1] == ["--check"]:
        found = check_pages(arguments[1:])
        for fault in found:
            print(fault)
        return 1 if found else 0
    if len(arguments) != 2:
        print(__doc__)
        return 2
    programs, name = pathlib.Path(arguments[0]).resolve(), arguments[1]
    for number in ENDING:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    page = (ROOT / name).read_text(encoding="utf-8")
    ran, skipped, found = run_page(page, programs)
    for block in blocks_of(page)[0]:
        if block.kind == "skipped":
            print(f"{name}: line {block.line}: not run: {block.note}")
    for fault in found:
        print(f"{name}: {fault}")
    print(f"{name}: {ran} blocks ran, {skipped} did not")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
