// SPDX-License-Identifier: Apache-2.0
// --check-load on one host: the speed of its processors, and of its network to other hosts. Both
// are compared with those of the other hosts only. Thread: any; the functions block.
#pragma once

#include <chrono>
#include <string>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/wire/check.pb.h"

namespace ivy {

// Runs multiplications and additions of doubles on all processors that this process may use, and
// returns how many there were per second.
double measure_arithmetic(std::chrono::milliseconds duration);

// A socket on which this host receives streams, and their key.
class StreamMeter {
 public:
  // Listens on the address, on a free port of the range, or any port if port_low is 0.
  static Result<StreamMeter> open(const std::string& address, std::uint16_t port_low,
                                  std::uint16_t port_high, const std::string& key);
  std::uint16_t port() const;
  // Sends to one host and receives from another one at the same time.
  CheckStreamed measure(const CheckStream& order) const;

 private:
  StreamMeter(Descriptor listener, std::string key)
      : listener_(std::move(listener)), key_(std::move(key)) {}
  double receive(const std::string& opening, std::chrono::milliseconds duration) const;

  Descriptor listener_;
  std::string key_;
};

}  // namespace ivy
