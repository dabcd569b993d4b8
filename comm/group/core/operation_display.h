// SPDX-License-Identifier: Apache-2.0
// Shows a communicator's current collective in the supervisor's status page, for `ivyctl why`.
//
// Thread: one at a time (the communicator's lock).
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "comm/contract/fast_clock.h"
#include "comm/contract/fingerprint.h"
#include "comm/group/core/membership.h"
#include "comm/group/world/status_rows.h"
#include "comm/transports/liveness/wait_watch.h"
#include "proto/wire/status_page.h"

namespace ivy::comm {

class OperationDisplay final : public EntryWatch {
 public:
  // The rows and the ranks must outlive it. `name` is the name of the row, which reports show.
  OperationDisplay(StatusRows& rows, const Membership& ranks, const std::string& name);

  // Call when an operation starts; `shape` must live until finish().
  void begin(const OperationShape& shape, std::uint64_t sequence) {
    pending_ = &shape;
    record_.sequence = sequence;
  }
  // Shows the current operation, once.
  void entered() override {
    if (pending_ == nullptr) return;
    const OperationShape& shape = *std::exchange(pending_, nullptr);
    if (slot_) show(shape);
  }
  void finish(bool is_ok) {
    entered();
    if (!slot_) return;
    record_.ended_ns = clock_.now_ns();
    record_.outcome = is_ok ? comm_status::Outcome::kDone : comm_status::Outcome::kFailed;
    slot_->finish(record_);
  }

 private:
  void show(const OperationShape& shape);

  const Membership& ranks_;
  const StatusRow row_;
  std::optional<comm_status::SlotView> slot_;  // Empty if there is no page, or no free row.
  comm_status::OperationRecord record_;        // Current content of the row.
  const OperationShape* pending_ = nullptr;    // The current operation, until it is shown.
  FastClock clock_;
};

}  // namespace ivy::comm
