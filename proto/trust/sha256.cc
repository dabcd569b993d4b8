// SPDX-License-Identifier: Apache-2.0
// These functions need no set-up of libcrypto, unlike EVP_Digest() (see program_facts.cc).
#define OPENSSL_SUPPRESS_DEPRECATED
#include "proto/trust/sha256.h"

namespace ivy {

Sha256::Sha256() { SHA256_Init(&context_); }

void Sha256::add(std::string_view bytes) { SHA256_Update(&context_, bytes.data(), bytes.size()); }

std::string Sha256::digest() {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256_Final(reinterpret_cast<unsigned char*>(digest.data()), &context_);
  return digest;
}

}  // namespace ivy
