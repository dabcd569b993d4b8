// SPDX-License-Identifier: Apache-2.0
// MPI on this host: the two servers that workers of MPI programs find their world by, and what
// these have said of each rank. A generation has servers of its own.
//
// Thread: the supervisor's loop. Lifetime: ends the servers.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/node/supervisor/mpi_libraries.h"
#include "agent/node/supervisor/mpi_server.h"
#include "agent/node/supervisor/supervisor_start.h"
#include "agent/node/workers/mpi_place.h"
#include "agent/node/workers/mpi_ranks.h"
#include "proto/os/blocking.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class MpiServers {
 public:
  struct Handlers {
    std::function<void(const Event&)> send;
    std::function<void(pid_t)> spare;         // A process that is not a worker.
    std::function<void(std::uint32_t)> kill;  // The worker of this rank.
    std::function<pid_t(std::uint32_t)> process_of;
  };

  // `blocking` reads the files of MPI libraries.
  MpiServers(boost::asio::io_context& loop, BlockingPool& blocking, const SupervisorStart& start,
             Handlers handlers)
      : loop_(loop), blocking_(blocking), start_(start), handlers_(std::move(handlers)) {}

  // Sets whether this build has the PMIx server; call it before begin().
  void set_has_pmix(bool has_pmix) { has_pmix_ = has_pmix; }
  // Called before the workers of this plan start: adds the variables by which these find their
  // places in the MPI world. Without a plan for MPI nothing listens.
  void begin(HostPlan& plan);
  // Returns how this worker's exit counts.
  MpiEnd judge(std::uint32_t rank, const ExitStatus& status);
  // Called often: ends ranks that have left their world without MPI_Finalize.
  void tick(std::uint64_t now_ns);
  // Called when the supervisor has reaped a child; others than the servers are ignored.
  void reaped(pid_t pid, int wait_status);
  // Call it after the workers of this generation have exited.
  void end();

 private:
  // The port on loopback; 0: it does not listen, and the user has been told.
  std::uint16_t listen(MpiServerStart start, MpiProtocol protocol);
  void add_variables(HostPlan& plan, MpiPlace place) const;
  void take(const std::string& line, MpiProtocol protocol);
  void read_libraries();
  void fail(const std::string& why);
  void note(const std::string& text);

  boost::asio::io_context& loop_;
  BlockingPool& blocking_;
  const SupervisorStart& start_;
  const Handlers handlers_;
  MpiRanks ranks_;
  std::vector<MpiJoined> unread_;  // Ranks whose libraries have not been looked up.
  bool is_reading_ = false;        // A pool task uses libraries_.
  std::shared_ptr<MpiLibraries> libraries_ = std::make_shared<MpiLibraries>();
  std::vector<std::shared_ptr<MpiServer>> servers_;
  std::vector<std::string> segments_;  // Files that MPICH may leave.
  std::uint32_t generation_ = 0;
  bool has_failed_ = false;
  bool has_pmix_ = false;
};

}  // namespace ivy
