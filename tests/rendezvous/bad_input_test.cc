// SPDX-License-Identifier: Apache-2.0
// Bad input to a real store. The sender gets a typed error or is disconnected, and a healthy client
// that waits and works in both dialects at the same time is not affected.
#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "tests/rendezvous/server_thread.h"
#include "tests/rendezvous/torch_script.h"
#include "tests/support/leak_guard.h"

namespace ivy::store {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::number;
using test::opcode;
using test::RawSocket;
using test::scaled_time;
using test::ServerThread;
using test::text;
using test::word32;

const std::string kHelloC = opcode(0) + word32(0x3C85F7CE);
const std::string kPing = opcode(13) + word32(7);
constexpr std::uint64_t kAlmostAll = 1'300'000'000'000;  // 1.3 TB, seen in practice.

std::string native_frame(Op op, const std::string& payload) {
  std::string out;
  append_frame(out, {static_cast<std::uint8_t>(op), 1}, payload);
  return out;
}

template <class T>
T or_else(Result<T> result, T otherwise) {
  return result.ok() ? std::move(result).value() : otherwise;
}

// Waits for a key in both dialects during its whole lifetime, and works in between. The destructor
// fails the test if any of that was disturbed.
class HealthyClient {
 public:
  explicit HealthyClient(const ServerThread& server)
      : works_(server.client(1)),
        waits_(server.client(2)),
        torch_(server.torch_port),
        torch_waits_(server.torch_port) {
    torch_waits_.send(kHelloC + opcode(6) + test::keys({"/at the end"}));
    waiting_ = std::thread([this] {
      got_ = or_else<std::string>(waits_->wait_get("at the end", scaled_time(60s)), "nothing");
    });
    torch_.send(kHelloC + kPing);
    EXPECT_EQ(torch_.receive(4), word32(7));
  }
  ~HealthyClient() {
    work();
    EXPECT_TRUE(works_->set("at the end", "value").ok());
    torch_.send(opcode(1) + text("/at the end") + text("value"));
    waiting_.join();
    EXPECT_EQ(got_, "value");
    EXPECT_EQ(torch_waits_.receive(1), std::string(1, '\0'));
  }
  HealthyClient(const HealthyClient&) = delete;
  HealthyClient& operator=(const HealthyClient&) = delete;

  // The client never repeats add(), so each answer comes from the first connection.
  void work() {
    rounds_ += 1;
    EXPECT_EQ(or_else<std::int64_t>(works_->add("rounds", 1), -1), rounds_);
    torch_.send(opcode(4) + text("/rounds") + number(1));
    EXPECT_EQ(torch_.receive(8), number(rounds_));
  }

