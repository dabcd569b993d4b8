#include "agent/node/workers/python_hook_jax.h"

#include <string>

namespace ivy {
namespace {

constexpr std::string_view kHook =
    R"(# Changes modules of JAX once they have been executed; imports nothing of it by itself.
class _Jax:
    def __init__(self, changes):
        self.changes = changes

    def find_spec(self, name, path=None, target=None):
        change = self.changes.get(name)
        if change is None:
            return None
        spec = _spec_behind(self, name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                try:
                    change(module)
                except Exception:  # A JAX that looks different is left as it is.
                    pass
            spec.loader.exec_module = exec_module
        return spec


# A launcher that a worker has started (mpirun in a script) has a world of its own.
def _is_of_this_job():
    import os
    get = os.environ.get
    inner = [(get("OMPI_COMM_WORLD_RANK"), get("IVY_RANK")),
             (get("OMPI_COMM_WORLD_SIZE"), get("IVY_WORLD_SIZE"))]
    return (all(get(name) is not None for name in
                ("IVY_RANK", "IVY_WORLD_SIZE", "JAX_COORDINATOR_ADDRESS"))
            and all(theirs is None or theirs == ours for theirs, ours in inner))


def _add_jax_cluster(module):
    import os
    base = module.ClusterEnv

    class IvyCluster(base):
        name = "ivyrun"

        @classmethod
        def is_env_present(cls):
            return _is_of_this_job()

        # Their arguments differ from version to version.
        @classmethod
        def get_coordinator_address(cls, *_, **__):
            return os.environ["JAX_COORDINATOR_ADDRESS"]

        @classmethod
        def get_process_count(cls):
            return int(os.environ["IVY_WORLD_SIZE"])

        @classmethod
        def get_process_id(cls):
            return int(os.environ["IVY_RANK"])

        # JAX_LOCAL_DEVICE_IDS says which devices; without it all that the process sees.
        @classmethod
        def get_local_process_id(cls):
            return None

    base._cluster_types.remove(IvyCluster)
    base._cluster_types.insert(0, IvyCluster)
)";

constexpr std::string_view kArm =
    R"(

def _arm_jax():
    import os
    import sys
    if "IVY_RANK" in os.environ and "JAX_COORDINATOR_ADDRESS" in os.environ:
        sys.meta_path.insert(0, _Jax({"jax._src.clusters": _add_jax_cluster}))


)";

}  // namespace

std::string_view python_hook_jax() {
  static const std::string text = std::string(kHook) + std::string(kArm);
  return text;
}

}  // namespace ivy
