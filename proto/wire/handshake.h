// SPDX-License-Identifier: Apache-2.0
// Mutual authentication of a client and the store, or of two ranks: each side proves that it knows
// the job's token without revealing it. Nothing else is parsed before.
//
// clang-format off
//   client to server  Hello      magic, version, purpose, job id, generation, rank, pid, session,
//                                client nonce
//   server to client  Challenge  server nonce, epoch, HMAC(key, "server" | Hello | nonce | epoch)
//   client to server  Proof      HMAC(key, "client" | Hello | Challenge)
// clang-format on
//
// key = HKDF-SHA-256(token, salt = job id, info = "ivy " + purpose). The MACs cover the whole
// transcript and the direction, and both nonces are fresh, so nothing can be replayed or reflected.
// MACs are compared in constant time. RFC 2104, RFC 5869. Links OpenSSL's libcrypto, like
// agent_certificate.
//
// The data after the handshake is not encrypted; an active attacker on the path can alter it.
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/contract/status.h"

namespace ivy {

inline constexpr std::string_view kHandshakeMagic = "IVYS";
// The version also covers the store's protocol after the handshake (store_wire.h).
inline constexpr std::uint16_t kHandshakeVersion = 2;
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kMacBytes = 32;
inline constexpr std::size_t kEpochBytes = 16;
inline constexpr std::uint32_t kNoRank = ~std::uint32_t{0};

struct HandshakeHello {
  std::string purpose;  // "store" or "peer"; at most 16 characters of [a-z].
  std::string job_id;
  std::uint32_t generation = 0;
  std::uint32_t rank = kNoRank;
  std::uint32_t pid = 0;
  std::uint64_t session = 0;  // The same on all connections of a store client; 0 if there is none.
  std::string nonce;          // kNonceBytes of random bytes, never used twice.
};

struct HandshakeChallenge {
  std::string nonce;  // kNonceBytes of random bytes, never used twice.
  std::string epoch;  // kEpochBytes that identify the incarnation of the store's contents.
  std::string mac;    // An HMAC-SHA-256 of kMacBytes bytes.
};

// The sizes are fixed, so that a reader knows how many bytes to wait for before it parses any.
inline constexpr std::size_t kHelloBytes = 4 + 2 + 16 + 16 + 4 + 4 + 4 + 8 + kNonceBytes;
inline constexpr std::size_t kChallengeBytes = kNonceBytes + kEpochBytes + kMacBytes;
inline constexpr std::size_t kProofBytes = kMacBytes;

std::string encode_hello(const HandshakeHello& hello);
// Checks the bytes that have arrived so far. Fails with InvalidArgument if they are not this
// protocol, and with FailedPrecondition if the version differs; the text names both versions.
// Another version's hello may be shorter, so waiting for the full length could wait forever.
Result<void> check_hello_begin(std::string_view arrived);
// Decodes the whole hello. Fails with the errors of check_hello_begin().
Result<HandshakeHello> decode_hello(std::string_view bytes);

// Returns `count` random bytes. Aborts if the system has no randomness.
std::string random_bytes(std::size_t count);

// Server: returns the answer to these exact hello bytes.
std::string make_challenge(std::string_view hello_bytes, std::string_view token,
                           std::string_view server_nonce, std::string_view epoch);
// Client: fails with Unauthenticated if the server does not know the token.
Result<HandshakeChallenge> check_challenge(std::string_view hello_bytes,
                                           std::string_view challenge_bytes,
                                           std::string_view token);
// Client: proves that it knows the token.
std::string make_proof(std::string_view hello_bytes, std::string_view challenge_bytes,
                       std::string_view token);
// Server: fails with Unauthenticated if the client does not know the token.
Result<void> check_proof(std::string_view hello_bytes, std::string_view challenge_bytes,
                         std::string_view proof, std::string_view token);

}  // namespace ivy
