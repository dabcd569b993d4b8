# SPDX-License-Identifier: Apache-2.0
# ivyrun's Python hook. Python imports a module called sitecustomize at the start of every interpreter; ivyrun puts this
# one on the PYTHONPATH of its workers (python_hook.h) unless `ivyrun --no-python-hook` is given.
#
# Rules for this file
#   - It must not break a program. Each step and each change to another module ignores its own failures.
#   - It must start in under 1 ms. Functions import modules only when they need them.
#   - It imports no framework. It patches a framework's modules after the program has imported them.
#   - Python 2 and Python 3.5 inherit PYTHONPATH from a worker and read this file too, so they must be able to parse it.
#
# Terms
#   worker        a process that ivyrun started for one rank of the job; its child processes inherit this hook
#   store         the job's key-value store, a server that speaks the protocol of torch's TCPStore
#   world         the processes that one framework connects to each other: normally all ranks of the job
#   world of one  a world of a single process, because the framework found no peers
#
# At the interpreter's start, _run() at the end of the file calls these functions, one after the other. Most of them
# only install import hooks, and only if the job's environment variables call for it.
#
#   _register_stack_dumps        registers faulthandler for `ivyctl stack`
#   _hold_lock_in_drills         --drill hold-gil
#   _hook_store_and_semaphores   torch's store, multiprocessing's semaphores
#   _hook_jax                    JAX: ranks, missing ranks, differing versions, exit
#   _hook_frameworks             warnings about other frameworks
#   _refuse_worlds_of_one        stops a job of Horovod without -B horovod
#   _hook_mpi4py                 connects mpi4py to the job
#   _serve_originals             ivy.distributed and neurenix from ivycomm, if they are not installed
#   _run_hidden_sitecustomize    runs the sitecustomize that this file hides, if any
#
# When the program imports a module, these changes are applied to it. If a module has two, the one listed first is
# applied first, so the second one's wrapper is the outer one.
#
#   torch.distributed.distributed_c10d       _FlightServer, _watch_torch
#   torch.distributed.rendezvous             _TorchStorePatch
#   multiprocessing.process                  _SemaphorePatch
#   jax._src.clusters                        _add_jax_cluster
#   jax._src.distributed                     _wrap_jax_initialize: State.initialize, State.shutdown and sys.exit
#   jax._src.xla_bridge                      _finalize_mpi_at_exit, _watch_jax
#   jax.experimental.multihost_utils         _answer_without_preemption_service
#   accelerate.state                         _watch_accelerate
#   tensorflow.python.distribute.collective_all_reduce_strategy   _watch_tensorflow
#   distributed.client (Dask)                _watch_dask
#   ray._private.worker                      _watch_ray
#   xgboost.collective                       _pass_tracker_to_xgboost
#   horovod.common.basics                    _watch_horovod; before the import, _refuse_worlds_of_one may stop the job
#   mpi4py.MPI                               _mpi_join, _mpi_compare_libraries; after MPI_Init _mpi_check_world
#
# Sections, in the order of the file: import hooks; `ivyctl stack`; torch's store and multiprocessing's semaphores; join
# checks (missing ranks, differing versions); JAX; other frameworks; worlds of one; mpi4py; originals, the hidden
# sitecustomize and _run().

_WORKER = None  # Pid of the worker itself, because a child process may rightly have another rank and world size.
_STACK_FILE = None  # The worker's file for stacks.


# Returns whether this process has a rank, or will have one: with --preload the hooks are installed in a process from
# which the workers are forked (../supervisor/preload_server.py), so none of them may read a rank before it is used.
def _has_rank():
    import os
    return "IVY_RANK" in os.environ or "IVY_PRELOAD" in os.environ


# -- Import hooks

# Finds a module's spec with the finders that follow `own` in sys.meta_path.
def _find_next_spec(own, name, path, target):
    import sys
    finders = list(sys.meta_path)
    # Skip earlier finders: they may be ours and would search again from their own position.
    place = next((i for i, finder in enumerate(finders) if finder is own), -1)
    for finder in finders[place + 1:]:
        find = getattr(finder, "find_spec", None)  # Finders written for old Python versions lack it.
        spec = find(name, path, target) if find is not None and finder is not own else None
        if spec is not None:
            return spec
    return None


# Base class of an import hook for one module: after the module `name` has been executed, calls change(module), which
# the subclass defines, and removes itself from the module's loader. A module can have only one such hook.
class _SelfRemovingPatch:
    name = None

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        spec = _find_next_spec(self, name, path, target)
        if spec is not None:
            self.wrap(spec.loader)
        return spec

    def wrap(self, loader):
        try:
            run = loader.exec_module

            def exec_module(module):
                del loader.exec_module
                run(module)
                try:
                    self.change(module)
                except Exception:
                    pass
            loader.exec_module = exec_module
        except Exception:
            pass


# An import hook for several modules: `changes` maps the name of a module to a function that is called with the module
# after it has been executed. It stays in the loader, so it can be combined with other hooks for the same module.
class _PatchTable:
    def __init__(self, changes):
        self.changes = changes

    def find_spec(self, name, path=None, target=None):
        change = self.changes.get(name)
        if change is None:
            return None
        spec = _find_next_spec(self, name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                try:
                    change(module)
                except Exception:  # Leave an unknown version of a framework unchanged.
                    pass
            spec.loader.exec_module = exec_module
        return spec


# Replaces the function owner.NAME by one that also calls then(first argument) when the function has returned.
def _call_after(owner, name, then):
    import functools
    run = getattr(owner, name)

    @functools.wraps(run)
    def wrapped(*args, **kwargs):
        result = run(*args, **kwargs)
        try:
            then(args[0] if args else None)
        except Exception:
            pass
        return result
    setattr(owner, name, wrapped)


# -- ivyctl stack: faulthandler, and torch's flight record

# --drill hold-gil: SIGURG makes the main thread hold the interpreter lock, like a C extension that does not release it.
# PyDLL calls functions with the lock held. Without this handler, the signal has no effect.
def _hold_lock_in_drills():
    import os
    milliseconds = os.environ.get("IVY_DRILL_HOLD_MS")
    if not milliseconds:
        return
    import signal

    def hold(number, frame):
        import ctypes
        import time
        sleep = ctypes.PyDLL(None).usleep
        end = time.monotonic() + int(milliseconds) / 1000.0
        while time.monotonic() < end:  # A signal ends usleep().
            sleep(int(max(0, end - time.monotonic()) * 1000000) + 1)

    signal.signal(signal.SIGURG, hold)


# Registers handlers that write Python stacks to a file: signal 45 for all threads, signal 46 for the main thread
# (kStackSignal in python_hook.h). The file's descriptor is at least 100: some programs expect low ones to be free.
# The environment variable is removed, so that child processes do not register: `ivyctl stack` queries only the worker.
def _register_stack_dumps():
    import os
    import sys
    if "IVY_STACK_FILE" in os.environ or "IVY_PRELOAD" in os.environ:
        sys.meta_path.insert(0, _FlightServer())
    _start_forked_worker()


# The steps that each worker takes by itself, also if it was forked from the process of --preload.
def _start_forked_worker():
    global _STACK_FILE, _WORKER
    import os
    path = os.environ.pop("IVY_STACK_FILE", None)
    if not path:
        return
    _WORKER = os.getpid()
    import faulthandler
    import fcntl
    path += "." + str(os.getpid())
    _STACK_FILE = path
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    low = os.open(path, flags, 0o600)
    try:
        file = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 100)
    finally:
        os.close(low)
    faulthandler.register(45, file=file)
    faulthandler.register(46, file=file, all_threads=False)


