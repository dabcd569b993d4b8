// SPDX-License-Identifier: Apache-2.0
#include "agent/node/hang/flight_client.h"

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "agent/node/hang/flight_trim.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr std::string_view kGloo = "gloo";
constexpr std::string_view kNccl = "nccl";
// Gloo comes first: a torch that does not know the parameter returns Gloo's record every time.
constexpr std::array<std::string_view, 4> kBackends = {kGloo, kNccl, "nccl2", "nccl-lazy"};
constexpr std::string_view kHeadTerminator = "\r\n\r\n";
constexpr std::string_view kOk = "200";

bool is_worth_retrying(int error) { return error == EAGAIN || error == EINTR; }

// Returns the code of a status line: "200" for "HTTP/1.1 200 OK". Empty if it is not HTTP.
std::string_view status_code(std::string_view head) {
  const std::size_t space = head.find(' ');
  return head.starts_with("HTTP/1.") && space != std::string_view::npos
             ? head.substr(space + 1, kOk.size())
             : "";
}

// Returns the value of Content-Length, or 0 if it is missing or invalid.
std::size_t content_length(std::string_view head) {
  while (!head.empty()) {
    std::string_view value = take_part(head, '\n');
    if (lower_case(take_part(value, ':')) != "content-length") continue;
    if (value.ends_with('\r')) value.remove_suffix(1);
    const std::vector<std::string_view> words = words_of(value);
    return words.size() == 1 ? to_number<std::size_t>(words[0]).value_or(0) : 0;
  }
  return 0;
}

// Returns false for a backend that has never been used: its record has neither of these.
bool has_content(std::string_view record) {
  return record.find("\"entries\":[{") != std::string_view::npos ||
         record.find("\"pg_status\":{\"") != std::string_view::npos;
}

std::string omission_note(std::size_t bytes, std::size_t limit) {
  return "a flight record was omitted: it has " + std::to_string(bytes) + " bytes, but only " +
         std::to_string(limit) + " were left for it (a smaller TORCH_FR_BUFFER_SIZE reduces it)";
}

}  // namespace

FlightClient::FlightClient(const std::string& path, std::size_t limit_bytes)
    : address_(unix_address(path)), remaining_bytes_(limit_bytes) {
  for (const std::string_view name : kBackends) {
    const std::string backend(name);
    requests_.push_back({"fr_trace_json?backend=" + backend, backend, true, name == kGloo});
  }
  // The older NCCL backend of torch 2.11 has a handler without a parameter.
  requests_.push_back({"dump_nccl_trace_json?onlyactive=false", std::string(kNccl), false, true});
}

bool FlightClient::advance(std::uint64_t now_ns) {
  if (deadline_ns_ == 0) deadline_ns_ = now_ns + kTimeoutNs;
  if (!requests_.empty() && now_ns >= deadline_ns_) {
    if (note_.empty()) note_ = "torch's worker server did not answer in time";
    requests_.clear();
  }
  while (!requests_.empty()) {
    const Progress dialed = socket_ ? Progress::kDone : dial();
    if (dialed == Progress::kPending) return false;
    if (dialed == Progress::kFailed) {
      requests_.clear();
      break;
    }
    const Progress exchanged = exchange();
    if (exchanged == Progress::kPending) return false;
    const Request request = std::move(requests_.front());
    requests_.pop_front();
    socket_.reset();
    if (exchanged == Progress::kDone) on_response(request);
  }
  socket_.reset();
  return true;
}

// Fails if the server cannot be reached. Only a full backlog (EAGAIN), whose server is slow or
// stopped, is worth another attempt.
FlightClient::Progress FlightClient::dial() {
  sent_bytes_ = 0;
  received_.clear();
  head_bytes_ = 0;
  body_bytes_ = 0;
  if (!address_.is_valid()) return Progress::kFailed;
  socket_.reset(address_.open_socket());
  if (!socket_) return Progress::kFailed;
  if (connect(socket_.get(), address_.get(), address_.size) == 0) return Progress::kDone;
  const int error = errno;
  socket_.reset();
  return is_worth_retrying(error) ? Progress::kPending : Progress::kFailed;
}

FlightClient::Progress FlightClient::exchange() {
  const Progress sent = send_request();
  return sent == Progress::kDone ? receive_response() : sent;
}

FlightClient::Progress FlightClient::send_request() {
  const std::string request = "POST /handler/" + requests_.front().handler +
                              " HTTP/1.1\r\nHost: ivyrun\r\nConnection: close\r\n"
                              "Content-Length: 0\r\n\r\n";
  while (sent_bytes_ < request.size()) {
    const ssize_t count = send(socket_.get(), request.data() + sent_bytes_,
                               request.size() - sent_bytes_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) return is_worth_retrying(errno) ? Progress::kPending : Progress::kFailed;
    sent_bytes_ += static_cast<std::size_t>(count);
  }
  return Progress::kDone;
}

FlightClient::Progress FlightClient::receive_response() {
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t count = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0) return is_worth_retrying(errno) ? Progress::kPending : Progress::kFailed;
    if (count == 0) return Progress::kFailed;  // The server closed the connection too early.
    received_.append(buffer.data(), static_cast<std::size_t>(count));
    const Progress head = head_bytes_ > 0 ? Progress::kDone : read_head();
    if (head == Progress::kFailed) return Progress::kFailed;
    if (head == Progress::kDone && received_.size() >= head_bytes_ + body_bytes_)
      return Progress::kDone;
  }
}

// Sets the lengths of head and body as soon as the head is complete. Fails if either is not within
// its limits.
FlightClient::Progress FlightClient::read_head() {
  const std::size_t end = received_.find(kHeadTerminator);
  if (end == std::string::npos)
    return received_.size() > kMaxHeadBytes ? Progress::kFailed : Progress::kPending;
  head_bytes_ = end + kHeadTerminator.size();
  body_bytes_ = content_length(std::string_view(received_).substr(0, end));
  if (body_bytes_ > kMaxBodyBytes) note_ = omission_note(body_bytes_, kMaxBodyBytes);
  return body_bytes_ > 0 && body_bytes_ <= kMaxBodyBytes ? Progress::kDone : Progress::kFailed;
}

// Adds the record to the result, unless it is empty, too large, or the same as the previous one.
void FlightClient::on_response(const Request& request) {
  if (status_code(received_) != kOk) return;
  const std::string body = received_.substr(head_bytes_, body_bytes_);
  if (!has_content(body)) return;
  if (body == last_body_) {
    // This torch ignores the parameter, so the other backends would have the same record.
    std::erase_if(requests_, [](const Request& other) { return other.has_backend_parameter; });
    return;
  }
  last_body_ = body;
  std::string json = trimmed_flight(body, remaining_bytes_);
  if (json.empty()) {
    note_ = omission_note(body.size(), remaining_bytes_);
    return;
  }
  remaining_bytes_ -= json.size();
  records_.push_back({request.backend, std::move(json), request.is_complete});
}

std::vector<FlightClient::Record> FlightClient::take(std::string& note) {
  if (note.empty()) note = note_;
  return std::move(records_);
}

}  // namespace ivy
