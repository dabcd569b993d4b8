// SPDX-License-Identifier: Apache-2.0
// enter() accepts a request. progress() is called repeatedly and moves what it can for each peer:
// progress_sends() writes messages; progress_receives() reads a header (read_header()), finds the
// memory for the message (begin_message()), reads the data (read_data()), and completes the receive
// (end_message()). report() and end_all() end all requests after a failure.
#include "comm/group/p2p/message_traffic.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/transports/shm/shared_ring.h"
#include "comm/transports/tcp/socket_stream.h"
#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

constexpr std::uint32_t kChannel = 1;  // The channel of collectives is 0.

// Limit of the bytes of a loan that are read in one step, so that a failure elsewhere can end a
// long copy.
constexpr std::size_t kChunkBytes = std::size_t{4} << 20;

// Writes the header, then the data. Returns whether the whole message has been written.
bool write_message(ByteSink& sink, MessageRequest& request) {
  if (!request.is_lent) request.is_lent = sink.lend(request.data, request.bytes);
  MessageHeader header;
  header.tag = request.tag;
  header.bytes = request.bytes;
  header.dtype = static_cast<std::uint8_t>(request.dtype);
  header.is_lent = *request.is_lent ? 1 : 0;
  const std::size_t total = sizeof header + request.bytes;
  while (request.moved < total) {
    const bool in_header = request.moved < sizeof header;
    if (!in_header && *request.is_lent) {
      const LoanState loan = sink.loan();
      if (loan == LoanState::kOpen) return false;
      if (loan == LoanState::kRead) request.moved = total;
      request.is_lent = false;
      continue;
    }
    const std::uint8_t* const from =
        in_header
            ? reinterpret_cast<const std::uint8_t*>(&header) + request.moved
            : static_cast<const std::uint8_t*>(request.data) + (request.moved - sizeof header);
    const std::size_t left = (in_header ? sizeof header : total) - request.moved;
    const std::size_t written = sink.write_some(from, left);
    if (written == 0) return false;
    request.moved += written;
  }
  return true;
}

// Reads a piece of the message that a peer has lent. If the peer's memory cannot be read, the data
// follows on the stream.
LoanState read_chunk(const MessageRings& mail, std::uint32_t member, MessagePeer& peer,
                     std::uint8_t* to) {
  if (!peer.can_read) peer.can_read = mail.can_read(member);
  const std::size_t chunk_bytes = std::min(kChunkBytes, peer.header.bytes - peer.data_read);
  if (*peer.can_read) {
    const std::uint64_t from = peer.source->lent();
    const bool was_read =
        from != 0 && mail.read(member, to + peer.data_read, from + peer.data_read, chunk_bytes);
    // The sender revokes the loan if a failure ends its request, after which its memory may have
    // changed.
    if (peer.source->lent() == 0) return LoanState::kOpen;
    peer.can_read = was_read;
    peer.data_read += chunk_bytes;
  }
  if (*peer.can_read && peer.data_read < peer.header.bytes) return LoanState::kOpen;
  const LoanState ended = *peer.can_read ? LoanState::kRead : LoanState::kDeclined;
  peer.header.is_lent = 0;
  if (ended == LoanState::kDeclined) peer.data_read = 0;
  peer.source->end_loan(ended);
  return ended;
}

}  // namespace

MessageTraffic::MessageTraffic(const PointToPointOptions& options, MessageRings* mail,
                               PeerConnections* connections, MessageFailureDetector& detector)
    : options_(options), mail_(mail), connections_(connections), detector_(detector) {
  for (std::size_t rank = 0; rank < options_.peers.size(); ++rank) {
    peers_.push_back(std::make_unique<MessagePeer>());
    peers_.back()->rank = static_cast<std::int32_t>(rank);
  }
}

PeerChannel MessageTraffic::channel_of(std::int32_t rank) const {
  PeerChannel channel;
  channel.communicator = options_.communicator;
  channel.peer_rank = static_cast<std::uint32_t>(options_.peer(rank).world_rank);
  channel.channel = kChannel;
  return channel;
}

