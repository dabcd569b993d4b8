// What ends a wait for messages besides the messages: a rank that is late, gone or has left, and
// failures that others have found.
#include <poll.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "comm/group/point_to_point.h"
#include "comm/group/point_to_point_peer.h"
#include "comm/transports/alarms.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// A rank may leave as soon as it has sent, and its connection may still wait for its greeting here.
constexpr milliseconds kGoneGrace{150};

}  // namespace

Failure PointToPoint::late(const MessageRequest& request, nanoseconds waited) const {
  const auto tenths = std::chrono::duration_cast<milliseconds>(waited).count() / 100;
  std::string text = name_of(request) + ": no progress for " + std::to_string(tenths / 10) + "." +
                     std::to_string(tenths % 10) + " s; ";
  Failure failure = make_failure(FailureKind::kTimeout, "");
  if (request.peer < 0) {
    text += "no rank has sent it";
  } else {
    const TcpPeer& peer = options_.peers[static_cast<std::size_t>(request.peer)];
    text += name_of_rank(peer.world_rank, peer.host, peer.pid) +
            (request.is_send ? " did not receive it" : " did not send it");
    failure.rank = peer.world_rank;
    failure.pid = peer.pid;
    set_host(failure, peer.host);
  }
  set_text(failure, text);
  failure.sequence = request.number;
  set_operation(failure, request.is_send ? "send" : "recv");
  return failure;
}

// Breaks the communicator if one of the requests is overdue.
bool PointToPoint::find_overdue(const Requests& requests) {
  const auto now = steady_clock::now();
  const auto late_one = std::find_if(requests.begin(), requests.end(), [&](const auto& request) {
    return !request->is_done && now >= request->until;
  });
  if (late_one == requests.end()) return false;
  fail_found(late(**late_one, (*late_one)->timeout));
  return true;
}

// True if a request here waits for something that only that rank can do, and there is no connection
// whose end would tell that it has left.
bool PointToPoint::is_missed(const Peer& peer) const {
  if (peer.rank == options_.self) return false;
  const bool is_remote = options_.member_of[static_cast<std::size_t>(peer.rank)] < 0;
  if (!peer.sends.empty() && (!is_remote || peer.sink == nullptr)) return true;
  if (is_remote && peer.source != nullptr) return false;
  if (peer.target != nullptr) return true;
  if (peer.unexpected != nullptr && peer.unexpected->claimant != nullptr) return true;
  return std::any_of(receives_.begin(), receives_.end(),
                     [&](const auto& request) { return request->peer == peer.rank; });
}

// The next rank to ask the alarm about, one after the other: of ranks that have left it reports
// only the one that it is asked for.
std::int32_t PointToPoint::next_missed() {
  const auto count = static_cast<std::int32_t>(peers_.size());
  for (std::int32_t step = 1; step <= count; ++step) {
    const std::int32_t rank = (missed_last_ + step) % count;
    if (is_missed(*peers_[static_cast<std::size_t>(rank)])) return missed_last_ = rank;
  }
  return Alarm::kNobody;
}

// A rank of another host that died before it dialled has no connection that could break. `missed`
// becomes that rank.
std::optional<Failure> PointToPoint::look_for_absent(std::int32_t& missed) {
  const auto now = steady_clock::now();
  std::vector<std::int32_t> absent;
  {
    const std::lock_guard lock(mutex_);
    if (now - probed_at_ < PeerListener::kProbePause) return std::nullopt;
    probed_at_ = now;
    for (const std::unique_ptr<Peer>& peer : peers_) {
      const bool is_remote = options_.member_of[static_cast<std::size_t>(peer->rank)] < 0;
      if (is_remote && is_missed(*peer)) absent.push_back(peer->rank);
    }
  }
  for (const std::int32_t rank : absent) {
    if (listener_->is_peer_there(options_.peers[static_cast<std::size_t>(rank)].address)) continue;
    missed = rank;
    const std::lock_guard lock(mutex_);
    return lost(*peers_[static_cast<std::size_t>(rank)], "it is gone");
  }
  return std::nullopt;
}

// A receive from any rank that has found no message yet; null: there is none.
const MessageRequest* PointToPoint::for_anyone() const {
  const auto found = std::find_if(receives_.begin(), receives_.end(),
                                  [](const auto& request) { return request->peer == kAnySource; });
  return found != receives_.end() ? found->get() : nullptr;
}

