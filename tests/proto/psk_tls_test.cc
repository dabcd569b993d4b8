// SPDX-License-Identifier: Apache-2.0
// Both ends of the TLS of a Slurm step, against each other and against peers without the key.
#include "proto/trust/psk_tls.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

namespace ivy::test {
namespace {

using Step = PskStream::Step;
using Side = PskTls::Side;

const std::string kKey(32, 'k');

std::unique_ptr<PskTls> make(Side side, const std::string& identity, const std::string& key) {
  Result<std::unique_ptr<PskTls>> made = PskTls::make(side, identity, key);
  EXPECT_TRUE(made.ok());
  return std::move(made).value();
}

class PskTlsTest : public testing::Test {
 protected:
  PskTlsTest() {
    std::signal(SIGPIPE, SIG_IGN);
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends_), 0);
  }
  ~PskTlsTest() override {
    for (const int end : ends_)
      if (end >= 0) close(end);
  }
  void hang_up(int which) {
    close(ends_[which]);
    ends_[which] = -1;
  }

  // Runs both handshakes until they finish or make no progress.
  static void shake(PskStream& client, PskStream& server, Step& client_end, Step& server_end) {
    client_end = server_end = Step::kWantRead;
    for (int turn = 0; turn < 10; ++turn) {
      if (client_end == Step::kWantRead) client_end = client.do_handshake();
      if (server_end == Step::kWantRead) server_end = server.do_handshake();
    }
  }

  int ends_[2] = {-1, -1};
};

TEST_F(PskTlsTest, IdentifiesThePeersKeyAmongSeveral) {
  const auto server_tls = make(Side::kServer, "hosts", kKey);
  server_tls->add_key("nodes", std::string(32, 'n'));
  const auto client_tls = make(Side::kClient, "nodes", std::string(32, 'n'));
  PskStream client = client_tls->stream(ends_[0]);
  PskStream server = server_tls->stream(ends_[1]);
  EXPECT_EQ(server.identity(), "");
  Step client_end{};
  Step server_end{};
  shake(client, server, client_end, server_end);
  ASSERT_EQ(client_end, Step::kDone) << client.failure();
  ASSERT_EQ(server_end, Step::kDone) << server.failure();
  EXPECT_EQ(server.identity(), "nodes");
}

TEST_F(PskTlsTest, RejectsAKeyUnderAnotherIdentity) {
  const auto server_tls = make(Side::kServer, "hosts", kKey);
  server_tls->add_key("nodes", std::string(32, 'n'));
  const auto client_tls = make(Side::kClient, "hosts", std::string(32, 'n'));
  PskStream client = client_tls->stream(ends_[0]);
  PskStream server = server_tls->stream(ends_[1]);
  Step client_end{};
  Step server_end{};
  shake(client, server, client_end, server_end);
  EXPECT_EQ(server_end, Step::kBroken);
}

TEST_F(PskTlsTest, ExchangesDataBetweenHoldersOfTheKey) {
  const auto client_tls = make(Side::kClient, "job", kKey);
  const auto server_tls = make(Side::kServer, "job", kKey);
  PskStream client = client_tls->stream(ends_[0]);
  PskStream server = server_tls->stream(ends_[1]);
  Step client_end{};
  Step server_end{};
  shake(client, server, client_end, server_end);
  ASSERT_EQ(client_end, Step::kDone) << client.failure();
  ASSERT_EQ(server_end, Step::kDone) << server.failure();
  // Fits into the bytes allowed before authentication (launcher/links/srun/dial_back_stream.h).
  EXPECT_LT(server.received_bytes(), 450u);

  std::size_t count = 0;
  ASSERT_EQ(client.write("up", count), Step::kDone);
  EXPECT_EQ(count, 2u);
  char buffer[16];
  ASSERT_EQ(server.read(buffer, sizeof buffer, count), Step::kDone);
  EXPECT_EQ(std::string(buffer, count), "up");
  EXPECT_EQ(server.read(buffer, sizeof buffer, count), Step::kWantRead);
  ASSERT_EQ(server.write("down", count), Step::kDone);
  ASSERT_EQ(client.read(buffer, sizeof buffer, count), Step::kDone);
  EXPECT_EQ(std::string(buffer, count), "down");
  client.send_close_notify();
  EXPECT_EQ(server.read(buffer, sizeof buffer, count), Step::kEnded);
}

