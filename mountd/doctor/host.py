"""The host: kernel, device, rights and limits."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from mountd.doctor.check import Check, judge
from mountd.doctor.trial import Trial
from mountd.kernel.answers import largest_read_bytes
from mountd.kernel.device import DEVICE
from mountd.kernel.processors import LATENCY_DEVICE, may_be_held
from mountd.ledger.processes import hostpid_visible
from mountd.materialise.fanotify import Fanotify
from openshelf.units import KIB, MIB, format_size

CAP_SYS_ADMIN = 21
"""``include/uapi/linux/capability.h``."""
_ENOUGH_FILES = 65_536
_HALT_POLL = "module/haltpoll/parameters/guest_halt_poll_ns"
_OLDEST_WITH_RESEND = "6.9"


def checks(trial: Trial) -> Iterator[Check]:
    """Everything about the host itself; ``trial`` is what a mount on trial found."""
    yield _kernel(trial)
    yield _passthrough(trial)
    yield _device()
    yield judge(
        "fusermount3",
        os.geteuid() == 0 or shutil.which("fusermount3") is not None,
        shutil.which("fusermount3") or "absent",
        "Install the package fuse3: without root it does the mounting.",
        otherwise="fail",
    )
    yield judge(
        "CAP_SYS_ADMIN",
        may_administer(),
        "held" if may_administer() else "not held",
        "Run as root, or give the container the capability: it is needed for passthrough and materialised releases.",
    )
    yield _open_files()
    yield judge(
        "request size",
        largest_read_bytes() >= MIB,
        f"reads of {format_size(largest_read_bytes())}, pipes of {_pipe_limit()}",
        "Set fs.pipe-max-size=2097152 by sysctl, or give CAP_SYS_RESOURCE: larger reads cost less.",
    )
    yield _fanotify()
    yield judge(
        "host's processes",
        hostpid_visible(),
        "visible" if hostpid_visible() else "hidden by a pid namespace",
        "Set hostPID: true for the pod: else the access ledger cannot name the jobs.",
    )
    page = os.sysconf("SC_PAGESIZE")
    yield Check("page size", "ok", f"{page // KIB} KiB")
    yield idle_processors()
    yield _fusectl()
    yield _service_manager()


def may_administer(status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process holds CAP_SYS_ADMIN (``CapEff`` of proc_pid_status(5))."""
    for line in status.read_text("utf-8", "replace").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_ADMIN & 1)
    return False


def idle_processors(sysfs: Path = Path("/sys"), device: Path = LATENCY_DEVICE) -> Check:
    """Whether idle processors come back quickly: because the daemon may say so, or because a virtual machine's stay
    awake for a while (``guest_halt_poll_ns`` of the kernel's ``Documentation/virt/guest-halt-polling.rst``). Waking a
    halted one takes longer than most requests do."""
    name = "idle processors"
    if may_be_held(device):
        return Check(name, "ok", "kept within reach while many requests come")
    try:
        driver = (sysfs / "devices/system/cpu/cpuidle/current_driver").read_text().strip()
        awake_ns = int((sysfs / _HALT_POLL).read_text()) if driver == "haltpoll" else None
    except OSError:
        return Check(name, "ok", "nothing known about them")
    if awake_ns is None:
        return Check(name, "ok", f"driver {driver}")
    found = f"halt after {awake_ns // 1000} µs" if awake_ns else "halt at once"
    fix = (
        f"Let the daemon write {device}, or echo 200000 > /sys/{_HALT_POLL}: the hypervisor wakes a halted processor "
        "slowly, and each request waits."
    )
    return judge(name, awake_ns > 0, found, fix)


def _kernel(trial: Trial) -> Check:
    found = f"Linux {platform.release()}"
    if trial.error:
        libfuse = importlib.util.find_spec("fuse") is not None
        return Check(
            "kernel",
            "warn" if libfuse else "fail",
            f"{found}; {trial.error}",
            "Mend what it names" + ("; until then libfuse serves." if libfuse else ", or install openshelf[libfuse]."),
        )
    return judge(
        "kernel",
        trial.resend,
        f"{found}, FUSE 7.{trial.minor}" + (", requests are sent again after a restart" if trial.resend else ""),
        f"Linux {_OLDEST_WITH_RESEND} sends requests again after a restart; until then a journal stands in for it.",
    )


def _passthrough(trial: Trial) -> Check:
    if trial.error:
        return Check("passthrough", "warn", "not tried: nothing could be mounted", "See the check of the kernel.")
    return judge(
        "passthrough",
        not trial.no_passthrough,
        trial.no_passthrough or "works",
        "Mend what it names; see docs/operators.md.",
    )


def _device() -> Check:
    usable = os.access(DEVICE, os.R_OK | os.W_OK)
    found = "usable" if usable else "closed to this user" if DEVICE.exists() else "absent"
    fix = "Load the fuse module (modprobe fuse), or give the container the device /dev/fuse."
    return judge(str(DEVICE), usable, found, fix, otherwise="fail")


def _open_files() -> Check:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = most == resource.RLIM_INFINITY or most >= _ENOUGH_FILES
    found = "unlimited" if most == resource.RLIM_INFINITY else f"up to {most}"
    return judge("open files", enough, found, "Raise the hard limit (LimitNOFILE=1048576): each open file takes one.")


def _pipe_limit() -> str:
    return format_size(int(Path("/proc/sys/fs/pipe-max-size").read_text()))


def _fanotify() -> Check:
    try:
        Fanotify().close()
    except OSError as error:
        found = error.strerror or "refused"
    else:
        found = "works" if may_administer() else "its events name no process"
    fix = "Linux 5.9 and root are needed: else opens of materialised releases do not reach the access ledger."
    return judge("fanotify", found == "works", found, fix)


def _fusectl() -> Check:
    present = any(Path("/sys/fs/fuse/connections").glob("*/waiting")) or _is_fusectl_mounted()
    fix = "mount -t fusectl none /sys/fs/fuse/connections: it counts waiting requests and can abort a hung mount."
    return judge("fusectl", present, "mounted" if present else "not mounted", fix)


def _is_fusectl_mounted() -> bool:
    return " - fusectl " in Path("/proc/self/mountinfo").read_text("utf-8", "replace")


def _service_manager() -> Check:
    if not Path("/run/systemd/system").is_dir():
        return Check("systemd", "ok", "not used on this host")
    folders = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")
    units = [path.name for folder in folders for path in Path(folder).glob("openshelf-mount*.service")]
    fix = "Copy deploy/systemd/openshelf-mount.service to /etc/systemd/system: a crash of everything is then survived."
    return judge("systemd", bool(units), ", ".join(units) or "no unit of the mount", fix)
