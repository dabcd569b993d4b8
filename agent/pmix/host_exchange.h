// What the servers of a job's hosts exchange: the fences in which ranks of several hosts meet,
// through the job's store. A host that meets only itself needs no store.
//
// Thread: any. Answers come from a thread of each group of hosts, one fence after the other, as
// they were asked for. Lifetime: its end cancels what is still waited for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

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
  // Connects to the store now, not when the first ranks wait.
  void warm_up();

 private:
  struct Turn {
    FenceGroup group;
    std::string own;
    BlobAnswer answer;
  };
  struct Line {  // The fences of one group.
    std::deque<Turn> turns;
    std::condition_variable changed;
    std::thread thread;
  };

  void keep(Line& line);
  Result<std::string> meet(const Turn& turn);
  Result<store::HostFence*> store_fence();

  const std::uint32_t host_;
  const std::uint32_t hosts_;
  const std::optional<store::ClientOptions> options_;

  std::mutex mutex_;
  bool is_over_ = false;
  std::map<std::string, Line> lines_;
  std::thread first_connect_;

  std::mutex store_mutex_;  // Held while it is connected to.
  std::unique_ptr<store::Client> client_;
  std::unique_ptr<store::HostFence> fence_;
};

}  // namespace ivy
