#include "proto/contract/unserved_worlds.h"

#include <algorithm>

namespace ivy {
namespace {

constexpr UnservedWorld kWorlds[] = {
    // mpi4py.MPI rather than mpi4py, because the former calls MPI_Init. Not "libmpi" alone, because
    // MPIR, a library for large numbers, is called libmpir.
    {"MPI", "mpi", "libmpi. libmpi_ libmpi++ libmpich libmpicxx libmpifort libpmpi", "mpi4py.MPI",
     "start it with mpirun, mpiexec or srun"},
    {"Horovod", "", "", "horovod.common.basics", "start it with horovodrun"},
    {"TensorFlow", "tensorflow", "", "",
     "set TF_CONFIG in the script by RANK and WORLD_SIZE, and add --allow-singletons"},
    {"Paddle", "paddle", "", "", "start it with python -m paddle.distributed.launch"},
};

bool begins_with_any(std::string_view text, std::string_view prefixes) {
  while (!prefixes.empty()) {
    const std::string_view prefix = prefixes.substr(0, prefixes.find(' '));
    if (text.starts_with(prefix)) return true;
    prefixes.remove_prefix(std::min(prefix.size() + 1, prefixes.size()));
  }
  return false;
}

}  // namespace

std::span<const UnservedWorld> unserved_worlds() { return kWorlds; }

const UnservedWorld* world_of_backend(std::string_view backend) {
  for (const UnservedWorld& world : kWorlds)
    if (!backend.empty() && world.backend == backend) return &world;
  return nullptr;
}

const UnservedWorld* world_of_library(std::string_view soname) {
  for (const UnservedWorld& world : kWorlds)
    if (begins_with_any(soname, world.libraries)) return &world;
  return nullptr;
}

std::string_view rank_variables() {
  return "PMI_RANK PMI_FD PMI_PORT PMIX_RANK OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE "
         "MV2_COMM_WORLD_RANK HOROVOD_RANK HOROVOD_SIZE";
}

}  // namespace ivy
