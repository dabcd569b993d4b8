#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/contract/background_thread.h"
#include "comm/group/point_to_point.h"
#include "comm/group/point_to_point_peer.h"
#include "comm/transports/relax.h"
#include "comm/transports/shared_ring.h"
#include "comm/transports/socket_stream.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr std::uint32_t kChannel = 1;  // Collectives have channel 0.
constexpr milliseconds kLocalSlice{100};
// No call waits for sockets and rings at once, so with both the thread sleeps briefly.
constexpr milliseconds kSocketSlice{1};
// A rank that ends waits so long for a receiver that takes nothing of what it still has to send.
constexpr milliseconds kDrainTime{10'000};

// Rounds between two looks at the streams while spinning.
constexpr int kSpinRounds = 8;

bool fits(std::int32_t wanted, std::int32_t offered) { return wanted < 0 || wanted == offered; }

}  // namespace

PointToPoint::PointToPoint(PointToPointOptions options, SharedGroup* local, PeerListener* listener,
                           std::unique_ptr<Alarm> alarm)
    : options_(std::move(options)), local_(local), listener_(listener), alarm_(std::move(alarm)) {
  for (std::size_t rank = 0; rank < options_.peers.size(); ++rank) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->rank = static_cast<std::int32_t>(rank);
  }
}

PointToPoint::~PointToPoint() {
  is_breaking_.store(true);
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    thread.swap(thread_);
    has_work_.notify_all();
  }
  if (local_ != nullptr) local_->mail().ring(local_->self());
  if (thread.joinable()) thread.join();
  for (const std::unique_ptr<Peer>& peer : peers_) peer->dial.reset();
  const std::lock_guard lock(mutex_);
  fail_all(make_failure(FailureKind::kAborted,
                        "the communicator was ended before the message was through"));
}

PeerChannel PointToPoint::channel_of(const Peer& peer) const {
  PeerChannel channel;
  channel.communicator = options_.communicator;
  channel.peer_rank =
      static_cast<std::uint32_t>(options_.peers[static_cast<std::size_t>(peer.rank)].world_rank);
  channel.channel = kChannel;
  return channel;
}

bool PointToPoint::open_sink(Peer& peer) {
  if (peer.sink != nullptr) return true;
  const auto rank = static_cast<std::size_t>(peer.rank);
  if (options_.member_of[rank] >= 0) {
    Result<std::unique_ptr<ByteSink>> made =
        make_ring(local_->mail().ring_to(static_cast<std::uint32_t>(options_.member_of[rank])));
    if (!made.ok()) {
      fail_found(lost(peer, made.error().message));
      return false;
    }
    peer.sink = std::move(made).value();
    return true;
  }
  if (peer.dial == nullptr) {
    peer.dial = std::make_unique<BackgroundDial>(*listener_, options_.peers[rank].address,
                                                 channel_of(peer), is_breaking_);
    return false;
  }
  const std::optional<Result<PeerSocket>> dialled = peer.dial->take();
  if (!dialled) return false;
  peer.dial.reset();
  if (!dialled->ok()) {
    if (!is_breaking_.load()) fail_found(lost(peer, dialled->error().message));
    return false;
  }
  peer.sink = make_socket_sink((*dialled)->socket);
  return true;
}

bool PointToPoint::open_source(Peer& peer) {
  if (peer.source != nullptr) return true;
  if (peer.rank == options_.self) return false;
  const auto rank = static_cast<std::size_t>(peer.rank);
  if (options_.member_of[rank] >= 0) {
    Result<std::unique_ptr<ByteSource>> found =
        find_ring(local_->mail().ring_from(static_cast<std::uint32_t>(options_.member_of[rank])));
    if (!found.ok()) {
      fail_found(lost(peer, found.error().message));
      return false;
    }
    peer.source = std::move(found).value();
    return peer.source != nullptr;
  }
  // Look for a connection only if a receive waits for that rank.
  const bool is_wanted = std::any_of(receives_.begin(), receives_.end(), [&](const auto& request) {
    return fits(request->peer, peer.rank);
  });
  if (!is_wanted) return false;
  const int socket = listener_->take(channel_of(peer), milliseconds(0)).socket;
  if (socket < 0) return false;
  peer.source = make_socket_source(socket);
  return true;
}

