// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 between two ends that share a key from a third party: the launcher, and hosts that dial
// back to it from a srun step. Uses no certificates, tickets or early data.
//
// A client that requests a pre-shared key and checks no certificate would, with OpenSSL alone, also
// accept a server that ignores the key and presents any certificate. So neither end passes a byte
// before it has verified that the session was resumed from the key (RFC 8446, 4.2.11). The key
// exchange always includes Diffie-Hellman, so a later leak of the key does not reveal the traffic.
//
// Thread: any, one stream at a time, in a program that ignores SIGPIPE. It needs libssl, which the
// program must link, as with ivy_handshake.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "proto/contract/status.h"

struct ssl_ctx_st;
struct ssl_st;

namespace ivy {

// One end of one connection. The caller owns the socket, which must be non-blocking.
class PskStream {
 public:
  enum class Step {
    kDone,
    kWantRead,   // Repeat the call when the socket is readable.
    kWantWrite,  // Repeat the call when the socket is writable.
    kEnded,      // The peer has closed the connection: close_notify, end of file or reset.
    kBroken,     // The connection broke, or the peer did not prove itself; see failure().
  };

  PskStream() = default;
  // Must return kDone before anything else is called.
  Step do_handshake();
  // With kDone, `count` bytes were received, at least one.
  Step read(char* buffer, std::size_t size, std::size_t& count);
  // With kDone, `count` of the bytes were accepted, at least one. After kWantWrite, the same bytes
  // must be offered again.
  Step write(std::string_view bytes, std::size_t& count);
  // Sends close_notify, if the socket accepts it immediately.
  void send_close_notify();
  // Returns whether received bytes are buffered, so that read() will not need the socket.
  bool has_pending() const;
  // Returns the number of encrypted bytes received over the socket.
  std::uint64_t received_bytes() const;
  const std::string& failure() const { return failure_; }
  // Server: returns the identity that the peer has proved; empty before do_handshake() has
  // finished.
  std::string identity() const;

 private:
  friend class PskTls;
  struct Free {
    void operator()(ssl_st* connection) const;
  };
  Step step_of(int result);
  Step broken(const std::string& why);

  std::unique_ptr<ssl_st, Free> connection_;
  std::string failure_;
};

// State that all connections with one key share. Must outlive its streams.
class PskTls {
  friend class PskStream;

 public:
  enum class Side { kClient, kServer };

  // `identity` names the key, in clear text, with at most 128 bytes. `key` has 32 bytes. Fails with
  // Internal if OpenSSL rejects them.
  static Result<std::unique_ptr<PskTls>> make(Side side, std::string identity, std::string key);
  ~PskTls();
  PskTls(const PskTls&) = delete;
  PskTls& operator=(const PskTls&) = delete;

  // Server: adds another key that peers may prove. Call it before the first stream; identities must
  // differ.
  void add_key(std::string identity, std::string key);
  PskStream stream(int socket);

 private:
  struct Key {
    std::string identity;
    std::string secret;
  };
  PskTls(Side side, std::string identity, std::string key);
  struct Callbacks;

  const Side side_;
  // Its elements have stable addresses, because streams point to them. A client uses the first one.
  std::list<Key> keys_;
  ssl_ctx_st* context_ = nullptr;
};

}  // namespace ivy
