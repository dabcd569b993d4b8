// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/agent/agent_tls.h"

#include <openssl/err.h>

#include <array>

#include "proto/os/clock.h"
#include "proto/trust/libcrypto.h"

namespace ivy {
namespace {

// Lets OpenSSL read several records with one system call.
constexpr std::size_t kReadAheadBytes = 64u << 10;
constexpr std::array<unsigned char, 3> kHttp2 = {2, 'h', '2'};

// Attached to a connection, for judge(), which verifies the agent's certificate.
struct Dialled {
  std::string host_name;
  AgentVerdict* verdict;
};

int dialled_index() {
  static const int index = SSL_get_ex_new_index(
      0, nullptr, nullptr, nullptr, [](void*, void* dialled, CRYPTO_EX_DATA*, int, long, void*) {
        delete static_cast<Dialled*>(dialled);
      });
  return index;
}

bool use_identity(SSL_CTX* context, const AgentIdentity& own_identity) {
  const Certificate certificate = read_pem_certificate(own_identity.certificate_pem);
  const Key key = read_pem_key(own_identity.key_pem);
  return certificate && key && SSL_CTX_use_certificate(context, certificate.get()) == 1 &&
         SSL_CTX_use_PrivateKey(context, key.get()) == 1 && SSL_CTX_check_private_key(context) == 1;
}

bool set_rules(SSL_CTX* context) {
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAheadBytes);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  // gRPC closes the connection without a TLS close; HTTP/2 inside it detects missing data.
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set1_groups_list(context, "P-256") == 1 &&
         SSL_CTX_set_alpn_protos(context, kHttp2.data(), kHttp2.size()) == 0;
}

// Returns the chain of certificates that the agent has presented, its own first.
std::string chain_text(X509_STORE_CTX* context) {
  const Bio bio(BIO_new(BIO_s_mem()));
  STACK_OF(X509)* const chain = X509_STORE_CTX_get0_untrusted(context);
  for (int i = 0; i < sk_X509_num(chain); ++i) {
    if (PEM_write_bio_X509(bio.get(), sk_X509_value(chain, i)) != 1) return {};
  }
  return take_text(bio);
}

}  // namespace

std::string take_tls_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(code);
  return reason == nullptr ? std::string() : std::string(reason);
}

Result<std::shared_ptr<AgentTls>> AgentTls::make(const AgentIdentity& own_identity) {
  std::shared_ptr<AgentTls> made(new AgentTls(own_identity));
  ERR_clear_error();
  made->context_.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* const context = made->context_.get();
  if (context == nullptr || !set_rules(context)) {
    return Error{Code::kInternal, "OpenSSL cannot create a TLS context: " + take_tls_error(), ""};
  }
  if (!use_identity(context, own_identity)) {
    return Error{Code::kFailedPrecondition,
                 "your certificate and key cannot be used: " + take_tls_error(),
                 "use a certificate and key from the same run of ivy-agent cert --user NAME"};
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_cert_verify_callback(context, &AgentTls::judge, made.get());
  return made;
}

AgentTls::Connection AgentTls::connect(int socket, const std::string& host_name,
                                       AgentVerdict& verdict) {
  Connection connection(SSL_new(context_.get()));
  IVY_ASSERT(connection != nullptr);
  IVY_ASSERT(SSL_set_fd(connection.get(), socket) == 1);
  IVY_ASSERT(SSL_set_ex_data(connection.get(), dialled_index(), new Dialled{host_name, &verdict}) ==
             1);
  SSL_set_connect_state(connection.get());
  return connection;
}

// Called by OpenSSL. Returns 1 if the agent is trusted; any other value ends the handshake with an
// alert.
int AgentTls::judge(X509_STORE_CTX* context, void* self) {
  const AgentTls& tls = *static_cast<AgentTls*>(self);
  SSL* const connection =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx()));
  const auto* const dialled = static_cast<Dialled*>(SSL_get_ex_data(connection, dialled_index()));
  const Result<CertificateIdentity> agent =
      check_agent(tls.own_identity_, dialled->host_name, chain_text(context), wall_s());
  dialled->verdict->is_verified = agent.ok();
  if (agent.ok()) {
    X509_STORE_CTX_set_error(context, X509_V_OK);
    return 1;
  }
  dialled->verdict->rejection = agent.error();
  X509_STORE_CTX_set_error(context, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

}  // namespace ivy
