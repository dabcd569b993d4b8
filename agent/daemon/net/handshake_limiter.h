// SPDX-License-Identifier: Apache-2.0
// The TCP connections that are not authenticated yet: limits their number, chooses which one is
// evicted next, and lists the peers that may be meant when gRPC rejects one without naming it.
//
//   waiting   the acceptor waits for its first bytes and can still close it
//   handed    gRPC does its handshake, and closes it within its own deadline; if there are too
//             many, the oldest one of the address with the most is shut down
//
// Pure except for its lock: time is an argument. Thread: any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace ivy {

struct HandshakeLimits {
  std::size_t total = 256;
  // Number of connections reserved for addresses that have authenticated before, so that a flood of
  // unauthenticated peers does not keep launchers from their running jobs.
  std::size_t kept_for_proved = 64;
  std::size_t per_address = 64;
  // Slightly more than the time limit of gRPC's handshake.
  std::chrono::milliseconds handshake{6000};
};

// Access to connections that gRPC owns. Implemented by TcpConnections (acceptor.h). Called with the
// limiter's lock held.
class HandedConnections {
 public:
  virtual ~HandedConnections() = default;
  // Returns true if this descriptor is still the connection to this peer. gRPC closes connections
  // without notice, and a peer that has disconnected must neither count nor be suspected.
  virtual bool is_open(const std::string& peer, int descriptor) = 0;
  // Shuts the connection down, as its peer would; gRPC then closes it.
  virtual void shut_down(const std::string& peer, int descriptor) = 0;
};

class HandshakeLimiter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Id = std::uint64_t;

  struct EnterResult {
    std::optional<Id> id;       // Empty if it was rejected.
    std::optional<Id> evicted;  // Was evicted to make room: close it if it was waiting.
    std::string why;            // The limit that was reached, after a rejection or an eviction.
  };

  // Without `handed`, connections that were handed over are never evicted. `handed` must outlive
  // the limiter.
  explicit HandshakeLimiter(HandshakeLimits limits = {}, HandedConnections* handed = nullptr)
      : limits_(limits), handed_(handed) {}

  // `address` is numeric (an IPv6 address counts as its /64, which one host may have), `peer` is
  // address and port: "10.77.0.1:41234".
  EnterResult enter(const std::string& address, const std::string& peer, Time now);
  // Returns false if it was evicted in the meantime: close it.
  bool hand_over(Id id, Time now, int descriptor);
  bool holds(Id id) const;
  void leave(Id id);

  // Call when a call arrives over this connection: its certificate has been accepted.
  void mark_proved(const std::string& peer);
  // The peers whose handshake may have failed: "10.77.0.9:4411", or "one of ...".
  std::string suspects();
  // Removes the connections whose handshake must have ended by now.
  void expire(Time now);
  std::size_t size() const;

 private:
  struct Entry {
    std::string address;
    std::string peer;
    bool handed = false;
    Time since;
    int descriptor = -1;  // Once handed; gRPC owns it.
  };
  bool is_full(const std::string& address) const;
  bool is_full_for(const std::string& address) const;
  bool is_proved(const std::string& address) const;
  std::string busiest_address() const;
  // The connection of this address that is evicted next.
  std::optional<Id> next_to_evict(const std::string& address) const;
  void evict(Id id);
  void forget_closed();
  void remember(const std::string& address);
  void remove(Id id);

  mutable std::mutex mutex_;
  HandshakeLimits limits_;
  HandedConnections* handed_;
  // Addresses that have authenticated, the newest last.
  std::deque<std::string> proved_;
  std::map<Id, Entry> entries_;  // Sorted by age, because ids grow.
  std::map<std::string, std::size_t> per_address_;
  Id next_ = 1;
};

}  // namespace ivy
