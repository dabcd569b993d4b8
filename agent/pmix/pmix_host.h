// SPDX-License-Identifier: Apache-2.0
// One host's part of a job as PMIx sees it: libpmix's server, the socket at which ranks ask, and
// the exchange with the other hosts.
//
// Thread: serve() keeps the caller's. Lifetime: libpmix's own thread may call into it until the
// process ends, so it is never taken apart.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "agent/pmix/direct_modex.h"
#include "agent/pmix/group_context.h"
#include "agent/pmix/host_exchange.h"
#include "agent/pmix/job_layout.h"
#include "agent/pmix/pmix_server.h"
#include "agent/pmix/rank_process.h"
#include "agent/pmix/rank_socket.h"
#include "proto/contract/status.h"
#include "proto/wire/mpi_server_options.h"

namespace ivy {

class PmixHost {
 public:
  // `secret`: the job's token where it has one. `say` takes event_line.h's lines, from any thread.
  PmixHost(MpiServerOptions options, const std::string& secret,
           std::function<void(const std::string& line)> say);

  // Directories for files of libpmix and the ranks; the caller removes them.
  struct Places {
    std::string server;
    std::string session;
    std::string segments;
  };
  // Serves until one of the descriptors is closed. libpmix is loaded when the first rank connects,
  // since it may be in that rank's Python environment; if none is found, every rank gets an error.
  Result<void> serve(const Places& places, const std::vector<int>& until);

 private:
  PmixSetup setup() const;
  PmixHandlers handlers();
  bool is_oversubscribed() const;
  Result<std::vector<std::string>> variables(std::uint32_t rank, const RankSocket::Peer& peer);
  Result<std::uint16_t> port(pid_t process);
  Result<void> start(const RankProcess& rank);
  // Starts libpmix's server, once. Its error stays.
  Result<void> ensure(const RankProcess& rank);
  void fence(std::vector<std::uint32_t> ranks, std::string own, const BlobAnswer& answer);
  void group(GroupRequest request, const GroupAnswer& answer);
  void say_unmet(const Error& why);
  void publish_all();

  const MpiServerOptions options_;
  const std::function<void(const std::string& line)> say_;
  const JobLayout layout_;
  const std::string name_;
  Places places_;
  HostExchange exchange_;
  DirectModex direct_;
  GroupContexts contexts_;  // libpmix's thread alone looks at it.
  std::mutex mutex_;  // Guards the next two: ranks query on one thread and connect on another.
  std::unique_ptr<PmixServer> server_;
  std::optional<Error> no_server_;  // Why libpmix could not be started.
};

}  // namespace ivy
