// SPDX-License-Identifier: Apache-2.0
// libpmix's server as one object: it knows the job, gives ranks their variables, and says what
// ranks do. libpmix has one server per process, and so there is one of these.
//
// Thread: setup() and the calls after it belong to one thread. The handlers are called by libpmix's
// own thread and must return soon; the answers that they are given may be called by any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/pmix/job_facts.h"
#include "agent/pmix/pmix_library.h"
#include "proto/contract/status.h"

namespace ivy {

// Called once: the bytes that the ranks wait for, or why there are none.
using BlobAnswer = std::function<void(Result<std::string>)>;

// Ranks make a group that has an id of theirs, or end it: PMIx_Group_construct and _destruct, of
// which Open MPI makes the communicators of MPI's sessions.
struct GroupRequest {
  bool is_end = false;
  std::string id;
  std::vector<std::uint32_t> ranks;  // None means the whole job.
  std::string own;                   // The local members' contribution for the others.
};
struct GroupResult {
  std::uint32_t context = 0;  // A number that no other group of the job gets.
  std::string data;           // The contributions of all hosts, concatenated.
};
using GroupAnswer = std::function<void(Result<GroupResult>)>;

struct PmixHandlers {
  std::function<void(std::uint32_t rank)> joined;
  std::function<void(std::uint32_t rank)> left;
  std::function<void(std::uint32_t rank, int code, std::string_view text)> aborted;
  std::function<void(std::uint32_t rank)> vanished;
  // The rank calls MPI_Comm_spawn, which is rejected.
  std::function<void(std::uint32_t rank)> spawns;
  // All ranks of this host that take part have come. `ranks` is empty when the whole job does. The
  // answer is what all hosts have given, one behind the other.
  std::function<void(std::vector<std::uint32_t> ranks, std::string own, BlobAnswer)> fence;
  // All members on this host have arrived.
  std::function<void(GroupRequest, GroupAnswer)> group;
  // A rank of this host requests the data that a rank of another host has put.
  std::function<void(std::uint32_t rank, BlobAnswer)> ask;
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
  // Starts libpmix's thread and its socket on loopback. The error names libpmix's reason.
  static Result<std::unique_ptr<PmixServer>> start(const PmixLibrary& pmix, const PmixSetup& setup,
                                                   PmixHandlers handlers);

  // The variables with which a rank of this host finds the server: NAME=VALUE. `group` is the one
  // under which it runs.
  Result<std::vector<std::string>> variables(std::uint32_t rank, gid_t group);
  // The port on loopback at which libpmix serves them.
  Result<std::uint16_t> port(std::uint32_t rank, gid_t group);
  // Asks for what a rank of this host has put or will put. Any thread.
  void read(std::uint32_t rank, BlobAnswer answer) const;

 private:
  PmixServer(const PmixLibrary& pmix, std::string name) : pmix_(pmix), name_(std::move(name)) {}
  Result<void> initialize(const PmixSetup& setup) const;
  Result<void> watch_losses() const;
  Result<void> add_namespace(const PmixSetup& setup) const;
  pmix_proc_t process(std::uint32_t rank) const;

  const PmixLibrary pmix_;
  const std::string name_;
  std::set<std::uint32_t> registered_;
};

}  // namespace ivy
