"""Attacks on the sandbox: each is contained, and nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evr1_core.scoring import ScoringFailed, sandbox
from evr1_core.scoring.sandbox import LAYERS, Limits, run_python
from evr1_core.scoring.seccomp import filter_program

SHORT = Limits(seconds=0.5, cpu=1)


def processes(folder: Path) -> set[int]:
    """Those that run in one of the sandbox's folders below `folder`, whatever their session, group or parent; zombies not counted."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                place = os.readlink(entry / "cwd")
            except OSError:  # it ended meanwhile
                continue
            if place.startswith(str(folder)):
                found.add(int(entry.name))
    return found


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    """Where the sandbox makes its folders; at the end none of them and no process is left."""
    folder = tmp_path_factory.mktemp("sandbox")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox.tempfile, "tempdir", str(folder))
        yield folder
    assert not processes(folder) and not list(folder.glob("evr1-sandbox-*"))


PROGRAMS = {
    "stdin": ("a, b = map(int, input().split())\nprint(a + b)", b"7\n"),
    "stdin as a file": ("print(sum(map(int, open(0).read().split())))", b"7\n"),
    "stdin by name": ("print(sum(map(int, open('/dev/stdin').read().split())))", b"7\n"),
    "bytes": ("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())", b"3 4"),
    "main guard": ("if __name__ == '__main__': print(1)", b"1\n"),
    "exit": ("import sys\nprint(1)\nsys.exit()", b"1\n"),
    "threads": ("import threading\nt = threading.Thread(target=print, args=(1,))\nt.start()\nt.join()", b"1\n"),
    "deep recursion": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 27)\n"
        "def f(n): return n and 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(20000)))\nt.start()\nt.join()",
        b"20000\n",
    ),
    "event loop": ("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 1\nprint(asyncio.run(f()))", b"1\n"),
    "library": (
        "import abc, bisect, collections, csv, dataclasses, datetime, decimal, enum, fractions, functools, heapq, itertools, json, math,"
        " operator, os, random, re, statistics, string, subprocess, tempfile, textwrap, traceback, typing, zoneinfo\nprint(1)",
        b"1\n",
    ),
    "a caught error": ("import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\nprint(1)", b"1\n"),
    "no environment": ("import os, sys\nprint(len(os.environ), os.listdir(sys.path[1]) != [], sys.argv)", b"0 True ['main.py']\n"),
    "no packages": (
        "import sys\ntry:\n    import numpy\nexcept ImportError:\n    print([p for p in sys.path if 'site-packages' in p])",
        b"[]\n",
    ),
    "UTC": ("import time\nprint(time.localtime(0).tm_hour)", b"0\n"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs(name):
    code, expected = PROGRAMS[name]
    run = run_python(code, stdin="3 4")
    assert (run.end, run.stdout) == ("done", expected)


def test_two_runs_are_equal():
    code = "import random\nprint({str(i) for i in range(20)}, random.random(), hash('x'))"
    assert run_python(code).stdout == run_python(code).stdout


VALUES = {
    "[None, True, 3, -2.5, 'a\\n\\udc80', (1, [2])]": [None, True, 3, -2.5, "a\n\udc80", [1, [2]]],
    "{1: {'a'}, (1, 2): {}}": {1: {"a"}, (1, 2): {}},
    "{(1, (2, 3)), 'x'}": {(1, (2, 3)), "x"},
    "10 ** 5000": 10**5000,
    "float('inf')": float("inf"),
    "x": 5,
}


@pytest.mark.parametrize("expression", VALUES)
def test_a_value_comes_out(expression):
    run = run_python("x = 5", expression=expression)
    assert run.end == "done" and run.value == VALUES[expression]
    assert type(run.value) is type(VALUES[expression])


NOT_PLAIN = (
    "object()", "b'x'", "1j", "frozenset()", "(i for i in 'a')", "type('L', (list,), {})()", "type('I', (int,), {})(3)",
    "[0] * 70000", "'x' * 70000", "10 ** 600000", "loop", "deep", "wide",
)  # fmt: skip


@pytest.mark.parametrize("expression", NOT_PLAIN)
def test_other_values_do_not(expression):
    code = "loop = []\nloop.append(loop)\ndeep = []\nfor _ in range(200): deep = [deep]\nwide = []\nfor _ in range(40): wide = [wide, wide]"
    run = run_python(code, expression=expression)
    assert run.end in ("error", "output") and run.value is None


FRAMES = """
import sys
frame = sys._getframe()
while frame.f_back: frame = frame.f_back
def stolen(frame=sys._getframe()):
    while frame:
        if 'request' in frame.f_locals: return frame.f_locals
        frame = frame.f_back
"""

ATTACKS = {
    # ends without an answer
    "os._exit": ("import os\nos._exit(0)", {"error"}),
    "sys.exit": ("raise SystemExit(0)", {"error"}),
    "abort": ("import os\nos.abort()", {"error", "forbidden"}),
    "endless loop": ("while True: pass", {"timeout"}),
    "endless sleep": ("import time\ntime.sleep(99)", {"timeout"}),
    "closes all and sleeps": ("import os, time\nos.closerange(0, 64)\ntime.sleep(99)", {"timeout"}),
    "endless output": ("while True: print('x' * 1000)", {"output"}),
    "endless result": (
        "import os\nfor fd in range(3, 20):\n    try:\n        while True: os.write(fd, b'x' * 1000)\n    except OSError: pass",
        {"output", "error", "timeout"},
    ),
    "memory": ("x = []\nwhile True: x.append(bytearray(1 << 24))", {"error", "timeout"}),
    "one huge object": ("x = 'a' * (1 << 40)", {"error"}),
    "huge power": ("x = 9 ** 9 ** 9", {"timeout", "error"}),
    "recursion": ("def f(): f()\nf()", {"error"}),
    "C recursion": ("import sys\nsys.setrecursionlimit(10 ** 9)\nx = ()\nfor _ in range(10 ** 6): x = (x,)\nhash(x)", {"error", "timeout"}),
    "a thousand threads": (
        "import threading, time\nfor _ in range(5000): threading.Thread(target=time.sleep, args=(99,)).start()", {"error", "timeout"},
    ),
    "catches everything": ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", {"timeout"}),
    "hostile syntax": ("(" * 10000, {"error"}),
    "exit hooks": ("import atexit\natexit.register(print)\nraise KeyboardInterrupt", {"error"}),
    # files
    "reads a file": ("open('/etc/passwd').read()", {"forbidden"}),
    "catches the refusal": ("try:\n    open('/etc/passwd')\nexcept BaseException: pass\nanswer = 3", {"forbidden"}),
    "reads by io": ("import io\nio.FileIO('/etc/passwd')", {"forbidden"}),
    "reads by os": ("import os\nos.open('/etc/passwd', os.O_RDONLY)", {"forbidden"}),
    "reads by codecs": ("import codecs\ncodecs.open('/etc/passwd')", {"forbidden"}),
    "reads by loader": ("import importlib.machinery as m\nm.SourceFileLoader('x', '/etc/passwd').get_data('/etc/passwd')", {"forbidden"}),
    "reads by linecache": ("import linecache\nanswer = linecache.getlines('/etc/passwd')", {"forbidden", "error"}),
    "reads through the library": ("import os\nopen(os.__file__.replace('os.py', '../../../../../etc/passwd'))", {"forbidden"}),
    "a lying path": ("class P(str):\n    def startswith(self, *a): return True\nopen(P('/etc/passwd'))", {"forbidden"}),
    "a path object": ("class P:\n    def __fspath__(self): return '/etc/passwd'\nopen(P())", {"forbidden"}),
    "a relative path": ("open('x')", {"forbidden"}),
    "writes": ("open('x', 'w')", {"forbidden"}),
    "writes over the library": ("import os\nopen(os.__file__, 'r+')", {"forbidden"}),
    "writes by os": ("import os\nos.open(os.__file__, os.O_WRONLY)", {"forbidden", "error"}),
    "own memory": ("open('/proc/self/mem', 'rb')", {"forbidden"}),
    "environment of others": ("open('/proc/1/environ', 'rb')", {"forbidden"}),
    "lists": ("import os\nos.listdir('.')", {"forbidden"}),
    "removes": ("import os\nos.remove('/etc/hostname.none')", {"forbidden"}),
    "makes a pipe file": ("import os\nos.mkfifo('x')", {"forbidden", "error"}),
    "makes a folder": ("import os\nos.mkdir('x')", {"forbidden"}),
    "moves": ("import shutil\nshutil.move('a', 'b')", {"forbidden"}),
    "current directory import": ("import sys\nsys.path.insert(0, '')\nimport conftest", {"forbidden", "error"}),
    "sqlite": ("import sqlite3\nsqlite3.connect('x')", {"forbidden"}),
    "packages of the interpreter": ("import os, sys\nsys.path.append(sys.path[1] + '/site-packages')\nimport pip", {"forbidden", "error"}),
    # processes and signals
    "fork": ("import os\nos.fork()", {"forbidden"}),
    "fork bomb": ("import os\nwhile True:\n    try: os.fork()\n    except BaseException: pass", {"forbidden"}),
    "daemon": ("import os\nif not os.fork():\n    os.setsid()\n    while True: pass", {"forbidden"}),
    "system": ("import os\nos.system('true')", {"forbidden"}),
    "exec": ("import os\nos.execv('/bin/true', ['true'])", {"forbidden"}),
    "spawn": ("import os\nos.posix_spawn('/bin/true', ['true'], {})", {"forbidden"}),
    "subprocess": ("import subprocess\nsubprocess.run(['true'])", {"forbidden"}),
    "raw fork_exec": (
        "import _posixsubprocess as p, os\nr, w = os.pipe()\n"
        "p.fork_exec([b'true'], [b'/bin/true'], True, (w,), None, None, -1, -1, -1, -1, -1, -1, r, w, False, False, 0, None, None, None,"
        " -1, None, False)", {"forbidden", "error"},  # the number of arguments depends on the version of Python
    ),
    "posix by subclasses": (
        "for c in object.__subclasses__():\n    if c.__name__ == '_wrap_close': c.__init__.__globals__['system']('true')", {"forbidden"},
    ),
    "multiprocessing": ("import multiprocessing\nmultiprocessing.Process(target=print).start()", {"forbidden", "error"}),
    "kills the parent": ("import os\nos.kill(os.getppid(), 9)", {"forbidden"}),
    "kills the group": ("import os\nos.killpg(0, 9)", {"forbidden"}),
    "thread signal": ("import signal, threading\nsignal.pthread_kill(threading.get_ident(), 9)", {"forbidden"}),
    "debugger": ("import sys\nsys.settrace(lambda *a: None)", {"forbidden"}),
    "second interpreter": ("import _xxsubinterpreters", {"forbidden"}),
    "raises its limits": ("import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))", {"forbidden"}),
    "goes before others": ("import os\nos.setpriority(os.PRIO_PROCESS, 0, -20)", {"forbidden", "error"}),
    "moves to other cores": ("import os\nos.sched_setaffinity(0, {0})", {"forbidden", "error"}),
    # network and memory
    "socket": ("import socket\nsocket.create_connection(('127.0.0.1', 80))", {"forbidden"}),
    "datagrams": ("import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM)", {"forbidden"}),
    "local socket": ("import socket\nsocket.socket(socket.AF_UNIX).connect('\\0x')", {"forbidden", "error"}),
    "download": ("import urllib.request\nurllib.request.urlopen('http://127.0.0.1')", {"forbidden"}),
    "names": ("import socket\nsocket.gethostbyname('localhost')", {"forbidden"}),
    "ctypes": ("import ctypes", {"forbidden"}),
    "_ctypes": ("import _ctypes", {"forbidden"}),
    "ctypes by subclasses": (
        "def walk(c):\n    for s in type.__subclasses__(c):\n        yield s\n        yield from walk(s)\n"
        "for c in walk(object):\n    if c.__name__ in ('PyCFuncPtr', 'CFuncPtr'):\n"
        "        F = type('F', (c,), {'_flags_': 1, '_restype_': None})\n        F(1)()\nraise SystemExit(1)",
        {"forbidden", "error"},
    ),
    "builtin module made anew": (
        "import _imp\nfrom importlib.machinery import ModuleSpec\n_imp.create_builtin(ModuleSpec('posix', None)).system('true')",
        {"forbidden"},
    ),
    "memory without a name": ("import os\nos.memfd_create('x')", {"forbidden", "error"}),
    "shared memory": ("from multiprocessing import shared_memory\nshared_memory.SharedMemory(create=True, size=9)", {"forbidden"}),
    "signals by descriptor": ("import fcntl, os\nfcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())", {"forbidden"}),
    "timer of the fault handler": ("import faulthandler\nfaulthandler.dump_traceback_later(9, exit=True)\nwhile True: pass",
                                   {"timeout", "error"}),
    "forged bytecode": (
        "import types\ncode = (lambda: 1).__code__.replace(co_code=b'\\x64\\xff' * 10 + b'\\x53\\x00')\ntypes.FunctionType(code, {})()",
        {"error"},
    ),
    # the checker
    "a method that the hook could call": ("class P:\n    def __index__(self): raise SystemExit(0)\nopen(P())", {"forbidden", "error"}),
    "a lying number": ("class I(int):\n    def __eq__(s, o): return True\n    def __hash__(s): return 0\nopen(I(7))", {"forbidden"}),
    "a lying event": ("import sys\nclass S(str):\n    def startswith(s, *a): return True\nsys.audit(S('os.system'))", {"forbidden"}),
    "gc": ("import gc\ngc.get_objects()", {"forbidden"}),
    "hides from the hook": ("import sys\nsys.addaudithook = None\nimport os\nos.system('true')", {"forbidden"}),
    "rebinds builtins": (
        "import builtins\nbuiltins.type = lambda *a: str\nbuiltins.len = lambda *a: 0\nopen('x', 'w')",
        {"forbidden"},
    ),
    "rebinds the child's names": (
        FRAMES + "frame.f_globals['_HARMLESS'] = ('',)\nframe.f_globals['FORBIDDEN'] = 0\nopen('x', 'w')",
        {"forbidden", "error"},
    ),
    "forged line": (
        "import os\nfor fd in range(3, 10):\n    try: os.write(fd, b'x value 3\\n')\n    except OSError: pass\nos._exit(0)", {"error"},
    ),
    "forged printed line": ("print('value 3')\nimport os\nos._exit(0)", {"error"}),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_contained(name):
    code, ends = ATTACKS[name]
    started = time.monotonic()
    run = run_python(code, expression="answer", limits=SHORT)
    assert run.end in ends
    assert run.value is None
    assert len(run.stdout) <= (64 << 10) + (1 << 16)
    assert time.monotonic() - started < 15


SIGNALS = "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"


def test_signals_can_not_be_ignored_or_set():
    assert run_python(SIGNALS + "while True: pass", limits=SHORT).end == "timeout"
    assert run_python("import signal\nsignal.alarm(1)").end in ("forbidden", "error")


@pytest.mark.parametrize("name", ("fork", "raw fork_exec", "system", "reads a file", "lists", "socket", "own memory", "daemon", "ctypes",
                                  "goes before others", "moves to other cores"))  # fmt: skip
def test_the_audit_hook_holds_alone(name):
    run = run_python(ATTACKS[name][0], expression="answer", limits=SHORT, layers=())
    assert run.end in ("forbidden", "error") and run.layers == ()


WITHOUT_HOOK = """
import sys
sys.addaudithook = lambda hook: None
sys.argv[0] = {script!r}
exec(compile(open({script!r}).read(), {script!r}, "exec"))
"""


@pytest.mark.parametrize("name", ("fork", "reads a file", "raw fork_exec", "lists", "own memory", "kills the group", "writes", "socket"))
def test_the_kernel_holds_alone(name, tmp_path, monkeypatch):
    layers = run_python("").layers
    if layers != LAYERS:
        pytest.skip(f"this kernel has {layers}")
    script = tmp_path / "sandbox_child.py"
    script.write_text(WITHOUT_HOOK.format(script=str(sandbox._CHILD)))
    monkeypatch.setattr(sandbox, "_CHILD", script)
    assert run_python("", limits=SHORT).end == "done"
    assert run_python(ATTACKS[name][0] + "\nanswer = 3", expression="answer", limits=SHORT).end in ("forbidden", "error")


def test_rebound_builtins_do_not_make_a_test_true():
    code = "import builtins\nbuiltins.eval = builtins.compile = lambda *a, **k: True\nbuiltins.type = lambda *a: bool\nanswer = 3"
    assert run_python(code, expression="answer == 4").value is False


def test_a_lying_object_and_a_forged_secret_change_nothing():
    lie = "class E:\n    def __eq__(self, o): return True\n    def __repr__(self): return '3'\n    __str__ = __repr__\nanswer = E()"
    assert run_python(lie, expression="answer").end == "error"
    write = "import os\nnames = stolen()\nline = names['request']['secret'] + ' value [}\\n'\nos.write(names['out'], line.encode())"
    assert run_python(FRAMES + write + "\nos._exit(0)", expression="answer").end == "error"
    known = run_python(FRAMES + "answer = sorted(stolen()['request'])", expression="answer").value
    assert known == ["code", "cpu", "expression", "files", "filter", "layers", "memory", "output", "parent", "secret"]


def test_a_killed_parent_takes_its_child_along(tmp_path):
    body = "from evr1_core.scoring.sandbox import run_python, Limits; run_python('import time\\ntime.sleep(60)', limits=Limits(60))"
    parent = subprocess.Popen([sys.executable, "-c", body], env={**os.environ, "TMPDIR": str(tmp_path)})
    until = time.monotonic() + 20
    while not (children := processes(tmp_path)) and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.1)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while children & processes(tmp_path) and time.monotonic() < until:
        time.sleep(0.02)
    assert children and not processes(tmp_path)


def test_a_machine_without_processes_is_not_the_answers_fault(monkeypatch):
    monkeypatch.setattr(sandbox.sys, "executable", "/nonexistent/python")
    with pytest.raises(ScoringFailed, match="sandbox_unavailable"):
        run_python("print(1)")


def test_programs_for_two_machines():
    assert len(filter_program("x86_64")) % 8 == 0 < len(filter_program("aarch64"))
    assert filter_program("x86_64") != filter_program("aarch64") and filter_program("riscv64") == b""


def verdict(number: int, *arguments: int) -> int:
    """What the filter says about a system call on x86-64, by the four instructions that it is made of."""
    data = struct.pack("=iIQ6Q", number, 0xC000003E, 0, *arguments, *[0] * (6 - len(arguments)))
    program = list(struct.iter_unpack("=HBBI", filter_program("x86_64")))
    at = loaded = 0
    while True:
        kind, met, missed, value = program[at]
        if kind == 0x06:
            return value
        if kind == 0x20:
            loaded = int.from_bytes(data[value : value + 4], sys.byteorder)
            holds = None
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[kind]
        at += 1 + (0 if holds is None else met if holds else missed)


def test_pointers_are_looked_at_in_full():
    allowed, refused = verdict(0), verdict(72, 0, 8)  # read; F_SETOWN
    limits, send = 302, 44
    assert allowed != refused
    for call, place in ((limits, 2), (send, 4)):
        before = [0] * place
        assert verdict(call, *before, 0) == allowed
        assert {verdict(call, *before, pointer) for pointer in (1, 1 << 32, 7 << 32, (1 << 48) + 4)} == {refused}