 private:
  std::unique_ptr<Client> works_;
  std::unique_ptr<Client> waits_;
  RawSocket torch_;
  RawSocket torch_waits_;
  std::thread waiting_;
  std::string got_;
  std::int64_t rounds_ = 0;
};

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

class BadInputTest : public testing::Test {
 protected:
  test::LeakGuard leaks_;
};

// ---- Connections -------------------------------------------------------------------------------

TEST_F(BadInputTest, ClosesConnectionsOfPortScanners) {
  ServerThread server;
  {
    HealthyClient healthy_client(server);
    const std::size_t before = server.connections();
    for (int i = 0; i < 300; ++i) {
      const RawSocket scanner(i % 2 == 0 ? server.native_port : server.torch_port);
      // Some send a few bytes, some reset the connection.
      if (i % 3 == 0) scanner.send(i % 2 == 0 ? "IV" : std::string("\0", 1));
      const linger reset{1, 0};
      if (i % 5 == 0) setsockopt(scanner.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      if (i % 50 == 0) healthy_client.work();
    }
    EXPECT_TRUE(eventually([&] { return server.connections() == before; }));
  }
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
  EXPECT_EQ(server.log(), "") << "a scanner must not be logged";
}

// Slowloris: sends a greeting, a frame and a torch request one byte at a time.
TEST_F(BadInputTest, ServesOthersDuringByteByByteSenders) {
  ServerThread server;
  HealthyClient healthy_client(server);
  constexpr int kCrowd = 60;
  std::vector<std::unique_ptr<RawSocket>> greeting;
  std::vector<std::unique_ptr<RawSocket>> native;
  std::vector<std::unique_ptr<RawSocket>> torch;
  for (int i = 0; i < kCrowd; ++i) {
    greeting.push_back(std::make_unique<RawSocket>(server.native_port));
    native.push_back(std::make_unique<RawSocket>(server.native_port));
    ASSERT_TRUE(native.back()->greet());
    torch.push_back(std::make_unique<RawSocket>(server.torch_port));
  }
  std::string pair;
  put_text(pair, "slow key");
  put_text(pair, "slow value");
  const std::string frame = native_frame(Op::kSet, pair);
  const std::string request = kHelloC + opcode(1) + text("/slow key") + text("slow value") + kPing;
  const std::string hello = "IVYS\2";
  for (std::size_t at = 0; at < std::max(frame.size(), request.size()); ++at) {
    for (int i = 0; i < kCrowd; ++i) {
      const auto client_index = static_cast<std::size_t>(i);
      if (at < hello.size()) greeting[client_index]->send(hello.substr(at, 1));
      if (at < frame.size()) native[client_index]->send(frame.substr(at, 1));
      if (at < request.size()) torch[client_index]->send(request.substr(at, 1));
    }
    healthy_client.work();
  }
  // Slow clients are valid: each is served after its last byte.
  for (const auto& one : native) EXPECT_EQ(one->receive(9).size(), 9u);
  for (const auto& one : torch) EXPECT_EQ(one->receive(4), word32(7));
  EXPECT_EQ(or_else<std::string>(server.client()->get("slow key"), ""), "slow value");
}

TEST_F(BadInputTest, RejectsTokensOfOtherJobs) {
  ServerThread server;
  const HealthyClient healthy_client(server);
  const std::string other_job(32, '9');
  const std::string other_token(32, '9');
  for (const auto& [job, token] : std::vector<std::pair<std::string, std::string>>{
           {test::kJobId, std::string(32, 'x')},  // A wrong token.
           {test::kJobId, other_token},           // This job with another job's token.
           {other_job, other_token},              // Another job.
           {other_job, test::kToken},
           {test::kJobId, ""}}) {
    ClientOptions options = server.options();
    options.job_id = job;
    options.token = token;
    const auto rejected = Client::connect(options);
    ASSERT_FALSE(rejected.ok()) << job;
    EXPECT_EQ(rejected.error().code, Code::kUnauthenticated) << rejected.error().message;
  }
}

// The hello and proof of one connection must not authenticate another, and neither may the store's
// own answer if it is sent back.
TEST_F(BadInputTest, RejectsAReplayedGreeting) {
  ServerThread server;
  const HealthyClient healthy_client(server);
  HandshakeHello hello;
  hello.purpose = "store";
  hello.job_id = test::kJobId;
  hello.nonce = random_bytes(kNonceBytes);
  const std::string first_words = encode_hello(hello);
  const RawSocket genuine(server.native_port);
  genuine.send(first_words);
  const std::string challenge = genuine.receive(kChallengeBytes);
  const std::string proof = make_proof(first_words, challenge, test::kToken);
  genuine.send(proof);
  ASSERT_EQ(genuine.receive(9).size(), 9u);
  for (const std::string& second_words :
       {proof, challenge.substr(kNonceBytes + kEpochBytes), std::string(kProofBytes, '\0')}) {
    const RawSocket replayed(server.native_port);
    replayed.send(first_words);
    const std::string fresh = replayed.receive(kChallengeBytes);
    ASSERT_EQ(fresh.size(), kChallengeBytes);
    EXPECT_NE(fresh.substr(0, kNonceBytes), challenge.substr(0, kNonceBytes));
    replayed.send(second_words);
    EXPECT_TRUE(replayed.is_hung_up());
  }
  // Sends everything in one piece, as a replayed recording would.
  const RawSocket recording(server.native_port);
  recording.send(first_words + proof + native_frame(Op::kWhy, ""));
  EXPECT_EQ(recording.receive(kChallengeBytes + 1).size(), kChallengeBytes) << "only the challenge";
}

// ---- Requests ----------------------------------------------------------------------------------

TEST_F(BadInputTest, AllocatesNothingForImpossibleLengths) {
  ServerThread server;
  HealthyClient healthy_client(server);
  const auto huge = number(static_cast<std::int64_t>(kAlmostAll));
  const auto all = number(std::numeric_limits<std::int64_t>::max());
  const std::string most(8, '\xff');
  std::vector<std::string> torch;
  for (const std::string& length : {huge, all, most}) {
    torch.push_back(opcode(1) + length);                                        // A key.
    torch.push_back(opcode(1) + text("/a") + length);                           // A value.
    torch.push_back(opcode(2) + text("/a") + text("b") + length);               // The third text.
    torch.push_back(opcode(6) + length);                                        // Keys to wait for.
    torch.push_back(opcode(10) + length);                                       // Keys to get.
    torch.push_back(opcode(11) + length);                                       // Entries.
    torch.push_back(opcode(11) + number(2) + text("/a") + text("b") + length);  // The second key.
  }
  std::vector<std::string> native = {"\xff\xff\xff\xff", word32(kMaxFrameBytes + 1) + "\1"};
  native.push_back(native_frame(Op::kGet, std::string("\xff\xff\xff\xff", 4)));
  native.push_back(native_frame(Op::kSet, word32(1) + "a" + std::string("\xff\xff\xff\x7f", 4)));
  const std::size_t before = resident_bytes();
  for (const std::string& bytes : torch) {
    const RawSocket one(server.torch_port);
    one.send(kHelloC + bytes);
    EXPECT_TRUE(one.is_hung_up());
  }
  for (const std::string& bytes : native) {
    const RawSocket one(server.native_port);
    ASSERT_TRUE(one.greet());
    one.send(bytes);
    EXPECT_TRUE(one.is_hung_up());
  }
  EXPECT_LT(resident_bytes(), before + (64u << 20));
  healthy_client.work();
  EXPECT_EQ(server.client()->get("a").error().code, Code::kNotFound)
      << "no request was executed partly";
}

// The client does not check sizes. The store reports excessive ones, and the connection stays open.
TEST_F(BadInputTest, ReportsLimitsAsTypedErrorsInTheNativeDialect) {
  ServerThread server;
  HealthyClient healthy_client(server);
  const auto client = server.client();
  const std::string key(kMaxKeyBytes, 'k');
  const std::string value(kMaxValueBytes, 'v');
  const std::string too_long_key = key + "k";
  const std::string too_long_value = value + "v";
  EXPECT_TRUE(client->set(key, value).ok());
  EXPECT_EQ(or_else<std::string>(client->get(key), ""), value);
  const auto expect_rejected = [&](const auto& result) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, Code::kInvalidArgument) << result.error().message;
    healthy_client.work();
  };
  expect_rejected(client->set(too_long_key, ""));
  expect_rejected(client->set("k", too_long_value));
  expect_rejected(client->set_once(too_long_key, ""));
  // Keys of this length cannot exist.
  EXPECT_EQ(client->get(too_long_key).error().code, Code::kNotFound);
  EXPECT_FALSE(or_else(client->remove(too_long_key), true));
  expect_rejected(client->wait({"k", too_long_key}, 100ms));
  expect_rejected(client->wait_get(too_long_key, 100ms));
  expect_rejected(client->check({too_long_key}));
  expect_rejected(client->add(too_long_key, 1));
  expect_rejected(client->compare_set("k", std::nullopt, too_long_value));
  expect_rejected(client->append(key, "v"));
  expect_rejected(client->multi_get({"k", too_long_key}));
  expect_rejected(client->multi_set({{"fine", "1"}, {"k", too_long_value}}));
  expect_rejected(client->push(too_long_key, ""));
  expect_rejected(client->push("q", too_long_value));
  expect_rejected(client->pop(too_long_key, 100ms));
  expect_rejected(client->barrier(too_long_key, 2, 0, 100ms));
  const std::vector<std::string> most(kMaxKeysPerRequest, "none");
  std::vector<std::string> too_many = most;
  too_many.emplace_back("none");
  EXPECT_FALSE(or_else(client->check(most), true));
  expect_rejected(client->check(too_many));
  // Larger than a frame: rejected before any byte is sent.
  expect_rejected(
      client->multi_set(std::vector<std::pair<std::string, std::string>>(9, {"k", value})));
  EXPECT_EQ(client->get("k").error().code, Code::kNotFound);
  EXPECT_EQ(client->get("fine").error().code, Code::kNotFound) << "multi_set is atomic";
}

