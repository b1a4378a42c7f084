"""Asks bench/run.py which commands measure what a name stands for, and for a name that stands for nothing."""

import pathlib
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parent.parent / "bench"
sys.dont_write_bytecode = True
sys.path.insert(0, str(BENCH))
import run  # noqa: E402: it lies beside the benchmarks

COMMANDS = {"K1-first,K5-attention": (["kernel"], ""), "K5": (["compute"], ""), "R1": (["resolve"], ""), "R2-R3": (["resolve"], ""), "R4-plan": (["resolve"], ""),
            "R4-search": (["resolve"], ""), "C1-C2": (["collectives"], ""), "C2-host": (["collectives"], ""),
            "S1-first": (["store", "load"], ""), "S2": (["store"], "")}
CASES = {None: list(COMMANDS), "R1": ["R1"], "C1-C2": ["C1-C2"], "C1": ["C1-C2"], "C2": ["C1-C2", "C2-host"], "C2-host": ["C2-host"], "R1-p50": ["R1"],
         "R3-million": ["R2-R3"], "R4": ["R4-plan", "R4-search"], "R4-plan": ["R4-plan"], "K1": ["K1-first,K5-attention"],
         "K1-first": ["K1-first,K5-attention"], "K5-attention": ["K1-first,K5-attention"], "K5": ["K5"], "K5-prefill": ["K5"],
         "kernel": ["K1-first,K5-attention"], "kernel-first": [],
         "resolve": ["R1", "R2-R3", "R4-plan", "R4-search"], "store": ["S1-first", "S2"], "load": ["S1-first"],
         "C": [], "C12": [], "": [], "store,load": []}


def main():
    for name, expected in CASES.items():
        chosen = run.choose(COMMANDS, name)
        assert chosen == expected, f"{name}: {chosen} instead of {expected}"
    for row in ("C1", "C2-host", "C3", "C4", "M1", "M2", "M3-p50", "R1-p50-new", "R2-wire", "R3-memory", "R4-reshard", "S1-first",
                "S1-gather", "S1-handover", "S2", "S3-steps", "S4-transfers", "S6", "K1-first", "K2-4",
                "K3-BF16-1", "K4-gather-shm", "K5", "K5-attention", "K5-prefill", "K6-1-16", "K7-stream", "P-time", "G1-1024"):
        assert len(run.choose(run.listed(), row)) == 1, f"{row} of docs/benchmarks.md"
    for row, command in (("K5-attention", "kernel_bench"), ("K1-first", "kernel_bench"), ("K1-F32-1", "worker_kernel_bench"),
                         ("K5", "llama_bench"), ("K5-prefill", "llama_bench")):
        commands = [run.listed()[key][1] for key in run.choose(run.listed(), row)]
        assert len(commands) == 1 and f"/{command}" in commands[0], f"{row} runs {commands}"
    chosen = run.choose(run.listed(), "store")
    for row in ("S1", "S2", "S3", "S4", "S5", "S6", "S7"):
        assert set(run.choose(run.listed(), row)) <= set(chosen), f"{row} is not in the group store: {chosen}"
    chosen = run.choose(run.listed(), "compute")
    for row in ("K1", "K2", "K3", "K4", "K5", "K6", "K7", "C4", "P"):
        assert set(run.choose(run.listed(), row)) <= set(chosen), f"{row} is not in the group compute: {chosen}"
    answer = subprocess.run([sys.executable, str(BENCH / "run.py"), "C9"], capture_output=True, text=True, check=False)
    assert answer.returncode == 2 and "no benchmark C9" in answer.stderr, answer
    for name in (*run.listed(), "store", "load"):
        assert name in answer.stderr, answer


if __name__ == "__main__":
    main()
