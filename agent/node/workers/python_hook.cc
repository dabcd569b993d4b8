// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/python_hook.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "agent/node/facts/own_package.h"
#include "agent/node/workers/python_hook_jax.h"
#include "agent/node/workers/python_hook_mpi.h"
#include "agent/node/workers/python_hook_worlds.h"
#include "proto/contract/unserved_worlds.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// Collectives that the recorder keeps. torch's own default is 2000; a dump of 1000 with the stacks
// of where they were called stays below a MiB.
constexpr const char* kFlightEntries = "1000";

constexpr std::string_view kHookHead =
    R"(# Written by ivyrun: lets `ivyctl stack` ask a worker where it is, lets torch's rank 0 serve on a
# MASTER_PORT that the script has set itself, and ends a worker that would be alone in its world.
# ivyrun --no-python-hook leaves it out.
)";

// _register: the descriptor goes above 100, since programs like to find the low ones free. A
// process that a worker starts must not register as well: only the worker's own is asked. _watch:
// processes that a worker starts are watched too. It costs one look-up in a table per import.
constexpr std::string_view kHook =
    R"(_WORKER = None  # The worker's own process; processes that it starts may have worlds of their own.


def _register():
    global _WORKER
    import os
    path = os.environ.pop("IVY_STACK_FILE", None)
    if not path:
        return
    _WORKER = os.getpid()
    import faulthandler
    import fcntl
    import sys
    path += "." + str(os.getpid())
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    low = os.open(path, flags, 0o600)
    try:
        file = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 100)
    finally:
        os.close(low)
    faulthandler.register(45, file=file)
    faulthandler.register(46, file=file, all_threads=False)
    sys.meta_path.insert(0, _FlightServer(path + ".torch"))


# A launcher inside the worker, whose ranks have a world of their own.
def _has_other_launcher():
    import os
    get = os.environ.get
    found = (get("PMI_PORT", "") + " " + get("PMIX_NAMESPACE", "")).strip()
    return found != get("IVY_MPI_PLACE", "") or any(word in os.environ for word in _RANK_VARIABLES)


def _spec_behind(own, name, path, target):
    import sys
    finders = list(sys.meta_path)
    # Not those before: they may be ours, too, and look behind themselves.
    place = next((i for i, finder in enumerate(finders) if finder is own), -1)
    for finder in finders[place + 1:]:
        find = getattr(finder, "find_spec", None)  # Finders of old have none.
        spec = find(name, path, target) if find is not None and finder is not own else None
        if spec is not None:
            return spec
    return None


# Calls change() with the module of that name when it has been executed.
class _AfterImport:
    name = None

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        spec = _spec_behind(self, name, path, target)
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


# TORCHELASTIC_USE_AGENT_STORE=True makes every rank a client of the job's store. A script that sets
# MASTER_PORT itself, or starts ranks of its own, means another one, which its rank 0 shall serve.
# Under another launcher's block of variables (torchrun in a worker) the flag is that launcher's.
class _Rendezvous(_AfterImport):
    name = "torch.distributed.rendezvous"

    def change(self, module):
        import functools
        import os
        import sys
        create = module._create_c10d_store

        @functools.wraps(create)
        def _create_c10d_store(hostname, port, *rest, **named):
            get = os.environ.get
            is_ours = (str(port) == get("IVY_MASTER_PORT")
                       or get("TORCHELASTIC_RUN_ID") != get("IVY_JOB_ID"))
            flag = None if is_ours else os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
            if flag is not None and (rest[0] if rest else named.get("rank")) == 0:
                sys.stderr.write(
                    "ivyrun: note: the script sets MASTER_PORT=%s (ivyrun chose %s); every rank must use the "
                    "same value\n" % (port, get("IVY_MASTER_PORT")))
            try:
                store = create(hostname, port, *rest, **named)
            finally:
                if flag is not None:
                    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = flag
            rank = rest[0] if rest else named.get("rank")
            is_jobs_store = (str(port) == get("IVY_MASTER_PORT") and get("TORCHELASTIC_RUN_ID") == get("IVY_JOB_ID")
                             and get("TORCHELASTIC_USE_AGENT_STORE") == "True" and str(rank) == get("RANK"))
            try:
                return self.of_this_round(module, store, rank) if is_jobs_store else store
            except Exception:
                return store
        module._create_c10d_store = _create_c10d_store

    # A rank may run several programs one after the other (train, then evaluate; a retry after a crash), and the job's
    # store outlives each of them. So every call of init_process_group() has a round, and the keys of a later round a
    # prefix: a process must not read the address of a peer's former process, which would hang or fail. Rank 0 starts
    # a round; another rank takes the newest one that it has not joined, or the next, which rank 0 has yet to start.
    @staticmethod
    def of_this_round(module, store, rank):
        if rank == 0:
            number = store.add("ivy/round", 1)
        else:
            joined = store.add("ivy/joined/%d" % rank, 0)
            number = max(store.add("ivy/round", 0), joined + 1)
            store.add("ivy/joined/%d" % rank, number - joined)
        return store if number == 1 else module.PrefixStore("ivy/round/%d" % number, store)


