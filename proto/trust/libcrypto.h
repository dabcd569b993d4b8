// SPDX-License-Identifier: Apache-2.0
// Owners of libcrypto's objects, and the few functions on them that several files need. Include it
// only in source files: it needs libcrypto's headers and does not choose the static or the shared
// library. Thread: any.
#pragma once

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "proto/contract/status.h"

namespace ivy {

template <auto free_it>
struct Free {
  template <class T>
  void operator()(T* pointer) const {
    free_it(pointer);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using RevocationList = std::unique_ptr<X509_CRL, Free<X509_CRL_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;
using Integer = std::unique_ptr<ASN1_INTEGER, Free<ASN1_INTEGER_free>>;
using Time = std::unique_ptr<ASN1_TIME, Free<ASN1_TIME_free>>;
using BigNumber = std::unique_ptr<BIGNUM, Free<BN_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>>;

// Returns a BIO that reads from the text, which must outlive it.
inline Bio memory_of(std::string_view text) {
  Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  IVY_ASSERT(bio != nullptr);  // It can only fail for lack of memory.
  return bio;
}

// Returns the data written to a memory BIO.
inline std::string take_text(const Bio& bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return size > 0 ? std::string(data, static_cast<std::size_t>(size)) : std::string();
}

// Rejects encrypted keys instead of prompting for a passphrase, because neither a daemon nor a verb
// is sure to have a terminal.
inline int no_phrase(char* /*buffer*/, int /*size*/, int /*writes*/, void* /*user*/) { return -1; }

// Returns null if the text has no certificate; OpenSSL's errors remain in its error queue.
inline Certificate read_pem_certificate(std::string_view pem) {
  return Certificate(PEM_read_bio_X509(memory_of(pem).get(), nullptr, no_phrase, nullptr));
}
// Returns null if the text has no private key, or an encrypted one; OpenSSL's errors remain in its
// error queue.
inline Key read_pem_key(std::string_view pem) {
  return Key(PEM_read_bio_PrivateKey(memory_of(pem).get(), nullptr, no_phrase, nullptr));
}

// Returns seconds since 1970, or 0 for a malformed time.
inline std::int64_t unix_time(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : 0;
}

// Formats a name according to RFC 2253.
inline std::string name_of(const X509_NAME* name) {
  const Bio bio(BIO_new(BIO_s_mem()));
  IVY_ASSERT(bio != nullptr);
  X509_NAME_print_ex(bio.get(), name, 0, XN_FLAG_RFC2253 & ~ASN1_STRFLGS_ESC_MSB);
  return take_text(bio);
}

}  // namespace ivy
