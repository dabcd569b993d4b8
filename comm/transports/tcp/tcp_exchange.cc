// SPDX-License-Identifier: Apache-2.0
// One exchange of messages over a mesh's connections; see tcp_mesh.h.
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "comm/transports/tcp/tcp_mesh.h"
#include "comm/transports/tcp/tcp_streams.h"
#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::uint32_t kHeaderMagic = 0x4d797649;  // The bytes "IvyM", little-endian.
// How long a wait sleeps before it checks the detector.
constexpr milliseconds kPollSlice{50};
// How long it sleeps while streams are missing: a stream that the peer dials does not wake the
// wait.
constexpr milliseconds kMissingSlice{2};
// How long streams of a peer that has hung up may still arrive.
constexpr milliseconds kMissingTime{300};

struct Header {
  std::uint32_t magic = kHeaderMagic;
  std::uint32_t step = 0;
  std::uint64_t sequence = 0;
  std::uint64_t fingerprint[2] = {0, 0};
  std::uint64_t bytes = 0;  // Size of the whole message, the same for each stripe.
};
static_assert(sizeof(Header) == 40);

// Returns whether the peer has closed the connection.
bool has_hung_up(int socket) {
  pollfd polled = {socket, POLLRDHUP, 0};
  return poll(&polled, 1, 0) > 0 && polled.revents != 0;
}

}  // namespace

class TcpMesh::Exchange {
 public:
  Exchange(TcpMesh& mesh, const OperationCall& call, const SharedGroup* group)
      : mesh_(mesh), call_(call), group_(group), fingerprint_(fingerprint_of(call.shape)) {}

  bool run(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    if (!connect_all(outgoing, incoming)) return false;
    for (const Outgoing& message : outgoing) {
      if (!divide(message)) return false;
    }
    for (const Incoming& message : incoming) {
      if (!divide(message)) return false;
    }
    assign_parts();
    left_ = sends_.size() + receives_.size();
    while (left_ > 0) {
      bool has_moved = false;
      if (!advance_sends(has_moved) || !advance_receives(has_moved)) return false;
      if (has_moved) idle_since_.reset();
      if (left_ > 0 && !has_moved && !wait()) return false;
    }
    return true;
  }

 private:
  // Sends or receives one stripe of a message. The stream's number is also the stripe's.
  struct Transfer {
    std::int32_t rank = 0;
    std::uint32_t stream = 0;
    std::uint32_t step = 0;
    std::ptrdiff_t before = -1;  // Index of the previous transfer on that stream, or -1.
    Header header;
    std::uint8_t* data = nullptr;
    std::size_t bytes = 0;
    std::size_t moved = 0;  // Bytes of header and data together.

    std::size_t end() const { return sizeof(Header) + bytes; }
    bool is_done() const { return moved == end(); }
  };
  using Sending = Transfer;
  struct Receiving : Transfer {
    std::size_t whole = 0;
    std::size_t begin = 0;  // Offset of the stripe in the message.
    const TakePart* take = nullptr;
    std::size_t taken = 0;  // Bytes of the stripe that were taken.

    // Returns the number of received bytes that were not taken yet.
    std::size_t held() const { return moved - sizeof(Header) - taken; }
  };

  // Opens the first streams, starting with those that this rank dials, which do not depend on the
  // peer's progress.
  bool connect_all(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    for (const bool is_dialler : {true, false}) {
      const auto connect = [&](std::int32_t rank) {
        return is_dialler_of(rank) != is_dialler || mesh_.connect(rank, call_, group_);
      };
      for (const Outgoing& message : outgoing) {
        if (!connect(message.to)) return false;
      }
      for (const Incoming& message : incoming) {
        if (!connect(message.from)) return false;
      }
    }
    return true;
  }

  bool is_dialler_of(std::int32_t rank) const { return mesh_.options_.self < rank; }

