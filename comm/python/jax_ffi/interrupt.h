// SPDX-License-Identifier: Apache-2.0
// Ctrl-C while a thread of XLA waits inside a collective: the main thread stands in XLA as well
// then, so that no handler written in Python runs. Watches from the construction on.
#pragma once

namespace ivy::jax {

class InterruptWatch {
 public:
  // The process's handler of SIGINT still runs; a default or ignored signal is left alone.
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool has_been_interrupted() const;

 private:
  unsigned before_;
};

}  // namespace ivy::jax
