// SPDX-License-Identifier: Apache-2.0
// A peer without the token is rejected, even if it replays, reflects, truncates or changes
// messages.
#include "proto/wire/handshake.h"

#include <gtest/gtest.h>

#include "proto/contract/text.h"
#include "proto/wire/store_wire.h"
#include "rendezvous/dialects/connection.h"

namespace ivy {
namespace {

const std::string kJob = "00112233445566778899aabbccddeeff";
const std::string kToken(32, 't');
const std::string kEpoch(kEpochBytes, 'e');

std::string hello(const std::string& purpose = "store", const std::string& job = kJob) {
  HandshakeHello made;
  made.purpose = purpose;
  made.job_id = job;
  made.generation = 3;
  made.rank = 5;
  made.pid = 77;
  made.session = 0x1122334455667788;
  made.nonce = random_bytes(kNonceBytes);
  return encode_hello(made);
}

TEST(HandshakeTest, ProvesBothSides) {
  const std::string greeting = hello();
  ASSERT_EQ(greeting.size(), kHelloBytes);
  const std::string challenge = make_challenge(greeting, kToken, random_bytes(kNonceBytes), kEpoch);
  const auto checked = check_challenge(greeting, challenge, kToken);
  ASSERT_TRUE(checked.ok());
  EXPECT_EQ(checked->epoch, kEpoch);
  const std::string proof = make_proof(greeting, challenge, kToken);
  EXPECT_TRUE(check_proof(greeting, challenge, proof, kToken).ok());
}

// The expected value was computed with Python's hmac and hashlib, so that peers of other builds
// agree.
TEST(HandshakeTest, ComputesTheMacOfTheRfcs) {
  std::string greeting = hello();
  greeting.replace(kHelloBytes - kNonceBytes, kNonceBytes, std::string(kNonceBytes, 'n'));
  const std::string challenge =
      make_challenge(greeting, kToken, std::string(kNonceBytes, 's'), kEpoch);
  EXPECT_EQ(hexadecimal(challenge.substr(kNonceBytes + kEpochBytes)),
            "62bc6a0c0ce8860726c287464727318e4c7f72d8e1c0c095ad3ac3ee9aff0d09");
}

TEST(HandshakeTest, GreetingsKeepTheirFields) {
  const auto decoded = decode_hello(hello());
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->purpose, "store");
  EXPECT_EQ(decoded->job_id, kJob);
  EXPECT_EQ(decoded->generation, 3u);
  EXPECT_EQ(decoded->rank, 5u);
  EXPECT_EQ(decoded->pid, 77u);
  EXPECT_EQ(decoded->session, 0x1122334455667788u);
}

TEST(HandshakeTest, RejectsDamagedGreetings) {
  const std::string good = hello();
  std::string other_version = good;
  other_version[4] = 9;
  EXPECT_EQ(decode_hello(other_version).error().code, Code::kFailedPrecondition);
  EXPECT_NE(decode_hello(other_version).error().message.find("version 9"), std::string::npos);
  for (std::size_t size = 0; size <= good.size(); ++size) {
    EXPECT_TRUE(check_hello_begin(good.substr(0, size)).ok()) << size;
    EXPECT_EQ(check_hello_begin(other_version.substr(0, size)).ok(), size < 6) << size;
  }
  std::string bad_purpose = good;
  bad_purpose[6] = '\x1b';
  EXPECT_EQ(decode_hello(bad_purpose).error().code, Code::kInvalidArgument);
  for (const std::string& bytes :
       {std::string(), good.substr(1), good.substr(0, kHelloBytes - 1), good + "x"})
    EXPECT_EQ(decode_hello(bytes).error().code, Code::kInvalidArgument);
}

TEST(HandshakeTest, RejectsProofsWithoutTheToken) {
  const std::string greeting = hello();
  const std::string other(32, 'x');
  const std::string challenge = make_challenge(greeting, kToken, random_bytes(kNonceBytes), kEpoch);
  EXPECT_EQ(check_challenge(greeting, challenge, other).error().code, Code::kUnauthenticated);
  EXPECT_FALSE(
      check_proof(greeting, challenge, make_proof(greeting, challenge, other), kToken).ok());
  EXPECT_FALSE(check_proof(greeting, challenge, "", kToken).ok());
  EXPECT_FALSE(check_proof(greeting, challenge, std::string(kMacBytes, '\0'), kToken).ok());
}

TEST(HandshakeTest, RejectsReplayedReflectedAndTruncatedProofs) {
  const std::string greeting = hello();
  const std::string challenge = make_challenge(greeting, kToken, random_bytes(kNonceBytes), kEpoch);
  const std::string proof = make_proof(greeting, challenge, kToken);
  const std::string next = make_challenge(greeting, kToken, random_bytes(kNonceBytes), kEpoch);
  EXPECT_FALSE(check_proof(greeting, next, proof, kToken).ok()) << "replayed by a client";
  EXPECT_FALSE(check_challenge(hello(), challenge, kToken).ok()) << "replayed by a server";
  const std::string server_mac = challenge.substr(kNonceBytes + kEpochBytes);
  EXPECT_FALSE(check_proof(greeting, challenge, server_mac, kToken).ok()) << "reflected";
  EXPECT_FALSE(
      check_challenge(greeting, challenge.substr(0, kNonceBytes + kEpochBytes) + proof, kToken)
          .ok())
      << "reflected";
  for (std::size_t size = 0; size < proof.size(); ++size)
    EXPECT_FALSE(check_proof(greeting, challenge, proof.substr(0, size), kToken).ok());
  for (std::size_t size = 0; size < challenge.size(); ++size)
    EXPECT_FALSE(check_challenge(greeting, challenge.substr(0, size), kToken).ok());
}

TEST(HandshakeTest, RejectsAChangeOfAnyByte) {
  const std::string greeting = hello();
  const std::string challenge = make_challenge(greeting, kToken, random_bytes(kNonceBytes), kEpoch);
  const std::string proof = make_proof(greeting, challenge, kToken);
  for (std::size_t i = 0; i < greeting.size(); ++i) {
    std::string bent = greeting;
    bent[i] = static_cast<char>(bent[i] ^ 1);
    EXPECT_FALSE(check_proof(bent, challenge, proof, kToken).ok()) << "greeting, byte " << i;
    EXPECT_FALSE(check_challenge(bent, challenge, kToken).ok()) << "greeting, byte " << i;
  }
  for (std::size_t i = 0; i < challenge.size(); ++i) {
    std::string bent = challenge;
    bent[i] = static_cast<char>(bent[i] ^ 1);
    EXPECT_FALSE(check_challenge(greeting, bent, kToken).ok()) << "challenge, byte " << i;
    EXPECT_FALSE(check_proof(greeting, bent, proof, kToken).ok()) << "challenge, byte " << i;
  }
}

// ---- The server's side --------------------------------------------------------------------------

class GreetingTest : public testing::Test {
 protected:
  // Sends the whole greeting in pieces. Returns an error if the server rejects it.
  Result<void> greet(const std::string& greeting, std::size_t cut, const std::string& token,
                     std::string more = {}) {
    connection = store::make_native_connection(engine, identity, "10.0.0.1:9");
    store::Replies replies;
    IVY_CHECK(feed(greeting, cut, replies));
    if (connection->unsent.size() != kChallengeBytes) return Error{Code::kInternal, "no challenge"};
    const std::string challenge = std::exchange(connection->unsent, {});
    IVY_CHECK(feed(make_proof(greeting, challenge, token) + more, cut, replies));
    for (const store::Reply& reply : replies) IVY_CHECK(connection->reply(reply));
    return {};
  }
  Result<void> feed(const std::string& bytes, std::size_t cut, store::Replies& replies) {
    for (std::size_t at = 0; at < bytes.size(); at += cut)
      IVY_CHECK(connection->receive(std::string_view(bytes).substr(at, cut), 1, replies));
    return {};
  }
  std::string greeting(std::uint32_t generation = 0) {
    HandshakeHello made;
    made.purpose = "store";
    made.job_id = kJob;
    made.generation = generation;
    made.nonce = random_bytes(kNonceBytes);
    return encode_hello(made);
  }

