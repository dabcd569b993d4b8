// SPDX-License-Identifier: Apache-2.0
// run() is a blocking call: it passes the requests to MessageTraffic and calls progress() until
// they are done (run_until_done()); in between it spins, and then sleeps until data may have
// arrived (pause()). post() passes a request to the thread, which does the same for asynchronous
// requests.
#include "comm/group/p2p/point_to_point.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "comm/contract/background_thread.h"
#include "comm/group/p2p/message_texts.h"
#include "comm/transports/liveness/failure_detectors.h"
#include "comm/transports/liveness/interrupt.h"
#include "comm/transports/shm/relax.h"
#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLocalSlice{100};
// Represents no limit. Adding it to the clock does not overflow.
constexpr std::chrono::hours kEver{24 * 365 * 100};
// No system call waits for sockets and rings together, so if there are both, the thread sleeps
// briefly.
constexpr milliseconds kSocketSlice{1};
// How long the end of a communicator waits for a receiver that does not read the remaining data.
constexpr milliseconds kDrainTime{10'000};

// Rounds between two checks of the streams while spinning.
constexpr int kSpinRounds = 8;
// A thread that spins longer than this may occupy the processor of the awaited rank, so it yields.
constexpr std::chrono::microseconds kSpinAlone{40};

bool are_done(const PointToPoint::Requests& requests) {
  return std::all_of(requests.begin(), requests.end(),
                     [](const auto& request) { return request->is_done; });
}

// The first request with an error determines the outcome.
Outcome outcome_of(const PointToPoint::Requests& requests) {
  for (const std::shared_ptr<MessageRequest>& request : requests) {
    const std::optional<Outcome> outcome = request->work->test();
    if (outcome && outcome->code != 0) return *outcome;
  }
  return {};
}

}  // namespace

PointToPoint::PointToPoint(PointToPointOptions options, SharedGroup* local,
                           PeerConnections* connections, std::unique_ptr<FailureDetector> detector)
    : options_(std::move(options)),
      mail_(local != nullptr ? &local->mail() : nullptr),
      detector_(options_, local, std::move(detector)),
      traffic_(options_, mail_, connections, detector_),
      liveness_(mutex_, traffic_, detector_, connections) {}

PointToPoint::~PointToPoint() {
  detector_.cancel();
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    thread.swap(thread_);
    has_work_.notify_all();
  }
  if (mail_ != nullptr) mail_->notify(mail_->self());
  if (thread.joinable()) thread.join();
  for (const std::unique_ptr<MessagePeer>& peer : traffic_.peers()) peer->dial.reset();
  const std::lock_guard lock(mutex_);
  traffic_.end_all(make_failure(FailureKind::kAborted,
                                "the communicator was closed before the message was complete"));
}

Outcome PointToPoint::run(const Requests& requests, nanoseconds timeout, nanoseconds wait_limit) {
  Lock lock(mutex_);
  try {
    for (const std::shared_ptr<MessageRequest>& request : requests) {
      traffic_.enter(request, timeout);
    }
    RunLimits limits;
    if (wait_limit < kEver) limits.until = steady_now() + wait_limit;
    return run_until_done(lock, requests, limits);
  } catch (const std::exception& problem) {
    return fail_with_exception(lock, problem);
  }
}

Outcome PointToPoint::finish_sends() {
  Lock lock(mutex_);
  Requests requests;
  for (const std::unique_ptr<MessagePeer>& peer : traffic_.peers()) {
    requests.insert(requests.end(), peer->sends.begin(), peer->sends.end());
  }
  try {
    RunLimits limits;
    limits.idle = kDrainTime;
    return run_until_done(lock, requests, limits);
  } catch (const std::exception& problem) {
    return fail_with_exception(lock, problem);
  }
}

// Breaks the communicator if no byte of the requests moves for `limits.idle`. Cancels receives
// that no message has matched at `limits.until`.
Outcome PointToPoint::run_until_done(Lock& lock, const Requests& requests,
                                     const RunLimits& limits) {
  constexpr auto kMoving = steady_clock::time_point::max();
  auto idle_since = kMoving;
  PollingScope polling(mail_);
  while (!are_done(requests)) {
    polling.note_wake_count();
    const bool has_moved = traffic_.progress();
    if (are_done(requests)) break;
    if (report_found(lock) || find_overdue(requests)) continue;
    if (has_moved) {
      idle_since = kMoving;
      continue;
    }
    const auto now = steady_now();
    idle_since = std::min(idle_since, now);
    const std::shared_ptr<MessageRequest> open = *std::find_if(
        requests.begin(), requests.end(), [](const auto& request) { return !request->is_done; });
    if (now - idle_since >= limits.idle) {
      traffic_.report(timeout_failure(*open, options_, limits.idle));
    } else if (now >= limits.until && traffic_.withdraw(open)) {
      break;
    } else if (now - idle_since < options_.spin) {
      spin(lock, now - idle_since);
    } else if (!traffic_.progress(true)) {
      sleep_until_event(lock, polling, *open, std::min(open->until, limits.until));
    }
  }
  // Handle a message that arrived during the last check here instead of waking another thread.
  if (polling.has_missed()) {
    polling.note_wake_count();
    traffic_.progress();
  }
  report_found(lock);  // Reports a failure that another thread found.
  return outcome_of(requests);
}

