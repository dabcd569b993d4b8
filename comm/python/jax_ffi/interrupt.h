// SPDX-License-Identifier: Apache-2.0
// Notices Ctrl-C while a thread of XLA waits inside a collective. The main thread is then in XLA as
// well, so no signal handler written in Python runs. Watches during its lifetime.
#pragma once

namespace ivy::jax {

class InterruptWatch {
 public:
  // The process's SIGINT handler still runs. Does nothing if SIGINT is ignored or has its default.
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool has_been_interrupted() const;

 private:
  unsigned before_;
};

}  // namespace ivy::jax