# torch's own server of its flight record (2.11 and newer), on a Unix socket beside the file of the
# stacks. It starts with the worker's first process group: only then is there anything to ask, and a
# program that merely imports torch has no thread more. Its threads are C++ and need no GIL.
class _FlightServer(_AfterImport):
    name = "torch.distributed.distributed_c10d"

    def __init__(self, path):
        import os
        self.path = path
        self.pid = os.getpid()

    def change(self, module):
        import functools
        init = module.init_process_group

        @functools.wraps(init)
        def init_process_group(*rest, **named):
            try:
                self.open()
            except Exception:
                pass
            return init(*rest, **named)
        module.init_process_group = init_process_group

    def open(self):
        import atexit
        import os
        # A forked child is not asked.
        if self.path is None or os.getpid() != self.pid:
            return
        path, self.path = self.path, None
        self.keep(self.start(path))
        os.chmod(path, 0o600)
        atexit.register(self.close, path)

    # torch warns that it listens, in every worker. Where that cannot be kept quiet there is none.
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

    # Nothing may destroy it: that joins its threads, and in a forked child it would also shut down
    # the socket that the child shares with the worker.
    @staticmethod
    def keep(server):
        import ctypes
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))

    # No question may come while the process is being taken down.
    def close(self, path):
        import os
        if os.getpid() == self.pid:
            os.unlink(path)


# Semaphores of Python's multiprocessing have names in /dev/shm. One that a killed process has left there can be
# told to be this job's and host's by its name, and is removed with the job's directory.
class _Semaphores(_AfterImport):
    name = "multiprocessing.process"

    def change(self, module):
        import os
        module.current_process()._config["semprefix"] = "/mp-" + "-".join(
            os.environ[name] for name in ("IVY_JOB_ID", "IVY_HOST_INDEX"))


def _arm():
    import os
    import sys
    if "IVY_JOB_ID" in os.environ:
        sys.meta_path.insert(0, _Semaphores())
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and "IVY_MASTER_PORT" in os.environ:
        sys.meta_path.insert(0, _Rendezvous())


def _next():
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


def _watch():
    import os
    import sys
    if os.environ.get("IVY_WORLD_SIZE", "1") == "1" or "IVY_ALLOW_SINGLETONS" in os.environ:
        return

    class _Watch:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name not in _WORLDS or _has_other_launcher():
                return None
            spec = _spec_behind(_Watch, name, path, target)
            if spec is not None:
                spec.loader = _Refusal(spec.loader)
            return spec

    class _Refusal:
        def __init__(self, loader):
            self._loader = loader

        def __getattr__(self, name):
            return getattr(self._loader, name)

        # Not find_spec: a library may only ask whether the module is there.
        def create_module(self, spec):
            _refuse(spec.name)

        def exec_module(self, module):
            self._loader.exec_module(module)

    sys.meta_path.insert(0, _Watch)


def _refuse(name):
    import os
    world, instead = _WORLDS[name]
    _stop("ivyrun: error[IVY-P024]: %s was imported, and nothing tells %s its ranks: "
          "each of the %s workers would be a world of one\n"
          "  fix:   %s\n"
          "         --allow-singletons, if each worker is meant to be alone\n"
          % (name, world, os.environ.get("IVY_WORLD_SIZE"), instead))


# One worker of each host says it; the others wait for the end that this brings.
def _stop(text):
    import os
    import sys
    import time
    # In the job's directory, which goes with the job.
    folder = os.path.dirname(os.environ.get("IVY_TOKEN_FILE") or __file__)
    said = os.path.join(folder, "refused-" + os.environ.get("IVY_GENERATION", "0"))
    try:
        os.close(os.open(said, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # Another worker of this host is saying it, and its exit ends the job.
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


# ivy.distributed and neurenix are served where they are not installed: the last of all finders.
def _originals():
    import sys

    class _Originals:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name not in ("ivy", "ivy.distributed", "neurenix"):
                return None
            try:
                from ivycomm import originals
            except ImportError:
                return None
            return originals.find(name)

    sys.meta_path.append(_Originals)


# Old Pythons, such as the system's own tools, inherit PYTHONPATH: they have other finders, and only their own
# sitecustomize matters to them. Nothing in this file may be a syntax error there.
def _next_of_old():
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
        return _next_of_old()
    for step in (_register, _arm, _arm_jax, _arm_worlds, _watch, _mpi, _originals):
        try:
            step()
        except Exception:
            pass
    _next()


_run()
)";

bool is_set(const Environment& environment, const char* name) {
  return find_variable(environment, name) != nullptr;
}

Result<void> write_file(const std::string& path, std::string_view text) {
  // Whole or not at all: half a file would be a syntax error in every worker.
  if (write_whole(path, text)) return {};
  return errno_error(Code::kUnavailable, path, errno);
}

void add_nccl_variables(Environment& environment, const JobDirectory& directory,
                        std::uint32_t generation) {
  if (is_set(environment, "NCCL_DEBUG") || is_set(environment, "NCCL_DEBUG_FILE")) return;
  set_variable(environment, "NCCL_DEBUG", "WARN");
  set_variable(environment, "NCCL_DEBUG_FILE",
               directory.path + "/nccl-" + std::to_string(generation) + "-%p");
}

}  // namespace

