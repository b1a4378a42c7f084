"""Runs Python programs of the tests that need the packages numpy and safetensors.

    with_packages.py ARGUMENT...    runs the first interpreter that has both packages, with these arguments
    with_packages.py --install      installs both from the package index in build/python, unless an interpreter has them

The interpreters are, in this order, those of build/python and build/peers, and python3 of the PATH. Where none has both
packages, the exit code is 77. It is 1 if CI=true, where a test that needs them may not be skipped. That of --install is 77
there too: the tests behind it have to run, and those that need the packages fail.
"""

import os
import pathlib
import shutil
import subprocess
import sys

BUILD = pathlib.Path(__file__).resolve().parent.parent / "build"
OWN = BUILD / "python" / "bin" / "python"
# Versions that were tried together.
PACKAGES = ("numpy==2.4.6", "safetensors==0.8.0")
SKIPPED = 77
INSTALL_SECONDS = 240  # below the limit of the stage, which would count as failed


def imports(python):
    """Whether an interpreter has both packages."""
    try:
        return subprocess.run([python, "-c", "import numpy, safetensors.numpy"], stdin=subprocess.DEVNULL,
                              capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def interpreter():
    """The first interpreter that has both packages; None if none has."""
    candidates = (str(OWN), str(BUILD / "peers" / "bin" / "python"), shutil.which("python3"))
    return next((python for python in candidates if python is not None and imports(python)), None)


def install():
    """Makes build/python if it is missing, and installs the packages there, as far as the package index can be reached."""
    try:
        if not (OWN.parent / "pip").exists():
            subprocess.run(["python3", "-m", "venv", str(OWN.parent.parent)], check=True)
        subprocess.run([str(OWN), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:",
                        "--retries", "2", "--timeout", "15", *PACKAGES], check=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.SubprocessError) as failed:
        print(f"with_packages.py: {failed}", file=sys.stderr)


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    if sys.argv[1:] == ["--install"]:
        if interpreter() is None:
            install()
        if interpreter() is not None:
            return 0
        print(f"THE PACKAGES ARE MISSING: {' and '.join(PACKAGES)} cannot be had from the package index, so the tests that "
              "need them are skipped, or fail if CI=true", file=sys.stderr)
        return SKIPPED
    python = interpreter()
    if python is not None:
        os.execv(python, [python, *sys.argv[1:]])
    print(f"NOT RUN WITH NUMPY AND SAFETENSORS: {sys.argv[1]}. Neither build/python, build/peers nor python3 has both; "
          "`./dev test packages` installs them", file=sys.stderr)
    return 1 if os.environ.get("CI") == "true" else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