bool PointToPoint::check(const MessageRequest& request, std::int32_t source, std::uint64_t bytes,
                         Dtype dtype) {
  const bool is_same_type =
      request.dtype == dtype || request.dtype == Dtype::kU8 || dtype == Dtype::kU8;
  if (is_same_type && bytes <= request.bytes) return true;
  const std::size_t sent_count = bytes / element_bytes(dtype);
  const std::size_t room = request.bytes / element_bytes(request.dtype);
  Failure failure = make_failure(
      FailureKind::kMismatch,
      "messages of communicator " + options_.communicator + " differ: rank " +
          std::to_string(source) + " sends " + std::to_string(sent_count) + " " +
          std::string(dtype_name(dtype)) + ", rank " + std::to_string(options_.self) +
          " receives up to " + std::to_string(room) + " " + std::string(dtype_name(request.dtype)));
  failure.rank = options_.peers[static_cast<std::size_t>(source)].world_rank;
  set_operation(failure, "recv");
  fail_found(failure);
  return false;
}

// The request that has waited longest; null: none waits.
const MessageRequest* PointToPoint::oldest() const {
  const MessageRequest* found = nullptr;
  const auto look = [&](const std::shared_ptr<MessageRequest>& request) {
    if (request == nullptr || request->is_done) return;
    if (found == nullptr || request->number < found->number) found = request.get();
  };
  if (!receives_.empty()) look(receives_.front());
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (!peer->sends.empty()) look(peer->sends.front());
    look(peer->target);
    if (peer->unexpected != nullptr) look(peer->unexpected->claimant);
  }
  return found;
}

void PointToPoint::show_oldest() {
  const MessageRequest* const request = options_.board != nullptr ? oldest() : nullptr;
  if (request == nullptr || options_.board->shows(request->number)) return;
  WaitingMessage message;
  message.number = request->number;
  message.is_send = request->is_send;
  if (request->peer >= 0) {
    message.peer = options_.peers[static_cast<std::size_t>(request->peer)].world_rank;
  }
  message.tag = request->tag;
  message.dtype = request->dtype;
  message.count = request->bytes / element_bytes(request->dtype);
  options_.board->show(message);
}

void PointToPoint::clear_shown(const MessageRequest& request) {
  if (options_.board == nullptr || !options_.board->shows(request.number)) return;
  options_.board->clear(!failure_.has_value());
}

// "recv 5 of communicator world from rank 2 with tag 7"
std::string PointToPoint::name_of(const MessageRequest& request) const {
  return std::string(request.is_send ? "send " : "recv ") + std::to_string(request.number) +
         " of communicator " + options_.communicator + (request.is_send ? " to" : " from") +
         (request.peer < 0 ? std::string(" any rank") : " rank " + std::to_string(request.peer)) +
         (request.tag < 0 ? std::string(" with any tag")
                          : " with tag " + std::to_string(request.tag));
}

void PointToPoint::finish(MessageRequest& request) {
  clear_shown(request);
  request.is_done = true;
  request.work->finish({});
  // A thread that sleeps for this request is woken by the bell of its own rank.
  if (local_ != nullptr) local_->mail().ring(local_->self());
}

std::shared_ptr<MessageRequest> PointToPoint::match(std::int32_t source, std::int32_t tag) {
  for (auto entry = receives_.begin(); entry != receives_.end(); ++entry) {
    if (!fits((*entry)->peer, source) || !fits((*entry)->tag, tag)) continue;
    std::shared_ptr<MessageRequest> request = *entry;
    receives_.erase(entry);
    return request;
  }
  return nullptr;
}

bool PointToPoint::take_unexpected(MessageRequest& request) {
  for (auto entry = unexpected_.begin(); entry != unexpected_.end(); ++entry) {
    Unexpected& message = **entry;
    if (message.claimant != nullptr || !fits(request.peer, message.status.source) ||
        !fits(request.tag, message.status.tag)) {
      continue;
    }
    if (!check(request, message.status.source, message.status.bytes, message.dtype)) return false;
    request.status = message.status;
    if (!message.is_complete) {
      message.claimant = request.shared_from_this();
      return true;
    }
    if (!message.data.empty()) std::memcpy(request.data, message.data.data(), message.data.size());
    unexpected_bytes_ -= message.data.size();
    unexpected_.erase(entry);
    finish(request);
    return true;
  }
  return false;
}

