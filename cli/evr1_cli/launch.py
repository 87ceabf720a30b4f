"""`evr1 launch`: print the script that runs evr1 on several nodes. Nothing is started here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WRITTEN = "Written by `evr1 launch`"
"""In every script, which may be written anew."""


def command(
    arguments: Annotated[list[str], typer.Argument(metavar="-- train ARGS...", help="The command of evr1 to run, behind `--`.")],
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="GPUs of each; 0 is CPUs alone.")] = 8,
    template: Annotated[str, typer.Option(help="slurm, or ray-start for machines without a scheduler.")] = "slurm",
    name: Annotated[str, typer.Option(help="Name of the job.")] = "evr1",
    out: Annotated[Path | None, typer.Option(help="Write the script there; else it is printed.")] = None,
) -> None:
    """Print or write the script that starts Ray on every node, runs `evr1 train` on the first, and stops what it started.

    For example `evr1 launch --nodes 2 --gpus-per-node 8 --out job.sh -- train run.yaml`, then `sbatch job.sh`.
    """
    from evr1_core.errors import RequestError, nearest

    if template not in ("slurm", "ray-start"):
        raise RequestError(f"--template {template}: no such template{nearest(template, ['slurm', 'ray-start'])}")
    if arguments[0] != "train":
        raise RequestError(f"evr1 launch runs `train`, not {arguments[0]!r}: write `evr1 launch ... -- train run.yaml`")
    if not name or any(not (letter.isalnum() or letter in "-_.") for letter in name):
        raise RequestError(f"--name {name!r}: letters, digits, - _ . alone")
    decided = [one for one in arguments if one.split("=")[0] in ("cluster.backend", "cluster.address", "--backend", "--ray-address")]
    if decided:
        raise RequestError(f"{decided[0]}: the script gives the backend and the address itself, leave it out")
    if out is not None and out.exists() and WRITTEN not in out.read_text(encoding="utf-8", errors="replace"):
        raise RequestError(f"--out {out}: there is a file of this name that evr1 launch hasn't written; give another name")
    text = render(template, arguments, nodes, gpus_per_node, name, out)
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
        typer.echo(f"{out}: {'sbatch it' if template == 'slurm' else 'its first lines say how to run it'}", err=True)


def render(template: str, arguments: list[str], nodes: int, gpus_per_node: int, name: str, out: Path | None) -> str:
    import shlex
    import sys

    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("evr1_templates", "launch")
    environment = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    # The interpreter and the programs beside it: every node has to find the same environment.
    python = shlex.quote(sys.executable)
    return environment.get_template(f"{template}.sh.j2").render(
        name=name,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        python=python,
        ray=f"{python} -m ray.scripts.scripts",
        train=f"{python} -m evr1_cli.main {shlex.join(arguments)}",
        script=out.name if out else "SCRIPT",
        address=environment.get_template("address.py.j2").render().rstrip(),
        wait=environment.get_template("wait.py.j2").render().rstrip(),
    )
