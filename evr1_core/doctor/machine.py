"""Checks of one machine. Each is a function of what is wanted that returns one finding; one that raises is a fault."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from evr1_core.doctor.finding import Finding, Wanted

GIB = 2**30
PACKAGES = ("torch", "torchvision", "transformers", "ray", "av", "pydantic", "safetensors", "peft", "numpy")
HARMFUL = {
    "CUDA_LAUNCH_BLOCKING": ("1", "every kernel waits for the one before: unset it"),
    "NCCL_P2P_DISABLE": ("1", "GPUs of one machine talk through host memory: unset it"),
    "NCCL_SHM_DISABLE": ("1", "processes of one machine talk through the network: unset it"),
    "NCCL_IB_DISABLE": ("1", "nodes talk through TCP in place of InfiniBand: unset it where there is InfiniBand"),
    "RAY_memory_monitor_refresh_ms": ("0", "Ray doesn't notice that memory runs out: unset it"),
}
"""Variable -> (value that hurts, why)."""


def versions(wanted: Wanted) -> Finding:
    """Python and packages, against what evr1 supports."""
    from packaging.requirements import Requirement

    found: dict[str, str] = {"python": platform.python_version()}
    wrong = []
    supported = [Requirement(text) for text in requires("evr1") or ()]
    names = {
        *PACKAGES,
        *(one.name for one in supported if one.name not in PACKAGES and one.marker is not None and "dev" not in str(one.marker)),
    }
    for name in sorted(names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
        wrong += [
            f"{name} {found[name]}, supported is {one.specifier}"
            for one in supported
            if one.name == name and not one.specifier.contains(found[name], prereleases=True)
        ]
    text = ", ".join(f"{name} {found[name]}" for name in ("python", *PACKAGES) if name in found)
    if wrong:
        return Finding("versions", "fault", "; ".join(wrong), "install the versions that evr1 supports: docs/install.md", facts=found)
    if "torch" not in found:
        return Finding("versions", "warning", f"{text}; no torch", "pip install 'evr1[train]' to train", facts=found)
    return Finding("versions", "ok", text, facts=found)


def gpus(wanted: Wanted) -> Finding:
    """Names, memory, driver, and whether the GPUs reach each other."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    driver = _nvidia("--query-gpu=driver_version")
    if not count:
        if driver:
            text = f"nvidia-smi shows {len(driver)} GPUs, torch {torch.__version__} sees none"
            return Finding("gpus", "fault", text, "install a CUDA build of torch that this driver serves", facts={"gpus": 0})
        return Finding("gpus", "warning", "no GPU", "training on a CPU is for tests and demos", facts={"gpus": 0})
    kinds = [torch.cuda.get_device_properties(index) for index in range(count)]
    text = ", ".join(sorted({f"{kinds.count(one)} x {one.name} {one.total_memory / GIB:.0f} GiB" for one in kinds}))
    facts = {"gpus": count, "names": sorted({one.name for one in kinds}), "driver": driver[:1]}
    text += f", driver {driver[0]}" if driver else ""
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b and not torch.cuda.can_device_access_peer(a, b)]
    if pairs:
        return Finding(
            "gpus", "warning", f"{text}; {len(pairs)} pairs without peer access", "communication goes through host memory", facts=facts
        )
    return Finding("gpus", "ok", text, facts=facts)


def _nvidia(query: str) -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def reduce(wanted: Wanted) -> Finding:
    """A sum over two processes: NCCL where there are two GPUs, else gloo."""
    import torch

    device = "cuda" if torch.cuda.is_available() and torch.cuda.device_count() > 1 else "cpu"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = (
        "import sys, torch, torch.distributed as dist\n"
        "from datetime import timedelta\n"
        "rank, port, device = int(sys.argv[1]), sys.argv[2], sys.argv[3]\n"
        "if device == 'cuda': torch.cuda.set_device(rank)\n"
        "dist.init_process_group('nccl' if device == 'cuda' else 'gloo', init_method=f'tcp://127.0.0.1:{port}', rank=rank,"
        " world_size=2, timeout=timedelta(seconds=60))\n"
        "x = torch.full((1024,), rank + 1.0, device=device)\n"
        "dist.all_reduce(x)\n"
        "assert x.eq(3).all(), x[:4]\n"
        "dist.destroy_process_group()\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    running: list[subprocess.Popen[str]] = []
    try:
        for rank in range(2):
            arguments = [*command, str(rank), str(port), device]
            running.append(subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True))
        errors = [one.communicate(timeout=120)[1] for one in running]
    finally:
        for one in running:
            if one.poll() is None:
                one.kill()
    kind = f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}" if device == "cuda" else "gloo"  # type: ignore[attr-defined]
    bad = [error.strip().splitlines()[-1] for one, error in zip(running, errors, strict=True) if one.returncode and error.strip()]
    if any(one.returncode for one in running):
        return Finding(
            "all-reduce", "fault", f"{kind} over 2 processes failed: {bad[0] if bad else 'no message'}", "NCCL_DEBUG=INFO says more"
        )
    return Finding("all-reduce", "ok", f"{kind} over 2 processes")