// The header is here: decides where the data go. False: nowhere yet.
bool PointToPoint::begin_message(Peer& peer) {
  peer.target = match(peer.rank, peer.header.tag);
  if (peer.target != nullptr) {
    if (!check(*peer.target, peer.rank, peer.header.bytes, static_cast<Dtype>(peer.header.dtype))) {
      return false;
    }
    peer.target->status = {peer.rank, peer.header.tag, peer.header.bytes};
    return true;
  }
  // Messages to oneself are counted and not limited: they may have gone past it.
  const std::size_t kept = std::min(unexpected_bytes_, kUnexpectedBytesMax);
  if (peer.header.bytes > kUnexpectedBytesMax - kept) return false;
  peer.unexpected = std::make_shared<Unexpected>();
  peer.unexpected->status = {peer.rank, peer.header.tag, peer.header.bytes};
  peer.unexpected->dtype = static_cast<Dtype>(peer.header.dtype);
  peer.unexpected->data.resize(peer.header.bytes);
  unexpected_bytes_ += peer.header.bytes;
  unexpected_.push_back(peer.unexpected);
  return true;
}

void PointToPoint::end_message(Peer& peer) {
  peer.header_read = 0;
  peer.data_read = 0;
  if (peer.target != nullptr) {
    finish(*std::exchange(peer.target, nullptr));
    return;
  }
  const std::shared_ptr<Unexpected> message = std::exchange(peer.unexpected, nullptr);
  message->is_complete = true;
  if (message->claimant == nullptr) return;
  MessageRequest& request = *message->claimant;
  if (!message->data.empty()) std::memcpy(request.data, message->data.data(), message->data.size());
  unexpected_bytes_ -= message->data.size();
  unexpected_.remove(message);
  finish(request);
}

bool PointToPoint::progress_sends(Peer& peer) {
  bool has_moved = false;
  while (!peer.sends.empty() && open_sink(peer)) {
    MessageRequest& request = *peer.sends.front();
    MessageHeader header;
    header.tag = request.tag;
    header.bytes = request.bytes;
    header.dtype = static_cast<std::uint8_t>(request.dtype);
    const std::size_t total = sizeof header + request.bytes;
    while (request.moved < total) {
      const bool in_header = request.moved < sizeof header;
      const std::uint8_t* const from =
          in_header
              ? reinterpret_cast<const std::uint8_t*>(&header) + request.moved
              : static_cast<const std::uint8_t*>(request.data) + (request.moved - sizeof header);
      const std::size_t left = (in_header ? sizeof header : total) - request.moved;
      const std::size_t written = peer.sink->write_some(from, left);
      if (written == 0) break;
      request.moved += written;
      has_moved = true;
    }
    if (peer.sink->state() == StreamState::kBroken) {
      fail_found(lost(peer, "its connection broke"));
      return false;
    }
    if (request.moved < total) break;
    const std::shared_ptr<MessageRequest> done = peer.sends.front();
    peer.sends.pop_front();
    finish(*done);
  }
  return has_moved;
}

