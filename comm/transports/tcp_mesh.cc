#include "comm/transports/tcp_mesh.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/alarms.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr std::uint32_t kHeaderMagic = 0x4d797649;  // "IvyM"
// How long a wait sleeps before it looks around.
constexpr milliseconds kSleepSlice{50};
constexpr milliseconds kVerdictTime{300};
constexpr milliseconds kOwnHostTime{20};
constexpr milliseconds kVerdictStep{2};
// A connection that is awaited does not ring: whether there are news is asked so often.
constexpr milliseconds kTakeSlice{5};
constexpr milliseconds kDialTime{10'000};
constexpr milliseconds kProbePause{300};
constexpr milliseconds kComparePause{200};
// What one call to the kernel moves at most, so that sending and receiving take turns.
constexpr std::size_t kBiteBytes = std::size_t{1} << 20;

struct Header {
  std::uint32_t magic = kHeaderMagic;
  std::uint32_t step = 0;
  std::uint64_t sequence = 0;
  std::uint64_t fingerprint[2] = {0, 0};
  std::uint64_t bytes = 0;
};
static_assert(sizeof(Header) == 40);

}  // namespace

struct TcpMesh::Connection {
  explicit Connection(int socket_in) : socket(socket_in) {}
  ~Connection() { close(socket); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  int socket;
};

TcpMesh::TcpMesh(PeerListener& listener, TcpMeshOptions options, Alarm* alarm)
    : listener_(listener),
      options_(std::move(options)),
      alarm_(alarm),
      interruption_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  connections_.resize(options_.peers.size());
}

TcpMesh::~TcpMesh() {
  hang_up();
  listener_.forget(options_.communicator);
  close(interruption_);
  close(bell_);
}

void TcpMesh::interrupt() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(interruption_, &one, sizeof one));
}

void TcpMesh::hang_up() {
  for (std::unique_ptr<Connection>& connection : connections_) connection.reset();
}

TcpMesh::Connection* TcpMesh::connection(std::int32_t rank) {
  return connections_[static_cast<std::size_t>(rank)].get();
}

bool TcpMesh::fail(const Failure& failure) {
  if (!failure_) failure_ = failure;
  return false;
}

// Called by waits that have lasted a while; breaks the mesh if so.
bool TcpMesh::is_other_operation(const OperationCall& call) {
  const auto now = steady_clock::now();
  if (compared_sequence_ != call.sequence) {
    compared_sequence_ = call.sequence;
    compared_at_ = now;
  }
  if (!options_.compare || now - compared_at_ < kComparePause) return false;
  compared_at_ = now;
  const std::optional<Failure> different = options_.compare();
  if (different) fail(*different);
  return different.has_value();
}

Failure TcpMesh::lost(std::int32_t rank, const OperationCall& call, const std::string& why) {
  const TcpPeer& peer = options_.peers[static_cast<std::size_t>(rank)];
  const std::string during = " during " + describe(call.shape) + ", operation " +
                             std::to_string(call.sequence) + " of communicator " +
                             options_.communicator;
  // The supervisors' verdict comes a moment after the socket's. Without them only the deaths of
  // this host's own ranks can be known; who hung up first is agreed on by the communicator.
  const bool has_verdicts = alarm_ != nullptr && alarm_->word() != nullptr;
  const auto end = steady_clock::now() + (has_verdicts ? kVerdictTime : kOwnHostTime);
  Failure failure;
  bool is_first = true;
  while (alarm_ != nullptr && !failure.is_set() && steady_clock::now() < end) {
    const std::optional<Failure> known = is_first ? alarm_->look_closely() : alarm_->look();
    is_first = false;
    if (known) {
      failure = *known;
      set_text(failure, std::string(known->text) + (known->sequence == 0 ? during : ""));
    } else {
      poll(nullptr, 0, static_cast<int>(kVerdictStep.count()));
    }
  }
  // It may have gone after another operation than this one, and said so before.
  const std::optional<Failure> different =
      !failure.is_set() && options_.compare ? options_.compare() : std::nullopt;
  if (different) return *different;
  if (!failure.is_set()) {
    failure =
        make_failure(FailureKind::kTransport,
                     name_of_rank(peer.world_rank, peer.host, peer.pid) + ": " + why + during);
    failure.rank = peer.world_rank;
    failure.pid = peer.pid;
    set_host(failure, peer.host);
  }
  failure.sequence = call.sequence;
  set_operation(failure, comm_status::name_of(call.shape.operation));
  return failure;
}

