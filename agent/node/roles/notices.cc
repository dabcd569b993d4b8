// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/notices.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/node/facts/cloud_notices.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/status.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

namespace http = boost::beast::http;
using boost::asio::ip::tcp;

constexpr char kAddress[] = "169.254.169.254";
constexpr std::uint16_t kPort = 80;
constexpr std::chrono::seconds kPollPeriod{5};
// One request, from the connection to the end of the answer.
constexpr std::chrono::seconds kRequestLimit{2};
// Azure may take two minutes for the first answer, while it enables its service for the machine.
constexpr std::chrono::seconds kFirstAzureLimit{130};
constexpr std::size_t kMaxAnswer = 256u << 10;
// After this many polls without an answer, polls are rarer: nothing may listen at the address.
constexpr int kPatience = 12;
constexpr std::chrono::seconds kRarePeriod{60};

struct Answer {
  int status = 0;
  std::string body;
};

// Makes one request on a connection of its own.
Result<Answer> request(const CloudRequest& what, std::chrono::seconds limit) {
  boost::asio::io_context loop(1);
  boost::beast::tcp_stream stream(loop);
  http::request<http::empty_body> message(what.is_put ? http::verb::put : http::verb::get,
                                          what.path, 11);
  message.set(http::field::host, kAddress);
  message.set(http::field::user_agent, "ivyrun");
  message.keep_alive(false);
  if (!what.header.empty()) message.set(what.header, what.value);
  if (what.is_put) message.set(http::field::content_length, "0");
  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxAnswer);
  boost::system::error_code failure = boost::asio::error::timed_out;
  const auto read = [&](const boost::system::error_code& error, std::size_t) {
    if ((failure = error)) return;
    failure = boost::asio::error::timed_out;
    http::async_read(stream, buffer, parser,
                     [&](const boost::system::error_code& end, std::size_t) { failure = end; });
  };
  const auto write = [&](const boost::system::error_code& error) {
    if ((failure = error)) return;
    failure = boost::asio::error::timed_out;
    http::async_write(stream, message, read);
  };
  stream.async_connect(tcp::endpoint(boost::asio::ip::make_address_v4(kAddress), kPort), write);
  loop.run_for(limit);
  if (failure)
    return Error{Code::kUnavailable, std::string(kAddress) + what.path + ": " + failure.message()};
  return Answer{static_cast<int>(parser.get().result_int()), std::move(parser.get().body())};
}

// Returns false if no process reads any longer.
bool print(const std::string& line) { return write_all(STDOUT_FILENO, line + "\n"); }

std::string line_of(const char* kind, const CloudNotice& notice) {
  std::int64_t deadline_ns = 0;
  if (notice.deadline_ms && std::string(kind) == "notice")
    deadline_ns = monotonic_ns() + (*notice.deadline_ms - wall_ms()) * 1'000'000;
  return std::string(kind) + "\t" + std::to_string(std::max<std::int64_t>(deadline_ns, 0)) + "\t" +
         notice.source + "\t" + notice.reason;
}

class Poller {
 public:
  explicit Poller(Cloud cloud) : cloud_(cloud) {}

  // Returns false if no process reads any longer.
  bool poll() {
    const Result<std::vector<CloudNotice>> present = present_notices();
    if (!present.ok()) {
      ++failures_;
      return failures_ != kPatience || print("note\tno notices: " + present.error().message);
    }
    failures_ = 0;
    const NoticeChanges::Changes changes = changes_.take(*present);
    for (const CloudNotice& one : changes.added)
      if (!print(line_of("notice", one))) return false;
    for (const CloudNotice& one : changes.withdrawn)
      if (!print(line_of("withdrawn", one))) return false;
    return true;
  }
  std::chrono::seconds pause() const { return failures_ < kPatience ? kPollPeriod : kRarePeriod; }

 private:
  Result<std::vector<CloudNotice>> present_notices() {
    IVY_CHECK(prepare());
    std::vector<CloudNotice> all;
    for (const CloudRequest& what : poll_requests(cloud_, token_)) {
      const bool is_slow = cloud_ == Cloud::kAzure && !has_answer_;
      const Answer answer = IVY_TRY(request(what, is_slow ? kFirstAzureLimit : kRequestLimit));
      has_answer_ = true;
      // An expired token.
      if (answer.status == 401) token_.clear();
      for (CloudNotice& one :
           IVY_TRY(read_answer(cloud_, what, answer.status, answer.body, name_, wall_ms())))
        all.push_back(std::move(one));
    }
    return all;
  }

  // Gets what the requests of a poll need.
  Result<void> prepare() {
    if (cloud_ == Cloud::kAzure && name_.empty()) {
      const Answer answer = IVY_TRY(request(azure_name_request(), kRequestLimit));
      if (answer.status == 200) name_ = answer.body;
    }
    // Renewed at half its time.
    const bool is_old = monotonic_ns() - token_at_ns_ > kTokenSeconds * std::int64_t{500'000'000};
    if (cloud_ != Cloud::kAws || (!token_.empty() && !is_old)) return {};
    const Answer answer = IVY_TRY(request(aws_token_request(), kRequestLimit));
    token_ = answer.status == 200 ? answer.body : "";
    token_at_ns_ = monotonic_ns();
    return {};
  }

  const Cloud cloud_;
  std::string token_;  // AWS
  std::string name_;   // Azure
  std::int64_t token_at_ns_ = 0;
  bool has_answer_ = false;
  int failures_ = 0;  // Polls in a row without an answer.
  NoticeChanges changes_;
};

}  // namespace

int run_notices(const char* service) {
  const Cloud cloud = cloud_named(service);
  if (cloud == Cloud::kNone) return kExitUsage;
  std::signal(SIGPIPE, SIG_IGN);
  Poller poller(cloud);
  while (poller.poll()) std::this_thread::sleep_for(poller.pause());
  return 0;
}

}  // namespace ivy
