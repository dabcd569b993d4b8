// SPDX-License-Identifier: Apache-2.0
// Sleeps on words in shared memory, and wakes the sleepers. Uses Linux's futex(2) and
// futex_waitv(2) (since 5.16; without it, a wait on two words checks the second one every few
// milliseconds).
//
// Thread: any, of any process that maps the words.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ivy::comm {

struct FutexWord {
  const std::atomic<std::uint32_t>* word = nullptr;  // May be null for the second word.
  std::uint32_t expected = 0;
};

// Returns when either word differs from its expected value or is woken, after the time, or
// spuriously.
void futex_wait(const FutexWord& first, const FutexWord& second, std::chrono::nanoseconds at_most);
void futex_wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace ivy::comm