# Serves torch's flight record, its log of collectives, on a Unix socket next to the stack file. The server is torch's
# own (2.11 and newer); its threads are C++ and do not need the GIL. It is started with the worker's first process
# group, because before that the record is empty, and a program that only imports torch gets no additional thread.
class _FlightServer(_SelfRemovingPatch):
    name = "torch.distributed.distributed_c10d"
    is_open = False

    @property
    def path(self):
        return _STACK_FILE + ".torch"

    def change(self, module):
        import functools
        init = module.init_process_group

        @functools.wraps(init)
        def init_process_group(*rest, **kwargs):
            try:
                self.open()
            except Exception:
                pass
            return init(*rest, **kwargs)
        module.init_process_group = init_process_group

    def open(self):
        import atexit
        import os
        # `ivyctl` does not query forked children.
        if self.is_open or _STACK_FILE is None or os.getpid() != _WORKER:
            return
        self.is_open = True
        self.keep(self.start(self.path))
        os.chmod(self.path, 0o600)
        atexit.register(self.close, self.path)

    # Starts the server without torch's warning that it listens, which every worker would print. If the warning cannot
    # be suppressed, no server is started.
    @staticmethod
    def start(path):
        import ctypes
        import os
        import torch
        from torch._C import _distributed_c10d as c10d
        library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
        library = ctypes.CDLL(library, os.RTLD_NOLOAD | os.RTLD_NOW)
        level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
        before, level.value = level.value, max(level.value, 2)
        try:
            return c10d._WorkerServer(path)
        finally:
            level.value = before

    # Prevents the server's destruction, which would join its threads and, in a forked child, shut down the socket that
    # the child shares with the worker.
    @staticmethod
    def keep(server):
        import ctypes
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))

    # Removes the socket, so that no query arrives while the process exits.
    def close(self, path):
        import os
        if os.getpid() == _WORKER:
            os.unlink(path)


# -- torch's store, and multiprocessing's semaphores

# Chooses the store that torch uses. ivyrun sets TORCHELASTIC_USE_AGENT_STORE=True, which makes every rank a client of
# the job's store. If the script has set MASTER_PORT itself, or starts its own ranks, it wants a store of its own: the
# flag is then hidden from torch, so that rank 0 serves that store. If another launcher runs inside the worker
# (torchrun), the flag belongs to that launcher and is left alone.
class _TorchStorePatch(_SelfRemovingPatch):
    name = "torch.distributed.rendezvous"

    def change(self, module):
        import functools
        import os
        import sys
        create = module._create_c10d_store

        @functools.wraps(create)
        def _create_c10d_store(hostname, port, *rest, **kwargs):
            get = os.environ.get
            is_ours = (str(port) == get("IVY_MASTER_PORT")
                       or get("TORCHELASTIC_RUN_ID") != get("IVY_JOB_ID"))
            flag = None if is_ours else os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
            if flag is not None and (rest[0] if rest else kwargs.get("rank")) == 0:
                sys.stderr.write(
                    "ivyrun: note: the script sets MASTER_PORT=%s (ivyrun chose %s); every rank must use the "
                    "same value\n" % (port, get("IVY_MASTER_PORT")))
            try:
                store = create(hostname, port, *rest, **kwargs)
            finally:
                if flag is not None:
                    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = flag
            rank = rest[0] if rest else kwargs.get("rank")
            is_jobs_store = (str(port) == get("IVY_MASTER_PORT") and get("TORCHELASTIC_RUN_ID") == get("IVY_JOB_ID")
                             and get("TORCHELASTIC_USE_AGENT_STORE") == "True" and str(rank) == get("RANK"))
            try:
                return self.store_of_this_round(module, store, rank) if is_jobs_store else store
            except Exception:
                return store
        module._create_c10d_store = _create_c10d_store

    # Returns the store for this call of init_process_group(). A rank may run several programs one after the other
    # (train, then evaluate; or a retry after a crash), and the job's store outlives each of them. A process must not
    # read the address of a peer's previous process from it, because connecting there would hang or fail. So the calls
    # are counted as rounds, and from the second round on all keys get the round's prefix. Rank 0 starts a round. Any
    # other rank joins the newest round that it has not joined yet, or else the next one, which rank 0 has yet to start.
    @staticmethod
    def store_of_this_round(module, store, rank):
        if rank == 0:
            number = store.add("ivy/round", 1)
        else:
            joined = store.add("ivy/joined/%d" % rank, 0)
            number = max(store.add("ivy/round", 0), joined + 1)
            store.add("ivy/joined/%d" % rank, number - joined)
        return store if number == 1 else module.PrefixStore("ivy/round/%d" % number, store)


# Puts the job's id and the host's index into the names of multiprocessing's semaphores in /dev/shm. If a killed process
# leaves a semaphore behind, ivyrun recognizes it by that name and removes it together with the job's directory.
class _SemaphorePatch(_SelfRemovingPatch):
    name = "multiprocessing.process"

    def change(self, module):
        import os
        module.current_process()._config["semprefix"] = "/mp-" + "-".join(
            os.environ[name] for name in ("IVY_JOB_ID", "IVY_HOST_INDEX"))


