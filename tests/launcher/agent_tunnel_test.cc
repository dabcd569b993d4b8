// SPDX-License-Identifier: Apache-2.0
// The tunnel under gRPC, against a TLS server in a thread of this process.
#include "launcher/links/agent/agent_tunnel.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <functional>
#include <string>
#include <thread>

#include "tests/launcher/link_probe.h"
#include "tests/support/test_certificates.h"

namespace ivy {
namespace {

using test::TestAuthority;

const TestAuthority& authority() {
  static const TestAuthority instance;
  return instance;
}

// Differences from a correct agent.
struct ServerKind {
  int newest = TLS1_3_VERSION;
  bool speaks_http2 = true;
};

int choose_http2(SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char*,
                 unsigned, void*) {
  static constexpr unsigned char kHttp2[] = {'h', '2'};
  *chosen = kHttp2;
  *size = sizeof kHttp2;
  return SSL_TLSEXT_ERR_OK;
}

// Accepts one connection and runs a script after the handshake, on a separate thread.
class TlsServer {
 public:
  using Script = std::function<void(SSL*)>;
  TlsServer(const KeyAndCertificate& identity, Script script, ServerKind kind = {})
      : context_(SSL_CTX_new(TLS_server_method())), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    const auto use = [](const std::string& pem) {
      return BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
    };
    BIO* certificate_text = use(identity.certificate_pem);
    BIO* key_text = use(identity.key_pem);
    X509* certificate = PEM_read_bio_X509(certificate_text, nullptr, nullptr, nullptr);
    EVP_PKEY* key = PEM_read_bio_PrivateKey(key_text, nullptr, nullptr, nullptr);
    EXPECT_EQ(SSL_CTX_use_certificate(context_, certificate), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey(context_, key), 1);
    X509_free(certificate);
    EVP_PKEY_free(key);
    BIO_free(certificate_text);
    BIO_free(key_text);
    SSL_CTX_set_max_proto_version(context_, kind.newest);
    if (kind.speaks_http2) SSL_CTX_set_alpn_select_cb(context_, choose_http2, nullptr);
    // The client must present a certificate.
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                       [](int, X509_STORE_CTX*) { return 1; });
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
    listen(listener_, 1);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, script = std::move(script)] { serve(script); });
  }
  ~TlsServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
    SSL_CTX_free(context_);
  }
  TlsServer(const TlsServer&) = delete;
  TlsServer& operator=(const TlsServer&) = delete;
  std::uint16_t port() const { return port_; }
  bool has_finished_handshake() const { return has_finished_handshake_; }

 private:
  void serve(const Script& script) {
    const int fd = accept(listener_, nullptr, nullptr);
    if (fd < 0) return;
    SSL* connection = SSL_new(context_);
    SSL_set_fd(connection, fd);
    if (SSL_accept(connection) == 1) {
      has_finished_handshake_ = true;
      script(connection);
    }
    SSL_free(connection);
    close(fd);
  }

  SSL_CTX* context_;
  int listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> has_finished_handshake_ = false;
  std::thread thread_;
};

// Reads until the peer closes.
std::string read_all(SSL* connection) {
  std::string all;
  std::array<char, 32768> piece;
  for (;;) {
    const int count = SSL_read(connection, piece.data(), static_cast<int>(piece.size()));
    if (count <= 0) return all;
    all.append(piece.data(), static_cast<std::size_t>(count));
  }
}

std::string pattern(std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  return text;
}

class AgentTunnelTest : public testing::Test {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);
    const KeyAndCertificate user = authority().user("alice");
    AgentIdentity own_identity;
    own_identity.anchor = authority().anchor();
    own_identity.certificate_pem = user.certificate_pem;
    own_identity.key_pem = user.key_pem;
    own_identity.self.name = "alice";
    auto tls = AgentTls::make(own_identity);
    ASSERT_TRUE(tls.ok()) << tls.error().message;
    tls_ = std::move(tls).value();
  }
  void TearDown() override {
    if (end_ >= 0) close(end_);
  }
  static KeyAndCertificate good_host() { return authority().host("node1", {"node1"}); }

  void dial(std::uint16_t port, const std::string& asked = "node1") {
    const auto tunnel = std::make_shared<AgentTunnel>(loop_, tls_, asked);
    const Result<int> end = tunnel->start("127.0.0.1", port);
    ASSERT_TRUE(end.ok());
    end_ = *end;
    shared_state_ = tunnel->shared_state();
    tunnel_ = tunnel;
  }
  // Returns the bytes that have arrived at gRPC's end so far; records its end of file.
  std::string take() {
    std::string all;
    std::array<char, 65536> piece;
    for (;;) {
      const ssize_t count = recv(end_, piece.data(), piece.size(), MSG_DONTWAIT);
      // Data that the tunnel did not read turns the close into a reset.
      if (count == 0 || (count < 0 && errno == ECONNRESET)) has_ended_ = true;
      if (count <= 0) return all;
      all.append(piece.data(), static_cast<std::size_t>(count));
    }
  }
  void expect_failure(const std::string& text) {
    ASSERT_TRUE(run_until(loop_, [&] { return !shared_state_->snapshot().failure.empty(); }));
    EXPECT_NE(shared_state_->snapshot().failure.find(text), std::string::npos)
        << shared_state_->snapshot().failure;
    EXPECT_FALSE(shared_state_->snapshot().is_connected);
    take();
    EXPECT_TRUE(has_ended_) << "gRPC would wait forever";
  }

  boost::asio::io_context loop_{1};
  std::shared_ptr<AgentTls> tls_;
  std::weak_ptr<AgentTunnel> tunnel_;
  std::shared_ptr<const AgentTunnel::SharedState> shared_state_;
  int end_ = -1;
  bool has_ended_ = false;
};

