# SPDX-License-Identifier: Apache-2.0
"""A real world of a few ranks on this host, from a script, a test or a notebook.

    from ivycomm import spawn

    def sums(factor):
        import ivycomm as ic
        ic.init()
        return ic.all_reduce(ic.rank() * factor)

    spawn(sums, 4, args=(10,))      # [60, 60, 60, 60]

Runs `ivyrun -n 4`, so the ranks are separate processes supervised by ivyrun, and nothing of them remains afterwards.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ..errors import IvyError
from ..library import candidates


class SpawnError(IvyError):
    """A rank of spawn() exited without returning, or the timeout expired; the text is ivyrun's report. exit_code:
    ivyrun's."""


def spawn(function: Callable[..., Any], size: int, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *,
          timeout: float | None = None, flags: Sequence[str] = ()) -> list[Any]:
    """Runs function(*args, **kwargs) on `size` ranks, each in a separate process of this host. Blocks until all have
    exited, and returns [result of rank 0, result of rank 1, ...].

    function: importable by the ranks, or defined in the program's main file, which they load under another name (code
    guarded by `if __name__ == "__main__":` does not run); in a notebook cloudpickle must be installed. Arguments and
    results must be picklable. timeout: seconds for the whole run; None: no limit. flags: additional flags of ivyrun.

    Raises the exception of the first failing rank; SpawnError if a rank exited otherwise, or not in time; ValueError for
    a size below 1; FileNotFoundError if ivyrun cannot be found. May be called from any thread, and from a worker.
    """
    if size < 1:
        raise ValueError(f"a world cannot have {size} ranks")
    program = _ivyrun()
    with tempfile.TemporaryDirectory(prefix="ivy-spawn-") as folder:
        with open(os.path.join(folder, "call"), "wb") as file:
            file.write(_call(function, args, kwargs or {}))
        limit = [] if timeout is None else ["--timeout", f"{timeout:g}s"]
        command = [program, "-n", str(size), *limit, *flags, sys.executable, "-c", _START, folder]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=_environment(), check=False)
        report = done.stderr.decode(errors="replace")
        results = [_result(folder, rank) for rank in range(size)]
    failed = [result for result in results if result is not None and result[0] == "raised"]
    if failed:
        first = min(failed, key=lambda result: cast(float, result[3]))
        if first[1] is not None:
            first[1].__cause__ = SpawnError("\n" + first[2])
            raise first[1]
        raise SpawnError(first[2], exit_code=done.returncode)
    if done.returncode or None in results:
        raise SpawnError(report.strip() or f"ivyrun exited with code {done.returncode}", exit_code=done.returncode)
    sys.stderr.write(report)
    return [result[1] for result in results if result is not None]


_START = "from ivycomm.compat.spawning import run_rank; run_rank()"


def _ivyrun() -> str:
    found = os.environ.get("IVY_RUN") or shutil.which("ivyrun")
    if found:
        return found
    for library in candidates():
        beside = os.path.join(os.path.dirname(os.path.dirname(library)), "bin", "ivyrun")
        if os.path.isabs(library) and os.access(beside, os.X_OK):
            return beside
    raise FileNotFoundError("ivyrun was not found: put it on PATH, or set IVY_RUN to its path")


def _environment() -> dict[str, str]:
    # A worker may spawn, too: do not pass variables of its own job to the new one.
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("IVY_") or name in ("IVY_LIBRARY", "IVY_RUN", "IVY_TEST_SLOW")}
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    kept["PYTHONPATH"] = os.pathsep.join([*filter(None, [kept.get("PYTHONPATH")]), here])
    return kept


def _call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    path = [os.path.abspath(folder or ".") for folder in sys.path]
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if getattr(function, "__module__", None) != "__main__":
        return pickle.dumps((path, None, pickle.dumps((function, args, kwargs))))
    if main is not None and "<locals>" not in getattr(function, "__qualname__", "<locals>") \
            and getattr(function, "__name__", "") != "<lambda>":
        return pickle.dumps((path, (os.path.abspath(main), function.__qualname__), pickle.dumps((args, kwargs))))
    try:
        import cloudpickle
    except ImportError:
        raise pickle.PicklingError(f"{function!r} cannot be found by other processes: define it with def at the top of a "
                                   "file, or install cloudpickle") from None
    return pickle.dumps((path, None, cloudpickle.dumps((function, args, kwargs))))


def _result(folder: str, rank: int) -> tuple[Any, ...] | None:
    """Returns ("returned", result) or ("raised", exception or None, text, time) of a rank; None if it left nothing."""
    try:
        with open(os.path.join(folder, f"rank-{rank}"), "rb") as file:
            return cast("tuple[Any, ...]", pickle.load(file))
    except (OSError, EOFError, pickle.PickleError):
        return None


def run_rank() -> None:
    """The main function of a spawned rank."""
    import time

    folder, rank = sys.argv[1], os.environ["IVY_RANK"]
    with open(os.path.join(folder, "call"), "rb") as file:
        path, main, data = pickle.load(file)
    sys.path[:] = path
    sys.argv[:] = sys.argv[:1]
    failure: BaseException | None = None
    try:
        if main is None:
            function, args, kwargs = pickle.loads(data)
        else:
            function = _of_main(*main)
            args, kwargs = pickle.loads(data)
        outcome = ("returned", function(*args, **kwargs))
        written = pickle.dumps(outcome)
    except BaseException as error:  # noqa: BLE001 - told to who spawned.
        failure = error
        told: BaseException | None
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
        try:
            pickle.loads(pickle.dumps(error))
            told = error
        except Exception:  # noqa: BLE001 - not every exception can be pickled.
            told = None
        written = pickle.dumps(("raised", told, f"rank {rank}:\n{text}", time.time()))
    whole = os.path.join(folder, f"rank-{rank}")
    with open(whole + ".part", "wb") as file:
        file.write(written)
    os.rename(whole + ".part", whole)
    if failure is not None:
        raise failure


def _of_main(path: str, name: str) -> Any:
    """Loads the program's main file and returns its function of this name."""
    spec: Any = importlib.util.spec_from_file_location("__mp_main__", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["__mp_main__"] = module
    # Objects of classes defined in the program's main file are pickled as __main__'s.
    sys.modules["__main__"] = module
    spec.loader.exec_module(module)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found
