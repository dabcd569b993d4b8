// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/stage_peers.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "proto/os/clock.h"
#include "proto/os/interfaces.h"
#include "proto/os/listening_socket.h"
#include "proto/os/socket_address.h"
#include "proto/os/socket_waits.h"
#include "proto/wire/handshake.h"

namespace ivy::stage {
namespace {

// Limit of connecting to one address, and of a handshake. A listener handles one peer at a time, so
// a stranger that connects delays the start by this time at most.
constexpr std::chrono::milliseconds kStepLimit{2'000};

WaitLimit in(std::chrono::milliseconds time) { return {steady_now() + time, nullptr}; }

// The epoch of the handshake, which the challenge's MAC covers, names the listening host.
std::string epoch_of(std::uint32_t host) {
  std::string epoch = "stage host ";
  for (int i = 0; i < 4; ++i) epoch += static_cast<char>((host >> (8 * i)) & 0xff);
  epoch.resize(kEpochBytes);
  return epoch;
}

Result<void> prove(int socket, const StageFeedFrom& to, const StageBegin& begin) {
  const WaitLimit limit = in(kStepLimit);
  HandshakeHello hello;
  hello.purpose = "stage";
  hello.job_id = begin.job_id();
  hello.rank = begin.host();
  hello.pid = static_cast<std::uint32_t>(getpid());
  hello.nonce = random_bytes(kNonceBytes);
  const std::string bytes = encode_hello(hello);
  std::string challenge;
  if (!send_all(socket, bytes, limit) || !receive_all(socket, challenge, kChallengeBytes, limit))
    return Error{Code::kUnavailable, "no answer"};
  const HandshakeChallenge answer = IVY_TRY(check_challenge(bytes, challenge, begin.token()));
  if (answer.epoch != epoch_of(to.host()))
    return Error{Code::kUnauthenticated, "another host of the job answers there"};
  if (!send_all(socket, make_proof(bytes, challenge, begin.token()), limit))
    return Error{Code::kUnavailable, "the connection was closed"};
  return {};
}

// Returns how many leading bits of the address equal those of one of this host's networks.
int nearness(const std::string& address) {
  SocketAddress other = parse_address(address, 0);
  for (const InterfaceAddress& own : interface_addresses()) {
    SocketAddress mine = parse_address(own.address, 0);
    if (own.loopback || mine.storage.ss_family != other.storage.ss_family) continue;
    const bool is_v4 = mine.storage.ss_family == AF_INET;
    const std::size_t at = is_v4 ? 4 : 8;  // Of the address in sockaddr_in and sockaddr_in6.
    const auto* a = reinterpret_cast<const unsigned char*>(&mine.storage) + at;
    const auto* b = reinterpret_cast<const unsigned char*>(&other.storage) + at;
    const int bits = std::min(own.prefix_bits, is_v4 ? 32 : 128);
    int equal = 0;
    while (equal < bits && ((a[equal / 8] ^ b[equal / 8]) & (0x80 >> (equal % 8))) == 0) ++equal;
    if (equal == bits) return bits;
  }
  return 0;
}

Result<int> listen_in_range(const std::string& address, const StageBegin& begin) {
  const bool is_single = begin.port_low() == begin.port_high();  // Reserved for the workers.
  if (begin.port_low() == 0 || is_single) return listen_tcp(address, 0);
  const std::uint32_t count = begin.port_high() - begin.port_low() + 1;
  const std::uint32_t start = static_cast<unsigned char>(random_bytes(1).front()) % count;
  Result<int> fd = Error{Code::kUnavailable, "no port of --port-range is free"};
  for (std::uint32_t i = 0; i < count; ++i) {
    fd = listen_tcp(address, static_cast<std::uint16_t>(begin.port_low() + (start + i) % count));
    if (fd.ok()) return fd;
  }
  return fd;
}

}  // namespace

Result<Listening> listen_for_peer(const StageBegin& begin) {
  Listening listening;
  for (const InterfaceAddress& each : interface_addresses()) {
    if (begin.interface().empty() ? each.loopback : each.interface != begin.interface()) continue;
    listening.addresses.push_back(each.address);
  }
  if (listening.addresses.empty()) return Error{Code::kNotFound, "it has no address"};
  if (!begin.interface().empty()) listening.addresses.resize(1);
  Result<int> fd =
      listen_in_range(begin.interface().empty() ? "::" : listening.addresses.front(), begin);
  if (!fd.ok() && begin.interface().empty()) fd = listen_in_range("0.0.0.0", begin);
  if (!fd.ok()) return fd.error();
  listening.socket.reset(*fd);
  listening.port = bound_port(*fd);
  return listening;
}

Result<Descriptor> accept_peer(int listening, const StageBegin& begin) {
  Descriptor socket(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return errno_error(Code::kUnavailable, "accept", errno);
  const WaitLimit limit = in(kStepLimit);
  std::string hello;
  if (!receive_all(socket.get(), hello, kHelloBytes, limit))
    return Error{Code::kUnauthenticated, "no handshake"};
  const HandshakeHello from = IVY_TRY(decode_hello(hello));
  if (from.purpose != "stage" || from.job_id != begin.job_id())
    return Error{Code::kUnauthenticated, "a peer of another job"};
  const std::string challenge =
      make_challenge(hello, begin.token(), random_bytes(kNonceBytes), epoch_of(begin.host()));
  std::string proof;
  if (!send_all(socket.get(), challenge, limit) ||
      !receive_all(socket.get(), proof, kProofBytes, limit))
    return Error{Code::kUnauthenticated, "no proof"};
  IVY_CHECK(check_proof(hello, challenge, proof, begin.token()));
  return socket;
}

Result<Descriptor> dial_peer(const StageFeedFrom& to, const StageBegin& begin) {
  std::vector<std::pair<int, std::string>> addresses;
  for (const std::string& address : to.addresses())
    addresses.emplace_back(-nearness(address), address);
  std::stable_sort(addresses.begin(), addresses.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  Error last{Code::kUnavailable, "it has no address"};
  for (const auto& [order, address] : addresses) {
    SocketAddress where = parse_address(address, static_cast<std::uint16_t>(to.port()));
    if (!where.is_valid()) continue;
    Descriptor socket(where.open_socket());
    const int why = socket ? connect_to(socket.get(), where, in(kStepLimit)) : errno;
    const std::string name = address_text(where.storage);
    if (why != 0) {
      last = errno_error(Code::kUnavailable, name, why);
      continue;
    }
    const Result<void> proved = prove(socket.get(), to, begin);
    if (proved.ok()) return socket;
    last = proved.error().context(name);
  }
  return last;
}

}  // namespace ivy::stage
