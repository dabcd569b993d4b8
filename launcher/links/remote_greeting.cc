// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/remote_greeting.h"

#include <algorithm>

namespace ivy {
namespace {

constexpr std::string_view kMarker = "\x01ivy:";
constexpr std::string_view kFail = "\x01ivy:fail ";

// Converts the text between "\x01ivy:" and the newline. Returns false if it is not a marker.
bool marker_event(std::string_view line, std::vector<GreetingEvent>& events) {
  using Kind = GreetingEvent::Kind;
  if (line == "ready") {
    events.push_back({Kind::kReady, {}});
  } else if (line.starts_with("send ")) {
    events.push_back({Kind::kSend, std::string(line.substr(5))});
  } else if (line.starts_with("need ")) {
    events.push_back({Kind::kNeed, std::string(line.substr(5))});
  } else if (line.starts_with("fail ")) {
    events.push_back({Kind::kFail, std::string(line.substr(5))});
  } else {
    return false;
  }
  return true;
}

// Returns how many bytes at the end of the text may be the beginning of a marker.
std::size_t partial_marker(std::string_view text) {
  for (std::size_t length = std::min(text.size(), kMarker.size() - 1); length > 0; --length) {
    if (text.ends_with(kMarker.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

std::vector<GreetingEvent> RemoteGreeting::feed(std::string_view bytes) {
  std::vector<GreetingEvent> events;
  buffer_.append(bytes);
  while (step(events)) {
  }
  return events;
}

bool RemoteGreeting::step(std::vector<GreetingEvent>& events) {
  if (buffer_.empty()) return false;
  if (is_handed_over_) {
    events.push_back({GreetingEvent::Kind::kBytes, std::move(buffer_)});
    buffer_.clear();
    return false;
  }
  return sender_ == Sender::kShell ? shell_step(events) : relay_step(events);
}

bool RemoteGreeting::shell_step(std::vector<GreetingEvent>& events) {
  const std::size_t start = buffer_.find(kMarker);
  if (start == std::string::npos) {
    keep_noise(buffer_.size() - partial_marker(buffer_));
    if (noise_bytes_ <= kNoiseMaxBytes) return false;
    events.push_back({GreetingEvent::Kind::kFlood, last_line(noise_)});
    is_handed_over_ = true;
    buffer_.clear();
    return false;
  }
  keep_noise(start);
  const std::size_t end = buffer_.find('\n');
  if (end == std::string::npos) {
    if (buffer_.size() <= kMarkerMaxBytes) return false;
    keep_noise(kMarker.size());
    return true;
  }
  const bool known =
      marker_event(std::string_view(buffer_).substr(kMarker.size(), end - kMarker.size()), events);
  if (!known) {
    keep_noise(kMarker.size());
    return true;
  }
  buffer_.erase(0, end + 1);
  if (events.back().kind == GreetingEvent::Kind::kReady) sender_ = Sender::kRelay;
  return true;
}

bool RemoteGreeting::relay_step(std::vector<GreetingEvent>& events) {
  const std::size_t compared = std::min(buffer_.size(), kFail.size());
  if (std::string_view(buffer_).substr(0, compared) != kFail.substr(0, compared)) {
    is_handed_over_ = true;
    return true;
  }
  const std::size_t end = buffer_.find('\n');
  if (end == std::string::npos) {
    if (buffer_.size() <= kMarkerMaxBytes) return false;
    is_handed_over_ = true;
    return true;
  }
  events.push_back({GreetingEvent::Kind::kFail, buffer_.substr(kFail.size(), end - kFail.size())});
  buffer_.clear();
  is_handed_over_ = true;
  return false;
}

void RemoteGreeting::keep_noise(std::size_t count) {
  noise_.append(buffer_, 0, count);
  noise_bytes_ += count;
  buffer_.erase(0, count);
  if (noise_.size() > kNoiseKeptBytes) noise_.erase(0, noise_.size() - kNoiseKeptBytes);
}

void append_tail(std::string& text, std::string_view more) {
  constexpr std::size_t kKeptBytes = 4096;
  text.append(more);
  if (text.size() > kKeptBytes) text.erase(0, text.size() - kKeptBytes);
}

std::string last_line(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t end = text.find_last_not_of(kBlank);
  if (end == std::string_view::npos) return {};
  text = text.substr(0, end + 1);
  const std::size_t newline = text.find_last_of("\r\n");
  if (newline != std::string_view::npos) text = text.substr(newline + 1);
  const std::size_t begin = text.find_first_not_of(kBlank);
  return std::string(text.substr(begin == std::string_view::npos ? 0 : begin));
}

}  // namespace ivy
