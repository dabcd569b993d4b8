#include "comm/point_to_point.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/alarms.h"
#include "comm/background_thread.h"
#include "comm/transports/relax.h"
#include "comm/transports/shared_ring.h"
#include "comm/transports/socket_stream.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr std::uint32_t kMessageMagic = 0x50797649;  // "IvyP"
constexpr std::uint32_t kChannel = 1;                // Collectives have channel 0.
constexpr milliseconds kDialTime{10'000};
constexpr milliseconds kLocalSlice{100};
// With sockets and rings at once no call waits for both, so it sleeps briefly.
constexpr milliseconds kSocketSlice{1};
constexpr milliseconds kVerdictTime{300};
constexpr milliseconds kVerdictStep{2};
constexpr milliseconds kProbePause{300};
constexpr milliseconds kDrainTime{10'000};

struct MessageHeader {
  std::uint32_t magic = kMessageMagic;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint8_t dtype = 0;
  std::uint8_t zero[7] = {};
};
static_assert(sizeof(MessageHeader) == 24);

// Between two looks at the streams while spinning.
constexpr int kSpinRounds = 8;

bool fits(std::int32_t wanted, std::int32_t offered) { return wanted < 0 || wanted == offered; }

}  // namespace

// A message that came before anybody asked for it.
struct PointToPoint::Unexpected {
  MessageStatus status;
  Dtype dtype = Dtype::kU8;
  std::vector<std::uint8_t> data;
  bool is_complete = false;
  std::shared_ptr<MessageRequest> claimant;  // Asked for it while it was arriving.
};

struct PointToPoint::Peer {
  std::int32_t rank = 0;
  std::unique_ptr<ByteSink> sink;
  std::unique_ptr<ByteSource> source;
  std::deque<std::shared_ptr<MessageRequest>> sends;
  // The message that is arriving: first its header, then into one of the two.
  MessageHeader header;
  std::size_t header_read = 0;
  std::size_t data_read = 0;
  std::shared_ptr<MessageRequest> target;
  std::shared_ptr<Unexpected> unexpected;

  bool is_in_message() const { return target != nullptr || unexpected != nullptr; }
};

PointToPoint::PointToPoint(PointToPointOptions options, SharedGroup* local, PeerListener* listener,
                           std::unique_ptr<Alarm> alarm)
    : options_(std::move(options)), local_(local), listener_(listener), alarm_(std::move(alarm)) {
  for (std::size_t rank = 0; rank < options_.peers.size(); ++rank) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->rank = static_cast<std::int32_t>(rank);
  }
}

PointToPoint::~PointToPoint() {
  // What was sent is the receivers': they find it in rings that go with this process. Who waits for
  // them takes what they have sent: they may be waiting for that here, too.
  const auto end = steady_clock::now() + kDrainTime;
  while (steady_clock::now() < end) {
    const std::uint32_t bell = local_ != nullptr ? local_->mail_bell() : 0;
    {
      const std::lock_guard lock(mutex_);
      if (failure_ || !has_undelivered()) break;
      if (progress()) continue;
    }
    local_->mail_sleep(bell, milliseconds(10));
  }
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    thread.swap(thread_);
    has_work_.notify_all();
  }
  if (local_ != nullptr) local_->ring_mail(local_->self());
  if (thread.joinable()) thread.join();
  const std::lock_guard lock(mutex_);
  fail_all(make_failure(FailureKind::kAborted,
                        "the communicator was ended before the message was through"));
}

// Is there a ring whose reader lives and has not read it all?
bool PointToPoint::has_undelivered() const {
  return std::any_of(peers_.begin(), peers_.end(), [this](const std::unique_ptr<Peer>& peer) {
    if (peer->sink == nullptr || peer->sink->is_drained()) return false;
    const auto rank = static_cast<std::size_t>(peer->rank);
    const auto member = static_cast<std::uint32_t>(options_.member_of[rank]);
    return !local_->has_left(member) && kill(options_.peers[rank].pid, 0) == 0;
  });
}

// ---- Streams ----------------------------------------------------------------------------------