bool PointToPoint::progress_receives(Peer& peer) {
  bool has_moved = false;
  while (!is_broken() && open_source(peer)) {
    if (peer.header_read < sizeof(MessageHeader)) {
      const std::size_t got =
          peer.source->read_some(reinterpret_cast<std::uint8_t*>(&peer.header) + peer.header_read,
                                 sizeof(MessageHeader) - peer.header_read);
      peer.header_read += got;
      has_moved |= got > 0;
      if (peer.header_read < sizeof(MessageHeader)) break;
      if (peer.header.magic != kMessageMagic || peer.header.dtype >= kDtypeCount) {
        fail_found(lost(peer, "sent something that is no message"));
        return false;
      }
    }
    if (!peer.is_in_message() && !begin_message(peer)) break;
    std::uint8_t* const to = peer.target != nullptr ? static_cast<std::uint8_t*>(peer.target->data)
                                                    : peer.unexpected->data.data();
    if (peer.data_read < peer.header.bytes) {
      const std::size_t got =
          peer.source->read_some(to + peer.data_read, peer.header.bytes - peer.data_read);
      peer.data_read += got;
      has_moved |= got > 0;
      if (got == 0) break;
    }
    if (peer.data_read == peer.header.bytes) end_message(peer);
  }
  // A peer that hangs up between messages has finished; only those who still want something mind.
  const bool has_ended = peer.source != nullptr && peer.source->state() == StreamState::kBroken;
  const bool is_wanted = peer.is_in_message() || peer.header_read > 0 ||
                         std::any_of(receives_.begin(), receives_.end(), [&](const auto& request) {
                           return request->peer == peer.rank;
                         });
  if (has_ended && is_wanted && !is_broken()) fail_found(lost(peer, "it hung up"));
  return has_moved;
}

bool PointToPoint::progress() {
  bool has_moved = false;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (is_broken()) return true;
    bool moved_here = false;
    if (!peer->sends.empty()) moved_here |= progress_sends(*peer);
    if (!is_broken()) moved_here |= progress_receives(*peer);
    const std::int32_t member = options_.member_of[static_cast<std::size_t>(peer->rank)];
    if (moved_here && member >= 0 && local_ != nullptr) {
      local_->mail().ring(static_cast<std::uint32_t>(member));
    }
    has_moved |= moved_here;
  }
  return has_moved;
}

void PointToPoint::enter(const std::shared_ptr<MessageRequest>& request, nanoseconds timeout) {
  request->number = ++messages_;
  request->timeout = timeout;
  request->until = steady_clock::now() + timeout;
  request->work->start();
  if (failure_) {
    request->is_done = true;
    request->work->finish(Outcome(*failure_));
    return;
  }
  if (!request->is_send) {
    if (!take_unexpected(*request)) receives_.push_back(request);
    return;
  }
  if (request->peer != options_.self) {
    peers_[static_cast<std::size_t>(request->peer)]->sends.push_back(request);
    return;
  }
  // A message to this rank itself is handled as if it had arrived.
  auto message = std::make_shared<Unexpected>();
  message->status = {options_.self, request->tag, request->bytes};
  message->dtype = request->dtype;
  const auto* const bytes = static_cast<const std::uint8_t*>(request->data);
  message->data.assign(bytes, bytes + request->bytes);
  message->is_complete = true;
  unexpected_bytes_ += request->bytes;
  unexpected_.push_back(message);
  finish(*request);
  const std::shared_ptr<MessageRequest> receiver = match(options_.self, request->tag);
  if (receiver != nullptr && !take_unexpected(*receiver)) receives_.push_front(receiver);
}

void PointToPoint::sleep(std::uint32_t bell, steady_clock::time_point until) {
  std::vector<pollfd> sockets;
  bool has_remote = false;
  {
    const std::lock_guard lock(mutex_);
    for (const std::unique_ptr<Peer>& peer : peers_) {
      if (options_.member_of[static_cast<std::size_t>(peer->rank)] >= 0) continue;
      has_remote = true;
      if (peer->source != nullptr && peer->source->state() == StreamState::kOpen) {
        sockets.push_back({peer->source->descriptor(), POLLIN, 0});
      }
      if (!peer->sends.empty() && peer->sink != nullptr) {
        sockets.push_back({peer->sink->descriptor(), POLLOUT, 0});
      }
    }
  }
  if (has_remote) {
    poll(sockets.data(), sockets.size(), static_cast<int>(kSocketSlice.count()));
  } else if (local_ != nullptr) {
    const milliseconds slice =
        alarm_ != nullptr ? std::min(kLocalSlice, alarm_->poll_interval()) : kLocalSlice;
    const nanoseconds left = std::max(nanoseconds(0), until - steady_clock::now());
    local_->mail().sleep(bell, std::min<nanoseconds>(slice, left));
  } else {
    poll(nullptr, 0, 1);
  }
}