def _hook_store_and_semaphores():
    import os
    import sys
    if "IVY_JOB_ID" in os.environ:
        sys.meta_path.insert(0, _SemaphorePatch())
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and "IVY_MASTER_PORT" in os.environ:
        sys.meta_path.insert(0, _TorchStorePatch())


# -- Join checks: ranks that are missing, and versions that differ

# Every rank announces itself in the job's store before it enters a framework's initialization, so that one rank can
# name the missing ones. It cannot be done later: after JAX's client has connected, JAX kills the process if a peer is
# missing, without naming it.

# A client of the store, with the few requests of torch's TCPStore protocol that are needed here. They are identified by
# torch's numbers. `limit`: seconds to wait for a response; a TimeoutError is raised after that.
class _StoreClient:
    def __init__(self, address, limit):
        import socket
        self.socket = socket.create_connection(address, 10)
        self.socket.settimeout(limit)
        self.socket.sendall(b"\0\xce\xf7\x85\x3c")  # VALIDATE, with the protocol's magic number.

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, request, *fields):
        words = [field if isinstance(field, bytes) else field.encode() for field in fields]
        self.socket.sendall(bytes([request]) + b"".join(
            len(word).to_bytes(8, "little") + word for word in words))

    def receive(self, count):
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionError("the store closed the connection")
            data += piece
        return data

    # SET has no reply. Wait for the key, because the store drops the request of a client that disconnects immediately.
    def set(self, key, value):
        self.send(1, key, value)
        self.wait([key])

    def get(self, key):
        self.wait([key])
        self.send(3, key)
        return self.receive(int.from_bytes(self.receive(8), "little")).decode()

    # Adds 1 to the counter `key`. Returns True if this is the first rank to do so.
    def claim(self, key):
        self.socket.sendall(b"\4" + len(key).to_bytes(8, "little") + key.encode()
                            + (1).to_bytes(8, "little"))
        return int.from_bytes(self.receive(8), "little") == 1

    # Sends a request about several keys. Returns whether the response is a zero byte: "ready" for CHECK, "stop waiting"
    # for WAIT.
    def send_keys(self, request, keys):
        self.socket.sendall(bytes([request]) + len(keys).to_bytes(8, "little") + b"".join(
            len(key).to_bytes(8, "little") + key.encode() for key in keys))
        return self.receive(1) == b"\0"

    def has(self, key):
        return self.send_keys(5, [key])

    def wait(self, keys):
        return self.send_keys(6, keys)


# The job as the environment describes it when an attribute is used for the first time. Also prints messages.
class _Job:
    # Called for attributes that are not set yet.
    def __getattr__(self, name):
        if name.startswith("_") or "rank" in self.__dict__:
            raise AttributeError(name)
        self.read_environment()
        return getattr(self, name)

    def read_environment(self):
        import os
        get = os.environ.get
        self.rank, self.size = int(get("IVY_RANK")), int(get("IVY_WORLD_SIZE", "1"))
        self.coordinator = get("JAX_COORDINATOR_ADDRESS")
        self.port = get("IVY_MASTER_PORT")
        is_given = get("MASTER_PORT") == self.port
        self.address = (get("MASTER_ADDR" if is_given else "IVY_MASTER_ADDR"), int(self.port or 0))
        self.has_store = get("TORCHELASTIC_USE_AGENT_STORE") == "True" and self.size > 1
        self.limit = float(get("IVY_INIT_TIMEOUT", "120"))
        self.directory = os.path.dirname(get("IVY_TOKEN_FILE", ""))

    def store(self, limit=10):
        return _StoreClient(self.address, limit)

    # Returns the ranks with their hosts, at most eight: "2 (node1), 3 (node1)".
    def with_hosts(self, *ranks):
        import os
        hosts = []
        try:
            with open(os.path.join(self.directory, "hosts")) as file:
                for line in file:
                    name, count = line.rsplit(None, 1)
                    hosts += [name] * int(count)
        except (OSError, ValueError):
            pass
        texts = ["%d (%s)" % (rank, hosts[rank]) if rank < len(hosts) else str(rank)
                 for rank in ranks]
        return ", ".join(texts[:8]) + (" and %d more" % (len(texts) - 8) if len(texts) > 8 else "")

    # Only one rank prints a message that every rank would print: the first one that reports `topic`, or rank 0 if the
    # store cannot be reached.
    def print_once(self, topic, text):
        import os
        try:
            with self.store() as store:
                if not store.claim("ivyrun/said-" + topic):
                    return
        except OSError:
            if self.rank != 0:
                return
        os.write(2, ("ivyrun: %s\n" % text).encode())


# Base class of the join checks. Ranks announce themselves in the store under key(); watch_ranks() names the missing
# ones. `name`: the framework's name in the keys. `call`: the function that all ranks must call, for messages.
class _JoinCheck(_Job):
    name = call = None

    def key(self, rank):
        return "ivyrun/%s/%d" % (self.name, rank)

    # Waits until ranks 0 to last - 1 (default: all ranks) have announced themselves, and names the missing ones after
    # the limit.
    def watch_ranks(self, last=None):
        keys = [self.key(rank) for rank in range(self.size)][:last]
        try:
            with self.store(self.limit) as store:
                store.wait(keys)
        except TimeoutError:
            with self.store() as store:
                missing = [rank for rank, key in enumerate(keys) if not store.has(key)]
            if missing:
                self.warn_missing(missing)
        except OSError:
            pass

    def warn_missing(self, ranks):
        is_one = len(ranks) == 1
        self.print_once("missing", (
            "warning[IVY-P033]: rank%s %s %s not called %s within %g s "
            "(--start-timeout); the other ranks are waiting\n"
            "  fix:   `ivyctl stack` shows where %s; every rank must call it" % (
                "" if is_one else "s", self.with_hosts(*ranks), "has" if is_one else "have", self.call,
                self.limit, "it is" if is_one else "they are")))


