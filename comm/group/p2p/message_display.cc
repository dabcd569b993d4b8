// SPDX-License-Identifier: Apache-2.0
#include "comm/group/p2p/message_display.h"

#include "proto/os/clock.h"

namespace ivy::comm {

MessageDisplay::MessageDisplay(comm_status::SlotView slot, std::uint32_t row,
                               const std::string& communicator)
    : slot_(slot), row_(row) {
  record_.communicator = static_cast<std::uint16_t>(row);
  record_.communicator_hash = comm_status::communicator_hash(communicator);
}

void MessageDisplay::show(const WaitingMessage& message) {
  record_.sequence = message.number;
  record_.count = message.count;
  record_.entered_ns = monotonic_ns();
  record_.ended_ns = 0;
  record_.peer = message.peer;
  record_.operation =
      message.is_send ? comm_status::Operation::kSend : comm_status::Operation::kReceive;
  record_.dtype = page_number(message.dtype);
  record_.outcome = comm_status::Outcome::kRunning;
  slot_.enter(record_);
  slot_.set_phase(row_, comm_status::Phase::kWaiting, static_cast<std::uint32_t>(message.tag + 1));
  is_shown_ = true;
}

void MessageDisplay::clear(bool is_ok) {
  if (!is_shown_) return;
  is_shown_ = false;
  record_.ended_ns = monotonic_ns();
  record_.outcome = is_ok ? comm_status::Outcome::kDone : comm_status::Outcome::kFailed;
  slot_.finish(record_);
}

}  // namespace ivy::comm
