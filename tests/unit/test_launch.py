"""Scripts of `evr1 launch`: sound shell, nothing of others stopped, and one that really makes a cluster of two nodes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from evr1_cli.main import main
from tests.support.nodes import Nodes

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
        (["--", "train", "--ray-address=10.0.0.1:6379"], "leave it out"),
        (["--", "train", "--backend", "local"], "leave it out"),
        (["--name", "a b", "--", "train"], "--name"),
    ],
)
def test_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_script_may_be_written_anew_but_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, other = tmp_path / "job.sh", tmp_path / "run.yaml"
    for nodes in ("2", "3"):
        with pytest.raises(SystemExit) as end:
            main(["launch", "--nodes", nodes, "--out", str(script), *TRAIN])
        assert not end.value.code and f"#SBATCH --nodes={nodes}\n" in script.read_text()
    other.write_text("name: mine\n")
    assert main(["launch", "--out", str(other), *TRAIN]) == 2
    assert "hasn't written" in capsys.readouterr().err and other.read_text() == "name: mine\n"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_nodes(tmp_path: Path) -> None:
    """`head` and `worker` as written make one Ray of two nodes; SIGTERM ends both, and no process of theirs stays."""
    nodes = Nodes(tmp_path)
    try:
        nodes.start()
        assert nodes.token.stat().st_mode & 0o077 == 0
        assert "nodes 2" in nodes.wait_for_both()
    finally:
        left = nodes.end()
    assert not left
    assert all(one.returncode for one in nodes.started), "its own exit code: it was told to stop"