# The join check for jax.distributed.initialize().
class _JaxJoinCheck(_JoinCheck):
    name, call = "jax", "jax.distributed.initialize()"

    # Corrects the arguments of jax.distributed.initialize(): if the coordinator's address has the store's port,
    # replaces it by the coordinator's own. Returns whether the call joins the job's world; otherwise the script wants a
    # different one, and nothing is checked.
    def correct_arguments(self, arguments):
        address = arguments.get("coordinator_address")
        if self.has_store and address and address.rsplit(":", 1)[-1] == self.port:
            self.print_once("port", (
                "note: port %s belongs to the job's store; JAX's coordinator uses %s instead" % (
                    self.port, self.coordinator)))
            arguments["coordinator_address"] = self.coordinator
        given = [arguments.get("process_id"), arguments.get("num_processes")]
        if any(value is not None and value != ours
               for value, ours in zip(given, [self.rank, self.size])):
            self.print_once("differs", (
                "note: jax.distributed.initialize() was called with process_id=%s, num_processes=%s, "
                "but this is rank %s of %d\n"
                "  fix:   remove both arguments; ignore this if you want a subgroup" % (
                    given[0], given[1], self.with_hosts(self.rank), self.size)))
            return False
        return arguments.get("coordinator_address") in (None, self.coordinator)

    # Announces this rank and compares its version of jaxlib with rank 0's. Then starts a thread, which on rank 0 names
    # missing ranks, and on all other ranks warns if JAX's coordinator cannot be reached.
    def announce_and_compare(self):
        import threading
        import jaxlib.version
        version = jaxlib.version.__version__
        with self.store() as store:
            store.set(self.key(self.rank), version)
        if self.rank != 0:
            self.compare_with_rank_0(version)
        watch = self.watch_coordinator if self.rank != 0 else self.watch_ranks
        threading.Thread(target=watch, daemon=True, name="ivyrun").start()

    # Waits for rank 0, as JAX's client would, and reports rank 0 as missing after the limit.
    def compare_with_rank_0(self, version):
        try:
            with self.store(self.limit) as store:
                first = store.get(self.key(0))
        except TimeoutError:
            self.warn_missing([0])
            return
        if first.split(".")[:2] != version.split(".")[:2]:
            self.reject_version(version, first)

    def reject_version(self, version, first):
        import os
        import sys
        os.write(2, ("ivyrun: error[IVY-P031]: jaxlib is %s on rank %s and %s on rank %s: these "
                     "versions are incompatible\n"
                     "  fix:   install one version on all hosts, such as: "
                     "%s -m pip install jax==%s\n" % (
                         version, self.with_hosts(self.rank), first, self.with_hosts(0), sys.executable,
                         first)).encode())
        os._exit(122)

    # Tries to connect to JAX's coordinator for up to 20 s, and prints the error if no attempt succeeds. Rank 0, which
    # has just announced itself, starts listening at about the same time.
    def watch_coordinator(self):
        import socket
        import time
        host, port = self.coordinator.rsplit(":", 1)
        end = time.monotonic() + min(20.0, self.limit)
        while True:
            try:
                socket.create_connection((host.strip("[]"), int(port)), 5).close()
                return
            except OSError as error:
                why = error
            if time.monotonic() > end:
                break
            time.sleep(1)
        self.print_once("unreachable", (
            "warning[IVY-P032]: rank %s cannot reach JAX's coordinator, rank %s, at %s: %s\n"
            "  fix:   open this port between the hosts (--port-range A-B selects ports), or "
            "choose another network with --iface" % (
                self.with_hosts(self.rank), self.with_hosts(0), self.coordinator, why)))


# The join check for frameworks other than JAX, which do not report missing ranks themselves. It only prints warnings.
class _FrameworkJoinCheck(_JoinCheck):
    def __init__(self, name, package, call):
        super().__init__()
        self.name, self.package, self.call = name, package, call
        self.has_joined = False

    # Returns run(), the framework's own initialization. While it runs, a thread of rank 0 watches for all other ranks,
    # and a thread of rank 1 for rank 0. Afterwards the versions are compared. Only the first call is checked.
    def run_checked(self, run, version):
        if self.has_joined or not self.has_store or _has_other_launcher():
            return run()
        self.has_joined = True
        try:
            self.announce(version)
        except OSError:
            return run()
        result = run()
        try:
            if self.rank != 0:
                with self.store() as store:
                    self.compare_versions(version, store.get(self.key(0)))
        except OSError:
            pass
        return result

    def announce(self, version):
        import threading
        with self.store() as store:
            store.set(self.key(self.rank), version)
        if self.rank < 2:
            threading.Thread(target=self.watch_ranks, args=(self.rank or None,), daemon=True, name="ivyrun").start()

    def compare_versions(self, version, first):
        if first.split(".")[:2] != version.split(".")[:2]:
            self.print_once("versions", (
                "warning[IVY-P031]: %s is %s on rank %s and %s on rank %s: these versions may be incompatible\n"
                "  fix:   install one version on all hosts, such as: python -m pip install %s==%s" % (
                    self.package, version, self.with_hosts(self.rank), first, self.with_hosts(0), self.package,
                    first.split("+")[0])))


# The rank and world size of this process by framework: {"torch": (0, 4)}.
_RANK_AND_SIZE = {}


# Warns if another framework has a different rank or world size for this process.
def _check_agreement(job, name, rank, size):
    for other, (its_rank, its_size) in _RANK_AND_SIZE.items():
        if (rank, size) != (its_rank, its_size) and other != name:
            job.print_once("disagree", (
                "warning[IVY-P037]: this process is rank %d of %d in %s, but rank %d of %d in %s\n"
                "  fix:   start the ranks with ivyrun only, without mpirun or torchrun in between, and do not pass a "
                "different rank to one framework" % (its_rank, its_size, other, rank, size, name)))
    _RANK_AND_SIZE[name] = rank, size


# Calls _check_agreement(), and also warns if the framework's world has the job's size but numbers this rank
# differently.
def _check_rank(job, name, rank, size):
    _check_agreement(job, name, rank, size)
    if size == job.size and rank != job.rank:
        job.print_once("order-" + name, (
            "warning[IVY-P037]: this worker is rank %d of %d in %s, but rank %s in the job\n"
            "  fix:   take the rank and world size from RANK and WORLD_SIZE; frameworks that are used together "
            "must agree" % (rank, size, name, job.with_hosts(job.rank))))


# -- JAX

