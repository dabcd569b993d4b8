// SPDX-License-Identifier: Apache-2.0
// A client of torch's TCPStore that writes and reads one value in the store that torchrun's agents
// keep for their workers (MASTER_ADDR, MASTER_PORT with TORCHELASTIC_USE_AGENT_STORE=True).
// Supports both dialects, of torch up to 2.0 and from 2.2 on (docs/internals/store-protocols.md).
//
// Unless the caller specifies the dialect, the old one is tried first: an old server would take the
// new greeting for a key of some gigabytes, while a new server only hangs up on the old greeting or
// does not answer.
//
// Thread: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy::comm {

enum class TorchDialect : std::uint8_t { kUnknown, kOld, kNew };

class TorchStore {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // Dials until `end`. `dialect` is the known one, if any. Fails with Unavailable if there is no
  // answer, or if the server is not a TCPStore.
  static Result<std::unique_ptr<TorchStore>> connect(const std::string& host, std::uint16_t port,
                                                     TorchDialect dialect, TimePoint end);

  Result<void> set(const std::string& key, const std::string& value, TimePoint end);
  // Waits for the key. Fails with DeadlineExceeded, or with Unavailable if the store is
  // unreachable.
  Result<std::string> wait_get(const std::string& key, TimePoint end);
  TorchDialect dialect() const { return dialect_; }

 private:
  TorchStore(Descriptor socket, TorchDialect dialect)
      : socket_(std::move(socket)), dialect_(dialect) {}
  const Descriptor socket_;
  const TorchDialect dialect_;
};

}  // namespace ivy::comm
