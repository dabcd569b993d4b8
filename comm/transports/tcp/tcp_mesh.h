// SPDX-License-Identifier: Apache-2.0
// Bytes between the ranks of different hosts in one communicator: messages over TCP, moved by the
// thread that is in the operation. Connections are made when two ranks first exchange data. The
// lower rank dials, and decides on the number of streams (tcp_streams.h). Further streams are
// opened for the first message that is long enough for them. Each stripe of a message has the
// header of the whole message.
//
// Every message starts with a header that identifies its operation. A receiver compares it before
// any byte of the data is written to its memory. Both sides know from the operation who sends what
// to whom, so there are no tags and no unexpected messages.
//
// clang-format off
//   header   u32 magic | u32 step | u64 sequence | u64 fingerprint[2] | u64 bytes      little endian
// clang-format on
//
// A lost connection is only a hint. For FailureDetector::kVerdictTime the detector is queried for
// the rank that died, so that the failure names the root cause and not the neighbour that hung up
// next.
//
// Functions return false if the mesh is broken; failure() has the reason. Thread: one at a time
// (the communicator's lock).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/transports/liveness/failure_detector.h"
#include "comm/transports/liveness/operation_call.h"
#include "comm/transports/liveness/wait_watch.h"
#include "comm/transports/shm/shared_group.h"
#include "comm/transports/tcp/peer_connections.h"
#include "proto/os/descriptor.h"

namespace ivy::comm {

struct TcpPeer {
  std::int32_t rank = 0;  // The rank in the communicator.
  std::int32_t world_rank = 0;
  std::int32_t pid = 0;
  std::string host;
  // The address of its listener, from the rank's record in the store (world_formation.cc,
  // Membership::tcp_peers()).
  std::string address;
  std::int32_t job_rank = 0;
};

// One message to a rank of the communicator.
struct Outgoing {
  std::int32_t to = 0;
  const void* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t step = 0;  // Number within the operation, as the receiver expects.
};
using TakePart = std::function<void(std::size_t begin, std::size_t end, const std::uint8_t* part)>;
struct Incoming {
  std::int32_t from = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t step = 0;
  // If not null, takes the message part by part instead of `data`, while a part is still in the
  // processor's caches: [begin, end) in bytes of the message, at `part` until it returns. Parts are
  // whole lines of 64 bytes, except for a stripe's last one. The parts of a message with several
  // stripes come in any order.
  const TakePart* take = nullptr;
};

// Compares this rank's operations with those of the ranks on other hosts. Ranks that wait for
// different operations may never send each other a header, so long waits use it occasionally.
// Implemented by AcrossHosts (comm/group), through the job's store.
class OperationComparer {
 public:
  virtual ~OperationComparer() = default;
  // Returns the failure if another rank has entered a different operation with the same number.
  virtual MaybeFailure compare() = 0;
  // Returns whether this rank should compare that operation on behalf of its host: one of the
  // waiting ranks does so once per `pause`.
  virtual bool may_compare(std::uint64_t sequence, std::chrono::nanoseconds pause) = 0;
};

struct TcpMeshOptions {
  std::string communicator;
  std::int32_t self = 0;       // This rank's number in the communicator.
  std::vector<TcpPeer> peers;  // Indexed by rank; entries of this host are never used.
  std::chrono::microseconds spin{50};
  std::uint32_t streams = 0;  // For each rank that this one dials; 0 means the default number.
  // These are null, or must outlive the mesh.
  OperationComparer* comparer = nullptr;
  WaitWatch* watch = nullptr;
  const EnteredOperations* entered = nullptr;  // Operations that this rank has entered.
};

class TcpMesh {
 public:
  // `peer_connections` and `detector` must outlive it.
  TcpMesh(PeerConnections& peer_connections, TcpMeshOptions options, FailureDetector* detector);
  ~TcpMesh();
  TcpMesh(const TcpMesh&) = delete;
  TcpMesh& operator=(const TcpMesh&) = delete;

  // Sends and receives everything, in both directions at the same time, and the messages of one
  // pair in the given order. `group` may be null; it reports failures that other ranks of this host
  // have found.
  bool exchange(const OperationCall& call, std::span<const Outgoing> outgoing,
                std::span<const Incoming> incoming, const SharedGroup* group);

  // Returns why exchange() returned false, or nothing if `group` has the failure or the exchange
  // was interrupted.
  const MaybeFailure& failure() const { return failure_; }
  // Closes all connections, which ends the waits of peers for this rank.
  void hang_up();
  // Makes an exchange in another thread end soon. Callable from any thread.
  void interrupt();
  // Returns an eventfd to write to when the detector has events. It wakes a wait, which then checks
  // the detector.
  int event_descriptor() const { return event_.get(); }

 private:
  // One socket, or -1 if not connected yet.
  struct Stream {
    int socket = -1;
    std::size_t chunk_bytes = 0;
  };
  struct Connection {
    explicit Connection(std::uint32_t count) : streams(count) {}
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;
    std::vector<Stream> streams;
  };
  class Exchange;
  Connection& connection(std::int32_t rank) const {
    return *connections_[static_cast<std::size_t>(rank)];
  }
  bool connect(std::int32_t rank, const OperationCall& call, const SharedGroup* group);
  bool await_dialler(std::int32_t rank, const OperationCall& call, const SharedGroup* group);
  bool dial(std::int32_t rank, std::uint32_t stream, const OperationCall& call,
            const SharedGroup* group);
  PeerChannel channel(std::int32_t rank, std::uint32_t stream) const;
  void keep(std::int32_t rank, std::uint32_t stream, const PeerSocket& found);
  // Returns that stream. If the peer has dialled it and it has arrived, takes it first.
  Stream& find_stream(std::int32_t rank, std::uint32_t stream);
  bool fail(const Failure& failure);
  bool is_other_operation(const OperationCall& call);
  bool is_interrupted() const;
  bool may_wait_on(std::int32_t rank, const OperationCall& call);
  // The operation in a header that another rank sent.
  struct PeerOperation {
    std::uint64_t sequence;
    OperationShape shape;
    std::string sizes;  // Appended to the text if the sizes of a message differ.
  };
  Failure difference(std::int32_t rank, const OperationCall& call,
                     const PeerOperation& peer_operation);
  Failure connection_failure(std::int32_t rank, const OperationCall& call, const std::string& why);

  PeerConnections& peer_connections_;
  const TcpMeshOptions options_;
  FailureDetector* const detector_;
  // Indexed by rank; null if not connected yet.
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<std::uint8_t> parts_;  // Buffer for messages that are taken part by part.
  MaybeFailure failure_;
  std::chrono::steady_clock::time_point compared_at_;
  std::chrono::milliseconds compare_pause_{0};
  std::uint64_t compared_sequence_ = 0;
  const Descriptor interruption_;  // An eventfd that stays readable after interrupt().
  const Descriptor event_;
};

}  // namespace ivy::comm
