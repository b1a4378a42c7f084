"""The memory that processes have."""

import contextlib
import os


def resident_bytes(pids):
    """Anonymous and shared pages of processes, each page once; those of a process that is gone are left out.

    Pages of shared memory count by the descriptors, as they take memory also where no process has them mapped.
    """
    total = 0
    shared = {}  # allocated bytes by inode
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                total += sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss_Anon:"))
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).startswith("/memfd:"):
                        about = os.stat(entry.path)
                        shared[about.st_ino] = about.st_blocks * 512
        except OSError:
            pass
    return total + sum(shared.values())
