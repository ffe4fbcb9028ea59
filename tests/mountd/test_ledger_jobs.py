"""Which job a process belongs to: control groups as launchers make them, and one made here for a real process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mountd.ledger.jobs import UNKNOWN, Job, claims_of, job_of
from mountd.ledger.processes import LOOK_AGAIN_S, Processes, hostpid_visible

POD = "0b5c2d0e-8a55-4f2e-9d3c-1f6f0c8f9a11"
UNDERSCORED = POD.replace("-", "_")
STATIC_POD = "8f2c0d7c3a3e4b1f9e0d6a5b4c3d2e1f"
CONTAINER = "3f4e" * 16
OTHER = "ab12" * 16

CASES = [
    # Kubernetes, version 1 of control groups, driver cgroupfs
    (f"11:memory:/kubepods/burstable/pod{POD}/{CONTAINER}\n1:name=systemd:/kubepods/x", "kubernetes", POD, CONTAINER),
    (f"4:cpu,cpuacct:/kubepods/pod{POD}/{CONTAINER}", "kubernetes", POD, CONTAINER),
    (f"4:cpu,cpuacct:/kubepods/besteffort/pod{STATIC_POD}/{CONTAINER}", "kubernetes", STATIC_POD, CONTAINER),
    # driver systemd
    (
        f"11:memory:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/"
        f"cri-containerd-{CONTAINER}.scope",
        "kubernetes",
        POD,
        CONTAINER,
    ),
    (f"5:pids:/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/docker-{CONTAINER}.scope", "kubernetes", POD, CONTAINER),
    (
        f"3:cpuset:/system.slice/containerd.service/kubepods-besteffort-pod{UNDERSCORED}.slice:cri-containerd:{CONTAINER}",
        "kubernetes",
        POD,
        CONTAINER,
    ),
    # version 2
    (f"0::/kubepods/burstable/pod{POD}/{CONTAINER}", "kubernetes", POD, CONTAINER),
    (
        f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{CONTAINER}.scope/container",
        "kubernetes",
        POD,
        CONTAINER,
    ),
    (f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice", "kubernetes", POD, None),
    # seen from a container with a control group namespace of its own
    (f"0::/../../kubepods-pod{UNDERSCORED}.slice/cri-containerd-{CONTAINER}.scope", "kubernetes", POD, CONTAINER),
    (f"0::/../../pod{POD}/{CONTAINER}", "kubernetes", POD, CONTAINER),
    # a cluster in a container
    (f"0::/docker/{OTHER}/kubelet/kubepods/burstable/pod{POD}/{CONTAINER}", "kubernetes", POD, CONTAINER),
    # a pod that makes groups below its own cannot take another's name
    (f"0::/kubepods/burstable/pod{POD}/{CONTAINER}/pod{STATIC_POD}/{OTHER}", "kubernetes", POD, CONTAINER),
    # Slurm
    (
        "9:memory:/slurm/uid_1000/job_4711/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service",
        "slurm",
        "4711.0",
        None,
    ),
    ("9:freezer:/slurm_gpu01/uid_1000/job_4711/step_batch", "slurm", "4711.batch", None),
    ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3", "slurm", "4711.0", None),
    ("0::/system.slice/gpu01_slurmstepd.scope/job_99/step_extern/user/task_special", "slurm", "99.extern", None),
    ("9:memory:/slurm/uid_1000/job_4711", "slurm", "4711", None),
    # other containers
    (f"0::/system.slice/docker-{CONTAINER}.scope", "container", CONTAINER, None),
    (f"4:pids:/docker/{CONTAINER}", "container", CONTAINER, None),
    (f"0::/machine.slice/libpod-{CONTAINER}.scope/container", "container", CONTAINER, None),
    # systemd
    ("0::/system.slice/train.service", "systemd", "train.service", None),
    (
        "1:name=systemd:/system.slice/train@7.service\n4:memory:/system.slice/train@7.service",
        "systemd",
        "train@7.service",
        None,
    ),
    ("0::/user.slice/user-1000.slice/session-3.scope", "systemd", "user-1000.slice/session-3.scope", None),
    (
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-jupyter.service",
        "systemd",
        "user-1000.slice/app-jupyter.service",
        None,
    ),
    # below his own service manager a user may give groups any name
    (
        f"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{POD}/{CONTAINER}",
        "systemd",
        "user-1000.slice/user@1000.service",
        None,
    ),
    (
        "0::/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_1/step_0",
        "systemd",
        "user-1000.slice/user@1000.service",
        None,
    ),
    ("0::/anything/slurm/uid_0/job_1/step_0", "none", "", None),
    ("0::/podcasts/pod-of-whales", "none", "", None),
    # outside of all
    ("0::/", "none", "", None),
    ("12:cpu:/\n0::/init.scope", "systemd", "init.scope", None),
    ("", "none", "", None),
    ("nonsense", "none", "", None),
]


@pytest.mark.parametrize(("cgroup", "kind", "name", "container"), CASES)
def test_the_control_group_tells_the_job(cgroup: str, kind: str, name: str, container: str | None) -> None:
    job = job_of(cgroup)
    assert (job.kind, job.name, job.container) == (kind, name, container)


def test_names_are_bounded_and_printable() -> None:
    job = job_of("0::/system.slice/" + "x" * 1000 + "\x1b[2J.service")
    assert len(job.name) <= 256
    assert job.name.isprintable()


def test_only_the_named_variables_are_noted() -> None:
    environ = (
        b"PATH=/bin\0SLURM_JOB_ID=4711\0SECRET=x\0POD_NAME=\xff\xfe\0POD_NAMESPACE=a\x1bb\0SLURM_STEP_ID=" + b"7" * 500
    )
    assert claims_of(environ) == (("SLURM_JOB_ID", "4711"), ("SLURM_STEP_ID", "7" * 128))
    assert claims_of(b"") == claims_of(b"=\0\0x") == ()


# Real processes

HIERARCHIES = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/systemd")]


@pytest.fixture
def hierarchy() -> Path:
    """A hierarchy of control groups in which a group can be made."""
    return next(root for root in HIERARCHIES if (root / "cgroup.procs").exists())


@pytest.fixture
def pod_group(hierarchy: Path) -> Iterator[tuple[Path, str]]:
    """A control group as the kubelet makes it for a pod, and the pod's uid."""
    uid = str(uuid.uuid4())
    top = hierarchy / "kubepods"
    existed = top.exists()
    group = top / f"pod{uid}"
    group.mkdir(parents=True)
    yield group, uid
    group.rmdir()
    if not existed:
        top.rmdir()


