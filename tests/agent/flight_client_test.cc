// SPDX-License-Identifier: Apache-2.0
// Requests to torch's worker server, which the tests imitate.
#include "agent/node/hang/flight_client.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "agent/node/hang/flight_trim.h"
#include "proto/os/listening_socket.h"

namespace ivy {
namespace {

constexpr std::uint64_t kBegin = 1'000'000'000;
constexpr std::size_t kRoom = 1u << 20;

std::string record(const std::string& operation) {
  return "{\"entries\":[{\"profiling_name\":\"" + operation + "\"}],\"version\":\"2.10\"}";
}

class FlightServerTest : public testing::Test {
 protected:
  FlightServerTest() {
    std::string name = testing::TempDir() + "server-XXXXXX";
    directory_ = mkdtemp(name.data());
    path_ = directory_ + "/socket";
  }
  ~FlightServerTest() override { std::filesystem::remove_all(directory_); }

  void listen() {
    Result<int> fd = listen_unix(path_, SOCK_STREAM, 5);
    ASSERT_TRUE(fd.ok()) << fd.error().message;
    listener_.reset(*fd);
    fcntl(listener_.get(), F_SETFL, O_NONBLOCK);
  }

  // Answers the pending requests, with 404 if there is no answer for one.
  void serve() {
    for (;;) {
      const Descriptor peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!peer) return;
      char text[4096];
      const ssize_t count = read(peer.get(), text, sizeof text);
      const std::string request(text, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
      constexpr std::size_t kMethod = 14;  // The length of "POST /handler/".
      const std::string question = request.substr(kMethod, request.find(" HTTP") - kMethod);
      asked_.push_back(question);
      const auto answer = answers_.find(question);
      const std::string printed = answer == answers_.end()
                                      ? "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"
                                      : "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " +
                                            std::to_string(answer->second.size()) + "\r\n\r\n" +
                                            answer->second;
      EXPECT_EQ(write(peer.get(), printed.data(), printed.size()),
                static_cast<ssize_t>(printed.size()));
    }
  }

  std::vector<FlightClient::Record> ask(FlightClient& server) {
    for (int i = 0; i < 100 && !server.advance(kBegin); ++i) serve();
    EXPECT_TRUE(server.advance(kBegin));
    return server.take(note_);
  }

  std::string directory_;
  std::string path_;
  Descriptor listener_;
  std::map<std::string, std::string> answers_;
  std::vector<std::string> asked_;
  std::string note_;
};

TEST_F(FlightServerTest, DoesNotWaitIfNoServerListens) {
  FlightClient none(path_, kRoom);
  EXPECT_TRUE(none.advance(kBegin));
  listen();
  listener_.reset();
  FlightClient rejected(path_, kRoom);
  EXPECT_TRUE(rejected.advance(kBegin));
  FlightClient too_long(directory_ + std::string(200, 'x'), kRoom);
  EXPECT_TRUE(too_long.advance(kBegin));
  EXPECT_TRUE(too_long.take(note_).empty());
  EXPECT_EQ(note_, "");
}

TEST_F(FlightServerTest, RequestsTheRecordOfEachBackend) {
  listen();
  answers_["fr_trace_json?backend=gloo"] = record("gloo:all_reduce");
  answers_["fr_trace_json?backend=nccl2"] = record("nccl2:all_reduce");
  answers_["fr_trace_json?backend=nccl"] = R"({"pg_config":{},"pg_status":{},"version":"2.10"})";
  FlightClient server(path_, kRoom);
  const std::vector<FlightClient::Record> records = ask(server);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].backend, "gloo");
  EXPECT_EQ(records[0].json, record("gloo:all_reduce"));
  EXPECT_TRUE(records[0].is_complete);
  EXPECT_EQ(records[1].backend, "nccl2");
  EXPECT_FALSE(records[1].is_complete);
  EXPECT_EQ(note_, "");
}

TEST_F(FlightServerTest, RequestsTheOldNcclRecordFromAnOlderTorch) {
  listen();
  for (const char* backend : {"gloo", "nccl"})
    answers_[std::string("fr_trace_json?backend=") + backend] = record("gloo:all_reduce");
  answers_["dump_nccl_trace_json?onlyactive=false"] = record("nccl:all_reduce");
  FlightClient server(path_, kRoom);
  const std::vector<FlightClient::Record> records = ask(server);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].backend, "nccl");
  EXPECT_TRUE(records[1].is_complete);
  EXPECT_EQ(asked_.size(), 3u);
}

TEST_F(FlightServerTest, GivesUpOnASilentServerAtTheDeadline) {
  listen();
  FlightClient server(path_, kRoom);
  EXPECT_FALSE(server.advance(kBegin));
  EXPECT_FALSE(server.advance(kBegin + FlightClient::kTimeoutNs - 1));
  EXPECT_TRUE(server.advance(kBegin + FlightClient::kTimeoutNs));
  EXPECT_TRUE(server.take(note_).empty());
  EXPECT_EQ(note_, "torch's worker server did not answer in time");
}

