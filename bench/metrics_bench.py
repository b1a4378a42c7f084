"""M1 and M2: how soon a cluster is ready, and how long a scrape takes with 10,000 arrays.

M1 times `shardmesh up --detach` of a coordinator and 4 workers on this host: from the start of the command line until all
ranks are ready; the median of the samples counts. M2 loads a checkpoint of 10,000 small tensors onto such a cluster and
scrapes coordinator and one worker as Prometheus does, compressed, each time over a new connection, since the server ends
them: p50 and p99 of the samples. Prints one JSON object a line.

usage: metrics_bench.py BIN_FOLDER [--starts N] [--scrapes N]
"""

import argparse
import contextlib
import gzip
import http.client
import json
import os
import pathlib
import statistics
import struct
import subprocess
import tempfile
import time

ARRAYS = 10_000
START_TARGET_SECONDS = 2.0
SCRAPE_TARGET_MS = 10.0
RULES = 'rules: [{pattern: ".*", spec: [fsdp, tp]}]\n'


def write_checkpoint(path):
    """A safetensors file of F32 tensors of 4 x 4."""
    size = 4 * 4 * 4
    header = {f"layer.{i}.weight": {"dtype": "F32", "shape": [4, 4], "data_offsets": [i * size, (i + 1) * size]}
              for i in range(ARRAYS)}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + bytes(ARRAYS * size))


@contextlib.contextmanager
def cluster(shardmesh):
    """A cluster of 4 workers: its environment, and the seconds that its start took."""
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, XDG_RUNTIME_DIR=folder)
        begin = time.perf_counter()
        subprocess.run([shardmesh, "up", "--mesh", "fsdp=2,tp=2", "--detach"], env=env, check=True, capture_output=True)
        seconds = time.perf_counter() - begin
        try:
            yield env, seconds
        finally:
            subprocess.run([shardmesh, "down"], env=env, check=True, capture_output=True)


def scrape(address):
    """The seconds that it took, the text, and the bytes on the wire."""
    begin = time.perf_counter()
    connection = http.client.HTTPConnection(address)
    connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    seconds = time.perf_counter() - begin
    assert answer.status == 200, answer.status
    text = gzip.decompress(body) if answer.headers.get("Content-Encoding") == "gzip" else body
    return seconds, text.decode(), len(body)


def scrape_times(address, count):
    samples = [scrape(address) for _ in range(count)]
    return [seconds * 1e3 for seconds, _, _ in samples], samples[-1][1], samples[-1][2]


def report(key, what, ours, unit, target):
    print(json.dumps({"id": key, "what": what, "ours": round(ours, 3), "peer": None, "unit": unit, "ratio": None,
                      "target": target, "met": ours <= target}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", help="folder of the programs")
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--scrapes", type=int, default=500)
    arguments = parser.parse_args()
    shardmesh = str(pathlib.Path(arguments.bin) / "shardmesh")

    starts = []
    for _ in range(arguments.starts):
        with cluster(shardmesh) as (_, seconds):
            starts.append(seconds)
    report("M1", f"start of a coordinator and 4 workers until all are ready ({min(starts):.2f} to {max(starts):.2f} s of"
           f" {len(starts)})", statistics.median(starts), "s", START_TARGET_SECONDS)

    with tempfile.TemporaryDirectory() as folder, cluster(shardmesh) as (env, _):
        checkpoint, rules = f"{folder}/many.safetensors", f"{folder}/rules.yaml"
        write_checkpoint(checkpoint)
        pathlib.Path(rules).write_text(RULES, encoding="utf-8")
        subprocess.run([shardmesh, "load", checkpoint, "--rules", rules, "--quiet"], env=env, check=True,
                       capture_output=True)
        status = json.loads(subprocess.run([shardmesh, "status", "--output", "json"], env=env, check=True,
                                           capture_output=True).stdout)
        for process, address in (("coordinator", status["metrics"]), ("worker", status["workers"][0]["metrics"])):
            times, text, size = scrape_times(address, arguments.scrapes)
            if process == "coordinator":
                assert f'shardmesh_arrays{{state="available"}} {ARRAYS}\n' in text, "the arrays are not all there"
            series = sum(1 for line in text.splitlines() if not line.startswith("#"))
            what = f"scrape of the {process} with {ARRAYS} arrays ({series} series, {size / 1e3:.0f} kB compressed)"
            times.sort()
            for name, part in (("p50", 0.5), ("p99", 0.99)):
                report(f"M2-{process}-{name}", f"{what}, {name}", times[int(part * (len(times) - 1))], "ms",
                       SCRAPE_TARGET_MS)


if __name__ == "__main__":
    main()
