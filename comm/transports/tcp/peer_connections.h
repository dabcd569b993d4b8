// SPDX-License-Identifier: Apache-2.0
// Connections between ranks of different hosts. Each process has one listening socket, on the
// address by which the others reach this host. Connections are made when they are first needed.
//
// Every connection starts with the handshake of proto/wire/handshake.h (purpose "peer"): both ends
// prove that they know the job's token before anything else is read. The token proves that a
// process belongs to the job; the rank that it claims is not verified. The dialler, too, learns
// only that its peer knows the token: it relies on the store for which rank listens at an address.
// Then the dialler sends the connection's communicator, channel and stream, and the number of the
// channel's streams. A thread accepts connections and performs the handshakes. It closes a peer
// that has sent no proof within kGreetingTime, and also silent ones when kGreetingsMax handshakes
// are in progress. Sockets are made and closed by proto/os/not_inherited.h.
//
// Thread: any. Lifetime: must outlive every mesh.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy::comm {

// Version of the protocol on these connections, from the handshake on. Increase it with every
// change.
inline constexpr std::uint32_t kPeerWireVersion = 1;
inline constexpr std::chrono::seconds kGreetingTime{10};
// Practically no limit, for a dialler whose `may_continue` decides when to give up.
inline constexpr std::chrono::hours kUntilCancelled{24 * 365};
inline constexpr std::size_t kGreetingsMax = 256;  // In progress at the same time, per process.

struct PeerCredentials {
  std::string job_id;
  std::string token;
  std::uint32_t generation = 0;
  std::uint32_t rank = 0;  // This process's rank in the world.
  // If set, no peer is accepted before accept_only_from().
  bool waits_for_addresses = false;
};

// For each rank of the world, the numeric addresses from which it may connect.
using AddressesOfRanks = std::vector<std::vector<std::string>>;

// Identifies a connection between two ranks.
struct PeerChannel {
  std::string communicator;     // Its name has at most 63 bytes.
  std::uint32_t peer_rank = 0;  // The peer's rank in the world.
  std::uint32_t channel = 0;
  std::uint32_t stream = 0;  // Index among its streams (tcp_streams.h).
  auto key() const { return std::tie(communicator, peer_rank, channel, stream); }
  bool operator<(const PeerChannel& other) const { return key() < other.key(); }
};

struct PeerSocket {
  int socket = -1;            // Non-blocking; the receiver closes it.
  std::uint32_t streams = 1;  // Number of the channel's streams, as sent by the dialler.
};

class PeerConnections {
 public:
  // Listens on that numeric address and any port. Fails with Unavailable if the address is not this
  // host's. `greeting_time` must be the same on all ranks.
  static Result<std::unique_ptr<PeerConnections>> listen(
      const std::string& address, PeerCredentials credentials,
      std::chrono::milliseconds greeting_time = kGreetingTime);
  ~PeerConnections();
  PeerConnections(const PeerConnections&) = delete;
  PeerConnections& operator=(const PeerConnections&) = delete;

  // From now on, accepts ranks only from these addresses. Used without ivyrun, where no supervisor
  // has started the ranks.
  void accept_only_from(AddressesOfRanks addresses);

  // Returns "10.0.0.1:4123" or "[fd00::1]:4123"; a link-local address without its scope, because a
  // peer has a different one.
  const std::string& address() const { return address_; }
  std::string host() const;  // address() without the port.
  // Returns whether that peer's listener is on this machine, because its host part is the same as
  // this one's.
  bool is_near(const std::string& address) const;

  // Dials a peer's listener and performs the handshake. `streams` is the number of the channel's
  // streams. Fails with Cancelled if `may_continue`, which is called every few milliseconds,
  // returns false. The kernel of a stopped peer accepts the connection, but the handshake does not
  // proceed, so this may take long. A handshake in which one side was stopped for long is started
  // again.
  Result<PeerSocket> dial(const std::string& address, const PeerChannel& channel,
                          std::uint32_t streams, std::chrono::milliseconds at_most,
                          const std::function<bool()>& may_continue);
  // Takes the connection that the peer has dialled. `socket` is -1 if it did not arrive within that
  // time.
  PeerSocket take(const PeerChannel& channel, std::chrono::milliseconds at_most);
  // Returns false if no process listens there any longer, so the rank is gone. A peer that does not
  // answer may still exist.
  static bool is_listening(const std::string& address);
  // As is_listening(), for the address() of another rank.
  bool is_peer_listening(const std::string& address) const;
  // Interval between such probes in one wait.
  static constexpr std::chrono::milliseconds kProbePause{300};
  // Closes the unused connections that were dialled for that communicator.
  void forget(const std::string& communicator);

 private:
  // The listener's address; see address_ and scope_.
  struct Address {
    std::string address;
    std::uint32_t scope;
  };
  PeerConnections(int socket, Address address, PeerCredentials credentials,
                  std::chrono::milliseconds greeting_time);
  static bool is_listening(const std::string& address, std::uint32_t scope);
  void run();
  struct Dial;
  Result<PeerSocket> dial_once(const Dial& dial);
  Result<void> greet(int socket, const Dial& dial, std::chrono::steady_clock::time_point latest);
  struct Greeting;
  bool advance(Greeting& greeting);
  bool challenge(Greeting& greeting);
  bool accept_proof(const Greeting& greeting);
  void advance_all(std::vector<Greeting>& greetings, const std::vector<pollfd>& waiting);
  void make_room(std::vector<Greeting>& greetings);
  bool accept_some(std::vector<Greeting>& greetings);
  void wake();
  bool may_greet();
  bool is_in_place(int socket, std::uint32_t rank) const;

  const int socket_;
  const Descriptor wake_;
  const std::string address_;
  const std::uint32_t scope_;  // The interface of a link-local address, otherwise 0.
  const PeerCredentials credentials_;
  const std::chrono::milliseconds greeting_time_;
  std::mutex mutex_;
  std::condition_variable has_arrived_;
  std::map<PeerChannel, PeerSocket> arrived_;  // Not taken yet; guarded by mutex_.
  // Guarded by mutex_. If empty, every address may connect.
  std::optional<AddressesOfRanks> addresses_of_ranks_;
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

}  // namespace ivy::comm