def sleeper(**env: str) -> subprocess.Popen[bytes]:
    """A process that has begun and lives until its input ends."""
    program = "import sys; print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **env}
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.communicate()


def test_a_process_in_a_pod_s_group_is_known_by_it(
    pod_group: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, uid = pod_group
    processes = Processes()
    process = sleeper(SLURM_JOB_ID="12", SECRET="x")
    try:
        before = processes.job(process.pid)
        assert before.claimed == (("SLURM_JOB_ID", "12"),)
        (group / "cgroup.procs").write_text(str(process.pid))
        monkeypatch.setattr("mountd.ledger.processes.LOOK_AGAIN_S", 0.0)
        assert processes.job(process.pid) == Job("kubernetes", uid, None, (("SLURM_JOB_ID", "12"),))
    finally:
        end(process)
        processes.close()


def test_a_thread_is_known_by_its_process_s_job() -> None:
    processes = Processes()
    with ThreadPoolExecutor(1) as pool:
        thread = pool.submit(threading.get_native_id).result()
        assert thread != os.getpid()
        assert processes.job(thread) == processes.job(os.getpid()) != UNKNOWN
    processes.close()


def test_what_cannot_be_seen_is_unknown() -> None:
    processes = Processes()
    process = sleeper()
    end(process)
    assert processes.job(0) == processes.job(-1) == processes.job(process.pid) == UNKNOWN
    processes.close()


def test_a_known_process_that_ended_is_not_taken_for_who_has_its_number_next(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes()
    process = sleeper(SLURM_JOB_ID="1")
    assert processes.job(process.pid).claimed
    end(process)
    monkeypatch.setattr("mountd.ledger.processes.LOOK_AGAIN_S", 0.0)
    assert processes.job(process.pid) == UNKNOWN
    assert LOOK_AGAIN_S <= 1.0
    processes.close()


def test_no_more_descriptors_are_kept_than_processes_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mountd.ledger.processes.KEPT", 2)
    processes = Processes()
    started = [sleeper() for _ in range(4)]
    try:
        before = len(os.listdir("/proc/self/fd"))
        for process in started * 2:
            assert processes.job(process.pid).kind != "unknown"
        assert len(os.listdir("/proc/self/fd")) <= before + 2
    finally:
        processes.close()
        for process in started:
            end(process)


def test_the_host_s_own_pid_namespace_is_recognised() -> None:
    in_a_new_one = subprocess.run(
        [
            "unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c",
            "from mountd.ledger.processes import hostpid_visible; print(hostpid_visible())",
        ],
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    assert in_a_new_one.stdout == "False\n"
    assert hostpid_visible() == (os.readlink("/proc/self/ns/pid") == "pid:[4026531836]")