# Returns whether this process belongs to the job's world, rather than to the world of a launcher inside the worker
# (mpirun in a script).
def _is_of_this_job():
    import os
    get = os.environ.get
    inner = [(get("OMPI_COMM_WORLD_RANK"), get("IVY_RANK")),
             (get("OMPI_COMM_WORLD_SIZE"), get("IVY_WORLD_SIZE"))]
    return (all(get(name) is not None for name in
                ("IVY_RANK", "IVY_WORLD_SIZE", "JAX_COORDINATOR_ADDRESS"))
            and all(theirs is None or theirs == ours for theirs, ours in inner))


# Registers ivyrun's ClusterEnv before JAX's own, so that variables of an enclosing Slurm or Open MPI job are ignored.
def _add_jax_cluster(module):
    import os
    base = module.ClusterEnv

    class IvyCluster(base):
        name = "ivyrun"

        @classmethod
        def is_env_present(cls):
            return _is_of_this_job()

        # The parameters differ between versions of JAX.
        @classmethod
        def get_coordinator_address(cls, *_, **__):
            return os.environ["JAX_COORDINATOR_ADDRESS"]

        @classmethod
        def get_process_count(cls):
            return int(os.environ["IVY_WORLD_SIZE"])

        @classmethod
        def get_process_id(cls):
            return int(os.environ["IVY_RANK"])

        # Returns None, so that JAX uses the devices of JAX_LOCAL_DEVICE_IDS, or all visible devices.
        @classmethod
        def get_local_process_id(cls):
            return None

    base._cluster_types.remove(IvyCluster)
    base._cluster_types.insert(0, IvyCluster)


# Disables the preemption service of old JAX versions, which do not read JAX_ENABLE_PREEMPTION_SERVICE.
def _disable_preemption_in_old_jax(module):
    import os
    if not hasattr(module, "_ENABLE_PREEMPTION_SERVICE"):
        if os.environ.get("JAX_ENABLE_PREEMPTION_SERVICE") == "false":
            module.State.initialize_preemption_sync_manager = lambda self: None


# Selects an implementation of collectives on the CPU: Gloo unless the user has chosen one. Old versions of JAX have
# none by default.
def _choose_cpu_collectives():
    import os
    from jax._src import config, xla_bridge
    named = getattr(xla_bridge, "CPU_COLLECTIVES_IMPLEMENTATION", None)
    if named is not None:
        if named.value in (None, "none"):
            wanted = os.environ.get("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo")
            config.config.update("jax_cpu_collectives_implementation", wanted)


# Removes the table of all ranks' devices from JAX's service if rank 0 has been replaced (--on-failure replace). Rank 0
# writes the table when it starts, and JAX does not allow it to be overwritten.
def _forget_topology():
    import os
    from jax._src import distributed
    client = distributed.global_state.client
    if "IVY_REJOIN" not in os.environ or os.environ.get("IVY_RANK") != "0" or client is None:
        return
    for platform in "cpu", "cuda", "rocm":
        try:
            client.key_value_delete("%s:global_topology/%s" % (platform, platform))
        except Exception:
            pass


# Skips JAX's shutdown in a process that exits with an error. The shutdown would wait up to five minutes for all other
# processes, which would not learn of the failure before. Without it the connections close with the process, and JAX's
# service notifies the others.
def _skip_shutdown_on_failure(module):
    import functools
    import sys
    leave = sys.exit
    codes = []

    def exit(code=None):
        codes.append(code)
        leave(code)
    sys.exit = exit
    run = module.State.shutdown

    @functools.wraps(run)
    def shutdown(self):
        is_exception = getattr(sys, "last_value", None) is not None
        is_failure = bool(codes) and codes[-1] not in (None, 0)
        if not (is_exception or is_failure) or self.client is None:
            return run(self)
        import ctypes
        for part in (self.client, self.service):
            # Never destroy it: the destructor waits, too.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    module.State.shutdown = shutdown


# Wraps the initialization of jax.distributed: corrects its arguments and runs the join check before it, and sets up
# collectives afterwards. Also changes its shutdown (_skip_shutdown_on_failure).
def _wrap_jax_initialize(module):
    import functools
    import inspect
    _disable_preemption_in_old_jax(module)
    _skip_shutdown_on_failure(module)
    check = _JaxJoinCheck()
    run = module.State.initialize
    signature = inspect.signature(run)

    @functools.wraps(run)
    def initialize(*args, **kwargs):
        bound = None
        try:
            if _is_of_this_job():
                bound = signature.bind(*args, **kwargs)
                if check.correct_arguments(bound.arguments) and check.has_store:
                    check.announce_and_compare()
        except Exception:  # If the store is unreachable or an argument is wrong, JAX reports it.
            pass
        result = run(*bound.args, **bound.kwargs) if bound else run(*args, **kwargs)

        def check_agreement():
            _check_agreement(check, "JAX", module.global_state.process_id, module.global_state.num_processes)

        for step in _choose_cpu_collectives, _forget_topology, check_agreement:
            try:
                step()
            except Exception:
                pass
        return result
    module.State.initialize = initialize


# Delays MPI_Finalize until the process exits. With jax_cpu_collectives_implementation=mpi, JAX registers it with
# atexit, which runs before JAX frees its communicators, and MPI reports that as an error.
def _finalize_mpi_at_exit(module):
    import atexit
    import os

    class Late:
        def __getattr__(self, name):
            return getattr(atexit, name)

        def register(self, function, *args, **kwargs):
            if getattr(function, "__name__", "") != "Finalize" or "MPITRAMPOLINE_LIB" not in os.environ:
                return atexit.register(function, *args, **kwargs)
            import ctypes
            library = ctypes.CDLL(os.environ["MPITRAMPOLINE_LIB"])
            getattr(ctypes.CDLL(None), "__cxa_atexit")(library.MPI_Finalize, None, None)
            return function
    module.atexit = Late()


# Makes reached_preemption_sync_point() return False if ivyrun has disabled JAX's preemption service because the job
# cannot receive a notice. JAX itself would raise an error, and scripts call the function at every step.
def _answer_without_preemption_service(module):
    import functools
    import os
    ask = module.reached_preemption_sync_point

    @functools.wraps(ask)
    def reached_preemption_sync_point(step_id):
        is_off = (os.environ.get("JAX_ENABLE_PREEMPTION_SERVICE") == "false"
                  and module.distributed.global_state.preemption_sync_manager is None)
        return False if is_off else ask(step_id)
    module.reached_preemption_sync_point = reached_preemption_sync_point


