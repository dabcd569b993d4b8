// Text of another host, or of a program there. It may command a terminal or begin a line that looks
// like ours, so it is no std::string: wrapping happens by itself, and the only way out is escaped.
// Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace ivy {

// Bytes that people may see on a terminal: control characters become \xNN, newlines stay. Controls
// are C0, DEL and C1, the latter in UTF-8 and as single bytes that belong to no UTF-8 character.
std::string escape_control(std::string_view text);

class RemoteText {
 public:
  RemoteText() = default;
  RemoteText(std::string bytes) : bytes_(std::move(bytes)) {}  // NOLINT: by intention
  RemoteText(const char* bytes) : bytes_(bytes) {}             // NOLINT: by intention

  bool empty() const { return bytes_.empty(); }
  // For people, as a part of one line: newlines are escaped too.
  std::string line() const;
  // For people, where each line is indented by whoever shows it (Diagnostic::cause).
  std::string lines() const { return escape_control(bytes_); }
  // Where this stands in it, or std::string::npos.
  std::size_t find(std::string_view text) const { return bytes_.find(text); }
  // For programs, such as an Error that is escaped where it is shown. Never for people.
  const std::string& bytes() const { return bytes_; }

  RemoteText& operator+=(const RemoteText& more) {
    bytes_ += more.bytes_;
    return *this;
  }
  friend RemoteText operator+(RemoteText first, const RemoteText& second) {
    return first += second;
  }
  friend bool operator==(const RemoteText& a, const RemoteText& b) { return a.bytes_ == b.bytes_; }

 private:
  std::string bytes_;
};

}  // namespace ivy