Result<bool> MessageTraffic::open_sink(MessagePeer& peer) {
  if (peer.sink != nullptr) return true;
  if (!options_.is_remote(peer.rank)) {
    peer.sink =
        IVY_TRY(make_ring(mail_->ring_to(static_cast<std::uint32_t>(options_.member(peer.rank)))));
    return true;
  }
  if (peer.dial == nullptr) {
    peer.dial = std::make_unique<BackgroundDial>(*connections_, options_.peer(peer.rank).address,
                                                 channel_of(peer.rank), detector_.is_cancelled());
    return false;
  }
  const std::optional<Result<PeerSocket>> dialled = peer.dial->take();
  if (!dialled) return false;
  peer.dial.reset();
  if (!dialled->ok()) {
    if (detector_.is_cancelled()) return false;
    return dialled->error();
  }
  peer.sink = make_socket_sink((*dialled)->socket);
  return true;
}

Result<bool> MessageTraffic::open_source(MessagePeer& peer) {
  if (peer.source != nullptr) return true;
  if (peer.rank == options_.self) return false;
  if (!options_.is_remote(peer.rank)) {
    peer.source = IVY_TRY(
        find_ring(mail_->ring_from(static_cast<std::uint32_t>(options_.member(peer.rank)))));
    return peer.source != nullptr;
  }
  if (!matching_.is_wanted(peer.rank, true)) return false;
  const int socket = connections_->take(channel_of(peer.rank), std::chrono::milliseconds(0)).socket;
  if (socket < 0) return false;
  peer.source = make_socket_source(socket);
  return true;
}

void MessageTraffic::enter(const Request& request, std::chrono::nanoseconds timeout) {
  request->number = ++messages_;
  request->timeout = timeout;
  request->until = steady_now() + timeout;
  request->work->start();
  if (failure_) {
    request->is_done = true;
    request->work->finish(Outcome(*failure_));
  } else if (!request->is_send) {
    receive(request);
  } else if (request->peer == options_.self) {
    send_to_self(request);
  } else {
    peers_[static_cast<std::size_t>(request->peer)]->sends.push_back(request);
  }
}

void MessageTraffic::receive(const Request& request) {
  const MessageMatching::Message message = matching_.find(*request);
  if (message == nullptr || !check(*request, message->status, message->dtype)) {
    matching_.post(request);
  } else if (message->is_complete) {
    matching_.deliver(message, *request);
    finish(*request);
  } else {
    request->status = message->status;
    message->claimant = request;
  }
}

// Delivers a message of this rank to itself as if it had arrived.
void MessageTraffic::send_to_self(const Request& request) {
  const MessageStatus status = {options_.self, request->tag, request->bytes};
  const MessageMatching::Message message = matching_.keep_own(status, request->dtype);
  if (request->bytes > 0) std::memcpy(message->data.data(), request->data, request->bytes);
  message->is_complete = true;
  finish(*request);
  const Request receiver = matching_.take_receive(options_.self, request->tag);
  if (receiver != nullptr) receive(receiver);
}

bool MessageTraffic::progress(bool keep_lent) {
  keeps_lent_ = keep_lent;
  bool has_moved = false;
  for (const std::unique_ptr<MessagePeer>& peer : peers_) {
    if (is_broken()) return true;
    const bool has_sent = !peer->sends.empty() && progress_sends(*peer);
    const bool has_received = !is_broken() && progress_receives(*peer);
    // Notifying costs a system call if a thread of the peer sleeps, so do it only if the peer
    // waits.
    const bool is_awaited = (has_sent && peer->sink->has_unread()) ||
                            (has_received && peer->source->take_writer_waits());
    if (is_awaited) notify(peer->rank);
    has_moved |= has_sent || has_received;
  }
  return has_moved;
}

bool MessageTraffic::progress_sends(MessagePeer& peer) {
  bool has_moved = false;
  while (!peer.sends.empty() && is_open(peer.rank, open_sink(peer))) {
    const Request request = peer.sends.front();
    const std::size_t moved_before = request->moved;
    const bool is_whole = write_message(*peer.sink, *request);
    has_moved |= request->moved > moved_before;
    if (peer.sink->state() == StreamState::kBroken) {
      report_disconnect(peer.rank, "its connection broke");
      return false;
    }
    if (!is_whole) break;
    peer.sends.pop_front();
    finish(*request);
  }
  return has_moved;
}

