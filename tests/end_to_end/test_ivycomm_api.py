# SPDX-License-Identifier: Apache-2.0
"""The Python package's interface: works, groups, the store, properties, lifetimes, types and its page in the docs."""

import ast
import ctypes
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import typing

import pytest

from launching import BIN, REPOSITORY, seconds
from test_ivycomm import CALM, LIMIT, ONE_HOST, TWO_HOSTS, check_all_equal, needs_numpy, ranks_of

PACKAGE = os.path.join(REPOSITORY, "comm/python")
long = pytest.mark.long


@needs_numpy
@pytest.mark.parametrize("flags", [ONE_HOST["alone"], ("-n", "3"), TWO_HOSTS["hosts"]], ids=["alone", "three", "hosts"])
def test_works_groups_and_store(local, flags):
    check_all_equal(local.run(*flags, *CALM, local.script("comm_works.py"), limit=LIMIT), ranks_of(flags))


@needs_numpy
def test_callbacks_that_raise_and_small_pipes_lose_no_completion(local):
    check_all_equal(local.run("-n", "2", *CALM, local.script("comm_callbacks.py"), limit=LIMIT), 2)


KEYS = """
import enum
import ivycomm as ic
import numpy as np

class Layer:
    pass

class Size(enum.Enum):
    SMALL, LARGE = "s", "l"

rank = ic.init().rank
names = [("a", 1), frozenset(["x", "yy", "zzz"]), Size.SMALL, Size.LARGE, 3, None, b"b", "b", 1.5]
tree = {name: np.full(2, float(at)) for at, name in list(enumerate(names))[::-1 if rank else 1]}
summed = ic.all_reduce(tree)
assert list(summed) == list(tree) and all((summed[name] == 2 * at).all() for at, name in enumerate(names)), summed
for keys, reason in ([Layer(), Layer()], "contains an address"), ([(1, Layer())], "contains an address"), ([lambda: 0], "contains an address"):
    try:
        ic.all_reduce({key: np.ones(1) for key in keys})
        raise AssertionError(keys)
    except TypeError as error:
        assert reason in str(error), error
print("all equal")
"""


@needs_numpy
def test_keys_of_trees_have_the_same_order_on_all_ranks(local):
    done = local.run("-n", "2", *CALM, "-x", "PYTHONHASHSEED=random", sys.executable, "-c", KEYS, limit=LIMIT)
    check_all_equal(done, 2)


INTERRUPTED = """
import signal, threading, time
import ivycomm as ic
from ivycomm.errors import Timeout

ic.init()
store = ic.store()
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    store.barrier("b", 2, 0, timeout=30)
    raise AssertionError
except KeyboardInterrupt:
    pass
try:
    store.barrier("b", 2, 1, timeout=0.2)  # Member 0 has left.
    raise AssertionError
except Timeout:
    print("all equal")
"""


def test_an_interrupted_barrier_of_one_process_forgets_its_member(local):
    check_all_equal(local.run("-n", "1", *CALM, sys.executable, "-c", INTERRUPTED, limit=LIMIT), 1)


@needs_numpy
@pytest.mark.parametrize("flags", [("-n", "3"), TWO_HOSTS["hosts"]], ids=["three", "hosts"])
def test_properties_of_collectives(local, flags):
    check_all_equal(local.run(*flags, *CALM, local.script("comm_properties.py"), limit=LIMIT), ranks_of(flags))


@long
@needs_numpy
@pytest.mark.parametrize("flags", [ONE_HOST["alone"], ("-n", "5"), ("--fake-hosts", "3", "--nproc_per_node", "2")],
                         ids=["alone", "five", "hosts"])
def test_properties_of_collectives_at_length(local, flags):
    ranks = 6 if "--fake-hosts" in flags else int(flags[1])
    check_all_equal(local.run(*flags, *CALM, local.script("comm_properties.py"), "long", limit=20 * LIMIT), ranks)


