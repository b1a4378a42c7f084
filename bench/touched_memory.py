"""Makes the kernel's memory warm before a sample: a virtual machine's memory is several times slower the first time."""

import subprocess
import sys

# What a checkpoint of 2 GiB and its copy on the devices need.
TOUCHED_BYTES = 5 << 30
TOUCH = f"""
import mmap
memory = mmap.mmap(-1, {TOUCHED_BYTES}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(23)  # MADV_POPULATE_WRITE
"""


def touch_memory():
    subprocess.run([sys.executable, "-c", TOUCH], check=True)