// True if the peer may still send or has unread data; nothing: unknown, the peer must be asked.
std::optional<bool> PointToPoint::is_there(const Peer& peer) {
  if (peer.is_in_message() || peer.header_read > 0) return true;
  const bool is_remote = options_.member_of[static_cast<std::size_t>(peer.rank)] < 0;
  if (is_remote && peer.source != nullptr) return peer.source->state() == StreamState::kOpen;
  const std::lock_guard lock(alarm_mutex_);
  if (alarm_ != nullptr && alarm_->has_left(peer.rank)) return false;
  return is_remote ? std::nullopt : std::optional<bool>(true);
}

// Begins with the rank that was present last: as a rule no other one is asked.
bool PointToPoint::are_all_gone() {
  std::vector<std::int32_t> doubtful;
  {
    const std::lock_guard lock(mutex_);
    const auto count = static_cast<std::int32_t>(peers_.size());
    const auto now = steady_clock::now();
    const milliseconds pause = gone_since_ ? kGoneGrace : PeerListener::kProbePause;
    if (for_anyone() == nullptr || count == 1 || now - counted_at_ < pause) return false;
    counted_at_ = now;
    for (std::int32_t step = 0; step < count; ++step) {
      const std::int32_t rank = (there_last_ + step) % count;
      if (rank == options_.self) continue;
      const std::optional<bool> known = is_there(*peers_[static_cast<std::size_t>(rank)]);
      if (!known) doubtful.push_back(rank);
      if (!known || !*known) continue;
      there_last_ = rank;
      gone_since_.reset();
      return false;
    }
  }
  for (const std::int32_t rank : doubtful) {
    if (!listener_->is_peer_there(options_.peers[static_cast<std::size_t>(rank)].address)) continue;
    const std::lock_guard lock(mutex_);
    there_last_ = rank;
    gone_since_.reset();
    return false;
  }
  const std::lock_guard lock(mutex_);
  if (!gone_since_) gone_since_ = steady_clock::now();
  return steady_clock::now() - *gone_since_ >= kGoneGrace;
}

// A receive from any rank waits for no rank in particular, but in vain once all others have left.
bool PointToPoint::look_for_desertion() {
  if (!are_all_gone()) return false;
  const std::lock_guard lock(mutex_);
  // One more look, as below: their last messages may have come just before they left.
  if (is_broken() || progress()) return true;
  const MessageRequest* const request = for_anyone();
  if (request == nullptr) return true;
  Failure failure = make_failure(FailureKind::kRankDied, name_of(*request) +
                                                             ": every other rank of communicator " +
                                                             options_.communicator + " has left");
  failure.sequence = request->number;
  set_operation(failure, "recv");
  fail_found(failure);
  return true;
}

// Adds the message in which the failure was found, if it names none yet. Called under mutex_.
void PointToPoint::tell_message(Failure& failure) const {
  if (failure.sequence != 0 || failure.operation[0] != 0) return;
  const MessageRequest* const waiting = oldest();
  set_text(failure, std::string(failure.text) + " during " +
                        (waiting != nullptr ? name_of(*waiting)
                                            : "messages of communicator " + options_.communicator));
  failure.sequence = waiting != nullptr ? waiting->number : 0;
  set_operation(failure, waiting != nullptr && waiting->is_send ? "send" : "recv");
}

// Asks the alarm, one thread at a time: several threads wait here.
std::optional<Failure> PointToPoint::look(std::int32_t missed) {
  if (alarm_ == nullptr) return std::nullopt;
  const std::lock_guard lock(alarm_mutex_);
  return alarm_->look(missed);
}

bool PointToPoint::look_for_trouble() {
  std::int32_t missed = Alarm::kNobody;
  std::optional<Failure> found;
  if (local_ != nullptr) found = local_->failure();
  if (!found) {
    {
      const std::lock_guard lock(mutex_);
      missed = next_missed();
    }
    found = look(missed);
  }
  if (!found) found = look_for_absent(missed);
  if (!found) return look_for_desertion();
  // A rank that was told of a death may have exited since: the failure that it was told comes
  // first.
  if (local_ != nullptr) {
    if (const std::optional<Failure> known = local_->failure()) found = known;
  }
  const std::lock_guard lock(mutex_);
  if (is_broken()) return true;
  tell_message(*found);
  // One more look: what a rank sent before it ended is still there. If everything from that rank
  // has arrived, its leaving does no harm; a death is found again.
  progress();
  const bool is_about_missed =
      missed >= 0 && found->rank == options_.peers[static_cast<std::size_t>(missed)].world_rank;
  if (is_about_missed && !is_missed(*peers_[static_cast<std::size_t>(missed)])) return true;
  fail_found(*found);
  return true;
}

