// SPDX-License-Identifier: Apache-2.0
// The job's MPI world as the hosts' servers describe it: which ranks have called MPI_Init, and by
// which protocol and library. MPI_Init waits for all ranks, so one that will not come is an error,
// and one that has not come for long is named. Ranks whose libraries differ would fail later.
//
// Thread: the loop's. Lifetime: that of the job.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <optional>
#include <string>

#include "launcher/job/job_context.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/remote_text.h"

namespace ivy {

class MpiWorld {
 public:
  explicit MpiWorld(JobContext& job) : job_(job), timer_(job.loop) {}

  // Forgets what it knows: a generation begins.
  void begin();
  // A rank of this host has called MPI_Init for the first time.
  void joined(std::size_t index, const MpiJoined& joined);
  // MPI cannot be served on this host.
  void lost(std::size_t index, const MpiLost& lost);
  // Called whenever a rank has ended.
  void check_absent();
  void stop() { timer_.cancel(); }

 private:
  struct First {
    std::size_t host = 0;
    std::uint32_t rank = 0;
    MpiProtocol protocol = MPI_PMI1;
    RemoteText library = {};  // Empty while it is not known.
  };

  void watch();
  void warn_of_absent();
  void warn_of_two(std::size_t index, const MpiJoined& joined);
  // "rank 3 has this, and rank 0 (node1) has that"
  std::string difference(std::uint32_t rank, const std::string& its,
                         const std::string& first) const;
  void fail(const std::string& where, const std::string& cause, const std::string& fix,
            int exit_code = kExitRefused);

  JobContext& job_;
  boost::asio::steady_timer timer_;  // --start-timeout since the first rank.
  std::optional<First> first_;
  bool has_warned_of_two_ = false;
};

}  // namespace ivy
