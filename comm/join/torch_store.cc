// SPDX-License-Identifier: Apache-2.0
#include "comm/join/torch_store.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/contract/resolve.h"
#include "comm/join/endpoint.h"
#include "proto/os/clock.h"
#include "proto/os/socket_address.h"
#include "proto/os/socket_options.h"
#include "proto/os/socket_waits.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using TimePoint = TorchStore::TimePoint;

// The two dialects use different numbers for the same requests.
struct Opcodes {
  char set;
  char get;
  char wait;
  char count;  // GETNUMKEYS, which any server answers immediately, and which changes nothing.
};
constexpr Opcodes kOldCodes{0, 2, 5, 6};
constexpr Opcodes kNewCodes{1, 3, 6, 7};
// Opcode 0 with torch's magic 0x3C85F7CE.
constexpr char kValidate[] = {0, '\xCE', '\xF7', '\x85', '\x3C'};
constexpr std::size_t kCountBytes = 8;

constexpr milliseconds kProbeTime{2'000};  // For a new server that never answers the old request.
constexpr milliseconds kDialPause{100};

const Opcodes& codes_of(TorchDialect dialect) {
  return dialect == TorchDialect::kNew ? kNewCodes : kOldCodes;
}

// All numbers are in the machine's byte order, which is little endian wherever torch runs.
std::string number_bytes(std::uint64_t value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string sized(const std::string& text) { return number_bytes(text.size()) + text; }

// Returns the reason why an exchange with the store ended.
Error broken(TimePoint end) {
  if (steady_now() >= end)
    return Error{Code::kDeadlineExceeded, "torchrun's store does not answer"};
  return Error{Code::kUnavailable, "torchrun's store closed the connection"};
}

Result<void> send(int socket, std::string_view bytes, TimePoint end) {
  if (!send_all(socket, bytes, {end})) return broken(end);
  return {};
}

Result<std::string> receive(int socket, std::size_t count, TimePoint end) {
  std::string bytes;
  if (!receive_all(socket, bytes, count, {end})) return broken(end);
  return bytes;
}

Result<int> dial_one(SocketAddress where, TimePoint end) {
  Descriptor socket(where.open_socket());
  if (!socket) return errno_error(Code::kResourceExhausted, "create a socket", errno);
  disable_nagle(socket.get());
  const int failed = connect_to(socket.get(), where, {end});
  if (failed == 0) return socket.release();
  return errno_error(Code::kUnavailable, "connect", failed);
}

// Tries every address of the name, repeatedly.
Result<int> dial(const std::string& host, std::uint16_t port, TimePoint end) {
  while (true) {
    const Result<std::vector<std::string>> addresses = resolve(host);
    Result<int> socket =
        addresses.ok() ? Error{Code::kUnavailable, "it has no address"} : addresses.error();
    for (std::size_t i = 0; addresses.ok() && i < addresses->size() && !socket.ok(); ++i) {
      socket =
          dial_one(parse_address((*addresses)[i], port), std::min(end, steady_now() + kProbeTime));
    }
    if (socket.ok() || steady_now() + kDialPause >= end) return socket;
    poll(nullptr, 0, static_cast<int>(kDialPause.count()));
  }
}

// Fails unless a server answers in that dialect.
Result<void> greet(int socket, TorchDialect dialect, TimePoint end) {
  std::string greeting;
  if (dialect == TorchDialect::kNew) greeting.assign(kValidate, sizeof kValidate);
  greeting += codes_of(dialect).count;
  IVY_CHECK(send(socket, greeting, end));
  const Result<std::string> answer = receive(socket, kCountBytes, end);
  if (!answer.ok()) return answer.error();
  return {};
}

}  // namespace

Result<std::unique_ptr<TorchStore>> TorchStore::connect(const std::string& host, std::uint16_t port,
                                                        TorchDialect dialect, TimePoint end) {
  const std::string where = "torchrun's store at " + host + ":" + std::to_string(port);
  for (const TorchDialect tried : {TorchDialect::kOld, TorchDialect::kNew}) {
    if (dialect != TorchDialect::kUnknown && dialect != tried) continue;
    const Result<int> dialled = dial(host, port, end);
    if (!dialled.ok()) return dialled.error().context(where);
    Descriptor socket(*dialled);
    const bool is_last = dialect != TorchDialect::kUnknown || tried == TorchDialect::kNew;
    const TimePoint until = is_last ? end : std::min(end, steady_now() + kProbeTime);
    const Result<void> greeted = greet(socket.get(), tried, until);
    if (greeted.ok()) return std::unique_ptr<TorchStore>(new TorchStore(std::move(socket), tried));
  }
  return Error{Code::kUnavailable, where + " does not answer as torch's TCPStore does",
               "pass tcp://HOST_OF_RANK_0:PORT to init, or set IVY_INIT_METHOD to it"};
}

Result<void> TorchStore::set(const std::string& key, const std::string& value, TimePoint end) {
  const Opcodes& codes = codes_of(dialect_);
  IVY_CHECK(send(socket_.get(), codes.set + sized(key) + sized(value), end));
  // A write has no answer; the answer to the next request shows that it was received.
  IVY_CHECK(send(socket_.get(), std::string(1, codes.count), end));
  const Result<std::string> answer = receive(socket_.get(), kCountBytes, end);
  if (!answer.ok()) return answer.error();
  return {};
}

Result<std::string> TorchStore::wait_get(const std::string& key, TimePoint end) {
  const Opcodes& codes = codes_of(dialect_);
  IVY_CHECK(send(socket_.get(), codes.wait + number_bytes(1) + sized(key), end));
  const Result<std::string> found = receive(socket_.get(), 1, end);
  if (!found.ok()) return found.error();
  IVY_CHECK(send(socket_.get(), codes.get + sized(key), end));
  const std::string length = IVY_TRY(receive(socket_.get(), sizeof(std::uint64_t), end));
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, length.data(), sizeof bytes);
  if (bytes > kEndpointBytesMax)
    return Error{Code::kDataLoss, "torchrun's store returned a value that ivycomm did not write"};
  return receive(socket_.get(), static_cast<std::size_t>(bytes), end);
}

}  // namespace ivy::comm
