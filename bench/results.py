"""The lines that run.py reads, as benchmarks of steps print them."""

import json


def rounded(value):
    return None if value is None else float(f"{value:.4g}")


def report(key, what, ours, unit, *, peer=None, ratio=None, at_most=None, at_least=None, spread=None):
    """Prints one result. The target is for the ratio if there is one, else for `ours`; the ratio is ours / peer if not given."""
    if ratio is None and peer is not None:
        ratio = ours / peer
    judged = ours if ratio is None else ratio
    target, met = None, None
    if at_most is not None:
        target, met = f"<= {at_most:g}", judged <= at_most
    elif at_least is not None:
        target, met = f">= {at_least:g}", judged >= at_least
    line = {"id": key, "what": what, "ours": rounded(ours), "peer": rounded(peer), "unit": unit, "ratio": rounded(ratio),
            "target": target, "met": met}
    if spread is not None:
        line["spread"] = spread
    print(json.dumps(line), flush=True)
