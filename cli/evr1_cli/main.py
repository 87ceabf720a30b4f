"""The `evr1` program: which commands there are, and how one is started.

To add a command, write `evr1_cli/<name>.py` and give it one line in COMMANDS below. The file holds either

    def command(config: Annotated[Path, typer.Argument(help="...")], ...) -> None:   # `evr1 <name>`

or, for a command with subcommands, `app = group()` (from evr1_cli.group) with `@app.command("list")` functions. At its
top a command file imports the standard library, typer and evr1_core.errors only; everything else in the bodies.
Raise an Evr1Error for what the user has to know: `main` prints its message and exits with its code.

Only the file of the command that was asked for is imported; the others take part by their line in the table. So the
time to start doesn't grow with the number of commands.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

COMMANDS = {
    "algorithms": "Algorithms: list them.",
    "benchmarks": "Benchmarks: list them, show one, check a release.",
    "cache": "The frame cache: fill it, look at it.",
    "compare": "Compare two evaluations question by question.",
    "config": "Show configurations.",
    "data": "Check, show, plan and filter data.",
    "doctor": "Check this machine or a cluster.",
    "launch": "Print the script that runs a training on several nodes.",
    "media": "Look into images and videos.",
    "eval": "Answer and score benchmarks or data files.",
    "export": "Write a checkpoint as a model directory.",
    "judge": "Ask a judge about stored answers that wait for one.",
    "models": "Model families and their presets: list them.",
    "plugins": "Plugins: list them, show one.",
    "report": "Make one page of evaluations, with the frames.",
    "rescore": "Score stored answers anew, without the model.",
    "rewards": "Rewards: list them, check cases, score responses.",
    "train": "Train a model with reinforcement learning.",
}
"""Built-in commands: name -> one line of help. The module is `evr1_cli.<name>`, dashes as underscores."""

HELP = "Post-train vision-language models on video with reinforcement learning, and measure them."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 the work failed, 2 the request is wrong."""
    if argv is not None:
        return run(list(argv))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # half a character in a model's answer is shown, not stumbled over
    code: Any = 1
    try:
        code = run(sys.argv[1:])
    except SystemExit as stop:
        code = stop.code
    leave(code)
    return code


def leave(code: Any) -> None:
    """Ends the program here where an engine hangs in a thread, or the head of its cluster is gone: the interpreter would wait for it, or be
    aborted by it."""
    start = sys.modules.get("evr1_core.cluster.start")
    stuck = any(thread.name == "evr1-engine" for thread in threading.enumerate()) or (start is not None and start.head_is_gone())
    if isinstance(code, int | None) and stuck:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


def run(args: list[str]) -> int:
    """One command; typer leaves by SystemExit."""
    if args[:1] == ["--version"]:
        from evr1_core import __version__

        print(f"evr1 {__version__}")
        return 0
    from evr1_core.errors import Evr1Error

    try:
        return program(args)(args=args, prog_name="evr1", standalone_mode=True) or 0
    except Evr1Error as error:
        if os.environ.get("EVR1_DEBUG") == "1":
            raise
        print(f"evr1: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # the system refused a file: a full disk, a folder that can't be written
        if os.environ.get("EVR1_DEBUG") == "1" or error.strerror is None:
            raise
        where = f"{error.filename}: " if error.filename is not None else ""
        remedy = "free space on this disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "give another place"
        print(f"evr1: {where}{error.strerror}; {remedy} (EVR1_DEBUG=1 shows what was tried)", file=sys.stderr)
        return 2 if isinstance(error, (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)) else 1


def program(args: Sequence[str]) -> Any:
    """The typer program for these arguments: the command that they name in full, every other one by its help line."""
    from evr1_cli.group import group

    wanted = next((arg for arg in args if not arg.startswith("-")), None)
    complete = "_EVR1_COMPLETE" in os.environ  # the shell asks for completions: it may be about any command
    app = group(HELP, add_completion=True, epilog="`evr1 --version` prints the version.")
    added = {} if wanted in COMMANDS else _plugin_commands(wanted)
    for name, summary in sorted({**COMMANDS, **added}.items()):
        load = _built_in if name in COMMANDS else _plugin_command
        _attach(app, name, summary, load(name) if name == wanted or (complete and name in COMMANDS) else _placeholder)
    return app


def _attach(app: Any, name: str, summary: str, command: Any) -> None:
    import typer

    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, help=summary)
    else:
        app.command(name, help=command.__doc__ or summary, short_help=summary)(command)


def _built_in(name: str) -> Any:
    module = importlib.import_module(f"evr1_cli.{name.replace('-', '_')}")
    return getattr(module, "app", None) or module.command


def _plugin_commands(wanted: str | None) -> dict[str, str]:
    """Commands that plugins add: name -> summary. A built-in command of the same name goes first."""
    from evr1_core import plugins
    from evr1_core.specs import CommandSpec

    found = plugins.catalogue()
    commands = {spec.name: spec.summary for spec in found.specs(CommandSpec) if spec.name not in COMMANDS}
    for failure in found.failures if wanted and wanted not in commands else ():
        print(f"evr1: plugin {failure.plugin} failed to load and may offer {wanted!r}: {failure.reason}", file=sys.stderr)
    return commands


def _plugin_command(name: str) -> Any:
    from evr1_core import plugins

    spec = plugins.command(name)  # stops where two plugins offer it
    plugins.check_requirements(spec)
    return plugins.resolve(spec.target)


def _placeholder() -> None:
    raise AssertionError("only the command that was asked for runs")


if __name__ == "__main__":
    sys.exit(main())
