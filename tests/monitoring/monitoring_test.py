"""Holds rules, dashboard, runbooks and manifests against one another and against docs/metrics.md.

    monitoring_test.py promtool     promtool accepts configurations and rules, and the rules' tests pass
    monitoring_test.py agreement    metrics, alerts, pages and the PrometheusRule agree
    monitoring_test.py --self-test  show that planted faults are found

Exit code 77 where there is no promtool; under CI=true that is a failure.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROMETHEUS = "deploy/prometheus"
RULES = [f"{PROMETHEUS}/recording.rules.yml", f"{PROMETHEUS}/alerts.rules.yml"]
DASHBOARD = "deploy/grafana/shardmesh.json"
RULE_TESTS = "tests/monitoring/alerts.test.yml"
MANIFEST = "deploy/kubernetes/overlays/monitoring/prometheusrule.yaml"
SEVERITIES = {"critical", "warning", "info"}

# A metric, or the name of a recording rule, which has colons.
NAME = re.compile(r"[a-z_]*:?\b(?:shardmesh|process)_[a-z0-9_]+(?::[a-z0-9_]+)?")


class Files:
    """The project's files, with some texts in place of what is there."""

    def __init__(self, changed=None):
        self._changed = changed or {}

    def read(self, path):
        if path in self._changed:
            return self._changed[path]
        return (ROOT / path).read_text(encoding="utf-8")

    def exists(self, path):
        return self._changed.get(path, "") is not None and (path in self._changed or (ROOT / path).is_file())

    def runbooks(self):
        return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/runbooks").glob("*.md"))


def documented(files):
    """Types of the metrics that docs/metrics.md lists."""
    rows = re.findall(r"^\| `([a-z0-9_]+)` \| (\w+) \|", files.read("docs/metrics.md"), re.MULTILINE)
    return dict(rows)


def recorded(files):
    return re.findall(r"^ *- record: (\S+)$", files.read(RULES[0]), re.MULTILINE)


