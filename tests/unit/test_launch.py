"""Scripts of `evr1 launch`: sound shell, nothing of others stopped, and one that really makes a cluster of two nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evr1_cli.main import main

TRAIN = ["--", "train", "run.yaml", "name=it's mine", "train.lr=1e-6"]


@pytest.mark.parametrize("template", ["slurm", "ray-start"])
@pytest.mark.parametrize("gpus", ["0", "8"])
def test_script(template: str, gpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["launch", "--nodes", "3", "--gpus-per-node", gpus, "--template", template, *TRAIN])
    assert not end.value.code
    text = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""
    assert "0.0.0.0" not in text and "--force" not in text and not re.search(r"\bray stop\b|pkill|killall|sleep inf", text)
    assert not re.search(r"--port=\d|--port \d", text), "ports are asked for"
    assert "'name=it'\"'\"'s mine'" in text and "cluster.backend=ray" in text
    assert ("#SBATCH --gpus-per-node" in text) == (template == "slurm" and gpus == "8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "eval", "x"], "runs `train`"),
        (["--template", "slum", "--", "train"], "did you mean 'slurm'"),
        (["--", "train", "cluster.address=x"], "leave it out"),
        (["--name", "a b", "--", "train"], "--name"),
    ],
)
def test_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_nodes(tmp_path: Path) -> None:
    """`head` and `worker` as written make one Ray of two nodes; SIGTERM ends both, and no process of theirs stays."""
    script = tmp_path / "job.sh"
    with pytest.raises(SystemExit):
        main(["launch", "--nodes", "2", "--gpus-per-node", "0", "--template", "ray-start", "--out", str(script), "--", "train"])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_enable_open_telemetry": "0"}
    started: list[subprocess.Popen[str]] = []
    try:
        with (tmp_path / "head.log").open("w") as log:
            started.append(start(["bash", str(script), "head"], environment, log))
        address = wait_for(tmp_path / "head.log", r"worker (\S+:\d+)", 60)
        wait_for(tmp_path / "head.log", "Ray runtime started", 120)
        with (tmp_path / "worker.log").open("w") as log:
            started.append(start(["bash", str(script), "worker", address], environment, log))
        token = script.with_name("job.sh.token")
        assert token.stat().st_mode & 0o077 == 0
        joined = {**environment, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        waiting = re.search(r"<<'PYTHON'\n(.*?)\nPYTHON", script.read_text(), re.DOTALL)
        assert waiting
        code = f"{waiting[1]}\nprint('nodes', sum(node['Alive'] for node in ray.nodes()))\nray.shutdown()"
        found = subprocess.run([sys.executable, "-c", code, address, "2"], capture_output=True, text=True, env=joined, timeout=150)
        assert "nodes 2" in found.stdout, found.stderr
    finally:
        groups = [one.pid for one in started]
        for one in reversed(started):
            one.send_signal(signal.SIGTERM)
        for one in started:
            try:
                one.wait(timeout=40)
            finally:
                left = processes(one.pid)
                if left:
                    os.killpg(one.pid, signal.SIGKILL)
    assert not [pid for group in groups for pid in processes(group)]
    assert all(one.returncode for one in started), "its own exit code: it was told to stop"


def start(command: list[str], environment: dict[str, str], log: object) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True)  # type: ignore[arg-type]


def processes(group: int) -> list[int]:
    """Living members of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, member = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(member) == group and state != "Z":
            found.append(int(path.parent.name))
    return found


def wait_for(log: Path, pattern: str, seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[found.lastindex or 0]
        time.sleep(0.2)
    raise AssertionError(f"{pattern!r} not in {log.read_text(errors='replace')[-2000:]}")