bool MessageTraffic::progress_receives(MessagePeer& peer) {
  bool has_moved = false;
  while (!is_broken() && is_open(peer.rank, open_source(peer))) {
    if (!read_header(peer, has_moved)) break;
    if (!peer.is_in_message() && !begin_message(peer)) break;
    if (!read_data(peer, has_moved)) break;
  }
  // A peer that hangs up between messages has finished. That is a failure only if a receive still
  // waits for it.
  const bool has_ended = peer.source != nullptr && peer.source->state() == StreamState::kBroken;
  if (has_ended && !is_broken() && (peer.has_begun() || matching_.is_wanted(peer.rank, false))) {
    report_disconnect(peer.rank, "it closed the connection");
  }
  return has_moved;
}

// Returns whether the next message's header has been read completely.
bool MessageTraffic::read_header(MessagePeer& peer, bool& has_moved) {
  if (peer.header_read == sizeof(MessageHeader)) return true;
  const std::size_t got =
      peer.source->read_some(reinterpret_cast<std::uint8_t*>(&peer.header) + peer.header_read,
                             sizeof(MessageHeader) - peer.header_read);
  peer.header_read += got;
  has_moved |= got > 0;
  if (peer.header_read < sizeof(MessageHeader)) return false;
  const bool can_be_lent = peer.header.is_lent == 0 || !options_.is_remote(peer.rank);
  if (peer.header.magic == kMessageMagic && peer.header.dtype < kDtypeCount && can_be_lent) {
    return true;
  }
  report_disconnect(peer.rank, "it sent invalid data");
  return false;
}

// Reads data of the current message. Returns false if the stream has no more bytes for now.
bool MessageTraffic::read_data(MessagePeer& peer, bool& has_moved) {
  std::uint8_t* const to = peer.target != nullptr ? static_cast<std::uint8_t*>(peer.target->data)
                                                  : peer.unexpected->data.data();
  if (peer.header.is_lent != 0) {
    const std::size_t before = peer.data_read;
    const LoanState loan =
        read_chunk(*mail_, static_cast<std::uint32_t>(options_.member(peer.rank)), peer, to);
    has_moved |= loan != LoanState::kOpen || peer.data_read > before;
    if (loan != LoanState::kRead) return false;
    end_message(peer);
    return true;
  }
  if (peer.data_read < peer.header.bytes) {
    const std::size_t got =
        peer.source->read_some(to + peer.data_read, peer.header.bytes - peer.data_read);
    peer.data_read += got;
    has_moved |= got > 0;
    if (got == 0) return false;
  }
  if (peer.data_read == peer.header.bytes) end_message(peer);
  return true;
}

// Chooses the memory for the data of a message whose header was read. Returns false if there is
// none yet.
bool MessageTraffic::begin_message(MessagePeer& peer) {
  const auto dtype = static_cast<Dtype>(peer.header.dtype);
  peer.target = matching_.take_receive(peer.rank, peer.header.tag);
  if (peer.target == nullptr) {
    if (peer.header.is_lent != 0 && !keeps_lent_) return false;
    peer.unexpected = matching_.keep(peer.arriving(), dtype);
    return peer.unexpected != nullptr;
  }
  if (!check(*peer.target, peer.arriving(), dtype)) return false;
  peer.target->status = peer.arriving();
  return true;
}

void MessageTraffic::end_message(MessagePeer& peer) {
  peer.header_read = 0;
  peer.data_read = 0;
  if (peer.target != nullptr) {
    finish(*std::exchange(peer.target, nullptr));
    return;
  }
  const MessageMatching::Message message = std::exchange(peer.unexpected, nullptr);
  message->is_complete = true;
  if (message->claimant == nullptr) return;
  matching_.deliver(message, *message->claimant);
  finish(*message->claimant);
}

// Returns whether the stream is open. A stream that cannot be opened breaks the communicator.
bool MessageTraffic::is_open(std::int32_t rank, const Result<bool>& opened) {
  if (!opened.ok()) report_disconnect(rank, opened.error().message);
  return opened.ok() && *opened;
}