Outcome PointToPoint::run(const Requests& requests, nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  try {
    for (const std::shared_ptr<MessageRequest>& request : requests) enter(request, timeout);
    return see_through(lock, requests, nanoseconds::max());
  } catch (const std::exception& problem) {
    return fail_thrown(lock, problem);
  }
}

Outcome PointToPoint::finish_sends() {
  std::unique_lock lock(mutex_);
  Requests requests;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    requests.insert(requests.end(), peer->sends.begin(), peer->sends.end());
  }
  try {
    return see_through(lock, requests, kDrainTime);
  } catch (const std::exception& problem) {
    return fail_thrown(lock, problem);
  }
}

// Gives up after `patience` without any byte of the requests moving.
Outcome PointToPoint::see_through(std::unique_lock<std::mutex>& lock, const Requests& requests,
                                  nanoseconds patience) {
  const auto are_done = [&] {
    return std::all_of(requests.begin(), requests.end(),
                       [](const auto& request) { return request->is_done; });
  };
  constexpr auto kMoving = steady_clock::time_point::max();
  auto idle_since = kMoving;
  bool is_long = false;
  while (!are_done()) {
    const std::uint32_t bell = local_ != nullptr ? local_->mail().bell() : 0;
    const bool has_moved = progress();
    if (are_done()) break;
    if (tell_found(lock) || find_overdue(requests)) continue;
    if (is_long) show_oldest();
    if (has_moved) {
      idle_since = kMoving;
      continue;
    }
    const auto now = steady_clock::now();
    idle_since = std::min(idle_since, now);
    const MessageRequest& open = **std::find_if(
        requests.begin(), requests.end(), [](const auto& request) { return !request->is_done; });
    if (now - idle_since >= patience) {
      fail_found(late(open, patience));
      continue;
    }
    const steady_clock::time_point until = open.until;
    lock.unlock();
    if (now - idle_since < options_.spin) {
      for (int round = 0; round < kSpinRounds; ++round) relax();
    } else {
      is_long = true;
      if (!look_for_trouble()) sleep(bell, until);
    }
    lock.lock();
  }
  tell_found(lock);  // Reports a failure that another thread found.
  for (const std::shared_ptr<MessageRequest>& request : requests) {
    const std::optional<Outcome> outcome = request->work->test();
    if (outcome && outcome->code != 0) return *outcome;
  }
  return {};
}

void PointToPoint::post(const std::shared_ptr<MessageRequest>& request, nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  // Start the thread first: a request that cannot be seen through must not be under way when this
  // fails.
  if (!thread_.joinable()) thread_ = background_thread([this] { run_thread(); });
  try {
    enter(request, timeout);
    progress();
    tell_found(lock);
    if (request->is_done) return;
    pending_.push_back(request);
    has_work_.notify_all();
  } catch (const std::exception& problem) {
    const Outcome outcome = fail_thrown(lock, problem);
    if (request->is_done) return;  // Otherwise it was thrown before the request was queued.
    request->is_done = true;
    request->work->finish(outcome);
  }
}

void PointToPoint::run_thread() {
  std::unique_lock lock(mutex_);
  while (!is_ending_) {
    std::erase_if(pending_, [](const auto& request) { return request->is_done; });
    if (pending_.empty()) {
      has_work_.wait(lock);
      continue;
    }
    try {
      move_pending(lock);
    } catch (const std::exception& problem) {
      fail_thrown(lock, problem);
    }
  }
}

void PointToPoint::move_pending(std::unique_lock<std::mutex>& lock) {
  const std::uint32_t bell = local_ != nullptr ? local_->mail().bell() : 0;
  const bool has_moved = progress();
  if (tell_found(lock) || find_overdue(pending_) || has_moved) return;
  show_oldest();
  const auto first = std::min_element(
      pending_.begin(), pending_.end(),
      [](const auto& one, const auto& other) { return one->until < other->until; });
  const steady_clock::time_point until = (*first)->until;
  lock.unlock();
  if (!look_for_trouble()) sleep(bell, until);
  lock.lock();
}

}  // namespace ivy::comm
