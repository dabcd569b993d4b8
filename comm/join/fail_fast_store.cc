// SPDX-License-Identifier: Apache-2.0
#include "comm/join/fail_fast_store.h"

#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

std::int64_t now_ns() { return steady_now().time_since_epoch() / std::chrono::nanoseconds(1); }

}  // namespace

bool FailFastStore::is_responsive() const {
  return client_ != nullptr && now_ns() >= silent_until_ns_.load(std::memory_order_relaxed);
}

void FailFastStore::note(Code code) {
  if (code != Code::kDeadlineExceeded && code != Code::kUnavailable) return;
  silent_until_ns_.store(now_ns() + std::chrono::nanoseconds(kSilence).count(),
                         std::memory_order_relaxed);
}

bool FailFastStore::set(const std::string& key, const std::string& value) {
  if (!is_responsive()) return false;
  const Result<void> done = client_->set(key, value, kLimit);
  if (!done.ok()) note(done.error().code);
  return done.ok();
}

std::optional<std::string> FailFastStore::get(const std::string& key) {
  if (!is_responsive()) return std::nullopt;
  Result<std::string> found = client_->get(key, kLimit);
  if (found.ok()) return std::move(found).value();
  note(found.error().code);
  return std::nullopt;
}

std::optional<std::string> FailFastStore::compare_set(const std::string& key,
                                                      const std::optional<std::string>& expected,
                                                      const std::string& desired) {
  if (!is_responsive()) return std::nullopt;
  auto stored = client_->compare_set(key, expected, desired, kLimit);
  if (stored.ok()) return std::move(stored->second);
  note(stored.error().code);
  return std::nullopt;
}

}  // namespace ivy::comm
