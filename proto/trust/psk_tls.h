// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 between two ends that share a key which a third party has given them: the launcher, and
// hosts that dial back to it out of a srun step. No certificate, no ticket, no early data.
//
// A client that asks for a pre-shared key and checks no certificate would, with OpenSSL alone, also
// accept a server that ignores the key and shows any certificate. So neither end passes a byte
// before it has seen that the session was resumed from the key (RFC 8446, 4.2.11); the exchange is
// always combined with Diffie-Hellman, so a later leak of the key does not reveal the traffic.
//
// Thread: any, one stream at a time; of a program that ignores SIGPIPE. It needs libssl, which the
// program that links it provides, as with ivy_handshake.
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

// One end of one connection. The socket stays the caller's and does not block.
class PskStream {
 public:
  enum class Step {
    kDone,
    kWantRead,   // When the socket is readable, the same call again.
    kWantWrite,  // When it is writable, the same call again.
    kEnded,      // The peer has closed: close_notify, end of file or reset.
    kBroken,     // The connection broke, or the peer did not prove itself: failure() says why.
  };

  PskStream() = default;
  // Call nothing else until it returns kDone.
  Step shake_hands();
  // kDone: `count` bytes were received, at least one.
  Step read(char* buffer, std::size_t size, std::size_t& count);
  // kDone: `count` of the bytes have been taken, at least one. After kWantWrite the same bytes must
  // be offered again.
  Step write(std::string_view bytes, std::size_t& count);
  // Sends close_notify, if the socket accepts it immediately.
  void say_end();
  // True if bytes wait inside: read() will not need the socket.
  bool has_pending() const;
  // Returns the number of encrypted bytes received over the socket.
  std::uint64_t received_bytes() const;
  const std::string& failure() const { return failure_; }
  // A server's: the identity that the peer has proved. Empty before shake_hands() is done.
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

// The state that all connections with one key share. It outlives its streams.
class PskTls {
  friend class PskStream;

 public:
  enum class Side { kClient, kServer };

  // identity: names the key in clear, at most 128 bytes. key: 32 bytes. Internal: OpenSSL refuses.
  static Result<std::unique_ptr<PskTls>> make(Side side, std::string identity, std::string key);
  ~PskTls();
  PskTls(const PskTls&) = delete;
  PskTls& operator=(const PskTls&) = delete;

  // A server's: another key by which peers are known. Before the first stream; identities differ.
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
  std::list<Key> keys_;  // Stable addresses: streams point to theirs. The first is a client's.
  ssl_ctx_st* context_ = nullptr;
};

}  // namespace ivy
