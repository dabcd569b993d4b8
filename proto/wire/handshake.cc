// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/handshake.h"

// libcrypto's EVP interface links every algorithm, 4 MB in each program, and costs a millisecond at
// its first use. The plain functions of SHA-256 cost neither.
#define OPENSSL_API_COMPAT 0x10100000L

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/random.h>

#include <cerrno>

#include "proto/contract/text.h"
#include "proto/wire/store_wire.h"

namespace ivy {
namespace {

constexpr std::size_t kPurposeBytes = 16;
constexpr std::size_t kJobIdBytes = 16;

std::string_view purpose_of(std::string_view hello) {
  const std::string_view field =
      hello.substr(kHandshakeMagic.size() + sizeof kHandshakeVersion, kPurposeBytes);
  return field.substr(0, field.find('\0'));
}

std::string_view job_id_of(std::string_view hello) {
  return hello.substr(kHandshakeMagic.size() + sizeof kHandshakeVersion + kPurposeBytes,
                      kJobIdBytes);
}

std::string sha256_of(std::string_view first, std::string_view second) {
  SHA256_CTX context;
  SHA256_Init(&context);
  SHA256_Update(&context, first.data(), first.size());
  SHA256_Update(&context, second.data(), second.size());
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256_Final(reinterpret_cast<unsigned char*>(digest.data()), &context);
  OPENSSL_cleanse(&context, sizeof context);
  return digest;
}

// Returns a block of SHA-256 with the key, each byte XORed with HMAC's `pad`.
std::string padded_key(std::string_view key, char pad) {
  std::string block(key.size() > SHA256_CBLOCK ? sha256_of(key, "") : std::string(key));
  block.resize(SHA256_CBLOCK, '\0');
  for (char& byte : block) byte = static_cast<char>(byte ^ pad);
  return block;
}

// Computes HMAC-SHA-256 (RFC 2104).
std::string keyed_hash(std::string_view key, std::string_view text) {
  return sha256_of(padded_key(key, 0x5c), sha256_of(padded_key(key, 0x36), text));
}

// Computes one block of HKDF with SHA-256 (RFC 5869).
std::string derived_key(std::string_view token, std::string_view salt, std::string_view info) {
  return keyed_hash(keyed_hash(salt, token), std::string(info) + '\x01');
}

std::string mac_of(std::string_view hello, std::string_view token, std::string_view role,
                   std::string_view rest) {
  const std::string key =
      derived_key(token, job_id_of(hello), "ivy " + std::string(purpose_of(hello)));
  std::string text(role);
  text.append(hello).append(rest);
  return keyed_hash(key, text);
}

bool equal_macs(std::string_view a, std::string_view b) {
  return a.size() == kMacBytes && b.size() == kMacBytes &&
         CRYPTO_memcmp(a.data(), b.data(), kMacBytes) == 0;
}

}  // namespace

std::string encode_hello(const HandshakeHello& hello) {
  IVY_ASSERT(hello.purpose.size() <= kPurposeBytes && hello.job_id.size() == 2 * kJobIdBytes &&
             is_hexadecimal(hello.job_id) && hello.nonce.size() == kNonceBytes);
  std::string bytes(kHandshakeMagic);
  store::put_u8(bytes, kHandshakeVersion & 0xff);
  store::put_u8(bytes, kHandshakeVersion >> 8);
  bytes += hello.purpose;
  bytes.append(kPurposeBytes - hello.purpose.size(), '\0');
  bytes += from_hexadecimal(hello.job_id);
  store::put_u32(bytes, hello.generation);
  store::put_u32(bytes, hello.rank);
  store::put_u32(bytes, hello.pid);
  store::put_u64(bytes, hello.session);
  bytes += hello.nonce;
  return bytes;
}

Result<void> check_hello_begin(std::string_view arrived) {
  if (!arrived.starts_with(kHandshakeMagic.substr(0, arrived.size())))
    return Error{Code::kInvalidArgument, "the first bytes are not an ivyrun handshake"};
  if (arrived.size() < kHandshakeMagic.size() + sizeof kHandshakeVersion) return {};
  store::PayloadReader reader(arrived.substr(kHandshakeMagic.size()));
  const unsigned version = reader.u8() | static_cast<unsigned>(reader.u8()) << 8;
  if (version == kHandshakeVersion) return {};
  return Error{Code::kFailedPrecondition, "the peer uses version " + std::to_string(version) +
                                              " of the handshake, but this program uses version " +
                                              std::to_string(kHandshakeVersion)};
}

Result<HandshakeHello> decode_hello(std::string_view bytes) {
  IVY_CHECK(check_hello_begin(bytes));
  if (bytes.size() != kHelloBytes)
    return Error{Code::kInvalidArgument, "the first bytes are not an ivyrun handshake"};
  HandshakeHello hello;
  hello.purpose = purpose_of(bytes);
  for (const char c : hello.purpose) {
    if (c < 'a' || c > 'z')
      return Error{Code::kInvalidArgument, "the handshake has an invalid purpose"};
  }
  hello.job_id = hexadecimal(job_id_of(bytes));
  store::PayloadReader rest(bytes.substr(kHandshakeMagic.size() + sizeof kHandshakeVersion +
                                         kPurposeBytes + kJobIdBytes));
  hello.generation = rest.u32();
  hello.rank = rest.u32();
  hello.pid = rest.u32();
  hello.session = rest.u64();
  hello.nonce = bytes.substr(bytes.size() - kNonceBytes);
  return hello;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t got = 0; got < count;) {
    const ssize_t more = getrandom(bytes.data() + got, count - got, 0);
    IVY_ASSERT(more > 0 || errno == EINTR);
    if (more > 0) got += static_cast<std::size_t>(more);
  }
  return bytes;
}

