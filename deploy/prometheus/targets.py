"""Turns what `shardmesh status --output json` prints into targets for Prometheus (file_sd_configs).

    shardmesh status --output json | python3 targets.py [--cluster NAME] > targets/NAME.json

Each target has the labels job (shardmesh-coordinator or shardmesh-worker), instance (the worker's identity) and
cluster, and __scheme__, by which Prometheus scrapes it: https, with prometheus-tls.yml, of a cluster with TLS. Exit code 1 if the status does not tell where metrics are served, as of a cluster of another host.
"""

import argparse
import json
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="default", help="the label `cluster` of all targets")
    cluster = parser.parse_args().cluster
    status = json.load(sys.stdin)
    processes = [("shardmesh-coordinator", "coordinator", status["metrics"])]
    processes += [("shardmesh-worker", worker["identity"], worker["metrics"]) for worker in status["workers"]]
    groups = [
        {
            "targets": [address],
            "labels": {"__scheme__": status["metrics_scheme"], "job": job, "instance": instance, "cluster": cluster},
        }
        for job, instance, address in processes
        if address
    ]
    if not groups:
        sys.exit("targets.py: the status has no addresses of metrics; was the cluster started on this host by `up`?")
    print(json.dumps(groups, indent=2))


if __name__ == "__main__":
    main()