void PointToPoint::sleep_until_event(Lock& lock, PollingScope& polling, MessageRequest& open,
                                     steady_clock::time_point until) {
  traffic_.show_oldest();
  open.is_slept_on = true;
  const bool may_continue = pause(lock, polling, until);
  open.is_slept_on = false;
  if (!may_continue) traffic_.report(interrupt_failure(open, options_));
}

void PointToPoint::spin(Lock& lock, nanoseconds idle) {
  lock.unlock();
  if (idle > kSpinAlone) sched_yield();
  for (int round = 0; round < kSpinRounds; ++round) relax();
  lock.lock();
}

// Checks, without the lock, for a failure that explains why nothing moves. If there is none, sleeps
// until data may have arrived. Returns false if the caller has interrupted its call.
bool PointToPoint::pause(Lock& lock, PollingScope& polling, steady_clock::time_point until) {
  polling.end();
  const bool may_continue = pause(lock, polling.seen_count(), until);
  polling.begin();
  return may_continue;
}

bool PointToPoint::pause(Lock& lock, std::uint32_t seen_count, steady_clock::time_point until) {
  std::optional<std::vector<pollfd>> sockets = traffic_.sockets();
  lock.unlock();
  if (!liveness_.find_failure()) {
    if (sockets) {
      poll(sockets->data(), sockets->size(), static_cast<int>(kSocketSlice.count()));
    } else if (mail_ != nullptr) {
      const milliseconds slice = InterruptScope::is_any() ? InterruptScope::kPeriod : kLocalSlice;
      const nanoseconds left = std::max(nanoseconds(0), until - steady_now());
      mail_->sleep(seen_count, std::min<nanoseconds>(detector_.poll_interval(slice), left));
    } else {
      poll(nullptr, 0, static_cast<int>(kSocketSlice.count()));
    }
  }
  // Not with the lock held, because a signal handler that runs here may itself send.
  const bool is_to_end = InterruptScope::is_to_end();
  lock.lock();
  return !is_to_end;
}

void PointToPoint::post(const std::shared_ptr<MessageRequest>& request, nanoseconds timeout) {
  Lock lock(mutex_);
  // Start the thread first: if that fails, no request must be in progress that cannot be completed.
  if (!thread_.joinable()) thread_ = background_thread([this] { run_thread(); });
  try {
    traffic_.enter(request, timeout);
    traffic_.progress();
    report_found(lock);
    if (request->is_done) return;
    pending_.push_back(request);
    has_work_.notify_all();
  } catch (const std::exception& problem) {
    const Outcome outcome = fail_with_exception(lock, problem);
    if (request->is_done) return;  // Otherwise the exception came before the request was queued.
    request->is_done = true;
    request->work->finish(outcome);
  }
}

void PointToPoint::run_thread() {
  Lock lock(mutex_);
  while (!is_ending_) {
    std::erase_if(pending_, [](const auto& request) { return request->is_done; });
    if (pending_.empty()) {
      has_work_.wait(lock);
      continue;
    }
    try {
      move_pending(lock);
    } catch (const std::exception& problem) {
      fail_with_exception(lock, problem);
    }
  }
}

void PointToPoint::move_pending(Lock& lock) {
  const std::uint32_t seen_count = this->wake_count();
  const bool has_moved = traffic_.progress();
  if (report_found(lock) || find_overdue(pending_) || has_moved) return;
  if (traffic_.progress(true)) return;
  traffic_.show_oldest();
  const auto first = std::min_element(
      pending_.begin(), pending_.end(),
      [](const auto& one, const auto& other) { return one->until < other->until; });
  static_cast<void>(pause(lock, seen_count, (*first)->until));
}

// Breaks the communicator if one of the requests is overdue.
bool PointToPoint::find_overdue(const Requests& requests) {
  const auto now = steady_now();
  const auto overdue = std::find_if(requests.begin(), requests.end(), [&](const auto& request) {
    return !request->is_done && now >= request->until;
  });
  if (overdue == requests.end()) return false;
  traffic_.report(timeout_failure(**overdue, options_, (*overdue)->timeout));
  return true;
}

// Reports a failure found here to all ranks before any request ends with it, so that no rank
// returns the error while another still considers the communicator intact. Returns whether there
// was one.
bool PointToPoint::report_found(Lock& lock) {
  if (!traffic_.found() || traffic_.failure()) return false;
  const Failure found = *traffic_.found();
  lock.unlock();
  break_with(options_.handler != nullptr ? options_.handler->break_all(found) : found);
  lock.lock();
  return true;
}

// Ends all requests after an exception in the middle of a message, part of which may have been
// moved. Afterwards all requests are done, and `lock` is held.
Outcome PointToPoint::fail_with_exception(Lock& lock, const std::exception& problem) {
  const TcpPeer& own = options_.peer(options_.self);
  Failure failure = failure_of(problem);
  const std::string what = failure.text;
  if (!lock.owns_lock()) lock.lock();
  try {
    set_text(failure, name_of_rank(own.world_rank, own.host, own.pid) + ": " + what);
    failure.rank = own.world_rank;
    traffic_.name_message(failure);
    traffic_.report(failure);
    report_found(lock);
  } catch (const std::exception&) {
    // The other ranks cannot be notified, but at least the waits of this rank's threads can be
    // ended.
    if (!lock.owns_lock()) lock.lock();
  }
  if (!traffic_.failure()) traffic_.end_all(failure);
  return Outcome(*traffic_.failure());
}

void PointToPoint::break_with(const Failure& failure) {
  detector_.cancel();
  const std::lock_guard lock(mutex_);
  traffic_.end_all(failure);
}

}  // namespace ivy::comm
