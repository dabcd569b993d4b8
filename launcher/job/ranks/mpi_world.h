// SPDX-License-Identifier: Apache-2.0
// The MPI world of a job, as the hosts report it: which ranks have called MPI_Init, by which
// protocol and library. MPI_Init waits for all ranks. A rank that can no longer call it is
// therefore an error, and a rank that has not called it for a long time is reported. Ranks with
// different libraries would fail later, so that is an error too.
//
// Thread: the loop's. Lifetime: as long as the job.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <optional>
#include <string>

#include "launcher/job/core/job_context.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/remote_text.h"

namespace ivy {

class MpiWorld {
 public:
  explicit MpiWorld(JobContext& job) : job_(job), timer_(job.loop) {}

  // Begins a generation: forgets everything.
  void begin();
  // A rank of this host has called MPI_Init.
  void joined(std::size_t index, const MpiJoined& joined);
  // This host cannot serve MPI.
  void lost(std::size_t index, const MpiLost& lost);
  // Call when a rank has ended: it may never call MPI_Init now.
  void check_absent();
  void stop() { timer_.cancel(); }

 private:
  // The first rank that called MPI_Init, with which the others are compared.
  struct First {
    std::size_t host = 0;
    std::uint32_t rank = 0;
    MpiProtocol protocol = MPI_PMI1;
    RemoteText library = {};  // Empty until it is known.
  };

  void watch();
  void warn_of_absent();
  void warn_of_two(std::size_t index, const MpiJoined& joined);
  // Returns "rank 3 has this, and rank 0 (node1) has that".
  std::string difference(std::uint32_t rank, const std::string& its,
                         const std::string& first) const;
  void fail(const std::string& where, const std::string& cause, const std::string& fix,
            int exit_code = kExitRejected);

  JobContext& job_;
  boost::asio::steady_timer timer_;  // Runs for --start-timeout from the first MPI_Init.
  std::optional<First> first_;
  bool has_warned_of_two_ = false;
};

}  // namespace ivy
