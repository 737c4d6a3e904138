"""Python programs in processes of their own, forked from one that has the libraries imported.

What `python ARGUMENTS` would run runs as the whole work of a process, to the interpreter's end: its
own words, folder, environment, streams, signals and exit code. Left out is what takes seconds each
time and is the same: importing libraries, and for this checkout's own commands, its modules. Any
other program imports dpexp itself, when and from where it does.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import logging
import os
import resource
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = (
    "torch",
    "torch._dynamo",
    "hydra",
    "hydra.core.plugins",
    "hypothesis",
    "pytest",
    "yaml",
)
LIBRARIES += ("sklearn.datasets", "sklearn.model_selection", "scipy.stats")
LIBRARIES += ("opacus.accountants.analysis.prv", "dp_accounting.pld.privacy_loss_distribution")
OWN = ("dpexp.cli.run", "dpexp.cli.config_cache", "dpexp.training.train", "dpexp.cli.execution")
"""Modules of this checkout. None may read the environment or the folder as it is imported."""

PLACE = ROOT / "dpexp" / "__init__.py"
COMMANDS = ("dpexp", "scripts")
"""Packages whose programs import dpexp before all else, as run.py does."""

PATIENCE = 120  # seconds
LONGEST = 1 << 20
"""Bytes of a request, of which the environment is the most."""


class Program:
    """One that was started. Like subprocess.Popen, with text streams; nobody need wait for it.

    Attributes:
        pid: its process.
        stdin, stdout, stderr: our ends of the pipes that were asked for, else None.
        returncode: its exit code, or minus the signal that ended it; None while it is not known.
    """

    def __init__(self, status: int, streams: Mapping[str, int | None]) -> None:
        """Take the pipe that tells of the process, and our ends of its streams."""
        self._status = os.fdopen(status)
        self.pid = int(self._status.readline())
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        for name, end in streams.items():
            if end is not None:
                mode = "w" if name == "stdin" else "r"
                setattr(self, name, os.fdopen(end, mode, encoding="utf-8"))

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        """Return the exit code if the process has ended."""
        return self._await(0)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the process to end; give its exit code."""
        code = self._await(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code

    def communicate(self, timeout: float = PATIENCE) -> tuple[str | None, str | None]:
        """Read stdout or stderr, of which no more than one may be a pipe, to its end; and wait."""
        if self.stdin is not None:
            self.stdin.close()
        said = [None if stream is None else stream.read() for stream in (self.stdout, self.stderr)]
        self.wait(timeout)
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)

    def _await(self, seconds: float) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as ready:
                ready.register(self._status, selectors.EVENT_READ)
                if ready.select(seconds):
                    with self._status:
                        self.returncode = os.waitstatus_to_exitcode(int(self._status.readline()))
        return self.returncode