  // Opens the streams of a message that this rank has to dial. The peer's streams are taken later,
  // during the transfer, because the peer dials them only once it is in the same message.
  bool need_streams(std::int32_t rank, std::uint32_t count) {
    if (!is_dialler_of(rank)) return true;
    for (std::uint32_t stream = 1; stream < count; ++stream) {
      if (mesh_.connection(rank).streams[stream].socket >= 0) continue;
      if (!mesh_.dial(rank, stream, call_, group_)) return false;
    }
    return true;
  }

  std::uint32_t stripes_of(std::int32_t rank, std::size_t bytes) const {
    const std::size_t streams = mesh_.connection(rank).streams.size();
    return stripe_count(bytes, static_cast<std::uint32_t>(streams));
  }

  bool divide(const Outgoing& message) {
    const std::uint32_t count = stripes_of(message.to, message.bytes);
    if (!need_streams(message.to, count)) return false;
    for (std::uint32_t stream = 0; stream < count; ++stream) {
      const Stripe stripe = stripe_of(message.bytes, count, stream);
      Sending sending;
      add_to_stream(sending, sends_, message.to, stream);
      sending.header.step = message.step;
      sending.header.sequence = call_.sequence;
      sending.header.fingerprint[0] = fingerprint_.words[0];
      sending.header.fingerprint[1] = fingerprint_.words[1];
      sending.header.bytes = message.bytes;
      // A send only reads from it.
      sending.data = static_cast<std::uint8_t*>(const_cast<void*>(message.data)) + stripe.begin;
      sending.bytes = stripe.bytes();
      sends_.push_back(sending);
    }
    return true;
  }

  bool divide(const Incoming& message) {
    const std::uint32_t count = stripes_of(message.from, message.bytes);
    if (!need_streams(message.from, count)) return false;
    for (std::uint32_t stream = 0; stream < count; ++stream) {
      const Stripe stripe = stripe_of(message.bytes, count, stream);
      Receiving receiving;
      add_to_stream(receiving, receives_, message.from, stream);
      receiving.step = message.step;
      if (message.take == nullptr) {
        receiving.data = static_cast<std::uint8_t*>(message.data) + stripe.begin;
      }
      receiving.bytes = stripe.bytes();
      receiving.whole = message.bytes;
      receiving.begin = stripe.begin;
      receiving.take = message.take;
      receives_.push_back(receiving);
    }
    return true;
  }

  // Allocates space in one buffer, which is reused, for the messages that are taken part by part.
  void assign_parts() {
    std::size_t bytes = 0;
    for (const Receiving& receiving : receives_) bytes += receiving.take != nullptr ? kPart : 0;
    if (mesh_.parts_.size() < bytes) mesh_.parts_.resize(bytes);
    std::uint8_t* data_end = mesh_.parts_.data();
    for (Receiving& receiving : receives_) {
      if (receiving.take == nullptr) continue;
      receiving.data = data_end;
      data_end += kPart;
    }
  }

  // Queues the transfer after the previous one of the same stream.
  template <class List>
  static void add_to_stream(Transfer& transfer, const List& list, std::int32_t rank,
                            std::uint32_t stream) {
    transfer.rank = rank;
    transfer.stream = stream;
    for (std::size_t i = list.size(); i > 0 && transfer.before < 0; --i) {
      const Transfer& other = list[i - 1];
      if (other.rank == rank && other.stream == stream) {
        transfer.before = static_cast<std::ptrdiff_t>(i - 1);
      }
    }
  }

  template <class List>
  static bool is_next(const List& list, const Transfer& transfer) {
    if (transfer.is_done()) return false;
    return transfer.before < 0 || list[static_cast<std::size_t>(transfer.before)].is_done();
  }

  Stream& stream_of(const Transfer& transfer) const {
    return mesh_.find_stream(transfer.rank, transfer.stream);
  }

  bool advance_sends(bool& has_moved) {
    for (Sending& sending : sends_) {
      if (is_next(sends_, sending) && !advance_send(sending, has_moved)) return false;
    }
    return true;
  }

