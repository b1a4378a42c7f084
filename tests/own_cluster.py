"""What the tests share that run the command line and a cluster of their own in a new folder."""

import pathlib
import shutil
import signal
import sys
import tempfile

SECONDS = 60  # for one command, or for whatever has to happen
ALL_SECONDS = 240  # below the limit of ctest, which would leave a cluster behind


class Failed(Exception):
    """What is wrong, in words."""


def expect(condition, text):
    if not condition:
        raise Failed(text)


def _interrupted(*_):
    sys.exit("the test was stopped or takes too long")


def main(test, prefix):
    """Runs test(PROGRAMS, FOLDER), whose run() returns faults in words, for the folder of the programs in the first
    argument of this program and a new folder. Ends the program if there are faults."""
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _interrupted)
    signal.alarm(ALL_SECONDS)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
    try:
        faults = test(pathlib.Path(sys.argv[1]).resolve(), folder).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if faults:
        sys.exit("\n".join(faults))
