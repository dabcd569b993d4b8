// SPDX-License-Identifier: Apache-2.0
// The job's store for queries in the middle of an operation. Each query has a short limit, and
// after a query without an answer none is sent for a while, so that a store that hangs delays no
// operation for long.
//
// Thread: any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/client/client.h"

namespace ivy::comm {

class FailFastStore {
 public:
  static constexpr std::chrono::milliseconds kLimit{250};
  static constexpr std::chrono::milliseconds kSilence{1'000};

  // Sets the client, which must outlive this; null if there is no store.
  void use(store::Client* client) { client_ = client; }

  // Returns whether the value was stored.
  bool set(const std::string& key, const std::string& value);
  // Returns nothing if the key has no value, or if the store did not answer or rejected the
  // request.
  std::optional<std::string> get(const std::string& key);
  // Returns the value that is stored afterwards. Returns nothing if the key has no value then, or
  // if the store did not answer or rejected the request.
  std::optional<std::string> compare_set(const std::string& key,
                                         const std::optional<std::string>& expected,
                                         const std::string& desired);

 private:
  bool is_responsive() const;
  void note(Code code);

  store::Client* client_ = nullptr;
  std::atomic<std::int64_t> silent_until_ns_{0};
};

}  // namespace ivy::comm