// Writes the words of proto/contract/unserved_worlds.h in Python's syntax.
std::string python_hook_text() {
  const auto quoted = [](std::string_view text) { return "\"" + std::string(text) + "\""; };
  std::string worlds;
  for (const UnservedWorld& world : unserved_worlds()) {
    std::string_view rest = world.modules;
    while (!rest.empty()) {
      const std::string_view module = rest.substr(0, rest.find(' '));
      worlds += "    " + quoted(module) + ": (" + quoted(world.name) + ", " +
                quoted(world.instead) + "),\n";
      rest.remove_prefix(std::min(module.size() + 1, rest.size()));
    }
  }
  return std::string(kHookHead) + "_WORLDS = {\n" + worlds +
         "}\n_RANK_VARIABLES = " + quoted(rank_variables()) + ".split()\n\n\n" +
         std::string(python_hook_jax()) + std::string(python_hook_mpi()) +
         std::string(python_hook_worlds()) + std::string(kHook);
}

bool add_python_hook(Environment& environment, const std::string& installed,
                     const JobDirectory& directory) {
  if (!installed.empty()) {
    append_package(environment, installed);
    return true;
  }
  const std::string folder = directory.path + "/python";
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return false;
  if (!write_file(folder + "/sitecustomize.py", python_hook_text()).ok()) return false;
  append_package(environment, folder);
  return true;
}

void write_rank_hosts(const HostPlan& plan, const JobDirectory& directory) {
  std::string text;
  for (const HostShare& host : plan.hosts())
    text += host.name() + " " + std::to_string(host.ranks()) + "\n";
  (void)write_file(directory.path + "/hosts", text);
}

std::string stack_file(const JobDirectory& directory, std::uint32_t generation,
                       std::uint32_t rank) {
  return directory.path + "/stack-" + std::to_string(generation) + "-" + std::to_string(rank);
}

std::string flight_socket(const std::string& stack_file) { return stack_file + ".torch"; }

void add_evidence_variables(Environment& environment, const JobDirectory& directory,
                            std::uint32_t generation) {
  if (!is_set(environment, "TORCH_FR_BUFFER_SIZE") &&
      !is_set(environment, "TORCH_NCCL_TRACE_BUFFER_SIZE"))
    set_variable(environment, "TORCH_FR_BUFFER_SIZE", kFlightEntries);
  add_nccl_variables(environment, directory, generation);
}

void add_nccl_profiler(Environment& environment, const std::string& plugin) {
  const std::string* choice = find_variable(environment, "IVY_NCCL_PROFILER");
  const bool is_off = choice != nullptr && *choice == "off";
  // NCCL takes one plug-in, and the user's goes before ours.
  if (is_off || plugin.empty() || is_set(environment, "NCCL_PROFILER_PLUGIN")) return;
  set_variable(environment, "NCCL_PROFILER_PLUGIN", plugin);
}

std::string last_nccl_warning(const Environment& environment, pid_t pid) {
  constexpr off_t kTail = 16 << 10;
  constexpr std::size_t kLongest = 300;
  constexpr std::string_view kMark = "NCCL WARN ";
  constexpr std::string_view kPid = "%p";
  const std::string* pattern = find_variable(environment, "NCCL_DEBUG_FILE");
  if (pattern == nullptr || !pattern->ends_with(kPid)) return "";
  const std::string path = pattern->substr(0, pattern->size() - kPid.size()) + std::to_string(pid);
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return "";
  const off_t size = lseek(fd.get(), 0, SEEK_END);
  std::string text(static_cast<std::size_t>(std::clamp<off_t>(size, 0, kTail)), '\0');
  const ssize_t count = pread(fd.get(), text.data(), text.size(), std::max<off_t>(size - kTail, 0));
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  const std::size_t at = text.rfind(kMark);
  if (at == std::string::npos) return "";
  text.erase(0, at + kMark.size());
  return text.substr(0, std::min(text.find('\n'), kLongest));
}

}  // namespace ivy
