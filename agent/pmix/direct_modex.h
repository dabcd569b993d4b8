// SPDX-License-Identifier: Apache-2.0
// Data of single ranks, for jobs whose first fence collects none (Open MPI's
// pmix_base_collect_data=0): each rank's data is then published once, and fetched by the hosts
// whose ranks request it. In all other jobs a fence has distributed everything, and data that is
// requested later does not exist.
//
//   unknown --first fence of the job, with data--> collected    requests: "not found"
//      |      '----------------------- without --> on demand    requests: fetched
//      '-- requests wait for the first fence
//
// Thread: libpmix's only.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "agent/pmix/pmix_server.h"

namespace ivy {

// Implemented by PmixHost.
class DirectModexActions {
 public:
  // Publishes the data that this host's ranks have put.
  virtual void publish_local_data() = 0;
  // Fetches the data of a rank on another host.
  virtual void fetch_data(std::uint32_t rank, BlobAnswer answer) = 0;

 protected:
  ~DirectModexActions() = default;
};

class DirectModex {
 public:
  explicit DirectModex(DirectModexActions& actions) : actions_(actions) {}

  // A fence of the whole job, the first or a later one.
  void on_fence(bool has_data);
  void request(std::uint32_t rank, BlobAnswer answer);

 private:
  enum class Mode { kUnknown, kCollected, kOnDemand };

  DirectModexActions& actions_;
  Mode mode_ = Mode::kUnknown;
  std::vector<std::pair<std::uint32_t, BlobAnswer>> early_;
};

}  // namespace ivy
