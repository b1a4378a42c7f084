"""The command line on a terminal: progress bars, `--watch` and Ctrl-C. Elsewhere there are no bars and no escape
sequences.

    terminal_test.py BIN    BIN: the folder of the programs

Starts a cluster of its own in a new folder, and stops it.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import own_cluster
from own_cluster import SECONDS, Failed, expect

PAUSE_SECONDS = 1.3  # more than the time after which a bar is shown
ATTEMPTS = 8  # to pause a command in the middle of its work
CHECKPOINT = "128MiB"

REPAINT = "\033[H\033[2J"  # to the top, and clear
CLEAR_LINE = "\033[K"
ESCAPE = "\033"
BAR = r"\r{} \[(?=[# ]{{30}}\])#* *\] (\d+)%  [^\r\n]* of [^\r\n]*\033\[K"
RULES = "rules:\n- {pattern: '.*', spec: []}\n"


class Command:
    """A running command, of which some streams are a new terminal and others are pipes."""

    def __init__(self, arguments, environment, folder, terminal=("stdout", "stderr")):
        self.texts = {}  # by stream: "terminal", "stdout" or "stderr"
        self._open = {}  # descriptors to read, and their stream
        self._master = None
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        slave = None
        if terminal:
            self._master, slave = pty.openpty()
            self.resize(24, 80)
            streams.update({name: slave for name in ("stdin", *terminal)})
            self._open[self._master] = "terminal"
        try:
            self._process = subprocess.Popen(
                arguments, cwd=folder, env=environment, start_new_session=True,
                preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if terminal else None, **streams)
        finally:
            if slave is not None:
                os.close(slave)
        for name in ("stdout", "stderr"):
            pipe = getattr(self._process, name)
            if pipe is not None:
                self._open[pipe.fileno()] = name
        self.texts = {name: b"" for name in self._open.values()}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._master is not None:
            os.close(self._master)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def text(self, stream="terminal"):
        return self.texts[stream].decode("utf-8", errors="replace")

    def all_text(self):
        return "".join(self.text(stream) for stream in self.texts)

    def resize(self, rows, columns):
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys):
        os.write(self._master, keys)

    def signal(self, number):
        self._process.send_signal(number)

    def _read(self, seconds):
        for descriptor in select.select(list(self._open), [], [], max(0, seconds))[0]:
            try:
                piece = os.read(descriptor, 65536)
            except OSError:  # how a terminal ends
                piece = b""
            if piece:
                self.texts[self._open[descriptor]] += piece
            else:
                del self._open[descriptor]

    def read_until(self, condition, what):
        """Reads until the condition holds. Returns whether it did before the command ended."""
        end = time.monotonic() + SECONDS
        while not condition():
            if not self._open:
                return False
            expect(time.monotonic() < end, f"no {what} within {SECONDS} s, but:\n{self.all_text()!r}")
            self._read(0.05)
        return True

    def wait_for(self, condition, what):
        expect(self.read_until(condition, what), f"ended with no {what}, but:\n{self.all_text()!r}")

    def end(self):
        """Reads to the end. Returns the exit code."""
        self.read_until(lambda: False, "end of the output")
        try:
            return self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"the command does not end:\n{self.all_text()!r}") from None

    def pause(self, process=None):
        """Lets the work take longer than bars wait: a process stands still, this one if none is named. Output is read
        on, since a full terminal would stop the command. Not a wait for a result."""
        process = self._process.pid if process is None else process
        os.kill(process, signal.SIGSTOP)
        try:
            end = time.monotonic() + PAUSE_SECONDS
            while time.monotonic() < end:
                if self._open:
                    self._read(end - time.monotonic())
                else:
                    time.sleep(0.01)
        finally:
            os.kill(process, signal.SIGCONT)


class Test:
    """The programs, a folder, and a cluster in it."""

    def __init__(self, programs, folder):
        self.program = programs / "shardmesh"
        self.folder = folder
        self.cluster = f"terminal-{os.getpid()}"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDMESH_")}
        self.environment.update(XDG_RUNTIME_DIR=str(folder), TMPDIR=str(folder), HOME=str(folder), LANG="C.UTF-8",
                                TERM="xterm")

    def call(self, *arguments):
        """Runs a command to its end; it has to succeed."""
        done = subprocess.run([self.program, *arguments], cwd=self.folder, env=self.environment, capture_output=True,
                              text=True, timeout=2 * SECONDS, check=False)
        expect(done.returncode == 0, f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self, *arguments, terminal=("stdout", "stderr")):
        return Command([self.program, *arguments], self.environment, self.folder, terminal)

    @contextlib.contextmanager
    def running_cluster(self):
        try:
            self.call("up", "--cluster", self.cluster, "--mesh", "tp=2", "--write-root", str(self.folder), "--detach")
            yield
        finally:
            subprocess.run([self.program, "down", "--cluster", self.cluster], cwd=self.folder, env=self.environment,
                           capture_output=True, timeout=SECONDS, check=False)

    # Each of the following is one test.

    def watch_repaints_a_terminal_until_ctrl_c(self):
        with self.start("status", "--cluster", self.cluster, "--watch", "--interval", "100ms") as watch:
            for rows, columns in ((24, 80), (5, 20), (1, 1), (60, 200)):
                watch.resize(rows, columns)
                seen = watch.text().count(REPAINT)
                watch.wait_for(lambda seen=seen: watch.text().count(REPAINT) >= seen + 2, "repainting")
            watch.type(b"\x03")
            code = watch.end()
            expect(code == 0, f"Ctrl-C ends --watch with {code}")
            before, *answers = watch.text().split(REPAINT)
            expect(before == "", f"there is output before the first painting: {before!r}")
            for answer in answers[:-1]:
                expect("Coordinator at " in answer and "worker-1" in answer, f"an answer is not whole: {answer!r}")
                expect(ESCAPE not in answer, f"an answer has escape sequences: {answer!r}")

    def watch_of_a_pipe_has_no_escape_sequences(self):
        with self.start("status", "--cluster", self.cluster, "--watch", "--interval", "100ms", terminal=()) as watch:
            watch.wait_for(lambda: watch.text("stdout").count("Coordinator at ") >= 3, "third answer")
            watch.signal(signal.SIGINT)
            code = watch.end()
            expect(code == 0, f"SIGINT ends --watch with {code}")
            expect(ESCAPE not in watch.all_text(), f"escape sequences in a pipe: {watch.all_text()!r}")
            expect("\n\nCoordinator at " in watch.text("stdout"), "no empty line parts two answers")
            expect(watch.text("stderr") == "", f"on standard error: {watch.text('stderr')!r}")

    def make_checkpoint(self, *arguments, terminal=("stdout", "stderr")):
        """Runs make-checkpoint and pauses it while it writes. Yields the ended command of each attempt."""
        for attempt in range(ATTEMPTS):
            path = self.folder / f"made-{attempt}.safetensors"
            with self.start("make-checkpoint", "--out", path.name, "--size", CHECKPOINT, *arguments,
                            terminal=terminal) as command:
                command.read_until(lambda path=path: any(self.folder.glob(f"*{path.stem}*")), "file")
                command.pause()
                is_paused_in_time = not path.exists()
                code = command.end()
                expect(code == 0, f"make-checkpoint: exit code {code}\n{command.all_text()!r}")
                expect("Wrote made-" in command.all_text(), f"no result: {command.all_text()!r}")
                path.unlink()
                if is_paused_in_time:
                    yield command
        # A bar that is due with the last bytes may be gone from one attempt, not from all.

    def a_bar_shows_what_is_written(self):
        for command in self.make_checkpoint():
            shares = [int(share) for share in re.findall(BAR.format("writing"), command.text())]
            if shares:
                expect(shares == sorted(shares) and shares[-1] <= 100, f"the bar goes back: {shares}")
                expect(f"\r{CLEAR_LINE}Wrote made-" in command.text(), f"the bar stays: {command.text()[-200:]!r}")
                return
        raise Failed("make-checkpoint shows no bar on a terminal")

    def a_bar_stays_out_of_piped_output(self):
        for command in self.make_checkpoint(terminal=("stderr",)):
            expect(re.fullmatch(r"Wrote made-[^\n]*\n", command.text("stdout")), f"{command.text('stdout')!r}")
            if re.search(BAR.format("writing"), command.text()):
                return
        raise Failed("make-checkpoint shows no bar if only standard error is a terminal")

    def no_bar_without_a_terminal_or_if_quiet(self):
        for arguments, terminal in (((), ()), ((), ("stdout",)), (("--quiet",), ("stdout", "stderr"))):
            command = next(self.make_checkpoint(*arguments, terminal=terminal), None)
            expect(command is not None, "make-checkpoint was never paused in the middle")
            text = command.all_text()
            expect(ESCAPE not in text and "writing" not in text, f"there is a bar: {text!r}")

    def worker(self):
        """The process of a worker."""
        status = json.loads(self.call("status", "--cluster", self.cluster, "--output", "json"))
        return next(each["pid"] for each in status["workers"] if each["identity"] == "worker-1")

    def load(self, path, *arguments, terminal=("stdout", "stderr")):
        """Loads, and pauses a worker once the placement is printed, which is before the transfer. Yields the ended
        command of each attempt."""
        (self.folder / "rules.yaml").write_text(RULES, encoding="utf-8")
        worker = self.worker()
        for _ in range(ATTEMPTS):
            with self.start("load", path, "--rules", "rules.yaml", "--no-reuse", "--cluster", self.cluster, *arguments,
                            terminal=terminal) as command:
                stream = "terminal" if "stdout" in terminal else "stdout"
                command.read_until(lambda stream=stream, c=command: c.text(stream), "placement")
                command.pause(worker)
                code = command.end()
                expect(code == 0, f"load: exit code {code}\n{command.all_text()!r}")
                if re.search(r" in [1-9][0-9.]* s[,;]", command.all_text()):
                    yield command

    def a_bar_shows_what_is_loaded(self):
        self.call("make-checkpoint", "--out", "loaded.safetensors", "--size", CHECKPOINT)
        for command in self.load("loaded.safetensors"):
            if re.search(BAR.format("loading"), command.text()):
                expect(f"\r{CLEAR_LINE}Loaded " in command.text(), f"the bar stays: {command.text()[-200:]!r}")
                break
        else:
            raise Failed("load shows no bar on a terminal")
        piped = next(self.load("loaded.safetensors", terminal=()), None)
        expect(piped is not None, "the worker was never paused in the middle of a load")
        expect(ESCAPE not in piped.all_text() and "loading" not in piped.all_text(), f"{piped.all_text()!r}")

    def operations(self, kind):
        """The running operations of this kind."""
        wanted = ("--kind", kind, "--state", "running")
        return json.loads(self.call("ops", "ls", *wanted, "--output", "json", "--cluster", self.cluster))["operations"]

    def hold(self, kind, *arguments, terminal=("stdout", "stderr")):
        """Runs a command that is an operation, and lets a worker stand still for a while in the middle of it. Returns
        the ended command."""
        worker = self.worker()
        os.kill(worker, signal.SIGSTOP)
        try:
            with self.start(*arguments, "--cluster", self.cluster, terminal=terminal) as command:
                end = time.monotonic() + SECONDS
                while not self.operations(kind):
                    expect(time.monotonic() < end, f"{' '.join(arguments)} is no operation:\n{command.all_text()!r}")
                command.pause(worker)
                code = command.end()
                expect(code == 0, f"{' '.join(arguments)}: exit code {code}\n{command.all_text()!r}")
                return command
        finally:
            os.kill(worker, signal.SIGCONT)

    def slow_copier(self):
        """Starts worker-1 anew, as it was started, but slow to receive its first copy. Returns its process. Requires
        that there are no arrays."""
        before = self.worker()
        command = pathlib.Path(f"/proc/{before}/cmdline").read_text(encoding="utf-8").split("\0")[:-1]
        command = [word for word in command if not word.startswith("--failpoints=")]
        os.kill(before, signal.SIGKILL)
        # As a child of this process it would stay a zombie after `down`.
        subprocess.run(["setsid", "--fork", *command, "--failpoints=fill.receive=delay"], cwd=self.folder,
                       env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=SECONDS, check=True)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            status = json.loads(self.call("status", "--cluster", self.cluster, "--output", "json"))
            for each in status["workers"]:
                if each["identity"] == "worker-1" and each["pid"] != before and each["state"] == "ready":
                    return each["pid"]
            time.sleep(0.05)
        raise Failed("worker-1 is not back")

    def a_bar_shows_second_replicas(self):
        self.call("make-tensor", "--shape", "8192,4096", "--out", "copied.npy")  # 128 MiB
        for _ in range(ATTEMPTS):
            worker = self.slow_copier()
            with self.start("put", "copied.npy", "--as", "copied", "--spec", "tp,-", "--source", "client", "--no-reuse",
                            "--replicas", "2", "--cluster", self.cluster) as command:
                # The copy begins after the put, which needs both workers.
                if command.read_until(lambda: self.operations("replicate"), "copy of the array"):
                    command.pause(worker)
                code = command.end()
                expect(code == 0, f"put --replicas 2: exit code {code}\n{command.all_text()!r}")
                self.call("rm", "copied", "--cluster", self.cluster)
                bar = BAR.format("copying second replicas")
                shares = [int(share) for share in re.findall(bar, command.text())]
                if shares:
                    expect(max(shares) <= 100, f"more is copied than there is: {shares}")
                    after = re.split(bar, command.text())[-1]
                    expect(after.startswith(f"\r{CLEAR_LINE}"), f"the bar stays: {after!r}")
                    expect("Second replicas: 1 array has a second copy" in after, f"no result: {after!r}")
                    return
            # The copy ended before the worker stood still.
        raise Failed("put --replicas 2 shows no bar on a terminal")

    def bars_show_what_is_put_moved_saved_and_got(self):
        self.call("make-tensor", "--shape", "4096,4096", "--out", "w.npy")  # 64 MiB: smaller gets are no operations
        for kind, title, arguments in (
                ("put", "putting", ("put", "w.npy", "--as", "bars/w", "--spec", "tp,-", "--source", "client")),
                ("reshard", "resharding", ("reshard", "bars/w", "--to", "-,tp")),
                ("save", "saving", ("save", "bars/", "saved")),
                ("get", "gathering", ("get", "bars/w", "--out", "got.npy")),
                ("resize", "resizing", ("mesh", "resize", "default", "tp=1"))):
            text = self.hold(kind, *arguments).text()
            expect(re.search(BAR.format(title), text), f"{kind} shows no bar on a terminal: {text!r}")
            after = re.split(BAR.format(title), text)[-1]
            expect(after.startswith(f"\r{CLEAR_LINE}"), f"the bar of {kind} stays: {after!r}")
            if kind == "get":
                piped = self.hold(kind, *arguments, terminal=())
                expect(ESCAPE not in piped.all_text() and title not in piped.all_text(), f"{piped.all_text()!r}")

    def run(self):
        tests = [self.watch_repaints_a_terminal_until_ctrl_c, self.watch_of_a_pipe_has_no_escape_sequences,
                 self.a_bar_shows_what_is_written, self.a_bar_stays_out_of_piped_output,
                 self.no_bar_without_a_terminal_or_if_quiet, self.a_bar_shows_second_replicas,
                 self.a_bar_shows_what_is_loaded, self.bars_show_what_is_put_moved_saved_and_got]
        faults = []
        try:
            with self.running_cluster():
                for test in tests:
                    begin = time.monotonic()
                    try:
                        test()
                    except Failed as failed:
                        faults.append(f"{test.__name__}: {failed}")
                    print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
        finally:
            faults += self.left_processes()
        return faults

    def left_processes(self):
        """Ends the processes of this test that are left, and names them."""
        mark = f"XDG_RUNTIME_DIR={self.folder}".encode()
        left = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    name = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if name:
                        os.kill(int(process.name), signal.SIGKILL)
                        left.append(f"left a process behind: {name}")
            except OSError:
                continue
        return left


if __name__ == "__main__":
    own_cluster.main(Test, "terminal-")
