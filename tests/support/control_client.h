// SPDX-License-Identifier: Apache-2.0
// A minimal client of the control socket for tests, which acts like libivycomm in a worker.
// Blocking. Thread: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "proto/contract/status.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/status_page.h"

namespace ivy::test {

class ControlClient {
 public:
  static Result<ControlClient> connect(const std::string& path);
  ControlClient(ControlClient&& other) noexcept;
  ControlClient& operator=(ControlClient&&) = delete;
  ~ControlClient();

  // Attaches, and maps the page if accepted.
  Result<control::Attached> attach(std::uint32_t rank, std::uint32_t generation);
  // Sends bytes unchanged.
  bool send_packet(const std::string& packet);
  Result<control::Reply> receive(std::chrono::milliseconds deadline = std::chrono::seconds(20));
  // Returns the descriptor that arrived with the last reply, which the caller must close; -1 if
  // none.
  int take_descriptor();
  // Requests a segment and waits for the answer. The caller owns the descriptor.
  Result<int> segment(const control::Segment& segment);
  void report(const control::Report& report);
  Result<void> leave();
  // Waits until the other side closes the connection. Returns false on a timeout.
  bool wait_for_end(std::chrono::milliseconds deadline = std::chrono::seconds(10));

  bool has_page() const { return page_.has_value(); }
  comm_status::StatusPage& page() { return *page_; }
  comm_status::SlotView slot() { return page_->slot(slot_); }
  // Sleeps on the futex until the condition holds. Returns false on a timeout.
  bool wait_for_event(const std::function<bool()>& condition,
                      std::chrono::milliseconds deadline = std::chrono::seconds(10));

 private:
  explicit ControlClient(int fd) : fd_(fd) {}
  int fd_ = -1;
  int received_fd_ = -1;
  std::uint32_t slot_ = 0;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::optional<comm_status::StatusPage> page_;
};

}  // namespace ivy::test
