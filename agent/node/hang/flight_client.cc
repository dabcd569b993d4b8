// SPDX-License-Identifier: Apache-2.0
#include "agent/node/hang/flight_client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "agent/node/hang/flight_trim.h"

namespace ivy {
namespace {

constexpr std::string_view kTrace = "fr_trace_json?backend=";
constexpr std::string_view kOldNccl = "dump_nccl_trace_json?onlyactive=false";
constexpr std::string_view kGloo = "gloo";
constexpr std::string_view kNccl = "nccl";
// Gloo comes first: a torch that does not know the parameter answers with Gloo's record every time.
constexpr std::array<std::string_view, 4> kBackends = {kGloo, kNccl, "nccl2", "nccl-lazy"};
constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::string_view kOk = "200";

bool must_wait() { return errno == EAGAIN || errno == EINTR; }

// Returns the code of a status line: "200" for "HTTP/1.1 200 OK".
std::string_view status_of(std::string_view answer) {
  const std::size_t space = answer.find(' ');
  return answer.starts_with("HTTP/1.") && space != std::string_view::npos
             ? answer.substr(space + 1, kOk.size())
             : "";
}

std::size_t body_length(std::string_view head) {
  constexpr std::string_view kName = "\r\nContent-Length: ";
  const std::size_t at = head.find(kName);
  return at == std::string_view::npos
             ? 0
             : std::strtoull(std::string(head.substr(at + kName.size(), 20)).c_str(), nullptr, 10);
}

// Returns false for a backend that has never been used: its record has neither of these.
bool has_content(std::string_view record) {
  return record.find("\"entries\":[{") != std::string_view::npos ||
         record.find("\"pg_status\":{\"") != std::string_view::npos;
}

}  // namespace

FlightClient::FlightClient(const std::string& path, std::size_t limit_bytes)
    : address_(unix_address(path)), room_(limit_bytes) {
  for (const std::string_view backend : kBackends)
    questions_.push_back(std::string(kTrace) + std::string(backend));
  questions_.emplace_back(kOldNccl);
}

bool FlightClient::advance(std::uint64_t now_ns) {
  if (deadline_ns_ == 0) deadline_ns_ = now_ns + kTimeoutNs;
  while (!questions_.empty()) {
    if (now_ns >= deadline_ns_) {
      if (note_.empty()) note_ = "torch's worker server did not answer in time";
      questions_.clear();
    } else if (!socket_ && !dial()) {
      return questions_.empty();
    } else if (send_question() && receive()) {
      return false;
    } else {
      answered();
    }
  }
  socket_.reset();
  return true;
}

// Returns false if the server cannot be reached. Only a full backlog (EAGAIN), whose server is slow
// or stopped, is worth another attempt.
bool FlightClient::dial() {
  sent_ = 0;
  length_ = 0;
  received_.clear();
  if (address_.is_valid()) socket_.reset(address_.open_socket());
  if (socket_ && connect(socket_.get(), address_.get(), address_.size) == 0) return true;
  const bool may_come = socket_ && must_wait();
  socket_.reset();
  if (!may_come) questions_.clear();
  return false;
}

bool FlightClient::send_question() {
  const std::string request = "POST /handler/" + questions_.front() +
                              " HTTP/1.1\r\nHost: ivyrun\r\nConnection: close\r\n"
                              "Content-Length: 0\r\n\r\n";
  if (sent_ == request.size()) return true;
  const ssize_t count = send(socket_.get(), request.data() + sent_, request.size() - sent_,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count > 0) sent_ += static_cast<std::size_t>(count);
  return count > 0 || must_wait();
}

bool FlightClient::receive() {
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t count = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count <= 0) return count < 0 && must_wait();
    received_.append(buffer.data(), static_cast<std::size_t>(count));
    if (length_ == 0) {
      const std::size_t end = received_.find(kHeadEnd);
      if (end == std::string::npos && received_.size() <= kMaxHeadBytes) continue;
      if (end == std::string::npos) return false;
      const std::size_t body = body_length(std::string_view(received_).substr(0, end));
      if (body > kMaxAnswerBytes) leave_out(body, kMaxAnswerBytes);
      if (body == 0 || body > kMaxAnswerBytes) return false;
      length_ = end + kHeadEnd.size() + body;
    }
    if (received_.size() >= length_) return false;
  }
}

void FlightClient::answered() {
  const bool is_whole = length_ > 0 && received_.size() >= length_;
  const std::size_t head = received_.find(kHeadEnd) + kHeadEnd.size();
  if (is_whole && status_of(received_) == kOk) keep(received_.substr(head, length_ - head));
  next_question();
}

void FlightClient::leave_out(std::size_t bytes, std::size_t limit) {
  note_ = "a flight record was omitted: it has " + std::to_string(bytes) + " bytes, but only " +
          std::to_string(limit) + " were left for it (a smaller TORCH_FR_BUFFER_SIZE reduces it)";
}

void FlightClient::keep(const std::string& body) {
  const std::string& question = questions_.front();
  if (!has_content(body)) return;
  const bool is_trace = question.starts_with(kTrace);
  if (body == last_answer_) {
    if (is_trace) other_backends_are_unknown();
    return;
  }
  last_answer_ = body;
  std::string json = trimmed_flight(body, room_);
  if (json.empty()) return leave_out(body.size(), room_);
  room_ -= json.size();
  const std::string backend = is_trace ? question.substr(kTrace.size()) : std::string(kNccl);
  records_.push_back({backend, std::move(json), !is_trace || backend == kGloo});
}

// This torch returns the same record for every backend, so the remaining questions are dropped.
void FlightClient::other_backends_are_unknown() {
  const auto is_trace = [](const std::string& other) { return other.starts_with(kTrace); };
  questions_.erase(std::remove_if(questions_.begin() + 1, questions_.end(), is_trace),
                   questions_.end());
}

void FlightClient::next_question() {
  socket_.reset();
  questions_.pop_front();
}

std::vector<FlightClient::Record> FlightClient::take(std::string& note) {
  if (note.empty()) note = note_;
  return std::move(records_);
}

}  // namespace ivy
