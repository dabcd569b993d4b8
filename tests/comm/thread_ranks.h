// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process, on simulated hosts: the ranks of a host share a segment in one
// mapping, and hosts use TCP on loopback. ThreadSanitizer sees no other process and no second
// mapping of the same memory, so here it can check both sides of every protocol.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/collectives/host_collectives.h"
#include "comm/group/p2p/point_to_point.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {

struct ThreadRanksOptions {
  Hosts hosts;
  bool has_processor_each = false;     // Waits spin, and publishing needs no fence.
  std::chrono::microseconds spin{20};  // Short, so that waits end in every way.
  std::chrono::seconds timeout = seconds(60);
};

// The member of one rank. Thread: that rank's, unless a function says any.
class ThreadRank {
 public:
  ThreadRank(const ThreadRanksOptions& options, std::int32_t rank,
             std::shared_ptr<SharedSegment> segment, std::unique_ptr<PeerConnections> connections);
  ~ThreadRank();

  std::int32_t rank() const { return rank_; }
  std::int32_t size() const { return size_; }
  const std::string& address() const { return address_; }
  // Call it after all listeners exist.
  void connect(const std::vector<std::string>& addresses);

  // ---- One operation each, as Communicator chooses it. Returns false if broken. ----
  bool barrier();
  bool all_reduce(const void* send, void* receive, std::size_t count);  // The sum of u32.
  bool reduce(const void* send, void* receive, std::size_t count, std::int32_t root);
  bool reduce_scatter(const void* send, void* receive, std::size_t count_each);
  bool broadcast(void* buffer, std::size_t count, std::int32_t root);
  bool all_gather(const void* send, void* receive, std::size_t count_each);
  bool gather(const void* send, void* receive, std::size_t count_each, std::int32_t root);
  bool scatter(const void* send, void* receive, std::size_t count_each, std::int32_t root);
  bool all_to_all(const void* send, void* receive, std::size_t count_each);
  bool scan(const void* send, void* receive, std::size_t count);

  // Thread: any.
  PointToPoint& messages() { return *messages_; }
  void break_with(const Failure& failure);
  MaybeFailure failure() const;
  // Ends its connections and messages before those of other ranks.
  void end();

 private:
  bool run(Collective collective);
  template <class Memory>
  Side<Memory> blocks(Memory* data, std::size_t count_each) const;
  std::vector<TcpPeer> peers(const std::vector<std::string>& addresses) const;

  const ThreadRanksOptions options_;
  const std::int32_t rank_;
  const std::int32_t size_;
  HostMap map_;
  std::unique_ptr<PeerConnections> connections_;  // Null on one host.
  std::string address_;
  std::unique_ptr<SharedGroup> local_;  // Null if it is alone on its host.
  std::unique_ptr<TcpMesh> mesh_;       // Null on one host.
  std::unique_ptr<HostCollectives> collectives_;
  std::unique_ptr<PointToPoint> messages_;
  std::uint64_t sequence_ = 0;
};

// Runs the body once for every rank, each in its own thread.
void run_thread_ranks(const ThreadRanksOptions& options,
                      const std::function<void(ThreadRank&)>& body);

}  // namespace ivy::comm::test