@needs_numpy
@pytest.mark.parametrize("flags", [ONE_HOST["alone"], ("-n", "3")], ids=["alone", "three"])
def test_ended_objects_leave_nothing(local, flags):
    check_all_equal(local.run(*flags, *CALM, local.script("comm_lifetimes.py"), limit=LIMIT), ranks_of(flags))


@long
@needs_numpy
@pytest.mark.parametrize("flags", [("-n", "4"), TWO_HOSTS["hosts"]], ids=["four", "hosts"])
def test_thousands_of_objects_leave_nothing(local, flags):
    check_all_equal(local.run(*flags, *CALM, local.script("comm_lifetimes.py"), "3000", "10000", limit=20 * LIMIT), 4)


# ---- a sanitizer -------------------------------------------------------------------------------------

ASAN_LIBRARY = os.path.join(REPOSITORY, "build-asan/lib/libivycomm.so.1")


def sanitizer():
    """Returns the path of the compiler's AddressSanitizer, which must be loaded before Python."""
    found = subprocess.run(["c++", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    return found if os.path.isabs(found) else None


@long
@needs_numpy
@pytest.mark.skipif(not os.path.exists(ASAN_LIBRARY), reason="build-asan is not there: scripts/test --asan")
@pytest.mark.parametrize("words", [("comm_works.py",), ("comm_properties.py",), ("comm_lifetimes.py", "1000", "2000"),
                                   ("comm_interrupts.py", "100")], ids=lambda words: words[0])
def test_no_memory_is_used_after_free(local, words):
    """Python leaks by design, so this test only detects use after free and writes out of bounds."""
    settings = {"LD_PRELOAD": sanitizer(), "IVY_LIBRARY": ASAN_LIBRARY, "PYTHONMALLOC": "malloc",
                "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1"}
    flags = [word for name, value in settings.items() for word in ("-x", f"{name}={value}")]
    done = local.run("-n", "2", *CALM, *flags, local.script(words[0]), *words[1:], limit=20 * LIMIT)
    assert done.code == 0 and "AddressSanitizer" not in done.err_text, done


# ---- Ctrl-C ------------------------------------------------------------------------------------------

def interrupted(local, rounds, limit):
    done = local.run("-n", "2", *CALM, local.script("comm_interrupts.py"), str(rounds), limit=limit)
    assert done.code == 0, done
    for lines in done.texts_by_rank().values():
        assert lines[-1] == f"{rounds} worlds", done


@needs_numpy
def test_ctrl_c_at_some_moments(local):
    interrupted(local, 6, LIMIT)


@long
@needs_numpy
def test_ctrl_c_at_every_moment(local):
    interrupted(local, 400, 20 * LIMIT)


SLICES = """
import random, signal, sys, time
sys.path.insert(0, sys.argv[1])
from ivycomm import waiting


class Pressed(Exception):
    pass


def press(*_):
    if is_armed:
        raise Pressed


signal.signal(signal.SIGALRM, press)
longest = 0
for _ in range(1000):
    is_armed, began = True, time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(5e-5, 4e-4))
        while True:
            waiting.call_in_slices(lambda: None, lambda: None)
    except Pressed:
        is_armed = False
    longest = max(longest, time.monotonic() - began)
print(longest)
"""


def test_an_exception_of_a_handler_ends_a_wait_and_is_raised_unchanged():
    """The handler may interrupt any step of starting a thread and waiting for it."""
    said = subprocess.run([sys.executable, "-c", SLICES, PACKAGE], capture_output=True, text=True, timeout=LIMIT)
    assert said.returncode == 0 and not said.stderr and float(said.stdout) < seconds(2), said


# ---- the page ----------------------------------------------------------------------------------------

def code_of_page():
    with open(os.path.join(REPOSITORY, "docs/first-collectives.md"), encoding="utf-8") as page:
        return "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read(), re.MULTILINE | re.DOTALL))


@needs_numpy
def test_the_code_of_the_page_prints_what_its_comments_say(local):
    code = code_of_page()
    wanted = re.findall(r"^ *print\(.*\) +# (.+)$", code, re.MULTILINE)
    assert len(wanted) == len(re.findall(r"^ *print\(", code, re.MULTILINE)) > 10
    done = local.run("-n", "2", *CALM, local.file("first.py", code), limit=LIMIT)
    assert done.code == 0 and done.texts_by_rank()[0] == wanted, done


def test_the_page_and_the_package_list_the_same_names():
    with open(os.path.join(REPOSITORY, "docs/python.md"), encoding="utf-8") as page:
        words = set(re.findall(r"\w+", page.read()))
    in_place = {name for name in exported() if name.endswith("_") and name[:-1] in words}
    assert not exported() - words - in_place - {"Mesh", "Message", "Timing", "ReduceOp", "Store"}


# Modules that take milliseconds to import and that few programs need.
SLOW = {"numpy", "torch", "jax", "asyncio", "concurrent.futures", "multiprocessing", "inspect", "dataclasses", "logging",
        "importlib.abc", "importlib.metadata", "socket", "subprocess", "json", "ssl", "tempfile", "pathlib", "difflib"}


def test_import_does_not_load_slow_modules():
    said = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", "import sys; sys.path.insert(0, sys.argv[1]); before = "
                           "set(sys.modules); import ivycomm; print(*(set(sys.modules) - before))", PACKAGE],
                          capture_output=True, text=True, timeout=LIMIT, check=True)
    assert not SLOW & set(said.stdout.split()), SLOW & set(said.stdout.split())