TEST_F(FlightServerTest, DoesNotBlockOnAFullBacklog) {
  Result<int> fd = listen_unix(path_, SOCK_STREAM, 0);
  ASSERT_TRUE(fd.ok());
  listener_.reset(*fd);
  std::vector<FlightClient> servers;
  for (int i = 0; i < 4; ++i) servers.emplace_back(path_, kRoom);
  for (FlightClient& server : servers) EXPECT_FALSE(server.advance(kBegin));
  for (FlightClient& server : servers)
    EXPECT_TRUE(server.advance(kBegin + FlightClient::kTimeoutNs));
}

TEST_F(FlightServerTest, ReadsAHeadWithAnySpellingOfContentLength) {
  for (const char* const header : {"content-length:", "CONTENT-LENGTH: \t", "Content-Length:  "}) {
    std::filesystem::remove(path_);
    listen();
    const std::string body = record("gloo:all_reduce");
    const std::string printed = std::string("HTTP/1.1 200 OK\r\nX-Content-Length: 1\r\n") + header +
                                std::to_string(body.size()) + " \r\n\r\n" + body;
    FlightClient server(path_, kRoom);
    for (int i = 0; i < 100 && !server.advance(kBegin); ++i) {
      const Descriptor peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      char text[4096];
      if (!peer || read(peer.get(), text, sizeof text) <= 0) continue;
      EXPECT_EQ(write(peer.get(), printed.data(), printed.size()),
                static_cast<ssize_t>(printed.size()));
    }
    EXPECT_EQ(server.take(note_).size(), 1u) << header;
  }
}

TEST_F(FlightServerTest, OmitsAHugeRecordAndReportsIt) {
  listen();
  const std::string huge = record(std::string(60'000, 'x'));
  answers_["fr_trace_json?backend=gloo"] = huge;
  FlightClient server(path_, 50'000);
  EXPECT_TRUE(ask(server).empty());
  EXPECT_EQ(
      note_,
      "a flight record was omitted: it has " + std::to_string(huge.size()) +
          " bytes, but only 50000 were left for it (a smaller TORCH_FR_BUFFER_SIZE reduces it)");
}

TEST_F(FlightServerTest, DoesNotReadAnAnswerBeyondTheLimit) {
  listen();
  FlightClient server(path_, kRoom);
  for (int i = 0; i < 100 && !server.advance(kBegin); ++i) {
    const Descriptor peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string head = "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{";
    if (!peer) continue;
    EXPECT_EQ(write(peer.get(), head.data(), head.size()), static_cast<ssize_t>(head.size()));
  }
  EXPECT_TRUE(server.take(note_).empty());
  EXPECT_NE(note_.find("it has 99999999999 bytes, but only 8388608"), std::string::npos) << note_;
}

TEST(TrimmedFlight, DropsTheOldestFinishedEntriesFirst) {
  const std::string over = R"({"a":"} \"{","retired":true})";
  const std::string completed = R"({"b":{"c":[]},"state":"completed"})";
  const std::string waits = R"({"d":1,"retired":false,"state":"started"})";
  const auto whole = [](const std::string& entries) {
    return R"({"entries":[)" + entries + R"(],"version":"2.10"})";
  };
  const std::string all = whole(over + "," + waits + "," + completed + "," + waits);
  EXPECT_EQ(trimmed_flight(all, all.size()), all);
  EXPECT_EQ(trimmed_flight(all, all.size() - 1), whole(waits + "," + completed + "," + waits));
  EXPECT_EQ(trimmed_flight(all, whole(waits + "," + waits).size()), whole(waits + "," + waits));
  EXPECT_EQ(trimmed_flight(all, 10), "");
  for (const char* broken : {R"({"entries":[{"a":"xxxxxxxxxxx)", R"({"entries":[}}}}}}}}}}}}}}]})",
                             R"({"entries":[]                  })", "xxxxxxxxxxxxxxxxxxxxxxxxxxxx"})
    EXPECT_EQ(trimmed_flight(broken, 10), "") << broken;
}

TEST_F(FlightServerTest, RejectsInvalidAnswers) {
  for (const std::string& printed :
       {std::string("\r\n\r\n"), std::string("HTTP/1.1 200 OK\r\n\r\n{\"entries\":[{"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n{\"entries\":[{"),
        std::string("HTTP/1.1 500 No\r\nContent-Length: 13\r\n\r\n{\"entries\":[{"),
        std::string(FlightClient::kMaxHeadBytes + 1, 'x')}) {
    std::filesystem::remove(path_);
    listen();
    FlightClient server(path_, kRoom);
    for (int i = 0; i < 100 && !server.advance(kBegin); ++i) {
      const Descriptor peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      char text[4096];
      if (!peer || read(peer.get(), text, sizeof text) <= 0) continue;
      EXPECT_EQ(write(peer.get(), printed.data(), printed.size()),
                static_cast<ssize_t>(printed.size()));
    }
    EXPECT_TRUE(server.advance(kBegin));
    EXPECT_TRUE(server.take(note_).empty()) << printed.substr(0, 60);
  }
}

}  // namespace
}  // namespace ivy
