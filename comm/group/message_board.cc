#include "comm/group/message_board.h"

#include <chrono>

#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

using comm_status::Phase;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(steady_now().time_since_epoch() / std::chrono::nanoseconds(1));
}

}  // namespace

MessageBoard::MessageBoard(comm_status::SlotView slot, std::uint32_t row,
                           const std::string& communicator)
    : slot_(slot), row_(row) {
  record_.communicator = static_cast<std::uint16_t>(row);
  record_.communicator_hash = comm_status::communicator_hash(communicator);
}

void MessageBoard::show(const WaitingMessage& message) {
  record_.sequence = message.number;
  record_.count = message.count;
  record_.entered_ns = now_ns();
  record_.ended_ns = 0;
  record_.peer = message.peer;
  record_.operation =
      message.is_send ? comm_status::Operation::kSend : comm_status::Operation::kReceive;
  // The page's numbers begin with "none".
  record_.dtype = static_cast<comm_status::Dtype>(static_cast<std::uint8_t>(message.dtype) + 1);
  record_.outcome = comm_status::Outcome::kRunning;
  slot_.enter(record_);
  slot_.set_phase(row_, Phase::kWaiting, static_cast<std::uint32_t>(message.tag + 1));
  is_shown_ = true;
}

void MessageBoard::clear(bool is_well) {
  if (!is_shown_) return;
  is_shown_ = false;
  record_.ended_ns = now_ns();
  record_.outcome = is_well ? comm_status::Outcome::kDone : comm_status::Outcome::kFailed;
  slot_.finish(record_);
}

}  // namespace ivy::comm
