// SPDX-License-Identifier: Apache-2.0
// MPI on this host: its two servers, `ivy-node pmi` (PMI-1, for MPICH's ranks) and `ivy-pmix`
// (PMIx, for Open MPI's), and the MPI state of each rank as these servers report it. Each
// generation has its own servers.
//
// The sockets of a server listen from before the workers start, and its process is started by the
// first client: a job without MPI pays nothing for it. A server has two sockets: a Unix socket for
// ivyrun's own programs, and a port on loopback for MPI libraries in any process that a worker
// starts. The process is a child of the supervisor outside the workers' containment, and exits with
// the supervisor.
//
// Thread: the supervisor's loop. Lifetime: context and workers must outlive it; the
// destructor kills the servers.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/node/supervisor/host_workers.h"
#include "agent/node/supervisor/mpi_libraries.h"
#include "agent/node/supervisor/supervisor_context.h"
#include "agent/node/workers/mpi_identity.h"
#include "agent/node/workers/mpi_ranks.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class MpiServers {
 public:
  MpiServers(SupervisorContext& context, HostWorkers& workers);
  ~MpiServers();

  // Tells whether this build has the PMIx server. Call it before begin().
  void set_has_pmix(bool has_pmix) { has_pmix_ = has_pmix; }
  // Adds the variables for the workers' places in the MPI world, before the workers of this plan
  // start. Without a plan for MPI, no server listens.
  void begin(HostPlan& plan);
  // Returns how this worker's exit counts.
  MpiEnd classify(std::uint32_t rank, const ExitStatus& status);
  // Kills ranks that have left their world without MPI_Finalize. Call it often.
  void tick(std::uint64_t now_ns);
  // The supervisor has reaped a child; does nothing unless it is one of the servers.
  void reaped(pid_t pid, int wait_status);
  // Call it after the workers of this generation have exited.
  void end();

 private:
  class Server;

  // Creates the server of this protocol and returns its port on loopback. Returns 0, after warning
  // the user, if the server does not listen.
  std::uint16_t listen(const HostPlan& plan, MpiProtocol protocol);
  void add_variables(HostPlan& plan, MpiIdentity identity) const;
  void take(const std::string& line, MpiProtocol protocol);
  void read_libraries();
  void fail(const std::string& why);
  void note(const std::string& text);

  SupervisorContext& context_;
  HostWorkers& workers_;
  MpiRanks ranks_;
  std::vector<MpiJoined> unread_;  // Ranks whose libraries have not been read yet.
  bool is_reading_ = false;        // A pool task uses libraries_.
  std::shared_ptr<MpiLibraries> libraries_ = std::make_shared<MpiLibraries>();
  std::vector<std::shared_ptr<Server>> servers_;
  std::vector<std::string> segments_;  // Files that MPICH may leave behind.
  std::uint32_t generation_ = 0;
  bool has_failed_ = false;
  bool has_pmix_ = false;
};

}  // namespace ivy