bool TcpMesh::connect(std::int32_t rank, const OperationCall& call, const SharedGroup* group) {
  std::unique_ptr<Connection>& place = connections_[static_cast<std::size_t>(rank)];
  if (place != nullptr) return true;
  const TcpPeer& peer = options_.peers[static_cast<std::size_t>(rank)];
  PeerChannel channel;
  channel.communicator = options_.communicator;
  channel.peer_rank = static_cast<std::uint32_t>(peer.world_rank);
  if (options_.self < rank) {
    // A peer that is stopped accepts, by its kernel, and greets nobody: that is its operation's
    // timeout, and not the connection's.
    const Result<int> socket = listener_.dial(peer.address, channel, kDialTime, [&] {
      return (group == nullptr || !group->is_broken()) && !is_interrupted() &&
             (alarm_ == nullptr || !alarm_->look(rank)) && may_wait_on(rank, call);
    });
    if (failure_ || is_interrupted() || (group != nullptr && group->is_broken())) {
      if (socket.ok()) close(*socket);
      return false;
    }
    if (!socket.ok()) return fail(lost(rank, call, socket.error().message));
    place = std::make_unique<Connection>(*socket);
    return true;
  }
  auto probe_at = steady_clock::now() + kProbePause;
  while (true) {
    const int socket = listener_.take(channel, kTakeSlice);
    if (socket >= 0) {
      place = std::make_unique<Connection>(socket);
      return true;
    }
    if (group != nullptr && group->failure()) return false;
    const std::optional<Failure> known = alarm_ != nullptr ? alarm_->look(rank) : std::nullopt;
    if (known) return fail(lost(rank, call, "did not connect"));
    if (is_interrupted()) return false;
    if (is_other_operation(call)) return false;
    // A rank that died before it dialled has no connection that could break.
    if (steady_clock::now() >= probe_at) {
      if (!PeerListener::is_there(peer.address)) return fail(lost(rank, call, "it is gone"));
      probe_at = steady_clock::now() + kProbePause;
    }
    if (!may_wait_on(rank, call)) return false;
  }
}

bool TcpMesh::is_interrupted() const {
  pollfd interruption = {interruption_, POLLIN, 0};
  return poll(&interruption, 1, 0) > 0;
}

// A wait for that rank lasts: others are told, and when its time is over the one to blame is named.
bool TcpMesh::may_wait_on(std::int32_t rank, const OperationCall& call) {
  LongWait wait;
  wait.sequence = call.sequence;
  wait.waited = steady_clock::now() - call.deadline.since();
  wait.waits_for = rank;
  if (call.deadline.left() > nanoseconds::zero()) {
    if (options_.watch != nullptr) options_.watch->waits(wait);
    return true;
  }
  std::optional<Suspicion> suspicion;
  if (options_.watch != nullptr) suspicion = options_.watch->time_is_over(wait);
  const std::int32_t blamed = suspicion ? suspicion->rank : rank;
  const TcpPeer& peer = options_.peers[static_cast<std::size_t>(blamed)];
  const std::string name = name_of_rank(peer.world_rank, peer.host, peer.pid);
  const auto waited = std::chrono::duration_cast<milliseconds>(wait.waited).count() / 100;
  Failure failure = make_failure(
      FailureKind::kTimeout,
      describe(call.shape) + ", operation " + std::to_string(call.sequence) + " of communicator " +
          options_.communicator + ": no progress for " + std::to_string(waited / 10) + "." +
          std::to_string(waited % 10) + " s; " +
          (suspicion ? "waiting for " + name + ": " + suspicion->because : "waiting for " + name));
  failure.rank = peer.world_rank;
  failure.pid = peer.pid;
  failure.sequence = call.sequence;
  set_host(failure, peer.host);
  set_operation(failure, comm_status::name_of(call.shape.operation));
  return fail(failure);
}

