"""Command line programs as processes of their own, without the seconds that torch's import takes.

One process imports everything, for all workers of pytest-xdist, and then forks for each command. So
a command has its own pid, file descriptors, signals and exit code, and runs the real script as
`__main__`; only the import is shared. `Programs` is the tests' end of it; run as a script, this file
is the other end.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

REPOSITORY = Path(__file__).resolve().parents[1]
TIME_LIMIT_S = 120.0  # generous, for a machine that is busy with other work


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended: its exit code (negative: the signal that ended it) and what it wrote."""

    code: int
    stdout: str
    stderr: str

    @classmethod
    def of(cls, code: int, folder: Path) -> ProgramResult:
        """The result of a program that wrote into the files `stdout` and `stderr` of a folder."""
        texts = ((folder / name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        return cls(code, *texts)

    def json_lines(self) -> list[dict[str, Any]]:
        """The JSON objects on standard output, one a line."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    def sentence(self) -> str:
        """The one sentence on stderr that a user's mistake with exit code 2 ends in."""
        assert self.code == 2, self
        assert "Traceback" not in self.stderr, self.stderr
        lines = self.stderr.splitlines()
        assert len(lines) == 1, self.stderr
        assert lines[0].startswith("error: "), self.stderr
        return lines[0].removeprefix("error: ")


class Running:
    """A program that has been started."""

    def __init__(self, programs: Programs, pid: int, folder: Path) -> None:
        self.programs, self.pid, self.folder = programs, pid, folder
        self.code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            self.code = self.programs.ask({"poll": self.pid})
        return self.code

    def wait(self) -> ProgramResult:
        self.wait_until(lambda: self.poll() is not None)
        assert self.code is not None
        return ProgramResult.of(self.code, self.folder)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Check every few milliseconds; when the time is up, end the program and fail."""
        end = time.monotonic() + TIME_LIMIT_S
        while not condition():
            if time.monotonic() > end:
                self.signal(signal.SIGKILL)
                raise AssertionError(
                    f"still waiting after {TIME_LIMIT_S:.0f} s: {(self.folder / 'stderr').read_text()}"
                )
            time.sleep(0.005)

    def signal(self, number: int) -> None:
        """To the program and its children, as a terminal sends Ctrl-C."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


@contextlib.contextmanager
def program_server() -> Iterator[str]:
    """Run the process that forks for each command, and give the address of its socket."""
    # Not in pytest's folders, whose names are too long for a socket.
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/socket"
        command = [sys.executable, __file__, address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=REPOSITORY):
            yield address  # and then its standard input ends, and so does the process


class Programs:
    """Starts train.py, caption.py or the package itself."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address, self.count = folder, address, 0

    def ask(self, request: dict[str, Any]) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            end = time.monotonic() + TIME_LIMIT_S
            while connection.connect_ex(self.address):  # it is still importing
                assert time.monotonic() < end, "the process that forks for commands does not answer"
                time.sleep(0.05)
            with connection.makefile("rw") as stream:
                stream.write(json.dumps(request) + "\n")
                stream.flush()
                return json.loads(stream.readline())

    def start(
        self, script: str, *arguments: object, cwd: Path = REPOSITORY, **environment: str
    ) -> Running:
        """script: `train.py`, `caption.py`, or `captioner` for `python -m captioner`."""
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        pid = self.ask(
            {
                "run": script,
                "arguments": [str(argument) for argument in arguments],
                "cwd": str(cwd),
                "environment": environment,
                "folder": str(folder),
            }
        )
        return Running(self, pid, folder)

    def run(
        self, script: str, *arguments: object, cwd: Path = REPOSITORY, **environment: str
    ) -> ProgramResult:
        return self.start(script, *arguments, cwd=cwd, **environment).wait()


class Commands:
    """Runs the same commands in this process: what they do, write and answer, at less cost.

    What is promised of a process (signals, pipes, what it imports, its exit) needs `Programs`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def run(
        self, script: str, *arguments: object, cwd: Path = REPOSITORY, **environment: str
    ) -> ProgramResult:
        from captioner.__main__ import main

        words = [str(argument) for argument in arguments]
        if script != "captioner":
            words.insert(0, script.removesuffix(".py"))
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        before = os.getcwd(), sys.argv
        with _written_to(folder), patch.dict(os.environ, environment):
            os.chdir(cwd)
            sys.argv = [script, *words]
            try:
                code: object = main(words)
            except SystemExit as ended:
                code = ended.code
            finally:
                os.chdir(before[0])
                sys.argv = before[1]
        assert isinstance(code, int), code
        return ProgramResult.of(code, folder)


@contextlib.contextmanager
def _written_to(folder: Path) -> Iterator[None]:
    """Send what is written to standard output and standard error to files, also that of C++."""
    before = sys.stdout, sys.stderr, os.dup(1), os.dup(2)
    files = [
        (folder / name).open("w", encoding="utf-8", errors=errors)
        for name, errors in (("stdout", "strict"), ("stderr", "backslashreplace"))
    ]  # as a program's own
    for descriptor, file in enumerate(files, start=1):
        os.dup2(file.fileno(), descriptor)
    sys.stdout, sys.stderr = files
    try:
        yield
    finally:
        for file in files:
            file.close()
        sys.stdout, sys.stderr = before[:2]
        for descriptor, kept in enumerate(before[2:], start=1):
            os.dup2(kept, descriptor)
            os.close(kept)


Runs = Programs | Commands


def read_translations_once() -> None:
    """Read PyTorch's translations of operators to ONNX now, and not again for each graph.

    Its exporter reads all of them, a second of a core, for each of the three graphs of a model.
    """
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    from captioner.export import OPSET

    read = functools.cache(ONNXRegistry.from_torchlib)
    read(opset_version=OPSET)
    ONNXRegistry.from_torchlib = staticmethod(read)  # type: ignore[method-assign,assignment]


def serve(address: str) -> None:
    """Answer requests, one a connection, until standard input ends."""
    sys.path[0] = str(REPOSITORY)  # as for a script that lies there
    # Not only what the commands import at once: what each child had to import again costs the most.
    import docstring_parser  # noqa: F401
    import matplotlib.backends.backend_pdf
    import matplotlib.backends.backend_svg
    import matplotlib.cm  # noqa: F401
    import nltk.tokenize.treebank  # noqa: F401
    import onnxscript  # noqa: F401
    import openvino  # noqa: F401
    import pycocoevalcap.bleu.bleu
    import pycocoevalcap.cider.cider
    import pycocoevalcap.rouge.rouge  # noqa: F401
    import timm  # noqa: F401
    import torch._dynamo
    import torch.onnx._internal.exporter._core
    import torch.utils.tensorboard  # noqa: F401

    import captioner.engines.graphs
    import captioner.export
    import captioner.training
    import captioner.visualization  # noqa: F401

    read_translations_once()
    gc.freeze()  # a child that collected garbage among all of that would copy its memory
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            with listener.accept()[0] as connection, connection.makefile("rw") as stream:
                request = json.loads(stream.readline())
                if "poll" in request:
                    pid, status = os.waitpid(request["poll"], os.WNOHANG)
                    answer = os.waitstatus_to_exitcode(status) if pid else None
                else:
                    answer = os.fork()
                    if not answer:
                        for inherited in (stream, connection, listener):
                            inherited.close()
                        end(lambda request=request: become(request))
                stream.write(json.dumps(answer) + "\n")


def end(program: Callable[[], None]) -> NoReturn:
    """Run a program and end as Python ends, but without taking all that was imported apart."""
    code: object = None
    try:
        program()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001  as the interpreter does
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(code or 0)


def become(request: dict[str, Any]) -> None:
    os.setsid()
    # Where tests run in the background of a script, Ctrl-C is ignored and would be here too; so is
    # a closed terminal where they run under nohup.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    folder = Path(request["folder"])
    for descriptor, name in ((0, os.devnull), (1, folder / "stdout"), (2, folder / "stderr")):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    script = request["run"]
    sys.argv = [script, *request["arguments"]]
    if script.endswith(".py"):
        runpy.run_path(str(REPOSITORY / script), run_name="__main__")
    else:
        runpy.run_module(script, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    end(lambda: serve(sys.argv[1]))
