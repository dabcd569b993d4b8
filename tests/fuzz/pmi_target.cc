// SPDX-License-Identifier: Apache-2.0
// Runs a script of PMI-1 for the ranks of two hosts: bytes in any pieces, disconnects, fences. Each
// reply must be one line that a client with a buffer of 1023 bytes can read, and must be sent to an
// open connection.
#include <optional>
#include <set>

#include "proto/contract/status.h"
#include "rendezvous/dialects/pmi_host.h"
#include "tests/fuzz/targets.h"

namespace ivy::fuzz {
namespace {

constexpr std::size_t kConnections = 4;
// A value of kMaxPmiValue with the text before it.
constexpr std::size_t kMaxReply = 1100;

class OneHost {
 public:
  explicit OneHost(std::uint32_t number) : host_({"job", number, {2, 1}}) {}

  void say(store::PmiHost::Connection connection, std::string_view bytes) {
    if (open_.insert(connection).second) host_.opened(connection);
    store::PmiHost::Effects effects;
    host_.received(connection, bytes, effects);
    look_at(effects);
  }
  void hang_up(store::PmiHost::Connection connection) {
    store::PmiHost::Effects effects;
    host_.ended(connection, effects);
    open_.erase(connection);
    look_at(effects);
  }
  void fence(const std::vector<std::string>& blobs) {
    store::PmiHost::Effects effects;
    host_.fenced(blobs, effects);
    fence_.reset();
    look_at(effects);
  }
  const std::optional<std::string>& waits_with() const { return fence_; }

 private:
  static void one_line(const std::string& text) {
    IVY_ASSERT(!text.empty() && text.find('\n') == std::string::npos);
  }

  void look_at(const store::PmiHost::Effects& effects) {
    for (const std::string& event : effects.events) one_line(event);
    for (const std::string& note : effects.notes) one_line(note);
    for (const store::PmiHost::Bytes& reply : effects.replies) {
      IVY_ASSERT(open_.contains(reply.to));
      IVY_ASSERT(reply.bytes.ends_with('\n') && reply.bytes.size() < kMaxReply);
    }
    for (const store::PmiHost::Connection closed : effects.closed) {
      IVY_ASSERT(open_.contains(closed));
      open_.erase(closed);
    }
    if (effects.fence) fence_ = effects.fence;
  }

  store::PmiHost host_;
  std::set<store::PmiHost::Connection> open_;
  std::optional<std::string> fence_;
};

}  // namespace

void pmi(std::string_view bytes) {
  Input script(bytes);
  OneHost a(0);
  OneHost b(1);
  store::PmiHost::Connection serial = 0;
  store::PmiHost::Connection now[kConnections] = {};
  while (!script.done()) {
    const std::uint8_t what = script.byte();
    OneHost& host = (what & 1) != 0 ? b : a;
    store::PmiHost::Connection& connection = now[(what >> 1) % kConnections];
    if (connection == 0) connection = ++serial;
    switch ((what >> 3) % 4) {
      case 0:
      case 1:
        host.say(connection, script.bytes(script.byte()));
        break;
      case 2:
        host.hang_up(connection);
        connection = 0;
        break;
      default:
        // Any blob of the other host, and the real one of this host.
        host.fence({host.waits_with().value_or(""), std::string(script.bytes(script.byte()))});
    }
  }
}

}  // namespace ivy::fuzz
