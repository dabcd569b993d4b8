// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/ras.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "proto/contract/text.h"

namespace ivy {
namespace {

// All commands are sent together, because the server reads line by line. The server waits two
// seconds for a silent process.
constexpr std::string_view kRequest = "CLIENT PROTOCOL 2\nTIMEOUT 2\nVERBOSE STATUS\n";
constexpr std::string_view kGreeting = "SERVER PROTOCOL ";
constexpr std::string_view kAccepted = "OK";

std::string_view trimmed(std::string_view line) {
  const std::size_t begin = line.find_first_not_of(' ');
  if (begin == std::string_view::npos) return "";
  return line.substr(begin, line.find_last_not_of(' ') + 1 - begin);
}

bool is_heading(std::string_view line) {
  return line == "Errors" || line == "Warnings" ||
         line.find_first_not_of('=') == std::string_view::npos;
}

bool is_worth_retrying(int error) { return error == EAGAIN || error == EINTR; }

}  // namespace

RasQuestion::RasQuestion(std::string_view address, TimePoint deadline)
    : address_(parse_with_port(address)), deadline_(deadline) {}

bool RasQuestion::advance(TimePoint now) {
  if (!address_.is_valid() || now >= deadline_) return true;
  if (socket_ && received_.empty() && now - dialled_at_ >= kFirstWord) socket_.reset();
  if (!socket_) dial(now);
  const bool is_open = socket_ && (sent_ == kRequest.size() || send_request()) && receive();
  if (!is_open) address_ = {};  // Rejected or closed; do not retry.
  return !is_open;
}

void RasQuestion::dial(TimePoint now) {
  dialled_at_ = now;
  sent_ = 0;
  socket_.reset(address_.open_socket());
  if (!socket_) return;
  if (connect(socket_.get(), address_.get(), address_.size) != 0 && errno != EINPROGRESS)
    socket_.reset();
}

bool RasQuestion::send_request() {
  const ssize_t count = send(socket_.get(), kRequest.data() + sent_, kRequest.size() - sent_,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count > 0) sent_ += static_cast<std::size_t>(count);
  return count > 0 || is_worth_retrying(errno);
}

bool RasQuestion::receive() {
  while (sent_ == kRequest.size() && received_.size() < kMaxBytes) {
    char buffer[4096];
    const std::size_t max_bytes = std::min(sizeof buffer, kMaxBytes - received_.size());
    const ssize_t count = recv(socket_.get(), buffer, max_bytes, MSG_DONTWAIT);
    if (count <= 0) return count < 0 && is_worth_retrying(errno);
    received_.append(buffer, static_cast<std::size_t>(count));
  }
  return received_.size() < kMaxBytes;
}

void RasQuestion::await(std::chrono::milliseconds longest) const {
  const bool has_sent = sent_ == kRequest.size();
  pollfd ready{socket_.get(), static_cast<short>(has_sent ? POLLIN : POLLOUT), 0};
  static_cast<void>(poll(&ready, 1, static_cast<int>(longest.count())));
}

// Leaves out the greeting and the replies to the first commands.
std::string RasQuestion::answer() const {
  if (!received_.starts_with(kGreeting)) return "";
  std::string text;
  bool is_preface = true;
  for (const std::string_view line : parts_of(received_, '\n')) {
    is_preface = is_preface && (line.starts_with(kGreeting) || line == kAccepted);
    if (is_preface) continue;
    for (const char c : line) text += c >= ' ' && c <= '~' ? c : '?';
    text += '\n';
  }
  return text;
}

std::string summary_of_ras(std::string_view answer, std::size_t longest) {
  const std::vector<std::string_view> lines = parts_of(answer, '\n');
  const auto errors = std::find(lines.begin(), lines.end(), "Errors");
  if (errors == lines.end()) return "no answer in time";
  std::string summary;
  for (auto line = errors; line != lines.end(); ++line) {
    const std::string_view text = trimmed(*line);
    if (text.empty() || is_heading(text)) continue;
    // A headline, "#0-0 (27a079b828ff1a75) MISMATCH", precedes its indented lines.
    const bool is_headline = line->front() != ' ';
    if (!summary.empty()) summary += summary.back() == ':' ? " " : ", ";
    summary += text;
    if (is_headline) summary += ':';
  }
  return summary.empty() ? std::string(kRasNoError) : summary.substr(0, longest);
}

}  // namespace ivy
