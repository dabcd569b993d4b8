#include "comm/group/message_alarm.h"

#include <poll.h>

#include "comm/transports/alarms.h"

namespace ivy::comm {

MaybeFailure MessageAlarm::look(std::int32_t missed) {
  if (alarm_ == nullptr) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return alarm_->look(missed);
}

bool MessageAlarm::has_left(std::int32_t rank) {
  if (alarm_ == nullptr) return false;
  const std::lock_guard lock(mutex_);
  return alarm_->has_left(rank);
}

Failure MessageAlarm::lost(std::int32_t rank, const std::string& why) {
  // The peer may be gone because the communicator was broken before.
  MaybeFailure known = shared();
  if (!known && alarm_ != nullptr) {
    const std::lock_guard lock(mutex_);
    known = alarm_->look_closely(rank);
  }
  Deadline verdict(Alarm::kVerdictTime);
  while (alarm_ != nullptr && !known && !is_called_off_.load() && verdict.left().count() > 0) {
    poll(nullptr, 0, static_cast<int>(Alarm::kVerdictStep.count()));
    known = look(rank);
  }
  if (known) return *known;
  const TcpPeer& peer = options_.peer(rank);
  Failure failure = make_failure(FailureKind::kTransport,
                                 name_of_rank(peer.world_rank, peer.host, peer.pid) + ": " + why);
  failure.rank = peer.world_rank;
  failure.pid = peer.pid;
  set_host(failure, peer.host);
  return failure;
}

}  // namespace ivy::comm
