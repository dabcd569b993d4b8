// SPDX-License-Identifier: Apache-2.0
// The pure parts of the agent's front end: first bytes, half-open connections, log lines, options.
#include <gtest/gtest.h>

#include <optional>

#include "agent/daemon/agent_metrics.h"
#include "agent/daemon/jobs/bundle_cache.h"
#include "agent/daemon/net/agent_credentials.h"
#include "agent/daemon/net/agent_log.h"
#include "agent/daemon/net/handshake_limiter.h"
#include "agent/daemon/net/tls_detection.h"
#include "agent/daemon/options.h"
#include "proto/os/process.h"
#include "tests/agent/agent_hello.h"

namespace ivy::test {
namespace {

using namespace std::chrono_literals;
using Verdict = TlsDetection::Kind;

// ---- First bytes
// --------------------------------------------------------------------------------------

struct Greeting {
  const char* name;
  std::string bytes;
  Verdict verdict;
  const char* what;  // Part of the description.
};

class TlsDetectionTest : public ::testing::TestWithParam<Greeting> {};

TEST_P(TlsDetectionTest, NamesOtherProtocols) {
  const TlsDetection detected = detect_tls13(GetParam().bytes);
  EXPECT_EQ(detected.kind, GetParam().verdict) << detected.what;
  EXPECT_NE(detected.what.find(GetParam().what), std::string::npos) << detected.what;
}

INSTANTIATE_TEST_SUITE_P(
    Greetings, TlsDetectionTest,
    ::testing::Values(
        Greeting{"tls13", client_hello(), Verdict::kTls13, ""},
        Greeting{"tls13_among_others", client_hello({0x0a0a, 0x0303, 0x0304}), Verdict::kTls13, ""},
        Greeting{"large_hello", client_hello({0x0304}, 12'000), Verdict::kTls13, ""},
        Greeting{"tls12_without_list", client_hello({}), Verdict::kOther, "older than 1.3"},
        Greeting{"tls12_with_list", client_hello({0x0303}), Verdict::kOther, "older than 1.3"},
        Greeting{"only_tls14", client_hello({0x0305}), Verdict::kOther, "older than 1.3"},
        Greeting{"alert_record", std::string("\x15\x03\x01\x00\x02\x02\x28", 7), Verdict::kOther,
                 "not TLS"},
        Greeting{"server_hello", number(0x16, 1) + number(0x0303, 2) + with_length("\x02zzzz", 2),
                 Verdict::kOther, "ClientHello"},
        Greeting{"no_length", number(0x16, 1) + number(0x0303, 2) + number(0, 2), Verdict::kOther,
                 "record of 0 bytes"},
        Greeting{"too_long", number(0x16, 1) + number(0x0303, 2) + number(16'385, 2),
                 Verdict::kOther, "16385"},
        Greeting{
            "in_pieces",
            number(0x16, 1) + number(0x0301, 2) + with_length("\x01" + number(900, 3) + "a", 2),
            Verdict::kOther, "several records"},
        Greeting{"damaged",
                 number(0x16, 1) + number(0x0301, 2) +
                     with_length("\x01" + with_length(std::string(40, 'x'), 3), 2),
                 Verdict::kOther, "damaged"},
        Greeting{"http2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Verdict::kOther, "plaintext HTTP/2"},
        Greeting{"http", "GET / HTTP/1.1\r\n", Verdict::kOther, "HTTP request"},
        Greeting{"post", "POST /x HTTP/1.1\r\n", Verdict::kOther, "HTTP request"},
        Greeting{"ssh", "SSH-2.0-OpenSSH_9.2\r\n", Verdict::kOther, "SSH"},
        Greeting{"escapes", "\x1b]0;x\x07", Verdict::kOther, "\\x1b]0;x\\x07"},
        Greeting{"nothing", "", Verdict::kIncomplete, ""},
        Greeting{"four_bytes", client_hello().substr(0, 4), Verdict::kIncomplete, ""},
        Greeting{"all_but_one", client_hello().substr(0, client_hello().size() - 1),
                 Verdict::kIncomplete, ""}),
    [](const auto& tested) { return tested.param.name; });

TEST(TlsDetection, NeedsAsManyBytesAsTheRecordSpecifies) {
  const std::string hello = client_hello();
  EXPECT_EQ(detect_tls13("").needed, kFirstLookBytes);
  EXPECT_EQ(detect_tls13(hello.substr(0, 9)).needed, hello.size());
}

// A hello that is cut or changed at any byte is parsed without reading beyond it (ASan checks
// that).
TEST(TlsDetection, ToleratesDamageAtAnyByte) {
  const std::string hello = client_hello({0x0303, 0x0304}, 3);
  for (std::size_t i = 0; i < hello.size(); ++i) {
    EXPECT_EQ(detect_tls13(hello.substr(0, i)).kind, Verdict::kIncomplete) << i;
    for (const int change : {0x00, 0x01, 0x7f, 0xff}) {
      std::string damaged = hello;
      damaged[i] = static_cast<char>(change);
      const TlsDetection detected = detect_tls13(damaged);
      EXPECT_LE(detected.needed, kMaxHelloBytes) << i;
    }
  }
}

TEST(TlsDetection, ReportsThePeerThatGaveUp) {
  EXPECT_EQ(describe_unfinished(""), "silent");
  EXPECT_NE(describe_unfinished(client_hello().substr(0, 3)).find("after 3 bytes"),
            std::string::npos);
  EXPECT_NE(describe_unfinished("hi\n").find("\"hi\\x0a\""), std::string::npos);
}

// ---- Half-open connections
// ----------------------------------------------------------------------------

const HandshakeLimiter::Time kStart{};

// All connections are open, or only the one with the descriptor `only_open`.
class FakeConnections final : public HandedConnections {
 public:
  bool is_open(const std::string& name, int descriptor) override {
    return !only_open ||
           (name == "a:" + std::to_string(descriptor - 6) && descriptor == *only_open);
  }
  void shut_down(const std::string& name, int) override { ended.push_back(name); }

  std::optional<int> only_open;
  std::vector<std::string> ended;
};

std::string peer(int port, const std::string& address = "10.0.0.1") {
  return address + ":" + std::to_string(port);
}

TEST(HandshakeLimiter, DropsTheOldestOfAnAddressThatHasTooMany) {
  HandshakeLimiter table({.total = 10, .kept_for_proved = 2, .per_address = 2});
  const auto first = table.enter("10.0.0.1", peer(1), kStart);
  table.enter("10.0.0.1", peer(2), kStart);
  const auto other = table.enter("10.0.0.2", peer(1, "10.0.0.2"), kStart);
  EXPECT_TRUE(other.id && !other.evicted);
  const auto third = table.enter("10.0.0.1", peer(3), kStart);
  ASSERT_TRUE(third.id && third.evicted);
  EXPECT_EQ(*third.evicted, *first.id);
  EXPECT_NE(third.why.find("from this address"), std::string::npos);
  EXPECT_FALSE(table.holds(*first.id));
  EXPECT_FALSE(table.hand_over(*first.id, kStart, 9));
  EXPECT_EQ(table.size(), 3u);
}

TEST(HandshakeLimiter, DropsTheOldestOfAllAtTheTotal) {
  HandshakeLimiter table({.total = 2, .kept_for_proved = 0, .per_address = 2});
  const auto first = table.enter("a", "a:1", kStart);
  table.enter("b", "b:1", kStart);
  const auto third = table.enter("c", "c:1", kStart);
  EXPECT_EQ(third.evicted, first.id);
  EXPECT_EQ(table.size(), 2u);
}

TEST(HandshakeLimiter, EvictsTheOldestHandshakeOfTheBusiestAddress) {
  FakeConnections connections;
  HandshakeLimiter table({.total = 4, .kept_for_proved = 0, .per_address = 3}, &connections);
  table.hand_over(*table.enter("honest", "honest:1", kStart).id, kStart, 9);
  for (int port = 1; port <= 3; ++port)
    table.hand_over(*table.enter("flood", peer(port, "flood"), kStart).id, kStart, 9);
  EXPECT_TRUE(table.enter("honest", "honest:2", kStart).id);
  EXPECT_EQ(connections.ended, std::vector<std::string>{"flood:1"});
  EXPECT_EQ(table.size(), 4u);
  // At its own limit an address loses its own oldest connection.
  HandshakeLimiter small({.total = 9, .kept_for_proved = 0, .per_address = 1}, &connections);
  small.hand_over(*small.enter("a", "a:1", kStart).id, kStart, 9);
  EXPECT_TRUE(small.enter("a", "a:2", kStart).id);
  EXPECT_EQ(connections.ended.back(), "a:1");
}

TEST(HandshakeLimiter, ReservesSlotsForAuthenticatedAddresses) {
  FakeConnections connections;
  HandshakeLimiter table({.total = 4, .kept_for_proved = 2, .per_address = 4}, &connections);
  table.enter("known", "known:1", kStart);
  table.mark_proved("known:1");
  for (const char* name : {"a", "b", "c", "d"})
    table.hand_over(*table.enter(name, name + std::string(":1"), kStart).id, kStart, 9);
  EXPECT_EQ(connections.ended, (std::vector<std::string>{"a:1", "b:1"}));
  for (int port = 2; port <= 3; ++port)
    EXPECT_FALSE(table.enter("known", peer(port, "known"), kStart).evicted);
  // Unknown addresses lose connections first, although the known one has more.
  EXPECT_TRUE(table.enter("known", "known:4", kStart).id);
  EXPECT_EQ(connections.ended.back(), "c:1");
}

TEST(HandshakeLimiter, CountsAnIpv6NetworkOfOneHostAsOne) {
  HandshakeLimiter table({.total = 10, .kept_for_proved = 2, .per_address = 2});
  table.enter("2001:db8::1", "[2001:db8::1]:1", kStart);
  table.enter("2001:db8::2:0:0:2", "[2001:db8::2:0:0:2]:1", kStart);
  EXPECT_TRUE(table.enter("2001:db8::ffff", "[2001:db8::ffff]:1", kStart).evicted);
  EXPECT_FALSE(table.enter("2001:db8:0:1::1", "[2001:db8:0:1::1]:1", kStart).evicted);
}

TEST(HandshakeLimiter, RejectsAConnectionIfNoHandshakeCanBeEvicted) {
  HandshakeLimiter table({.total = 2, .kept_for_proved = 0, .per_address = 2, .handshake = 6s});
  for (int port = 1; port <= 2; ++port)
    table.hand_over(*table.enter("a", peer(port, "a"), kStart).id, kStart, 9);
  EXPECT_FALSE(table.enter("b", "b:1", kStart + 1s).id);
  table.expire(kStart + 5999ms);
  EXPECT_FALSE(table.enter("b", "b:1", kStart + 1s).id);
  table.expire(kStart + 6s);
  EXPECT_TRUE(table.enter("b", "b:1", kStart + 6s).id);
  EXPECT_EQ(table.size(), 1u);
}

TEST(HandshakeLimiter, ExpiresAuthenticatedAddresses) {
  HandshakeLimiter table({.total = 1, .kept_for_proved = 0, .per_address = 1});
  table.hand_over(*table.enter("a", "a:1", kStart).id, kStart, 9);
  table.mark_proved("a:2");
  EXPECT_EQ(table.size(), 1u);
  table.mark_proved("a:1");
  EXPECT_EQ(table.size(), 0u);
  EXPECT_TRUE(table.enter("a", "a:3", kStart).id);
}

TEST(HandshakeLimiter, DoesNotCountClosedConnections) {
  FakeConnections connections;
  connections.only_open = 7;
  HandshakeLimiter table({.total = 2, .kept_for_proved = 0, .per_address = 2}, &connections);
  table.hand_over(*table.enter("a", "a:1", kStart).id, kStart, 7);
  table.hand_over(*table.enter("a", "a:2", kStart).id, kStart, 8);
  EXPECT_EQ(table.suspects(), "a:1");
  table.enter("a", "a:3", kStart);
  connections.only_open = 8;
  const auto next = table.enter("a", "a:4", kStart);
  EXPECT_TRUE(next.id && !next.evicted);
  EXPECT_EQ(table.size(), 2u);
}

TEST(HandshakeLimiter, NamesTheConnectionsThatMayBeAffected) {
  HandshakeLimiter table;
  EXPECT_EQ(table.suspects(), "an unknown address");
  table.enter("waits", "waits:1", kStart);
  for (int port = 1; port <= 5; ++port) {
    table.hand_over(*table.enter("a", peer(port, "a"), kStart).id, kStart, 9);
    const std::string expected[]{"a:1", "one of a:1, a:2", "one of a:1, a:2, a:3"};
    if (port <= 3) {
      EXPECT_EQ(table.suspects(), expected[port - 1]);
    }
  }
  EXPECT_EQ(table.suspects(), "one of a:1, a:2, a:3 and 2 more");
}

// ---- Log lines
// ----------------------------------------------------------------------------------------

TEST(AgentLog, EscapesControlCharacters) {
  using agent_log::escaped;
  EXPECT_EQ(escaped("plain äöü €"), "plain äöü €");
  EXPECT_EQ(escaped("a\nb\r\x1b[2J\x7f"), "a\\x0ab\\x0d\\x1b[2J\\x7f");
  EXPECT_EQ(escaped("\xc2\x9b"), "\\xc2\\x9b");           // CSI as one C1 character.
  EXPECT_EQ(escaped("\xff\xc3"), "\\xff\\xc3");           // Not UTF-8; truncated UTF-8.
  EXPECT_EQ(escaped("\xc0\xaf"), "\\xc0\\xaf");           // An overlong '/'.
  EXPECT_EQ(escaped("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // Half of a surrogate pair.
  EXPECT_EQ(escaped(std::string("\0", 1)), "\\x00");
}

TEST(AgentLog, FormatsLinesForTheirReader) {
  using agent_log::Level;
  EXPECT_EQ(agent_log::line(Level::kWarning, "x\ny", false), "ivy-agent: warning: x\\x0ay\n");
  EXPECT_EQ(agent_log::line(Level::kInfo, "x", false), "ivy-agent: x\n");
  EXPECT_EQ(agent_log::line(Level::kError, "x", true), "<3>x\n");
  EXPECT_EQ(agent_log::line(Level::kInfo, "x", true), "<6>x\n");
  const std::string cut = agent_log::line(Level::kInfo, std::string(9000, 'x'), false);
  EXPECT_LT(cut.size(), 4200u);
  EXPECT_TRUE(cut.ends_with(" [cut]\n"));
}

TEST(AgentLog, RecognizesFailedHandshakes) {
  EXPECT_EQ(agent_log::handshake_failure("Handshake failed with fatal error SSL_ERROR_SSL: "
                                         "error:0A000065:SSL routines::no suitable key share."),
            "no suitable key share");
  EXPECT_EQ(agent_log::handshake_failure("Handshaker factory creation failed"), "");
}

TEST(AgentLog, LimitsTheRateAndCounts) {
  agent_log::RateLimit limit(3, 2);
  int admitted = 0;
  for (int i = 0; i < 10; ++i) admitted += limit.admit(1000) ? 1 : 0;
  EXPECT_EQ(admitted, 3);
  EXPECT_EQ(limit.take_suppressed(), 7u);
  EXPECT_EQ(limit.take_suppressed(), 0u);
  EXPECT_FALSE(limit.admit(1400));
  EXPECT_TRUE(limit.admit(1500));
  EXPECT_FALSE(limit.admit(1500));
  admitted = 0;
  for (int i = 0; i < 10; ++i) admitted += limit.admit(1'000'000) ? 1 : 0;
  EXPECT_EQ(admitted, 3);
}

// ---- Options
// ------------------------------------------------------------------------------------------

const Environment kHome{{"HOME", "/home/alice"}};

Result<AgentCommand> parse(const std::vector<std::string>& arguments,
                           const Environment& environment = kHome) {
  return parse_agent_command(arguments, environment, 1000);
}
template <class Command>
Command parsed(const std::vector<std::string>& arguments, const Environment& environment = kHome) {
  const auto command = parse(arguments, environment);
  EXPECT_TRUE(command.ok()) << (command.ok() ? "" : command.error().message);
  if (!command.ok() || !std::holds_alternative<Command>(*command)) {
    ADD_FAILURE() << "another command";
    return {};
  }
  return std::get<Command>(*command);
}

TEST(AgentOptions, ReadDirectoriesFromTheEnvironment) {
  auto serve = parsed<ServeCommand>({"serve"});
  EXPECT_EQ(serve.socket_path, "/tmp/ivyrun-1000/agent.sock");
  EXPECT_EQ(serve.state_directory, "/home/alice/.local/state/ivyrun/agent/" + own_host_name());
  EXPECT_TRUE(serve.listen.empty());
  EXPECT_FALSE(serve.insecure_loopback);
  serve = parsed<ServeCommand>({"serve"},
                               {{"XDG_RUNTIME_DIR", "/run/user/1000"}, {"XDG_STATE_HOME", "/s"}});
  EXPECT_EQ(serve.socket_path, "/run/user/1000/ivyrun/agent.sock");
  EXPECT_EQ(serve.state_directory, "/s/ivyrun/agent/" + own_host_name());
  serve = parsed<ServeCommand>({"serve"}, {{"RUNTIME_DIRECTORY", "/run/ivyrun-alice:/run/other"},
                                           {"XDG_RUNTIME_DIR", "/run/user/1000"},
                                           {"STATE_DIRECTORY", "/var/lib/ivyrun/alice"}});
  EXPECT_EQ(serve.socket_path, "/run/ivyrun-alice/agent.sock");
  EXPECT_EQ(serve.state_directory, "/var/lib/ivyrun/alice");
}

// A relative path would mean another directory for each working directory of the agent.
TEST(AgentOptions, IgnoreRelativeXdgPaths) {
  const auto with = [](const char* name, const char* value) {
    return Environment{{name, value}, {"HOME", "/home/alice"}};
  };
  for (const char* relative : {"cache", "./cache", "", "~/cache"}) {
    EXPECT_EQ(BundleCache::default_directory(with("XDG_CACHE_HOME", relative)),
              "/home/alice/.cache/ivyrun")
        << relative;
    EXPECT_EQ(parsed<ServeCommand>({"serve"}, with("XDG_STATE_HOME", relative)).state_directory,
              "/home/alice/.local/state/ivyrun/agent/" + own_host_name())
        << relative;
    EXPECT_EQ(certificate_directories("", with("XDG_CONFIG_HOME", relative)).back(),
              "/home/alice/.config/ivyrun/agent")
        << relative;
    EXPECT_EQ(parsed<ServeCommand>({"serve"}, with("XDG_RUNTIME_DIR", relative)).socket_path,
              "/tmp/ivyrun-1000/agent.sock")
        << relative;
  }
  EXPECT_EQ(BundleCache::default_directory(with("XDG_CACHE_HOME", "/c")), "/c/ivyrun");
  EXPECT_EQ(certificate_directories("", with("XDG_CONFIG_HOME", "/c")).back(), "/c/ivyrun/agent");
}

TEST(AgentOptions, ParseTheFlagsOfServe) {
  const auto serve =
      parsed<ServeCommand>({"serve", "--listen", "7411", "--listen", "[::1]:7412", "--certificates",
                            "/c", "--socket", "/s", "--state=/t", "--insecure-loopback", "0",
                            "--user-name", "bob", "--metrics-file", "/m"});
  ASSERT_EQ(serve.listen.size(), 2u);
  EXPECT_EQ(serve.listen[0], (ListenAddress{"", 7411}));
  EXPECT_EQ(serve.listen[1], (ListenAddress{"::1", 7412}));
  EXPECT_EQ(serve.certificates, "/c");
  EXPECT_EQ(serve.socket_path, "/s");
  EXPECT_EQ(serve.state_directory, "/t");
  EXPECT_EQ(serve.insecure_loopback, 0);
  EXPECT_EQ(serve.user_name, "bob");
  EXPECT_EQ(serve.metrics_file, "/m");
}

TEST(AgentOptions, RejectInvalidValues) {
  const std::vector<std::vector<std::string>> wrong{
      {},
      {"sing"},
      {"serve", "--socket", "relative"},
      {"serve", "--state", "relative"},
      {"serve", "--metrics-file", "relative"},
      {"serve", "--listen", "node1:7411"},
      {"serve", "--listen", "10.0.0.1:x"},
      {"serve", "--listen", "::1:7411"},
      {"serve", "--listen", "10.0.0.1:70000"},
      {"serve", "--insecure-loopback", "0.0.0.0"},
      {"serve", "more"},
      {"drain", "--undo", "--stop"},
      {"drain", "--wait", "-1"},
  };
  for (const auto& arguments : wrong) {
    const auto command = parse(arguments);
    std::string typed;
    for (const std::string& argument : arguments) typed += argument + " ";
    ASSERT_FALSE(command.ok()) << typed;
    EXPECT_EQ(command.error().code, Code::kInvalidArgument) << typed;
    EXPECT_FALSE(command.error().message.empty()) << typed;
  }
  EXPECT_FALSE(parse({"serve"}, {}).ok());  // No directory for the state.
}

TEST(AgentMetrics, DescribeTheAgentAndItsJobs) {
  agent::v1::FactsReply facts;
  facts.set_version("0.1.0");
  facts.set_architecture("x86_64");
  facts.set_user("alice");
  facts.set_started_at(1796052338);
  facts.set_draining(true);
  agent::v1::ListReply list;
  list.add_jobs()->set_attached(true);
  list.add_jobs()->set_attached(false);
  const std::string without_certificate = agent_metrics_text(facts, list);
  EXPECT_EQ(without_certificate.find("certificate"), std::string::npos);
  facts.set_certificate_expires_at(1803828338);
  const std::string text = agent_metrics_text(facts, list);
  for (const char* sample :
       {"\nivyrun_agent_info{user=\"alice\",version=\"0.1.0\",architecture=\"x86_64\"} 1\n",
        "\nivyrun_agent_start_time_seconds{user=\"alice\"} 1796052338\n",
        "\nivyrun_agent_draining{user=\"alice\"} 1\n", "\nivyrun_agent_jobs{user=\"alice\"} 2\n",
        "\nivyrun_agent_jobs_without_launcher{user=\"alice\"} 1\n",
        "\nivyrun_agent_certificate_expiry_time_seconds{user=\"alice\"} 1803828338\n"})
    EXPECT_NE(text.find(sample), std::string::npos) << sample << "in\n" << text;
}

TEST(AgentOptions, ParseDrainAndStatus) {
  const auto drain = parsed<DrainCommand>({"drain", "--stop", "--wait", "30", "--socket", "/s"});
  EXPECT_TRUE(drain.stop_jobs);
  EXPECT_EQ(drain.wait, 30s);
  EXPECT_EQ(drain.socket_path, "/s");
  EXPECT_TRUE(parsed<DrainCommand>({"drain", "--undo"}).undo);
  EXPECT_EQ(parsed<StatusCommand>({"status"}).socket_path, "");
  EXPECT_FALSE(parsed<StatusCommand>({"status"}).json);
  EXPECT_TRUE(parsed<StatusCommand>({"status", "--json"}).json);
}

TEST(AgentOptions, LeaveCertificateVerbsToTheScript) {
  const std::vector<std::string> words{"cert", "node1", "--serves", "bob"};
  EXPECT_EQ(parsed<CertificateCommand>(words).words, words);
  EXPECT_EQ(parsed<CertificateCommand>({"ca", "--help"}).words.front(), "ca");
}

TEST(AgentOptions, ListTheVerbsWhenNoneIsGiven) {
  const auto nothing = parse({});
  ASSERT_FALSE(nothing.ok());
  EXPECT_EQ(nothing.error().message, "no verb given");
  EXPECT_NE(nothing.error().fix.find("serve, status, drain"), std::string::npos);
}

TEST(AgentOptions, SuggestTheIntendedVerb) {
  const auto wrong = parse({"serv", "--listen", "7411"});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().message, "unknown verb \"serv\"");
  EXPECT_EQ(wrong.error().fix, "ivy-agent serve");
  EXPECT_EQ(parse({"anything"}).error().fix, "see `ivy-agent --help`");
  EXPECT_EQ(parse({"serve", "--port", "7"}).error().fix, "see `ivy-agent --help`");
}

TEST(AgentOptions, AcceptCommandsOfTheHelpText) {
  EXPECT_NE(parsed<TextCommand>({"-V"}).text.find("ivy-agent "), std::string::npos);
  EXPECT_NE(parsed<TextCommand>({"--version"}).text.find("ivy-agent "), std::string::npos);
  EXPECT_NE(parsed<TextCommand>({"--help"}).text.find("drain"), std::string::npos);
  EXPECT_NE(parsed<TextCommand>({"serve", "--help"}).text.find("--listen"), std::string::npos);
}

}  // namespace
}  // namespace ivy::test
