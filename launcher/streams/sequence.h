// SPDX-License-Identifier: Apache-2.0
// Runs one coroutine (which may await others) for an owner, and ends it with the owner.
//
// The coroutine may wait only through this class. `wait(start)` calls `start` with a function. The
// first call of that function resumes the coroutine with its argument, and later calls do nothing,
// so several callbacks may compete for one wait: a connection, a failure, a time limit.
//
// stop() and the destruction of the Sequence end the coroutine in its wait: it is never resumed. If
// it is running at that moment (it called the owner, who called stop()), it ends in its next wait.
// Its frames are destroyed in a later turn of the loop. Therefore its locals must be values;
// objects that call the owner back must be members of the owner, which stops them.
//
// GCC 12 destroys capturing lambdas and aggregates inside a co_await expression twice. Assign them
// to variables first, then await. scripts/style_rules.py checks this.
//
// Thread: the loop's. Lifetime: a member of the object that its coroutine uses.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace ivy {

using LoopExecutor = boost::asio::io_context::executor_type;
template <class Value>
using Awaitable = boost::asio::awaitable<Value, LoopExecutor>;

// Resumes a coroutine with the event that it waits for. It may be copied, called several times, and
// outlive the coroutine.
template <class Event>
using Arrival = std::function<void(Event)>;
// The event of a callback without arguments.
struct Done {};

class Sequence {
 public:
  explicit Sequence(boost::asio::io_context& loop) : loop_(loop), timer_(loop) {}
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  boost::asio::io_context& loop() { return loop_; }

  // Starts the coroutine in the next turn of the loop. Call it once.
  void start(Awaitable<void> steps);
  void stop();

  // Waits for an event; `start` must not call back before it returns.
  template <class Event, class Start>
  Awaitable<Event> wait(Start start) {
    const auto suspend = [this](auto handler, Start begin) {
      if (stopped_) return;  // The coroutine is destroyed with its handler.
      using Handler = decltype(handler);
      const auto waiting = std::make_shared<Handler>(std::move(handler));
      waiting_ = waiting;
      begin(Arrival<Event>([this, weak = std::weak_ptr<Handler>(waiting)](Event event) {
        // A second call finds no handler, and neither does a call after stop().
        std::shared_ptr<Handler> held = weak.lock();
        if (!held) return;
        Handler resume = std::move(*held);
        held.reset();
        waiting_.reset();
        resume(std::move(event));
      }));
    };
    return boost::asio::async_initiate<const boost::asio::use_awaitable_t<LoopExecutor>,
                                       void(Event)>(
        suspend, boost::asio::use_awaitable_t<LoopExecutor>(), std::move(start));
  }

  // Waits as wait() does, for a `start` that may call back before it returns: resumes in a later
  // turn of the loop.
  template <class Event, class Start>
  Awaitable<Event> wait_posted(Start start) {
    const auto posting = [&loop = loop_, start](const Arrival<Event>& arrive) {
      start(Arrival<Event>([&loop, arrive](Event event) {
        boost::asio::post(loop, [arrive, value = std::move(event)] { arrive(value); });
      }));
    };
    co_return co_await wait<Event>(posting);
  }

  // Returns std::nullopt if `limit` expires first.
  template <class Event, class Start>
  Awaitable<std::optional<Event>> wait_at_most(std::chrono::steady_clock::duration limit,
                                               Start start) {
    using Maybe = std::optional<Event>;
    const auto both = [this, limit, start](const Arrival<Maybe>& arrive) {
      timer_.expires_after(limit);
      timer_.async_wait([arrive](const boost::system::error_code& error) {
        if (!error) arrive(std::nullopt);
      });
      start(Arrival<Event>(
          [arrive](Event event) { arrive(Maybe(std::in_place, std::move(event))); }));
    };
    Maybe event = co_await wait<Maybe>(both);
    timer_.cancel();
    co_return event;
  }

  // Waits for notify(), at most until the deadline. For a condition that several callers change:
  // the coroutine tests it, then waits, in a loop.
  Awaitable<void> notified(std::chrono::steady_clock::time_point deadline);
  // Resumes the coroutine if it waits in notified(). It may run and wait again before this returns.
  void notify();

  Awaitable<void> sleep(std::chrono::steady_clock::duration time);
  // Waits for one turn of the loop.
  Awaitable<void> turn();
  // Ends the coroutine if the preceding call has stopped it.
  Awaitable<void> checkpoint();

 private:
  boost::asio::io_context& loop_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<void> waiting_;
  std::shared_ptr<Sequence*> running_;
  Arrival<Done> notify_;
  bool stopped_ = false;
};

}  // namespace ivy