# ---- types -------------------------------------------------------------------------------------------

def stub_of_collectives():
    made = subprocess.run([sys.executable, "-B", "-c", "import make_stub; print(make_stub.stub())"], cwd=PACKAGE,
                          capture_output=True, text=True, timeout=LIMIT, check=True)
    return ast.parse(made.stdout).body


def stub_of_torch():
    with open(os.path.join(PACKAGE, "ivycomm/torch/__init__.pyi"), encoding="utf-8") as file:
        return ast.parse(file.read()).body


def module():
    sys.path.insert(0, PACKAGE)
    try:
        import ivycomm
    finally:
        sys.path.remove(PACKAGE)
    return ivycomm


def exported():
    return set(module().__all__)


def shape_of_stub(function):
    """Returns (name, has a default) for each parameter of a function in the stub. `async_op` and `with_message` have a default
    only in some overloads."""
    given = function.args
    positional = given.posonlyargs + given.args
    defaults = [None] * (len(positional) - len(given.defaults)) + given.defaults
    parameters = [*zip(positional, defaults), *zip(given.kwonlyargs, given.kw_defaults)]
    flags = ("async_op", "with_message")
    return [(each.arg, default is not None or each.arg in flags) for each, default in parameters if each.arg not in ("self", "cls")]


def shape_of_code(function):
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [(each.name, each.default is not each.empty) for each in inspect.signature(function).parameters.values()
            if each.name != "self" and each.kind not in variable]


def keywords_of_stub(function):
    return {each.arg for each in function.args.kwonlyargs}


def keywords_of_code(function):
    return {each.name for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY}


def compare_function(name, declared, found):
    for each in declared:
        assert shape_of_stub(each) == shape_of_code(found), f"{name}: the stub and the code differ"
    # An overload for one value of a flag may require it as a keyword.
    assert keywords_of_stub(declared[0]) == keywords_of_code(found), f"{name}: the keyword-only parameters differ"


def functions_of(body):
    """Returns the functions that a stub declares, by name, each with its overloads."""
    functions = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, []).append(node)
    return functions


def test_the_stub_of_collectives_matches_the_code():
    from_stub = functions_of(stub_of_collectives())
    assert set(from_stub) == {name for name in exported() if getattr(module(), name).__module__ == "ivycomm.collectives"}
    for name, declared in from_stub.items():
        compare_function(name, declared, getattr(module(), name))