# Warns at the first use of a device if jax.distributed.initialize() has not been called, because after that it is too
# late. A program that has imported another library for reaching the other ranks intends a separate JAX in each worker.
# Installed by _hook_frameworks().
def _watch_jax(module, job):
    import sys
    run = module.backends

    def backends():
        module.backends = run
        distributed = sys.modules.get("jax._src.distributed")
        is_alone = distributed is not None and distributed.global_state.client is None
        if is_alone and not any(name in sys.modules for name in ("ivycomm", "mpi4py", "torch.distributed", "horovod")):
            _warn_world_of_one(job, "JAX", "call jax.distributed.initialize() before any other JAX function")
        return run()
    module.backends = backends


def _hook_jax():
    import os
    import sys
    if _has_rank() and "JAX_COORDINATOR_ADDRESS" in os.environ:
        # jaxlib loads MPI through MPItrampoline; there, the UCX of Debian's MPICH fails while it checks for unused
        # variables.
        if "MPITRAMPOLINE_LIB" in os.environ:
            os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
        sys.meta_path.insert(0, _PatchTable({
            "jax._src.clusters": _add_jax_cluster,
            "jax._src.distributed": _wrap_jax_initialize,
            "jax._src.xla_bridge": _finalize_mpi_at_exit,
            "jax.experimental.multihost_utils": _answer_without_preemption_service,
        }))


# -- Other frameworks: each change wraps one function, without altering its result or its exceptions

# Warns that every worker runs the framework `name` in a world of one.
def _warn_world_of_one(job, name, fix):
    job.print_once("alone-" + name, (
        "warning[IVY-P036]: each of the %d workers runs %s on its own, as a world of size 1\n"
        "  fix:   %s" % (job.size, name, fix)))


def _watch_accelerate(module, job):
    _call_after(module.PartialState, "__init__", lambda state: state.num_processes == 1 and _warn_world_of_one(
        job, "accelerate", "-x ACCELERATE_USE_CPU=true if no worker has an accelerator"))


def _watch_tensorflow(module, job):
    import json
    import os
    import sys
    join = _FrameworkJoinCheck("tensorflow", "tensorflow", "tf.distribute.MultiWorkerMirroredStrategy()")
    strategy = module.CollectiveAllReduceStrategy
    run = strategy.__init__

    def __init__(*args, **kwargs):
        if "TF_CONFIG" not in os.environ:
            run(*args, **kwargs)
            return _warn_world_of_one(job, "TensorFlow's MultiWorkerMirroredStrategy",
                                      "-B tensorflow sets TF_CONFIG for each worker")
        tasks = json.loads(os.environ["TF_CONFIG"])["cluster"]
        size = sum(len(tasks.get(task, ())) for task in ("chief", "worker", "ps"))
        if size != job.size:
            job.print_once("size-tensorflow", (
                "warning[IVY-P037]: TF_CONFIG names %d tasks, but the job has %d ranks\n"
                "  fix:   let -B tensorflow set TF_CONFIG" % (size, job.size)))
            return run(*args, **kwargs)
        join.run_checked(lambda: run(*args, **kwargs), sys.modules["tensorflow"].__version__)
    __init__.__doc__ = run.__doc__
    strategy.__init__ = __init__


def _watch_dask(module, job):
    _call_after(module.Client, "__init__", lambda client: client.cluster is not None and _warn_world_of_one(
        job, "Dask", "--app dask starts one cluster for the job and runs the script once"))


def _watch_ray(module, job):
    import os
    _call_after(module, "init", lambda _: "RAY_ADDRESS" in os.environ or _warn_world_of_one(
        job, "Ray", "--app ray starts one cluster for the job and runs the script once"))


# Compares the rank and world size that torch will use with the job's, before torch waits for ranks that do not exist.
# Returns whether they are the same.
def _torch_uses_jobs_rank(job, arguments):
    import os
    get = os.environ.get
    given = [arguments.get("rank", -1), arguments.get("world_size", -1)]
    rank, size = (int(get(name, "-1")) if value < 0 else value for value, name in zip(given, ("RANK", "WORLD_SIZE")))
    if rank >= 0 and size >= 0:
        _check_agreement(job, "torch", rank, size)
    is_same = (rank, size) == (job.rank, job.size)
    if not is_same and (rank, size) != (-1, -1) and os.getpid() == _WORKER:
        job.print_once("differs-torch", (
            "note: init_process_group() was called with rank=%d, world_size=%d, but this is rank %s of %d\n"
            "  fix:   remove both arguments so that torch reads RANK and WORLD_SIZE; ignore this if you want a subgroup"
            % (rank, size, job.with_hosts(job.rank), job.size)))
    return is_same


def _watch_torch(module, job):
    import functools
    import inspect
    import sys
    join = _FrameworkJoinCheck("torch", "torch", "torch.distributed.init_process_group()")
    run = module.init_process_group
    signature = inspect.signature(run)

    @functools.wraps(run)
    def init_process_group(*args, **kwargs):
        try:
            is_ours = _torch_uses_jobs_rank(job, signature.bind(*args, **kwargs).arguments)
        except Exception:
            is_ours = False
        call = lambda: run(*args, **kwargs)  # noqa: E731
        result = join.run_checked(call, str(sys.modules["torch"].__version__)) if is_ours else call()
        try:
            _check_rank(job, "torch", module.get_rank(), module.get_world_size())
        except Exception:
            pass
        return result
    module.init_process_group = init_process_group


def _watch_horovod(module, job):
    _call_after(module.HorovodBasics, "init", lambda basics: _check_rank(
        job, "Horovod", basics.rank(), basics.size()))


# Passes the tracker's address to XGBoost, which reads it only from arguments, not from the environment.
def _pass_tracker_to_xgboost(module, _):
    import os
    run = module.init

    def init(**given):
        for name in "dmlc_tracker_uri", "dmlc_tracker_port", "dmlc_task_id":
            value = os.environ.get(name.upper())
            if value is not None and "dmlc_communicator" not in given:
                given.setdefault(name, int(value) if name.endswith("port") else value)
        return run(**given)
    init.__doc__ = run.__doc__
    module.init = init


