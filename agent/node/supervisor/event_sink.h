// SPDX-License-Identifier: Apache-2.0
// Receives events for the launcher from the parts of a supervisor. Implemented by EventSender.
#pragma once

#include "proto/wire/job.pb.h"

namespace ivy {

class EventSink {
 public:
  virtual void send(const Event& event) = 0;

 protected:
  ~EventSink() = default;
};

}  // namespace ivy
