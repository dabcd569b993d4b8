// SPDX-License-Identifier: Apache-2.0
// A position in a stream, for which other streams and the processor can wait.
//
// Thread: any. Lifetime: the driver outlives it.
#pragma once

#include <memory>

#include "comm/nccl/abandonable_call.h"
#include "comm/nccl/driver.h"

namespace ivy::comm::nccl {

class StreamMark {
 public:
  // Marks the current end of the stream. Requires that the device is this thread's current one.
  static Result<std::shared_ptr<StreamMark>> behind(const Driver& driver, int device,
                                                    Stream stream) {
    const Event event = IVY_TRY(driver.make_event());
    auto mark = std::make_shared<StreamMark>(driver, device, event);
    IVY_CHECK(driver.record(event, stream));
    return mark;
  }
  StreamMark(const Driver& driver, int device, Event event)
      : driver_(driver), device_(device), event_(event) {}
  ~StreamMark() {
    if (is_tainted()) return;
    const Driver::Current current(driver_, device_);
    driver_.free_event(event_);
  }
  StreamMark(const StreamMark&) = delete;
  StreamMark& operator=(const StreamMark&) = delete;

  // Returns true if the device has done everything before the mark. Errors are those of
  // Driver::is_done().
  Result<bool> is_reached() const {
    const Driver::Current current(driver_, device_);
    return driver_.is_done(event_);
  }
  // Makes all later work on `stream`, which may belong to another device, wait for the mark.
  Result<void> hold_back(Stream stream) const {
    const Driver::Current current(driver_, device_);
    return driver_.wait(stream, event_);
  }

 private:
  const Driver& driver_;
  const int device_;
  const Event event_;
};

}  // namespace ivy::comm::nccl
