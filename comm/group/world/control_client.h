// SPDX-License-Identifier: Apache-2.0
// The worker's end of the supervisor's control socket (proto/wire/control_wire.h), and its mapping
// of the status page.
//
// Thread: any; requests are made one at a time. Lifetime: the page is mapped until destruction.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "proto/contract/status.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/status_page.h"

namespace ivy::comm {

class ControlClient {
 public:
  // Fails with Unavailable if no supervisor listens at that path or answers in time.
  static Result<std::unique_ptr<ControlClient>> connect(const std::string& path,
                                                        const control::Attach& attach,
                                                        std::chrono::milliseconds at_most);
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  const comm_status::StatusPage& page() const { return *page_; }
  std::uint32_t slot() const { return slot_; }

  // Returns the descriptor of shared memory that all ranks requesting this name get. The caller
  // closes it.
  Result<int> segment(const control::Segment& request, std::chrono::milliseconds at_most);
  // Notifies every rank of the job. Not answered; the report is lost if the supervisor has exited.
  void report(const control::Report& report);
  // Notifies the supervisor that this process's exit no longer counts as a death.
  void leave(std::chrono::milliseconds at_most);

 private:
  ControlClient(int socket, void* memory, std::size_t bytes, comm_status::StatusPage page,
                std::uint32_t slot);

  std::mutex mutex_;
  const int socket_;
  void* const memory_;
  const std::size_t bytes_;
  std::optional<comm_status::StatusPage> page_;
  const std::uint32_t slot_;
};

}  // namespace ivy::comm
