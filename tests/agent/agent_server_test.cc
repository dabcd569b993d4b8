// SPDX-License-Identifier: Apache-2.0
// Callers that are accepted over TLS and over the Unix socket, and log lines about rejected ones.
#include <grpc/grpc_security.h>
#include <netinet/tcp.h>
#include <openssl/conf.h>

#include <cstdlib>
#include <utility>

#include "tests/agent/agent_front_fixture.h"
#include "tests/agent/agent_hello.h"

namespace ivy::test {
namespace {

class AgentServerTest : public AgentFront {};

TEST_F(AgentServerTest, ServesItsUserOverTls) {
  serve();
  const auto alice = authority_.user("alice");
  const std::string serial = read_certificate(alice.certificate_pem)->serial;
  EXPECT_EQ(own_identity(tls_channel(alice)), "user/alice serial " + serial);
}

TEST_F(AgentServerTest, ServesTheUnixSocket) {
  serve();
  agent::v1::FactsReply reply;
  ASSERT_TRUE(ask(unix_channel(), &reply).ok());
  EXPECT_EQ(reply.user(), "unix socket");
  EXPECT_EQ(reply.host_name(), "unix socket");
}

TEST_F(AgentServerTest, DoesNotCountAuthenticatedConnectionsAsHalfOpen) {
  serve();
  ASSERT_EQ(ask(tls_channel(authority_.user("alice"))).error_code(), grpc::StatusCode::OK);
  EXPECT_EQ(half_open_.size(), 0u);
}

// Each sends a valid hello and then nothing: gRPC holds the connection for as long as a handshake
// may take.
TEST_F(AgentServerTest, AcceptsClientsDespiteStalledHandshakes) {
  serve();
  std::vector<int> stalled;
  for (int i = 0; i < 64; ++i) {
    stalled.push_back(connect_raw());
    const std::string hello = client_hello();
    ASSERT_EQ(send(stalled.back(), hello.data(), hello.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(hello.size()));
  }
  // gRPC answers a connection once it has received it.
  EXPECT_TRUE(eventually([&] {
    char byte = 0;
    return recv(stalled.back(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
  }));
  EXPECT_TRUE(ask(tls_channel(authority_.user("alice"))).ok()) << log_.text();
  for (const int descriptor : stalled) close(descriptor);
}

// A call that must not reach the service; the log must contain the reason.
struct RejectedCaller {
  const char* name;
  KeyAndCertificate (*make)(TestAuthority& ours);
  const char* reason;
};

class AgentServerRejects : public AgentFront,
                           public ::testing::WithParamInterface<RejectedCaller> {};

TEST_P(AgentServerRejects, CallersWithAReason) {
  const KeyAndCertificate client = GetParam().make(authority_);
  certificates_.write("ca.crl",
                      authority_.revocation_of(std::string(GetParam().name) == "revoked"
                                                   ? client.certificate_pem
                                                   : authority_.user("x").certificate_pem));
  serve();
  EXPECT_FALSE(ask(tls_channel(client)).ok());
  EXPECT_EQ(service_.calls, 0);
  EXPECT_TRUE(log_.eventually_contains(GetParam().reason)) << log_.text();
  EXPECT_TRUE(log_.eventually_contains("rejected 127.0.0.1:")) << log_.text();
}

INSTANTIATE_TEST_SUITE_P(
    Rejected, AgentServerRejects,
    ::testing::Values(
        RejectedCaller{"none", [](TestAuthority&) { return KeyAndCertificate{}; },
                       "it presented no certificate"},
        RejectedCaller{"foreign",
                       [](TestAuthority&) { return TestAuthority("other").user("alice"); },
                       "not signed"},
        RejectedCaller{"same_name",
                       [](TestAuthority&) { return TestAuthority("test CA").user("alice"); }, ""},
        RejectedCaller{"expired", [](TestAuthority& ours) { return ours.user("alice", -2); },
                       "expired"},
        RejectedCaller{"revoked", [](TestAuthority& ours) { return ours.user("alice"); },
                       "revoked"},
        RejectedCaller{"host", [](TestAuthority& ours) { return ours.host("node2"); },
                       "cannot launch"},
        RejectedCaller{"other_user", [](TestAuthority& ours) { return ours.user("bob"); },
                       "this agent serves only alice"}),
    [](const auto& tested) { return tested.param.name; });

TEST_F(AgentServerTest, VerifiesOpenConnectionsAgainAtEachCall) {
  serve();
  const auto alice = authority_.user("alice");
  const auto through = tls_channel(alice);
  ASSERT_TRUE(ask(through).ok());
  certificates_.write("ca.crl", authority_.revocation_of(alice.certificate_pem));
  reread_certificates();
  const grpc::Status status = ask(through);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_NE(status.error_message().find("revoked"), std::string::npos) << status.error_message();
}

// The new list is empty, as when a copy has just begun or the disk is full.
TEST_F(AgentServerTest, KeepsEarlierRevocationsIfTheNewListIsEmpty) {
  const auto alice = authority_.user("alice");
  certificates_.write("ca.crl", authority_.revocation_of(alice.certificate_pem));
  serve();
  for (const char* content : {"", "\n"}) {
    certificates_.write("ca.crl", content);
    reread_certificates(true);
    EXPECT_FALSE(ask(tls_channel(alice)).ok());
  }
  EXPECT_TRUE(log_.eventually_contains("ca.crl is empty; the previous ones stay in use"))
      << log_.text();
}

TEST_F(AgentServerTest, KeepsUsingARemovedRevocationList) {
  const auto alice = authority_.user("alice");
  certificates_.write("ca.crl", authority_.revocation_of(alice.certificate_pem));
  serve();
  std::filesystem::remove(certificates_ / "ca.crl");
  reread_certificates();
  reread_certificates(true);
  EXPECT_FALSE(ask(tls_channel(alice)).ok());
  const std::string gone = "ca.crl no longer exists: the last revocation list stays in use";
  ASSERT_TRUE(log_.eventually_contains(gone)) << log_.text();
  // The message appears once.
  const std::string text = log_.text();
  EXPECT_EQ(text.find(gone, text.find(gone) + 1), std::string::npos) << text;
  certificates_.write("ca.crl", authority_.revocation_of(authority_.user("bob").certificate_pem));
  reread_certificates();
  EXPECT_TRUE(ask(tls_channel(alice)).ok());
}

// An agent that starts without a list knows no earlier one, and logs that.
TEST_F(AgentServerTest, ReportsAMissingRevocationListAtStart) {
  serve();
  EXPECT_TRUE(
      log_.eventually_contains("ca.crl does not exist, so no certificate is treated as revoked"))
      << log_.text();
}

TEST_F(AgentServerTest, RejectsAKeyThatOthersCanRead) {
  const auto load = [this] {
    return AgentCredentials::load(CertificateFiles{certificates_.path()}, "alice", half_open_);
  };
  const std::string key = certificates_ / "host.key";
  for (const mode_t mode : {0644, 0640, 0604}) {
    ASSERT_EQ(chmod(key.c_str(), mode), 0);
    ASSERT_FALSE(load().ok()) << std::oct << mode;
    EXPECT_NE(load().error().message.find(key), std::string::npos) << load().error().message;
    EXPECT_NE(load().error().fix.find("chmod 600 " + key), std::string::npos);
  }
  ASSERT_EQ(chmod(key.c_str(), 0400), 0);
  EXPECT_TRUE(load().ok());
}

// The message contains the file, the position in it, and the fix.
TEST_F(AgentServerTest, NamesABrokenFileAndItsFault) {
  const auto load = [this] {
    return AgentCredentials::load(CertificateFiles{certificates_.path()}, "alice", half_open_);
  };
  const std::string good = authority_.host().certificate_pem;
  const std::string begin = "-----BEGIN CERTIFICATE-----\n";
  const std::string end = "-----END CERTIFICATE-----\n";
  const struct {
    const char* file;
    std::string content;
    std::string says;
  } cases[] = {
      {"host.crt", begin + "AAAA\n" + end, "is damaged: the text between lines 1 and 3"},
      {"host.crt", good.substr(0, 200), "is truncated"},
      {"host.crt", "hello\n", "is not PEM text"},
      {"ca.crt", begin + "AAAA\n" + end, "is damaged: the text between lines 1 and 3"},
      {"ca.crt", "", "is empty"},
      {"ca.crl", "hello\n", "is not PEM text"},
  };
  for (const auto& [file, content, says] : cases) {
    write_certificates(authority_.host());
    certificates_.write("ca.crt", authority_.certificate());
    certificates_.write(file, content);
    const auto loaded = load();
    ASSERT_FALSE(loaded.ok()) << file << ": " << says;
    const std::string& message = loaded.error().message;
    EXPECT_TRUE(message.starts_with(certificates_ / file)) << message;
    EXPECT_NE(message.find(says), std::string::npos) << message;
    EXPECT_FALSE(loaded.error().fix.empty()) << message;
    std::filesystem::remove(certificates_ / "ca.crl");
  }
}

// Serves a client that tries to resume its session; checks whether the second call did resume it.
class AgentServerSessions : public AgentFront {
 protected:
  void serve_twice(const std::string& expected_reuse);
};

TEST_F(AgentServerSessions, AreDisabled) { serve_twice("false"); }

// An administrator's OpenSSL defaults may enable tickets: a client that resumes a session does not
// present its certificate again.
TEST_F(AgentServerSessions, VerifiesResumedSessionsToo) {
  certificates_.write("openssl.cnf",
                      "openssl_conf = all\n[all]\nssl_conf = contexts\n[contexts]\n"
                      "system_default = tickets\n[tickets]\nNumTickets = 2\n");
  const std::string path = certificates_.path() + "/openssl.cnf";
  setenv("OPENSSL_CONF", path.c_str(), 1);
  // OpenSSL itself reads the file only once in a process.
  ASSERT_EQ(CONF_modules_load_file(path.c_str(), nullptr, 0), 1);
  serve_twice("true");
  unsetenv("OPENSSL_CONF");
}

void AgentServerSessions::serve_twice(const std::string& expected_reuse) {
  serve();
  const auto alice = authority_.user("alice");
  grpc_ssl_session_cache* const cache = grpc_ssl_session_cache_create_lru(4);
  const grpc_arg cached = grpc_ssl_session_cache_create_channel_arg(cache);
  const auto resuming_channel = [&] {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority_.certificate();
    options.pem_private_key = alice.key_pem;
    options.pem_cert_chain = alice.certificate_pem;
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetPointerWithVtable(cached.key, cached.value.pointer.p, cached.value.pointer.vtable);
    return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port_),
                                     grpc::SslCredentials(options), arguments);
  };
  EXPECT_TRUE(ask(resuming_channel()).ok());
  grpc::ClientContext context;
  agent::v1::FactsReply reply;
  ASSERT_TRUE(agent::v1::Agent::NewStub(resuming_channel())->Facts(&context, {}, &reply).ok());
  const auto reused = context.auth_context()->FindPropertyValues("ssl_session_reused");
  ASSERT_EQ(reused.size(), 1u);
  EXPECT_EQ(std::string(reused[0].data(), reused[0].size()), expected_reuse);
  EXPECT_EQ(reply.user().substr(0, 11), "user/alice ");
  certificates_.write("ca.crl", authority_.revocation_of(alice.certificate_pem));
  reread_certificates();
  const int before = service_.calls;
  EXPECT_FALSE(ask(resuming_channel()).ok());
  EXPECT_EQ(service_.calls, before);
  grpc_ssl_session_cache_destroy(cache);
}

TEST_F(AgentServerTest, ServesIpv6) {
  options_.listen = {{"::1", 0}};
  serve();
  grpc::SslCredentialsOptions options;
  const auto alice = authority_.user("alice");
  options.pem_root_certs = authority_.certificate();
  options.pem_private_key = alice.key_pem;
  options.pem_cert_chain = alice.certificate_pem;
  agent::v1::FactsReply reply;
  ASSERT_TRUE(
      ask(channel(grpc::SslCredentials(options), "[::1]:" + std::to_string(port_)), &reply).ok());
  EXPECT_TRUE(reply.host_name().starts_with("[::1]:")) << reply.host_name();
  EXPECT_EQ(half_open_.size(), 0u);
}

TEST_F(AgentServerTest, LoadsANewCertificateWithoutARestart) {
  serve();
  const auto alice = authority_.user("alice");
  const std::int64_t before = credentials_->expires_at();
  const auto kept = tls_channel(alice);
  ASSERT_TRUE(ask(kept).ok());
  const auto renewed = authority_.host("node1", 200);
  write_certificates(renewed);
  reread_certificates();
  EXPECT_GT(credentials_->expires_at(), before);
  EXPECT_TRUE(ask(kept).ok());
  // gRPC's provider checks the files once a second.
  EXPECT_TRUE(eventually([&] {
    grpc::ClientContext context;
    agent::v1::FactsReply reply;
    const auto through = tls_channel(alice);
    if (!agent::v1::Agent::NewStub(through)->Facts(&context, {}, &reply).ok()) return false;
    const auto shown = context.auth_context()->FindPropertyValues("x509_pem_cert");
    return !shown.empty() &&
           std::string(shown.front().data(), shown.front().size()) == renewed.certificate_pem;
  }));
}

TEST_F(AgentServerTest, KeepsItsCertificateIfTheNewFilesAreInvalid) {
  serve();
  certificates_.write("host.key", authority_.host().key_pem);
  reread_certificates();
  EXPECT_TRUE(log_.eventually_contains("is not the key of"));
  EXPECT_TRUE(log_.eventually_contains("the previous ones stay in use"));
  certificates_.write("ca.crt", "nonsense");
  reread_certificates(true);
  EXPECT_TRUE(ask(tls_channel(authority_.user("alice"))).ok());
}

TEST_F(AgentServerTest, WarnsOnceThatItsCertificateExpires) {
  write_certificates(authority_.host("node1", 3));
  serve();
  on_loop([this] {
    credentials_->log_expiry();
    credentials_->log_expiry();
  });
  const std::string text = log_.text();
  const std::size_t first = text.find("expires in");
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("expires in", first + 1), std::string::npos) << text;
}

TEST_F(AgentServerTest, RejectsACertificateThatCannotServe) {
  const auto load = [this] {
    return AgentCredentials::load(CertificateFiles{certificates_.path()}, "alice", half_open_);
  };
  write_certificates(authority_.host("node1", -2));
  EXPECT_NE(load().error().message.find("expired"), std::string::npos) << load().error().message;
  write_certificates(authority_.user("alice"));
  EXPECT_FALSE(load().ok());
  write_certificates(authority_.host("node1", 9, "bob"));
  EXPECT_NE(load().error().message.find("serves only user bob"), std::string::npos);
  write_certificates(authority_.host("node1", 9, "alice"));
  EXPECT_TRUE(load().ok());
  std::filesystem::remove(certificates_ / "host.key");
  EXPECT_EQ(load().error().code, Code::kNotFound);
}

TEST_F(AgentServerTest, ShutsDownInTimeWhateverClientsDo) {
  serve();
  const auto through = tls_channel(authority_.user("alice"));
  grpc::ClientContext context;
  const auto stream = agent::v1::Agent::NewStub(through)->Open(&context);
  ASSERT_TRUE(stream->Write({}));
  ASSERT_TRUE(eventually([this] { return service_.open_calls == 1; }));
  const auto begin = std::chrono::steady_clock::now();
  on_loop([this] { server_->stop_accepting(); });
  server_->shut_down(std::chrono::milliseconds(300));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, scaled_time(std::chrono::milliseconds(1500)));
  EXPECT_EQ(service_.open_calls, 0);
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(AgentServerTest, ServesPlaintextOnlyOnLoopbackAndOnlyOnRequest) {
  options_.listen.clear();
  options_.insecure_loopback = 0;
  serve(false);
  EXPECT_EQ(own_identity(
                channel(grpc::InsecureChannelCredentials(), "127.0.0.1:" + std::to_string(port_))),
            "no certificate (loopback)");
  EXPECT_EQ(own_identity(unix_channel()), "unix socket");
}

// Returns the server's socket of this process's connection to `port`. It recognizes the connection
// by its ports.
int accepted_socket(std::uint16_t port) {
  for (int descriptor = 3; descriptor < 1024; ++descriptor) {
    sockaddr_in local{};
    sockaddr_in remote{};
    socklen_t local_length = sizeof local;
    socklen_t remote_length = sizeof remote;
    if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&local), &local_length) == 0 &&
        getpeername(descriptor, reinterpret_cast<sockaddr*>(&remote), &remote_length) == 0 &&
        local.sin_family == AF_INET && ntohs(local.sin_port) == port)
      return descriptor;
  }
  return -1;
}