def decoder(wanted: Wanted) -> Finding:
    """PyAV decodes a clip that it has encoded here."""
    import av
    import av.error
    import numpy as np

    from evr1_core.media.store import MediaStore
    from evr1_core.types import Budget, MediaRef, PatchFactors

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        with av.open(str(path), "w") as file:
            try:
                stream = file.add_stream("libx264", rate=8)
            except (ValueError, av.error.FFmpegError) as error:
                return Finding(
                    "decoder", "warning", f"av {av.__version__} can't encode a test clip: {error}", "a wheel of av from PyPI has libx264"
                )
            stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"  # type: ignore[attr-defined]
            for level in range(16):
                frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 10 * level, dtype=np.uint8), format="rgb24")
                file.mux(stream.encode(frame))  # type: ignore[attr-defined]
            file.mux(stream.encode())  # type: ignore[attr-defined]
        store = MediaStore(Path(folder) / "cache", "decode-only", 60.0)
        try:
            clip = store.load(MediaRef(str(path), "video"), Budget(), PatchFactors(32))
        finally:
            store.close()
    levels = [int(frame.mean()) for frame in clip.frames]
    if levels != sorted(levels) or len(levels) < 4:
        return Finding(
            "decoder", "fault", f"{clip.decoder}: frames come back wrong, brightness {levels}", "install the wheel of av from PyPI"
        )
    return Finding("decoder", "ok", f"{clip.decoder}: {len(levels)} frames of a clip", facts={"decoder": clip.decoder})


def folders(wanted: Wanted) -> Finding:
    """Free space and speed of the folders that a run writes to."""
    said, wrong = [], []
    for name in wanted.folders:
        there = next(path for path in (Path(name).absolute(), *Path(name).absolute().parents) if path.exists())
        free = shutil.disk_usage(there).free / GIB
        try:
            with tempfile.NamedTemporaryFile(dir=there) as file:
                began = time.monotonic()
                file.write(b"\0" * 2**25)
                file.flush()
                os.fsync(file.fileno())
                speed = 32 / max(1e-3, time.monotonic() - began)
        except OSError as error:
            wrong.append(f"{name}: can't be written ({error.strerror})")
            continue
        said.append(f"{name}: {free:.0f} GiB free, {speed:.0f} MiB/s")
        if free < wanted.min_free_gib:
            wrong.append(f"{name}: {free:.1f} GiB free, {wanted.min_free_gib:g} are wanted")
    if wrong:
        return Finding("folders", "fault", "; ".join(wrong), "free space, or give another place: output, media.cache_dir, cluster.temp_dir")
    return Finding("folders", "ok", "; ".join(said) or "none asked for")


def files(wanted: Wanted) -> Finding:
    """Data files, media and the model's directory are on this node."""
    missing = [name for name in wanted.files if not Path(name).exists()]
    if wanted.model and not (Path(wanted.model) / "config.json").is_file():
        missing.append(f"{wanted.model}/config.json")
    if missing:
        return Finding(
            "files", "fault", f"not on this node: {', '.join(missing)}", "put them at the same path on every node, or on a shared disk"
        )
    count = len(wanted.files) + bool(wanted.model)
    return Finding("files", "ok", f"{count} asked for, all here" if count else "none asked for; --config names them")


def memory(wanted: Wanted) -> Finding:
    """Host memory and /dev/shm."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    total, free = kib["MemTotal"] / 2**20, kib["MemAvailable"] / 2**20
    shm = shutil.disk_usage("/dev/shm").free / GIB if Path("/dev/shm").is_dir() else 0.0
    text = f"{free:.0f} of {total:.0f} GiB free, /dev/shm {shm:.1f} GiB free"
    if shm < 1:
        return Finding("memory", "fault", text, "Ray's object store and NCCL need /dev/shm: 1 GiB at least (docker run --shm-size=16g)")
    if free < total / 4:
        return Finding("memory", "warning", text, "something else uses most of the memory")
    return Finding("memory", "ok", text)


def limits(wanted: Wanted) -> Finding:
    """Open files and processes."""
    files_, processes = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))

    def said(value: int) -> str:
        return "no limit" if value == resource.RLIM_INFINITY else f"{value:,}"

    text = f"open files {said(files_)}, processes {said(processes)}"
    low = [name for name, value, least in (("-n 65536", files_, 8_192), ("-u 65536", processes, 4_096)) if 0 <= value < least]
    if low:
        return Finding("limits", "warning", text, "raise them before Ray starts: " + ", ".join(f"ulimit {one}" for one in low))
    return Finding("limits", "ok", text)


def environment(wanted: Wanted) -> Finding:
    """Variables that make a run slow or blind."""
    bad = [f"{name}={value}: {why}" for name, (value, why) in HARMFUL.items() if os.environ.get(name) == value]
    if bad:
        return Finding("environment", "warning", "; ".join(bad), "unset them where Ray and evr1 are started")
    return Finding("environment", "ok", "no variable that hurts")


def names(wanted: Wanted) -> Finding:
    """The machine's own name leads to an address."""
    host = socket.gethostname()
    try:
        found = sorted({str(info[4][0]) for info in socket.getaddrinfo(host, None)})
    except OSError as error:
        return Finding("names", "warning", f"{host} has no address: {error}", f"add {host} to /etc/hosts or the name server")
    return Finding("names", "ok", f"{host} is {', '.join(found)}")


Check = Callable[[Wanted], Finding]
CHECKS: dict[str, Check] = {
    "versions": versions,
    "gpus": gpus,
    "all-reduce": reduce,
    "decoder": decoder,
    "folders": folders,
    "files": files,
    "memory": memory,
    "limits": limits,
    "environment": environment,
    "names": names,
}
"""Name -> check, in the order in which they are shown."""


def examine(wanted: Wanted) -> list[Finding]:
    """All checks of this machine."""
    return [run(name, check, wanted) for name, check in CHECKS.items()]


def run(name: str, check: Check, wanted: Wanted) -> Finding:
    """A check that raises is a fault that names itself."""
    try:
        return check(wanted)
    except Exception as error:
        return Finding(
            name, "fault", f"the check failed: {type(error).__name__}: {error}", "mend what it names; nothing is known of the rest"
        )
