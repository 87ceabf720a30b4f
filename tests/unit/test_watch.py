"""Readings of memory and disks, and what is made of them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evr1_core.cluster.watch import ShortOfDisk, ShortOfMemory, Watch, check_space, folders, judge, memory_knobs, metrics
from evr1_core.config.cluster import ClusterSection
from evr1_core.config.load import load
from evr1_core.config.models import RunConfig
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.record.resources import GIB, Disk, Memory, Reading, host_memory, processes, reading

MEMINFO = "MemTotal: 16777216 kB\nMemFree: 1048576 kB\nMemAvailable: 12582912 kB\n"


def config(tmp_path: Path, *more: str) -> RunConfig:
    return load([], [f"output={tmp_path / 'runs'}", f"media.cache_dir={tmp_path / 'cache'}", *more]).config


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_memory_of_a_machine_without_limits(tmp_path: Path) -> None:
    found = host_memory(machine(tmp_path, {"proc/self/cgroup": "0::/\n"}))
    assert (found.used, found.total, found.of) == (4 * GIB, 16 * GIB, "the machine")
    assert found.share == 0.25


def test_a_container_is_full_before_its_machine(tmp_path: Path) -> None:
    """Version 2: the limit of a group above counts, page cache of files doesn't."""
    group = "sys/fs/cgroup/kubepods/pod"
    found = host_memory(
        machine(
            tmp_path,
            {
                "proc/self/cgroup": "0::/kubepods/pod/main\n",
                f"{group}/main/memory.max": "max\n",
                f"{group}/main/memory.current": str(3 * GIB),
                f"{group}/memory.max": str(4 * GIB),
                f"{group}/memory.current": str(3 * GIB),
                f"{group}/memory.stat": f"anon {2 * GIB}\nactive_file {GIB // 2}\ninactive_file {GIB // 4}\nshmem 0\n",
            },
        )
    )
    assert (found.used, found.total) == (3 * GIB - GIB // 2 - GIB // 4, 4 * GIB)
    assert found.of.endswith("kubepods/pod")


def test_a_container_whose_group_has_the_path_of_the_host(tmp_path: Path) -> None:
    """Version 1: the mount is the container's own group."""
    group = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n",
        f"{group}/memory.limit_in_bytes": str(2 * GIB),
        f"{group}/memory.usage_in_bytes": str(GIB),
        f"{group}/memory.stat": "cache 9\ntotal_active_file 0\ntotal_inactive_file 1048576\n",
    }
    found = host_memory(machine(tmp_path, files))
    assert (found.used, found.total) == (GIB - 2**20, 2 * GIB)
    unlimited = host_memory(machine(tmp_path, {f"{group}/memory.limit_in_bytes": str(2**63 - 4096)}))
    assert unlimited.of == "the machine"


def test_this_machine_and_the_processes_of_a_run(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "x = b'x' * 2**27; print(flush=True); input()"], stdin=-1, stdout=-1)
    try:
        assert child.stdout is not None and child.stdout.readline()
        found = reading("driver", {"run": tmp_path / "not" / "there"})
        assert found.processes[os.getpid()][0] == "driver" and found.processes[child.pid][1] > 2**27
        assert 0 < found.memory.share < 1 and 0 < found.disks["run"].free <= found.disks["run"].total
    finally:
        child.kill()
        child.communicate()
    assert child.pid not in processes("driver")


def node(name: str, node: str, used: float, processes: dict[int, tuple[str, int]], free: float = 100) -> Reading:
    return Reading(name, node, Memory(int(used * GIB), 100 * GIB), processes, {"run": Disk("/runs", int(free * GIB), 200 * GIB)})


READINGS = [
    node("driver", "a", 50, {1: ("driver", 2 * GIB), 11: ("Ray worker", 30 * GIB), 12: ("scorer", GIB)}),
    node("policy rank 0", "a", 50, {11: ("policy rank 0", 30 * GIB)}),
    node("policy rank 1", "b", 97, {11: ("policy rank 1", 70 * GIB), 13: ("decoder", GIB)}, free=0.5),
]


