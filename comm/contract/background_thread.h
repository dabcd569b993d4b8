// SPDX-License-Identifier: Apache-2.0
// Starts threads of the library inside the user's program.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace ivy::comm {

class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Starts a thread in which every signal is blocked, so that the program's handlers run in its own
// threads. Throws std::system_error if no thread can be created.
template <class Body>
std::thread background_thread(Body body) {
  const AllSignalsBlocked blocked;
  return std::thread(std::move(body));
}

}  // namespace ivy::comm