// `theirs` is what that rank has as operation `theirs_at` of the communicator. Shows the same
// operation's two sides wherever both can be known.
Failure TcpMesh::difference(std::int32_t rank, const OperationCall& call, std::uint64_t theirs_at,
                            const OperationShape& theirs, const std::string& sizes) {
  std::uint64_t number = call.sequence;
  OperationShape ours = call.shape;
  OperationShape shown = theirs;
  std::string more = sizes;
  const EnteredOperations* const own = options_.entered;
  if (theirs_at < call.sequence && own != nullptr && own->has(theirs_at)) {
    // It stood unread in the connection since an operation that did not need it here.
    number = theirs_at;
    ours = own->shape(theirs_at);
  } else if (theirs_at > call.sequence || theirs.operation == Operation::kFinalize) {
    const std::optional<EnteredOperations> other =
        options_.watch != nullptr ? options_.watch->ask_for(rank, call.sequence) : std::nullopt;
    const std::optional<std::uint64_t> first =
        other && own != nullptr ? first_difference(*own, *other) : std::nullopt;
    if (first) {
      number = *first;
      ours = own->shape(number);
      shown = other->shape(number);
    } else if (theirs_at != call.sequence) {
      more = " as operation " + std::to_string(theirs_at) + more;
    }
  }
  const TcpPeer& peer = options_.peers[static_cast<std::size_t>(rank)];
  Failure failure = make_failure(
      FailureKind::kMismatch, "operation " + std::to_string(number) + " of communicator " +
                                  options_.communicator + " differs between ranks: rank " +
                                  std::to_string(options_.self) + " calls " +
                                  describe_beside(ours, shown) + ", rank " + std::to_string(rank) +
                                  " calls " + describe_beside(shown, ours) + more);
  failure.rank = peer.world_rank;
  failure.sequence = number;
  set_host(failure, peer.host);
  set_operation(failure, comm_status::name_of(ours.operation));
  return failure;
}

// ---- One exchange ------------------------------------------------------------------------------

class TcpMesh::Exchange {
 public:
  Exchange(TcpMesh& mesh, const OperationCall& call, const SharedGroup* group)
      : mesh_(mesh), call_(call), group_(group) {}

