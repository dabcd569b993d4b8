// SPDX-License-Identifier: Apache-2.0
// Connections between ranks of different hosts: one listening socket per process, on the address by
// which the others reach this host, and connections that are made when they are first needed.
//
// Every connection begins with the handshake of proto/wire/handshake.h (purpose "peer"): both ends
// prove that they know the job's token before anything else is read. The token proves that a
// process belongs to the job; the rank that it claims is not verified. Then the dialler says for
// which communicator and channel the connection is, which of the channel's streams, and of how
// many. A thread accepts and greets; a peer that shows no proof within kGreetingTime is closed, and
// so is a silent one when kGreetingsMax are under way. Sockets are made and closed by
// proto/os/not_inherited.h.
//
// Thread: any. Lifetime: outlives every mesh.
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

// The version of the protocol on such connections, from the greeting on: increased with every
// change.
inline constexpr std::uint32_t kPeerWireVersion = 1;
inline constexpr std::chrono::seconds kGreetingTime{10};
// Practically no limit, for a dialler whose `may_go_on` knows when to give up.
inline constexpr std::chrono::hours kUntilCancelled{24 * 365};
inline constexpr std::size_t kGreetingsMax = 256;  // In progress at the same time, per process.

struct PeerCredentials {
  std::string job_id;
  std::string token;
  std::uint32_t generation = 0;
  std::uint32_t rank = 0;  // This process's rank in the job.
  // No peer is greeted before expect().
  bool waits_for_places = false;
};

// By rank of the job: the numeric addresses from which it may come.
using PlacesOfRanks = std::vector<std::vector<std::string>>;

// Identifies a connection between two ranks.
struct PeerChannel {
  std::string communicator;     // Its name has at most 63 bytes.
  std::uint32_t peer_rank = 0;  // The peer's rank in the job.
  std::uint32_t channel = 0;
  std::uint32_t stream = 0;  // Index among its streams (tcp_streams.h).
  auto key() const { return std::tie(communicator, peer_rank, channel, stream); }
  bool operator<(const PeerChannel& other) const { return key() < other.key(); }
};

struct PeerSocket {
  int socket = -1;            // Non-blocking; the receiver closes it.
  std::uint32_t streams = 1;  // How many the channel has: the dialler has said so.
};

class PeerListener {
 public:
  // Listens on that numeric address and any port. Unavailable: the address is not this host's.
  // `greeting_time`: the same on all ranks.
  static Result<std::unique_ptr<PeerListener>> listen(
      const std::string& address, PeerCredentials credentials,
      std::chrono::milliseconds greeting_time = kGreetingTime);
  ~PeerListener();
  PeerListener(const PeerListener&) = delete;
  PeerListener& operator=(const PeerListener&) = delete;

  // Greets ranks only from these addresses from now on. Used without ivyrun, where no supervisor
  // has started the ranks.
  void expect(PlacesOfRanks places);

  // "10.0.0.1:4123", "[fd00::1]:4123"; of a link-local one without its scope: a peer has its own.
  const std::string& address() const { return address_; }
  std::string host() const;  // The same without the port.
  // True if that peer's listener is on this machine: its host part is this one's then.
  bool is_near(const std::string& address) const;

  // Dials a peer's listener and greets it. `streams`: how many the channel has. Cancelled:
  // `may_go_on`, which is asked every few milliseconds, has said no. A peer that is stopped
  // accepts, by its kernel, and greets nobody: that lasts. A greeting in which one of the two stood
  // still for long is begun anew.
  Result<PeerSocket> dial(const std::string& address, const PeerChannel& channel,
                          std::uint32_t streams, std::chrono::milliseconds at_most,
                          const std::function<bool()>& may_go_on);
  // Takes the connection that the peer has dialled; socket -1: it has not come within that time.
  PeerSocket take(const PeerChannel& channel, std::chrono::milliseconds at_most);
  // Returns false if no process listens there any longer, so the rank is gone. A peer that does not
  // answer may still exist.
  static bool is_there(const std::string& address);
  bool is_peer_there(const std::string& address) const;  // The same of another rank's address().
  // The pause between two such questions of one wait.
  static constexpr std::chrono::milliseconds kProbePause{300};
  // Closes the unused connections that were dialled for that communicator.
  void forget(const std::string& communicator);

 private:
  // The listener's address; see the members.
  struct Place {
    std::string address;
    std::uint32_t scope;
  };
  PeerListener(int socket, Place place, PeerCredentials credentials,
               std::chrono::milliseconds greeting_time);
  static bool is_there(const std::string& address, std::uint32_t scope);
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
  void accept_some(std::vector<Greeting>& greetings);
  void wake();
  bool may_greet();
  bool is_in_place(int socket, std::uint32_t rank) const;

  const int socket_;
  const Descriptor wake_;
  const std::string address_;
  const std::uint32_t scope_;  // The interface of a link-local address; 0: another address.
  const PeerCredentials credentials_;
  const std::chrono::milliseconds greeting_time_;
  std::mutex mutex_;
  std::condition_variable has_arrived_;
  std::map<PeerChannel, PeerSocket> arrived_;  // Not yet asked for; guarded by mutex_.
  std::optional<PlacesOfRanks> places_;  // Guarded by mutex_. Nothing: every address may connect.
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

}  // namespace ivy::comm
