// SPDX-License-Identifier: Apache-2.0
// Data of single ranks, for jobs whose first fence collects nothing (Open MPI's
// pmix_base_collect_data=0): each rank's data is then published once, and fetched by the hosts
// whose ranks request it. In all other jobs a fence has distributed everything, and data that is
// requested later does not exist.
//
//   unknown --first fence of the job, with data--> collected    asks: "not found"
//      |      '----------------------- without --> on demand    asks: fetched
//      '-- asks wait for the first fence
//
// Thread: libpmix's own, and no other.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "agent/pmix/pmix_server.h"

namespace ivy {

class DirectModex {
 public:
  struct Actions {
    std::function<void()> publish;  // Publishes the data that this host's ranks have put.
    std::function<void(std::uint32_t rank, BlobAnswer)> fetch;
  };
  explicit DirectModex(Actions actions) : actions_(std::move(actions)) {}

  // All ranks of the job meet for the first time, or again.
  void on_fence(bool has_data);
  void ask(std::uint32_t rank, BlobAnswer answer);

 private:
  enum class Mode { kUnknown, kCollected, kOnDemand };

  const Actions actions_;
  Mode mode_ = Mode::kUnknown;
  std::vector<std::pair<std::uint32_t, BlobAnswer>> early_;
};

}  // namespace ivy