  bool run(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    for (const Outgoing& message : outgoing) sends_.push_back(send_of(message));
    for (const Incoming& message : incoming) receives_.push_back(receive_of(message));
    if (!connect_all()) return false;
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
  struct Sending {
    std::int32_t rank = 0;
    Header header;
    const std::uint8_t* data = nullptr;
    std::size_t sent = 0;  // Of header and data together.
    bool is_done = false;
  };
  struct Receiving {
    std::int32_t rank = 0;
    Header header;
    std::uint8_t* data = nullptr;
    std::size_t bytes = 0;
    std::uint32_t step = 0;
    std::size_t received = 0;  // Of header and data together.
    bool is_done = false;
  };

  Sending send_of(const Outgoing& message) const {
    Sending sending;
    sending.rank = message.to;
    const Fingerprint fingerprint = fingerprint_of(call_.shape);
    sending.header.step = message.step;
    sending.header.sequence = call_.sequence;
    sending.header.fingerprint[0] = fingerprint.words[0];
    sending.header.fingerprint[1] = fingerprint.words[1];
    sending.header.bytes = message.bytes;
    sending.data = static_cast<const std::uint8_t*>(message.data);
    return sending;
  }
  static Receiving receive_of(const Incoming& message) {
    Receiving receiving;
    receiving.rank = message.from;
    receiving.data = static_cast<std::uint8_t*>(message.data);
    receiving.bytes = message.bytes;
    receiving.step = message.step;
    return receiving;
  }

  // Those that this rank dials first: they need nobody's help.
  bool connect_all() {
    for (const bool is_dialler : {true, false}) {
      const auto connect = [&](std::int32_t rank) {
        return (mesh_.options_.self < rank) != is_dialler || mesh_.connect(rank, call_, group_);
      };
      for (const Sending& sending : sends_) {
        if (!connect(sending.rank)) return false;
      }
      for (const Receiving& receiving : receives_) {
        if (!connect(receiving.rank)) return false;
      }
    }
    return true;
  }

  // An earlier unfinished message of the same pair goes first.
  template <class List>
  static bool is_next(const List& list, std::size_t index) {
    for (std::size_t i = 0; i < index; ++i) {
      if (!list[i].is_done && list[i].rank == list[index].rank) return false;
    }
    return true;
  }

  bool advance_sends(bool& has_moved) {
    for (std::size_t i = 0; i < sends_.size(); ++i) {
      Sending& sending = sends_[i];
      if (sending.is_done || !is_next(sends_, i)) continue;
      iovec parts[2];
      std::size_t count = 0;
      std::size_t data_sent = 0;
      if (sending.sent < sizeof(Header)) {
        parts[count++] = {reinterpret_cast<char*>(&sending.header) + sending.sent,
                          sizeof(Header) - sending.sent};
      } else {
        data_sent = sending.sent - sizeof(Header);
      }
      const std::size_t data_left = sending.header.bytes - data_sent;
      if (data_left > 0) {
        parts[count++] = {const_cast<std::uint8_t*>(sending.data) + data_sent,
                          std::min(data_left, kBiteBytes)};
      }
      msghdr message = {};
      message.msg_iov = parts;
      message.msg_iovlen = count;
      const ssize_t sent =
          sendmsg(mesh_.connection(sending.rank)->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) {
        if (errno == EAGAIN || errno == EINTR) continue;
        return mesh_.fail(mesh_.lost(sending.rank, call_, "its connection broke"));
      }
      has_moved = true;
      sending.sent += static_cast<std::size_t>(sent);
      if (sending.sent == sizeof(Header) + sending.header.bytes) {
        sending.is_done = true;
        --left_;
      }
    }
    return true;
  }

  bool advance_receives(bool& has_moved) {
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      Receiving& receiving = receives_[i];
      if (receiving.is_done || !is_next(receives_, i)) continue;
      if (!advance_receive(receiving, has_moved)) return false;
    }
    return true;
  }

  bool advance_receive(Receiving& receiving, bool& has_moved) {
    // The header is read by itself: nothing of the data is touched before it has been compared.
    const bool in_header = receiving.received < sizeof(Header);
    std::uint8_t* const to =
        in_header ? reinterpret_cast<std::uint8_t*>(&receiving.header) + receiving.received
                  : receiving.data + (receiving.received - sizeof(Header));
    const std::size_t end = in_header ? sizeof(Header) : sizeof(Header) + receiving.bytes;
    const std::size_t bite = std::min(end - receiving.received, kBiteBytes);
    if (bite > 0) {
      const ssize_t got = recv(mesh_.connection(receiving.rank)->socket, to, bite, MSG_DONTWAIT);
      if (got == 0) return mesh_.fail(mesh_.lost(receiving.rank, call_, "it hung up"));
      if (got < 0) {
        if (errno == EAGAIN || errno == EINTR) return true;
        return mesh_.fail(mesh_.lost(receiving.rank, call_, "its connection broke"));
      }
      has_moved = true;
      receiving.received += static_cast<std::size_t>(got);
      if (in_header && receiving.received == sizeof(Header) && !check(receiving)) return false;
    }
    if (receiving.received == sizeof(Header) + receiving.bytes) {
      receiving.is_done = true;
      --left_;
    } else if (in_header && receiving.received == sizeof(Header)) {
      return advance_receive(receiving, has_moved);
    }
    return true;
  }