Failure PointToPoint::lost(const Peer& peer, const std::string& why) {
  const TcpPeer& seat = options_.peers[static_cast<std::size_t>(peer.rank)];
  const auto end = steady_clock::now() + Alarm::kVerdictTime;
  // The peer may be gone because the communicator was broken before.
  std::optional<Failure> known = local_ != nullptr ? local_->failure() : std::nullopt;
  if (!known && alarm_ != nullptr) {
    const std::lock_guard lock(alarm_mutex_);
    known = alarm_->look_closely(peer.rank);
  }
  while (alarm_ != nullptr && !known && !is_breaking_.load() && steady_clock::now() < end) {
    poll(nullptr, 0, static_cast<int>(Alarm::kVerdictStep.count()));
    known = look(peer.rank);
  }
  Failure failure = known.value_or(make_failure(
      FailureKind::kTransport, name_of_rank(seat.world_rank, seat.host, seat.pid) + ": " + why));
  tell_message(failure);
  if (known) return failure;
  failure.rank = seat.world_rank;
  failure.pid = seat.pid;
  set_host(failure, seat.host);
  return failure;
}

void PointToPoint::fail_all(const Failure& failure) {
  if (!failure_) failure_ = failure;
  const auto end = [&](const std::shared_ptr<MessageRequest>& request) {
    if (request == nullptr || request->is_done) return;
    clear_shown(*request);
    request->is_done = true;
    request->work->finish(Outcome(*failure_));
  };
  for (const std::shared_ptr<MessageRequest>& request : receives_) end(request);
  receives_.clear();
  for (const std::shared_ptr<Unexpected>& message : unexpected_) end(message->claimant);
  for (const std::unique_ptr<Peer>& peer : peers_) {
    for (const std::shared_ptr<MessageRequest>& request : peer->sends) end(request);
    peer->sends.clear();
    end(std::exchange(peer->target, nullptr));
  }
  if (local_ != nullptr) local_->mail().ring(local_->self());
}

// Keeps a failure that was found here, unless there is one already. Called under mutex_; the other
// ranks must be told without it, so the loop that drives the requests calls tell_found()
// afterwards.
void PointToPoint::fail_found(const Failure& failure) {
  if (!is_broken()) found_ = failure;
}

// Breaks the communicator before any request ends with the error, so that a rank that has seen it
// meets no rank that has not. True: there was something to tell.
bool PointToPoint::tell_found(std::unique_lock<std::mutex>& lock) {
  if (!found_ || failure_) return false;
  const Failure found = *found_;
  lock.unlock();
  break_with(options_.break_all ? options_.break_all(found) : found);
  lock.lock();
  return true;
}

// Ends all requests after an exception in the middle of a message, half of which may have been
// moved. All requests are done afterwards, and `lock` is held.
Outcome PointToPoint::fail_thrown(std::unique_lock<std::mutex>& lock,
                                  const std::exception& problem) {
  const TcpPeer& own = options_.peers[static_cast<std::size_t>(options_.self)];
  Failure failure = failure_of(problem);
  const std::string what = failure.text;
  if (!lock.owns_lock()) lock.lock();
  try {
    set_text(failure, name_of_rank(own.world_rank, own.host, own.pid) + ": " + what);
    failure.rank = own.world_rank;
    tell_message(failure);
    fail_found(failure);
    tell_found(lock);
  } catch (const std::exception&) {
    // The other ranks cannot be told: then at least the threads that wait here are.
    if (!lock.owns_lock()) lock.lock();
  }
  if (!failure_) fail_all(failure);
  return Outcome(*failure_);
}

void PointToPoint::break_with(const Failure& failure) {
  is_breaking_.store(true);
  const std::lock_guard lock(mutex_);
  fail_all(failure);
}

}  // namespace ivy::comm