TORCH = os.environ.get("IVY_TORCH_PYTHON") or os.path.join(REPOSITORY, "build/torch/bin/python3")
JAX = os.path.join(os.environ.get("IVY_FRAMEWORKS") or os.path.join(REPOSITORY, "build/frameworks"), "jax/bin/python3")
# Prints [name, has a default, is keyword-only] for each parameter of the module's functions, in another interpreter.
DESCRIBE = """
import importlib, inspect, json, sys
module = importlib.import_module(sys.argv[1])
variable = inspect.Parameter.VAR_KEYWORD
print(json.dumps({name: [[each.name, each.default is not each.empty, each.kind is each.KEYWORD_ONLY]
                         for each in inspect.signature(getattr(module, name)).parameters.values() if each.kind != variable]
                  for name in module.__all__}))
"""


TYPE_OF = """
import ivycomm.jax, typing
for name in ivycomm.jax.__all__:
    types = typing.get_type_hints(getattr(ivycomm.jax, name))
    assert "return" in types, name
    assert "group" not in types or types["timeout"] == typing.Optional[float], (name, types)
"""


def test_type_hints_of_jax_functions_resolve():
    if not os.path.exists(JAX):
        pytest.skip(f"{JAX} is not there: scripts/setup")
    said = subprocess.run([JAX, "-B", "-c", TYPE_OF], capture_output=True, timeout=LIMIT, text=True,
                          env={**os.environ, "PYTHONPATH": PACKAGE,
                               "IVY_LIBRARY": os.path.join(os.path.dirname(BIN), "lib/libivycomm.so.1")})
    assert said.returncode == 0, said.stderr


def test_the_stub_of_torchs_module_matches_the_code():
    if not os.path.exists(TORCH):
        pytest.skip(f"{TORCH} is not there: scripts/setup")
    said = subprocess.run([TORCH, "-B", "-c", DESCRIBE, "ivycomm.torch"], capture_output=True, timeout=LIMIT, text=True,
                          env={**os.environ, "PYTHONPATH": PACKAGE,
                               "IVY_LIBRARY": os.path.join(os.path.dirname(BIN), "lib/libivycomm.so.1")})
    assert said.returncode == 0, said.stderr
    found, declared = json.loads(said.stdout), functions_of(stub_of_torch())
    # Functions that the module re-exports from the package, with the package's types.
    same = {each.name for node in stub_of_torch() if isinstance(node, ast.ImportFrom) and node.level == 2
            for each in node.names if each.asname is not None}
    assert set(declared) | same == set(found)
    for function, parameters in found.items():
        # The parameters that reconfigure passes on have names only in the stub.
        shape = [(each, has_default) for each, has_default, _ in parameters]
        by_name = {each for each, _, is_by_name in parameters if is_by_name}
        if function in same:
            known = getattr(module(), function)
            assert shape_of_code(known) == shape and keywords_of_code(known) == by_name, f"torch.{function}"
            continue
        for each in declared[function]:
            assert shape_of_stub(each)[:len(shape)] == shape, f"torch.{function}"
        assert keywords_of_stub(declared[function][0]) >= by_name, f"torch.{function}"


def public_members(kind):
    found = set()
    for base in kind.__mro__[:-1]:
        if base.__module__.partition(".")[0] == "ivycomm":
            found |= {name for name in vars(base) if not name.startswith("_")}
    return found


def test_type_checkers_see_names_that_are_imported_later():
    """__getattr__ of the package imports these names; an `if TYPE_CHECKING` shows them to type checkers."""
    with open(module().__file__, encoding="utf-8") as file:
        body = ast.parse(file.read()).body
    shown = next(node for node in body if isinstance(node, ast.If)).body
    names = {each.asname: f".{node.module}" for node in shown for each in node.names}
    assert names == module()._LATER


def test_everything_exported_has_a_docstring():
    package = module()
    for name in exported():
        found = getattr(package, name)
        assert inspect.getdoc(found), name
        if inspect.isclass(found) and not issubclass(found, tuple):
            for member in public_members(found):
                value = inspect.getattr_static(found, member)
                if callable(value) or isinstance(value, (property, classmethod)):
                    assert inspect.getdoc(getattr(found, member)), f"{name}.{member}"


