// SPDX-License-Identifier: Apache-2.0
// Watches the supervisor's page while the world is formed. If a rank dies, cancels this rank's
// waits at the store and names the dead rank.
//
// Thread: a separate one, from construction to destruction. The page and the store must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/contract/failure.h"
#include "comm/contract/member.h"
#include "proto/wire/status_page.h"
#include "rendezvous/client/client.h"

namespace ivy::comm {

// Returns the failure for a rank that exited before the world was formed. Requires that
// status.state is not kAlive.
Failure death_in_init(const Member& member, const comm_status::RankStatus& status);

class InitWatch {
 public:
  // A death cancels the store's client permanently, because without that rank there will be no
  // world.
  InitWatch(const comm_status::StatusPage& page, std::uint32_t own_rank, store::Client& store);
  ~InitWatch();
  InitWatch(const InitWatch&) = delete;
  InitWatch& operator=(const InitWatch&) = delete;

  // Returns the death of the rank that died first, or nothing.
  MaybeFailure death();

 private:
  void run();
  MaybeFailure find_death() const;

  const comm_status::StatusPage page_;
  const std::uint32_t own_rank_;
  store::Client& store_;
  std::mutex mutex_;  // Guards death_, which the thread sets.
  MaybeFailure death_;
  std::atomic<std::uint32_t> ending_{0};  // A futex; 1 stops the thread.
  std::thread thread_;
};

}  // namespace ivy::comm