// Returns whether the receive can take such a message; otherwise breaks the communicator.
bool MessageTraffic::check(const MessageRequest& receive, const MessageStatus& status,
                           Dtype dtype) {
  const bool is_same_type =
      receive.dtype == dtype || receive.dtype == Dtype::kU8 || dtype == Dtype::kU8;
  if (is_same_type && status.bytes <= receive.bytes) return true;
  report(mismatch_failure(receive, status, dtype, options_));
  return false;
}

void MessageTraffic::report_disconnect(std::int32_t rank, const std::string& why) {
  report(detector_.connection_failure(rank, why));
}

void MessageTraffic::report(Failure failure) {
  name_message(failure);
  if (!is_broken()) found_ = failure;
}

void MessageTraffic::end_all(const Failure& failure) {
  if (!failure_) failure_ = failure;
  std::vector<Request> all = matching_.take_all_receives();
  for (const std::unique_ptr<MessagePeer>& peer : peers_) {
    all.insert(all.end(), peer->sends.begin(), peer->sends.end());
    peer->sends.clear();
    if (peer->sink != nullptr) peer->sink->revoke();
    if (peer->target != nullptr) all.push_back(std::exchange(peer->target, nullptr));
  }
  for (const Request& request : all) {
    if (request->is_done) continue;
    clear_shown(*request);
    request->is_done = true;
    request->work->finish(Outcome(*failure_));
  }
  if (mail_ != nullptr) mail_->wake_all();
}

void MessageTraffic::finish(MessageRequest& request) {
  clear_shown(request);
  request.is_done = true;
  request.work->finish({});
  // A thread of this rank may be sleeping until this request is done.
  if (request.is_slept_on && mail_ != nullptr) mail_->wake_all();
}

bool MessageTraffic::withdraw(const Request& request) {
  if (!matching_.withdraw(request)) return false;
  clear_shown(*request);
  request->is_done = true;
  return true;
}

void MessageTraffic::notify(std::int32_t rank) {
  if (mail_ != nullptr && !options_.is_remote(rank)) {
    mail_->notify(static_cast<std::uint32_t>(options_.member(rank)));
  }
}

std::optional<std::vector<pollfd>> MessageTraffic::sockets() const {
  std::optional<std::vector<pollfd>> sockets;
  for (const std::unique_ptr<MessagePeer>& peer : peers_) {
    if (!options_.is_remote(peer->rank)) continue;
    if (!sockets) sockets.emplace();
    if (peer->source != nullptr && peer->source->state() == StreamState::kOpen) {
      sockets->push_back({peer->source->descriptor(), POLLIN, 0});
    }
    if (!peer->sends.empty() && peer->sink != nullptr) {
      sockets->push_back({peer->sink->descriptor(), POLLOUT, 0});
    }
  }
  return sockets;
}

// Returns the longest-waiting request, or null.
const MessageRequest* MessageTraffic::oldest() const {
  const MessageRequest* found = nullptr;
  const auto consider = [&](const MessageRequest* request) {
    if (request == nullptr || request->is_done) return;
    if (found == nullptr || request->number < found->number) found = request;
  };
  consider(matching_.oldest_receive());
  for (const std::unique_ptr<MessagePeer>& peer : peers_) {
    if (!peer->sends.empty()) consider(peer->sends.front().get());
    consider(peer->receiver());
  }
  return found;
}

void MessageTraffic::show_oldest() {
  const MessageRequest* const request = options_.board != nullptr ? oldest() : nullptr;
  if (request == nullptr || options_.board->shows(request->number)) return;
  WaitingMessage message;
  message.number = request->number;
  message.is_send = request->is_send;
  if (request->peer >= 0) message.peer = options_.peer(request->peer).job_rank;
  message.tag = request->tag;
  message.dtype = request->dtype;
  message.count = request->bytes / element_bytes(request->dtype);
  options_.board->show(message);
}

void MessageTraffic::clear_shown(const MessageRequest& request) {
  if (options_.board == nullptr || !options_.board->shows(request.number)) return;
  options_.board->clear(!failure_.has_value());
}

}  // namespace ivy::comm
