// SPDX-License-Identifier: Apache-2.0
// A place in the order of a stream, which other streams and the processor can wait for.
//
// Thread: any. Lifetime: the driver outlives it.
#pragma once

#include <memory>

#include "comm/nccl/abandonable_call.h"
#include "comm/nccl/driver.h"

namespace ivy::comm::nccl {

class StreamMark {
 public:
  // Behind what is on the stream now. The device has to be this thread's.
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

  // True: the device has done everything before it. An error is the device's: it sticks.
  Result<bool> is_reached() const {
    const Driver::Current current(driver_, device_);
    return driver_.is_done(event_);
  }
  // Makes everything enqueued on that stream later, on any device, wait for it.
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