def test_a_full_node_is_named_with_what_fills_it() -> None:
    section = ClusterSection(max_host_memory=0.95, min_free_disk_gib=0)
    with pytest.raises(ShortOfMemory) as caught:
        judge(READINGS, section, ["train.save=wait"])
    text = str(caught.value)
    assert text.startswith("b: 97.0 of 100.0 GiB of memory of the machine are in use (97.0%), above cluster.max_host_memory=0.95")
    assert "policy rank 1 70.0 GiB (pid 11), decoder 1.0 GiB (pid 13)" in text and "To use less: train.save=wait" in text
    assert "not of this run" not in text and isinstance(caught.value, Evr1Error)
    judge(READINGS, ClusterSection(max_host_memory=0.98, min_free_disk_gib=0))


def test_memory_that_others_hold_is_said_to_be_theirs() -> None:
    with pytest.raises(ShortOfMemory, match=r"The other 89.0 GiB are not of this run: end what holds them"):
        judge([node("driver", "a", 99, {1: ("driver", 10 * GIB)})], ClusterSection())


def test_a_full_disk_is_named_with_the_place_to_change() -> None:
    with pytest.raises(ShortOfDisk, match=r"/runs \(run\) on b: 0.50 GiB of its disk are free, .*min_free_disk_gib=1: .*train.keep"):
        judge(READINGS, ClusterSection(max_host_memory=1.0))


def test_a_worker_counts_once(tmp_path: Path) -> None:
    found = metrics(READINGS)
    assert found["resources/rss_gib/driver"] == 3 and found["resources/rss_gib/policy_rank_0"] == 30
    assert found["resources/rss_gib/policy_rank_1"] == 71
    assert found["resources/host_share"] == 0.97 and found["resources/disk_free_gib/run"] == 0.5


def test_a_step_gives_its_numbers_and_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(config(tmp_path))
    watch.check_start()
    found = watch.check_step()
    assert watch.trouble is None
    assert {"resources/disk_free_gib/run", "resources/disk_free_gib/cache", "resources/disk_free_gib/temp"} <= found.keys()
    assert found["resources/rss_gib/driver"] > 0.01
    full = replace(READINGS[0], memory=Memory(99 * GIB, 100 * GIB))
    assert watch.check_step([full])["resources/host_share"] == 0.99
    assert isinstance(watch.trouble, ShortOfMemory) and "train.batch_size (now 256" in str(watch.trouble)
    with pytest.raises(ShortOfMemory):
        watch.check_start(others=[full])
    watch.check_step()
    assert watch.trouble is None


def test_folders_are_looked_at_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match=r"file/cache \(cache\): no file can be written there \(Not a directory\).*media.cache_dir"):
        Watch(config(tmp_path, f"media.cache_dir={tmp_path / 'file' / 'cache'}")).check_start()
    assert "cache" not in folders(config(tmp_path, "media.mode=cache-only"))
    remote = config(tmp_path, "cluster.backend=ray", f"cluster.spill_dir={tmp_path / 'spill'}", f"cluster.temp_dir={tmp_path}")
    assert folders(remote)["spill"] == tmp_path / "spill" and folders(remote)["temp"] == tmp_path
    assert any("cluster.prompts_gib" in knob for knob in memory_knobs(remote))


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a file system in memory that anybody may write to")
def test_a_small_disk_is_refused_before_the_start() -> None:
    """A real file system, of which the run asks for more than there is."""
    folder = Path("/dev/shm") / f"evr1-test-{os.getpid()}"
    try:
        free = reading("driver", {"run": folder}).disks["run"].free
        small = config(folder, f"cluster.min_free_disk_gib={free / GIB + 1}")
        with pytest.raises(ShortOfDisk, match=str(folder)):
            Watch(small).check_start()
        with pytest.raises(RequestError, match=r"3 checkpoints \(train.keep=2 and one that is written\)"):
            Watch(config(folder)).check_start(checkpoint_bytes=free)
    finally:
        subprocess.run(["rm", "-r", str(folder)], check=True, timeout=60)


def test_checkpoints_that_are_there_need_no_more_space(tmp_path: Path) -> None:
    run = config(tmp_path, "train.keep=2")
    for step in (20, 40):
        (run.directory / f"checkpoints/step-{step:06d}").mkdir(parents=True)
        (run.directory / f"checkpoints/step-{step:06d}/manifest.json").write_text("{}")
    check_space(run, 10 * GIB, free=11 * GIB)
    with pytest.raises(RequestError, match=r"need 10.0 GiB more, 10.0 GiB each, and 9.0 GiB are free"):
        check_space(run, 10 * GIB, free=9 * GIB)