  bool check(const Receiving& receiving) {
    const Fingerprint ours = fingerprint_of(call_.shape);
    const Header& theirs = receiving.header;
    if (theirs.magic == kHeaderMagic && theirs.sequence == call_.sequence &&
        theirs.step == receiving.step && theirs.fingerprint[0] == ours.words[0] &&
        theirs.fingerprint[1] == ours.words[1] && theirs.bytes == receiving.bytes) {
      return true;
    }
    if (theirs.magic != kHeaderMagic) {
      return mesh_.fail(mesh_.lost(receiving.rank, call_, "sent something that is no message"));
    }
    const OperationShape shape =
        shape_of(Fingerprint{{theirs.fingerprint[0], theirs.fingerprint[1]}});
    std::string sizes;
    if (theirs.bytes != receiving.bytes && theirs.sequence == call_.sequence) {
      sizes = ", with " + std::to_string(theirs.bytes) + " bytes for this rank, which expects " +
              std::to_string(receiving.bytes);
    }
    return mesh_.fail(mesh_.difference(receiving.rank, call_, theirs.sequence, shape, sizes));
  }

  // Nothing moves: a short time of trying on, then sleep until a socket is ready.
  bool wait() {
    const auto now = steady_clock::now();
    if (!idle_since_) idle_since_ = now;
    if (now - *idle_since_ < mesh_.options_.spin) return true;
    std::vector<pollfd> sockets = {{mesh_.interruption_, POLLIN, 0}, {mesh_.bell_, POLLIN, 0}};
    for (std::size_t i = 0; i < sends_.size(); ++i) {
      if (sends_[i].is_done || !is_next(sends_, i)) continue;
      sockets.push_back({mesh_.connection(sends_[i].rank)->socket, POLLOUT, 0});
    }
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      if (receives_[i].is_done || !is_next(receives_, i)) continue;
      sockets.push_back({mesh_.connection(receives_[i].rank)->socket, POLLIN, 0});
    }
    if (poll(sockets.data(), sockets.size(), static_cast<int>(kSleepSlice.count())) > 0) {
      if (sockets[0].revents != 0) return false;
      if (sockets[1].revents == 0) return true;
      std::uint64_t rung = 0;
      static_cast<void>(!read(mesh_.bell_, &rung, sizeof rung));
    }
    return may_go_on();
  }

  bool may_go_on() {
    if (group_ != nullptr && group_->failure()) return false;
    std::int32_t waited_for = -1;
    for (const Receiving& receiving : receives_) {
      if (!receiving.is_done) waited_for = receiving.rank;
    }
    for (const Sending& sending : sends_) {
      if (!sending.is_done && waited_for < 0) waited_for = sending.rank;
    }
    if (mesh_.alarm_ != nullptr && mesh_.alarm_->look(waited_for)) {
      return mesh_.fail(mesh_.lost(waited_for, call_, "is gone"));
    }
    return !mesh_.is_other_operation(call_) && mesh_.may_wait_on(waited_for, call_);
  }

  TcpMesh& mesh_;
  const OperationCall& call_;
  const SharedGroup* const group_;
  std::vector<Sending> sends_;
  std::vector<Receiving> receives_;
  std::size_t left_ = 0;
  std::optional<steady_clock::time_point> idle_since_;
};

bool TcpMesh::exchange(const OperationCall& call, std::span<const Outgoing> outgoing,
                       std::span<const Incoming> incoming, const SharedGroup* group) {
  if (failure_) return false;
  return Exchange(*this, call, group).run(outgoing, incoming);
}

}  // namespace ivy::comm