TEST_F(AgentTunnelTest, CarriesMegabytesThroughFullBuffersBeforeTheEnd) {
  constexpr std::size_t kBytes = 9'000'001;
  const std::string down = pattern(kBytes);
  std::string received;
  std::atomic<bool> has_received = false;
  TlsServer server(good_host(), [&](SSL* connection) {
    received = read_all(connection);
    has_received = true;
  });
  dial(server.port());
  std::size_t sent = 0;
  // The server does not read before the handshake, so the buffers fill up.
  ASSERT_TRUE(run_until(loop_, [&] {
    const ssize_t count =
        send(end_, down.data() + sent, down.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) sent += static_cast<std::size_t>(count);
    return sent == down.size();
  }));
  EXPECT_TRUE(shared_state_->snapshot().verdict.is_verified);
  close(std::exchange(end_, -1));
  ASSERT_TRUE(run_until(loop_, [&] { return tunnel_.expired(); })) << "the tunnel still exists";
  ASSERT_TRUE(run_until(loop_, [&] { return has_received.load(); }));
  EXPECT_EQ(received, down);
}

TEST_F(AgentTunnelTest, DeliversEverythingAndThenTheEndToAReaderThatPauses) {
  const std::string up = pattern(5'000'000);
  TlsServer server(good_host(), [&](SSL* connection) {
    SSL_write(connection, up.data(), static_cast<int>(up.size()));
  });
  dial(server.port());
  ASSERT_TRUE(run_until(loop_, [&] { return shared_state_->snapshot().is_connected; }));
  for (int i = 0; i < 50; ++i) loop_.poll();
  std::string got;
  ASSERT_TRUE(run_until(loop_, [&] {
    got += take();
    return has_ended_;
  }));
  EXPECT_EQ(got, up);
}

TEST_F(AgentTunnelTest, ReadsNothingFromGrpcBeforeTheAgentIsVerified) {
  std::string received = "nothing yet";
  {
    TlsServer server(good_host(), [&](SSL* connection) { received = read_all(connection); });
    dial(server.port(), "node2");
    ASSERT_EQ(send(end_, "secret", 6, MSG_NOSIGNAL), 6);
    expect_failure("Handshake failed");
  }
  ASSERT_TRUE(shared_state_->snapshot().verdict.rejection.has_value());
  EXPECT_NE(shared_state_->snapshot().verdict.rejection->message.find("node2"), std::string::npos)
      << shared_state_->snapshot().verdict.rejection->message;
  EXPECT_FALSE(shared_state_->snapshot().verdict.is_verified);
  EXPECT_EQ(received.find("secret"), std::string::npos);
}

TEST_F(AgentTunnelTest, RejectsOtherAuthoritiesUsersAndExpiredHosts) {
  const TestAuthority other;
  const KeyAndCertificate strangers[] = {other.host("node1", {"node1"}), authority().user("node1"),
                                         authority().expired_host("node1")};
  for (const KeyAndCertificate& stranger : strangers) {
    const TlsServer server(stranger, [](SSL* connection) { read_all(connection); });
    dial(server.port());
    expect_failure("Handshake failed");
    EXPECT_TRUE(shared_state_->snapshot().verdict.rejection.has_value());
    close(std::exchange(end_, -1));
    has_ended_ = false;
  }
}

TEST_F(AgentTunnelTest, RejectsAnOlderTls) {
  const TlsServer server(good_host(), [](SSL* connection) { read_all(connection); },
                         {.newest = TLS1_2_VERSION});
  dial(server.port());
  expect_failure("Handshake failed");
  EXPECT_FALSE(server.has_finished_handshake());
}

TEST_F(AgentTunnelTest, RejectsAServerWithoutHttp2) {
  std::string received;
  {
    TlsServer server(good_host(), [&](SSL* connection) { received = read_all(connection); },
                     {.speaks_http2 = false});
    dial(server.port());
    ASSERT_EQ(send(end_, "secret", 6, MSG_NOSIGNAL), 6);
    expect_failure("HTTP/2");
  }
  EXPECT_EQ(received, "");
}

TEST_F(AgentTunnelTest, IsNotConnectedIfThePeerClosesWithoutSending) {
  const TlsServer server(good_host(), [](SSL*) {});
  dial(server.port());
  expect_failure("Socket closed");
  EXPECT_TRUE(shared_state_->snapshot().verdict.is_verified)
      << "the server rejected our certificate";
}

TEST_F(AgentTunnelTest, ClosesATunnelThatIsAbandonedWhileConnecting) {
  // The listener's queue soon is full, and it never accepts.
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  dial(ntohs(address.sin_port));
  for (int i = 0; i < 10; ++i) loop_.poll();
  ASSERT_FALSE(tunnel_.expired());
  tunnel_.lock()->give_up();
  EXPECT_TRUE(run_until(loop_, [&] { return tunnel_.expired(); }));
  take();
  EXPECT_TRUE(has_ended_);
  close(listener);
}

TEST_F(AgentTunnelTest, NamesAKeyOfAnotherCertificate) {
  AgentIdentity own_identity;
  own_identity.anchor = authority().anchor();
  own_identity.certificate_pem = authority().user("alice").certificate_pem;
  own_identity.key_pem = authority().user("bob").key_pem;
  const auto tls = AgentTls::make(own_identity);
  ASSERT_FALSE(tls.ok());
  EXPECT_NE(tls.error().message.find("certificate and key"), std::string::npos);
}

}  // namespace
}  // namespace ivy
