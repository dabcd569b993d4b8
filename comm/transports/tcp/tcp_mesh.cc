// SPDX-License-Identifier: Apache-2.0
// Connections and failures. The movement of bytes over them is in tcp_exchange.cc. A rank calls
// connect() before its first exchange with another: the lower rank dials (dial()), the other waits
// (await_dialler()). may_wait_on() is checked throughout every wait; it compares the ranks'
// operations (is_other_operation()) and names the rank to blame at the deadline.
#include "comm/transports/tcp/tcp_mesh.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "comm/transports/liveness/failure_detectors.h"
#include "comm/transports/tcp/tcp_streams.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/not_inherited.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr milliseconds kOwnHostTime{20};
// An arriving connection does not wake a wait, so the detector is checked at this interval.
constexpr milliseconds kTakeSlice{5};
// Limits of the pause between two comparisons through the store.
constexpr milliseconds kComparePauseMin{200};
constexpr milliseconds kComparePauseMax{5'000};

}  // namespace

TcpMesh::Connection::~Connection() {
  for (const Stream& stream : streams) {
    if (stream.socket >= 0) not_inherited::close(stream.socket);
  }
}

TcpMesh::TcpMesh(PeerConnections& peer_connections, TcpMeshOptions options,
                 FailureDetector* detector)
    : peer_connections_(peer_connections),
      options_(std::move(options)),
      detector_(detector),
      interruption_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  connections_.resize(options_.peers.size());
}

TcpMesh::~TcpMesh() {
  hang_up();
  peer_connections_.forget(options_.communicator);
}

void TcpMesh::interrupt() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(interruption_.get(), &one, sizeof one));
}

void TcpMesh::hang_up() {
  for (std::unique_ptr<Connection>& connection : connections_) connection.reset();
}

bool TcpMesh::fail(const Failure& failure) {
  if (!failure_) failure_ = failure;
  return false;
}

// Returns whether another rank is in a different operation, and then breaks the mesh. Called by
// long waits.
bool TcpMesh::is_other_operation(const OperationCall& call) {
  const auto now = steady_now();
  if (compared_sequence_ != call.sequence) {
    compared_sequence_ = call.sequence;
    compared_at_ = now;
    compare_pause_ = kComparePauseMin;
  }
  if (options_.comparer == nullptr || now - compared_at_ < compare_pause_) return false;
  compared_at_ = now;
  // The comparison also stores this rank's operations, so that later ranks can compare with them.
  const milliseconds pause =
      std::exchange(compare_pause_, std::min(2 * compare_pause_, kComparePauseMax));
  if (!options_.comparer->may_compare(call.sequence, pause)) return false;
  const MaybeFailure different = options_.comparer->compare();
  if (different) fail(*different);
  return different.has_value();
}