bool PointToPoint::open_sink(Peer& peer) {
  if (peer.sink != nullptr) return true;
  const auto rank = static_cast<std::size_t>(peer.rank);
  if (options_.member_of[rank] >= 0) {
    Result<std::unique_ptr<ByteSink>> made = make_ring(
        local_->ring(local_->self(), static_cast<std::uint32_t>(options_.member_of[rank])));
    if (!made.ok()) {
      fail_found(lost(peer, made.error().message));
      return false;
    }
    peer.sink = std::move(made).value();
    return true;
  }
  PeerChannel channel;
  channel.communicator = options_.communicator;
  channel.peer_rank = static_cast<std::uint32_t>(options_.peers[rank].world_rank);
  channel.channel = kChannel;
  const auto left = std::chrono::duration_cast<milliseconds>(dial_until_ - steady_clock::now());
  const Result<PeerSocket> dialled =
      listener_->dial(options_.peers[rank].address, channel, 1, std::min(kDialTime, left),
                      [this] { return !is_breaking_.load() && !look(); });
  // Called off, or out of time: whoever waits sees to that.
  if (!dialled.ok() &&
      (dialled.error().code == Code::kCancelled || steady_clock::now() >= dial_until_)) {
    return false;
  }
  if (!dialled.ok()) {
    fail_found(lost(peer, dialled.error().message));
    return false;
  }
  peer.sink = make_socket_sink(dialled->socket);
  return true;
}

bool PointToPoint::open_source(Peer& peer) {
  if (peer.source != nullptr) return true;
  if (peer.rank == options_.self) return false;
  const auto rank = static_cast<std::size_t>(peer.rank);
  if (options_.member_of[rank] >= 0) {
    Result<std::unique_ptr<ByteSource>> found = find_ring(
        local_->ring(static_cast<std::uint32_t>(options_.member_of[rank]), local_->self()));
    if (!found.ok()) {
      fail_found(lost(peer, found.error().message));
      return false;
    }
    peer.source = std::move(found).value();
    return peer.source != nullptr;
  }
  // A connection is looked for only where somebody wants a message of that rank.
  const bool is_wanted = std::any_of(receives_.begin(), receives_.end(), [&](const auto& request) {
    return fits(request->peer, peer.rank);
  });
  if (!is_wanted) return false;
  PeerChannel channel;
  channel.communicator = options_.communicator;
  channel.peer_rank = static_cast<std::uint32_t>(options_.peers[rank].world_rank);
  channel.channel = kChannel;
  const int socket = listener_->take(channel, milliseconds(0)).socket;
  if (socket < 0) return false;
  peer.source = make_socket_source(socket);
  return true;
}

// ---- Matching ---------------------------------------------------------------------------------

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

// The first of them that is not through.
Failure PointToPoint::late_of(const std::vector<std::shared_ptr<MessageRequest>>& requests,
                              nanoseconds waited) {
  const std::lock_guard lock(mutex_);
  const auto open = std::find_if(requests.begin(), requests.end(),
                                 [](const auto& request) { return !request->is_done; });
  return late(open != requests.end() ? **open : *requests.front(), waited);
}

void PointToPoint::finish(MessageRequest& request) {
  clear_shown(request);
  request.is_done = true;
  request.work->finish({});
  // A thread that sleeps for this request is woken by the bell of its own rank.
  if (local_ != nullptr) local_->ring_mail(local_->self());
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
    if (!check(request, message.status.source, message.status.bytes, message.dtype)) {
      request.is_done = true;
      request.work->finish(Outcome(*failure_));
      return true;
    }
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

// ---- Progress ---------------------------------------------------------------------------------

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
  while (!failure_ && open_source(peer)) {
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
  const bool is_broken = peer.source != nullptr && peer.source->state() == StreamState::kBroken;
  const bool is_wanted = peer.is_in_message() || peer.header_read > 0 ||
                         std::any_of(receives_.begin(), receives_.end(), [&](const auto& request) {
                           return request->peer == peer.rank;
                         });
  if (is_broken && is_wanted && !failure_) fail_found(lost(peer, "it hung up"));
  return has_moved;
}

bool PointToPoint::progress() {
  bool has_moved = false;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (failure_) return true;
    bool moved_here = false;
    if (!peer->sends.empty()) moved_here |= progress_sends(*peer);
    if (!failure_) moved_here |= progress_receives(*peer);
    const std::int32_t member = options_.member_of[static_cast<std::size_t>(peer->rank)];
    if (moved_here && member >= 0 && local_ != nullptr) {
      local_->ring_mail(static_cast<std::uint32_t>(member));
    }
    has_moved |= moved_here;
  }
  return has_moved;
}

