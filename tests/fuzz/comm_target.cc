// SPDX-License-Identifier: Apache-2.0
// Bytes that a rank reads from other processes: packets of the supervisor and of workers, greetings
// of other ranks, and the messages on a connection between two ranks.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "comm/group/p2p/point_to_point.h"
#include "comm/transports/shm/shared_layout.h"
#include "comm/transports/tcp/peer_connections.h"
#include "comm/transports/tcp/tcp_mesh.h"
#include "comm/transports/tcp/tcp_streams.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/handshake.h"
#include "tests/fuzz/targets.h"

namespace ivy::fuzz {
namespace {

using namespace ivy::comm;  // The fuzzed code.
using std::chrono::milliseconds;

const std::string kJob(32, '0');
const std::string kToken(32, 't');
constexpr std::size_t kGuard = 64;

PeerCredentials credentials(std::uint32_t rank) {
  PeerCredentials known;
  known.job_id = kJob;
  known.token = kToken;
  known.rank = rank;
  return known;
}

// Rank 1, which is fuzzed, and rank 0, which sends the input.
struct Ranks {
  std::unique_ptr<PeerConnections> fuzzed;
  std::unique_ptr<PeerConnections> other;
};
Ranks make_ranks() {
  return {PeerConnections::listen("127.0.0.1", credentials(1)).value(),
          PeerConnections::listen("127.0.0.1", credentials(0)).value()};
}

PeerChannel channel_of(std::uint32_t peer_rank, std::uint32_t number, std::uint32_t stream = 0) {
  PeerChannel channel;
  channel.communicator = "world";
  channel.peer_rank = peer_rank;
  channel.channel = number;
  channel.stream = stream;
  return channel;
}

int dial_plainly(const std::string& address) {
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(socket, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0) return socket;
  // Not a finding in the rank: without the errno it would look like one.
  std::perror(("connect to " + address).c_str());
  close(socket);
  return -1;
}

void say(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  shutdown(socket, SHUT_WR);
}

std::vector<TcpPeer> peers_of(const Ranks& ranks) {
  std::vector<TcpPeer> peers(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    peers[rank].rank = static_cast<std::int32_t>(rank);
    peers[rank].world_rank = peers[rank].rank;
    peers[rank].host = "host" + std::to_string(rank);
    peers[rank].address = (rank == 0 ? ranks.other : ranks.fuzzed)->address();
  }
  return peers;
}

TcpMeshOptions mesh_options(const Ranks& ranks) {
  TcpMeshOptions options;
  options.communicator = "world";
  options.self = 1;
  options.peers = peers_of(ranks);
  return options;
}

int dial_stream(const Ranks& ranks, const PeerChannel& channel, std::uint32_t streams) {
  return ranks.other
      ->dial(ranks.fuzzed->address(), channel, streams, milliseconds(5000), [] { return true; })
      .value()
      .socket;
}

OperationShape broadcast_of(std::size_t bytes) {
  OperationShape shape;
  shape.operation = Operation::kBroadcast;
  shape.count = bytes;
  shape.root = 0;
  return shape;
}

// Returns the header of a message of this length in operation 7.
std::string header_of(const OperationShape& shape, std::size_t bytes) {
  const Fingerprint fingerprint = fingerprint_of(shape);
  std::string header;
  for (const std::uint64_t word :
       {std::uint64_t{0x4d797649}, std::uint64_t{7}, fingerprint.words[0], fingerprint.words[1],
        std::uint64_t{bytes}}) {
    header.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  return header;
}

// A receiver's memory, with guards that must not change.
struct Guarded {
  std::vector<std::uint8_t> memory;
  explicit Guarded(std::size_t bytes) : memory(bytes + 2 * kGuard, 0xaa) {}
  std::uint8_t* data() { return memory.data() + kGuard; }
  bool is_whole() const {
    const auto is_mark = [](std::uint8_t byte) { return byte == 0xaa; };
    return std::all_of(memory.begin(), memory.begin() + kGuard, is_mark) &&
           std::all_of(memory.end() - kGuard, memory.end(), is_mark);
  }
  bool is_untouched() const {
    return std::all_of(memory.begin(), memory.end(), [](auto byte) { return byte == 0xaa; });
  }
};

}  // namespace

// An accepted packet keeps its meaning when it is encoded again.
void control_wire(std::string_view bytes) {
  const Result<control::Request> request = control::decode_request(bytes);
  if (request.ok()) {
    const Result<control::Request> again = control::decode_request(control::encode(*request));
    IVY_ASSERT(again.ok() && *again == *request);
  }
  const Result<control::Reply> reply = control::decode_reply(bytes);
  if (reply.ok()) {
    const Result<control::Reply> again = control::decode_reply(control::encode(*reply));
    IVY_ASSERT(again.ok() && *again == *reply);
  }
}

// An unauthenticated connection to a rank. The first byte selects how much of a valid greeting is
// sent before the input. Without the token, a peer gets only a challenge, and its connection is
// never accepted.
void peer_greeting(std::string_view bytes) {
  const Ranks ranks = make_ranks();
  Input input(bytes);
  HandshakeHello hello;
  hello.purpose = "peer";
  hello.job_id = kJob;
  hello.nonce = std::string(kNonceBytes, 'n');
  std::string stream = encode_hello(hello).substr(0, input.byte() % (kHelloBytes + 1));
  stream += input.rest();
  const std::string& address = ranks.fuzzed->address();
  const int socket = dial_plainly(address);
  IVY_ASSERT(socket >= 0);
  say(socket, stream);
  std::size_t reported = 0;
  std::array<char, 256> answer;
  for (ssize_t got = 1; got > 0;) {
    got = recv(socket, answer.data(), answer.size(), 0);
    if (got > 0) reported += static_cast<std::size_t>(got);
  }
  close(socket);
  IVY_ASSERT(reported <= kChallengeBytes);
  for (const std::uint32_t rank : {0U, 1U}) {
    IVY_ASSERT(ranks.fuzzed->take(channel_of(rank, 0), milliseconds(0)).socket < 0);
  }
}

// Rank 0 sends arbitrary bytes instead of a collective's message. The first bytes select how much
// of a valid header is sent before the input, and the expected length of the message.
void peer_frames(std::string_view bytes) {
  const Ranks ranks = make_ranks();
  Input input(bytes);
  const std::size_t good = input.byte() % 41U;
  const std::size_t wanted = input.byte();
  const OperationShape shape = broadcast_of(wanted);
  const std::string header = header_of(shape, wanted);
  const std::string printed = header.substr(0, good) + std::string(input.rest());
  TcpMesh mesh(*ranks.fuzzed, mesh_options(ranks), nullptr);
  const int socket = dial_stream(ranks, channel_of(1, 0), 1);
  say(socket, printed);
  Guarded buffer(wanted);
  Deadline deadline(std::chrono::seconds(5));
  const OperationCall call{shape, 7, deadline};
  const Incoming incoming = {0, buffer.data(), wanted, 0};
  const bool is_right = printed.size() >= header.size() && printed.starts_with(header);
  const bool is_ok = mesh.exchange(call, {}, {&incoming, 1}, nullptr);
  IVY_ASSERT(is_ok == (is_right && printed.size() >= header.size() + wanted));
  IVY_ASSERT(is_ok || mesh.failure());
  IVY_ASSERT(buffer.is_whole());
  IVY_ASSERT(is_right || buffer.is_untouched());
  close(socket);
}

// The same on the second of two streams, while the first sends its stripe of the message correctly.
// The first bytes select how much of a valid header is sent before the input, and (if odd) whether
// the rest of the stripe follows.
void peer_stripes(std::string_view bytes) {
  const Ranks ranks = make_ranks();
  Input input(bytes);
  const std::size_t good = input.byte() % 41U;
  const bool is_filled = input.byte() % 2 == 1;
  constexpr std::size_t kWanted = 2 * kMinStripe + 10;
  const Stripe stripes[] = {stripe_of(kWanted, 2, 0), stripe_of(kWanted, 2, 1)};
  const OperationShape shape = broadcast_of(kWanted);
  const std::string header = header_of(shape, kWanted);
  std::string printed = header.substr(0, good) + std::string(input.rest());
  if (is_filled) {
    printed.resize(std::max(printed.size(), header.size() + stripes[1].bytes()), 'f');
  }
  TcpMesh mesh(*ranks.fuzzed, mesh_options(ranks), nullptr);
  const int first = dial_stream(ranks, channel_of(1, 0, 0), 2);
  const int second = dial_stream(ranks, channel_of(1, 0, 1), 2);
  say(first, header + std::string(stripes[0].bytes(), 'g'));
  say(second, printed);
  Guarded buffer(kWanted);
  Deadline deadline(std::chrono::seconds(5));
  const OperationCall call{shape, 7, deadline};
  const Incoming incoming = {0, buffer.data(), kWanted, 0};
  const bool is_right = printed.starts_with(header);
  const bool is_ok = mesh.exchange(call, {}, {&incoming, 1}, nullptr);
  IVY_ASSERT(is_ok == (is_right && printed.size() >= header.size() + stripes[1].bytes()));
  IVY_ASSERT(is_ok || mesh.failure());
  IVY_ASSERT(buffer.is_whole());
  const auto is_mark = [](std::uint8_t byte) { return byte == 0xaa; };
  IVY_ASSERT(is_right ||
             std::all_of(buffer.data() + stripes[1].begin, buffer.data() + kWanted, is_mark));
  close(first);
  close(second);
}

// The same for messages with tags.
void peer_messages(std::string_view bytes) {
  const Ranks ranks = make_ranks();
  Input input(bytes);
  const std::size_t good = input.byte() % 25U;
  const std::size_t wanted = input.byte();
  std::string header(24, '\0');
  const std::uint32_t magic = 0x50797649;
  const std::uint64_t length = wanted;
  std::memcpy(header.data(), &magic, sizeof magic);
  std::memcpy(header.data() + 8, &length, sizeof length);
  PointToPointOptions options;
  options.communicator = "world";
  options.self = 1;
  options.member_of = {-1, -1};
  options.peers = peers_of(ranks);
  const int socket = dial_stream(ranks, channel_of(1, 1), 1);
  say(socket, header.substr(0, good) + std::string(input.rest()));
  Guarded buffer(wanted);
  {
    PointToPoint messages(std::move(options), nullptr, ranks.fuzzed.get(), nullptr);
    const auto request = std::make_shared<MessageRequest>();
    request->peer = 0;
    request->tag = kAnyTag;
    request->data = buffer.data();
    request->bytes = wanted;
    const Outcome outcome = messages.run({request}, std::chrono::seconds(5));
    IVY_ASSERT(outcome.code != 0 || request->status.bytes <= wanted);
  }
  IVY_ASSERT(buffer.is_whole());
  close(socket);
}

}  // namespace ivy::fuzz
