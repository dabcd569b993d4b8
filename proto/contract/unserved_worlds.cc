#include "proto/contract/unserved_worlds.h"

namespace ivy {
namespace {

constexpr UnservedWorld kWorlds[] = {
    {"Horovod", "", "horovod.common.basics", "start it with horovodrun"},
    {"TensorFlow", "tensorflow", "",
     "set TF_CONFIG in the script by RANK and WORLD_SIZE, and add --allow-singletons"},
    {"Paddle", "paddle", "", "start it with python -m paddle.distributed.launch"},
};

}  // namespace

std::span<const UnservedWorld> unserved_worlds() { return kWorlds; }

const UnservedWorld* world_of_backend(std::string_view backend) {
  for (const UnservedWorld& world : kWorlds)
    if (!backend.empty() && world.backend == backend) return &world;
  return nullptr;
}

std::string_view rank_variables() {
  return "PMI_FD OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE MV2_COMM_WORLD_RANK HOROVOD_RANK "
         "HOROVOD_SIZE";
}

}  // namespace ivy
