// SPDX-License-Identifier: Apache-2.0
// Exchanges data between the servers of a job's hosts through the job's store: fences of ranks on
// several hosts, and single ranks' data. A fence of one host needs no store.
//
// Thread: any. Answers are delivered on internal threads: one for each group with a fence in
// progress, in the order of its requests, and two for single ranks' data. Only the error that too
// many groups are in progress is delivered inside fence(). Each thread exits when it has nothing to
// do. Lifetime: the destructor cancels pending requests.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/pmix/fence_group.h"
#include "agent/pmix/pmix_server.h"
#include "proto/contract/status.h"
#include "rendezvous/client/client.h"
#include "rendezvous/client/host_fence.h"

namespace ivy {

class HostExchange {
 public:
  // Without a store, fences across hosts fail.
  HostExchange(std::uint32_t host, std::uint32_t hosts, std::optional<store::ClientOptions> store);
  ~HostExchange();

  // Contributes `own`, and answers with the contributions of all hosts of the group.
  void fence(FenceGroup group, std::string own, BlobAnswer answer);
  // Publishes the data of a rank of this host, for other hosts to fetch, once for each rank.
  void publish(std::uint32_t rank, std::string blob);
  // Waits until another host has published the rank's data.
  void fetch(std::uint32_t rank, BlobAnswer answer);
  // Connects to the store now rather than when the first ranks wait.
  void warm_up();

 private:
  using Task = std::function<void()>;
  // Tasks that run one after the other, on a thread of the queue.
  struct Queue {
    std::deque<Task> tasks;
    std::thread thread;
  };

  // Returns false if too many queues exist already.
  bool enqueue_fence(const std::string& group, Task task);
  void enqueue(const std::string& queue, Task task);
  void add_task(const std::string& queue, Task task);  // Requires mutex_.
  void work(const std::string& queue);
  void join_ended();
  Result<std::string> synchronize(const FenceGroup& group, const std::string& own);
  Result<store::Client*> connected();

  const std::uint32_t host_;
  const std::uint32_t hosts_;
  const std::optional<store::ClientOptions> options_;

  std::mutex mutex_;
  bool is_over_ = false;
  std::map<std::string, Queue> queues_;
  std::vector<std::thread> ended_;  // Threads that return next, to be joined.
  std::condition_variable queue_ended_;
  std::thread first_connect_;

  std::mutex store_mutex_;  // Also held while connecting.
  std::unique_ptr<store::Client> client_;
  std::unique_ptr<store::HostFence> fence_;
};

}  // namespace ivy
