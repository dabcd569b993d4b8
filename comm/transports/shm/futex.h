// SPDX-License-Identifier: Apache-2.0
// Sleeps on words in shared memory, and wakes the sleepers. Linux's futex(2) and futex_waitv(2)
// (5.16; without it a wait on two words looks at the second every few milliseconds).
//
// Thread: any, of any process that maps the words.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ivy::comm {

struct FutexWord {
  const std::atomic<std::uint32_t>* word = nullptr;  // May be null in second place.
  std::uint32_t expected = 0;
};

// Returns when either word differs from what was expected, is woken, or after the time; spuriously
// too.
void futex_wait(const FutexWord& first, const FutexWord& second, std::chrono::nanoseconds at_most);
void futex_wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace ivy::comm
