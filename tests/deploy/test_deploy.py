"""What ships in ``deploy/``: it parses, and names only what the programs know."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from mountd import metrics

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
_SUFFIXES = ("_bucket", "_count", "_sum")


def known_metrics() -> set[str]:
    """Every name that a mount with all figures gives."""
    status: dict[str, object] = dict.fromkeys((*metrics._COUNTERS, *metrics._GAUGES), 1)
    status |= {"opens_served": 1, "bytes_from_store": 1, "chunk_latency_le_10": 1, "chunk_latency_count": 1}
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics.MountCollector(lambda: status))
    lines = generate_latest(registry).decode().splitlines()
    return {re.split(r"[ {]", line)[0] for line in lines if not line.startswith("#")}


@pytest.mark.parametrize("name", ["grafana/mounts.json", "prometheus/rules.yaml"])
def test_every_metric_that_is_asked_for_is_given(name: str) -> None:
    asked = set(re.findall(r"openshelf_mount_[a-z_]+", (DEPLOY / name).read_text("utf-8")))
    assert asked
    assert asked <= known_metrics()


def test_the_dashboard_has_a_query_in_every_panel() -> None:
    panels = json.loads((DEPLOY / "grafana" / "mounts.json").read_text("utf-8"))["panels"]
    assert len(panels) == 15
    assert all(target["expr"] for panel in panels for target in panel["targets"])
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


def test_the_daemonset_gives_the_mount_what_it_needs() -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "mount.yaml").read_text()))
    pod = next(each for each in documents if each["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["hostPID"] is True
    assert container["securityContext"]["privileged"] is True
    mounts = {each["mountPath"]: each.get("mountPropagation") for each in container["volumeMounts"]}
    assert mounts == {"/public": "Bidirectional", "/cache": None, "/dev/fuse": None}
    assert not any("TOKEN" in str(argument) for argument in container["args"])


def prolog(tmp_path: Path, probe_code: int, comment: str) -> tuple[int, list[str]]:
    """Run the prolog with stand-ins for ``openshelf`` and ``scontrol``: its exit code, and the warm calls."""
    calls = tmp_path / "calls"
    (tmp_path / "openshelf").write_text(f'#!/bin/sh\n[ "$1" = probe ] && exit {probe_code}\necho "$@" >> {calls}\n')
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho '   Comment={comment}'\n")
    for name in ("openshelf", "scontrol"):
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["sh", str(DEPLOY / "slurm" / "prolog.sh")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"},
        capture_output=True,
        check=False,
    )
    return done.returncode, calls.read_text().splitlines() if calls.exists() else []


def test_the_prolog_drains_a_node_whose_mount_hangs_and_warms_what_a_job_names(tmp_path: Path) -> None:
    assert prolog(tmp_path, 3, "openshelf=datasets/a/b@1.0") == (1, [])
    code, calls = prolog(tmp_path, 4, "nightly openshelf=datasets/a/b@1.0,models/c/d@2;rm -rf /")
    assert code == 0
    assert calls == ["warm /public datasets/a/b@1.0 --no-wait", "warm /public models/c/d@2 --no-wait"]