def alerts(files):
    """Text of each alert's rule by its name."""
    parts = re.split(r"^ *- alert: (\S+)$", files.read(RULES[1]), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def unknown_names(text, where, files):
    """Metrics and recorded names in a text that do not exist."""
    types, rules = documented(files), set(recorded(files))
    faults = []
    for name in sorted(set(NAME.findall(text))):
        if ":" in name:
            known = name in rules
        else:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            known = name in types or types.get(base) == "histogram"
        if not known:
            faults.append(f"{where}: there is no {name}")
    return faults


def field(name, rule):
    found = re.search(rf"^ *{name}: (.+)$", rule, re.MULTILINE)
    return found.group(1) if found else None


def alert_faults(files):
    faults, pages = [], set()
    tests = files.read(RULE_TESTS)
    listed = files.read("docs/metrics.md")
    for name, rule in alerts(files).items():
        for wanted in ("for", "summary", "description", "runbook_url"):
            if field(wanted, rule) is None:
                faults.append(f"alert {name}: has no {wanted}")
        severity = field("severity", rule)
        if severity not in SEVERITIES:
            faults.append(f"alert {name}: its severity is {severity}, none of {', '.join(sorted(SEVERITIES))}")
        page = field("runbook_url", rule) or ""
        pages.add(page)
        if not files.exists(page):
            faults.append(f"alert {name}: its page {page} does not exist")
        elif name not in files.read(page):
            faults.append(f"alert {name}: its page {page} does not name it")
        if f"| {name} | {severity} |" not in listed or f"({page.removeprefix('docs/')})" not in listed:
            faults.append(f"alert {name}: docs/metrics.md does not list it with its severity and its page")
        if not re.search(rf"alertname: {name}}}", tests):
            faults.append(f"alert {name}: no test where it does not fire")
        if not re.search(rf"alertname: {name}\n *exp_alerts:\n *- exp_labels", tests):
            faults.append(f"alert {name}: no test where it fires")
    faults += [f"{page}: no alert leads there" for page in files.runbooks() if page not in pages]
    return faults


def dashboard_faults(files):
    dashboard = json.loads(files.read(DASHBOARD))
    panels = dashboard["panels"]
    faults = []
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    for row in ("Overview", "RPCs", "Steps", "Collectives", "Kernels", "Stores", "Membership"):
        if row not in rows:
            faults.append(f"dashboard: has no row {row}")
    ids = [panel["id"] for panel in panels]
    if len(set(ids)) != len(ids):
        faults.append("dashboard: an id is given twice")
    for panel in panels:
        queries = [target["expr"] for target in panel.get("targets", [])]
        if panel["type"] != "row" and not queries:
            faults.append(f"dashboard: panel {panel['title']} asks nothing")
        for query in queries:
            faults += unknown_names(query, f"dashboard: panel {panel['title']}", files)
            selectors = query.count("{") - query.count("{{")
            if query.count('namespace=~"$namespace"') != selectors or query.count('cluster=~"$cluster"') != selectors:
                faults.append(f"dashboard: panel {panel['title']} asks for more than the chosen clusters: {query}")
    return faults


def settings(text):
    """A configuration without its comments."""
    return [line for line in re.sub(r" *#.*", "", text).splitlines() if line.strip()]


def configuration_faults(files):
    plain, tls = settings(files.read(f"{PROMETHEUS}/prometheus.yml")), settings(files.read(f"{PROMETHEUS}/prometheus-tls.yml"))
    if tls[:-1] != plain or not tls[-1].startswith("    tls_config: "):
        return [f"{PROMETHEUS}/prometheus-tls.yml: is not prometheus.yml and a tls_config at its end"]
    return []


def agreement_faults(files):
    faults = configuration_faults(files)
    for path in RULES:
        faults += unknown_names(files.read(path), path, files)
    for path in files.runbooks():
        faults += unknown_names(files.read(path), path, files)
    faults += alert_faults(files)
    faults += dashboard_faults(files)
    made = subprocess.run(
        [sys.executable, ROOT / PROMETHEUS / "prometheusrule.py"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    if files.read(MANIFEST) != made:
        faults.append(f"{MANIFEST}: is not what {PROMETHEUS}/prometheusrule.py prints; run it again")
    return faults


def self_test():
    files = Files()
    rules, dashboard = files.read(RULES[1]), files.read(DASHBOARD)
    plants = {
        "there is no shardmesh_worker_readyy": {RULES[1]: rules.replace("shardmesh_worker_ready ", "shardmesh_worker_readyy ")},
        "there is no job:shardmesh_step_failure:ratio": {
            DASHBOARD: dashboard.replace("job:shardmesh_step_failures:ratio_rate5m", "job:shardmesh_step_failure:ratio")
        },
        "alert ShardmeshWorkerLost: has no for": {
            RULES[1]: rules.replace('state="lost"} > 0\n        for: 1m\n', 'state="lost"} > 0\n')
        },
        "its severity is urgent": {RULES[1]: rules.replace("severity: info", "severity: urgent")},
        "docs/runbooks/gone.md does not exist": {RULES[1]: rules.replace("runbooks/steps-slow.md", "runbooks/gone.md")},
        "docs/runbooks/steps-slow.md: no alert leads there": {
            RULES[1]: rules.replace("runbooks/steps-slow.md", "runbooks/steps-failing.md")
        },
        "alert ShardmeshOther: no test where it fires": {RULES[1]: rules.replace("ShardmeshWorkerLost", "ShardmeshOther")},
        "has no row Kernels": {DASHBOARD: dashboard.replace('"Kernels"', '"Kernel"')},
        "asks for more than the chosen clusters": {
            DASHBOARD: dashboard.replace('shardmesh_build_info{namespace=~\\"$namespace\\", ', "shardmesh_build_info{")
        },
        "is not prometheus.yml and a tls_config": {
            f"{PROMETHEUS}/prometheus.yml": files.read(f"{PROMETHEUS}/prometheus.yml").replace("scrape_timeout: 10s", "scrape_timeout: 9s")
        },
        "prometheusrule.py prints; run it again": {MANIFEST: files.read(MANIFEST) + "\n"},
    }
    for wanted, changed in plants.items():
        if all(text == files.read(path) for path, text in changed.items()):
            sys.exit(f"monitoring_test.py: the fault for {wanted!r} was not planted")
        found = agreement_faults(Files(changed))
        if not any(wanted in fault for fault in found):
            sys.exit(f"monitoring_test.py: {wanted!r} is not among {found}")


def run_promtool(*arguments):
    done = subprocess.run(["promtool", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"promtool {' '.join(map(str, arguments))} failed:\n{done.stdout}")


def without_kubernetes(text):
    """The configuration with pods from files: Debian builds Prometheus without discovery on Kubernetes."""
    changed, count = re.subn(
        r"kubernetes_sd_configs:\n.*?(?=\n    relabel_configs:)", "file_sd_configs: [{files: [pods.json]}]", text, flags=re.DOTALL
    )
    if count != 1:
        sys.exit("monitoring_test.py: prometheus-kubernetes.yml has no kubernetes_sd_configs before its relabel_configs")
    return changed


def promtool():
    if shutil.which("promtool") is None:
        if os.environ.get("CI") == "true":
            sys.exit("monitoring_test.py: there is no promtool; it is in Debian's package prometheus")
        print("THE RULES WERE NOT CHECKED: there is no promtool; `./dev test` installs it")
        sys.exit(77)
    run_promtool("check", "rules", *RULES)
    run_promtool("test", "rules", RULE_TESTS)
    run_promtool("check", "config", f"{PROMETHEUS}/prometheus.yml")
    with tempfile.TemporaryDirectory() as folder:
        for path in [*RULES, f"{PROMETHEUS}/prometheus-tls.yml"]:
            shutil.copy(ROOT / path, folder)
        certificates = pathlib.Path(folder) / "certs"
        certificates.mkdir()
        for name in ("ca.crt", "client.crt", "client.key"):
            (certificates / name).touch()
        run_promtool("check", "config", f"{folder}/prometheus-tls.yml")
    kubernetes = f"{PROMETHEUS}/prometheus-kubernetes.yml"
    as_it_is = subprocess.run(["promtool", "check", "config", kubernetes], cwd=ROOT, capture_output=True, text=True)
    if as_it_is.returncode != 0:
        if "kubernetes_sd_configs not found in type" not in as_it_is.stdout + as_it_is.stderr:
            sys.exit(f"promtool check config {kubernetes} failed:\n{as_it_is.stdout}{as_it_is.stderr}")
        with tempfile.TemporaryDirectory() as folder:
            for path in RULES:
                shutil.copy(ROOT / path, folder)
            (pathlib.Path(folder) / "pods.json").write_text("[]", encoding="utf-8")
            config = pathlib.Path(folder) / "prometheus.yml"
            config.write_text(without_kubernetes((ROOT / kubernetes).read_text(encoding="utf-8")), encoding="utf-8")
            run_promtool("check", "config", config)


def main():
    what = sys.argv[1] if len(sys.argv) == 2 else ""
    if what == "promtool":
        promtool()
    elif what == "agreement":
        found = agreement_faults(Files())
        for fault in found:
            print(fault)
        sys.exit(1 if found else 0)
    elif what == "--self-test":
        self_test()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