def test_the_docstring_of_a_call_lists_units_and_errors():
    """help() of one function does not show its module's docstring."""
    package = module()
    calls = [name for name in exported() if getattr(getattr(package, name), "__module__", "") in (
        "ivycomm.collectives", "ivycomm.messages", "ivycomm.objects") and inspect.isfunction(getattr(package, name))]
    assert len(calls) > 30
    for name in calls:
        text, parameters = inspect.getdoc(getattr(package, name)), inspect.signature(getattr(package, name)).parameters
        assert "timeout: seconds" in text and "RankDied" in text and "ValueError" in text, name
        assert ("group: None for the world" in text) == ("group" in parameters), name
        assert ("async_op=True: returns a Work" in text) == ("async_op" in parameters), name


NEEDS_A_FRAMEWORK = {"DataParallel", "SyncBatchNorm"}  # Subclasses of torch's classes.
TYPES_IMPORTED_LATER = {"Work.future"}  # concurrent.futures takes milliseconds to import.


def public_functions():
    """Yields (name, function) for the functions of the package and for the methods of its classes."""
    package = module()
    for name in sorted({*package.__all__, *package._LATER} - NEEDS_A_FRAMEWORK):
        value = getattr(package, name)
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value) and value.__module__.startswith("ivycomm"):
            for method in sorted(public_members(value)):
                if inspect.isfunction(inspect.getattr_static(value, method)):
                    yield f"{name}.{method}", getattr(value, method)


@pytest.mark.skipif(sys.version_info < (3, 10), reason="X | None is not a type before Python 3.10")
def test_type_hints_of_public_functions_resolve():
    for name, function in public_functions():
        if name not in TYPES_IMPORTED_LATER:
            typed = typing.get_type_hints(function)
            untyped = {each for each in inspect.signature(function).parameters if each != "self"} - set(typed)
            assert "return" in typed and not untyped, (name, untyped)


def test_docstrings_name_the_unit_of_a_timeout_and_whether_a_call_is_collective():
    package, found = module(), 0
    for name, function in public_functions():
        owner, _, method = name.rpartition(".")
        text = " ".join((inspect.getdoc(function) or "").split())
        about = text + " ".join((inspect.getdoc(getattr(package, owner)) or "").split() if owner else ())
        if any("timeout" in each for each in inspect.signature(function).parameters):
            assert "seconds" in about, f"{name} takes a timeout, and its docstring does not name the unit"
            assert "raise" in about.lower(), f"{name} takes a timeout, and its docstring does not say what it raises"
            found += 1
        if function.__module__ in ("ivycomm.collectives", "ivycomm.objects"):
            assert "Collective: every rank of the group calls it" in text, name
        elif function.__module__ == "ivycomm.messages":
            assert "Not collective" in text, name
    assert found > 50


TYPED = """
import asyncio
import numpy as np
import ivycomm as ic
from typing import Any, List, Optional, Tuple

Array = np.ndarray[Any, Any]
x: Array = np.ones(3)
y: Array = ic.all_reduce(x)
work: ic.Work[Array] = ic.all_reduce(x, async_op=True)
z: Array = work.wait(timeout=3.0)
none: None = ic.barrier()
parts: List[Array] = ic.all_gather_list(x)
at_root: Optional[Array] = ic.gather(x)
got: Tuple[Array, ic.Message] = ic.recv(x, with_message=True)
first: int = ic.wait_any([work])
every: List[Array] = ic.wait_all([work])
value: bytes = ic.store().get("key")
with ic.new_group([0, 1]) as group:
    ranks: Tuple[int, ...] = group.ranks
    halves: Array = ic.all_reduce(x, group=group)
    averages = ic.average_gradients([x], group=group)
    moments = ic.sync_moments(x, group=ic.world())
    indices = ic.shard_indices(100, group=ic.world())

async def coroutine() -> Array:
    return await ic.all_gather(x, async_op=True)

import ivycomm.jax as icj
import ivycomm.torch as ict

mean: Array = ict.all_reduce(x, "mean", grad="identity")
later: ic.Work[Array] = ict.exscan(x, async_op=True)
sizes: int = len(ict.reconfigure(size=3, wait=None).handles)
tree: dict[str, Array] = icj.all_reduce({"a": x})
with icj.errors():
    line: Array = icj.sendrecv(x, None, 0)
"""
WRONG = ['ict.all_reduce(x, grad="mean")', "icj.all_gather(x, axis=None)",
         'ic.all_reduce(x, group="world")', 'ic.broadcast(x, src="0")', 'work.wait(timeout="3")',
         'ic.all_reduce(x, ops="sum")', "ic.nothing"]