std::string make_challenge(std::string_view hello_bytes, std::string_view token,
                           std::string_view server_nonce, std::string_view epoch) {
  IVY_ASSERT(hello_bytes.size() == kHelloBytes && server_nonce.size() == kNonceBytes &&
             epoch.size() == kEpochBytes);
  std::string challenge(server_nonce);
  challenge.append(epoch);
  challenge += mac_of(hello_bytes, token, "server", challenge);
  return challenge;
}

Result<HandshakeChallenge> check_challenge(std::string_view hello_bytes,
                                           std::string_view challenge_bytes,
                                           std::string_view token) {
  if (challenge_bytes.size() != kChallengeBytes) {
    return Error{Code::kDataLoss, "the handshake challenge has " +
                                      std::to_string(challenge_bytes.size()) +
                                      " bytes instead of " + std::to_string(kChallengeBytes)};
  }
  HandshakeChallenge challenge;
  challenge.nonce = challenge_bytes.substr(0, kNonceBytes);
  challenge.epoch = challenge_bytes.substr(kNonceBytes, kEpochBytes);
  challenge.mac = challenge_bytes.substr(kNonceBytes + kEpochBytes);
  const std::string expected =
      mac_of(hello_bytes, token, "server", challenge.nonce + challenge.epoch);
  if (!equal_macs(challenge.mac, expected)) {
    return Error{Code::kUnauthenticated, "the peer does not know this job's token"};
  }
  return challenge;
}

std::string make_proof(std::string_view hello_bytes, std::string_view challenge_bytes,
                       std::string_view token) {
  return mac_of(hello_bytes, token, "client", challenge_bytes);
}

Result<void> check_proof(std::string_view hello_bytes, std::string_view challenge_bytes,
                         std::string_view proof, std::string_view token) {
  if (!equal_macs(proof, make_proof(hello_bytes, challenge_bytes, token))) {
    return Error{Code::kUnauthenticated, "the peer does not know this job's token"};
  }
  return {};
}

}  // namespace ivy