def _hook_frameworks():
    import os
    import sys
    changes = {}
    if os.environ.get("IVY_WORLD_SIZE", "1") != "1":
        changes = {
            "accelerate.state": _watch_accelerate,
            "tensorflow.python.distribute.collective_all_reduce_strategy": _watch_tensorflow,
            "distributed.client": _watch_dask,
            "jax._src.xla_bridge": _watch_jax,
            "ray._private.worker": _watch_ray,
            "torch.distributed.distributed_c10d": _watch_torch,
            "horovod.common.basics": _watch_horovod,
        }
    if "DMLC_TRACKER_URI" in os.environ:
        changes["xgboost.collective"] = _pass_tracker_to_xgboost
    if not changes or not _has_rank():
        return
    job = _Job()
    sys.meta_path.insert(0, _PatchTable({
        name: lambda module, change=change: change(module, job) for name, change in changes.items()}))


# -- Worlds of one

# Frameworks that learn their ranks only with `ivyrun -B NAME`, by the module that reads the ranks: name, fix. Without
# -B a job of N workers would be N worlds of one and would succeed with wrong results, so it is an error unless
# --allow-singletons is given. Remove a row when ivyrun serves the framework by default.
_UNSERVED = {
    "horovod.common.basics": ("Horovod", "-B horovod, which passes Horovod its ranks"),
}


# Variables in which other launchers pass a process its rank or world size. If one is set, the process has peers (mpirun
# inside a worker). PMI_PORT and PMIX_NAMESPACE are missing here because ivyrun sets them itself: _has_other_launcher()
# compares them with IVY_MPI_PLACE, which holds ivyrun's values.
_RANK_VARIABLES = ("PMI_FD", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "HOROVOD_RANK",
                   "HOROVOD_SIZE")


# Returns whether a launcher inside the worker, such as mpirun, has started this process in another world.
def _has_other_launcher():
    import os
    get = os.environ.get
    found = (get("PMI_PORT", "") + " " + get("PMIX_NAMESPACE", "")).strip()
    return found != get("IVY_MPI_PLACE", "") or any(word in os.environ for word in _RANK_VARIABLES)


# Stops the job when a process of a worker imports a framework of _UNSERVED. Child processes of workers are checked,
# too. Costs one dictionary lookup per import.
def _refuse_worlds_of_one():
    import os
    import sys
    if os.environ.get("IVY_WORLD_SIZE", "1") == "1" or "IVY_ALLOW_SINGLETONS" in os.environ:
        return

    class _RefusingFinder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name not in _UNSERVED or _has_other_launcher():
                return None
            spec = _find_next_spec(_RefusingFinder, name, path, target)
            if spec is not None:
                spec.loader = _RefusingLoader(spec.loader)
            return spec

    class _RefusingLoader:
        def __init__(self, loader):
            self._loader = loader

        def __getattr__(self, name):
            return getattr(self._loader, name)

        # Refuses here and not in find_spec(), which libraries also call to find out whether the module is installed.
        def create_module(self, spec):
            _refuse(spec.name)

        def exec_module(self, module):
            self._loader.exec_module(module)

    sys.meta_path.insert(0, _RefusingFinder)


def _refuse(name):
    import os
    world, instead = _UNSERVED[name]
    _stop("ivyrun: error[IVY-P024]: %s was imported, but nothing passes %s its ranks: "
          "each of the %s workers would be a world of one\n"
          "  fix:   %s\n"
          "         --allow-singletons, if each worker should run alone\n"
          % (name, world, os.environ.get("IVY_WORLD_SIZE"), instead))


# Prints an error and exits with 122, which ends the job. On each host one worker prints; the others wait up to 30 s to
# be stopped with the job.
def _stop(text):
    import os
    import sys
    import time
    # The marker file is in the job's directory, which is removed with the job.
    folder = os.path.dirname(os.environ.get("IVY_TOKEN_FILE") or __file__)
    marker = os.path.join(folder, "refused-" + os.environ.get("IVY_GENERATION", "0"))
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # Another worker of this host prints the error, and its exit ends the job.
        time.sleep(30)
    except OSError:
        pass
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    os.write(2, text.encode())
    os._exit(122)


# -- mpi4py

# Connects to an MPI server of this host as this rank, by the same request as agent/node/roles/mpi_exec.cc.
def _mpi_connect(name):
    import os
    import socket
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.path.join(os.path.dirname(os.environ["IVY_TOKEN_FILE"]), name))
    connection.sendall(b"rank %d\n" % int(os.environ["IVY_RANK"]))
    return connection


def _mpi_join_pmi():
    import fcntl
    import os
    connection = _mpi_connect("pmi.sock")
    kept = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 100)
    connection.close()
    get = os.environ.get
    os.environ.update(
        PMI_FD=str(kept), PMI_RANK=get("IVY_RANK"), PMI_SIZE=get("IVY_WORLD_SIZE"),
        MPI_LOCALRANKID=get("IVY_LOCAL_RANK"), MPI_LOCALNRANKS=get("IVY_LOCAL_WORLD_SIZE"),
        MPIR_CVAR_PMI_VERSION="1")


def _mpi_join_pmix():
    import os
    connection = _mpi_connect("pmix.sock")
    answer = b""
    while True:
        more = connection.recv(65536)
        if not more:
            break
        answer += more
    connection.close()
    pairs = [os.fsdecode(pair) for pair in answer.split(b"\0") if pair]
    if not pairs or pairs[0].startswith("error: "):
        raise OSError(pairs[0][len("error: "):] if pairs else "the PMIx server does not answer")
    for pair in pairs:
        name, _, value = pair.partition("=")
        os.environ[name] = value


# Joins the job's MPI world before mpi4py loads MPI: gets the variables that PMI-1 (MPICH) and PMIx (Open MPI) need from
# this host's MPI servers. The MPI library that mpi4py is linked with is known only when it has been loaded, so both
# servers are queried; a failure of one matters only if a world of one results. Returns the errors as a list of texts.
def _mpi_join():
    import os
    errors = []
    for what, join in (("PMI-1", _mpi_join_pmi), ("PMIx", _mpi_join_pmix)):
        try:
            join()
        except FileNotFoundError:
            errors.append(what + ": there is no such server on this host")
        except Exception as error:
            errors.append(what + ": " + str(error))
    os.environ["IVY_MPI"] = str(os.getpid())
    return errors