class Programs:
    """Starts programs; one process imports the libraries for all of them.

    A child of that process imports dpexp, too, for this checkout's own commands.
    """

    def __init__(self) -> None:
        """Start both, which end when this object is closed, or its owner dies."""
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        self._channels = [ours for ours, _ in pairs]
        code = "from tests.programs import serve_both; serve_both()"
        ends = [theirs.fileno() for _, theirs in pairs]
        self._server = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, ends)],
            cwd=ROOT,
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
        )
        for ours, theirs in pairs:
            theirs.close()
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                ours.setsockopt(socket.SOL_SOCKET, option, LONGEST)

    def close(self) -> None:
        """Let no more be started."""
        for channel in self._channels:
            channel.close()
        self._server.wait()

    def start(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        limits: Mapping[str, int] | None = None,
        ignored: Sequence[int] = (),
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> Program:
        """Start what `python ARGUMENTS` would.

        Args:
            arguments: a script and its words, or -c, or -m.
            cwd: the folder it starts in.
            env: its whole environment; None: this process's.
            limits: soft and hard limits by the name of the resource, such as RLIMIT_FSIZE.
            ignored: signals it does not hear, as what a shell put into the background does not hear
                SIGINT. Of all others it has Python's own handlers, whatever this process has.
            stdin: a file descriptor, or subprocess.PIPE; None: nothing.
            stdout: likewise; None: this process's.
            stderr: likewise.
        """
        request = {
            "arguments": list(map(str, arguments)),
            "cwd": str(cwd),
            "environment": dict(os.environ if env is None else env),
            "limits": dict(limits or {}),
            "ignored": list(map(int, ignored)),
        }
        asked = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        ours, theirs, opened = dict.fromkeys(asked), [], []
        for number, (name, wanted) in enumerate(asked.items()):
            if wanted == subprocess.PIPE:
                reading, writing = os.pipe()
                ours[name], wanted = (writing, reading) if number == 0 else (reading, writing)
                opened.append(wanted)
            elif wanted == subprocess.DEVNULL or (wanted is None and number == 0):
                wanted = os.open(os.devnull, os.O_RDWR)
                opened.append(wanted)
            theirs.append(number if wanted is None else wanted)
        status, told = os.pipe()
        data = json.dumps(request).encode()
        channel = self._channels[_imports_own_first(request)]
        socket.send_fds(channel, [data], [*theirs, told])
        for end in (*opened, told):
            os.close(end)
        return Program(status, ours)

    def run(
        self, arguments: Sequence[str], *, timeout: float = PATIENCE, **options
    ) -> subprocess.CompletedProcess:
        """Run what `python ARGUMENTS` would to its end, with what it prints; see `start`."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            streams = {"stdout": out.fileno(), "stderr": err.fileno(), **options}
            program = self.start(arguments, **streams)
            try:
                code = program.wait(timeout)
            except subprocess.TimeoutExpired:
                program.kill()
                raise
            said = []
            for stream in (out, err):
                stream.seek(0)
                said.append(stream.read().decode())
        return subprocess.CompletedProcess(list(arguments), code, *said)


def by_torchrun(programs: Programs, words: Sequence[str]) -> tuple[list[int], str]:
    """Do a run on two of torchrun's ranks; give the exit codes and what was printed."""
    done = programs.run(["-m", "torch.distributed.run", "--nproc-per-node=2", "run.py", *words])
    return [done.returncode], done.stdout


def by_hand(programs: Programs, words: Sequence[str]) -> tuple[list[int], str]:
    """Do it in two processes with the variables that torchrun gives to them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    given = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command, ranks = [str(ROOT / "run.py"), *words], []
    for rank in ("0", "1"):
        environment = {**given, "RANK": rank, "LOCAL_RANK": rank}
        ranks.append(programs.start(command, env=environment, stdout=subprocess.PIPE))
    said = [rank.communicate()[0] for rank in ranks]
    return [rank.returncode for rank in ranks], "".join(said)


def _imports_own_first(request: dict) -> bool:
    """Return whether a program is a command of this checkout, and would import dpexp from it."""
    first, *words = request["arguments"]
    if first == "-m":
        if words[0].partition(".")[0] not in COMMANDS:
            return False
        folder = request["cwd"]
    elif first == str(ROOT / "run.py"):
        return True
    else:
        return False
    known = request["environment"].get("PYTHONPATH", "").split(os.pathsep)
    places = (Path(each, "dpexp", "__init__.py") for each in (folder, *filter(None, known)))
    return next((place for place in places if place.is_file()), None) == PLACE


def serve_both() -> None:
    """Import the libraries and serve; a child imports dpexp and serves."""
    channels = [socket.socket(fileno=int(word)) for word in sys.argv[1:]]
    for name in LIBRARIES:
        importlib.import_module(name)
    logging.root.handlers.clear()  # Opacus adds one, and no program could then choose its own
    sys.dont_write_bytecode = False  # what one has compiled the others read
    child = os.fork()
    channels[bool(child)].close()
    if not child:
        for name in OWN:
            importlib.import_module(name)
        # Each program remembers what it imports itself.
        modules = [type(finder).__module__ for finder in sys.meta_path]
        del sys.meta_path[modules.index("dpexp.imported")]
        assert "huggingface_hub.constants" not in sys.modules, "it has read the environment"
    serve(channels[not child])
    if child:
        os.waitpid(child, 0)


def serve(channel: socket.socket) -> None:
    """Fork a process for each request until nobody is left to ask."""
    gc.collect()
    gc.freeze()  # a collection would touch all that the processes share
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for those that are started
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ends, waking = os.pipe()
    for end in (ends, waking):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    told: dict[int, int] = {}
    with selectors.DefaultSelector() as ready:
        for source in (channel, ends):
            ready.register(source, selectors.EVENT_READ)
        while True:
            sources = [key.fileobj for key, _ in ready.select()]
            if ends in sources:
                os.read(ends, LONGEST)
                _tell(told)
            if channel not in sources:
                continue
            data, streams, _, _ = socket.recv_fds(channel, LONGEST, 4)
            if not data:
                return
            *streams, teller = streams
            pid = os.fork()
            if not pid:
                break
            os.write(teller, f"{pid}\n".encode())
            told[pid] = teller
            for stream in streams:
                os.close(stream)
    signal.set_wakeup_fd(-1)
    channel.close()
    for end in (ends, waking, teller, *told.values()):
        os.close(end)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    _end(lambda: become(json.loads(data)))


def _tell(told: dict[int, int]) -> None:
    """Tell of the processes that have ended, each to whoever started it."""
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        if (end := told.pop(pid, None)) is None:  # the child that serves
            continue
        try:
            os.write(end, f"{status}\n".encode())
        except BrokenPipeError:  # nobody waits for it
            pass
        os.close(end)


def _end(program) -> None:
    """Run a program to what is its interpreter's end, but for taking the libraries apart."""
    code = 0
    try:
        program()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as Python itself has it
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def become(request: dict) -> None:
    """Turn this process into the program that is asked for, and run it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    for name, size in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (size, size))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    first, *words = request["arguments"]
    main = types.ModuleType("__main__")
    if own := sys.modules.get("dpexp"):
        own.remember_imports()
    if first == "-m":
        module, *words = words
        sys.argv, sys.path[0] = [module, *words], os.getcwd()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = main
    if first == "-c":
        code, *words = words
        sys.argv, sys.path[0] = ["-c", *words], ""
        exec(compile(code, "<string>", "exec"), main.__dict__)
        return
    sys.argv, sys.path[0] = [first, *words], str(Path(first).resolve().parent)
    main.__file__ = first
    exec(compile(Path(first).read_bytes(), first, "exec"), main.__dict__)
