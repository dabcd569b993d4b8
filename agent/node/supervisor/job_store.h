// SPDX-License-Identifier: Apache-2.0
// The job's store on its first host. Its sockets listen from before the workers start, and its
// process is started by the first client: a job that does not use the store pays nothing for it.
//
//   listening --a client--> serving --its process exits--> lost
//
// A lost store ends the attempt, because no other process has its contents. The next attempt has a
// new store.
//
// The process is `ivy-node rendezvous`, a child of the supervisor outside the workers' containment,
// so that the last worker can still use it during a stop. It exits with the supervisor.
//
// Thread: the supervisor's loop. Lifetime: the context must outlive it; the
// destructor kills the process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/node/supervisor/supervisor_context.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class JobStore {
 public:
  explicit JobStore(SupervisorContext& context) : context_(context) {}
  ~JobStore();

  // Returns false before open() and after the store is lost; another one may then be opened.
  bool is_open() const;
  // Listens at `port` for the store's own protocol and at `torch_port` for torch's. Sends
  // StoreOpened.
  void open(const OpenStore& request, std::uint16_t port, std::uint16_t torch_port);
  // Admits clients from these numeric addresses to torch's protocol.
  void add_peers(const std::vector<std::string>& addresses);
  // Deletes the values and closes the connections of the previous generation, including those not
  // yet accepted, and then sends GenerationBegun.
  void begin_generation(std::uint32_t generation);
  // Writes ivy/gone/RANK to the store, because this process of the rank has exited. Does nothing if
  // the store is not on this host.
  void rank_exited(std::uint32_t rank, std::uint32_t rejoins);
  // The supervisor has reaped a child; does nothing unless it is the store's process.
  void reaped(pid_t pid, int wait_status);
  // Excludes the store's process from a containment that was newly created.
  void spare_again() const;
  void close();

 private:
  class Process;

  SupervisorContext& context_;
  std::shared_ptr<Process> process_;  // Set by open().
};

}  // namespace ivy
