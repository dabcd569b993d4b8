// SPDX-License-Identifier: Apache-2.0
// One host's part of a job in PMIx: libpmix's server, the sockets of the ranks, and the exchange
// with the other hosts.
//
// Thread: serve() runs on the caller's. Lifetime: libpmix's own thread may call into it until the
// process exits, so it is never destroyed.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/pmix/direct_modex.h"
#include "agent/pmix/fence_group.h"
#include "agent/pmix/host_exchange.h"
#include "agent/pmix/job_layout.h"
#include "agent/pmix/pmix_server.h"
#include "agent/pmix/rank_process.h"
#include "agent/pmix/rank_socket.h"
#include "proto/contract/status.h"
#include "proto/wire/mpi_server_options.h"

namespace ivy {

// Receives the lines of event_line.h. Thread: any. Implemented by the program (pmix_main.cc).
class PmixLines {
 public:
  virtual void send_line(const std::string& line) = 0;

 protected:
  ~PmixLines() = default;
};

class PmixHost final : private PmixServerEvents, private DirectModexActions {
 public:
  // `secret`: the job's token, or empty. `lines` must outlive the process's other threads.
  PmixHost(MpiServerOptions options, const std::string& secret, PmixLines& lines);

  // Directories for files of libpmix and the ranks; the caller removes them.
  struct Directories {
    std::string server;
    std::string session;
    std::string segments;
  };
  // Serves until one of the descriptors is closed or readable. Loads libpmix when the first rank
  // connects, since the library may be in that rank's Python environment; if there is none, every
  // rank receives an error.
  Result<void> serve(const Directories& directories, const std::vector<int>& until);

 private:
  // PmixServerEvents
  void on_joined(std::uint32_t rank) override;
  void on_left(std::uint32_t rank) override;
  void on_aborted(std::uint32_t rank, int code, std::string_view text) override;
  void on_vanished(std::uint32_t rank) override;
  void on_spawn_rejected(std::uint32_t rank) override;
  void on_fence(std::vector<std::uint32_t> ranks, std::string own, BlobAnswer answer) override;
  void on_group(GroupRequest request, GroupAnswer answer) override;
  void on_data_request(std::uint32_t rank, BlobAnswer answer) override;
  // DirectModexActions
  void publish_local_data() override;
  void fetch_data(std::uint32_t rank, BlobAnswer answer) override;

  PmixSetup setup() const;
  bool is_oversubscribed() const;
  Result<std::vector<std::string>> variables(std::uint32_t rank, const RankSocket::Peer& peer);
  Result<std::uint16_t> port(pid_t process);
  Result<void> start(const RankProcess& rank);
  // Starts libpmix's server once, for the first rank; later calls return the same result.
  Result<void> ensure_started(const RankProcess& rank);
  void report_failed_fence(const Error& why);

  const MpiServerOptions options_;
  PmixLines& lines_;
  const JobLayout layout_;
  const std::string name_;
  Directories directories_;
  HostExchange exchange_;
  DirectModex direct_;
  GroupContexts contexts_;  // Used by libpmix's thread only.
  std::mutex mutex_;  // Guards server_ and no_server_: ranks request variables on one thread and
                      // connect on another.
  std::unique_ptr<PmixServer> server_;
  std::optional<Error> no_server_;  // Why libpmix could not be started.
};

}  // namespace ivy
