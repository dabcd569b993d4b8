// SPDX-License-Identifier: Apache-2.0
// The worker's side of the control socket, as small as can be: what libivycomm does, for tests.
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

  // Maps the page when it is accepted.
  Result<control::Attached> attach(std::uint32_t rank, std::uint32_t generation);
  // Bytes on the socket as they are.
  bool send_packet(const std::string& packet);
  Result<control::Reply> receive(std::chrono::milliseconds deadline = std::chrono::seconds(20));
  // The descriptor that came with the last reply; the caller closes it. -1: none.
  int take_descriptor();
  // Asks and waits. The descriptor is the caller's.
  Result<int> segment(const control::Segment& segment);
  void report(const control::Report& report);
  Result<void> leave();
  // The other side has closed: true when it does within the time.
  bool wait_for_end(std::chrono::milliseconds deadline = std::chrono::seconds(10));

  bool has_page() const { return page_.has_value(); }
  comm_status::StatusPage& page() { return *page_; }
  comm_status::SlotView slot() { return page_->slot(slot_); }
  // Sleeps on the futex until the condition holds; false when it does not within the time.
  bool wait_news(const std::function<bool()>& condition,
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
