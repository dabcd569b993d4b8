// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process, on pretended hosts: those of one host share a segment in
// one mapping, hosts speak TCP on loopback. ThreadSanitizer sees no other process and no second
// mapping of the same memory, so this is where it sees both sides of every protocol.
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
  bool has_processor_each = false;     // Waits spin, and publishing costs no fence.
  std::chrono::microseconds spin{20};  // Short: so that waits end in every way.
  std::chrono::seconds timeout = seconds(60);
};

// One rank's member. Thread: that rank's, but for what is said to be any.
class ThreadRank {
 public:
  ThreadRank(const ThreadRanksOptions& options, std::int32_t rank,
             std::shared_ptr<SharedSegment> segment, std::unique_ptr<PeerListener> listener);
  ~ThreadRank();

  std::int32_t rank() const { return rank_; }
  std::int32_t size() const { return size_; }
  const std::string& address() const { return address_; }
  // When all listeners are there.
  void connect(const std::vector<std::string>& addresses);

  // ---- One operation each, as Communicator chooses; false: broken. ----
  bool barrier();
  bool all_reduce(const void* send, void* receive, std::size_t count);  // Of u32, by sum.
  bool reduce(const void* send, void* receive, std::size_t count, std::int32_t root);
  bool reduce_scatter(const void* send, void* receive, std::size_t count_each);
  bool broadcast(void* buffer, std::size_t count, std::int32_t root);
  bool all_gather(const void* send, void* receive, std::size_t count_each);
  bool gather(const void* send, void* receive, std::size_t count_each, std::int32_t root);
  bool scatter(const void* send, void* receive, std::size_t count_each, std::int32_t root);
  bool all_to_all(const void* send, void* receive, std::size_t count_each);
  bool scan(const void* send, void* receive, std::size_t count);

  // Any thread.
  PointToPoint& messages() { return *messages_; }
  void break_with(const Failure& failure);
  MaybeFailure failure() const;
  // Its connections and messages end here, before other ranks' do.
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
  std::unique_ptr<PeerListener> listener_;  // Null: one host.
  std::string address_;
  std::unique_ptr<SharedGroup> local_;  // Null: alone on its host.
  std::unique_ptr<TcpMesh> mesh_;       // Null: one host.
  std::unique_ptr<HostCollectives> collectives_;
  std::unique_ptr<PointToPoint> messages_;
  std::uint64_t sequence_ = 0;
};

// Runs the body once for every rank, each in a thread of its own.
void run_thread_ranks(const ThreadRanksOptions& options,
                      const std::function<void(ThreadRank&)>& body);

}  // namespace ivy::comm::test