  store::Engine engine;
  const store::StoreIdentity identity{kJob, kToken, kEpoch};
  std::unique_ptr<store::Connection> connection;
};

TEST_F(GreetingTest, ParsesAGreetingInAnyFragments) {
  for (const std::size_t cut : {1, 7, 1000}) {
    std::string ping;
    std::string text;
    store::put_text(text, "x");
    store::append_frame(ping, {static_cast<std::uint8_t>(store::Op::kPing), 1}, text);
    ASSERT_TRUE(greet(greeting(), cut, kToken, ping).ok()) << cut;
    EXPECT_TRUE(connection->is_authenticated());
    std::string wanted;
    store::append_frame(wanted, {0, 0}, {});
    store::append_frame(wanted, {0, 1}, text);
    EXPECT_EQ(connection->unsent, wanted);
  }
}

TEST_F(GreetingTest, GivesAReasonOnlyToAuthenticatedClients) {
  const Result<void> other_token = greet(greeting(), 1000, std::string(32, 'x'));
  EXPECT_EQ(other_token.error().code, Code::kUnauthenticated);
  EXPECT_TRUE(connection->unsent.empty()) << "an unauthenticated client gets no answer";
  EXPECT_FALSE(connection->is_authenticated());
  const Result<void> other_generation = greet(greeting(9), 1000, kToken);
  EXPECT_EQ(other_generation.error().code, Code::kFailedPrecondition);
  EXPECT_NE(connection->unsent.find("generation 9 is not served"), std::string::npos);
  EXPECT_EQ(greet(hello("store", std::string(32, '0')), 1000, kToken).error().code,
            Code::kUnauthenticated);
  EXPECT_EQ(greet(hello("comm"), 1000, kToken).error().code, Code::kUnauthenticated);
  EXPECT_TRUE(engine.wait_graph().clients.empty());
}

TEST_F(GreetingTest, RejectsOtherProtocolsAtTheFirstByte) {
  connection = store::make_native_connection(engine, identity, "10.0.0.1:9");
  store::Replies replies;
  EXPECT_TRUE(connection->receive("IV", 1, replies).ok());
  EXPECT_FALSE(connection->receive("x", 1, replies).ok());
}

}  // namespace
}  // namespace ivy
