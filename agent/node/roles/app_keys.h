// SPDX-License-Identifier: Apache-2.0
// Keys of the job's store with which the ranks of an app notify each other that they are ready or
// have exited. descriptor() becomes readable when a wait has finished. Not thread-safe; the store
// finishes waits on its own threads. Lifetime: call leave() before destruction.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// The job's store as used by app-run; node_main.cc implements it, because this folder may not
// include the store's code.
class AppStore {
 public:
  virtual Result<void> connect() = 0;
  virtual void set(const std::string& key) = 0;
  // Calls `over` once, from any thread: with true when all keys exist, with false if the store is
  // lost.
  virtual void wait(std::vector<std::string> keys, std::function<void(bool)> over) = 0;
  // Cancels all waits; returns after the last `over` has returned.
  virtual void leave() = 0;

 protected:
  ~AppStore() = default;
};

class AppKeys {
 public:
  // The store must outlive this.
  AppKeys(std::uint32_t rank, AppStore& store);
  ~AppKeys() { leave(); }
  AppKeys(const AppKeys&) = delete;
  AppKeys& operator=(const AppKeys&) = delete;

  // Returns false, after printing the reason, if the store cannot be reached.
  bool connect();
  void leave() { store_.leave(); }
  bool is_first() const { return rank_ == 0; }
  int descriptor() const { return event_fd_.get(); }
  void empty_descriptor() const;

  void announce_ready() { store_.set("app/ready"); }
  void announce_end() { store_.set("app/end"); }
  void announce_done();
  void watch_ready() { watch({"app/ready"}, ready_); }
  void watch_end() { watch({"app/end"}, ended_); }
  void watch_done(std::uint32_t ranks);
  bool first_is_ready() const { return ready_ == State::kPresent; }
  bool has_ended() const { return ended_ == State::kPresent; }
  bool all_are_done() const { return done_ == State::kPresent; }
  // Returns true if the store is lost; the launcher then stops the job.
  bool is_lost() const;

 private:
  enum class State { kAwaited, kPresent, kLost };
  void watch(std::vector<std::string> keys, std::atomic<State>& state);

  const std::uint32_t rank_;
  AppStore& store_;
  const Descriptor event_fd_;
  std::atomic<State> ready_{State::kAwaited};
  std::atomic<State> ended_{State::kAwaited};
  std::atomic<State> done_{State::kAwaited};
};

}  // namespace ivy