# Returns the names and versions of the MPI libraries that this process has loaded: [("Open MPI", "4.1.4")].
def _mpi_libraries():
    import ctypes
    import re
    with open("/proc/self/maps") as file:
        paths = {path.group() for path in re.finditer(r"/\S*/lib(mpi|mpich|mpi_abi)\.so\S*", file.read())}
    found = []
    for path in sorted(paths):
        text = ctypes.create_string_buffer(8192)
        ctypes.CDLL(path).MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
        match = re.match(r"(Open MPI|MPICH|Intel\(R\) MPI|MVAPICH)[^\d]*([\d.]+)", text.value.decode(errors="replace"))
        if match and match.groups() not in found:
            found.append(match.groups())
    return found


# Compares this rank's MPI library with rank 0's before MPI_Init, where ranks with different libraries would hang, or
# fail with an obscure transport error.
def _mpi_compare_libraries():
    import os
    own = _mpi_libraries()
    check = _FrameworkJoinCheck("mpi", "MPI", "MPI_Init")
    if len(own) > 1:
        check.print_once("two-mpis", (
            "warning[IVY-P025]: rank %s has loaded two MPI libraries: %s\n"
            "  fix:   build every module that the script imports with one of them" % (
                check.with_hosts(check.rank), " and ".join(map(" ".join, own)))))
    if len(own) != 1 or not check.has_store:
        return
    mine = " ".join(own[0])
    with check.store(check.limit) as store:
        store.set(check.key(check.rank), mine)
        first = mine if check.rank == 0 else store.get(check.key(0))
    if first.split(".")[0] != mine.split(".")[0]:
        os.write(2, (
            "ivyrun: error[IVY-R013]: the MPI ranks cannot reach each other: rank %s has %s, but rank %s has %s\n"
            "  fix:   install one version of one MPI for the workers' Python on every host (docs/mpi.md)\n" % (
                check.with_hosts(check.rank), mine, check.with_hosts(0), first)).encode())
        os._exit(122)


# Stops the job if mpi4py's world does not have the job's size. In a world of one, every worker would do the whole work
# and exit with 0.
def _mpi_check_world(module, errors, is_ours):
    import os
    if not module.Is_initialized() or module.Is_finalized():
        return
    size = module.COMM_WORLD.Get_size()
    if size > 1 or not is_ours:
        _check_agreement(_Job(), "mpi4py", module.COMM_WORLD.Get_rank(), size)
    if not is_ours or str(size) == os.environ.get("IVY_WORLD_SIZE"):
        return
    library = module.Get_library_version().split("\n")[0].split(",")[0].strip(" \0")
    _stop("ivyrun: error[IVY-P024]: mpi4py was imported, but its MPI (%s) has created a world of size %d: "
          "this job has %s workers\n%s"
          "  fix:   use mpi4py with MPICH, Intel MPI, MVAPICH or Open MPI 4.1 or 5 (docs/mpi.md)\n"
          "         --allow-singletons, if each worker should run alone\n"
          % (library, size, os.environ.get("IVY_WORLD_SIZE"),
             "".join("  cause: %s\n" % text for text in errors)))


def _hook_mpi4py():
    import os
    import sys
    if os.environ.get("IVY_WORLD_SIZE", "1") == "1" or "IVY_ALLOW_SINGLETONS" in os.environ:
        return

    class _MpiFinder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name != "mpi4py.MPI":
                return None
            has_joined = os.environ.get("IVY_MPI") == str(os.getpid())
            is_ours = has_joined or not _has_other_launcher()
            spec = _find_next_spec(_MpiFinder, name, path, target)
            if spec is not None:
                spec.loader = _MpiLoader(spec.loader, has_joined, is_ours)
            return spec

    class _MpiLoader:
        def __init__(self, loader, has_joined, is_ours):
            self._loader = loader
            self._has_joined = has_joined
            self._is_ours = is_ours
            self._errors = []

        def __getattr__(self, name):
            return getattr(self._loader, name)

        # Joins here and not in find_spec(), which libraries also call to find out whether the module is installed.
        def create_module(self, spec):
            if self._is_ours and not self._has_joined:
                self._errors = _mpi_join()
            module = self._loader.create_module(spec)
            try:
                if self._is_ours:
                    _mpi_compare_libraries()
            except Exception:
                pass
            return module

        def exec_module(self, module):
            self._loader.exec_module(module)
            try:
                _mpi_check_world(module, self._errors, self._is_ours)
            except Exception:
                pass

    sys.meta_path.insert(0, _MpiFinder)


# -- Originals, the sitecustomize that this one hides, and _run()

# Lets `import ivy.distributed` and `import neurenix` find ivycomm's implementations of these packages ("originals" in
# ivycomm.compat). The finder is the last one, so installed packages take precedence.
def _serve_originals():
    import sys

    class _Originals:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name not in ("ivy", "ivy.distributed", "neurenix"):
                return None
            try:
                from ivycomm.compat import originals
            except ImportError:
                return None
            return originals.find(name)

    sys.meta_path.append(_Originals)


# Runs the sitecustomize that Python would have imported without this one, and puts it into sys.modules.
def _run_hidden_sitecustomize():
    import os
    import sys
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    here = os.path.dirname(__file__)
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != here])
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


# _run_hidden_sitecustomize() for Python 2 and 3.5, which system tools started by a worker may use. They get nothing else
# from this file, whose import hooks need a newer Python.
def _run_hidden_of_old_python():
    import imp
    import os
    import sys
    here = os.path.dirname(__file__)
    try:
        found = imp.find_module("sitecustomize", [path for path in sys.path if path != here])
    except ImportError:
        return
    imp.load_module("sitecustomize", *found)


def _run():
    import sys
    if sys.version_info < (3, 6):
        return _run_hidden_of_old_python()
    for step in (_register_stack_dumps, _hold_lock_in_drills, _hook_store_and_semaphores, _hook_jax, _hook_frameworks,
                 _refuse_worlds_of_one, _hook_mpi4py, _serve_originals):
        try:
            step()
        except Exception:
            pass
    _run_hidden_sitecustomize()


_run()
