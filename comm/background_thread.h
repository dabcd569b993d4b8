// A thread of the library in the program of somebody else.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace ivy::comm {

// Every signal is blocked in it: they are the program's, whose handlers run in its own threads.
template <class Body>
std::thread background_thread(Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace ivy::comm
