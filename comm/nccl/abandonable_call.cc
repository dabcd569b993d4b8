// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/abandonable_call.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "comm/contract/background_thread.h"
#include "proto/os/clock.h"

namespace ivy::comm::nccl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Interval of the checks for trouble while a call runs.
constexpr milliseconds kPollInterval{5};

std::mutex given_up_mutex;
// The abandoned calls that have not returned, the oldest first. Never destroyed: their threads
// outlive main().
std::list<std::string>& given_up() {
  static auto* const all = new std::list<std::string>();
  return *all;
}

struct State {
  std::mutex mutex;
  std::condition_variable has_returned;
  bool is_done = false;
  bool is_given_up = false;
  std::list<std::string>::iterator entry;  // Valid if is_given_up.
};

void run(const AbandonableCall& abandonable, State& state) {
  abandonable.call();
  {
    const std::lock_guard lock(state.mutex);
    state.is_done = true;
    if (!state.is_given_up) {
      state.has_returned.notify_all();
      return;
    }
  }
  if (abandonable.late) abandonable.late();
  const std::lock_guard lock(given_up_mutex);
  given_up().erase(state.entry);
}

void give_up(const std::string& what, State& state) {
  const std::lock_guard lock(given_up_mutex);
  state.is_given_up = true;
  state.entry = given_up().insert(given_up().end(), what + " has not returned: exit this process");
}

}  // namespace

MaybeFailure call_abandonable(AbandonableCall abandonable) {
  const auto state = std::make_shared<State>();
  const auto shared = std::make_shared<const AbandonableCall>(std::move(abandonable));
  const auto began = steady_now();
  background_thread([shared, state] { run(*shared, *state); }).detach();
  std::unique_lock lock(state->mutex);
  while (true) {
    const auto slice = std::min(steady_now() + kPollInterval, shared->deadline);
    if (state->has_returned.wait_until(lock, slice, [&] { return state->is_done; })) return {};
    lock.unlock();
    MaybeFailure why = shared->source != nullptr ? shared->source->find_failure() : std::nullopt;
    lock.lock();
    if (state->is_done) return {};
    if (!why && steady_now() < shared->deadline) continue;
    if (!why) {
      char took[32];
      std::snprintf(took, sizeof took, "%.3g s",
                    std::chrono::duration<double>(steady_now() - began).count());
      why =
          make_failure(FailureKind::kTimeout, shared->what + " timed out: no return after " + took);
    }
    give_up(shared->what, *state);
    return why;
  }
}

std::optional<std::string> taint() {
  const std::lock_guard lock(given_up_mutex);
  if (given_up().empty()) return std::nullopt;
  return given_up().front();
}

void set_tainted(const std::string& why) {
  const std::lock_guard lock(given_up_mutex);
  given_up().push_back(why);
}

}  // namespace ivy::comm::nccl
