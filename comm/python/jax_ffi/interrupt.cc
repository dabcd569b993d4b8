// SPDX-License-Identifier: Apache-2.0
#include "comm/python/jax_ffi/interrupt.h"

#include <signal.h>

#include <atomic>
#include <mutex>

namespace ivy::jax {
namespace {

std::atomic<unsigned> interrupts{0};
std::mutex watches_mutex;
int watches = 0;  // Guarded by the mutex, as is `is_installed`.
bool is_installed = false;
struct sigaction previous;  // Written before our handler is installed.

void note_interrupt(int number, siginfo_t* info, void* context) {
  interrupts.fetch_add(1, std::memory_order_relaxed);
  if ((previous.sa_flags & SA_SIGINFO) != 0)
    previous.sa_sigaction(number, info, context);
  else
    previous.sa_handler(number);
}

bool is_noted(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == note_interrupt;
}

void begin_noting() {
  if (sigaction(SIGINT, nullptr, &previous) != 0 || is_noted(previous)) return;
  if ((previous.sa_flags & SA_SIGINFO) == 0 &&
      (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN))
    return;
  struct sigaction replacement = previous;
  replacement.sa_flags |= SA_SIGINFO;
  replacement.sa_sigaction = note_interrupt;
  is_installed = sigaction(SIGINT, &replacement, nullptr) == 0;
}

// Leaves a handler alone that was installed in the meantime.
void end_noting() {
  struct sigaction now;
  if (is_installed && sigaction(SIGINT, nullptr, &now) == 0 && is_noted(now))
    sigaction(SIGINT, &previous, nullptr);
  is_installed = false;
}

}  // namespace

InterruptWatch::InterruptWatch() : before_(interrupts.load()) {
  const std::lock_guard lock(watches_mutex);
  if (watches++ == 0) begin_noting();
}

InterruptWatch::~InterruptWatch() {
  const std::lock_guard lock(watches_mutex);
  if (--watches == 0) end_noting();
}

bool InterruptWatch::has_been_interrupted() const { return interrupts.load() != before_; }

}  // namespace ivy::jax