TEST_F(PskTlsTest, TreatsAMissingCloseNotifyAsTheEnd) {
  const auto client_tls = make(Side::kClient, "job", kKey);
  const auto server_tls = make(Side::kServer, "job", kKey);
  PskStream client = client_tls->stream(ends_[0]);
  PskStream server = server_tls->stream(ends_[1]);
  Step client_end{};
  Step server_end{};
  shake(client, server, client_end, server_end);
  hang_up(0);
  char buffer[16];
  std::size_t count = 0;
  EXPECT_EQ(server.read(buffer, sizeof buffer, count), Step::kEnded);
}

TEST_F(PskTlsTest, BothEndsRejectAnotherKey) {
  const auto client_tls = make(Side::kClient, "job", std::string(32, 'x'));
  const auto server_tls = make(Side::kServer, "job", kKey);
  PskStream client = client_tls->stream(ends_[0]);
  PskStream server = server_tls->stream(ends_[1]);
  Step client_end{};
  Step server_end{};
  shake(client, server, client_end, server_end);
  EXPECT_EQ(client_end, Step::kBroken);
  EXPECT_EQ(server_end, Step::kBroken);
  EXPECT_FALSE(server.failure().empty());
}

TEST_F(PskTlsTest, BothEndsRejectAnotherJob) {
  const auto client_tls = make(Side::kClient, "another job", kKey);
  const auto server_tls = make(Side::kServer, "job", kKey);
  PskStream client = client_tls->stream(ends_[0]);
  PskStream server = server_tls->stream(ends_[1]);
  Step client_end{};
  Step server_end{};
  shake(client, server, client_end, server_end);
  EXPECT_EQ(client_end, Step::kBroken);
  EXPECT_EQ(server_end, Step::kBroken);
}

// The server has some certificate and ignores the offered key. OpenSSL accepts that unless
// verification is on.
TEST_F(PskTlsTest, RejectsACertificateInsteadOfTheKey) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"),
                                                                &EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), &X509_free);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  ASSERT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_server_method()),
                                                                  &SSL_CTX_free);
  ASSERT_EQ(SSL_CTX_use_certificate(context.get(), certificate.get()), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(context.get(), key.get()), 1);
  const std::unique_ptr<SSL, decltype(&SSL_free)> impostor(SSL_new(context.get()), &SSL_free);
  SSL_set_fd(impostor.get(), ends_[1]);
  SSL_set_accept_state(impostor.get());

  const auto client_tls = make(Side::kClient, "job", kKey);
  PskStream client = client_tls->stream(ends_[0]);
  Step end = Step::kWantRead;
  for (int turn = 0; turn < 10 && end == Step::kWantRead; ++turn) {
    end = client.do_handshake();
    SSL_do_handshake(impostor.get());
  }
  EXPECT_EQ(end, Step::kBroken);
  EXPECT_FALSE(client.failure().empty());
}

// A client without a pre-shared key is rejected at its first message.
TEST_F(PskTlsTest, RejectsAClientWithoutAKey) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  &SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> stranger(SSL_new(context.get()), &SSL_free);
  SSL_set_fd(stranger.get(), ends_[0]);
  SSL_set_connect_state(stranger.get());
  const auto server_tls = make(Side::kServer, "job", kKey);
  PskStream server = server_tls->stream(ends_[1]);
  Step end = Step::kWantRead;
  for (int turn = 0; turn < 10 && end == Step::kWantRead; ++turn) {
    SSL_do_handshake(stranger.get());
    end = server.do_handshake();
  }
  EXPECT_EQ(end, Step::kBroken);
}

TEST_F(PskTlsTest, RejectsGarbage) {
  const auto server_tls = make(Side::kServer, "job", kKey);
  PskStream server = server_tls->stream(ends_[1]);
  EXPECT_EQ(server.do_handshake(), Step::kWantRead);
  EXPECT_EQ(write(ends_[0], "GET / HTTP/1.1\r\n\r\n", 18), 18);
  EXPECT_EQ(server.do_handshake(), Step::kBroken);
}

}  // namespace
}  // namespace ivy::test