Failure TcpMesh::connection_failure(std::int32_t rank, const OperationCall& call,
                                    const std::string& why) {
  const TcpPeer& peer = options_.peers[static_cast<std::size_t>(rank)];
  const std::string during = " during " + describe(call.shape) + ", operation " +
                             std::to_string(call.sequence) + " of communicator " +
                             options_.communicator;
  // Supervisors report a death shortly after the socket closes. Without supervisors, only deaths on
  // this host are known; the communicator agrees on the rank that failed first.
  const bool has_verdicts = detector_ != nullptr && detector_->wake_word() != nullptr;
  const auto end = steady_now() + (has_verdicts ? FailureDetector::kVerdictTime : kOwnHostTime);
  Failure failure;
  bool is_first = true;
  while (detector_ != nullptr && !failure.is_set() && steady_now() < end) {
    const MaybeFailure known =
        is_first ? detector_->check_now(FailureDetector::kAnyRank) : detector_->check();
    is_first = false;
    if (known) {
      failure = *known;
      set_text(failure, std::string(known->text) + (known->sequence == 0 ? during : ""));
    } else {
      poll(nullptr, 0, static_cast<int>(FailureDetector::kVerdictStep.count()));
    }
  }
  // The peer may have failed in a different operation than this one, and stored that before.
  const MaybeFailure different = !failure.is_set() && options_.comparer != nullptr
                                     ? options_.comparer->compare()
                                     : std::nullopt;
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

PeerChannel TcpMesh::channel(std::int32_t rank, std::uint32_t stream) const {
  PeerChannel channel;
  channel.communicator = options_.communicator;
  channel.peer_rank =
      static_cast<std::uint32_t>(options_.peers[static_cast<std::size_t>(rank)].world_rank);
  channel.stream = stream;
  return channel;
}

void TcpMesh::keep(std::int32_t rank, std::uint32_t stream, const PeerSocket& found) {
  std::unique_ptr<Connection>& slot = connections_[static_cast<std::size_t>(rank)];
  if (slot == nullptr) slot = std::make_unique<Connection>(found.streams);
  slot->streams[stream] = {found.socket, chunk_bytes_of(found.socket)};
}

TcpMesh::Stream& TcpMesh::find_stream(std::int32_t rank, std::uint32_t stream) {
  Stream& wanted = connection(rank).streams[stream];
  if (wanted.socket < 0) {
    const PeerSocket found = peer_connections_.take(channel(rank, stream), milliseconds(0));
    if (found.socket >= 0) keep(rank, stream, found);
  }
  return wanted;
}

bool TcpMesh::dial(std::int32_t rank, std::uint32_t stream, const OperationCall& call,
                   const SharedGroup* group) {
  const TcpPeer& peer = options_.peers[static_cast<std::size_t>(rank)];
  const std::uint32_t streams =
      options_.streams != 0
          ? options_.streams
          : default_stream_count(peer_connections_.is_near(peer.address), options_.peers.size());
  // A stopped peer does not complete the handshake. The operation's timeout limits that, not the
  // connection's.
  const Result<PeerSocket> dialled =
      peer_connections_.dial(peer.address, channel(rank, stream), streams, kUntilCancelled, [&] {
        return (group == nullptr || !group->is_broken()) && !is_interrupted() &&
               (detector_ == nullptr || !detector_->check(rank)) && may_wait_on(rank, call);
      });
  if (failure_ || is_interrupted() || (group != nullptr && group->is_broken())) {
    if (dialled.ok()) not_inherited::close(dialled->socket);
    return false;
  }
  if (!dialled.ok()) return fail(connection_failure(rank, call, dialled.error().message));
  keep(rank, stream, *dialled);
  return true;
}

// Opens the first stream to that rank, if there is none yet.
bool TcpMesh::connect(std::int32_t rank, const OperationCall& call, const SharedGroup* group) {
  if (connections_[static_cast<std::size_t>(rank)] != nullptr) return true;
  return options_.self < rank ? dial(rank, 0, call, group) : await_dialler(rank, call, group);
}

bool TcpMesh::await_dialler(std::int32_t rank, const OperationCall& call,
                            const SharedGroup* group) {
  const TcpPeer& peer = options_.peers[static_cast<std::size_t>(rank)];
  auto probe_at = steady_now() + PeerConnections::kProbePause;
  while (true) {
    const MaybeFailure known = detector_ != nullptr ? detector_->check(rank) : std::nullopt;
    // Done after the check, because a rank may die as soon as it has sent its part, and its
    // connection is valid.
    const PeerSocket found = peer_connections_.take(channel(rank, 0), kTakeSlice);
    if (found.socket >= 0) {
      keep(rank, 0, found);
      return true;
    }
    if (group != nullptr && group->failure()) return false;
    if (known) return fail(connection_failure(rank, call, "it did not connect"));
    if (is_interrupted()) return false;
    if (is_other_operation(call)) return false;
    // A rank that died before it dialled has no connection that could break, so probe its listener.
    if (steady_now() >= probe_at) {
      if (!peer_connections_.is_peer_listening(peer.address))
        return fail(connection_failure(rank, call, "it is no longer reachable"));
      probe_at = steady_now() + PeerConnections::kProbePause;
    }
    if (!may_wait_on(rank, call)) return false;
  }
}

bool TcpMesh::is_interrupted() const {
  pollfd interruption = {interruption_.get(), POLLIN, 0};
  return poll(&interruption, 1, 0) > 0;
}

// Called repeatedly during a wait for that rank. Reports the wait, and names the rank to blame when
// it times out.
bool TcpMesh::may_wait_on(std::int32_t rank, const OperationCall& call) {
  LongWait wait;
  wait.sequence = call.sequence;
  wait.waited = call.deadline.waited();
  wait.waits_for = rank;
  if (call.deadline.left() > nanoseconds::zero()) {
    if (options_.watch != nullptr) options_.watch->waits(wait);
    return true;
  }
  std::optional<Suspicion> suspicion;
  if (options_.watch != nullptr) suspicion = options_.watch->timed_out(wait);
  const std::int32_t blamed = suspicion ? suspicion->rank : rank;
  const TcpPeer& peer = options_.peers[static_cast<std::size_t>(blamed)];
  const std::string name = name_of_rank(peer.world_rank, peer.host, peer.pid);
  Failure failure = make_failure(
      FailureKind::kTimeout,
      describe(call.shape) + ", operation " + std::to_string(call.sequence) + " of communicator " +
          options_.communicator + ": timed out: no progress for " +
          tenths_text(wait.waited.count()) + "; " +
          (suspicion ? "waiting for " + name + ": " + suspicion->because : "waiting for " + name));
  failure.rank = peer.world_rank;
  failure.pid = peer.pid;
  failure.sequence = call.sequence;
  set_host(failure, peer.host);
  set_operation(failure, comm_status::name_of(call.shape.operation));
  return fail(failure);
}

// Returns the mismatch. If possible, it shows both sides of the same operation.
Failure TcpMesh::difference(std::int32_t rank, const OperationCall& call,
                            const PeerOperation& peer_operation) {
  std::uint64_t number = call.sequence;
  OperationShape own_shape = call.shape;
  OperationShape peer_shape = peer_operation.shape;
  std::string more = peer_operation.sizes;
  const EnteredOperations* const own = options_.entered;
  if (peer_operation.sequence < call.sequence && own != nullptr &&
      own->has(peer_operation.sequence)) {
    // The header belongs to an earlier operation in which this rank did not need it, so it was
    // never read.
    number = peer_operation.sequence;
    own_shape = own->shape(peer_operation.sequence);
  } else if (peer_operation.sequence > call.sequence ||
             peer_operation.shape.operation == Operation::kFinalize) {
    const std::optional<EnteredOperations> other =
        options_.watch != nullptr ? options_.watch->query_operations(rank, call.sequence)
                                  : std::nullopt;
    const std::optional<std::uint64_t> first =
        other && own != nullptr ? first_difference(*own, *other) : std::nullopt;
    if (first) {
      number = *first;
      own_shape = own->shape(number);
      peer_shape = other->shape(number);
    } else if (peer_operation.sequence != call.sequence) {
      more = " as operation " + std::to_string(peer_operation.sequence) + more;
    }
  }
  const TcpPeer& peer = options_.peers[static_cast<std::size_t>(rank)];
  Failure failure = make_failure(
      FailureKind::kMismatch,
      "operation " + std::to_string(number) + " of communicator " + options_.communicator +
          " differs between ranks: rank " + std::to_string(options_.self) + " calls " +
          describe_against(own_shape, peer_shape) + ", rank " + std::to_string(rank) + " calls " +
          describe_against(peer_shape, own_shape) + more);
  failure.rank = peer.world_rank;
  failure.sequence = number;
  set_host(failure, peer.host);
  set_operation(failure, comm_status::name_of(own_shape.operation));
  return failure;
}

}  // namespace ivy::comm