  bool advance_send(Sending& sending, bool& has_moved) {
    const Stream& stream = stream_of(sending);
    if (stream.socket < 0) return true;
    iovec parts[2];
    std::size_t count = 0;
    std::size_t data_sent = 0;
    if (sending.moved < sizeof(Header)) {
      parts[count++] = {reinterpret_cast<char*>(&sending.header) + sending.moved,
                        sizeof(Header) - sending.moved};
    } else {
      data_sent = sending.moved - sizeof(Header);
    }
    const std::size_t data_left = sending.bytes - data_sent;
    if (data_left > 0) {
      parts[count++] = {sending.data + data_sent, std::min(data_left, stream.chunk_bytes)};
    }
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(stream.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EINTR) return true;
      return mesh_.fail(mesh_.connection_failure(sending.rank, call_, "its connection broke"));
    }
    has_moved = true;
    sending.moved += static_cast<std::size_t>(sent);
    if (sending.is_done()) --left_;
    return true;
  }

  bool advance_receives(bool& has_moved) {
    for (Receiving& receiving : receives_) {
      if (is_next(receives_, receiving) && !advance_receive(receiving, has_moved)) return false;
    }
    return true;
  }

  bool advance_receive(Receiving& receiving, bool& has_moved) {
    const Stream& stream = stream_of(receiving);
    if (stream.socket < 0) return true;
    // Read only the header: it is compared before any byte of data is written to the caller's
    // memory.
    const bool in_header = receiving.moved < sizeof(Header);
    std::size_t wanted = std::min(receiving.end() - receiving.moved, stream.chunk_bytes);
    std::uint8_t* to = nullptr;
    if (in_header) {
      to = reinterpret_cast<std::uint8_t*>(&receiving.header) + receiving.moved;
      wanted = sizeof(Header) - receiving.moved;
    } else if (receiving.take != nullptr) {
      to = receiving.data + receiving.held();
      wanted = std::min(wanted, kPart - receiving.held());
    } else {
      to = receiving.data + (receiving.moved - sizeof(Header));
    }
    const ssize_t got = recv(stream.socket, to, wanted, MSG_DONTWAIT);
    if (got == 0)
      return mesh_.fail(
          mesh_.connection_failure(receiving.rank, call_, "it closed the connection"));
    if (got < 0) {
      if (errno == EAGAIN || errno == EINTR) return true;
      return mesh_.fail(mesh_.connection_failure(receiving.rank, call_, "its connection broke"));
    }
    has_moved = true;
    receiving.moved += static_cast<std::size_t>(got);
    if (in_header) {
      if (receiving.moved < sizeof(Header)) return true;
      if (!check(receiving)) return false;
      if (!receiving.is_done()) return advance_receive(receiving, has_moved);
    }
    if (receiving.take != nullptr) pass_on(receiving);
    if (receiving.is_done()) --left_;
    return true;
  }

  static void pass_on(Receiving& receiving) {
    constexpr std::size_t kLine = 64;
    const std::size_t held = receiving.held();
    const std::size_t part = receiving.is_done() ? held : held / kLine * kLine;
    if (part == 0 || (!receiving.is_done() && part < kMinPartBytes)) return;
    const std::size_t begin = receiving.begin + receiving.taken;
    (*receiving.take)(begin, begin + part, receiving.data);
    receiving.taken += part;
    std::memmove(receiving.data, receiving.data + part, held - part);
  }

  bool check(const Receiving& receiving) {
    const Header& peer_header = receiving.header;
    if (peer_header.magic == kHeaderMagic && peer_header.sequence == call_.sequence &&
        peer_header.step == receiving.step && peer_header.fingerprint[0] == fingerprint_.words[0] &&
        peer_header.fingerprint[1] == fingerprint_.words[1] &&
        peer_header.bytes == receiving.whole) {
      return true;
    }
    const Fingerprint fingerprint = {{peer_header.fingerprint[0], peer_header.fingerprint[1]}};
    if (peer_header.magic != kHeaderMagic || !is_possible(fingerprint)) {
      return mesh_.fail(mesh_.connection_failure(receiving.rank, call_, "it sent invalid data"));
    }
    const OperationShape shape = shape_of(fingerprint);
    std::string sizes;
    if (peer_header.bytes != receiving.whole && peer_header.sequence == call_.sequence) {
      sizes = ", with " + std::to_string(peer_header.bytes) +
              " bytes for this rank, which expects " + std::to_string(receiving.whole);
    }
    return mesh_.fail(
        mesh_.difference(receiving.rank, call_, {peer_header.sequence, shape, sizes}));
  }

  // Waits when nothing moves: retries for a short time, then sleeps until a socket is ready.
  bool wait() {
    const auto now = steady_now();
    if (!idle_since_) idle_since_ = now;
    if (now - *idle_since_ < mesh_.options_.spin) return true;
    std::vector<pollfd> sockets = {{mesh_.interruption_.get(), POLLIN, 0},
                                   {mesh_.event_.get(), POLLIN, 0}};
    std::int32_t incomplete = -1;  // A rank whose streams are not all connected, or -1.
    const auto add = [&](const Transfer& transfer, short events) {
      const int socket = stream_of(transfer).socket;
      if (socket < 0) {
        incomplete = transfer.rank;
      } else {
        sockets.push_back({socket, events, 0});
      }
    };
    for (const Sending& sending : sends_) {
      if (is_next(sends_, sending)) add(sending, POLLOUT);
    }
    for (const Receiving& receiving : receives_) {
      if (is_next(receives_, receiving)) add(receiving, POLLIN);
    }
    const milliseconds slice = incomplete >= 0 ? kMissingSlice : kPollSlice;
    if (poll(sockets.data(), sockets.size(), static_cast<int>(slice.count())) > 0) {
      if (sockets[0].revents != 0) return false;
      if (sockets[1].revents == 0) return true;
      std::uint64_t woken = 0;
      static_cast<void>(!read(mesh_.event_.get(), &woken, sizeof woken));
    }
    return may_wait_for_streams_of(incomplete) && may_continue();
  }

  // If a peer dies before it has dialled all streams, none of the missing ones can break, so check
  // its first stream.
  bool may_wait_for_streams_of(std::int32_t rank) {
    if (rank < 0 || !has_hung_up(mesh_.connection(rank).streams[0].socket)) return true;
    if (!hung_up_at_) hung_up_at_ = steady_now();
    if (steady_now() - *hung_up_at_ < kMissingTime) return true;
    return mesh_.fail(mesh_.connection_failure(rank, call_, "it closed the connection"));
  }

  bool may_continue() {
    if (group_ != nullptr && group_->failure()) return false;
    std::int32_t waited_for = -1;
    for (const Receiving& receiving : receives_) {
      if (!receiving.is_done()) waited_for = receiving.rank;
    }
    for (const Sending& sending : sends_) {
      if (!sending.is_done() && waited_for < 0) waited_for = sending.rank;
    }
    if (mesh_.detector_ != nullptr && mesh_.detector_->check(waited_for)) {
      // A rank may die as soon as its own part is done, so first take the data that has arrived.
      bool has_moved = false;
      if (!advance_sends(has_moved) || !advance_receives(has_moved)) return false;
      return has_moved ||
             mesh_.fail(mesh_.connection_failure(waited_for, call_, "it is no longer reachable"));
    }
    return !mesh_.is_other_operation(call_) && mesh_.may_wait_on(waited_for, call_);
  }

  TcpMesh& mesh_;
  const OperationCall& call_;
  const SharedGroup* const group_;
  const Fingerprint fingerprint_;
  std::vector<Sending> sends_;
  std::vector<Receiving> receives_;
  std::size_t left_ = 0;
  std::optional<steady_clock::time_point> idle_since_;
  std::optional<steady_clock::time_point> hung_up_at_;
};

bool TcpMesh::exchange(const OperationCall& call, std::span<const Outgoing> outgoing,
                       std::span<const Incoming> incoming, const SharedGroup* group) {
  if (failure_) return false;
  return Exchange(*this, call, group).run(outgoing, incoming);
}

}  // namespace ivy::comm
