// SPDX-License-Identifier: Apache-2.0
// libpmix's server as one object: registers the job, gives ranks their variables, and reports the
// ranks' calls. libpmix has one server per process, so only one of these may exist.
//
// Thread: start() and the other calls belong to one thread. PmixServerEvents is called on libpmix's
// own thread and must return soon; its answers may be called on any thread. Lifetime: `events` must
// outlive the server, which is never destroyed before the process exits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/pmix/fence_group.h"
#include "agent/pmix/job_facts.h"
#include "agent/pmix/pmix_library.h"
#include "proto/contract/status.h"

namespace ivy {

// Called once, with the bytes for which the ranks wait or an error.
using BlobAnswer = std::function<void(Result<std::string>)>;

// PMIx_Group_construct or _destruct, with which Open MPI creates the communicators of MPI's
// sessions.
struct GroupRequest {
  bool is_end = false;
  std::string id;                    // Chosen by the ranks.
  std::vector<std::uint32_t> ranks;  // Empty means the whole job.
  std::string own;                   // The local members' contribution for the other hosts.
};
using GroupAnswer = std::function<void(Result<GroupResult>)>;

// Implemented by PmixHost.
class PmixServerEvents {
 public:
  virtual void on_joined(std::uint32_t rank) = 0;  // MPI_Init
  virtual void on_left(std::uint32_t rank) = 0;    // MPI_Finalize
  virtual void on_aborted(std::uint32_t rank, int code, std::string_view text) = 0;
  // The rank's connection has ended between MPI_Init and MPI_Finalize.
  virtual void on_vanished(std::uint32_t rank) = 0;
  // The rank has called MPI_Comm_spawn, which is rejected.
  virtual void on_spawn_rejected(std::uint32_t rank) = 0;
  // All participating ranks of this host have arrived. `ranks` is empty for the whole job. `answer`
  // must be called with the contributions of all hosts, concatenated.
  virtual void on_fence(std::vector<std::uint32_t> ranks, std::string own, BlobAnswer answer) = 0;
  // All members on this host have arrived.
  virtual void on_group(GroupRequest request, GroupAnswer answer) = 0;
  // A rank of this host requests the data of a rank on another host.
  virtual void on_data_request(std::uint32_t rank, BlobAnswer answer) = 0;

 protected:
  ~PmixServerEvents() = default;
};

struct PmixSetup {
  std::string name;  // The namespace, the same on every host.
  std::uint32_t host = 0;
  std::string server_directory;  // Exists; only this user may enter it.
  std::string host_name;
  std::uint32_t ranks_here = 0;
  JobFacts facts;
};

class PmixServer {
 public:
  // Starts libpmix's thread and its socket on loopback. The error names libpmix's reason. May be
  // called once per process, also if it fails.
  static Result<std::unique_ptr<PmixServer>> start(const PmixLibrary& pmix, const PmixSetup& setup,
                                                   PmixServerEvents& events);

  // Returns the variables with which a rank of this host connects to the server: NAME=VALUE. The
  // first call for a rank registers it with libpmix. `group` is the group under which the rank
  // runs.
  Result<std::vector<std::string>> variables(std::uint32_t rank, gid_t group);
  // Returns the port on loopback at which libpmix serves the rank.
  Result<std::uint16_t> port(std::uint32_t rank, gid_t group);
  // Requests the data that a rank of this host has put or will put. Thread: any.
  void read(std::uint32_t rank, BlobAnswer answer) const;

 private:
  PmixServer(const PmixLibrary& pmix, std::string name) : pmix_(pmix), name_(std::move(name)) {}
  Result<void> initialize(const PmixSetup& setup) const;
  Result<void> watch_losses() const;
  Result<void> add_namespace(const PmixSetup& setup) const;
  pmix_proc_t process(std::uint32_t rank) const;

  const PmixLibrary pmix_;
  const std::string name_;
  std::set<std::uint32_t> registered_;  // Ranks for which variables() was called.
};

}  // namespace ivy