def mypy():
    """Returns the interpreter that has mypy, which `scripts/setup lint` installs."""
    for python in (os.path.join(REPOSITORY, "build/lint/bin/python3"), sys.executable):
        if os.path.exists(python) and not subprocess.run([python, "-c", "import mypy, numpy"],
                                                         capture_output=True).returncode:
            return python
    return None


@long
def test_mypy_reports_exactly_the_wrong_lines(tmp_path):
    python = mypy()
    if python is None:
        pytest.skip("mypy is not there: scripts/setup lint")
    # Laid out as in a wheel.
    shutil.copytree(os.path.join(PACKAGE, "ivycomm"), tmp_path / "package/ivycomm")
    subprocess.run([sys.executable, os.path.join(PACKAGE, "make_stub.py"), tmp_path / "package/ivycomm"], check=True)
    file = tmp_path / "typed.py"
    file.write_text(TYPED + "\n".join(WRONG) + "\n")
    done = subprocess.run([python, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)],
                          env={**os.environ, "MYPYPATH": str(tmp_path / "package")}, capture_output=True, text=True)
    found = {int(line) for line in re.findall(r"typed\.py:(\d+): error: ", done.stdout)}
    begin = len(TYPED.splitlines()) + 1
    assert found == set(range(begin, begin + len(WRONG))), done.stdout + done.stderr


def test_codes_names_and_exceptions_match_the_page():
    """The table in the docs matches C's constants and numbers, the library's names and Python's exceptions."""
    def read(path):
        with open(os.path.join(REPOSITORY, path), encoding="utf-8") as file:
            return file.read()

    rows = re.findall(r"^\| `(IVY_\w+)` \| (\d+) \| `(\w+)` \| (.+) \|$", read("docs/python.md"), re.M)
    page = {name: (int(number), code, re.findall(r"\w+", kinds)) for name, number, code, kinds in rows}
    enum = re.search(r"enum ivy_code \{(.*?)\} ivy_code;", read("comm/contract/ivycomm_types.h"), re.S).group(1)
    declared = {name: int(number) for name, number in re.findall(r"\b(IVY_\w+) =\s+(\d+)", enum)}
    assert {name: number for name, (number, _, _) in page.items()} == {
        name: number for name, number in declared.items() if name != "IVY_OK"}
    library = ctypes.CDLL(os.path.join(os.path.dirname(BIN), "lib", "libivycomm.so"))
    library.ivy_code_name.restype = ctypes.c_char_p
    for number, code, _ in page.values():
        assert library.ivy_code_name(number).decode() == code
    script = ("import sys, json; from ivycomm import errors; print(json.dumps([{n: k.__name__ for n, k in "
              "errors._BY_CODE.items()}, {k.__name__: k.code for k in vars(errors).values() if isinstance(k, type) "
              "and issubclass(k, errors.IvyError)}]))")
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": PACKAGE},
                          capture_output=True, check=True, timeout=LIMIT)
    by_code, codes = json.loads(done.stdout)
    assert by_code == {str(number): kinds[0] for number, _, kinds in page.values() if kinds != ["IvyError"]}
    assert {kind: code for kind, code in codes.items() if kind != "IvyError"} == {
        kind: code for _, code, kinds in page.values() for kind in kinds if kind != "IvyError"}
