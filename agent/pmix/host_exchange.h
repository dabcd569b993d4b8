// SPDX-License-Identifier: Apache-2.0
// Exchanges data between the servers of a job's hosts through the job's store: fences of ranks on
// several hosts, and single ranks' data. A fence of one host needs no store.
//
// Thread: any. Answers are delivered on internal threads: one for each group with a fence in
// progress, in the order of its requests, and two for single ranks' data. Each thread exits when it
// has nothing to do. Lifetime: the destructor cancels pending requests.
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
  // Without a store ranks of several hosts cannot meet.
  HostExchange(std::uint32_t host, std::uint32_t hosts, std::optional<store::ClientOptions> store);
  ~HostExchange();

  // Gives `own`, and answers with what all hosts of the group have given.
  void fence(FenceGroup group, std::string own, BlobAnswer answer);
  // Publishes the data of a rank of this host, for other hosts to fetch, once for each rank.
  void publish(std::uint32_t rank, std::string blob);
  // Waits until another host has published the rank's.
  void fetch(std::uint32_t rank, BlobAnswer answer);
  // Connects to the store now, not when the first ranks wait.
  void warm_up();

 private:
  using Task = std::function<void()>;
  // Tasks that are done one after the other.
  struct Line {
    std::deque<Task> tasks;
    std::thread thread;
  };

  // False: there are too many lines already.
  bool enqueue(const std::string& line, Task task);
  void work(const std::string& line);
  void join_ended();
  Result<std::string> meet(const FenceGroup& group, const std::string& own);
  Result<store::Client*> connected();

  const std::uint32_t host_;
  const std::uint32_t hosts_;
  const std::optional<store::ClientOptions> options_;

  std::mutex mutex_;
  bool is_over_ = false;
  std::map<std::string, Line> lines_;
  std::vector<std::thread> ended_;  // Threads that only have to return.
  std::condition_variable line_ended_;
  std::thread first_connect_;

  std::mutex store_mutex_;  // Held while it is connected to.
  std::unique_ptr<store::Client> client_;
  std::unique_ptr<store::HostFence> fence_;
};

}  // namespace ivy