TEST_F(BadInputTest, ClosesTorchConnectionsBeyondALimit) {
  ServerThread server;
  const std::string key(kMaxKeyBytes, 'k');
  const std::string value(kMaxValueBytes, 'v');
  const RawSocket fine(server.torch_port);
  ASSERT_TRUE(fine.send(kHelloC + opcode(1) + text(key) + text(value) + kPing));
  EXPECT_EQ(fine.receive(4), word32(7));
  const std::vector<std::pair<std::string, std::string>> table = {
      {opcode(1) + text(key + "k") + text(""), "a key of 8193 bytes is longer than 8192"},
      {opcode(3) + text(key + "k"), "a key of 8193 bytes is longer than 8192"},
      {opcode(1) + text("/k") + number(kMaxValueBytes + 1), "bytes is longer than 8388608"},
      {opcode(9) + text(key) + text("v"), "bytes is longer than 8388608"},
      {opcode(5) + number(kMaxKeysPerRequest + 1), "a request with 131073 keys; at most 131072"},
      {opcode(40), "request number 40 is unknown"},
      {kHelloC, "a second greeting"},
  };
  for (const auto& [bytes, why] : table) {
    const std::string& reason = why;  // Clang 14 cannot capture structured bindings.
    // A separate store for each case, because a log has a limit of lines for each quarter second.
    ServerThread other;
    const HealthyClient not_concerned(other);
    const RawSocket one(other.torch_port);
    one.send(kHelloC + opcode(1) + text(key) + text(value) + bytes);
    EXPECT_TRUE(one.is_hung_up()) << reason;
    EXPECT_TRUE(eventually([&] { return other.log().find(reason) != std::string::npos; }))
        << reason << "\n"
        << other.log();
  }
}