TEST_F(AgentServerTest, AllowsTwoMinutesOfSilenceOnASlowLink) {
  serve();
  const auto through = tls_channel(authority_.user("alice"));
  ASSERT_TRUE(ask(through).ok());
  const int descriptor = accepted_socket(port_);
  ASSERT_GE(descriptor, 0);
  int value = 0;
  socklen_t length = sizeof value;
  ASSERT_EQ(getsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &length), 0);
  EXPECT_EQ(value, 120'000);
  ASSERT_EQ(getsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &value, &length), 0);
  EXPECT_EQ(value, 1);
}

// Bounds the bytes on their way within one process: socket buffers and gRPC's own.
TEST_F(AgentServerTest, BuffersLittleOfAStreamThatIsNotRead) {
  serve();
  service_.reads = false;
  const auto through = tls_channel(authority_.user("alice"));
  grpc::ClientContext context;
  const auto stream = agent::v1::Agent::NewStub(through)->Open(&context);
  std::atomic<int> written = 0;
  std::thread writer([&] {
    agent::v1::OpenRequest request;
    request.set_data(std::string(64 * 1024, 'x'));
    while (stream->Write(request)) ++written;
  });
  int before = -1;
  EXPECT_TRUE(eventually([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return std::exchange(before, written.load()) == written.load() && before > 0;
  }));
  // Windows of 256 KiB on both sides, and two messages in hand.
  EXPECT_LE(written, 16) << written * 64 << " KiB";
  context.TryCancel();
  writer.join();
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(AgentServerTest, BuffersLittleForAClientThatDoesNotRead) {
  serve();
  service_.writes = true;
  const auto through = tls_channel(authority_.user("alice"));
  grpc::ClientContext context;
  const auto stream = agent::v1::Agent::NewStub(through)->Open(&context);
  int before = -1;
  EXPECT_TRUE(eventually([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return std::exchange(before, service_.written.load()) == service_.written && before > 0;
  }));
  EXPECT_LE(service_.written, 16) << service_.written * 64 << " KiB";
  context.TryCancel();
  EXPECT_FALSE(stream->Finish().ok());
}

TEST(PlainPeerName, FormatsGrpcsPeerNamesAsAddresses) {
  EXPECT_EQ(plain_peer_name("ipv4:10.0.0.1:99"), "10.0.0.1:99");
  EXPECT_EQ(plain_peer_name("ipv6:%5B::1%5D:99"), "[::1]:99");
  EXPECT_EQ(plain_peer_name("ipv6:[::1]:99"), "[::1]:99");
  EXPECT_EQ(plain_peer_name("unix:"), "unix socket");
  EXPECT_EQ(plain_peer_name("unix:/x%"), "unix socket");
  EXPECT_EQ(plain_peer_name("odd"), "odd");
}

}  // namespace
}  // namespace ivy::test