void PointToPoint::enter(const std::shared_ptr<MessageRequest>& request) {
  request->number = ++messages_;
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
  // To oneself: as if it had arrived.
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
  if (receiver != nullptr) take_unexpected(*receiver);
}

// ---- Waiting ----------------------------------------------------------------------------------

// A rank that has ended its communicator and left is missed only by those who want something of it.
bool PointToPoint::concerns_nobody(const Failure& failure) const {
  if (failure.kind != FailureKind::kRankDied || local_ == nullptr) return false;
  for (std::size_t rank = 0; rank < options_.peers.size(); ++rank) {
    const std::int32_t member = options_.member_of[rank];
    if (options_.peers[rank].world_rank != failure.rank || member < 0) continue;
    if (!local_->has_left(static_cast<std::uint32_t>(member))) return false;
    return std::none_of(receives_.begin(), receives_.end(), [&](const auto& request) {
      return request->peer == static_cast<std::int32_t>(rank);
    });
  }
  return false;
}

// A rank of another host that died before it dialled has no connection that could break.
std::optional<Failure> PointToPoint::look_for_absent() {
  const auto now = std::chrono::steady_clock::now();
  std::vector<const Peer*> absent;
  {
    const std::lock_guard lock(mutex_);
    if (now - probed_at_ < kProbePause) return std::nullopt;
    probed_at_ = now;
    for (const auto& request : receives_) {
      if (request->peer < 0) continue;
      const auto rank = static_cast<std::size_t>(request->peer);
      if (options_.member_of[rank] >= 0 || peers_[rank]->source != nullptr) continue;
      absent.push_back(peers_[rank].get());
    }
  }
  for (const Peer* peer : absent) {
    const TcpPeer& seat = options_.peers[static_cast<std::size_t>(peer->rank)];
    if (PeerListener::is_there(seat.address)) continue;
    const std::lock_guard lock(mutex_);
    return lost(*peer, "it is gone");
  }
  return std::nullopt;
}

// In which message it was found, where that is not said yet. Under mutex_.
void PointToPoint::tell_message(Failure& failure) const {
  if (failure.sequence != 0 || failure.operation[0] != 0) return;
  const MessageRequest* const waiting = oldest();
  set_text(failure, std::string(failure.text) + " during " +
                        (waiting != nullptr ? name_of(*waiting)
                                            : "messages of communicator " + options_.communicator));
  failure.sequence = waiting != nullptr ? waiting->number : 0;
  set_operation(failure, waiting != nullptr && waiting->is_send ? "send" : "recv");
}

// Several threads wait here, and an alarm is asked by one at a time.
std::optional<Failure> PointToPoint::look() {
  if (alarm_ == nullptr) return std::nullopt;
  const std::lock_guard lock(alarm_mutex_);
  return alarm_->look();
}

bool PointToPoint::look_for_trouble() {
  std::optional<Failure> found;
  if (local_ != nullptr) found = local_->failure();
  if (!found) found = look();
  if (!found) found = look_for_absent();
  if (!found) return false;
  // Who has been told of a death may have ended since: what it was told comes first.
  if (local_ != nullptr) {
    if (const std::optional<Failure> known = local_->failure()) found = known;
  }
  const std::lock_guard lock(mutex_);
  if (concerns_nobody(*found)) return false;
  // Who asks for messages of a dead rank waits in vain; who does not has no part in its death, but
  // the communicator is broken for all.
  if (failure_) return true;
  tell_message(*found);
  // One more look: what a rank sent before it ended is still there.
  progress();
  fail_found(*found);
  return true;
}

