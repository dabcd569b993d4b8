// SPDX-License-Identifier: Apache-2.0
#include "comm/group/world/init_watch.h"

#include <chrono>

#include "comm/contract/background_thread.h"
#include "comm/transports/liveness/failure_detectors.h"
#include "comm/transports/shm/futex.h"

namespace ivy::comm {
namespace {

using comm_status::RankState;
using comm_status::RankStatus;

constexpr std::chrono::seconds kLookAround{10};

}  // namespace

Failure death_in_init(const Member& member, const RankStatus& status) {
  Failure death = death_of(member, status);
  set_text(death, std::string(death.text) + " before all ranks had called init");
  set_operation(death, comm_status::name_of(comm_status::Operation::kInit));
  return death;
}

InitWatch::InitWatch(const comm_status::StatusPage& page, std::uint32_t own_rank,
                     store::Client& store)
    : page_(page), own_rank_(own_rank), store_(store) {
  thread_ = background_thread([this] { run(); });
}

InitWatch::~InitWatch() {
  ending_.store(1);
  futex_wake_all(ending_);
  thread_.join();
}

MaybeFailure InitWatch::death() {
  const std::lock_guard lock(mutex_);
  return death_;
}

MaybeFailure InitWatch::find_death() const {
  MaybeFailure first;
  std::uint64_t first_ns = ~std::uint64_t{0};
  if (page_.deaths() == 0) return first;
  for (std::uint32_t rank = 0; rank < page_.shape().world_size; ++rank) {
    const RankStatus status = page_.rank(rank);
    const bool is_dead = status.state != RankState::kAlive && status.state != RankState::kLeft;
    if (rank == own_rank_ || !is_dead || status.when_ns >= first_ns) continue;
    Member member;
    member.world_rank = static_cast<std::int32_t>(rank);
    member.host_name = page_.host_name(status.host);
    first = death_in_init(member, status);
    first_ns = status.when_ns;
  }
  return first;
}

void InitWatch::run() {
  while (ending_.load() == 0) {
    const std::uint32_t event_count = page_.event_count().load(std::memory_order_acquire);
    const MaybeFailure found = find_death();
    if (!found) {
      futex_wait({&ending_, 0}, {&page_.event_count(), event_count}, kLookAround);
      continue;
    }
    {
      const std::lock_guard lock(mutex_);
      death_ = found;
    }
    store_.cancel();
    return;
  }
}

}  // namespace ivy::comm