TEST_F(BadInputTest, RejectsAddsToInvalidNumbers) {
  ServerThread server;
  HealthyClient healthy_client(server);
  const auto client = server.client();
  for (const char* text_of_key :
       {"x", "", "1.5", "0x10", " 1", "1 ", "+1", "9223372036854775808"}) {
    ASSERT_TRUE(client->set("n", text_of_key).ok());
    const auto sum = client->add("n", 1);
    ASSERT_FALSE(sum.ok()) << text_of_key;
    EXPECT_EQ(sum.error().code, Code::kInvalidArgument);
    EXPECT_EQ(or_else<std::string>(client->get("n"), "?"), text_of_key)
        << "the value must not change";
  }
  ASSERT_TRUE(client->set("n", "9223372036854775807").ok());
  EXPECT_EQ(client->add("n", 1).error().code, Code::kInvalidArgument);
  // torch's protocol has no errors, so the connection is closed.
  const RawSocket torch(server.torch_port);
  torch.send(kHelloC + opcode(1) + text("/n") + text("no number") + opcode(4) + text("/n") +
             number(1));
  EXPECT_TRUE(torch.is_hung_up());
  EXPECT_NE(server.log().find("its value is not a number"), std::string::npos) << server.log();
}

}  // namespace
}  // namespace ivy::store
