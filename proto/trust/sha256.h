// SPDX-License-Identifier: Apache-2.0
// SHA-256 of bytes that arrive in pieces. Links OpenSSL's libcrypto, which the program chooses.
// Not thread-safe.
#pragma once

#include <openssl/sha.h>

#include <string>
#include <string_view>

namespace ivy {

class Sha256 {
 public:
  Sha256();
  void add(std::string_view bytes);
  // Returns the 32 bytes of the digest. Call it once, at the end.
  std::string digest();

 private:
  SHA256_CTX context_;
};

}  // namespace ivy
