// SPDX-License-Identifier: Apache-2.0
// The rows of this process's slot in the supervisor's status page: each communicator shows its
// operations in one, and its messages in another.
//
// Thread: any. Lifetime: the page outlives the rows, and they outlive every StatusRow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/group/world/control_client.h"
#include "proto/wire/status_page.h"

namespace ivy::comm {

class StatusRows {
 public:
  // Before this call, or with null, there is no page.
  void show_in(ControlClient* control) { control_ = control; }
  // Returns nothing if all rows are in use, or if there is no page.
  std::optional<std::uint32_t> take(const std::string& communicator) {
    if (control_ == nullptr) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const auto free = std::find(taken_.begin(), taken_.end(), false);
    if (free == taken_.end()) return std::nullopt;
    *free = true;
    const auto row = static_cast<std::uint32_t>(free - taken_.begin());
    slot().name_communicator(row, communicator);
    return row;
  }
  void give_back(std::uint32_t row) {
    const std::lock_guard lock(mutex_);
    taken_[row] = false;
  }
  // Requires that take() returned a row.
  comm_status::SlotView slot() const { return control_->page().slot(control_->slot()); }

 private:
  ControlClient* control_ = nullptr;
  std::mutex mutex_;
  std::vector<bool> taken_ = std::vector<bool>(comm_status::kCommunicators, false);
};

// A communicator's row until the end of the scope; converts to false if it has none.
class StatusRow {
 public:
  StatusRow(StatusRows& rows, const std::string& communicator)
      : rows_(rows), row_(rows.take(communicator)) {}
  ~StatusRow() {
    if (row_) rows_.give_back(*row_);
  }
  StatusRow(const StatusRow&) = delete;
  StatusRow& operator=(const StatusRow&) = delete;

  explicit operator bool() const { return row_.has_value(); }
  std::uint32_t number() const { return *row_; }
  comm_status::SlotView slot() const { return rows_.slot(); }

 private:
  StatusRows& rows_;
  const std::optional<std::uint32_t> row_;
};

}  // namespace ivy::comm
