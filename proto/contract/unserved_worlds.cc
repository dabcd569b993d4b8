// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/unserved_worlds.h"

namespace ivy {
namespace {

constexpr UnservedWorld kWorlds[] = {
    {"Horovod", "horovod.common.basics", "-B horovod, which tells Horovod its ranks"},
};

}  // namespace

std::span<const UnservedWorld> unserved_worlds() { return kWorlds; }

std::string_view rank_variables() {
  return "PMI_FD OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE MV2_COMM_WORLD_RANK HOROVOD_RANK "
         "HOROVOD_SIZE";
}

}  // namespace ivy
