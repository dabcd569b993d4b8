// SPDX-License-Identifier: Apache-2.0
#include "proto/trust/psk_tls.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

namespace ivy {
namespace {

// TLS_AES_128_GCM_SHA256, whose hash an external key must name (RFC 8446, 4.2.11).
constexpr unsigned char kCipherId[] = {0x13, 0x01};
constexpr char kCipherName[] = "TLS_AES_128_GCM_SHA256";

int clamped(std::size_t size) {
  return static_cast<int>(std::min<std::size_t>(size, std::numeric_limits<int>::max()));
}

std::string take_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(code);
  return reason == nullptr ? std::string("the TLS handshake failed") : std::string(reason);
}

// Returns whether the error means that the peer closed the connection, unlike a timeout or an
// unreachable network.
bool peer_has_closed(int error) { return error == 0 || error == ECONNRESET || error == EPIPE; }

}  // namespace

struct PskTls::Callbacks {
  static const PskTls& of(SSL* connection) {
    return *static_cast<const PskTls*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(connection)));
  }

  static SSL_SESSION* session(SSL* connection, const Key& known) {
    SSL_SESSION* const made = SSL_SESSION_new();
    const SSL_CIPHER* const cipher = SSL_CIPHER_find(connection, kCipherId);
    const auto* const key = reinterpret_cast<const unsigned char*>(known.secret.data());
    const bool done = made != nullptr && cipher != nullptr &&
                      SSL_SESSION_set1_master_key(made, key, known.secret.size()) == 1 &&
                      SSL_SESSION_set_cipher(made, cipher) == 1 &&
                      SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION) == 1;
    if (done) return made;
    SSL_SESSION_free(made);
    return nullptr;
  }

  // Client: offers the key. OpenSSL frees the session.
  static int use(SSL* connection, const EVP_MD*, const unsigned char** identity,
                 std::size_t* length, SSL_SESSION** session_out) {
    const Key& key = of(connection).keys_.front();
    *identity = reinterpret_cast<const unsigned char*>(key.identity.data());
    *length = key.identity.size();
    *session_out = session(connection, key);
    return *session_out != nullptr ? 1 : 0;
  }

  // Server: finds the session of an identity. For another job's identity there is none, and the
  // handshake then fails, because there is no certificate.
  static int find(SSL* connection, const unsigned char* identity, std::size_t length,
                  SSL_SESSION** session_out) {
    const std::list<Key>& keys = of(connection).keys_;
    const std::string_view requested(reinterpret_cast<const char*>(identity), length);
    *session_out = nullptr;
    const auto known = std::find_if(keys.begin(), keys.end(),
                                    [&](const Key& key) { return key.identity == requested; });
    if (known == keys.end()) return 1;
    SSL_set_app_data(connection, const_cast<Key*>(&*known));
    *session_out = session(connection, *known);
    return *session_out != nullptr ? 1 : 0;
  }
};

PskTls::PskTls(Side side, std::string identity, std::string key) : side_(side) {
  add_key(std::move(identity), std::move(key));
}

PskTls::~PskTls() {
  SSL_CTX_free(context_);
  for (Key& key : keys_) OPENSSL_cleanse(key.secret.data(), key.secret.size());
}

void PskTls::add_key(std::string identity, std::string key) {
  keys_.push_back({std::move(identity), std::move(key)});
}

Result<std::unique_ptr<PskTls>> PskTls::make(Side side, std::string identity, std::string key) {
  // OpenSSL must not read the host's configuration file, which could change the negotiated
  // parameters.
  OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  std::unique_ptr<PskTls> made(new PskTls(side, std::move(identity), std::move(key)));
  ERR_clear_error();
  SSL_CTX* const context =
      SSL_CTX_new(side == Side::kClient ? TLS_client_method() : TLS_server_method());
  made->context_ = context;
  const bool is_ready =
      context != nullptr && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
      SSL_CTX_set_ciphersuites(context, kCipherName) == 1 &&
      SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1 &&
      SSL_CTX_set_num_tickets(context, 0) == 1 && SSL_CTX_set_max_early_data(context, 0) == 1;
  if (!is_ready)
    return Error{Code::kInternal, "OpenSSL cannot create a TLS context: " + take_error()};
  SSL_CTX_set_app_data(context, made.get());
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // The frames inside reveal whether data is missing if a connection ends without a close_notify.
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  // There is no certificate to verify; do_handshake() verifies the key instead.
  SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr);
  if (side == Side::kClient) {
    SSL_CTX_set_psk_use_session_callback(context, &Callbacks::use);
  } else {
    SSL_CTX_set_psk_find_session_callback(context, &Callbacks::find);
  }
  return made;
}

PskStream PskTls::stream(int socket) {
  PskStream stream;
  stream.connection_.reset(SSL_new(context_));
  IVY_ASSERT(stream.connection_ != nullptr);
  IVY_ASSERT(SSL_set_fd(stream.connection_.get(), socket) == 1);
  if (side_ == Side::kClient) {
    SSL_set_connect_state(stream.connection_.get());
  } else {
    SSL_set_accept_state(stream.connection_.get());
  }
  return stream;
}

void PskStream::Free::operator()(ssl_st* connection) const { SSL_free(connection); }

PskStream::Step PskStream::broken(const std::string& why) {
  failure_ = why;
  return Step::kBroken;
}

PskStream::Step PskStream::step_of(int result) {
  const int error = errno;
  switch (SSL_get_error(connection_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Step::kWantRead;
    case SSL_ERROR_WANT_WRITE:
      return Step::kWantWrite;
    case SSL_ERROR_ZERO_RETURN:
      return Step::kEnded;
    case SSL_ERROR_SYSCALL:
      if (peer_has_closed(error)) return Step::kEnded;
      return broken(std::strerror(error));
    default:
      return broken(take_error());
  }
}

PskStream::Step PskStream::do_handshake() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(connection_.get());
  if (result != 1) return step_of(result);
  const bool is_proven = SSL_version(connection_.get()) == TLS1_3_VERSION &&
                         SSL_session_reused(connection_.get()) == 1 &&
                         SSL_get0_peer_certificate(connection_.get()) == nullptr;
  if (!is_proven) return broken("the peer did not prove that it knows the job's key");
  return Step::kDone;
}

PskStream::Step PskStream::read(char* buffer, std::size_t size, std::size_t& count) {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_read(connection_.get(), buffer, clamped(size));
  if (result <= 0) return step_of(result);
  count = static_cast<std::size_t>(result);
  return Step::kDone;
}

PskStream::Step PskStream::write(std::string_view bytes, std::size_t& count) {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_write(connection_.get(), bytes.data(), clamped(bytes.size()));
  if (result <= 0) return step_of(result);
  count = static_cast<std::size_t>(result);
  return Step::kDone;
}

void PskStream::send_close_notify() {
  ERR_clear_error();
  SSL_shutdown(connection_.get());
}

std::string PskStream::identity() const {
  const auto* const key = static_cast<const PskTls::Key*>(SSL_get_app_data(connection_.get()));
  return key != nullptr && SSL_is_init_finished(connection_.get()) == 1 ? key->identity : "";
}

bool PskStream::has_pending() const { return SSL_has_pending(connection_.get()) == 1; }

std::uint64_t PskStream::received_bytes() const {
  return BIO_number_read(SSL_get_rbio(connection_.get()));
}

}  // namespace ivy
