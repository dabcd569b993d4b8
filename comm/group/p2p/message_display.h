// SPDX-License-Identifier: Apache-2.0
// Shows the longest-waiting message of a communicator in the status page, in a separate row from
// the collectives. Messages that do not wait are not shown and cost nothing.
//
// Thread: one at a time. Lifetime: the page and the row outlive it.
#pragma once

#include <cstdint>
#include <string>

#include "comm/contract/fingerprint.h"
#include "proto/wire/status_page.h"

namespace ivy::comm {

struct WaitingMessage {
  std::uint64_t number = 0;  // Counts this rank's sends and receives, from 1.
  bool is_send = false;
  std::int32_t peer = -1;  // Rank in the job, or -1 for any rank.
  std::int32_t tag = -1;   // Negative for any tag.
  Dtype dtype = Dtype::kU8;
  std::uint64_t count = 0;
};

class MessageDisplay {
 public:
  MessageDisplay(comm_status::SlotView slot, std::uint32_t row, const std::string& communicator);

  bool shows(std::uint64_t number) const { return record_.sequence == number && is_shown_; }
  void show(const WaitingMessage& message);
  // Removes the message shown, which has ended.
  void clear(bool is_ok);

 private:
  comm_status::SlotView slot_;
  const std::uint32_t row_;
  comm_status::OperationRecord record_;
  bool is_shown_ = false;
};

}  // namespace ivy::comm