void PointToPoint::sleep(std::uint32_t bell) {
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
    local_->mail_sleep(
        bell, std::min(kLocalSlice, alarm_ != nullptr ? alarm_->poll_interval() : kLocalSlice));
  } else {
    poll(nullptr, 0, 1);
  }
}

Outcome PointToPoint::run(const std::vector<std::shared_ptr<MessageRequest>>& requests,
                          nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  for (const std::shared_ptr<MessageRequest>& request : requests) enter(request);
  const auto are_done = [&] {
    return std::all_of(requests.begin(), requests.end(),
                       [](const auto& request) { return request->is_done; });
  };
  const auto until = steady_clock::now() + timeout;
  steady_clock::time_point idle_since = steady_clock::time_point::max();  // Moving.
  bool is_long = false;
  while (true) {
    const std::uint32_t bell = local_ != nullptr ? local_->mail_bell() : 0;
    dial_until_ = until;
    const bool has_moved = progress();
    if (are_done()) break;
    if (is_long) show_oldest();
    if (has_moved) {
      idle_since = steady_clock::time_point::max();
      continue;
    }
    lock.unlock();
    const auto now = steady_clock::now();
    idle_since = std::min(idle_since, now);
    if (now - idle_since < options_.spin) {
      for (int round = 0; round < kSpinRounds; ++round) relax();
    } else {
      is_long = true;
      if (!look_for_trouble()) {
        if (now >= until) {
          break_with(late_of(requests, timeout));
        } else {
          sleep(bell);
        }
      }
    }
    lock.lock();
  }
  for (const std::shared_ptr<MessageRequest>& request : requests) {
    const std::optional<Outcome> outcome = request->work->test();
    if (outcome && outcome->code != 0) return *outcome;
  }
  return {};
}

void PointToPoint::post(const std::shared_ptr<MessageRequest>& request) {
  const std::lock_guard lock(mutex_);
  enter(request);
  progress();
  if (request->is_done) return;
  pending_.push_back(request);
  if (!thread_.joinable()) thread_ = background_thread([this] { run_thread(); });
  has_work_.notify_all();
}

void PointToPoint::run_thread() {
  std::unique_lock lock(mutex_);
  while (!is_ending_) {
    std::erase_if(pending_, [](const auto& request) { return request->is_done; });
    if (pending_.empty()) {
      has_work_.wait(lock);
      continue;
    }
    const std::uint32_t bell = local_ != nullptr ? local_->mail_bell() : 0;
    dial_until_ = steady_clock::now() + kDialTime;
    if (progress()) continue;
    show_oldest();
    lock.unlock();
    if (!look_for_trouble()) sleep(bell);
    lock.lock();
  }
}

// ---- Ends -------------------------------------------------------------------------------------

Failure PointToPoint::lost(const Peer& peer, const std::string& why) {
  const TcpPeer& seat = options_.peers[static_cast<std::size_t>(peer.rank)];
  const auto end = steady_clock::now() + kVerdictTime;
  // It may be gone because the communicator was broken before.
  std::optional<Failure> known = local_ != nullptr ? local_->failure() : std::nullopt;
  if (!known && alarm_ != nullptr) {
    const std::lock_guard lock(alarm_mutex_);
    known = alarm_->look_closely();
  }
  while (alarm_ != nullptr && !known && !is_breaking_.load() && steady_clock::now() < end) {
    poll(nullptr, 0, static_cast<int>(kVerdictStep.count()));
    known = look();
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
  if (local_ != nullptr) local_->ring_mail(local_->self());
}

// Found here: what others have found before counts for all.
void PointToPoint::fail_found(const Failure& failure) {
  fail_all(failure_ || !options_.agree ? failure : options_.agree(failure));
}

void PointToPoint::break_with(const Failure& failure) {
  is_breaking_.store(true);
  const std::lock_guard lock(mutex_);
  fail_all(failure);
}

}  // namespace ivy::comm
