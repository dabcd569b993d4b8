// SPDX-License-Identifier: Apache-2.0
// Lets other threads post to a loop that may have ended or been destroyed. Keeps the loop running
// until the gate is closed.
//
// Thread: post() from any, close() from the loop's. Lifetime: shared. The loop must exist until the
// gate is closed; the gate may outlive the loop.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace ivy {

class LoopGate : public std::enable_shared_from_this<LoopGate> {
 public:
  explicit LoopGate(boost::asio::io_context& loop) : loop_(&loop), work_(loop.get_executor()) {}

  // Runs the action on the loop, unless the gate is closed before its turn.
  template <class Action>
  void post(Action action) {
    const std::lock_guard lock(mutex_);
    if (loop_ == nullptr) return;
    boost::asio::post(*loop_, [self = shared_from_this(), action = std::move(action)]() mutable {
      if (self->is_open()) action();
    });
  }

  void close() {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
    work_.reset();
  }

  bool is_open() const {
    const std::lock_guard lock(mutex_);
    return loop_ != nullptr;
  }

 private:
  mutable std::mutex mutex_;
  boost::asio::io_context* loop_;
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_;
};

}  // namespace ivy
